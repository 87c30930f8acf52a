//! A published message in memory: one body for all its receivers.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use crate::log::{MessageCheckpoint, MessageRef, Time};
use crate::wire::{Encoding, Message, SharedBody, encode_message};

/// Memory that live messages take, each counted once however many sessions hold it. Shared by all hubs of a process;
/// each shard charges its own part of it.
#[derive(Debug)]
pub struct MemoryBudget {
    used_bytes: AtomicUsize,
    bytes_max: usize,
    /// What may be used beyond that for a while; counted up to the budget itself.
    lent_bytes: AtomicUsize,
    /// Parts that are in use.
    parts: AtomicUsize,
    whole: Option<Arc<MemoryBudget>>,
}

impl MemoryBudget {
    /// A budget of this many bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self::within(bytes_max, None)
    }

    /// A part for one shard. What is charged to it is charged to the whole too.
    pub fn part(self: &Arc<Self>) -> Arc<Self> {
        self.parts.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self::within(self.bytes_max, Some(Arc::clone(self))))
    }

    /// Bytes that live messages take now.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Lets a part use more for a while: what it has brought back from its log, and which was allowed before.
    pub fn lend(&self, bytes: usize) {
        self.lent_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.whole.iter().for_each(|whole| whole.lend(bytes));
    }

    /// The while is over for a part.
    pub fn take_back(&self) {
        let lent = self.lent_bytes.swap(0, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.lent_bytes.fetch_sub(lent, Ordering::Relaxed);
        }
    }

    /// Bytes that may be used now.
    fn allowed_bytes(&self) -> usize {
        self.bytes_max.saturating_add(self.lent_bytes.load(Ordering::Relaxed).min(self.bytes_max))
    }

    /// Whether more is used than the budget allows. A part has to answer for it only while it uses more than an equal
    /// share: otherwise a shard at rest that holds everything would make the busy ones end all their sessions, and free
    /// nothing. So the process may come to use up to twice its budget.
    pub fn is_exceeded(&self) -> bool {
        match &self.whole {
            None => self.used_bytes() > self.allowed_bytes(),
            Some(whole) => {
                let parts = whole.parts.load(Ordering::Relaxed).max(1);
                whole.is_exceeded() && self.used_bytes() > whole.allowed_bytes() / parts
            }
        }
    }

    fn within(bytes_max: usize, whole: Option<Arc<Self>>) -> Self {
        Self {
            used_bytes: AtomicUsize::new(0),
            bytes_max,
            lent_bytes: AtomicUsize::new(0),
            parts: AtomicUsize::new(0),
            whole,
        }
    }

    fn charge(&self, bytes: usize) {
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.whole.iter().for_each(|whole| whole.charge(bytes));
    }

    fn give_back(&self, bytes: usize) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.whole.iter().for_each(|whole| whole.give_back(bytes));
    }
}

impl Drop for MemoryBudget {
    fn drop(&mut self) {
        self.take_back();
        if let Some(whole) = &self.whole {
            whole.parts.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A message, encoded lazily and once per encoding, with the time after which it need not be sent any more.
#[derive(Debug)]
pub struct SharedMessage {
    name: MessageRef,
    message: Message,
    expires_at: Option<Time>,
    json: OnceLock<SharedBody>,
    protobuf: OnceLock<SharedBody>,
    raw: OnceLock<SharedBody>,
    budget: Arc<MemoryBudget>,
}

impl SharedMessage {
    /// Takes a message into memory and charges it to the budget until the last holder lets go; so is each encoding
    /// as it is made. `name` tells where in the log it is.
    pub fn new(
        name: MessageRef,
        message: Message,
        expires_at: Option<Time>,
        budget: &Arc<MemoryBudget>,
    ) -> Arc<Self> {
        let shared = Arc::new(Self {
            name,
            message,
            expires_at,
            json: OnceLock::new(),
            protobuf: OnceLock::new(),
            raw: OnceLock::new(),
            budget: Arc::clone(budget),
        });
        budget.charge(shared.memory_bytes());
        shared
    }

    /// Where in the log it is.
    pub fn name(&self) -> MessageRef {
        self.name
    }

    /// What a checkpoint keeps.
    pub fn to_checkpoint(&self) -> MessageCheckpoint {
        MessageCheckpoint { message: self.message.clone(), expires_at: self.expires_at }
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
            self.budget.charge(own_bytes(encoding, &body));
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
        self.budget.give_back(self.memory_bytes());
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::wire::{Metadata, Payload, PayloadKind, Sender};

    fn message(bytes: usize, budget: &Arc<MemoryBudget>) -> Arc<SharedMessage> {
        let payload = Payload { kind: PayloadKind::Text, bytes: Bytes::from(vec![b'x'; bytes]) };
        let message = Message { sender: Sender::Server, payload, metadata: Metadata::default() };
        SharedMessage::new(MessageRef::default(), message, None, budget)
    }

    #[test]
    fn a_shard_at_rest_that_holds_the_whole_budget_does_not_make_others_shed() {
        let whole = Arc::new(MemoryBudget::new(10_000));
        let [at_rest, busy] = [whole.part(), whole.part()];
        let held = message(11_000, &at_rest);
        let small = message(100, &busy);
        assert!(whole.is_exceeded() && at_rest.is_exceeded());
        assert!(!busy.is_exceeded(), "freeing what it holds would be of no use");
        let large = message(5_000, &busy);
        assert!(busy.is_exceeded(), "more than an equal share");
        drop((held, large, small));
        assert_eq!([whole.used_bytes(), at_rest.used_bytes(), busy.used_bytes()], [0; 3]);
    }

    #[test]
    fn what_was_brought_back_may_be_kept_for_a_while() {
        let whole = Arc::new(MemoryBudget::new(10_000));
        let part = whole.part();
        let held = message(9_000, &part);
        part.lend(part.used_bytes());
        let more = message(9_000, &part);
        assert!(!part.is_exceeded());
        part.take_back();
        assert!(part.is_exceeded());
        drop((held, more));
    }

    #[test]
    fn no_more_is_lent_than_the_budget_itself() {
        let whole = Arc::new(MemoryBudget::new(10_000));
        let [one, other] = [whole.part(), whole.part()];
        one.lend(90_000);
        let held = message(21_000, &one);
        assert!(one.is_exceeded(), "twice the budget is the most");
        drop(one);
        let other_held = message(1_000, &other);
        drop(held);
        assert!(!whole.is_exceeded());
        drop(other_held);
        let too_much = message(10_000, &other);
        assert!(whole.is_exceeded(), "a part that is gone has nothing lent to it");
        drop(too_much);
    }

    #[test]
    fn parts_that_are_gone_have_no_share() {
        let whole = Arc::new(MemoryBudget::new(10_000));
        let part = whole.part();
        drop(whole.part());
        let held = message(9_000, &part);
        assert!(!part.is_exceeded());
        let more = message(2_000, &part);
        assert!(part.is_exceeded());
        drop((held, more));
    }
}
