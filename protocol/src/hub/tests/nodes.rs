//! Several gateways over one log: sessions that move, gateways that are gone.

use std::ops::{Index, IndexMut};
use std::sync::Arc;

use super::harness::*;
use crate::hub::{
    Attachment, Done, EventError, Handled, HubSettings, Input, NewSession, OpenError, OpenId, Shard,
};
use crate::log::{
    Audience, BootId, CHUNKS, Certainty, ChunkCheckpoint, EndReason, EventId, HubCheckpoint, IdempotencyKey,
    NodeName, Offset, Record, RequestName, Selection,
};
use crate::session::OutboxLimits;
use crate::wire::{ConnectionId, EventName, Metadata, Payload, PayloadKind, Subprotocol, Upstream};

const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

/// Nodes over one log. Nothing happens by itself: the test says whose append lands when, and who reads on.
pub(super) struct Cluster {
    pub nodes: Vec<World>,
    pub log: Vec<Arc<Record>>,
    boots: u128,
}

impl Index<usize> for Cluster {
    type Output = World;

    fn index(&self, node: usize) -> &World {
        &self.nodes[node]
    }
}

impl IndexMut<usize> for Cluster {
    fn index_mut(&mut self, node: usize) -> &mut World {
        &mut self.nodes[node]
    }
}

impl Cluster {
    pub fn new(nodes: usize) -> Self {
        Self::with(nodes, settings())
    }

    fn with(nodes: usize, settings: HubSettings) -> Self {
        let node = |_| World::before_first_start(settings.clone(), usize::MAX);
        let mut cluster = Self { nodes: (0..nodes).map(node).collect(), log: Vec::new(), boots: 0 };
        (0..nodes).for_each(|node| cluster.start(node));
        cluster.settle();
        cluster
    }

    /// A new process of a node reads the log and begins.
    pub fn start(&mut self, node: usize) {
        self.boots += 1;
        let boot = self.boots;
        self[node].start_as(boot);
        self[node].is_gone = false;
        let takes_disconnected = self[node].takes_disconnected;
        self[node].handle(Input::TakesDisconnected(takes_disconnected));
        self.read(node);
        self.begin(node, self.log.len() as u64);
    }

    fn begin(&mut self, node: usize, seen: u64) {
        let (boot, now, takes) = (self[node].shard_boot(), self[node].now, self[node].takes_disconnected);
        let started = Shard::node_started(boot, name(node), Offset(seen), now, takes);
        self.log.push(Arc::new(started));
        self.read(node);
    }

    /// The node's oldest append lands.
    fn land(&mut self, node: usize) -> Vec<String> {
        let (_, records) = self[node].appends.pop_front().expect("nothing is to be appended");
        self.log.extend(records.iter().cloned());
        records.iter().map(|record| body_name(record)).collect()
    }

    /// A node reads what it has not read of the log.
    pub fn read(&mut self, node: usize) {
        self.nodes[node].log.clone_from(&self.log);
        self.nodes[node].apply();
    }

    fn read_all(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.read(node));
    }

    /// Everything lands and is read by all, until nothing is left; then all know the same.
    pub fn settle(&mut self) {
        self.read_all();
        while let Some(node) = (0..self.nodes.len()).find(|node| !self[*node].appends.is_empty()) {
            self.land(node);
            self.read_all();
        }
        self.expect_equal_folds();
    }

    /// All nodes have folded the log to the same, but for what clients have acknowledged and the log does not say.
    pub fn expect_equal_folds(&self) {
        let folds: Vec<_> = self.nodes.iter().filter(|node| !node.is_gone).map(fold_of).collect();
        assert!(folds.windows(2).all(|pair| pair[0] == pair[1]), "folds differ: {folds:#?}");
    }

    /// Another node is declared gone.
    pub fn declare_gone(&mut self, by: usize, gone: usize) {
        let boot = self[gone].shard_boot();
        self[by].handle(Input::Gone(boot));
    }

    /// A reliable session in `g` at a node.
    pub fn open(&mut self, node: usize, id: &str) -> Client {
        self.open_with(node, NewSession { groups: vec![group("g")], ..opening(id) })
    }

    fn open_with(&mut self, node: usize, session: NewSession) -> Client {
        let id = session.identity.connection_id.clone();
        let open = self[node].ask(session);
        self.settle();
        let attachment = self[node].opened.remove(&open).unwrap().unwrap();
        let client = Client { id, attachment };
        let is_raw = self[node].reads(&client).is_empty();
        assert!(!is_raw || client.id.as_str().starts_with("raw"));
        client
    }

    /// A client comes to a node; nothing has landed yet.
    pub fn come(&mut self, node: usize, client: &Client) -> OpenId {
        self[node].ask_to_resume(client.id.as_str(), Subprotocol::JsonReliable, false)
    }

    /// What became of that.
    fn attached(&mut self, node: usize, client: &Client, open: OpenId) -> Client {
        let attachment: Attachment =
            self[node].opened.remove(&open).expect("an answer").expect("an attachment");
        Client { id: client.id.clone(), attachment }
    }

    /// A client moves to a node, which holds the session and speaks for it then.
    fn move_to(&mut self, node: usize, client: &Client) -> Client {
        let open = self.come(node, client);
        self.settle();
        self.attached(node, client, open)
    }

    fn bodies_since(&self, at: usize) -> Vec<String> {
        self.log[at..].iter().map(|record| body_name(record)).collect()
    }
}

