//! WebSocket frames (RFC 6455 section 5): as much as a benchmark over loopback needs.
//!
//! Knows whole, unfragmented frames of up to [`FRAME_BYTES_MAX`]. Does not know sockets, messages or extensions.

use anyhow::{Result, bail, ensure};

/// Longest frame, header included, that either end of the benchmark takes. Read buffers are at least this long.
pub const FRAME_BYTES_MAX: usize = 128 * 1024;

/// A frame's kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    Text,
    Binary,
    Close,
    Ping,
    Pong,
}

impl Opcode {
    fn from_bits(bits: u8) -> Result<Self> {
        Ok(match bits {
            0x1 => Self::Text,
            0x2 => Self::Binary,
            0x8 => Self::Close,
            0x9 => Self::Ping,
            0xA => Self::Pong,
            _ => bail!("frame with opcode {bits:#x}: continuations and reserved opcodes are not expected"),
        })
    }

    fn bits(self) -> u8 {
        match self {
            Self::Text => 0x1,
            Self::Binary => 0x2,
            Self::Close => 0x8,
            Self::Ping => 0x9,
            Self::Pong => 0xA,
        }
    }
}

/// Who wrote the frame: a client masks, a server does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    Client,
    Server,
}

/// Any key will do: masking protects proxies from chosen bytes, and none stands in between here.
const MASK: [u8; 4] = [0x5a, 0xc3, 0x96, 0x3c];

/// Calls `each` for every complete frame at the start of `bytes`, unmasked in place, and returns how many bytes they
/// took. The rest, if any, is the beginning of a frame.
///
/// # Errors
/// A frame that is fragmented, compressed, too long or masked against the rule for its sender; or what `each` returned.
pub fn decode(
    bytes: &mut [u8],
    sender: Sender,
    mut each: impl FnMut(Opcode, &mut [u8]) -> Result<()>,
) -> Result<usize> {
    let mut taken = 0;
    while let Some(header) = Header::parse(&bytes[taken..], sender)? {
        let payload_start = taken + header.bytes;
        let frame_end = payload_start + header.payload_bytes;
        if frame_end > bytes.len() {
            break;
        }
        let payload = &mut bytes[payload_start..frame_end];
        if let Some(mask) = header.mask {
            apply_mask(payload, mask);
        }
        each(header.opcode, payload)?;
        taken = frame_end;
    }
    Ok(taken)
}

/// Appends the header of a server's text frame; the caller appends `payload_bytes` bytes after it.
pub fn push_server_text_header(payload_bytes: usize, out: &mut Vec<u8>) {
    push_header(Opcode::Text, payload_bytes, 0, out);
}

/// Appends a whole masked frame, as clients send them.
pub fn push_client_frame(opcode: Opcode, payload: &[u8], out: &mut Vec<u8>) {
    push_header(opcode, payload.len(), 0x80, out);
    out.extend_from_slice(&MASK);
    let start = out.len();
    out.extend_from_slice(payload);
    apply_mask(&mut out[start..], MASK);
}

fn push_header(opcode: Opcode, payload_bytes: usize, mask_bit: u8, out: &mut Vec<u8>) {
    out.push(0x80 | opcode.bits());
    match payload_bytes {
        // The casts are exact: each arm's range fits its type.
        0..=125 => out.push(mask_bit | payload_bytes as u8),
        126..=0xFFFF => {
            out.push(mask_bit | 126);
            out.extend_from_slice(&(payload_bytes as u16).to_be_bytes());
        }
        _ => {
            out.push(mask_bit | 127);
            out.extend_from_slice(&(payload_bytes as u64).to_be_bytes());
        }
    }
}

fn apply_mask(payload: &mut [u8], mask: [u8; 4]) {
    let wide = u64::from_ne_bytes([mask[0], mask[1], mask[2], mask[3], mask[0], mask[1], mask[2], mask[3]]);
    let mut chunks = payload.chunks_exact_mut(8);
    for chunk in &mut chunks {
        let mut word = [0; 8];
        word.copy_from_slice(chunk);
        chunk.copy_from_slice(&(u64::from_ne_bytes(word) ^ wide).to_ne_bytes());
    }
    for (byte, key) in chunks.into_remainder().iter_mut().zip(mask.iter().cycle()) {
        *byte ^= key;
    }
}

struct Header {
    opcode: Opcode,
    mask: Option<[u8; 4]>,
    bytes: usize,
    payload_bytes: usize,
}

