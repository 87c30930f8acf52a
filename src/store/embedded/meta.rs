//! `meta.redb`: what a hub keeps beside its log. Its epoch, whether history may be lost with the next loss of power,
//! and its checkpoints.
//!
//! It is always synced, whatever the hub's durability. Room that deleted checkpoints had is used again; a file that
//! has become much larger than its content is written anew, and at rest one that is somewhat larger.

use std::cell::Cell;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oncewire_protocol::log::{Certainty, LogEpoch, Offset, Time};
use parking_lot::{Mutex, RwLock};
use redb::{Database, ReadableDatabase as _, ReadableTable as _, Table, WriteTransaction};

use super::backend::FailureCell;
use super::checkpoints::{self, CHECKPOINT_VERSION, CHECKPOINTS, CheckpointError};
use super::disk::{Disk, DiskFile};
use super::redb_file::{OpenOptions, RedbFile, STATE, damaged, definite, open_overlay, overlay, redb_cause};
use crate::store::{Checkpoint, CheckpointChange, StoreError, StoreErrorCause};

/// The file's name in its hub's directory.
pub(super) const META_FILE: &str = "meta.redb";

/// What redb may keep of it in memory, in bytes.
const CACHE_BYTES: usize = 8 * 1024 * 1024;
const OPTIONS: OpenOptions = OpenOptions { cache_bytes: CACHE_BYTES, syncs: true };

/// A file that is larger than it should be.
#[derive(Debug, Clone, Copy)]
struct TooLarge {
    /// Up to this size it never is, in bytes.
    file_bytes_min: u64,
    /// How large it is at least, in percent of its content.
    content_percent: u64,
}

/// While checkpoints are being written. A redb page is up to twice its content, and a file up to twice its pages; and what
/// a round replaces is used again in the next one.
const TOO_LARGE_IN_USE: TooLarge = TooLarge { file_bytes_min: 16 * 1024 * 1024, content_percent: 600 };
/// While nothing is written. One that has just been written anew in the order of its keys is smaller, as far as what
/// remains of each page, or of the power of two of pages that a large part takes, is a third on average.
const TOO_LARGE_AT_REST: TooLarge = TooLarge { file_bytes_min: 4 * 1024 * 1024, content_percent: 150 };

/// The log's epoch: 16 bytes, u128 LE.
const EPOCH_KEY: &str = "epoch";
/// The kernel's boot id under which the log may hold what no sync has reached; absent when there is no such thing.
const UNSYNCED_BOOT_KEY: &str = "unsynced-boot";
/// There while the log is a copy that has not begun its own epoch; empty.
const COPY_KEY: &str = "copy";
const SEGMENTS_KEY: &str = "segments";
/// Since when the hub has had no session and no use, in ms, and where the log ended then; both u64 LE.
const EMPTY_KEY: &str = "empty";
/// How many changes of checkpoints there have been, u64 LE: tells whether one whose commit failed is in.
const CHANGES_KEY: &str = "changes";

type StateTable<'a> = Table<'a, &'static str, &'static [u8]>;

/// An open `meta.redb`.
pub(super) struct Meta {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    epoch: Mutex<LogEpoch>,
    /// None after a failure, until it can be opened again.
    file: RwLock<Option<RedbFile>>,
    sizes: Mutex<Sizes>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Sizes {
    /// Bytes of all keys and checkpoints.
    content_bytes: u64,
    changes: u64,
}

impl Meta {
    /// Opens a hub's, or makes it with a new epoch.
    pub(super) fn open(disk: Arc<dyn Disk>, directory: &Path) -> Result<Self, StoreError> {
        let path = directory.join(META_FILE);
        if !path.exists() {
            return Self::create(disk, directory);
        }
        match RedbFile::open(&*disk, &path, OPTIONS) {
            Ok(file) => Self::with(disk, path, Some(file)),
            // A full disk must not keep anybody from reading.
            Err(StoreError { cause: StoreErrorCause::Full(text), .. }) => {
                tracing::warn!(error = text, "checkpoints cannot be written");
                Self::with(disk, path, None)
            }
            Err(error) => Err(error),
        }
    }

