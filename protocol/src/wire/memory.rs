//! What memory costs, for bounds that count what is allocated.

/// What an allocation takes beside what was asked for, in bytes, about: the allocator's own head and what it rounds up to,
/// and the counts of what is shared.
const ALLOCATION_BYTES: usize = 32;

/// About what an allocation for so many bytes takes, in bytes.
pub const fn allocated(bytes: usize) -> usize {
    ALLOCATION_BYTES + bytes
}
