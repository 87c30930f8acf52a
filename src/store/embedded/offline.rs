//! Looks at a data directory that no process uses, without changing it; and begins a new epoch in one.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oncewire_protocol::log::{LogEpoch, Offset, Record};
use oncewire_protocol::wire::HubName;

use super::copying::{HubCopied, copy_closed};
use super::directory::{DataDirectory, segment_bases};
use super::disk::{Disk, SystemDisk};
use super::log::{abandon, make_copy};
use super::meta::{META_FILE, MetaContents};
use super::redb_file::{damaged, open_overlay};
use super::segment::{self, SealedSegment};
use super::{CHECK_CACHE_BYTES, group, kernel_boot_id};
use crate::store::{Checkpoint, StoreError, StoreErrorCause};

/// Gives hubs of a data directory a new epoch: sessions from before are refused (R12). To be done after a backup has been
/// restored that is no copy of this store's own making. Their logs are empty then, unless `keep` says that what belongs to
/// the hub stays: the next start begins the epoch then, and ends the sessions. `only` names one hub; otherwise it is done to
/// all. Returns the hubs.
///
/// # Errors
/// The directory is in use, of an unknown version, or cannot be written to; or there is no such hub. Hubs may have been
/// done by then; doing it again is right.
pub fn new_epoch(path: &Path, only: Option<&HubName>, keep: bool) -> Result<Vec<HubName>, StoreError> {
    let disk: Arc<dyn Disk> = Arc::new(SystemDisk);
    let directory = open_to_change(path, &disk)?;
    let hubs = directory.hubs_meant(only)?;
    let renew = if keep { make_copy } else { abandon };
    for hub in &hubs {
        renew(Arc::clone(&disk), &directory.hub_path(hub))?;
    }
    Ok(hubs)
}

/// Removes a hub of a data directory, whatever state it is in: its sessions, its messages, and all that it remembers.
///
/// # Errors
/// The directory is in use, of an unknown version, or cannot be written to; or there is no such hub.
pub fn remove_hub(path: &Path, hub: &HubName) -> Result<(), StoreError> {
    let directory = open_to_change(path, &(Arc::new(SystemDisk) as Arc<dyn Disk>))?;
    directory.hubs_meant(Some(hub))?;
    directory.remove_hub(hub)
}

/// Takes a directory that is there: one that was made by mistake has no hubs, and those that were meant stay as they are.
fn open_to_change(path: &Path, disk: &Arc<dyn Disk>) -> Result<DataDirectory, StoreError> {
    drop(DataDirectory::open_read_only(path, Arc::clone(disk))?);
    let directory = DataDirectory::open(path, Arc::clone(disk))?;
    directory.warn_of_strays()?;
    Ok(directory)
}

/// A data directory that is only read, locked meanwhile so that nobody writes in it.
#[derive(Debug)]
pub struct OfflineStore {
    directory: DataDirectory,
    disk: Arc<dyn Disk>,
}

/// What there is of a hub.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HubReport {
    /// Its log's epoch; none if that cannot be read.
    pub epoch: Option<LogEpoch>,
    /// Whether the log may hold what no sync has reached.
    pub is_unsynced: bool,
    /// Whether it is a copy, whose first start begins another epoch.
    pub is_copy: bool,
    /// Its segments, in order, those that can be read.
    pub segments: Vec<SegmentReport>,
    /// How many checkpoints it has.
    pub checkpoints: u64,
    /// The bytes of their keys and of what is stored under them.
    pub checkpoint_bytes: u64,
    /// The size of the file that they are in.
    pub meta_file_bytes: u64,
    /// Everything that is wrong, each with its file and place.
    pub damages: Vec<StoreErrorCause>,
}

/// What there is of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentReport {
    /// Its file.
    pub file: PathBuf,
    /// The offset of its first record.
    pub first: Offset,
    /// The offset after its last record.
    pub end: Offset,
    /// How many groups its records are in.
    pub groups: u64,
    /// The bytes of its records as they are stored.
    pub record_bytes: u64,
    /// The size of its file.
    pub file_bytes: u64,
}

/// What a reader of a hub comes upon, checkpoints before records.
#[derive(Debug)]
pub enum Found<'a> {
    /// A checkpoint and its key, in the order of the keys.
    Checkpoint(&'a str, Checkpoint),
    /// A record, in the order of the offsets.
    Record(Offset, Box<Record>),
    /// So many bytes of files have been read since the last time. They add up to about [`OfflineStore::file_bytes`].
    Progress(u64),
}

