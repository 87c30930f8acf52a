//! The segments of a hub's log: which there are, which one is written, and how one is replaced by the next.
//!
//! ```text
//!   sealed, only read            active, written
//! [0 .. 70,000) [70,000 .. 91,000) [91,000 ..
//! ```
//! A segment is sealed when it is full, when most of it has been trimmed, and when a commit into it has failed. Its file
//! never changes after that.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use oncewire_protocol::log::{Certainty, Offset};
use parking_lot::{Mutex, RwLock};

use super::disk::{Disk, io_cause};
use super::redb_file::definite;
use super::segment::{self, ActiveSegment, Groups, SealedSegment};
use crate::store::{Portion, StoreError, StoreErrorCause};
use crate::telemetry::Episode;

/// What one read from the disk returns, about.
const READ_RECORDS_MAX: usize = 1024;
const READ_BYTES_MAX: usize = 1024 * 1024;

/// How many sealed segments are kept open for reading.
const OPEN_SEALED_MAX: usize = 2;

/// All segments of a hub.
pub(super) struct Segments {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    syncs: bool,
    /// Where each segment begins; there is always at least one.
    bases: Mutex<BTreeSet<Offset>>,
    /// None after a failure, until the next commit.
    active: RwLock<Option<ActiveSegment>>,
    open_sealed: Mutex<Vec<(Offset, Arc<SealedSegment>)>>,
    /// While it is not zero, no segment is removed.
    pins: Mutex<usize>,
    commit_failures: Episode,
}

/// Keeps all segments that are there from being removed, as long as it lives.
pub(super) struct Pinned<'a>(&'a Segments);

impl Drop for Pinned<'_> {
    fn drop(&mut self) {
        *self.0.pins.lock() -= 1;
    }
}

impl Segments {
    /// Opens what is there, or makes the first segment; also returns where the log ends.
    pub(super) fn open(
        disk: Arc<dyn Disk>,
        directory: PathBuf,
        bases: BTreeSet<Offset>,
        syncs: bool,
    ) -> Result<(Self, Offset), StoreError> {
        let commit_failures = Episode::new("commits to a log failed", directory.display().to_string());
        let mut segments = Self {
            disk,
            directory,
            syncs,
            bases: Mutex::new(bases),
            active: RwLock::new(None),
            open_sealed: Mutex::default(),
            pins: Mutex::default(),
            commit_failures,
        };
        let last = segments.bases.lock().last().copied();
        let Some(last) = last else {
            segments.create(Offset(0))?;
            return Ok((segments, Offset(0)));
        };
        match ActiveSegment::open(&*segments.disk, &segments.directory, last, syncs) {
            Ok(active) => {
                let end = active.contents().end()?.unwrap_or(last);
                *segments.active.get_mut() = Some(active);
                Ok((segments, end))
            }
            // A full disk must not keep anybody from reading.
            Err(StoreError { cause: StoreErrorCause::Full(text), .. }) => {
                tracing::warn!(error = text, "a segment of the log cannot be written to");
                let end = segments.sealed(last)?.contents().end()?.unwrap_or(last);
                Ok((segments, end))
            }
            Err(error) => Err(error),
        }
    }

    /// Where the log begins.
    pub(super) fn first(&self) -> Offset {
        self.bases.lock().first().copied().unwrap_or_default()
    }

    /// Where the last segment begins.
    pub(super) fn active_base(&self) -> Offset {
        self.bases.lock().last().copied().unwrap_or_default()
    }

    /// Where the last segment begins, and the size of its file in bytes.
    pub(super) fn active_size(&self) -> (Offset, u64) {
        let base = self.active_base();
        let file = self.disk.open_read_only(&segment::path(&self.directory, base));
        (base, file.and_then(|file| file.len()).unwrap_or(0))
    }

