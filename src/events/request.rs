//! What stands in the request for an event.
//!
//! The headers are those of the public reference "CloudEvents extension for Azure Web PubSub": CloudEvents 1.0 in binary
//! content mode.

use std::sync::Arc;

use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use bytes::Bytes;
use oncewire_protocol::log::{EventId, EventSubject, HandlerState, Time};
use oncewire_protocol::wire::{ConnectionId, EventName, HubName, Metadata, PayloadKind, UserId};
use time::OffsetDateTime;
use uuid::Uuid;
use xxhash_rust::xxh3::Xxh3;

use super::memory::EventMemory;
use crate::auth::AccessKeys;
use crate::config::SystemEvent;
use crate::telemetry::Counters;

/// Names the gateway to whom it asks for leave to send, and then in each request.
pub(super) const REQUEST_ORIGIN: HeaderName = HeaderName::from_static("webhook-request-origin");
/// The version of the events; official middleware ignores requests without it.
pub(super) const AWPS_VERSION: HeaderName = HeaderName::from_static("ce-awpsversion");
pub(super) const VERSION: HeaderValue = HeaderValue::from_static("1.0");
/// What handlers have noted about a session, both ways.
pub(super) const CONNECTION_STATE: HeaderName = HeaderName::from_static("ce-connectionstate");
/// Headers that carry metadata begin so; the rest of the name is the key.
pub(super) const METADATA_PREFIX: &str = "x-webpubsub-metadata-";

const SPEC_VERSION: HeaderName = HeaderName::from_static("ce-specversion");
const TYPE: HeaderName = HeaderName::from_static("ce-type");
const SOURCE: HeaderName = HeaderName::from_static("ce-source");
const ID: HeaderName = HeaderName::from_static("ce-id");
const TIME: HeaderName = HeaderName::from_static("ce-time");
const CONNECTION_ID: HeaderName = HeaderName::from_static("ce-connectionid");
const HUB: HeaderName = HeaderName::from_static("ce-hub");
const EVENT_NAME: HeaderName = HeaderName::from_static("ce-eventname");
const USER_ID: HeaderName = HeaderName::from_static("ce-userid");
const SUBPROTOCOL: HeaderName = HeaderName::from_static("ce-subprotocol");
const SIGNATURE: HeaderName = HeaderName::from_static("ce-signature");
const REQUEST_ID: HeaderName = HeaderName::from_static("x-ms-client-request-id");

/// Room for what most events have.
const HEADERS_USUAL: usize = 24;

/// Types of bodies.
pub(super) const JSON: &str = "application/json";
pub(super) const TEXT: &str = "text/plain; charset=utf-8";
pub(super) const BINARY: &str = "application/octet-stream";
pub(super) const PROTOBUF: &str = "application/x-protobuf";

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind<'a> {
    System(SystemEvent),
    User(&'a EventName),
}

/// An event, as the request for it needs it.
#[derive(Debug, Clone)]
pub(super) struct Event<'a> {
    pub kind: Kind<'a>,
    pub hub: &'a HubName,
    pub connection_id: &'a ConnectionId,
    pub user_id: Option<&'a UserId>,
    pub subprotocol: Option<&'a str>,
    pub state: Option<&'a HandlerState>,
    pub id: EventId,
    pub time: Time,
    pub content_type: &'static str,
    pub metadata: Option<&'a Metadata>,
    pub body: Bytes,
}

/// Who sends.
pub(super) struct Sender {
    /// The host under which clients know the gateway.
    pub origin: HeaderValue,
    pub access_keys: AccessKeys,
    /// Where failures are counted.
    pub counters: Arc<Counters>,
    /// What all that is sent and comes back takes.
    pub memory: EventMemory,
}

/// A header can't hold what it should: no attempt would change that. Names the header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the header {0} can't hold its value")]
pub(super) struct BadHeader(&'static str);

impl SystemEvent {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Connect => "connect",
            Self::Connected => "connected",
            Self::Disconnected => "disconnected",
        }
    }
}

impl<'a> Kind<'a> {
    /// The event's name without what tells its kind.
    pub(super) fn name(self) -> &'a str {
        match self {
            Self::System(event) => event.name(),
            Self::User(name) => name.as_str(),
        }
    }
}

