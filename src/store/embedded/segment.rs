//! One file of a hub's log: the groups from its first offset on.

use std::cell::Cell;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use oncewire_protocol::log::Offset;
use redb::{Database, ReadableDatabase as _, ReadableTable as _, TableDefinition};

use super::backend::FailureCell;
use super::disk::Disk;
use super::group::{self, GroupError};
use super::redb_file::{OpenOptions, RedbFile, damaged, definite, open_overlay, overlay, redb_cause};
use crate::store::{Portion, StoreError, StoreErrorCause};

/// Groups by the offset of their first record.
const LOG: TableDefinition<u64, &[u8]> = TableDefinition::new("log");

/// What redb may keep in memory of the segment that is written, in bytes.
const ACTIVE_CACHE_BYTES: usize = 16 * 1024 * 1024;
/// The same for one that is only read.
const SEALED_CACHE_BYTES: usize = 4 * 1024 * 1024;

const SUFFIX: &str = ".redb";
const NAME_DIGITS: usize = 20;

/// The file of the segment that begins at an offset.
pub(super) fn path(directory: &Path, base: Offset) -> PathBuf {
    directory.join(format!("{:0NAME_DIGITS$}{SUFFIX}", base.0))
}

/// Where the segment with a file name begins; none if it is no segment's name.
pub(super) fn base_of(name: &str) -> Option<Offset> {
    let digits = name.strip_suffix(SUFFIX)?;
    let is_number = digits.len() == NAME_DIGITS && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_number { digits.parse().ok().map(Offset) } else { None }
}

/// Whether a name that is no segment's may have been one.
pub(super) fn is_nearly_named(name: &str) -> bool {
    let digits = name.strip_suffix(SUFFIX).unwrap_or_default();
    base_of(name).is_none() && !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit())
}

/// How the segment that is written is kept open.
fn active(syncs: bool) -> OpenOptions {
    OpenOptions { cache_bytes: ACTIVE_CACHE_BYTES, syncs }
}

/// The segment that is written.
pub(super) struct ActiveSegment {
    /// Its first offset.
    pub(super) base: Offset,
    path: PathBuf,
    file: RedbFile,
}

impl ActiveSegment {
    /// Makes a new one.
    pub(super) fn create(
        disk: &dyn Disk,
        directory: &Path,
        base: Offset,
        syncs: bool,
    ) -> Result<Self, StoreError> {
        let path = path(directory, base);
        let file = RedbFile::create(disk, &path, active(syncs), |transaction| {
            transaction.open_table(LOG)?;
            Ok(())
        })?;
        Ok(Self { base, path, file })
    }

    /// Goes on with one that is there.
    pub(super) fn open(
        disk: &dyn Disk,
        directory: &Path,
        base: Offset,
        syncs: bool,
    ) -> Result<Self, StoreError> {
        let path = path(directory, base);
        let file = RedbFile::open(disk, &path, active(syncs))?;
        Ok(Self { base, path, file })
    }

    /// Adds groups in one commit. After an error the segment has to be dropped.
    pub(super) fn commit(&self, groups: &[(Offset, Vec<u8>)]) -> Result<(), StoreErrorCause> {
        let commit = || -> Result<(), redb::Error> {
            let transaction = self.file.database.begin_write()?;
            let mut table = transaction.open_table(LOG)?;
            for (first, bytes) in groups {
                table.insert(first.0, bytes.as_slice())?;
            }
            drop(table);
            Ok(transaction.commit()?)
        };
        commit().map_err(|error| self.file.cause(&self.path, error))
    }

    /// Its content.
    pub(super) fn contents(&self) -> Contents<'_> {
        Contents { path: &self.path, database: &self.file.database }
    }

    /// Leaves nothing but the file, and looks at it as at a sealed one. That takes no descriptor.
    pub(super) fn seal(self) -> Result<SealedSegment, StoreError> {
        let Self { path, file: RedbFile { database, file, .. }, .. } = self;
        // Whatever it still writes, it writes before somebody looks.
        drop(database);
        let database = overlay(file, &path, SEALED_CACHE_BYTES, false)?;
        Ok(SealedSegment { path, database })
    }

    /// Makes it durable, also where commits do not wait for that.
    pub(super) fn sync(&self) -> std::io::Result<()> {
        self.file.file.sync()
    }
}

/// A segment that is only read; its file never changes.
pub(super) struct SealedSegment {
    path: PathBuf,
    database: Database,
}

impl SealedSegment {
    /// Opens one. `checks` is whether all of it is checked first.
    pub(super) fn open(
        disk: &dyn Disk,
        directory: &Path,
        base: Offset,
        checks: bool,
    ) -> Result<Self, StoreError> {
        let path = path(directory, base);
        let database = open_overlay(disk, &path, SEALED_CACHE_BYTES, checks)?;
        Ok(Self { path, database })
    }

    /// Its content.
    pub(super) fn contents(&self) -> Contents<'_> {
        Contents { path: &self.path, database: &self.database }
    }
}

/// Groups as they are stored, each with the offset of its first record.
pub(super) type Groups = Vec<(Offset, Vec<u8>)>;

