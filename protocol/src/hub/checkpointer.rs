//! Rounds of checkpoints: what is written when, and how far the log may be trimmed.
//!
//! A round takes the sessions of all shards, a few chunks at a time between their turns, and never stops them. The parts
//! of one checkpoint therefore stand at different offsets:
//!
//! ```text
//! log          ... H(k-1) ................ H(k) ........ V(7) .... V(8) ........ end
//!                  hub's part of the       hub's part of this round: the state that belongs to no session
//!                  round before            | chunk 7 as it was at V(7), chunk 8 at V(8), ...
//! kept         ----|  a message up to H(k-1) that a session keeps is copied; the round done, the log is trimmed to here
//! ```
//! 1. The round begins: each shard takes its state beside the sessions; the one with the lowest offset, H(k), counts.
//!    That state is the same function of the log in every shard. Its requests are in pages that it shares.
//! 2. Each shard visits its chunks. It notes the offset of the visit, V, writes the chunk unless the store holds the
//!    same bytes, and copies messages up to H(k-1) that its sessions keep and that have no copy yet.
//! 3. When all of that is stored, copies that no session keeps are deleted, and pages of requests that the hub's part of the
//!    round before has no use for. Pages that are new, or have grown, are written.
//! 4. The hub's part is written: the state at H(k), and V of each chunk. Now the round is done, and the log is trimmed
//!    up to H(k-1), the end of the round before: what does not wait for long is never copied.
//!
//! # Why a crash between any two writes is safe
//!
//! The store replaces each part as a whole, and nothing else is asked of it. What is there after a crash is the hub's part
//! of the last round that was done, of offset H, and of each chunk either what it was then or what a later visit wrote.
//!
//! * *The fold.* It starts behind H, with the state at H that belongs to no session: so the second copy of an append is
//!   recognised wherever its first one is. A chunk is changed only by records behind what it covers, which is at least H:
//!   its own V if it was written since, else the V that the hub's part holds, for then the same bytes were the chunk's
//!   state at that visit. Sessions of different chunks never depend on one another's state: a message goes to whoever is
//!   in the group, and whether a publish is executed was decided before its append. So each chunk goes through the states
//!   that it had before the crash.
//! * *The messages.* What a stored chunk names is in the log or has a copy: everything up to H of the round before the
//!   last was copied in the last round, and the log is trimmed only that far; what is behind is in the log still. A copy
//!   is deleted when all chunks, as stored, were written or compared since its last session let go of it.
//! * *The requests.* A page only grows. The stored hub's part says which of its requests counted at H: those that came later
//!   are left out, and a page is deleted when no stored part has a use for it.
//! * *The log.* It is trimmed to an offset that is before H, by a whole round.
//!
//! A write that fails, surely or perhaps, ends the round without harm, since after any part of it the same holds. What
//! the failed write was about counts as unknown and is written again in the next round.
//!
//! # What shards share
//!
//! Each shard has its own part of the work, and encodes without a lock in common. The [`Rounds`] are locked only to note what
//! was done.
//!
//! A session whose end was decided, but is not in the log, is kept as one that is ending: the next boot goes on with it.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;

use super::Shard;
use super::rounds::{Next, Rounds};
use super::stored::{Stored, StoredChunk};
use crate::log::{
    CHUNKS, CheckpointChange, CheckpointKey, MessageRef, Offset, RequestPage, Time, encode_requests,
};
use crate::session::SharedMessage;

/// When rounds begin and how much is done at a time.
#[derive(Debug, Clone, Copy)]
pub struct CheckpointBounds {
    /// A round begins when the log has grown by so many bytes since the last one began ...
    pub log_bytes_min: u64,
    /// ... and by so many times what a whole checkpoint takes, so that checkpoints never are most of what is written.
    pub log_bytes_per_state_byte: u64,
    /// Some time after a round another one begins if the log holds more than a whole checkpoint and than this, in bytes:
    /// what a hub at rest takes on the disk comes down to what it needs. If nothing has come meanwhile, it begins at once.
    pub rest_log_bytes_min: u64,
    /// How long after a round that is, in milliseconds.
    pub rest_ms: u64,
    /// How long after a write that failed no round begins, in milliseconds.
    pub retry_ms: u64,
    /// A write takes no more chunks or copies once it has so many bytes.
    pub write_bytes: usize,
    /// Chunks that are visited in one step ...
    pub step_chunks: usize,
    /// ... and about how many bytes of them and of copies are encoded, as long as nothing has to be written meanwhile.
    pub step_bytes: usize,
}

impl Default for CheckpointBounds {
    fn default() -> Self {
        Self {
            log_bytes_min: 64 << 20,
            log_bytes_per_state_byte: 2,
            rest_log_bytes_min: 1 << 20,
            rest_ms: 60_000,
            retry_ms: 10_000,
            write_bytes: 256 << 10,
            step_chunks: 16,
            step_bytes: 32 << 10,
        }
    }
}

