//! TLS on the way in: how a connection is taken into it.
//!
//! Knows: versions, protocols, tickets. Does not know: what is said inside.
//!
//! | file | holds |
//! |---|---|
//! | `certificate.rs` | a certificate and its key, read and checked |
//! | `reload.rs` | the same again when its files change |
//! | `self_signed.rs` | those that the gateway makes and keeps |

mod certificate;
mod reload;
mod self_signed;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{Error, ServerConfig, ServerConnection};
use tokio_rustls::server::TlsStream;
use url::Url;

pub use certificate::CertificateError;
use reload::{Files, Pair, Shown, Watch};
pub use self_signed::CERTIFICATE_FILE as SELF_SIGNED_CERTIFICATE_FILE;

/// What each connection speaks inside TLS: an upgrade to WebSocket is one of HTTP/1.1.
const ALPN_HTTP_1_1: &[u8] = b"http/1.1";

/// Bytes that a connection takes before it has passed on those before them: one record. A socket that is stuck holds so
/// much and no more.
const UNSENT_BYTES_MAX: usize = 16 * 1024;

/// Why TLS can't be served.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The certificate or its key can't be used.
    #[error(transparent)]
    Certificate(#[from] CertificateError),
    /// A self-signed certificate can't be made.
    #[error("can't make a certificate: {0}")]
    SelfSigned(rcgen::Error),
    /// A self-signed certificate can't be kept.
    #[error("can't write {}: {source}", path.display())]
    Unwritable {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// The cryptography can't be set up.
    #[error("can't set up TLS: {0}")]
    Setup(Error),
}

/// A connection inside TLS.
pub(super) type Stream = TlsStream<TcpStream>;

/// Takes connections into TLS.
pub struct Tls {
    acceptor: TlsAcceptor,
    watch: Option<Watch>,
}

impl Tls {
    /// With a certificate and its key from files in PEM.
    ///
    /// # Errors
    /// When a file can't be read, or holds nothing that can be used.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let contents = certificate::contents(certificate, key)?;
        let shown = Arc::new(Shown::new(certificate::parse(&contents, certificate, key, &provider)?));
        let files = Files { certificate: certificate.to_owned(), key: key.to_owned() };
        let pair = Pair { files, shown: Arc::clone(&shown), provider: Arc::clone(&provider) };
        let watch = Watch::new(pair, Some(contents));
        Ok(Self { acceptor: acceptor(shown, provider)?, watch: Some(watch) })
    }

    /// With a certificate of the gateway's own making, for this machine's names and the hosts of `public_urls`. It is
    /// kept in the directory, if there is one, for the next start.
    ///
    /// # Errors
    /// When it can't be made or kept.
    pub fn self_signed(directory: Option<&Path>, public_urls: &[Url]) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let shown = self_signed::keep(directory, public_urls, SystemTime::now(), &provider)?;
        Ok(Self { acceptor: acceptor(Arc::new(Shown::new(shown)), provider)?, watch: None })
    }

    /// Takes it apart: what shakes hands, and what has to run so that a changed certificate is shown.
    pub(super) fn into_parts(self) -> (Acceptor, Option<Watch>) {
        (Acceptor(self.acceptor), self.watch)
    }
}

/// Shakes hands. Copies share certificate and tickets.
#[derive(Clone)]
pub(super) struct Acceptor(TlsAcceptor);

impl Acceptor {
    /// Takes a connection into TLS.
    ///
    /// # Errors
    /// When the client is gone, or no agreement is reached.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<Stream> {
        let bounded = |session: &mut ServerConnection| session.set_buffer_limit(Some(UNSENT_BYTES_MAX));
        self.0.accept_with(stream, bounded).await
    }
}

fn acceptor(shown: Arc<Shown>, provider: Arc<CryptoProvider>) -> Result<TlsAcceptor, TlsError> {
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13, &TLS12])
        .map_err(TlsError::Setup)?
        .with_no_client_auth()
        .with_cert_resolver(shown);
    config.alpn_protocols = vec![ALPN_HTTP_1_1.to_vec()];
    // A client that comes back brings its session with it: the gateway keeps none.
    config.ticketer = ring::Ticketer::new().map_err(TlsError::Setup)?;
    Ok(Arc::new(config).into())
}
