//! Client sockets: from accept over the upgrade to the last byte.
//!
//! ```text
//! accept -> (TLS) -> HTTP head -> decide (handshake.rs) -> (application asked) -> engine attaches -> 101 -> two tasks
//! for each socket:
//!
//!            read side --frames of one read--> reader task --requests--> engine
//!   client                                        | link: pong, close, life
//!            write side <--one write-- writer task <--pulls-- outbox <--pushes-- engine
//! ```
//! A session's outbox is the only queue: the writer pulls what waits whenever the socket takes more, so a slow socket
//! makes the outbox grow to its bound and nothing else.
//!
//! | file | holds |
//! |---|---|
//! | `listener.rs` | the accept loop and HTTP on a connection that is not upgraded yet |
//! | `gate.rs` | how many connections the process lets in, and from one address |
//! | `pool.rs` | a listener's connections that are no sockets, and who goes when there are too many |
//! | `patient.rs` | how long a client may take before it is upgraded |
//! | `turned_away.rs` | why strangers are turned away, and where that is told |
//! | `tls/` | certificates, and TLS handshakes |
//! | `routes.rs`, `absent.rs` | paths, the limits of the HTTP side, and what is said where nothing is |
//! | `query.rs`, `upgrade_request.rs` | what an upgrade request asks for, without I/O |
//! | `new_session.rs`, `connect_event.rs` | how a session begins, and what the application has to say to it |
//! | `origin.rs` | which pages of other sites may come |
//! | `upgrade_answer.rs`, `refusals.rs` | carries out what was decided, and what is told of refusals |
//! | `faults.rs` | who orders faults, and on whose sockets they may be made |
//! | `all_sockets.rs` | all sockets: how many, and their common end |
//! | `socket/` | one socket's two tasks |
//!
//! The edge does not know the store, groups, or what a message says.

mod absent;
mod all_sockets;
mod connect_event;
mod faults;
mod gate;
mod listener;
mod new_session;
mod origin;
mod patient;
mod pool;
mod query;
mod refusals;
mod routes;
mod socket;
mod tls;
mod turned_away;
mod upgrade_answer;
mod upgrade_request;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use faults::{Fault, Faults};
pub use gate::Gate;
pub use listener::listen;
pub use routes::Operations;
pub use tls::{CertificateError, SELF_SIGNED_CERTIFICATE_FILE, Tls, TlsError};

use crate::auth::{AccessKeys, ReconnectionTokens};
use crate::config::Config;
use crate::engine::Engine;
use crate::telemetry::{Counters, RequestShed};
use all_sockets::Sockets;
use listener::{Connections, Front, Purpose};
use pool::Pool;
use refusals::Refusals;
use socket::HalfMessages;

/// How long clients may take to go away when the gateway shuts down. Sessions whose sockets are left then are detached
/// as if those had been lost.
const SHUTDOWN_WAIT: Duration = Duration::from_secs(6);

/// Everything that a socket needs of the rest of the gateway.
pub struct Edge {
    /// The settings.
    pub config: Arc<Config>,
    /// What client tokens are verified with.
    pub access_keys: AccessKeys,
    /// What reconnection tokens are issued and verified with.
    pub reconnection_tokens: ReconnectionTokens,
    /// Where sessions live.
    pub engine: Engine,
    /// The sockets that may be disturbed on purpose, if any.
    pub faults: Option<Arc<Faults>>,
}

/// Where clients come in.
pub struct Listeners {
    /// In the clear.
    pub http: Option<TcpListener>,
    /// Inside TLS.
    pub https: Option<(TcpListener, Tls)>,
    /// What they share with all other listeners of the process.
    pub gate: Arc<Gate>,
}

/// HTTP connections of [`serve_operator`] that there may be at once.
const OPERATOR_CONNECTIONS_MAX: usize = 64;

/// What all connections share.
struct Shared {
    edge: Edge,
    /// How many more handlers may be told at once that a session is over which never began.
    farewells: Arc<Semaphore>,
    sockets: Arc<Sockets>,
    half_messages: Arc<HalfMessages>,
    refusals: Refusals,
    tasks: TaskTracker,
    is_stopping: CancellationToken,
}

impl Shared {
    fn new(edge: Edge) -> Arc<Self> {
        Arc::new(Self {
            sockets: Sockets::new(edge.config.connections_max),
            half_messages: HalfMessages::new(Arc::clone(edge.engine.memory_budget())),
            farewells: Arc::new(Semaphore::new(new_session::FAREWELLS_MAX)),
            refusals: Refusals::new(edge.engine.counters()),
            tasks: TaskTracker::new(),
            is_stopping: CancellationToken::new(),
            edge,
        })
    }
}

