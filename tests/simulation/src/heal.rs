//! The second half of a world: the storm ends, and from then on everything has to arrive and to settle.

use oncewire_recorder::quiesced;

use crate::Failure;
use crate::actor::Actor;
use crate::coverage::Path;
use crate::world::{Event, World};

/// How long a healed world may take to settle, in milliseconds.
const SETTLE_MS_MAX: u64 = 200_000;
/// How often to look whether it has.
const LOOK_MS: u64 = 250;
/// Longer than any session waits for its client.
const REST_MS: u64 = 100_000;
/// How often clients publish while the world rests.
const REST_PROBES: u64 = 4;

/// Where a world stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// Everything goes wrong.
    Storm,
    /// Nothing goes wrong any more; so far not everything has settled.
    Healing {
        /// When that has to be over, in milliseconds.
        until_ms: u64,
    },
    /// Everything has settled once. Whoever is attached stays attached.
    Resting {
        /// Times that clients have published.
        probes: u64,
        /// When that has to have settled, in milliseconds.
        until_ms: u64,
    },
    /// It is over.
    Over,
}

impl World {
    pub(crate) fn look(&mut self) {
        match self.stage {
            Stage::Storm => self.heal(),
            Stage::Healing { until_ms } => {
                if self.has_settled(until_ms) {
                    self.note(Path::Healed);
                    for actor in self.actors.iter_mut().flatten() {
                        if let Actor::Honest(client) = actor {
                            client.sessions_lost = 0;
                        }
                    }
                    self.stage = Stage::Resting { probes: 0, until_ms: 0 };
                    self.probe(0);
                    return;
                }
            }
            Stage::Resting { probes, until_ms } => {
                if self.has_settled(until_ms) {
                    if probes == REST_PROBES {
                        self.finish();
                    } else {
                        self.probe(probes);
                    }
                    return;
                }
            }
            Stage::Over => return,
        }
        self.schedule_in((LOOK_MS, LOOK_MS), Event::Look);
    }

    fn heal(&mut self) {
        self.trace.line(self.now_us, || "the storm is over".to_owned());
        self.weather.heal();
        self.outage_until = 0;
        self.heal_handlers();
        self.stage = Stage::Healing { until_ms: self.now_ms() + SETTLE_MS_MAX };
        for state in self.conns.values_mut() {
            state.up.stalled_until = state.up.stalled_until.min(self.now_us);
        }
        for actor in 0..self.actors.len() {
            self.schedule_in((0, 100), Event::Act { actor });
        }
    }

    /// Everybody publishes; the next look is after a part of the rest.
    fn probe(&mut self, probes: u64) {
        for actor in 0..self.actors.len() {
            self.with_actor(actor, |actor, world| {
                if let Actor::Honest(client) = actor {
                    client.probe(world);
                }
            });
        }
        let pause = REST_MS / REST_PROBES;
        self.stage = Stage::Resting { probes: probes + 1, until_ms: self.now_ms() + pause + SETTLE_MS_MAX };
        self.schedule_in((pause, pause), Event::Look);
    }

    fn has_settled(&mut self, until_ms: u64) -> bool {
        let Some(what) = self.unsettled() else { return true };
        if self.now_ms() > until_ms {
            self.fail(Failure::Unsettled(what));
        }
        false
    }

    fn unsettled(&self) -> Option<String> {
        if !self.is_up {
            return Some("the gateway is down".to_owned());
        }
        let hubs = self.hubs.iter().find_map(|hub| hub.unsettled());
        let clients = || {
            self.actors.iter().flatten().find_map(|actor| match actor {
                Actor::Honest(client) => client.unsettled(),
                Actor::Malicious(_) | Actor::Raw(_) => None,
            })
        };
        let sockets = || {
            let busy = self.conns.iter().find(|(_, state)| state.actor.is_some() && !state.is_quiet());
            busy.map(|(conn, _)| format!("socket {conn} is busy"))
        };
        let commands = || {
            let command =
                self.commands.keys().next().map(|command| format!("command {command} is not answered"));
            command.or_else(|| {
                self.asked.keys().next().map(|number| format!("request {number} is not answered"))
            })
        };
        let handlers = || self.unsettled_handlers();
        hubs.or_else(clients).or_else(sockets).or_else(commands).or_else(handlers)
    }

    fn finish(&mut self) {
        self.stage = Stage::Over;
        let lost = self.actors.iter().flatten().find_map(|actor| match actor {
            Actor::Honest(client) if client.sessions_lost > 0 && self.weather.has_room(client.hub) => {
                Some(format!("client {:?}", client.conn()))
            }
            _ => None,
        });
        if let Some(client) = lost {
            return self.fail(Failure::SessionLostAtRest(client));
        }
        let event = quiesced(Some(self.checker_us() / 1000));
        self.record(event);
        if let Some(what) = self.never_told() {
            self.fail(Failure::Handlers(what));
        }
        if let Some(what) = self.remembered_too_long() {
            self.fail(Failure::Clock(what));
        }
        if let Some(what) = self.left_over() {
            self.fail(Failure::LeftOver(what));
        }
    }

    /// What the gateway still holds although nobody needs it any more.
    fn left_over(&mut self) -> Option<String> {
        for (index, hub) in self.hubs.iter().enumerate() {
            let is_its = |actor: &&Actor| matches!(actor, Actor::Honest(client) if client.hub == index);
            let clients = self.actors.iter().flatten().filter(is_its).count();
            let sessions = hub.sessions();
            if sessions != clients {
                return Some(format!("{}: {sessions} sessions of {clients} clients", hub.name));
            }
            if hub.has_timers() {
                return Some(format!("{}: a timer", hub.name));
            }
        }
        self.hubs.clear();
        self.conns.clear();
        let bytes = self.budget.used_bytes();
        (bytes > 0).then(|| format!("{bytes} bytes in the memory budget"))
    }
}
