//! What goes wrong again and again: told when it begins, counted while it goes on, and told again when it is over.
//!
//! ```text
//! first occurrence: WARN at once, by whoever saw it
//! further ones:     counted
//! a quiet minute:   WARN with how many there were and for how long they went on
//! ```
//! The thread that writes the log looks each second whether an episode is over; a process that stops tells the rest.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// After so long without another occurrence an episode is over.
const QUIET: Duration = Duration::from_secs(60);
/// Episodes of one kind that are told apart; further ones are told together.
const KEYS_MAX: usize = 256;

/// Those that are going on, of the whole process, as the log is.
static GOING_ON: Mutex<Vec<Arc<Mutex<State>>>> = Mutex::new(Vec::new());

/// See the module. Copies are the same episode.
#[derive(Debug, Clone)]
pub struct Episode(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    what: &'static str,
    of: String,
    course: Course,
    /// Whether it stands among those that are going on.
    is_listed: bool,
}

impl Episode {
    /// One that has not begun. `what` goes wrong, and `of` says for whom, without secrets.
    pub fn new(what: &'static str, of: impl Into<String>) -> Self {
        let state = State { what, of: of.into(), course: Course::default(), is_listed: false };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Takes note of an occurrence; tells whether it is the first one of an episode, which is worth a warning.
    pub fn is_news(&self, now: Instant) -> bool {
        let mut state = self.0.lock();
        let Noted { is_first, over } = state.course.note(now);
        let over = over.map(|over| End::of(&state, over));
        let is_to_be_listed = is_first && !std::mem::replace(&mut state.is_listed, true);
        drop(state);
        if is_to_be_listed {
            GOING_ON.lock().push(Arc::clone(&self.0));
        }
        if let Some(end) = over {
            end.tell("over");
        }
        is_first
    }

    fn is_going_on(&self) -> bool {
        self.0.lock().is_listed
    }
}

/// Episodes of one kind, told apart by whom they concern.
#[derive(Debug)]
pub struct Episodes<K> {
    what: &'static str,
    by_key: Mutex<HashMap<K, Episode>>,
    others: Episode,
}

impl<K: Clone + Eq + Hash + std::fmt::Display> Episodes<K> {
    /// None has begun. `what` goes wrong.
    pub fn new(what: &'static str) -> Self {
        Self { what, by_key: Mutex::default(), others: Episode::new(what, "several") }
    }

    /// As [`Episode::is_news`], for the episode of this key.
    pub fn is_news(&self, key: &K, now: Instant) -> bool {
        let episode = {
            let mut by_key = self.by_key.lock();
            if by_key.len() >= KEYS_MAX && !by_key.contains_key(key) {
                by_key.retain(|_, episode| episode.is_going_on());
            }
            match by_key.get(key) {
                Some(episode) => episode.clone(),
                None if by_key.len() >= KEYS_MAX => self.others.clone(),
                None => {
                    let episode = Episode::new(self.what, key.to_string());
                    by_key.insert(key.clone(), episode.clone());
                    episode
                }
            }
        };
        episode.is_news(now)
    }
}

/// Tells of all episodes that are over by now.
pub(super) fn tell_ends(now: Instant) {
    take_ends(|course| course.end(now)).iter().for_each(|end| end.tell("over"));
}

/// Tells of all that are going on: the process stops.
pub(super) fn tell_all() {
    take_ends(Course::stop).iter().for_each(|end| end.tell("until the stop"));
}

fn take_ends(mut end: impl FnMut(&mut Course) -> Option<Summary>) -> Vec<End> {
    let mut ends = Vec::new();
    GOING_ON.lock().retain(|state| {
        let mut state = state.lock();
        let over = end(&mut state.course);
        ends.extend(over.map(|over| End::of(&state, over)));
        state.is_listed = state.course.0.is_some();
        state.is_listed
    });
    ends
}

/// What is told at an end.
struct End {
    what: &'static str,
    of: String,
    summary: Summary,
}

impl End {
    fn of(state: &State, summary: Summary) -> Self {
        Self { what: state.what, of: state.of.clone(), summary }
    }

