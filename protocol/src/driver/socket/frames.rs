//! Control frames from server to client.

use crate::wire::{Close, Opcode, frame_header_bytes, write_frame_header};
use bytes::{BufMut, Bytes, BytesMut};

/// Appends a ping without content.
pub fn write_ping(out: &mut BytesMut) {
    write_frame_header(Opcode::Ping, 0, out);
}

/// Pongs that may wait to be written, in bytes of their frames.
const PONGS_BYTES_MAX: usize = 4096;

/// Pongs that wait to be written, as whole frames. Each ping is answered; of too many at once the later ones, which
/// answers those before them as well (RFC 6455, section 5.5.3).
#[derive(Debug, Default)]
pub struct Pongs(Vec<u8>);

impl Pongs {
    /// Adds the answer to a ping.
    pub fn push(&mut self, content: &[u8]) {
        let frame_bytes = frame_header_bytes(content.len()) + content.len();
        if self.0.len() + frame_bytes > PONGS_BYTES_MAX {
            self.0.clear();
        }
        write_frame_header(Opcode::Pong, content.len(), &mut self.0);
        self.0.extend_from_slice(content);
    }

    /// Adds those that another has, which come later.
    pub fn append(&mut self, later: &mut Self) {
        let later = std::mem::take(later);
        if self.0.is_empty() || self.0.len() + later.0.len() > PONGS_BYTES_MAX {
            *self = later;
        } else {
            self.0.extend_from_slice(&later.0);
        }
    }

    /// Moves all of them behind what is to be written. Nothing is kept: most sockets never see a ping.
    pub fn write(&mut self, out: &mut BytesMut) {
        out.extend_from_slice(&std::mem::take(&mut self.0));
    }
}

/// The gateway's own close.
pub fn close(close: &Close) -> Bytes {
    let mut out = BytesMut::new();
    write_frame_header(Opcode::Close, 2 + close.reason.len(), &mut out);
    out.put_u16(close.code as u16);
    out.extend_from_slice(close.reason.as_bytes());
    out.freeze()
}

/// The answer to the client's close: its own code, or none if it gave none.
pub fn close_echo(code: Option<u16>) -> Bytes {
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
        let mut pongs = Pongs::default();
        pongs.push(b"ab");
        pongs.write(&mut out);
        assert_eq!(out, b"\x89\x00\x8a\x02ab"[..]);
        assert_eq!(close(&Close::NORMAL), b"\x88\x02\x03\xe8"[..]);
        assert_eq!(close(&Close::INTERNAL_ERROR), b"\x88\x17\x03\xf3Internal server error"[..]);
        assert_eq!(close_echo(Some(4001)), b"\x88\x02\x0f\xa1"[..]);
        assert_eq!(close_echo(None), b"\x88\x00"[..]);
    }

    #[test]
    fn each_ping_is_answered_up_to_a_bound_and_the_last_one_beyond_it() {
        const PINGS_MAX: u8 = 64;
        let content = |ping: u8| vec![ping; PONGS_BYTES_MAX / usize::from(PINGS_MAX) - 2];
        let pongs_to = |pings: std::ops::Range<u8>| {
            let mut pongs = Pongs::default();
            pings.for_each(|ping| pongs.push(&content(ping)));
            pongs
        };
        let written = |mut pongs: Pongs| {
            let mut out = BytesMut::new();
            pongs.write(&mut out);
            assert!(pongs.0.is_empty());
            out.chunks(content(0).len() + 2).map(|frame| frame[2]).collect::<Vec<_>>()
        };
        let all = |pings: std::ops::Range<u8>| pings.collect::<Vec<_>>();
        assert_eq!(written(pongs_to(0..PINGS_MAX)), all(0..PINGS_MAX));
        assert_eq!(written(pongs_to(0..PINGS_MAX + 1)), [PINGS_MAX]);
        for (first, second, expected) in [(0..0, 0..3, 0..3), (0..60, 60..64, 0..64), (0..60, 60..65, 60..65)]
        {
            let mut pongs = pongs_to(first);
            pongs.append(&mut pongs_to(second));
            assert_eq!(written(pongs), all(expected));
        }
    }
}
