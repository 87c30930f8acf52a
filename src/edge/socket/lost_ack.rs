//! Finds the ack of the next publish in what passes over a connection.
//!
//! Which publishes count is seen in what the client sends: those that begin behind the order. Which ack is theirs is seen
//! in what the gateway writes. Frames are followed at all times, so that their beginning is known when the order comes, but
//! looked into only then.

use std::io::{Cursor, ErrorKind};

use bytes::Bytes;
use oncewire_protocol::wire::{
    AckId, Downstream, Encoding, FrameKind, Received, Upstream, decode_downstream, decode_upstream,
};
use tokio_tungstenite::tungstenite::protocol::frame::FrameHeader;
use tokio_tungstenite::tungstenite::protocol::frame::coding::{Data, OpCode};
use tokio_tungstenite::tungstenite::{Error, Message, WebSocket};

use super::boundary::Boundary;
use super::inbound::{Inbound, frame_reader};

/// First size of the buffer of whoever looks for publishes.
const READ_BUFFER_BYTES: usize = 1024;

/// The publishes that were read since the order and whose acks have not been written yet. The bounds on what a socket may
/// have pending hold for them.
#[derive(Default)]
pub(super) struct Unacked {
    publishes: Vec<AckId>,
    /// Acks that say of such a publish that it was not executed, in bytes that are being written: where they begin.
    refused: Vec<(usize, AckId)>,
}

impl Unacked {
    fn take(&mut self, ack_id: AckId) -> bool {
        let position = self.publishes.iter().position(|known| *known == ack_id);
        position.map(|position| self.publishes.swap_remove(position)).is_some()
    }
}

/// What a client sends.
pub(super) struct Publishes {
    boundary: Boundary,
    /// Set while publishes are looked for.
    frames: Option<Box<WebSocket<Inbound>>>,
    /// Set when the client has closed, or broken the protocol: the socket reads what comes then, but as no frames.
    is_over: bool,
    encoding: Encoding,
    message_bytes_max: usize,
}

impl Publishes {
    /// `read_ahead` is what has come before.
    pub(super) fn new(read_ahead: &[u8], encoding: Encoding, message_bytes_max: usize) -> Self {
        let mut boundary = Boundary::default();
        boundary.follow(read_ahead);
        Self { boundary, frames: None, is_over: false, encoding, message_bytes_max }
    }

    /// Follows some more bytes, and notes the publishes that end in them.
    pub(super) fn follow(&mut self, mut bytes: &[u8], unacked: Option<&mut Unacked>) {
        if self.is_over {
            return;
        }
        let Some(unacked) = unacked else { return self.boundary.follow(bytes) };
        while self.frames.is_none() && !self.boundary.is_at_end() {
            let Some((first, rest)) = bytes.split_first() else { return };
            self.boundary.follow(std::slice::from_ref(first));
            bytes = rest;
        }
        self.boundary.follow(bytes);
        let message_bytes_max = self.message_bytes_max;
        let frames = self
            .frames
            .get_or_insert_with(|| Box::new(frame_reader(&[], READ_BUFFER_BYTES, message_bytes_max)));
        *frames.get_mut() = Inbound::new(bytes);
        loop {
            let (kind, data) = match frames.read() {
                Ok(Message::Text(text)) => (FrameKind::Text, Bytes::from(text)),
                Ok(Message::Binary(data)) => (FrameKind::Binary, data),
                Ok(Message::Ping(_) | Message::Pong(_) | Message::Frame(_)) => continue,
                Err(Error::Io(error)) if error.kind() == ErrorKind::WouldBlock => break,
                Ok(Message::Close(_)) | Err(_) => {
                    self.is_over = true;
                    self.frames = None;
                    return;
                }
            };
            if let Ok(Upstream::SendToGroup { ack_id: Some(ack_id), .. }) =
                decode_upstream(self.encoding, kind, &data)
            {
                unacked.publishes.push(ack_id);
            }
        }
        frames.get_mut().clear();
    }
}

/// What the gateway writes. The writer offers frames in whole, and once more in whole where the connection has not taken
/// their beginning.
pub(super) struct Written {
    boundary: Boundary,
    encoding: Encoding,
}

impl Written {
    pub(super) fn new(encoding: Encoding) -> Self {
        Self { boundary: Boundary::default(), encoding }
    }

