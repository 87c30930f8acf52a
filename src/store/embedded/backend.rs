//! The files below redb: [`FileBackend`] writes, [`OverlayBackend`] only reads and keeps redb's writes to itself.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use parking_lot::Mutex;
use redb::StorageBackend;

use super::disk::{DiskFile, is_full};

/// The first failure of a file. After it redb touches the file no more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// There was no room.
    Full(String),
    /// A sync failed: nobody knows what is on the disk, and syncing again does not tell.
    Sync(String),
    /// Anything else.
    Other(String),
}

/// Where a backend leaves its first failure: redb's own errors do not say what failed.
#[derive(Debug, Clone, Default)]
pub(super) struct FailureCell(Arc<Mutex<Option<Failure>>>);

impl FailureCell {
    /// The first failure, if there was one.
    pub(super) fn get(&self) -> Option<Failure> {
        self.0.lock().clone()
    }

    fn note<T>(&self, outcome: io::Result<T>) -> io::Result<T> {
        if let Err(error) = &outcome {
            let kind = if is_full(error) { Failure::Full } else { Failure::Other };
            self.0.lock().get_or_insert_with(|| kind(error.to_string()));
        }
        outcome
    }

    fn note_sync(&self, outcome: io::Result<()>) -> io::Result<()> {
        if let Err(error) = &outcome {
            self.0.lock().get_or_insert_with(|| Failure::Sync(error.to_string()));
        }
        outcome
    }
}

/// A file that redb writes.
#[derive(Debug)]
pub(super) struct FileBackend {
    file: Arc<dyn DiskFile>,
    syncs: bool,
    failure: FailureCell,
}

impl FileBackend {
    /// `syncs` is whether a commit waits for the disk; otherwise the operating system writes when it likes.
    pub(super) fn new(file: Arc<dyn DiskFile>, syncs: bool) -> Self {
        Self { file, syncs, failure: FailureCell::default() }
    }

    /// Where its first failure will be.
    pub(super) fn failure(&self) -> FailureCell {
        self.failure.clone()
    }
}

impl StorageBackend for FileBackend {
    fn len(&self) -> io::Result<u64> {
        self.failure.note(self.file.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.failure.note(self.file.read(offset, out))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.failure.note(self.file.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.syncs { self.failure.note_sync(self.file.sync()) } else { Ok(()) }
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.failure.note(self.file.write(offset, data))
    }
}

/// What is kept of writes together, in bytes.
const OVERLAY_PAGE_BYTES: usize = 4096;

/// A file that is only read. What redb writes, when it repairs a file that was not closed, stays in memory and is
/// gone with it.
#[derive(Debug)]
pub(super) struct OverlayBackend {
    file: Arc<dyn DiskFile>,
    state: Mutex<Overlay>,
}

#[derive(Debug)]
struct Overlay {
    len: u64,
    /// No byte of the file counts from here on: the overlay has been cut there.
    file_len: u64,
    pages: HashMap<u64, Box<[u8; OVERLAY_PAGE_BYTES]>>,
}

impl OverlayBackend {
    /// # Errors
    /// The file has no length.
    pub(super) fn new(file: Arc<dyn DiskFile>) -> io::Result<Self> {
        let len = file.len()?;
        Ok(Self { file, state: Mutex::new(Overlay { len, file_len: len, pages: HashMap::new() }) })
    }

    fn read_file(&self, file_len: u64, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let there = usize::try_from(file_len.saturating_sub(offset)).unwrap_or(usize::MAX).min(out.len());
        out[there..].fill(0);
        if there > 0 { self.file.read(offset, &mut out[..there]) } else { Ok(()) }
    }
}

/// The parts of a range that lie in one page each: page number, begin in the page, length.
fn page_parts(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, usize)> {
    let page_bytes = OVERLAY_PAGE_BYTES as u64;
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let begin = (at % page_bytes) as usize;
        let part = (OVERLAY_PAGE_BYTES - begin).min(len - done);
        done += part;
        (part > 0).then_some((at / page_bytes, begin, part))
    })
}

impl StorageBackend for OverlayBackend {
    fn len(&self) -> io::Result<u64> {
        Ok(self.state.lock().len)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let state = self.state.lock();
        if offset.checked_add(out.len() as u64).is_none_or(|end| end > state.len) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.read_file(state.file_len, offset, out)?;
        if state.pages.is_empty() {
            return Ok(());
        }
        let mut at = 0;
        for (page, begin, len) in page_parts(offset, out.len()) {
            if let Some(kept) = state.pages.get(&page) {
                out[at..at + len].copy_from_slice(&kept[begin..begin + len]);
            }
            at += len;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state.lock();
        if len < state.len {
            state.file_len = state.file_len.min(len);
            let end = len.div_ceil(OVERLAY_PAGE_BYTES as u64);
            state.pages.retain(|page, _| *page < end);
            let cut = (len % OVERLAY_PAGE_BYTES as u64) as usize;
            if cut > 0
                && let Some(last) = state.pages.get_mut(&(end - 1))
            {
                last[cut..].fill(0);
            }
        }
        state.len = len;
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        let mut at = 0;
        for (page, begin, len) in page_parts(offset, data.len()) {
            if !state.pages.contains_key(&page) {
                let mut kept = Box::new([0; OVERLAY_PAGE_BYTES]);
                self.read_file(state.file_len, page * OVERLAY_PAGE_BYTES as u64, &mut kept[..])?;
                state.pages.insert(page, kept);
            }
            if let Some(kept) = state.pages.get_mut(&page) {
                kept[begin..begin + len].copy_from_slice(&data[at..at + len]);
            }
            at += len;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::disk::{Disk, SystemDisk};
    use super::*;

    #[test]
    fn an_overlay_reads_what_was_written_to_it_and_leaves_the_file_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let before: Vec<u8> = (0..10_000).map(|n| (n % 251) as u8).collect();
        std::fs::write(&path, &before).unwrap();
        let overlay = OverlayBackend::new(SystemDisk.open_read_only(&path).unwrap()).unwrap();
        let mut expected = before.clone();

        overlay.write(4000, &[7; 5000]).unwrap();
        expected[4000..9000].fill(7);
        overlay.set_len(6000).unwrap();
        overlay.set_len(20_000).unwrap();
        expected.truncate(6000);
        expected.resize(20_000, 0);
        overlay.write(19_990, &[9; 10]).unwrap();
        expected[19_990..].fill(9);

        let mut read = vec![0; 20_000];
        overlay.read(0, &mut read).unwrap();
        assert_eq!(read, expected);
        let mut part = vec![0; 3000];
        overlay.read(3500, &mut part).unwrap();
        assert_eq!(part, expected[3500..6500]);
        assert!(overlay.read(19_999, &mut [0; 2]).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }
}
