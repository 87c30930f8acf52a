//! The data directory: who may use it, what version it is of, which hubs it has, and the secret it keeps.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oncewire_protocol::log::Offset;
use oncewire_protocol::wire::HubName;

use super::disk::{ASIDE_SUFFIX, Disk, aside, write_aside};
use super::meta::META_FILE;
use super::segment;
use super::table::{damaged, definite, io_cause};
use crate::store::{StoreError, StoreErrorCause};

const LOCK_FILE: &str = "lock";
const FORMAT_FILE: &str = "format";
const SECRET_FILE: &str = "reconnection-secret";
const HUBS_DIRECTORY: &str = "hubs";

/// The version of the directory's layout that this build writes and reads.
const DIRECTORY_VERSION: u64 = 1;

const SECRET_BYTES: usize = 32;

/// A data directory that this process has for itself until it drops it.
#[derive(Debug)]
pub(super) struct DataDirectory {
    path: PathBuf,
    disk: Arc<dyn Disk>,
    /// Locked; the operating system unlocks it when the process ends, in whatever way.
    lock: File,
}

impl DataDirectory {
    /// Takes a directory to write in, made if there is none.
    pub(super) fn open(path: &Path, disk: Arc<dyn Disk>) -> Result<Self, StoreError> {
        let wrong = |error: io::Error| definite(io_cause(path, &error));
        create_directory(path).map_err(wrong)?;
        let mut options = OpenOptions::new();
        let lock_path = path.join(LOCK_FILE);
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&lock_path);
        let lock = lock(path, file.map_err(wrong)?)?;
        let directory = Self { path: path.to_owned(), disk, lock };
        directory.check_format(true)?;
        create_directory(&path.join(HUBS_DIRECTORY)).map_err(wrong)?;
        // Its own only: the directory may hold other things as well.
        for file in [FORMAT_FILE, SECRET_FILE] {
            let unfinished = aside(&path.join(file));
            if unfinished.exists() {
                directory.disk.remove(&unfinished).map_err(wrong)?;
            }
        }
        directory.disk.sync_directory(path).map_err(wrong)?;
        Ok(directory)
    }

    /// Takes a directory that is there to read in it, while nobody writes.
    pub(super) fn open_read_only(path: &Path, disk: Arc<dyn Disk>) -> Result<Self, StoreError> {
        let file = File::open(path.join(LOCK_FILE));
        let lock = lock(path, file.map_err(|error| definite(io_cause(&path.join(LOCK_FILE), &error)))?)?;
        let directory = Self { path: path.to_owned(), disk, lock };
        directory.check_format(false)?;
        Ok(directory)
    }

    fn check_format(&self, may_create: bool) -> Result<(), StoreError> {
        let path = self.path.join(FORMAT_FILE);
        match fs::read_to_string(&path) {
            Ok(text) => match text.trim().parse() {
                Ok(DIRECTORY_VERSION) => Ok(()),
                Ok(found) => Err(definite(StoreErrorCause::UnknownVersion {
                    place: path.display().to_string(),
                    found,
                    known: DIRECTORY_VERSION,
                })),
                Err(_) => Err(definite(damaged(&path, "no format version"))),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if !may_create || self.path.join(HUBS_DIRECTORY).exists() {
                    return Err(definite(damaged(&path, "the file is missing")));
                }
                let text = format!("{DIRECTORY_VERSION}\n");
                let written = write_aside(&*self.disk, &path, text.as_bytes());
                written.map_err(definite)
            }
            Err(error) => Err(definite(io_cause(&path, &error))),
        }
    }

    /// Removes files in a hub's directory that a stop left unfinished.
    pub(super) fn remove_unfinished(&self, directory: &Path) -> Result<(), StoreError> {
        for (name, path) in entries(directory)? {
            if name.ends_with(ASIDE_SUFFIX) {
                self.disk.remove(&path).map_err(|error| definite(io_cause(&path, &error)))?;
            }
        }
        Ok(())
    }

    /// The secret that it keeps, made at random if there is none. Only the owner may read the file.
    pub(super) fn secret(&self) -> Result<[u8; SECRET_BYTES], StoreError> {
        let path = self.path.join(SECRET_FILE);
        match fs::read(&path) {
            Ok(bytes) => bytes.try_into().map_err(|_| definite(damaged(&path, "not a secret of 32 bytes"))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let secret: [u8; SECRET_BYTES] = rand::random();
                let written = write_aside(&*self.disk, &path, &secret);
                written.map_err(definite)?;
                Ok(secret)
            }
            Err(error) => Err(definite(io_cause(&path, &error))),
        }
    }

    /// The hubs that have a directory, sorted.
    pub(super) fn hubs(&self) -> Result<Vec<HubName>, StoreError> {
        let path = self.path.join(HUBS_DIRECTORY);
        if !path.exists() {
            return Ok(Vec::new());
        }
        let mut hubs = Vec::new();
        for (name, path) in entries(&path)? {
            match HubName::new(&name) {
                Ok(hub) if hub.as_str() == name && path.is_dir() => hubs.push(hub),
                _ => tracing::warn!(path = %path.display(), "what is no hub's directory is passed over"),
            }
        }
        hubs.sort();
        Ok(hubs)
    }

    /// A hub's directory. Its name is the hub's: lower case, of letters, digits and the signs `` _`,.[] ``, the first
    /// one a letter, at most 128 in all. So it is a file name everywhere on Unix, and no two differ in case only.
    pub(super) fn hub_path(&self, hub: &HubName) -> PathBuf {
        self.path.join(HUBS_DIRECTORY).join(hub.as_str())
    }

    /// A hub's directory, made if there is none.
    pub(super) fn create_hub(&self, hub: &HubName) -> Result<PathBuf, StoreError> {
        let path = self.hub_path(hub);
        let hubs = self.path.join(HUBS_DIRECTORY);
        let created = create_directory(&path).and_then(|()| self.disk.sync_directory(&hubs));
        created.map_err(|error| definite(io_cause(&path, &error)))?;
        Ok(path)
    }
}

impl Drop for DataDirectory {
    fn drop(&mut self) {
        // A child process that is just being started has the file too, and would keep it locked for a moment.
        let _ = self.lock.unlock();
    }
}

/// Where the segments in a hub's directory begin. Something that should not be there is an error: it may be a segment
/// whose name has been damaged.
pub(super) fn segment_bases(directory: &Path) -> Result<BTreeSet<Offset>, StoreError> {
    let mut bases = BTreeSet::new();
    for (name, path) in entries(directory)? {
        match segment::base_of(&name) {
            Some(base) => drop(bases.insert(base)),
            None if name == META_FILE || name.ends_with(ASIDE_SUFFIX) => {}
            None => return Err(definite(damaged(&path, "a file that does not belong here"))),
        }
    }
    Ok(bases)
}

fn entries(directory: &Path) -> Result<Vec<(String, PathBuf)>, StoreError> {
    let list = || -> io::Result<_> {
        let entries = fs::read_dir(directory)?.map(|entry| {
            let entry = entry?;
            Ok((entry.file_name().to_string_lossy().into_owned(), entry.path()))
        });
        entries.collect()
    };
    list().map_err(|error| definite(io_cause(directory, &error)))
}

fn create_directory(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

fn lock(directory: &Path, file: File) -> Result<File, StoreError> {
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(definite(StoreErrorCause::Locked(directory.display().to_string())))
        }
        Err(TryLockError::Error(error)) => Err(definite(io_cause(directory, &error))),
    }
}
