//! The accept loop, and HTTP on a connection until it is upgraded or closed.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::header::{CONNECTION, HOST, RETRY_AFTER, TRANSFER_ENCODING, UPGRADE};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, Version};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use hyper::Request;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt;

use super::gate::{Gate, Presence, Room};
use super::origin;
use super::patient::{OverTcp, Patience, Patient};
use super::pool::{Guest, Pool, Stage};
use super::query::Query;
use super::tls::Acceptor;
use super::turned_away::TurnedAway;
use crate::config::{Config, Scheme};
use crate::telemetry::Episode;

/// Connections that the kernel keeps ready for [`Front::accept`].
const LISTEN_BACKLOG: i32 = 4096;
/// How much of an HTTP head is kept while it is not complete; a longer one is answered 431. Access tokens that list
/// many groups need room.
const HTTP_HEAD_BYTES_MAX: usize = 64 * 1024;
/// How long accepting waits when the process or the machine has run out of something.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// When whoever is answered 503 may try again, in seconds, where nobody has said something else.
const RETRY_SECONDS: HeaderValue = HeaderValue::from_static("5");

/// Who has connected, as requests know it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub SocketAddr);

/// A connection from accept to its end, as its request hands it on: the socket that it becomes keeps it.
#[derive(Clone)]
pub(super) struct Present {
    _counts: Arc<Presence>,
}

/// Binds and listens with a backlog that takes a storm of reconnecting clients.
///
/// # Errors
/// When the address can't be listened on.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // On other systems the option lets two processes share the port.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(LISTEN_BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// For whom a listener is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// For clients and applications, that is for anybody.
    Anybody,
    /// For the operator's machinery.
    Operator,
}

/// A listener, and all that its connections take.
pub(super) struct Front {
    pub listener: TcpListener,
    /// What connections are taken into first.
    pub tls: Option<Acceptor>,
    pub purpose: Purpose,
    pub connections: Connections,
}

/// What each connection takes.
#[derive(Clone)]
pub(super) struct Connections {
    pub config: Arc<Config>,
    pub router: Router,
    pub gate: Arc<Gate>,
    pub pool: Arc<Pool>,
    pub tasks: TaskTracker,
    pub is_stopping: CancellationToken,
}

impl Front {
    /// Accepts until the gateway stops. Where there are as many connections as there may be, one goes that has been silent
    /// for long; a storm of clients that are not silent is worked off in order, and nobody is refused.
    pub(super) async fn accept(self) {
        let Self { listener, tls, purpose, connections } = self;
        connections.gate.add(&connections.pool);
        let failures = Episode::new("accepting connections failed", "");
        let mut complain = |error: &dyn std::fmt::Display| {
            if failures.is_news(Instant::now()) {
                tracing::warn!(%error, "can't accept connections now; trying again until it works");
            }
        };
        let is_stopping = connections.is_stopping.clone();
        while let Some(accepted) = is_stopping.run_until_cancelled(listener.accept()).await {
            match accepted {
                Ok((stream, peer)) => {
                    tracing::debug!(%peer, "connection accepted");
                    let entering = connections.let_in(peer, purpose, &mut complain);
                    let Some(visit) = is_stopping.run_until_cancelled(entering).await else { return };
                    let Some(visit) = visit else { continue };
                    match tls.clone() {
                        None => connections.tasks.spawn(visit.serve(stream)),
                        Some(tls) => connections.tasks.spawn(visit.serve_inside(tls, stream)),
                    };
                }
                Err(error) if is_of_one_connection(&error) => tracing::debug!(%error, "connection lost"),
                Err(error) => {
                    complain(&error);
                    connections.gate.make_room();
                    let wait = tokio::time::sleep(ACCEPT_RETRY);
                    is_stopping.run_until_cancelled(wait).await;
                }
            }
        }
    }
}

/// Whether a failed accept says nothing about the next one. All others, running out of descriptors above all, are met
/// by waiting: they pass, and the connections that exist go on meanwhile.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset | io::ErrorKind::Interrupted
    )
}

