//! TLS towards the store: always verified, there is no way to turn that off.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto};

use super::error::ConnectError;
use super::url::TlsFiles;

/// Reads the files, once.
pub(super) fn connector(files: &TlsFiles) -> Result<TlsConnector, ConnectError> {
    let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| ConnectError::TlsFiles(error.to_string().into()))?
        .with_root_certificates(roots(files)?);
    let config = match &files.own {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let chain = certificates(cert)?;
            let own = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, &error))?;
            builder.with_client_auth_cert(chain, own).map_err(|error| unreadable(cert, &error))?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Whom to believe: the authority that is named, or else the system's.
fn roots(files: &TlsFiles) -> Result<RootCertStore, ConnectError> {
    let mut roots = RootCertStore::empty();
    if let Some(path) = &files.ca {
        for certificate in certificates(path)? {
            roots.add(certificate).map_err(|error| unreadable(path, &error))?;
        }
        return Ok(roots);
    }
    // Some of the system's may be unusable; none at all is an error.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        let text = "the system has no certificate authorities: name one with ?ca=FILE";
        return Err(ConnectError::TlsFiles(text.into()));
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, ConnectError> {
    let read = CertificateDer::pem_file_iter(path).map_err(|error| unreadable(path, &error))?;
    let chain: Result<Vec<_>, _> = read.collect();
    let chain = chain.map_err(|error| unreadable(path, &error))?;
    if chain.is_empty() {
        return Err(unreadable(path, &"there is no certificate in it"));
    }
    Ok(chain)
}

fn unreadable(path: &Path, reason: &dyn std::fmt::Display) -> ConnectError {
    ConnectError::TlsFiles(format!("{}: {reason}", path.display()).into())
}