    fn tell(&self, how: &str) {
        let Self { what, of, summary: Summary { count, lasted } } = self;
        let seconds = lasted.as_secs();
        if of.is_empty() {
            tracing::warn!(count, seconds, "{what}: {how}");
        } else {
            tracing::warn!(of, count, seconds, "{what}: {how}");
        }
    }
}

/// The course of an episode, by given times.
#[derive(Debug, Default)]
struct Course(Option<GoingOn>);

#[derive(Debug)]
struct GoingOn {
    first: Instant,
    last: Instant,
    count: u64,
}

/// What an occurrence comes to.
#[derive(Debug, PartialEq, Eq)]
struct Noted {
    is_first: bool,
    /// The episode before it, which nobody has looked at since it was over.
    over: Option<Summary>,
}

/// An episode in two numbers.
#[derive(Debug, PartialEq, Eq)]
struct Summary {
    count: u64,
    /// From the first occurrence to the last.
    lasted: Duration,
}

impl Course {
    fn note(&mut self, now: Instant) -> Noted {
        let over = self.end(now);
        match &mut self.0 {
            Some(going_on) => {
                going_on.last = going_on.last.max(now);
                going_on.count += 1;
                Noted { is_first: false, over }
            }
            None => {
                self.0 = Some(GoingOn { first: now, last: now, count: 1 });
                Noted { is_first: true, over }
            }
        }
    }

    /// Ends it if it has been quiet for long enough.
    fn end(&mut self, now: Instant) -> Option<Summary> {
        let is_quiet = |going_on: &GoingOn| now.saturating_duration_since(going_on.last) >= QUIET;
        if self.0.as_ref().is_some_and(is_quiet) { self.stop() } else { None }
    }

    fn stop(&mut self) -> Option<Summary> {
        let GoingOn { first, last, count } = self.0.take()?;
        Some(Summary { count, lasted: last.saturating_duration_since(first) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn a_failure_is_news_once_in_an_episode_and_its_end_says_how_many_and_how_long() {
        let mut course = Course::default();
        let start = Instant::now();
        let repeated = Noted { is_first: false, over: None };
        assert_eq!(course.note(start), Noted { is_first: true, over: None });
        assert_eq!(course.note(start + QUIET - MS), repeated);
        assert_eq!(course.note(start + QUIET * 3 / 2), repeated);
        assert_eq!(course.end(start + QUIET * 5 / 2 - MS), None, "it is not quiet yet");
        let over = Summary { count: 3, lasted: QUIET * 3 / 2 };
        assert_eq!(course.end(start + QUIET * 5 / 2), Some(over));
        assert_eq!(course.end(start + QUIET * 9), None, "it is told once");
    }

    #[test]
    fn an_end_that_nobody_has_looked_at_is_told_when_the_next_begins() {
        let mut course = Course::default();
        let start = Instant::now();
        course.note(start);
        course.note(start + MS);
        let over = Some(Summary { count: 2, lasted: MS });
        assert_eq!(course.note(start + MS + QUIET), Noted { is_first: true, over });
        assert_eq!(course.stop(), Some(Summary { count: 1, lasted: Duration::ZERO }));
        assert_eq!(course.stop(), None);
    }

    #[test]
    fn times_that_come_in_another_order_shorten_nothing() {
        let mut course = Course::default();
        let start = Instant::now();
        course.note(start + QUIET);
        course.note(start);
        assert_eq!(course.end(start + QUIET * 2 - MS), None);
        assert_eq!(course.end(start + QUIET * 2), Some(Summary { count: 2, lasted: Duration::ZERO }));
    }

    /// One test for both, since what is going on is known to the whole process.
    #[test]
    fn copies_are_one_episode_that_outlives_its_owner_and_too_many_keys_are_told_together() {
        let start = Instant::now();
        let episode = Episode::new("test of copies", "one");
        assert!(episode.is_news(start) && !episode.clone().is_news(start));
        let state = Arc::downgrade(&episode.0);
        drop(episode);
        assert!(state.upgrade().is_some(), "its end is to be told still");
        tell_ends(start + QUIET);
        assert!(state.upgrade().is_none());

        let episodes = Episodes::new("test of keys");
        assert!((0..KEYS_MAX).all(|key| episodes.is_news(&key, start)));
        assert!(episodes.is_news(&KEYS_MAX, start), "the first of the others");
        assert!(!episodes.is_news(&(KEYS_MAX + 1), start) && !episodes.is_news(&0, start));
        let later = start + QUIET;
        tell_ends(later);
        assert!(episodes.is_news(&KEYS_MAX, later) && episodes.is_news(&(KEYS_MAX + 1), later));
    }
}
