//! What goes between a shard and the application's event handlers.
//!
//! ```text
//! event --turn comes--> Output::Call --driver, handler--> Input::Called --record--> reply, state, ack
//! end   --record------> Output::Disconnected --driver, handler--> Input::Told --record--> forgotten
//! ```
//! A call that a crash interrupts is made again when the client sends the event again, under the same id. That a session
//! is over is kept in the fold until its handler has been told, however many boots that takes.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::owner::Purpose;
use super::{AppendId, Output, SessionKey, Shard};
use crate::log::{
    Body, Disconnected, EndReason, EventId, EventSubject, HandlerReply, HandlerState, Offset, Time, chunk_of,
};
use crate::session::{CallAnswered, Closing, EventCall, MemoryBudget, Phase};
use crate::wire::{
    AckError, Close, ConnectionId, Encoding, ErrorName, EventName, Metadata, Payload, allocated,
};

/// Sessions that are over and of which the application is still to be told, in one shard. When there are so many, or they take
/// their part of the memory budget, the application is not told of those that end; what ends many at once, such as a stop,
/// may bring more.
pub const UNTOLD_MAX: usize = 100_000;

/// Names a call of an event handler while it is under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId {
    /// The session whose event it is.
    pub session: SessionKey,
    /// The event's batch within the session.
    pub batch: u64,
}

/// A user event on its way to its handler.
#[derive(Debug, Clone, PartialEq)]
pub struct UserEvent {
    /// Whose it is.
    pub subject: EventSubject,
    /// The event's own, the same when the client sends it again under its ack id.
    pub id: EventId,
    /// When its turn came.
    pub time: Time,
    /// Its name, as the client spells it.
    pub event: EventName,
    /// What it carries.
    pub payload: Payload,
    /// Travels beside the payload.
    pub metadata: Metadata,
}

/// What a handler made of a user event.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Handled {
    /// For the session, if anything.
    pub reply: Option<HandlerReply>,
    /// What the handler has noted about the session from now on; none leaves it as it is.
    pub state: Option<HandlerState>,
}

/// Why a user event was not handled. The client may send it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// No handler of the hub takes it.
    #[error("no event handler is configured for this event")]
    NoHandler,
    /// The handler has as many events under way as it may have.
    #[error("the event handler is busy")]
    Busy,
    /// The handler refused it, gave no valid answer or none in time.
    #[error("the event handler failed")]
    Failed,
}

/// That a session has begun, for its event handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connected {
    /// The session.
    pub subject: EventSubject,
    /// The event's own.
    pub id: EventId,
    /// When it began.
    pub time: Time,
}

/// Sessions that are over and of which the application is still to be told.
#[derive(Debug)]
pub(super) struct Untold {
    by_chunk: BTreeMap<u16, BTreeMap<ConnectionId, Disconnected>>,
    len: usize,
    bytes: usize,
    budget: Arc<MemoryBudget>,
}

/// What each takes in memory beside its names and its state, in bytes, about: here, and in the line of those to be told.
const UNTOLD_BYTES: usize = 3 * allocated(size_of::<Disconnected>());

fn memory_bytes(Disconnected { subject, reason, .. }: &Disconnected) -> usize {
    UNTOLD_BYTES + subject.bytes() + 2 * reason.len()
}

impl Untold {
    pub fn new(budget: &Arc<MemoryBudget>) -> Self {
        Self { by_chunk: BTreeMap::new(), len: 0, bytes: 0, budget: Arc::clone(budget) }
    }

    pub fn insert(&mut self, disconnected: Disconnected) {
        let id = disconnected.subject.identity.connection_id.clone();
        let bytes = memory_bytes(&disconnected);
        let earlier = self.by_chunk.entry(chunk_of(&id)).or_default().insert(id, disconnected);
        self.len += usize::from(earlier.is_none());
        self.set_bytes(self.bytes + bytes - earlier.as_ref().map_or(0, memory_bytes));
    }

    fn remove(&mut self, id: &ConnectionId) {
        let chunk = chunk_of(id);
        let Some(of_chunk) = self.by_chunk.get_mut(&chunk) else { return };
        let removed = of_chunk.remove(id);
        if of_chunk.is_empty() {
            self.by_chunk.remove(&chunk);
        }
        self.len -= usize::from(removed.is_some());
        self.set_bytes(self.bytes - removed.as_ref().map_or(0, memory_bytes));
    }

    /// Whether one more may have to wait until the application has been told of it.
    pub fn has_room(&self) -> bool {
        self.len < UNTOLD_MAX && self.budget.has_room_for_untold()
    }

    fn set_bytes(&mut self, bytes: usize) {
        self.budget.change_untold(bytes as isize - self.bytes as isize);
        self.bytes = bytes;
    }

    /// Those of a chunk, in the order of their connection ids.
    pub fn of_chunk(&self, chunk: u16) -> impl Iterator<Item = &Disconnected> {
        self.by_chunk.get(&chunk).into_iter().flat_map(BTreeMap::values)
    }

    fn all(&self) -> impl Iterator<Item = &Disconnected> {
        self.by_chunk.values().flat_map(BTreeMap::values)
    }
}

impl Drop for Untold {
    fn drop(&mut self) {
        self.set_bytes(0);
    }
}

impl Shard {
    /// Sessions that are over and of which the application is still to be told.
    pub fn untold(&self) -> usize {
        self.untold.len
    }

    /// Whether the application is told of one more session that is over, should it have to wait for it.
    pub fn has_room_for_untold(&self) -> bool {
        self.untold.has_room()
    }

