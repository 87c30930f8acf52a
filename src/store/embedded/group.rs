//! What one commit adds to a segment: a group of records.
//!
//! ```text
//! byte 0       format version, now 1
//! byte 1..9    checksum, u64 LE: XXH3 of all that follows, with the group's first offset as its seed
//! then, for each record:
//!   4 bytes    its length, u32 LE
//!   length     the record, in the encoding of `oncewire_protocol::log`
//! ```

use bytes::{BufMut, Bytes};
use oncewire_protocol::log::{Offset, Record};
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::store::Portion;

/// The version that this build writes.
pub(super) const GROUP_VERSION: u8 = 1;

const HEAD_BYTES: usize = 9;
const LENGTH_BYTES: usize = 4;

/// Why stored bytes are not a group of a version that this build reads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum GroupError {
    #[error("group version {0} is unknown; this build reads version {GROUP_VERSION}")]
    UnknownVersion(u8),
    #[error("a group with a wrong checksum")]
    Checksum,
    #[error("a group that ends within a record")]
    Truncated,
    #[error("{0}")]
    Record(String),
}

/// Collects the records of a group.
#[derive(Debug)]
pub(super) struct GroupBuilder {
    bytes: Vec<u8>,
    records: u64,
}

impl GroupBuilder {
    pub(super) fn new() -> Self {
        Self { bytes: vec![0; HEAD_BYTES], records: 0 }
    }

    /// Adds an encoded record. Its length fits, since the store takes no larger ones.
    pub(super) fn push(&mut self, record: &[u8]) {
        self.bytes.reserve(LENGTH_BYTES + record.len());
        self.bytes.put_u32_le(record.len() as u32);
        self.bytes.extend_from_slice(record);
        self.records += 1;
    }

    /// How many records it holds.
    pub(super) fn records(&self) -> u64 {
        self.records
    }

    /// How many bytes it takes, with one more record of `record_bytes`.
    pub(super) fn bytes_with(&self, record_bytes: usize) -> usize {
        self.bytes.len() + LENGTH_BYTES + record_bytes
    }

    /// The group as it is stored.
    pub(super) fn finish(mut self, first: Offset) -> Vec<u8> {
        let checksum = xxh3_64_with_seed(&self.bytes[HEAD_BYTES..], first.0);
        self.bytes[0] = GROUP_VERSION;
        self.bytes[1..HEAD_BYTES].copy_from_slice(&checksum.to_le_bytes());
        self.bytes
    }
}

/// Checks a group as it is stored, and finds its records.
pub(super) fn split(first: Offset, stored: &[u8]) -> Result<Vec<&[u8]>, GroupError> {
    match stored.first() {
        None => return Err(GroupError::Truncated),
        Some(&GROUP_VERSION) => {}
        Some(&version) => return Err(GroupError::UnknownVersion(version)),
    }
    let checksum = stored.get(1..HEAD_BYTES).ok_or(GroupError::Truncated)?;
    let mut rest = &stored[HEAD_BYTES..];
    if checksum != xxh3_64_with_seed(rest, first.0).to_le_bytes() {
        return Err(GroupError::Checksum);
    }
    let mut records = Vec::new();
    while !rest.is_empty() {
        let (length, following) = rest.split_first_chunk().ok_or(GroupError::Truncated)?;
        let length = u32::from_le_bytes(*length) as usize;
        let (record, following) = following.split_at_checked(length).ok_or(GroupError::Truncated)?;
        records.push(record);
        rest = following;
    }
    Ok(records)
}

/// Reads the records of a group from one on. Each has memory of its own: one that is kept does not keep the others.
pub(super) fn decode(first: Offset, stored: &[u8], from: Offset) -> Result<Portion, GroupError> {
    let records = split(first, stored)?;
    let numbered = records.into_iter().zip(first.0..).skip_while(|(_, offset)| *offset < from.0);
    numbered
        .map(|(bytes, offset)| Ok((Offset(offset), decode_record(Offset(offset), bytes)?.into())))
        .collect()
}

/// Reads a record of a group.
pub(super) fn decode_record(offset: Offset, bytes: &[u8]) -> Result<Record, GroupError> {
    let record = Record::decode(Bytes::copy_from_slice(bytes));
    record.map_err(|error| GroupError::Record(format!("offset {}: {error}", offset.0)))
}

/// How many records a group holds.
pub(super) fn count(first: Offset, stored: &[u8]) -> Result<u64, GroupError> {
    Ok(split(first, stored)?.len() as u64)
}

#[cfg(test)]
mod tests {
    use oncewire_protocol::hub::Hub;
    use oncewire_protocol::log::{BootId, Time};

    use super::*;

    fn group(first: u64, count: u64) -> Vec<u8> {
        let mut builder = GroupBuilder::new();
        for n in 0..count {
            builder.push(&Hub::booted(BootId(1), Time(n)).encode());
        }
        builder.finish(Offset(first))
    }

    #[test]
    fn records_come_back_with_their_offsets() {
        let stored = group(100, 5);
        assert_eq!(stored[0], GROUP_VERSION);
        assert_eq!(count(Offset(100), &stored), Ok(5));
        let read = decode(Offset(100), &stored, Offset(103)).unwrap();
        let read: Vec<_> = read.into_iter().map(|(offset, record)| (offset.0, record.time.0)).collect();
        assert_eq!(read, [(103, 3), (104, 4)]);
    }

    #[test]
    fn any_flipped_bit_and_any_cut_is_noticed() {
        let stored = group(7, 3);
        for at in 0..stored.len() {
            for bit in 0..8 {
                let mut damaged = stored.clone();
                damaged[at] ^= 1 << bit;
                assert!(split(Offset(7), &damaged).is_err(), "byte {at} bit {bit}");
            }
            // Cut to nothing but its head, only the checksum of nothing could be right.
            assert!(split(Offset(7), &stored[..at]).is_err(), "cut at {at}");
        }
        assert_eq!(split(Offset(8), &stored), Err(GroupError::Checksum), "a group at another's offset");
        let mut newer = stored;
        newer[0] = 2;
        assert_eq!(split(Offset(7), &newer), Err(GroupError::UnknownVersion(2)));
    }
}
