//! What the shards of a hub know together of its rounds of checkpoints: see [`checkpointer`](super::checkpointer).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;
use std::sync::Arc;

use super::request_pages::RequestPages;
use super::stored::Stored;
use super::{CheckpointBounds, Shard};
use crate::log::{
    CHUNKS, ExecutedRequest, HubCheckpoint, MessageRef, Offset, RequestKind, RequestPage, Time,
};
use crate::session::SharedMessage;

/// Copies that are looked at in one step, and perhaps deleted in one write.
const LOOK_COPIES: usize = 4096;
/// Pages of requests that are deleted in one write.
const DELETE_PAGES: usize = 4096;
/// What a request takes in a page, in bytes, about.
const REQUEST_BYTES: usize = 36;

/// The rounds of a hub.
#[derive(Debug)]
pub(super) struct Rounds {
    bounds: CheckpointBounds,
    /// All chunks together, as stored.
    chunk_bytes: u64,
    /// Copies, and whether it is certain that they are there.
    messages: BTreeMap<MessageRef, bool>,
    /// How many requests are in each page; none if that is not certain.
    pages: BTreeMap<RequestPage, Option<usize>>,
    /// H of the last round that was done.
    applied: Option<Offset>,
    /// The first page of each kind that the stored hub's part has a use for.
    pages_from: [u64; 2],
    /// Rounds that have begun.
    number: u64,
    round: Option<Round>,
    /// Shards that have a write under way.
    writing: BTreeSet<usize>,
    shards: usize,
    /// When the last round was done, or the first step was taken.
    rests_since: Option<Time>,
    /// No round begins before, after a failure.
    retry_at: Option<Time>,
    /// Whether the log may hold records of rounds before this start.
    has_old_log: bool,
}

#[derive(Debug)]
struct Round {
    /// The state of the shard that had applied least when it began.
    hub: Option<HubAt>,
    /// V of each chunk that was visited.
    visited: Vec<Option<Offset>>,
    /// Names up to the end of the round before that sessions keep.
    kept: BTreeSet<MessageRef>,
    /// Shards whose sessions are all stored.
    done: BTreeSet<usize>,
    /// Copies up to here are kept or deleted.
    looked_up_to: Option<MessageRef>,
    /// The first page of each kind that the hub's part has a use for.
    pages_from: [u64; 2],
}

/// What belongs to no session, as of an offset.
#[derive(Debug)]
struct HubAt {
    applied: Offset,
    state: HubCheckpoint,
    pages: [RequestPages; 2],
}

/// What is left to do once all sessions are stored.
pub(super) enum Next {
    /// Nothing for now.
    Wait,
    /// Look again.
    More,
    Delete {
        messages: Vec<MessageRef>,
        pages: Vec<RequestPage>,
    },
    Pages(Vec<(RequestPage, Offset, Arc<Vec<ExecutedRequest>>)>),
    Hub(Offset, Box<HubCheckpoint>),
}

const KINDS: [RequestKind; 2] = [RequestKind::Plain, RequestKind::Repeatable];

impl Rounds {
    pub fn new(shards: usize, bounds: CheckpointBounds, applied: Option<Offset>, stored: Stored) -> Self {
        Self {
            bounds,
            chunk_bytes: stored.chunks.iter().map(|chunk| chunk.bytes).sum(),
            messages: stored.messages,
            pages: stored.pages,
            applied,
            pages_from: stored.pages_from,
            number: 0,
            round: None,
            writing: BTreeSet::new(),
            shards,
            rests_since: None,
            retry_at: None,
            has_old_log: applied.is_some(),
        }
    }

    /// H of the last round that was done.
    pub fn applied(&self) -> Option<Offset> {
        self.applied
    }

    pub fn is_in_round(&self) -> bool {
        self.round.is_some()
    }

    /// Which round is under way, or was last.
    pub fn number(&self) -> u64 {
        self.number
    }

    pub fn has_been_stepped(&mut self, now: Time) {
        self.rests_since.get_or_insert(now);
    }

