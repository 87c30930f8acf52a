//! Much for few: publishers at a steady rate, and subscribers that mostly listen and acknowledge as the official clients do.
//!
//! They have a hub of their own, whose outboxes hold so little that without their acks the subscribers would be refused
//! soon. They always keep up: a publisher waits when half of the bound is unacknowledged, so that a busy machine makes them
//! slower and never late. So a session that is refused is the gateway's fault.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use oncewire_protocol::client::ClientSettings;
use oncewire_protocol::wire::AckId;
use rand::rngs::SmallRng;
use rand::{Rng as _, SeedableRng as _};
use tokio::time::Instant;

use crate::ledger::{Account, Habit, Ledger};
use crate::line::{EVERYBODY, Line, Place, Run, Stage, Told};

/// The hub of all of these.
pub const FAST_HUB: &str = "fast";
/// What the outbox of an eager subscriber holds, in seconds of its feed, at the pace of the official clients.
const BOUND_SECONDS: u32 = 3;
/// How many times as often an eager subscriber acknowledges as a patient one, and how many times as much its feed brings.
const PATIENCE: u32 = 5;
/// Between two looks at what is to be published.
const TICK: Duration = Duration::from_millis(10);
/// What a publisher catches up with at most, in ticks.
const TICKS_MAX: u32 = 5;
/// Publishes that wait for their acks at most.
const PENDING_MAX: usize = 256;
/// Between two publishes of a subscriber, in milliseconds, at most.
const PAUSE_MS_MAX: u64 = 2_000;

/// How much and for how many.
#[derive(Debug, Clone, Copy)]
pub struct Fast {
    /// Subscribers, by turns with the habits of the JavaScript, the Python and the Java client.
    pub subscribers: usize,
    /// Publishes to the first two in a second; to those with Java's habits a fifth of it.
    pub publishes_per_second: u32,
    /// How many times as often as the official clients they acknowledge. Their outboxes hold less in proportion.
    pub haste: u32,
}

impl Fast {
    /// Messages that an outbox of the hub may hold: three seconds of the feed.
    pub fn bound(&self) -> u64 {
        u64::from(BOUND_SECONDS * self.publishes_per_second / self.haste)
    }

    /// What the gateway's configuration file has to say of the hub.
    pub fn configuration(&self) -> String {
        format!("[hubs.\"{FAST_HUB}\"]\noutbox_messages_max = {}\n", self.bound())
    }

    /// The habits of a subscriber, and what they come to.
    fn habits(&self, index: usize) -> (Habit, ClientSettings) {
        let (habit, settings) = match index % 3 {
            0 => (Habit::Eager, ClientSettings::like_javascript()),
            1 => (Habit::Eager, ClientSettings::like_python()),
            _ => (Habit::Patient, ClientSettings::like_java()),
        };
        let sequence_ack_ms = settings.sequence_ack_ms / u64::from(self.haste);
        (habit, ClientSettings { sequence_ack_ms, ..settings })
    }

    fn subscribers_with(&self, habit: Habit) -> usize {
        (0..self.subscribers).filter(|index| self.habits(*index).0 == habit).count()
    }

    /// All clients of the hub: who they are, and the groups of their tokens.
    pub fn clients(&self) -> Vec<(Client, String, Vec<&'static str>)> {
        let feeds = [Habit::Eager, Habit::Patient]
            .map(|habit| (Client::Publisher(habit), feed(habit).to_owned(), vec![EVERYBODY]));
        let subscribers = (0..self.subscribers).map(|index| {
            let (habit, _) = self.habits(index);
            (Client::Subscriber(index), format!("f{index}"), vec![EVERYBODY, feed(habit)])
        });
        feeds.into_iter().chain(subscribers).collect()
    }
}

/// One of the clients.
#[derive(Debug, Clone, Copy)]
pub enum Client {
    /// It publishes to those with this habit.
    Publisher(Habit),
    /// The subscriber with this number.
    Subscriber(usize),
}

/// The group of those with a habit, which its publisher is named after.
fn feed(habit: Habit) -> &'static str {
    match habit {
        Habit::Eager => "eager",
        Habit::Patient => "patient",
    }
}

/// Runs one of the clients until everybody's last message has arrived.
///
/// # Errors
/// See [`Line::next`].
pub async fn run(
    client: Client,
    fast: Fast,
    place: Place,
    run: Run,
    ledger: Rc<RefCell<Ledger>>,
    seed: u64,
) -> Result<()> {
    let name = place.name.clone();
    let ended = match client {
        Client::Publisher(habit) => {
            let line = Line::new(place, run, ClientSettings::like_javascript());
            Publisher { line, fast, habit, ledger, number: 0, sent: BTreeMap::new() }.follow().await
        }
        Client::Subscriber(index) => {
            let (habit, habits) = fast.habits(index);
            let line = Line::new(place, run, habits);
            let random = SmallRng::seed_from_u64(seed);
            Subscriber { line, habit, account: None, ledger, random, markers: 0 }.follow().await
        }
    };
    ended.map_err(|error| error.context(format!("client {name}")))
}

