//! Decoders: what is taken means the same when it is said again, in either encoding, and reaches every kind of
//! receiver whole.

use bytes::{Buf, Bytes, BytesMut};
use oncewire_protocol::log::Fingerprint;
use oncewire_protocol::wire::{
    Encoding, FrameKind, GroupName, Message, Payload, PayloadKind, Received, Sender, SequenceId, Upstream,
    UserId, decode_downstream, decode_upstream, encode_downstream, encode_message, encode_upstream,
    raw as raw_frames,
};

use crate::frames::{Frame, frames};

/// The encodings in which every message can be said.
const ENVELOPED: [Encoding; 2] = [Encoding::Json, Encoding::Protobuf];

/// Without an id as on the subprotocols that are not reliable; with the first, the largest and an impossible one.
const SEQUENCE_IDS: [Option<SequenceId>; 4] = [None, Some(1), Some((1 << 53) - 1), Some(u64::MAX)];

/// A text frame of a JSON client.
pub fn json_upstream(data: &[u8]) {
    upstream(Encoding::Json, data);
}

/// A binary frame of a protobuf client.
pub fn protobuf_upstream(data: &[u8]) {
    upstream(Encoding::Protobuf, data);
}

/// A text frame to a JSON client.
pub fn json_downstream(data: &[u8]) {
    downstream(Encoding::Json, data);
}

/// A binary frame to a protobuf client.
pub fn protobuf_downstream(data: &[u8]) {
    downstream(Encoding::Protobuf, data);
}

/// A frame of a raw client. The first byte says which kind of frame.
pub fn raw(data: &[u8]) {
    let Some((first, data)) = data.split_first() else { return };
    let kind = if first % 2 == 0 { FrameKind::Text } else { FrameKind::Binary };
    let data = Bytes::copy_from_slice(data);
    let is_valid = kind == FrameKind::Binary || std::str::from_utf8(&data).is_ok();
    assert_eq!(decode_upstream(Encoding::Raw, kind, &data).is_ok(), is_valid);
    let Ok(group) = GroupName::new("group") else { return };
    let target = raw_frames::RawTarget { group, no_echo: first % 4 > 1 };
    let published = raw_frames::decode_send_to_group(&target, kind, &data);
    assert_eq!(published.is_ok(), is_valid);
    if let Ok(request) = published {
        assert_eq!(encode_upstream(Encoding::Raw, &request), data);
        reaches_everybody(&request);
    }
}

fn upstream(encoding: Encoding, data: &[u8]) {
    let frame = Bytes::copy_from_slice(data);
    assert!(decode_upstream(encoding, other_kind(encoding), &frame).is_err());
    let Ok(request) = decode_upstream(encoding, kind(encoding), &frame) else { return };
    let said = comparable(request.clone());
    for encoding in ENVELOPED {
        let again = encode_upstream(encoding, &request);
        let heard = decode_upstream(encoding, kind(encoding), &again).map(comparable);
        assert_eq!(heard.as_ref(), Ok(&said));
    }
    let again = decode_upstream(encoding, kind(encoding), &encode_upstream(encoding, &request));
    let fingerprint = again.as_ref().map(Fingerprint::of);
    assert_eq!(fingerprint, Ok(Fingerprint::of(&request)), "a resend is the same request");
    reaches_everybody(&request);
}

fn downstream(encoding: Encoding, data: &[u8]) {
    let frame = Bytes::copy_from_slice(data);
    assert!(decode_downstream(encoding, other_kind(encoding), &frame).is_err());
    match decode_downstream(encoding, kind(encoding), &frame) {
        Ok(Received::Message { message, sequence_id }) => arrives(&message, &[sequence_id]),
        Ok(Received::Control(control)) => {
            for encoding in ENVELOPED {
                let mut sent = BytesMut::new();
                encode_downstream(encoding, &control, &mut sent);
                let received = decode_frame(encoding, &sent);
                assert_eq!(received, Received::Control(control.clone()));
            }
        }
        Ok(Received::Unknown) | Err(_) => {}
    }
}

