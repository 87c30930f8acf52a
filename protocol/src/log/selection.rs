//! Which sessions something of the application is for.

use crate::filter::Filter;
use crate::wire::{ConnectionId, GroupName, UserId};

/// Some of a hub's sessions, as they are when the record is applied: those of the audience that the filter selects,
/// without the excluded ones.
#[derive(Debug, Clone, PartialEq)]
pub struct Selection {
    /// Among whom is selected.
    pub audience: Audience,
    /// Left out; ids of no session do no harm.
    pub excluded: Vec<ConnectionId>,
    /// Selects all when there is none.
    pub filter: Option<Filter>,
}

/// Among which sessions is selected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Audience {
    /// All of the hub.
    All,
    /// Those in a group.
    Group(GroupName),
    /// Those of a user.
    User(UserId),
    /// One, or none if it does not exist.
    Connection(ConnectionId),
}

impl Selection {
    /// The whole audience.
    pub fn whole(audience: Audience) -> Self {
        Self { audience, excluded: Vec::new(), filter: None }
    }
}
