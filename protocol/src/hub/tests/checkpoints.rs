//! R11, R13: restoring a checkpoint and folding what is behind it gives what folding the whole log gives, whenever the
//! process stops, whatever the store has of an unfinished round, and in any number of shards.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use proptest::collection::vec;
use proptest::prelude::*;

use super::super::*;
use super::harness::settings;
use super::random_log::{Asked, LogWriter, SESSIONS, Step, Whom, offset_of, step};
use crate::hub::timer::Timer;
use crate::log::{
    CHUNKS, CheckpointChange, Disconnected, ExecutedRequest, HubCheckpoint, MessageCheckpoint, RequestKind,
    SessionCheckpoint,
};
use crate::wire::SequenceId;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn r11_a_restored_hub_is_the_hub_that_folded_everything(actions in vec(action(), 1..400), shards in 1u16..4) {
        let mut world = World::new(shards);
        for action in &actions {
            world.act(action);
        }
        world.act(&Action::Crash(1, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Nearly all that happens is requests and crashes, so that pages come and go between them.
    #[test]
    fn r8_requests_are_known_again_whatever_write_was_the_last(
        requests in vec((0u8..24, 1usize..30, 0usize..3), 20..60),
        kept in any::<u8>(),
    ) {
        let mut world = World::new(1);
        for (id, steps, writes) in requests {
            for id in [id, (id + 7) % 24] {
                world.act(&Action::Log(Step::Ask(Whom::everybody(), Some(id), Asked::Refused)));
            }
            world.act(&Action::Fold(0, usize::MAX));
            for _ in 0..steps {
                world.act(&Action::Step(0));
                (0..writes).for_each(|_| world.act(&Action::Written(0, true, true)));
            }
            if steps % 4 == 0 {
                world.act(&Action::Crash(1, kept));
            }
        }
        world.act(&Action::Crash(1, kept));
    }
}

#[derive(Debug, Clone)]
enum Action {
    Log(Step),
    /// A shard folds some records.
    Fold(usize, usize),
    /// A shard takes a step of a round.
    Step(usize),
    /// A shard's write is done: stored, refused, or stored and reported as failed.
    Written(usize, bool, bool),
    /// A client acknowledges what it has got up to an id. It is in no record.
    Acknowledge(&'static str, u64),
    /// A crash; writes under way are stored or not, by bits. So many shards afterwards.
    Crash(u16, u8),
}

fn action() -> impl Strategy<Value = Action> {
    let shard = || 0usize..3;
    prop_oneof![
        20 => step().prop_map(Action::Log),
        6 => (shard(), 1usize..40).prop_map(|(shard, records)| Action::Fold(shard, records)),
        16 => shard().prop_map(Action::Step),
        16 => (shard(), prop::bool::weighted(0.95), any::<bool>())
            .prop_map(|(shard, is_ok, is_stored)| Action::Written(shard, is_ok, is_ok || is_stored)),
        2 => (prop::sample::select(SESSIONS.to_vec()), 0u64..200)
            .prop_map(|(id, sequence_id)| Action::Acknowledge(id, sequence_id)),
        1 => (1u16..4, any::<u8>()).prop_map(|(shards, kept)| Action::Crash(shards, kept)),
    ]
}

/// A hub over a log and a store that outlive it.
struct World {
    writer: LogWriter,
    /// Records before this index are trimmed.
    first: usize,
    store: BTreeMap<String, (Offset, Bytes)>,
    shards: Vec<Shard>,
    /// How many records each shard has folded.
    folded: Vec<usize>,
    checkpointer: Checkpointer,
    writes: Vec<Option<Vec<CheckpointChange>>>,
    /// What clients acknowledged beside the log since the start.
    acknowledged: BTreeMap<&'static str, u64>,
    /// Rounds that were done.
    rounds: usize,
}

/// A session with what its client would get, when it expires, and the messages that wait.
type State = BTreeMap<String, (SessionCheckpoint, Vec<MessageCheckpoint>, Option<Time>)>;

const BOUNDS: CheckpointBounds = CheckpointBounds {
    log_bytes_min: 500,
    log_bytes_per_state_byte: 0,
    rest_log_bytes_min: u64::MAX,
    rest_ms: 1000,
    retry_ms: 0,
    write_bytes: 300,
    step_chunks: 400,
    step_bytes: 200,
};
const NOW: Time = Time(0);

impl World {
    fn new(shards: u16) -> Self {
        let mut world = Self {
            writer: LogWriter::new(7),
            first: 0,
            store: BTreeMap::new(),
            shards: Vec::new(),
            folded: Vec::new(),
            checkpointer: Checkpointer::new(1, BOUNDS, None, stored::Stored::nothing()),
            writes: Vec::new(),
            acknowledged: BTreeMap::new(),
            rounds: 0,
        };
        world.writer.window_requests = 7;
        world.start(shards);
        world
    }

    fn act(&mut self, action: &Action) {
        match action {
            // The process writes its boots itself.
            Action::Log(Step::Boot) => self.crash(1, u8::MAX),
            Action::Log(step) => self.writer.take(step),
            Action::Fold(shard, records) => self.fold(shard % self.shards.len(), *records),
            Action::Step(shard) => {
                let shard = shard % self.shards.len();
                if let checkpointer::Step::Write(changes) = self.step(shard) {
                    self.writes[shard] = Some(changes);
                }
            }
            Action::Written(shard, is_ok, is_stored) => {
                let shard = shard % self.shards.len();
                let Some(changes) = self.writes[shard].take() else { return };
                if *is_stored {
                    self.store(changes);
                }
                let trimmed = self.checkpointer.written(NOW, shard as u16, *is_ok);
                if let Some(before) = trimmed {
                    self.rounds += 1;
                    let count = self.writer.log.len();
                    self.first = (self.first..count).find(|at| offset_of(*at) >= before).unwrap_or(count);
                }
            }
            Action::Acknowledge(id, sequence_id) => {
                for hub in &self.shards {
                    if let Some(&key) = hub.by_connection_id.get(*id) {
                        hub.sessions[key].outbox.lock().acknowledge(*sequence_id);
                        let most = self.acknowledged.entry(id).or_default();
                        *most = (*most).max(*sequence_id);
                    }
                }
            }
            Action::Crash(shards, kept) => self.crash(*shards, *kept),
        }
    }

    fn step(&mut self, shard: usize) -> checkpointer::Step {
        self.checkpointer.step(NOW, &self.shards[shard])
    }

    fn store(&mut self, changes: Vec<CheckpointChange>) {
        for change in changes {
            match change {
                CheckpointChange::Save { key, covers, bytes } => {
                    self.store.insert(key.to_string(), (covers, bytes));
                }
                CheckpointChange::Delete { key } => drop(self.store.remove(&key.to_string())),
            }
        }
    }

    fn crash(&mut self, shards: u16, kept: u8) {
        for (shard, changes) in std::mem::take(&mut self.writes).into_iter().enumerate() {
            if let Some(changes) = changes.filter(|_| kept >> shard & 1 == 1) {
                self.store(changes);
            }
        }
        let before: BTreeMap<String, Vec<SequenceId>> = self
            .shards
            .iter()
            .flat_map(|hub| hub.sessions.values())
            .map(|session| (session.identity.connection_id.to_string(), ids(&session.to_checkpoint())))
            .collect();
        self.start(shards);
        self.check(&before);
    }

    /// A process starts, restores what is stored, folds the rest and its own boot.
    fn start(&mut self, shards: u16) {
        let mut restoring = Restoring::default();
        for (key, (covers, bytes)) in &self.store {
            restoring.load(key, *covers, bytes.clone()).unwrap();
        }
        let (end, boot) = (offset_of(self.writer.log.len()), BootId(self.writer.boot.0 + 1));
        let budget = Arc::new(MemoryBudget::new(usize::MAX));
        let mut resolving = restoring.resolve(&settings(), shards, boot, &budget, end).unwrap();
        while let Some(offset) = resolving.next() {
            let at = (offset.0 / 3) as usize;
            assert!(at >= self.first, "a message was trimmed that a session keeps");
            resolving.read(offset, &self.writer.log[at]);
            assert_ne!(resolving.next(), Some(offset), "the record has no such message");
        }
        let Restored { shards, checkpointer, applied } = resolving.finish(BOUNDS).unwrap();
        let from = applied.map_or(0, |applied| applied.0 as usize / 3 + 1);
        assert!(from >= self.first, "a record was trimmed that is to be folded");
        self.writer.take(&Step::Boot);
        self.folded = vec![from; shards.len()];
        self.writes = vec![None; shards.len()];
        self.shards = shards;
        self.checkpointer = checkpointer;
        for shard in 0..self.shards.len() {
            self.fold(shard, usize::MAX);
            assert!(self.shards[shard].is_live());
        }
    }

    fn fold(&mut self, shard: usize, records: usize) {
        let from = self.folded[shard];
        let to = self.writer.log.len().min(from.saturating_add(records));
        let portion = (from..to).map(|at| (offset_of(at), Arc::clone(&self.writer.log[at]))).collect();
        self.folded[shard] = to;
        self.shards[shard].handle(NOW, Input::Records(portion));
        while self.shards[shard].has_waiting() {
            self.shards[shard].handle(NOW, Input::GoOn);
        }
        while let Some(output) = self.shards[shard].poll_output() {
            let is_told = matches!(output, Output::Disconnected(_) | Output::Ended(_));
            assert!(is_told, "there is nothing to decide");
        }
    }

    /// All shards together are what a hub is that has folded everything at once.
    fn check(&self, before: &BTreeMap<String, Vec<SequenceId>>) {
        let mut whole =
            Shard::new(settings(), ShardId::WHOLE, self.writer.boot, Arc::new(MemoryBudget::new(usize::MAX)));
        let all = self.writer.log.iter().enumerate();
        let all = all.map(|(at, record)| (offset_of(at), Arc::clone(record))).collect();
        whole.handle(NOW, Input::Records(all));
        while whole.has_waiting() {
            whole.handle(NOW, Input::GoOn);
        }
        for hub in &self.shards {
            assert_eq!(hub_part(hub), hub_part(&whole));
        }
        assert_eq!(members(&self.shards), members(std::slice::from_ref(&whole)));
        assert_eq!(untold(&self.shards), untold(std::slice::from_ref(&whole)));
        let (mut restored, mut expected) = (state(&self.shards), state(&[whole]));
        for (id, (session, messages, _)) in &mut expected {
            // Acks that are in no record may be lost, but not come from nowhere.
            let Some((restored, restored_messages, _)) = restored.get_mut(id) else { continue };
            let acknowledged = session.unacknowledged.len().saturating_sub(restored.unacknowledged.len());
            let by_ack = session.unacknowledged[..acknowledged].iter().map(|(id, _)| *id);
            let had = before.get(id.as_str()).map_or(&[][..], Vec::as_slice);
            let most = self.acknowledged.get(id.as_str()).copied().unwrap_or_default();
            for lost in by_ack {
                assert!(lost <= most && !had.contains(&lost), "{lost} of {id} was not acknowledged");
            }
            session.unacknowledged.drain(..acknowledged);
            messages.drain(..acknowledged);
            assert_eq!(restored_messages, messages);
        }
        assert_eq!(restored, expected);
    }
}

fn ids(session: &SessionCheckpoint) -> Vec<SequenceId> {
    session.unacknowledged.iter().map(|(id, _)| *id).collect()
}

/// What belongs to no session: the offset, the hub's part, and the requests that are remembered.
fn hub_part(shard: &Shard) -> (Option<Offset>, HubCheckpoint, Vec<ExecutedRequest>) {
    let requests = [RequestKind::Plain, RequestKind::Repeatable].map(|kind| {
        let pages = shard.state.requests().pages(kind).iter();
        pages.map(|(_, request)| *request).collect::<Vec<_>>()
    });
    (shard.applied(), shard.state.to_checkpoint(), requests.concat())
}

fn state(shards: &[Shard]) -> State {
    let mut state = State::new();
    for hub in shards {
        for (key, session) in &hub.sessions {
            let outbox = session.outbox.lock();
            let messages: Vec<_> =
                outbox.unacknowledged().map(|(_, message)| message.to_checkpoint()).collect();
            let bytes: usize = outbox.unacknowledged().map(|(_, message)| message.content_bytes()).sum();
            assert_eq!(outbox.content_bytes(), bytes);
            drop(outbox);
            assert!(session.expires_at.is_none_or(|at| hub.timers.has(at, Timer::Expire(key))));
            let entry = (session.to_checkpoint(), messages, session.expires_at);
            assert_eq!(state.insert(session.identity.connection_id.to_string(), entry), None);
        }
        // Beside the sessions' own: when what was restored counts again.
        assert!((hub.sessions.len()..=hub.sessions.len() + 1).contains(&hub.timers.len()));
        let in_chunks: usize = hub.by_chunk.values().map(BTreeSet::len).sum();
        assert_eq!((in_chunks, hub.by_connection_id.len()), (hub.sessions.len(), hub.sessions.len()));
    }
    state
}

/// What the application is still to be told, in the order of connection ids.
fn untold(shards: &[Shard]) -> Vec<Disconnected> {
    let of_hub = |hub: &Shard| {
        let all = (0..CHUNKS).flat_map(|chunk| hub.untold.of_chunk(chunk)).cloned().collect::<Vec<_>>();
        assert_eq!(all.len(), hub.untold());
        all
    };
    let mut all: Vec<_> = shards.iter().flat_map(of_hub).collect();
    all.sort_unstable_by(|a, b| a.subject.identity.connection_id.cmp(&b.subject.identity.connection_id));
    all
}

fn members(shards: &[Shard]) -> BTreeMap<GroupName, BTreeSet<ConnectionId>> {
    let mut all: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
    for hub in shards {
        for (group, members) in &hub.groups {
            let ids = members.keys().map(|key| hub.sessions[*key].identity.connection_id.clone());
            all.entry(group.clone()).or_default().extend(ids);
        }
    }
    all
}
