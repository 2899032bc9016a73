//! The server's certificate and key.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};

/// Reads them: PEM files, the certificate with those that vouch for it.
///
/// # Errors
/// What is wrong with which file.
pub fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor, String> {
    let certificates = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| format!("cannot read the certificate {}: {e}", certificate.display()))?;
    if certificates.is_empty() {
        let path = certificate.display();
        return Err(format!("{path} has no certificate: it must be a PEM file"));
    }
    let own = PrivateKeyDer::from_pem_file(key)
        .map_err(|e| format!("cannot read the key {}: {e}", key.display()))?;
    let provider = Arc::new(tokio_rustls::rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map(|config| config.with_no_client_auth())
        .and_then(|config| config.with_single_cert(certificates, own))
        .map_err(|e| {
            let (certificate, key) = (certificate.display(), key.display());
            format!("the certificate {certificate} and the key {key} cannot be used: {e}")
        })?;
    Ok(TlsAcceptor::from(Arc::new(config)))
}
