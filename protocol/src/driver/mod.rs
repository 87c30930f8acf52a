//! What happens around a shard, in plain calls: what goes in, what is to be done, and in which order.
//!
//! Whoever runs a hub moves bytes and time, and makes these calls. The gateway does so with tasks and channels, the
//! simulation with one loop, so both run the same driver.
//!
//! | file | holds |
//! |---|---|
//! | `shard.rs` | a shard's turns, its appends, its start and its end |

mod shard;

pub use shard::{Appending, Folded, ShardDriver, ShardOutput};
