//! A session and the application's event handlers: which events it has, and what becomes of their answers.
//!
//! A handler is called between two batches of requests. What it answers becomes one record with the event's ack id: so an
//! event that was handled is not handled again, and one that failed may be.

use std::sync::Arc;

use super::requests::Outcome;
use super::{Session, Slot};
use crate::log::{
    AckKey, Body, Disconnected, EventId, EventSubject, HandlerReply, HandlerState, Proposer, Record, Time,
};
use crate::wire::{AckError, Downstream, EventName, Metadata, Payload, Upstream};

/// What the event handlers of a session are told and have noted.
#[derive(Debug, Clone, Default)]
pub struct SessionEvents {
    /// What handlers have noted.
    pub state: Option<HandlerState>,
    /// Boots that the session has lived through after its first.
    pub boots: u32,
    /// Events without an ack id that this boot has counted so far.
    pub counted: u64,
}

impl SessionEvents {
    /// The session goes on in another boot.
    pub fn live_on(&mut self) {
        self.boots = (self.boots + 1).min(EventId::BOOTS_MAX);
    }

    /// The number of the next event.
    pub fn next_number(&mut self) -> u64 {
        self.counted += 1;
        EventId::number(self.boots, self.counted)
    }
}

/// A user event on its way to its handler.
#[derive(Debug, Clone, PartialEq)]
pub struct EventCall {
    /// The event's own.
    pub id: EventId,
    /// Its name.
    pub event: EventName,
    /// What it carries.
    pub payload: Payload,
    /// Travels beside the payload.
    pub metadata: Metadata,
}

/// What a handler's answer comes to.
#[derive(Debug)]
pub enum CallAnswered {
    /// There is no such call any more.
    Unknown,
    /// There is nothing to keep.
    Settled,
    /// To be appended.
    Append(Arc<Record>),
    /// The event was not handled.
    Failed,
}

impl Session {
    /// The session as its handlers see it.
    pub fn subject(&self) -> EventSubject {
        EventSubject { identity: self.identity.clone(), state: self.events.state.clone() }
    }

    /// That the session is over, for its handler.
    pub fn disconnected(&self, number: u64, time: Time, reason: String) -> Disconnected {
        Disconnected { subject: self.subject(), number, time, reason }
    }

    pub(super) fn event_of(&mut self, message: Upstream) -> Option<EventCall> {
        let Upstream::Event { event, payload, metadata, ack_id } = message else { return None };
        let id = ack_id.map_or_else(|| EventId::Counted(self.events.next_number()), EventId::OfAck);
        Some(EventCall { id, event, payload, metadata })
    }

    /// Takes the answer to a batch's call; an error is for the client.
    pub fn answer_call(
        &mut self,
        now: Time,
        batch: u64,
        answer: Result<(Option<HandlerReply>, Option<HandlerState>), AckError>,
        proposer: &mut Proposer,
    ) -> CallAnswered {
        let mut answered = CallAnswered::Unknown;
        let connection_id = &self.identity.connection_id;
        self.requests.answer_call(batch, |ack| {
            let (slot, what) = match answer {
                Ok((None, None)) if ack.is_none() => (Slot::Answer(None), CallAnswered::Settled),
                Ok((reply, state)) => {
                    let (key, time) = proposer.next(now, ack);
                    let body = Body::Handled { connection_id: connection_id.clone(), reply, state };
                    let record = Arc::new(Record { key, time, sequence_ack: None, body });
                    let append = CallAnswered::Append(Arc::clone(&record));
                    (Slot::Append { record, outcome: Outcome::Pending }, append)
                }
                Err(error) => {
                    let refusal = |AckKey { ack_id, .. }| Downstream::Ack { ack_id, error: Some(error) };
                    (Slot::Answer(ack.map(refusal)), CallAnswered::Failed)
                }
            };
            answered = what;
            slot
        });
        answered
    }
}
