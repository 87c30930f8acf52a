//! Random histories: right ones must pass, and one change must be caught. A failure names its seed.
//! `ONCEWIRE_CHECKER_SEEDS=100000 cargo test -p oncewire-checker --test random` tries that many seeds in each test.

#![allow(clippy::expect_used, clippy::panic, reason = "what a test's helper can't do fails the test")]

mod mutations;
mod world;

use std::collections::BTreeMap;

use oncewire_checker::{Event, History, Statistics, Verdict, check};
use world::{Weather, World};

/// This world's clients never acknowledge what they have not seen, and its service has no event handlers.
const NOT_IN_THIS_WORLD: [&str; 11] = [
    "sessions_acking_ahead",
    "user_events",
    "called",
    "handled",
    "notified",
    "handlings_judged",
    "replies_demanded",
    "reply_before_ack_judged",
    "overtakings_judged",
    "states_judged",
    "event_ids_judged",
];

fn judge(events: &[(usize, Event)]) -> Verdict {
    let mut history = History::new();
    let recorders: Vec<_> = (0..3).map(|number| history.recorder(&format!("r{number}"))).collect();
    for (recorder, event) in events {
        history.push(recorders[*recorder], event.clone());
    }
    check(&history)
}

/// The seeds of one test, which differ from those of the others.
fn seeds(test: u64, ordinary: u64) -> impl Iterator<Item = u64> {
    let wanted = std::env::var("ONCEWIRE_CHECKER_SEEDS").ok().and_then(|n| n.parse().ok());
    (0..wanted.unwrap_or(ordinary)).map(move |n| (test << 32) + n)
}

fn assert_right(weather: Weather, seeds: impl Iterator<Item = u64>) -> BTreeMap<&'static str, u64> {
    let mut totals = BTreeMap::new();
    for seed in seeds {
        let verdict = judge(&World::run(seed, weather).events);
        assert!(verdict.is_ok(), "seed {seed}\n{verdict}");
        for (name, count) in verdict.statistics.rows() {
            *totals.entry(name).or_default() += count;
        }
    }
    totals
}

#[test]
fn right_histories_of_one_recorder_pass_and_exercise_every_check() {
    let totals = assert_right(Weather { churn: true, recorders: false, steps: 1500 }, seeds(0, 400));
    for (name, _) in Statistics::default().rows() {
        assert_eq!(totals[name] == 0, NOT_IN_THIS_WORLD.contains(&name), "{name}: {}", totals[name]);
    }
}

#[test]
fn right_histories_of_several_recorders_pass() {
    let totals = assert_right(Weather { churn: true, recorders: true, steps: 1500 }, seeds(1, 400));
    for name in ["must_arrive", "must_not_arrive", "order_judged", "signals"] {
        assert!(totals[name] > 0, "{name}");
    }
}

#[test]
fn right_histories_without_churn_pass() {
    assert_right(Weather { churn: false, recorders: false, steps: 800 }, seeds(2, 200));
}

#[test]
fn every_single_change_is_caught() {
    let mut applied: BTreeMap<&str, u32> = BTreeMap::new();
    for seed in seeds(3, 150) {
        let mut world = World::run(seed, Weather { churn: false, recorders: false, steps: 800 });
        for (name, kind, mutate) in mutations::ALL {
            let Some(changed) = mutate(&mut world.random, &world.events) else { continue };
            let verdict = judge(&changed);
            assert!(verdict.count(*kind) > 0, "seed {seed}: {name} went unnoticed as {kind:?}\n{verdict}");
            *applied.entry(name).or_default() += 1;
        }
    }
    for (name, ..) in mutations::ALL {
        assert!(
            applied.get(name).is_some_and(|times| *times >= 20),
            "{name} was hardly ever possible: {applied:?}"
        );
    }
}

#[test]
fn a_written_history_reads_back_as_the_same() {
    for seed in seeds(4, 10) {
        let world = World::run(seed, Weather { churn: true, recorders: true, steps: 500 });
        let mut history = History::new();
        let recorders: Vec<_> = (0..3).map(|number| history.recorder(&format!("r{number}"))).collect();
        for (recorder, event) in &world.events {
            history.push(recorders[*recorder], event.clone());
        }
        let mut copy = History::new();
        for (recorder, name) in history.recorders() {
            let mut text = Vec::new();
            history.write(recorder, &mut text).expect("writing to memory");
            let read = copy.read(name, text.as_slice()).expect("it is a history");
            let mut again = Vec::new();
            copy.write(read, &mut again).expect("writing to memory");
            assert_eq!(text, again, "seed {seed}");
        }
        assert_eq!(check(&history).statistics, check(&copy).statistics, "seed {seed}");
    }
}
