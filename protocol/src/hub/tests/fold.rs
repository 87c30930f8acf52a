//! R2, R5 and R11: the fold over a log, live or not, is one and the same.

use super::harness::*;
use crate::hub::{HubSettings, Input, NewSession, OpenError, Shard, SocketEnd};
use crate::log::{BootId, EndReason, HubTime, Offset, Time};
use crate::session::OutboxLimits;
use crate::wire::{Subprotocol, Upstream};

#[test]
fn r2_ids_are_the_same_after_a_restart_jumps_included() {
    let mut world = World::new();
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    for n in 0..5 {
        world.send(&alice, (0..100).map(|m| publish(n * 100 + m, "g", "m")));
        world.settle();
    }
    let before = world.reads(&bob);
    assert_eq!(before.len(), 500);
    assert_eq!((&*before[127], &*before[128], &*before[256]), ("128 m", "429 m", "857 m"));
    world.restart();
    let bob = world.resume(&bob);
    assert_eq!(world.reads(&bob), before);
    let last: u64 = before[499].split(' ').next().unwrap().parse().unwrap();
    world.ask_for(&bob, publish(1, "g", "next"));
    let next = format!("{} next", last + 1);
    world.restart();
    let bob = world.resume(&bob);
    assert_eq!(world.reads(&bob)[500..], [next]);
}

#[test]
fn r2_deliveries_to_a_doomed_session_count() {
    let limits = OutboxLimits { messages_max: 2, bytes_max: 1000 };
    let mut world = World::with(HubSettings { outbox: limits, ..settings() }, usize::MAX);
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    for n in 1..=5 {
        world.send(&alice, [publish(n, "g", "m")]);
        let batch = world.appends.iter().position(|(_, records)| body_name(&records[0]).starts_with("alice"));
        world.appends.swap(0, batch.unwrap());
        world.store();
        world.apply();
    }
    let key = bob.attachment.session.key;
    let ids = |world: &World| format!("{:?}", world.shard.sessions[key].outbox.lock()).contains("last: 5");
    assert!(ids(&world), "{:?}", world.shard.sessions[key].outbox.lock());
}

#[test]
fn r5_a_replay_decides_nothing_and_the_live_owner_makes_up_for_it() {
    let limits = OutboxLimits { messages_max: 2, bytes_max: 1000 };
    let mut world = World::with(HubSettings { outbox: limits, ..settings() }, usize::MAX);
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    // More than twice the bound, which is what a restart allows.
    world.send(&alice, (1..=5).map(|n| publish(n, "g", "m")));
    world.store();
    world.apply();
    assert_eq!(world.appends.len(), 1, "bob's end, which a crash keeps from the log");
    world.start();
    world.now = world.now.plus_ms(100 * RETENTION_MS);
    world.apply();
    world.wait_ms(0);
    assert_eq!((world.shard.sessions(), world.waiting()), (2, 0), "neither overflow nor expiry is decided");
    world.boot();
    assert_eq!(world.refusal(&bob), OpenError::Unavailable);
    world.settle();
    assert_eq!(world.bodies().last().unwrap(), &ended("bob", EndReason::OutboxFull));
    assert_eq!(world.shard.sessions(), 1);
    world.resume(&alice);
}

#[test]
fn r5_time_to_live_counts_from_the_records_time_and_is_judged_when_transmitting() {
    let mut world = World::new();
    let alice = world.open("alice");
    let bob = world.open_in("bob", &["g"]);
    world.lose(&bob);
    let with_ttl = |n, seconds| match publish(n, "g", "short") {
        Upstream::SendToGroup { group, payload, metadata, ack_id, no_echo, .. } => {
            Upstream::SendToGroup { group, payload, metadata, ack_id, no_echo, ttl_seconds: seconds }
        }
        other => other,
    };
    world.send(&alice, [with_ttl(1, 10), with_ttl(2, 11), publish(3, "g", "for ever")]);
    world.settle();
    world.now = world.now.plus_ms(10_000);
    world.restart();
    let bob = world.resume(&bob);
    assert_eq!(world.reads(&bob), ["2 short", "3 for ever"]);
}

#[test]
fn r5_the_times_of_records_never_decrease() {
    let mut world = World::new();
    let alice = world.open("alice");
    for n in 0..10 {
        world.now = Time(START.0 - n * 1_000);
        world.ask_for(&alice, join(n, "g"));
    }
    world.now = Time(START.0 + 5_000);
    world.ask_for(&alice, join(10, "g"));
    world.now = Time(START.0 - 5_000);
    world.lose(&alice);
    world.wait_ms(RETENTION_MS);
    world.settle();
    world.now = Time(START.0 - 10_000);
    world.start();
    world.apply();
    world.boot();
    world.open("bob");
    let times: Vec<Time> = world.log.iter().map(|record| record.time).collect();
    let boots = world.bodies().iter().rposition(|body| body == "booted").unwrap();
    assert!(times[..boots].is_sorted() && times[boots + 1..].is_sorted(), "{times:?}");
    assert!(times[boots + 1] >= times[boots - 1]);
}