    /// How many of these bytes stand before the ack that is to be lost.
    ///
    /// # Errors
    /// When it is the ack's turn. This is its id.
    pub(super) fn before_lost_ack(
        &self,
        bytes: &[u8],
        unacked: Option<&mut Unacked>,
    ) -> Result<usize, AckId> {
        let Some(unacked) = unacked.filter(|_| self.boundary.is_at_end()) else { return Ok(bytes.len()) };
        let mut begin = 0;
        while !unacked.publishes.is_empty()
            && let Some(frame) = first_frame(&bytes[begin..])
        {
            if let Some((ack_id, is_executed)) =
                frame.message.and_then(|(kind, data)| self.ack_in(kind, data))
                && unacked.take(ack_id)
            {
                if is_executed {
                    unacked.publishes.push(ack_id);
                    return if begin == 0 { Err(ack_id) } else { Ok(begin) };
                }
                unacked.refused.push((begin, ack_id));
            }
            begin += frame.bytes;
        }
        Ok(bytes.len())
    }

    /// The connection has taken these bytes.
    pub(super) fn follow(&mut self, bytes: &[u8], unacked: Option<&mut Unacked>) {
        self.boundary.follow(bytes);
        if let Some(Unacked { publishes, refused }) = unacked {
            let not_taken = refused.drain(..).filter(|(begin, _)| *begin >= bytes.len());
            publishes.extend(not_taken.map(|(_, ack_id)| ack_id));
        }
    }

    /// The ack in a frame, and whether it says that the request was executed; none in any other frame.
    fn ack_in(&self, kind: FrameKind, payload: &[u8]) -> Option<(AckId, bool)> {
        match decode_downstream(self.encoding, kind, &Bytes::copy_from_slice(payload)).ok()? {
            Received::Control(Downstream::Ack { ack_id, error }) => Some((ack_id, error.is_none())),
            _ => None,
        }
    }
}

/// A frame that is there in whole.
struct Frame<'a> {
    /// Its length, its header included.
    bytes: usize,
    /// What is in it; none of a control frame.
    message: Option<(FrameKind, &'a [u8])>,
}

/// The first frame; none when it is not there in whole.
fn first_frame(bytes: &[u8]) -> Option<Frame<'_>> {
    let mut cursor = Cursor::new(bytes);
    let (header, payload_bytes) = FrameHeader::parse(&mut cursor).ok()??;
    let begin = usize::try_from(cursor.position()).ok()?;
    let end = begin.checked_add(usize::try_from(payload_bytes).ok()?)?;
    let payload = bytes.get(begin..end)?;
    let kind = match header.opcode {
        OpCode::Data(Data::Text) => Some(FrameKind::Text),
        OpCode::Data(Data::Binary) => Some(FrameKind::Binary),
        _ => None,
    };
    Some(Frame { bytes: end, message: kind.map(|kind| (kind, payload)) })
}

#[cfg(test)]
mod tests {
    use oncewire_protocol::wire::{Opcode, write_frame_header};

    use super::*;

    /// A frame of a client. Its mask changes nothing.
    fn sent(first: u8, payload: &str) -> Vec<u8> {
        assert!(payload.len() < 126);
        let mut frame = vec![first, 0x80 | payload.len() as u8, 0, 0, 0, 0];
        frame.extend_from_slice(payload.as_bytes());
        frame
    }

