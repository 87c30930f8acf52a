//! A client that publishes, joins and leaves at random.

use std::time::Duration;

use anyhow::Result;
use oncewire_protocol::client::ClientSettings;
use oncewire_protocol::wire::{GroupName, Upstream};
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::Instant;

use crate::line::{EVERYBODY, Line, Place, Run, Stage};

/// Groups that clients join and leave.
const GROUPS: [&str; 4] = ["g0", "g1", "g2", "g3"];
/// Requests that one client has pending at most.
const PENDING_MAX: usize = 16;
/// How long a sequence id waits to be acknowledged, in milliseconds: shorter than the official clients let it wait, so that
/// each of many sockets that are cut soon sees acks.
const SEQUENCE_ACK_MS: u64 = 200;

/// See the module.
pub struct Peer {
    line: Line,
    random: SmallRng,
    pause_ms_max: u64,
    next_act: Instant,
    markers: u64,
}

impl Peer {
    /// A client that lets less than `pause_ms_max` milliseconds pass between two requests.
    pub fn new(place: Place, run: Run, pause_ms_max: u64, seed: u64) -> Self {
        let mut random = SmallRng::seed_from_u64(seed);
        let habits =
            if random.random() { ClientSettings::like_javascript() } else { ClientSettings::like_python() };
        let habits = ClientSettings { sequence_ack_ms: SEQUENCE_ACK_MS, ..habits };
        Self {
            line: Line::new(place, run, habits),
            random,
            pause_ms_max,
            next_act: Instant::now(),
            markers: 0,
        }
    }

    /// Runs until everybody's last message has arrived.
    ///
    /// # Errors
    /// See [`Line::next`].
    pub async fn run(mut self) -> Result<()> {
        let name = self.line.name().to_owned();
        self.follow().await.map_err(|error| error.context(format!("client {name}")))
    }

    async fn follow(&mut self) -> Result<()> {
        while !self.line.is_done() {
            if self.line.next(self.next_act).await?.is_none() {
                self.act();
            }
        }
        Ok(())
    }

    fn act(&mut self) {
        let pause = Duration::from_millis(self.random.random_range(0..self.pause_ms_max));
        self.next_act = Instant::now() + pause;
        if !self.line.may_ask(PENDING_MAX) {
            return;
        }
        match self.line.stage() {
            Stage::Storm => {
                let group = GROUPS[self.random.random_range(0..GROUPS.len())];
                let ask = |line: &mut Line, to_ask: fn(GroupName, Option<u64>) -> Upstream| {
                    line.ask(|ack_id| Ok(to_ask(GroupName::new(group)?, ack_id)));
                };
                match self.random.random_range(0..20) {
                    0..2 => ask(&mut self.line, |group, ack_id| Upstream::JoinGroup { group, ack_id }),
                    2 => ask(&mut self.line, |group, ack_id| Upstream::LeaveGroup { group, ack_id }),
                    3..6 => self.publish(EVERYBODY),
                    _ => self.publish(group),
                }
            }
            Stage::Heal => self.line.say_last(),
        }
    }

    fn publish(&mut self, group: &str) {
        self.markers += 1;
        let marker = format!("{}-{}", self.line.name(), self.markers);
        let padding = self.random.random_range(0..400);
        let no_echo = self.random.random_bool(0.1);
        self.line.publish(group, &marker, padding, no_echo);
    }
}
