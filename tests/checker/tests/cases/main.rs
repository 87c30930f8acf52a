//! Small histories with a known verdict: for every kind of violation one that shows exactly it, and near misses that
//! are right.

#![allow(clippy::expect_used, clippy::panic, reason = "what a test's helper can't do fails the test")]

mod acks;
mod deliveries;
mod events;
mod membership;
mod recorders;
mod script;
mod sequence;

use std::collections::BTreeSet;

use oncewire_checker::{ViolationKind, check};

/// A history and the kinds of violation in it, each exactly once.
pub struct Case {
    name: &'static str,
    expected: &'static [ViolationKind],
    script: &'static str,
}

/// Makes a table of cases and a test of each.
macro_rules! cases {
    ($($name:ident: [$($kind:ident),*] $script:literal)+) => {
        pub const CASES: &[crate::Case] = &[$(crate::Case {
            name: stringify!($name),
            expected: &[$(oncewire_checker::ViolationKind::$kind),*],
            script: $script,
        }),+];
        $(#[test] fn $name() { crate::judge(CASES, stringify!($name)); })+
    };
}
pub(crate) use cases;

fn judge(cases: &[Case], name: &str) {
    let case = cases.iter().find(|case| case.name == name).expect("the case is in its table");
    let verdict = check(&script::history(case.script));
    assert_eq!(verdict.malformed_count, 0, "{verdict}");
    let found: Vec<_> = verdict.violation_counts.into_iter().collect();
    let expected: BTreeSet<_> = case.expected.iter().map(|kind| (*kind, 1)).collect();
    assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{name}: {:#?}", verdict.violations);
    for violation in &verdict.violations {
        assert!(!violation.evidence.is_empty() && !violation.message.is_empty(), "{violation}");
    }
}

#[test]
fn every_kind_of_violation_is_shown_alone_by_some_case() {
    let tables =
        [acks::CASES, deliveries::CASES, events::CASES, membership::CASES, recorders::CASES, sequence::CASES];
    let shown: BTreeSet<_> = tables
        .into_iter()
        .flatten()
        .filter_map(|case| match case.expected {
            [kind] => Some(*kind),
            _ => None,
        })
        .collect();
    assert_eq!(shown, BTreeSet::from(ViolationKind::ALL));
}
