//! What an outbox gives its socket's writer, and takes back.

use std::collections::VecDeque;
use std::task::Waker;

use bytes::BytesMut;

use super::{AttachEpoch, Closing, Outbox};
use crate::log::Time;
use crate::wire::{Close, MessageRest, encode_downstream};

/// What [`Outbox::transmit`] asks of the writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// Write the bytes, then call again; after a partial write call [`Outbox::rewind`] first.
    Frames,
    /// Write the bytes. Once all are written there is nothing more; the waker is woken when that changes. After a
    /// partial write go on as after `Frames`.
    LastFrames,
    /// Nothing to write. The waker is woken when that changes.
    Idle,
    /// Send this close frame and be done.
    Close(Close),
    /// Drop the socket without a close frame.
    Cut,
}

/// What a transmission holds, and where it ends in the transmitted bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SentItem {
    /// End of its last frame, in bytes from the start of the transmission.
    pub end: usize,
    pub(super) item: Item,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Item {
    Reply,
    /// The position among all deliveries of the session.
    Delivery(u64),
}

impl Outbox {
    /// Appends up to about `budget_bytes` of frames to `out`: replies that are due and messages from the cursor on,
    /// leaving out those whose time-to-live is over. `sent` tells where each of them ends.
    pub fn transmit(
        &mut self,
        epoch: AttachEpoch,
        now: Time,
        budget_bytes: usize,
        out: &mut BytesMut,
        sent: &mut Vec<SentItem>,
        waker: &Waker,
    ) -> Progress {
        if !self.is_current(epoch) {
            return Progress::Cut;
        }
        match self.closing {
            Some(Closing::Cut) => return Progress::Cut,
            Some(Closing::Now(close)) => return Progress::Close(close),
            Some(Closing::AfterFlush(_)) | None => {}
        }
        self.forget_written();
        while out.len() < budget_bytes {
            if let Some(reply) = self.replies.get(self.replies_sent)
                && reply.due <= self.position()
            {
                encode_downstream(self.subprotocol.encoding(), &reply.message, out);
                self.replies_sent += 1;
                sent.push(SentItem { end: out.len(), item: Item::Reply });
                continue;
            }
            let position = self.position();
            let Some(entry) = self.entries.get_mut(self.cursor) else { break };
            let is_reliable = self.subprotocol.is_reliable();
            match entry.message.take_if(|message| is_reliable && message.is_expired(now)) {
                Some(expired) => {
                    self.let_go_of(&expired);
                    self.marking.expired(expired.content_bytes());
                }
                None => {
                    if let Some(message) = &entry.message {
                        let id = self.subprotocol.is_reliable().then_some(entry.id);
                        message.body(self.subprotocol.encoding()).write_message(id, out);
                        sent.push(SentItem { end: out.len(), item: Item::Delivery(position) });
                    }
                }
            }
            self.cursor += 1;
        }
        let is_last = self.cursor == self.entries.len() && self.needs_no_look_after_writing();
        if !out.is_empty() && !is_last {
            return Progress::Frames;
        }
        self.drop_expired_front();
        if let Some(Closing::AfterFlush(close)) = self.closing {
            return Progress::Close(close);
        }
        match &mut self.writer {
            Some(writer) => writer.clone_from(waker),
            None => self.writer = Some(waker.clone()),
        }
        if out.is_empty() { Progress::Idle } else { Progress::LastFrames }
    }

    /// Whether a write that is under way should be given up: the socket is to be closed now or is no longer the
    /// attached one. If not, the waker is woken when it is.
    pub fn is_write_over(&mut self, epoch: AttachEpoch, waker: &Waker) -> bool {
        let is_over = !self.is_current(epoch) || matches!(self.closing, Some(Closing::Now(_) | Closing::Cut));
        if !is_over {
            self.blocked_writer = Some(waker.clone());
        }
        is_over
    }

    /// The last `rest` bytes of a message of the last transmission, shared with all that wait for it. `None` when there is
    /// nothing to share: a reply, or a message that has been acknowledged meanwhile.
    pub fn rest_of_message(&self, sent: &SentItem, rest: usize) -> Option<MessageRest> {
        let Item::Delivery(position) = sent.item else { return None };
        let entry = self.entries.get(position.checked_sub(self.base())? as usize)?;
        let id = self.subprotocol.is_reliable().then_some(entry.id);
        Some(entry.message.as_ref()?.body(self.subprotocol.encoding()).rest_of_message(id, rest))
    }

    /// Takes back what was not written at all of the last transmission. The writer finishes what it has begun.
    pub fn rewind(&mut self, epoch: AttachEpoch, unwritten: &[SentItem]) {
        if !self.is_current(epoch) {
            return;
        }
        let replies = unwritten.iter().filter(|sent| sent.item == Item::Reply).count();
        self.replies_sent = self.replies_sent.saturating_sub(replies);
        let first = unwritten.iter().find_map(|sent| match sent.item {
            Item::Delivery(position) => Some(position),
            Item::Reply => None,
        });
        if let Some(position) = first {
            // The client may have acknowledged it meanwhile, on the strength of an earlier socket.
            self.cursor = position.saturating_sub(self.base()) as usize;
        }
    }

    /// Whether nothing waits for the end of a write: no reply's memory, no message that is forgotten as it is written,
    /// no order to close. So it is between publishes, and a look that is saved there is saved for each subscriber.
    fn needs_no_look_after_writing(&self) -> bool {
        self.replies.is_empty() && self.subprotocol.is_reliable() && self.closing.is_none()
    }

    fn base(&self) -> u64 {
        self.delivered - self.entries.len() as u64
    }

    fn position(&self) -> u64 {
        self.base() + self.cursor as u64
    }

    /// Drops what the last transmission has certainly handed to the socket.
    fn forget_written(&mut self) {
        for reply in self.replies.drain(..self.replies_sent) {
            self.reply_bytes -= reply.memory_bytes();
        }
        self.replies_sent = 0;
        if self.replies.is_empty() {
            // Most sessions never get another reply after their first message.
            self.replies = VecDeque::new();
        }
        if !self.subprotocol.is_reliable() {
            while self.cursor > 0 {
                self.drop_front();
            }
        }
        self.shrink_if_empty();
        self.wake_reader();
    }

    fn drop_expired_front(&mut self) {
        let messages = self.entries.len();
        while self.entries.front().is_some_and(|entry| entry.message.is_none()) {
            self.drop_front();
        }
        self.marking.freed(messages - self.entries.len(), 0, &self.limits);
        self.shrink_if_empty();
    }
}
