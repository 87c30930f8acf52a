//! Binds, serves, and listens to signals: what `serve` and `dev` share.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use oncewire::config::{Config, Overrides, Scheme};
use oncewire::edge::TlsError;
use oncewire::gateway::{self, Gateway, GatewayError};
use oncewire::telemetry;
use tokio::sync::Notify;

use crate::cli::Logging;
use crate::failure::{Failure, runtime_failure, usage};
use crate::signals::{HangUps, Signals};

/// Binds, and serves until a signal comes; `greet` is called once the gateway takes work. Whoever tells it once more to end
/// does not want to wait for clients to go away. A hang-up has files read again. `file` is where the configuration comes from, and what was laid over it;
/// `is_supervised` tells that this process is started again when it is killed.
pub fn run(
    config: Config,
    file: Option<(&Path, Overrides)>,
    is_supervised: bool,
    greet: impl FnOnce(&[(Scheme, SocketAddr)], &Config) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("can't start the runtime")
        .map_err(Failure::Runtime)?;
    let outcome = runtime.block_on(async {
        // First of all: whoever starts this may send one at any time.
        let mut signals = Signals::listen().context("can't listen for signals").map_err(Failure::Runtime)?;
        let mut hang_ups = HangUps::listen().context("can't listen for signals").map_err(Failure::Runtime)?;
        raise_descriptor_limit();
        let listeners = gateway::bind(&config).await.map_err(runtime_failure)?;
        let addresses = listeners.addresses().map_err(runtime_failure)?;
        let admin_address = listeners.admin_address().map_err(runtime_failure)?;
        let gateway = Gateway::open(config.clone()).map_err(|error| match error {
            GatewayError::Tls(TlsError::Certificate(error)) => usage(error),
            GatewayError::Events(error) => usage(error),
            error => runtime_failure(error),
        })?;
        let gateway = gateway.supervised(is_supervised);
        let gateway = match file {
            Some((file, overrides)) => gateway.reloading(file, overrides),
            None => gateway,
        };
        for (scheme, address) in &addresses {
            tracing::info!(%scheme, %address, process = std::process::id(), "listening");
        }
        if let Some(address) = admin_address {
            tracing::info!(%address, "listening for the operator's machinery");
        }
        let stop = Arc::new(Notify::new());
        let stopped = Arc::clone(&stop).notified_owned();
        let readiness = gateway.readiness();
        let serving = gateway.serve(listeners, stopped);
        let greeting = async {
            readiness.reached().await;
            tracing::info!("ready");
            match greet(&addresses, &config) {
                Ok(()) => std::future::pending().await,
                Err(failure) => failure,
            }
        };
        let impatience = async {
            signals.next().await;
            stop.notify_one();
            signals.next().await;
        };
        tokio::select! {
            served = serving => served.map_err(runtime_failure)?,
            failure = greeting => return Err(failure),
            () = impatience => return Err(Failure::Runtime(anyhow::anyhow!("told again to end while shutting down"))),
            () = hang_ups.reload() => {}
        }
        tracing::info!("stopped");
        Ok(())
    });
    if outcome.is_err() {
        // Whatever still runs is not waited for.
        runtime.shutdown_background();
    }
    outcome
}

/// Each client takes a descriptor, and the usual soft limit allows a thousand: takes as many as the operator allows.
fn raise_descriptor_limit() {
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(descriptors) => tracing::debug!(descriptors, "limit of open descriptors"),
        Err(error) => tracing::warn!(%error, "the limit of open descriptors can't be raised"),
    }
}

/// Where log lines go, and which.
pub fn start_logging(log: &Logging) -> Result<(), Failure> {
    telemetry::init(log.format, &log.filter).map_err(usage)
}
