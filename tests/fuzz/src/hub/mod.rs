//! A shard driven by any sequence of inputs, over a log that loses, delays and repeats appends, and clients that read
//! what they are sent.
//!
//! What has to hold is judged by [`truth`], a naive fold over the same log that shares no code with the shard: ids
//! stick and follow from the deliveries alone (R1, R2), nothing is sent or acknowledged before it is in the log (R3),
//! no request is executed or handled twice (R8), event handlers are told what the log says, an older socket counts for nothing (R6), bounds hold (R9). At the end everything
//! heals: all appends land, each session is resumed and has to get exactly what it is owed, and folds over the log in
//! any portions and in several shards have to come to the same (R11).

mod handlers;
mod replay;
mod socket;
mod steps;
mod truth;
mod world;

use arbitrary::{Arbitrary, Unstructured};
use oncewire_protocol::hub::HubSettings;
use oncewire_protocol::session::{OutboxLimits, RequestBounds, SessionLimits};

pub use replay::{BOOT, outcome};
use steps::Case;
use world::World;

/// Drives one shard as the bytes say.
pub fn hub(data: &[u8]) {
    let Ok(case) = Case::arbitrary_take_rest(Unstructured::new(data)) else { return };
    let mut world = World::new(&case.bounds);
    for step in case.steps {
        world.take(step);
    }
    world.heal();
    replay::check(&world.truth, case.cut);
    let budget = world.into_budget();
    assert_eq!(budget.used_bytes(), 0, "messages that nobody holds are charged to the budget");
}

/// Bounds that nothing in a small log reaches.
pub fn settings() -> HubSettings {
    HubSettings {
        outbox: OutboxLimits { messages_max: usize::MAX, bytes_max: usize::MAX },
        requests: RequestBounds { requests_max: 1024, request_bytes_max: 4 << 20, reply_bytes_max: 64 << 10 },
        ack_window_ids: 1000,
        session_retention_seconds: 60,
        sessions: SessionLimits::default(),
        groups_per_session_max: 100,
        closes_on_event_failure: false,
    }
}
