//! Requests that wait for their outcome, in the order in which they are sent.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use super::ClientTime;
use crate::wire::{AckId, GroupName};

/// A request's place in the line; never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Order(u64);

/// What a request does to the groups that the client is in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Membership {
    Unchanged,
    Joins(GroupName),
    Leaves(GroupName),
}

/// What a request's timer means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaiting {
    /// An answer; the timer gives it up.
    Answer,
    /// The end of the pause after a failure.
    Retry,
}

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) ack_id: AckId,
    pub(super) data: Bytes,
    pub(super) membership: Membership,
    /// Made by the client itself, to be back in a group.
    pub(super) is_rejoin: bool,
    /// Sent to the session at hand.
    pub(super) is_sent: bool,
    pub(super) awaiting: Awaiting,
    pub(super) retries: u32,
    due: Option<ClientTime>,
}

impl Pending {
    pub(super) fn new(ack_id: AckId, data: Bytes, membership: Membership, is_rejoin: bool) -> Self {
        Self {
            ack_id,
            data,
            membership,
            is_rejoin,
            is_sent: false,
            awaiting: Awaiting::Answer,
            retries: 0,
            due: None,
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Requests {
    next_order: u64,
    line: BTreeMap<Order, Pending>,
    by_ack_id: BTreeMap<AckId, Order>,
    due: BTreeSet<(ClientTime, Order)>,
    bytes: usize,
}

impl Requests {
    pub(super) fn len(&self) -> usize {
        self.line.len()
    }

    /// Bytes of all frames.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn contains(&self, ack_id: AckId) -> bool {
        self.by_ack_id.contains_key(&ack_id)
    }

    /// Puts a request at the end of the line.
    pub(super) fn push(&mut self, pending: Pending) -> Order {
        let order = Order(self.next_order);
        self.next_order += 1;
        self.bytes += pending.data.len();
        self.by_ack_id.insert(pending.ack_id, order);
        if let Some(due) = pending.due {
            self.due.insert((due, order));
        }
        self.line.insert(order, pending);
        order
    }

    pub(super) fn remove(&mut self, order: Order) -> Option<Pending> {
        let pending = self.line.remove(&order)?;
        self.bytes -= pending.data.len();
        self.by_ack_id.remove(&pending.ack_id);
        if let Some(due) = pending.due {
            self.due.remove(&(due, order));
        }
        Some(pending)
    }

    pub(super) fn get_mut(&mut self, order: Order) -> Option<&mut Pending> {
        self.line.get_mut(&order)
    }

    /// The request that an ack answers: one that was sent to the session at hand.
    pub(super) fn sent_with(&self, ack_id: AckId) -> Option<Order> {
        let order = *self.by_ack_id.get(&ack_id)?;
        self.line.get(&order).is_some_and(|pending| pending.is_sent).then_some(order)
    }

    /// Sets or clears a request's timer.
    pub(super) fn set_due(&mut self, order: Order, due: Option<ClientTime>) {
        let Some(pending) = self.line.get_mut(&order) else { return };
        if let Some(old) = pending.due.take() {
            self.due.remove(&(old, order));
        }
        pending.due = due;
        if let Some(due) = due {
            self.due.insert((due, order));
        }
    }

    /// The next timer.
    pub(super) fn next_due(&self) -> Option<ClientTime> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Those whose timer has run out, the earliest first.
    pub(super) fn due_by(&self, now: ClientTime) -> Vec<Order> {
        self.due.iter().take_while(|(due, _)| *due <= now).map(|(_, order)| *order).collect()
    }

    /// All of the line.
    pub(super) fn orders(&self) -> Vec<Order> {
        self.line.keys().copied().collect()
    }

    /// Those not sent to the session at hand.
    pub(super) fn unsent(&self) -> Vec<Order> {
        self.line.iter().filter(|(_, pending)| !pending.is_sent).map(|(order, _)| *order).collect()
    }

    /// The socket is gone: nothing is waited for until there is another.
    pub(super) fn stop_timers(&mut self) {
        self.due.clear();
        self.line.values_mut().for_each(|pending| pending.due = None);
    }

    /// Takes all requests out, in their order.
    pub(super) fn drain(&mut self) -> Vec<Pending> {
        self.by_ack_id.clear();
        self.due.clear();
        self.bytes = 0;
        std::mem::take(&mut self.line).into_values().collect()
    }
}
