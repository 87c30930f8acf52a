//! What the application asks for: checked, appended, and answered when it has taken effect.
//!
//! A request that has a key is executed once: what was executed is in the request window, what is being appended in
//! the set of pending requests, and a repetition of the latter waits for its outcome (R7, R8). Of a repeatable request a
//! refusal is appended too: an answer that was given once stays, whoever comes or goes meanwhile.

use std::collections::BTreeSet;

use super::owner::Purpose;
use super::request_window::{Known, of_id};
use super::{CommandError, CommandId, Output, SessionKey, Shard};
use crate::log::{Audience, Body, IdempotencyKey, Permission, Refusal, Selection, Sent, Time};
use crate::session::{MEMBERSHIP_BYTES, PermissionError, group_name_bytes};
use crate::wire::limits::GROUP_NAMES_BYTES_MAX;
use crate::wire::{ConnectionId, GroupName};

/// Memberships that one request may add: sessions times groups. It takes a second, in which all others of the hub wait.
pub const MEMBERSHIPS_PER_REQUEST_MAX: usize = 1_000_000;

/// Something that the application asks for.
#[derive(Debug)]
pub struct Command {
    /// The driver's name for it.
    pub command: CommandId,
    /// By what a repetition is recognised; none makes it a request of its own.
    pub request: Option<IdempotencyKey>,
    /// Whether another request under the same id is refused. It always is where the request is repeatable.
    pub is_strict: bool,
    /// What to do.
    pub action: Action,
}

/// What a command is about.
#[derive(Debug, Clone)]
pub enum Action {
    /// Send a message.
    Send(Sent),
    /// Put sessions into groups; an audience of one connection must exist.
    Add {
        /// The sessions.
        selection: Selection,
        /// At least one.
        groups: Vec<GroupName>,
    },
    /// Take sessions out of groups.
    Remove {
        /// The sessions.
        selection: Selection,
        /// All that they are in when there is none.
        groups: Vec<GroupName>,
    },
    /// Close sessions.
    Close {
        /// The sessions.
        selection: Selection,
        /// Why, for their clients.
        reason: String,
    },
    /// Grant or revoke.
    ChangeRule {
        /// The session.
        connection_id: ConnectionId,
        /// What it may or may not do.
        permission: Permission,
        /// With which group, taken literally.
        group: GroupName,
        /// Grant or revoke.
        allow: bool,
    },
    /// Nothing: what was asked for is refused already, unless it is a repetition.
    Refuse(Refusal),
}

/// That a command was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Done {
    /// Now.
    Executed,
    /// Before: it was a repetition, and changed nothing.
    Repeated,
}

impl Shard {
    pub(super) fn command(&mut self, now: Time, command: Command) {
        let Command { command, request, is_strict, action } = command;
        if !self.is_live {
            return self.done(command, Err(CommandError::Unavailable));
        }
        if let Some(key) = &request {
            if let Some(waiting) = self.pending_requests.get_mut(&key.name) {
                return waiting.push(command);
            }
            let is_strict = is_strict || key.is_repeatable();
            let has_other_pending = || of_id(&self.pending_requests, key.name.id).next().is_some();
            let outcome = match self.state.requests().look_up(key, self.proposer.last_time().max(now)) {
                Known::Repetition(None) => Some(Ok(Done::Repeated)),
                Known::Repetition(Some(refusal)) => Some(Err(refusal.into())),
                Known::OtherRequest if is_strict => Some(Err(CommandError::OtherRequest)),
                Known::PerhapsForgotten => Some(Err(CommandError::PerhapsForgotten)),
                Known::New | Known::OtherRequest if is_strict && has_other_pending() => {
                    Some(Err(CommandError::OtherRequest))
                }
                Known::New | Known::OtherRequest => None,
            };
            if let Some(outcome) = outcome {
                return self.done(command, outcome);
            }
        }
        if let Action::Add { selection, groups } = &action
            && let Err(error) = self.check_memberships(selection, groups)
        {
            return self.done(command, Err(error));
        }
        let refusal = self.check(&action).err();
        let body = match (refusal, &request) {
            (None, _) => action.into_body(self.takes_disconnected && self.untold.has_room()),
            (Some(refusal), Some(key)) if key.is_repeatable() => Body::Refused(refusal),
            (Some(refusal), _) => return self.done(command, Err(refusal.into())),
        };
        if let Some(key) = &request {
            self.pending_requests.insert(key.name, Vec::new());
        }
        self.propose(now, body, request, Purpose::Command(command));
    }

    /// Settles a command whose record has taken effect or is certainly not in the log, and the repetitions that wait
    /// for it.
    pub(super) fn command_settled(
        &mut self,
        command: CommandId,
        request: Option<IdempotencyKey>,
        outcome: Result<Done, CommandError>,
    ) {
        let repetitions = request.and_then(|key| self.pending_requests.remove(&key.name));
        self.done(command, outcome);
        for repetition in repetitions.into_iter().flatten() {
            self.done(repetition, outcome.map(|_| Done::Repeated));
        }
    }

