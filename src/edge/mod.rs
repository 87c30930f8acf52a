//! Client sockets: from accept over the upgrade to the last byte.
//!
//! ```text
//! accept -> HTTP head -> decide (handshake.rs) -> engine attaches -> 101 -> two tasks for each socket:
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
//! | `routes.rs` | paths, and the limits of the HTTP side |
//! | `query.rs`, `handshake.rs` | what an upgrade request asks for, without I/O |
//! | `upgrade.rs` | carries out what was decided |
//! | `sockets.rs` | all sockets: how many, and their common end |
//! | `socket/` | one socket's two tasks |
//!
//! The edge does not know the store, groups, or what a message says.

mod handshake;
mod listener;
mod query;
mod routes;
mod socket;
mod sockets;
mod upgrade;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use listener::listen;

use crate::auth::{AccessKeys, ReconnectionTokens};
use crate::config::Config;
use crate::engine::Engine;
use sockets::Sockets;

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
}

/// What all connections share.
struct Shared {
    edge: Edge,
    sockets: Arc<Sockets>,
    tasks: TaskTracker,
    is_stopping: CancellationToken,
}

/// Serves client sockets, and `operations` beside them, until `shutdown` completes; then it accepts nothing more,
/// closes all sockets with 1001 and returns when they are gone, or after a few seconds.
pub async fn serve(
    edge: Edge,
    listener: TcpListener,
    operations: Router,
    shutdown: impl Future<Output = ()>,
) {
    let sockets = Sockets::new(edge.config.connections_max);
    let shared =
        Arc::new(Shared { edge, sockets, tasks: TaskTracker::new(), is_stopping: CancellationToken::new() });
    let router = routes::router(&shared, operations);
    let accepting = tokio::spawn(listener::accept(Arc::clone(&shared), listener, router));
    shutdown.await;
    tracing::info!(sockets = shared.sockets.count(), "shutting down");
    shared.is_stopping.cancel();
    // The listener is gone when its task is; a panic in it has been reported by the runtime.
    let _ = accepting.await;
    shared.sockets.close_all();
    shared.tasks.close();
    if tokio::time::timeout(SHUTDOWN_WAIT, shared.tasks.wait()).await.is_err() {
        tracing::warn!(sockets = shared.sockets.count(), "some clients did not go away in time");
    }
}
