//! What the application asks about sessions.

use super::{SessionKey, Shard};
use crate::filter::Subject;
use crate::log::{Audience, Permission};
use crate::session::{Phase, Session};
use crate::wire::{ConnectionId, GroupName, UserId};

/// A row of a list of connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Its id.
    pub connection_id: ConnectionId,
    /// Its user.
    pub user_id: Option<UserId>,
}

impl Shard {
    /// Whether there is a session of this audience that is not about to end. One without a socket counts.
    pub fn has(&self, audience: &Audience) -> bool {
        match audience {
            Audience::All => self.sessions.values().any(is_live),
            Audience::Group(group) => {
                self.groups.get(group).into_iter().flatten().any(|(key, _)| is_live(&self.sessions[*key]))
            }
            Audience::User(user_id) => {
                self.users.get(user_id).into_iter().flatten().any(|key| is_live(&self.sessions[*key]))
            }
            Audience::Connection(id) => self.live_session(id).is_some(),
        }
    }

    /// Whether a session may do this with a group now; no session may if it does not exist.
    pub fn allows(&self, connection_id: &ConnectionId, permission: Permission, group: &GroupName) -> bool {
        let session = self.live_session(connection_id);
        session.is_some_and(|key| self.sessions[key].permissions.allows(permission, group))
    }

    /// The members of a group behind this connection id, in the order of their ids, so many at most.
    pub fn members(&self, group: &GroupName, behind: Option<&ConnectionId>, count_max: usize) -> Vec<Member> {
        let Some(members) = self.groups.get(group) else { return Vec::new() };
        let sessions = members.keys().map(|key| &self.sessions[*key]).filter(|session| is_live(session));
        let mut rows: Vec<&Session> =
            sessions.filter(|session| behind.is_none_or(|id| session.identity.connection_id > *id)).collect();
        let by_id = |a: &&Session, b: &&Session| a.identity.connection_id.cmp(&b.identity.connection_id);
        if rows.len() > count_max {
            rows.select_nth_unstable_by(count_max, by_id);
            rows.truncate(count_max);
        }
        rows.sort_unstable_by(by_id);
        let member = |session: &Session| Member {
            connection_id: session.identity.connection_id.clone(),
            user_id: session.identity.user_id.clone(),
        };
        rows.into_iter().map(member).collect()
    }

    /// A session that is not about to end.
    pub(super) fn live_session(&self, connection_id: &ConnectionId) -> Option<SessionKey> {
        let key = self.by_connection_id.get(connection_id).copied()?;
        is_live(&self.sessions[key]).then_some(key)
    }
}

fn is_live(session: &Session) -> bool {
    session.phase == Phase::Live
}

impl Subject for Session {
    fn connection_id(&self) -> &str {
        self.identity.connection_id.as_str()
    }

    fn user_id(&self) -> Option<&str> {
        self.identity.user_id.as_ref().map(|user_id| user_id.as_str())
    }

    fn protocol(&self) -> Option<&str> {
        self.identity.subprotocol.name()
    }

    fn group_count(&self) -> usize {
        self.groups.len()
    }

    fn is_in_group(&self, group: &str) -> bool {
        self.groups.contains(group)
    }
}
