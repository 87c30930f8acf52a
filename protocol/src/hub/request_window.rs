//! Requests of the application that are remembered, so that a repetition is not executed again (R8).
//!
//! Repeatable ones are remembered apart from the others, so that neither kind makes the other forgotten. They carry the
//! time at which they were first sent, and of those that are forgotten the latest such time stays: whether a request
//! that is not remembered may have been executed is known from that alone, whatever clocks have done meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::request_pages::RequestPages;
use crate::log::{
    ExecutedRequest, IdempotencyKey, Refusal, RequestKind, RequestName, RequestPage, RequestsCheckpoint, Time,
};

/// Remembered requests, as the fold sees them: the same in each shard of a hub. How long and how many are remembered is
/// said by the last record with a request of the kind, so that no configuration changes what a log means.
#[derive(Debug, Default)]
pub struct RequestWindow {
    plain: Remembered,
    repeatable: Remembered,
    /// The latest time of first sending of a repeatable request that is forgotten.
    forgotten_first_sent: Option<u64>,
}

/// Requests of one kind.
#[derive(Debug, Default)]
struct Remembered {
    /// The number of each. One that was remembered anew has another than before.
    known: BTreeMap<RequestName, u64>,
    pages: RequestPages,
}

/// What is known of a request that arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// Nothing: it is new.
    New,
    /// It was executed, or refused for this reason.
    Repetition(Option<Refusal>),
    /// Another request has its id.
    OtherRequest,
    /// It is so old that it may have been executed and forgotten.
    PerhapsForgotten,
}

impl RequestWindow {
    /// What a checkpoint keeps, beside the pages.
    pub fn to_checkpoint(&self) -> RequestsCheckpoint {
        RequestsCheckpoint {
            plain: self.plain.pages.numbers(),
            repeatable: self.repeatable.pages.numbers(),
            forgotten_first_sent: self.forgotten_first_sent,
        }
    }

    /// The pages of a kind, as they are now. Cheap to clone.
    pub fn pages(&self, kind: RequestKind) -> &RequestPages {
        match kind {
            RequestKind::Plain => &self.plain.pages,
            RequestKind::Repeatable => &self.repeatable.pages,
        }
    }

    /// Knows again what a checkpoint kept. None if a page is missing, or too short.
    pub fn restore(
        stored: &RequestsCheckpoint,
        page: impl Fn(RequestPage) -> Option<Arc<Vec<ExecutedRequest>>>,
    ) -> Option<Self> {
        let restored = |kind, numbers| {
            let pages = RequestPages::restore(numbers, |number| page(RequestPage { kind, number }))?;
            let known = pages.iter().map(|(number, request)| (request.name, number)).collect();
            Some(Remembered { known, pages })
        };
        Some(Self {
            plain: restored(RequestKind::Plain, stored.plain)?,
            repeatable: restored(RequestKind::Repeatable, stored.repeatable)?,
            forgotten_first_sent: stored.forgotten_first_sent,
        })
    }

    /// Compares a request of this time with what is remembered.
    pub fn look_up(&self, key: &IdempotencyKey, time: Time) -> Known {
        let kind = if key.is_repeatable() { &self.repeatable } else { &self.plain };
        let remembered = |number: &u64| {
            let request = kind.pages.get(*number)?;
            (key.is_repeatable() || !has_passed(request.time, key, time)).then_some(request)
        };
        if let Some(request) = kind.known.get(&key.name).and_then(remembered) {
            return Known::Repetition(request.refusal);
        }
        if of_id(&kind.known, key.name.id).any(|(_, number)| remembered(number).is_some()) {
            return Known::OtherRequest;
        }
        if key.first_sent.is_some_and(|first_sent| Some(first_sent) <= self.forgotten_first_sent) {
            return Known::PerhapsForgotten;
        }
        Known::New
    }

    /// Remembers a request that is new, and forgets what its own key says need not be known any more.
    pub fn insert(&mut self, key: &IdempotencyKey, time: Time, refusal: Option<Refusal>) {
        let request = ExecutedRequest { name: key.name, time, first_sent: key.first_sent, refusal };
        if key.is_repeatable() {
            let forgotten = self.repeatable.insert(key, request);
            self.forgotten_first_sent = self.forgotten_first_sent.max(forgotten);
        } else {
            self.plain.insert(key, request);
        }
    }
}

impl Remembered {
    /// Returns the latest time of first sending of those that are forgotten.
    fn insert(&mut self, key: &IdempotencyKey, request: ExecutedRequest) -> Option<u64> {
        let number = self.pages.push(request);
        self.known.insert(key.name, number);
        let mut forgotten = None;
        while let Some(oldest) = self.pages.get(self.pages.numbers().first).copied() {
            let is_known = self.known.get(&oldest.name) == Some(&self.pages.numbers().first);
            let is_kept = !has_passed(oldest.time, key, request.time)
                && self.known.len() <= key.window_requests as usize;
            if is_known && is_kept {
                break;
            }
            self.pages.pop_first();
            if is_known {
                self.known.remove(&oldest.name);
                forgotten = forgotten.max(oldest.first_sent);
            }
        }
        forgotten
    }
}

/// What is known of requests with this id, whatever else they are.
pub fn of_id<V>(known: &BTreeMap<RequestName, V>, id: u128) -> impl Iterator<Item = (&RequestName, &V)> {
    known.range(RequestName { id, fingerprint: 0 }..=RequestName { id, fingerprint: u128::MAX })
}

