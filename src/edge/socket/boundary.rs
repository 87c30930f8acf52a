//! Where messages end in what a client sends, and what the frame reader holds of one that has not ended.

/// The lengths that stand for one in the 2 or 8 bytes behind them (RFC 6455, section 5.2).
const LENGTH_IN_2_BYTES: u8 = 126;
const LENGTH_IN_8_BYTES: u8 = 127;
/// The key with which a frame is masked.
const MASK_BYTES: u64 = 4;

const FINAL: u8 = 0x80;
const MASKED: u8 = 0x80;
/// Opcodes from here on are of control frames, which may stand between the fragments of a message.
const CONTROL_OPCODE_MIN: u8 = 0x8;
const OPCODE: u8 = 0x0F;

/// Follows the frames in what a client sends, so far as to know when nothing of a message is left over: neither a part of a
/// frame nor the first of several fragments. It looks at the heads of frames alone.
#[derive(Debug, Default)]
pub(super) struct Boundary {
    part: Part,
    /// What is left of the payload and its key, or so far known of it, in bytes.
    left: u64,
    /// Whether a message has begun of which fragments are to come.
    is_in_message: bool,
    /// Whether the frame is of a message, and not a control frame.
    is_data: bool,
    /// What has come of the frame, if it is of a message, in bytes.
    frame_bytes: u32,
    /// The largest frame since the frame reader was made: it keeps that buffer. In bytes.
    largest_frame_bytes: u32,
    /// Whole frames of the message that has not ended, in bytes.
    fragments_bytes: u32,
    /// Whether a large message has been read since the frame reader was made.
    has_read_large: bool,
}

/// The frame reader keeps the buffer of its largest frame. After a message above this size it is made anew as soon as
/// nothing is left in it, so that an idle socket is small again.
const KEPT_MESSAGE_BYTES_MAX: usize = 16 * 1024;

/// The frame reader puts fragments together in a text that doubles as it grows.
const GROWTH: usize = 2;

/// What the next byte is.
#[derive(Debug, Default, Clone, Copy)]
enum Part {
    #[default]
    First,
    Second,
    /// One of the length, of which so many are left.
    Length {
        bytes_left: u8,
        is_masked: bool,
    },
    Payload,
}

impl Boundary {
    /// Follows some more bytes.
    pub(super) fn follow(&mut self, mut bytes: &[u8]) {
        while let Some(&byte) = bytes.first() {
            if let Part::Payload = self.part {
                let skipped = usize::try_from(self.left).unwrap_or(usize::MAX).min(bytes.len());
                self.left -= skipped as u64;
                bytes = &bytes[skipped..];
                if self.is_data {
                    let skipped = u32::try_from(skipped).unwrap_or(u32::MAX);
                    self.frame_bytes = self.frame_bytes.saturating_add(skipped);
                }
                if self.left == 0 {
                    self.end_frame();
                }
                continue;
            }
            bytes = &bytes[1..];
            self.take(byte);
        }
    }

    fn take(&mut self, byte: u8) {
        match self.part {
            Part::First => {
                self.is_data = byte & OPCODE < CONTROL_OPCODE_MIN;
                if self.is_data {
                    self.is_in_message = byte & FINAL == 0;
                }
                self.part = Part::Second;
            }
            Part::Second => {
                let is_masked = byte & MASKED != 0;
                self.left = 0;
                match byte & !MASKED {
                    LENGTH_IN_2_BYTES => self.part = Part::Length { bytes_left: 2, is_masked },
                    LENGTH_IN_8_BYTES => self.part = Part::Length { bytes_left: 8, is_masked },
                    length => {
                        self.left = u64::from(length);
                        self.begin_payload(is_masked);
                    }
                }
            }
            Part::Length { bytes_left, is_masked } => {
                self.left = self.left << 8 | u64::from(byte);
                match bytes_left {
                    1 => self.begin_payload(is_masked),
                    more => self.part = Part::Length { bytes_left: more - 1, is_masked },
                }
            }
            Part::Payload => {}
        }
    }

    fn begin_payload(&mut self, is_masked: bool) {
        let mask_bytes = if is_masked { MASK_BYTES } else { 0 };
        self.left = self.left.saturating_add(mask_bytes);
        if self.left == 0 {
            self.end_frame();
        } else {
            self.part = Part::Payload;
        }
    }

    fn end_frame(&mut self) {
        self.part = Part::First;
        if !self.is_data {
            return;
        }
        let frame_bytes = std::mem::take(&mut self.frame_bytes);
        self.largest_frame_bytes = self.largest_frame_bytes.max(frame_bytes);
        self.fragments_bytes =
            if self.is_in_message { self.fragments_bytes.saturating_add(frame_bytes) } else { 0 };
    }

    /// What the frame reader holds for a message that has not ended, in bytes, masking keys included: none between two
    /// messages.
    pub(super) fn held_bytes(&self) -> usize {
        if self.fragments_bytes == 0 && self.frame_bytes == 0 {
            return 0;
        }
        let buffer_bytes = self.frame_bytes.max(self.largest_frame_bytes) as usize;
        buffer_bytes + GROWTH * self.fragments_bytes as usize
    }