fn name(node: usize) -> NodeName {
    NodeName::new(&format!("gw-{node}")).unwrap()
}

fn fold_of(world: &World) -> (HubCheckpoint, Vec<ChunkCheckpoint>) {
    let mut hub = world.shard.state.to_checkpoint();
    // What is appended and has come back at its proposer alone is not settled for others.
    hub.proposers.clear();
    let chunks = (0..CHUNKS).map(|chunk| {
        let mut chunk = world.shard.chunk_to_checkpoint(chunk);
        for session in &mut chunk.sessions {
            session.unacknowledged.clear();
        }
        chunk
    });
    (hub, chunks.collect())
}

fn texts(node: &World, client: &Client) -> Vec<String> {
    node.reads(client)
}

#[test]
fn a_client_that_moves_hears_at_once_and_its_requests_wait_for_the_release() {
    let mut cluster = Cluster::new(2);
    let alice = cluster.open(A, "alice");
    let bob = cluster.open(A, "bob");
    let open = cluster.come(B, &alice);
    assert!(!cluster[B].opened.contains_key(&open), "the log has to say");
    assert_eq!(cluster.land(B), ["alice attached"]);
    cluster.read(B);
    let moved = cluster.attached(B, &alice, open);
    cluster[B].send(&moved, [publish(1, "g", "from b")]);
    assert!(cluster[B].appends.is_empty(), "A has not released the session");
    cluster[A].send(&bob, [publish(1, "g", "from a")]);
    cluster.land(A);
    cluster.read(B);
    assert_eq!(texts(&cluster[B], &moved), ["1 from a"], "but it hears");
    cluster.read(A);
    assert_eq!(cluster[A].reads(&alice), ["cut"]);
    assert_eq!(cluster.land(A), ["released alice"]);
    cluster.read(B);
    assert_eq!(cluster.land(B), ["alice published from b"]);
    cluster.settle();
    assert_eq!(texts(&cluster[B], &moved), ["2 from b", "ack 1"]);
    assert_eq!(texts(&cluster[A], &bob), ["1 from a", "ack 1", "2 from b"]);
}

#[test]
fn what_a_moved_session_has_in_flight_is_settled_before_it_is_released() {
    let mut cluster = Cluster::new(2);
    let alice = cluster.open(A, "alice");
    cluster[A].send(&alice, [publish(1, "g", "one")]);
    cluster[A].send(&alice, [publish(2, "g", "never")]);
    let moved = {
        let open = cluster.come(B, &alice);
        cluster.land(B);
        cluster.read(B);
        cluster.attached(B, &alice, open)
    };
    // The client sends again what was not acknowledged.
    cluster[B].send(&moved, [publish(1, "g", "one"), publish(2, "g", "two")]);
    cluster.read(A);
    assert_eq!(cluster[A].waiting(), 1, "what waited is dropped, what is in flight lands");
    assert_eq!(cluster.land(A), ["alice published one"]);
    cluster.read(A);
    assert_eq!(cluster.land(A), ["released alice"]);
    cluster.settle();
    let read = texts(&cluster[B], &moved);
    // Executed at A, so that B's socket gets the ack; B tells the second attempt that it is a duplicate.
    assert_eq!(read, ["1 one", "ack 1", "ack 1 Duplicate", "2 two", "ack 2"]);
}

