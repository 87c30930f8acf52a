//! How much there is, for those who watch over the gateway.

use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use oncewire_protocol::hub::{CommandError, Hub};
use oncewire_protocol::wire::HubName;

use super::{Engine, HubHandle};

/// What a hub has now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubCounts {
    /// The hub.
    pub hub: HubName,
    /// Sessions, those without a socket included.
    pub sessions: usize,
    /// Sessions with a socket.
    pub sockets: usize,
    /// Requests of the application that came again and were not executed again, since the gateway was started.
    pub requests_repeated: u64,
}

impl Engine {
    /// The counts of all hubs that exist and can be used now, by their names; a closed one has no session.
    pub async fn counts(&self) -> Vec<HubCounts> {
        let mut hubs = self.all_hubs();
        hubs.sort_unstable_by(|(a, ..), (b, ..)| a.cmp(b));
        let counts = hubs.into_iter().map(|(hub, handle, repeated)| async move {
            let (sessions, sockets) = match handle {
                Some(handle) => handle.counts().await.ok()?,
                None => (0, 0),
            };
            Some(HubCounts { hub, sessions, sockets, requests_repeated: repeated.load(Ordering::Relaxed) })
        });
        join_all(counts).await.into_iter().flatten().collect()
    }
}

impl HubHandle {
    async fn counts(&self) -> Result<(usize, usize), CommandError> {
        let shards = self.look_everywhere(|hub: &Hub| (hub.sessions(), hub.sockets())).await?;
        let sum = |all: (usize, usize), one: &(usize, usize)| (all.0 + one.0, all.1 + one.1);
        Ok(shards.iter().fold((0, 0), sum))
    }
}
