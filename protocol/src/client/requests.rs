//! Requests that wait for their outcome, in the order in which they are sent.

use std::collections::{BTreeMap, BTreeSet};

use super::{Client, ClientTime, Frame, Outcome, Output};
use crate::wire::{AckError, AckId, ErrorName, GroupName, Upstream};

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
    pub(super) frame: Frame,
    pub(super) membership: Membership,
    /// Made by the client itself, to be back in a group.
    pub(super) is_rejoin: bool,
    /// Sent to the session at hand.
    pub(super) is_sent: bool,
    awaiting: Awaiting,
    /// Copies of it, sent to the session at hand, whose answer has not come, and may never: it is in doubt.
    unanswered: u32,
    retries: u32,
    due: Option<ClientTime>,
}

impl Pending {
    pub(super) fn new(ack_id: AckId, frame: Frame, membership: Membership, is_rejoin: bool) -> Self {
        Self {
            ack_id,
            frame,
            membership,
            is_rejoin,
            is_sent: false,
            awaiting: Awaiting::Answer,
            unanswered: 0,
            retries: 0,
            due: None,
        }
    }

    /// Uses up one of the retries.
    fn may_retry(&mut self, retries_max: u32) -> bool {
        let may = self.retries < retries_max;
        self.retries += u32::from(may);
        may
    }

