//! Takes apart what the gateway sends.

use bytes::Bytes;
use oncewire_protocol::wire::{
    AckId, Downstream, Encoding, ErrorName, FrameKind, Received, SequenceId, decode_downstream,
};

/// The payload of one frame to a client, in bytes.
const FRAME_PAYLOAD_BYTES_MAX: usize = 65_536;

/// A message from server to client, in one data frame or several.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: FrameKind,
    pub payload: Bytes,
}

/// Whole messages, their frames not masked, no larger than each client takes and with their length in the shortest form.
/// Anything else fails.
pub fn frames(mut sent: &[u8]) -> Vec<Frame> {
    let mut frames: Vec<Frame> = Vec::new();
    let mut is_complete = true;
    while !sent.is_empty() {
        let opcodes: &[u8] = if is_complete { &[1, 2] } else { &[0] };
        assert!(opcodes.contains(&(sent[0] & 0x7f)), "no data frame: {:#x}", sent[0]);
        let (header_bytes, payload_bytes) = match sent[1] {
            126 => (4, number(&sent[2..4])),
            127 => (10, number(&sent[2..10])),
            length => (2, usize::from(length)),
        };
        assert_eq!(
            header_bytes,
            2 + 2 * usize::from(payload_bytes > 125) + 6 * usize::from(payload_bytes > 0xFFFF)
        );
        assert!(payload_bytes <= FRAME_PAYLOAD_BYTES_MAX);
        let end = header_bytes + payload_bytes;
        let payload = &sent[header_bytes..end];
        match frames.last_mut().filter(|_| !is_complete) {
            Some(begun) => begun.payload = [&begun.payload, payload].concat().into(),
            None => {
                let kind = if sent[0] & 0x7f == 1 { FrameKind::Text } else { FrameKind::Binary };
                frames.push(Frame { kind, payload: Bytes::copy_from_slice(payload) });
            }
        }
        is_complete = sent[0] & 0x80 != 0;
        sent = &sent[end..];
    }
    assert!(is_complete, "the last message ends");
    frames
}

/// A frame as its client takes it.
#[derive(Debug, PartialEq, Eq)]
pub enum Heard {
    Message { id: Option<SequenceId>, text: String },
    Ack { ack_id: AckId, error: Option<ErrorName> },
    Other,
}

/// Takes apart what was sent to a client.
pub fn hear(encoding: Encoding, sent: &[u8]) -> Vec<Heard> {
    let heard =
        frames(sent).into_iter().map(|frame| match decode_downstream(encoding, frame.kind, &frame.payload) {
            Ok(Received::Message { message, sequence_id: id }) => {
                Heard::Message { id, text: String::from_utf8_lossy(&message.payload.bytes).into_owned() }
            }
            Ok(Received::Control(Downstream::Ack { ack_id, error })) => {
                Heard::Ack { ack_id, error: error.map(|error| error.name) }
            }
            Ok(Received::Control(_)) => Heard::Other,
            other => {
                assert!(
                    other.is_ok_and(|received| received != Received::Unknown),
                    "no message of the subprotocol"
                );
                Heard::Other
            }
        });
    heard.collect()
}

fn number(bytes: &[u8]) -> usize {
    bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte))
}