/// What a shard has to do.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing, until something else has happened.
    Idle,
    /// Take another step, at leisure.
    More,
    /// Write this and report to [`Checkpointer::written`].
    Write(Vec<CheckpointChange>),
}

/// Leads a hub's shards through rounds. See the module.
#[derive(Debug)]
pub struct Checkpointer {
    bounds: CheckpointBounds,
    rounds: Mutex<Rounds>,
    /// Locked by its shard alone.
    parts: Vec<Mutex<Part>>,
}

/// One shard's part of the work.
#[derive(Debug, Default)]
struct Part {
    /// Its chunks as they are stored: the first is the one of its own index.
    chunks: Vec<StoredChunk>,
    /// [`Shard::applied_bytes`] when the current or last round began, and the one before it.
    began_at_bytes: [u64; 2],
    progress: Progress,
    write: Option<Writing>,
}

/// How far a shard is in a round.
#[derive(Debug, Default)]
struct Progress {
    round: u64,
    /// Chunks that were visited.
    visited: usize,
    to_copy: VecDeque<Arc<SharedMessage>>,
    buffer: Buffer,
    is_done: bool,
}

/// A write that is under way.
#[derive(Debug)]
enum Writing {
    Parts { chunks: Vec<(usize, StoredChunk)>, messages: Vec<MessageRef> },
    Deletes { messages: Vec<MessageRef>, pages: Vec<RequestPage> },
    Pages(Vec<(RequestPage, usize)>),
    Hub(Offset),
}

/// What the next write of a shard takes.
#[derive(Debug, Default)]
struct Buffer {
    changes: Vec<CheckpointChange>,
    bytes: usize,
    /// By their places among the shard's.
    chunks: Vec<(usize, StoredChunk)>,
    messages: Vec<MessageRef>,
}

impl Checkpointer {
    pub(super) fn new(
        shards: u16,
        bounds: CheckpointBounds,
        applied: Option<Offset>,
        stored: Stored,
    ) -> Self {
        let count = usize::from(shards.max(1));
        let part = |index: usize| {
            let chunks = stored.chunks.iter().skip(index).step_by(count).copied().collect();
            Mutex::new(Part { chunks, ..Part::default() })
        };
        let parts = (0..count).map(part).collect();
        Self { bounds, rounds: Mutex::new(Rounds::new(count, bounds, applied, stored)), parts }
    }

    /// Takes a step of a shard, between two of its turns. It does no more than the bounds say, but one chunk, message or
    /// page is not divided.
    pub fn step(&self, now: Time, shard: &Shard) -> Step {
        let index = usize::from(shard.id().index);
        let Some(mut part) = self.parts.get(index).map(Mutex::lock) else { return Step::Idle };
        let part = &mut *part;
        let mut rounds = self.rounds.lock();
        rounds.has_been_stepped(now);
        if !rounds.is_in_round() {
            // One that has failed lets go of the messages that it was to copy.
            part.progress = Progress::default();
        }
        if !shard.is_caught_up() || part.write.is_some() {
            return Step::Idle;
        }
        if !rounds.is_in_round() {
            if !rounds.is_due(now, shard.applied_bytes(), part.began_at_bytes) {
                return Step::Idle;
            }
            rounds.begin();
        }
        if rounds.number() != part.progress.round {
            rounds.take_state(shard);
            part.progress = Progress { round: rounds.number(), ..Progress::default() };
            let [this, _] = part.began_at_bytes;
            part.began_at_bytes = [shard.applied_bytes(), this];
        }
        if part.progress.is_done {
            let next = rounds.next(index, self.bounds.write_bytes);
            drop(rounds);
            return finish(next, part);
        }
        let copied_up_to = rounds.applied();
        drop(rounds);
        let step = self.visit(shard, part, copied_up_to);
        let Progress { round, is_done, .. } = part.progress;
        self.rounds.lock().visited_by(round, index, is_done, part.write.is_some());
        step
    }

    /// A write of a shard has succeeded or failed. Returns how far the log may be trimmed, if further than before: records
    /// before this offset are not needed any more.
    pub fn written(&self, now: Time, shard: u16, is_stored: bool) -> Option<Offset> {
        let index = usize::from(shard);
        let mut part = self.parts.get(index)?.lock();
        let writing = part.write.take()?;
        let mut rounds = self.rounds.lock();
        rounds.written_by(index);
        if !is_stored {
            rounds.fail(now);
        }
        match writing {
            Writing::Parts { chunks, messages } => {
                for (place, written) in chunks {
                    let known = &mut part.chunks[place];
                    rounds.chunk_changed(known.bytes, written.bytes);
                    // Unknown after a failure.
                    *known = StoredChunk { hash: written.hash.filter(|_| is_stored), ..written };
                }
                rounds.copied(messages, is_stored);
                None
            }
            Writing::Deletes { messages, pages } => {
                rounds.deleted(messages, pages, is_stored);
                None
            }
            Writing::Pages(pages) => {
                rounds.pages_written(pages, is_stored);
                None
            }
            Writing::Hub(applied) if is_stored => rounds.done(now, applied),
            Writing::Hub(_) => None,
        }
    }