    /// Makes one with a new epoch, in place of one that is there.
    pub(super) fn create(disk: Arc<dyn Disk>, directory: &Path) -> Result<Self, StoreError> {
        let path = directory.join(META_FILE);
        let epoch: u128 = rand::random();
        let file = RedbFile::create(&*disk, &path, OPTIONS, |transaction| {
            let mut state = transaction.open_table(STATE)?;
            state.insert(EPOCH_KEY, &epoch.to_le_bytes()[..])?;
            state.insert(CHANGES_KEY, &0_u64.to_le_bytes()[..])?;
            transaction.open_table(CHECKPOINTS)?;
            Ok(())
        })?;
        Self::with(disk, path, Some(file))
    }

    fn with(disk: Arc<dyn Disk>, path: PathBuf, file: Option<RedbFile>) -> Result<Self, StoreError> {
        let epoch = Mutex::new(LogEpoch(0));
        let meta = Self { disk, path, epoch, file: RwLock::new(file), sizes: Mutex::default() };
        let (epoch, sizes) = meta.read(|contents| Ok((contents.epoch()?, contents.sizes()?)))?;
        *meta.epoch.lock() = epoch;
        *meta.sizes.lock() = sizes;
        Ok(meta)
    }

    /// The log's epoch.
    pub(super) fn epoch(&self) -> LogEpoch {
        *self.epoch.lock()
    }

    /// Begins another epoch, in which the log is a copy no more.
    pub(super) fn begin_epoch(&self) -> Result<(), StoreError> {
        let epoch: u128 = rand::random();
        self.commit(|transaction| {
            let mut state = transaction.open_table(STATE)?;
            state.insert(EPOCH_KEY, &epoch.to_le_bytes()[..])?;
            state.remove(COPY_KEY)?;
            Ok(0)
        })?;
        *self.epoch.lock() = LogEpoch(epoch);
        Ok(())
    }

    /// Says that the log is a copy.
    pub(super) fn set_copy(&self) -> Result<(), StoreError> {
        self.commit(|transaction| {
            transaction.open_table(STATE)?.insert(COPY_KEY, &[][..])?;
            Ok(0)
        })
    }

    /// Says that the log has segments, and will have one from now on.
    pub(super) fn set_has_segments(&self) -> Result<(), StoreError> {
        self.commit(|transaction| {
            transaction.open_table(STATE)?.insert(SEGMENTS_KEY, &[][..])?;
            Ok(0)
        })
    }

    /// Says since when the hub has had no session and no use, and where the log ends.
    pub(super) fn set_empty(&self, since: Time, end: Offset) -> Result<(), StoreError> {
        self.commit(|transaction| {
            let value = [since.0.to_le_bytes(), end.0.to_le_bytes()].concat();
            transaction.open_table(STATE)?.insert(EMPTY_KEY, value.as_slice())?;
            Ok(0)
        })
    }

    /// Makes a file with all that is in it at one moment, as that of a copy.
    pub(super) fn copy(&self, disk: &dyn Disk, directory: &Path) -> Result<(), StoreError> {
        self.read(|contents| contents.copy(disk, directory))
    }

