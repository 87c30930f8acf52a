//! Hubs that are kept from an earlier start: each is live, or named as damaged, before the gateway is ready.

use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join_all;
use oncewire_protocol::wire::HubName;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{Engine, HubUnavailable, Starting};
use crate::store::{StoreError, StoreErrorCause};

/// How long a kept hub waits that could not be started, for a reason that may pass.
const START_RETRY: Duration = Duration::from_secs(10);

/// Kept hubs that are being started.
pub struct KeptHubs(Vec<oneshot::Receiver<()>>);

impl KeptHubs {
    /// Completes when each of them is live, or has failed to start.
    pub async fn settled(self) {
        // One whose task is gone settles too.
        join_all(self.0).await;
    }
}

/// Why a hub could not be started, if so.
#[derive(Debug, Default)]
pub(super) struct StartFailure(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// It is there from an earlier start.
    is_kept: bool,
    error: Option<HubUnavailable>,
}

impl StartFailure {
    /// # Errors
    /// When no attempt to start it can succeed, in this process.
    pub(super) fn check(&self) -> Result<(), HubUnavailable> {
        match &self.0.lock().error {
            Some(error) if error.is_lasting() => Err(error.clone()),
            Some(_) | None => Ok(()),
        }
    }

    fn keep(&self) {
        self.0.lock().is_kept = true;
    }

    /// Whether its sessions, of which there may be some, are missing.
    fn is_damaged(&self) -> bool {
        self.0.lock().error.is_some()
    }

    /// Takes note of how an attempt ended, and says so once.
    pub(super) fn note(&self, hub: &HubName, failure: Option<&HubUnavailable>) {
        let mut state = self.0.lock();
        let Some(error) = failure else {
            state.error = None;
            return;
        };
        if is_closed(error) {
            // The process ends.
        } else if !state.is_kept && !error.is_lasting() {
            tracing::warn!(%hub, %error, "a hub can't be started");
        } else if state.error.replace(error.clone()).is_none() {
            tracing::error!(%hub, %error, "a hub can't be started: its clients are answered 503");
        } else {
            tracing::debug!(%hub, %error, "a hub still can't be started");
        }
    }
}

fn is_closed(error: &HubUnavailable) -> bool {
    matches!(error, HubUnavailable::Log(error) if error.cause == StoreErrorCause::Closed)
}

impl HubUnavailable {
    /// Whether a later attempt fails too, as long as nobody repairs what is stored.
    pub fn is_lasting(&self) -> bool {
        match self {
            Self::Checkpoint(_) => true,
            Self::Log(error) => matches!(
                error.cause,
                StoreErrorCause::Damaged { .. }
                    | StoreErrorCause::UnknownVersion { .. }
                    | StoreErrorCause::Trimmed { .. }
            ),
            Self::Starting => false,
        }
    }

    fn may_pass(&self) -> bool {
        let is_fatal = matches!(self, Self::Log(error) if error.is_fatal());
        !is_fatal && !is_closed(self) && !self.is_lasting()
    }
}

impl Engine {
    /// Starts the hubs that the store has from before, in the background. Call it once, before sockets come: from when it
    /// has returned these hubs are known to exist.
    ///
    /// # Errors
    /// When the store can't tell which hubs there are.
    pub async fn start_kept_hubs(&self) -> Result<KeptHubs, StoreError> {
        let hubs = self.0.store.hubs().await?;
        Ok(KeptHubs(hubs.into_iter().map(|hub| self.start_kept(hub)).collect()))
    }

    /// Hubs whose sessions can't be served because what is stored of them is damaged or could not be read, by their names.
    pub fn damaged_hubs(&self) -> Vec<HubName> {
        let hubs = self.0.hubs.lock();
        let damaged = hubs.iter().filter(|(_, entry)| entry.failure.is_damaged());
        let mut names: Vec<_> = damaged.map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        names
    }

    fn start_kept(&self, hub: HubName) -> oneshot::Receiver<()> {
        let entry = self.entry(&hub);
        entry.failure.keep();
        entry.is_starting.store(true, Ordering::Relaxed);
        let (engine, starting) = (self.clone(), Starting(entry));
        let (settled, is_settled) = oneshot::channel();
        tokio::spawn(async move {
            let mut settled = Some(settled);
            loop {
                let started = engine.started(&hub, &starting.0).await;
                drop(settled.take());
                match started {
                    Err(error) if error.may_pass() => tokio::time::sleep(START_RETRY).await,
                    Ok(_) | Err(_) => return,
                }
            }
        });
        is_settled
    }
}
