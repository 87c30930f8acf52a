//! What all shards of a hub know alike, and the judgement that comes before any record's effect.
//!
//! It is the same function of the log in every shard and wherever the log is folded. It knows no session: whether a record
//! repeats an ack id is for the shard that owns the session to say.

use std::sync::Arc;

use super::nodes::Nodes;
use super::repeats::Repeats;
use super::request_window::{Known, RequestWindow};
use crate::log::{Body, BootId, ExecutedRequest, HubCheckpoint, Offset, Record, Refusal, RequestPage, Time};

/// The hub-wide part of the fold.
#[derive(Debug, Default)]
pub struct HubState {
    applied: Option<Offset>,
    applied_bytes: u64,
    time: Time,
    repeats: Repeats,
    requests: RequestWindow,
    nodes: Nodes,
}

/// What the fold makes of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It takes effect.
    TakesEffect,
    /// It changes nothing but the time.
    PassedOver(PassedOver),
}

/// Why a record is passed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PassedOver {
    /// It is a second copy of an append.
    Repeated,
    /// The request of the application was executed before, or refused for this reason.
    KnownRequest(Option<Refusal>),
    /// The session has executed another request under this ack id before, or the same one.
    KnownAckId,
    /// Its proposer is gone, or has not begun.
    GoneBoot,
    /// What it says about itself does not hold any more: see [`Body`].
    Condition,
}

impl HubState {
    /// Goes on where a checkpoint was made. None if a page of its requests is missing, or too short.
    pub fn restore(
        applied: Offset,
        stored: &HubCheckpoint,
        page: impl Fn(RequestPage) -> Option<Arc<Vec<ExecutedRequest>>>,
    ) -> Option<Self> {
        Some(Self {
            applied: Some(applied),
            applied_bytes: 0,
            time: stored.time,
            repeats: Repeats::restore(&stored.proposers),
            requests: RequestWindow::restore(&stored.requests, page)?,
            nodes: Nodes::restore(&stored.nodes),
        })
    }

    /// What a checkpoint keeps, without the chunks' offsets and the pages of requests.
    pub fn to_checkpoint(&self) -> HubCheckpoint {
        HubCheckpoint {
            time: self.time,
            proposers: self.repeats.to_checkpoint(),
            requests: self.requests.to_checkpoint(),
            covers: Vec::new(),
            nodes: self.nodes.to_checkpoint(),
        }
    }

    /// The last offset that was judged.
    pub fn applied(&self) -> Option<Offset> {
        self.applied
    }

    /// Bytes of the records that were judged since it began or was restored, about.
    pub fn applied_bytes(&self) -> u64 {
        self.applied_bytes
    }

    /// The hub's time: the latest of all records so far. Clocks that differ never take it back.
    pub fn time(&self) -> Time {
        self.time
    }

    /// Requests of the application that are remembered.
    pub fn requests(&self) -> &RequestWindow {
        &self.requests
    }

    /// The gateways that share the log.
    pub fn nodes(&self) -> &Nodes {
        &self.nodes
    }

    /// Whether several gateways may write the log.
    pub fn is_shared(&self) -> bool {
        !self.nodes.is_empty()
    }

    /// The live start that is gone with this record, should it take effect.
    pub fn ended_by(&self, record: &Record) -> Option<BootId> {
        match &record.body {
            Body::NodeStarted(started) => self.nodes.live_boot_of(&started.node),
            Body::NodeGone(gone) => Some(gone.boot).filter(|boot| self.nodes.is_live(*boot)),
            _ => None,
        }
    }

    /// Whether a record of this offset was judged already.
    pub fn has_judged(&self, offset: Offset) -> bool {
        self.applied.is_some_and(|applied| offset <= applied)
    }

    /// Judges the next record of the log, and takes note of what it says of time, appends and requests.
    pub fn judge(&mut self, offset: Offset, record: &Record) -> Verdict {
        self.applied = Some(offset);
        self.applied_bytes += record.encoded_bytes() as u64;
        let boot = record.key.boot.boot;
        let ended = self.ended_by(record);
        if let Body::NodeStarted(started) = &record.body {
            if !self.nodes.start(offset, boot, started) {
                return Verdict::PassedOver(PassedOver::Condition);
            }
        } else if self.is_shared() && !self.nodes.is_live(boot) {
            return Verdict::PassedOver(PassedOver::GoneBoot);
        }
        self.time = self.time.max(record.time);
        if !self.repeats.insert(&record.key.boot) {
            return Verdict::PassedOver(PassedOver::Repeated);
        }
        if let Some(request) = &record.key.request {
            if let Known::Repetition(refusal) = self.requests.look_up(request, self.time) {
                return Verdict::PassedOver(PassedOver::KnownRequest(refusal));
            }
            self.requests.insert(request, self.time, record.body.refusal());
        }
        if let Body::NodeGone(gone) = &record.body
            && !self.nodes.end(offset, gone.boot)
        {
            return Verdict::PassedOver(PassedOver::Condition);
        }
        if let Some(ended) = ended {
            self.repeats.forget(ended);
        }
        Verdict::TakesEffect
    }

    /// Another start has taken the log over: no append of an earlier one can still arrive.
    pub fn forget_boots_before(&mut self, boot: BootId) {
        self.repeats.forget_all_but(boot);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{Body, BootKey, IdempotencyKey, Key, RequestName};

    fn record(time: u64, counter: u64, request: Option<u128>) -> Record {
        let boot = BootKey { boot: BootId(1), shard: 0, counter, settled_below: 0 };
        let request = request.map(|id| IdempotencyKey {
            name: RequestName { id, fingerprint: 0 },
            window_seconds: 1,
            window_requests: 10,
            first_sent: None,
        });
        let body = Body::Told { connection_ids: Vec::new() };
        Record { key: Key { boot, ack: None, request }, time: Time(time), sequence_ack: None, body }
    }

    #[test]
    fn time_never_goes_back_whatever_clocks_stamp() {
        let mut state = HubState::default();
        assert_eq!(state.judge(Offset(0), &record(500, 1, Some(1))), Verdict::TakesEffect);
        assert_eq!(state.judge(Offset(1), &record(20, 2, Some(2))), Verdict::TakesEffect);
        assert_eq!(state.time(), Time(500));
        // Remembered as of 500, not of 20.
        state.judge(Offset(2), &record(1_400, 3, None));
        let known = Verdict::PassedOver(PassedOver::KnownRequest(None));
        assert_eq!(state.judge(Offset(3), &record(1_400, 4, Some(2))), known);
    }

    #[test]
    fn a_copy_is_told_from_another_append_of_the_same_request() {
        let mut state = HubState::default();
        assert_eq!(state.judge(Offset(0), &record(1, 1, Some(1))), Verdict::TakesEffect);
        let copy = Verdict::PassedOver(PassedOver::Repeated);
        assert_eq!(state.judge(Offset(1), &record(1, 1, Some(1))), copy);
        let known = Verdict::PassedOver(PassedOver::KnownRequest(None));
        assert_eq!(state.judge(Offset(2), &record(1, 2, Some(1))), known);
        assert_eq!((state.applied(), state.has_judged(Offset(3))), (Some(Offset(2)), false));
    }
}