impl<'a> Event<'a> {
    /// An event of a session.
    pub(super) fn of_session(
        kind: Kind<'a>,
        hub: &'a HubName,
        subject: &'a EventSubject,
        (id, time): (EventId, Time),
        (content_type, body): (&'static str, Bytes),
    ) -> Self {
        let identity = &subject.identity;
        let custom = identity.custom_subprotocol.as_deref();
        Self {
            kind,
            hub,
            connection_id: &identity.connection_id,
            user_id: identity.user_id.as_ref(),
            subprotocol: custom.or_else(|| identity.subprotocol.name()),
            state: subject.state.as_ref(),
            id,
            time,
            content_type,
            metadata: None,
            body,
        }
    }

    /// The headers of a request for it; the same for each attempt.
    pub(super) fn headers(&self, sender: &Sender) -> Result<HeaderMap, BadHeader> {
        let connection_id = self.connection_id.as_str();
        let kind = match self.kind {
            Kind::System(event) => format!("azure.webpubsub.sys.{}", event.name()),
            Kind::User(name) => format!("azure.webpubsub.user.{name}"),
        };
        let mut headers = HeaderMap::with_capacity(HEADERS_USUAL);
        headers.insert(SPEC_VERSION, VERSION);
        headers.insert(AWPS_VERSION, VERSION);
        headers.insert(TYPE, ascii("ce-type", kind)?);
        headers.insert(SOURCE, ascii("ce-source", format!("/hubs/{}/client/{connection_id}", self.hub))?);
        headers.insert(ID, ascii("ce-id", self.id.to_string())?);
        headers.insert(TIME, ascii("ce-time", timestamp(self.time).ok_or(BadHeader("ce-time"))?)?);
        headers.insert(CONNECTION_ID, ascii("ce-connectionId", connection_id)?);
        headers.insert(HUB, ascii("ce-hub", self.hub.as_str())?);
        headers.insert(EVENT_NAME, ascii("ce-eventName", self.kind.name())?);
        headers.insert(SIGNATURE, ascii("ce-signature", sender.access_keys.event_signature(connection_id))?);
        headers.insert(REQUEST_ORIGIN, sender.origin.clone());
        headers.insert(REQUEST_ID, ascii("x-ms-client-request-id", self.request_id())?);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(self.content_type));
        if let Some(user_id) = self.user_id.filter(|user_id| !user_id.as_str().is_empty()) {
            // Handlers take it for UTF-8, as it stands.
            let value = HeaderValue::from_bytes(user_id.as_str().as_bytes());
            headers.insert(USER_ID, value.map_err(|_| BadHeader("ce-userId"))?);
        }
        if let Some(subprotocol) = self.subprotocol.filter(|subprotocol| !subprotocol.is_empty()) {
            headers.insert(SUBPROTOCOL, ascii("ce-subprotocol", subprotocol)?);
        }
        if let Some(HandlerState(state)) = self.state {
            let value = HeaderValue::from_maybe_shared(state.clone());
            headers.insert(CONNECTION_STATE, value.map_err(|_| BadHeader("ce-connectionState"))?);
        }
        for (key, value) in self.metadata.into_iter().flat_map(Metadata::iter) {
            let bad = BadHeader("x-webpubsub-metadata-");
            let name = format!("{METADATA_PREFIX}{key}");
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad)?;
            headers.append(name, HeaderValue::from_str(value).map_err(|_| bad)?);
        }
        Ok(headers)
    }

    /// Follows from which event it is: so it is the same for each attempt, also one of another boot.
    fn request_id(&self) -> String {
        let mut hash = Xxh3::new();
        for part in [self.hub.as_str(), self.connection_id.as_str()] {
            hash.update(part.as_bytes());
            hash.update(&[0]);
        }
        let (kind, number) = match self.id {
            EventId::Counted(number) => (0, number),
            EventId::OfAck(number) => (1, number),
        };
        hash.update(&[kind]);
        hash.update(&number.to_le_bytes());
        Uuid::new_v8(hash.digest128().to_be_bytes()).to_string()
    }
}

