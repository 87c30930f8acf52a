//! From checkpoints and a log back to shards.
//!
//! ```text
//! log      first ................ applied | ............. covers .......... end
//! read     names of messages are resolved, in one pass from the first that is missing
//! folded                                  | by `apply`, as always; a chunk's sessions from what it covers on
//! ```
//! First every part of the checkpoint is loaded, in any order; then records are read until every message that a session
//! keeps is there; then the shards are ready to fold the rest. How many shards there are may have changed meanwhile.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use super::checkpoint::Covered;
use super::messages::message_of;
use super::state::HubState;
use super::stored::Stored;
use super::{CheckpointBounds, Checkpointer, HubSettings, Shard, ShardId};
use crate::log::{
    BootId, CheckpointError, CheckpointKey, ChunkCheckpoint, ExecutedRequest, HubCheckpoint,
    MessageCheckpoint, MessageRef, Offset, Record, RequestPage, decode_requests,
};
use crate::session::{MemoryBudget, Session, SharedMessage};

/// Takes in the parts of a hub's checkpoint.
#[derive(Debug)]
pub struct Restoring {
    hub: Option<(Offset, HubCheckpoint)>,
    chunks: BTreeMap<u16, (Offset, ChunkCheckpoint)>,
    messages: BTreeMap<MessageRef, Bytes>,
    requests: BTreeMap<RequestPage, Arc<Vec<ExecutedRequest>>>,
    stored: Stored,
}

/// Looks for the messages that sessions keep.
#[derive(Debug)]
pub struct Resolving {
    shards: Vec<(Shard, Wanted)>,
    hub: Option<(Offset, HubCheckpoint)>,
    chunks: BTreeMap<u16, (Offset, ChunkCheckpoint)>,
    requests: BTreeMap<RequestPage, Arc<Vec<ExecutedRequest>>>,
    stored: Stored,
}

/// A hub as it was when its checkpoint was made.
#[derive(Debug)]
pub struct Restored {
    /// In the order of their indexes.
    pub shards: Vec<Shard>,
    /// Knows what is stored.
    pub checkpointer: Checkpointer,
    /// The shards fold the log from behind this offset; all of it when there is none.
    pub applied: Option<Offset>,
}

impl Default for Restoring {
    fn default() -> Self {
        Self {
            hub: None,
            chunks: BTreeMap::new(),
            messages: BTreeMap::new(),
            requests: BTreeMap::new(),
            stored: Stored::nothing(),
        }
    }
}

impl Restoring {
    /// Takes in one part.
    ///
    /// # Errors
    /// When it cannot be read: the hub must not be used then.
    pub fn load(&mut self, key: &str, covers: Offset, bytes: Bytes) -> Result<(), CheckpointError> {
        match CheckpointKey::parse(key).ok_or(CheckpointError::Invalid("key"))? {
            CheckpointKey::Hub => {
                let hub = HubCheckpoint::decode(bytes, covers)?;
                self.stored.note_requests(&hub.requests);
                self.hub = Some((covers, hub));
            }
            CheckpointKey::Chunk(chunk) => {
                self.stored.note_chunk(chunk, &bytes);
                self.chunks.insert(chunk, (covers, ChunkCheckpoint::decode(bytes)?));
            }
            CheckpointKey::Requests(page) => {
                let requests = decode_requests(page.kind, bytes)?;
                self.stored.note_page(page, requests.len());
                self.requests.insert(page, Arc::new(requests));
            }
            CheckpointKey::Message(name) => {
                self.stored.note_message(name);
                self.messages.insert(name, bytes);
            }
        }
        Ok(())
    }

    /// Everything is loaded. `end` is the end of the log: a checkpoint that covers more belongs to another one.
    ///
    /// # Errors
    /// When a part cannot be read, or covers or names more than there is.
    pub fn resolve(
        self,
        settings: &HubSettings,
        shards: u16,
        boot: BootId,
        budget: &Arc<MemoryBudget>,
        end: Offset,
    ) -> Result<Resolving, CheckpointError> {
        let Self { hub, chunks, messages, requests, stored } = self;
        if covered(hub.as_ref(), &chunks).last().is_some_and(|last| last >= end) {
            return Err(CheckpointError::AheadOfLog);
        }
        let new_shard = |index| {
            let id = ShardId { index, count: shards };
            let shard = Shard::new(settings.clone(), id, boot, Arc::clone(budget));
            let its_own = chunks.iter().filter(|(chunk, _)| id.owns_chunk(**chunk));
            let sessions = its_own.flat_map(|(_, (_, chunk))| &chunk.sessions);
            let names = sessions.flat_map(|session| session.unacknowledged.iter().map(|(_, name)| *name));
            let names: Vec<MessageRef> = names.collect();
            if names.iter().any(|name| name.offset >= end) {
                return Err(CheckpointError::AheadOfLog);
            }
            let wanted = Wanted::new(names, &messages, &shard.budget)?;
            Ok((shard, wanted))
        };
        let shards = (0..shards.max(1)).map(new_shard).collect::<Result<_, CheckpointError>>()?;
        Ok(Resolving { shards, hub, chunks, requests, stored })
    }
}