    pub(super) fn call(&mut self, now: Time, key: SessionKey, call: EventCall) {
        let Some(session) = self.sessions.get(key) else { return };
        let EventCall { id, event, payload, metadata } = call;
        let event = UserEvent { subject: session.subject(), id, time: now, event, payload, metadata };
        let call = CallId { session: key, batch: session.requests.batch_number() };
        self.outputs.push_back(Output::Call { call, event: Box::new(event) });
    }

    /// Takes a handler's answer. Of a session that is over, or whose end is decided, it changes nothing.
    pub(super) fn called(&mut self, now: Time, call: CallId, answer: Result<Handled, EventError>) {
        let CallId { session: key, batch } = call;
        let Some(session) = self.sessions.get_mut(key) else { return };
        if matches!(session.phase, Phase::Ending(_)) {
            return;
        }
        let bytes_max = self.settings.outbox.bytes_max;
        let fits = |reply: &HandlerReply| reply.payload.bytes.len() + reply.metadata.bytes() <= bytes_max;
        let answer = match answer {
            // It would end the session (R4).
            Ok(Handled { reply: Some(reply), .. }) if !fits(&reply) => Err(EventError::Failed),
            other => other,
        };
        let close = answer.as_ref().err().map_or(Close::INTERNAL_ERROR, |error| error.close());
        let answer = answer.map(|Handled { reply, state }| (reply, state)).map_err(EventError::for_client);
        match session.answer_call(now, batch, answer, &mut self.proposer) {
            CallAnswered::Unknown => {}
            CallAnswered::Settled => self.answer_settled(now, key),
            CallAnswered::Append(record) => {
                let append = AppendId::Batch { session: key, number: batch };
                self.outputs.push_back(Output::Append { append, records: vec![record] });
            }
            CallAnswered::Failed => self.event_failed(now, key, close),
        }
    }

    fn event_failed(&mut self, now: Time, key: SessionKey, close: Close) {
        if self.sessions[key].identity.subprotocol.encoding() == Encoding::Raw {
            self.close_for_refusal(key, Closing::Now(close));
            self.answer_settled(now, key);
        } else if self.settings.closes_on_event_failure {
            // Or the answer would go on with what waits.
            self.drop_waiting(key);
            // Nothing can be answered behind the order to close.
            self.answer_settled(now, key);
            self.close_for_refusal(key, Closing::AfterFlush(close));
            self.append_next_batch(now, key);
        } else {
            self.answer_settled(now, key);
        }
    }

    /// The number of a session's last event, if the application is to be told of its end.
    pub(super) fn end_number(&mut self, key: SessionKey) -> Option<u64> {
        let is_told = self.takes_disconnected && self.untold.has_room();
        self.sessions.get_mut(key).filter(|_| is_told).map(|session| session.events.next_number())
    }

    /// Keeps that a session is over until the application has been told; tells it, if this shard decided about the session.
    pub(super) fn keep_untold(&mut self, key: SessionKey, number: u64, reason: String) {
        let Some(session) = self.sessions.get(key) else { return };
        let disconnected = session.disconnected(number, self.state.time(), reason);
        if self.decides_for(key) {
            self.outputs.push_back(Output::Disconnected(Box::new(disconnected.clone())));
        }
        self.untold.insert(disconnected);
    }

    /// Goes on with what earlier boots have not told.
    pub(super) fn tell_restored(&mut self) {
        let all = self.untold.all().cloned();
        self.outputs.extend(all.map(|disconnected| Output::Disconnected(Box::new(disconnected))));
    }

    pub(super) fn told(&mut self, now: Time, connection_ids: Vec<ConnectionId>) {
        self.propose(now, Body::Told { connection_ids }, None, Purpose::Told);
    }

    /// Forgets sessions of which the application was told. Like every record, this one changes no chunk that was restored
    /// with it.
    pub(super) fn forget_told(&mut self, offset: Offset, connection_ids: &[ConnectionId]) {
        for id in connection_ids {
            if !self.covered.as_ref().is_some_and(|covered| covered.has(chunk_of(id), offset)) {
                self.untold.remove(id);
            }
        }
    }
}

impl EventError {
    /// The client learns no more than that, as with Web PubSub.
    fn for_client(self) -> AckError {
        let message = match self {
            Self::NoHandler => "No event handler is configured for this event.",
            Self::Busy => "The event handler is busy. The event may be sent again with the same ack id.",
            Self::Failed => "The event handler failed. The event may be sent again with the same ack id.",
        };
        AckError { name: ErrorName::InternalServerError, message: message.to_owned() }
    }

    /// The same for a client that is told by closing.
    fn close(self) -> Close {
        match self {
            Self::NoHandler => Close::EVENT_NOT_TAKEN,
            Self::Busy => Close::EVENT_HANDLER_BUSY,
            Self::Failed => Close::EVENT_FAILED,
        }
    }
}

/// What the application reads as the reason of an end.
pub(super) fn reason_text(reason: EndReason) -> &'static str {
    match reason {
        EndReason::ClientClosed => "",
        EndReason::ProtocolViolation => "The client broke the protocol or one of its requests failed.",
        EndReason::OutboxFull => "Too many messages were waiting for the client.",
        EndReason::Expired => "The connection recovery timeout expired.",
        EndReason::Shed => "The gateway was short of memory.",
        EndReason::ClosedByApplication => "Application server closed the connection.",
        EndReason::Stopped => "The gateway was stopped.",
    }
}

/// What the application reads when the gateway has crashed under a session that can't be recovered.
pub(super) const LOST_WITH_GATEWAY: &str = "The gateway was restarted.";
