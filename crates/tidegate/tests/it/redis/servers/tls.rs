//! A certificate authority for one test, and a server with a certificate of it.

use std::fs;
use std::path::PathBuf;

use tidegate_testkit::redis::PLAIN;
use tidegate_testkit::{Authority, ScratchDir, free_port};

use super::{Engine, Server};

/// The files of a certificate authority, and of a server certificate for 127.0.0.1 that it signed.
pub struct Certificates {
    dir: ScratchDir,
}

impl Certificates {
    pub fn new() -> Self {
        let dir = ScratchDir::new();
        let authority = Authority::new();
        let (certificate, key) = authority.sign("127.0.0.1");
        let files = [("ca.pem", authority.pem()), ("server.pem", certificate), ("server.key", key)];
        for (name, text) in files {
            fs::write(dir.path().join(name), text).expect("a file");
        }
        Certificates { dir }
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts a server with TLS on a second port, which is returned. `clients` is its
    /// `tls-auth-clients`: whether clients must have certificates.
    pub fn serve(&self, clients: &str) -> (Server, u16) {
        let secured = free_port();
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
