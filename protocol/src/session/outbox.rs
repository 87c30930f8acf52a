//! What waits for a session's client: unacknowledged messages, replies, and how the socket is to close.
//!
//! The outbox is the only state that a shard, which pushes, and a socket's writer, which pulls, share. It is a
//! session's only queue: a slow socket makes it grow to its bound, nothing else. After a drop the cursor goes back to
//! the first unacknowledged entry, so redelivery needs no code of its own.
//!
//! ```text
//! entries   | acknowledged: gone | sent, not acknowledged | not sent |
//!                                ^ base                   ^ cursor   ^ delivered
//! ```

mod transmitting;

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;

use super::kept_capacity::shrink_if_empty;
use super::reply::Reply;
use super::{Charge, Marking, MemoryBudget, SequenceIds, SharedMessage};
use crate::log::SequenceIdsCheckpoint;
use crate::wire::{Close, Downstream, Encoding, SequenceId, Subprotocol};

pub use transmitting::{Progress, SentItem};

/// An outbox as shard and writer share it: the one lock, short, never held over I/O.
pub type SharedOutbox = Arc<Mutex<Outbox>>;

/// Tells a session's sockets apart: each attach has a higher one, and what an older one says changes nothing (R6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AttachEpoch(u64);

/// Bounds on what waits for a client.
#[derive(Debug, Clone, Copy)]
pub struct OutboxLimits {
    /// Unacknowledged messages; one more ends the session.
    pub messages_max: usize,
    /// Their payload and metadata, in bytes; one more ends the session.
    pub bytes_max: usize,
}

/// Bounds on what a socket may have pending; at any of them its reading stops until some of it is settled.
#[derive(Debug, Clone, Copy)]
pub struct RequestBounds {
    /// Requests read and not settled.
    pub requests_max: usize,
    /// Their bytes.
    pub request_bytes_max: usize,
    /// Replies not written, in bytes of memory.
    pub reply_bytes_max: usize,
}

/// How a socket is to close.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closing {
    /// After everything that waits has been written.
    AfterFlush(Close),
    /// Now, with a close frame.
    Now(Close),
    /// Now, without a close frame, so that the client does not take it for the end of the session.
    Cut,
}

/// What a request that waits takes in memory beside its frame, in bytes, about.
const REQUEST_BYTES: usize = 256;

/// 16 bytes for each unacknowledged message.
#[derive(Debug)]
struct Entry {
    id: SequenceId,
    /// None once its time-to-live was over when it should have been sent.
    message: Option<Arc<SharedMessage>>,
}

/// See the module.
#[derive(Debug)]
pub struct Outbox {
    subprotocol: Subprotocol,
    limits: OutboxLimits,
    /// Twice the limits hold until the client has acknowledged up to here: all that a restart has brought back.
    restored_up_to: Option<SequenceId>,
    bounds: RequestBounds,
    ids: SequenceIds,
    marking: Marking,
    entries: VecDeque<Entry>,
    content_bytes: usize,
    /// What the messages take in memory, each counted as if it were held here alone.
    message_bytes: usize,
    /// Messages delivered in all: the position of the next one.
    delivered: u64,
    /// Index of the next entry to transmit.
    cursor: usize,
    replies: VecDeque<Reply>,
    /// Replies at the front that are in the writer's hands.
    replies_sent: usize,
    reply_bytes: usize,
    requests: usize,
    request_bytes: usize,
    epoch: AttachEpoch,
    is_attached: bool,
    /// Set when the session is over or doomed: ids go on, nothing is kept.
    is_freed: bool,
    closing: Option<Closing>,
    writer: Option<Waker>,
    reader: Option<Waker>,
    /// A writer that is in the middle of a write.
    blocked_writer: Option<Waker>,
    charge: Charge,
}

