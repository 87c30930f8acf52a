//! Memory that a process lets its clients fill, and who has filled how much of it.
//!
//! Three kinds are counted. What can be given up: messages, each once however many sessions hold it, the places for them in
//! outboxes, what waits for the log. Half messages: what clients have sent the beginning of. And what a session keeps for as
//! long as it lives: its groups, its permissions, the ack ids that it has executed. Over the budget the first is shed, the
//! second is given up as soon as it has more than its share, and no session is begun.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The part of the budget that half messages have for themselves, as a divisor: what they hold beyond it makes no session
/// end and keeps none from beginning, and it is they that are given up.
const HALF_MESSAGES_SHARE: usize = 4;

/// The part of the budget that sessions may take which are over and of which the application is still to be told, as a
/// divisor: it is not told of further ones.
const UNTOLD_SHARE: usize = 4;
/// The least that they may take, in bytes.
const UNTOLD_BYTES_MIN: usize = 4 * 1024 * 1024;

/// See the module. Shared by all hubs of a process; each shard charges its own part of it.
#[derive(Debug)]
pub struct MemoryBudget {
    /// What can be given up: messages, places for them, what is pending.
    used_bytes: AtomicUsize,
    /// The part of that which messages take for their encodings, and which goes when they go.
    encoded_bytes: AtomicUsize,
    /// What clients have sent the beginning of.
    half_message_bytes: AtomicUsize,
    /// What sessions keep for as long as they live.
    state_bytes: AtomicUsize,
    /// What is kept of sessions that are over and of which the application is still to be told.
    untold_bytes: AtomicUsize,
    sessions: AtomicUsize,
    bytes_max: usize,
    /// What may be used beyond that for a while; counted up to the budget itself.
    lent_bytes: AtomicUsize,
    /// Parts that are in use.
    parts: AtomicUsize,
    whole: Option<Arc<MemoryBudget>>,
}

impl MemoryBudget {
    /// A budget of this many bytes.
    pub fn new(bytes_max: usize) -> Self {
        Self::within(bytes_max, None)
    }

