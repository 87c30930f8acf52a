//! A disk that loses power, fills up and fails.
//!
//! Files are real ones, but syncs are only counted. When the power fails, each 4 KiB page that was written since its
//! file's last sync holds the old or the new bytes, each file has the old or the new length, and of what happened to
//! names since the last sync of their directory some of the newest is undone.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::super::disk::{Disk, DiskDirectory, DiskFile, SystemDisk};

const PAGE_BYTES: u64 = 4096;
/// The process has as many open files as it may have.
const EMFILE: i32 = 24;

#[derive(Debug, Clone, Default)]
pub(super) struct FaultyDisk(Arc<World>);

#[derive(Debug, Default)]
struct World {
    state: Mutex<State>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct State {
    faults: Faults,
    syncs: u64,
    is_off: bool,
    holds_syncs: bool,
    held_syncs: u64,
    /// Bytes of all files together.
    used_bytes: u64,
    files: HashMap<PathBuf, FileState>,
    names: Vec<NameChange>,
    next_backup: u64,
}

/// What goes wrong.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Faults {
    /// The power fails when so many syncs have been done and the next one begins.
    pub(super) power_fails_after_syncs: Option<u64>,
    /// So many bytes fit.
    pub(super) bytes_max: Option<u64>,
    /// So many files and directories can be opened, then the process has no descriptor left.
    pub(super) opens_left: Option<u64>,
    /// Syncs of files fail.
    pub(super) syncs_fail: bool,
    /// Syncs of directories fail.
    pub(super) directory_syncs_fail: bool,
    /// Writes fail with an error that is not want of room, once so many have been done.
    pub(super) writes_fail_after: Option<u64>,
    /// Every write fails for want of room.
    pub(super) writes_find_no_room: bool,
}

/// What a loss of power may bring back.
#[derive(Debug, Default)]
struct FileState {
    synced_len: u64,
    /// Pages written since the last sync, as they were then.
    old_pages: HashMap<u64, Vec<u8>>,
}

#[derive(Debug)]
enum NameChange {
    Created(PathBuf),
    Renamed { from: PathBuf, to: PathBuf, replaced: Option<PathBuf> },
    Removed { path: PathBuf, backup: PathBuf },
}

impl NameChange {
    fn directory(&self) -> Option<&Path> {
        match self {
            Self::Created(path) | Self::Removed { path, .. } | Self::Renamed { to: path, .. } => {
                path.parent()
            }
        }
    }
}

impl FaultyDisk {
    pub(super) fn with(faults: Faults) -> Self {
        let disk = Self::default();
        disk.set(faults);
        disk
    }

    pub(super) fn set(&self, faults: Faults) {
        self.0.state.lock().faults = faults;
    }

    /// How many syncs there were, of files and of directories.
    pub(super) fn syncs(&self) -> u64 {
        self.0.state.lock().syncs
    }

    pub(super) fn is_off(&self) -> bool {
        self.0.state.lock().is_off
    }

    /// Lets every sync wait until it is released.
    pub(super) fn hold_syncs(&self, holds: bool) {
        self.0.state.lock().holds_syncs = holds;
        self.0.released.notify_all();
    }

