//! Writes what clients ask for and see into the history that the checker judges.

use oncewire_checker::{Event, History, RecorderId};
use oncewire_protocol::wire::Upstream;

use crate::trace::Trace;

/// The world's one recorder: it sees all clients, so its order is the order of everything.
pub struct Recorder {
    history: History,
    id: RecorderId,
}

impl Recorder {
    /// An empty history.
    pub fn new() -> Self {
        let mut history = History::new();
        let id = history.recorder("world");
        Self { history, id }
    }

    /// What was recorded.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// How many events there are.
    pub fn events(&self) -> usize {
        self.history.len()
    }

    pub(crate) fn push(&mut self, trace: &mut Trace, now_us: u64, event: Event) {
        let text = format!("{event:?}");
        trace.bytes(text.as_bytes());
        trace.line(now_us, || format!("    {text}"));
        self.history.push(self.id, event);
    }

    /// The event of a request that is about to be sent, at a time of the checker's clock.
    pub(crate) fn request(&self, checker_us: u64, connection: &str, message: &Upstream) -> Option<Event> {
        oncewire_recorder::request(connection, message, Some(checker_us / 1000))
    }
}
