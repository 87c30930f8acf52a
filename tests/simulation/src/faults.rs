//! Faults strike.

use crate::actor::Actor;
use crate::coverage::Path;
use crate::edge::{GatewayEnd, token};
use crate::heal::Stage;
use crate::network::{Conn, Upgrade};
use crate::weather::Fault;
use crate::world::{Event, World};

/// An ack that was sent so long before a crash is in the log: one second until it is marked, and what the network, the shard
/// and the log take.
const CRASH_ACK_MS: u64 = 2_000;
/// The same before the sockets are closed in order: it has to arrive, which takes several arrivals of a part each.
const STOP_ACK_MS: u64 = 400;

impl World {
    pub(crate) fn schedule_fault(&mut self, fault: Fault, mean_ms: u64) {
        self.schedule_in((mean_ms / 2, mean_ms * 3 / 2), Event::Fault(fault));
    }

    pub(crate) fn strike(&mut self, fault: Fault) {
        let mean = self.weather.faults.iter().find(|(on, _)| *on == fault).map(|(_, mean)| *mean);
        let (Some(mean), Stage::Storm) = (mean, self.stage) else { return };
        self.trace.line(self.now_us, || format!("fault {fault:?}"));
        self.schedule_fault(fault, mean);
        match fault {
            Fault::Cut => self.cut((0, 300), (0, 300), Path::SocketCut),
            Fault::GatewayHalfOpen => self.cut((2_000, 25_000), (0, 300), Path::GatewayHalfOpen),
            Fault::ClientHalfOpen => self.cut((0, 300), (1_000, 12_000), Path::ClientHalfOpen),
            Fault::StallUp => self.stall(true),
            Fault::StallDown => self.stall(false),
            Fault::SecondUpgrade => self.second_upgrade(),
            Fault::Crash => self.crash(),
            Fault::HistoryLoss => {
                self.repeat_nothing();
                self.lose_history();
            }
            Fault::ShutDown => {
                if self.is_accepting {
                    self.note(Path::ShutDown);
                    self.ended_at = self.ends_after(STOP_ACK_MS);
                    self.close_all_sockets();
                    self.schedule_in((10, 2_000), Event::Stop { process: self.process });
                }
            }
            Fault::StoreOutage => {
                self.note(Path::StoreOutage);
                self.outage_until = self.now_us + self.random.within((100_000, 3_000_000));
            }
            Fault::ClockForward => {
                self.note(Path::ClockForward);
                self.clocks.skew_ms += self.random.within((10, 100_000)) as i64;
            }
            Fault::ClockBackward => {
                self.note(Path::ClockBackward);
                self.clocks.skew_ms -= self.random.within((10, 3_600_000)) as i64;
            }
            Fault::RuleChange => self.change_rule(),
            Fault::Application => self.ask_application(),
            Fault::ClientRestart => {
                let actor = self.random.index(self.actors.len());
                self.with_actor(actor, |actor, world| {
                    if let Actor::Honest(client) = actor {
                        client.restart(world);
                    }
                });
            }
        }
    }

    /// A socket that some client uses.
    fn victim(&mut self) -> Option<u64> {
        let used = self.actors.iter().flatten().filter_map(|actor| match actor {
            Actor::Honest(client) => client.conn(),
            Actor::Malicious(_) | Actor::Raw(_) => None,
        });
        let used: Vec<u64> = used.filter(|conn| self.conns.contains_key(conn)).collect();
        (!used.is_empty()).then(|| self.random.pick(&used))
    }

    /// Cuts a socket; the ranges say after how long its ends notice, in milliseconds.
    fn cut(&mut self, gateway_ms: (u64, u64), client_ms: (u64, u64), path: Path) {
        let Some(conn) = self.victim() else { return };
        self.note(path);
        let (up, down) = (self.random.below(300) as usize, self.random.below(300) as usize);
        let arrives_late = self.random.permille(450);
        if arrives_late {
            // What is under way to the gateway still arrives, after the client has gone on elsewhere.
            let longest_ms = self.random.pick(&[60, 150, 300, 3_000]);
            self.stall_pipe(conn, true, (1, longest_ms));
            self.cut_down(conn, down);
        } else {
            self.sever(conn, up, down);
        }
        self.schedule_in(if arrives_late { (0, 60) } else { client_ms }, Event::ClientNotices { conn });
        self.schedule_in(
            if arrives_late { (3_000, 25_000) } else { gateway_ms },
            Event::GatewayNotices { conn },
        );
    }

    fn stall(&mut self, is_up: bool) {
        let Some(conn) = self.victim() else { return };
        self.note(if is_up { Path::StallUp } else { Path::StallDown });
        self.stall_pipe(conn, is_up, (100, 6_000));
    }

    fn stall_pipe(&mut self, conn: u64, is_up: bool, range_ms: (u64, u64)) {
        let until = self.now_us + self.random.within(range_ms) * 1000;
        if let Some(state) = self.conns.get_mut(&conn) {
            let pipe = if is_up { &mut state.up } else { &mut state.down };
            pipe.stalled_until = pipe.stalled_until.max(until);
        }
    }

    /// Somebody resumes an attached session: an attempt that its client gave up long ago, say.
    fn second_upgrade(&mut self) {
        let sessions: Vec<_> = self.conns.values().filter_map(|state| self.resumable(state)).collect();
        if sessions.is_empty() {
            return;
        }
        self.note(Path::SecondUpgrade);
        let (hub, upgrade) = sessions[self.random.index(sessions.len())].clone();
        self.repeat_upgrade(hub, upgrade);
    }

    fn resumable(&self, state: &Conn) -> Option<(usize, Upgrade)> {
        let GatewayEnd::Serving(serving) = &state.gateway else { return None };
        let subprotocol = serving.subprotocol();
        let connection_id = serving.connection_id.to_string();
        let token = token(&connection_id, self.hubs[state.hub].log.epoch);
        subprotocol
            .is_reliable()
            .then_some((state.hub, Upgrade::Resume { connection_id, token, subprotocol }))
    }

    /// When the process ends, if all that clients had acknowledged so long before must be in the log.
    fn ends_after(&self, ack_ms: u64) -> Option<(u64, u64)> {
        self.weather.marks_surely().then(|| (self.now_ms(), ack_ms))
    }

    fn crash(&mut self) {
        if !self.is_up {
            return;
        }
        self.note(Path::Crash);
        self.ended_at = self.ends_after(CRASH_ACK_MS);
        self.stop_process(|world, hub| {
            let log = &world.hubs[hub].log;
            let range = (log.durable() as u64, log.landed() as u64);
            world.random.within(range) as usize
        });
    }

    /// A crash after which the log is an older one: restored from a backup, say. Its epoch changes.
    fn lose_history(&mut self) {
        if !self.is_up {
            return;
        }
        self.note(Path::HistoryLost);
        self.stop_process(|world, hub| {
            let durable = world.hubs[hub].log.durable() as u64;
            world.random.within((durable / 2, durable)) as usize
        });
        for hub in &mut self.hubs {
            hub.log.epoch += 1;
        }
    }
}
