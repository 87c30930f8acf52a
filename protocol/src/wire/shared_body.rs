//! The part of a published message that all its receivers of one encoding share, and what stands before it in each
//! receiver's frame.

use bytes::{Bytes, BytesMut};
use prost::encoding::{encode_varint, encoded_len_varint};

use super::{Opcode, SequenceId, frame_header_bytes, write_frame_header};

/// A message encoded once for all its receivers of one encoding. Writing it for one of them is a frame header, at
/// most a sequence id, and a copy. `Debug` shows the size, never the content.
#[derive(Clone, PartialEq, Eq)]
pub struct SharedBody {
    form: Form,
    bytes: Bytes,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A whole JSON object that is not empty; a sequence id goes in as its first property.
    Json,
    /// The fields of a protobuf data message; a sequence id goes in as its last field.
    Protobuf,
    /// A bare payload, which has no place for a sequence id.
    Raw(Opcode),
}

const JSON_SEQUENCE_ID: &[u8] = b"{\"sequenceId\":";
/// Field 2 of a downstream message, with its length before it.
const PROTOBUF_DATA_MESSAGE: u8 = 0x12;
/// Field 4 of a data message, a varint.
const PROTOBUF_SEQUENCE_ID: u8 = 0x20;

impl SharedBody {
    pub(super) fn json(object: Bytes) -> Self {
        Self { form: Form::Json, bytes: object }
    }

    pub(super) fn protobuf(data_message: Bytes) -> Self {
        Self { form: Form::Protobuf, bytes: data_message }
    }

    pub(super) fn raw(opcode: Opcode, payload: Bytes) -> Self {
        Self { form: Form::Raw(opcode), bytes: payload }
    }

    /// Bytes that its receivers share: what it costs to keep.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Whether there is nothing to share, as in an empty frame for a raw client.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Appends one whole frame. Only receivers on a reliable subprotocol have a sequence id.
    pub fn write_frame(&self, sequence_id: Option<SequenceId>, out: &mut BytesMut) {
        match (self.form, sequence_id) {
            (Form::Json, Some(id)) => {
                let mut digits = itoa::Buffer::new();
                let digits = digits.format(id).as_bytes();
                // The comma takes the place of the object's own brace.
                let payload_bytes = JSON_SEQUENCE_ID.len() + digits.len() + self.bytes.len();
                begin_frame(Opcode::Text, payload_bytes, out);
                out.extend_from_slice(JSON_SEQUENCE_ID);
                out.extend_from_slice(digits);
                out.extend_from_slice(b",");
                out.extend_from_slice(&self.bytes[1..]);
            }
            (Form::Json, None) => {
                begin_frame(Opcode::Text, self.bytes.len(), out);
                out.extend_from_slice(&self.bytes);
            }
            (Form::Protobuf, id) => {
                let id_bytes = id.map_or(0, |id| 1 + encoded_len_varint(id));
                let data_bytes = (self.bytes.len() + id_bytes) as u64;
                begin_frame(Opcode::Binary, 1 + encoded_len_varint(data_bytes) + data_bytes as usize, out);
                out.extend_from_slice(&[PROTOBUF_DATA_MESSAGE]);
                encode_varint(data_bytes, out);
                out.extend_from_slice(&self.bytes);
                if let Some(id) = id {
                    write_protobuf_sequence_id(id, out);
                }
            }
            (Form::Raw(opcode), _) => {
                begin_frame(opcode, self.bytes.len(), out);
                out.extend_from_slice(&self.bytes);
            }
        }
    }
}

/// The rest of a frame that was written in part, without a copy of what its receivers share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameRest {
    /// The end of the shared part.
    pub shared: Bytes,
    /// What stands behind it.
    pub tail: Bytes,
}

impl SharedBody {
    /// The last `rest` bytes of a frame. `None` when the break is before the shared part: the rest is the whole of it
    /// then, and a little more.
    pub fn rest_of_frame(&self, sequence_id: Option<SequenceId>, rest: usize) -> Option<FrameRest> {
        let mut tail = BytesMut::new();
        if let (Form::Protobuf, Some(id)) = (self.form, sequence_id) {
            write_protobuf_sequence_id(id, &mut tail);
        }
        // A JSON frame with a sequence id leaves out the object's own brace.
        let left_out = usize::from(self.form == Form::Json && sequence_id.is_some());
        let tail = tail.freeze();
        let Some(shared_bytes) = rest.checked_sub(tail.len()) else {
            let tail = tail.slice(tail.len() - rest..);
            return Some(FrameRest { shared: Bytes::new(), tail });
        };
        let from = self.bytes.len().checked_sub(shared_bytes).filter(|from| *from >= left_out)?;
        Some(FrameRest { shared: self.bytes.slice(from..), tail })
    }
}