#[test]
fn nothing_of_a_gateway_that_is_gone_counts_and_its_sessions_go_on() {
    let mut cluster = Cluster::new(2);
    let alice = cluster.open(A, "alice");
    let bob = cluster.open(B, "bob");
    cluster[A].send(&alice, [publish(1, "g", "late")]);
    cluster.declare_gone(B, A);
    assert_eq!(cluster.land(B), [format!("gone {}", cluster[A].shard_boot().0)]);
    cluster.land(A);
    cluster.read(B);
    let open = cluster.come(B, &alice);
    cluster.land(B);
    cluster.read(B);
    let moved = cluster.attached(B, &alice, open);
    assert_eq!(texts(&cluster[B], &bob), Vec::<String>::new(), "the record of a gone boot is passed over");
    cluster[B].send(&moved, [publish(1, "g", "late")]);
    assert_eq!(cluster.land(B), ["alice published late"], "nobody has to release it");
    cluster.read_all();
    assert_eq!(texts(&cluster[B], &moved), ["1 late", "ack 1"]);
    assert_eq!(texts(&cluster[B], &bob), ["1 late"]);
    assert!(cluster[A].is_gone);
    assert_eq!(cluster[A].reads(&alice), ["cut"], "and acknowledges nothing");
    cluster[A].send(&alice, [publish(2, "g", "zombie")]);
    assert!(cluster[A].appends.is_empty());
    assert_eq!(cluster[A].try_open(opening("new")).map(|_| ()), Err(OpenError::Unavailable));
}

#[test]
fn who_waited_for_a_release_speaks_when_the_speaker_is_gone() {
    let mut cluster = Cluster::new(2);
    let alice = cluster.open(A, "alice");
    let open = cluster.come(B, &alice);
    cluster.land(B);
    cluster.read(B);
    let moved = cluster.attached(B, &alice, open);
    cluster[B].send(&moved, [publish(1, "g", "hi")]);
    cluster.declare_gone(B, A);
    cluster.land(B);
    cluster.read(B);
    assert_eq!(cluster.land(B), ["alice published hi"]);
    cluster.read(B);
    assert_eq!(texts(&cluster[B], &moved), ["1 hi", "ack 1"]);
}

#[test]
fn a_release_that_a_return_has_overtaken_gives_nothing_away() {
    let mut cluster = Cluster::new(2);
    let alice = cluster.open(A, "alice");
    let first = cluster.come(B, &alice);
    cluster.land(B);
    cluster.read_all();
    let at_b = cluster.attached(B, &alice, first);
    // A's release is on its way while the client comes back to A, and goes to B again.
    let second = cluster.come(A, &at_b);
    assert_eq!(cluster[A].waiting(), 2);
    let release = cluster[A].appends.pop_front().unwrap();
    assert_eq!(cluster.land(A), ["alice attached"]);
    cluster.read(A);
    let at_a = cluster.attached(A, &alice, second);
    cluster[A].send(&at_a, [publish(1, "g", "from a")]);
    cluster.read(B);
    let third = cluster.come(B, &at_b);
    cluster.land(B);
    cluster.log.extend(release.1.iter().cloned());
    cluster.read(B);
    let again_at_b = cluster.attached(B, &alice, third);
    cluster[B].send(&again_at_b, [publish(1, "g", "from a")]);
    assert!(cluster[B].appends.is_empty(), "the release answered the first attachment");
    cluster.settle();
    let published = cluster.bodies_since(0).iter().filter(|body| *body == "alice published from a").count();
    assert_eq!(published, 1);
    let read = texts(&cluster[B], &again_at_b);
    assert!(read.contains(&"ack 1".to_owned()) && read.contains(&"1 from a".to_owned()), "{read:?}");
}

#[test]
fn of_two_gateways_that_are_asked_at_once_the_later_in_the_log_has_the_session() {
    let mut cluster = Cluster::new(3);
    let alice = cluster.open(A, "alice");
    let (at_b, at_c) = (cluster.come(B, &alice), cluster.come(C, &alice));
    cluster.land(C);
    cluster.land(B);
    cluster.read_all();
    let (client_b, client_c) = (cluster.attached(B, &alice, at_b), cluster.attached(C, &alice, at_c));
    assert_eq!(cluster[C].reads(&client_c), ["cut"]);
    cluster.settle();
    cluster[B].send(&client_b, [publish(1, "g", "hi")]);
    cluster.settle();
    assert_eq!(texts(&cluster[B], &client_b), ["1 hi", "ack 1"]);
}