    /// Adds groups, the first at the log's end, in one commit. A failure is certain, or fatal.
    pub(super) fn commit(&self, groups: &[(Offset, Vec<u8>)]) -> Result<(), StoreError> {
        let Some((first, _)) = groups.first() else { return Ok(()) };
        loop {
            self.ensure_active(*first)?;
            let active = self.active.read();
            let outcome = match &*active {
                Some(segment) => segment.commit(groups),
                None => Err(StoreErrorCause::Io("the log has no active segment".to_owned())),
            };
            drop(active);
            let Err(cause) = outcome else { return Ok(()) };
            let (is_in, was_empty) = self.abandon_active(*first, &cause)?;
            if is_in {
                return Ok(());
            }
            // What is left of a disk may do for a new segment, which is small, where the old one could not grow.
            if was_empty {
                return Err(definite(cause));
            }
        }
    }

    /// Begins a new segment at the log's end.
    pub(super) fn roll(&self, end: Offset) -> Result<(), StoreError> {
        if self.bases.lock().last() == Some(&end) {
            return Ok(());
        }
        self.create(end)
    }

    fn create(&self, base: Offset) -> Result<(), StoreError> {
        let segment = ActiveSegment::create(&*self.disk, &self.directory, base, self.syncs)?;
        // The old one is closed before anybody can take it for sealed.
        let mut active = self.active.write();
        *active = None;
        self.bases.lock().insert(base);
        *active = Some(segment);
        Ok(())
    }

    fn ensure_active(&self, end: Offset) -> Result<(), StoreError> {
        if self.active.read().is_some() {
            return Ok(());
        }
        if self.bases.lock().last() != Some(&end) {
            return self.create(end);
        }
        self.open_sealed.lock().retain(|(base, _)| *base != end);
        let segment = ActiveSegment::open(&*self.disk, &self.directory, end, self.syncs)?;
        *self.active.write() = Some(segment);
        Ok(())
    }

    /// Seals the active segment after a failed commit, and says whether the commit is in all the same and whether the
    /// segment was empty before it. What it says holds also after a loss of power.
    fn abandon_active(&self, first: Offset, cause: &StoreErrorCause) -> Result<(bool, bool), StoreError> {
        let fatal = |text: String| StoreError {
            certainty: Certainty::Indefinite,
            cause: StoreErrorCause::Fatal(text),
        };
        if let StoreErrorCause::Fatal(text) = cause {
            return Err(fatal(text.clone()));
        }
        let Some(segment) = self.active.write().take() else { return Ok((false, true)) };
        let base = segment.base;
        let synced = segment.sync();
        synced.map_err(|error| fatal(format!("{cause}; then a sync failed: {error}")))?;
        // redb has seen the failure: it writes nothing more, not even to close the file.
        let is_in = segment.seal().and_then(|sealed| sealed.contents().contains(first));
        let is_in = is_in.map_err(|error| fatal(format!("{cause}; then {error}")))?;
        if self.commit_failures.is_news(Instant::now()) {
            tracing::warn!(error = %cause, is_in, "commits to the log fail");
        } else {
            tracing::debug!(error = %cause, is_in, "a commit to the log failed");
        }
        Ok((is_in, base == first))
    }

    /// Records from one on and before another, some of them.
    pub(super) fn read(&self, from: Offset, end: Offset) -> Result<Portion, StoreError> {
        let mut base = self.base_for(from)?;
        loop {
            let portion = self.read_segment(base, from, end)?;
            if !portion.is_empty() {
                return Ok(portion);
            }
            // A segment without records, after a failure.
            let next = self.bases.lock().range(Offset(base.0 + 1)..).next().copied();
            match next {
                Some(next) if next < end && next <= from => base = next,
                _ => break,
            }
        }
        // It may have been trimmed while it was read.
        self.base_for(from)?;
        let what = format!("no record at offset {} in a log that ends at {}", from.0, end.0);
        let place = segment::path(&self.directory, base).display().to_string();
        Err(definite(StoreErrorCause::Damaged { place, what }))
    }

    fn read_segment(&self, base: Offset, from: Offset, end: Offset) -> Result<Portion, StoreError> {
        let active = self.active.read();
        if let Some(active) = active.as_ref().filter(|active| active.base == base) {
            return active.contents().read(from, end, READ_RECORDS_MAX, READ_BYTES_MAX);
        }
        drop(active);
        let read = self
            .sealed(base)
            .and_then(|sealed| sealed.contents().read(from, end, READ_RECORDS_MAX, READ_BYTES_MAX));
        // A file that is gone has been trimmed.
        if read.is_err() {
            self.base_for(from)?;
        }
        read
    }