impl Resolving {
    /// Where in the log the first message is that is missing; none when all are there.
    pub fn next(&self) -> Option<Offset> {
        self.shards.iter().filter_map(|(_, wanted)| wanted.first_missing()).map(|name| name.offset).min()
    }

    /// Takes a record from the log, in its order.
    pub fn read(&mut self, offset: Offset, record: &Record) {
        for (shard, wanted) in &mut self.shards {
            wanted.read(offset, record, &shard.budget);
        }
    }

    /// All messages are there.
    ///
    /// # Errors
    /// When one is not: the hub must not be used then.
    pub fn finish(self, bounds: CheckpointBounds) -> Result<Restored, CheckpointError> {
        if self.next().is_some() {
            return Err(CheckpointError::MissingMessage);
        }
        let Self { shards, hub, chunks, requests, stored } = self;
        let mut restored = Vec::with_capacity(shards.len());
        let mut wanted = Vec::with_capacity(shards.len());
        for (mut shard, its_own) in shards {
            let covered = covered(hub.as_ref(), &chunks);
            let state = match &hub {
                Some((applied, hub)) => HubState::restore(*applied, hub, |page| requests.get(&page).cloned())
                    .ok_or(CheckpointError::Invalid("list of requests"))?,
                None => HubState::default(),
            };
            shard.restore(state, covered);
            restored.push(shard);
            wanted.push(its_own);
        }
        let count = restored.len();
        for (chunk, (_, stored)) in chunks {
            let index = usize::from(chunk) % count;
            for disconnected in stored.untold {
                restored[index].insert_untold(disconnected);
            }
            for mut session in stored.sessions {
                let (shard, wanted) = (&mut restored[index], &wanted[index]);
                let named = std::mem::take(&mut session.unacknowledged);
                let messages = named.into_iter().filter_map(|(id, name)| Some((id, wanted.get(name)?)));
                let (outbox, requests) = (shard.settings.outbox, shard.settings.requests);
                let session = Session::restore(session, messages, outbox, requests, &shard.budget);
                shard.insert(session);
            }
        }
        let applied = hub.map(|(applied, _)| applied);
        let checkpointer = Checkpointer::new(restored.len() as u16, bounds, applied, stored);
        Ok(Restored { shards: restored, checkpointer, applied })
    }
}

/// Up to where each chunk covers the log. What the hub's part says of a chunk holds for the sessions that were stored
/// then; those that were stored since say so themselves.
fn covered(
    hub: Option<&(Offset, HubCheckpoint)>,
    chunks: &BTreeMap<u16, (Offset, ChunkCheckpoint)>,
) -> Covered {
    let mut covered = Covered::nothing();
    for (covers, chunk) in hub.iter().flat_map(|(_, hub)| &hub.covers).zip(0..) {
        covered.note(chunk, *covers);
    }
    for (chunk, (covers, _)) in chunks {
        covered.note(*chunk, *covers);
    }
    covered
}

/// Messages that a shard's sessions keep.
#[derive(Debug)]
struct Wanted {
    /// Sorted, each once.
    names: Vec<MessageRef>,
    places: Places,
    found: Vec<Option<Arc<SharedMessage>>>,
    /// All before it are found.
    next: usize,
}

impl Wanted {
    fn new(
        mut names: Vec<MessageRef>,
        copies: &BTreeMap<MessageRef, Bytes>,
        budget: &Arc<MemoryBudget>,
    ) -> Result<Self, CheckpointError> {
        names.sort_unstable();
        names.dedup();
        let copy = |name: &MessageRef| {
            let Some(stored) = copies.get(name) else { return Ok(None) };
            let MessageCheckpoint { message, expires_at } = MessageCheckpoint::decode(stored.clone())?;
            Ok(Some(SharedMessage::new(*name, message, expires_at, budget)))
        };
        let found = names.iter().map(copy).collect::<Result<_, CheckpointError>>()?;
        let places = Places::of(&names);
        let mut wanted = Self { names, places, found, next: 0 };
        wanted.pass_over_found();
        Ok(wanted)
    }

