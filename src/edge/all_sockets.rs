//! All client sockets of the process: how many there may be, and how they end together.

use std::sync::Arc;

use oncewire_protocol::session::{Closing, SharedOutbox};
use oncewire_protocol::wire::Close;
use parking_lot::Mutex;
use slotmap::{DefaultKey, SlotMap};

use super::listener::Present;

/// The sockets that are open or about to be.
pub(super) struct Sockets {
    sockets_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Taken places, also of sockets that are still shaking hands.
    places: usize,
    open: SlotMap<DefaultKey, OpenSocket>,
    is_closing: bool,
}

/// A socket that is open.
struct OpenSocket {
    outbox: SharedOutbox,
    /// Counts its connection.
    _presence: Option<Present>,
}

/// A socket's place among the others; dropping it frees it.
pub(super) struct Place {
    sockets: Arc<Sockets>,
    key: Option<DefaultKey>,
}

impl Sockets {
    pub(super) fn new(sockets_max: Option<usize>) -> Arc<Self> {
        Arc::new(Self { sockets_max: sockets_max.unwrap_or(usize::MAX), state: Mutex::default() })
    }

    /// A place for one more socket, if there may be one.
    pub(super) fn reserve(self: &Arc<Self>) -> Option<Place> {
        self.reserve_up_to(self.sockets_max)
    }

    /// A place for a socket that takes a session over, also when all are taken: that of the socket before it may not
    /// be free yet, and this must not keep the client from its session.
    pub(super) fn reserve_for_recovery(self: &Arc<Self>) -> Option<Place> {
        self.reserve_up_to(usize::MAX)
    }

    fn reserve_up_to(self: &Arc<Self>, sockets_max: usize) -> Option<Place> {
        let mut state = self.state.lock();
        if state.places >= sockets_max || state.is_closing {
            return None;
        }
        state.places += 1;
        Some(Place { sockets: Arc::clone(self), key: None })
    }

    /// Tells every client to go away, once what waits for it has been written; from now on nobody gets a place.
    pub(super) fn close_all(&self) {
        let outboxes: Vec<_> = {
            let mut state = self.state.lock();
            state.is_closing = true;
            state.open.values().map(|socket| Arc::clone(&socket.outbox)).collect()
        };
        outboxes.iter().for_each(send_away);
    }

    /// How many places are taken.
    pub(super) fn count(&self) -> usize {
        self.state.lock().places
    }
}

impl Place {
    /// Makes the socket known under which this outbox is written, with what counts its connection.
    pub(super) fn fill(&mut self, outbox: &SharedOutbox, presence: Option<Present>) {
        let mut state = self.sockets.state.lock();
        self.key = Some(state.open.insert(OpenSocket { outbox: Arc::clone(outbox), _presence: presence }));
        let is_closing = state.is_closing;
        drop(state);
        if is_closing {
            send_away(outbox);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.sockets.state.lock();
        state.places -= 1;
        if let Some(key) = self.key {
            state.open.remove(key);
        }
    }
}

fn send_away(outbox: &SharedOutbox) {
    let writer = outbox.lock().close(Closing::AfterFlush(Close::GOING_AWAY));
    if let Some(writer) = writer {
        writer.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use bytes::BytesMut;
    use oncewire_protocol::log::Time;
    use oncewire_protocol::session::{AttachEpoch, Outbox, OutboxLimits, Progress, RequestBounds};
    use oncewire_protocol::wire::Subprotocol;

    use super::*;

    fn outbox() -> (SharedOutbox, AttachEpoch) {
        let limits = OutboxLimits { messages_max: 1, bytes_max: 1 };
        let bounds = RequestBounds { requests_max: 1, request_bytes_max: 1, reply_bytes_max: 1 };
        let mut outbox = Outbox::new(Subprotocol::JsonReliable, limits, bounds);
        let epoch = outbox.attach();
        (Arc::new(Mutex::new(outbox)), epoch)
    }

    fn progress(outbox: &SharedOutbox, epoch: AttachEpoch) -> Progress {
        let (mut out, mut sent) = (BytesMut::new(), Vec::new());
        outbox.lock().transmit(epoch, Time(0), 1, &mut out, &mut sent, Waker::noop())
    }

    #[test]
    fn there_are_as_many_places_as_configured_and_a_freed_one_is_used_again() {
        let sockets = Sockets::new(Some(2));
        let first = sockets.reserve();
        let second = sockets.reserve();
        assert!(first.is_some() && second.is_some());
        assert!(sockets.reserve().is_none());
        drop(first);
        assert!(sockets.reserve().is_some());
        drop(second);
        assert_eq!(sockets.count(), 0);
    }

    #[test]
    fn a_full_gateway_still_has_a_place_for_whoever_takes_a_session_over() {
        let sockets = Sockets::new(Some(1));
        let half_open = sockets.reserve();
        assert!(half_open.is_some() && sockets.reserve().is_none());
        let taking_over = sockets.reserve_for_recovery();
        assert!(taking_over.is_some());
        drop(half_open);
        assert!(sockets.reserve().is_none(), "the place is taken still");
        sockets.close_all();
        assert!(sockets.reserve_for_recovery().is_none());
    }

    #[test]
    fn all_sockets_go_away_also_one_that_opens_meanwhile() {
        let sockets = Sockets::new(None);
        let (open, open_epoch) = outbox();
        let (late, late_epoch) = outbox();
        let mut open_place = sockets.reserve().unwrap();
        let mut late_place = sockets.reserve().unwrap();
        open_place.fill(&open, None);
        assert_eq!(progress(&open, open_epoch), Progress::Idle);
        sockets.close_all();
        late_place.fill(&late, None);
        assert_eq!(progress(&open, open_epoch), Progress::Close(Close::GOING_AWAY));
        assert_eq!(progress(&late, late_epoch), Progress::Close(Close::GOING_AWAY));
        assert!(sockets.reserve().is_none());
    }
}
