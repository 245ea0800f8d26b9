//! An authority for one test, and what it signed.

use std::fs;
use std::path::PathBuf;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};

use super::{Engine, PLAIN, Scratch, Server};

/// The files of an authority and of a server it vouches for, at 127.0.0.1.
pub struct Certificates {
    dir: Scratch,
}

impl Certificates {
    pub fn new() -> Self {
        let dir = Scratch::new();
        let key = || KeyPair::generate().expect("a key");
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Its name must differ from the server's, or that one would seem to sign itself.
        authority.distinguished_name.push(DnType::CommonName, "an authority");
        let authority = CertifiedIssuer::self_signed(authority, key()).expect("an authority");
        let server_key = key();
        let server = CertificateParams::new(vec!["127.0.0.1".into()]).expect("a name");
        let server = server.signed_by(&server_key, &authority).expect("a certificate");
        let files = [
            ("ca.pem", authority.pem()),
            ("server.pem", server.pem()),
            ("server.key", server_key.serialize_pem()),
        ];
        for (name, text) in files {
            fs::write(dir.path.join(name), text).expect("a file");
        }
        Certificates { dir }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path.join(name)
    }

    /// A server that speaks TLS at a second port, which is returned, and asks its
    /// clients for certificates or not.
    pub fn serve(&self, clients: &str) -> (Server, u16) {
        let secured = super::free_port();
        let file = |name: &str| self.file(name).display().to_string();
        let server = Server::launch(&Engine::Redis.program(), |port, _| {
            let (port, secured) = (port.to_string(), secured.to_string());
            let (ca, cert, key) = (file("ca.pem"), file("server.pem"), file("server.key"));
            let tls = [
                ["--port", &port],
                ["--tls-port", &secured],
                ["--tls-ca-cert-file", &ca],
                ["--tls-cert-file", &cert],
                ["--tls-key-file", &key],
                ["--tls-auth-clients", clients],
            ];
            PLAIN.into_iter().chain(tls.concat()).map(String::from).collect()
        });
        (server, secured)
    }
}