    /// To be told of each message that the frame reader gives, with its size in bytes.
    pub(super) fn note_message(&mut self, bytes: usize) {
        self.has_read_large |= bytes > KEPT_MESSAGE_BYTES_MAX;
    }

    /// Whether the frame reader is to be made anew: it has grown, and nothing is left in it.
    pub(super) fn is_end_of_large(&self) -> bool {
        self.has_read_large && self.is_at_end()
    }

    /// To be told when the frame reader has been made anew.
    pub(super) fn forget_buffer(&mut self) {
        self.largest_frame_bytes = 0;
        self.has_read_large = false;
    }

    /// Whether all that has come is whole messages.
    pub(super) fn is_at_end(&self) -> bool {
        matches!(self.part, Part::First) && !self.is_in_message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(first: u8, payload: usize) -> Vec<u8> {
        let mut bytes = vec![first];
        match payload {
            0..=125 => bytes.push(0x80 | payload as u8),
            126..=0xFFFF => {
                bytes.push(0xFE);
                bytes.extend_from_slice(&(payload as u16).to_be_bytes());
            }
            _ => {
                bytes.push(0xFF);
                bytes.extend_from_slice(&(payload as u64).to_be_bytes());
            }
        }
        bytes.resize(bytes.len() + 4 + payload, 0x81);
        bytes
    }

    /// Where messages end, as offsets.
    fn ends(sent: &[u8], portion: usize) -> Vec<usize> {
        let mut boundary = Boundary::default();
        let mut ends = Vec::new();
        for (index, bytes) in sent.chunks(portion).enumerate() {
            boundary.follow(bytes);
            if boundary.is_at_end() {
                ends.push(index * portion + bytes.len());
            }
        }
        ends
    }

    #[test]
    fn messages_end_where_their_last_frame_does() {
        let messages: &[&[(u8, usize)]] = &[
            &[(0x81, 0)],
            &[(0x82, 125)],
            &[(0x81, 126)],
            &[(0x81, 65_535)],
            &[(0x82, 65_536)],
            &[(0x01, 0), (0x00, 70_000), (0x80, 0)],
            &[(0x02, 3), (0x89, 5), (0x00, 200), (0x8A, 0), (0x80, 7)],
            &[(0x88, 2)],
        ];
        let mut sent = Vec::new();
        let mut expected = Vec::new();
        for frames in messages {
            frames.iter().for_each(|(first, payload)| sent.extend(frame(*first, *payload)));
            expected.push(sent.len());
        }
        assert_eq!(ends(&sent, 1), expected);
        for portion in [2, 7, 1000, 16 * 1024] {
            let ends = ends(&sent, portion);
            assert!(ends.iter().all(|end| expected.contains(end)), "in portions of {portion}: {ends:?}");
            assert_eq!(ends.last(), expected.last());
        }
    }

    #[test]
    fn what_has_come_of_a_message_is_held_until_its_last_frame_has_come_whatever_stands_between() {
        let mut boundary = Boundary::default();
        let first = frame(0x01, 70_000);
        boundary.follow(&first[..10_014]);
        assert_eq!(boundary.held_bytes(), 10_004, "the head of the frame is not kept");
        boundary.follow(&first[10_014..]);
        assert_eq!(boundary.held_bytes(), 70_004 + 2 * 70_004);
        for _ in 0..1000 {
            boundary.follow(&frame(0x89, 100));
        }
        assert_eq!(boundary.held_bytes(), 70_004 + 2 * 70_004, "pings are answered and forgotten");
        boundary.follow(&frame(0x00, 1_000));
        assert_eq!(boundary.held_bytes(), 70_004 + 2 * 71_008);
        boundary.follow(&frame(0x80, 0));
        assert_eq!(boundary.held_bytes(), 0);
        boundary.follow(b"\x01\x00\x80\x00");
        assert_eq!(boundary.held_bytes(), 0);
    }

    #[test]
    fn the_buffer_of_a_larger_message_before_it_is_held_too_until_the_frame_reader_is_made_anew() {
        let mut boundary = Boundary::default();
        boundary.follow(&frame(0x81, 50_000));
        assert_eq!(boundary.held_bytes(), 0);
        boundary.follow(&frame(0x81, 500)[..300]);
        assert_eq!(boundary.held_bytes(), 50_004);
        boundary.follow(&frame(0x81, 500)[300..]);
        boundary.forget_buffer();
        boundary.follow(&frame(0x81, 500)[..304]);
        assert_eq!(boundary.held_bytes(), 300);
    }

    #[test]
    fn a_frame_without_a_mask_and_a_length_beyond_all_bounds_upset_nothing() {
        let mut boundary = Boundary::default();
        boundary.follow(b"\x81\x02ab");
        assert!(boundary.is_at_end());
        boundary.follow(b"\x81\xff\xff\xff\xff\xff\xff\xff\xff\xff");
        boundary.follow(&[0; 1000]);
        assert!(!boundary.is_at_end());
    }
}
