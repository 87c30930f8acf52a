//! The log on the local disk.
//!
//! Knows files, commits and what is durable. Does not know what records mean, beyond how large they are.
//!
//! # Layout
//!
//! ```text
//! DATA-DIR/
//!   lock                          empty; locked by the process that uses the directory
//!   format                        text: the version of this layout, now `1`, and a line feed
//!   reconnection-secret           32 random bytes, for its owner only
//!   hubs/HUB/                     a directory for each hub, by its name in lower case
//!     meta.redb                   epoch and checkpoints
//!     00000000000000000000.redb   the segment from offset 0 on
//!     00000000000000070000.redb   the segment from offset 70,000 on
//! ```
//! Whatever ends in `.tmp` was left unfinished by a stop and is removed: each file is made aside, synced, and then given
//! its name.
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
mod checkpoints;
mod committer;
mod directory;
mod disk;
mod group;
mod keeper;
mod live;
mod log;
mod meta;
mod offline;
mod segment;
mod segments;
mod table;
mod tail;

pub use offline::{Found, HubReport, OfflineStore, SegmentReport, new_epoch};

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use oncewire_protocol::wire::HubName;
use parking_lot::Mutex;
use tokio::sync::OnceCell;

use super::{Log, MemoryStore, Store, StoreError, StoreErrorCause};
use crate::config::Durability;
use committer::SegmentLimits;
use directory::DataDirectory;
use disk::{Disk, SystemDisk};
use log::{EmbeddedLog, LogOptions};
use table::definite;

/// What redb may keep in memory of a file that is checked, in bytes.
const CHECK_CACHE_BYTES: usize = 16 * 1024 * 1024;
/// How long checkpoints have not changed when a hub is taken to be at rest.
const KEEPER_REST: Duration = Duration::from_secs(10);

/// Logs in a data directory.
pub struct EmbeddedStore {
    directory: Arc<DataDirectory>,
    environment: Environment,
    durability: Box<dyn Fn(&HubName) -> Durability + Send + Sync>,
    memory: MemoryStore,
    logs: Mutex<HashMap<HubName, Arc<OnceCell<OpenLog>>>>,
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
    keeper_rest: Duration,
}

impl Environment {
    fn system() -> Self {
        Self {
            disk: Arc::new(SystemDisk),
            boot_id: kernel_boot_id(),
            limits: SegmentLimits::default(),
            keeper_rest: KEEPER_REST,
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
        Ok(Self {
            directory,
            environment,
            durability: Box::new(durability),
            memory: MemoryStore::default(),
            logs: Mutex::default(),
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

    async fn open_log(&self, hub: &HubName) -> Result<OpenLog, StoreError> {
        let durability = (self.durability)(hub);
        let directory = Arc::clone(&self.directory);
        let environment = self.environment.clone();
        if durability == Durability::Memory {
            let path = directory.hub_path(hub);
            blocking(move || if path.exists() { log::abandon(environment.disk, &path) } else { Ok(()) })
                .await?;
            return self.memory.open(hub).await.map(OpenLog::Memory);
        }
        let hub = hub.clone();
        let open = move || {
            let path = directory.create_hub(&hub)?;
            let Environment { disk, boot_id, limits, keeper_rest } = environment;
            let syncs = durability == Durability::Sync;
            let options = LogOptions { syncs, limits, keeper_rest, boot_id };
            EmbeddedLog::open(directory, disk, &path, options)
        };
        Ok(OpenLog::Disk(Arc::new(blocking(open).await?)))
    }
}

impl Store for EmbeddedStore {
    fn open(&self, hub: &HubName) -> BoxFuture<'_, Result<Arc<dyn Log>, StoreError>> {
        let cell = Arc::clone(self.logs.lock().entry(hub.clone()).or_default());
        let hub = hub.clone();
        async move {
            let log = cell.get_or_try_init(|| self.open_log(&hub)).await?;
            Ok(match log {
                OpenLog::Disk(log) => Arc::clone(log) as Arc<dyn Log>,
                OpenLog::Memory(log) => Arc::clone(log),
            })
        }
        .boxed()
    }

    fn hubs(&self) -> BoxFuture<'_, Result<Vec<HubName>, StoreError>> {
        let directory = Arc::clone(&self.directory);
        blocking(move || directory.hubs()).boxed()
    }

    fn close(&self) -> BoxFuture<'_, Result<(), StoreError>> {
        let cells: Vec<_> = self.logs.lock().values().cloned().collect();
        let logs = cells.into_iter().filter_map(|cell| match cell.get() {
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
