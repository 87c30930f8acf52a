//! When a session certainly was a member of a group, and when it certainly was not. What lies between is left open:
//! while requests are in flight, or when one that was sent again may be executed late.

use std::collections::HashMap;

use crate::history::Name;
use crate::ledger::{Action, Ledger};

/// All sessions' memberships.
pub(crate) struct Memberships {
    of: HashMap<(u32, Name), Membership>,
    /// Per session: its groups in the order in which they first occur.
    groups: Vec<Vec<Name>>,
}

/// One session and one group. Spans are ascending and don't overlap.
#[derive(Default)]
pub(crate) struct Membership {
    pub(crate) inside: Vec<Span>,
    pub(crate) outside: Vec<Span>,
    /// Whether the session was opened with it, so that nothing is known of the time before.
    initial: bool,
    joins: Vec<Change>,
    leaves: Vec<Change>,
}

/// From an ack to the next try that may end it, as indexes of the session's recorder. Without `from`: since ever;
/// without `to`: for ever.
#[derive(Clone, Copy)]
pub(crate) struct Span {
    pub(crate) from: Option<u32>,
    pub(crate) to: Option<u32>,
}

/// A join or a leave: the first and the last try that may have been executed, and the ack.
#[derive(Clone, Copy)]
struct Change {
    lo: u32,
    hi: u32,
    acked: Option<u32>,
}

impl Memberships {
    pub(crate) fn new(ledger: &Ledger) -> Self {
        let mut all = Self { of: HashMap::new(), groups: vec![Vec::new(); ledger.sessions.len()] };
        for (id, session) in (0..).zip(&ledger.sessions) {
            for group in &session.initial_groups {
                let at = session.opened;
                let membership = all.entry(id, *group);
                membership.initial = true;
                membership.joins.push(Change { lo: at, hi: at, acked: Some(at) });
            }
        }
        for request in ledger.requests.iter().filter(|request| !request.refused) {
            let change = Change { lo: request.lo, hi: request.hi, acked: request.acked };
            match request.content.action {
                Action::Join => all.entry(request.session, request.content.group).joins.push(change),
                Action::Leave => all.entry(request.session, request.content.group).leaves.push(change),
                Action::Publish(_) | Action::Event(_) => {}
            }
        }
        for membership in all.of.values_mut() {
            membership.settle();
        }
        all
    }

    pub(crate) fn get(&self, session: u32, group: Name) -> Option<&Membership> {
        self.of.get(&(session, group))
    }

    /// The groups that a session was in, or asked for.
    pub(crate) fn groups(&self, session: u32) -> &[Name] {
        &self.groups[session as usize]
    }

    fn entry(&mut self, session: u32, group: Name) -> &mut Membership {
        self.of.entry((session, group)).or_insert_with(|| {
            self.groups[session as usize].push(group);
            Membership::default()
        })
    }
}

impl Membership {
    fn settle(&mut self) {
        self.joins.sort_unstable_by_key(|change| change.lo);
        self.leaves.sort_unstable_by_key(|change| change.lo);
        self.inside = spans(&self.joins, &self.leaves);
        if !self.initial {
            self.outside.push(Span { from: None, to: self.joins.first().map(|join| join.lo) });
        }
        self.outside.extend(spans(&self.leaves, &self.joins));
    }
}

/// The spans that `starts` begin and `ends` end; both are sorted by `lo`.
fn spans(starts: &[Change], ends: &[Change]) -> Vec<Span> {
    let mut last_try = 0;
    let last_tries: Vec<u32> = ends
        .iter()
        .map(|end| {
            last_try = last_try.max(end.hi);
            last_try
        })
        .collect();
    let mut spans: Vec<Span> = starts
        .iter()
        .filter_map(|start| {
            let acked = start.acked?;
            let begun = ends.partition_point(|end| end.lo <= acked);
            let over = begun == 0 || last_tries[begun - 1] < start.lo;
            over.then(|| Span { from: Some(acked), to: ends.get(begun).map(|end| end.lo) })
        })
        .collect();
    spans.sort_unstable_by_key(|span| span.from);
    spans.dedup_by_key(|span| span.to);
    spans
}
