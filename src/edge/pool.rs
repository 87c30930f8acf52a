//! The connections of one listener that are no sockets: how many there may be, and who goes when another one comes.
//!
//! ```text
//!            a head: upgrade                handed over
//! Arriving ------------------> Upgrading ---------------> (a socket, which has left)
//!    |                             | asks the application, or is refused
//!    | a head: any other           v
//!    |                          Unbound
//!    v                             | answered
//! Asking <-------------------------+
//!    | ^                        a head
//!    | +------------------------------------------+
//!    | answered              a first byte         |
//!    +-----------> Idle -----------------------> Reading
//! ```
//! Arriving and Upgrading are bounded together, and so are Asking, Idle and Reading. Arriving, Idle and Reading are silent:
//! they wait for their client, and the one that has done so for longest goes when there are too many. All others wait
//! for the gateway, and never go; where there are only such, newcomers wait.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::Waker;

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;
use slotmap::{DefaultKey, SlotMap};
use tokio::sync::Notify;

use super::turned_away::TurnedAway;

/// Where a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// On its way to its first request head.
    Arriving,
    /// On its way from there to an upgrade.
    Upgrading,
    /// It takes no place: it waits for the application, or for its answer after that.
    Unbound,
    /// Its request is being answered.
    Asking,
    /// It is kept for another request.
    Idle,
    /// That has begun to come.
    Reading,
}

/// What is bounded together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Arriving,
    Kept,
}

impl Stage {
    const ALL: [Self; 6] =
        [Self::Arriving, Self::Upgrading, Self::Unbound, Self::Asking, Self::Idle, Self::Reading];

    fn class(self) -> Option<Class> {
        match self {
            Self::Arriving | Self::Upgrading => Some(Class::Arriving),
            Self::Unbound => None,
            Self::Asking | Self::Idle | Self::Reading => Some(Class::Kept),
        }
    }

    /// Whether it waits for its client.
    fn is_silent(self) -> bool {
        matches!(self, Self::Arriving | Self::Idle | Self::Reading)
    }
}

/// A listener's connections.
pub(super) struct Pool {
    arriving_max: usize,
    kept_max: usize,
    state: Mutex<State>,
    /// Told when a connection no longer counts as arriving.
    freed: Notify,
    /// Connections that have been sent away and have not gone yet.
    leaving: AtomicU64,
}

#[derive(Default)]
struct State {
    guests: SlotMap<DefaultKey, Entry>,
    arriving: Places,
    kept: Places,
    next: u64,
}

/// The places of a class.
#[derive(Default)]
struct Places {
    taken: usize,
    /// Those that are silent, by when they became so.
    silent: BTreeMap<u64, DefaultKey>,
}

struct Entry {
    stage: Stage,
    /// When it came to this stage, as a number that grows.
    since: u64,
    signals: Arc<Signals>,
}

/// What a connection sees of its entry without asking the pool.
struct Signals {
    /// Its turn.
    turn: AtomicU64,
    dismissed: Notify,
    /// Who reads from the client, and waits for the client's turn to come.
    reader: AtomicWaker,
    given_up: OnceLock<TurnedAway>,
}

/// A stage, told from each earlier time that a connection was in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Turn(u64);

impl Turn {
    const STAGES: u64 = Stage::ALL.len() as u64;

    fn new(stage: Stage, since: u64) -> Self {
        Self(since * Self::STAGES + stage as u64)
    }

    /// The stage.
    pub(super) fn stage(self) -> Stage {
        Stage::ALL[(self.0 % Self::STAGES) as usize]
    }
}

impl State {
    fn places(&mut self, class: Class) -> &mut Places {
        match class {
            Class::Arriving => &mut self.arriving,
            Class::Kept => &mut self.kept,
        }
    }

    fn leave(&mut self, stage: Stage, since: u64) {
        if let Some(class) = stage.class() {
            let places = self.places(class);
            places.taken -= 1;
            places.silent.remove(&since);
        }
    }