    pub fn begin(&mut self) {
        self.number += 1;
        self.round = Some(Round {
            hub: None,
            visited: vec![None; usize::from(CHUNKS)],
            kept: BTreeSet::new(),
            done: BTreeSet::new(),
            looked_up_to: None,
            pages_from: [0; 2],
        });
    }

    /// Takes what belongs to no session from a shard that begins, if it has applied least.
    pub fn take_state(&mut self, shard: &Shard) {
        let (Some(round), Some(applied)) = (&mut self.round, shard.applied()) else { return };
        if round.hub.as_ref().is_none_or(|lowest| applied < lowest.applied) {
            let pages = KINDS.map(|kind| shard.state.requests().pages(kind).clone());
            round.hub = Some(HubAt { applied, state: shard.state.to_checkpoint(), pages });
        }
    }

    /// A chunk was visited at an offset. Messages that its sessions keep, and that have no copy yet, are to be copied.
    pub fn visited(
        &mut self,
        number: u64,
        chunk: usize,
        at: Offset,
        kept: Vec<Arc<SharedMessage>>,
        to_copy: &mut VecDeque<Arc<SharedMessage>>,
    ) {
        // One that has failed meanwhile leaves nothing behind.
        let Some(round) = self.round.as_mut().filter(|_| number == self.number) else { return };
        round.visited[chunk] = Some(at);
        for message in kept {
            let name = message.name();
            let has_copy = self.messages.get(&name) == Some(&true);
            if round.kept.insert(name) && !has_copy {
                self.messages.insert(name, false);
                to_copy.push_back(message);
            }
        }
    }

    /// A shard has visited chunks; all of them, perhaps, and it may have begun a write.
    pub fn visited_by(&mut self, number: u64, shard: usize, is_done: bool, writes: bool) {
        if writes {
            self.writing.insert(shard);
        }
        if let Some(round) = self.round.as_mut().filter(|_| is_done && number == self.number) {
            round.done.insert(shard);
        }
    }

    /// What a shard that has stored its sessions has to do next. It counts as writing from then on if it is to write.
    pub fn next(&mut self, shard: usize, write_bytes: usize) -> Next {
        let Some(round) = &mut self.round else { return Next::Wait };
        if !self.writing.is_empty() || round.done.len() < self.shards {
            return Next::Wait;
        }
        let Some(hub) = &round.hub else { return Next::Wait };
        let behind = round.looked_up_to.map_or(Bound::Unbounded, Bound::Excluded);
        let copies = self.messages.range((behind, Bound::Unbounded)).take(LOOK_COPIES);
        let copies: Vec<MessageRef> = copies.map(|(name, _)| *name).collect();
        if let Some(last) = copies.last() {
            round.looked_up_to = Some(*last);
            let messages: Vec<_> = copies.into_iter().filter(|name| !round.kept.contains(name)).collect();
            if messages.is_empty() {
                return Next::More;
            }
            self.writing.insert(shard);
            return Next::Delete { messages, pages: Vec::new() };
        }
        let is_over = |page: &&RequestPage| page.number < self.pages_from[page.kind as usize];
        let pages: Vec<RequestPage> = self.pages.keys().filter(is_over).take(DELETE_PAGES).copied().collect();
        if !pages.is_empty() {
            self.writing.insert(shard);
            return Next::Delete { messages: Vec::new(), pages };
        }
        let mut bytes = 0;
        let mut new = Vec::new();
        for (kind, pages) in KINDS.into_iter().zip(&hub.pages) {
            for number in pages.numbers().pages() {
                let page = RequestPage { kind, number };
                let Some(requests) = pages.page(number) else { continue };
                let is_there = self.pages.get(&page) == Some(&Some(requests.len()));
                if !is_there && bytes < write_bytes {
                    bytes += requests.len() * REQUEST_BYTES;
                    new.push((page, hub.applied, Arc::clone(requests)));
                }
            }
        }
        self.writing.insert(shard);
        if !new.is_empty() {
            return Next::Pages(new);
        }
        let Some(HubAt { applied, mut state, pages }) = round.hub.take() else { return Next::Wait };
        round.pages_from = pages.map(|pages| pages.numbers().pages().start);
        state.covers = round.visited.iter().map(|visited| visited.unwrap_or(applied)).collect();
        Next::Hub(applied, Box::new(state))
    }

