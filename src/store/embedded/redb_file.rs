//! Opens the redb files of a hub, and says in the store's words what went wrong with them.

use std::path::Path;
use std::sync::Arc;

use oncewire_protocol::log::Certainty;
use redb::{Builder, Database, ReadableDatabase as _, TableDefinition, TableError};

use super::backend::{Failure, FailureCell, FileBackend, OverlayBackend};
use super::disk::{Disk, DiskFile, aside, io_cause, publish_aside};
use crate::store::{StoreError, StoreErrorCause};

/// The version of the files' layout that this build writes and reads.
pub(super) const LAYOUT_VERSION: u32 = 1;

/// What a file says about itself.
pub(super) const STATE: TableDefinition<&str, &[u8]> = TableDefinition::new("state");
const LAYOUT_KEY: &str = "layout";

/// An open redb file.
pub(super) struct RedbFile {
    /// What is in it.
    pub(super) database: Database,
    /// Its first failure.
    pub(super) failure: FailureCell,
    /// The file below.
    pub(super) file: Arc<dyn DiskFile>,
}

/// How a file is opened.
#[derive(Debug, Clone, Copy)]
pub(super) struct OpenOptions {
    /// What redb may keep of it in memory, in bytes.
    pub(super) cache_bytes: usize,
    /// Whether a commit waits for the disk.
    pub(super) syncs: bool,
}

