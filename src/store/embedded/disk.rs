//! Files as the store uses them, with what a test has to be able to break: writes that a sync has not reached yet,
//! growth on a full disk, a sync that fails.
//!
//! Does not know what is in the files.

use std::fmt::Debug;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::store::StoreErrorCause;

/// Where files are.
pub(super) trait Disk: Debug + Send + Sync + 'static {
    /// A new and empty file, for its owner only; one that is there is emptied.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// A file that is there, for reading and writing.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// A file that is there, for reading.
    fn open_read_only(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// Gives a file another name. It is durable when the directory has been synced.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file. It is durable when the directory has been synced.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// A directory that is there. Whoever must not fail half-way for want of a descriptor opens it before he begins.
    fn open_directory(&self, path: &Path) -> io::Result<Arc<dyn DiskDirectory>>;
    /// Makes what has happened to the names in a directory durable.
    fn sync_directory(&self, path: &Path) -> io::Result<()> {
        self.open_directory(path)?.sync()
    }
}

/// An open directory.
pub(super) trait DiskDirectory: Debug + Send + Sync + 'static {
    /// Makes what has happened to the names in it durable.
    fn sync(&self) -> io::Result<()>;
}

/// An open file.
pub(super) trait DiskFile: Debug + Send + Sync + 'static {
    /// Its length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Fills `out` from an offset on; an error when the file is shorter.
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()>;
    /// Writes at an offset within the file.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Cuts it, or makes it longer: with zeros, and with the room on the disk that they need.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Makes its content durable.
    fn sync(&self) -> io::Result<()>;
}

/// The operating system's files.
#[derive(Debug)]
pub(super) struct SystemDisk;

impl Disk for SystemDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(true).mode(0o600).open(path)?;
        Ok(Arc::new(SystemFile(file)))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(SystemFile(OpenOptions::new().read(true).write(true).open(path)?)))
    }

    fn open_read_only(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(SystemFile(File::open(path)?)))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn open_directory(&self, path: &Path) -> io::Result<Arc<dyn DiskDirectory>> {
        Ok(Arc::new(SystemDirectory(File::open(path)?)))
    }
}

#[derive(Debug)]
struct SystemDirectory(File);

impl DiskDirectory for SystemDirectory {
    fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }
}

/// A disk of which one directory stays open: to make durable what happens to names in it takes no further descriptor.
#[derive(Debug)]
struct WithDirectory {
    disk: Arc<dyn Disk>,
    path: PathBuf,
    directory: Arc<dyn DiskDirectory>,
}

/// Keeps a directory of a disk open for as long as the result is there. The directory must not be removed meanwhile: what
/// is put in its place would be another one.
pub(super) fn with_directory(disk: Arc<dyn Disk>, path: &Path) -> io::Result<Arc<dyn Disk>> {
    let directory = disk.open_directory(path)?;
    Ok(Arc::new(WithDirectory { disk, path: path.to_owned(), directory }))
}

impl Disk for WithDirectory {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.create(path)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open(path)
    }

    fn open_read_only(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.disk.open_read_only(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn open_directory(&self, path: &Path) -> io::Result<Arc<dyn DiskDirectory>> {
        if path == self.path { Ok(Arc::clone(&self.directory)) } else { self.disk.open_directory(path) }
    }
}

#[derive(Debug)]
struct SystemFile(File);

impl DiskFile for SystemFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(out, offset)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let before = self.len()?;
        if len <= before {
            return self.0.set_len(len);
        }
        loop {
            match rustix::fs::fallocate(&self.0, FallocateFlags::empty(), before, len - before) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                // A file system without it; there a full disk is noticed when writing.
                Err(Errno::OPNOTSUPP | Errno::NOSYS) => return self.0.set_len(len),
                Err(error) => {
                    // What has been allocated so far would lie behind the end of the file, or be a part of it.
                    let _ = self.0.set_len(before);
                    return Err(error.into());
                }
            }
        }
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }
}

/// The cause of an operating system's error.
pub(super) fn io_cause(path: &Path, error: &io::Error) -> StoreErrorCause {
    let text = format!("{}: {error}", path.display());
    match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
            StoreErrorCause::ReadOnly(path.display().to_string())
        }
        _ if is_full(error) => StoreErrorCause::Full(text),
        _ => StoreErrorCause::Io(text),
    }
}

/// Whether an operation failed for want of room.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// The name under which a file is made before it gets its own.
pub(super) fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ASIDE_SUFFIX);
    PathBuf::from(name)
}

/// Ends the names of files that a stop left unfinished.
pub(super) const ASIDE_SUFFIX: &str = ".tmp";

/// Writes a small file so that it is there as a whole or not at all.
pub(super) fn write_aside(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> Result<(), StoreErrorCause> {
    let unfinished = aside(path);
    let write = || {
        let file = disk.create(&unfinished)?;
        file.set_len(bytes.len() as u64)?;
        file.write(0, bytes)?;
        file.sync()
    };
    write().map_err(|error| io_cause(path, &error))?;
    publish_aside(disk, path)
}

/// Gives a file that was made aside, and synced, its own name. Once it has that, a failure is fatal: nobody knows
/// whether the name will still be there after a loss of power. So the directory is opened before: to have no descriptor
/// for it is a failure after which nothing has changed.
pub(super) fn publish_aside(disk: &dyn Disk, path: &Path) -> Result<(), StoreErrorCause> {
    let Some(place) = path.parent() else {
        return disk.rename(&aside(path), path).map_err(|error| io_cause(path, &error));
    };
    let directory = disk.open_directory(place).map_err(|error| io_cause(place, &error))?;
    disk.rename(&aside(path), path).map_err(|error| io_cause(path, &error))?;
    directory.sync().map_err(|error| {
        StoreErrorCause::Fatal(format!("{}: the directory could not be synced: {error}", place.display()))
    })
}
