//! A published message in memory: one body for all its receivers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::log::Time;
use crate::wire::{Encoding, Message, SharedBody, encode_message};

/// Memory that live messages take, each counted once however many sessions hold it. Shared by all hubs of a process.
#[derive(Debug)]
pub struct MemoryBudget {
    used_bytes: AtomicUsize,
    bytes_max: usize,
}

impl MemoryBudget {
    /// A budget of this many bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self { used_bytes: AtomicUsize::new(0), bytes_max }
    }

    /// Bytes that live messages take now.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Whether more is used than the budget allows.
    pub fn is_exceeded(&self) -> bool {
        self.used_bytes() > self.bytes_max
    }
}

/// A message, encoded lazily and once per encoding, with the time after which it need not be sent any more.
#[derive(Debug)]
pub struct SharedMessage {
    message: Message,
    expires_at: Option<Time>,
    json: OnceLock<SharedBody>,
    protobuf: OnceLock<SharedBody>,
    raw: OnceLock<SharedBody>,
    budget: Arc<MemoryBudget>,
}

impl SharedMessage {
    /// Takes a message into memory and charges it to the budget until the last holder lets go; so is each encoding
    /// as it is made.
    pub fn new(message: Message, expires_at: Option<Time>, budget: &Arc<MemoryBudget>) -> Arc<Self> {
        let shared = Arc::new(Self {
            message,
            expires_at,
            json: OnceLock::new(),
            protobuf: OnceLock::new(),
            raw: OnceLock::new(),
            budget: Arc::clone(budget),
        });
        budget.used_bytes.fetch_add(shared.memory_bytes(), Ordering::Relaxed);
        shared
    }

    /// Payload and metadata, in bytes: what an outbox counts.
    pub fn content_bytes(&self) -> usize {
        self.message.payload.bytes.len() + self.message.metadata.bytes()
    }

    /// The payload alone, in bytes: what moves the sequence ids.
    pub fn payload_bytes(&self) -> usize {
        self.message.payload.bytes.len()
    }

    /// Whether its time-to-live is over.
    pub fn is_expired(&self, now: Time) -> bool {
        self.expires_at.is_some_and(|at| now >= at)
    }

    /// The part that all receivers of an encoding share.
    pub fn body(&self, encoding: Encoding) -> &SharedBody {
        let cell = match encoding {
            Encoding::Json => &self.json,
            Encoding::Protobuf => &self.protobuf,
            Encoding::Raw => &self.raw,
        };
        cell.get_or_init(|| {
            let body = encode_message(encoding, &self.message);
            self.budget.used_bytes.fetch_add(own_bytes(encoding, &body), Ordering::Relaxed);
            body
        })
    }

    fn memory_bytes(&self) -> usize {
        let encoded =
            [(Encoding::Json, &self.json), (Encoding::Protobuf, &self.protobuf), (Encoding::Raw, &self.raw)]
                .into_iter()
                .filter_map(|(encoding, cell)| Some(own_bytes(encoding, cell.get()?)));
        size_of::<Self>() + self.content_bytes() + encoded.sum::<usize>()
    }
}

/// A raw body is the payload itself; the others are copies.
fn own_bytes(encoding: Encoding, body: &SharedBody) -> usize {
    if encoding == Encoding::Raw { 0 } else { body.len() }
}

impl Drop for SharedMessage {
    fn drop(&mut self) {
        self.budget.used_bytes.fetch_sub(self.memory_bytes(), Ordering::Relaxed);
    }
}