#[test]
fn of_two_sockets_that_wait_for_one_session_the_newer_gets_it() {
    let mut cluster = Cluster::new(2);
    let alice = cluster.open(A, "alice");
    let (older, newer) = (cluster.come(B, &alice), cluster.come(B, &alice));
    assert_eq!(cluster[B].waiting(), 1, "one record is enough");
    let refused = cluster[B].opened.remove(&older).unwrap();
    assert_eq!(refused.map(|_| ()), Err(OpenError::Unavailable));
    cluster.settle();
    cluster.attached(B, &alice, newer);
}

#[test]
fn r10_a_gateway_that_lags_refuses_nobody_by_what_it_has_not_read() {
    let mut cluster = Cluster::new(2);
    let open = cluster[A].ask(opening("alice"));
    cluster.land(A);
    cluster.read(A);
    let attachment = cluster[A].opened.remove(&open).unwrap().unwrap();
    let alice = Client { id: ConnectionId::new("alice"), attachment };
    // B has not read that there is such a session.
    let open = cluster.come(B, &alice);
    cluster.settle();
    cluster.attached(B, &alice, open);
    for (id, subprotocol) in [("nobody", Subprotocol::JsonReliable), ("alice", Subprotocol::ProtobufReliable)]
    {
        let open = cluster[A].ask_to_resume(id, subprotocol, false);
        cluster.settle();
        let outcome = cluster[A].opened.remove(&open).unwrap();
        assert_eq!(outcome.map(|_| ()), Err(OpenError::Refused), "{id}: the log has said so");
    }
}

#[test]
fn an_attachment_that_certainly_failed_is_no_refusal() {
    let mut cluster = Cluster::new(2);
    let alice = cluster.open(A, "alice");
    let open = cluster.come(B, &alice);
    cluster[B].fail(Certainty::Definite);
    let outcome = cluster[B].opened.remove(&open).unwrap();
    assert_eq!(outcome.map(|_| ()), Err(OpenError::Unavailable));
    cluster.move_to(B, &alice);
}

#[test]
fn sessions_that_are_not_reliable_end_with_their_gateway_and_keep_nothing_elsewhere() {
    let mut cluster = Cluster::new(2);
    let alice = cluster.open(A, "alice");
    let new = NewSession { groups: vec![group("g")], ..opening_on("bob", Subprotocol::Json, "bob") };
    let bob = cluster.open_with(B, new);
    cluster[A].send(&alice, [publish(1, "g", "hi")]);
    cluster.settle();
    assert_eq!(texts(&cluster[B], &bob), ["hi"]);
    let (_, key) = cluster[A].shard.by_connection_id.iter().find(|(id, _)| id.as_str() == "bob").unwrap();
    assert_eq!(cluster[A].shard.sessions[*key].outbox.lock().messages(), 0);
    cluster.nodes.iter_mut().for_each(|node| node.handle(Input::TakesDisconnected(true)));
    cluster.declare_gone(A, B);
    cluster.settle();
    assert_eq!(cluster[A].shard.sessions(), 1);
    let told: Vec<_> =
        cluster[A].disconnected.iter().map(|it| it.subject.identity.connection_id.as_str()).collect();
    assert_eq!(told, ["bob"], "the leader tells the application");
}

#[test]
fn the_leader_ends_orphans_whose_clients_do_not_come_and_another_takes_its_place() {
    let mut cluster = Cluster::new(3);
    let alice = cluster.open(C, "alice");
    cluster.declare_gone(A, C);
    cluster.settle();
    let timers: Vec<_> = (A..=B).map(|node| cluster[node].shard.poll_timeout().is_some()).collect();
    assert_eq!(timers, [true, false], "only who decides waits");
    cluster.declare_gone(B, A);
    cluster.settle();
    assert!(cluster[B].shard.poll_timeout().is_some());
    cluster[B].wait_ms(RETENTION_MS);
    assert_eq!(cluster.land(B), [ended("alice", EndReason::Expired)]);
    cluster.read(B);
    assert_eq!(cluster[B].shard.sessions(), 0);
    let open = cluster.come(B, &alice);
    cluster.settle();
    assert_eq!(cluster[B].opened.remove(&open).unwrap().map(|_| ()), Err(OpenError::Refused));
}

