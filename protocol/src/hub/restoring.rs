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
use std::sync::Arc;

use bytes::Bytes;

use super::apply::message_of;
use super::checkpoint::Covered;
use super::checkpointer::Stored;
use super::{CheckpointBounds, Checkpointer, Hub, HubSettings, Shard};
use crate::log::{
    BootId, CheckpointError, CheckpointKey, ChunkCheckpoint, HubCheckpoint, MessageCheckpoint, MessageRef,
    Offset, Record,
};
use crate::mutation::{Mutation, is_on};
use crate::session::{MemoryBudget, Session, SharedMessage};

/// Takes in the parts of a hub's checkpoint.
#[derive(Debug)]
pub struct Restoring {
    hub: Option<(Offset, HubCheckpoint)>,
    chunks: BTreeMap<u16, (Offset, ChunkCheckpoint)>,
    messages: BTreeMap<MessageRef, Bytes>,
    stored: Stored,
}

/// Looks for the messages that sessions keep.
#[derive(Debug)]
pub struct Resolving {
    shards: Vec<(Hub, Wanted)>,
    hub: Option<(Offset, HubCheckpoint)>,
    chunks: BTreeMap<u16, (Offset, ChunkCheckpoint)>,
    stored: Stored,
}

/// A hub as it was when its checkpoint was made.
#[derive(Debug)]
pub struct Restored {
    /// In the order of their indexes.
    pub shards: Vec<Hub>,
    /// Knows what is stored.
    pub checkpointer: Checkpointer,
    /// The shards fold the log from behind this offset; all of it when there is none.
    pub applied: Option<Offset>,
}

impl Default for Restoring {
    fn default() -> Self {
        Self { hub: None, chunks: BTreeMap::new(), messages: BTreeMap::new(), stored: Stored::nothing() }
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
                self.hub = Some((covers, HubCheckpoint::decode(bytes, covers)?));
            }
            CheckpointKey::Chunk(chunk) => {
                self.stored.note_chunk(chunk, &bytes);
                self.chunks.insert(chunk, (covers, ChunkCheckpoint::decode(bytes)?));
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
        let Self { hub, chunks, messages, stored } = self;
        if covered(hub.as_ref(), &chunks).last().is_some_and(|last| last >= end) {
            return Err(CheckpointError::AheadOfLog);
        }
        let new_shard = |index| {
            let shard = Shard { index, count: shards };
            let hub = Hub::new(settings.clone(), shard, boot, Arc::clone(budget));
            let its_own = chunks.iter().filter(|(chunk, _)| shard.owns_chunk(**chunk));
            let sessions = its_own.flat_map(|(_, (_, chunk))| &chunk.sessions);
            let names = sessions.flat_map(|session| session.unacknowledged.iter().map(|(_, name)| *name));
            let names: Vec<MessageRef> = names.collect();
            if names.iter().any(|name| name.offset >= end) {
                return Err(CheckpointError::AheadOfLog);
            }
            let wanted = Wanted::new(names, &messages, &hub.budget)?;
            Ok((hub, wanted))
        };
        let shards = (0..shards.max(1)).map(new_shard).collect::<Result<_, CheckpointError>>()?;
        Ok(Resolving { shards, hub, chunks, stored })
    }
}

impl Resolving {
    /// Where in the log the first message is that is missing; none when all are there.
    pub fn next(&self) -> Option<Offset> {
        self.shards.iter().filter_map(|(_, wanted)| wanted.first_missing()).map(|name| name.offset).min()
    }

    /// Takes a record from the log, in its order.
    pub fn read(&mut self, offset: Offset, record: &Record) {
        for (hub, wanted) in &mut self.shards {
            wanted.read(offset, record, &hub.budget);
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
        let Self { shards, hub, chunks, stored } = self;
        let mut restored = Vec::with_capacity(shards.len());
        let mut wanted = Vec::with_capacity(shards.len());
        for (mut shard, its_own) in shards {
            let covered = covered(hub.as_ref(), &chunks);
            shard.restore(hub.as_ref().map(|(applied, hub)| (*applied, hub)), covered);
            restored.push(shard);
            wanted.push(its_own);
        }
        let count = restored.len();
        for (chunk, (_, stored)) in chunks {
            let index = usize::from(chunk) % count;
            for disconnected in stored.untold.into_iter().filter(|_| !is_on(Mutation::UntoldNotRestored)) {
                restored[index].insert_untold(disconnected);
            }
            for mut session in stored.sessions {
                let (hub, wanted) = (&mut restored[index], &wanted[index]);
                let named = std::mem::take(&mut session.unacknowledged);
                let messages = named.into_iter().filter_map(|(id, name)| Some((id, wanted.get(name)?)));
                let (outbox, requests) = (hub.settings.outbox, hub.settings.requests);
                hub.insert_restored(Session::restore(session, messages, outbox, requests));
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
        let mut wanted = Self { names, found, next: 0 };
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
        let at = self.names.binary_search(&name).ok()?;
        self.found[at].clone()
    }
}
