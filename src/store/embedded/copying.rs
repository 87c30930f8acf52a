//! Makes a copy of a data directory, also while hubs of it are written.
//!
//! A copy is what a crash would have left at some moment, each hub at its own: the checkpoints of one moment, and all of the
//! log up to a later one. It never goes on as the original, which may have given ids since that the copy would give again
//! (R1): each hub's `meta.redb` is made with a stamp (`copy`), and the first start begins another epoch and ends the
//! sessions.
//!
//! ```text
//! copying ... lock ... hubs/HUB/meta.redb, with the stamp ... segments ... certificate ... format | copying is removed
//! ```
//! Without `format` a directory with `copying` in it can't be used. The secret of reconnection tokens is not copied: no
//! session of the original is a session of the copy.

use std::cell::Cell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use oncewire_protocol::log::Offset;
use oncewire_protocol::wire::HubName;

use super::directory::{
    self, DataDirectory, HUBS_DIRECTORY, begin_copy, create_directory, finish_copy, give_up_copy,
    segment_bases,
};
use super::disk::{Disk, io_cause, write_aside};
use super::log::EmbeddedLog;
use super::meta::{META_FILE, MetaContents};
use super::redb_file::{damaged, definite, open_overlay};
use super::segment::{self, Groups, SealedSegment};
use super::{CHECK_CACHE_BYTES, group};
use crate::store::{StoreError, StoreErrorCause};

/// What is read of a segment at a time, in bytes.
const READ_BYTES_MAX: usize = 1024 * 1024;

/// What has become of a hub in a copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HubCopied {
    /// It is in the copy, with so many records of its log.
    Whole(u64),
    /// It is damaged, and not in the copy.
    LeftOut(StoreErrorCause),
}

/// A copy that is being made.
pub(super) struct Copy<'a> {
    pub(super) disk: &'a dyn Disk,
    pub(super) source: &'a DataDirectory,
    pub(super) to: PathBuf,
    /// Set when nobody wants it any more.
    pub(super) is_given_up: &'a AtomicBool,
    /// Names this boot of the kernel.
    pub(super) boot_id: Option<&'a str>,
}