#[test]
fn a_client_that_comes_back_before_the_end_of_its_retention_has_landed_keeps_its_session() {
    let mut cluster = Cluster::new(2);
    let alice = cluster.open(A, "alice");
    let bob = cluster.open(B, "bob");
    cluster[A].lose(&alice);
    cluster[A].wait_ms(RETENTION_MS);
    assert_eq!(cluster[A].waiting(), 1);
    let open = cluster.come(B, &alice);
    cluster.land(B);
    assert_eq!(cluster.land(A), [ended("alice", EndReason::Expired)]);
    cluster[B].send(&bob, [publish(1, "g", "meanwhile")]);
    cluster.settle();
    let moved = cluster.attached(B, &alice, open);
    assert_eq!(texts(&cluster[B], &moved), ["1 meanwhile"]);
    cluster[B].send(&moved, [publish(1, "g", "alive")]);
    cluster.settle();
    assert_eq!(texts(&cluster[B], &moved), ["2 alive", "ack 1"], "A has released it");
}

#[test]
fn an_end_that_the_client_was_told_of_counts_whoever_holds_the_session() {
    let limits = OutboxLimits { messages_max: 2, bytes_max: 1 << 20 };
    let mut cluster = Cluster::with(2, HubSettings { outbox: limits, ..settings() });
    let alice = cluster.open(A, "alice");
    let bob = cluster.open(B, "bob");
    for n in 1..=3 {
        cluster[B].send(&bob, [publish(n, "g", "x")]);
        cluster.land(B);
        cluster.read(B);
        cluster[B].send(&bob, [acknowledge(n)]);
    }
    cluster.read(A);
    assert_eq!(cluster[A].reads(&alice).last().map(String::as_str), Some("close 1008"));
    let open = cluster.come(B, &alice);
    cluster.land(B);
    cluster.settle();
    assert!(cluster[B].opened.remove(&open).unwrap().is_ok(), "it was there when B attached it");
    assert_eq!(cluster[B].shard.sessions(), 1, "and is over all the same");
}

#[test]
fn after_a_takeover_twice_the_bounds_hold_until_the_client_acknowledges() {
    let limits = OutboxLimits { messages_max: 2, bytes_max: 1 << 20 };
    let mut cluster = Cluster::with(2, HubSettings { outbox: limits, ..settings() });
    let alice = cluster.open(A, "alice");
    let bob = cluster.open(B, "bob");
    let publish_one = |cluster: &mut Cluster, n: u64| {
        cluster[B].send(&bob, [publish(n, "g", "x")]);
        cluster.settle();
        cluster[B].send(&bob, [acknowledge(n)]);
    };
    publish_one(&mut cluster, 1);
    publish_one(&mut cluster, 2);
    // What alice has acknowledged at A is not in the log yet.
    cluster[A].send(&alice, [acknowledge(2)]);
    let moved = cluster.move_to(B, &alice);
    publish_one(&mut cluster, 3);
    assert_eq!(texts(&cluster[B], &moved), ["1 x", "2 x", "3 x"]);
    cluster[B].send(&moved, [acknowledge(3)]);
    for n in 4..=6 {
        publish_one(&mut cluster, n);
    }
    assert_eq!(cluster[B].shard.sessions(), 1, "the single bound holds again");
}

#[test]
fn a_start_that_comes_late_begins_nothing_until_it_has_seen_what_changed() {
    let mut cluster = Cluster::new(2);
    let boot = cluster[A].shard_boot();
    cluster.declare_gone(B, A);
    cluster.settle();
    assert!(cluster[A].is_gone);
    // A copy of the start that began the gone boot.
    assert_eq!(cluster[A].starts_too_late, 0);
    let copy = Arc::clone(&cluster.log[0]);
    cluster.log.push(copy);
    cluster.read_all();
    assert!(!cluster[B].shard.state.nodes().is_live(boot));
    // Two processes start under one name: the one that has seen less has to look again.
    cluster.boots += 1;
    let boot = cluster.boots;
    cluster[A].start_as(boot);
    cluster.read(A);
    let seen = cluster.log.len() as u64;
    cluster.log.push(Arc::new(Shard::node_started(BootId(99), name(A), Offset(seen), START, false)));
    cluster.begin(A, seen);
    assert_eq!((cluster[A].starts_too_late, cluster[A].shard.is_live()), (1, false));
    let seen = cluster.log.len() as u64;
    cluster.begin(A, seen);
    assert!(cluster[A].shard.is_live());
    cluster.read(B);
    assert!(!cluster[B].shard.state.nodes().is_live(BootId(99)), "and takes the other's place");
}

