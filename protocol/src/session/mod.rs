//! One session's state: what it may do, what it has executed, what waits for its client.
//!
//! A session does not know other sessions, sockets' bytes or the wall clock.

mod ack_window;
mod events;
mod kept_capacity;
mod marking;
mod memberships;
mod outbox;
mod permissions;
mod requests;
mod sequence_ids;
#[expect(clippy::module_inception, reason = "the room is named after its one main type")]
mod session;
mod shared_message;
#[cfg(test)]
pub(crate) mod testing;

pub use ack_window::{AckWindow, Seen};
pub use events::{CallAnswered, EventCall, SessionEvents};
pub use marking::{Marking, Unmarked};
pub use memberships::{Memberships, group_name_bytes};
pub use outbox::{AttachEpoch, Closing, Mark, Outbox, OutboxLimits, Progress, RequestBounds, SharedOutbox};
pub use permissions::{PermissionError, Permissions};
pub use requests::{Begun, Outcome, Request, Requests, Settled, Slot};
pub use sequence_ids::SequenceIds;
pub use session::{NextBatch, Phase, Session};
pub use shared_message::{MemoryBudget, SharedMessage};
