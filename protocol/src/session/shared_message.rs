//! A published message in memory: one body for all its receivers.

use std::sync::{Arc, OnceLock};

use super::MemoryBudget;
use crate::log::{MessageCheckpoint, MessageRef, Time};
use crate::wire::{Encoding, Message, Sender, SharedBody, allocated, encode_message};

/// A message, encoded lazily and once per encoding, with the time after which it need not be sent any more.
#[derive(Debug)]
pub struct SharedMessage {
    name: MessageRef,
    message: Message,
    expires_at: Option<Time>,
    /// What it takes in memory without its encodings.
    message_bytes: usize,
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
            message_bytes: memory_bytes(&message),
            message,
            expires_at,
            json: OnceLock::new(),
            protobuf: OnceLock::new(),
            raw: OnceLock::new(),
            budget: Arc::clone(budget),
        });
        budget.charge(shared.message_bytes);
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
            self.budget.charge_encoding(own_bytes(encoding, &body));
            body
        })
    }

    /// About what it takes in memory without its encodings, in bytes.
    pub fn message_bytes(&self) -> usize {
        self.message_bytes
    }

    /// About what its encodings take now, in bytes.
    pub fn encoded_bytes(&self) -> usize {
        let encodings =
            [(Encoding::Json, &self.json), (Encoding::Protobuf, &self.protobuf), (Encoding::Raw, &self.raw)];
        let made =
            encodings.into_iter().filter_map(|(encoding, cell)| Some(own_bytes(encoding, cell.get()?)));
        made.sum()
    }
}

fn memory_bytes(message: &Message) -> usize {
    let Message { sender, payload, metadata } = message;
    let names = match sender {
        Sender::Group { group, user_id } => {
            allocated(group.as_str().len())
                + user_id.as_ref().map_or(0, |user| allocated(user.as_str().len()))
        }
        Sender::Server => 0,
    };
    allocated(size_of::<SharedMessage>()) + names + allocated(payload.bytes.len()) + metadata.memory_bytes()
}

/// A raw body is the payload itself; the others are copies.
fn own_bytes(encoding: Encoding, body: &SharedBody) -> usize {
    if encoding == Encoding::Raw { 0 } else { allocated(body.len()) }
}

impl Drop for SharedMessage {
    fn drop(&mut self) {
        self.budget.give_back_encodings(self.encoded_bytes());
        self.budget.give_back(self.message_bytes);
    }
}
