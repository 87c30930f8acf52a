//! Gateways over one log while everything goes wrong that can: sessions move, appends fail, are in doubt or land again, gateways
//! lag, are declared gone and start again.
//!
//! Clients keep trying. In the end each message that was published is there once, in the same order for everybody, under the
//! ids that it had from the beginning (R1), and all gateways have folded the log to the same (R11).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;

use super::harness::*;
use super::nodes::Cluster;
use crate::hub::state::{HubState, Verdict};
use crate::hub::{Input, OpenId, SocketEnd};
use crate::log::{Body, Certainty, Offset, Record};

const NODES: usize = 3;
const CLIENTS: usize = 3;

/// A client that comes back until it has its session, and sends again until it has an answer.
struct Actor {
    id: String,
    socket: Option<(usize, Client)>,
    opening: Option<(usize, OpenId)>,
    /// Published and not acknowledged, by ack id.
    unacknowledged: BTreeMap<u64, String>,
    next_ack_id: u64,
    /// What it has received, by sequence id.
    received: BTreeMap<u64, String>,
}

struct Run {
    cluster: Cluster,
    actors: Vec<Actor>,
    /// Appends that have landed or failed, of which a copy may still arrive.
    past: Vec<Vec<Arc<Record>>>,
    published: BTreeSet<String>,
}

impl Run {
    fn new() -> Self {
        let mut cluster = Cluster::new(NODES);
        let actors = (0..CLIENTS).map(|n| {
            let id = format!("c{n}");
            let client = cluster.open(n % NODES, &id);
            Actor {
                id,
                socket: Some((n % NODES, client)),
                opening: None,
                unacknowledged: BTreeMap::new(),
                next_ack_id: 1,
                received: BTreeMap::new(),
            }
        });
        let actors = actors.collect();
        Self { cluster, actors, past: Vec::new(), published: BTreeSet::new() }
    }

    fn step(&mut self, draw: u32) {
        let (what, node, which) = (draw % 20, (draw >> 8) as usize % NODES, (draw >> 16) as usize);
        let actor = which % CLIENTS;
        match what {
            0..=3 => self.publish(actor),
            4..=6 => self.come(actor, node),
            7 => self.lose(actor),
            8..=11 => self.land(node),
            12..=14 => self.read(node, 1 + which % 4),
            15 => self.fail(node, Certainty::Definite),
            16 => self.fail(node, Certainty::Indefinite),
            17 => self.land_again(which),
            18 => self.cluster.declare_gone(node, which % NODES),
            _ => self.restart(node),
        }
        self.look();
    }

    fn publish(&mut self, actor: usize) {
        let actor = &mut self.actors[actor];
        let text = format!("{}-{}", actor.id, actor.next_ack_id);
        actor.unacknowledged.insert(actor.next_ack_id, text.clone());
        if let Some((node, client)) = &actor.socket {
            self.cluster.nodes[*node].send(client, [publish(actor.next_ack_id, "g", &text)]);
        }
        actor.next_ack_id += 1;
        self.published.insert(text);
    }

    /// The client leaves its socket, which the gateway may never hear of, and asks at a node.
    fn come(&mut self, actor: usize, node: usize) {
        let actor = &mut self.actors[actor];
        actor.socket = None;
        let open =
            self.cluster.nodes[node].ask_to_resume(&actor.id, crate::wire::Subprotocol::JsonReliable, true);
        actor.opening = Some((node, open));
    }

    fn lose(&mut self, actor: usize) {
        if let Some((node, client)) = self.actors[actor].socket.take() {
            self.cluster.nodes[node].close(&client, SocketEnd::Lost);
        }
    }

    fn land(&mut self, node: usize) {
        if let Some((_, records)) = self.cluster.nodes[node].appends.pop_front() {
            self.cluster.log.extend(records.iter().cloned());
            self.past.push(records);
        }
    }

    fn read(&mut self, node: usize, count_max: usize) {
        let world = &mut self.cluster.nodes[node];
        world.log.clone_from(&self.cluster.log);
        world.apply_some(count_max);
    }

    /// An append that is in doubt may still land, whole or in part, whatever becomes of its gateway.
    fn fail(&mut self, node: usize, certainty: Certainty) {
        let world = &mut self.cluster.nodes[node];
        let Some((append, records)) = world.appends.pop_front() else { return };
        world.handle(Input::AppendFailed { append, certainty });
        if certainty == Certainty::Indefinite {
            self.past.push(records);
            world.wait_ms(100);
        }
    }

