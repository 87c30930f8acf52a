//! Puts the rooms together: from a configuration and a listener to a running gateway.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use oncewire_protocol::log::BootId;
use tokio::net::TcpListener;

use crate::admin::{self, Readiness};
use crate::auth::{AccessKeyError, AccessKeys, ReconnectionTokens};
use crate::config::{Config, Secret};
use crate::edge::{self, Edge};
use crate::engine::Engine;
use crate::store::{MemoryStore, Store, StoreError};

/// Why the gateway could not start.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The address can't be listened on.
    #[error("can't listen on {address}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The store can't be used, or not any more.
    #[error("the store failed")]
    Store(#[from] StoreError),
    /// There is no access key.
    #[error("no access key")]
    NoAccessKey,
    /// An access key can't be used.
    #[error(transparent)]
    BadAccessKey(#[from] AccessKeyError),
    /// What is to fail in a test can't be understood.
    #[cfg(feature = "fault-injection")]
    #[error("ONCEWIRE_TEST_FAIL_APPENDS: {0}")]
    BadFaultPlan(#[from] crate::store::FaultPlanError),
}

/// Listens on the configured address. Clients may dial from now on; they are served once a gateway runs.
///
/// # Errors
/// When the address can't be listened on.
pub async fn bind(config: &Config) -> Result<TcpListener, GatewayError> {
    let address = config.listen;
    edge::listen(address).map_err(|source| GatewayError::Listen { address, source })
}

/// Serves until `shutdown` completes, and then until the sockets are closed.
///
/// # Errors
/// When a gateway can't be made of this configuration.
pub async fn run(
    config: Config,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), GatewayError> {
    Gateway::new(config, configured_store()?)?.serve(listener, shutdown).await
}

/// A gateway that is ready to serve.
pub struct Gateway {
    config: Arc<Config>,
    access_keys: AccessKeys,
    engine: Engine,
}

impl Gateway {
    /// A gateway that keeps its hubs' logs in `store`.
    ///
    /// # Errors
    /// When the configuration has no access key, or one that can't be used.
    pub fn new(config: Config, store: Arc<dyn Store>) -> Result<Self, GatewayError> {
        let config = Arc::new(config);
        let primary = config.access_key.as_ref().ok_or(GatewayError::NoAccessKey)?;
        let secondary = config.secondary_access_key.as_ref();
        let access_keys = AccessKeys::new(primary.expose(), secondary.map(Secret::expose))?;
        let engine = Engine::new(Arc::clone(&config), store, BootId(rand::random()));
        Ok(Self { config, access_keys, engine })
    }

    /// Where the sessions live.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Serves until `shutdown` completes, and then until the sockets are closed, or for some seconds.
    ///
    /// # Errors
    /// When the store can't tell which hubs it has, or can't go on: what is on the disk can only be told by the next start.
    pub async fn serve(
        self,
        listener: TcpListener,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), GatewayError> {
        let engine = self.engine.clone();
        engine.start_kept_hubs().await?;
        let readiness = Readiness::default();
        let operations = admin::router(readiness.clone());
        let edge = Edge {
            config: self.config,
            access_keys: self.access_keys,
            // A log that dies with the process needs no secret that outlives it.
            reconnection_tokens: ReconnectionTokens::new(rand::random()),
            engine: self.engine,
        };
        readiness.set(true);
        let stop = async {
            shutdown.await;
            readiness.set(false);
        };
        tokio::select! {
            () = edge::serve(edge, listener, operations, stop) => {}
            error = engine.failed() => return Err(error.into()),
        }
        Ok(engine.close().await?)
    }
}

#[cfg(not(feature = "fault-injection"))]
fn configured_store() -> Result<Arc<dyn Store>, GatewayError> {
    Ok(Arc::new(MemoryStore::default()))
}

/// In such a build appends fail as `ONCEWIRE_TEST_FAIL_APPENDS` says.
#[cfg(feature = "fault-injection")]
fn configured_store() -> Result<Arc<dyn Store>, GatewayError> {
    let store = Arc::new(MemoryStore::default());
    match std::env::var("ONCEWIRE_TEST_FAIL_APPENDS") {
        Ok(plan) => Ok(Arc::new(crate::store::FaultyStore::new(store, plan.parse()?))),
        Err(_) => Ok(store),
    }
}
