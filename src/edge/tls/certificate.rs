//! A certificate and its key: read from files, and checked before anybody is shown it.

use std::io;
use std::path::{Path, PathBuf};

use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::ParsedCertificate;
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{Error, InconsistentKeys};

/// Why a certificate or its key can't be used. No text holds anything of the key.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// A file can't be read.
    #[error("can't read {}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The certificate's file holds none.
    #[error("no certificate in {}: it must be in PEM", .0.display())]
    NoCertificate(PathBuf),
    /// A certificate can't be understood.
    #[error("a certificate in {} can't be understood", .0.display())]
    BadCertificate(PathBuf),
    /// The key's file holds none.
    #[error("no private key in {}: it must be in PEM and not encrypted", .0.display())]
    NoKey(PathBuf),
    /// The key can't be understood, or is of a kind that is not supported.
    #[error("the private key in {} can't be used: it must be an RSA, ECDSA (P-256, P-384) or Ed25519 key", .0.display())]
    BadKey(PathBuf),
    /// They don't belong together.
    #[error("the private key in {} is not that of the certificate in {}", key.display(), certificate.display())]
    Mismatch {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
    },
}

/// What is in the two files.
pub(in crate::edge) struct Contents {
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}

/// Reads the two files.
pub(super) fn contents(certificate: &Path, key: &Path) -> Result<Contents, CertificateError> {
    let read = |path: &Path| {
        std::fs::read(path).map_err(|source| CertificateError::Unreadable { path: path.to_owned(), source })
    };
    Ok(Contents { certificate: read(certificate)?, key: read(key)? })
}

/// A certificate with its chain and its key. The paths are for errors alone.
pub(super) fn parse(
    contents: &Contents,
    certificate: &Path,
    key: &Path,
    provider: &CryptoProvider,
) -> Result<CertifiedKey, CertificateError> {
    let chain = parse_chain(&contents.certificate, certificate)?;
    let private = PrivateKeyDer::from_pem_slice(&contents.key).map_err(|error| match error {
        pem::Error::NoItemsFound => CertificateError::NoKey(key.to_owned()),
        _ => CertificateError::BadKey(key.to_owned()),
    })?;
    CertifiedKey::from_der(chain, private, provider).map_err(|error| match error {
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            CertificateError::Mismatch { certificate: certificate.to_owned(), key: key.to_owned() }
        }
        _ => CertificateError::BadKey(key.to_owned()),
    })
}

fn parse_chain(pem: &[u8], path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let bad = || CertificateError::BadCertificate(path.to_owned());
    let chain: Vec<_> = CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().map_err(|_| bad())?;
    if chain.is_empty() {
        return Err(CertificateError::NoCertificate(path.to_owned()));
    }
    match chain.iter().all(|certificate| ParsedCertificate::try_from(certificate).is_ok()) {
        true => Ok(chain),
        false => Err(bad()),
    }
}