    /// Reads it, also while it cannot be written.
    pub(super) fn read<T>(
        &self,
        read: impl FnOnce(&MetaContents<'_>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let file = self.file.read();
        if let Some(file) = &*file {
            return read(&MetaContents { path: &self.path, database: &file.database });
        }
        let database = open_overlay(&*self.disk, &self.path, CACHE_BYTES, false)?;
        read(&MetaContents { path: &self.path, database: &database })
    }

    /// Says from now on under which kernel's boot there is something that no sync has reached; none when there is
    /// nothing.
    pub(super) fn set_unsynced_boot(&self, boot_id: Option<&str>) -> Result<(), StoreError> {
        self.commit(|transaction| {
            let mut state = transaction.open_table(STATE)?;
            match boot_id {
                Some(boot_id) => state.insert(UNSYNCED_BOOT_KEY, boot_id.as_bytes())?,
                None => state.remove(UNSYNCED_BOOT_KEY)?,
            };
            Ok(0)
        })
    }

    /// Makes changes, all or none.
    pub(super) fn change(&self, changes: &[CheckpointChange]) -> Result<(), StoreError> {
        if changes.is_empty() {
            return Ok(());
        }
        self.commit(|transaction| {
            let mut table = transaction.open_table(CHECKPOINTS)?;
            let mut grown_bytes = 0_i64;
            for change in changes {
                let (key, before) = match change {
                    CheckpointChange::Save { key, covers, bytes } => {
                        let stored = checkpoints::encode(key, *covers, bytes);
                        grown_bytes += content_bytes(key, stored.len()) as i64;
                        (key, table.insert(key.as_str(), stored.as_slice())?)
                    }
                    CheckpointChange::Delete { key } => (key, table.remove(key.as_str())?),
                };
                if let Some(before) = before {
                    grown_bytes -= content_bytes(key, before.value().len()) as i64;
                }
            }
            Ok(grown_bytes)
        })?;
        // While somebody reads, it waits for the next change.
        self.rewrite_if(TOO_LARGE_IN_USE).map(drop)
    }

    /// Gives back room that the content does not need: for when nothing is written.
    /// False if somebody reads meanwhile, and nothing was done.
    pub(super) fn shrink_at_rest(&self) -> Result<bool, StoreError> {
        self.rewrite_if(TOO_LARGE_AT_REST)
    }

    /// `fill` says by how many bytes the content has grown.
    fn commit(&self, fill: impl Fn(&WriteTransaction) -> Result<i64, redb::Error>) -> Result<(), StoreError> {
        self.reopen_after_failure()?;
        let changes = self.sizes.lock().changes + 1;
        let guard = self.file.read();
        let Some(file) = &*guard else {
            return Err(definite(StoreErrorCause::Io(format!("{} is closed", self.path.display()))));
        };
        let commit = || -> Result<i64, redb::Error> {
            let transaction = file.database.begin_write()?;
            let grown_bytes = fill(&transaction)?;
            let mut state: StateTable<'_> = transaction.open_table(STATE)?;
            state.insert(CHANGES_KEY, &changes.to_le_bytes()[..])?;
            drop(state);
            transaction.commit()?;
            Ok(grown_bytes)
        };
        match commit() {
            Ok(grown_bytes) => {
                let mut sizes = self.sizes.lock();
                sizes.changes = changes;
                sizes.content_bytes = sizes.content_bytes.saturating_add_signed(grown_bytes);
                Ok(())
            }
            Err(error) => {
                let cause = file.cause(&self.path, error);
                let file = Arc::clone(&file.file);
                let synced = file.sync();
                drop(guard);
                *self.file.write() = None;
                self.resolve(cause, file, synced, changes)
            }
        }
    }

    /// Finds out whether a commit that failed is in all the same.
    fn resolve(
        &self,
        cause: StoreErrorCause,
        file: Arc<dyn DiskFile>,
        synced: std::io::Result<()>,
        changes: u64,
    ) -> Result<(), StoreError> {
        let fatal = |cause| StoreError { certainty: Certainty::Indefinite, cause };
        if matches!(cause, StoreErrorCause::Fatal(_)) {
            return Err(fatal(cause));
        }
        if let Err(error) = synced {
            return Err(fatal(StoreErrorCause::Fatal(format!(
                "{}: a sync failed: {error}",
                self.path.display()
            ))));
        }
        // By the file that was open: it takes no descriptor to find out.
        let stored = overlay(file, &self.path, CACHE_BYTES, false)
            .and_then(|database| MetaContents::new(&self.path, &database).changes());
        match stored {
            Ok(stored) if stored >= changes => Ok(()),
            Ok(_) => Err(definite(cause)),
            Err(error) => Err(fatal(StoreErrorCause::Fatal(format!("{cause}; then {error}")))),
        }
    }

    fn reopen_after_failure(&self) -> Result<(), StoreError> {
        if self.file.read().is_some() {
            return Ok(());
        }
        let file = RedbFile::open(&*self.disk, &self.path, OPTIONS)?;
        *self.sizes.lock() = MetaContents::new(&self.path, &file.database).sizes()?;
        *self.file.write() = Some(file);
        Ok(())
    }

    /// Writes the file anew when most of it is unused. A failure leaves it as it is, but for one after which nobody knows
    /// which of both has the name.
    fn rewrite_if(&self, too_large: TooLarge) -> Result<bool, StoreError> {
        // Somebody who reads all checkpoints may take his time.
        let Some(mut guard) = self.file.try_write() else { return Ok(false) };
        let Some(file) = &*guard else { return Ok(true) };
        let file_bytes = file.file.len().unwrap_or(0);
        let enough_bytes = self.sizes.lock().content_bytes.saturating_mul(too_large.content_percent) / 100;
        if file_bytes < too_large.file_bytes_min.max(enough_bytes) {
            return Ok(true);
        }
        let rewritten = RedbFile::create_compact(&*self.disk, &self.path, OPTIONS, |transaction| {
            let reading = file.database.begin_read()?;
            let mut state = transaction.open_table(STATE)?;
            for entry in reading.open_table(STATE)?.iter()? {
                let (key, value) = entry?;
                state.insert(key.value(), value.value())?;
            }
            let mut checkpoints = transaction.open_table(CHECKPOINTS)?;
            for entry in reading.open_table(CHECKPOINTS)?.iter()? {
                let (key, value) = entry?;
                checkpoints.insert(key.value(), value.value())?;
            }
            Ok(())
        });
        match rewritten {
            Ok(rewritten) => *guard = Some(rewritten),
            Err(error) if error.is_fatal() => {
                *guard = None;
                return Err(error);
            }
            Err(error) => {
                tracing::warn!(%error, "a file of checkpoints is larger than it has to be and could not be written anew");
            }
        }
        Ok(true)
    }

    /// Closes it in good order; reading goes on.
    pub(super) fn close(&self) {
        *self.file.write() = None;
    }
}

fn content_bytes(key: &str, stored_len: usize) -> u64 {
    (key.len() + stored_len) as u64
}

/// What is in a `meta.redb`.
pub(super) struct MetaContents<'a> {
    path: &'a Path,
    database: &'a Database,
}

impl<'a> MetaContents<'a> {
    pub(super) fn new(path: &'a Path, database: &'a Database) -> Self {
        Self { path, database }
    }

