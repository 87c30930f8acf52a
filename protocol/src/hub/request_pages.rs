//! Requests of one kind in the order in which they were remembered, in pages.
//!
//! A request keeps its number for ever, so a full page never changes: a round of checkpoints holds on to the pages without a
//! copy, and stores only those that are new. The last page grows; whoever holds on to it keeps it as it was.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::log::{ExecutedRequest, REQUESTS_PER_PAGE, RequestNumbers};

/// The pages. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct RequestPages {
    /// The first one holds the first request, perhaps behind some that are forgotten.
    pages: VecDeque<Arc<Vec<ExecutedRequest>>>,
    numbers: RequestNumbers,
}

impl RequestPages {
    /// Knows again what a checkpoint kept. None if a page is missing, or too short.
    pub fn restore(
        numbers: RequestNumbers,
        mut page: impl FnMut(u64) -> Option<Arc<Vec<ExecutedRequest>>>,
    ) -> Option<Self> {
        let RequestNumbers { first, next } = numbers;
        let restored = |number: u64| {
            let end = next - number * REQUESTS_PER_PAGE;
            let mut requests = page(number)?;
            let len = usize::try_from(end.min(REQUESTS_PER_PAGE)).ok()?;
            if requests.len() > len {
                // Stored again since, and longer.
                Arc::make_mut(&mut requests).truncate(len);
            }
            (requests.len() == len).then_some(requests)
        };
        if first > next {
            return None;
        }
        let pages = numbers.pages().map(restored).collect::<Option<_>>()?;
        Some(Self { pages, numbers })
    }

    /// Which requests there are.
    pub fn numbers(&self) -> RequestNumbers {
        self.numbers
    }

    /// The requests of a page, some of which may be forgotten.
    pub fn page(&self, number: u64) -> Option<&Arc<Vec<ExecutedRequest>>> {
        let place = number.checked_sub(self.numbers.first / REQUESTS_PER_PAGE)?;
        self.pages.get(usize::try_from(place).ok()?)
    }

    /// A request by its number.
    pub fn get(&self, number: u64) -> Option<&ExecutedRequest> {
        let place = usize::try_from(number % REQUESTS_PER_PAGE).ok()?;
        self.page(number / REQUESTS_PER_PAGE)?.get(place)
    }

    /// All, oldest first, with their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &ExecutedRequest)> {
        (self.numbers.first..self.numbers.next).filter_map(|number| Some((number, self.get(number)?)))
    }

    /// Takes one in and gives it the next number.
    pub fn push(&mut self, request: ExecutedRequest) -> u64 {
        let number = self.numbers.next;
        match self.pages.back_mut() {
            Some(last) if !number.is_multiple_of(REQUESTS_PER_PAGE) => Arc::make_mut(last).push(request),
            _ => self.pages.push_back(Arc::new(vec![request])),
        }
        self.numbers.next += 1;
        number
    }

    /// Takes the oldest out.
    pub fn pop_first(&mut self) -> Option<(u64, ExecutedRequest)> {
        let number = self.numbers.first;
        let request = *self.get(number).filter(|_| number < self.numbers.next)?;
        self.numbers.first += 1;
        if self.numbers.first.is_multiple_of(REQUESTS_PER_PAGE) {
            self.pages.pop_front();
        }
        Some((number, request))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::log::{RequestName, Time};

    fn request(id: u128) -> ExecutedRequest {
        ExecutedRequest {
            name: RequestName { id, fingerprint: 0 },
            time: Time(0),
            first_sent: None,
            refusal: None,
        }
    }

    proptest! {
        #[test]
        fn pages_equal_a_list_whatever_comes_and_goes(steps in proptest::collection::vec((0u64..2_500, 0u64..2_500), 0..6)) {
            let mut pages = RequestPages::default();
            let (mut first, mut next) = (0, 0);
            for (more, gone) in steps {
                for _ in 0..more {
                    prop_assert_eq!(pages.push(request(u128::from(next))), next);
                    next += 1;
                }
                let held = pages.clone();
                for _ in 0..gone {
                    let popped = pages.pop_first().map(|(number, request)| (number, request.name.id));
                    prop_assert_eq!(popped, (first < next).then_some((first, u128::from(first))));
                    first += u64::from(first < next);
                }
                pages.push(request(u128::from(next)));
                next += 1;
                prop_assert_eq!(held.numbers().next + 1, next);
                prop_assert!(held.iter().all(|(number, request)| request.name.id == u128::from(number)));
                let numbers: Vec<u64> = pages.iter().map(|(number, _)| number).collect();
                prop_assert_eq!(numbers, (first..next).collect::<Vec<_>>());
                // A page that was stored again later brings the same back.
                let restored = RequestPages::restore(held.numbers(), |number| {
                    pages.page(number).or_else(|| held.page(number)).cloned()
                });
                let restored = restored.unwrap();
                prop_assert_eq!(restored.iter().collect::<Vec<_>>(), held.iter().collect::<Vec<_>>());
                prop_assert!(RequestPages::restore(held.numbers(), |_| None).is_none() || held.pages.is_empty());
            }
        }
    }
}
