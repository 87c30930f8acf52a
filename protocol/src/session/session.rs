//! One session: who it is, what it may do, what it has executed and what it waits for.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;

use super::events::{EventCall, SessionEvents};
use super::requests::known_ack_error;
use super::{
    AckWindow, AttachEpoch, Begun, Memberships, MemoryBudget, Outbox, OutboxLimits, Outcome, Permissions,
    Recoveries, RequestBounds, Requests, Seen, SessionCharge, SharedMessage, SharedOutbox, Slot, UserPlace,
};
use crate::log::{
    AckKey, Body, EndReason, Fingerprint, Hold, Offset, Opened, Permission, Proposer, Published, Record,
    SessionCheckpoint, SessionIdentity, Time, chunk_of,
};
use crate::wire::limits::GROUP_NAMES_BYTES_MAX;
use crate::wire::{
    AckError, AckId, Close, ConnectionId, Downstream, Encoding, ErrorName, GroupName, SequenceId, Upstream,
    UserId,
};

/// Everything that belongs to a connection id.
#[derive(Debug)]
pub struct Session {
    /// Who it is.
    pub identity: SessionIdentity,
    /// The offset of its `Opened` record, which marks name it by.
    pub number: Offset,
    /// Who has its socket and who proposes for it.
    pub hold: Hold,
    /// The chunk of checkpoints that it is in.
    pub chunk: u16,
    /// What it may do.
    pub permissions: Permissions,
    /// Groups that it is in.
    pub groups: Memberships,
    /// What it has executed.
    pub window: AckWindow,
    /// Requests on their way into the log.
    pub requests: Requests,
    /// What waits for its client.
    pub outbox: SharedOutbox,
    /// How long it waits for its client while detached, in seconds.
    pub retention_seconds: u32,
    /// When it expires; set while it is detached.
    pub expires_at: Option<Time>,
    /// Where it stands between its first and its last record.
    pub phase: Phase,
    /// What its event handlers are told and have noted.
    pub events: SessionEvents,
    /// Whether its client comes back in vain.
    pub recoveries: Recoveries,
    /// Among those of its user, where they are bounded.
    pub user_place: Option<UserPlace>,
    charge: SessionCharge,
}

/// ```text
/// Live --client closed, protocol violated, raw frame or event refused, socket of an unreliable session lost--> Finishing
/// Finishing --requests settled, or an event called--> Ending
/// Live, Finishing --overflow, shedding, expiry, stop--> Ending --`Ended` applied--> (gone)
/// ```
/// A session whose `Ended` fails to be appended stays in `Ending`: it is doomed, and the append is retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Open to requests and sockets.
    Live,
    /// Takes no more requests; ends when those it has are settled.
    Finishing(EndReason),
    /// Its end is being appended.
    Ending(EndReason),
}

impl Session {
    /// The session that an `Opened` record begins.
    pub fn new(
        opened: &Opened,
        hold: Hold,
        limits: OutboxLimits,
        bounds: RequestBounds,
        budget: &Arc<MemoryBudget>,
    ) -> Self {
        let mut outbox = Outbox::new(opened.identity.subprotocol, limits, bounds);
        outbox.charge_to(budget);
        let mut session = Self {
            identity: opened.identity.clone(),
            number: hold.attached,
            hold,
            chunk: chunk_of(&opened.identity.connection_id),
            permissions: Permissions::from_roles(&opened.roles),
            groups: opened.groups.iter().cloned().collect(),
            window: AckWindow::new(opened.ack_window_ids as usize),
            requests: Requests::default(),
            outbox: Arc::new(Mutex::new(outbox)),
            retention_seconds: opened.retention_seconds,
            expires_at: None,
            phase: Phase::Live,
            events: SessionEvents { state: opened.state.clone(), ..SessionEvents::default() },
            recoveries: Recoveries::default(),
            user_place: None,
            charge: SessionCharge::new(budget),
        };
        session.charge_state();
        session
    }

