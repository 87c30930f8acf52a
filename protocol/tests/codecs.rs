//! Properties of the codecs: what is encoded comes back, order and unknown properties make no difference, and no
//! bytes of a peer do harm.

#![allow(clippy::unwrap_used, reason = "test code outside the test functions themselves")]

use bytes::{Bytes, BytesMut};
use oncewire_protocol::wire::limits::{EVENT_NAME_CHARS_MAX, GROUP_NAME_UTF16_MAX, TTL_SECONDS_MAX};
use oncewire_protocol::wire::{
    AckError, AckId, ConnectionId, Downstream, Encoding, ErrorName, EventName, FrameKind, GroupName, Message,
    Metadata, MetadataBuilder, Payload, PayloadKind, Received, ReconnectionToken, Sender, Upstream, UserId,
    decode_downstream, decode_upstream, encode_downstream, encode_message, encode_upstream,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// The encodings in which every message can be said.
const ENVELOPED: [Encoding; 2] = [Encoding::Json, Encoding::Protobuf];
const ENCODINGS: [Encoding; 3] = [Encoding::Json, Encoding::Protobuf, Encoding::Raw];

proptest! {
    #[test]
    fn requests_come_back(request in upstream()) {
        for encoding in ENVELOPED {
            let frame = encode_upstream(encoding, &request);
            prop_assert_eq!(decode_upstream(encoding, kind(encoding), &frame), Ok(request.clone()));
        }
    }

    #[test]
    fn control_messages_come_back(message in downstream()) {
        for encoding in ENVELOPED {
            let mut sent = BytesMut::new();
            encode_downstream(encoding, &message, &mut sent);
            let received = decode_downstream(encoding, kind(encoding), &frame_payload(&sent));
            prop_assert_eq!(received, Ok(Received::Control(message.clone())));
        }
    }

    #[test]
    fn messages_come_back_with_their_sequence_id(message in message(), sequence_id in option::of(any::<u64>())) {
        for encoding in ENVELOPED {
            let body = encode_message(encoding, &message);
            let mut sent = BytesMut::from(&b"earlier frames"[..]);
            body.write_message(sequence_id, &mut sent);
            let sent = sent.split_off(b"earlier frames".len());
            let received = decode_downstream(encoding, kind(encoding), &frame_payload(&sent));
            let message = without_user(encoding, message.clone());
            prop_assert_eq!(received, Ok(Received::Message { message, sequence_id }));
        }
    }

    #[test]
    fn raw_receivers_get_the_payload_alone(message in message(), sequence_id in option::of(any::<u64>())) {
        let mut sent = BytesMut::new();
        encode_message(Encoding::Raw, &message).write_message(sequence_id, &mut sent);
        prop_assert_eq!(frame_payload(&sent), message.payload.bytes);
        let is_text = matches!(message.payload.kind, PayloadKind::Text | PayloadKind::Json);
        prop_assert_eq!(sent[0] & 0xF, if is_text { 1 } else { 2 });
    }

    #[test]
    fn the_order_of_properties_and_unknown_ones_make_no_difference(
        request in upstream(),
        unknown in vec(("[a-zA-Z]{0,3}[XYZ]", json()), 0..4),
        order in any::<u64>(),
    ) {
        let text = encode_upstream(Encoding::Json, &request);
        let mut properties = properties_of(std::str::from_utf8(&text).unwrap());
        properties.extend(unknown);
        properties.sort_by_key(|(name, _)| scrambled(name, order));
        let body: Vec<_> = properties.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        let frame = Bytes::from(format!("{{{}}}", body.join(",")));
        prop_assert_eq!(decode_upstream(Encoding::Json, FrameKind::Text, &frame), Ok(request));
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in vec(any::<u8>(), 0..200)) {
        let bytes = Bytes::from(bytes);
        for encoding in ENCODINGS {
            for kind in [FrameKind::Text, FrameKind::Binary] {
                let _ = decode_upstream(encoding, kind, &bytes);
                let _ = decode_downstream(encoding, kind, &bytes);
            }
        }
    }

    #[test]
    fn damaged_requests_are_refused_or_mean_what_they_say(
        request in upstream(),
        damage in vec(damage(), 1..6),
    ) {
        for encoding in ENVELOPED {
            let frame = damaged(&encode_upstream(encoding, &request), &damage);
            if let Ok(other) = decode_upstream(encoding, kind(encoding), &frame) {
                let again = encode_upstream(encoding, &other);
                prop_assert_eq!(decode_upstream(encoding, kind(encoding), &again), Ok(other));
            }
        }
    }

    #[test]
    fn damaged_messages_are_refused_or_mean_what_they_say(
        message in message(),
        sequence_id in option::of(any::<u64>()),
        damage in vec(damage(), 1..6),
    ) {
        for encoding in ENVELOPED {
            let mut sent = BytesMut::new();
            encode_message(encoding, &message).write_message(sequence_id, &mut sent);
            let frame = damaged(&frame_payload(&sent), &damage);
            let received = decode_downstream(encoding, kind(encoding), &frame);
            if let Ok(Received::Message { message, sequence_id }) = &received {
                let mut again = BytesMut::new();
                encode_message(encoding, message).write_message(*sequence_id, &mut again);
                prop_assert_eq!(decode_downstream(encoding, kind(encoding), &frame_payload(&again)), received);
            }
        }
    }
}

fn kind(encoding: Encoding) -> FrameKind {
    match encoding {
        Encoding::Json | Encoding::Raw => FrameKind::Text,
        Encoding::Protobuf => FrameKind::Binary,
    }
}

/// Users do not travel in protobuf.
fn without_user(encoding: Encoding, mut message: Message) -> Message {
    if let (Encoding::Protobuf, Sender::Group { user_id, .. }) = (encoding, &mut message.sender) {
        *user_id = None;
    }
    message
}

/// The payload of one message, which may be in several frames.
fn frame_payload(mut sent: &[u8]) -> Bytes {
    let mut message = BytesMut::new();
    loop {
        let (header_bytes, payload_bytes) = match sent[1] {
            126 => (4, usize::from(u16::from_be_bytes([sent[2], sent[3]]))),
            127 => (10, u64::from_be_bytes(sent[2..10].try_into().unwrap()) as usize),
            short => (2, usize::from(short)),
        };
        let (frame, rest) = sent.split_at(header_bytes + payload_bytes);
        message.extend_from_slice(&frame[header_bytes..]);
        if frame[0] & 0x80 != 0 {
            assert!(rest.is_empty(), "nothing follows the last frame");
            return message.freeze();
        }
        sent = rest;
    }
}

fn properties_of(object: &str) -> Vec<(String, String)> {
    let properties: std::collections::BTreeMap<String, Box<serde_json::value::RawValue>> =
        serde_json::from_str(object).unwrap();
    properties.into_iter().map(|(name, value)| (name, value.get().to_owned())).collect()
}

/// An order of names that is another one for each seed.
fn scrambled(name: &str, seed: u64) -> u64 {
    name.bytes()
        .fold(seed, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23))
}

