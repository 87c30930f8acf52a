//! One shard of a hub: its sessions, the group index, timers, fan-out.
//!
//! A shard folds its hub's whole log but keeps only the sessions that it owns (see [`ShardId`]). It knows no async, no
//! threads, no stores and no HTTP: the driver calls [`Shard::handle`] with one input, then drains
//! [`Shard::poll_output`] and calls [`Shard::wake_writers`]. While [`Shard::has_waiting`], it brings [`Input::GoOn`] in each turn.
//!
//! | file | holds |
//! |---|---|
//! | `input.rs` | what goes in and comes out |
//! | `apply.rs` | the one fold (R11) |
//! | `folding.rs` | records one after the other, in portions between which others are served |
//! | `effect.rs` | the effect of one record on many sessions, in portions |
//! | `choosing.rs` | whom a selection means |
//! | `selecting.rs` | what is asked about sessions |
//! | `nodes.rs` | the gateways that share the log, and who leads |
//! | `state.rs` | what all shards of a hub know alike, and which records take effect |
//! | `members.rs` | by what sessions are found |
//! | `messages.rs` | from a record to the messages that it makes |
//! | `settling.rs` | what a shard's own records have come to, for those who wait for them |
//! | `owner.rs` | what the live owner alone decides: opening, closing, expiry, retries |
//! | `shedding.rs` | sessions that end for memory |
//! | `commands.rs` | what the application asks the owner for |
//! | `marks.rs` | sequence acks on their way into the log |
//! | `handling.rs` | what goes to the application's event handlers, and comes back |
//! | `holding.rs` | sessions that move between gateways which share the log |
//! | `request_window.rs` | which requests of the application were executed already |
//! | `request_pages.rs` | them in pages, which checkpoints store |
//! | `timer.rs` | all timers |
//! | `repeats.rs` | which appends were applied already |
//! | `checkpoint.rs` | a shard's state as checkpoints hold it |
//! | `checkpointer.rs` | rounds: what is written when, and how far the log may be trimmed |
//! | `rounds.rs` | what shards know together of their rounds |
//! | `stored.rs` | what a store holds of checkpoints |
//! | `restoring.rs` | from checkpoints and a log back to shards |

mod apply;
mod checkpoint;
mod checkpointer;
mod choosing;
mod commands;
mod effect;
mod folding;
mod handling;
mod holding;
mod input;
mod marks;
mod members;
mod messages;
mod nodes;
mod owner;
mod repeats;
mod request_pages;
mod request_window;
mod restoring;
mod rounds;
mod selecting;
mod settling;
mod shedding;
mod state;
mod stored;
#[cfg(test)]
mod tests;
mod timer;

pub use checkpointer::{CheckpointBounds, Checkpointer, Step};
pub use commands::{Action, Command, Done, MEMBERSHIPS_PER_REQUEST_MAX};
pub use folding::FOLD_STEPS_MAX;
pub use handling::{CallId, Connected, EventError, Handled, UNTOLD_MAX, UserEvent};
pub use input::{
    AppendId, Attachment, CommandError, CommandId, Input, NewSession, OpenError, OpenId, Opening, Output,
    Resuming, SessionEnded, SessionHandle, SocketEnd,
};
pub use marks::{MARK_MS, MARKS_PER_RECORD_MAX};
pub use restoring::{Resolving, Restored, Restoring};
pub use selecting::Member;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::sync::Arc;
use std::task::Waker;

use indexmap::IndexMap;
use slotmap::{SlotMap, new_key_type};

use crate::log::{BootId, Offset, Proposer, Record, RequestName, Time, chunk_of};
use crate::session::{MemoryBudget, OutboxLimits, RequestBounds, Session, SessionLimits, SharedOutbox};
use crate::wire::{ConnectionId, GroupName, UserId};
use checkpoint::Covered;
use folding::Folding;
use handling::Untold;
use holding::Moving;
use marks::Marks;
use owner::{Expired, Proposal};
use state::HubState;
use timer::Timers;

new_key_type! {
    /// A session's place in its shard, guarded against reuse.
    pub struct SessionKey;
}

/// Which of a hub's shards this is. A session belongs to the shard that its chunk belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardId {
    /// From 0.
    pub index: u16,
    /// At least 1.
    pub count: u16,
}