    fn come(&mut self, key: DefaultKey, stage: Stage, since: u64) {
        if let Some(class) = stage.class() {
            let places = self.places(class);
            places.taken += 1;
            if stage.is_silent() {
                places.silent.insert(since, key);
            }
        }
    }

    fn tick(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Sends the connection of a class away that has been silent for longest; false if none is silent.
    fn dismiss_oldest(&mut self, class: Class, reason: TurnedAway) -> bool {
        let Some((_, key)) = self.places(class).silent.first_key_value().map(|(since, key)| (*since, *key))
        else {
            return false;
        };
        if let Some(entry) = self.guests.remove(key) {
            self.leave(entry.stage, entry.since);
            entry.signals.given_up.get_or_init(|| reason);
            entry.signals.dismissed.notify_one();
        }
        true
    }
}

impl Pool {
    pub(super) fn new(arriving_max: usize, kept_max: usize) -> Arc<Self> {
        Arc::new(Self {
            arriving_max,
            kept_max,
            state: Mutex::default(),
            freed: Notify::new(),
            leaving: AtomicU64::new(0),
        })
    }

    /// A place for a connection that has been accepted, once there is one.
    pub(super) async fn enter(self: &Arc<Self>) -> Arc<Guest> {
        loop {
            if let Some(guest) = self.try_enter() {
                return guest;
            }
            // One that was told before it is waited for is kept.
            self.freed.notified().await;
        }
    }

    fn try_enter(self: &Arc<Self>) -> Option<Arc<Guest>> {
        let mut state = self.state.lock();
        if !self.has_room(&mut state, Class::Arriving) {
            return None;
        }
        let since = state.tick();
        let turn = AtomicU64::new(Turn::new(Stage::Arriving, since).0);
        let signals = Arc::new(Signals {
            turn,
            dismissed: Notify::new(),
            reader: AtomicWaker::new(),
            given_up: OnceLock::new(),
        });
        let entry = Entry { stage: Stage::Arriving, since, signals: Arc::clone(&signals) };
        let key = state.guests.insert(entry);
        state.come(key, Stage::Arriving, since);
        Some(Arc::new(Guest { pool: Arc::clone(self), key, signals }))
    }

    /// Whether another one may be in a class; for it, one that is silent goes.
    fn has_room(&self, state: &mut State, class: Class) -> bool {
        let max = match class {
            Class::Arriving => self.arriving_max,
            Class::Kept => self.kept_max,
        };
        state.places(class).taken < max || self.dismiss_oldest_of(state, class, TurnedAway::SilentForLongest)
    }

    fn dismiss_oldest_of(&self, state: &mut State, class: Class, reason: TurnedAway) -> bool {
        let is_dismissed = state.dismiss_oldest(class, reason);
        if is_dismissed {
            self.leaving.fetch_add(1, Ordering::Relaxed);
        }
        is_dismissed
    }

    /// How many connections have been sent away and have not gone yet.
    pub(super) fn leaving(&self) -> u64 {
        self.leaving.load(Ordering::Relaxed)
    }

    /// How many connections are silent.
    pub(super) fn silent(&self) -> usize {
        let state = self.state.lock();
        state.arriving.silent.len() + state.kept.silent.len()
    }

    /// Since descriptors are short, sends the connection away that has been silent for longest, those first that have never
    /// asked for anything; false if none is silent.
    pub(super) fn dismiss_oldest(&self) -> bool {
        let reason = TurnedAway::SilentWhileShort;
        let mut state = self.state.lock();
        let is_dismissed = self.dismiss_oldest_of(&mut state, Class::Arriving, reason);
        if is_dismissed {
            self.freed.notify_one();
        }
        is_dismissed || self.dismiss_oldest_of(&mut state, Class::Kept, reason)
    }
}

/// A connection in a pool; it leaves when this is dropped.
pub(super) struct Guest {
    pool: Arc<Pool>,
    key: DefaultKey,
    signals: Arc<Signals>,
}

/// A connection that is on its way to an upgrade. Once this is dropped, it takes no place any more.
pub(super) struct Upgrading(Arc<Guest>);

impl Guest {
    /// Where it is.
    pub(super) fn turn(&self) -> Turn {
        Turn(self.signals.turn.load(Ordering::Relaxed))
    }