/// The type of a body with such a payload.
pub(super) fn content_type(kind: PayloadKind) -> &'static str {
    match kind {
        PayloadKind::Text => TEXT,
        PayloadKind::Json => JSON,
        PayloadKind::Binary => BINARY,
        PayloadKind::Any => PROTOBUF,
    }
}

fn ascii(name: &'static str, value: impl Into<String>) -> Result<HeaderValue, BadHeader> {
    let value = value.into();
    if !value.is_ascii() {
        return Err(BadHeader(name));
    }
    HeaderValue::try_from(value).map_err(|_| BadHeader(name))
}

/// UTC in whole seconds, as RFC 3339 spells it.
fn timestamp(time: Time) -> Option<String> {
    let utc = OffsetDateTime::from_unix_timestamp(i64::try_from(time.unix_seconds()).ok()?).ok()?;
    let (date, (hour, minute, second)) = (utc.date(), utc.to_hms());
    let (year, month, day) = (date.year(), u8::from(date.month()), date.day());
    Some(format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z"))
}

#[cfg(test)]
mod tests {
    use oncewire_protocol::log::SessionIdentity;
    use oncewire_protocol::wire::Subprotocol;

    use super::*;

    const OLD_KEY: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789ABCDEFGH";

    fn sender() -> Sender {
        let access_keys = AccessKeys::new("0123456789abcdef0123456789abcdef", Some(OLD_KEY)).unwrap();
        let origin = HeaderValue::from_static("gateway.example.net");
        Sender { origin, access_keys, counters: Arc::default(), memory: EventMemory::new(1 << 30) }
    }

    fn subject() -> EventSubject {
        EventSubject {
            identity: SessionIdentity {
                connection_id: ConnectionId::new("conn-1"),
                user_id: Some(UserId::new("ann")),
                subprotocol: Subprotocol::JsonReliable,
                custom_subprotocol: None,
            },
            state: None,
        }
    }

    /// The headers of a user event of this session.
    fn headers(subject: &EventSubject, metadata: &[(&str, &str)]) -> Result<HeaderMap, BadHeader> {
        let (hub, name) = (HubName::new("Lobby").unwrap(), EventName::new("Chat.say").unwrap());
        let all = Metadata::new(metadata.iter().copied()).unwrap();
        let id = (EventId::OfAck(7), Time(1_769_851_800_999));
        let body = (TEXT, Bytes::from_static(b"hi"));
        let mut event = Event::of_session(Kind::User(&name), &hub, subject, id, body);
        event.metadata = Some(&all);
        event.headers(&sender())
    }

    fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
        headers.get(name).unwrap_or_else(|| panic!("no {name}")).to_str().unwrap()
    }

    #[test]
    fn a_user_event_has_every_header_of_the_reference() {
        let headers = headers(&subject(), &[("Trace", "a, b")]).unwrap();
        for (name, value) in [
            ("ce-specversion", "1.0"),
            ("ce-awpsversion", "1.0"),
            ("ce-type", "azure.webpubsub.user.Chat.say"),
            ("ce-source", "/hubs/lobby/client/conn-1"),
            ("ce-id", "1000000000000007"),
            ("ce-time", "2026-01-31T09:30:00Z"),
            ("ce-connectionId", "conn-1"),
            ("ce-hub", "lobby"),
            ("ce-eventName", "Chat.say"),
            ("ce-userId", "ann"),
            ("ce-subprotocol", "json.reliable.webpubsub.azure.v1"),
            ("WebHook-Request-Origin", "gateway.example.net"),
            ("Content-Type", "text/plain; charset=utf-8"),
            ("x-webpubsub-metadata-trace", "a, b"),
        ] {
            assert_eq!(text(&headers, name), value, "{name}");
        }
        for name in ["ce-connectionState", "Cookie", "Authorization"] {
            assert!(!headers.contains_key(name), "{name}");
        }
        assert!(Uuid::parse_str(text(&headers, "x-ms-client-request-id")).is_ok());
    }

    #[test]
    fn the_signature_is_by_both_keys_without_a_blank() {
        let headers = headers(&subject(), &[]).unwrap();
        let signature = text(&headers, "ce-signature");
        let (first, second) = signature.split_once(',').unwrap();
        assert_eq!(second, "sha256=261f7f58ff9fb9bb8be7e4951a807fe6091e5c074885bf63b865eccd28728881");
        assert_eq!((first.len(), &first[..7]), (71, "sha256="));
        assert!(!signature.contains(' '));
    }

    #[test]
    fn a_system_event_has_its_own_type() {
        let hub = HubName::new("h").unwrap();
        let (subject, times) = (subject(), (EventId::CONNECT, Time(0)));
        for (event, name) in [
            (SystemEvent::Connect, "connect"),
            (SystemEvent::Connected, "connected"),
            (SystemEvent::Disconnected, "disconnected"),
        ] {
            let body = (JSON, Bytes::new());
            let event = Event::of_session(Kind::System(event), &hub, &subject, times, body);
            let headers = event.headers(&sender()).unwrap();
            assert_eq!(text(&headers, "ce-type"), format!("azure.webpubsub.sys.{name}"));
            assert_eq!(text(&headers, "ce-eventName"), name);
            assert_eq!((text(&headers, "ce-id"), text(&headers, "ce-time")), ("0", "1970-01-01T00:00:00Z"));
        }
    }

    #[test]
    fn what_there_is_none_of_has_no_header_and_an_empty_state_has_one() {
        let mut subject = subject();
        subject.identity.user_id = None;
        subject.identity.subprotocol = Subprotocol::Raw;
        subject.state = Some(HandlerState(Bytes::new()));
        let one = headers(&subject, &[]).unwrap();
        assert!(!one.contains_key("ce-userId") && !one.contains_key("ce-subprotocol"));
        assert_eq!(text(&one, "ce-connectionState"), "");
        subject.identity.user_id = Some(UserId::new(""));
        subject.identity.custom_subprotocol = Some("mine".to_owned());
        subject.state = Some(HandlerState(Bytes::from_static(b"e30= \xFF")));
        let other = headers(&subject, &[]).unwrap();
        assert!(!other.contains_key("ce-userId"));
        assert_eq!(text(&other, "ce-subprotocol"), "mine");
        assert_eq!(other["ce-connectionState"].as_bytes(), b"e30= \xFF");
    }

    #[test]
    fn a_user_id_is_utf_8_and_nothing_else_is() {
        let mut subject = subject();
        subject.identity.user_id = Some(UserId::new("Zoë 🦀"));
        assert_eq!(headers(&subject, &[]).unwrap()["ce-userId"].as_bytes(), "Zoë 🦀".as_bytes());
        for bad in ["a\r\nce-type: x", "a\n", "\0"] {
            subject.identity.user_id = Some(UserId::new(bad));
            assert_eq!(headers(&subject, &[]).err(), Some(BadHeader("ce-userId")), "{bad:?}");
        }
        subject.identity.user_id = None;
        subject.identity.custom_subprotocol = Some("é".to_owned());
        assert_eq!(headers(&subject, &[]).err(), Some(BadHeader("ce-subprotocol")));
        subject.identity.custom_subprotocol = None;
        assert_eq!(headers(&subject, &[("k", "a\nb")]).err(), Some(BadHeader("x-webpubsub-metadata-")));
    }

    #[test]
    fn request_ids_follow_from_the_event() {
        let (hub, name) = (HubName::new("h").unwrap(), EventName::new("e").unwrap());
        let id = |connection: &str, id: EventId| {
            let mut subject = subject();
            subject.identity.connection_id = ConnectionId::new(connection);
            let event =
                Event::of_session(Kind::User(&name), &hub, &subject, (id, Time(0)), (TEXT, Bytes::new()));
            event.request_id()
        };
        assert_eq!(id("a", EventId::OfAck(1)), id("a", EventId::OfAck(1)));
        let different = [
            id("a", EventId::OfAck(1)),
            id("b", EventId::OfAck(1)),
            id("a", EventId::OfAck(2)),
            id("a", EventId::Counted(1)),
        ];
        let distinct: std::collections::HashSet<_> = different.iter().collect();
        assert_eq!(distinct.len(), different.len());
    }
}