    /// A part for one shard. What is charged to it is charged to the whole too.
    pub fn part(self: &Arc<Self>) -> Arc<Self> {
        self.parts.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self::within(self.bytes_max, Some(Arc::clone(self))))
    }

    /// Bytes that are in use now and that can be given up.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// The same without the encodings of messages: what is known of a message before anybody is sent it.
    pub fn used_bytes_before_encoding(&self) -> usize {
        self.used_bytes().saturating_sub(self.encoded_bytes.load(Ordering::Relaxed))
    }

    /// Bytes of the sessions' own state, which stays as long as they live.
    pub fn state_bytes(&self) -> usize {
        self.state_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of messages of which only the beginning has come.
    pub fn half_message_bytes(&self) -> usize {
        self.half_message_bytes.load(Ordering::Relaxed)
    }

    /// Sessions of the whole process, those without a socket and those that are being opened included.
    pub fn sessions(&self) -> usize {
        self.whole.as_ref().map_or(self.sessions.load(Ordering::Relaxed), |whole| whole.sessions())
    }

    /// Whether the application is told of one more session that is over, should it have to wait for it.
    pub fn has_room_for_untold(&self) -> bool {
        match &self.whole {
            Some(whole) => whole.has_room_for_untold(),
            None => {
                let bytes_max = (self.bytes_max / UNTOLD_SHARE).max(UNTOLD_BYTES_MIN);
                self.untold_bytes.load(Ordering::Relaxed) < bytes_max
            }
        }
    }

    /// Says that what is kept of sessions that are over has become so many bytes more, or less.
    pub fn change_untold(&self, by: isize) {
        self.untold_bytes.fetch_add(by as usize, Ordering::Relaxed);
        self.whole.iter().for_each(|whole| whole.change_untold(by));
    }

    /// Whether sessions may come to keep so many bytes more.
    pub fn has_room_for_state(&self, bytes: usize) -> bool {
        match &self.whole {
            Some(whole) => whole.has_room_for_state(bytes),
            None => self.state_bytes().saturating_add(bytes) <= self.allowed_bytes(),
        }
    }

    /// Whether the process has no room for one more session.
    pub fn is_full(&self) -> bool {
        match &self.whole {
            Some(whole) => whole.is_full(),
            None => self.pressing_bytes() + self.state_bytes() > self.allowed_bytes(),
        }
    }

    /// Whether what sessions keep for as long as they live has come to all of the budget: none may come to keep more.
    pub fn has_too_much_state(&self) -> bool {
        !self.has_room_for_state(0)
    }

    /// Whether a part has to end a session for what sessions keep: they have come to a quarter more than all of the budget,
    /// as they can by what is not refused, and the part has its share of it.
    pub fn must_free_state(&self) -> bool {
        let Some(whole) = &self.whole else { return false };
        let allowed = whole.allowed_bytes();
        whole.state_bytes() > allowed.saturating_add(allowed / 4)
            && self.state_bytes() > whole.share_of(allowed)
    }

    /// Lets a part use more for a while: what it has brought back from its log, and which was allowed before.
    pub fn lend(&self, bytes: usize) {
        self.lent_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.whole.iter().for_each(|whole| whole.lend(bytes));
    }

    /// The while is over for a part.
    pub fn take_back(&self) {
        let lent = self.lent_bytes.swap(0, Ordering::Relaxed);
        if let Some(whole) = &self.whole {
            whole.lent_bytes.fetch_sub(lent, Ordering::Relaxed);
        }
    }

    /// Bytes that may be used now.
    fn allowed_bytes(&self) -> usize {
        self.bytes_max.saturating_add(self.lent_bytes.load(Ordering::Relaxed).min(self.bytes_max))
    }

    /// What the sessions' own state leaves of it.
    fn keepable_bytes(&self) -> usize {
        let allowed = self.allowed_bytes();
        allowed.saturating_sub(self.state_bytes()).max(allowed / 2)
    }

    /// Whether more has to be given up than the budget allows to keep. The sessions' own state can't be given up: it leaves
    /// at least half of the budget to the rest, or each message would be the one too many. A part has to answer for it only
    /// while it uses more than an equal share: otherwise a shard at rest that holds everything would make the busy ones end
    /// all their sessions, and free nothing. So the process may come to use up to twice its budget.
    pub fn is_exceeded(&self) -> bool {
        self.is_exceeded_without(0)
    }

    /// The same, were so many bytes of it gone.
    pub fn is_exceeded_without(&self, bytes: usize) -> bool {
        let is_more = |used: usize, than: usize| used.saturating_sub(bytes) > than;
        match &self.whole {
            None => is_more(self.pressing_bytes(), self.keepable_bytes()),
            Some(whole) => {
                whole.is_exceeded_without(bytes)
                    && is_more(self.used_bytes(), whole.share_of(whole.keepable_bytes()))
            }
        }
    }

    /// Whether a half message has to be given up: they have more than their share, and the budget has no room for it. Nothing
    /// is lost by it but time, so that no session ends for what half messages hold beyond their share.
    pub fn has_too_much_in_halves(&self) -> bool {
        let half_messages = self.half_message_bytes();
        half_messages > self.half_messages_share()
            && self.used_bytes() + half_messages > self.keepable_bytes()
    }

    /// Says that a half message of so many bytes has become one of so many.
    pub fn change_half_message(&self, from: usize, to: usize) {
        self.half_message_bytes.fetch_add(to.wrapping_sub(from), Ordering::Relaxed);
    }

    /// What each part that is in use has of so many bytes.
    fn share_of(&self, bytes: usize) -> usize {
        bytes / self.parts.load(Ordering::Relaxed).max(1)
    }

    /// What is in use, without what can be had at once by giving half messages up.
    fn pressing_bytes(&self) -> usize {
        self.used_bytes() + self.half_message_bytes().min(self.half_messages_share())
    }

    fn half_messages_share(&self) -> usize {
        self.bytes_max / HALF_MESSAGES_SHARE
    }

    fn within(bytes_max: usize, whole: Option<Arc<Self>>) -> Self {
        Self {
            used_bytes: AtomicUsize::new(0),
            encoded_bytes: AtomicUsize::new(0),
            half_message_bytes: AtomicUsize::new(0),
            state_bytes: AtomicUsize::new(0),
            untold_bytes: AtomicUsize::new(0),
            sessions: AtomicUsize::new(0),
            bytes_max,
            lent_bytes: AtomicUsize::new(0),
            parts: AtomicUsize::new(0),
            whole,
        }
    }

    pub(super) fn charge(&self, bytes: usize) {
        self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.whole.iter().for_each(|whole| whole.charge(bytes));
    }

    pub(super) fn give_back(&self, bytes: usize) {
        self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.whole.iter().for_each(|whole| whole.give_back(bytes));
    }

    pub(super) fn charge_encoding(&self, bytes: usize) {
        self.encoded_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.charge(bytes);
    }

    pub(super) fn give_back_encodings(&self, bytes: usize) {
        self.encoded_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.give_back(bytes);
    }

    fn change_state(&self, from: usize, to: usize) {
        self.state_bytes.fetch_add(to.wrapping_sub(from), Ordering::Relaxed);
        self.whole.iter().for_each(|whole| whole.change_state(from, to));
    }

    fn change_sessions(&self, by: isize) {
        self.sessions.fetch_add(by as usize, Ordering::Relaxed);
        self.whole.iter().for_each(|whole| whole.change_sessions(by));
    }
}