    /// Completes when it has been sent away.
    pub(super) async fn dismissed(&self) {
        self.signals.dismissed.notified().await;
    }

    /// Something has come from its client.
    pub(super) fn heard(&self) {
        if self.turn().stage() == Stage::Idle {
            self.change(Stage::Reading);
        }
    }

    /// Its request is no upgrade. False if there is no place for it, or it has been sent away.
    pub(super) fn asks(&self) -> bool {
        self.change(Stage::Asking)
    }

    /// Its request is an upgrade. One that was kept before stays among those.
    pub(super) fn upgrades(self: &Arc<Self>) -> Option<Upgrading> {
        if self.turn().stage() == Stage::Arriving {
            return self.change(Stage::Upgrading).then(|| Upgrading(Arc::clone(self)));
        }
        self.asks();
        None
    }

    /// It has its answer, which is no upgrade. False if it can't be kept for another request.
    pub(super) fn answered(&self) -> bool {
        self.turn().stage() == Stage::Asking || self.change(Stage::Asking)
    }

    /// The answer is out.
    pub(super) fn rests(&self) {
        if self.turn().stage() == Stage::Asking {
            self.change(Stage::Idle);
            self.signals.reader.wake();
        }
    }

    /// Has whoever reads from its client woken when the client's turn comes: nothing need come from the client for that.
    pub(super) fn wake_at_rest(&self, reader: &Waker) {
        self.signals.reader.register(reader);
    }

    /// Its client took too long.
    pub(super) fn give_up(&self, reason: TurnedAway) {
        self.signals.given_up.get_or_init(|| reason);
    }

    /// Why it has been sent away, or with what its client took too long, if so.
    pub(super) fn given_up(&self) -> Option<TurnedAway> {
        self.signals.given_up.get().copied()
    }

    /// Goes on to a stage, if there is room for one more in its class.
    fn change(&self, to: Stage) -> bool {
        let mut state = self.pool.state.lock();
        let Some(from) = state.guests.get(self.key).map(|entry| entry.stage) else { return false };
        if let Some(class) = to.class().filter(|class| from.class() != Some(*class))
            && !self.pool.has_room(&mut state, class)
        {
            return false;
        }
        let since = state.tick();
        let Some(entry) = state.guests.get_mut(self.key) else { return false };
        let before = std::mem::replace(&mut entry.since, since);
        entry.stage = to;
        state.leave(from, before);
        state.come(self.key, to, since);
        self.signals.turn.store(Turn::new(to, since).0, Ordering::Relaxed);
        drop(state);
        self.tell_freed(from, Some(to));
        true
    }

