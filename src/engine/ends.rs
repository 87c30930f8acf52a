//! What is told of the ends of a hub's sessions: a line and a count for each, and a warning for each episode in which
//! clients do not keep up or memory is short.

use std::sync::Arc;
use std::time::Instant;

use oncewire_protocol::hub::SessionEnded;
use oncewire_protocol::log::EndReason;
use oncewire_protocol::wire::HubName;

use crate::telemetry::{Counters, Episode, Reason as _, SessionEnd};

/// Shared by a hub's shards.
pub(super) struct Ends {
    hub: HubName,
    counters: Arc<Counters>,
    overflow: Episode,
    /// That of the whole process, whose memory it is.
    shedding: Episode,
}

impl Ends {
    pub(super) fn new(hub: HubName, counters: Arc<Counters>, shedding: Episode) -> Self {
        let overflow = Episode::new("sessions ended since their outbox was full", format!("hub {hub}"));
        Self { hub, counters, overflow, shedding }
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    pub(super) fn tell(&self, ended: &SessionEnded) {
        let SessionEnded { connection_id, user_id, reason } = ended;
        let (end, closed_by) = cause(*reason);
        self.counters.sessions_ended.count(end);
        let (hub, reason) = (&self.hub, end.text());
        let user = user_id.as_ref().map(|user| user.as_str());
        tracing::debug!(%hub, %connection_id, user, reason, closed_by, "session ended");
        let now = Instant::now();
        match end {
            SessionEnd::OutboxFull if self.overflow.is_news(now) => tracing::warn!(
                %hub, %connection_id, user,
                "a session is ended: more than outbox_messages_max or outbox_bytes_max waits for its client, which reads \
                 or acknowledges too slowly"
            ),
            SessionEnd::Shed if self.shedding.is_news(now) => tracing::warn!(
                %hub, %connection_id, user,
                "a session is ended: message_memory_bytes_max is reached, and it holds most"
            ),
            _ => {}
        }
    }
}

/// The reason, and who began it.
fn cause(reason: Option<EndReason>) -> (SessionEnd, &'static str) {
    match reason {
        Some(EndReason::ClientClosed) => (SessionEnd::ClientClosed, "client"),
        Some(EndReason::ProtocolViolation) => (SessionEnd::ProtocolViolation, "gateway"),
        Some(EndReason::OutboxFull) => (SessionEnd::OutboxFull, "gateway"),
        Some(EndReason::Expired) => (SessionEnd::Expired, "gateway"),
        Some(EndReason::Shed) => (SessionEnd::Shed, "gateway"),
        Some(EndReason::ClosedByApplication) => (SessionEnd::ClosedByApplication, "application"),
        Some(EndReason::Stopped) => (SessionEnd::Stopped, "gateway"),
        None => (SessionEnd::Restarted, "gateway"),
    }
}
