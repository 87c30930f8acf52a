//! Dialogues with one shard, one or more for each rule that concerns a hub.

mod bounds;
mod checkpoints;
mod commands;
mod determinism;
mod ends;
mod events;
mod failures;
mod fold;
mod folding;
mod harness;
mod hold_model;
mod marks;
mod nodes;
mod nodes_random;
mod random_log;
mod raw;
mod requests;
mod rounds;
mod sockets;