    fn first_missing(&self) -> Option<MessageRef> {
        self.names.get(self.next).copied()
    }

    fn read(&mut self, offset: Offset, record: &Record, budget: &Arc<MemoryBudget>) {
        if self.first_missing().is_none_or(|name| name.offset > offset) {
            return;
        }
        let from = self.names.partition_point(|name| name.offset < offset);
        for at in from..self.names.len() {
            let name = self.names[at];
            if name.offset != offset {
                break;
            }
            if self.found[at].is_none() {
                self.found[at] = message_of(name, record, budget);
            }
        }
        self.pass_over_found();
    }

    fn pass_over_found(&mut self) {
        while self.found.get(self.next).is_some_and(Option::is_some) {
            self.next += 1;
        }
    }

    fn get(&self, name: MessageRef) -> Option<Arc<SharedMessage>> {
        let near = self.places.near(name)?;
        let at = near.start + self.names.get(near)?.binary_search(&name).ok()?;
        self.found[at].clone()
    }
}

/// Where to look for a name among sorted ones. Their offsets are divided into equal stretches, about as many as there are
/// names: many sessions may keep the same messages, and a search through all names for each would be felt.
#[derive(Debug)]
struct Places {
    first: Offset,
    /// A stretch has two to the power of this many offsets. Below 64: only several names span anything.
    stretch_bits: u32,
    /// Where the names of each stretch begin, and the end of the last one.
    begins: Vec<usize>,
}

impl Places {
    fn of(names: &[MessageRef]) -> Self {
        let first = names.first().map_or(Offset(0), |name| name.offset);
        let span = names.last().map_or(0, |name| name.offset.0 - first.0);
        let stretch_bits = u64::BITS - (span / names.len().max(1) as u64).leading_zeros();
        let mut places = Self { first, stretch_bits, begins: Vec::with_capacity(names.len() + 2) };
        for (at, name) in names.iter().enumerate() {
            let stretch = places.stretch(name.offset).unwrap_or_default();
            while places.begins.len() <= stretch {
                places.begins.push(at);
            }
        }
        places.begins.push(names.len());
        places
    }

    fn near(&self, name: MessageRef) -> Option<Range<usize>> {
        let stretch = self.stretch(name.offset)?;
        Some(*self.begins.get(stretch)?..*self.begins.get(stretch + 1)?)
    }

    fn stretch(&self, offset: Offset) -> Option<usize> {
        usize::try_from(offset.0.checked_sub(self.first.0)? >> self.stretch_bits).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(all: &[(u64, u32)]) -> Vec<MessageRef> {
        all.iter().map(|(offset, part)| MessageRef { offset: Offset(*offset), part: *part }).collect()
    }

    #[test]
    fn every_name_is_found_where_it_is_and_no_other() {
        let far = u64::MAX;
        let scattered: Vec<_> = (0..1000).map(|n: u64| (7 + n * n * n, (n % 3) as u32)).collect();
        for all in [
            &[][..],
            &[(5, 0)],
            &[(0, 0), (0, 1), (0, 2)],
            &[(1, 0), (2, 0), (3, 0), (3, 5), (9, 0)],
            &[(0, 0), (far, 0), (far, 1)],
            &[(far - 1, 0), (far, 0)],
            &scattered,
        ] {
            let names = names(all);
            let places = Places::of(&names);
            assert!(places.begins.len() <= names.len() + 2, "{all:?}");
            let find = |name| {
                let near: Range<usize> = places.near(name)?;
                Some(near.start + names[near].binary_search(&name).ok()?)
            };
            for (at, name) in names.iter().enumerate() {
                assert_eq!(find(*name), Some(at), "{all:?} {name:?}");
                assert_eq!(find(MessageRef { part: name.part + 7, ..*name }), None);
            }
            for offset in [0, 4, 6, 100, far / 2, far] {
                let name = MessageRef { offset: Offset(offset), part: 99 };
                assert_eq!(find(name), None, "{all:?} {offset}");
            }
        }
    }
}
