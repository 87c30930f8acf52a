use std::task::Waker;

use super::*;
use crate::hub::{HubSettings, NewSession, Opening, ShardId};
use crate::log::{BootId, SessionIdentity};
use crate::session::{MemoryBudget, OutboxLimits, Request, RequestBounds, SessionLimits};
use crate::wire::{ConnectionId, GroupName, ReconnectionToken, Subprotocol, Upstream};

const NOW: Time = Time(1_000_000);
const BOOT: BootId = BootId(1);

fn settings() -> HubSettings {
    HubSettings {
        outbox: OutboxLimits { messages_max: 100, bytes_max: 1 << 20 },
        requests: RequestBounds { requests_max: 100, request_bytes_max: 1 << 20, reply_bytes_max: 1 << 20 },
        ack_window_ids: 100,
        session_retention_seconds: 60,
        sessions: SessionLimits::default(),
        groups_per_session_max: 10,
        closes_on_event_failure: false,
    }
}

/// A driver, its log, and the offset at which that goes on.
struct Bench {
    driver: ShardDriver,
    next: u64,
    attached: Vec<Attachment>,
    opened: u64,
}

impl Bench {
    /// One whose log held so many records.
    fn new(records: u64, outlives_process: bool) -> Self {
        let shard = Shard::new(settings(), ShardId::WHOLE, BOOT, Arc::new(MemoryBudget::new(usize::MAX)));
        let driver = ShardDriver::new(shard, Offset(0), Offset(records), outlives_process);
        Self { driver, next: 0, attached: Vec::new(), opened: 0 }
    }

    /// One that takes sockets.
    fn live(outlives_process: bool) -> Self {
        let mut bench = Self::new(0, outlives_process);
        bench.turn();
        bench.records(vec![Arc::new(Shard::booted(BOOT, NOW, false))]);
        bench.turn();
        bench
    }

    /// Records come from the log.
    fn records(&mut self, records: Vec<Arc<Record>>) {
        assert!(self.driver.takes_records());
        let records = records.into_iter().map(|record| {
            self.next += 1;
            (Offset(self.next - 1), record)
        });
        let records = records.collect();
        self.driver.handle(NOW, Input::Records(records));
    }

    fn open(&mut self) {
        self.opened += 1;
        let session = NewSession {
            identity: SessionIdentity {
                connection_id: ConnectionId::new(&format!("c{}", self.opened)),
                user_id: None,
                subprotocol: Subprotocol::JsonReliable,
                custom_subprotocol: None,
            },
            roles: vec!["webpubsub.joinLeaveGroup".to_owned()],
            groups: Vec::new(),
            reconnection_token: Some(ReconnectionToken("token".to_owned())),
            state: None,
        };
        self.driver.handle(NOW, Opening { open: OpenId(self.opened), session }.into());
    }

    fn join(&mut self, client: usize, ack_id: u64) {
        let group = GroupName::new("group").unwrap();
        let message = Upstream::JoinGroup { group, ack_id: Some(ack_id) };
        let session = self.attached[client].session;
        let requests = vec![Request { message, bytes: 10 }];
        self.driver.handle(NOW, Input::Requests { session, requests });
    }

    /// The rest of a turn. Its appends are returned.
    fn turn(&mut self) -> Vec<(Appending, Vec<Arc<Record>>)> {
        self.driver.serve(NOW);
        let mut appends = Vec::new();
        while let Some(output) = self.driver.poll_output() {
            match output {
                ShardOutput::Append(appending, records) => appends.push((appending, records)),
                ShardOutput::Opened(_, outcome) => self.attached.push(outcome.unwrap()),
                _ => {}
            }
        }
        self.driver.end_turn();
        appends
    }

    /// What this turn appends is stored, and comes back in the next one.
    fn settle(&mut self) {
        for (appending, records) in self.turn() {
            self.driver.append_done(NOW, appending, Ok(()));
            self.records(records);
        }
        assert!(self.turn().is_empty());
    }
}

#[test]
fn a_start_tells_that_what_was_there_is_folded_and_then_that_it_is_live() {
    let mut bench = Bench::new(2, true);
    assert!(bench.driver.poll_output().is_none());
    let earlier = |boot| Arc::new(Shard::booted(BootId(boot), Time(boot as u64), false));
    bench.records(vec![earlier(7)]);
    assert!(bench.driver.poll_output().is_none(), "there is more in the log");
    bench.records(vec![earlier(8)]);
    let folded = Folded { time: Time(8), untold: 0 };
    assert!(matches!(bench.driver.poll_output(), Some(ShardOutput::Folded(told)) if told == folded));
    assert!(bench.driver.poll_output().is_none());
    assert!(!bench.driver.has_applied(None), "nobody sees a shard that is not live");
    bench.records(vec![Arc::new(Shard::booted(BOOT, NOW, false))]);
    assert!(matches!(bench.driver.poll_output(), Some(ShardOutput::Live)));
    assert!(bench.driver.poll_output().is_none());
    assert!(bench.driver.has_applied(Some(Offset(2))) && !bench.driver.has_applied(Some(Offset(3))));
}