impl ShardId {
    /// A hub in one piece.
    pub const WHOLE: Self = Self { index: 0, count: 1 };

    /// The index of the shard that a session belongs to.
    pub fn of(connection_id: &ConnectionId, count: u16) -> u16 {
        chunk_of(connection_id) % count.max(1)
    }

    /// Whether the sessions of a chunk belong to this shard.
    pub fn owns_chunk(self, chunk: u16) -> bool {
        chunk % self.count.max(1) == self.index
    }

    fn owns(self, connection_id: &ConnectionId) -> bool {
        self.owns_chunk(chunk_of(connection_id))
    }
}

/// A hub's settings. Those that the fold depends on are copied into each session's `Opened` record.
#[derive(Debug, Clone)]
pub struct HubSettings {
    /// Bounds on what waits for a client.
    pub outbox: OutboxLimits,
    /// Bounds on what a socket may have pending.
    pub requests: RequestBounds,
    /// Executed ack ids that a new session remembers.
    pub ack_window_ids: u32,
    /// How long a new session waits for its client while detached, in seconds.
    pub session_retention_seconds: u32,
    /// How many sessions there may be.
    pub sessions: SessionLimits,
    /// Groups that a session may be in.
    pub groups_per_session_max: usize,
    /// Whether a session ends when one of its user events is not handled. One of a raw client does in any case.
    pub closes_on_event_failure: bool,
}

/// Members in the order that fan-out visits them; the outbox is at hand without a look at the session.
type Members = IndexMap<SessionKey, SharedOutbox, BuildHasherDefault<DefaultHasher>>;

/// One shard of one hub. See the module.
#[derive(Debug)]
pub struct Shard {
    settings: HubSettings,
    id: ShardId,
    budget: Arc<MemoryBudget>,
    proposer: Proposer,
    /// Set when the record that begins this boot has been applied, and as long as the boot is not gone: only then does the
    /// shard decide anything (R5).
    is_live: bool,
    state: HubState,
    /// Set until what was restored from checkpoints is caught up with.
    covered: Option<Covered>,
    sessions: SlotMap<SessionKey, Session>,
    by_connection_id: BTreeMap<ConnectionId, SessionKey>,
    by_number: BTreeMap<Offset, SessionKey>,
    by_chunk: BTreeMap<u16, BTreeSet<SessionKey>>,
    groups: BTreeMap<GroupName, Members>,
    users: BTreeMap<UserId, BTreeSet<SessionKey>>,
    /// Requests of the application that are being appended, with the commands that repeat them.
    pending_requests: BTreeMap<RequestName, Vec<CommandId>>,
    /// Records beside the sessions' batches whose append has no known outcome.
    proposals: BTreeMap<u64, Proposal>,
    expired: Expired,
    folding: Folding,
    timers: Timers,
    marks: Marks,
    /// Whether a handler of the application takes `disconnected` events.
    takes_disconnected: bool,
    untold: Untold,
    moving: Moving,
    /// The session that was ended last since memory was short; none is ended while it is still there.
    shedding: Option<SessionKey>,
    /// Sessions whose outbox went over its limits.
    overflowed: Vec<SessionKey>,
    outputs: VecDeque<Output>,
    woken: Vec<Waker>,
}

impl Shard {
    /// A shard that has folded nothing yet. It takes no socket before this boot's `Booted` record has come back.
    pub fn new(settings: HubSettings, id: ShardId, boot: BootId, budget: Arc<MemoryBudget>) -> Self {
        Self {
            settings,
            id,
            budget: budget.part(),
            proposer: Proposer::new(boot, id.index),
            is_live: false,
            state: HubState::default(),
            covered: None,
            sessions: SlotMap::with_key(),
            by_connection_id: BTreeMap::new(),
            by_number: BTreeMap::new(),
            by_chunk: BTreeMap::new(),
            groups: BTreeMap::new(),
            users: BTreeMap::new(),
            pending_requests: BTreeMap::new(),
            proposals: BTreeMap::new(),
            expired: Expired::default(),
            folding: Folding::default(),
            timers: Timers::default(),
            marks: Marks::default(),
            takes_disconnected: false,
            untold: Untold::new(&budget),
            moving: Moving::default(),
            shedding: None,
            overflowed: Vec::new(),
            outputs: VecDeque::new(),
            woken: Vec::new(),
        }
    }

