//! The thread that writes checkpoints and removes segments, beside the committer, which must not wait for either.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use oncewire_protocol::log::Offset;
use tokio::sync::oneshot;

use super::committer::Queue;
use super::meta::Meta;
use super::segments::Segments;
use super::table::definite;
use crate::store::{CheckpointChange, StoreError, StoreErrorCause};

/// Orders that may wait for the keeper.
pub(super) const KEEPER_ORDERS_MAX: usize = 1024;

type Reply = oneshot::Sender<Result<(), StoreError>>;

/// What the keeper does.
pub(super) enum Order {
    Change(Vec<CheckpointChange>, Reply),
    Trim(Offset, Reply),
    /// Removes what the last trim could not.
    TrimAgain,
    Stop,
}

/// Gives orders to the keeper.
#[derive(Clone)]
pub(super) struct Orders(SyncSender<Order>);

impl Orders {
    pub(super) fn channel() -> (Self, Receiver<Order>) {
        let (sender, orders) = sync_channel(KEEPER_ORDERS_MAX);
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

    /// Has the keeper end, after what was ordered before.
    pub(super) fn stop(&self) {
        let _ = self.0.send(Order::Stop);
    }
}

/// Carries out orders until it is told to stop.
pub(super) fn run(orders: &Receiver<Order>, queue: &Arc<Queue>, segments: &Arc<Segments>, meta: &Arc<Meta>) {
    while let Ok(order) = orders.recv() {
        match order {
            Order::Stop => return,
            Order::Change(changes, reply) => {
                let outcome = queue.check_not_failed().and_then(|()| meta.change(&changes));
                if let Err(error) = &outcome
                    && error.is_fatal()
                {
                    queue.fail(error.cause.clone());
                }
                // Whoever asked may have gone.
                let _ = reply.send(outcome);
            }
            Order::Trim(before, reply) => drop(reply.send(segments.trim(before))),
            Order::TrimAgain => {
                if let Err(error) = segments.trim(queue.trimmed_to()) {
                    tracing::warn!(%error, "trimmed segments of the log could not be removed");
                }
            }
        }
    }
}