impl OfflineStore {
    /// Opens a directory that is there.
    ///
    /// # Errors
    /// It is in use, of an unknown version, or no data directory.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let disk: Arc<dyn Disk> = Arc::new(SystemDisk);
        let directory = DataDirectory::open_read_only(path, Arc::clone(&disk))?;
        directory.warn_of_strays()?;
        Ok(Self { directory, disk })
    }

    /// The hubs in it: all, or the one that is named.
    ///
    /// # Errors
    /// It cannot be read, or there is no such hub.
    pub fn hubs(&self, only: Option<&HubName>) -> Result<Vec<HubName>, StoreError> {
        self.directory.hubs_meant(only)
    }

    /// Makes a copy in a directory that is empty or not there. `told` is told what has become of each hub.
    ///
    /// # Errors
    /// Something can't be read or written, or it is no place for a copy. What was made is removed again.
    pub fn copy(&self, to: &Path, told: impl FnMut(&HubName, HubCopied)) -> Result<(), StoreError> {
        copy_closed(&self.disk, &self.directory, to, kernel_boot_id().as_deref(), told)
    }

    /// How many bytes a hub's files have.
    ///
    /// # Errors
    /// Its directory cannot be read.
    pub fn file_bytes(&self, hub: &HubName) -> Result<u64, StoreError> {
        let path = self.directory.hub_path(hub);
        let segments = segment_bases(&path)?.into_iter().map(|base| file_bytes(&segment::path(&path, base)));
        Ok(file_bytes(&path.join(META_FILE)) + segments.sum::<u64>())
    }

    /// Reads all that there is of a hub and checks every page, checkpoint, group and record of it. What is wrong is in
    /// the report, and reading goes on behind it.
    pub fn read(&self, hub: &HubName, mut visit: impl FnMut(Found<'_>)) -> HubReport {
        let path = self.directory.hub_path(hub);
        let mut report = HubReport {
            epoch: None,
            is_unsynced: false,
            is_copy: false,
            segments: Vec::new(),
            checkpoints: 0,
            checkpoint_bytes: 0,
            meta_file_bytes: file_bytes(&path.join(META_FILE)),
            damages: Vec::new(),
        };
        let has_segments = self.read_meta(&path, &mut report, &mut visit).unwrap_or_else(|error| {
            report.damages.push(error.cause);
            false
        });
        visit(Found::Progress(report.meta_file_bytes));
        let bases = match segment_bases(&path) {
            Ok(bases) => bases,
            Err(error) => {
                report.damages.push(error.cause);
                return report;
            }
        };
        if bases.is_empty() && has_segments {
            report.damages.push(damaged(&path, "all segments of the log are missing"));
        }
        let mut end = None;
        for base in bases {
            let file = segment::path(&path, base);
            if end.is_some_and(|end| end != base) {
                let what = "it does not begin where the segment before it ends";
                report.damages.push(damaged(&file, what));
            }
            let read = self.read_segment(&path, base, &mut report.damages, &mut visit);
            end = match read {
                Ok(segment) => {
                    let end = segment.end;
                    report.segments.push(segment);
                    Some(end)
                }
                Err(error) => {
                    report.damages.push(error.cause);
                    None
                }
            };
        }
        report
    }

    /// Returns whether there have to be segments.
    fn read_meta(
        &self,
        directory: &Path,
        report: &mut HubReport,
        visit: &mut impl FnMut(Found<'_>),
    ) -> Result<bool, StoreError> {
        let path = directory.join(META_FILE);
        let database = open_overlay(&*self.disk, &path, CHECK_CACHE_BYTES, true)?;
        let contents = MetaContents::new(&path, &database);
        report.epoch = Some(contents.epoch()?);
        report.is_unsynced = contents.unsynced_boot()?.is_some();
        report.is_copy = contents.is_copy()?;
        contents.scan_checkpoints("", |key, stored| {
            report.checkpoints += 1;
            report.checkpoint_bytes += (key.len() + stored.len()) as u64;
            match contents.decode(key, stored) {
                Ok(checkpoint) => visit(Found::Checkpoint(key, checkpoint)),
                Err(error) => report.damages.push(error.cause),
            }
            Ok(true)
        })?;
        contents.has_segments()
    }

    fn read_segment(
        &self,
        directory: &Path,
        base: Offset,
        damages: &mut Vec<StoreErrorCause>,
        visit: &mut impl FnMut(Found<'_>),
    ) -> Result<SegmentReport, StoreError> {
        let file = segment::path(directory, base);
        let file_bytes = file_bytes(&file);
        let segment = SealedSegment::open(&*self.disk, directory, base, true)?;
        let contents = segment.contents();
        let mut report =
            SegmentReport { file, first: base, end: base, groups: 0, record_bytes: 0, file_bytes };
        contents.groups(base, |first, stored| {
            if first != report.end {
                let what = format!("the group at offset {} does not follow the one before it", first.0);
                damages.push(damaged(&report.file, what));
            }
            report.groups += 1;
            let records = match group::split(first, stored) {
                Ok(records) => records,
                Err(error) => {
                    damages.push(contents.damaged_group(first, &error));
                    return Ok(ControlFlow::Continue(()));
                }
            };
            let mut offset = first;
            for bytes in records {
                match group::decode_record(offset, bytes) {
                    Ok(record) => visit(Found::Record(offset, Box::new(record))),
                    Err(error) => damages.push(contents.damaged_group(first, &error)),
                }
                report.record_bytes += bytes.len() as u64;
                offset.0 += 1;
            }
            report.end = offset;
            visit(Found::Progress(stored.len() as u64));
            Ok(ControlFlow::Continue(()))
        })?;
        visit(Found::Progress(file_bytes.saturating_sub(report.record_bytes)));
        Ok(report)
    }
}

fn file_bytes(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |metadata| metadata.len())
}