impl Header {
    /// `None`: more bytes are needed.
    fn parse(bytes: &[u8], sender: Sender) -> Result<Option<Self>> {
        let [first, second, rest @ ..] = bytes else { return Ok(None) };
        ensure!(first & 0x80 != 0, "fragmented frames are not expected");
        ensure!(first & 0x70 == 0, "a reserved bit is set, though no extension was agreed");
        let opcode = Opcode::from_bits(first & 0x0F)?;
        let masked = second & 0x80 != 0;
        ensure!(masked == (sender == Sender::Client), "{sender:?} frame, masked: {masked}");

        let (payload_bytes, rest) = match second & 0x7F {
            126 => match rest {
                [a, b, rest @ ..] => (usize::from(u16::from_be_bytes([*a, *b])), rest),
                _ => return Ok(None),
            },
            127 => match rest.split_first_chunk::<8>() {
                Some((length, rest)) => (usize::try_from(u64::from_be_bytes(*length))?, rest),
                None => return Ok(None),
            },
            short => (usize::from(short), rest),
        };
        let (mask, rest) = match (masked, rest.split_first_chunk::<4>()) {
            (false, _) => (None, rest),
            (true, Some((mask, rest))) => (Some(*mask), rest),
            (true, None) => return Ok(None),
        };
        let header_bytes = bytes.len() - rest.len();
        ensure!(
            payload_bytes <= FRAME_BYTES_MAX - header_bytes,
            "frame of {payload_bytes} bytes: at most {FRAME_BYTES_MAX} are expected"
        );
        Ok(Some(Self { opcode, mask, bytes: header_bytes, payload_bytes }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Frames = Vec<(Opcode, Vec<u8>)>;

    fn decode_all(mut bytes: Vec<u8>, sender: Sender) -> Result<(Frames, usize)> {
        let mut frames = Vec::new();
        let taken = decode(&mut bytes, sender, |opcode, payload| {
            frames.push((opcode, payload.to_vec()));
            Ok(())
        })?;
        Ok((frames, taken))
    }

    fn server_frame(payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        push_server_text_header(payload.len(), &mut bytes);
        bytes.extend_from_slice(payload);
        bytes
    }

    #[test]
    fn reads_the_samples_of_rfc_6455() {
        let unmasked = vec![0x81, 0x05, 0x48, 0x65, 0x6c, 0x6c, 0x6f];
        assert_eq!(decode_all(unmasked, Sender::Server).unwrap().0, [(Opcode::Text, b"Hello".to_vec())]);
        let masked = vec![0x81, 0x85, 0x37, 0xfa, 0x21, 0x3d, 0x7f, 0x9f, 0x4d, 0x51, 0x58];
        assert_eq!(decode_all(masked, Sender::Client).unwrap().0, [(Opcode::Text, b"Hello".to_vec())]);
    }

    #[test]
    fn round_trips_at_every_length_form() {
        for length in [0, 1, 7, 8, 9, 125, 126, 127, 65_535, 65_536] {
            let payload: Vec<u8> = (0..length).map(|i| (i % 251) as u8).collect();
            let mut masked = Vec::new();
            push_client_frame(Opcode::Binary, &payload, &mut masked);
            assert_eq!(decode_all(masked, Sender::Client).unwrap().0, [(Opcode::Binary, payload.clone())]);
            assert_eq!(
                decode_all(server_frame(&payload), Sender::Server).unwrap().0,
                [(Opcode::Text, payload)]
            );
        }
    }

    #[test]
    fn leaves_an_incomplete_frame_alone_at_every_cut() {
        for length in [3, 200, 70_000] {
            let whole = server_frame(&vec![b'x'; length]);
            let mut masked = Vec::new();
            push_client_frame(Opcode::Text, &vec![b'x'; length], &mut masked);
            for cut in (0..20).chain([whole.len() - 1]).filter(|cut| *cut < whole.len()) {
                let mut bytes = server_frame(b"first");
                let complete = bytes.len();
                bytes.extend_from_slice(&whole[..cut]);
                let (frames, taken) = decode_all(bytes, Sender::Server).unwrap();
                assert_eq!((frames.len(), taken), (1, complete));
                assert_eq!(decode_all(masked[..cut].to_vec(), Sender::Client).unwrap().1, 0);
            }
        }
    }

    #[test]
    fn refuses_what_it_does_not_know() {
        let fragment = vec![0x01, 0x00];
        let compressed = vec![0xC1, 0x00];
        let continuation = vec![0x80, 0x00];
        let masked_by_server = vec![0x81, 0x80, 1, 2, 3, 4];
        for bytes in [fragment, compressed, continuation, masked_by_server] {
            assert!(decode_all(bytes, Sender::Server).is_err());
        }
        assert!(decode_all(vec![0x81, 0x00], Sender::Client).is_err(), "unmasked by a client");
    }

    #[test]
    fn takes_the_longest_frame_and_refuses_one_byte_more() {
        let header_bytes = 10;
        let longest = server_frame(&vec![0; FRAME_BYTES_MAX - header_bytes]);
        assert_eq!(longest.len(), FRAME_BYTES_MAX);
        assert_eq!(decode_all(longest, Sender::Server).unwrap().1, FRAME_BYTES_MAX);
        assert!(
            decode_all(server_frame(&vec![0; FRAME_BYTES_MAX - header_bytes + 1]), Sender::Server).is_err()
        );
    }
}
