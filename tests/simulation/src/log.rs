//! A hub's log: records in a vector with a durable prefix, appends on their way into it, and checkpoints. It knows nothing
//! of sessions; what becomes of an append is drawn by the world and written on it.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use oncewire_protocol::driver::Appending;
use oncewire_protocol::log::{Body, Certainty, CheckpointChange, Offset, Record, RecordError};
use oncewire_protocol::wire::ConnectionId;

/// Who asked for an append.
#[derive(Debug)]
pub enum Appender {
    /// The process itself, for its `Booted` record.
    Boot,
    /// A shard.
    Shard(usize, Appending),
}

/// What becomes of an append.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// All of it lands.
    Lands,
    /// It fails for certain.
    Refused,
    /// It is reported as perhaps failed; this many of its records land now.
    InDoubt(usize),
    /// It is reported as perhaps failed; this many of its records land after so many milliseconds.
    Late(usize, u64),
}

impl Fate {
    /// What the appender is told, if it failed.
    pub fn failure(self) -> Option<Certainty> {
        match self {
            Self::Lands => None,
            Self::Refused => Some(Certainty::Definite),
            Self::InDoubt(_) | Self::Late(..) => Some(Certainty::Indefinite),
        }
    }
}

/// An append on its way.
#[derive(Debug)]
pub struct Append {
    /// Who asked.
    pub by: Appender,
    /// What for.
    pub records: Vec<Arc<Record>>,
    /// What becomes of it.
    pub fate: Fate,
}

#[derive(Debug)]
struct Stored {
    offset: Offset,
    record: Arc<Record>,
    bytes: Bytes,
}

/// The log of one hub. It outlives the gateway's processes.
#[derive(Debug, Default)]
pub struct Log {
    /// Which history this is; reconnection tokens name it.
    pub epoch: u64,
    /// Appends that are under way, oldest first.
    pub queue: VecDeque<Append>,
    /// A sync is under way.
    pub is_syncing: bool,
    stored: Vec<Stored>,
    /// Records before this index are trimmed: nobody may read them, but a backup may still have them.
    first: usize,
    checkpoints: Checkpoints,
    /// What there was before each change of checkpoints: the durable records, the first of them, the checkpoints.
    backups: Vec<(usize, usize, Checkpoints)>,
    durable: usize,
    next_offset: u64,
    keys: BTreeSet<(u128, u16, u64)>,
}

/// By key: up to where each covers the log, and its bytes.
type Checkpoints = BTreeMap<String, (Offset, Bytes)>;

impl Log {
    /// Puts a record at the end, `gap` offsets further than need be; tells whether it is the second copy of one that
    /// is there.
    pub fn land(&mut self, record: &Arc<Record>, gap: u64) -> bool {
        let offset = Offset(self.next_offset + gap);
        self.next_offset = offset.0 + 1;
        self.stored.push(Stored { offset, record: Arc::clone(record), bytes: record.encode() });
        let key = record.key.boot;
        !self.keys.insert((key.boot.0, key.shard, key.counter))
    }

    /// Whether a record proposed later by the same shard in the same boot is in the log.
    pub fn has_later(&self, record: &Record) -> bool {
        let key = record.key.boot;
        let later = (key.boot.0, key.shard, key.counter + 1)..=(key.boot.0, key.shard, u64::MAX);
        self.keys.range(later).next().is_some()
    }

    /// Makes everything durable that has landed.
    pub fn sync(&mut self) {
        self.is_syncing = false;
        self.durable = self.stored.len();
    }

    /// Whether something has landed that is not durable.
    pub fn needs_sync(&self) -> bool {
        self.durable < self.stored.len()
    }

    /// How many records are durable.
    pub fn durable(&self) -> usize {
        self.durable
    }

    /// How many records have landed.
    pub fn landed(&self) -> usize {
        self.stored.len()
    }

    /// The index of the first record that is not trimmed.
    pub fn first(&self) -> usize {
        self.first
    }

