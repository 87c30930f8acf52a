//! Dialogues with one shard, one or more for each rule that concerns a hub.

mod bounds;
mod failures;
mod harness;
mod requests;
mod sockets;