    fn tell_freed(&self, from: Stage, to: Option<Stage>) {
        let is_arriving = |stage: Stage| stage.class() == Some(Class::Arriving);
        if is_arriving(from) && !to.is_some_and(is_arriving) {
            self.pool.freed.notify_one();
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock();
        let Some(entry) = state.guests.remove(self.key) else {
            // One that was sent away has given its place up already.
            self.pool.leaving.fetch_sub(1, Ordering::Relaxed);
            return;
        };
        state.leave(entry.stage, entry.since);
        drop(state);
        self.tell_freed(entry.stage, None);
    }
}

impl Drop for Upgrading {
    fn drop(&mut self) {
        if self.0.turn().stage() == Stage::Upgrading {
            self.0.change(Stage::Unbound);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn enter(pool: &Arc<Pool>) -> Option<Arc<Guest>> {
        pool.enter().now_or_never()
    }

    fn is_dismissed(guest: &Guest) -> bool {
        guest.dismissed().now_or_never().is_some()
    }

    #[test]
    fn when_all_places_are_taken_the_connection_goes_that_was_silent_for_longest() {
        let pool = Pool::new(2, 10);
        let first = enter(&pool).unwrap();
        let second = enter(&pool).unwrap();
        let third = enter(&pool).unwrap();
        assert!(is_dismissed(&first) && !is_dismissed(&second));
        assert!(!first.asks(), "whoever has been sent away gets no place back");
        drop(second);
        let _fourth = enter(&pool).unwrap();
        assert!(!is_dismissed(&third), "there was a free place");
    }

    #[test]
    fn whoever_waits_for_the_gateway_is_not_sent_away_and_newcomers_wait() {
        let pool = Pool::new(2, 10);
        let first = enter(&pool).unwrap();
        let upgrading = first.upgrades().unwrap();
        let second = enter(&pool).unwrap();
        let third = enter(&pool).unwrap();
        assert!(is_dismissed(&second) && !is_dismissed(&first));
        drop(second);
        let other = third.upgrades().unwrap();
        let mut waiting = Box::pin(pool.enter());
        assert!(waiting.as_mut().now_or_never().is_none());
        drop(upgrading);
        assert!(waiting.now_or_never().is_some(), "the application is asked: that takes no place");
        drop(other);
    }

    #[test]
    fn an_idle_connection_goes_for_another_request_and_one_that_is_answered_does_not() {
        let pool = Pool::new(10, 2);
        let [first, second, third, fourth] = std::array::from_fn(|_| enter(&pool).unwrap());
        assert!(first.asks() && second.asks());
        assert!(!third.asks(), "both are being answered");
        assert!(!is_dismissed(&first) && !is_dismissed(&second));
        second.rests();
        first.rests();
        first.heard();
        assert!(third.asks());
        assert!(is_dismissed(&second) && !is_dismissed(&first));
        assert!(fourth.asks());
        assert!(is_dismissed(&first), "half a head is no request");
    }

    #[test]
    fn a_refused_upgrade_is_kept_where_there_is_room() {
        let pool = Pool::new(10, 1);
        let [first, second] = std::array::from_fn(|_| enter(&pool).unwrap());
        drop(first.upgrades());
        assert_eq!(first.turn().stage(), Stage::Unbound);
        assert!(first.answered());
        let upgrading = second.upgrades();
        assert!(!second.answered(), "the other is being answered");
        drop(upgrading);
        first.rests();
        assert!(first.upgrades().is_none(), "it has its place already");
        assert_eq!(first.turn().stage(), Stage::Asking);
    }

    #[test]
    fn each_time_in_a_stage_is_another_turn() {
        let pool = Pool::new(1, 1);
        let guest = enter(&pool).unwrap();
        assert!(guest.asks());
        guest.rests();
        let first = guest.turn();
        assert!(guest.asks());
        guest.rests();
        assert_eq!((first.stage(), guest.turn().stage()), (Stage::Idle, Stage::Idle));
        assert_ne!(first, guest.turn());
        for (number, stage) in Stage::ALL.into_iter().enumerate() {
            assert_eq!(stage as usize, number);
        }
    }

    #[test]
    fn when_descriptors_are_short_those_go_first_who_never_asked_for_anything() {
        let pool = Pool::new(10, 10);
        let [kept, first, busy] = std::array::from_fn(|_| enter(&pool).unwrap());
        assert!(kept.asks() && busy.asks());
        kept.rests();
        assert_eq!(pool.silent(), 2);
        assert!(pool.dismiss_oldest());
        assert!(is_dismissed(&first) && !is_dismissed(&kept));
        assert!(pool.dismiss_oldest());
        assert!(is_dismissed(&kept));
        assert!(!pool.dismiss_oldest() && !is_dismissed(&busy));
        assert_eq!(pool.leaving(), 2);
        drop((kept, first, busy));
        assert_eq!((pool.silent(), pool.leaving(), pool.state.lock().guests.len()), (0, 0, 0));
    }
}
