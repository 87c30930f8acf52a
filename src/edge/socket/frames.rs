//! Control frames from server to client.

use bytes::{BufMut, Bytes, BytesMut};
use oncewire_protocol::wire::{Close, Opcode, write_frame_header};

/// Appends a ping without content.
pub(super) fn write_ping(out: &mut BytesMut) {
    write_frame_header(Opcode::Ping, 0, out);
}

/// Appends the answer to a ping.
pub(super) fn write_pong(content: &[u8], out: &mut BytesMut) {
    write_frame_header(Opcode::Pong, content.len(), out);
    out.extend_from_slice(content);
}

/// The gateway's own close.
pub(super) fn close(close: &Close) -> Bytes {
    let mut out = BytesMut::new();
    write_frame_header(Opcode::Close, 2 + close.reason.len(), &mut out);
    out.put_u16(close.code as u16);
    out.extend_from_slice(close.reason.as_bytes());
    out.freeze()
}

/// The answer to the client's close: its own code, or none if it gave none.
pub(super) fn close_echo(code: Option<u16>) -> Bytes {
    let mut out = BytesMut::new();
    write_frame_header(Opcode::Close, if code.is_some() { 2 } else { 0 }, &mut out);
    if let Some(code) = code {
        out.put_u16(code);
    }
    out.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_frames_are_those_of_rfc_6455() {
        let mut out = BytesMut::new();
        write_ping(&mut out);
        write_pong(b"ab", &mut out);
        assert_eq!(out, b"\x89\x00\x8a\x02ab"[..]);
        assert_eq!(close(&Close::NORMAL), b"\x88\x02\x03\xe8"[..]);
        assert_eq!(close(&Close::INTERNAL_ERROR), b"\x88\x17\x03\xf3Internal server error"[..]);
        assert_eq!(close_echo(Some(4001)), b"\x88\x02\x0f\xa1"[..]);
        assert_eq!(close_echo(None), b"\x88\x00"[..]);
    }
}
