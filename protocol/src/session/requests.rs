//! A session's requests on their way into the log.
//!
//! Requests wait in a queue; at most one batch of them is being appended (R7). A batch is a line of slots that are
//! settled from the front, so that answers come in the order of the requests. All of it outlives the socket.
//!
//! ```text
//! queue --next_batch--> slots: [answer] [append] [repeat] [append] ...
//!                              refused  record   same ack id as an earlier slot
//!       --next_batch--> slots: [call]  --answer_call--> [append] or [answer]
//!                              an event handler is at work
//! ```
//! A user event is a batch of its own: what came before it was executed before its handler is called, and what comes after
//! it waits for the handler.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::kept_capacity::shrink_if_empty;
use super::{AckWindow, Seen};
use crate::log::{AckKey, BootKey, Certainty, Record};
use crate::wire::{AckError, AckId, Downstream, ErrorName, Upstream};

/// One request and its size on the wire.
#[derive(Debug)]
pub struct Request {
    /// What the client asks for.
    pub message: Upstream,
    /// Bytes of its frame, for the bound on pending requests.
    pub bytes: usize,
}

/// Where a request of the batch stands.
#[derive(Debug)]
pub enum Slot {
    /// Needs no record; answered when its turn comes.
    Answer(Option<Downstream>),
    /// Its record is being appended.
    Append {
        /// The record.
        record: Arc<Record>,
        /// What is known of the append.
        outcome: Outcome,
    },
    /// An ack id that an earlier slot of the batch carries too; its outcome decides.
    Repeat(AckKey),
    /// Its event handler has been called and has not answered yet.
    Call(Option<AckKey>),
}

/// What is known of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing yet.
    Pending,
    /// The record came back from the log and has taken effect.
    Applied,
    /// The record is certainly not in the log.
    Failed,
}

/// A settled request: what to answer, and what it no longer takes up.
#[derive(Debug)]
pub struct Settled {
    /// For the client, if it wanted an answer.
    pub answer: Option<Downstream>,
    /// The request's size on the wire.
    pub bytes: usize,
}

/// What a batch begins with.
#[derive(Debug)]
pub struct Begun {
    /// To be appended.
    pub records: Vec<Arc<Record>>,
    /// The user event whose handler is to be called; then there is no record.
    pub call: Option<Upstream>,
}

/// The queue and the batch.
#[derive(Debug, Default)]
pub struct Requests {
    queue: VecDeque<Request>,
    batch: VecDeque<(Slot, usize)>,
    batch_number: u64,
    /// Set once an attempt to append the batch has failed indefinitely: no later failure settles it.
    may_have_happened: bool,
}

impl Requests {
    /// Adds a request behind all others.
    pub fn push(&mut self, request: Request) {
        self.queue.push_back(request);
    }

    /// Takes out all requests that no batch has taken yet.
    pub fn drop_waiting(&mut self) -> VecDeque<Request> {
        std::mem::take(&mut self.queue)
    }

    /// Whether a batch is not settled yet.
    pub fn has_batch(&self) -> bool {
        !self.batch.is_empty()
    }

