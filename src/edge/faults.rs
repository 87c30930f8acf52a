//! Faults that are made on purpose on the sockets of one hub, to show what clients make of them.
//!
//! Without a [`Faults`] no socket is known here, and none can be disturbed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use oncewire_protocol::session::AttachEpoch;
use oncewire_protocol::wire::{ConnectionId, HubName};
use parking_lot::Mutex;

/// What happens to a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// It is dropped without a close frame.
    Cut,
    /// It is neither read nor written for so long, pings included, and then goes on. One more begins anew.
    Stall(Duration),
    /// The next publish with an ack id is executed, and the socket dropped in place of its ack. Refused publishes don't
    /// count: their acks are written.
    LoseNextAck,
}

/// What faults can be made on.
pub(super) trait Victim: Send + Sync {
    /// Makes a fault; false when it is too late.
    fn suffer(&self, fault: Fault) -> bool;
}

/// The sockets on which faults can be made: those of one hub.
pub struct Faults {
    hub: &'static str,
    /// The newest socket of each session.
    sockets: Mutex<HashMap<ConnectionId, Known>>,
}

struct Known {
    epoch: AttachEpoch,
    victim: Arc<dyn Victim>,
}

impl Faults {
    /// For the sockets of this hub, named in lower case.
    pub fn new(hub: &'static str) -> Arc<Self> {
        Arc::new(Self { hub, sockets: Mutex::default() })
    }

    /// Makes a fault on a session's socket; false when there is none.
    pub fn make(&self, connection_id: &str, fault: Fault) -> bool {
        let victim = self.sockets.lock().get(connection_id).map(|known| Arc::clone(&known.victim));
        victim.is_some_and(|victim| victim.suffer(fault))
    }

    /// Whether sockets of this hub are known here.
    pub(super) fn concern(&self, hub: &HubName) -> bool {
        self.hub == hub.as_str()
    }

    /// Makes a socket known, as long as the guard is there and none of a higher epoch comes.
    pub(super) fn register(
        self: &Arc<Self>,
        connection_id: &ConnectionId,
        epoch: AttachEpoch,
        victim: Arc<dyn Victim>,
    ) -> Registration {
        let mut sockets = self.sockets.lock();
        // Sockets that were attached one after the other need not be handed over in this order.
        if sockets.get(connection_id).is_none_or(|known| known.epoch < epoch) {
            sockets.insert(connection_id.clone(), Known { epoch, victim });
        }
        drop(sockets);
        Registration { faults: Arc::clone(self), connection_id: connection_id.clone(), epoch }
    }
}

/// That a socket is known; dropped, it no longer is.
pub(super) struct Registration {
    faults: Arc<Faults>,
    connection_id: ConnectionId,
    epoch: AttachEpoch,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut sockets = self.faults.sockets.lock();
        // A newer socket of the session may have taken the place.
        if sockets.get(&self.connection_id).is_some_and(|known| known.epoch == self.epoch) {
            sockets.remove(&self.connection_id);
        }
    }
}
