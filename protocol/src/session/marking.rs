//! What of a session's sequence acks is not in the log yet, and which sessions of a shard have such acks.
//!
//! Sockets acknowledge, and writers leave out what has expired, without asking the shard. Each outbox counts here what
//! that has freed since its last mark, and puts its session on the shard's list once. The shard takes from the list.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use super::OutboxLimits;
use crate::log::Offset;

/// One part in so many of an outbox bound may be freed without a mark; more is an urgent matter, since a restart brings it
/// back.
const UNMARKED_PART: usize = 4;

/// Sessions of one shard that have freed messages since their last mark, by number. Outboxes note, the shard takes.
#[derive(Debug, Default)]
pub struct Unmarked(Mutex<UnmarkedState>);

#[derive(Debug, Default)]
struct UnmarkedState {
    sessions: VecDeque<Offset>,
    is_urgent: bool,
    /// The shard is to be told that there are some, or that it is urgent.
    is_news: bool,
    shard: Option<Waker>,
}

impl Unmarked {
    /// Completes when the first session is noted, and when the matter becomes urgent.
    pub fn poll_news(&self, context: &mut Context<'_>) -> Poll<()> {
        let mut state = self.0.lock();
        if std::mem::take(&mut state.is_news) {
            return Poll::Ready(());
        }
        match &mut state.shard {
            Some(waker) => waker.clone_from(context.waker()),
            None => state.shard = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Takes up to `most` sessions, those noted first before others.
    pub fn take(&self, most: usize) -> Vec<Offset> {
        let mut state = self.0.lock();
        state.is_urgent = false;
        let taken = most.min(state.sessions.len());
        let sessions = state.sessions.drain(..taken).collect();
        if state.sessions.is_empty() {
            state.sessions = VecDeque::new();
        }
        sessions
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.lock().sessions.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether a session has freed so much that its mark should not wait.
    pub fn is_urgent(&self) -> bool {
        self.0.lock().is_urgent
    }

    fn note(&self, session: Option<Offset>, is_urgent: bool) {
        let mut state = self.0.lock();
        let is_first = session.is_some() && state.sessions.is_empty();
        state.sessions.extend(session);
        let is_news = is_first || (is_urgent && !state.is_urgent);
        state.is_urgent |= is_urgent;
        state.is_news |= is_news;
        if is_news && let Some(shard) = state.shard.take() {
            shard.wake();
        }
    }
}

/// One session's part.
#[derive(Debug, Default)]
pub struct Marking {
    /// The session's number, and the list that it is noted in. None for a session whose acks need not be in the log.
    list: Option<(Offset, Arc<Unmarked>)>,
    is_listed: bool,
    is_urgent: bool,
    /// Messages freed since the last mark ...
    messages: usize,
    /// ... and their content, in bytes.
    bytes: usize,
}

impl Marking {
    /// That of a session with this number.
    pub fn new(session: Offset, list: Arc<Unmarked>) -> Self {
        Self { list: Some((session, list)), ..Self::default() }
    }

    /// Content that has expired, in bytes; its messages are freed later.
    pub fn expired(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// Messages were freed.
    pub fn freed(&mut self, messages: usize, bytes: usize, limits: &OutboxLimits) {
        if messages == 0 {
            return;
        }
        self.messages += messages;
        self.bytes += bytes;
        let is_urgent = self.messages > limits.messages_max / UNMARKED_PART
            || self.bytes > limits.bytes_max / UNMARKED_PART;
        self.note(is_urgent);
    }

    /// Whether something was freed since the last mark. It counts as marked from now on.
    pub fn take(&mut self) -> bool {
        self.is_urgent = false;
        self.bytes = 0;
        std::mem::take(&mut self.messages) > 0
    }

    /// The shard has taken the session from its list.
    pub fn unlist(&mut self) {
        self.is_listed = false;
    }

    /// The last mark is not in the log, or perhaps not.
    pub fn lost(&mut self) {
        self.messages += 1;
        self.note(false);
    }

    fn note(&mut self, is_urgent: bool) {
        let Some((session, list)) = &self.list else { return };
        let becomes_urgent = is_urgent && !self.is_urgent;
        if !self.is_listed || becomes_urgent {
            list.note((!self.is_listed).then_some(*session), is_urgent);
        }
        self.is_listed = true;
        self.is_urgent |= is_urgent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: OutboxLimits = OutboxLimits { messages_max: 40, bytes_max: 4_000 };

    fn pair() -> (Arc<Unmarked>, Marking) {
        let list = Arc::new(Unmarked::default());
        (Arc::clone(&list), Marking::new(Offset(7), list))
    }

    fn has_news(list: &Unmarked) -> bool {
        list.poll_news(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn a_session_is_listed_once_until_it_is_taken() {
        let (list, mut marking) = pair();
        assert!(!has_news(&list));
        (0..3).for_each(|_| marking.freed(1, 10, &LIMITS));
        assert!(has_news(&list) && !has_news(&list));
        assert_eq!(list.take(9), [Offset(7)]);
        marking.unlist();
        assert!(marking.take() && !marking.take());
        marking.freed(1, 10, &LIMITS);
        assert_eq!(list.take(9), [Offset(7)]);
    }

    #[test]
    fn more_than_a_quarter_of_a_bound_is_urgent() {
        let (list, mut marking) = pair();
        marking.freed(10, 1_000, &LIMITS);
        assert!(has_news(&list) && !list.is_urgent());
        marking.freed(1, 0, &LIMITS);
        assert!(has_news(&list) && list.is_urgent());
        marking.freed(1, 0, &LIMITS);
        assert!(!has_news(&list), "said already");
        marking.take();
        list.take(1);
        marking.unlist();
        marking.expired(1_000);
        marking.freed(1, 1, &LIMITS);
        assert!(list.is_urgent(), "what has expired counts");
    }

    #[test]
    fn a_mark_that_was_lost_is_made_again() {
        let (list, mut marking) = pair();
        marking.freed(5, 5, &LIMITS);
        list.take(1);
        marking.unlist();
        assert!(marking.take());
        marking.lost();
        assert_eq!(list.take(1), [Offset(7)]);
        assert!(marking.take());
    }

    #[test]
    fn the_first_noted_are_taken_first_and_no_more_than_asked_for() {
        let list = Arc::new(Unmarked::default());
        let mut sessions: Vec<_> =
            (0..5).map(|number| Marking::new(Offset(number), Arc::clone(&list))).collect();
        sessions.iter_mut().for_each(|marking| marking.freed(1, 1, &LIMITS));
        assert_eq!(list.take(2), [Offset(0), Offset(1)]);
        assert_eq!(list.len(), 3);
    }
}
