//! What goes between a shard and the application's event handlers.

use crate::log::{EventId, EventSubject, HandlerReply, HandlerState, Time};
use crate::wire::{EventName, Metadata, Payload};

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
