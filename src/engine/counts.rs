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
    /// Requests of the application that came again and were not executed again, since the hub was started.
    pub requests_repeated: u64,
}

impl Engine {
    /// The counts of all hubs that are in use, by their names.
    pub async fn counts(&self) -> Vec<HubCounts> {
        let mut hubs: Vec<(HubName, HubHandle)> = {
            let hubs = self.0.hubs.lock();
            let handles = hubs.iter().filter_map(|(name, entry)| Some((name, entry.handle.get()?)));
            handles.map(|(name, handle)| (name.clone(), handle.clone())).collect()
        };
        hubs.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        let counts = hubs.into_iter().map(|(name, handle)| async move { handle.counts(name).await.ok() });
        join_all(counts).await.into_iter().flatten().collect()
    }
}

impl HubHandle {
    async fn counts(&self, hub: HubName) -> Result<HubCounts, CommandError> {
        let shards = self.look_everywhere(|hub: &Hub| (hub.sessions(), hub.sockets())).await?;
        Ok(HubCounts {
            hub,
            sessions: shards.iter().map(|(sessions, _)| sessions).sum(),
            sockets: shards.iter().map(|(_, sockets)| sockets).sum(),
            requests_repeated: self.0.requests_repeated.load(Ordering::Relaxed),
        })
    }
}
