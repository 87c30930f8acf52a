//! A shard's state as checkpoints hold it, and back.

use std::sync::Arc;

use super::Shard;
use super::state::HubState;
use crate::log::{CHUNKS, ChunkCheckpoint, Disconnected, Offset};
use crate::session::{Session, SharedMessage};

/// Up to where each chunk was restored. A record up to there is in its sessions already.
#[derive(Debug)]
pub struct Covered {
    /// None for a chunk of which no checkpoint was ever finished.
    chunks: Vec<Option<Offset>>,
    last: Option<Offset>,
}

impl Covered {
    /// Nothing is covered yet.
    pub fn nothing() -> Self {
        Self { chunks: vec![None; usize::from(CHUNKS)], last: None }
    }

    /// Takes note of a checkpoint of a chunk; the later one counts.
    pub fn note(&mut self, chunk: u16, covers: Offset) {
        if let Some(known) = self.chunks.get_mut(usize::from(chunk)) {
            *known = (*known).max(Some(covers));
            self.last = self.last.max(*known);
        }
    }

    /// Whether a chunk was restored with the effects of this offset.
    pub fn has(&self, chunk: u16, offset: Offset) -> bool {
        let covers = self.chunks.get(usize::from(chunk)).copied().flatten();
        covers >= Some(offset)
    }

    /// Whether all chunks were restored to less than this offset.
    pub fn is_behind(&self, offset: Offset) -> bool {
        self.last < Some(offset)
    }

    /// The last offset that some chunk covers.
    pub fn last(&self) -> Option<Offset> {
        self.last
    }
}

impl Shard {
    /// The sessions of a chunk in the order of their connection ids. Equal sessions give equal bytes.
    pub(super) fn chunk_to_checkpoint(&self, chunk: u16) -> ChunkCheckpoint {
        let mut sessions: Vec<_> = self.sessions_of(chunk).map(Session::to_checkpoint).collect();
        if self.state.is_shared() {
            // An end that is decided here is not one yet for others, and they restore this too.
            sessions.iter_mut().for_each(|session| session.ending = None);
        }
        sessions.sort_unstable_by(|a, b| a.identity.connection_id.cmp(&b.identity.connection_id));
        ChunkCheckpoint { sessions, untold: self.untold.of_chunk(chunk).cloned().collect() }
    }

    /// Visits the messages up to an offset that sessions of a chunk keep, each as often as a session keeps it.
    pub(super) fn for_each_message(
        &self,
        chunk: u16,
        up_to: Option<Offset>,
        mut visit: impl FnMut(&Arc<SharedMessage>),
    ) {
        for session in self.sessions_of(chunk).filter(|session| session.identity.subprotocol.is_reliable()) {
            let outbox = session.outbox.lock();
            let all = outbox.unacknowledged().map(|(_, message)| message);
            all.take_while(|message| Some(message.name().offset) <= up_to).for_each(&mut visit);
        }
    }

    fn sessions_of(&self, chunk: u16) -> impl Iterator<Item = &Session> {
        self.by_chunk.get(&chunk).into_iter().flatten().filter_map(|key| self.sessions.get(*key))
    }

    /// Goes on where a checkpoint was made: from a hub's part and the offset that it covers.
    pub(super) fn restore(&mut self, state: HubState, covered: Covered) {
        self.proposer.observe(state.time());
        self.state = state;
        self.covered = Some(covered);
    }

    /// Takes in one of which the application is still to be told.
    pub(super) fn insert_untold(&mut self, disconnected: Disconnected) {
        self.untold.insert(disconnected);
    }

    /// Whether its state is that of one offset, so that a checkpoint can be made of it.
    pub(super) fn is_caught_up(&self) -> bool {
        self.is_live && self.covered.is_none() && self.folding.effect.is_none()
    }
}