#[test]
fn what_a_turn_appends_goes_together_and_fails_together() {
    let mut bench = Bench::live(true);
    (0..3).for_each(|_| bench.open());
    bench.settle();
    assert_eq!(bench.attached.len(), 3);
    for client in 0..3 {
        bench.join(client, 1);
    }
    let mut appends = bench.turn();
    let (appending, records) = appends.pop().unwrap();
    assert!(appends.is_empty());
    assert_eq!((appending.ids().len(), records.len()), (3, 3));
    bench.driver.append_done(NOW, appending, Err(Certainty::Definite));
    assert!(bench.turn().is_empty());
    // Each of them has heard of it: it asks for the next thing.
    for client in 0..3 {
        bench.join(client, 2);
    }
    let appends = bench.turn();
    assert_eq!(appends.iter().map(|(_, records)| records.len()).sum::<usize>(), 3);
}

#[test]
fn a_process_ends_when_appends_are_settled_and_all_that_was_acknowledged_is_marked() {
    let mut bench = Bench::live(true);
    bench.open();
    bench.settle();
    assert!(!bench.driver.is_drained(), "nobody has asked for it");
    bench.join(0, 1);
    let (appending, records) = bench.turn().pop().unwrap();
    bench.driver.drain(NOW);
    assert!(bench.turn().is_empty());
    assert!(!bench.driver.is_drained(), "an append is under way");
    bench.driver.append_done(NOW, appending, Ok(()));
    bench.records(records);
    bench.turn();
    assert!(bench.driver.is_drained());
}

#[test]
fn with_a_log_that_goes_with_the_process_all_sessions_are_over_before_it_ends() {
    let mut bench = Bench::live(false);
    bench.open();
    bench.settle();
    bench.driver.drain(NOW);
    let appends = bench.turn();
    assert!(!appends.is_empty() && !bench.driver.is_drained());
    for (appending, records) in appends {
        bench.driver.append_done(NOW, appending, Ok(()));
        bench.records(records);
    }
    bench.turn();
    assert!(bench.driver.is_drained());
    assert_eq!(bench.driver.shard().sessions(), 0);
}

#[test]
fn steps_are_taken_until_the_process_is_about_to_end() {
    let mut bench = Bench::live(true);
    let due = Some(Time(5));
    assert_eq!(bench.driver.poll_timeout(due), due);
    assert!(bench.driver.is_idle());
    assert!(bench.driver.step(|_| Step::More).is_none());
    assert!(bench.driver.wants_turn() && !bench.driver.is_idle());
    assert_eq!(bench.driver.step(|_| Step::Write(Vec::new())), Some(Vec::new()));
    assert!(!bench.driver.wants_turn() && !bench.driver.is_idle(), "it is being written");
    bench.driver.written();
    assert!(bench.driver.is_idle());
    bench.driver.step(|_| Step::More);
    bench.driver.drain(NOW);
    assert!(bench.driver.step(|_| unreachable!("a step of a process that ends")).is_none());
    assert!(!bench.driver.wants_turn());
    assert_eq!(bench.driver.poll_timeout(due), None);
}

#[test]
fn records_that_wait_go_on_turn_by_turn_and_none_come_meanwhile() {
    let mut shard = Shard::new(settings(), ShardId::WHOLE, BOOT, Arc::new(MemoryBudget::new(usize::MAX)));
    shard.fold_in_portions_of(1);
    let driver = ShardDriver::new(shard, Offset(0), Offset(3), true);
    let mut bench = Bench { driver, next: 0, attached: Vec::new(), opened: 0 };
    let booted = |boot| Arc::new(Shard::booted(BootId(boot), Time(1), false));
    bench.records((7..10).map(booted).collect());
    for applied in [0, 1, 2] {
        bench.turn();
        assert_eq!(bench.driver.shard().applied(), Some(Offset(applied)));
        assert_eq!(bench.driver.takes_records(), applied == 2);
        assert_eq!(bench.driver.wants_turn(), applied < 2);
    }
}

#[test]
fn a_timer_that_is_due_fires_in_a_turn_for_something_else() {
    let mut bench = Bench::live(true);
    bench.open();
    bench.settle();
    let session = bench.attached[0].session;
    let lost = Input::SocketClosed { session, end: crate::hub::SocketEnd::Lost };
    bench.driver.handle(NOW, lost);
    bench.turn();
    let due = bench.driver.poll_timeout(None).unwrap();
    assert!(bench.driver.poll_acknowledged(&mut Context::from_waker(Waker::noop())).is_pending());
    bench.driver.serve(Time(due.0 - 1));
    assert!(bench.turn().is_empty());
    bench.driver.serve(due);
    assert_eq!(bench.turn().len(), 1, "the session has expired");
}
