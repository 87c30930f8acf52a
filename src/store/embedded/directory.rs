//! The data directory: who may use it, what version it is of, which hubs it has, and the secret it keeps.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use oncewire_protocol::log::Offset;
use oncewire_protocol::wire::HubName;

use super::disk::{ASIDE_SUFFIX, Disk, aside, io_cause, write_aside};
use super::meta::META_FILE;
use super::redb_file::{damaged, definite};
use super::segment;
use crate::store::{StoreError, StoreErrorCause};

const LOCK_FILE: &str = "lock";
const FORMAT_FILE: &str = "format";
const SECRET_FILE: &str = "reconnection-secret";
pub(super) const HUBS_DIRECTORY: &str = "hubs";
/// There while a copy is being made in the directory.
const COPYING_FILE: &str = "copying";
/// The socket that a running gateway is asked over for a copy, in its data directory.
pub const CONTROL_SOCKET: &str = "control";
/// What `meta.redb` is called while its hub is being removed.
const REMOVED_FILE: &str = "removed.redb";
/// How the names of the self-signed certificate's files begin. They are the gateway's own and mean nothing here.
const CERTIFICATE_FILES_BEGIN: &str = "self-signed";

/// The version of the directory that this build writes and reads: of its layout, and of what is in records and checkpoints
/// as long as these have begun anew with it.
const DIRECTORY_VERSION: u64 = 3;

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
        create_directory(path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists => {
                definite(StoreErrorCause::DirectoryIsFile(path.display().to_string()))
            }
            _ => definite(match io_cause(path, &error) {
                StoreErrorCause::Io(what) => {
                    StoreErrorCause::Io(format!("the data directory can't be created: {what}"))
                }
                cause => cause,
            }),
        })?;
        let mut options = OpenOptions::new();
        let lock_path = path.join(LOCK_FILE);
        let file = options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&lock_path);
        let lock = lock(path, file.map_err(wrong)?)?;
        let directory = Self { path: path.to_owned(), disk, lock };
        directory.check_format(true)?;
        create_directory(&path.join(HUBS_DIRECTORY)).map_err(wrong)?;
        // Its own only: the directory may hold other things as well.
        let unfinished = [FORMAT_FILE, SECRET_FILE].map(|file| aside(&path.join(file)));
        for leftover in unfinished.into_iter().chain([path.join(COPYING_FILE)]) {
            if leftover.exists() {
                directory.disk.remove(&leftover).map_err(wrong)?;
            }
        }
        directory.disk.sync_directory(path).map_err(wrong)?;
        directory.finish_removals()?;
        Ok(directory)
    }

    /// Takes a directory that is there to read in it, while nobody writes.
    pub(super) fn open_read_only(path: &Path, disk: Arc<dyn Disk>) -> Result<Self, StoreError> {
        let lock_path = path.join(LOCK_FILE);
        let file = File::open(&lock_path).map_err(|error| match error.kind() {
            // Each start makes the file first of all.
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => {
                let place = path.display().to_string();
                definite(match fs::metadata(path) {
                    Ok(there) if there.is_dir() => StoreErrorCause::NoDataInDirectory(place),
                    Ok(_) => StoreErrorCause::DirectoryIsFile(place),
                    Err(_) => StoreErrorCause::NoDirectory(place),
                })
            }
            _ => definite(io_cause(&lock_path, &error)),
        })?;
        let lock = lock(path, file)?;
        let directory = Self { path: path.to_owned(), disk, lock };
        directory.check_format(false)?;
        Ok(directory)
    }

    fn check_format(&self, may_create: bool) -> Result<(), StoreError> {
        let path = self.path.join(FORMAT_FILE);
        if !path.exists() && self.path.join(COPYING_FILE).exists() {
            let directory = self.path.display().to_string();
            return Err(definite(StoreErrorCause::UnfinishedCopy(directory)));
        }
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
            if is_unfinished(&name) {
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

    /// The hubs that are there, sorted.
    pub(super) fn hubs(&self) -> Result<Vec<HubName>, StoreError> {
        let mut hubs = Vec::new();
        for (name, path) in self.hub_entries()? {
            if let Some(hub) = hub_of(&name, &path)
                && is_hub(&path)?
            {
                hubs.push(hub);
            }
        }
        hubs.sort();
        Ok(hubs)
    }

    /// Those of the hubs that are meant: all, or the one that is named.
    ///
    /// # Errors
    /// There is none of this name.
    pub(super) fn hubs_meant(&self, only: Option<&HubName>) -> Result<Vec<HubName>, StoreError> {
        let Some(only) = only else { return self.hubs() };
        if self.has(only)? {
            return Ok(vec![only.clone()]);
        }
        let directory = self.path.display().to_string();
        Err(definite(StoreErrorCause::NoSuchHub { hub: only.to_string(), directory }))
    }

    /// Warns of what is no part of the store and is passed over. An operator may have put it there by mistake, or may take
    /// it for something that counts.
    pub(super) fn warn_of_strays(&self) -> Result<(), StoreError> {
        let warn = |path: &Path| tracing::warn!(path = %path.display(), "what is no part of the store is passed over");
        for (name, path) in entries(&self.path)? {
            let of_store =
                [LOCK_FILE, FORMAT_FILE, SECRET_FILE, HUBS_DIRECTORY, COPYING_FILE, CONTROL_SOCKET];
            let whole = name.strip_suffix(ASIDE_SUFFIX).unwrap_or(&name);
            if !of_store.contains(&whole) && !name.starts_with(CERTIFICATE_FILES_BEGIN) {
                warn(&path);
            }
        }
        for (name, path) in self.hub_entries()? {
            let is_half_removed = path.join(REMOVED_FILE).exists();
            if hub_of(&name, &path).is_none() || !is_half_removed && !is_hub(&path)? {
                warn(&path);
                continue;
            }
            for (name, path) in entries(&path)? {
                if !is_own(&name) && !is_unfinished(&name) {
                    warn(&path);
                }
            }
        }
        Ok(())
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The files of a self-signed certificate.
    pub(super) fn certificate_files(&self) -> Result<Vec<(String, PathBuf)>, StoreError> {
        let mut files = entries(&self.path)?;
        files.retain(|(name, path)| {
            name.starts_with(CERTIFICATE_FILES_BEGIN) && name.ends_with(".pem") && path.is_file()
        });
        Ok(files)
    }

    fn hub_entries(&self) -> Result<Vec<(String, PathBuf)>, StoreError> {
        let path = self.path.join(HUBS_DIRECTORY);
        if path.exists() { entries(&path) } else { Ok(Vec::new()) }
    }

    /// Removes a hub's log and checkpoints, whatever state they are in, if it is there. Interrupted anywhere, it leaves the
    /// hub as it was, or gone: the next start, or use, removes the rest. It needs no room.
    pub(super) fn remove_hub(&self, hub: &HubName) -> Result<(), StoreError> {
        let path = self.hub_path(hub);
        if !self.has(hub)? {
            return if path.join(REMOVED_FILE).exists() { self.finish_removal(&path) } else { Ok(()) };
        }
        let (meta, removed) = (path.join(META_FILE), path.join(REMOVED_FILE));
        let marked = match self.disk.rename(&meta, &removed) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.disk.create(&removed).map(drop),
            marked => marked,
        };
        let marked = marked.and_then(|()| self.disk.sync_directory(&path));
        marked.map_err(|error| definite(io_cause(&path, &error)))?;
        self.finish_removal(&path)
    }

    /// Goes on with removals that were interrupted.
    fn finish_removals(&self) -> Result<(), StoreError> {
        for (name, path) in self.hub_entries()? {
            if hub_of(&name, &path).is_some() && path.join(REMOVED_FILE).exists() {
                self.finish_removal(&path)?;
            }
        }
        Ok(())
    }

    /// Whether a hub is there.
    pub(super) fn has(&self, hub: &HubName) -> Result<bool, StoreError> {
        let path = self.hub_path(hub);
        if path.is_dir() { is_hub(&path) } else { Ok(false) }
    }

    fn finish_removal(&self, path: &Path) -> Result<(), StoreError> {
        let wrong = |path: &Path, error: &io::Error| definite(io_cause(path, error));
        for (name, file) in entries(path)? {
            if name != REMOVED_FILE && (is_own(&name) || is_unfinished(&name)) {
                self.disk.remove(&file).map_err(|error| wrong(&file, &error))?;
            }
        }
        let synced = self.disk.sync_directory(path);
        let removed = synced.and_then(|()| self.disk.remove(&path.join(REMOVED_FILE)));
        removed.map_err(|error| wrong(path, &error))?;
        match fs::remove_dir(path) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => {
                tracing::warn!(path = %path.display(), "what is no part of the store is left where a hub was");
            }
            removed => removed.map_err(|error| wrong(path, &error))?,
        }
        let hubs = self.path.join(HUBS_DIRECTORY);
        self.disk.sync_directory(&hubs).map_err(|error| wrong(&hubs, &error))
    }

    /// A hub's directory. Its name is the hub's: lower case, of letters, digits and the signs `` _`,.[] ``, the first
    /// one a letter, at most 128 in all. So it is a file name everywhere on Unix, and no two differ in case only.
    pub(super) fn hub_path(&self, hub: &HubName) -> PathBuf {
        self.path.join(HUBS_DIRECTORY).join(hub.as_str())
    }

    /// A hub's directory, made if there is none.
    pub(super) fn create_hub(&self, hub: &HubName) -> Result<PathBuf, StoreError> {
        let path = self.hub_path(hub);
        if path.join(REMOVED_FILE).exists() {
            self.finish_removal(&path)?;
        }
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

/// Begins a directory for a copy, which nobody uses before it is finished.
pub(super) fn begin_copy(disk: &dyn Disk, path: &Path) -> Result<(), StoreError> {
    write_aside(disk, &path.join(COPYING_FILE), b"").map_err(definite)?;
    write_aside(disk, &path.join(LOCK_FILE), b"").map_err(definite)?;
    let hubs = path.join(HUBS_DIRECTORY);
    create_directory(&hubs).map_err(|error| definite(io_cause(&hubs, &error)))
}

/// Finishes it, once everything in it is synced.
pub(super) fn finish_copy(disk: &dyn Disk, path: &Path) -> Result<(), StoreError> {
    write_aside(disk, &path.join(FORMAT_FILE), format!("{DIRECTORY_VERSION}\n").as_bytes())
        .map_err(definite)?;
    let removed = disk.remove(&path.join(COPYING_FILE)).and_then(|()| disk.sync_directory(path));
    removed.map_err(|error| definite(io_cause(path, &error)))
}

/// Removes all of a copy that was not finished, and at last what says so.
pub(super) fn give_up_copy(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    for (name, entry) in entries(path).map_err(io::Error::other)? {
        match name.as_str() {
            COPYING_FILE => {}
            HUBS_DIRECTORY => fs::remove_dir_all(&entry)?,
            _ => disk.remove(&entry)?,
        }
    }
    disk.remove(&path.join(COPYING_FILE))
}

/// The hub that an entry of the hubs' directory is named after.
fn hub_of(name: &str, path: &Path) -> Option<HubName> {
    HubName::new(name).ok().filter(|hub| hub.as_str() == name && path.is_dir())
}

/// Whether a directory holds a hub, in whatever state.
fn is_hub(directory: &Path) -> Result<bool, StoreError> {
    let entries = entries(directory)?;
    let is_removed = entries.iter().any(|(name, _)| name == REMOVED_FILE);
    Ok(!is_removed && entries.iter().any(|(name, _)| is_own(name)))
}

/// Whether a file of this name in a hub's directory belongs to the store.
fn is_own(name: &str) -> bool {
    name == META_FILE || name == REMOVED_FILE || segment::base_of(name).is_some()
}

/// Whether it is one that was not finished.
fn is_unfinished(name: &str) -> bool {
    name.strip_suffix(ASIDE_SUFFIX).is_some_and(is_own)
}

/// Where the segments in a hub's directory begin. What has nearly the name of one is an error: if it is one, there is a gap
/// without it, or the log would end too early.
pub(super) fn segment_bases(directory: &Path) -> Result<BTreeSet<Offset>, StoreError> {
    let mut bases = BTreeSet::new();
    for (name, path) in entries(directory)? {
        match segment::base_of(&name) {
            Some(base) => drop(bases.insert(base)),
            None if segment::is_nearly_named(&name) => {
                return Err(definite(damaged(&path, "nearly the name of a segment")));
            }
            None => {}
        }
    }
    Ok(bases)
}

pub(super) fn entries(directory: &Path) -> Result<Vec<(String, PathBuf)>, StoreError> {
    let list = || -> io::Result<_> {
        let entries = fs::read_dir(directory)?.map(|entry| {
            let entry = entry?;
            Ok((entry.file_name().to_string_lossy().into_owned(), entry.path()))
        });
        entries.collect()
    };
    list().map_err(|error| definite(io_cause(directory, &error)))
}

pub(super) fn create_directory(path: &Path) -> io::Result<()> {
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
