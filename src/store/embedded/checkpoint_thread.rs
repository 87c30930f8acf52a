//! What writes checkpoints and removes segments, on a thread beside the committer's, which must not wait for either. When it
//! has had nothing to do for a while, it gives back room that checkpoints do not need.

use std::collections::VecDeque;
use std::sync::Arc;

use oncewire_protocol::log::Offset;
use tokio::sync::oneshot;

use super::committer::Queue;
use super::meta::Meta;
use super::on_demand::{Next, OnDemand, Worker};
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
}

/// Orders that wait.
#[derive(Default)]
pub(super) struct Waiting {
    orders: VecDeque<Order>,
    is_closed: bool,
}

/// Gives orders to the checkpoint thread.
pub(super) type Orders = OnDemand<CheckpointThread>;

impl Orders {
    /// Gives an order that is answered.
    pub(super) fn give(
        self: &Arc<Self>,
        order: impl FnOnce(Reply) -> Order,
    ) -> Result<oneshot::Receiver<Result<(), StoreError>>, StoreError> {
        let (reply, outcome) = oneshot::channel();
        self.put(|waiting| {
            if waiting.is_closed {
                return Err(definite(StoreErrorCause::Closed));
            }
            if waiting.orders.len() >= ORDERS_MAX {
                return Err(definite(StoreErrorCause::Overloaded));
            }
            waiting.orders.push_back(order(reply));
            Ok(outcome)
        })
    }

    /// Has the last trim repeated. When there is no room for the order, one is under way that does the same.
    pub(super) fn trim_again(self: &Arc<Self>) {
        let _ = self.put(|waiting| {
            if !waiting.is_closed && waiting.orders.len() < ORDERS_MAX {
                waiting.orders.push_back(Order::TrimAgain);
            }
            Ok(())
        });
    }

    /// Takes no more orders, and waits until those that wait are carried out. False if the thread has panicked.
    pub(super) fn close(&self) -> bool {
        self.end(|waiting| waiting.is_closed = true)
    }
}

/// What carries out orders.
pub(super) struct CheckpointThread {
    queue: Arc<Queue>,
    segments: Arc<Segments>,
    meta: Arc<Meta>,
    order: Option<Order>,
}

impl Worker for CheckpointThread {
    type Waiting = Waiting;
    const NAME: &'static str = "log-checkpoints";

    fn take(&mut self, waiting: &mut Waiting) -> Next {
        self.order = waiting.orders.pop_front();
        match self.order {
            Some(_) => Next::Work,
            None if waiting.is_closed => Next::End,
            None => Next::Rest,
        }
    }

    fn work(&mut self, _: &Orders) {
        match self.order.take() {
            None => {}
            Some(Order::Change(changes, reply)) => drop(reply.send(self.change(&changes))),
            Some(Order::Trim(before, reply)) => drop(reply.send(self.segments.trim(before))),
            Some(Order::BeginEpoch(reply)) => drop(reply.send(self.begin_epoch())),
            Some(Order::TrimAgain) => {
                if let Err(error) = self.segments.trim(self.queue.trimmed_to()) {
                    tracing::warn!(%error, "trimmed segments of the log could not be removed");
                }
            }
        }
    }

    /// Gives room back; false if somebody reads meanwhile, and it has to be tried again.
    fn rest(&mut self) -> bool {
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

    fn panicked(waiting: &mut Waiting) {
        // Whoever waits for an answer gets none.
        waiting.is_closed = true;
        waiting.orders.clear();
    }
}

impl CheckpointThread {
    pub(super) fn new(queue: Arc<Queue>, segments: Arc<Segments>, meta: Arc<Meta>) -> Self {
        Self { queue, segments, meta, order: None }
    }

    fn change(&self, changes: &[CheckpointChange]) -> Result<(), StoreError> {
        self.checked(self.queue.check_not_failed().and_then(|()| self.meta.change(changes)))
    }

    fn begin_epoch(&self) -> Result<(), StoreError> {
        self.checked(self.queue.check_not_failed().and_then(|()| self.meta.begin_epoch()))
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