#[test]
fn a_gateway_that_starts_again_has_its_sessions_wait_for_their_clients() {
    let mut cluster = Cluster::new(2);
    let alice = cluster.open(A, "alice");
    cluster.start(A);
    cluster.settle();
    let open = cluster.come(A, &alice);
    cluster.settle();
    let back = cluster.attached(A, &alice, open);
    cluster[A].send(&back, [publish(1, "g", "hi")]);
    cluster.settle();
    assert_eq!(texts(&cluster[A], &back), ["1 hi", "ack 1"]);
}

#[test]
fn one_request_of_the_application_at_two_gateways_is_executed_once() {
    let mut cluster = Cluster::new(2);
    let alice = cluster.open(A, "alice");
    let request = IdempotencyKey {
        name: RequestName { id: 7, fingerprint: 1 },
        window_seconds: 60,
        window_requests: 100,
        first_sent: None,
    };
    let all = Selection { audience: Audience::All, excluded: Default::default(), filter: None };
    let commands: Vec<_> =
        (A..=B).map(|node| cluster[node].request(send(all.clone(), "once"), Some(request), false)).collect();
    cluster.settle();
    assert_eq!(cluster[A].done[&commands[A]], Ok(Done::Executed));
    assert_eq!(cluster[B].done[&commands[B]], Ok(Done::Repeated));
    assert_eq!(texts(&cluster[A], &alice), ["1 once"]);
}

#[test]
fn a_call_of_a_handler_goes_with_the_hold_and_is_made_again_under_its_id() {
    let mut cluster = Cluster::new(2);
    let alice = cluster.open(A, "alice");
    let event = || Upstream::Event {
        event: EventName::new("e").unwrap(),
        payload: Payload { kind: PayloadKind::Text, bytes: bytes::Bytes::new() },
        metadata: Metadata::default(),
        ack_id: Some(5),
    };
    cluster[A].send(&alice, [event()]);
    let (call, first) = cluster[A].calls.pop_front().unwrap();
    let moved = cluster.move_to(B, &alice);
    cluster[A].handle(Input::Called { call, answer: Ok(Handled::default()) });
    assert!(cluster[A].appends.is_empty(), "the answer comes to nothing");
    cluster[B].send(&moved, [event()]);
    let (call, second) = cluster[B].calls.pop_front().unwrap();
    assert_eq!((first.id, second.id), (EventId::OfAck(5), EventId::OfAck(5)));
    cluster[B].handle(Input::Called { call, answer: Err(EventError::Failed) });
    let counted = |cluster: &mut Cluster, node: usize, client: &Client| {
        let Upstream::Event { event, payload, metadata, .. } = event() else { unreachable!() };
        cluster[node].send(client, [Upstream::Event { event, payload, metadata, ack_id: None }]);
        let (call, event) = cluster[node].calls.pop_front().unwrap();
        cluster[node].handle(Input::Called { call, answer: Ok(Handled::default()) });
        cluster.settle();
        event.id
    };
    let at_b = counted(&mut cluster, B, &moved);
    let back = cluster.move_to(A, &moved);
    let at_a = counted(&mut cluster, A, &back);
    let again = cluster.move_to(B, &back);
    let again_at_b = counted(&mut cluster, B, &again);
    assert!(at_b != at_a && at_a != again_at_b && at_b != again_at_b, "numbers never repeat");
}

#[test]
fn many_sessions_are_released_in_few_records() {
    let mut cluster = Cluster::new(2);
    let clients: Vec<_> = (0..30).map(|n| cluster.open(A, &format!("c{n}"))).collect();
    let opens: Vec<_> = clients.iter().map(|client| cluster.come(B, client)).collect();
    let at = cluster.log.len();
    while !cluster[B].appends.is_empty() {
        cluster.land(B);
    }
    cluster.settle();
    let released = cluster.bodies_since(at).iter().filter(|body| body.starts_with("released")).count();
    assert_eq!(released, 1);
    for (client, open) in clients.iter().zip(opens) {
        cluster.attached(B, client, open);
    }
}