    pub(super) fn epoch(&self) -> Result<LogEpoch, StoreError> {
        let stored = self.state(EPOCH_KEY)?.and_then(|bytes| bytes.try_into().ok());
        let epoch = stored.map(|bytes| LogEpoch(u128::from_le_bytes(bytes)));
        epoch.ok_or_else(|| definite(damaged(self.path, "the epoch is missing")))
    }

    /// Under which kernel's boot there is something that no sync has reached.
    pub(super) fn unsynced_boot(&self) -> Result<Option<String>, StoreError> {
        let stored = self.state(UNSYNCED_BOOT_KEY)?;
        Ok(stored.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Whether the log is a copy that has not begun its own epoch.
    pub(super) fn is_copy(&self) -> Result<bool, StoreError> {
        Ok(self.state(COPY_KEY)?.is_some())
    }

    /// Whether the log has had a segment: then it has one still.
    pub(super) fn has_segments(&self) -> Result<bool, StoreError> {
        Ok(self.state(SEGMENTS_KEY)?.is_some())
    }

    /// Since when the hub has had no session and no use, if the log still ends there.
    pub(super) fn empty_since(&self, end: Offset) -> Result<Option<Time>, StoreError> {
        let Some(stored) = self.state(EMPTY_KEY)? else { return Ok(None) };
        let Some((since, ended)) = stored.split_first_chunk() else { return Ok(None) };
        Ok((ended == end.0.to_le_bytes()).then_some(Time(u64::from_le_bytes(*since))))
    }

    /// Makes a file with all that is in it at one moment, as that of a copy. What it says of syncs does not hold there.
    pub(super) fn copy(&self, disk: &dyn Disk, directory: &Path) -> Result<(), StoreError> {
        let wrong = Cell::new(None);
        let reading = self.database.begin_read().map_err(|error| self.failed(error.into()))?;
        let copied = RedbFile::create_compact(disk, &directory.join(META_FILE), OPTIONS, |transaction| {
            let mut state = transaction.open_table(STATE)?;
            state.insert(COPY_KEY, &[][..])?;
            let kept = reading.open_table(STATE)?;
            for key in [EPOCH_KEY, CHANGES_KEY] {
                if let Some(value) = kept.get(key)? {
                    state.insert(key, value.value())?;
                }
            }
            let mut checkpoints = transaction.open_table(CHECKPOINTS)?;
            for entry in reading.open_table(CHECKPOINTS)?.iter()? {
                let (key, stored) = entry?;
                if let Err(error) = self.decode(key.value(), stored.value()) {
                    wrong.set(Some(error));
                    break;
                }
                checkpoints.insert(key.value(), stored.value())?;
            }
            Ok(())
        });
        wrong.take().map_or(Ok(()), Err)?;
        copied.map(drop)
    }

    fn sizes(&self) -> Result<Sizes, StoreError> {
        let mut sizes = Sizes { content_bytes: 0, changes: self.changes()? };
        self.scan_checkpoints("", |key, stored| {
            sizes.content_bytes += content_bytes(key, stored.len());
            Ok(true)
        })?;
        Ok(sizes)
    }

    fn changes(&self) -> Result<u64, StoreError> {
        let stored = self.state(CHANGES_KEY)?.and_then(|bytes| bytes.try_into().ok());
        let changes = stored.map(u64::from_le_bytes);
        changes.ok_or_else(|| definite(damaged(self.path, "the number of changes is missing")))
    }

    fn state(&self, key: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let read = || -> Result<_, redb::Error> {
            let state = self.database.begin_read()?.open_table(STATE)?;
            Ok(state.get(key)?.map(|value| value.value().to_vec()))
        };
        read().map_err(|error| self.failed(error))
    }

    /// Visits the checkpoints whose keys begin with a prefix, in order, until `visit` says `false`.
    pub(super) fn scan_checkpoints(
        &self,
        prefix: &str,
        mut visit: impl FnMut(&str, &[u8]) -> Result<bool, StoreError>,
    ) -> Result<(), StoreError> {
        let mut outcome = Ok(());
        let mut scan = || -> Result<(), redb::Error> {
            let table = self.database.begin_read()?.open_table(CHECKPOINTS)?;
            for entry in table.range::<&str>((Bound::Included(prefix), Bound::Unbounded))? {
                let (key, stored) = entry?;
                if !key.value().starts_with(prefix) {
                    break;
                }
                match visit(key.value(), stored.value()) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => {
                        outcome = Err(error);
                        break;
                    }
                }
            }
            Ok(())
        };
        scan().map_err(|error| self.failed(error))?;
        outcome
    }

    pub(super) fn decode(&self, key: &str, stored: &[u8]) -> Result<Checkpoint, StoreError> {
        checkpoints::decode(key, stored).map_err(|error| {
            definite(match error {
                CheckpointError::Damaged => damaged(self.path, format!("checkpoint {key:?} is damaged")),
                CheckpointError::UnknownVersion(version) => StoreErrorCause::UnknownVersion {
                    place: format!("{}, checkpoint {key:?}", self.path.display()),
                    found: version.into(),
                    known: CHECKPOINT_VERSION.into(),
                },
            })
        })
    }

    fn failed(&self, error: redb::Error) -> StoreError {
        definite(redb_cause(self.path, &FailureCell::default(), error))
    }
}
