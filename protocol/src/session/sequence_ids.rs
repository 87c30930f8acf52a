//! Sequence ids as a pure function of what was delivered (R2).

use crate::log::SequenceIdsCheckpoint;
use crate::wire::SequenceId;

/// How far the id moves at a jump. The official JavaScript client acknowledges at once when a single id lies more
/// than 300 above the largest it has seen; otherwise only once a second.
pub const JUMP: u64 = 301;
/// Deliveries from one jump to the next.
pub const JUMP_DELIVERIES: u32 = 128;
/// Payload from one jump to the next, in bytes.
pub const JUMP_PAYLOAD_BYTES: u64 = 4 * 1024 * 1024;

/// The largest id given, and what was delivered since the last jump.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct SequenceIds {
    last: SequenceId,
    deliveries: u32,
    payload_bytes: u64,
}

impl SequenceIds {
    /// The id of the next delivery, which carries this much payload.
    pub fn next(&mut self, payload_bytes: usize) -> SequenceId {
        if self.deliveries >= JUMP_DELIVERIES || self.payload_bytes >= JUMP_PAYLOAD_BYTES {
            *self = Self { last: self.last + JUMP, deliveries: 0, payload_bytes: 0 };
        } else {
            self.last += 1;
        }
        self.deliveries += 1;
        self.payload_bytes += payload_bytes as u64;
        self.last
    }

    /// What a checkpoint keeps.
    pub fn to_checkpoint(&self) -> SequenceIdsCheckpoint {
        SequenceIdsCheckpoint {
            last: self.last,
            deliveries: self.deliveries,
            payload_bytes: self.payload_bytes,
        }
    }

    /// Goes on where a checkpoint was made.
    pub fn restore(stored: SequenceIdsCheckpoint) -> Self {
        Self { last: stored.last, deliveries: stored.deliveries, payload_bytes: stored.payload_bytes }
    }

    /// The largest id given so far; 0 before the first.
    pub fn last(&self) -> SequenceId {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_start_at_1_and_jump_after_128_deliveries() {
        let mut ids = SequenceIds::default();
        let given: Vec<_> = (0..258).map(|_| ids.next(10)).collect();
        assert_eq!(given[..3], [1, 2, 3]);
        assert_eq!(given[127], 128);
        assert_eq!(given[128], 128 + 301);
        assert_eq!(given[255], 128 + 301 + 127);
        assert_eq!(given[256], 128 + 301 + 127 + 301);
    }

    #[test]
    fn ids_jump_after_4_mib_of_payload() {
        let mut ids = SequenceIds::default();
        let half = JUMP_PAYLOAD_BYTES as usize / 2;
        assert_eq!([ids.next(half), ids.next(half - 1), ids.next(1)], [1, 2, 3]);
        assert_eq!(ids.next(1), 3 + 301);
        assert_eq!(ids.next(1), 3 + 302);
    }
}