impl Copy<'_> {
    /// Makes the whole copy. `hub` makes that of one hub, with [`Copy::open_hub`] or [`Copy::closed_hub`].
    ///
    /// # Errors
    /// Nothing of it is left then, as far as that is possible; what is left can't be used.
    pub(super) fn make(
        &self,
        mut hub: impl FnMut(&Self, &HubName) -> Result<Option<u64>, StoreError>,
        mut told: impl FnMut(&HubName, HubCopied),
    ) -> Result<(), StoreError> {
        let is_new = self.check_target()?;
        let copied = self.fill(&mut hub, &mut told);
        if copied.is_err() {
            // It would take room that the original may need.
            let removed = give_up_copy(self.disk, &self.to);
            let removed = removed.and_then(|()| if is_new { fs::remove_dir(&self.to) } else { Ok(()) });
            if let Err(error) = removed {
                tracing::warn!(to = %self.to.display(), %error, "a copy that was not finished could not be removed");
            }
        }
        copied
    }

    fn fill(
        &self,
        hub: &mut impl FnMut(&Self, &HubName) -> Result<Option<u64>, StoreError>,
        told: &mut impl FnMut(&HubName, HubCopied),
    ) -> Result<(), StoreError> {
        begin_copy(self.disk, &self.to)?;
        for name in self.source.hubs()? {
            match hub(self, &name) {
                Ok(Some(records)) => told(&name, HubCopied::Whole(records)),
                Ok(None) => {}
                Err(StoreError {
                    cause: cause @ (StoreErrorCause::Damaged { .. } | StoreErrorCause::UnknownVersion { .. }),
                    ..
                }) => {
                    let path = self.hub_path(&name);
                    if path.exists() {
                        fs::remove_dir_all(&path).map_err(|error| definite(io_cause(&path, &error)))?;
                    }
                    told(&name, HubCopied::LeftOut(cause));
                }
                Err(error) => return Err(error),
            }
        }
        for (name, path) in self.source.certificate_files()? {
            self.copy_file(&path, &self.to.join(name))?;
        }
        self.sync(&self.to.join(HUBS_DIRECTORY))?;
        self.sync(&self.to)?;
        self.check_wanted()?;
        finish_copy(self.disk, &self.to)?;
        // It need not be durable under its name before it is there.
        self.to.parent().map_or(Ok(()), |parent| self.sync(parent))
    }

    /// Copies a hub whose log is open.
    pub(super) fn open_hub(&self, name: &HubName, log: &EmbeddedLog) -> Result<Option<u64>, StoreError> {
        let (meta, segments) = log.parts();
        let pinned = segments.pin();
        let directory = self.create_hub(name)?;
        meta.copy(self.disk, &directory)?;
        // Behind the checkpoints: these cover no more than there is.
        let end = log.end();
        let read = |base, from, until| segments.groups(base, from, until);
        let copied =
            self.copy_segments(&directory, &segments.bases().into_iter().collect::<Vec<_>>(), end, read);
        drop(pinned);
        log.trim_again();
        copied.map(Some)
    }

    /// Copies a hub whose files nobody has open; none if what it had is lost, so that it begins anew anyway.
    pub(super) fn closed_hub(&self, name: &HubName) -> Result<Option<u64>, StoreError> {
        let path = self.source.hub_path(name);
        let meta_path = path.join(META_FILE);
        if !meta_path.exists() {
            return Err(definite(damaged(&meta_path, "the file is missing")));
        }
        let database = open_overlay(self.disk, &meta_path, CHECK_CACHE_BYTES, true)?;
        let meta = MetaContents::new(&meta_path, &database);
        let unsynced_boot = meta.unsynced_boot()?;
        if unsynced_boot.is_some() && unsynced_boot.as_deref() != self.boot_id {
            return Ok(None);
        }
        let bases: Vec<_> = segment_bases(&path)?.into_iter().collect();
        let directory = self.create_hub(name)?;
        meta.copy(self.disk, &directory)?;
        let Some(&last) = bases.last() else {
            if meta.has_segments()? {
                return Err(definite(damaged(&path, "all segments of the log are missing")));
            }
            return Ok(Some(0));
        };
        let open = |base| SealedSegment::open(self.disk, &path, base, true);
        let end = open(last)?.contents().end()?.unwrap_or(last);
        let segment = Cell::new(None);
        let read = |base, from, until| {
            let opened = match segment.take() {
                Some((opened, of)) if of == base => opened,
                _ => open(base)?,
            };
            let groups = opened.contents().stored_groups(from, until, READ_BYTES_MAX);
            segment.set(Some((opened, base)));
            groups
        };
        self.copy_segments(&directory, &bases, end, read).map(Some)
    }

    /// Copies the log up to its end, each segment under the offset that it had.
    fn copy_segments(
        &self,
        directory: &Path,
        bases: &[Offset],
        end: Offset,
        read: impl Fn(Offset, Offset, Offset) -> Result<Groups, StoreError>,
    ) -> Result<u64, StoreError> {
        let ends = bases.iter().skip(1).copied().chain([end]);
        let first = bases.first().copied().unwrap_or(end);
        for (&base, until) in bases.iter().zip(ends).filter(|(base, _)| **base <= end) {
            let until = until.min(end);
            let next = Cell::new(base);
            let more = || {
                self.check_wanted()?;
                let groups = read(base, next.get(), until)?;
                for (first, stored) in &groups {
                    next.set(self.behind(directory, next.get(), *first, stored)?);
                }
                if groups.is_empty() && next.get() != until {
                    let what =
                        format!("it ends at offset {} and the next begins at {}", next.get().0, until.0);
                    return Err(definite(damaged(&segment::path(directory, base), what)));
                }
                Ok(groups)
            };
            segment::create_whole(self.disk, directory, base, more)?;
            self.sync_file(&segment::path(directory, base))?;
        }
        self.sync_file(&directory.join(META_FILE))?;
        self.sync(directory)?;
        Ok(end.0 - first.0)
    }

    /// Checks a group that has to begin at an offset; returns where the next one begins.
    fn behind(
        &self,
        directory: &Path,
        expected: Offset,
        first: Offset,
        stored: &[u8],
    ) -> Result<Offset, StoreError> {
        let wrong =
            |what: String| definite(damaged(directory, format!("group at offset {}: {what}", first.0)));
        if first != expected {
            return Err(wrong("it does not follow the one before it".to_owned()));
        }
        let records = group::count(first, stored).map_err(|error| wrong(error.to_string()))?;
        Ok(Offset(first.0 + records))
    }

    fn hub_path(&self, name: &HubName) -> PathBuf {
        self.to.join(HUBS_DIRECTORY).join(name.as_str())
    }

    fn create_hub(&self, name: &HubName) -> Result<PathBuf, StoreError> {
        self.check_wanted()?;
        let path = self.hub_path(name);
        create_directory(&path).map_err(|error| definite(io_cause(&path, &error)))?;
        Ok(path)
    }

    /// Copies a small file with its permissions.
    fn copy_file(&self, from: &Path, to: &Path) -> Result<(), StoreError> {
        let read = fs::read(from).and_then(|bytes| Ok((bytes, fs::metadata(from)?.permissions())));
        let (bytes, permissions) = read.map_err(|error| definite(io_cause(from, &error)))?;
        write_aside(self.disk, to, &bytes).map_err(definite)?;
        fs::set_permissions(to, permissions).map_err(|error| definite(io_cause(to, &error)))
    }

    fn sync_file(&self, path: &Path) -> Result<(), StoreError> {
        let synced = self.disk.open(path).and_then(|file| file.sync());
        synced.map_err(|error| definite(io_cause(path, &error)))
    }

    fn sync(&self, path: &Path) -> Result<(), StoreError> {
        self.disk.sync_directory(path).map_err(|error| definite(io_cause(path, &error)))
    }

    fn check_wanted(&self) -> Result<(), StoreError> {
        let is_given_up = self.is_given_up.load(Ordering::Relaxed);
        if is_given_up { Err(definite(StoreErrorCause::CopyGivenUp)) } else { Ok(()) }
    }

    /// Whether it is a place for a copy: not there, or empty, and not within the original. Makes it if it is not there, and
    /// tells whether it did.
    fn check_target(&self) -> Result<bool, StoreError> {
        let bad = |what: &str| {
            let (place, what) = (self.to.display().to_string(), what.to_owned());
            definite(StoreErrorCause::BadTarget { place, what })
        };
        let failed = |error: io::Error| bad(&error.to_string());
        let source = fs::canonicalize(self.source.path()).map_err(failed)?;
        if real_path(&self.to).map_err(failed)?.starts_with(source) {
            return Err(bad("it is within the directory that is to be copied"));
        }
        let is_new = match fs::metadata(&self.to) {
            Ok(found) if !found.is_dir() => return Err(bad("it is no directory")),
            Ok(_) if !directory::entries(&self.to)?.is_empty() => return Err(bad("it is not empty")),
            Ok(_) => false,
            Err(error) if error.kind() == io::ErrorKind::NotFound => true,
            Err(error) => return Err(failed(error)),
        };
        create_directory(&self.to).map_err(failed)?;
        Ok(is_new)
    }
}

/// Where a path leads to, also one that is not there yet.
fn real_path(path: &Path) -> io::Result<PathBuf> {
    match fs::canonicalize(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) if parent.as_os_str().is_empty() => {
                Ok(fs::canonicalize(".")?.join(name))
            }
            (Some(parent), Some(name)) => Ok(real_path(parent)?.join(name)),
            _ => Err(error),
        },
        real => real,
    }
}

/// Copies a directory that nobody uses but whoever holds it.
pub(super) fn copy_closed(
    disk: &Arc<dyn Disk>,
    source: &DataDirectory,
    to: &Path,
    boot_id: Option<&str>,
    told: impl FnMut(&HubName, HubCopied),
) -> Result<(), StoreError> {
    let is_given_up = AtomicBool::new(false);
    let copy = Copy { disk: &**disk, source, to: to.to_owned(), is_given_up: &is_given_up, boot_id };
    copy.make(|copy, name| copy.closed_hub(name), told)
}
