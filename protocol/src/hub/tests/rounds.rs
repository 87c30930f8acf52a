//! When rounds of checkpoints begin, how much is done at a time, and what becomes of a session that was ending.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::harness::*;
use crate::hub::checkpointer::Step;
use crate::hub::stored::Stored;
use crate::hub::{CheckpointBounds, Checkpointer, HubSettings, OpenError, Restoring};
use crate::log::{BootId, CheckpointChange, CheckpointKey, EndReason, Offset, Time};
use crate::session::OutboxLimits;

const BOUNDS: CheckpointBounds = CheckpointBounds {
    log_bytes_min: 10_000,
    log_bytes_per_state_byte: 2,
    rest_log_bytes_min: u64::MAX,
    rest_ms: 60_000,
    retry_ms: 10_000,
    write_bytes: 1_000,
    step_chunks: 100,
    step_bytes: 1 << 20,
};

const REST_LOG_BYTES: u64 = 5_000;

/// Takes steps and stores what they write, until there is nothing to do. Returns the sizes of the writes, and how far the
/// log may be trimmed.
fn round(world: &World, checkpointer: &mut Checkpointer) -> (Vec<usize>, Option<Offset>) {
    let mut writes = Vec::new();
    let mut trim = None;
    loop {
        match checkpointer.step(world.now, &world.shard) {
            Step::Idle => return (writes, trim),
            Step::More => {}
            Step::Write(changes) => {
                writes.push(changes.len());
                trim = trim.max(checkpointer.written(world.now, 0, true));
            }
        }
    }
}

fn checkpointer() -> Checkpointer {
    Checkpointer::new(1, BOUNDS, None, Stored::nothing())
}

/// Lets the log grow by so many bytes, about.
fn grow(world: &mut World, client: &Client, bytes: u64) {
    let until = world.shard.applied_bytes() + bytes;
    while world.shard.applied_bytes() < until {
        world.ask_for(client, leave(None, "nowhere"));
    }
}

#[test]
fn a_round_begins_when_the_log_has_grown_and_trims_to_the_one_before() {
    let mut world = World::new();
    let alice = world.open("alice");
    let mut checkpointer = checkpointer();
    assert_eq!(round(&world, &mut checkpointer), (vec![], None));
    let missing = BOUNDS.log_bytes_min - world.shard.applied_bytes();
    grow(&mut world, &alice, missing - 96);
    assert_eq!(round(&world, &mut checkpointer), (vec![], None), "not yet");
    grow(&mut world, &alice, 96);
    let first = world.shard.applied().unwrap();
    assert_eq!(round(&world, &mut checkpointer), (vec![1, 1], None), "alice's chunk, then the hub's part");
    grow(&mut world, &alice, BOUNDS.log_bytes_min);
    assert_eq!(round(&world, &mut checkpointer), (vec![1], Some(Offset(first.0 + 1))), "alice is the same");
}

#[test]
fn a_large_state_makes_rounds_rarer() {
    let mut world = World::new();
    let alice = world.open("alice");
    for n in 0..100 {
        world.open(&format!("bob {n} {}", "x".repeat(100)));
    }
    let mut checkpointer = checkpointer();
    grow(&mut world, &alice, BOUNDS.log_bytes_min);
    assert!(!round(&world, &mut checkpointer).0.is_empty());
    grow(&mut world, &alice, BOUNDS.log_bytes_min);
    assert_eq!(
        round(&world, &mut checkpointer),
        (vec![], None),
        "a hundred sessions take more than half of that"
    );
    grow(&mut world, &alice, 3 * BOUNDS.log_bytes_min);
    assert!(round(&world, &mut checkpointer).1.is_some());
}

#[test]
fn at_rest_the_log_comes_down_to_what_is_needed() {
    let mut world = World::new();
    let alice = world.open("alice");
    let bounds = CheckpointBounds { rest_log_bytes_min: REST_LOG_BYTES, ..BOUNDS };
    let mut checkpointer = Checkpointer::new(1, bounds, None, Stored::nothing());
    assert_eq!(round(&world, &mut checkpointer).0.len(), 0);
    grow(&mut world, &alice, REST_LOG_BYTES);
    let due = checkpointer.poll_timeout(&world.shard).unwrap();
    assert_eq!(due, world.now.plus_ms(BOUNDS.rest_ms));
    world.now = Time(due.0 - 1);
    assert_eq!(round(&world, &mut checkpointer), (vec![], None));
    world.now = due;
    let applied = world.shard.applied().unwrap();
    let (writes, trim) = round(&world, &mut checkpointer);
    assert_eq!(
        (writes, trim),
        (vec![1, 1, 1], Some(Offset(applied.0 + 1))),
        "a round, and the next one at once"
    );
    assert_eq!(checkpointer.poll_timeout(&world.shard), None, "there is nothing left to trim");
}