    /// Whether requests wait behind a batch that is not settled yet.
    pub fn has_waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Whether nothing waits and nothing is being appended.
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty() && self.batch.is_empty()
    }

    /// Number of the current or last batch, from 1.
    pub fn batch_number(&self) -> u64 {
        self.batch_number
    }

    /// Turns the queue, up to the next user event, into the next batch: `classify` gives each request its slot, told
    /// whether the batch already appends something under the same ack id. Returns what the batch begins with.
    pub fn next_batch(&mut self, mut classify: impl FnMut(&Upstream, &BTreeSet<AckId>) -> Slot) -> Begun {
        let mut records = Vec::new();
        let mut ack_ids = BTreeSet::new();
        self.batch_number += 1;
        self.may_have_happened = false;
        let mut call = None;
        while let Some(Request { message, .. }) = self.queue.front() {
            let slot = classify(message, &ack_ids);
            let is_call = matches!(slot, Slot::Call(_));
            if is_call && !self.batch.is_empty() {
                break;
            }
            let Some(Request { message, bytes }) = self.queue.pop_front() else { break };
            if let Slot::Append { record, .. } = &slot {
                ack_ids.extend(record.key.ack.map(|ack| ack.ack_id));
                records.push(Arc::clone(record));
            }
            self.batch.push_back((slot, bytes));
            if is_call {
                call = Some(message);
                break;
            }
        }
        shrink_if_empty(&mut self.queue);
        Begun { records, call }
    }

    /// Whether an event handler is at work for the batch.
    pub fn is_calling(&self) -> bool {
        matches!(self.batch.front(), Some((Slot::Call(_), _)))
    }

    /// Gives up the batch's call, if an event handler is at work for it; returns the request's size on the wire.
    pub fn drop_call(&mut self) -> Option<usize> {
        if !self.is_calling() {
            return None;
        }
        self.batch.pop_front().map(|(_, bytes)| bytes)
    }

    /// Takes the answer to the batch's call, if it is still this one's: `settle` makes its slot.
    pub fn answer_call(&mut self, batch: u64, settle: impl FnOnce(Option<AckKey>) -> Slot) {
        if self.batch_number != batch {
            return;
        }
        if let Some((slot @ Slot::Call(_), _)) = self.batch.front_mut()
            && let Slot::Call(ack) = *slot
        {
            *slot = settle(ack);
        }
    }

    /// Records of the batch whose append has no known outcome.
    pub fn unsettled(&self) -> impl Iterator<Item = &Arc<Record>> {
        self.batch.iter().filter_map(|(slot, _)| match slot {
            Slot::Append { record, outcome: Outcome::Pending } => Some(record),
            _ => None,
        })
    }

    /// Notes that an attempt to append the batch failed; tells whether the batch is certainly not in the log. Once an
    /// attempt may have happened, the definite failure of a later one says nothing about it.
    pub fn has_certainly_failed(&mut self, certainty: Certainty) -> bool {
        self.may_have_happened |= certainty == Certainty::Indefinite;
        !self.may_have_happened
    }

    /// Notes the outcome of one record; tells whether the batch was waiting for it.
    pub fn note(&mut self, key: &BootKey, known: Outcome) -> bool {
        for (slot, _) in &mut self.batch {
            if let Slot::Append { record, outcome: outcome @ Outcome::Pending } = slot
                && record.key.boot == *key
            {
                *outcome = known;
                return true;
            }
        }
        false
    }

    /// Takes the next request whose turn has come and whose outcome is known.
    pub fn settle_next(&mut self, window: &AckWindow) -> Option<Settled> {
        match self.batch.front() {
            Some((Slot::Append { outcome: Outcome::Pending, .. }, _)) => return None,
            Some((Slot::Call(_), _)) => return None,
            _ => {}
        }
        let (slot, bytes) = self.batch.pop_front()?;
        let answer = match slot {
            Slot::Answer(answer) => answer,
            // Its turn comes once the answer has taken its place.
            Slot::Call(_) => None,
            Slot::Append { record, outcome } => record.key.ack.map(|AckKey { ack_id, .. }| Downstream::Ack {
                ack_id,
                error: (outcome == Outcome::Failed).then(append_failed),
            }),
            Slot::Repeat(AckKey { ack_id, fingerprint }) => {
                let seen = window.look_up(ack_id, fingerprint);
                Some(Downstream::Ack { ack_id, error: Some(known_ack_error(ack_id, seen)) })
            }
        };
        shrink_if_empty(&mut self.batch);
        Some(Settled { answer, bytes })
    }
}

/// The error for an ack id that was seen before; a request that failed may be tried again.
pub(super) fn known_ack_error(ack_id: AckId, seen: Seen) -> AckError {
    match seen {
        Seen::Duplicate => AckError {
            name: ErrorName::Duplicate,
            message: format!("The request with ack id {ack_id} was already executed."),
        },
        Seen::Mismatch => AckError {
            name: ErrorName::PayloadMismatch,
            message: format!("Another request was already executed with ack id {ack_id}; this one was not."),
        },
        Seen::New => append_failed(),
    }
}

fn append_failed() -> AckError {
    AckError {
        name: ErrorName::InternalServerError,
        message: "The request could not be stored. It may be sent again with the same ack id.".to_owned(),
    }
}

#[cfg(test)]
#[path = "requests_tests.rs"]
mod tests;
