//! TLS of a front: its files, their problems, and the certificates of clients.
//!
//! Certificates are replaced while a server runs, so the files are read again and again.
//! Connections that are open keep the certificate that they began with.

use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate::unstable::config::{Config, ConfigWarning, Tls};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::client::danger::HandshakeSignatureValid;
use tokio_rustls::rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio_rustls::rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use tokio_rustls::rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use tokio_rustls::rustls::{
    CertificateError, DigitallySignedStruct, DistinguishedName, Error, OtherError, RootCertStore,
    ServerConfig, SignatureScheme, crypto,
};
use tracing::{info, warn};

/// How often the files are read.
const CHECK_EVERY: Duration = Duration::from_secs(5);

/// The problem of a certificate without extensions, which OpenSSL creates with the old version 1.
const OLD_VERSION: &str = "the certificate has the old X.509 version 1, and version 3 is needed: \
     create it with a subjectAltName, for example with `-addext \
     subjectAltName=DNS:limits.example.com` for `openssl req -x509`, or with that name in an \
     `-extfile` for `openssl x509 -req`";

/// The problem of a key that only a passphrase can decrypt.
const ENCRYPTED: &str = "the private key is encrypted, and the server has no passphrase: decrypt it \
     with `openssl pkey -in KEY -out DECRYPTED`, and make the file readable for the server alone";

/// The TLS of a front, with the files as they were last read.
#[derive(Debug)]
pub struct FrontTls {
    files: TlsFiles,
    config: ArcSwap<ServerConfig>,
}

impl FrontTls {
    /// Loads the files.
    ///
    /// # Errors
    /// When a file cannot be read, is not PEM, or does not match the others.
    pub fn load(files: TlsFiles) -> Result<Self, TlsError> {
        let config = ArcSwap::from(server_config(&files)?);
        Ok(FrontTls { files, config })
    }

    /// The acceptor for a new connection.
    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }

    /// Loads the files whenever their content changes. Never returns.
    pub async fn follow(self: Arc<Self>) {
        let hasher = RandomState::new();
        let mut seen = self.files.content().map(|content| hasher.hash_one(content));
        loop {
            tokio::time::sleep(CHECK_EVERY).await;
            let (tls, hasher) = (Arc::clone(&self), hasher.clone());
            // The file system may hang.
            let read = tokio::task::spawn_blocking(move || {
                let now = tls.files.content().map(|content| hasher.hash_one(content));
                if now.is_some() && now != seen {
                    tls.load_again();
                }
                now
            });
            match read.await {
                // A file that is missing is being replaced.
                Ok(now) => seen = now.or(seen),
                Err(_) => return,
            }
        }
    }

    fn load_again(&self) {
        match server_config(&self.files) {
            Ok(config) => {
                self.config.store(config);
                info!(cert = %self.files.cert.display(), "loaded the changed TLS files");
            }
            Err(error) => warn!(%error, "the changed TLS files cannot be used: the old ones stay"),
        }
    }
}

/// The certificate files of one front.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The certificate chain, in PEM.
    pub cert: PathBuf,
    /// The private key of the certificate, in PEM.
    pub key: PathBuf,
    /// The CA that client certificates must be signed by, in PEM; `None` if clients need no
    /// certificate.
    pub client_ca: Option<PathBuf>,
    /// The name that client certificates must have; `None` for any.
    pub client_name: Option<ServerName<'static>>,
}

impl TlsFiles {
    /// The files of a config. Relative paths are resolved against `base`, the directory of the
    /// config.
    pub fn new(files: &Tls, base: Option<&Path>) -> Self {
        let path = |file: &String| base.unwrap_or(Path::new("")).join(file);
        TlsFiles {
            cert: path(&files.cert),
            key: path(&files.key),
            client_ca: files.client_ca.as_ref().map(path),
            client_name: None,
        }
    }

    /// The content of all files; `None` if one cannot be read.
    fn content(&self) -> Option<Vec<Vec<u8>>> {
        let paths = [&self.cert, &self.key].into_iter().chain(&self.client_ca);
        paths.map(|path| std::fs::read(path).ok()).collect()
    }
}

