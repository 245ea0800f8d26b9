//! Certificates for one test.

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

/// A certificate authority for one test.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    /// Creates an authority with a new key.
    #[expect(clippy::new_without_default, reason = "each one is another")]
    pub fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // The name must differ from that of the server, or the server's certificate would appear
        // self-signed.
        params.distinguished_name.push(DnType::CommonName, "an authority");
        let key = KeyPair::generate().expect("a key");
        Authority { issuer: CertifiedIssuer::self_signed(params, key).expect("a certificate") }
    }

    /// Returns the certificate of the authority, as PEM.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Returns a certificate for this host name or address, and its key, as PEM.
    pub fn sign(&self, name: &str) -> (String, String) {
        self.sign_until(name, 4096)
    }

    /// Returns a certificate that expires at the start of this year, and its key, as PEM.
    pub fn sign_until(&self, name: &str, year: i32) -> (String, String) {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec![name.into()]).expect("parameters");
        params.not_after = rcgen::date_time_ymd(year, 1, 1);
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }
}