/// Serves client sockets, and `operations` beside them, until `shutdown` completes; then it accepts nothing more,
/// closes all sockets with 1001 and returns when they are gone, or after a few seconds.
pub async fn serve(
    edge: Edge,
    listeners: Listeners,
    operations: Operations,
    shutdown: impl Future<Output = ()>,
) {
    let shared = Shared::new(edge);
    let router = routes::router(&shared, operations);
    let http = listeners.http.map(|listener| (listener, None));
    let https = listeners.https.map(|(listener, tls)| {
        let (acceptor, watch) = tls.into_parts();
        if let Some(watch) = watch {
            shared.tasks.spawn(shared.is_stopping.clone().run_until_cancelled_owned(watch.run()));
        }
        (listener, Some(acceptor))
    });
    let mut accepting = JoinSet::new();
    for (listener, tls) in http.into_iter().chain(https) {
        let config = &shared.edge.config;
        let connections = Connections {
            config: Arc::clone(config),
            router: router.clone(),
            gate: Arc::clone(&listeners.gate),
            pool: Pool::new(config.handshakes_pending_max, config.http_connections_max),
            tasks: shared.tasks.clone(),
            is_stopping: shared.is_stopping.clone(),
        };
        accepting.spawn(Front { listener, tls, purpose: Purpose::Anybody, connections }.accept());
    }
    shutdown.await;
    tracing::info!(sockets = shared.sockets.count(), "shutting down");
    shared.is_stopping.cancel();
    // A listener is gone when its task is; a panic in it has been reported by the runtime.
    while accepting.join_next().await.is_some() {}
    shared.sockets.close_all();
    shared.tasks.close();
    if tokio::time::timeout(SHUTDOWN_WAIT, shared.tasks.wait()).await.is_err() {
        tracing::warn!(sockets = shared.sockets.count(), "some clients did not go away in time");
    }
}

/// Serves what an operator's machinery asks, on a listener of its own, until it is dropped: whatever strangers do to the
/// others, this one answers.
pub async fn serve_operator(
    config: Arc<Config>,
    gate: Arc<Gate>,
    listener: TcpListener,
    operations: Router,
    counters: Arc<Counters>,
) {
    let is_stopping = CancellationToken::new();
    let _stop = is_stopping.clone().drop_guard();
    let timeout = Duration::from_secs(config.request_timeout_seconds);
    let connections = Connections {
        router: routes::limited(
            operations,
            OPERATOR_CONNECTIONS_MAX,
            timeout,
            RequestShed::Operator,
            counters,
        ),
        gate,
        pool: Pool::new(OPERATOR_CONNECTIONS_MAX, OPERATOR_CONNECTIONS_MAX),
        tasks: TaskTracker::new(),
        is_stopping,
        config,
    };
    Front { listener, tls: None, purpose: Purpose::Operator, connections }.accept().await;
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use oncewire_protocol::log::BootId;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpStream;
    use tokio::sync::oneshot;
    use tokio::time::Instant;

    use super::*;
    use crate::store::MemoryStore;

    #[tokio::test(start_paused = true)]
    async fn whoever_does_not_come_to_an_end_is_left_after_a_while() {
        let config = Arc::new(Config { request_timeout_seconds: 3600, ..Config::default() });
        let edge = Edge {
            config: Arc::clone(&config),
            access_keys: AccessKeys::new("a key of at least thirty-two bytes", None).unwrap(),
            reconnection_tokens: ReconnectionTokens::new([1; 32]),
            engine: Engine::new(config, Arc::new(MemoryStore::default()), BootId(1)),
            faults: None,
        };
        let (started, start) = oneshot::channel();
        let started = Arc::new(parking_lot::Mutex::new(Some(started)));
        let endless = get(async move || {
            let _ = started.lock().take().map(|started| started.send(()));
            std::future::pending::<()>().await
        });
        let listener = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        client.write_all(b"GET /endless HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
        let mut stopped_at = Instant::now();
        let shutdown = async {
            start.await.unwrap();
            stopped_at = Instant::now();
        };
        let listeners =
            Listeners { http: Some(listener), https: None, gate: Gate::new(&edge.config, Arc::default()) };
        let api = Router::new().route("/endless", endless);
        serve(edge, listeners, Operations { api, ..Operations::default() }, shutdown).await;
        let waited = stopped_at.elapsed();
        assert!(waited >= SHUTDOWN_WAIT && waited < 2 * SHUTDOWN_WAIT, "{waited:?} of the paused clock");
    }
}
