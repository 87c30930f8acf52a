//! The part of a published message that all its receivers of one encoding share, and what stands around it in each
//! receiver's frames.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::encoding::{encode_varint, encoded_len_varint};

use super::frame::write_fragment_header;
use super::limits::FRAME_PAYLOAD_BYTES_MAX;
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

/// Bytes of a frame header, of [`JSON_SEQUENCE_ID`], of the longest number and of a comma.
const FRONT_BYTES_MAX: usize = 10 + JSON_SEQUENCE_ID.len() + 20 + 1;

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

    /// Appends the whole message: one frame, or several if it is larger than
    /// [`FRAME_PAYLOAD_BYTES_MAX`]. Only receivers on a reliable subprotocol have a sequence id.
    pub fn write_message(&self, sequence_id: Option<SequenceId>, out: &mut BytesMut) {
        let shared = self.shared(sequence_id);
        let payload_bytes = self.front_bytes(sequence_id) + shared.len() + self.tail_bytes(sequence_id);
        if payload_bytes > FRAME_PAYLOAD_BYTES_MAX {
            let pieces = self.pieces(sequence_id);
            out.reserve(pieces.iter().map(Bytes::len).sum());
            pieces.iter().for_each(|piece| out.extend_from_slice(piece));
            return;
        }
        // Put together beside the buffer, which looks at its room at each of the many small pieces.
        let mut front = [0; FRONT_BYTES_MAX];
        let mut room = &mut front[..];
        write_frame_header(self.opcode(), payload_bytes, &mut room);
        self.write_front(sequence_id, &mut room);
        let front_bytes = FRONT_BYTES_MAX - room.len();
        out.reserve(frame_header_bytes(payload_bytes) + payload_bytes);
        out.extend_from_slice(&front[..front_bytes]);
        out.extend_from_slice(shared);
        self.write_tail(sequence_id, out);
    }

    /// The last `rest` bytes of what [`SharedBody::write_message`] appends, without a copy of what the receivers share.
    pub fn rest_of_message(&self, sequence_id: Option<SequenceId>, rest: usize) -> MessageRest {
        let mut message = MessageRest { pieces: self.pieces(sequence_id) };
        message.advance(message.remaining().saturating_sub(rest));
        message
    }

    fn opcode(&self) -> Opcode {
        match self.form {
            Form::Json => Opcode::Text,
            Form::Protobuf => Opcode::Binary,
            Form::Raw(opcode) => opcode,
        }
    }

    /// The shared part as it stands in a message: of a JSON object's own brace a comma takes the place.
    fn shared(&self, sequence_id: Option<SequenceId>) -> &[u8] {
        &self.bytes[self.left_out(sequence_id)..]
    }

    fn left_out(&self, sequence_id: Option<SequenceId>) -> usize {
        usize::from(self.form == Form::Json && sequence_id.is_some())
    }

    /// Bytes of what [`SharedBody::write_front`] appends.
    fn front_bytes(&self, sequence_id: Option<SequenceId>) -> usize {
        match (self.form, sequence_id) {
            (Form::Json, Some(id)) => JSON_SEQUENCE_ID.len() + decimal_digits(id) + 1,
            (Form::Protobuf, id) => 1 + encoded_len_varint(self.data_bytes(id)),
            (Form::Json, None) | (Form::Raw(_), _) => 0,
        }
    }

    /// What stands before the shared part.
    fn write_front(&self, sequence_id: Option<SequenceId>, out: &mut impl BufMut) {
        match (self.form, sequence_id) {
            (Form::Json, Some(id)) => {
                out.put_slice(JSON_SEQUENCE_ID);
                out.put_slice(itoa::Buffer::new().format(id).as_bytes());
                out.put_u8(b',');
            }
            (Form::Protobuf, id) => {
                out.put_u8(PROTOBUF_DATA_MESSAGE);
                encode_varint(self.data_bytes(id), out);
            }
            (Form::Json, None) | (Form::Raw(_), _) => {}
        }
    }

    /// Bytes of what [`SharedBody::write_tail`] appends.
    fn tail_bytes(&self, sequence_id: Option<SequenceId>) -> usize {
        match (self.form, sequence_id) {
            (Form::Protobuf, Some(id)) => 1 + encoded_len_varint(id),
            _ => 0,
        }
    }

    /// What stands behind the shared part.
    fn write_tail(&self, sequence_id: Option<SequenceId>, out: &mut BytesMut) {
        if let (Form::Protobuf, Some(id)) = (self.form, sequence_id) {
            out.extend_from_slice(&[PROTOBUF_SEQUENCE_ID]);
            encode_varint(id, out);
        }
    }

    /// Bytes of the protobuf data message.
    fn data_bytes(&self, sequence_id: Option<SequenceId>) -> u64 {
        (self.bytes.len() + self.tail_bytes(sequence_id)) as u64
    }

    /// The whole message, headers included, each piece of the shared part by reference.
    fn pieces(&self, sequence_id: Option<SequenceId>) -> VecDeque<Bytes> {
        let (mut front, mut tail) = (BytesMut::new(), BytesMut::new());
        self.write_front(sequence_id, &mut front);
        self.write_tail(sequence_id, &mut tail);
        let shared = self.bytes.slice(self.left_out(sequence_id)..);
        let mut payload = MessageRest { pieces: [front.freeze(), shared, tail.freeze()].into() };
        let mut pieces = VecDeque::new();
        let mut opcode = self.opcode();
        loop {
            let left = payload.remaining();
            let mut header = BytesMut::new();
            let frame_bytes = left.min(FRAME_PAYLOAD_BYTES_MAX);
            write_fragment_header(opcode, frame_bytes == left, frame_bytes, &mut header);
            pieces.push_back(header.freeze());
            payload.move_to(frame_bytes, &mut pieces);
            if frame_bytes == left {
                return pieces;
            }
            opcode = Opcode::Continuation;
        }
    }
}

