//! Which subprotocol a socket speaks.

/// How messages look on a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Encoding {
    /// JSON in text frames.
    Json,
    /// Protobuf in binary frames.
    Protobuf,
    /// Bare payloads, no envelope.
    Raw,
}

/// What was negotiated when a session was opened; a session keeps it for life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Subprotocol {
    /// `json.webpubsub.azure.v1`
    Json,
    /// `json.reliable.webpubsub.azure.v1`
    JsonReliable,
    /// `protobuf.webpubsub.azure.v1`
    Protobuf,
    /// `protobuf.reliable.webpubsub.azure.v1`
    ProtobufReliable,
    /// No subprotocol, or none that the gateway knows.
    Raw,
}

impl Subprotocol {
    /// Whether sessions outlive sockets, messages have sequence ids and unacknowledged ones are redelivered.
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::JsonReliable | Self::ProtobufReliable)
    }

    /// How messages look.
    pub const fn encoding(self) -> Encoding {
        match self {
            Self::Json | Self::JsonReliable => Encoding::Json,
            Self::Protobuf | Self::ProtobufReliable => Encoding::Protobuf,
            Self::Raw => Encoding::Raw,
        }
    }

    /// The name on the wire; `None` for raw.
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::Json => Some("json.webpubsub.azure.v1"),
            Self::JsonReliable => Some("json.reliable.webpubsub.azure.v1"),
            Self::Protobuf => Some("protobuf.webpubsub.azure.v1"),
            Self::ProtobufReliable => Some("protobuf.reliable.webpubsub.azure.v1"),
            Self::Raw => None,
        }
    }

    /// Finds a subprotocol by its name, without regard to case.
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Json, Self::JsonReliable, Self::Protobuf, Self::ProtobufReliable]
            .into_iter()
            .find(|known| known.name().is_some_and(|spelling| spelling.eq_ignore_ascii_case(name)))
    }
}

/// Chooses from a `Sec-WebSocket-Protocol` offer: the first known name in the client's order, or for a recovery, which
/// can mean a reliable one only, the first of those. The answer has to repeat the client's own spelling, since browsers
/// compare with regard to case. `None`: the client is raw.
pub fn negotiate(offer: &str, is_recovery: bool) -> Option<(Subprotocol, &str)> {
    let known =
        || offer.split(',').map(str::trim).filter_map(|name| Some((Subprotocol::from_name(name)?, name)));
    let reliable = || known().find(|(subprotocol, _)| subprotocol.is_reliable());
    is_recovery.then(reliable).flatten().or_else(|| known().next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_known_name_wins_in_the_clients_own_spelling() {
        assert_eq!(
            negotiate("json.webpubsub.azure.v1", false),
            Some((Subprotocol::Json, "json.webpubsub.azure.v1"))
        );
        assert_eq!(
            negotiate(" graphql-ws ,\tJSON.Reliable.webpubsub.azure.v1 , json.webpubsub.azure.v1", false),
            Some((Subprotocol::JsonReliable, "JSON.Reliable.webpubsub.azure.v1"))
        );
    }

    #[test]
    fn unknown_names_alone_leave_the_client_raw() {
        for offer in ["", ",", "graphql-ws", "json.webpubsub.azure.v2", "json.webpubsub.azure.v1x", "null"] {
            assert_eq!(negotiate(offer, false), None, "{offer}");
            assert_eq!(negotiate(offer, true), None, "{offer}");
        }
    }

    #[test]
    fn a_recovery_takes_the_first_reliable_name_wherever_it_stands() {
        let offer =
            "json.webpubsub.azure.v1, protobuf.reliable.webpubsub.azure.v1, json.reliable.webpubsub.azure.v1";
        assert_eq!(negotiate(offer, false).map(|(chosen, _)| chosen), Some(Subprotocol::Json));
        assert_eq!(negotiate(offer, true).map(|(chosen, _)| chosen), Some(Subprotocol::ProtobufReliable));
        let without = "x, json.webpubsub.azure.v1";
        assert_eq!(negotiate(without, true), Some((Subprotocol::Json, "json.webpubsub.azure.v1")));
    }

    #[test]
    fn names_and_kinds_agree() {
        for (subprotocol, encoding, is_reliable) in [
            (Subprotocol::Json, Encoding::Json, false),
            (Subprotocol::JsonReliable, Encoding::Json, true),
            (Subprotocol::Protobuf, Encoding::Protobuf, false),
            (Subprotocol::ProtobufReliable, Encoding::Protobuf, true),
        ] {
            let name = subprotocol.name().unwrap();
            assert_eq!(Subprotocol::from_name(name), Some(subprotocol));
            assert_eq!(name.contains("reliable"), is_reliable);
            assert_eq!((subprotocol.encoding(), subprotocol.is_reliable()), (encoding, is_reliable));
        }
        assert_eq!(Subprotocol::Raw.name(), None);
        assert!(!Subprotocol::Raw.is_reliable());
    }
}
