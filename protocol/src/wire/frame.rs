//! The header of a WebSocket frame from server to client (RFC 6455, section 5.2): not masked, not compressed.

use bytes::BufMut;

/// Set in the first byte of a message's last frame.
const FINAL: u8 = 0x80;

/// What a frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opcode {
    /// More of the message that the frame before has begun.
    Continuation = 0,
    /// UTF-8 text.
    Text = 1,
    /// Bytes.
    Binary = 2,
    /// A close code and reason.
    Close = 8,
    /// Answer with a pong.
    Ping = 9,
    /// Answer to a ping.
    Pong = 10,
}

/// Appends the header of a whole message in one frame.
pub fn write_frame_header(opcode: Opcode, payload_bytes: usize, out: &mut impl BufMut) {
    out.put_u8(FINAL | opcode as u8);
    write_length(payload_bytes, out);
}

/// Appends the header of one frame of a message that takes several. The first says what the message is, the others are
/// continuations.
pub(super) fn write_fragment_header(
    opcode: Opcode,
    is_last: bool,
    payload_bytes: usize,
    out: &mut impl BufMut,
) {
    out.put_u8(if is_last { FINAL } else { 0 } | opcode as u8);
    write_length(payload_bytes, out);
}

fn write_length(payload_bytes: usize, out: &mut impl BufMut) {
    match payload_bytes {
        0..=125 => out.put_u8(payload_bytes as u8),
        126..=0xFFFF => {
            out.put_u8(126);
            out.put_u16(payload_bytes as u16);
        }
        _ => {
            out.put_u8(127);
            out.put_u64(payload_bytes as u64);
        }
    }
}

/// How many bytes [`write_frame_header`] appends.
pub const fn frame_header_bytes(payload_bytes: usize) -> usize {
    match payload_bytes {
        0..=125 => 2,
        126..=0xFFFF => 4,
        _ => 10,
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::*;

    #[test]
    fn lengths_take_the_shortest_form_on_both_sides_of_each_step() {
        let header = |bytes| {
            let mut out = BytesMut::new();
            write_frame_header(Opcode::Text, bytes, &mut out);
            assert_eq!(out.len(), frame_header_bytes(bytes));
            out.to_vec()
        };
        assert_eq!(header(0), [0x81, 0]);
        assert_eq!(header(125), [0x81, 125]);
        assert_eq!(header(126), [0x81, 126, 0, 126]);
        assert_eq!(header(0xFFFF), [0x81, 126, 0xFF, 0xFF]);
        assert_eq!(header(0x1_0000), [0x81, 127, 0, 0, 0, 0, 0, 1, 0, 0]);
    }
}