    fn forget_session(&mut self) {
        self.is_sent = false;
        self.unanswered = 0;
        self.awaiting = Awaiting::Answer;
        self.due = None;
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

    /// Groups that pending requests join.
    pub(super) fn joining(&self) -> impl Iterator<Item = &GroupName> {
        self.line.values().filter_map(|pending| match &pending.membership {
            Membership::Joins(group) => Some(group),
            Membership::Leaves(_) | Membership::Unchanged => None,
        })
    }

    /// Puts a request at the end of the line.
    pub(super) fn push(&mut self, pending: Pending) -> Order {
        let order = Order(self.next_order);
        self.next_order += 1;
        self.bytes += pending.frame.data.len();
        self.by_ack_id.insert(pending.ack_id, order);
        if let Some(due) = pending.due {
            self.due.insert((due, order));
        }
        self.line.insert(order, pending);
        order
    }

    pub(super) fn remove(&mut self, order: Order) -> Option<Pending> {
        let pending = self.line.remove(&order)?;
        self.bytes -= pending.frame.data.len();
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

impl Client {
    /// Sends one request and waits for its answer.
    pub(super) fn send_pending(&mut self, now: ClientTime, order: Order) {
        let Some(pending) = self.requests.get_mut(order) else { return };
        pending.is_sent = true;
        pending.unanswered = pending.unanswered.saturating_add(1);
        pending.awaiting = Awaiting::Answer;
        let frame = pending.frame.clone();
        let due = self.settings.ack_timeout_ms.map(|ms| now.plus_ms(ms));
        self.requests.set_due(order, due);
        self.send(frame);
    }

    /// All that has no outcome goes to the new socket of the same session, in the original order.
    pub(super) fn resend_requests(&mut self, now: ClientTime) {
        for order in self.requests.orders() {
            self.send_pending(now, order);
        }
    }

    pub(super) fn send_unsent_requests(&mut self, now: ClientTime) {
        for order in self.requests.unsent() {
            self.send_pending(now, order);
        }
    }

    /// Joins the client's groups in a new session, before anything that has not been sent yet.
    pub(super) fn rejoin(&mut self, now: ClientTime) {
        if self.settings.auto_rejoin && !self.groups.is_empty() {
            let (sent, unsent): (Vec<_>, Vec<_>) =
                self.requests.drain().into_iter().partition(|pending| pending.is_sent);
            for pending in sent {
                self.requests.push(pending);
            }
            for group in self.groups.clone() {
                let ack_id = self.fresh_ack_id();
                let join = Upstream::JoinGroup { group: group.clone(), ack_id: Some(ack_id) };
                let frame = self.encode(&join);
                self.requests.push(Pending::new(ack_id, frame, Membership::Joins(group), true));
            }
            for pending in unsent {
                self.requests.push(pending);
            }
        }
        self.send_unsent_requests(now);
    }

    pub(super) fn acked(&mut self, now: ClientTime, ack_id: AckId, error: Option<AckError>) {
        let Some(order) = self.requests.sent_with(ack_id) else { return };
        let Some(pending) = self.requests.get_mut(order) else { return };
        pending.unanswered = pending.unanswered.saturating_sub(1);
        let may_have_happened = pending.unanswered > 0;
        let outcome = match error {
            None => Outcome::Done,
            Some(error) => match error.name {
                ErrorName::Duplicate => Outcome::Duplicate,
                ErrorName::InternalServerError if pending.may_retry(self.settings.request_retries_max) => {
                    pending.awaiting = Awaiting::Retry;
                    self.requests.set_due(order, Some(now.plus_ms(self.settings.request_retry_ms)));
                    return;
                }
                ErrorName::InternalServerError
                | ErrorName::Forbidden
                | ErrorName::PayloadMismatch
                | ErrorName::BadRequest => Outcome::Refused { error, may_have_happened },
            },
        };
        self.settle(order, outcome);
    }

    fn settle(&mut self, order: Order, outcome: Outcome) {
        let Some(pending) = self.requests.remove(order) else { return };
        let succeeded = matches!(outcome, Outcome::Done | Outcome::Duplicate);
        match pending.membership {
            Membership::Joins(group) if pending.is_rejoin => {
                if !succeeded {
                    self.groups.remove(&group);
                    let error = if let Outcome::Refused { error, .. } = outcome { Some(error) } else { None };
                    self.outputs.push_back(Output::RejoinFailed { group, error });
                }
                return;
            }
            Membership::Joins(group) if succeeded && self.settings.auto_rejoin => {
                self.groups.insert(group);
            }
            Membership::Leaves(group) if succeeded => {
                self.groups.remove(&group);
            }
            _ => {}
        }
        self.outputs.push_back(Output::Outcome { ack_id: pending.ack_id, outcome });
    }

    pub(super) fn fire_request_timers(&mut self, now: ClientTime) {
        for order in self.requests.due_by(now) {
            let retries_max = self.settings.request_retries_max;
            let may_send = self.requests.get_mut(order).is_some_and(|pending| match pending.awaiting {
                Awaiting::Retry => true,
                Awaiting::Answer => pending.may_retry(retries_max),
            });
            if may_send {
                self.send_pending(now, order);
            } else {
                self.settle(order, Outcome::Unknown);
            }
        }
    }

    /// The session that requests were sent to is gone, and its memory of ack ids with it. Those that it certainly
    /// has not executed wait for the next one.
    pub(super) fn requests_lost_session(&mut self) {
        for mut pending in self.requests.drain() {
            if let Membership::Leaves(group) = &pending.membership {
                self.groups.remove(group);
            }
            if pending.is_rejoin {
                continue;
            }
            let is_in_doubt = pending.unanswered > 0;
            let may_resend = self.settings.resend_to_new_session;
            if !is_in_doubt || (may_resend && pending.may_retry(self.settings.request_retries_max)) {
                pending.forget_session();
                self.requests.push(pending);
            } else {
                self.outputs.push_back(Output::Outcome { ack_id: pending.ack_id, outcome: Outcome::Unknown });
            }
        }
    }

    /// The application stops: whatever waits gets its outcome.
    pub(super) fn give_up_requests(&mut self) {
        for pending in self.requests.drain() {
            if !pending.is_rejoin {
                let outcome = if pending.unanswered > 0 { Outcome::Unknown } else { Outcome::NotExecuted };
                self.outputs.push_back(Output::Outcome { ack_id: pending.ack_id, outcome });
            }
        }
    }
}