/// Files that are not a valid TLS configuration.
#[derive(Debug, thiserror::Error)]
#[error("{field}: {path}: {reason}")]
pub struct TlsError {
    /// The field of the config: `cert`, `key` or `client_ca`.
    pub field: &'static str,
    path: PathBuf,
    pub reason: String,
    /// Whether the files are valid, but are not of one pair.
    is_mismatch: bool,
}

const UNREADABLE: &str = "the file cannot be read";

impl TlsError {
    fn new(field: &'static str, path: &Path, reason: String) -> Self {
        TlsError { field, path: path.into(), reason, is_mismatch: false }
    }

    /// How to fix the field of the config.
    fn help(&self) -> &'static str {
        match self.field {
            _ if self.is_mismatch => "name the certificate and the key of one pair",
            "key" => "name the private key of `cert`, a PEM file that the server can read",
            "client_ca" => "name the CA of the clients, a PEM file that the server can read",
            _ => "name a valid certificate chain, a PEM file that the server can read",
        }
    }

    /// A hint for a file that a config names, to be appended to the message; empty if the file was
    /// read.
    pub fn path_hint(&self) -> &'static str {
        match self.reason.starts_with(UNREADABLE) {
            true => " (a relative path starts at the directory of the config)",
            false => "",
        }
    }
}

/// Loads the files.
fn server_config(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let provider = Arc::new(crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|reason| TlsError::new("cert", &files.cert, reason.to_string()))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates("client_ca", path)? {
                let added = roots.add(certificate);
                added.map_err(|reason| TlsError::new("client_ca", path, reason.to_string()))?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            let verifier = verifier.map_err(|e| TlsError::new("client_ca", path, e.to_string()))?;
            builder.with_client_cert_verifier(match files.client_name.clone() {
                Some(name) => Arc::new(ClientNameVerifier { verifier, name }),
                None => verifier,
            })
        }
    };
    let chain = certificates("cert", &files.cert)?;
    let config = builder.with_single_cert(chain, private_key(&files.key)?);
    let mut config = config.map_err(|reason| {
        let is_mismatch = matches!(reason, Error::InconsistentKeys(_));
        let reason = match reason {
            Error::InconsistentKeys(_) => {
                format!("the certificate does not belong to the key {}", files.key.display())
            }
            Error::InvalidCertificate(CertificateError::Other(OtherError(reason)))
                if reason.to_string() == "UnsupportedCertVersion" =>
            {
                OLD_VERSION.into()
            }
            reason => reason.to_string(),
        };
        TlsError { is_mismatch, ..TlsError::new("cert", &files.cert, reason) }
    })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Returns the problems of the TLS files of a config: files that are missing, unreadable or do not
/// match, and certificates that have expired. `base` is the directory of the config. Fronts that
/// are off are skipped.
pub fn tls_warnings(config: &Config, base: Option<&Path>) -> Vec<ConfigWarning> {
    let (tls, fronts) = (&config.tls, &config.fronts);
    let all = [
        ("http", &tls.http, &fronts.http),
        ("grpc", &tls.grpc, &fronts.grpc),
        ("resp", &tls.resp, &fronts.resp),
        ("admin", &tls.admin, &fronts.admin),
    ];
    let mut warnings = Vec::new();
    for (front, tls, address) in all {
        let Some(tls) = tls.as_ref().filter(|_| address.as_deref() != Some("off")) else {
            continue;
        };
        for (problem, effect) in problems(&TlsFiles::new(tls, base), UnixTime::now()) {
            let field = format!("tls.{front}.{}", problem.field);
            let (path, hint) = (problem.path.display(), problem.path_hint());
            let mut message = format!("{path}: {}{hint}", problem.reason);
            if effect == Effect::PreventsStart {
                message.push_str("; the server does not start with it");
            }
            warnings.push(config.warning(&field, message, problem.help().into()));
        }
    }
    warnings
}

/// The effect of a problem on a server that starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// The server starts, and clients reject the certificate.
    RejectedByClients,
    PreventsStart,
}

