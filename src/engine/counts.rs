//! How much there is, for those who watch over the gateway. Kept up as things happen: whoever asks looks at no session and
//! waits for no shard.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use oncewire_protocol::wire::HubName;

use super::Engine;

/// What a hub has now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubCounts {
    /// The hub.
    pub hub: HubName,
    /// Sessions, those without a socket included.
    pub sessions: usize,
    /// Sockets that have a session.
    pub sockets: usize,
    /// Requests of the application that came again and were not executed again, since the gateway was started.
    pub requests_repeated: u64,
}

impl Engine {
    /// The counts of all hubs that exist and can be used now, by their names; a closed one has no session.
    pub fn counts(&self) -> Vec<HubCounts> {
        let mut hubs = self.all_hubs();
        hubs.sort_unstable_by(|(a, ..), (b, ..)| a.cmp(b));
        let counts = hubs.into_iter().map(|(hub, counted, requests_repeated)| {
            let (sessions, sockets) = counted.map_or((0, 0), |counted| counted.get());
            HubCounts { hub, sessions, sockets, requests_repeated }
        });
        counts.collect()
    }
}

/// What the parts of a live hub count together.
#[derive(Debug, Default)]
pub(super) struct LiveCounts {
    sessions: AtomicUsize,
    sockets: AtomicUsize,
}

impl LiveCounts {
    fn get(&self) -> (usize, usize) {
        (self.sessions.load(Ordering::Relaxed), self.sockets.load(Ordering::Relaxed))
    }

    /// A shard that had so many sessions has so many now.
    pub(super) fn sessions_changed(&self, before: usize, now: usize) {
        if now >= before {
            self.sessions.fetch_add(now - before, Ordering::Relaxed);
        } else {
            self.sessions.fetch_sub(before - now, Ordering::Relaxed);
        }
    }
}

/// A socket that counts as long as this lives.
pub(super) struct CountedSocket(Arc<LiveCounts>);

impl CountedSocket {
    pub(super) fn new(counts: &Arc<LiveCounts>) -> Self {
        counts.sockets.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(counts))
    }
}

impl Drop for CountedSocket {
    fn drop(&mut self) {
        self.0.sockets.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_and_sockets_count_together() {
        let counts = Arc::new(LiveCounts::default());
        counts.sessions_changed(0, 5);
        counts.sessions_changed(0, 2);
        counts.sessions_changed(5, 1);
        let (one, two) = (CountedSocket::new(&counts), CountedSocket::new(&counts));
        assert_eq!(counts.get(), (3, 2));
        drop(one);
        assert_eq!(counts.get(), (3, 1));
        drop(two);
    }
}
