//! Which sequence ids a session has delivered, and when to say so.

use super::ClientTime;
use super::settings::QUICK_ACK_JUMP;
use crate::wire::SequenceId;

/// What to do about a sequenced message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Arrival {
    /// It came for the first time.
    pub(super) is_new: bool,
    /// It is so far above the one before that a quick ack is due.
    pub(super) is_jump: bool,
}

/// Starts anew with each session, goes on over sockets.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    largest: SequenceId,
    due: Option<ClientTime>,
}

impl Sequence {
    /// The largest id seen; 0 before the first.
    pub(super) fn largest(&self) -> SequenceId {
        self.largest
    }

    /// Takes note of a message. A repeated one is acknowledged too: it came because its ack did not arrive.
    pub(super) fn arrive(&mut self, now: ClientTime, id: SequenceId, ack_ms: u64) -> Arrival {
        let is_new = id > self.largest;
        let is_jump = is_new && id - self.largest > QUICK_ACK_JUMP;
        self.largest = self.largest.max(id);
        self.due.get_or_insert(now.plus_ms(ack_ms));
        Arrival { is_new, is_jump }
    }

    /// A new socket begins the wait anew.
    pub(super) fn wait_anew(&mut self, now: ClientTime, ack_ms: u64) {
        if self.due.is_some() {
            self.due = Some(now.plus_ms(ack_ms));
        }
    }

    /// When an ack is due.
    pub(super) fn due(&self) -> Option<ClientTime> {
        self.due
    }

    /// Takes the id to acknowledge.
    pub(super) fn take_ack(&mut self) -> SequenceId {
        self.due = None;
        self.largest
    }
}
