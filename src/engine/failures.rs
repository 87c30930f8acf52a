//! Failures of the store after which the process has to end.

use tokio::sync::watch;

use crate::store::StoreError;

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
            self.0.send_if_modified(|first| {
                let is_first = first.is_none();
                first.get_or_insert_with(|| error.clone());
                is_first
            });
        }
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
