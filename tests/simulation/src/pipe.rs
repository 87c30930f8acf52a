//! One direction of a socket: a stream of bytes that takes time, can stall, and can lose its tail.

use bytes::{Buf, Bytes, BytesMut};
use oncewire_protocol::wire::{Opcode, write_frame_header};

/// Bytes on their way from one end to the other.
#[derive(Debug)]
pub struct Pipe {
    capacity: usize,
    /// Written, not arrived.
    transit: BytesMut,
    /// Arrived, not read.
    readable: BytesMut,
    /// The writer has closed; the reader sees the end after the last byte.
    is_finished: bool,
    /// Nothing arrives any more, and neither end has to know.
    is_dead: bool,
    /// Bytes that a dead pipe has swallowed: they fill its buffer for ever.
    swallowed: usize,
    /// Nothing arrives before this time, in microseconds.
    pub stalled_until: u64,
    /// An arrival is scheduled.
    pub is_arriving: bool,
}

impl Pipe {
    /// A pipe that holds this many bytes between its ends.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity,
            transit: BytesMut::new(),
            readable: BytesMut::new(),
            is_finished: false,
            is_dead: false,
            swallowed: 0,
            stalled_until: 0,
            is_arriving: false,
        }
    }

    /// Takes as much as fits.
    pub fn write(&mut self, data: &[u8]) -> usize {
        let held = self.transit.len() + self.readable.len() + self.swallowed;
        let taken = data.len().min(self.capacity.saturating_sub(held));
        if self.is_finished {
            return taken;
        }
        if self.is_dead {
            self.swallowed += taken;
        } else {
            self.transit.extend_from_slice(&data[..taken]);
        }
        taken
    }

    /// The writer writes no more.
    pub fn finish(&mut self) {
        self.is_finished = true;
    }

    /// Cuts the stream: only the first `bytes` of what is under way still arrive.
    pub fn cut(&mut self, bytes: usize) {
        let kept = self.transit.len().min(bytes);
        self.readable.unsplit(self.transit.split_to(kept));
        self.transit.clear();
        self.is_dead = true;
    }

    /// Whether it has been cut.
    pub fn is_dead(&self) -> bool {
        self.is_dead
    }

    /// Lets bytes arrive.
    pub fn arrive(&mut self, bytes: usize) {
        let arrived = self.transit.split_to(bytes.min(self.transit.len()));
        self.readable.unsplit(arrived);
    }

    /// Bytes under way.
    pub fn in_transit(&self) -> usize {
        self.transit.len()
    }

    /// Takes up to `bytes` that have arrived.
    pub fn read(&mut self, bytes: usize) -> BytesMut {
        self.readable.split_to(bytes.min(self.readable.len()))
    }

    /// Bytes that have arrived.
    pub fn readable(&self) -> usize {
        self.readable.len()
    }

    /// Whether the reader sees the end of the stream.
    pub fn is_at_end(&self) -> bool {
        self.is_finished && !self.is_dead && self.transit.is_empty() && self.readable.is_empty()
    }

    /// Whether the end of the stream is still on its way.
    pub fn has_something_to_bring(&self) -> bool {
        !self.is_dead && (!self.transit.is_empty() || self.is_finished)
    }

    /// Whether nothing is written that has not been read.
    pub fn is_empty(&self) -> bool {
        self.transit.is_empty() && self.readable.is_empty()
    }
}

/// A WebSocket frame as both ends of the simulated network write it.
#[derive(Debug)]
pub struct RawFrame {
    /// The opcode's number.
    pub opcode: u8,
    /// Its payload.
    pub payload: Bytes,
}

/// The header of the frame at the front and its payload, in bytes.
fn frame_lengths(bytes: &[u8]) -> Option<(usize, usize)> {
    Some(match *bytes.get(1)? {
        126 => (4, usize::from(u16::from_be_bytes(*bytes.get(2..4)?.first_chunk()?))),
        127 => (10, u64::from_be_bytes(*bytes.get(2..10)?.first_chunk()?) as usize),
        short => (2, usize::from(short)),
    })
}

/// Takes a whole frame off the front, if it is there.
pub fn take_frame(buffer: &mut BytesMut) -> Option<RawFrame> {
    let first = *buffer.first()?;
    let (header, length) = frame_lengths(buffer)?;
    if buffer.len() < header + length {
        return None;
    }
    buffer.advance(header);
    Some(RawFrame { opcode: first & 0x0F, payload: buffer.split_to(length).freeze() })
}

/// How long the message at the front is, with all its frames, or as much of it as there is.
pub fn message_bytes(bytes: &[u8]) -> usize {
    const FINAL: u8 = 0x80;
    let mut end = 0;
    while let Some(first) = bytes.get(end) {
        let lengths = frame_lengths(&bytes[end..]);
        end = lengths.map_or(bytes.len(), |(header, length)| bytes.len().min(end + header + length));
        if first & FINAL != 0 {
            break;
        }
    }
    end
}

/// A whole frame.
pub fn frame_bytes(opcode: Opcode, payload: &[u8]) -> BytesMut {
    let mut out = BytesMut::new();
    write_frame_header(opcode, payload.len(), &mut out);
    out.extend_from_slice(payload);
    out
}

/// A close frame, with or without a code.
pub fn close_frame(code: Option<u16>) -> BytesMut {
    frame_bytes(Opcode::Close, &code.map(u16::to_be_bytes).map_or(Vec::new(), |bytes| bytes.to_vec()))
}

/// The code in a close frame's payload.
pub fn close_code(payload: &[u8]) -> Option<u16> {
    payload.first_chunk().map(|code| u16::from_be_bytes(*code))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_as_they_went_in_whatever_the_cut_of_the_stream() {
        let mut stream = BytesMut::new();
        for length in [0, 1, 125, 126, 300, 70_000] {
            stream.unsplit(frame_bytes(Opcode::Text, &vec![b'x'; length]));
        }
        let mut buffer = BytesMut::new();
        let mut lengths = Vec::new();
        for byte in stream {
            buffer.extend_from_slice(&[byte]);
            while let Some(frame) = take_frame(&mut buffer) {
                assert_eq!(frame.opcode, 1);
                lengths.push(frame.payload.len());
            }
        }
        assert_eq!(lengths, [0, 1, 125, 126, 300, 70_000]);
    }

    #[test]
    fn a_cut_keeps_a_prefix_and_then_swallows() {
        let mut pipe = Pipe::new(8);
        assert_eq!(pipe.write(b"abcdef"), 6);
        pipe.cut(2);
        assert_eq!(&pipe.read(9)[..], b"ab");
        assert_eq!(pipe.write(b"0123456789"), 8);
        assert_eq!(pipe.write(b"x"), 0);
        assert!(!pipe.has_something_to_bring());
    }
}