    /// Keeps all segments that are there from being removed. What should have been meanwhile, a later trim removes.
    pub(super) fn pin(&self) -> Pinned<'_> {
        *self.pins.lock() += 1;
        Pinned(self)
    }

    /// Where the segments begin.
    pub(super) fn bases(&self) -> BTreeSet<Offset> {
        self.bases.lock().clone()
    }

    /// Groups of the segment that begins at `base`, from one on and before another, as many as one read returns.
    pub(super) fn groups(&self, base: Offset, from: Offset, end: Offset) -> Result<Groups, StoreError> {
        let active = self.active.read();
        if let Some(active) = active.as_ref().filter(|active| active.base == base) {
            return active.contents().stored_groups(from, end, READ_BYTES_MAX);
        }
        drop(active);
        self.sealed(base)?.contents().stored_groups(from, end, READ_BYTES_MAX)
    }

    fn base_for(&self, offset: Offset) -> Result<Offset, StoreError> {
        let bases = self.bases.lock();
        match bases.range(..=offset).next_back() {
            Some(base) => Ok(*base),
            None => {
                let first = bases.first().map_or(0, |first| first.0);
                Err(definite(StoreErrorCause::Trimmed { first }))
            }
        }
    }

    fn sealed(&self, base: Offset) -> Result<Arc<SealedSegment>, StoreError> {
        let mut open = self.open_sealed.lock();
        if let Some((_, segment)) = open.iter().find(|(known, _)| *known == base) {
            return Ok(Arc::clone(segment));
        }
        let segment = Arc::new(SealedSegment::open(&*self.disk, &self.directory, base, false)?);
        if open.len() == OPEN_SEALED_MAX {
            open.remove(0);
        }
        open.push((base, Arc::clone(&segment)));
        Ok(segment)
    }

    /// Whether there is a segment that holds nothing from an offset on.
    pub(super) fn has_before(&self, offset: Offset) -> bool {
        self.bases.lock().iter().nth(1).is_some_and(|second| *second <= offset)
    }

    /// Removes the segments that hold nothing from an offset on.
    pub(super) fn trim(&self, before: Offset) -> Result<(), StoreError> {
        loop {
            // Held meanwhile: nobody may begin to read what is being removed.
            let pins = self.pins.lock();
            if *pins > 0 {
                return Ok(());
            }
            let mut bases = self.bases.lock();
            let mut first_two = bases.iter();
            let (Some(&first), Some(&second)) = (first_two.next(), first_two.next()) else { return Ok(()) };
            if second > before {
                return Ok(());
            }
            bases.remove(&first);
            drop(bases);
            self.open_sealed.lock().retain(|(base, _)| *base != first);
            let path = segment::path(&self.directory, first);
            // Oldest first and one by one: what is left after a loss of power is the end of the log, without a gap.
            let removed = self.disk.remove(&path).and_then(|()| self.disk.sync_directory(&self.directory));
            if let Err(error) = removed {
                if path.exists() {
                    self.bases.lock().insert(first);
                }
                return Err(definite(io_cause(&path, &error)));
            }
        }
    }

    /// Closes the active segment in good order.
    pub(super) fn close(&self) {
        *self.active.write() = None;
        self.open_sealed.lock().clear();
    }

    /// Makes everything durable, also where commits do not wait for that.
    pub(super) fn sync_all(&self) -> Result<(), StoreError> {
        let bases: Vec<_> = self.bases.lock().iter().copied().collect();
        for base in bases {
            let path = segment::path(&self.directory, base);
            let synced = self.disk.open(&path).and_then(|file| file.sync());
            synced.map_err(|error| definite(io_cause(&path, &error)))?;
        }
        let synced = self.disk.sync_directory(&self.directory);
        synced.map_err(|error| definite(io_cause(&self.directory, &error)))
    }
}
