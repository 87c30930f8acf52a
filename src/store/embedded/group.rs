//! What commits add to a segment: groups of records.
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

/// redb's smallest page.
const PAGE_BYTES: usize = 4096;
/// What redb needs of a page beside the group in it, with some room to spare.
const PAGE_OVERHEAD_BYTES: usize = 64;

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

/// The groups that hold encoded records, the first at an offset. There is at least one record.
///
/// redb gives a large value a page of 4 KiB times a power of two, and writes all of it. Several groups that fill their
/// pages are less to write than one that fills half of its.
pub(super) fn build(first: Offset, records: &[Bytes]) -> Vec<(Offset, Vec<u8>)> {
    let mut groups = Vec::new();
    let mut bytes_left: usize = records.iter().map(stored_bytes).sum();
    let mut next = 0;
    while next < records.len() {
        let bytes_max = group_bytes_max(HEAD_BYTES + bytes_left);
        let mut group = Vec::with_capacity(bytes_max);
        group.resize(HEAD_BYTES, 0);
        let begin = next;
        while let Some(record) = records.get(next)
            && (next == begin || group.len() + stored_bytes(record) <= bytes_max)
        {
            // It fits, since the store takes no larger records.
            group.put_u32_le(record.len() as u32);
            group.extend_from_slice(record);
            bytes_left -= stored_bytes(record);
            next += 1;
        }
        let offset = Offset(first.0 + begin as u64);
        groups.push((offset, finish(offset, group)));
    }
    groups
}

/// What a record takes in a group, in bytes.
pub(super) fn stored_bytes(record: &Bytes) -> usize {
    LENGTH_BYTES + record.len()
}

/// How much of what is left shall go into the next group, in bytes.
fn group_bytes_max(bytes_left: usize) -> usize {
    let page_bytes = |bytes: usize| (bytes + PAGE_OVERHEAD_BYTES).next_power_of_two().max(PAGE_BYTES);
    let page = page_bytes(bytes_left);
    let half = page / 2 - PAGE_OVERHEAD_BYTES;
    if page <= 2 * PAGE_BYTES || page_bytes(bytes_left - half) > page / 8 * 3 { bytes_left } else { half }
}

fn finish(first: Offset, mut group: Vec<u8>) -> Vec<u8> {
    let checksum = xxh3_64_with_seed(&group[HEAD_BYTES..], first.0);
    group[0] = GROUP_VERSION;
    group[1..HEAD_BYTES].copy_from_slice(&checksum.to_le_bytes());
    group
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
    use oncewire_protocol::hub::Shard;
    use oncewire_protocol::log::{BootId, Time};

    use super::*;

    fn group(first: u64, count: u64) -> Vec<u8> {
        let records: Vec<_> = (0..count).map(|n| Shard::booted(BootId(1), Time(n), false).encode()).collect();
        let mut groups = build(Offset(first), &records);
        assert_eq!((groups.len(), groups[0].0), (1, Offset(first)));
        groups.remove(0).1
    }

    #[test]
    fn groups_fill_their_pages_and_leave_nothing_out() {
        for (count, record_bytes) in
            [(1, 10), (1, 300_000), (3, 100_000), (64, 290), (300, 60), (1024, 290), (5, 1)]
        {
            let records: Vec<_> = (0..count).map(|n| Bytes::from(vec![n as u8; record_bytes])).collect();
            let groups = build(Offset(50), &records);
            let mut read = Vec::new();
            let mut written = 0;
            for (first, stored) in &groups {
                assert_eq!(first.0, 50 + read.len() as u64);
                read.extend(split(*first, stored).unwrap());
                written += (stored.len() + PAGE_OVERHEAD_BYTES).next_power_of_two().max(PAGE_BYTES);
            }
            assert_eq!(read, records);
            let bytes: usize = records.iter().map(stored_bytes).sum();
            let waste = written as f64 / bytes.max(PAGE_BYTES) as f64;
            let is_divisible = record_bytes * 4 < bytes;
            assert!(waste < if is_divisible { 1.6 } else { 2.1 }, "{count} of {record_bytes}: {waste}");
            assert!(groups.len() <= 6, "{} groups", groups.len());
        }
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
