//! The accept loop, and HTTP on a connection until it is upgraded or closed.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use socket2::{Domain, Protocol, Socket, Type};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tower::ServiceExt;

use super::Shared;
use super::tls::Acceptor;
use crate::config::Scheme;
use crate::telemetry::Episode;

/// Connections that the kernel keeps ready for [`accept`].
const LISTEN_BACKLOG: i32 = 4096;
/// How much of an HTTP head is kept while it is not complete; a longer one is answered 431. Access tokens that list
/// many groups need room.
const HTTP_HEAD_BYTES_MAX: usize = 16 * 1024;
/// How long accepting waits when the process or the machine has run out of something.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// Who has connected, as requests know it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Peer(pub SocketAddr);

/// A connection that is on its way to a request head or an upgrade. Once all copies are gone another one may come.
pub(super) type Pending = Arc<OwnedSemaphorePermit>;

/// Binds and listens with a backlog that takes a storm of reconnecting clients.
///
/// # Errors
/// When the address can't be listened on.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // On other systems the option lets two processes share the port.
    #[cfg(unix)]
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(LISTEN_BACKLOG)?;
    TcpListener::from_std(socket.into())
}

/// Accepts until the gateway stops. While as many connections as allowed are shaking hands, further ones wait in the
/// kernel's backlog: a storm is worked off in order, nobody is refused. `tls` is what they are taken into first.
pub(super) async fn accept(
    shared: Arc<Shared>,
    listener: TcpListener,
    tls: Option<Acceptor>,
    router: Router,
) {
    let failures = Episode::new("accepting connections failed", "");
    let accept_one = async || {
        let accepted = listener.accept().await;
        // Not before there is one: a listener at rest would keep a place from the other.
        let permit = Arc::clone(&shared.pending).acquire_owned().await.ok();
        (permit, accepted)
    };
    while let Some((permit, accepted)) = shared.is_stopping.run_until_cancelled(accept_one()).await {
        match accepted {
            Ok((stream, peer)) => {
                tracing::debug!(%peer, "connection accepted");
                let (shared, router) = (Arc::clone(&shared), router.clone());
                let connection = Connection { shared: Arc::clone(&shared), router, permit, peer };
                match tls.clone() {
                    None => shared.tasks.spawn(connection.serve(stream)),
                    Some(tls) => shared.tasks.spawn(connection.serve_inside(tls, stream)),
                };
            }
            Err(error) if is_of_one_connection(&error) => tracing::debug!(%error, "connection lost"),
            Err(error) => {
                if failures.is_news(Instant::now()) {
                    tracing::warn!(%error, "can't accept connections now; trying again until it works");
                }
                let wait = tokio::time::sleep(ACCEPT_RETRY);
                shared.is_stopping.run_until_cancelled(wait).await;
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

/// What serving a connection takes.
struct Connection {
    shared: Arc<Shared>,
    router: Router,
    permit: Option<OwnedSemaphorePermit>,
    peer: SocketAddr,
}

impl Connection {
    async fn serve(self, stream: TcpStream) {
        match stream.set_nodelay(true) {
            Ok(()) => serve_http(self, stream, Scheme::Http).await,
            Err(error) => tracing::debug!(%error, "connection lost"),
        }
    }

    /// Takes the connection into TLS first.
    async fn serve_inside(self, tls: Acceptor, stream: TcpStream) {
        let limit = Duration::from_secs(self.shared.edge.config.header_read_timeout_seconds);
        let handshake = async {
            stream.set_nodelay(true)?;
            timeout(limit, tls.accept(stream)).await?
        };
        // Nobody waits for an answer who has not asked yet.
        match self.shared.is_stopping.run_until_cancelled(Box::pin(handshake)).await {
            None => {}
            Some(Ok(stream)) => serve_http(self, stream, Scheme::Https).await,
            Some(Err(error)) => tracing::debug!(%error, "TLS handshake failed"),
        }
    }
}

async fn serve_http<S>(connection: Connection, stream: S, scheme: Scheme)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let Connection { shared, router, permit, peer } = connection;
    let pending = Mutex::new(permit.map(Pending::new));
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(scheme);
        request.extensions_mut().insert(Peer(peer));
        // A keep-alive connection has been through its handshake by its second request.
        if let Some(pending) = pending.lock().take() {
            request.extensions_mut().insert(pending);
        }
        router.clone().oneshot(request)
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(Duration::from_secs(shared.edge.config.header_read_timeout_seconds))
        .max_buf_size(HTTP_HEAD_BYTES_MAX);
    let connection = builder.serve_connection(TokioIo::new(stream), service).with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let served = tokio::select! {
        served = connection.as_mut() => served,
        () = shared.is_stopping.cancelled() => {
            if pending.lock().is_some() {
                // Nobody waits for an answer: the first request has not even arrived.
                return;
            }
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%error, "connection failed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(unix)]
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
