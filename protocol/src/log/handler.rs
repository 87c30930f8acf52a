//! What records and checkpoints keep of the application's event handlers.

use std::fmt;

use bytes::Bytes;

use super::{SessionIdentity, Time};
use crate::wire::{AckId, Metadata, Payload};

/// Bytes that an event handler has noted about a session (`ce-connectionState`): opaque here, and such that they can stand
/// in an HTTP header. `Debug` shows the size only.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct HandlerState(pub Bytes);

impl fmt::Debug for HandlerState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HandlerState({} bytes)", self.0.len())
    }
}

/// Names an event within its session (`ce-id`), the same for every attempt to deliver it. `Display` gives the decimal
/// integer that handlers see; no two ids of a session look alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventId {
    /// Counted, below [`EventId::FIRST_OF_ACKS`]: 0 is `connect`.
    Counted(u64),
    /// Follows from the ack id under which the client sent the event, so that a resend has it too, also to another boot.
    OfAck(AckId),
}

impl EventId {
    /// The event before a session's first record.
    pub const CONNECT: Self = Self::Counted(0);
    /// The id of the event with ack id 0.
    ///
    /// Far below 2^53, so that handlers may take the ids of most ack ids for floating-point numbers.
    pub const FIRST_OF_ACKS: u64 = 1_000_000_000_000_000;
    /// Boots that a session's life is counted in; from then on they count as one.
    pub const BOOTS_MAX: u32 = 999_999;
    /// How many ids a boot of the gateway has for a session.
    const OF_A_BOOT: u64 = 1_000_000_000;

    /// The number of the event that is counted so in a boot, which has `boots_before` before it in the session's life:
    /// what an earlier boot has counted is not in the log.
    pub fn number(boots_before: u32, counted: u64) -> u64 {
        u64::from(boots_before.min(Self::BOOTS_MAX)) * Self::OF_A_BOOT + counted.min(Self::OF_A_BOOT - 2)
    }

    /// The last number of a boot: for an end that follows from a record which does not say one.
    pub fn last_number(boots_before: u32) -> u64 {
        u64::from(boots_before.min(Self::BOOTS_MAX)) * Self::OF_A_BOOT + Self::OF_A_BOOT - 1
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Counted(number) => write!(f, "{number}"),
            Self::OfAck(ack_id) => write!(f, "{}", u128::from(Self::FIRST_OF_ACKS) + u128::from(*ack_id)),
        }
    }
}

/// What an event handler is told about a session with each of its events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventSubject {
    /// Who it is.
    pub identity: SessionIdentity,
    /// What handlers have noted so far.
    pub state: Option<HandlerState>,
}

impl EventSubject {
    /// What is in it, in bytes.
    pub fn bytes(&self) -> usize {
        let SessionIdentity { connection_id, user_id, custom_subprotocol, .. } = &self.identity;
        connection_id.as_str().len()
            + user_id.as_ref().map_or(0, |user_id| user_id.as_str().len())
            + custom_subprotocol.as_ref().map_or(0, String::len)
            + self.state.as_ref().map_or(0, |state| state.0.len())
    }
}

/// A message that an event handler gave back to the session whose event it was.
#[derive(Debug, Clone, PartialEq)]
pub struct HandlerReply {
    /// What is sent.
    pub payload: Payload,
    /// Travels beside the payload.
    pub metadata: Metadata,
}

/// That a session is over for ever, for its event handler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disconnected {
    /// The session as it was.
    pub subject: EventSubject,
    /// The event's number, which makes its id.
    pub number: u64,
    /// When it ended.
    pub time: Time,
    /// Why, in words; may be empty.
    pub reason: String,
}

impl Disconnected {
    /// The event's own, the same for every attempt.
    pub fn id(&self) -> EventId {
        EventId::Counted(self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_of_a_session_never_look_alike() {
        let largest_count = EventId::Counted(EventId::FIRST_OF_ACKS - 1).to_string();
        assert_eq!(largest_count, "999999999999999");
        assert_eq!(EventId::CONNECT.to_string(), "0");
        assert_eq!(EventId::OfAck(0).to_string(), "1000000000000000");
        assert_eq!(EventId::OfAck(7).to_string(), "1000000000000007");
        assert_eq!(EventId::OfAck(u64::MAX).to_string(), "18447744073709551615");
        let of_boots = [EventId::number(0, 1), EventId::last_number(0), EventId::number(1, 0)];
        assert_eq!(of_boots, [1, 999_999_999, 1_000_000_000]);
        assert_ne!(EventId::number(0, u64::MAX), EventId::last_number(0));
        assert!(EventId::last_number(u32::MAX) < EventId::FIRST_OF_ACKS);
    }
}
