//! Sessions that move between gateways which share a log: who holds them, who speaks for them, who is gone.
//!
//! ```text
//! resume at B --Attached{B}--> B sends;  A cuts its socket, settles what it has in flight, --Released{A}--> B speaks
//! NodeGone{A} --> A's sessions are orphans, or their next holder speaks;  those that are not reliable are over
//! ```
//! Who holds and who speaks is in [`Hold`](crate::log::Hold), a part of the fold; here is what follows from it.

use std::collections::BTreeMap;

use super::handling::LOST_WITH_GATEWAY;
use super::owner::Purpose;
use super::{OpenError, Output, Resuming, SessionKey, Shard};
use crate::log::{
    Body, BootId, EventId, NodeGone, NodeName, NodeStarted, Offset, Proposer, RECORD_VERSION, Record,
    Release, Time,
};
use crate::session::Phase;
use crate::wire::{ConnectionId, Subprotocol};

/// Sessions that one record releases.
const RELEASES_PER_RECORD_MAX: usize = 1_000;

/// What this boot has to do about sessions that move.
#[derive(Debug, Default)]
pub(super) struct Moving {
    /// The newest socket that waits for each session which is being attached here.
    attaching: BTreeMap<ConnectionId, Resuming>,
    /// Sessions whose hold has changed, with what is to be done about that still to do.
    pub(super) changed: Vec<SessionKey>,
    /// To be released, with the attachment that is answered.
    to_release: Vec<(SessionKey, Offset)>,
    /// Released in a record that is being appended.
    releasing: BTreeMap<SessionKey, Offset>,
    /// Whether the record that begins this boot has taken effect.
    has_begun: bool,
    /// Whether this boot led when that was looked at last.
    has_led: bool,
}

impl Moving {
    /// The session is gone.
    pub(super) fn removed(&mut self, key: SessionKey) {
        self.releasing.remove(&key);
    }
}

impl Shard {
    /// The record by which a boot takes part in a log that several gateways share. The driver appends it once for each hub,
    /// when all shards have folded what was in the log before, and before any other input; `seen` is where the log ended
    /// then, `now` the hub's time. When it comes to nothing ([`Output::StartTooLate`]), the driver appends another one that
    /// has seen more.
    pub fn node_started(
        boot: BootId,
        node: NodeName,
        seen: Offset,
        now: Time,
        takes_disconnected: bool,
    ) -> Record {
        let started = NodeStarted { node, seen, record_version: RECORD_VERSION, takes_disconnected };
        Record {
            key: Proposer::first_key(boot),
            time: now,
            sequence_ack: None,
            body: Body::NodeStarted(started),
        }
    }

    /// The record that begins this boot has come back.
    pub(super) fn begun(&mut self, takes_effect: bool) {
        if takes_effect {
            self.is_live = true;
            self.moving.has_begun = true;
        } else if !self.moving.has_begun {
            self.outputs.push_back(Output::StartTooLate);
        }
    }

    /// Proposes that another boot is gone, whatever it does: none of its records counts from then on.
    pub(super) fn declare_gone(&mut self, now: Time, boot: BootId) {
        if self.is_live && self.state.nodes().is_live(boot) {
            let takes_disconnected = self.takes_disconnected && self.untold.has_room();
            let gone = NodeGone { boot, is_stopped: false, takes_disconnected };
            self.propose(now, Body::NodeGone(gone), None, Purpose::Told);
        }
    }

    /// Whether this boot decides what is nobody else's to decide.
    pub(super) fn leads(&self) -> bool {
        self.is_live && self.state.nodes().leader() == Some(self.proposer.boot())
    }

    /// A socket waits for a session that another boot holds, as far as is known here: the log has to say.
    pub(super) fn attach_here(&mut self, now: Time, resuming: Resuming) {
        let (connection_id, subprotocol) = (resuming.connection_id.clone(), resuming.subprotocol);
        match self.moving.attaching.insert(connection_id.clone(), resuming) {
            // Another socket of the same client is newer (R6).
            Some(older) => self.refuse(older.open, OpenError::Unavailable),
            None => {
                let body = Body::Attached { connection_id: connection_id.clone(), subprotocol };
                self.propose(now, body, None, Purpose::Attach(connection_id));
            }
        }
    }

    /// What was to attach a session here has come to this.
    pub(super) fn attaching_settled(
        &mut self,
        now: Time,
        connection_id: &ConnectionId,
        outcome: Result<(), OpenError>,
    ) {
        let Some(waiting) = self.moving.attaching.remove(connection_id) else { return };
        match outcome {
            Ok(()) => self.resume(now, waiting),
            Err(error) => self.refuse(waiting.open, error),
        }
    }

    /// Whether a session that an `Attached` record names can be attached as it says.
    pub(super) fn can_be_attached(&self, key: SessionKey, subprotocol: Subprotocol) -> bool {
        let own = self.sessions[key].identity.subprotocol;
        own.is_reliable() && own == subprotocol
    }

    pub(super) fn apply_attached(&mut self, offset: Offset, boot: BootId, key: SessionKey) {
        let is_here = boot == self.proposer.boot();
        let session = &mut self.sessions[key];
        if !session.hold.attach(boot, offset) {
            return;
        }
        session.events.live_on();
        let mut outbox = session.outbox.lock();
        // Its client may have acknowledged more than the log says.
        outbox.restored();
        if !is_here {
            outbox.let_go_of_socket();
        }
        drop(outbox);
        self.cancel_expiry(key);
        self.moving.changed.push(key);
    }