impl Outbox {
    /// An empty outbox without a socket.
    pub fn new(subprotocol: Subprotocol, limits: OutboxLimits, bounds: RequestBounds) -> Self {
        Self {
            subprotocol,
            limits,
            restored_up_to: None,
            bounds,
            ids: SequenceIds::default(),
            marking: Marking::default(),
            entries: VecDeque::new(),
            content_bytes: 0,
            message_bytes: 0,
            delivered: 0,
            cursor: 0,
            replies: VecDeque::new(),
            replies_sent: 0,
            reply_bytes: 0,
            requests: 0,
            request_bytes: 0,
            epoch: AttachEpoch(0),
            is_attached: false,
            is_freed: false,
            closing: None,
            writer: None,
            reader: None,
            blocked_writer: None,
            charge: Charge::default(),
        }
    }

    /// An outbox without a socket as a checkpoint kept it: ids go on from there, and these messages wait, oldest first.
    pub fn restore(
        subprotocol: Subprotocol,
        limits: OutboxLimits,
        bounds: RequestBounds,
        ids: SequenceIdsCheckpoint,
        unacknowledged: impl Iterator<Item = (SequenceId, Arc<SharedMessage>)>,
    ) -> Self {
        let mut outbox = Self::new(subprotocol, limits, bounds);
        outbox.ids = SequenceIds::restore(ids);
        outbox.entries = unacknowledged.map(|(id, message)| Entry { id, message: Some(message) }).collect();
        let messages = || outbox.entries.iter().filter_map(|entry| entry.message.as_ref());
        (outbox.content_bytes, outbox.message_bytes) = (
            messages().map(|message| message.content_bytes()).sum(),
            messages().map(|message| message.message_bytes()).sum(),
        );
        outbox.delivered = outbox.entries.len() as u64;
        outbox
    }

    // For the shard.

    /// Has what is pending charged to a budget.
    pub fn charge_to(&mut self, budget: &Arc<MemoryBudget>) {
        self.charge = Charge::new(budget);
        self.update_charge();
    }

    /// The places for messages, replies and requests; the messages themselves are charged by whoever shares them.
    fn update_charge(&mut self) {
        self.charge.set(self.places_bytes() + self.reply_bytes + self.request_bytes);
    }