fn has_passed(executed: Time, key: &IdempotencyKey, time: Time) -> bool {
    executed.plus_seconds(u64::from(key.window_seconds)) <= time
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPEATED: Known = Known::Repetition(None);

    fn key(id: u128, fingerprint: u128) -> IdempotencyKey {
        IdempotencyKey {
            name: RequestName { id, fingerprint },
            window_seconds: 60,
            window_requests: 3,
            first_sent: None,
        }
    }

    fn repeatable(id: u128, first_sent: u64) -> IdempotencyKey {
        IdempotencyKey { first_sent: Some(first_sent), ..key(id, 1) }
    }

    #[test]
    fn a_repetition_is_known_until_its_time_is_over() {
        let mut window = RequestWindow::default();
        window.insert(&key(1, 1), Time(1_000), None);
        assert_eq!(window.look_up(&key(1, 1), Time(60_999)), REPEATED);
        assert_eq!(window.look_up(&key(1, 2), Time(60_999)), Known::OtherRequest);
        assert_eq!(window.look_up(&key(2, 1), Time(60_999)), Known::New);
        assert_eq!(window.look_up(&key(1, 1), Time(61_000)), Known::New);
        assert_eq!(window.look_up(&key(1, 2), Time(61_000)), Known::New);
    }

    #[test]
    fn a_request_whose_time_was_over_is_remembered_anew() {
        let mut window = RequestWindow::default();
        window.insert(&key(1, 1), Time(0), None);
        window.insert(&key(2, 1), Time(30_000), None);
        window.insert(&key(1, 1), Time(60_000), None);
        let remembered = window.plain.pages.iter();
        let names: Vec<_> = remembered.map(|(_, request)| request.name.id).collect();
        assert_eq!(names, [2, 1]);
        assert_eq!(window.look_up(&key(1, 1), Time(90_000)), REPEATED);
    }

    #[test]
    fn the_oldest_is_forgotten_at_the_bound_and_when_its_time_is_over() {
        let mut window = RequestWindow::default();
        for id in 1..=4 {
            window.insert(&key(id, 1), Time(id as u64), None);
        }
        assert_eq!(window.look_up(&key(1, 1), Time(4)), Known::New);
        assert_eq!(window.look_up(&key(2, 1), Time(4)), REPEATED);
        window.insert(&key(5, 1), Time(100_000), None);
        assert_eq!((window.plain.known.len(), window.plain.pages.iter().count()), (1, 1));
    }

    #[test]
    fn a_repeatable_request_that_may_be_forgotten_is_not_taken_for_a_new_one() {
        let mut window = RequestWindow::default();
        for id in 1..=4 {
            window.insert(&repeatable(id, 100 + id as u64), Time(id as u64), None);
        }
        let look_up =
            |window: &RequestWindow, id, first_sent| window.look_up(&repeatable(id, first_sent), Time(9));
        assert_eq!(look_up(&window, 1, 101), Known::PerhapsForgotten);
        assert_eq!(look_up(&window, 9, 101), Known::PerhapsForgotten, "it could be one of the forgotten");
        assert_eq!((look_up(&window, 2, 102), look_up(&window, 9, 102)), (REPEATED, Known::New));
        // Their time is over, and they are there as long as nothing takes their place.
        assert_eq!(window.look_up(&repeatable(2, 102), Time(1_000_000)), REPEATED);
        window.insert(&repeatable(5, 50), Time(1_000_000), None);
        assert_eq!(look_up(&window, 4, 104), Known::PerhapsForgotten);
        assert_eq!((look_up(&window, 5, 50), look_up(&window, 6, 105)), (REPEATED, Known::New));
    }

    #[test]
    fn neither_kind_makes_the_other_forgotten() {
        let mut window = RequestWindow::default();
        window.insert(&repeatable(1, 7), Time(0), Some(Refusal::UnknownUser));
        (2..=5).for_each(|id| window.insert(&key(id, 1), Time(0), None));
        (6..=7).for_each(|id| window.insert(&repeatable(id, 8), Time(0), None));
        assert_eq!(window.look_up(&repeatable(1, 7), Time(0)), Known::Repetition(Some(Refusal::UnknownUser)));
        assert_eq!(window.look_up(&key(3, 1), Time(0)), REPEATED);
        assert_eq!(window.look_up(&key(1, 1), Time(0)), Known::New, "an id of the other kind");
    }

    #[test]
    fn a_checkpoint_brings_it_back() {
        let mut window = RequestWindow::default();
        (1..=3).for_each(|id| window.insert(&key(id, id), Time(id as u64), None));
        for id in 1..=4 {
            window.insert(&repeatable(id, id as u64), Time(id as u64), Some(Refusal::TooManyRules));
        }
        let page = |page: RequestPage| window.pages(page.kind).page(page.number).cloned();
        let restored = RequestWindow::restore(&window.to_checkpoint(), page).unwrap();
        assert_eq!(restored.to_checkpoint(), window.to_checkpoint());
        assert_eq!(restored.look_up(&key(2, 2), Time(9)), REPEATED);
        assert_eq!(
            restored.look_up(&repeatable(2, 2), Time(9)),
            Known::Repetition(Some(Refusal::TooManyRules))
        );
        assert_eq!(restored.look_up(&repeatable(1, 1), Time(9)), Known::PerhapsForgotten);
    }
}