    pub fn written_by(&mut self, shard: usize) {
        self.writing.remove(&shard);
    }

    /// A write has failed, surely or perhaps.
    pub fn fail(&mut self, now: Time) {
        self.round = None;
        self.retry_at = Some(now.plus_ms(self.bounds.retry_ms));
    }

    pub fn chunk_changed(&mut self, from_bytes: u64, to_bytes: u64) {
        self.chunk_bytes = self.chunk_bytes - from_bytes + to_bytes;
    }

    pub fn copied(&mut self, messages: Vec<MessageRef>, is_stored: bool) {
        self.messages.extend(messages.into_iter().map(|name| (name, is_stored)));
    }

    pub fn deleted(&mut self, messages: Vec<MessageRef>, pages: Vec<RequestPage>, is_stored: bool) {
        if !is_stored {
            self.copied(messages, false);
            return self.pages.extend(pages.into_iter().map(|page| (page, None)));
        }
        for name in messages {
            self.messages.remove(&name);
        }
        for page in pages {
            self.pages.remove(&page);
        }
    }

    pub fn pages_written(&mut self, pages: Vec<(RequestPage, usize)>, is_stored: bool) {
        self.pages.extend(pages.into_iter().map(|(page, len)| (page, is_stored.then_some(len))));
    }

    /// The hub's part is stored. Returns how far the log may be trimmed.
    pub fn done(&mut self, now: Time, applied: Offset) -> Option<Offset> {
        if let Some(round) = self.round.take() {
            self.pages_from = round.pages_from;
        }
        self.rests_since = Some(now);
        self.has_old_log = false;
        self.applied.replace(applied).map(|last| Offset(last.0 + 1))
    }

    /// `began_at_bytes` is what a shard had applied when the last round began, and the one before it.
    pub fn is_due(&self, now: Time, applied_bytes: u64, began_at_bytes: [u64; 2]) -> bool {
        if self.retry_at.is_some_and(|at| now < at) {
            return false;
        }
        let [last, _] = began_at_bytes;
        let rest_ms = self.rest_ms(applied_bytes, last);
        let has_rested = self.rests_since.is_some_and(|since| now >= since.plus_ms(rest_ms));
        let whole = self.chunk_bytes.saturating_mul(self.bounds.log_bytes_per_state_byte);
        let has_grown = applied_bytes - last >= self.bounds.log_bytes_min.max(whole);
        has_grown || (has_rested && self.holds_much(applied_bytes, began_at_bytes))
    }

    /// Until when the log may hold what it holds; none if that is not too much.
    pub fn rests_until(&self, applied_bytes: u64, began_at_bytes: [u64; 2]) -> Option<Time> {
        let since = self.rests_since.filter(|_| self.holds_much(applied_bytes, began_at_bytes))?;
        let at = since.plus_ms(self.rest_ms(applied_bytes, began_at_bytes[0]));
        Some(self.retry_at.map_or(at, |retry_at| retry_at.max(at)))
    }

    /// How long after a round the next one waits when the log holds too much. If nothing has come since that one began, not
    /// at all: it costs little, and lets go of everything before.
    fn rest_ms(&self, applied_bytes: u64, last: u64) -> u64 {
        let is_at_rest = last > 0 && applied_bytes == last;
        if is_at_rest { 0 } else { self.bounds.rest_ms }
    }

    /// Whether the log holds more than a hub at rest should.
    fn holds_much(&self, applied_bytes: u64, [_, before]: [u64; 2]) -> bool {
        let held = applied_bytes - before;
        self.has_old_log || held > self.bounds.rest_log_bytes_min.max(self.chunk_bytes)
    }
}