    fn places_bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.requests * REQUEST_BYTES
    }

    /// Has the shard told when acks are to be in the log.
    pub fn set_marking(&mut self, marking: Marking) {
        self.marking = marking;
    }

    /// The id before the first unacknowledged message, if it has moved since the last mark. It counts as marked from now
    /// on.
    pub fn take_mark(&mut self) -> Option<SequenceId> {
        let has_moved = self.marking.take() && self.subprotocol.is_reliable() && !self.is_freed;
        let first = self.entries.iter().find(|entry| entry.message.is_some());
        has_moved.then(|| first.map_or(self.ids.last(), |first| first.id - 1))
    }

    /// The same for a session that the shard has taken from its list.
    pub fn take_listed_mark(&mut self) -> Option<SequenceId> {
        self.marking.unlist();
        self.take_mark()
    }

    /// The last mark is not in the log, or perhaps not.
    pub fn mark_lost(&mut self) {
        self.marking.lost();
    }

    /// A boot has brought the session back. Its client may have acknowledged more of it than the log says.
    pub fn restored(&mut self) {
        self.restored_up_to = Some(self.ids.last());
    }

    /// What the next sequence id follows from, as a checkpoint keeps it.
    pub fn sequence_ids(&self) -> SequenceIdsCheckpoint {
        self.ids.to_checkpoint()
    }

    /// The messages that wait, oldest first. Those whose time-to-live was over when they should have been sent are not
    /// among them.
    pub fn unacknowledged(&self) -> impl Iterator<Item = (SequenceId, &Arc<SharedMessage>)> {
        self.entries.iter().filter_map(|entry| Some((entry.id, entry.message.as_ref()?)))
    }

    /// The first message that waits, and its id.
    pub fn first_unacknowledged(&self) -> Option<(SequenceId, &Arc<SharedMessage>)> {
        self.unacknowledged().next()
    }

    /// Delivers a message: gives it the next sequence id and keeps it until the client has acknowledged it. Bounds
    /// are not enforced here (R5). Returns a writer to wake.
    pub fn deliver(&mut self, message: &Arc<SharedMessage>) -> Option<Waker> {
        let id = self.ids.next(message.payload_bytes());
        self.delivered += 1;
        if self.is_freed {
            return None;
        }
        self.content_bytes += message.content_bytes();
        self.message_bytes += message.message_bytes();
        let places = self.entries.capacity();
        self.entries.push_back(Entry { id, message: Some(Arc::clone(message)) });
        if self.entries.capacity() != places {
            self.update_charge();
        }
        self.writer.take()
    }

    /// Sends a reply to the attached socket, after everything delivered so far; without a socket it is lost.
    /// Returns a writer to wake.
    pub fn reply(&mut self, message: Downstream) -> Option<Waker> {
        self.insert_reply(self.replies.len(), self.delivered, message)
    }

    /// Whether more waits than the limits allow.
    pub fn is_over_limits(&self) -> bool {
        let times = if self.restored_up_to.is_some() { 2 } else { 1 };
        self.entries.len() > self.limits.messages_max.saturating_mul(times)
            || self.content_bytes > self.limits.bytes_max.saturating_mul(times)
    }

    /// Payload and metadata that wait, in bytes.
    pub fn content_bytes(&self) -> usize {
        self.content_bytes
    }

    /// All that waits for the client, or for the shard from it, in bytes: messages, replies, requests, and their places.
    pub fn held_bytes(&self) -> usize {
        self.message_bytes + self.places_bytes() + self.reply_bytes + self.request_bytes
    }

    /// The same with what the messages' encodings take. It looks at each message.
    pub fn held_bytes_with_encodings(&self) -> usize {
        let encodings = self.unacknowledged().map(|(_, message)| message.encoded_bytes());
        self.held_bytes() + encodings.sum::<usize>()
    }

    /// Messages that wait.
    pub fn messages(&self) -> usize {
        self.entries.len()
    }

    /// Attaches a new socket; one that was attached is cut. Transmission starts again at the first unacknowledged
    /// message, and replies that were not written are lost.
    pub fn attach(&mut self) -> AttachEpoch {
        self.let_go_of_socket();
        self.epoch.0 += 1;
        self.is_attached = true;
        self.epoch
    }

    /// Lets go of the socket if it is the attached one; tells whether it was.
    pub fn detach(&mut self, epoch: AttachEpoch) -> bool {
        let is_current = self.is_current(epoch);
        if is_current {
            self.let_go_of_socket();
        }
        is_current
    }

    /// Lets go of whatever socket is attached.
    pub fn let_go_of_socket(&mut self) {
        self.is_attached = false;
        self.cursor = 0;
        self.replies = VecDeque::new();
        self.replies_sent = 0;
        self.reply_bytes = 0;
        self.closing = None;
        self.update_charge();
        let wakers = [self.writer.take(), self.reader.take(), self.blocked_writer.take()];
        wakers.into_iter().flatten().for_each(Waker::wake);
    }

    /// Whether a socket is attached.
    pub fn is_attached(&self) -> bool {
        self.is_attached
    }

    /// Whether this socket is the attached one.
    pub fn is_current(&self, epoch: AttachEpoch) -> bool {
        self.is_attached && self.epoch == epoch
    }

    /// Closes the attached socket; an earlier order to close stands. Returns a writer to wake.
    pub fn close(&mut self, closing: Closing) -> Option<Waker> {
        if !self.is_attached {
            return None;
        }
        self.closing.get_or_insert(closing);
        if let Some(blocked) = self.blocked_writer.take() {
            blocked.wake();
        }
        self.writer.take()
    }

    /// Drops all that waits, now and from now on; sequence ids go on.
    pub fn free(&mut self) {
        self.is_freed = true;
        self.entries = VecDeque::new();
        self.content_bytes = 0;
        self.message_bytes = 0;
        self.cursor = 0;
        self.update_charge();
    }

    /// The session is over. What waits is dropped and the socket cut, unless that has been told to write it and then to
    /// close. Returns a writer to wake.
    pub fn end(&mut self) -> Option<Waker> {
        if self.is_attached && matches!(self.closing, Some(Closing::AfterFlush(_))) {
            return None;
        }
        self.free();
        self.close(Closing::Cut)
    }

    /// Takes settled requests off the socket's count.
    pub fn settle_requests(&mut self, requests: usize, bytes: usize) {
        self.requests = self.requests.saturating_sub(requests);
        self.request_bytes = self.request_bytes.saturating_sub(bytes);
        self.update_charge();
        self.wake_reader();
    }

    /// No request of the session is there any more, settled or not.
    pub fn drop_requests(&mut self) {
        self.settle_requests(self.requests, self.request_bytes);
    }

    /// Frees all messages up to this id, as the log says. A lower or equal one than before has no effect; one that was never
    /// given counts as the largest that was.
    pub fn acknowledge(&mut self, id: SequenceId) {
        if !self.subprotocol.is_reliable() {
            return;
        }
        while let Some(front) = self.entries.front() {
            if front.id > id && front.message.is_some() {
                break;
            }
            self.drop_front();
        }
        self.shrink_if_empty();
    }

    // For the socket.

    /// Handles a sequence ack from this socket.
    pub fn sequence_ack(&mut self, epoch: AttachEpoch, id: SequenceId) {
        if !self.is_current(epoch) {
            return;
        }
        let (messages, bytes) = (self.entries.len(), self.content_bytes);
        self.acknowledge(id);
        self.marking.freed(messages - self.entries.len(), bytes - self.content_bytes, &self.limits);
        self.restored_up_to.take_if(|last| id >= *last);
    }

    /// Answers a ping from this socket. A pong overtakes what waits, but not the first message of a session.
    pub fn pong(&mut self, epoch: AttachEpoch) -> Option<Waker> {
        if !self.is_current(epoch) {
            return None;
        }
        let waiting = self.replies.range(self.replies_sent..);
        let at = self.replies_sent + waiting.take_while(|reply| reply.due == 0).count();
        self.insert_reply(at, 0, Downstream::Pong)
    }

    /// Counts requests that this socket hands to the shard.
    pub fn add_requests(&mut self, requests: usize, bytes: usize) {
        self.requests += requests;
        self.request_bytes += bytes;
        self.update_charge();
    }

    /// Requests that were read and are not settled.
    pub fn pending_requests(&self) -> usize {
        self.requests
    }

    /// Whether this socket may read on; if not, the waker is woken when it may. One that is no longer attached may
    /// not, and is not woken again.
    pub fn may_read(&mut self, epoch: AttachEpoch, waker: &Waker) -> bool {
        let is_current = self.is_current(epoch);
        if is_current && !self.is_within_bounds() {
            self.reader = Some(waker.clone());
            return false;
        }
        is_current
    }

    fn insert_reply(&mut self, at: usize, due: u64, message: Downstream) -> Option<Waker> {
        if !self.is_attached || self.closing.is_some() || self.subprotocol.encoding() == Encoding::Raw {
            return None;
        }
        let reply = Reply { due, message };
        self.reply_bytes += reply.memory_bytes();
        self.replies.insert(at, reply);
        self.update_charge();
        self.writer.take()
    }

    fn shrink_if_empty(&mut self) {
        shrink_if_empty(&mut self.entries);
        self.update_charge();
    }

    fn drop_front(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            if let Some(message) = entry.message {
                self.let_go_of(&message);
            }
            self.cursor = self.cursor.saturating_sub(1);
        }
    }

    fn let_go_of(&mut self, message: &SharedMessage) {
        self.content_bytes -= message.content_bytes();
        self.message_bytes -= message.message_bytes();
    }

    fn is_within_bounds(&self) -> bool {
        self.requests < self.bounds.requests_max
            && self.request_bytes < self.bounds.request_bytes_max
            && self.reply_bytes < self.bounds.reply_bytes_max
    }

    fn wake_reader(&mut self) {
        if self.is_within_bounds()
            && let Some(reader) = self.reader.take()
        {
            reader.wake();
        }
    }
}

#[cfg(test)]
#[path = "outbox_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "outbox_model_tests.rs"]
mod model_tests;