    fn publish(ack_id: u64) -> String {
        format!(r#"{{"type":"sendToGroup","group":"g","dataType":"text","data":"x","ackId":{ack_id}}}"#)
    }

    /// What of a stream of messages, each several frames, is noted when the order comes behind so many bytes.
    fn noted(messages: &[Vec<u8>], ordered_at: usize, portion: usize) -> Vec<AckId> {
        let bytes = messages.concat();
        let mut publishes = Publishes::new(&bytes[..ordered_at.min(3)], Encoding::Json, 1000);
        publishes.follow(&bytes[ordered_at.min(3)..ordered_at], None);
        let mut unacked = Unacked::default();
        for bytes in bytes[ordered_at..].chunks(portion) {
            publishes.follow(bytes, Some(&mut unacked));
        }
        unacked.publishes
    }

    #[test]
    fn publishes_count_that_begin_behind_the_order_wherever_it_comes() {
        let (begun, rest) = (publish(3), publish(3).split_off(20));
        let messages = [
            sent(0x81, &publish(1)),
            sent(0x81, r#"{"type":"joinGroup","group":"g","ackId":2}"#),
            [sent(0x01, &begun[..20]), sent(0x89, "ping"), sent(0x80, &rest)].concat(),
            sent(0x81, r#"{"type":"sendToGroup","group":"g","dataType":"text","data":"no ack"}"#),
            sent(0x81, &publish(4)),
        ];
        let mut begins = Vec::new();
        let mut begin = 0;
        for (message, ack_id) in messages.iter().zip([Some(1), None, Some(3), None, Some(4)]) {
            begins.push((begin, ack_id));
            begin += message.len();
        }
        for ordered_at in 0..=messages.concat().len() {
            let counted = begins.iter().filter(|(begin, _)| *begin >= ordered_at);
            let expected: Vec<AckId> = counted.filter_map(|(_, ack_id)| *ack_id).collect();
            for portion in [1, 7, 100, 10_000] {
                assert_eq!(noted(&messages, ordered_at, portion), expected, "{ordered_at}, {portion}");
            }
        }
    }

    #[test]
    fn nothing_is_looked_for_behind_a_message_that_ends_the_socket() {
        let too_long = b"\x81\xff\x00\x00\x00\x01\x00\x00\x00\x00\0\0\0\0".to_vec();
        for end in [too_long, sent(0x88, ""), sent(0x83, "x")] {
            let mut publishes = Publishes::new(&[], Encoding::Json, 1000);
            let mut unacked = Unacked::default();
            publishes.follow(&sent(0x81, &publish(1)), Some(&mut unacked));
            publishes.follow(&end, Some(&mut unacked));
            for _ in 0..3 {
                publishes.follow(&sent(0x81, &publish(2)), Some(&mut unacked));
            }
            assert_eq!(unacked.publishes, [1], "{end:?}");
        }
    }

    fn written(opcode: Opcode, payload: &str) -> Vec<u8> {
        let mut frame = Vec::new();
        write_frame_header(opcode, payload.len(), &mut frame);
        frame.extend_from_slice(payload.as_bytes());
        frame
    }

    fn ack(ack_id: u64, is_executed: bool) -> Vec<u8> {
        let error = if is_executed { "" } else { r#","error":{"name":"Forbidden","message":"x"}"# };
        written(Opcode::Text, &format!(r#"{{"type":"ack","ackId":{ack_id},"success":{is_executed}{error}}}"#))
    }

    /// Writes frames as the writer does, to a connection that takes so many bytes at a time, and now and then none.
    fn write(frames: &[Vec<u8>], publishes: &[AckId], portion: usize) -> (Vec<u8>, Result<(), AckId>) {
        let mut unacked = Unacked { publishes: publishes.to_vec(), refused: Vec::new() };
        let mut written = Written::new(Encoding::Json);
        let (mut out, mut begun, mut next) = (Vec::new(), Vec::new(), 0);
        let mut takes_some = false;
        while !begun.is_empty() || next < frames.len() {
            let offered = if begun.is_empty() { frames[next..].concat() } else { begun.clone() };
            let passing = match written.before_lost_ack(&offered, Some(&mut unacked)) {
                Ok(passing) => passing,
                Err(ack_id) => return (out, Err(ack_id)),
            };
            takes_some = !takes_some;
            let mut taken = if takes_some { passing.min(portion) } else { 0 };
            written.follow(&offered[..taken], Some(&mut unacked));
            out.extend_from_slice(&offered[..taken]);
            if !begun.is_empty() {
                begun.drain(..taken);
                continue;
            }
            while taken > 0 {
                let frame = &frames[next];
                next += 1;
                begun = frame[taken.min(frame.len())..].to_vec();
                taken -= taken.min(frame.len());
            }
        }
        (out, Ok(()))
    }

    #[test]
    fn all_before_the_lost_ack_is_written_and_a_refused_one_counts_once_however_often_it_is_offered() {
        let message = r#"{"type":"message","from":"server","dataType":"text","data":"ack"}"#;
        let frames = [
            written(Opcode::Ping, ""),
            ack(7, true),
            ack(1, false),
            written(Opcode::Text, message),
            ack(2, false),
            written(Opcode::Pong, "x"),
            ack(1, true),
            ack(2, true),
        ];
        for portion in (1..400).chain([10_000]) {
            for (publishes, lost) in
                [(&[1, 2, 1][..], Some(6)), (&[2, 1, 2], Some(7)), (&[8], None), (&[1, 2], None)]
            {
                let (out, end) = write(&frames, publishes, portion);
                let (before, expected) = match lost {
                    Some(6) => (6, Err(1)),
                    Some(before) => (before, Err(2)),
                    None => (frames.len(), Ok(())),
                };
                assert_eq!(end, expected, "{publishes:?}, {portion}");
                assert!(out == frames[..before].concat(), "{publishes:?}, {portion}");
            }
        }
    }
}
