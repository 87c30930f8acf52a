//! A shard's sessions by what they are found by: id, number, chunk, group, user.

use std::sync::Arc;

use super::folding::INDEXING_STEPS;
use super::timer::Timer;
use super::{SessionKey, Shard};
use crate::session::{Marking, Session};
use crate::wire::GroupName;

impl Shard {
    /// Takes a session into everything.
    pub(super) fn insert(&mut self, mut session: Session) -> SessionKey {
        if let (Some(users), Some(user_id)) = (&self.settings.sessions.per_user, &session.identity.user_id) {
            session.user_place = Some(users.take(user_id));
        }
        let (id, number, chunk) = (session.identity.connection_id.clone(), session.number, session.chunk);
        if session.identity.subprotocol.is_reliable() {
            let marking = Marking::new(number, Arc::clone(&self.marks.unmarked));
            session.outbox.lock().set_marking(marking);
        }
        let groups: Vec<GroupName> = session.groups.iter().cloned().collect();
        let user_id = session.identity.user_id.clone();
        let is_reliable = session.identity.subprotocol.is_reliable();
        let key = self.sessions.insert(session);
        if !is_reliable && !self.decides_for(key) {
            // It ends with the start of a gateway that holds it.
            self.sessions[key].outbox.lock().free();
        }
        self.by_connection_id.insert(id, key);
        if is_reliable {
            self.by_number.insert(number, key);
        }
        if let Some(user_id) = user_id {
            self.users.entry(user_id).or_default().insert(key);
        }
        self.by_chunk.entry(chunk).or_default().insert(key);
        groups.iter().for_each(|group| self.index_member(key, group));
        key
    }

    pub(super) fn add_member(&mut self, key: SessionKey, group: &GroupName) {
        if self.sessions[key].groups.insert(group.clone()) {
            self.sessions[key].charge_state();
            self.index_member(key, group);
        }
    }

    fn index_member(&mut self, key: SessionKey, group: &GroupName) {
        self.folding.spent += INDEXING_STEPS;
        let outbox = Arc::clone(&self.sessions[key].outbox);
        self.groups.entry(group.clone()).or_default().insert(key, outbox);
    }

    pub(super) fn remove_member(&mut self, key: SessionKey, group: &GroupName) {
        if self.sessions[key].groups.remove(group) {
            self.sessions[key].charge_state();
            self.unindex_member(key, group);
        }
    }

    fn unindex_member(&mut self, key: SessionKey, group: &GroupName) {
        self.folding.spent += INDEXING_STEPS;
        if let Some(members) = self.groups.get_mut(group) {
            members.swap_remove(&key);
            if members.is_empty() {
                self.groups.remove(group);
            }
        }
    }

    /// Takes a session out of everything. A socket that is still attached is closed.
    pub(super) fn remove(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.remove(key) else { return };
        self.expired.removed(key);
        self.moving.removed(key);
        self.by_connection_id.remove(&session.identity.connection_id);
        self.by_number.remove(&session.number);
        if let Some(keys) = self.by_chunk.get_mut(&session.chunk) {
            keys.remove(&key);
            if keys.is_empty() {
                self.by_chunk.remove(&session.chunk);
            }
        }
        for group in session.groups.iter() {
            self.unindex_member(key, group);
        }
        if let Some(user_id) = &session.identity.user_id
            && let Some(keys) = self.users.get_mut(user_id)
        {
            keys.remove(&key);
            if keys.is_empty() {
                self.users.remove(user_id);
            }
        }
        if let Some(at) = session.expires_at {
            self.timers.cancel(at, Timer::Expire(key));
        }
        for record in session.requests.unsettled() {
            self.proposer.settle(record.key.boot.counter);
        }
        let mut outbox = session.outbox.lock();
        // The socket may hold the outbox for a while.
        outbox.drop_requests();
        self.woken.extend(outbox.end());
    }
}
