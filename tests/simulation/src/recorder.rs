//! Writes what clients ask for and see into the history that the checker judges.

use oncewire_checker::{Event, History, RecorderId};
use oncewire_protocol::wire::Upstream;

use crate::trace::Trace;

/// The world's one recorder: it sees all clients, so its order is the order of everything.
pub struct Recorder {
    history: History,
    id: RecorderId,
    /// Whether times may be written: only a clock that does not jump is of use to the checker.
    has_clock: bool,
}

impl Recorder {
    /// An empty history.
    pub fn new(has_clock: bool) -> Self {
        let mut history = History::new();
        let id = history.recorder("world");
        Self { history, id, has_clock }
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

    pub(crate) fn at_ms(&self, now_us: u64) -> Option<u64> {
        self.has_clock.then_some(now_us / 1000)
    }

    /// The event of a request that is about to be sent.
    pub(crate) fn request(&self, now_us: u64, connection: &str, message: &Upstream) -> Option<Event> {
        oncewire_recorder::request(connection, message, self.at_ms(now_us))
    }
}
