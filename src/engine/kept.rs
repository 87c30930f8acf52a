//! Hubs that are kept from an earlier start: each is live, or named as damaged, before the gateway is ready.

use std::time::Duration;

use futures_util::future::join_all;
use oncewire_protocol::wire::HubName;
use tokio::sync::oneshot;

use super::{Engine, HubUnavailable};
use crate::store::{StoreError, StoreErrorCause};

/// How long a kept hub waits that could not be started, for a reason that may pass.
const START_RETRY: Duration = Duration::from_secs(10);

/// Kept hubs that are being started.
pub struct KeptHubs(Vec<oneshot::Receiver<()>>);

impl KeptHubs {
    /// Completes when each of them is live, or has failed to start.
    pub async fn started(self) {
        // One whose task is gone counts too.
        join_all(self.0).await;
    }
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
            Self::Starting | Self::TooMany(_) => false,
        }
    }

    /// Whether it is so because the process ends.
    pub(super) fn is_of_stop(&self) -> bool {
        matches!(self, Self::Log(error) if error.cause == StoreErrorCause::Closed)
    }

    fn may_pass(&self) -> bool {
        let is_fatal = matches!(self, Self::Log(error) if error.is_fatal());
        !is_fatal && !self.is_of_stop() && !self.is_lasting()
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

    fn start_kept(&self, hub: HubName) -> oneshot::Receiver<()> {
        self.begin_kept(&hub);
        let engine = self.clone();
        let (started, is_started) = oneshot::channel();
        tokio::spawn(async move {
            let mut telling = Some(started);
            loop {
                let outcome = engine.try_again(&hub).await;
                drop(telling.take());
                match outcome {
                    Err(error) if error.may_pass() => tokio::time::sleep(START_RETRY).await,
                    Ok(()) | Err(_) => return,
                }
            }
        });
        is_started
    }
}
