//! What happens around a shard and at its sockets, in plain calls: what goes in, what is to be done, and in which order.
//!
//! Whoever runs a hub moves bytes and time, and makes these calls. The gateway does so with tasks and channels, the
//! simulation with one loop, so both run the same driver.
//!
//! | file | holds |
//! |---|---|
//! | `shard.rs` | a shard's turns, its appends, its start and its end |
//! | `socket/reader.rs` | from frames to requests, and what a socket's end means |
//! | `socket/writer.rs` | from the outbox to the connection, pings, closing in good order |
//! | `socket/link.rs` | what a socket's reader and writer tell each other |
//! | `socket/frames.rs` | control frames |

mod shard;
pub mod socket;

pub use shard::{Appending, Folded, ShardDriver, ShardOutput};
