//! One session's state: what it may do, what it has executed, what waits for its client.
//!
//! A session does not know other sessions, sockets' bytes or the wall clock.

mod ack_window;
mod events;
mod kept_capacity;
mod marking;
mod memberships;
mod memory_budget;
mod outbox;
mod permissions;
mod recoveries;
mod reply;
mod requests;
mod sequence_ids;
#[expect(clippy::module_inception, reason = "the room is named after its one main type")]
mod session;
mod shared_message;
#[cfg(test)]
pub(crate) mod testing;
mod user_sessions;

pub use ack_window::{AckWindow, Seen};
pub use events::{CallAnswered, EventCall, SessionEvents};
pub use marking::{Marking, Unmarked};
pub use memberships::{MEMBERSHIP_BYTES, Memberships, group_name_bytes, may_be_in};
pub use memory_budget::{Charge, MemoryBudget, SessionCharge};
pub use outbox::{
    AttachEpoch, Closing, Outbox, OutboxLimits, Progress, RequestBounds, SentItem, SharedOutbox,
};
pub use permissions::{PermissionError, Permissions};
pub use recoveries::Recoveries;
pub use requests::{Begun, Outcome, Request, Requests, Settled, Slot};
pub use sequence_ids::SequenceIds;
pub use session::{GroupRoom, NextBatch, Phase, Session};
pub use shared_message::SharedMessage;
pub use user_sessions::{SessionLimits, UserPlace, UserSessions};
