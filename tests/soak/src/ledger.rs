//! Who has acknowledged what, and what a restart brings back of it.
//!
//! What a gateway was told and certainly knows is kept apart from what it was told some time ago. By events alone:
//!
//! 1. A sequence ack *has reached* the gateway when a ping that was sent after it on the same socket is answered.
//! 2. A publish that is made after that and acknowledged is behind every mark that was on its way at that moment.
//! 3. Another one, made more than [`MARK_WAIT`] after that and acknowledged, was appended when the mark was due, so that
//! 4. one more, made and acknowledged after that, is behind the mark in the log: the log *says so*, and no crash changes it.
//!
//! A machine that stands still makes these steps later, and never wrong. On a quiet one they take less than [`SETTLED`].

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use oncewire_protocol::wire::SequenceId;
use tokio::time::Instant;

/// How long an ack may wait for its mark, and a bit more for rounding.
const MARK_WAIT: Duration = Duration::from_millis(1_100);
/// How old an ack is that no kill may bring back, on a machine that is not too busy.
const SETTLED: Duration = Duration::from_secs(2);

/// How a gateway's process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// By SIGKILL: what the log says stays acknowledged.
    Killed,
    /// By SIGTERM: what has reached the gateway stays acknowledged.
    Stopped,
}

/// How often a subscriber acknowledges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Habit {
    /// Every second, or sooner.
    Eager,
    /// Every five seconds, counted from each socket on.
    Patient,
}

/// A subscriber's place in the ledger.
#[derive(Debug, Clone, Copy)]
pub struct Account(usize);

/// What came of the restarts of one run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Redelivered {
    /// Messages that passed through the outbox of each eager subscriber.
    pub eager_feed: u64,
    /// The same for patient ones.
    pub patient_feed: u64,
    /// Messages that came again to an eager subscriber after a kill.
    pub eager: Spread,
    /// The same for patient ones.
    pub patient: Spread,
    /// To either after a stop.
    pub stopped: Spread,
    /// Messages that came again although their ack was sent 2 s before the kill.
    pub settled: u64,
    /// Those whose ack could not be forgotten: by a kill because the log said so, by a stop because it had reached the gateway.
    pub forgotten: u64,
    /// Endings of the process before which an ack had reached it that it had to remember, for each subscriber.
    pub remembered: u64,
}

/// How many messages came again to a subscriber after an ending.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Spread {
    /// How often that was counted.
    pub count: u64,
    /// Of all.
    pub total: u64,
    /// After one ending to one subscriber.
    pub max: u64,
}

impl Spread {
    fn note(&mut self, messages: u64) {
        self.count += 1;
        self.total += messages;
        self.max = self.max.max(messages);
    }

    fn add(&mut self, other: Self) {
        self.count += other.count;
        self.total += other.total;
        self.max = self.max.max(other.max);
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {} restarts, at most {}", self.total, self.count, self.max)
    }
}

impl Redelivered {
    /// Adds what came of another run.
    pub fn add(&mut self, other: &Self) {
        self.eager_feed += other.eager_feed;
        self.patient_feed += other.patient_feed;
        self.eager.add(other.eager);
        self.patient.add(other.patient);
        self.stopped.add(other.stopped);
        self.settled += other.settled;
        self.forgotten += other.forgotten;
        self.remembered += other.remembered;
    }
}

impl fmt::Display for Redelivered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { eager_feed, patient_feed, eager, patient, stopped, settled, forgotten, remembered } = self;
        write!(
            f,
            "{eager_feed} messages to each client that acknowledges each second, {patient_feed} to each that waits 5 s; came \
             again after a kill to the former: {eager}; to the latter: {patient}; after a stop: {stopped}; although acknowledged 2 s before: {settled}; although it had to be remembered: \
             {forgotten} ({remembered} times there was such)"
        )
    }
}

#[derive(Debug, Clone, Copy)]
struct Ack {
    id: SequenceId,
    /// The feed's last message that it covers.
    number: u64,
    sent_at: Instant,
}

/// How far an ack has got; each step with the time at which it was known.
#[derive(Debug, Clone, Copy)]
enum Step {
    Reached(Instant),
    Settled(Instant),
    Due(Instant),
}

#[derive(Debug)]
struct Subscriber {
    habit: Habit,
    largest: SequenceId,
    /// The feed's last message that was delivered.
    number: u64,
    /// The last one whose ack has reached a gateway.
    reached_number: u64,
    /// What it told the process that runs now.
    acks: VecDeque<Ack>,
    /// Pings on their way, each with the ack before it.
    pings: VecDeque<Option<Ack>>,
    reached: Option<Ack>,
    steps: VecDeque<(SequenceId, Step)>,
    /// The log says that everything up to here is acknowledged.
    said: SequenceId,
    /// Nothing up to here may come any more ...
    floor: SequenceId,
    /// ... nor up to here, if the machine was not too busy.
    settled_floor: SequenceId,
    /// Messages that came again since the process ended, and how it did.
    again: u64,
    ending: Option<Ending>,
}