    /// Until a sync is held.
    pub(super) async fn wait_for_held(&self) {
        while self.0.state.lock().held_syncs == 0 {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }

    /// Nothing is written from now on.
    pub(super) fn cut_power(&self) {
        self.0.state.lock().is_off = true;
        self.hold_syncs(false);
    }

    /// Leaves in the directory what a disk may hold after a loss of power; says how many pages, lengths and names went
    /// back.
    pub(super) fn lose_unsynced(&self, seed: u64) -> usize {
        self.cut_power();
        let mut random = StdRng::seed_from_u64(seed);
        let mut state = self.0.state.lock();
        let mut lost = 0;
        let mut files: Vec<_> = state.files.drain().collect();
        files.sort_by(|one, other| one.0.cmp(&other.0));
        for (path, file) in files {
            let Ok(mut bytes) = fs::read(&path) else { continue };
            let mut pages: Vec<_> = file.old_pages.into_iter().collect();
            pages.sort();
            for (page, old) in pages {
                let begin = (page * PAGE_BYTES) as usize;
                if begin < bytes.len() && random.random() {
                    let end = (begin + old.len()).min(bytes.len());
                    bytes[begin..end].copy_from_slice(&old[..end - begin]);
                    lost += 1;
                }
            }
            if bytes.len() as u64 != file.synced_len && random.random() {
                bytes.resize(file.synced_len as usize, 0);
                lost += 1;
            }
            overwrite(&path, &bytes);
        }
        let undone = random.random_range(0..=state.names.len());
        for _ in 0..undone {
            lost += 1;
            match state.names.pop().unwrap() {
                NameChange::Created(path) => fs::remove_file(path).unwrap(),
                NameChange::Removed { path, backup } => fs::rename(backup, path).unwrap(),
                NameChange::Renamed { from, to, replaced } => {
                    fs::rename(&to, from).unwrap();
                    if let Some(replaced) = replaced {
                        fs::rename(replaced, to).unwrap();
                    }
                }
            }
        }
        lost
    }

    fn check_power(&self) -> io::Result<()> {
        if self.is_off() { Err(io::Error::other("the power is off")) } else { Ok(()) }
    }

    /// Counts what is opened; the process may have no descriptor left.
    fn take_descriptor(&self) -> io::Result<()> {
        if let Some(left) = &mut self.0.state.lock().faults.opens_left {
            *left = left.checked_sub(1).ok_or_else(|| io::Error::from_raw_os_error(EMFILE))?;
        }
        Ok(())
    }

    /// Counts a sync; the power may fail before it does anything.
    fn begin_sync(&self) -> io::Result<()> {
        let mut state = self.0.state.lock();
        while state.holds_syncs {
            state.held_syncs += 1;
            self.0.released.wait(&mut state);
            state.held_syncs -= 1;
        }
        if state.faults.power_fails_after_syncs.is_some_and(|last| state.syncs >= last) {
            state.is_off = true;
        }
        state.syncs += 1;
        drop(state);
        self.check_power()
    }

    /// Another name for what a name refers to, outside of the store's sight.
    fn back_up(&self, path: &Path) -> PathBuf {
        let mut state = self.0.state.lock();
        state.next_backup += 1;
        let backup = std::env::temp_dir().join(format!(
            "oncewire-backup-{}-{:p}-{}",
            std::process::id(),
            Arc::as_ptr(&self.0),
            state.next_backup
        ));
        fs::hard_link(path, &backup).unwrap();
        backup
    }

    fn attach(&self, path: &Path, file: Arc<dyn DiskFile>) -> io::Result<Arc<dyn DiskFile>> {
        let len = file.len()?;
        let mut state = self.0.state.lock();
        state.files.entry(path.to_owned()).or_insert(FileState { synced_len: len, ..FileState::default() });
        Ok(Arc::new(FaultyFile { disk: self.clone(), path: Mutex::new(path.to_owned()), file }))
    }
}

/// Gives a file this content. Cutting it to nothing first would have some file systems write it out at once.
pub(super) fn overwrite(path: &Path, bytes: &[u8]) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, 0).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
}

impl Drop for World {
    fn drop(&mut self) {
        for change in &self.state.lock().names {
            if let NameChange::Removed { backup, .. } | NameChange::Renamed { replaced: Some(backup), .. } =
                change
            {
                let _ = fs::remove_file(backup);
            }
        }
    }
}