#[test]
fn while_something_comes_rounds_at_rest_keep_their_distance() {
    let mut world = World::new();
    let alice = world.open("alice");
    let bounds = CheckpointBounds { rest_log_bytes_min: REST_LOG_BYTES, ..BOUNDS };
    let mut checkpointer = Checkpointer::new(1, bounds, None, Stored::nothing());
    round(&world, &mut checkpointer);
    grow(&mut world, &alice, REST_LOG_BYTES);
    world.now = checkpointer.poll_timeout(&world.shard).unwrap();
    while !matches!(checkpointer.step(world.now, &world.shard), Step::Write(_)) {}
    grow(&mut world, &alice, 96);
    checkpointer.written(world.now, 0, true);
    assert_eq!(round(&world, &mut checkpointer), (vec![1], None));
    assert_eq!(checkpointer.poll_timeout(&world.shard), Some(world.now.plus_ms(BOUNDS.rest_ms)));
}

#[test]
fn after_a_failure_a_round_begins_anew_after_a_while() {
    let mut world = World::new();
    let alice = world.open("alice");
    let mut checkpointer = checkpointer();
    grow(&mut world, &alice, BOUNDS.log_bytes_min);
    while !matches!(checkpointer.step(world.now, &world.shard), Step::Write(_)) {}
    assert_eq!(checkpointer.step(world.now, &world.shard), Step::Idle, "one write of a shard at a time");
    assert_eq!(checkpointer.written(world.now, 0, false), None);
    grow(&mut world, &alice, BOUNDS.log_bytes_min);
    world.now = world.now.plus_ms(BOUNDS.retry_ms - 1);
    assert_eq!(round(&world, &mut checkpointer), (vec![], None));
    world.now = world.now.plus_ms(1);
    assert_eq!(
        round(&world, &mut checkpointer),
        (vec![1, 1], None),
        "what the failed write was about is written again"
    );
}

#[test]
fn steps_and_writes_keep_within_their_bounds() {
    let mut world = World::new();
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    let text = "x".repeat(300);
    world.send(&alice, (0..20).map(|n| publish(n, "g", &text)));
    world.settle();
    let mut checkpointer = checkpointer();
    grow(&mut world, &alice, BOUNDS.log_bytes_min);
    let mut steps = 0;
    while checkpointer.step(world.now, &world.shard) == Step::More {
        steps += 1;
    }
    assert!(steps <= 1024 / BOUNDS.step_chunks, "{steps}");
    checkpointer.written(world.now, 0, true);
    round(&world, &mut checkpointer);
    grow(&mut world, &alice, BOUNDS.log_bytes_min);
    let (writes, _) = round(&world, &mut checkpointer);
    // Of copies of a little over 300 bytes, the fourth brings a write over 1,000 bytes.
    assert_eq!(writes, [4, 4, 4, 4, 4, 1], "20 messages, and the hub's part");
    world.lose(&bob);
    let bob = world.resume(&bob);
    world.reads(&bob);
    world.send(&bob, [acknowledge(20)]);
    grow(&mut world, &alice, BOUNDS.log_bytes_min);
    assert_eq!(
        round(&world, &mut checkpointer).0,
        [1, 20, 1],
        "bob's chunk, the copies' end, the hub's part"
    );
}

#[test]
fn a_session_that_was_ending_ends_after_a_restore() {
    let limits = OutboxLimits { messages_max: 2, bytes_max: 1000 };
    let settings = HubSettings { outbox: limits, ..settings() };
    let mut world = World::with(settings.clone(), usize::MAX);
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    for n in 0..3 {
        world.send(&alice, [publish(n, "g", "m")]);
        world.store();
        world.apply();
    }
    assert_eq!(world.waiting(), 1, "bob's end, which is not stored");
    let bounds = CheckpointBounds { log_bytes_min: 0, log_bytes_per_state_byte: 0, ..BOUNDS };
    let checkpointer = Checkpointer::new(1, bounds, None, Stored::nothing());
    let mut stored: BTreeMap<CheckpointKey, (Offset, Bytes)> = BTreeMap::new();
    while !stored.contains_key(&CheckpointKey::Hub) {
        if let Step::Write(changes) = checkpointer.step(world.now, &world.shard) {
            for change in changes {
                let CheckpointChange::Save { key, covers, bytes } = change else { continue };
                stored.insert(key, (covers, bytes));
            }
            checkpointer.written(world.now, 0, true);
        }
    }
    let mut restoring = Restoring::default();
    for (key, (covers, bytes)) in stored {
        restoring.load(&key.to_string(), covers, bytes).unwrap();
    }
    let end = Offset(world.log.len() as u64);
    world.start();
    let resolving = restoring.resolve(&settings, 1, BootId(2), &world.budget, end).unwrap();
    assert_eq!(resolving.next(), None, "nothing is kept for a session that is ending");
    world.shard = resolving.finish(BOUNDS).unwrap().shards.remove(0);
    world.boot();
    assert_eq!((world.shard.sessions(), world.refusal(&bob)), (2, OpenError::Unavailable));
    world.settle();
    assert_eq!(world.bodies().last().unwrap(), &ended("bob", EndReason::OutboxFull));
    assert_eq!((world.shard.sessions(), world.refusal(&bob)), (1, OpenError::Refused));
    world.resume(&alice);
}
