//! How checkpoints lie in `meta.redb`.
//!
//! ```text
//! byte 0       format version, now 1
//! byte 1..9    checksum, u64 LE: XXH3 of all that follows, with the XXH3 of the key as its seed
//! byte 9..17   the last offset that it covers, u64 LE
//! byte 17..    its content
//! ```

use bytes::{BufMut, Bytes};
use oncewire_protocol::log::Offset;
use redb::TableDefinition;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::store::Checkpoint;

/// Checkpoints by their keys.
pub(super) const CHECKPOINTS: TableDefinition<&str, &[u8]> = TableDefinition::new("checkpoints");

/// The version that this build writes.
pub(super) const CHECKPOINT_VERSION: u8 = 1;

const CHECKSUM_END: usize = 9;
const HEAD_BYTES: usize = 17;

/// Why stored bytes are not a checkpoint of a version that this build reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CheckpointError {
    UnknownVersion(u8),
    Damaged,
}

/// The checkpoint as it is stored.
pub(super) fn encode(key: &str, covers: Offset, bytes: &[u8]) -> Vec<u8> {
    let mut stored = Vec::with_capacity(HEAD_BYTES + bytes.len());
    stored.put_u8(CHECKPOINT_VERSION);
    stored.put_u64(0);
    stored.put_u64_le(covers.0);
    stored.extend_from_slice(bytes);
    let checksum = checksum(key, &stored[CHECKSUM_END..]);
    stored[1..CHECKSUM_END].copy_from_slice(&checksum.to_le_bytes());
    stored
}

/// Checks and reads a checkpoint as it is stored.
pub(super) fn decode(key: &str, stored: &[u8]) -> Result<Checkpoint, CheckpointError> {
    match stored.first() {
        Some(&CHECKPOINT_VERSION) => {}
        Some(&version) => return Err(CheckpointError::UnknownVersion(version)),
        None => return Err(CheckpointError::Damaged),
    }
    let (head, bytes) = stored.split_first_chunk::<HEAD_BYTES>().ok_or(CheckpointError::Damaged)?;
    if head[1..CHECKSUM_END] != checksum(key, &stored[CHECKSUM_END..]).to_le_bytes() {
        return Err(CheckpointError::Damaged);
    }
    let (_, covers) = head.split_last_chunk().ok_or(CheckpointError::Damaged)?;
    Ok(Checkpoint { covers: Offset(u64::from_le_bytes(*covers)), bytes: Bytes::copy_from_slice(bytes) })
}

fn checksum(key: &str, bytes: &[u8]) -> u64 {
    xxh3_64_with_seed(bytes, xxh3_64(key.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_flipped_bit_any_cut_and_another_key_are_noticed() {
        let checkpoint = Checkpoint { covers: Offset(7), bytes: Bytes::from_static(b"content") };
        let stored = encode("key", checkpoint.covers, &checkpoint.bytes);
        assert_eq!(decode("key", &stored), Ok(checkpoint));
        assert_eq!(decode("yek", &stored), Err(CheckpointError::Damaged));
        for at in 0..stored.len() {
            let mut damaged = stored.clone();
            damaged[at] ^= 0x10;
            assert!(decode("key", &damaged).is_err(), "byte {at}");
            assert!(decode("key", &stored[..at]).is_err(), "cut at {at}");
        }
    }
}