    /// Charges what the session keeps for as long as it lives, which has changed perhaps.
    pub fn charge_state(&mut self) {
        let state = self.events.state.as_ref().map_or(0, |state| state.0.len());
        let bytes = self.groups.memory_bytes()
            + self.permissions.memory_bytes()
            + self.window.memory_bytes()
            + self.identity.user_id.as_ref().map_or(0, |user_id| user_id.as_str().len())
            + state;
        self.charge.set(bytes);
    }

    /// What it keeps for as long as it lives, in bytes, about.
    pub fn state_bytes(&self) -> usize {
        self.charge.bytes()
    }

    /// The session as a checkpoint keeps it: what its records made of it. Of one that is not reliable the deliveries are
    /// left out, since the next boot ends it.
    pub fn to_checkpoint(&self) -> SessionCheckpoint {
        let is_reliable = self.identity.subprotocol.is_reliable();
        let outbox = self.outbox.lock();
        let messages = outbox.unacknowledged().filter(|_| is_reliable);
        SessionCheckpoint {
            identity: self.identity.clone(),
            join_leave: self.permissions.to_checkpoint(Permission::JoinLeaveGroup),
            send: self.permissions.to_checkpoint(Permission::SendToGroup),
            groups: self.groups.iter().cloned().collect(),
            ack_window_ids: u32::try_from(self.window.capacity()).unwrap_or(u32::MAX),
            executed: self.window.executed().collect(),
            retention_seconds: self.retention_seconds,
            unacknowledged: messages.map(|(id, message)| (id, message.name())).collect(),
            sequence_ids: if is_reliable { outbox.sequence_ids() } else { Default::default() },
            ending: match self.phase {
                Phase::Ending(reason) => Some(reason),
                Phase::Live | Phase::Finishing(_) => None,
            },
            state: self.events.state.clone(),
            boots: self.events.boots,
            number: self.number,
            hold: self.hold,
        }
    }

    /// The session that a checkpoint kept, without a socket. `unacknowledged` are the messages that it names.
    pub fn restore(
        stored: SessionCheckpoint,
        unacknowledged: impl Iterator<Item = (SequenceId, Arc<SharedMessage>)>,
        limits: OutboxLimits,
        bounds: RequestBounds,
        budget: &Arc<MemoryBudget>,
    ) -> Self {
        let SessionCheckpoint { identity, groups, retention_seconds, .. } = stored;
        let mut outbox =
            Outbox::restore(identity.subprotocol, limits, bounds, stored.sequence_ids, unacknowledged);
        outbox.charge_to(budget);
        if stored.ending.is_some() {
            outbox.free();
        }
        let mut session = Self {
            chunk: chunk_of(&identity.connection_id),
            number: stored.number,
            hold: stored.hold,
            identity,
            permissions: Permissions::restore(stored.join_leave, stored.send),
            groups: groups.into_iter().collect(),
            window: AckWindow::restore(stored.ack_window_ids as usize, &stored.executed),
            requests: Requests::default(),
            outbox: Arc::new(Mutex::new(outbox)),
            retention_seconds,
            expires_at: None,
            phase: stored.ending.map_or(Phase::Live, Phase::Ending),
            events: SessionEvents { state: stored.state, boots: stored.boots, counted: 0 },
            recoveries: Recoveries::default(),
            user_place: None,
            charge: SessionCharge::new(budget),
        };
        session.charge_state();
        session
    }

    /// Whether this socket is the attached one.
    pub fn is_attached_to(&self, epoch: AttachEpoch) -> bool {
        self.outbox.lock().is_current(epoch)
    }