    fn done(&mut self, command: CommandId, outcome: Result<Done, CommandError>) {
        self.outputs.push_back(Output::CommandDone { command, outcome });
    }

    /// Refusals, against applied state (R4). Of what is selected in other shards nothing is known here.
    fn check(&self, action: &Action) -> Result<(), Refusal> {
        match action {
            Action::Add { selection, groups } => {
                if let Audience::Connection(id) = &selection.audience
                    && self.live_session(id).is_none()
                {
                    return Err(Refusal::UnknownConnection);
                }
                self.check_room(selection, groups)
            }
            Action::ChangeRule { connection_id, permission, group, allow } => {
                let key = self.live_session(connection_id).ok_or(Refusal::UnknownConnection)?;
                let pending = self.pending_rule_changes(connection_id, *permission);
                let permissions = &self.sessions[key].permissions;
                let changed = permissions.check_change(*permission, group, *allow, pending);
                changed.map_err(|PermissionError::TooManyRules| Refusal::TooManyRules)
            }
            Action::Refuse(refusal) => Err(*refusal),
            Action::Send(_) | Action::Remove { .. } | Action::Close { .. } => Ok(()),
        }
    }

    /// Whether a request is remembered at this time.
    pub fn knows(&self, key: &IdempotencyKey, now: Time) -> bool {
        matches!(self.state.requests().look_up(key, now), Known::Repetition(_))
    }

    /// Whether this shard's selected sessions have room for more groups. The application may put a session into as many again
    /// as its client may enter, so that no client that is in many makes it fail.
    ///
    /// # Errors
    /// When one would be in more than it may be in, or in groups with longer names.
    pub fn check_room(&self, selection: &Selection, groups: &[GroupName]) -> Result<(), Refusal> {
        let named: BTreeSet<&GroupName> = groups.iter().collect();
        let named_bytes = group_name_bytes(named.iter().copied());
        let groups_max = self.settings.groups_per_session_max.saturating_mul(2);
        let has_room =
            |groups: usize, bytes: usize| groups <= groups_max && bytes <= 2 * GROUP_NAMES_BYTES_MAX;
        let has_no_room = |key: SessionKey| {
            let known = &self.sessions[key].groups;
            if has_room(known.len() + named.len(), known.name_bytes() + named_bytes) {
                return false;
            }
            if !has_room(named.len(), named_bytes) {
                return true;
            }
            let in_both = known.among(&named);
            let bytes = known.name_bytes() + named_bytes - group_name_bytes(in_both.iter().copied());
            !has_room(known.len() + named.len() - in_both.len(), bytes)
        };
        if self.has_selected(selection, has_no_room) { Err(Refusal::TooManyGroups) } else { Ok(()) }
    }

    /// Whether this shard's selected sessions may be put into so many groups by one request: others wait for it, and memory
    /// has to be there. Of a hub in several shards each checks its part of both.
    ///
    /// # Errors
    /// When it is too much for one request, or for the memory that is left.
    pub fn check_memberships(&self, selection: &Selection, groups: &[GroupName]) -> Result<(), CommandError> {
        let shards = usize::from(self.id.count);
        let name_bytes = group_name_bytes(groups.iter());
        let check = |sessions: usize| {
            let memberships = sessions.saturating_mul(groups.len()).saturating_mul(shards);
            let bytes = memberships.saturating_mul(MEMBERSHIP_BYTES);
            let bytes = bytes.saturating_add(sessions.saturating_mul(name_bytes).saturating_mul(shards));
            if memberships > MEMBERSHIPS_PER_REQUEST_MAX {
                return Err(CommandError::TooManyMemberships);
            }
            let has_room = self.budget.has_room_for_state(bytes);
            if has_room { Ok(()) } else { Err(CommandError::Unavailable) }
        };
        // Whom the filter selects is looked at only where that can decide.
        check(self.count_candidates(selection)).or_else(|_| check(self.count_selected(selection)))
    }

    fn pending_rule_changes(&self, of: &ConnectionId, wanted: Permission) -> usize {
        let is_one = |body: &&Body| match body {
            Body::Granted { connection_id, permission, .. }
            | Body::Revoked { connection_id, permission, .. } => connection_id == of && *permission == wanted,
            _ => false,
        };
        self.proposals.values().map(|proposal| proposal.body()).filter(is_one).count()
    }
}

impl Action {
    fn into_body(self, takes_disconnected: bool) -> Body {
        match self {
            Self::Send(sent) => Body::Sent(sent),
            Self::Add { selection, groups } => Body::Added { selection, groups },
            Self::Remove { selection, groups } => Body::Removed { selection, groups },
            Self::Close { selection, reason } => Body::Closed { selection, reason, takes_disconnected },
            Self::ChangeRule { connection_id, permission, group, allow: true } => {
                Body::Granted { connection_id, permission, group }
            }
            Self::ChangeRule { connection_id, permission, group, allow: false } => {
                Body::Revoked { connection_id, permission, group }
            }
            Self::Refuse(refusal) => Body::Refused(refusal),
        }
    }
}