    pub(super) fn apply_released(&mut self, offset: Offset, boot: BootId, releases: &[Release]) {
        for Release { connection_id, attached } in releases {
            let Some(&key) = self.by_connection_id.get(connection_id) else { continue };
            if !self.is_covered(key, offset) && self.sessions[key].hold.release(boot, *attached, offset) {
                self.moving.changed.push(key);
            }
        }
    }

    /// A boot is gone: its sessions that are not reliable are over, the others wait for their clients anew.
    pub(super) fn apply_gone(&mut self, offset: Offset, gone: BootId, takes_disconnected: bool) {
        if gone == self.proposer.boot() {
            self.is_live = false;
            self.outputs.push_back(Output::Gone);
        }
        for key in self.sessions.keys().collect::<Vec<_>>() {
            if self.is_covered(key, offset) {
                continue;
            }
            let session = &mut self.sessions[key];
            let was_held = session.hold.is_held_by(gone);
            if !session.hold.forget(gone, offset) {
                continue;
            }
            if was_held && !session.identity.subprotocol.is_reliable() {
                self.end_with_gateway(key, takes_disconnected, self.leads());
                continue;
            }
            if was_held {
                self.lose_socket(key);
            }
            self.moving.changed.push(key);
        }
    }

    /// The gateway that had a session's socket is gone: the session waits for its client anew, who may have acknowledged more
    /// than the log says.
    pub(super) fn lose_socket(&mut self, key: SessionKey) {
        let mut outbox = self.sessions[key].outbox.lock();
        outbox.let_go_of_socket();
        outbox.restored();
        self.overflowed.extend(outbox.is_over_limits().then_some(key));
        drop(outbox);
        self.wait_for_client(key, self.state.time());
    }

    /// Ends a session that can't go on without its gateway, which is gone. `tells` is whether this boot tells of it.
    pub(super) fn end_with_gateway(&mut self, key: SessionKey, takes_disconnected: bool, tells: bool) {
        if takes_disconnected {
            let number = EventId::last_number(self.sessions[key].events.boots);
            self.keep_untold(key, number, LOST_WITH_GATEWAY.to_owned());
        }
        if tells {
            self.tell_end(key, None);
        }
        self.remove(key);
    }

    /// Does what follows from holds that have changed, and from another leader.
    pub(super) fn follow_holds(&mut self, now: Time) {
        let leads = self.leads();
        if leads && !std::mem::replace(&mut self.moving.has_led, leads) {
            self.take_over_orphans();
        }
        self.moving.has_led = leads;
        for key in std::mem::take(&mut self.moving.changed) {
            self.follow_hold(now, key);
        }
    }

    /// What others were to decide is this boot's to decide from now on.
    fn take_over_orphans(&mut self) {
        let orphans = self.sessions.iter().filter(|(_, session)| session.hold.holder.is_none());
        for key in orphans.map(|(key, _)| key).collect::<Vec<_>>() {
            self.wait_for_client(key, self.state.time());
        }
        self.tell_restored();
    }

    fn follow_hold(&mut self, now: Time, key: SessionKey) {
        let me = self.proposer.boot();
        let Some(session) = self.sessions.get_mut(key).filter(|_| self.is_live) else { return };
        if !session.hold.is_held_by(me) {
            // An end that is decided may still count: its record says.
            if let Phase::Finishing(_) = session.phase {
                session.phase = Phase::Live;
            }
            self.drop_waiting(key);
            self.drop_call(key);
        } else if session.hold.is_spoken_for_by(me)
            && session.expires_at.is_none()
            && !session.outbox.lock().is_attached()
        {
            self.wait_for_client(key, now);
        }
        self.append_next_batch(now, key);
    }

    /// Lets go of a handler's call: its answer changes nothing any more, and the client's next attempt has the same id.
    fn drop_call(&mut self, key: SessionKey) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        if let Some(bytes) = session.requests.drop_call() {
            session.outbox.lock().settle_requests(1, bytes);
        }
    }

    /// Releases a session that another boot holds, once nothing of it is in flight here.
    pub(super) fn release(&mut self, key: SessionKey) {
        let attached = self.sessions[key].hold.attached;
        if self.moving.releasing.get(&key) != Some(&attached) {
            self.moving.releasing.insert(key, attached);
            self.moving.to_release.push((key, attached));
        }
    }

    /// Proposes the releases that have come together, as few records as can be.
    pub(super) fn propose_releases(&mut self, now: Time) {
        let all = std::mem::take(&mut self.moving.to_release);
        let releases = all.into_iter().filter_map(|(key, attached)| {
            let session = self.sessions.get(key)?;
            Some(Release { connection_id: session.identity.connection_id.clone(), attached })
        });
        let releases: Vec<_> = releases.collect();
        for some in releases.chunks(RELEASES_PER_RECORD_MAX) {
            self.propose(now, Body::Released { releases: some.to_vec() }, None, Purpose::Told);
        }
    }

    /// A record of releases has come back.
    pub(super) fn releases_settled(&mut self, releases: &[Release]) {
        for Release { connection_id, attached } in releases {
            if let Some(key) = self.by_connection_id.get(connection_id)
                && self.moving.releasing.get(key) == Some(attached)
            {
                self.moving.releasing.remove(key);
            }
        }
    }

    /// Whether something of this boot about sessions that move is under way.
    pub(super) fn is_moving(&self) -> bool {
        !self.moving.attaching.is_empty() || !self.moving.releasing.is_empty()
    }
}