#[test]
fn a_boot_ends_plain_sessions_and_detaches_reliable_ones_with_retention_from_its_own_time() {
    let mut world = World::new();
    let alice = world.open_in("alice", &["g"]);
    world.open_with(NewSession { groups: vec![group("g")], ..opening_on("plain", Subprotocol::Json, "u") });
    world.open_with(opening_on("raw", Subprotocol::Raw, "u"));
    let bob = world.open("bob");
    world.lose(&bob);
    world.wait_ms(RETENTION_MS - 1);
    world.restart();
    assert_eq!(world.shard.sessions(), 2);
    world.wait_ms(RETENTION_MS - 1);
    assert_eq!(world.waiting(), 0, "the time that bob had waited in the earlier boot does not count");
    let alice = world.resume(&alice);
    assert_eq!(world.ask_for(&alice, publish(1, "g", "hi")), ["1 hi", "ack 1"]);
    world.wait_ms(1);
    world.settle();
    assert_eq!(world.bodies().last().unwrap(), &ended("bob", EndReason::Expired));
    assert_eq!(world.shard.sessions(), 1);
}

#[test]
fn an_ended_session_stays_ended_after_a_restart() {
    let mut world = World::new();
    let alice = world.open("alice");
    world.close(&alice, SocketEnd::ClosedForGood);
    world.settle();
    world.restart();
    assert_eq!((world.refusal(&alice), world.shard.sessions()), (OpenError::Refused, 0));
}

#[test]
fn what_a_crash_kept_from_the_log_may_be_sent_again_and_what_it_did_not_is_a_duplicate() {
    let mut world = World::new();
    let alice = world.open_in("alice", &["g"]);
    world.send(&alice, [publish(1, "g", "stored"), publish(2, "g", "lost")]);
    world.store();
    world.log.pop();
    world.restart();
    let alice = world.resume(&alice);
    world.send(&alice, [publish(1, "g", "stored"), publish(2, "g", "lost")]);
    world.settle();
    assert_eq!(world.reads(&alice), ["1 stored", "ack 1 Duplicate", "2 lost", "ack 2"]);
}

#[test]
fn another_process_that_boots_takes_over() {
    let mut world = World::new();
    let alice = world.open_in("alice", &["g"]);
    let boot = Shard::booted(BootId(77), world.now, false);
    world.log.push(boot.into());
    world.apply();
    assert!(!world.shard.is_live());
    assert_eq!(world.reads(&alice), ["cut"], "it is attached to nobody any more");
    world.send(&alice, [publish(1, "g", "stale")]);
    world.wait_ms(10 * RETENTION_MS);
    assert_eq!((world.waiting(), world.refusal(&alice)), (0, OpenError::Unavailable));
}

/// The original may go on with them.
#[test]
fn a_boot_from_a_copy_ends_all_sessions_and_what_it_says_of_them_is_told() {
    let mut world = World::new();
    world.takes_disconnected = true;
    let alice = world.open_in("alice", &["g"]);
    world.ask_for(&alice, publish(None, "g", "hi"));
    let boot = Shard::booted_from_copy(BootId(77), world.now, true);
    world.log.push(boot.into());
    world.apply();
    assert_eq!((world.shard.sessions(), world.shard.untold()), (0, 1));
    assert!(!world.shard.is_idle(), "its end is to be told");
    assert_eq!(world.refusal(&alice), OpenError::Unavailable, "this boot is not the owner any more");
}

#[test]
fn records_that_were_applied_already_are_passed_over() {
    let mut world = World::new();
    let alice = world.open_in("alice", &["g"]);
    world.ask_for(&alice, publish(None, "g", "hi"));
    world.restart();
    let alice = world.resume(&alice);
    assert_eq!(world.reads(&alice), ["1 hi"]);
    for from in 0..world.log.len() {
        let portion = (from..world.log.len()).map(|n| (Offset(n as u64), world.log[n].clone())).collect();
        world.handle(Input::Records(portion));
    }
    assert!(world.shard.is_live());
    assert_eq!((world.reads(&alice), world.shard.sessions()), (vec![], 1));
    assert_eq!(world.ask_for(&alice, publish(1, "g", "ho")), ["2 ho", "ack 1"]);
}

#[test]
fn a_boot_that_is_stamped_behind_the_log_takes_effect_at_the_logs_time() {
    let mut world = World::new();
    let alice = world.open("alice");
    world.open_with(opening_on("plain", Subprotocol::Json, "u"));
    world.wait_ms(7_000_000);
    world.ask_for(&alice, join(1, "g"));
    let last = world.now;
    world.takes_disconnected = true;
    world.now = START;
    world.start();
    world.apply();
    assert_eq!(world.shard.time(), last);
    world.boot();
    assert_eq!(world.log.last().unwrap().time, START);
    assert_eq!(world.shard.time(), last);
    assert_eq!(world.shard.poll_timeout(), Some(last.plus_ms(RETENTION_MS)), "alice waits from then on");
    let told: Vec<_> = world.disconnected.iter().map(|disconnected| disconnected.time).collect();
    assert_eq!(told, [last]);
    world.now = HubTime::begin(START, last).at(START);
    world.wait_ms(RETENTION_MS - 1);
    assert_eq!(world.waiting(), 0);
    world.wait_ms(1);
    world.settle();
    assert_eq!(world.bodies().last().unwrap(), &ended("alice", EndReason::Expired));
}

#[test]
fn a_second_copy_of_a_boot_is_passed_over() {
    let mut world = World::new();
    let alice = world.open_in("alice", &["g"]);
    let boot = world.log[0].clone();
    world.log.push(boot);
    world.apply();
    assert!(world.shard.is_live());
    assert_eq!(world.shard.poll_timeout(), None);
    assert_eq!(world.ask_for(&alice, publish(1, "g", "hi")), ["1 hi", "ack 1"]);
}