impl Connections {
    /// Lets an accepted connection in, once there is room for it; none if it has to go.
    async fn let_in(
        &self,
        peer: SocketAddr,
        purpose: Purpose,
        complain: &mut impl FnMut(&dyn std::fmt::Display),
    ) -> Option<Visit> {
        let is_bounded = purpose == Purpose::Anybody;
        let Some(presence) = self.gate.enter(peer.ip(), is_bounded) else {
            self.gate.strangers().tell(TurnedAway::AddressFull, peer);
            return None;
        };
        let room = loop {
            match self.gate.room() {
                Room::Nobody => {
                    complain(&"nearly all descriptors are in use");
                    self.gate.make_room();
                    tokio::time::sleep(ACCEPT_RETRY).await;
                }
                Room::Recoveries if self.gate.make_room() => break Room::Everybody,
                room => break room,
            }
        };
        let guest = self.pool.enter().await;
        Some(Visit {
            connections: self.clone(),
            peer,
            purpose,
            presence: Present { _counts: Arc::new(presence) },
            guest,
            room: if purpose == Purpose::Operator { Room::Everybody } else { room },
        })
    }
}

/// A connection that has been let in.
struct Visit {
    connections: Connections,
    peer: SocketAddr,
    purpose: Purpose,
    presence: Present,
    guest: Arc<Guest>,
    room: Room,
}

impl Visit {
    async fn serve(self, stream: TcpStream) {
        match stream.set_nodelay(true) {
            Ok(()) => self.serve_http(stream, Scheme::Http).await,
            Err(error) => tracing::debug!(%error, "connection lost"),
        }
    }

    /// Takes the connection into TLS first.
    async fn serve_inside(self, tls: Acceptor, stream: TcpStream) {
        let limit = Duration::from_secs(self.connections.config.header_read_timeout_seconds);
        let handshake = async {
            stream.set_nodelay(true)?;
            timeout(limit, tls.accept(stream)).await?
        };
        let handshake = async {
            tokio::select! {
                shaken = Box::pin(handshake) => Some(shaken),
                () = self.guest.dismissed() => None,
            }
        };
        // Nobody waits for an answer who has not asked yet.
        match self.connections.is_stopping.run_until_cancelled(handshake).await {
            None => {}
            Some(None) => self.tell_given_up(),
            Some(Some(Ok(stream))) => self.serve_http(stream, Scheme::Https).await,
            Some(Some(Err(error))) if error.kind() == io::ErrorKind::TimedOut => {
                self.tell(TurnedAway::HeadTooSlow);
            }
            Some(Some(Err(error))) => {
                tracing::debug!(%error, "TLS handshake failed");
                self.tell(TurnedAway::TlsFailed);
            }
        }
    }