    /// Turns the waiting requests into the next batch and returns its records. Every refusal is decided here, before
    /// the append, against applied state and the batch itself (R4).
    pub fn next_batch(&mut self, now: Time, proposer: &mut Proposer, room: GroupRoom) -> NextBatch {
        let is_raw = self.identity.subprotocol.encoding() == Encoding::Raw;
        let mut close = None;
        let Self { requests, identity, permissions, groups, window, outbox, .. } = self;
        let mut unmarked = Some(outbox);
        let judge = Judge {
            connection_id: &identity.connection_id,
            user_id: identity.user_id.as_ref(),
            permissions,
            window,
        };
        let mut pending = PendingGroups::new(groups);
        let Begun { records, call } = requests.next_batch(|message, ack_ids_in_batch| {
            if close.is_some() {
                return Slot::Answer(None);
            }
            let fingerprinted = |ack_id| AckKey { ack_id, fingerprint: Fingerprint::of(message) };
            let ack = message.ack_id().map(fingerprinted);
            let is_event = matches!(message, Upstream::Event { .. });
            if let Some(known) = ack.and_then(|ack| judge.known_ack_id(ack, ack_ids_in_batch)) {
                return known;
            }
            if is_event {
                return Slot::Call(ack);
            }
            let body = match judge.body(message) {
                Ok(body) => body,
                Err(answer) => {
                    close = is_raw.then(|| raw_refusal(message));
                    return Slot::Answer(answer);
                }
            };
            match message {
                Upstream::JoinGroup { group, .. } => {
                    if let Err(error) = pending.join(group, room) {
                        return Slot::Answer(judge.refusal(message, error));
                    }
                }
                Upstream::LeaveGroup { group, .. } => pending.leave(group),
                _ => {}
            }
            let (key, time) = proposer.next(now, ack);
            let sequence_ack = unmarked.take().and_then(|outbox| outbox.lock().take_mark());
            let record = Arc::new(Record { key, time, sequence_ack, body });
            Slot::Append { record, outcome: Outcome::Pending }
        });
        let call = call.and_then(|message| self.event_of(message));
        NextBatch { records, call, close }
    }
}

/// How many groups a session may be in.
#[derive(Debug, Clone, Copy)]
pub struct GroupRoom {
    /// Groups, those included that the application has put it into.
    pub groups_max: usize,
    /// Whether the gateway has memory for one more.
    pub has_memory: bool,
}

/// What [`Session::next_batch`] came to.
#[derive(Debug)]
pub struct NextBatch {
    /// The records to append.
    pub records: Vec<Arc<Record>>,
    /// The event whose handler is to be called.
    pub call: Option<EventCall>,
    /// How to close a raw client of which a frame was refused. Nothing that it sent after that frame is in the batch.
    pub close: Option<Close>,
}

/// A raw client has no acks: that a frame was refused is shown by closing.
fn raw_refusal(message: &Upstream) -> Close {
    match message {
        Upstream::SendToGroup { .. } => Close::RAW_SEND_FORBIDDEN,
        _ => Close::INTERNAL_ERROR,
    }
}

/// The groups that a session will be in once the batch so far is applied.
struct PendingGroups<'a> {
    applied: &'a Memberships,
    changes: BTreeMap<GroupName, bool>,
    len: usize,
    /// Bytes of their names.
    name_bytes: usize,
}

impl<'a> PendingGroups<'a> {
    fn new(applied: &'a Memberships) -> Self {
        let (len, name_bytes) = (applied.len(), applied.name_bytes());
        Self { applied, changes: BTreeMap::new(), len, name_bytes }
    }

    /// Takes a group in, if there is room or none is needed.
    fn join(&mut self, group: &GroupName, room: GroupRoom) -> Result<(), AckError> {
        let GroupRoom { groups_max, has_memory } = room;
        if self.contains(group) {
            return Ok(());
        }
        if !has_memory {
            return Err(short_of_memory());
        }
        if self.len >= groups_max {
            return Err(too_many_groups(groups_max));
        }
        let bytes = self.name_bytes + group.as_str().len();
        if bytes > GROUP_NAMES_BYTES_MAX {
            return Err(group_names_too_long());
        }
        self.changes.insert(group.clone(), true);
        self.len += 1;
        self.name_bytes = bytes;
        Ok(())
    }

    fn leave(&mut self, group: &GroupName) {
        if self.contains(group) {
            self.changes.insert(group.clone(), false);
            self.len -= 1;
            self.name_bytes -= group.as_str().len();
        }
    }

    fn contains(&self, group: &GroupName) -> bool {
        self.changes.get(group).copied().unwrap_or_else(|| self.applied.contains(group))
    }
}

/// Judges requests against a session's applied state.
struct Judge<'a> {
    connection_id: &'a ConnectionId,
    user_id: Option<&'a UserId>,
    permissions: &'a Permissions,
    window: &'a AckWindow,
}

