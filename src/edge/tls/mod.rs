//! TLS on the way in: how a connection is taken into it.
//!
//! Knows: versions, protocols, tickets. Does not know: what is said inside.
//!
//! | file | holds |
//! |---|---|
//! | `certificate.rs` | a certificate and its key, read and checked |

mod certificate;

use std::io;
use std::path::Path;
use std::sync::Arc;

use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::sign::SingleCertAndKey;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{Error, ServerConfig, ServerConnection};
use tokio_rustls::server::TlsStream;

pub use certificate::CertificateError;

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
    /// The cryptography can't be set up.
    #[error("can't set up TLS: {0}")]
    Setup(Error),
}

/// A connection inside TLS.
pub(super) type Stream = TlsStream<TcpStream>;

/// Takes connections into TLS. Copies share certificate and tickets.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
}

impl Tls {
    /// With a certificate and its key from files in PEM.
    ///
    /// # Errors
    /// When a file can't be read, or holds nothing that can be used.
    pub fn from_files(certificate: &Path, key: &Path) -> Result<Self, TlsError> {
        let provider = Arc::new(ring::default_provider());
        let shown = certificate::read(certificate, key, &provider)?;
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13, &TLS12])
            .map_err(TlsError::Setup)?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(SingleCertAndKey::from(shown)));
        config.alpn_protocols = vec![ALPN_HTTP_1_1.to_vec()];
        // A client that comes back brings its session with it: the gateway keeps none.
        config.ticketer = ring::Ticketer::new().map_err(TlsError::Setup)?;
        Ok(Self { acceptor: Arc::new(config).into() })
    }

    /// Shakes hands.
    ///
    /// # Errors
    /// When the client is gone, or no agreement is reached.
    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<Stream> {
        let bounded = |session: &mut ServerConnection| session.set_buffer_limit(Some(UNSENT_BYTES_MAX));
        self.acceptor.accept_with(stream, bounded).await
    }
}
