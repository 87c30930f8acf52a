//! Folds a log again, in other portions and in several shards.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use bytes::BytesMut;
use oncewire_protocol::hub::{Input, OpenId, Output, Resuming, Shard, ShardId};
use oncewire_protocol::log::{Body, BootId, BootKey, Certainty, Key, Offset, Published, Record, Time};
use oncewire_protocol::session::{MemoryBudget, Progress};
use oncewire_protocol::wire::{
    ConnectionId, GroupName, Metadata, Payload, PayloadKind, SequenceId, Subprotocol,
};

use super::settings;
use super::truth::{Session, Truth};
use super::world::GROUPS;
use crate::frames::{Heard, hear};

/// The boot in which logs are folded again.
pub const BOOT: BootId = BootId(u128::MAX);

/// What each session's client is sent when it resumes after everything: ids and texts.
pub type Outcome = BTreeMap<String, Vec<(SequenceId, String)>>;

/// Each way to fold the log comes to what the naive fold says, memberships included.
pub fn check(truth: &Truth, cut: u8) {
    let mut expected: Outcome = truth
        .sessions
        .iter()
        .filter(|(_, session)| session.subprotocol.is_reliable())
        .map(|(name, session)| {
            let owed = session.deliveries.iter().map(|delivery| (delivery.id, delivery.text.clone()));
            (name.clone(), owed.collect())
        })
        .collect();
    // The new boot ends those that are not reliable.
    let is_ended = |session: &&Session| !session.subprotocol.is_reliable();
    let untold = truth.untold.len() + truth.sessions.values().filter(is_ended).count();
    let mut log = truth.log.clone();
    append_probes(&mut log, truth, &mut expected);
    for (name, owed) in &mut expected {
        owed.retain(|(id, _)| *id > truth.sessions[name].marked);
    }
    let cut = usize::from(cut) % (log.len() + 1);
    for (cuts, shards, now) in
        [(vec![], 1, Time(0)), (vec![cut, cut / 2], 1, Time(1 << 50)), (vec![cut], 2, Time(0))]
    {
        let hubs: Vec<Shard> =
            (0..shards).map(|index| fold(&log, &cuts, ShardId { index, count: shards }, now)).collect();
        let held: usize = hubs.iter().map(Shard::sessions).sum();
        assert_eq!(held, expected.len(), "{shards} shards");
        assert_eq!(hubs.iter().map(Shard::untold).sum::<usize>(), untold, "{shards} shards");
        let mut outcomes = Outcome::new();
        for mut hub in hubs {
            outcomes.extend(outcome(&mut hub, &truth.names));
        }
        assert_eq!(outcomes, expected, "{shards} shards, cut at {cuts:?}");
    }
}

/// A new boot, then one message to each group, which shows who is in it.
fn append_probes(log: &mut Vec<(Offset, Arc<Record>)>, truth: &Truth, expected: &mut Outcome) {
    let last = log.last().map_or(0, |(offset, _)| offset.0);
    log.push((Offset(last + 1), Arc::new(Shard::booted(BOOT, Time(0), true))));
    for (counter, name) in (1..).zip(GROUPS) {
        let Ok(group) = GroupName::new(name) else { continue };
        let text = format!("probe of {name}");
        let boot = BootKey { boot: BOOT, shard: 9, counter, settled_below: counter };
        let body = Body::Published(Published {
            publisher: None,
            user_id: None,
            groups: vec![group],
            no_echo: true,
            ttl_seconds: 0,
            payload: Payload { kind: PayloadKind::Text, bytes: text.clone().into() },
            metadata: Metadata::default(),
        });
        let record =
            Record { key: Key { boot, ack: None, request: None }, time: Time(0), sequence_ack: None, body };
        log.push((Offset(last + 1 + counter), Arc::new(record)));
        for (member, owed) in expected.iter_mut() {
            if truth.sessions[member].groups.contains(name) {
                let place = owed.len() as u64 + 1;
                owed.push((place + 300 * ((place - 1) / 128), text.clone()));
            }
        }
    }
}

fn fold(log: &[(Offset, Arc<Record>)], cuts: &[usize], shard: ShardId, now: Time) -> Shard {
    let mut hub = Shard::new(settings(), shard, BOOT, Arc::new(MemoryBudget::new(usize::MAX)));
    let mut from = 0;
    let mut ends = cuts.to_vec();
    ends.push(log.len());
    ends.sort_unstable();
    for end in ends {
        hub.handle(now, Input::Records(log[from..end].to_vec()));
        while hub.has_waiting() {
            hub.handle(now, Input::GoOn);
        }
        if !hub.is_live() {
            hub.handle(now, Input::Timeout);
            assert!(hub.poll_output().is_none(), "one that is not live decides nothing");
        }
        from = end;
    }
    hub
}

/// Resumes each of these sessions that a live shard has, and reads what its client is sent, at the beginning of time.
pub fn outcome(hub: &mut Shard, names: &[(String, Subprotocol)]) -> Outcome {
    let mut outcome = Outcome::new();
    for (name, subprotocol) in names {
        let connection_id = ConnectionId::new(name);
        let resuming =
            Resuming { open: OpenId(0), connection_id, subprotocol: *subprotocol, has_waited: true };
        hub.handle(Time(0), Input::Resume(resuming));
        let mut attachment = None;
        while let Some(output) = hub.poll_output() {
            match output {
                Output::Opened { outcome, .. } => attachment = outcome.ok(),
                Output::Append { append, .. } => {
                    hub.handle(Time(0), Input::AppendFailed { append, certainty: Certainty::Definite });
                }
                Output::CommandDone { .. }
                | Output::Call { .. }
                | Output::Connected(_)
                | Output::Disconnected(_)
                | Output::StartTooLate
                | Output::Gone
                | Output::Ended(_) => {}
            }
        }
        let Some(attachment) = attachment else { continue };
        let mut read = Vec::new();
        loop {
            let mut out = BytesMut::new();
            let epoch = attachment.session.epoch;
            let mut outbox = attachment.outbox.lock();
            let progress = outbox.transmit(epoch, Time(0), 4096, &mut out, &mut Vec::new(), Waker::noop());
            drop(outbox);
            for heard in hear(subprotocol.encoding(), &out) {
                match heard {
                    Heard::Message { id: Some(id), text } => read.push((id, text)),
                    other => assert_eq!(other, Heard::Other, "to a socket that has just come"),
                }
            }
            if progress != Progress::Frames {
                break;
            }
        }
        outcome.insert(name.clone(), read);
    }
    outcome
}
