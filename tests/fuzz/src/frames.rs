//! Takes apart what the gateway sends.

use bytes::Bytes;
use oncewire_protocol::wire::{
    AckId, Downstream, Encoding, ErrorName, FrameKind, Received, SequenceId, decode_downstream,
};

/// A data frame from server to client.
#[derive(Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: FrameKind,
    pub payload: Bytes,
}

/// Whole frames, each final, not masked and with its length in the shortest form. Anything else fails.
pub fn frames(mut sent: &[u8]) -> Vec<Frame> {
    let mut frames = Vec::new();
    while !sent.is_empty() {
        assert!(matches!(sent[0], 0x81 | 0x82), "no final data frame: {:#x}", sent[0]);
        let (header_bytes, payload_bytes) = match sent[1] {
            126 => (4, number(&sent[2..4])),
            127 => (10, number(&sent[2..10])),
            length => (2, usize::from(length)),
        };
        assert_eq!(
            header_bytes,
            2 + 2 * usize::from(payload_bytes > 125) + 6 * usize::from(payload_bytes > 0xFFFF)
        );
        let end = header_bytes + payload_bytes;
        let kind = if sent[0] == 0x81 { FrameKind::Text } else { FrameKind::Binary };
        frames.push(Frame { kind, payload: Bytes::copy_from_slice(&sent[header_bytes..end]) });
        sent = &sent[end..];
    }
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