    async fn serve_http<S>(self, stream: S, scheme: Scheme)
    where
        S: AsyncRead + AsyncWrite + OverTcp + Unpin + Send + 'static,
    {
        let stream = Patient::new(stream, Arc::clone(&self.guest), Patience::new(&self.connections.config));
        let service = service_fn(|request| self.answer(request, scheme));
        let mut builder = http1::Builder::new();
        // How long clients may take is the stream's own affair.
        builder.header_read_timeout(None).max_buf_size(HTTP_HEAD_BYTES_MAX);
        let connection = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
        let mut connection = std::pin::pin!(connection);
        let served = tokio::select! {
            served = connection.as_mut() => served,
            () = self.guest.dismissed() => return self.tell_given_up(),
            () = self.connections.is_stopping.cancelled() => {
                if self.guest.turn().stage() == Stage::Arriving {
                    // Nobody waits for an answer: the first request has not even arrived.
                    return;
                }
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        match (self.guest.given_up(), served) {
            (Some(reason), _) => self.tell(reason),
            (None, Err(error)) => {
                tracing::debug!(%error, "connection failed");
                if error.is_parse() {
                    self.tell(TurnedAway::NoHttp);
                }
            }
            (None, Ok(())) => {}
        }
    }

    fn tell(&self, reason: TurnedAway) {
        self.connections.gate.strangers().tell(reason, self.peer);
    }

    fn tell_given_up(&self) {
        self.tell(self.guest.given_up().unwrap_or(TurnedAway::SilentForLongest));
    }

    /// Answers a request, and takes note of where its connection is meanwhile.
    async fn answer(
        &self,
        request: Request<Incoming>,
        scheme: Scheme,
    ) -> Result<Response<Answer>, Infallible> {
        let mut response = match self.admit(&request) {
            Err(reason) => {
                self.tell(reason);
                refusal(reason)
            }
            Ok(()) => self.routed(request, scheme).await,
        };
        if response.status() != StatusCode::SWITCHING_PROTOCOLS && !self.guest.answered() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        if response.status() == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().entry(RETRY_AFTER).or_insert(RETRY_SECONDS);
        }
        Ok(response.map(|body| Answer { body, guest: Arc::clone(&self.guest) }))
    }

    /// Whether anybody looks at a request.
    fn admit(&self, request: &Request<Incoming>) -> Result<(), TurnedAway> {
        let headers = request.headers();
        if !names_one_host(headers, request.version()) {
            return Err(TurnedAway::BadHost);
        }
        if !has_one_length(headers) {
            return Err(TurnedAway::BadTransferEncoding);
        }
        if self.room != Room::Everybody && !is_recovery(request) {
            return Err(TurnedAway::NoRecovery);
        }
        let config = &self.connections.config;
        if config.is_key_public && self.purpose == Purpose::Anybody && !origin::is_local(headers, config) {
            return Err(TurnedAway::ForeignPage);
        }
        Ok(())
    }

    async fn routed(&self, mut request: Request<Incoming>, scheme: Scheme) -> Response {
        request.extensions_mut().insert(scheme);
        request.extensions_mut().insert(Peer(self.peer));
        request.extensions_mut().insert(self.presence.clone());
        if request.headers().contains_key(UPGRADE) {
            if let Some(upgrading) = self.guest.upgrades() {
                request.extensions_mut().insert(Arc::new(upgrading));
            }
        } else if !self.guest.asks() {
            self.tell(TurnedAway::HttpFull);
            return refusal(TurnedAway::HttpFull);
        }
        match self.connections.router.clone().oneshot(request).await {
            Ok(response) => response,
            Err(never) => match never {},
        }
    }
}

/// A request of HTTP/1.1 names just one host, and an older one at most one (RFC 9112, section 3.2).
fn names_one_host(headers: &HeaderMap, version: Version) -> bool {
    let mut hosts = headers.get_all(HOST).iter();
    match (hosts.next(), hosts.next()) {
        (None, _) => version < Version::HTTP_11,
        (Some(host), None) => host.is_empty() || is_host(host.as_bytes()),
        (Some(_), Some(_)) => false,
    }
}

/// A host, with a port or without; no user stands before it.
fn is_host(host: &[u8]) -> bool {
    Authority::try_from(host).is_ok() && !host.contains(&b'@')
}

/// Whether it is clear where a body ends, and it is as it was sent (RFC 9112, section 6). Where a body is chunked the library
/// takes no notice of a content length, and ends the connection behind the answer.
fn has_one_length(headers: &HeaderMap) -> bool {
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    let Some(encoding) = encodings.next() else { return true };
    let is_chunked = encoding.as_bytes().trim_ascii().eq_ignore_ascii_case(b"chunked");
    is_chunked && encodings.next().is_none()
}

fn is_recovery<B>(request: &Request<B>) -> bool {
    let query = Query::parse(request.uri().query().unwrap_or_default());
    request.headers().contains_key(UPGRADE) && query.is_ok_and(|query| query.connection_id.is_some())
}

/// What a request is answered that nobody looks at. The text holds nothing of it.
fn refusal(reason: TurnedAway) -> Response {
    let status = match reason {
        TurnedAway::BadHost | TurnedAway::BadTransferEncoding => StatusCode::BAD_REQUEST,
        TurnedAway::ForeignPage => StatusCode::FORBIDDEN,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    let mut response = (status, reason.to_string()).into_response();
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// An answer's body. Once it is out, the connection waits for its client.
struct Answer {
    body: Body,
    guest: Arc<Guest>,
}

impl hyper::body::Body for Answer {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        self.guest.rests();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_one_host_and_before_http_1_1_perhaps_none() {
        let hosts = |count: usize| {
            let host = (HOST, HeaderValue::from_static("h.example"));
            std::iter::repeat_n(host, count).fold(HeaderMap::new(), |mut headers, (name, value)| {
                headers.append(name, value);
                headers
            })
        };
        for (count, version, is_good) in [
            (0, Version::HTTP_11, false),
            (1, Version::HTTP_11, true),
            (2, Version::HTTP_11, false),
            (0, Version::HTTP_10, true),
            (1, Version::HTTP_10, true),
            (2, Version::HTTP_10, false),
        ] {
            assert_eq!(names_one_host(&hosts(count), version), is_good, "{count} in {version:?}");
        }
    }

    #[test]
    fn running_out_of_descriptors_is_no_matter_of_one_connection() {
        const ENFILE: i32 = 23;
        const EMFILE: i32 = 24;
        for code in [ENFILE, EMFILE] {
            assert!(!is_of_one_connection(&io::Error::from_raw_os_error(code)));
        }
        assert!(is_of_one_connection(&io::ErrorKind::ConnectionAborted.into()));
    }
}
