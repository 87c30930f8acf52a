//! Puts the rooms together: from a configuration and a listener to a running gateway.

use std::future::Future;
use std::io;
use std::net::SocketAddr;

use tokio::net::TcpListener;

use crate::admin::{self, Readiness};
use crate::config::Config;

/// Why the gateway could not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The address can't be listened on.
    #[error("can't listen on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// Accepting connections failed for good.
    #[error("serving failed: {0}")]
    Serve(io::Error),
}

/// Listens on the configured address. Clients may dial from now on; they are served once [`run`] runs.
///
/// # Errors
/// When the address can't be listened on.
pub async fn bind(config: &Config) -> Result<TcpListener, GatewayError> {
    let address = config.listen;
    TcpListener::bind(address).await.map_err(|source| GatewayError::Listen { address, source })
}

/// Serves until `shutdown` completes, and then until the connections are closed.
///
/// # Errors
/// When accepting connections fails for good.
pub async fn run(
    _config: Config,
    listener: TcpListener,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> Result<(), GatewayError> {
    let readiness = Readiness::default();
    readiness.set(true);
    axum::serve(listener, admin::router(readiness))
        .with_graceful_shutdown(shutdown)
        .await
        .map_err(GatewayError::Serve)
}
