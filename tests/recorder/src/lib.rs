//! What clients ask for and see, in the words of the checker's histories.
//!
//! The checker may not know the implementation, and the protocol crate does not know the checker; this stands between them,
//! for the simulation and for the soak test alike. It knows both vocabularies and holds nothing.

use oncewire_checker::{
    Acked, Closed, ClosedBy, Event, Membership, Message, Opened, Publish, Quiesced, SequenceAck, Socket,
    UserEvent,
};
use oncewire_protocol::wire::{
    AckError, AckId, GroupName, Message as WireMessage, Payload, Sender, SequenceId, Upstream,
};

/// The event of a request that is about to be sent; none for what the checker has no word for. `at_ms` is the time by a
/// clock that does not jump, where there is one.
pub fn request(connection: &str, message: &Upstream, at_ms: Option<u64>) -> Option<Event> {
    let connection = connection.to_owned();
    Some(match message {
        Upstream::JoinGroup { group, ack_id } => {
            Event::Join(Membership { connection, group: group.to_string(), ack_id: *ack_id })
        }
        Upstream::LeaveGroup { group, ack_id } => {
            Event::Leave(Membership { connection, group: group.to_string(), ack_id: *ack_id })
        }
        Upstream::SendToGroup { group, payload, ack_id, no_echo, ttl_seconds, .. } => {
            Event::Publish(Publish {
                connection,
                group: group.to_string(),
                message: marker_in(payload)?,
                ack_id: *ack_id,
                no_echo: *no_echo,
                ttl_seconds: (*ttl_seconds > 0).then_some(u32::from(*ttl_seconds)),
                lane: None,
                at_ms,
            })
        }
        Upstream::Event { payload, ack_id, .. } => {
            Event::UserEvent(UserEvent { connection, message: marker_in(payload)?, ack_id: *ack_id })
        }
        Upstream::SequenceAck { sequence_id } => {
            Event::SequenceAck(SequenceAck { connection, sequence_id: *sequence_id })
        }
        _ => return None,
    })
}

/// A new session, with the groups of its access token.
pub fn opened(
    connection: &str,
    hub: &str,
    reliable: bool,
    groups: &[GroupName],
    observes_sockets: bool,
) -> Event {
    Event::Opened(Opened {
        connection: connection.to_owned(),
        hub: hub.to_owned(),
        reliable,
        groups: groups.iter().map(ToString::to_string).collect(),
        observes_sockets,
        unordered_callbacks: false,
    })
}

/// The session's socket is gone.
pub fn dropped(connection: &str) -> Event {
    Event::Dropped(Socket { connection: connection.to_owned() })
}

/// The session goes on over another socket.
pub fn resumed(connection: &str) -> Event {
    Event::Resumed(Socket { connection: connection.to_owned() })
}

/// The session is over.
pub fn closed(connection: &str, code: Option<u16>, by: ClosedBy) -> Event {
    Event::Closed(Closed { connection: connection.to_owned(), code, reason: None, by: Some(by) })
}

/// An ack was read.
pub fn acked(connection: &str, ack_id: AckId, error: Option<&AckError>) -> Event {
    Event::Acked(Acked {
        connection: connection.to_owned(),
        ack_id,
        success: error.is_none(),
        error: error.map(|error| error.name.as_str().to_owned()),
        definite: None,
    })
}

/// Everything that has to arrive has arrived.
pub fn quiesced(at_ms: Option<u64>) -> Event {
    Event::Quiesced(Quiesced { connections: None, at_ms })
}

/// A message as its receiver saw it. One that cannot be recognised gets a marker that nobody published.
pub fn message(connection: &str, message: &WireMessage, sequence_id: Option<SequenceId>) -> Message {
    let group = match &message.sender {
        Sender::Group { group, .. } => group.to_string(),
        Sender::Server => "(server)".to_owned(),
    };
    let marker = marker_in(&message.payload).unwrap_or_else(|| "(unknown)".to_owned());
    Message { connection: connection.to_owned(), group, message: marker, sequence_id }
}

/// The marker by which a payload is known again stands between two number signs.
pub fn marker_in(payload: &Payload) -> Option<String> {
    let mut parts = payload.bytes.split(|byte| *byte == b'#');
    parts.next()?;
    String::from_utf8(parts.next()?.to_vec()).ok()
}

#[cfg(test)]
mod tests {
    use oncewire_protocol::wire::PayloadKind;

    use super::*;

    #[test]
    fn a_marker_is_known_again_in_every_kind_of_payload() {
        for text in ["#p1-7#xxx", "{\"n\":\"#p1-7#\"}", "\0#p1-7#"] {
            let payload = Payload { kind: PayloadKind::Binary, bytes: text.to_owned().into() };
            assert_eq!(marker_in(&payload).as_deref(), Some("p1-7"));
        }
        let none = Payload { kind: PayloadKind::Text, bytes: "no marker".to_owned().into() };
        assert_eq!(marker_in(&none), None);
    }
}
