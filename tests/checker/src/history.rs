//! Where observations are kept: per recorder, in order, with every string stored once. Knows the JSON-lines format,
//! and nothing of what the events mean.

use std::collections::HashMap;
use std::io::{self, BufRead, Read, Write};
use std::sync::Arc;

use crate::event::Event;

/// The longest line that [`History::read`] takes, in bytes.
pub const LINE_BYTES_MAX: usize = 1 << 20;

/// Everything that was observed, by any number of recorders.
#[derive(Clone, Default)]
pub struct History {
    names: Names,
    recorders: Vec<Recorder>,
}

/// One recorder of a [`History`]: a source of events whose order is the order of observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RecorderId(pub(crate) u32);

/// Why a file is not a history.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Reading failed.
    #[error("{recorder}: {source}")]
    Io {
        /// The recorder's name.
        recorder: String,
        /// What happened.
        source: io::Error,
    },
    /// A line is longer than [`LINE_BYTES_MAX`].
    #[error("{recorder}:{line}: longer than {LINE_BYTES_MAX} bytes")]
    LineTooLong {
        /// The recorder's name.
        recorder: String,
        /// The line's number, from 1.
        line: u32,
    },
    /// A line is not an event.
    #[error("{recorder}:{line}: {source}")]
    NotAnEvent {
        /// The recorder's name.
        recorder: String,
        /// The line's number, from 1.
        line: u32,
        /// What is wrong with it.
        source: serde_json::Error,
    },
}

impl History {
    /// An empty history.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a recorder; its name (a file's, say) appears in violations.
    pub fn recorder(&mut self, name: &str) -> RecorderId {
        let id = RecorderId(u32::try_from(self.recorders.len()).unwrap_or(u32::MAX));
        self.recorders.push(Recorder { name: name.to_string(), ..Default::default() });
        id
    }

    /// Adds what `recorder` observed next. `recorder` must come from this history; otherwise nothing happens.
    pub fn push(&mut self, recorder: RecorderId, event: Event) {
        let line = self.recorders.get(recorder.0 as usize).map_or(0, |r| r.lines.len()) + 1;
        self.push_line(recorder, u32::try_from(line).unwrap_or(u32::MAX), &event);
    }

    /// Reads one recorder's JSON lines.
    ///
    /// # Errors
    /// When reading fails, or a line is too long or not an event. The history then holds the lines before it.
    pub fn read(&mut self, name: &str, mut input: impl BufRead) -> Result<RecorderId, ReadError> {
        let recorder = self.recorder(name);
        let named = || name.to_string();
        let mut text = Vec::new();
        for line in 1.. {
            text.clear();
            let read = (&mut input).take(LINE_BYTES_MAX as u64 + 2).read_until(b'\n', &mut text);
            if read.map_err(|source| ReadError::Io { recorder: named(), source })? == 0 {
                break;
            }
            let trimmed = text.trim_ascii();
            if trimmed.len() > LINE_BYTES_MAX {
                return Err(ReadError::LineTooLong { recorder: named(), line });
            }
            if !trimmed.is_empty() {
                let event = serde_json::from_slice(trimmed).map_err(|source| ReadError::NotAnEvent {
                    recorder: named(),
                    line,
                    source,
                })?;
                self.push_line(recorder, line, &event);
            }
        }
        Ok(recorder)
    }

    /// Writes one recorder's events as JSON lines, so that [`History::read`] gets the same.
    ///
    /// # Errors
    /// When writing fails.
    pub fn write(&self, recorder: RecorderId, mut output: impl Write) -> io::Result<()> {
        let events = self.recorders.get(recorder.0 as usize).map_or(&[][..], |r| &r.events);
        for event in events {
            serde_json::to_writer(&mut output, &self.spell(event))?;
            output.write_all(b"\n")?;
        }
        Ok(())
    }

    /// The recorders in the order in which they were added, with their names.
    pub fn recorders(&self) -> impl Iterator<Item = (RecorderId, &str)> {
        (0..).map(RecorderId).zip(self.recorders.iter().map(|r| r.name.as_str()))
    }

    /// How many events there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.recorders.iter().map(|r| r.events.len()).sum()
    }

    /// Whether there are no events.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// One recorder's events.
    pub(crate) fn events(&self, recorder: u32) -> &[Event<Name>] {
        &self.recorders[recorder as usize].events
    }

    /// The number of recorders.
    pub(crate) fn recorder_count(&self) -> u32 {
        self.recorders.len() as u32
    }

    /// How many different strings occur: every [`Name`] is below it.
    pub(crate) fn name_count(&self) -> usize {
        self.names.texts.len()
    }

    /// The string behind a name.
    pub(crate) fn text(&self, name: Name) -> &str {
        &self.names.texts[name.0 as usize]
    }

    /// An event as a recorder would write it, and where it stands: recorder and line.
    pub(crate) fn quote(&self, at: Place) -> (String, u32, Event) {
        let recorder = &self.recorders[at.recorder as usize];
        let index = at.index as usize;
        (recorder.name.clone(), recorder.lines[index], self.spell(&recorder.events[index]))
    }

    fn spell(&self, event: &Event<Name>) -> Event {
        event.map(&mut |name| self.text(*name).to_string())
    }

    fn push_line(&mut self, recorder: RecorderId, line: u32, event: &Event) {
        let Self { names, recorders } = self;
        if let Some(recorder) = recorders.get_mut(recorder.0 as usize) {
            recorder.events.push(event.map(&mut |text| names.intern(text)));
            recorder.lines.push(line);
        }
    }
}

/// A string of a [`History`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name(pub(crate) u32);

/// One event of a [`History`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Place {
    pub(crate) recorder: u32,
    pub(crate) index: u32,
}

#[derive(Clone, Default)]
struct Recorder {
    name: String,
    events: Vec<Event<Name>>,
    lines: Vec<u32>,
}

#[derive(Clone, Default)]
struct Names {
    texts: Vec<Arc<str>>,
    known: HashMap<Arc<str>, Name>,
}

impl Names {
    fn intern(&mut self, text: &str) -> Name {
        if let Some(name) = self.known.get(text) {
            return *name;
        }
        let name = Name(self.texts.len() as u32);
        let text: Arc<str> = text.into();
        self.texts.push(text.clone());
        self.known.insert(text, name);
        name
    }
}