    /// The record that begins a boot. The driver appends it once for each hub, when all shards have folded what was in
    /// the log before, and before any other input; `now` is the hub's time (see [`HubTime`](crate::log::HubTime)).
    /// `takes_disconnected` tells whether the application is told of the sessions that it ends.
    pub fn booted(boot: BootId, now: Time, takes_disconnected: bool) -> Record {
        Record {
            key: Proposer::first_key(boot),
            time: now,
            sequence_ack: None,
            body: crate::log::Body::Booted { takes_disconnected, ends_all: false },
        }
    }

    /// The same for a log that is a copy: all sessions end.
    pub fn booted_from_copy(boot: BootId, now: Time, takes_disconnected: bool) -> Record {
        let body = crate::log::Body::Booted { takes_disconnected, ends_all: true };
        Record { body, ..Self::booted(boot, now, takes_disconnected) }
    }

    /// Takes one input. From this boot's `Booted` record on `now` is the hub's time, which never goes backwards and is
    /// never behind the log; before, it is of no effect.
    pub fn handle(&mut self, now: Time, input: Input) {
        match input {
            Input::Open(opening) => self.open(now, *opening),
            Input::Resume(resuming) => self.resume(now, resuming),
            Input::Requests { session, requests } => self.take_requests(now, session, requests),
            Input::SocketClosed { session, end } => self.socket_closed(now, session, end),
            Input::Command(command) => self.command(now, *command),
            Input::Records(records) => self.take_records(now, records),
            Input::GoOn => self.fold(now),
            Input::Called { call, answer } => self.called(now, call, answer),
            Input::Told(connection_ids) => self.told(now, connection_ids),
            Input::TakesDisconnected(takes_disconnected) => self.takes_disconnected = takes_disconnected,
            Input::Acknowledged => self.acknowledged(now),
            Input::Stop => self.stop(now),
            Input::Leave => self.mark_all(now),
            Input::AppendFailed { append, certainty } => self.append_failed(now, append, certainty),
            Input::Gone(boot) => self.declare_gone(now, boot),
            Input::Timeout => self.fire_timers(now),
        }
        self.propose_releases(now);
    }

    /// The next thing for the driver to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// When [`Input::Timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.timers.next()
    }

    /// Wakes the writers of all sockets that have got something to write. Called after the outputs, so that many
    /// messages make one wake.
    pub fn wake_writers(&mut self) {
        self.woken.drain(..).for_each(Waker::wake);
    }

    /// Which shard this is.
    pub fn id(&self) -> ShardId {
        self.id
    }

    /// Whether the shard takes sockets.
    pub fn is_live(&self) -> bool {
        self.is_live
    }

    /// The last offset that has taken effect.
    pub fn applied(&self) -> Option<Offset> {
        // What has taken effect in part has not taken effect.
        self.folding.effect.as_ref().map_or(self.state.applied(), |effect| effect.before)
    }

    /// The latest time in the log, as far as it has taken effect.
    pub fn time(&self) -> Time {
        self.state.time()
    }

    /// Bytes of the records that were applied since it began or was restored, about.
    pub fn applied_bytes(&self) -> u64 {
        self.state.applied_bytes()
    }

    /// Whether this boot decides about a session: it has the socket, or waits for it, and proposes the session's records; or
    /// nobody holds it, and this boot leads.
    fn decides_for(&self, key: SessionKey) -> bool {
        let Some(session) = self.sessions.get(key).filter(|_| self.is_live) else { return false };
        match session.hold.holder {
            Some(_) => session.hold.is_all_of(self.proposer.boot()),
            None => self.leads(),
        }
    }

    /// Sessions, detached ones included.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Whom a session acts for that is there.
    pub fn user_of(&self, session: SessionHandle) -> Option<UserId> {
        self.sessions.get(session.key)?.identity.user_id.clone()
    }

    /// Whether it takes sockets, and nobody is there and nothing is under way: it may be closed, and goes on from its log.
    pub fn is_idle(&self) -> bool {
        self.is_live
            && self.sessions.is_empty()
            && self.untold() == 0
            && self.proposals.is_empty()
            && !self.is_moving()
            && !self.has_waiting()
    }
}
