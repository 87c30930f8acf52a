//! A socket and what its client hears, against what the log says.

use std::task::Waker;

use oncewire_protocol::hub::Attachment;
use oncewire_protocol::log::Time;
use oncewire_protocol::wire::{AckId, ErrorName, SequenceId, Subprotocol};

use super::truth::Truth;
use crate::frames::Heard;

/// See the module.
pub struct Socket {
    pub name: String,
    pub subprotocol: Subprotocol,
    pub attachment: Attachment,
    pub is_first: bool,
    pub is_closed: bool,
    pub last_id: SequenceId,
    /// Deliveries that a client without sequence ids has read.
    pub read: usize,
    pub asked: Vec<AckId>,
    pub acked: Vec<AckId>,
}

impl Socket {
    /// Whether it is the session's newest.
    pub fn is_current(&self) -> bool {
        self.attachment.outbox.lock().is_current(self.attachment.session.epoch)
    }

    /// A socket that has read everything, and whose requests are all settled, may send more.
    pub fn check_reading(&self) {
        let epoch = self.attachment.session.epoch;
        let may_read = self.attachment.outbox.lock().may_read(epoch, Waker::noop());
        assert!(may_read || self.is_closed, "requests that are settled count as pending");
    }

    /// Its client hears something.
    pub fn hears(&mut self, heard: Heard, truth: &Truth, latest: Time) {
        let name = &self.name;
        match heard {
            Heard::Message { id, text } => {
                assert_eq!(id.is_some(), self.subprotocol.is_reliable(), "a sequence id where one belongs");
                // What is sent to a session that has just ended is not judged: the log has nothing of it any more.
                let Some(session) = truth.sessions.get(name) else { return };
                let Some(id) = id else {
                    let next = session.deliveries.get(self.read).map(|delivery| &delivery.text);
                    assert_eq!(next, Some(&text), "{name} gets everything in order");
                    self.read += 1;
                    return;
                };
                assert!(id > self.last_id && id < 1 << 53, "{id} after {}", self.last_id);
                let named = session.deliveries.iter().find(|delivery| delivery.id == id);
                assert_eq!(named.map(|delivery| &delivery.text), Some(&text), "{id} names one message");
                let skipped = session.owed().find(|delivery| {
                    (self.last_id + 1..id).contains(&delivery.id)
                        && delivery.expires_at.is_none_or(|at| at > latest)
                });
                assert_eq!(skipped, None, "{name} is not sent what comes before {id}");
                self.last_id = id;
            }
            Heard::Ack { ack_id, error } => {
                self.acked.push(ack_id);
                let says_executed =
                    matches!(error, None | Some(ErrorName::Duplicate | ErrorName::PayloadMismatch));
                assert!(
                    !says_executed || truth.has_executed(name, ack_id),
                    "{name}: {ack_id} is not in the log"
                );
            }
            Heard::Other => {}
        }
    }
}
