//! How much memory events and the answers to them may take while they are under way, in all hubs together.
//!
//! Knows: how many bytes are taken. Does not know: what is in them, or what becomes of an event for which there is no room.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The largest body of an answer that is used; a larger one is a failure.
pub(super) const ANSWER_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The part of `message_memory_bytes_max` that events under way may take, as a divisor.
const EVENTS_SHARE: u64 = 8;
/// The least that they may take, in bytes.
const EVENTS_BYTES_MIN: u64 = 4 * 1024 * 1024;
/// The part of `message_memory_bytes_max` that answers may take, as a divisor.
const ANSWERS_SHARE: u64 = 4;
/// The least that they may take, in bytes: room for the largest, also while it is decoded.
const ANSWERS_BYTES_MIN: u64 = 4 * ANSWER_BYTES_MAX as u64;
/// An answer of up to so many bytes takes no room: there are no more of these than events under way.
const SMALL_ANSWER_BYTES: usize = 16 * 1024;

/// What an event takes while it is under way beside what is in it, in bytes, about: its task, its request, its place on a
/// connection.
const EVENT_BYTES: usize = 4 * 1024;
/// How often what is in an event is held: as the session has it, in the request, and on its way to the connection.
const COPIES: usize = 3;

/// Bytes that one permit stands for: a semaphore counts 32 bits of them.
const UNIT_BYTES: usize = 1024;

/// See the module.
pub(super) struct EventMemory {
    events: Arc<Semaphore>,
    events_units: u32,
    answers: Arc<Semaphore>,
}

/// There is no room for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("answers of event handlers take up all the memory that they may; this one is dropped")]
pub(super) struct NoRoom;

/// Room that an event takes until this is dropped.
pub(super) struct EventRoom(#[expect(dead_code, reason = "held")] OwnedSemaphorePermit);

impl EventMemory {
    /// Of a gateway with this `message_memory_bytes_max`.
    pub(super) fn new(message_memory_bytes_max: u64) -> Self {
        let units = |bytes: u64| u32::try_from(bytes / UNIT_BYTES as u64).unwrap_or(u32::MAX);
        let events_units = units((message_memory_bytes_max / EVENTS_SHARE).max(EVENTS_BYTES_MIN));
        let answers_units = units((message_memory_bytes_max / ANSWERS_SHARE).max(ANSWERS_BYTES_MIN));
        let semaphore = |units: u32| Arc::new(Semaphore::new((units as usize).min(Semaphore::MAX_PERMITS)));
        Self { events: semaphore(events_units), events_units, answers: semaphore(answers_units) }
    }

    /// Room for an event of so many bytes, if there is some. One that is larger than all of it waits for nobody else.
    pub(super) fn room(&self, bytes: usize) -> Option<EventRoom> {
        let units = units_of(EVENT_BYTES.saturating_add(bytes.saturating_mul(COPIES))).min(self.events_units);
        Arc::clone(&self.events).try_acquire_many_owned(units).ok().map(EventRoom)
    }

    /// Room for an answer that is about to come.
    pub(super) fn answer(&self) -> AnswerRoom {
        AnswerRoom { memory: Arc::clone(&self.answers), taken: None }
    }
}

/// Room that an answer takes until this is dropped.
pub(super) struct AnswerRoom {
    memory: Arc<Semaphore>,
    taken: Option<OwnedSemaphorePermit>,
}

impl AnswerRoom {
    /// Says that the answer has come to so many bytes.
    ///
    /// # Errors
    /// When there is no room for it now.
    pub(super) fn grow_to(&mut self, bytes: usize) -> Result<(), NoRoom> {
        if bytes <= SMALL_ANSWER_BYTES {
            return Ok(());
        }
        // What grows piece by piece has twice the room that it needs.
        let units = units_of(bytes.saturating_mul(2));
        let taken = self.taken.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let more = units.saturating_sub(u32::try_from(taken).unwrap_or(u32::MAX));
        let more = Arc::clone(&self.memory).try_acquire_many_owned(more).map_err(|_| NoRoom)?;
        match &mut self.taken {
            Some(taken) => taken.merge(more),
            None => self.taken = Some(more),
        }
        Ok(())
    }
}

fn units_of(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX)
}

/// Room for one answer, of memory that nobody else uses.
#[cfg(test)]
pub(super) fn room() -> AnswerRoom {
    EventMemory::new(1 << 30).answer()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_take_no_more_than_their_part_and_give_it_back() {
        let memory = EventMemory::new(64 << 20);
        let rooms: Vec<_> = std::iter::from_fn(|| memory.room(30_000)).collect();
        let bytes = rooms.len() * (30_000 * COPIES + EVENT_BYTES);
        assert!((7 << 20..=8 << 20).contains(&bytes), "{bytes}");
        drop(rooms);
        assert!(memory.room(usize::MAX).is_some(), "alone it may be of any size");
        assert!(memory.room(30_000).is_some());
    }

    #[test]
    fn answers_take_no_more_than_their_part_and_small_ones_nothing() {
        let memory = EventMemory::new(64 << 20);
        let mut largest = memory.answer();
        for bytes in (0..=ANSWER_BYTES_MAX).step_by(1 << 20) {
            largest.grow_to(bytes).unwrap();
        }
        let mut second = memory.answer();
        second.grow_to(ANSWER_BYTES_MAX).unwrap();
        let mut third = memory.answer();
        third.grow_to(SMALL_ANSWER_BYTES).unwrap();
        assert!(matches!(third.grow_to(SMALL_ANSWER_BYTES + 1), Err(NoRoom)));
        drop(largest);
        third.grow_to(ANSWER_BYTES_MAX).unwrap();
    }
}