    /// Whether a round is under way, in which every shard has its part.
    pub fn is_in_round(&self) -> bool {
        self.rounds.lock().is_in_round()
    }

    /// When a step may have something to do although nothing happened meanwhile.
    pub fn poll_timeout(&self, shard: &Shard) -> Option<Time> {
        let part = self.parts.get(usize::from(shard.id().index))?.lock();
        let rounds = self.rounds.lock();
        if rounds.is_in_round() || !shard.is_caught_up() {
            return None;
        }
        rounds.rests_until(shard.applied_bytes(), part.began_at_bytes)
    }

    /// Visits some chunks, or copies messages of those that were visited.
    fn visit(&self, shard: &Shard, part: &mut Part, copied_up_to: Option<Offset>) -> Step {
        let Some(applied) = shard.applied() else { return Step::Idle };
        let Self { bounds, rounds, parts } = self;
        let (index, count) = (usize::from(shard.id().index), parts.len());
        let Part { chunks: stored, progress, .. } = part;
        let Progress { round, visited, to_copy, buffer, is_done } = progress;
        let mut step_bytes = 0;
        while step_bytes < bounds.step_bytes && buffer.bytes < bounds.write_bytes {
            let Some(message) = to_copy.pop_front() else { break };
            let copy = message.to_checkpoint().encode();
            step_bytes += copy.len();
            buffer.messages.push(message.name());
            buffer.save(CheckpointKey::Message(message.name()), message.name().offset, copy);
        }
        let chunks = (index..usize::from(CHUNKS)).step_by(count).enumerate().skip(*visited);
        for (place, chunk) in chunks.take(bounds.step_chunks) {
            let is_enough = step_bytes >= bounds.step_bytes || buffer.bytes >= bounds.write_bytes;
            if is_enough || !to_copy.is_empty() {
                break;
            }
            *visited += 1;
            let number = chunk as u16;
            let mut kept = Vec::new();
            shard.for_each_message(number, copied_up_to, |message| kept.push(Arc::clone(message)));
            rounds.lock().visited(*round, chunk, applied, kept, to_copy);
            let encoded = shard.chunk_to_checkpoint(number).encode();
            step_bytes += encoded.len();
            let now_there = StoredChunk::of(&encoded);
            if stored.get(place).is_some_and(|known| known.hash == now_there.hash) {
                continue;
            }
            buffer.chunks.push((place, now_there));
            buffer.save(CheckpointKey::Chunk(number), applied, encoded);
        }
        *is_done = *visited == stored.len() && to_copy.is_empty();
        if buffer.changes.is_empty() || (buffer.bytes < bounds.write_bytes && !*is_done) {
            return Step::More;
        }
        let Buffer { changes, chunks, messages, .. } = std::mem::take(buffer);
        part.write = Some(Writing::Parts { chunks, messages });
        Step::Write(changes)
    }
}

impl Buffer {
    fn save(&mut self, key: CheckpointKey, covers: Offset, bytes: Bytes) {
        self.bytes += bytes.len();
        self.changes.push(CheckpointChange::Save { key, covers, bytes });
    }
}

/// Everything of the sessions is stored.
fn finish(next: Next, part: &mut Part) -> Step {
    let (writing, changes) = match next {
        Next::Wait => return Step::Idle,
        Next::More => return Step::More,
        Next::Delete { messages, pages } => {
            let of_messages = messages.iter().map(|name| CheckpointKey::Message(*name));
            let keys = of_messages.chain(pages.iter().map(|page| CheckpointKey::Requests(*page)));
            let changes = keys.map(|key| CheckpointChange::Delete { key }).collect();
            (Writing::Deletes { messages, pages }, changes)
        }
        Next::Pages(pages) => {
            let changes = pages.iter().map(|(page, covers, requests)| CheckpointChange::Save {
                key: CheckpointKey::Requests(*page),
                covers: *covers,
                bytes: encode_requests(requests),
            });
            let changes = changes.collect();
            (
                Writing::Pages(pages.into_iter().map(|(page, _, requests)| (page, requests.len())).collect()),
                changes,
            )
        }
        Next::Hub(applied, hub) => {
            let bytes = hub.encode(applied);
            (
                Writing::Hub(applied),
                vec![CheckpointChange::Save { key: CheckpointKey::Hub, covers: applied, bytes }],
            )
        }
    };
    part.write = Some(writing);
    Step::Write(changes)
}
