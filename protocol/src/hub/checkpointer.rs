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
//!    That state is the same function of the log in every shard.
//! 2. Each shard visits its chunks. It notes the offset of the visit, V, writes the chunk unless the store holds the
//!    same bytes, and copies messages up to H(k-1) that its sessions keep and that have no copy yet.
//! 3. When all of that is stored, copies that no session keeps are deleted.
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
//! * *The log.* It is trimmed to an offset that is before H, by a whole round.
//!
//! A write that fails, surely or perhaps, ends the round without harm, since after any part of it the same holds. What
//! the failed write was about counts as unknown and is written again in the next round.
//!
//! A session whose end was decided, but is not in the log, is kept as one that is ending: the next boot goes on with it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_128;

use super::Shard;
use crate::log::{
    CHUNKS, CheckpointChange, CheckpointKey, ChunkCheckpoint, HubCheckpoint, MessageRef, Offset, Time,
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

/// Copies that are looked at in one step, and perhaps deleted in one write.
const LOOK_COPIES: usize = 4096;

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
    stored: Stored,
    /// H of the last round that was done.
    applied: Option<Offset>,
    shards: Vec<ShardState>,
    round: Option<Round>,
    /// When the last round was done, or the first step was taken.
    rests_since: Option<Time>,
    /// No round begins before, after a failure.
    retry_at: Option<Time>,
    /// Whether the log may hold records of rounds before this start.
    has_old_log: bool,
}

/// What the store holds, as far as it is known.
#[derive(Debug)]
pub struct Stored {
    chunks: Vec<StoredChunk>,
    /// All chunks together.
    bytes: u64,
    /// Copies, and whether it is certain that they are there.
    messages: BTreeMap<MessageRef, bool>,
}

#[derive(Debug, Clone, Copy)]
struct StoredChunk {
    /// Unknown after a failure.
    hash: Option<u128>,
    bytes: u64,
}

/// What is known of one shard.
#[derive(Debug, Default)]
struct ShardState {
    /// [`Shard::applied_bytes`] when the current or last round began, and the one before it.
    began_at_bytes: [u64; 2],
    write: Option<Writing>,
}

/// A write that is under way.
#[derive(Debug)]
enum Writing {
    Parts { chunks: Vec<(u16, StoredChunk)>, messages: Vec<MessageRef> },
    Deletes(Vec<MessageRef>),
    Hub(Offset),
}

#[derive(Debug)]
struct Round {
    /// The lowest of the shards that have begun.
    hub: Option<(Offset, HubCheckpoint)>,
    /// V of each chunk that was visited.
    visited: Vec<Option<Offset>>,
    /// Names up to the end of the round before that sessions keep.
    kept: BTreeSet<MessageRef>,
    shards: Vec<Progress>,
    /// Copies up to here are kept or deleted.
    looked_up_to: Option<MessageRef>,
}

#[derive(Debug, Default)]
struct Progress {
    has_begun: bool,
    /// Chunks that were visited.
    visited: usize,
    to_copy: VecDeque<Arc<SharedMessage>>,
    buffer: Buffer,
    is_done: bool,
}

/// What the next write of a shard takes.
#[derive(Debug, Default)]
struct Buffer {
    changes: Vec<CheckpointChange>,
    bytes: usize,
    chunks: Vec<(u16, StoredChunk)>,
    messages: Vec<MessageRef>,
}

impl Stored {
    /// A store without a checkpoint: as good as one with empty chunks.
    pub fn nothing() -> Self {
        let empty = StoredChunk::of(&ChunkCheckpoint::default().encode());
        let bytes = empty.bytes * u64::from(CHUNKS);
        Self { chunks: vec![empty; usize::from(CHUNKS)], bytes, messages: BTreeMap::new() }
    }

    /// Takes note of a chunk that is there.
    pub fn note_chunk(&mut self, chunk: u16, bytes: &[u8]) {
        self.set_chunk(chunk, StoredChunk::of(bytes));
    }

    fn set_chunk(&mut self, chunk: u16, stored: StoredChunk) {
        if let Some(known) = self.chunks.get_mut(usize::from(chunk)) {
            self.bytes = self.bytes - known.bytes + stored.bytes;
            *known = stored;
        }
    }

    /// Takes note of a copy that is there.
    pub fn note_message(&mut self, name: MessageRef) {
        self.messages.insert(name, true);
    }
}

impl StoredChunk {
    fn of(bytes: &[u8]) -> Self {
        Self { hash: Some(xxh3_128(bytes)), bytes: bytes.len() as u64 }
    }
}

impl Checkpointer {
    pub(super) fn new(
        shards: u16,
        bounds: CheckpointBounds,
        applied: Option<Offset>,
        stored: Stored,
    ) -> Self {
        Self {
            bounds,
            stored,
            applied,
            shards: (0..shards).map(|_| ShardState::default()).collect(),
            round: None,
            rests_since: None,
            retry_at: None,
            has_old_log: applied.is_some(),
        }
    }