/// The accounts of all subscribers of a run. See the module.
#[derive(Debug, Default)]
pub struct Ledger {
    subscribers: Vec<Subscriber>,
    redelivered: Redelivered,
}

impl Ledger {
    /// A new account.
    pub fn open(&mut self, habit: Habit) -> Account {
        self.subscribers.push(Subscriber {
            habit,
            largest: 0,
            number: 0,
            reached_number: 0,
            acks: VecDeque::new(),
            pings: VecDeque::new(),
            reached: None,
            steps: VecDeque::new(),
            said: 0,
            floor: 0,
            settled_floor: 0,
            again: 0,
            ending: None,
        });
        Account(self.subscribers.len() - 1)
    }

    /// A message came on a socket.
    pub fn received(&mut self, Account(index): Account, id: SequenceId) {
        let subscriber = &mut self.subscribers[index];
        subscriber.again += u64::from(id <= subscriber.largest);
        subscriber.largest = subscriber.largest.max(id);
        self.redelivered.forgotten += u64::from(id <= subscriber.floor);
        self.redelivered.settled += u64::from(id <= subscriber.settled_floor);
    }

    /// The application got a message of the feed.
    pub fn delivered(&mut self, Account(index): Account, number: u64) {
        self.subscribers[index].number = number;
    }

    /// A sequence ack was written.
    pub fn acknowledged(&mut self, Account(index): Account, id: SequenceId, now: Instant) {
        let subscriber = &mut self.subscribers[index];
        subscriber.acks.push_back(Ack { id, number: subscriber.number, sent_at: now });
        // Only the newest that is old enough is of use, and what is newer.
        while subscriber.acks.get(1).is_some_and(|ack| ack.sent_at + SETTLED <= now) {
            subscriber.acks.pop_front();
        }
    }

    /// A ping was written.
    pub fn pinged(&mut self, Account(index): Account) {
        let subscriber = &mut self.subscribers[index];
        subscriber.pings.push_back(subscriber.acks.back().copied());
    }

    /// A ping was answered.
    pub fn ponged(&mut self, Account(index): Account, now: Instant) {
        let subscriber = &mut self.subscribers[index];
        if let Some(ack) = subscriber.pings.pop_front().flatten() {
            subscriber.reached = Some(ack);
            subscriber.reached_number = ack.number;
            subscriber.steps.push_back((ack.id, Step::Reached(now)));
        }
    }

    /// The socket is gone.
    pub fn left(&mut self, Account(index): Account) {
        self.subscribers[index].forget();
    }

    /// A publish to the hub was acknowledged.
    pub fn published(&mut self, sent_at: Instant, now: Instant) {
        for Subscriber { steps, said, .. } in &mut self.subscribers {
            steps.retain_mut(|(id, step)| {
                *step = match *step {
                    Step::Reached(at) if sent_at > at => Step::Settled(now),
                    Step::Settled(at) if sent_at > at + MARK_WAIT => Step::Due(now),
                    Step::Due(at) if sent_at > at => {
                        *said = (*said).max(*id);
                        return false;
                    }
                    waits => waits,
                };
                true
            });
        }
    }

    /// The last message of the feed that those with this habit have all acknowledged; none before there are so many of them.
    pub fn reached(&self, habit: Habit, subscribers: usize) -> Option<u64> {
        let with_habit = self.subscribers.iter().filter(|subscriber| subscriber.habit == habit);
        let reached: Vec<_> = with_habit.map(|subscriber| subscriber.reached_number).collect();
        reached.iter().copied().min().filter(|_| reached.len() >= subscribers)
    }

    /// The gateway's process is about to be ended.
    pub fn ends(&mut self, ending: Ending, now: Instant) {
        for subscriber in &mut self.subscribers {
            subscriber.count_again(&mut self.redelivered);
            let is_settled = |ack: &&Ack| ack.sent_at + SETTLED <= now;
            let settled = subscriber.acks.iter().rev().find(is_settled).map_or(0, |ack| ack.id);
            subscriber.settled_floor = subscriber.settled_floor.max(settled);
            let kept = match ending {
                Ending::Killed => subscriber.said,
                Ending::Stopped => subscriber.reached.map_or(0, |ack| ack.id),
            };
            self.redelivered.remembered += u64::from(kept > subscriber.floor);
            subscriber.floor = subscriber.floor.max(kept);
            subscriber.ending = Some(ending);
            subscriber.forget();
        }
    }

    /// It has ended: nothing that was told meanwhile counts.
    pub fn ended(&mut self) {
        self.subscribers.iter_mut().for_each(Subscriber::forget);
    }

    /// What came of all restarts.
    pub fn close(mut self) -> Redelivered {
        for subscriber in &mut self.subscribers {
            subscriber.count_again(&mut self.redelivered);
            let feed = match subscriber.habit {
                Habit::Eager => &mut self.redelivered.eager_feed,
                Habit::Patient => &mut self.redelivered.patient_feed,
            };
            *feed = subscriber.number.max(*feed);
        }
        self.redelivered
    }
}