    fn land_again(&mut self, which: usize) {
        if self.past.is_empty() {
            return;
        }
        let records = &self.past[which % self.past.len()];
        let some = 1 + which % records.len();
        self.cluster.log.extend(records[..some].iter().cloned());
    }

    /// A node's process is killed, or ends since it is gone, and another begins.
    fn restart(&mut self, node: usize) {
        // What was on its way may still arrive.
        let lost = std::mem::take(&mut self.cluster.nodes[node].appends);
        self.past.extend(lost.into_iter().map(|(_, records)| records));
        for actor in &mut self.actors {
            actor.socket.take_if(|(at, _)| *at == node);
            actor.opening.take_if(|(at, _)| *at == node);
        }
        self.cluster.start(node);
    }

    /// Clients read what they are sent, and what became of their sockets.
    fn look(&mut self) {
        for actor in &mut self.actors {
            if let Some((node, open)) = actor.opening
                && let Some(outcome) = self.cluster.nodes[node].opened.remove(&open)
            {
                actor.opening = None;
                if let Ok(attachment) = outcome {
                    let client = Client { id: crate::wire::ConnectionId::new(&actor.id), attachment };
                    let again: Vec<_> =
                        actor.unacknowledged.iter().map(|(id, text)| publish(*id, "g", text)).collect();
                    self.cluster.nodes[node].send(&client, again);
                    actor.socket = Some((node, client));
                }
            }
            let Some((node, client)) = &actor.socket else { continue };
            let mut has_ended = false;
            for read in self.cluster.nodes[*node].reads(client) {
                let parts: Vec<&str> = read.split(' ').collect();
                match parts[..] {
                    ["ack", id] | ["ack", id, "Duplicate"] => {
                        actor.unacknowledged.remove(&id.parse().unwrap());
                    }
                    ["ack", _, "InternalServerError"] => {}
                    ["cut"] => has_ended = true,
                    [id, text] if id != "close" => {
                        let before = actor.received.insert(id.parse().unwrap(), text.to_owned());
                        assert!(before.is_none_or(|before| before == text), "R1: {id} of {}", actor.id);
                    }
                    _ => panic!("{} reads {read}", actor.id),
                }
            }
            if has_ended {
                actor.socket = None;
            }
        }
    }

    /// Nothing goes wrong any more; clients try until they have all their answers.
    fn heal(&mut self) {
        for round in 0..10 {
            for node in 0..NODES {
                if self.cluster.nodes[node].is_gone || round == 0 {
                    self.restart(node);
                }
            }
            self.settle();
            for actor in 0..CLIENTS {
                self.come(actor, (actor + round) % NODES);
            }
            self.settle();
            if round > 2 && self.actors.iter().all(|actor| actor.unacknowledged.is_empty()) {
                return;
            }
        }
        panic!("clients wait for answers");
    }

    fn settle(&mut self) {
        self.cluster.settle();
        self.look();
        self.cluster.settle();
        self.look();
    }

    /// How often each message is published for a shard that knows none of the sessions, and so none of their ack ids.
    fn executed(&self) -> BTreeMap<String, usize> {
        let mut state = HubState::default();
        let mut executed = BTreeMap::new();
        for (offset, record) in self.cluster.log.iter().enumerate() {
            let verdict = state.judge(Offset(offset as u64), record);
            if let Body::Published(published) = &record.body
                && verdict == Verdict::TakesEffect
            {
                let text = String::from_utf8_lossy(&published.payload.bytes).into_owned();
                *executed.entry(text).or_default() += 1;
            }
        }
        executed
    }

    fn check(&self) {
        self.cluster.expect_equal_folds();
        for (text, times) in self.executed() {
            assert_eq!(times, 1, "{text} is executed so often");
        }
        let lists: Vec<Vec<&String>> =
            self.actors.iter().map(|actor| actor.received.values().collect()).collect();
        assert!(lists.windows(2).all(|pair| pair[0] == pair[1]), "not the same for all: {lists:?}");
        let all: BTreeSet<&String> = lists[0].iter().copied().collect();
        assert_eq!(all.len(), lists[0].len(), "something is there twice: {lists:?}");
        assert_eq!(all, self.published.iter().collect(), "something is missing");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]
    #[test]
    fn r8_each_message_is_there_once_whatever_happens_to_gateways(draws in vec(any::<u32>(), 0..300)) {
        let mut run = Run::new();
        for draw in draws {
            run.step(draw);
        }
        run.heal();
        run.check();
    }
}
