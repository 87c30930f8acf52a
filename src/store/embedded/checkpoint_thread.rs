//! The thread that writes checkpoints and removes segments, beside the committer, which must not wait for either. When
//! it has had nothing to do for a while, it gives back room that checkpoints do not need.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use oncewire_protocol::log::Offset;
use tokio::sync::oneshot;

use super::committer::Queue;
use super::meta::Meta;
use super::redb_file::definite;
use super::segments::Segments;
use crate::store::{CheckpointChange, StoreError, StoreErrorCause};

/// Orders that may wait for the checkpoint thread.
pub(super) const ORDERS_MAX: usize = 1024;

/// Where an order is answered.
pub(super) type Reply = oneshot::Sender<Result<(), StoreError>>;

/// What the checkpoint thread does.
pub(super) enum Order {
    Change(Vec<CheckpointChange>, Reply),
    Trim(Offset, Reply),
    /// Begins another epoch.
    BeginEpoch(Reply),
    /// Removes what the last trim could not.
    TrimAgain,
    Stop,
}

/// Gives orders to the checkpoint thread.
#[derive(Clone)]
pub(super) struct Orders(SyncSender<Order>);

impl Orders {
    pub(super) fn channel() -> (Self, Receiver<Order>) {
        let (sender, orders) = sync_channel(ORDERS_MAX);
        (Self(sender), orders)
    }

    /// Gives an order that is answered.
    pub(super) fn give(
        &self,
        order: impl FnOnce(Reply) -> Order,
    ) -> Result<oneshot::Receiver<Result<(), StoreError>>, StoreError> {
        let (reply, outcome) = oneshot::channel();
        match self.0.try_send(order(reply)) {
            Ok(()) => Ok(outcome),
            Err(TrySendError::Full(_)) => Err(definite(StoreErrorCause::Overloaded)),
            Err(TrySendError::Disconnected(_)) => Err(definite(StoreErrorCause::Closed)),
        }
    }

    /// Has the last trim repeated. When there is no room for the order, one is under way that does the same.
    pub(super) fn trim_again(&self) {
        let _ = self.0.try_send(Order::TrimAgain);
    }

    /// Has the checkpoint thread end, after what was ordered before.
    pub(super) fn stop(&self) {
        let _ = self.0.send(Order::Stop);
    }
}

/// Carries out orders until it is told to stop. It is at rest when no order has come for so long.
pub(super) fn run(
    orders: &Receiver<Order>,
    queue: &Arc<Queue>,
    segments: &Arc<Segments>,
    meta: &Arc<Meta>,
    rest: Duration,
) {
    let checkpoint_thread = CheckpointThread { queue, meta };
    loop {
        let order = match orders.recv_timeout(rest) {
            Err(RecvTimeoutError::Timeout) if checkpoint_thread.shrink() => orders.recv().ok(),
            Err(RecvTimeoutError::Timeout) => continue,
            order => order.ok(),
        };
        match order {
            Some(Order::Stop) | None => return,
            Some(Order::Change(changes, reply)) => drop(reply.send(checkpoint_thread.change(&changes))),
            Some(Order::Trim(before, reply)) => drop(reply.send(segments.trim(before))),
            Some(Order::BeginEpoch(reply)) => drop(reply.send(checkpoint_thread.begin_epoch())),
            Some(Order::TrimAgain) => {
                if let Err(error) = segments.trim(queue.trimmed_to()) {
                    tracing::warn!(%error, "trimmed segments of the log could not be removed");
                }
            }
        }
    }
}

struct CheckpointThread<'a> {
    queue: &'a Queue,
    meta: &'a Meta,
}

impl CheckpointThread<'_> {
    fn change(&self, changes: &[CheckpointChange]) -> Result<(), StoreError> {
        self.checked(self.queue.check_not_failed().and_then(|()| self.meta.change(changes)))
    }

    fn begin_epoch(&self) -> Result<(), StoreError> {
        self.checked(self.queue.check_not_failed().and_then(|()| self.meta.begin_epoch()))
    }

    /// Gives room back; false if somebody reads meanwhile, and it has to be tried again.
    fn shrink(&self) -> bool {
        if self.queue.check_not_failed().is_err() {
            return true;
        }
        let shrunk = self.meta.shrink_at_rest();
        let is_done = *shrunk.as_ref().unwrap_or(&true);
        if let Err(error) = self.checked(shrunk.map(drop)) {
            tracing::warn!(%error, "room that checkpoints do not need could not be given back");
        }
        is_done
    }

    /// After a failure that leaves nothing certain the log takes nothing more.
    fn checked(&self, outcome: Result<(), StoreError>) -> Result<(), StoreError> {
        if let Err(error) = &outcome
            && error.is_fatal()
        {
            self.queue.fail(error.cause.clone());
        }
        outcome
    }
}