fn write_protobuf_sequence_id(id: SequenceId, out: &mut BytesMut) {
    out.extend_from_slice(&[PROTOBUF_SEQUENCE_ID]);
    encode_varint(id, out);
}

/// Makes room for the whole frame at once.
fn begin_frame(opcode: Opcode, payload_bytes: usize, out: &mut BytesMut) {
    out.reserve(frame_header_bytes(payload_bytes) + payload_bytes);
    write_frame_header(opcode, payload_bytes, out);
}

impl std::fmt::Debug for SharedBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SharedBody({:?}, {} bytes)", self.form, self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(body: &SharedBody, sequence_id: Option<SequenceId>) -> Vec<u8> {
        let mut out = BytesMut::from(&b"before"[..]);
        body.write_frame(sequence_id, &mut out);
        assert!(out.starts_with(b"before"));
        let frame = &out[6..];
        let (header_bytes, payload_bytes) = match frame[1] {
            126 => (4, usize::from(u16::from_be_bytes([frame[2], frame[3]]))),
            127 => (10, u64::from_be_bytes(frame[2..10].try_into().unwrap()) as usize),
            short => (2, usize::from(short)),
        };
        assert_eq!(frame.len(), header_bytes + payload_bytes, "the header tells the length");
        frame.to_vec()
    }

    #[test]
    fn the_rest_of_a_frame_is_its_end_wherever_it_broke() {
        let bodies = [
            SharedBody::json(Bytes::from_static(b"{\"a\":1}")),
            SharedBody::protobuf(Bytes::from_static(b"abcdefg")),
            SharedBody::raw(Opcode::Binary, Bytes::from_static(b"abcdefg")),
        ];
        for body in bodies {
            for id in [None, Some(1), Some(300)] {
                let frame = written(&body, id);
                let mut shared = 0;
                for rest in 0..=frame.len() {
                    let Some(parts) = body.rest_of_frame(id, rest) else { continue };
                    let whole = [parts.shared, parts.tail].concat();
                    assert_eq!(whole, frame[frame.len() - rest..], "{body:?} {id:?}");
                    shared += 1;
                }
                assert!(shared >= 7, "the shared part is found");
            }
        }
    }

    #[test]
    fn json_takes_the_sequence_id_as_first_property() {
        let body = SharedBody::json(Bytes::from_static(b"{\"a\":1}"));
        assert_eq!(written(&body, None), b"\x81\x07{\"a\":1}");
        assert_eq!(written(&body, Some(12)), b"\x81\x17{\"sequenceId\":12,\"a\":1}");
    }

    #[test]
    fn protobuf_takes_the_sequence_id_as_last_field() {
        let body = SharedBody::protobuf(Bytes::from_static(b"\x0a\x01x"));
        assert_eq!(written(&body, None), b"\x82\x05\x12\x03\x0a\x01x");
        assert_eq!(written(&body, Some(300)), b"\x82\x08\x12\x06\x0a\x01x\x20\xac\x02");
        assert_eq!(written(&body, Some(0)), b"\x82\x07\x12\x05\x0a\x01x\x20\x00");
    }

    #[test]
    fn raw_frames_are_the_payload_whatever_the_sequence_id() {
        let body = SharedBody::raw(Opcode::Binary, Bytes::from_static(b"\x00\xff"));
        assert_eq!(written(&body, None), b"\x82\x02\x00\xff");
        assert_eq!(written(&body, Some(12)), b"\x82\x02\x00\xff");
        let empty = SharedBody::raw(Opcode::Text, Bytes::new());
        assert!(empty.is_empty());
        assert_eq!(written(&empty, None), b"\x81\x00");
    }

    #[test]
    fn the_header_tells_the_length_at_each_step_of_the_lengths() {
        let decimal_steps = (0..20).flat_map(|n| [10u64.pow(n) - 1, 10u64.pow(n)]);
        let varint_steps = (1..10).flat_map(|n| [(1u64 << (7 * n)) - 1, 1u64 << (7 * n)]);
        let ids: Vec<_> =
            decimal_steps.chain(varint_steps).chain([u64::MAX]).map(Some).chain([None]).collect();
        for bytes in (2..140).chain(16_370..16_390).chain(65_480..65_560) {
            let bytes = Bytes::from(vec![b' '; bytes]);
            for &id in &ids {
                written(&SharedBody::json(bytes.clone()), id);
                written(&SharedBody::protobuf(bytes.clone()), id);
            }
        }
    }

    #[test]
    fn debug_shows_no_content() {
        let body = SharedBody::json(Bytes::from_static(b"{\"secret\":1}"));
        assert_eq!(format!("{body:?}"), "SharedBody(Json, 12 bytes)");
    }
}
