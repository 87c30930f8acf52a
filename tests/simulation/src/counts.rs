//! Counts what inputs meet and what comes of them.

use oncewire_protocol::hub::{AppendId, Attachment, Input, OpenError};
use oncewire_protocol::session::SharedOutbox;

use crate::coverage::Path;
use crate::log::{Append, Appender};
use crate::world::World;

impl World {
    pub(crate) fn count_opened(
        &mut self,
        is_live: bool,
        is_resume: bool,
        outcome: &Result<Attachment, OpenError>,
    ) {
        self.note(match (outcome, is_resume) {
            (Ok(_), true) => Path::Resumed,
            (Ok(_), false) => Path::Opened,
            (Err(OpenError::Refused), _) => Path::ResumeRefused,
            (Err(_), true) if is_live => Path::ResumeUnavailable,
            (Err(_), true) => Path::ResumeNotLive,
            (Err(_), false) => Path::OpenUnavailable,
        });
    }

    /// Counts what an input is about to meet.
    pub(crate) fn look_at(&mut self, hub: usize, input: &Input, outbox: Option<&SharedOutbox>) {
        let is_stale = |epoch| outbox.is_some_and(|outbox| !outbox.lock().is_current(epoch));
        match input {
            Input::Requests { session, requests } => {
                if is_stale(session.epoch) {
                    self.note(Path::StaleRequests);
                }
                let mut ids: Vec<_> =
                    requests.iter().filter_map(|request| request.message.ack_id()).collect();
                ids.sort_unstable();
                if ids.windows(2).any(|pair| pair[0] == pair[1]) {
                    self.note(Path::RepeatInRead);
                }
            }
            Input::SocketClosed { session, .. } if is_stale(session.epoch) => self.note(Path::StaleClose),
            Input::Resume(resuming) => {
                let Some(key) = self.attached_session(hub, &resuming.connection_id) else { return };
                self.note(Path::Takeover);
                let is_its = |id: &AppendId| matches!(id, AppendId::Batch { session, .. } if *session == key);
                let has_its = |append: &Append| match &append.by {
                    Appender::Boot => false,
                    Appender::Shard(_, appending) => appending.ids().iter().any(is_its),
                };
                if self.hubs[hub].log.queue.iter().any(has_its) {
                    self.note(Path::TakeoverWithRequests);
                }
            }
            _ => {}
        }
    }
}
