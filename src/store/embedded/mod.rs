//! The log on the local disk.
//!
//! Knows files, commits and what is durable. Does not know what records mean, beyond how large they are.
//!
//! # Layout
//!
//! ```text
//! DATA-DIR/
//!   lock                          empty; locked by the process that uses the directory
//!   format                        text: the version of this layout, now `2`, and a line feed
//!   copying                       there while a copy is being made here, which can't be used without `format`
//!   control                       the socket that a running gateway is asked over
//!   self-signed*.pem              the gateway's own certificate, of which this store only knows that it is to be copied
//!   reconnection-secret           32 random bytes, for its owner only
//!   hubs/HUB/                     a directory for each hub, by its name in lower case
//!     meta.redb                   epoch and checkpoints; `removed.redb` while the hub is being removed
//!     00000000000000000000.redb   the segment from offset 0 on
//!     00000000000000070000.redb   the segment from offset 70,000 on
//! ```
//! One of these names with `.tmp` behind it was left unfinished by a stop and is removed: each file is made aside, synced,
//! and then given its name. Whatever else there is, is no part of the store: it is passed over with a warning.
//!
//! The `.redb` files are redb databases of file format 3. In each the table `state` (`&str` to `&[u8]`) has under `layout`
//! the version of what follows, u32 LE, now 1. Offsets are u64.
//!
//! | file | table | key | value |
//! |---|---|---|---|
//! | segment | `log` | `u64`: offset of the group's first record | a group, drawn in `group.rs` |
//! | `meta.redb` | `state` | `epoch` | the log's epoch, u128 LE |
//! | | | `changes` | how many changes of checkpoints there have been, u64 LE |
//! | | | `unsynced-boot` | the kernel's boot id under which the log may hold what no sync has reached |
//! | | | `copy` | nothing; there as long as the log is a copy that has not begun its own epoch |
//! | | | `empty` | since when the hub has had no session and no use, ms, and where the log ended then; both u64 LE |
//! | | `checkpoints` | `&str` | a checkpoint, drawn in `checkpoints.rs` |
//!
//! A commit adds one group, or some that fill their pages well. The records of a group have offsets that follow one
//! another, and so have the groups.
//!
//! # What happens when
//!
//! | | |
//! |---|---|
//! | the process is killed | redb takes back a commit that was not finished; nothing that was acknowledged is touched |
//! | the power fails | the same with `sync`. With `os` the boot id differs: the hub starts empty, in another epoch (R12) |
//! | the disk is full | what has no room is refused for certain; reading goes on, and writing when there is room |
//! | a commit fails otherwise | its segment is read back and sealed, so that the outcome is certain |
//! | a sync fails | nobody knows what is on the disk; the store takes nothing more ([`StoreError::is_fatal`]) |

mod backend;
mod checkpoint_thread;
mod checkpoints;
mod committer;
mod copying;
mod directory;
mod disk;
mod group;
mod log;
mod meta;
mod offline;
mod on_demand;
mod redb_file;
mod segment;
mod segments;
mod tail;
mod unread;

pub use copying::HubCopied;
pub use directory::CONTROL_SOCKET;
pub use offline::{Found, HubReport, OfflineStore, SegmentReport, new_epoch, remove_hub};

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use oncewire_protocol::log::Time;
use oncewire_protocol::wire::HubName;
use parking_lot::Mutex;

use super::{Log, MemoryStore, Store, StoreError, StoreErrorCause};
use crate::config::Durability;
use committer::SegmentLimits;
use copying::Copy;
use directory::DataDirectory;
use disk::{Disk, SystemDisk};
use log::{EmbeddedLog, LogOptions};
use redb_file::definite;

/// What redb may keep in memory of a file that is checked, in bytes.
const CHECK_CACHE_BYTES: usize = 16 * 1024 * 1024;
/// After how long without work a thread of a hub ends.
const THREAD_REST: Duration = Duration::from_secs(10);

/// Logs in a data directory.
pub struct EmbeddedStore {
    directory: Arc<DataDirectory>,
    environment: Environment,
    durability: Box<dyn Fn(&HubName) -> Durability + Send + Sync>,
    memory: MemoryStore,
    /// Hubs that are open, and those that somebody is about to open, close, remove or copy.
    slots: Mutex<HashMap<HubName, Arc<Slot>>>,
    is_closed: Arc<AtomicBool>,
    /// Held while a copy is made.
    copying: Mutex<()>,
}

/// A hub's log, if it is open.
#[derive(Default)]
struct Slot {
    /// Held by whoever opens, closes, removes or copies it.
    turn: Arc<tokio::sync::Mutex<()>>,
    log: Mutex<Option<OpenLog>>,
}

