//! Messages that clients have sent the beginning of, and which of them is given up when memory is short.
//!
//! The largest goes first, and of several the oldest. Its socket is closed with 1013, and its session stays: the client comes
//! back and sends the message again, so that nothing is lost. Reading never waits for memory.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use oncewire_protocol::driver::socket::{Link, WeakLink};
use oncewire_protocol::session::MemoryBudget;
use parking_lot::Mutex;

use super::Name;
use crate::telemetry::Episode;

/// Smaller parts are not counted: most messages come with one read.
pub(super) const HALF_MESSAGE_BYTES_MIN: usize = 1024;

/// Those of all sockets of the process.
pub(in crate::edge) struct HalfMessages {
    budget: Arc<MemoryBudget>,
    state: Mutex<State>,
    giving_up: Episode,
}

#[derive(Default)]
struct State {
    /// Of those of one size the oldest stands last.
    by_size: BTreeMap<(usize, Reverse<Number>), WeakLink>,
    last: Number,
}

type Number = u64;

/// One of them; dropped, it is no longer counted.
pub(super) struct HalfMessage {
    all: Arc<HalfMessages>,
    number: Number,
    bytes: usize,
    link: WeakLink,
}

impl HalfMessages {
    /// None yet; what comes is charged to this budget.
    pub(in crate::edge) fn new(budget: Arc<MemoryBudget>) -> Arc<Self> {
        let giving_up = Episode::new("sockets closed since memory was short for their half messages", "");
        Arc::new(Self { budget, state: Mutex::default(), giving_up })
    }

    /// One more, of which nothing is counted yet.
    pub(super) fn begin(self: &Arc<Self>, link: &Link) -> HalfMessage {
        let mut state = self.state.lock();
        state.last += 1;
        HalfMessage { all: Arc::clone(self), number: state.last, bytes: 0, link: link.downgrade() }
    }

    /// Tells that one was given up.
    pub(super) fn tell(&self, name: &Name, user: Option<&str>) {
        if self.giving_up.is_news(Instant::now()) {
            let Name { hub, connection_id, .. } = name;
            tracing::warn!(
                %hub, %connection_id, user,
                "a socket is closed with 1013: message_memory_bytes_max is reached, and it holds most of what clients have \
                 sent the beginning of"
            );
        }
    }
}

impl State {
    /// Has the largest ones given up, until there is room.
    fn make_room(&mut self, budget: &MemoryBudget) {
        while budget.has_too_much_in_halves() {
            let Some(((bytes, _), link)) = self.by_size.pop_last() else { return };
            budget.change_half_message(bytes, 0);
            if let Some(link) = link.upgrade() {
                link.give_up();
            }
        }
    }
}

impl HalfMessage {
    /// Says how much has come of it, in bytes. It may be the one that is given up.
    pub(super) fn set(&mut self, bytes: usize) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        let HalfMessages { budget, state, .. } = &*self.all;
        let mut state = state.lock();
        if before > 0 && state.by_size.remove(&(before, Reverse(self.number))).is_none() {
            // It is given up already.
            return;
        }
        budget.change_half_message(before, bytes);
        if bytes > 0 {
            state.by_size.insert((bytes, Reverse(self.number)), self.link.clone());
            state.make_room(budget);
        }
    }
}

impl Drop for HalfMessage {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_goes_first_and_what_is_counted_is_what_is_there() {
        let budget = Arc::new(MemoryBudget::new(10_000));
        let all = HalfMessages::new(Arc::clone(&budget));
        let links: Vec<_> = (0..4).map(|_| Link::new()).collect();
        let mut halves: Vec<_> = links.iter().map(|link| all.begin(link)).collect();
        for (half, bytes) in halves.iter_mut().zip([2_000, 4_000, 3_000]) {
            half.set(bytes);
        }
        assert!(links.iter().all(|link| !link.take_giving_up()), "there is room");
        halves[3].set(1_500);
        let given_up: Vec<_> = links.iter().map(|link| link.take_giving_up()).collect();
        assert_eq!(given_up, [false, true, false, false]);
        assert_eq!(budget.half_message_bytes(), 6_500);
        halves[1].set(9_000);
        assert_eq!(budget.half_message_bytes(), 6_500, "it is not counted a second time");
        halves.remove(1);
        halves[0].set(1_000);
        assert_eq!(budget.half_message_bytes(), 5_500);
        drop(halves);
        assert_eq!(budget.half_message_bytes(), 0);
        assert!(all.state.lock().by_size.is_empty());
    }

    #[test]
    fn whoever_needs_the_room_is_given_up_itself_if_it_is_the_largest() {
        let budget = Arc::new(MemoryBudget::new(10_000));
        let all = HalfMessages::new(Arc::clone(&budget));
        let link = Link::new();
        let mut half = all.begin(&link);
        half.set(10_000);
        assert!(!link.take_giving_up());
        half.set(10_001);
        assert!(link.take_giving_up() && !link.take_giving_up());
        assert_eq!(budget.half_message_bytes(), 0);
    }
}
