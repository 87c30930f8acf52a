//! How many sessions each user has in a hub, in all of its shards together.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::wire::UserId;

/// Bounds on how many sessions there may be, those without a socket included. They refuse new sessions; one that exists is
/// never refused its recovery, nor left out when a log is folded.
#[derive(Debug, Clone)]
pub struct SessionLimits {
    /// In the whole process.
    pub sessions_max: usize,
    /// Of each user in a hub, if that is bounded. All shards of the hub share it.
    pub per_user: Option<Arc<UserSessions>>,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self { sessions_max: usize::MAX, per_user: None }
    }
}

/// See the module.
#[derive(Debug)]
pub struct UserSessions {
    max: usize,
    counts: Mutex<BTreeMap<UserId, usize>>,
}

impl UserSessions {
    /// A bound on the sessions of each user.
    pub fn new(max: usize) -> Arc<Self> {
        Arc::new(Self { max, counts: Mutex::default() })
    }

    /// A place for one more session of the user; none at the bound.
    pub fn reserve(self: &Arc<Self>, user_id: &UserId) -> Option<UserPlace> {
        let mut counts = self.counts.lock();
        if counts.get(user_id).is_some_and(|count| *count >= self.max) {
            return None;
        }
        *counts.entry(user_id.clone()).or_default() += 1;
        Some(UserPlace { users: Arc::clone(self), user_id: user_id.clone() })
    }

    /// The place of a session that exists, whatever the bound.
    pub fn take(self: &Arc<Self>, user_id: &UserId) -> UserPlace {
        *self.counts.lock().entry(user_id.clone()).or_default() += 1;
        UserPlace { users: Arc::clone(self), user_id: user_id.clone() }
    }
}

/// Counts as one session of a user until it is dropped.
#[derive(Debug)]
pub struct UserPlace {
    users: Arc<UserSessions>,
    user_id: UserId,
}

impl Drop for UserPlace {
    fn drop(&mut self) {
        let mut counts = self.users.counts.lock();
        if let Some(count) = counts.get_mut(&self.user_id) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.user_id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_has_as_many_places_as_the_bound_and_gets_them_back() {
        let users = UserSessions::new(2);
        let [ada, bob] = ["ada", "bob"].map(UserId::new);
        let (first, second) = (users.reserve(&ada), users.take(&ada));
        assert!(first.is_some() && users.reserve(&ada).is_none());
        let other = users.reserve(&bob);
        assert!(other.is_some(), "another user has places of its own");
        let beyond = users.take(&ada);
        drop(second);
        assert!(users.reserve(&ada).is_none(), "what exists counts, also beyond the bound");
        drop(beyond);
        assert!(users.reserve(&ada).is_some());
        drop((first, other));
        assert!(users.counts.lock().is_empty(), "nothing is kept of users without sessions");
    }
}