/// A publish reaches the receivers of all encodings, with sequence ids and without.
fn reaches_everybody(request: &Upstream) {
    let (Upstream::SendToGroup { payload, metadata, .. } | Upstream::Event { payload, metadata, .. }) =
        request
    else {
        return;
    };
    let (payload, metadata) = (payload.clone(), metadata.clone());
    let sender = match request {
        Upstream::SendToGroup { group, .. } => {
            Sender::Group { group: group.clone(), user_id: Some(UserId::new("ada")) }
        }
        _ => Sender::Server,
    };
    arrives(&Message { sender, payload, metadata }, &SEQUENCE_IDS);
}

fn arrives(message: &Message, sequence_ids: &[Option<SequenceId>]) {
    for encoding in ENVELOPED {
        let body = encode_message(encoding, message);
        for sequence_id in sequence_ids {
            let mut sent = BytesMut::new();
            body.write_message(*sequence_id, &mut sent);
            let expected = comparable_message(encoding, message.clone());
            match decode_frame(encoding, &sent) {
                Received::Message { message: arrived, sequence_id: id } => {
                    assert_eq!((comparable_message(encoding, arrived), id), (expected, *sequence_id));
                }
                other => assert_eq!(other, Received::Unknown, "a message was taken for something else"),
            }
            for rest in breaks(sent.len()) {
                let end = body.rest_of_message(*sequence_id, rest).copy_to_bytes(rest);
                assert_eq!(end, sent[sent.len() - rest..], "the message goes on where it broke off");
            }
        }
    }
    let mut sent = BytesMut::new();
    encode_message(Encoding::Raw, message).write_message(Some(7), &mut sent);
    let is_text = matches!(message.payload.kind, PayloadKind::Text | PayloadKind::Json);
    let kind = if is_text { FrameKind::Text } else { FrameKind::Binary };
    assert_eq!(frames(&sent), [Frame { kind, payload: message.payload.bytes.clone() }]);
}

/// Lengths of the rest of a broken frame: all near its ends, some between.
fn breaks(length: usize) -> impl Iterator<Item = usize> {
    (1..length).filter(move |rest| *rest < 12 || length - rest < 12 || rest % 97 == 0)
}

fn decode_frame(encoding: Encoding, sent: &[u8]) -> Received {
    let mut frames = frames(sent);
    let frame = frames.pop().filter(|_| frames.is_empty());
    let received = frame.map(|Frame { kind, payload }| decode_downstream(encoding, kind, &payload));
    match received {
        Some(Ok(received)) => received,
        other => {
            assert_eq!(
                other.map(|received| received.map(|_| ())),
                Some(Ok(())),
                "no frame that its client takes"
            );
            Received::Unknown
        }
    }
}

fn kind(encoding: Encoding) -> FrameKind {
    if encoding == Encoding::Json { FrameKind::Text } else { FrameKind::Binary }
}

fn other_kind(encoding: Encoding) -> FrameKind {
    if encoding == Encoding::Json { FrameKind::Binary } else { FrameKind::Text }
}

/// A request less what one of the encodings has no way to say.
fn comparable(mut request: Upstream) -> Upstream {
    match &mut request {
        Upstream::SendToGroup { payload, .. }
        | Upstream::Event { payload, .. }
        | Upstream::Invoke { payload: Some(payload), .. } => comparable_payload(payload),
        // Only the start of a stream that is published to a group is told from the others in JSON.
        Upstream::Stream { group: None, ack_id, .. } => *ack_id = None,
        _ => {}
    }
    request
}

fn comparable_message(encoding: Encoding, mut message: Message) -> Message {
    comparable_payload(&mut message.payload);
    // Users do not travel in protobuf.
    if let (Encoding::Protobuf, Sender::Group { user_id, .. }) = (encoding, &mut message.sender) {
        *user_id = None;
    }
    message
}

/// Bytes that a JSON client calls an `Any` and that are none reach protobuf clients as bytes; white space around JSON
/// text is not a part of the value that a JSON client reads.
fn comparable_payload(payload: &mut Payload) {
    match payload.kind {
        PayloadKind::Any => payload.kind = PayloadKind::Binary,
        PayloadKind::Json => {
            let text = payload.bytes.clone();
            let is_space = |byte: &&u8| b" \t\n\r".contains(byte);
            let from = text.iter().take_while(is_space).count();
            let after = text.iter().rev().take_while(is_space).count();
            payload.bytes = text.slice(from..text.len() - after);
        }
        PayloadKind::Text | PayloadKind::Binary => {}
    }
}
