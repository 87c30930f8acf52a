//! Failures after which the process has to end: the store's, and those of a shard, which takes its sessions with it.

use oncewire_protocol::log::Certainty;
use tokio::sync::watch;

use crate::store::{StoreError, StoreErrorCause};

/// Where they are reported and waited for. Cheap to clone.
#[derive(Clone)]
pub(super) struct Failures(watch::Sender<Option<StoreError>>);

impl Default for Failures {
    fn default() -> Self {
        Self(watch::Sender::new(None))
    }
}

impl Failures {
    /// Reports a failure if it is of this kind. Only the first one counts.
    pub(super) fn report(&self, error: &StoreError) {
        if error.is_fatal() {
            self.end(error.clone());
        }
    }

    /// Reports a failure of any kind that nobody can go on from.
    pub(super) fn end(&self, error: StoreError) {
        self.0.send_if_modified(|first| {
            let is_first = first.is_none();
            first.get_or_insert(error);
            is_first
        });
    }

    /// A guard that reports a panic of the task that holds it.
    pub(super) fn panic_guard(&self) -> PanicGuard {
        PanicGuard(self.clone())
    }

    /// Completes at the first one.
    pub(super) async fn first(&self) -> StoreError {
        let mut reports = self.0.subscribe();
        loop {
            if let Some(error) = reports.borrow_and_update().clone() {
                return error;
            }
            if reports.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}

/// See [`Failures::panic_guard`].
pub(super) struct PanicGuard(Failures);

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let cause = StoreErrorCause::Fatal("a shard has panicked".to_owned());
            self.0.end(StoreError { certainty: Certainty::Indefinite, cause });
        }
    }
}
