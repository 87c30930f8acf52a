//! The part of an encoded message that all its receivers share.

use bytes::{BufMut, Bytes, BytesMut};

use super::{Encoding, Opcode, SequenceId, write_frame_header};

/// A message encoded once; each receiver's frame is a header, its sequence id, and these bytes.
#[derive(Debug, Clone)]
pub struct SharedBody {
    encoding: Encoding,
    opcode: Opcode,
    bytes: Bytes,
}

const JSON_SEQUENCE_ID: &[u8] = b"{\"sequenceId\":";

impl SharedBody {
    pub(super) fn new(encoding: Encoding, opcode: Opcode, bytes: Bytes) -> Self {
        Self { encoding, opcode, bytes }
    }

    /// Appends one whole frame. Hot: one call for each delivery.
    pub fn write_frame(&self, sequence_id: Option<SequenceId>, out: &mut BytesMut) {
        match self.encoding {
            Encoding::Json => match sequence_id {
                Some(id) => {
                    let mut digits = [0; 20];
                    let digits = decimal(id, &mut digits);
                    let payload_bytes = JSON_SEQUENCE_ID.len() + digits.len() + 1 + self.bytes.len();
                    out.reserve(payload_bytes + 10);
                    write_frame_header(self.opcode, payload_bytes, out);
                    out.put_slice(JSON_SEQUENCE_ID);
                    out.put_slice(digits);
                    out.put_u8(b',');
                    out.put_slice(&self.bytes);
                }
                None => {
                    out.reserve(self.bytes.len() + 11);
                    write_frame_header(self.opcode, self.bytes.len() + 1, out);
                    out.put_u8(b'{');
                    out.put_slice(&self.bytes);
                }
            },
            Encoding::Raw => {
                out.reserve(self.bytes.len() + 10);
                write_frame_header(self.opcode, self.bytes.len(), out);
                out.put_slice(&self.bytes);
            }
        }
    }
}

fn decimal(mut number: u64, buffer: &mut [u8; 20]) -> &[u8] {
    let mut at = buffer.len();
    loop {
        at -= 1;
        buffer[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &buffer[at..];
        }
    }
}