fn problems(files: &TlsFiles, now: UnixTime) -> Vec<(TlsError, Effect)> {
    let mut problems = Vec::new();
    let chains =
        [Some(("cert", &files.cert)), files.client_ca.as_ref().map(|ca| ("client_ca", ca))];
    for (field, path) in chains.into_iter().flatten() {
        match certificates(field, path) {
            Ok(chain) => {
                let invalid = chain.iter().find_map(|certificate| validity_error(certificate, now));
                problems.extend(
                    invalid.map(|reason| {
                        (TlsError::new(field, path, reason), Effect::RejectedByClients)
                    }),
                );
            }
            Err(error) => problems.push((error, Effect::PreventsStart)),
        }
    }
    problems.extend(private_key(&files.key).err().map(|error| (error, Effect::PreventsStart)));
    if problems.is_empty() {
        problems.extend(server_config(files).err().map(|error| (error, Effect::PreventsStart)));
    }
    problems
}

/// Returns why a certificate is not valid at a time; `None` if it is valid then. Its issuer is not
/// checked: without trusted roots, the validity period is the first check that fails.
fn validity_error(certificate: &CertificateDer<'_>, now: UnixTime) -> Option<String> {
    let days = |from: UnixTime, to: UnixTime| to.as_secs().saturating_sub(from.as_secs()) / 86_400;
    let algorithms = crypto::ring::default_provider().signature_verification_algorithms.all;
    let verified = ParsedCertificate::try_from(certificate).and_then(|parsed| {
        let roots = RootCertStore::empty();
        verify_server_cert_signed_by_trust_anchor(&parsed, &roots, &[], now, algorithms)
    });
    match verified {
        Err(Error::InvalidCertificate(CertificateError::ExpiredContext { time, not_after })) => {
            Some(format!("the certificate expired {} days ago", days(not_after, time)))
        }
        Err(Error::InvalidCertificate(CertificateError::NotValidYetContext {
            time,
            not_before,
        })) => Some(format!("the certificate becomes valid in {} days", days(time, not_before))),
        // rustls reports dates in the wrong order as expired, without the dates.
        Err(Error::InvalidCertificate(CertificateError::Expired)) => {
            Some("the certificate expires before it becomes valid".into())
        }
        _ => None,
    }
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| {
        let reason = match error {
            _ if is_encrypted(path) => ENCRYPTED.into(),
            pem::Error::NoItemsFound => "there is no private key in it".into(),
            error => pem_reason(error),
        };
        TlsError::new("key", path, reason)
    })
}

/// Whether a file holds an encrypted private key, in the form of PKCS #8 or the older one.
fn is_encrypted(path: &Path) -> bool {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.contains("BEGIN ENCRYPTED PRIVATE KEY") || text.contains("Proc-Type: 4,ENCRYPTED")
}

fn pem_reason(error: pem::Error) -> String {
    match error {
        pem::Error::Io(error) => format!("{UNREADABLE}: {error}"),
        error => error.to_string(),
    }
}

/// Reads all certificates of a file; an error if there are none.
fn certificates(
    field: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let error = |reason: String| TlsError::new(field, path, reason);
    let read = CertificateDer::pem_file_iter(path).map_err(|reason| error(pem_reason(reason)))?;
    let chain: Result<Vec<_>, _> = read.collect();
    let chain = chain.map_err(|reason| error(pem_reason(reason)))?;
    if chain.is_empty() {
        return Err(error("there is no certificate in it".into()));
    }
    Ok(chain)
}

/// Accepts the certificates that another verifier accepts, if they are valid for a name.
#[derive(Debug)]
struct ClientNameVerifier {
    verifier: Arc<dyn ClientCertVerifier>,
    /// The host name or address that certificates must have as an alternative name.
    name: ServerName<'static>,
}

impl ClientCertVerifier for ClientNameVerifier {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.verifier.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.verifier.verify_client_cert(end_entity, intermediates, now)?;
        verify_server_name(&ParsedCertificate::try_from(end_entity)?, &self.name)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.verifier.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.verifier.supported_verify_schemes()
    }
}