#[derive(Clone)]
enum OpenLog {
    Disk(Arc<EmbeddedLog>),
    Memory(Arc<dyn Log>),
}

/// What tests replace.
#[derive(Debug, Clone)]
struct Environment {
    disk: Arc<dyn Disk>,
    boot_id: Option<String>,
    limits: SegmentLimits,
    thread_rest: Duration,
}

impl Environment {
    fn system() -> Self {
        Self {
            disk: Arc::new(SystemDisk),
            boot_id: kernel_boot_id(),
            limits: SegmentLimits::default(),
            thread_rest: THREAD_REST,
        }
    }
}

/// Names this boot of the kernel; none where the kernel does not say.
fn kernel_boot_id() -> Option<String> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(text.trim().to_owned()).filter(|id| !id.is_empty())
}

impl EmbeddedStore {
    /// Takes a data directory for this process alone, made if there is none. `durability` says what each hub's appends
    /// wait for.
    ///
    /// # Errors
    /// The directory is in use by another process, cannot be written to, or is of an unknown version.
    pub fn open(
        path: &Path,
        durability: impl Fn(&HubName) -> Durability + Send + Sync + 'static,
    ) -> Result<Self, StoreError> {
        Self::open_in(path, Environment::system(), durability)
    }

    fn open_in(
        path: &Path,
        environment: Environment,
        durability: impl Fn(&HubName) -> Durability + Send + Sync + 'static,
    ) -> Result<Self, StoreError> {
        let directory = Arc::new(DataDirectory::open(path, Arc::clone(&environment.disk))?);
        directory.warn_of_strays()?;
        Ok(Self {
            directory,
            environment,
            durability: Box::new(durability),
            memory: MemoryStore::default(),
            slots: Mutex::default(),
            is_closed: Arc::default(),
            copying: Mutex::default(),
        })
    }

    /// The secret that the data directory keeps, 32 bytes, made at random the first time. It does not depend on any
    /// access key.
    ///
    /// # Errors
    /// It cannot be read or written.
    pub fn reconnection_secret(&self) -> Result<[u8; 32], StoreError> {
        self.directory.secret()
    }

    /// Makes a copy of the directory, in one that is empty or not there, while its hubs are in use. `told` is told what has
    /// become of each hub. Blocks; returns soon once `is_given_up` is set.
    ///
    /// # Errors
    /// Something can't be read or written, it is no place for a copy, or another one is being made. What was made is
    /// removed again.
    pub fn copy(
        &self,
        to: &Path,
        is_given_up: &AtomicBool,
        told: impl FnMut(&HubName, HubCopied),
    ) -> Result<(), StoreError> {
        let Some(_only) = self.copying.try_lock() else {
            return Err(definite(StoreErrorCause::CopyUnderWay));
        };
        let Environment { disk, boot_id, .. } = &self.environment;
        let (source, boot_id) = (&*self.directory, boot_id.as_deref());
        let copy = Copy { disk: &**disk, source, to: to.to_owned(), is_given_up, boot_id };
        let copy_hub = |copy: &Copy<'_>, hub: &HubName| {
            let slot = self.slot(hub);
            // Nobody opens, closes or removes it meanwhile.
            let _turn = slot.turn.blocking_lock();
            let log = slot.log.lock().clone();
            match log {
                Some(OpenLog::Disk(log)) => copy.open_hub(hub, &log),
                _ if self.directory.has(hub)? => copy.closed_hub(hub),
                _ => Ok(None),
            }
        };
        copy.make(copy_hub, told)
    }

    fn slot(&self, hub: &HubName) -> Arc<Slot> {
        Arc::clone(self.slots.lock().entry(hub.clone()).or_default())
    }

    /// Forgets the slot of a hub that is not open, unless somebody has it.
    fn forget_slot(&self, hub: &HubName, slot: Arc<Slot>) {
        let mut slots = self.slots.lock();
        if slot.log.lock().is_none() && Arc::strong_count(&slot) == 2 {
            slots.remove(hub);
        }
    }

    async fn open_log(&self, hub: &HubName, slot: Arc<Slot>) -> Result<OpenLog, StoreError> {
        let turn = Arc::clone(&slot.turn).lock_owned().await;
        if let Some(log) = slot.log.lock().clone() {
            return Ok(log);
        }
        let durability = (self.durability)(hub);
        let directory = Arc::clone(&self.directory);
        let environment = self.environment.clone();
        let is_closed = Arc::clone(&self.is_closed);
        let in_memory =
            if durability == Durability::Memory { Some(self.memory.open(hub).await?) } else { None };
        let hub = hub.clone();
        let open = move || {
            if is_closed.load(Ordering::SeqCst) {
                return Err(definite(StoreErrorCause::Closed));
            }
            let Environment { disk, boot_id, limits, thread_rest } = environment;
            let log = match in_memory {
                Some(log) => {
                    let path = directory.hub_path(&hub);
                    if path.exists() {
                        log::abandon(disk, &path)?;
                    }
                    OpenLog::Memory(log)
                }
                None => {
                    let path = directory.create_hub(&hub)?;
                    let syncs = durability == Durability::Sync;
                    let options = LogOptions { syncs, limits, thread_rest, boot_id };
                    OpenLog::Disk(Arc::new(EmbeddedLog::open(directory, disk, &path, options)?))
                }
            };
            *slot.log.lock() = Some(log.clone());
            // Whoever closes the store has either seen it or been seen here.
            if is_closed.load(Ordering::SeqCst) {
                slot.close(EmbeddedLog::close)?;
                return Err(definite(StoreErrorCause::Closed));
            }
            // Held by the work itself: whoever waits for it may go away, and a second writer must not come.
            drop(turn);
            Ok(log)
        };
        blocking(open).await
    }
}

