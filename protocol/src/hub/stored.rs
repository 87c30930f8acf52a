//! What a store holds of a hub's checkpoints, as far as it is known.

use std::collections::BTreeMap;

use xxhash_rust::xxh3::xxh3_128;

use crate::log::{CHUNKS, ChunkCheckpoint, MessageRef, RequestPage, RequestsCheckpoint};

/// What is there.
#[derive(Debug)]
pub struct Stored {
    pub(super) chunks: Vec<StoredChunk>,
    /// Copies, and whether it is certain that they are there.
    pub(super) messages: BTreeMap<MessageRef, bool>,
    /// How many requests are in each page; none if that is not certain.
    pub(super) pages: BTreeMap<RequestPage, Option<usize>>,
    /// The first page of each kind that the hub's part has a use for.
    pub(super) pages_from: [u64; 2],
}

/// A chunk that is there.
#[derive(Debug, Clone, Copy)]
pub(super) struct StoredChunk {
    /// Unknown after a failure.
    pub hash: Option<u128>,
    pub bytes: u64,
}

impl Stored {
    /// A store without a checkpoint: as good as one with empty chunks.
    pub fn nothing() -> Self {
        let empty = StoredChunk::of(&ChunkCheckpoint::default().encode());
        let chunks = vec![empty; usize::from(CHUNKS)];
        Self { chunks, messages: BTreeMap::new(), pages: BTreeMap::new(), pages_from: [0; 2] }
    }

    /// Takes note of a chunk that is there.
    pub fn note_chunk(&mut self, chunk: u16, bytes: &[u8]) {
        if let Some(known) = self.chunks.get_mut(usize::from(chunk)) {
            *known = StoredChunk::of(bytes);
        }
    }

    /// Takes note of a copy that is there.
    pub fn note_message(&mut self, name: MessageRef) {
        self.messages.insert(name, true);
    }

    /// Takes note of which requests the hub's part that is there counts.
    pub fn note_requests(&mut self, requests: &RequestsCheckpoint) {
        self.pages_from = [requests.plain, requests.repeatable].map(|numbers| numbers.pages().start);
    }

    /// Takes note of a page that is there.
    pub fn note_page(&mut self, page: RequestPage, requests: usize) {
        self.pages.insert(page, Some(requests));
    }
}

impl StoredChunk {
    pub fn of(bytes: &[u8]) -> Self {
        Self { hash: Some(xxh3_128(bytes)), bytes: bytes.len() as u64 }
    }
}
