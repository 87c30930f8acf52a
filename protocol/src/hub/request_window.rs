//! Requests of the application that were executed, so that a repetition is not executed again (R8).

use std::collections::{BTreeMap, VecDeque};

use crate::log::{ExecutedRequest, RequestKey, RequestName, Time};
use crate::mutation::{Mutation, is_on};
use crate::session::Seen;

/// Executed requests by the time of their records, as the fold sees them: the same in each shard of a hub. How long and
/// how many are remembered is said by the last record with a request, so that no configuration changes what a log means.
#[derive(Debug, Default)]
pub struct RequestWindow {
    times: BTreeMap<RequestName, Time>,
    oldest_first: VecDeque<RequestName>,
}

impl RequestWindow {
    /// What a checkpoint keeps.
    pub fn to_checkpoint(&self) -> Vec<ExecutedRequest> {
        let request =
            |name: &RequestName| Some(ExecutedRequest { name: *name, time: *self.times.get(name)? });
        self.oldest_first.iter().filter_map(request).collect()
    }

    /// Knows again what a checkpoint kept.
    pub fn restore(stored: &[ExecutedRequest]) -> Self {
        let stored = stored.iter().filter(|_| !is_on(Mutation::RequestsNotRestored));
        let (times, oldest_first) =
            stored.map(|request| ((request.name, request.time), request.name)).unzip();
        Self { times, oldest_first }
    }

    /// Compares a request of this time with what was executed.
    pub fn look_up(&self, key: &RequestKey, time: Time) -> Seen {
        if is_on(Mutation::RequestsNotConsulted) {
            return Seen::New;
        }
        let is_remembered = |executed: &Time| !has_passed(*executed, key, time);
        if self.times.get(&key.name).is_some_and(is_remembered) {
            return Seen::Duplicate;
        }
        if of_id(&self.times, key.name.id).any(|(_, executed)| is_remembered(executed)) {
            return Seen::Mismatch;
        }
        Seen::New
    }

    /// Remembers a request that is new, and forgets what its own key says need not be known any more.
    pub fn insert(&mut self, key: &RequestKey, time: Time) {
        if self.times.insert(key.name, time).is_some() {
            // It was there, and its time was over.
            self.oldest_first.retain(|name| *name != key.name);
        }
        self.oldest_first.push_back(key.name);
        while let Some(oldest) = self.oldest_first.front().copied() {
            let is_over = self.times.get(&oldest).is_none_or(|executed| has_passed(*executed, key, time));
            if !is_over && self.oldest_first.len() <= key.window_requests as usize {
                break;
            }
            self.oldest_first.pop_front();
            self.times.remove(&oldest);
        }
    }
}

/// What is known of requests with this id, whatever else they are.
pub fn of_id<V>(known: &BTreeMap<RequestName, V>, id: u128) -> impl Iterator<Item = (&RequestName, &V)> {
    known.range(RequestName { id, fingerprint: 0 }..=RequestName { id, fingerprint: u128::MAX })
}

fn has_passed(executed: Time, key: &RequestKey, time: Time) -> bool {
    executed.plus_seconds(u64::from(key.window_seconds)) <= time
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(id: u128, fingerprint: u128) -> RequestKey {
        RequestKey { name: RequestName { id, fingerprint }, window_seconds: 60, window_requests: 3 }
    }

    #[test]
    fn a_repetition_is_known_until_its_time_is_over() {
        let mut window = RequestWindow::default();
        window.insert(&key(1, 1), Time(1_000));
        assert_eq!(window.look_up(&key(1, 1), Time(60_999)), Seen::Duplicate);
        assert_eq!(window.look_up(&key(1, 2), Time(60_999)), Seen::Mismatch);
        assert_eq!(window.look_up(&key(2, 1), Time(60_999)), Seen::New);
        assert_eq!(window.look_up(&key(1, 1), Time(61_000)), Seen::New);
        assert_eq!(window.look_up(&key(1, 2), Time(61_000)), Seen::New);
    }

    #[test]
    fn a_request_whose_time_was_over_is_remembered_anew() {
        let mut window = RequestWindow::default();
        window.insert(&key(1, 1), Time(0));
        window.insert(&key(2, 1), Time(30_000));
        window.insert(&key(1, 1), Time(60_000));
        let names: Vec<_> = window.to_checkpoint().iter().map(|request| request.name.id).collect();
        assert_eq!(names, [2, 1]);
        assert_eq!(window.look_up(&key(1, 1), Time(90_000)), Seen::Duplicate);
    }

    #[test]
    fn the_oldest_is_forgotten_at_the_bound_and_when_its_time_is_over() {
        let mut window = RequestWindow::default();
        for id in 1..=4 {
            window.insert(&key(id, 1), Time(id as u64));
        }
        assert_eq!(window.look_up(&key(1, 1), Time(4)), Seen::New);
        assert_eq!(window.look_up(&key(2, 1), Time(4)), Seen::Duplicate);
        window.insert(&key(5, 1), Time(100_000));
        assert_eq!(window.to_checkpoint().len(), 1);
    }

    #[test]
    fn a_checkpoint_brings_it_back() {
        let mut window = RequestWindow::default();
        (1..=3).for_each(|id| window.insert(&key(id, id), Time(id as u64)));
        let restored = RequestWindow::restore(&window.to_checkpoint());
        assert_eq!(restored.to_checkpoint(), window.to_checkpoint());
        assert_eq!(restored.look_up(&key(2, 2), Time(9)), Seen::Duplicate);
    }
}