impl Slot {
    /// Closes the log, if it is open and on the disk.
    fn close(&self, close: impl FnOnce(&EmbeddedLog) -> Result<(), StoreError>) -> Result<(), StoreError> {
        let log = self.log.lock().take_if(|log| matches!(log, OpenLog::Disk(_)));
        match log {
            Some(OpenLog::Disk(log)) => close(&log),
            _ => Ok(()),
        }
    }
}

impl Store for EmbeddedStore {
    fn open(&self, hub: &HubName) -> BoxFuture<'_, Result<Arc<dyn Log>, StoreError>> {
        let hub = hub.clone();
        async move {
            let slot = self.slot(&hub);
            let opened = self.open_log(&hub, Arc::clone(&slot)).await;
            self.forget_slot(&hub, slot);
            Ok(match opened? {
                OpenLog::Disk(log) => log as Arc<dyn Log>,
                OpenLog::Memory(log) => log,
            })
        }
        .boxed()
    }

    fn close_hub(&self, hub: &HubName, empty_since: Time) -> BoxFuture<'_, Result<(), StoreError>> {
        let hub = hub.clone();
        async move {
            let slot = self.slot(&hub);
            let turn = Arc::clone(&slot.turn).lock_owned().await;
            let closing = Arc::clone(&slot);
            let closed = blocking(move || {
                let closed = closing.close(|log| log.close_empty(empty_since));
                drop(turn);
                closed
            });
            let closed = closed.await;
            self.forget_slot(&hub, slot);
            closed
        }
        .boxed()
    }

    fn remove(&self, hub: &HubName) -> BoxFuture<'_, Result<(), StoreError>> {
        let hub = hub.clone();
        async move {
            let slot = self.slot(&hub);
            let turn = Arc::clone(&slot.turn).lock_owned().await;
            self.memory.remove(&hub).await?;
            let (removing, directory, name) = (Arc::clone(&slot), Arc::clone(&self.directory), hub.clone());
            let removed = blocking(move || {
                removing.close(EmbeddedLog::close)?;
                *removing.log.lock() = None;
                let removed = directory.remove_hub(&name);
                drop(turn);
                removed
            });
            let removed = removed.await;
            self.forget_slot(&hub, slot);
            removed
        }
        .boxed()
    }

    fn hubs(&self) -> BoxFuture<'_, Result<Vec<HubName>, StoreError>> {
        let directory = Arc::clone(&self.directory);
        blocking(move || directory.hubs()).boxed()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        self.is_closed.store(true, Ordering::SeqCst);
        let slots: Vec<_> = self.slots.lock().values().cloned().collect();
        let logs = slots.into_iter().filter_map(|slot| match &*slot.log.lock() {
            Some(OpenLog::Disk(log)) => Some(Arc::clone(log)),
            _ => None,
        });
        let logs: Vec<_> = logs.collect();
        blocking(move || logs.iter().map(|log| log.close()).fold(Ok(()), Result::and)).boxed()
    }
}

/// Runs what waits for the disk off the runtime's own threads.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, StoreError> + Send + 'static,
) -> Result<T, StoreError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|error| {
        Err(definite(StoreErrorCause::Io(format!("work on the disk did not end: {error}"))))
    })
}

#[cfg(test)]
mod tests;
