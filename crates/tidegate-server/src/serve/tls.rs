//! TLS of a front.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidegate::unstable::config::Tls;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto};

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
        }
    }
}

/// Files that are not a valid TLS configuration.
#[derive(Debug, thiserror::Error)]
#[error("tls {field}: {path}: {reason}")]
pub struct TlsError {
    field: &'static str,
    path: PathBuf,
    reason: String,
}

/// Loads the files and creates an acceptor.
///
/// # Errors
/// When a file cannot be read, is not PEM, or does not match the others.
pub fn acceptor(files: &TlsFiles) -> Result<TlsAcceptor, TlsError> {
    let provider = Arc::new(crypto::ring::default_provider());
    let error = |field, path: &Path, reason: String| TlsError { field, path: path.into(), reason };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|reason| error("cert", &files.cert, reason.to_string()))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates("client_ca", path)? {
                let added = roots.add(certificate);
                added.map_err(|reason| error("client_ca", path, reason.to_string()))?;
            }
            let verifier =
                WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build();
            let verifier = verifier.map_err(|e| error("client_ca", path, e.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let chain = certificates("cert", &files.cert)?;
    let key = PrivateKeyDer::from_pem_file(&files.key)
        .map_err(|reason| error("key", &files.key, reason.to_string()))?;
    let config = builder.with_single_cert(chain, key);
    let mut config = config.map_err(|reason| error("cert", &files.cert, reason.to_string()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

/// Reads all certificates of a file; an error if there are none.
fn certificates(
    field: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let error = |reason: String| TlsError { field, path: path.into(), reason };
    let read = CertificateDer::pem_file_iter(path).map_err(|reason| error(reason.to_string()))?;
    let chain: Result<Vec<_>, _> = read.collect();
    let chain = chain.map_err(|reason| error(reason.to_string()))?;
    if chain.is_empty() {
        return Err(error("there is no certificate in it".into()));
    }
    Ok(chain)
}