#[derive(Debug, Clone)]
enum Damage {
    Replace(Index, u8),
    Insert(Index, &'static str),
    Remove(Index, usize),
    Repeat(Index, usize),
}

fn damage() -> impl Strategy<Value = Damage> {
    let piece = select(vec![
        "\"",
        "\\",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "null",
        "0",
        "-",
        "1e9",
        " ",
        "\u{0}",
        "é",
        "\\u0061",
        "\\ud800",
        "\"type\":",
        "\"ack\"",
        "\"data\":null,",
        "\"group\":\"\",",
        "true",
    ]);
    prop_oneof![
        (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Damage::Replace(at, byte)),
        (any::<Index>(), piece).prop_map(|(at, piece)| Damage::Insert(at, piece)),
        (any::<Index>(), 1..20_usize).prop_map(|(at, length)| Damage::Remove(at, length)),
        (any::<Index>(), 1..40_usize).prop_map(|(at, length)| Damage::Repeat(at, length)),
    ]
}

fn damaged(frame: &[u8], damages: &[Damage]) -> Bytes {
    let mut bytes = frame.to_vec();
    for damage in damages {
        if bytes.is_empty() {
            break;
        }
        let until = |at: usize, length: usize| (at + length).min(bytes.len());
        match damage {
            Damage::Replace(at, byte) => {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            Damage::Insert(at, piece) => {
                let at = at.index(bytes.len());
                bytes.splice(at..at, piece.bytes());
            }
            Damage::Remove(at, length) => {
                let at = at.index(bytes.len());
                bytes.drain(at..until(at, *length));
            }
            Damage::Repeat(at, length) => {
                let at = at.index(bytes.len());
                let part = bytes[at..until(at, *length)].to_vec();
                bytes.splice(at..at, part);
            }
        }
    }
    bytes.into()
}

fn group() -> impl Strategy<Value = GroupName> {
    prop_oneof![any::<String>(), Just("g".repeat(GROUP_NAME_UTF16_MAX))]
        .prop_filter_map("a blank group", |name| GroupName::new(&name).ok())
}

fn event() -> impl Strategy<Value = EventName> {
    prop_oneof!["[a-zA-Z][a-zA-Z0-9_.-]{0,20}", Just("e".repeat(EVENT_NAME_CHARS_MAX))]
        .prop_map(|name| EventName::new(&name).unwrap())
}

fn user() -> impl Strategy<Value = Option<UserId>> {
    option::of("\\PC{1,20}").prop_map(|user| user.map(|id| UserId::new(&id)))
}

fn operation_id() -> impl Strategy<Value = String> {
    prop_oneof!["[0-9]{1,4}", "\\PC{1,30}"]
}

fn ack_id() -> impl Strategy<Value = Option<AckId>> {
    option::of(prop_oneof![any::<AckId>(), 0..100_u64, Just(AckId::MAX)])
}

fn metadata() -> impl Strategy<Value = Metadata> {
    vec(("[!#$%&'*+.^_`|~0-9A-Za-z-]{1,20}", "[\\x00-\\x7f]{0,20}"), 0..4).prop_map(|entries| {
        let mut metadata = MetadataBuilder::default();
        for (key, value) in entries {
            // A key that happens to come twice stands once.
            let _ = metadata.insert(&key, &value);
        }
        metadata.build()
    })
}

/// JSON text other than `null`, with white space and spellings that a parser would not give back.
fn json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        select(vec![
            "true",
            "false",
            "0",
            "-0.0",
            "1E+5",
            "12345678901234567890123",
            "\"\\ud800\\/\"",
            "[ ]",
            "{ }"
        ])
        .prop_map(str::to_owned),
        any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(" , "))),
            vec(inner, 0..4).prop_map(|items| {
                let entries: Vec<_> = items.iter().map(|item| format!("\"same key\" :\t{item}")).collect();
                format!("{{\n{}}}", entries.join(","))
            }),
        ]
    })
}

