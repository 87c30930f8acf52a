//! HTTP towards event handlers: connections, and one exchange on them.
//!
//! Knows: TLS, which version of HTTP is spoken, how large an answer may be. Does not know: events, attempts, timeouts of
//! whole events.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderMap, Request, StatusCode};
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::version::{TLS12, TLS13};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::memory::{ANSWER_BYTES_MAX, AnswerRoom, NoRoom};
use super::request::BadHeader;

/// The largest body that is read although nobody wants it, so that the connection can be used again.
const UNWANTED_BYTES_MAX: usize = 16 * 1024;
/// All headers of an answer together, in bytes.
const HEADERS_BYTES_MAX: u32 = 32 * 1024;
/// Headers of an answer.
const HEADERS_MAX: usize = 200;

/// How long a connection may take to be made, an address of the host after the other.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a connection is kept without a request. Node.js ends such a one after 5 seconds, and what is sent at that moment
/// is lost and has to be sent again.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);
/// After so long without a sign of life from the other side a connection is given up: what runs on it can be tried again.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// Why the means to speak to a handler can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The file with the authorities can't be read.
    #[error("tls_ca: no certificate can be read from {}: it must be in PEM", .0.display())]
    BadAuthorities(PathBuf),
    /// There is nobody to vouch for a handler.
    #[error(
        "the system trusts no authority for https: install its certificates (ca-certificates), or set tls_ca"
    )]
    NoAuthorities,
    /// The cryptography can't be set up.
    #[error("can't set up TLS: {0}")]
    Setup(#[from] tokio_rustls::rustls::Error),
}

/// Why there is no answer. No text holds anything of the exchange.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExchangeError {
    /// The other side can't be reached, or was lost on the way; another attempt may succeed.
    #[error("{0}")]
    Network(String),
    /// No request can be made of it.
    #[error(transparent)]
    Unsendable(#[from] BadHeader),
    /// Answers to other events take all the room that there is.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// The answer is larger than it may be.
    #[error("the answer is larger than {ANSWER_BYTES_MAX} bytes")]
    TooLarge,
    /// It is encoded in a way that this gateway does not read.
    #[error("the answer's content encoding is not gzip, or not gzip alone")]
    UnknownEncoding,
    /// It can't be decoded.
    #[error("the answer is not what its content encoding says")]
    BadEncoding,
}

/// What a handler answered. The body is there if the status tells of success.
pub(super) struct Answer {
    pub status: StatusCode,
    pub headers: HeaderMap,
    pub body: Bytes,
    /// What the body takes.
    pub room: AnswerRoom,
}

/// Makes connections and keeps them for the next request. Copies share them.
#[derive(Clone)]
pub(super) struct HttpClient(Client<HttpsConnector<HttpConnector>, Full<Bytes>>);

impl HttpClient {
    fn new(tls: ClientConfig) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        tcp.set_connect_timeout(Some(CONNECT_TIMEOUT));
        tcp.set_keepalive(Some(SILENCE_MAX));
        #[cfg(target_os = "linux")]
        tcp.set_tcp_user_timeout(Some(SILENCE_MAX));
        let https = HttpsConnectorBuilder::new()
            .with_tls_config(tls)
            .https_or_http()
            .enable_all_versions()
            .wrap_connector(tcp);
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_TIMEOUT)
            .http1_max_buf_size(HEADERS_BYTES_MAX as usize)
            .http1_max_headers(HEADERS_MAX)
            .http2_max_header_list_size(HEADERS_BYTES_MAX)
            .http2_adaptive_window(true)
            .http2_keep_alive_interval(SILENCE_MAX / 2)
            .http2_keep_alive_timeout(SILENCE_MAX / 2)
            .build(https);
        Self(client)
    }

    /// Sends a request once and reads the answer into its room. Redirects are not followed.
    pub(super) async fn send(
        &self,
        request: Request<Full<Bytes>>,
        mut room: AnswerRoom,
    ) -> Result<Answer, ExchangeError> {
        let response = self.0.request(request).await.map_err(|error| network(&error))?;
        let (parts, body) = response.into_parts();
        let body = if parts.status.is_success() {
            read(body, &mut room).await?
        } else {
            // Whatever comes of it, the status has been read.
            let _ = Limited::new(body, UNWANTED_BYTES_MAX).collect().await;
            Bytes::new()
        };
        Ok(Answer { status: parts.status, headers: parts.headers, body, room })
    }
}

async fn read(mut body: Incoming, room: &mut AnswerRoom) -> Result<Bytes, ExchangeError> {
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|error| network(&error))?.into_data() else { continue };
        let bytes = read.len() + data.len();
        if bytes > ANSWER_BYTES_MAX {
            return Err(ExchangeError::TooLarge);
        }
        room.grow_to(bytes)?;
        read.extend_from_slice(&data);
    }
    Ok(read.freeze())
}

/// The innermost cause says it best.
fn network(error: &(dyn std::error::Error + 'static)) -> ExchangeError {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    ExchangeError::Network(cause.to_string())
}

/// The clients of all handlers: one for all with the same authorities, so that they share connections.
#[derive(Default)]
pub(super) struct Clients {
    /// For those that are spoken to in the clear.
    plain: Option<HttpClient>,
    by_authorities: HashMap<Option<PathBuf>, HttpClient>,
}

impl Clients {
    /// The client for a URL of this kind.
    ///
    /// # Errors
    /// When there are no authorities.
    pub(super) fn client(
        &mut self,
        is_https: bool,
        tls_ca: Option<&Path>,
    ) -> Result<HttpClient, ClientError> {
        if !is_https {
            if self.plain.is_none() {
                self.plain = Some(HttpClient::new(tls(RootCertStore::empty())?));
            }
            // It is there.
            return self.plain.clone().ok_or(ClientError::NoAuthorities);
        }
        let key = tls_ca.map(Path::to_owned);
        if let Some(client) = self.by_authorities.get(&key) {
            return Ok(client.clone());
        }
        let client = HttpClient::new(tls(authorities(tls_ca)?)?);
        self.by_authorities.insert(key, client.clone());
        Ok(client)
    }
}

fn authorities(tls_ca: Option<&Path>) -> Result<RootCertStore, ClientError> {
    let mut store = RootCertStore::empty();
    match tls_ca {
        Some(path) => {
            let bad = || ClientError::BadAuthorities(path.to_owned());
            for certificate in CertificateDer::pem_file_iter(path).map_err(|_| bad())? {
                store.add(certificate.map_err(|_| bad())?).map_err(|_| bad())?;
            }
            if store.is_empty() { Err(bad()) } else { Ok(store) }
        }
        None => {
            // What a system has collected over the years need not be all well-formed.
            store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if store.is_empty() { Err(ClientError::NoAuthorities) } else { Ok(store) }
        }
    }
}

fn tls(authorities: RootCertStore) -> Result<ClientConfig, ClientError> {
    Ok(ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&TLS13, &TLS12])?
        .with_root_certificates(authorities)
        .with_no_client_auth())
}