impl Judge<'_> {
    /// The slot of a request whose ack id was executed, or is about to be.
    fn known_ack_id(&self, ack: AckKey, ack_ids_in_batch: &BTreeSet<AckId>) -> Option<Slot> {
        let AckKey { ack_id, fingerprint } = ack;
        match self.window.look_up(ack_id, fingerprint) {
            Seen::New if ack_ids_in_batch.contains(&ack_id) => Some(Slot::Repeat(ack)),
            Seen::New => None,
            seen => {
                let error = Some(known_ack_error(ack_id, seen));
                Some(Slot::Answer(Some(Downstream::Ack { ack_id, error })))
            }
        }
    }

    /// The record body of a request, or the answer to one that needs no record.
    fn body(&self, message: &Upstream) -> Result<Body, Option<Downstream>> {
        let connection_id = || self.connection_id.clone();
        match message {
            Upstream::JoinGroup { group, .. } => {
                self.require(message, Permission::JoinLeaveGroup, group, "join group")?;
                Ok(Body::Joined { connection_id: connection_id(), groups: vec![group.clone()] })
            }
            Upstream::LeaveGroup { group, .. } => {
                self.require(message, Permission::JoinLeaveGroup, group, "leave group")?;
                Ok(Body::Left { connection_id: connection_id(), groups: vec![group.clone()] })
            }
            Upstream::SendToGroup { group, payload, metadata, no_echo, ttl_seconds, .. } => {
                self.require(message, Permission::SendToGroup, group, "send to group")?;
                Ok(Body::Published(Published {
                    publisher: Some(connection_id()),
                    user_id: self.user_id.cloned(),
                    groups: vec![group.clone()],
                    no_echo: *no_echo,
                    ttl_seconds: *ttl_seconds,
                    payload: payload.clone(),
                    metadata: metadata.clone(),
                }))
            }
            Upstream::GroupState { .. } => Err(self.refusal(message, not_offered("Group state"))),
            Upstream::Invoke { invocation_id, .. } => Err(Some(Downstream::InvokeFailed {
                invocation_id: invocation_id.clone(),
                error: not_offered("Invocations"),
            })),
            // Its client waits for the ack that it asked for, and would do so for ever.
            Upstream::Stream { ack_id: Some(_), .. } => Err(self.refusal(message, not_offered("Streams"))),
            Upstream::Stream { stream_id, .. } => Err(Some(Downstream::StreamClosed {
                stream_id: stream_id.clone(),
                error: not_offered("Streams"),
            })),
            // Events have been given to their handler.
            Upstream::Event { .. }
            | Upstream::CancelInvocation { .. }
            | Upstream::SequenceAck { .. }
            | Upstream::Ping => Err(None),
        }
    }

    fn require(
        &self,
        message: &Upstream,
        permission: Permission,
        group: &GroupName,
        verb: &str,
    ) -> Result<(), Option<Downstream>> {
        if self.permissions.allows(permission, group) {
            return Ok(());
        }
        let message_text = format!("The client does not have permission to {verb} '{group}'.");
        Err(self.refusal(message, AckError { name: ErrorName::Forbidden, message: message_text }))
    }

    /// An ack with an error; silence when the client wants no ack.
    fn refusal(&self, message: &Upstream, error: AckError) -> Option<Downstream> {
        message.ack_id().map(|ack_id| Downstream::Ack { ack_id, error: Some(error) })
    }
}

fn not_offered(what: &str) -> AckError {
    AckError { name: ErrorName::BadRequest, message: format!("{what}: not offered by this gateway.") }
}

/// The client may try again under the same ack id.
fn short_of_memory() -> AckError {
    let message = "The gateway is short of memory: no group can be joined now.".to_owned();
    AckError { name: ErrorName::InternalServerError, message }
}

fn too_many_groups(groups_max: usize) -> AckError {
    AckError {
        name: ErrorName::BadRequest,
        message: format!(
            "The connection is already in {groups_max} groups, the most that the gateway allows."
        ),
    }
}

fn group_names_too_long() -> AckError {
    let message = format!(
        "The names of the connection's groups would take more than {GROUP_NAMES_BYTES_MAX} bytes, the most that the \
         gateway allows."
    );
    AckError { name: ErrorName::BadRequest, message }
}