impl RedbFile {
    /// Makes a new file: aside, filled by `fill`, and then under its own name.
    pub(super) fn create(
        disk: &dyn Disk,
        path: &Path,
        options: OpenOptions,
        fill: impl Fn(&redb::WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<Self, StoreError> {
        Self::create_with(disk, path, options, fill, |_| Ok(()))
    }

    /// The same, for a file that is to be no larger than its content needs: redb takes room in large steps.
    pub(super) fn create_compact(
        disk: &dyn Disk,
        path: &Path,
        options: OpenOptions,
        fill: impl Fn(&redb::WriteTransaction) -> Result<(), redb::Error>,
    ) -> Result<Self, StoreError> {
        Self::create_with(disk, path, options, fill, |database| {
            database.compact()?;
            Ok(())
        })
    }

    fn create_with(
        disk: &dyn Disk,
        path: &Path,
        options: OpenOptions,
        fill: impl Fn(&redb::WriteTransaction) -> Result<(), redb::Error>,
        finish: impl Fn(&mut Database) -> Result<(), redb::Error>,
    ) -> Result<Self, StoreError> {
        let unfinished = aside(path);
        let create = || {
            let file = disk.create(&unfinished).map_err(|error| io_cause(&unfinished, &error))?;
            let backend = FileBackend::new(Arc::clone(&file), options.syncs);
            let failure = backend.failure();
            let initialize = || -> Result<Database, redb::Error> {
                let mut database = builder(options.cache_bytes).create_with_backend(backend)?;
                let transaction = database.begin_write()?;
                transaction.open_table(STATE)?.insert(LAYOUT_KEY, &LAYOUT_VERSION.to_le_bytes()[..])?;
                fill(&transaction)?;
                transaction.commit()?;
                finish(&mut database)?;
                Ok(database)
            };
            let database = initialize().map_err(|error| redb_cause(&unfinished, &failure, error))?;
            publish_aside(disk, path)?;
            Ok(Self { database, failure, file })
        };
        create().map_err(|cause| {
            let _ = disk.remove(&unfinished);
            StoreError { certainty: Certainty::Definite, cause }
        })
    }

    /// Opens a file to go on writing, after checking all of it.
    pub(super) fn open(disk: &dyn Disk, path: &Path, options: OpenOptions) -> Result<Self, StoreError> {
        let open = || {
            let file = disk.open(path).map_err(|error| io_cause(path, &error))?;
            refuse_empty(path, &*file)?;
            let backend = FileBackend::new(Arc::clone(&file), options.syncs);
            let failure = backend.failure();
            let database = builder(options.cache_bytes)
                .set_check_integrity_on_open(true)
                .create_with_backend(backend)
                .map_err(|error| redb_cause(path, &failure, error))?;
            check_layout(path, &database)?;
            Ok(Self { database, failure, file })
        };
        open().map_err(definite)
    }

    /// The cause of an error that came from this file.
    pub(super) fn cause(&self, path: &Path, error: impl Into<redb::Error>) -> StoreErrorCause {
        redb_cause(path, &self.failure, error)
    }
}

/// Opens a file to read it, without changing it. `checks` is whether all of it is checked first.
pub(super) fn open_overlay(
    disk: &dyn Disk,
    path: &Path,
    cache_bytes: usize,
    checks: bool,
) -> Result<Database, StoreError> {
    let file = disk.open_read_only(path).map_err(|error| definite(io_cause(path, &error)))?;
    overlay(file, path, cache_bytes, checks)
}

/// The same for a file that is open already: that takes no descriptor.
pub(super) fn overlay(
    file: Arc<dyn DiskFile>,
    path: &Path,
    cache_bytes: usize,
    checks: bool,
) -> Result<Database, StoreError> {
    let open = || {
        refuse_empty(path, &*file)?;
        let backend = OverlayBackend::new(Arc::clone(&file)).map_err(|error| io_cause(path, &error))?;
        let database = builder(cache_bytes)
            .set_check_integrity_on_open(checks)
            .create_with_backend(backend)
            .map_err(|error| redb_cause(path, &FailureCell::default(), error))?;
        check_layout(path, &database)?;
        Ok(database)
    };
    open().map_err(definite)
}

fn builder(cache_bytes: usize) -> Builder {
    let mut builder = Builder::new();
    builder.set_cache_size(cache_bytes);
    builder
}

/// redb would make a new database of an empty file.
fn refuse_empty(path: &Path, file: &dyn DiskFile) -> Result<(), StoreErrorCause> {
    match file.len() {
        Ok(0) => Err(damaged(path, "the file is empty")),
        Ok(_) => Ok(()),
        Err(error) => Err(io_cause(path, &error)),
    }
}

fn check_layout(path: &Path, database: &Database) -> Result<(), StoreErrorCause> {
    let read = || -> Result<Option<Vec<u8>>, redb::Error> {
        let transaction = database.begin_read()?;
        let state = match transaction.open_table(STATE) {
            Err(TableError::TableDoesNotExist(_)) => return Ok(None),
            state => state?,
        };
        Ok(redb::ReadableTable::get(&state, LAYOUT_KEY)?.map(|value| value.value().to_vec()))
    };
    let stored = read().map_err(|error| redb_cause(path, &FailureCell::default(), error))?;
    match stored.as_deref().map(<[u8; 4]>::try_from) {
        Some(Ok(version)) if u32::from_le_bytes(version) == LAYOUT_VERSION => Ok(()),
        Some(Ok(version)) => Err(StoreErrorCause::UnknownVersion {
            place: path.display().to_string(),
            found: u32::from_le_bytes(version).into(),
            known: LAYOUT_VERSION.into(),
        }),
        _ => Err(damaged(path, "the file does not say its format version")),
    }
}

/// A failure after which nothing has changed.
pub(super) fn definite(cause: StoreErrorCause) -> StoreError {
    StoreError { certainty: Certainty::Definite, cause }
}

/// Stored bytes that are not what was written.
pub(super) fn damaged(path: &Path, what: impl ToString) -> StoreErrorCause {
    StoreErrorCause::Damaged { place: path.display().to_string(), what: what.to_string() }
}

/// The cause of redb's error, given the file's first failure.
pub(super) fn redb_cause(
    path: &Path,
    failure: &FailureCell,
    error: impl Into<redb::Error>,
) -> StoreErrorCause {
    let text = |detail: &str| format!("{}: {detail}", path.display());
    match failure.get() {
        Some(Failure::Full(detail)) => return StoreErrorCause::Full(text(&detail)),
        Some(Failure::Sync(detail)) => {
            return StoreErrorCause::Fatal(text(&format!("a sync failed: {detail}")));
        }
        Some(Failure::Other(detail)) => return StoreErrorCause::Io(text(&detail)),
        None => {}
    }
    match error.into() {
        redb::Error::Corrupted(detail) => damaged(path, detail),
        redb::Error::UpgradeRequired(version) => StoreErrorCause::UnknownVersion {
            place: path.display().to_string(),
            found: version.into(),
            known: REDB_FILE_VERSION,
        },
        redb::Error::Io(error) => match error.kind() {
            std::io::ErrorKind::InvalidData | std::io::ErrorKind::UnexpectedEof => damaged(path, error),
            _ => io_cause(path, &error),
        },
        error => StoreErrorCause::Io(text(&error.to_string())),
    }
}

/// The version of redb's own file format that it writes.
const REDB_FILE_VERSION: u64 = 3;