struct Publisher {
    line: Line,
    fast: Fast,
    habit: Habit,
    ledger: Rc<RefCell<Ledger>>,
    /// How many messages it has published.
    number: u64,
    /// When each publish was made whose ack has not come.
    sent: BTreeMap<AckId, Instant>,
}

impl Publisher {
    async fn follow(&mut self) -> Result<()> {
        let rate = match self.habit {
            Habit::Eager => self.fast.publishes_per_second,
            Habit::Patient => self.fast.publishes_per_second / PATIENCE,
        };
        let per_tick = f64::from(rate) * TICK.as_secs_f64();
        let (mut due, mut tick) = (0.0, Instant::now());
        while !self.line.is_done() {
            match self.line.next(tick).await? {
                Some(Told::Done(ack_id)) => {
                    if let Some(sent_at) = self.sent.remove(&ack_id) {
                        self.ledger.borrow_mut().published(sent_at, Instant::now());
                    }
                }
                Some(_) => {}
                None => {
                    let now = Instant::now();
                    let ticks = (now - tick).as_secs_f64() / TICK.as_secs_f64() + 1.0;
                    due += per_tick * ticks.min(f64::from(TICKS_MAX));
                    tick = now + TICK;
                    while due >= 1.0 && self.may_publish() {
                        due -= 1.0;
                        self.publish();
                    }
                    // What could not be published in time is not made up for.
                    due = due.min(per_tick.max(1.0));
                    if self.line.stage() == Stage::Heal && self.line.may_ask(PENDING_MAX) {
                        self.line.say_last();
                    }
                }
            }
        }
        Ok(())
    }

    fn may_publish(&self) -> bool {
        let subscribers = self.fast.subscribers_with(self.habit);
        let reached = self.ledger.borrow().reached(self.habit, subscribers);
        self.line.stage() == Stage::Storm
            && self.line.may_ask(PENDING_MAX)
            && reached.is_some_and(|reached| self.number - reached < self.fast.bound() / 2)
    }

    fn publish(&mut self) {
        self.number += 1;
        let marker = format!("{}-{}", feed(self.habit), self.number);
        if let Some(ack_id) = self.line.publish(feed(self.habit), &marker, 100, false) {
            self.sent.insert(ack_id, Instant::now());
        }
    }
}

struct Subscriber {
    line: Line,
    habit: Habit,
    /// From the beginning of its session on.
    account: Option<Account>,
    ledger: Rc<RefCell<Ledger>>,
    random: SmallRng,
    markers: u64,
}

impl Subscriber {
    async fn follow(&mut self) -> Result<()> {
        let mut next_act = Instant::now();
        while !self.line.is_done() {
            match self.line.next(next_act).await? {
                Some(told) => self.note(told),
                None => {
                    let pause = match self.line.stage() {
                        Stage::Storm => self.random.random_range(0..PAUSE_MS_MAX),
                        Stage::Heal => TICK.as_millis() as u64,
                    };
                    next_act = Instant::now() + Duration::from_millis(pause);
                    self.act();
                }
            }
        }
        Ok(())
    }

    fn note(&mut self, told: Told) {
        let mut ledger = self.ledger.borrow_mut();
        let account = *self.account.get_or_insert_with(|| ledger.open(self.habit));
        match told {
            Told::Received(id) => ledger.received(account, id),
            Told::Delivered(marker) => {
                if let Some((name, number)) = marker.split_once('-')
                    && name == feed(self.habit)
                    && let Ok(number) = number.parse()
                {
                    ledger.delivered(account, number);
                }
            }
            Told::Acknowledged(id) => {
                ledger.acknowledged(account, id, Instant::now());
                self.line.ping();
            }
            Told::Pinged => ledger.pinged(account),
            Told::Ponged => ledger.ponged(account, Instant::now()),
            Told::Left => ledger.left(account),
            Told::Connected | Told::Done(_) => {}
        }
    }

    /// It says something now and then: a session's own records bring its acks along.
    fn act(&mut self) {
        if !self.line.may_ask(PENDING_MAX) {
            return;
        }
        match self.line.stage() {
            Stage::Storm => {
                self.markers += 1;
                let marker = format!("{}-{}", self.line.name(), self.markers);
                self.line.publish(EVERYBODY, &marker, 0, false);
            }
            Stage::Heal => self.line.say_last(),
        }
    }
}