/// Makes a whole segment of groups. `next` gives them in order, some at a time, until it gives none; where it fails, so does
/// this.
pub(super) fn create_whole(
    disk: &dyn Disk,
    directory: &Path,
    base: Offset,
    next: impl Fn() -> Result<Groups, StoreError>,
) -> Result<(), StoreError> {
    let wrong = Cell::new(None);
    let created = RedbFile::create_compact(disk, &path(directory, base), active(true), |transaction| {
        let mut table = transaction.open_table(LOG)?;
        loop {
            match next() {
                Ok(groups) if groups.is_empty() => return Ok(()),
                Ok(groups) => {
                    for (first, stored) in groups {
                        table.insert(first.0, stored.as_slice())?;
                    }
                }
                Err(error) => {
                    wrong.set(Some(error));
                    return Ok(());
                }
            }
        }
    });
    wrong.take().map_or(Ok(()), Err)?;
    created.map(drop)
}

/// The groups of a segment.
pub(super) struct Contents<'a> {
    path: &'a Path,
    database: &'a Database,
}

impl Contents<'_> {
    /// The offset after its last record; none if it has no record.
    pub(super) fn end(&self) -> Result<Option<Offset>, StoreError> {
        let mut end = None;
        self.scan(|table| {
            if let Some((first, bytes)) = table.last()? {
                end = Some((first.value(), group::count(Offset(first.value()), bytes.value())));
            }
            Ok(())
        })?;
        let Some((first, records)) = end else { return Ok(None) };
        let records = records.map_err(|error| definite(self.damaged_group(Offset(first), &error)))?;
        Ok(Some(Offset(first + records)))
    }

    /// Whether a group begins at an offset.
    pub(super) fn contains(&self, first: Offset) -> Result<bool, StoreError> {
        let mut found = false;
        self.scan(|table| {
            found = table.get(first.0)?.is_some();
            Ok(())
        })?;
        Ok(found)
    }

    /// Records from one on and before another, about as many as `records_max` and not many more bytes than
    /// `bytes_max`.
    pub(super) fn read(
        &self,
        from: Offset,
        end: Offset,
        records_max: usize,
        bytes_max: usize,
    ) -> Result<Portion, StoreError> {
        let mut portion = Portion::new();
        let mut bytes_left = bytes_max;
        self.groups(from, |first, bytes| {
            let mut records = group::decode(first, bytes, from)?;
            records.retain(|(offset, _)| *offset < end);
            portion.append(&mut records);
            bytes_left = bytes_left.saturating_sub(bytes.len());
            let is_enough = portion.len() >= records_max || bytes_left == 0 || first >= end;
            Ok(if is_enough { ControlFlow::Break(()) } else { ControlFlow::Continue(()) })
        })?;
        Ok(portion)
    }

    /// Groups from the one that begins at an offset on and before another, as they are stored, of about so many bytes.
    pub(super) fn stored_groups(
        &self,
        from: Offset,
        end: Offset,
        bytes_max: usize,
    ) -> Result<Groups, StoreError> {
        let mut groups = Groups::new();
        let mut bytes = 0;
        self.groups(from, |first, stored| {
            if first >= from && first < end {
                bytes += stored.len();
                groups.push((first, stored.to_vec()));
            }
            Ok(if bytes >= bytes_max || first >= end {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            })
        })?;
        Ok(groups)
    }

    /// Visits groups in order, from the one that holds an offset on.
    pub(super) fn groups(
        &self,
        from: Offset,
        mut visit: impl FnMut(Offset, &[u8]) -> Result<ControlFlow<()>, GroupError>,
    ) -> Result<(), StoreError> {
        let mut wrong = None;
        self.scan(|table| {
            let begin =
                table.range(..=from.0)?.next_back().transpose()?.map_or(0, |(first, _)| first.value());
            for entry in table.range(begin..)? {
                let (first, bytes) = entry?;
                match visit(Offset(first.value()), bytes.value()) {
                    Ok(ControlFlow::Continue(())) => {}
                    Ok(ControlFlow::Break(())) => break,
                    Err(error) => {
                        wrong = Some(self.damaged_group(Offset(first.value()), &error));
                        break;
                    }
                }
            }
            Ok(())
        })?;
        wrong.map_or(Ok(()), |cause| Err(definite(cause)))
    }

    fn scan(
        &self,
        read: impl FnOnce(&redb::ReadOnlyTable<u64, &'static [u8]>) -> Result<(), redb::Error>,
    ) -> Result<(), StoreError> {
        let scan = || {
            let transaction = self.database.begin_read()?;
            read(&transaction.open_table(LOG)?)
        };
        scan().map_err(|error| definite(redb_cause(self.path, &FailureCell::default(), error)))
    }

    /// What is wrong with a group, and where.
    pub(super) fn damaged_group(&self, first: Offset, error: &GroupError) -> StoreErrorCause {
        match error {
            GroupError::UnknownVersion(version) => StoreErrorCause::UnknownVersion {
                place: format!("{}, group at offset {}", self.path.display(), first.0),
                found: u64::from(*version),
                known: u64::from(group::GROUP_VERSION),
            },
            _ => damaged(self.path, format!("group at offset {}: {error}", first.0)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_named_by_its_first_offset() {
        let directory = Path::new("hub");
        assert_eq!(path(directory, Offset(42)), Path::new("hub/00000000000000000042.redb"));
        assert_eq!(base_of("00000000000000000042.redb"), Some(Offset(42)));
        assert_eq!(base_of("18446744073709551615.redb"), Some(Offset(u64::MAX)));
        for other in ["meta.redb", "42.redb", "00000000000000000042.redb.tmp", "+0000000000000000042.redb"] {
            assert_eq!(base_of(other), None, "{other}");
        }
    }
}