    /// All records that have landed are before it.
    pub fn end(&self) -> Offset {
        Offset(self.next_offset)
    }

    /// The index of the first record behind an offset.
    pub fn index_behind(&self, offset: Offset) -> usize {
        self.stored.partition_point(|stored| stored.offset <= offset)
    }

    /// The offset of a record, trimmed or not.
    pub fn offset_at(&self, index: usize) -> Option<Offset> {
        self.stored.get(index).map(|stored| stored.offset)
    }

    /// The record at an offset, if it is not trimmed.
    pub fn at(&self, offset: Offset) -> Option<&Record> {
        let at = self.stored.binary_search_by_key(&offset, |stored| stored.offset).ok()?;
        (at >= self.first).then(|| &*self.stored[at].record)
    }

    /// Forgets the records before an offset.
    pub fn trim(&mut self, before: Offset) {
        let at = self.stored.partition_point(|stored| stored.offset < before);
        self.first = self.first.max(at);
    }

    /// Stores checkpoints and deletes others.
    pub fn change_checkpoints(&mut self, changes: Vec<CheckpointChange>) {
        self.backups.push((self.durable, self.first, self.checkpoints.clone()));
        for change in changes {
            match change {
                CheckpointChange::Save { key, covers, bytes } => {
                    self.checkpoints.insert(key.to_string(), (covers, bytes));
                }
                CheckpointChange::Delete { key } => {
                    self.checkpoints.remove(&key.to_string());
                }
            }
        }
    }

    /// All checkpoints: key, up to where it covers the log, bytes.
    pub fn checkpoints(&self) -> impl Iterator<Item = (String, Offset, Bytes)> {
        self.checkpoints.iter().map(|(key, (covers, bytes))| (key.clone(), *covers, bytes.clone()))
    }

    /// The records between two indexes.
    pub fn read(&self, from: usize, to: usize) -> Vec<(Offset, Arc<Record>)> {
        self.stored[from..to].iter().map(|stored| (stored.offset, Arc::clone(&stored.record))).collect()
    }

    /// The sessions that it tells of, also where it is trimmed.
    pub fn opened(&self) -> impl Iterator<Item = &ConnectionId> {
        self.stored.iter().filter_map(|stored| match &stored.record.body {
            Body::Opened(opened) => Some(&opened.identity.connection_id),
            _ => None,
        })
    }

    /// Whether it says, up to an offset, that the application was told of a session's end.
    pub fn has_told(&self, connection_id: &ConnectionId, up_to: Offset) -> bool {
        let mut stored = self.stored.iter().take_while(|stored| stored.offset <= up_to);
        stored.any(|stored| match &stored.record.body {
            Body::Told { connection_ids } => connection_ids.contains(connection_id),
            _ => false,
        })
    }

    /// The process is gone, with every append that was under way. The first `kept` records are left.
    pub fn crash(&mut self, kept: usize) {
        self.queue.clear();
        self.is_syncing = false;
        self.stored.truncate(kept);
        // Only a backup is older than what is durable, and it has the checkpoints of its time.
        while self.durable > kept
            && let Some((durable, first, checkpoints)) = self.backups.pop()
        {
            (self.durable, self.first, self.checkpoints) = (durable, first, checkpoints);
        }
        self.durable = self.stored.len();
        let keys = self.stored.iter().map(|stored| stored.record.key.boot);
        self.keys = keys.map(|key| (key.boot.0, key.shard, key.counter)).collect();
    }

    /// Reads everything back from its bytes, as a new process does.
    ///
    /// # Errors
    /// A record does not decode.
    pub fn reopen(&mut self) -> Result<(), RecordError> {
        for stored in &mut self.stored {
            let read = Record::decode(stored.bytes.clone())?;
            if read != *stored.record {
                return Err(RecordError::Damaged("it reads back as another one".to_owned()));
            }
            stored.record = Arc::new(read);
        }
        Ok(())
    }
}