fn payload() -> impl Strategy<Value = Payload> {
    prop_oneof![
        any::<String>().prop_map(|text| (PayloadKind::Text, Bytes::from(text))),
        json().prop_map(|text| (PayloadKind::Json, Bytes::from(text))),
        vec(any::<u8>(), 0..100).prop_map(|bytes| (PayloadKind::Binary, Bytes::from(bytes))),
        (5000..70_000_usize).prop_map(|bytes| (PayloadKind::Text, Bytes::from("x".repeat(bytes)))),
        Just((PayloadKind::Any, Bytes::from_static(b"\x0a\x01a\x12\x02\x08\x01"))),
    ]
    .prop_map(|(kind, bytes)| Payload { kind, bytes })
}

fn upstream() -> impl Strategy<Value = Upstream> {
    prop_oneof![
        (group(), ack_id()).prop_map(|(group, ack_id)| Upstream::JoinGroup { group, ack_id }),
        (group(), ack_id()).prop_map(|(group, ack_id)| Upstream::LeaveGroup { group, ack_id }),
        (group(), payload(), metadata(), ack_id(), any::<bool>(), 0..=TTL_SECONDS_MAX as u16).prop_map(
            |(group, payload, metadata, ack_id, no_echo, ttl_seconds)| Upstream::SendToGroup {
                group,
                payload,
                metadata,
                ack_id,
                no_echo,
                ttl_seconds
            }
        ),
        (event(), payload(), metadata(), ack_id()).prop_map(|(event, payload, metadata, ack_id)| {
            Upstream::Event { event, payload, metadata, ack_id }
        }),
        any::<u64>().prop_map(|sequence_id| Upstream::SequenceAck { sequence_id }),
        Just(Upstream::Ping),
        (operation_id(), event(), option::of(payload()), metadata()).prop_map(
            |(invocation_id, event, payload, metadata)| Upstream::Invoke {
                invocation_id,
                event,
                payload,
                metadata
            }
        ),
        operation_id().prop_map(|invocation_id| Upstream::CancelInvocation { invocation_id }),
        (operation_id(), group(), ack_id()).prop_map(|(stream_id, group, ack_id)| Upstream::Stream {
            stream_id,
            group: Some(group),
            ack_id
        }),
        operation_id().prop_map(|stream_id| Upstream::Stream { stream_id, group: None, ack_id: None }),
        (group(), ack_id()).prop_map(|(group, ack_id)| Upstream::GroupState { group, ack_id }),
    ]
}

fn ack_error() -> impl Strategy<Value = AckError> {
    let name = select(vec![
        ErrorName::Duplicate,
        ErrorName::Forbidden,
        ErrorName::InternalServerError,
        ErrorName::PayloadMismatch,
        ErrorName::BadRequest,
    ]);
    (name, any::<String>()).prop_map(|(name, message)| AckError { name, message })
}

fn downstream() -> impl Strategy<Value = Downstream> {
    prop_oneof![
        (any::<String>(), user(), option::of(any::<String>())).prop_map(|(id, user_id, token)| {
            Downstream::Connected {
                connection_id: ConnectionId::new(&id),
                user_id,
                reconnection_token: token.map(ReconnectionToken),
            }
        }),
        any::<String>().prop_map(|message| Downstream::Disconnected { message }),
        (any::<AckId>(), option::of(ack_error()))
            .prop_map(|(ack_id, error)| Downstream::Ack { ack_id, error }),
        Just(Downstream::Pong),
        (operation_id(), ack_error())
            .prop_map(|(invocation_id, error)| Downstream::InvokeFailed { invocation_id, error }),
        (operation_id(), ack_error())
            .prop_map(|(stream_id, error)| Downstream::StreamClosed { stream_id, error }),
    ]
}

fn message() -> impl Strategy<Value = Message> {
    let sender = prop_oneof![
        (group(), user()).prop_map(|(group, user_id)| Sender::Group { group, user_id }),
        Just(Sender::Server),
    ];
    (sender, payload(), metadata()).prop_map(|(sender, payload, metadata)| Message {
        sender,
        payload,
        metadata,
    })
}