/// What a connection has not taken of a message that it has taken the beginning of, or of control frames.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MessageRest {
    /// Those at the front may be empty.
    pieces: VecDeque<Bytes>,
}

impl MessageRest {
    /// Moves that many bytes from the front behind `pieces`.
    fn move_to(&mut self, bytes: usize, pieces: &mut VecDeque<Bytes>) {
        let mut missing = bytes;
        while missing > 0
            && let Some(front) = self.pieces.front_mut()
        {
            let piece = front.split_to(missing.min(front.len()));
            missing -= piece.len();
            if front.is_empty() {
                self.pieces.pop_front();
            }
            pieces.push_back(piece);
        }
    }
}

impl From<Bytes> for MessageRest {
    fn from(bytes: Bytes) -> Self {
        Self { pieces: VecDeque::from([bytes]) }
    }
}

impl Buf for MessageRest {
    fn remaining(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    fn chunk(&self) -> &[u8] {
        self.pieces.iter().find(|piece| !piece.is_empty()).map_or(&[], |piece| piece)
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let pieces = self.pieces.iter().filter(|piece| !piece.is_empty());
        slices.iter_mut().zip(pieces).map(|(slice, piece)| *slice = IoSlice::new(piece)).count()
    }

    fn advance(&mut self, bytes: usize) {
        let mut missing = bytes;
        while missing > 0
            && let Some(front) = self.pieces.front_mut()
        {
            let taken = missing.min(front.len());
            front.advance(taken);
            missing -= taken;
            if front.is_empty() {
                self.pieces.pop_front();
            }
        }
    }
}

fn decimal_digits(number: u64) -> usize {
    1 + number.checked_ilog10().unwrap_or(0) as usize
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
        body.write_message(sequence_id, &mut out);
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

    fn bodies(bytes: usize) -> [SharedBody; 3] {
        let text = |first: &[u8]| Bytes::from([first, &vec![b'x'; bytes - first.len()]].concat());
        [
            SharedBody::json(text(b"{")),
            SharedBody::protobuf(text(b"")),
            SharedBody::raw(Opcode::Binary, text(b"")),
        ]
    }

    /// The frames of a message: final or not, opcode, payload.
    fn frames(mut written: &[u8]) -> Vec<(bool, u8, &[u8])> {
        let mut frames = Vec::new();
        while let [first, length, rest @ ..] = written {
            let (length_bytes, payload_bytes) = match length {
                126 => (2, usize::from(u16::from_be_bytes(rest[..2].try_into().unwrap()))),
                127 => (8, u64::from_be_bytes(rest[..8].try_into().unwrap()) as usize),
                short => (0, usize::from(*short)),
            };
            let (payload, next) = rest[length_bytes..].split_at(payload_bytes);
            frames.push((first & 0x80 != 0, first & 0x7f, payload));
            written = next;
        }
        frames
    }

    #[test]
    fn the_rest_of_a_message_is_its_end_wherever_it_broke() {
        for body in bodies(7) {
            for id in [None, Some(1), Some(300)] {
                let message = written(&body, id);
                for rest in 0..=message.len() {
                    let mut rest_of_message = body.rest_of_message(id, rest);
                    let end = rest_of_message.copy_to_bytes(rest);
                    assert_eq!(end, message[message.len() - rest..], "{body:?} {id:?}");
                    assert!(!rest_of_message.has_remaining());
                }
            }
        }
    }

    #[test]
    fn a_message_of_66_000_characters_closed_the_java_client_for_its_frame_was_too_large() {
        for bytes in [65_500, 65_536, 65_537, 66_000, 3 * 65_536, 1_000_000] {
            for body in bodies(bytes) {
                for id in [None, Some(1), Some(u64::MAX)] {
                    let mut out = BytesMut::new();
                    body.write_message(id, &mut out);
                    let frames = frames(&out);
                    let ((_, first, _), others) = frames.split_first().unwrap();
                    assert_eq!(*first, body.opcode() as u8);
                    assert!(others.iter().all(|(_, opcode, _)| *opcode == Opcode::Continuation as u8));
                    let finals: Vec<_> = frames.iter().map(|(is_final, ..)| *is_final).collect();
                    assert_eq!(finals.iter().rposition(|is_final| !is_final), finals.len().checked_sub(2));
                    assert!(finals[finals.len() - 1]);
                    assert!(frames.iter().all(|(.., payload)| payload.len() <= FRAME_PAYLOAD_BYTES_MAX));
                    let least = frames.iter().map(|(.., payload)| payload.len()).sum::<usize>();
                    assert_eq!(frames.len(), least.div_ceil(FRAME_PAYLOAD_BYTES_MAX), "as few as can be");
                }
            }
        }
    }

    #[test]
    fn the_rest_of_a_message_in_several_frames_is_its_end_and_shares_what_all_share() {
        for body in bodies(200_000) {
            let id = Some(12);
            let mut message = BytesMut::new();
            body.write_message(id, &mut message);
            for rest in (0..message.len()).step_by(997).chain([message.len()]) {
                let mut rest_of_message = body.rest_of_message(id, rest);
                let own = rest_of_message.pieces.iter().filter(|piece| {
                    let shared = body.bytes.as_ptr_range();
                    !shared.contains(&piece.as_ptr())
                });
                assert!(own.map(Bytes::len).sum::<usize>() < 100);
                let mut slices = [IoSlice::new(&[]); 3];
                let count = rest_of_message.chunks_vectored(&mut slices);
                assert!(slices[..count].iter().all(|slice| !slice.is_empty()));
                assert_eq!(rest_of_message.copy_to_bytes(rest), message[message.len() - rest..]);
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
        for bytes in (2..140).chain(16_370..16_390).chain(65_480..65_500) {
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