    /// Takes a step of a shard, between two of its turns. It does no more than the bounds say, but one chunk or message
    /// is not divided.
    pub fn step(&mut self, now: Time, shard: &Shard) -> Step {
        self.rests_since.get_or_insert(now);
        let index = usize::from(shard.id().index);
        if !shard.is_caught_up() || self.shards.get(index).is_none_or(|shard| shard.write.is_some()) {
            return Step::Idle;
        }
        if self.round.is_none() {
            if !self.is_due(now, shard) {
                return Step::Idle;
            }
            self.round = Some(Round::new(self.shards.len()));
        }
        let Some(round) = &mut self.round else { return Step::Idle };
        if !round.shards[index].has_begun {
            round.begin(index, shard);
            let [this, _] = self.shards[index].began_at_bytes;
            self.shards[index].began_at_bytes = [shard.applied_bytes(), this];
        }
        if !round.shards[index].is_done {
            return self.visit(index, shard);
        }
        let is_alone = self.shards.iter().all(|shard| shard.write.is_none());
        if is_alone && round.shards.iter().all(|progress| progress.is_done) {
            return self.finish(index);
        }
        Step::Idle
    }

    /// A write of a shard has succeeded or failed. Returns how far the log may be trimmed, if further than before: records
    /// before this offset are not needed any more.
    pub fn written(&mut self, now: Time, shard: u16, is_stored: bool) -> Option<Offset> {
        let writing = self.shards.get_mut(usize::from(shard))?.write.take()?;
        if !is_stored {
            self.round = None;
            self.retry_at = Some(now.plus_ms(self.bounds.retry_ms));
        }
        match writing {
            Writing::Parts { chunks, messages } => {
                for (chunk, written) in chunks {
                    let hash = written.hash.filter(|_| is_stored);
                    self.stored.set_chunk(chunk, StoredChunk { hash, ..written });
                }
                for name in messages {
                    self.stored.messages.insert(name, is_stored);
                }
                None
            }
            Writing::Deletes(names) => {
                for name in names {
                    if is_stored {
                        self.stored.messages.remove(&name);
                    } else {
                        self.stored.messages.insert(name, false);
                    }
                }
                None
            }
            Writing::Hub(applied) if is_stored => {
                self.round = None;
                self.rests_since = Some(now);
                self.has_old_log = false;
                self.applied.replace(applied).map(|last| Offset(last.0 + 1))
            }
            Writing::Hub(_) => None,
        }
    }

    /// Whether a round is under way, in which every shard has its part.
    pub fn is_in_round(&self) -> bool {
        self.round.is_some()
    }

    /// When a step may have something to do although nothing happened meanwhile.
    pub fn poll_timeout(&self, shard: &Shard) -> Option<Time> {
        if self.round.is_some() || !shard.is_caught_up() {
            return None;
        }
        let since = self.rests_since.filter(|_| self.holds_much(shard))?;
        let at = since.plus_ms(self.rest_ms(shard));
        Some(self.retry_at.map_or(at, |retry_at| retry_at.max(at)))
    }

    fn is_due(&self, now: Time, shard: &Shard) -> bool {
        if self.retry_at.is_some_and(|at| now < at) {
            return false;
        }
        let has_rested = self.rests_since.is_some_and(|since| now >= since.plus_ms(self.rest_ms(shard)));
        let [last, _] = self.began_at_bytes(shard);
        let whole = self.stored.bytes.saturating_mul(self.bounds.log_bytes_per_state_byte);
        let has_grown = shard.applied_bytes() - last >= self.bounds.log_bytes_min.max(whole);
        has_grown || (has_rested && self.holds_much(shard))
    }

    /// How long after a round the next one waits when the log holds too much. If nothing has come since that one began, not
    /// at all: it costs little, and lets go of everything before.
    fn rest_ms(&self, shard: &Shard) -> u64 {
        let [last, _] = self.began_at_bytes(shard);
        let is_at_rest = last > 0 && shard.applied_bytes() == last;
        if is_at_rest { 0 } else { self.bounds.rest_ms }
    }

    /// Whether the log holds more than a hub at rest should.
    fn holds_much(&self, shard: &Shard) -> bool {
        let [_, before] = self.began_at_bytes(shard);
        let held = shard.applied_bytes() - before;
        self.has_old_log || held > self.bounds.rest_log_bytes_min.max(self.stored.bytes)
    }

    fn began_at_bytes(&self, shard: &Shard) -> [u64; 2] {
        self.shards.get(usize::from(shard.id().index)).map_or([0; 2], |shard| shard.began_at_bytes)
    }

