//! What an empty queue of a session keeps: with tens of thousands of idle sessions each slot counts.

use std::collections::VecDeque;

/// Slots that an empty queue keeps, so that a session with little traffic does not allocate for each message.
pub(super) const KEPT_CAPACITY: usize = 16;

/// Lets go of the memory of a queue that is empty and was long.
pub(super) fn shrink_if_empty<T>(queue: &mut VecDeque<T>) {
    if queue.is_empty() && queue.capacity() > KEPT_CAPACITY {
        *queue = VecDeque::new();
    }
}