impl Drop for MemoryBudget {
    fn drop(&mut self) {
        self.take_back();
        if let Some(whole) = &self.whole {
            whole.parts.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// A change of less than this is not charged at once: most sessions hold little, and what they hold changes with each
/// message.
const CHARGE_STEP_BYTES: usize = 1024;

/// What one holder has charged of what can be given up. Without a budget nothing is charged.
#[derive(Debug, Default)]
pub struct Charge {
    budget: Option<Arc<MemoryBudget>>,
    bytes: usize,
}

impl Charge {
    /// Nothing yet.
    pub fn new(budget: &Arc<MemoryBudget>) -> Self {
        Self { budget: Some(Arc::clone(budget)), bytes: 0 }
    }

    /// Says how much the holder has now.
    pub fn set(&mut self, bytes: usize) {
        if bytes.abs_diff(self.bytes) >= CHARGE_STEP_BYTES || bytes == 0 {
            self.change_to(bytes);
        }
    }

    fn change_to(&mut self, bytes: usize) {
        let before = std::mem::replace(&mut self.bytes, bytes);
        match &self.budget {
            Some(budget) if bytes > before => budget.charge(bytes - before),
            Some(budget) if bytes < before => budget.give_back(before - bytes),
            _ => {}
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.change_to(0);
    }
}

/// That there is a session, or is to be one, and what it keeps for as long as it lives.
#[derive(Debug)]
pub struct SessionCharge {
    budget: Arc<MemoryBudget>,
    bytes: usize,
}

impl SessionCharge {
    /// One more session.
    pub fn new(budget: &Arc<MemoryBudget>) -> Self {
        budget.change_sessions(1);
        Self { budget: Arc::clone(budget), bytes: 0 }
    }

    /// How much the session keeps, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Says how much the session keeps now.
    pub fn set(&mut self, bytes: usize) {
        if bytes.abs_diff(self.bytes) >= CHARGE_STEP_BYTES {
            self.budget.change_state(self.bytes, bytes);
            self.bytes = bytes;
        }
    }
}

impl Drop for SessionCharge {
    fn drop(&mut self) {
        self.budget.change_state(self.bytes, 0);
        self.budget.change_sessions(-1);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::log::MessageRef;
    use crate::session::SharedMessage;
    use crate::wire::{Message, Metadata, Payload, PayloadKind, Sender};

    fn message(bytes: usize, budget: &Arc<MemoryBudget>) -> Arc<SharedMessage> {
        let payload = Payload { kind: PayloadKind::Text, bytes: Bytes::from(vec![b'x'; bytes]) };
        let message = Message { sender: Sender::Server, payload, metadata: Metadata::default() };
        SharedMessage::new(MessageRef::default(), message, None, budget)
    }

    #[test]
    fn a_shard_at_rest_that_holds_the_whole_budget_does_not_make_others_shed() {
        let whole = Arc::new(MemoryBudget::new(10_000));
        let [at_rest, busy] = [whole.part(), whole.part()];
        let held = message(11_000, &at_rest);
        let small = message(100, &busy);
        assert!(whole.is_exceeded() && at_rest.is_exceeded());
        assert!(!busy.is_exceeded(), "freeing what it holds would be of no use");
        let large = message(5_000, &busy);
        assert!(busy.is_exceeded(), "more than an equal share");
        drop((held, large, small));
        assert_eq!([whole.used_bytes(), at_rest.used_bytes(), busy.used_bytes()], [0; 3]);
    }

    #[test]
    fn what_was_brought_back_may_be_kept_for_a_while() {
        let whole = Arc::new(MemoryBudget::new(10_000));
        let part = whole.part();
        let held = message(9_000, &part);
        part.lend(part.used_bytes());
        let more = message(9_000, &part);
        assert!(!part.is_exceeded());
        part.take_back();
        assert!(part.is_exceeded());
        drop((held, more));
    }

    #[test]
    fn no_more_is_lent_than_the_budget_itself() {
        let whole = Arc::new(MemoryBudget::new(10_000));
        let [one, other] = [whole.part(), whole.part()];
        one.lend(90_000);
        let held = message(21_000, &one);
        assert!(one.is_exceeded(), "twice the budget is the most");
        drop(one);
        let other_held = message(1_000, &other);
        drop(held);
        assert!(!whole.is_exceeded());
        drop(other_held);
        let too_much = message(10_000, &other);
        assert!(whole.is_exceeded(), "a part that is gone has nothing lent to it");
        drop(too_much);
    }

    #[test]
    fn parts_that_are_gone_have_no_share() {
        let whole = Arc::new(MemoryBudget::new(10_000));
        let part = whole.part();
        drop(whole.part());
        let held = message(9_000, &part);
        assert!(!part.is_exceeded());
        let more = message(2_000, &part);
        assert!(part.is_exceeded());
        drop((held, more));
    }

    #[test]
    fn the_sessions_own_state_leaves_half_of_the_budget_to_messages() {
        let whole = Arc::new(MemoryBudget::new(10_000));
        let part = whole.part();
        let mut session = SessionCharge::new(&part);
        session.set(9_000);
        assert_eq!((whole.state_bytes(), part.sessions()), (9_000, 1));
        let held = message(4_000, &part);
        assert!(part.is_full() && whole.is_full(), "there is no room for one more session");
        assert!(!part.is_exceeded());
        let more = message(2_000, &part);
        assert!(part.is_exceeded());
        drop((session, more));
        assert!(!part.is_full() && !part.is_exceeded());
        assert_eq!((whole.state_bytes(), whole.sessions(), part.state_bytes()), (0, 0, 0));
        drop(held);
    }

    #[test]
    fn half_messages_end_no_session_and_are_given_up_beyond_their_share_alone() {
        let whole = Arc::new(MemoryBudget::new(10_000));
        let part = whole.part();
        whole.change_half_message(0, 9_000);
        let held = message(500, &part);
        assert!(!whole.has_too_much_in_halves(), "there is room");
        let more = message(2_000, &part);
        assert!(whole.has_too_much_in_halves());
        assert!(!part.is_exceeded() && !part.is_full(), "whoever sent half messages must not stop others");
        whole.change_half_message(9_000, 2_500);
        let much = message(8_000, &part);
        assert!(!whole.has_too_much_in_halves(), "no more than their share");
        assert!(part.is_exceeded());
        drop((held, more, much));
        whole.change_half_message(2_500, 0);
        assert_eq!(whole.half_message_bytes(), 0);
        assert!(!part.is_exceeded() && !whole.is_full());
    }

    #[test]
    fn a_charge_follows_in_steps_and_is_given_back() {
        let whole = Arc::new(MemoryBudget::new(10_000));
        let mut charge = Charge::new(&whole);
        charge.set(CHARGE_STEP_BYTES - 1);
        assert_eq!(whole.used_bytes(), 0);
        charge.set(5_000);
        charge.set(5_000 - CHARGE_STEP_BYTES + 1);
        assert_eq!(whole.used_bytes(), 5_000);
        charge.set(10);
        assert_eq!(whole.used_bytes(), 10);
        charge.set(0);
        assert_eq!(whole.used_bytes(), 0);
        charge.set(7_000);
        drop(charge);
        assert_eq!(whole.used_bytes(), 0);
    }
}