    /// Visits some chunks, or copies messages of those that were visited.
    fn visit(&mut self, index: usize, shard: &Shard) -> Step {
        let Self { bounds, stored, applied: before, shards, round: Some(round), .. } = self else {
            return Step::Idle;
        };
        let (Some(applied), count) = (shard.applied(), shards.len()) else { return Step::Idle };
        let Round { visited, kept, shards: all_progress, .. } = round;
        let Progress { visited: chunks_visited, to_copy, buffer, is_done, .. } = &mut all_progress[index];
        let mut step_bytes = 0;
        while step_bytes < bounds.step_bytes && buffer.bytes < bounds.write_bytes {
            let Some(message) = to_copy.pop_front() else { break };
            let copy = message.to_checkpoint().encode();
            step_bytes += copy.len();
            buffer.messages.push(message.name());
            buffer.save(CheckpointKey::Message(message.name()), message.name().offset, copy);
        }
        let chunks = (index..usize::from(CHUNKS)).step_by(count).skip(*chunks_visited);
        for chunk in chunks.take(bounds.step_chunks) {
            let is_enough = step_bytes >= bounds.step_bytes || buffer.bytes >= bounds.write_bytes;
            if is_enough || !to_copy.is_empty() {
                break;
            }
            *chunks_visited += 1;
            visited[chunk] = Some(applied);
            let chunk = chunk as u16;
            shard.for_each_message(chunk, *before, |message| {
                let name = message.name();
                let has_copy = stored.messages.get(&name) == Some(&true);
                if kept.insert(name) && !has_copy {
                    stored.messages.insert(name, false);
                    to_copy.push_back(Arc::clone(message));
                }
            });
            let encoded = shard.chunk_to_checkpoint(chunk).encode();
            step_bytes += encoded.len();
            let now_there = StoredChunk::of(&encoded);
            let known = stored.chunks[usize::from(chunk)];
            if known.hash == now_there.hash {
                continue;
            }
            buffer.chunks.push((chunk, now_there));
            buffer.save(CheckpointKey::Chunk(chunk), applied, encoded);
        }
        let chunks = (usize::from(CHUNKS) - index).div_ceil(count);
        *is_done = *chunks_visited == chunks && to_copy.is_empty();
        if buffer.changes.is_empty() || (buffer.bytes < bounds.write_bytes && !*is_done) {
            return Step::More;
        }
        let Buffer { changes, chunks, messages, .. } = std::mem::take(buffer);
        shards[index].write = Some(Writing::Parts { chunks, messages });
        Step::Write(changes)
    }

    /// Everything of the round but the last part is stored.
    fn finish(&mut self, index: usize) -> Step {
        let Some(round) = &mut self.round else { return Step::Idle };
        let behind = round.looked_up_to.map_or(Bound::Unbounded, Bound::Excluded);
        let copies = self.stored.messages.range((behind, Bound::Unbounded)).take(LOOK_COPIES);
        let copies: Vec<MessageRef> = copies.map(|(name, _)| *name).collect();
        if let Some(last) = copies.last() {
            round.looked_up_to = Some(*last);
            let stale: Vec<_> = copies.into_iter().filter(|name| !round.kept.contains(name)).collect();
            if stale.is_empty() {
                return Step::More;
            }
            let delete = |name: &MessageRef| CheckpointChange::Delete { key: CheckpointKey::Message(*name) };
            let changes = stale.iter().map(delete).collect();
            self.shards[index].write = Some(Writing::Deletes(stale));
            return Step::Write(changes);
        }
        let Some((applied, mut hub)) = round.hub.take() else { return Step::Idle };
        hub.covers = round.visited.iter().map(|visited| visited.unwrap_or(applied)).collect();
        let bytes = hub.encode(applied);
        self.shards[index].write = Some(Writing::Hub(applied));
        Step::Write(vec![CheckpointChange::Save { key: CheckpointKey::Hub, covers: applied, bytes }])
    }
}

impl Buffer {
    fn save(&mut self, key: CheckpointKey, covers: Offset, bytes: Bytes) {
        self.bytes += bytes.len();
        self.changes.push(CheckpointChange::Save { key, covers, bytes });
    }
}

impl Round {
    fn new(shards: usize) -> Self {
        Self {
            hub: None,
            visited: vec![None; usize::from(CHUNKS)],
            kept: BTreeSet::new(),
            shards: (0..shards).map(|_| Progress::default()).collect(),
            looked_up_to: None,
        }
    }

    fn begin(&mut self, index: usize, shard: &Shard) {
        self.shards[index].has_begun = true;
        let Some((applied, state)) = shard.to_checkpoint() else { return };
        if self.hub.as_ref().is_none_or(|(lowest, _)| applied < *lowest) {
            self.hub = Some((applied, state));
        }
    }
}