impl Disk for FaultyDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.check_power()?;
        self.take_descriptor()?;
        if path.exists() {
            self.remove(path)?;
        }
        let file = SystemDisk.create(path)?;
        self.0.state.lock().names.push(NameChange::Created(path.to_owned()));
        self.attach(path, file)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.check_power()?;
        self.take_descriptor()?;
        self.attach(path, SystemDisk.open(path)?)
    }

    fn open_read_only(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.check_power()?;
        self.take_descriptor()?;
        SystemDisk.open_read_only(path)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.check_power()?;
        let replaced = to.exists().then(|| self.back_up(to));
        fs::rename(from, to)?;
        let mut state = self.0.state.lock();
        if let Some(file) = state.files.remove(from) {
            state.files.insert(to.to_owned(), file);
        }
        state.names.push(NameChange::Renamed { from: from.to_owned(), to: to.to_owned(), replaced });
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.check_power()?;
        let len = fs::metadata(path)?.len();
        let backup = self.back_up(path);
        fs::remove_file(path)?;
        let mut state = self.0.state.lock();
        state.files.remove(path);
        state.used_bytes = state.used_bytes.saturating_sub(len);
        state.names.push(NameChange::Removed { path: path.to_owned(), backup });
        Ok(())
    }

    fn open_directory(&self, path: &Path) -> io::Result<Arc<dyn DiskDirectory>> {
        self.take_descriptor()?;
        Ok(Arc::new(FaultyDirectory { disk: self.clone(), path: path.to_owned() }))
    }
}

#[derive(Debug)]
struct FaultyDirectory {
    disk: FaultyDisk,
    path: PathBuf,
}

impl DiskDirectory for FaultyDirectory {
    fn sync(&self) -> io::Result<()> {
        let Self { disk, path } = self;
        disk.begin_sync()?;
        if disk.0.state.lock().faults.directory_syncs_fail {
            return Err(io::ErrorKind::Other.into());
        }
        let mut state = disk.0.state.lock();
        let (synced, names) =
            std::mem::take(&mut state.names).into_iter().partition(|change| change.directory() == Some(path));
        state.names = names;
        drop(state);
        let synced: Vec<NameChange> = synced;
        for change in synced {
            if let NameChange::Removed { backup, .. } | NameChange::Renamed { replaced: Some(backup), .. } =
                change
            {
                fs::remove_file(backup)?;
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
struct FaultyFile {
    disk: FaultyDisk,
    /// Its name when it was opened; a file made aside has another one later.
    path: Mutex<PathBuf>,
    file: Arc<dyn DiskFile>,
}

impl FaultyFile {
    fn with_state<T>(&self, work: impl FnOnce(&mut FileState) -> T) -> Option<T> {
        let mut state = self.disk.0.state.lock();
        let mut path = self.path.lock();
        if !state.files.contains_key(&*path) && path.extension().is_some_and(|extension| extension == "tmp") {
            *path = path.with_extension("");
        }
        state.files.get_mut(&*path).map(work)
    }
}

impl DiskFile for FaultyFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read(offset, out)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.disk.check_power()?;
        {
            let mut state = self.disk.0.state.lock();
            if state.faults.writes_find_no_room {
                return Err(io::ErrorKind::StorageFull.into());
            }
            if let Some(left) = &mut state.faults.writes_fail_after {
                match left.checked_sub(1) {
                    Some(less) => *left = less,
                    None => return Err(io::Error::other("a write failed")),
                }
            }
        }
        let len = self.file.len()?;
        let end = offset + bytes.len() as u64;
        let pages: HashSet<u64> = (offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES)).collect();
        let mut olds = Vec::new();
        for page in pages {
            let begin = page * PAGE_BYTES;
            let mut old = vec![0; PAGE_BYTES.min(len.saturating_sub(begin)) as usize];
            self.file.read(begin, &mut old)?;
            olds.push((page, old));
        }
        self.with_state(|file| {
            for (page, old) in olds {
                file.old_pages.entry(page).or_insert(old);
            }
        });
        self.file.write(offset, bytes)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.disk.check_power()?;
        let before = self.file.len()?;
        {
            let mut state = self.disk.0.state.lock();
            let used = state.used_bytes.saturating_sub(before) + len;
            if len > before && state.faults.bytes_max.is_some_and(|max| used > max) {
                return Err(io::ErrorKind::StorageFull.into());
            }
            state.used_bytes = used;
        }
        self.file.set_len(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.begin_sync()?;
        if self.disk.0.state.lock().faults.syncs_fail {
            return Err(io::Error::other("the disk is broken"));
        }
        let len = self.file.len()?;
        self.with_state(|file| {
            file.old_pages.clear();
            file.synced_len = len;
        });
        Ok(())
    }
}