impl Subscriber {
    fn forget(&mut self) {
        self.acks.clear();
        self.pings.clear();
        self.reached = None;
        self.steps.clear();
    }

    fn count_again(&mut self, redelivered: &mut Redelivered) {
        let again = std::mem::take(&mut self.again);
        match (self.ending, self.habit) {
            (None, _) => {}
            (Some(Ending::Stopped), _) => redelivered.stopped.note(again),
            (Some(Ending::Killed), Habit::Eager) => redelivered.eager.note(again),
            (Some(Ending::Killed), Habit::Patient) => redelivered.patient.note(again),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn later(began: Instant, ms: u64) -> Instant {
        began + Duration::from_millis(ms)
    }

    /// A ledger whose one subscriber has got five messages, acknowledged them, and had a ping answered.
    fn reached(began: Instant) -> (Ledger, Account) {
        let mut ledger = Ledger::default();
        let account = ledger.open(Habit::Eager);
        (1..=5).for_each(|id| ledger.received(account, id));
        ledger.delivered(account, 5);
        ledger.acknowledged(account, 5, began);
        ledger.pinged(account);
        ledger.ponged(account, later(began, 1));
        (ledger, account)
    }

    fn restarts(ledger: &mut Ledger, account: Account, ending: Ending, now: Instant) {
        ledger.ends(ending, now);
        ledger.left(account);
        ledger.ended();
    }

    #[test]
    fn after_a_stop_nothing_may_come_again_whose_ack_had_reached_the_gateway() {
        let began = Instant::now();
        let (mut ledger, account) = reached(began);
        ledger.received(account, 6);
        ledger.acknowledged(account, 6, later(began, 2));
        restarts(&mut ledger, account, Ending::Stopped, later(began, 3));
        (5..=7).for_each(|id| ledger.received(account, id));
        let redelivered = ledger.close();
        assert_eq!((redelivered.forgotten, redelivered.settled, redelivered.remembered), (1, 0, 1));
        assert_eq!(redelivered.stopped, Spread { count: 1, total: 2, max: 2 });
    }

    #[test]
    fn a_kill_may_bring_back_what_the_log_does_not_say_yet() {
        let began = Instant::now();
        // Sent too early, or acknowledged after too short a wait.
        for publishes in [&[][..], &[(1, 10)], &[(2, 3), (4, 5), (6, 7), (8, 9)], &[(2, 3), (1_200, 1_201)]] {
            let (mut ledger, account) = reached(began);
            for (sent, acked) in publishes {
                ledger.published(later(began, *sent), later(began, *acked));
            }
            restarts(&mut ledger, account, Ending::Killed, later(began, 1_999));
            (1..=5).for_each(|id| ledger.received(account, id));
            let redelivered = ledger.close();
            assert_eq!((redelivered.forgotten, redelivered.settled), (0, 0));
            assert_eq!(redelivered.eager, Spread { count: 1, total: 5, max: 5 });
        }
    }

    #[test]
    fn a_kill_may_not_bring_back_what_the_log_says() {
        let began = Instant::now();
        let (mut ledger, account) = reached(began);
        for (sent, acked) in [(2, 3), (1_200, 1_201), (1_202, 1_203)] {
            ledger.published(later(began, sent), later(began, acked));
        }
        restarts(&mut ledger, account, Ending::Killed, later(began, 2_000));
        (5..=6).for_each(|id| ledger.received(account, id));
        // Nor another kill, before which nothing was acknowledged.
        restarts(&mut ledger, account, Ending::Killed, later(began, 2_100));
        ledger.received(account, 5);
        let redelivered = ledger.close();
        assert_eq!((redelivered.forgotten, redelivered.settled, redelivered.remembered), (2, 2, 1));
    }

    #[test]
    fn what_a_socket_took_with_it_counts_for_nothing() {
        let began = Instant::now();
        let (mut ledger, account) = reached(began);
        ledger.acknowledged(account, 5, later(began, 2));
        ledger.pinged(account);
        restarts(&mut ledger, account, Ending::Killed, later(began, 3));
        ledger.ponged(account, later(began, 4));
        restarts(&mut ledger, account, Ending::Stopped, later(began, 9_000));
        (1..=5).for_each(|id| ledger.received(account, id));
        let redelivered = ledger.close();
        assert_eq!((redelivered.forgotten, redelivered.settled), (0, 0));
    }

    #[test]
    fn a_feed_waits_for_the_slowest_of_its_subscribers() {
        let (mut ledger, _) = reached(Instant::now());
        assert_eq!(ledger.reached(Habit::Eager, 1), Some(5));
        assert_eq!((ledger.reached(Habit::Eager, 2), ledger.reached(Habit::Patient, 0)), (None, None));
        ledger.open(Habit::Eager);
        assert_eq!(ledger.reached(Habit::Eager, 2), Some(0));
    }
}
