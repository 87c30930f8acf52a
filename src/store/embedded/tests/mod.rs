//! The embedded store against the contract, and against what disks and machines do.

mod copies;
mod epoch;
mod faulty_disk;
mod format;
mod full_disk;
mod hubs;
mod kill;
mod limits;
mod power;

use std::path::PathBuf;

use futures_util::stream::StreamExt as _;
use oncewire_protocol::log::{Body, BootId, Offset, Proposer, Published, Record, Time};
use oncewire_protocol::wire::{Metadata, Payload, PayloadKind};
use tempfile::TempDir;

use super::*;
use crate::store::conformance::OneByOne;
use crate::store::{Checkpoint, CheckpointChange};

/// A store in a directory of its own.
struct Bench {
    directory: TempDir,
    environment: Environment,
    durability: Durability,
}

impl Bench {
    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            environment: Environment::system(),
            durability: Durability::Sync,
        }
    }

    fn with_disk(disk: impl Disk) -> Self {
        let mut bench = Self::new();
        bench.environment.disk = Arc::new(disk);
        bench
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn hub_path(&self) -> PathBuf {
        self.path().join("hubs/chat")
    }

    fn store(&self) -> Result<EmbeddedStore, StoreError> {
        let durability = self.durability;
        EmbeddedStore::open_in(self.path(), self.environment.clone(), move |_| durability)
    }

    async fn open(&self) -> Result<Opened, StoreError> {
        let store = self.store()?;
        let log = store.open(&chat()).await?;
        Ok(Opened { log, store })
    }

    /// The files of the hub's segments.
    fn segments(&self) -> Vec<PathBuf> {
        let mut segments: Vec<_> = std::fs::read_dir(self.hub_path())
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| !path.ends_with("meta.redb"))
            .collect();
        segments.sort();
        segments
    }
}

/// A store and the log of its only hub.
struct Opened {
    log: Arc<dyn Log>,
    store: EmbeddedStore,
}

impl Opened {
    /// Appends, and tells at which offsets; nobody else may append meanwhile.
    async fn append(&self, numbers: std::ops::Range<u64>, bytes: usize) -> Result<Vec<Offset>, StoreError> {
        let count = numbers.end - numbers.start;
        self.log.append(numbers.map(|number| published(number, bytes)).collect()).await?;
        let end = self.log.end_now().await?.0;
        Ok((end - count..end).map(Offset).collect())
    }

    /// All that is in the log: offset and number.
    async fn numbers(&self) -> Vec<(u64, u64)> {
        let bounds = self.log.bounds().await.unwrap();
        let mut tail = self.log.tail(bounds.first);
        let mut read = Vec::new();
        while (read.len() as u64) < bounds.end.0 - bounds.first.0 {
            let portion = tail.next().await.unwrap().unwrap();
            read.extend(portion.into_iter().map(|(offset, record)| (offset.0, number(&record))));
        }
        read
    }

    async fn close(self) {
        self.store.close().await.unwrap();
    }
}

fn chat() -> HubName {
    HubName::new("Chat").unwrap()
}

/// A record with a payload of about so many bytes, none of which a compressing file system makes less of.
fn published(number: u64, bytes: usize) -> Arc<Record> {
    let mut payload = number.to_le_bytes().to_vec();
    let mut noise = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    while payload.len() < bytes {
        noise ^= noise << 13;
        noise ^= noise >> 7;
        noise ^= noise << 17;
        payload.extend_from_slice(&noise.to_le_bytes());
    }
    Arc::new(Record {
        key: Proposer::first_key(BootId(1)),
        time: Time(number),
        sequence_ack: None,
        body: Body::Published(Published {
            publisher: None,
            user_id: None,
            groups: Vec::new(),
            no_echo: false,
            ttl_seconds: 0,
            payload: Payload { kind: PayloadKind::Binary, bytes: payload.into() },
            metadata: Metadata::default(),
        }),
    })
}

/// The number of a record, when its payload is what it was made with.
fn number(record: &Record) -> u64 {
    let Body::Published(Published { payload, .. }) = &record.body else { panic!("{record:?}") };
    let expected = published(record.time.0, payload.bytes.len());
    assert_eq!(record, &*expected, "a record that nobody wrote");
    record.time.0
}

fn save(key: &str, covers: u64, bytes: usize) -> CheckpointChange {
    let bytes = vec![covers as u8; bytes].into();
    CheckpointChange::Save { key: key.to_owned(), covers: Offset(covers), bytes }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_embedded_store_keeps_the_contract() {
    for durability in [Durability::Sync, Durability::Os, Durability::Memory] {
        let directories = Mutex::new(Vec::new());
        crate::store::conformance::run(|| async {
            let directory = tempfile::tempdir().unwrap();
            let store = EmbeddedStore::open(directory.path(), move |_| durability).unwrap();
            directories.lock().push(directory);
            Arc::new(store) as Arc<dyn Store>
        })
        .await;
    }
}

#[tokio::test]
async fn everything_is_there_after_a_restart() {
    let bench = Bench::new();
    let opened = bench.open().await.unwrap();
    let epoch = opened.log.epoch().await.unwrap();
    let secret = opened.store.reconnection_secret().unwrap();
    opened.append(0..100, 200).await.unwrap();
    opened.append(100..101, 3_000_000).await.unwrap();
    opened.log.checkpoint(vec![save("a", 5, 70_000), save("b", 6, 1)]).await.unwrap();
    drop(opened);
    let again = bench.open().await.unwrap();
    assert_eq!(again.log.epoch().await.unwrap(), epoch);
    assert_eq!(again.store.reconnection_secret().unwrap(), secret);
    assert_eq!(again.numbers().await, (0..101).map(|n| (n, n)).collect::<Vec<_>>());
    assert_eq!(again.log.list().await.unwrap(), ["a", "b"]);
    assert_eq!(again.log.load("a").await.unwrap().unwrap().bytes.len(), 70_000);
    assert_eq!(again.append(101..102, 10).await.unwrap(), [Offset(101)]);
    assert_eq!(again.store.hubs().await.unwrap(), [chat()]);
}

#[tokio::test]
async fn a_closed_log_takes_nothing_and_still_reads() {
    let bench = Bench::new();
    let opened = bench.open().await.unwrap();
    let late = opened.append(0..10, 200);
    late.await.unwrap();
    opened.store.close().await.unwrap();
    opened.store.close().await.unwrap();
    let error = opened.append(10..11, 200).await.unwrap_err();
    assert_eq!(error.cause, StoreErrorCause::Closed);
    let error = opened.log.checkpoint(vec![save("a", 1, 1)]).await.unwrap_err();
    assert_eq!(error.cause, StoreErrorCause::Closed);
    assert_eq!(opened.numbers().await.len(), 10);
    assert_eq!(opened.log.list().await.unwrap(), [""; 0]);
}

#[tokio::test]
async fn segments_roll_when_full_and_go_when_trimmed() {
    let mut bench = Bench::new();
    bench.environment.limits = SegmentLimits { bytes_max: 400_000, trimmed_bytes_min: 400_000 };
    let opened = bench.open().await.unwrap();
    for n in 0..40 {
        opened.append(n * 10..n * 10 + 10, 8000).await.unwrap();
    }
    let all = bench.segments().len();
    assert!(all >= 5, "{all} segments for 3.2 MB");
    assert_eq!(opened.numbers().await.len(), 400);
    opened.log.trim(Offset(200)).await.unwrap();
    let first = opened.log.bounds().await.unwrap().first;
    assert!(first.0 > 100 && first.0 <= 200, "{first:?}");
    assert!(bench.segments().len() < all);
    let numbers = opened.numbers().await;
    assert_eq!(numbers, (first.0..400).map(|n| (n, n)).collect::<Vec<_>>());
    drop(opened);
    let again = bench.open().await.unwrap();
    assert_eq!(again.log.bounds().await.unwrap().first, first);
    assert_eq!(again.numbers().await, numbers);
}

#[tokio::test]
async fn a_log_that_is_trimmed_as_it_grows_keeps_little() {
    let mut bench = Bench::new();
    bench.environment.limits = SegmentLimits { bytes_max: 64_000_000, trimmed_bytes_min: 400_000 };
    let opened = bench.open().await.unwrap();
    for n in 0..200 {
        let offsets = opened.append(n * 10..n * 10 + 10, 8000).await.unwrap();
        opened.log.trim(offsets[0]).await.unwrap();
    }
    let bytes: u64 = bench.segments().iter().map(|path| path.metadata().unwrap().len()).sum();
    assert!(bytes < 3_000_000, "{bytes} bytes for the last 10 of 2,000 records with 16 MB");
    opened.log.trim(Offset(u64::MAX)).await.unwrap();
    // The roll is the committer's: the next append comes behind it.
    opened.append(2000..2001, 10).await.unwrap();
    opened.log.trim(Offset(2000)).await.unwrap();
    assert_eq!(opened.numbers().await, [(2000, 2000)]);
    drop(opened);
    assert_eq!(bench.open().await.unwrap().log.bounds().await.unwrap().end, Offset(2001));
}

#[tokio::test]
async fn a_checkpoint_file_that_has_shrunk_is_written_anew() {
    let bench = Bench::new();
    let opened = bench.open().await.unwrap();
    let epoch = opened.log.epoch().await.unwrap();
    let large = (0..400).map(|n| save(&format!("chunk/{n}"), n, 65_000)).collect();
    opened.log.checkpoint(large).await.unwrap();
    let meta = bench.hub_path().join("meta.redb");
    let before = meta.metadata().unwrap().len();
    assert!(before > 26_000_000, "{before}");
    let gone = (1..400).map(|n| CheckpointChange::Delete { key: format!("chunk/{n}") }).collect();
    opened.log.checkpoint(gone).await.unwrap();
    let after = meta.metadata().unwrap().len();
    assert!(after < 1_000_000, "{after} of {before}");
    opened.log.checkpoint(vec![save("last", 1, 10)]).await.unwrap();
    drop(opened);
    let again = bench.open().await.unwrap();
    assert_eq!(again.log.epoch().await.unwrap(), epoch);
    assert_eq!(again.log.list().await.unwrap(), ["chunk/0", "last"]);
}

#[tokio::test]
async fn checkpoints_at_rest_take_at_most_half_as_much_again_as_their_content() {
    const MESSAGES: u64 = 10_000;
    const CHUNKS: u64 = 1_000;
    let mut bench = Bench::new();
    bench.environment.thread_rest = Duration::from_millis(200);
    let opened = bench.open().await.unwrap();
    for round in 0..3 {
        for first in (0..MESSAGES).step_by(250) {
            let messages = (first..first + 250).map(|n| save(&format!("message/{n}"), n, 1_060));
            let chunks = (first / 10..first / 10 + 25).map(|n| save(&format!("chunk/{n}"), round, 6_600));
            opened.log.checkpoint(messages.chain(chunks).collect()).await.unwrap();
        }
    }
    let content_bytes = MESSAGES * 1_060 + CHUNKS * 6_600;
    let meta = bench.hub_path().join("meta.redb");
    let file_bytes = || meta.metadata().unwrap().len();
    let shrunk = async || {
        while 2 * file_bytes() > 3 * content_bytes {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let before = file_bytes();
    assert!(before > 2 * content_bytes, "{before}: nothing to give back");
    shrunk().await;
    opened.log.checkpoint(vec![save("last", 1, 10)]).await.unwrap();
    drop(opened);
    let again = bench.open().await.unwrap();
    assert_eq!(again.log.list().await.unwrap().len() as u64, MESSAGES + CHUNKS + 1);
    // Writing has made it larger again.
    shrunk().await;
}

#[tokio::test]
async fn a_directory_serves_one_store_at_a_time() {
    let bench = Bench::new();
    let first = bench.store().unwrap();
    let in_use = StoreErrorCause::Locked(bench.path().display().to_string());
    assert_eq!(bench.store().err().unwrap().cause, in_use);
    assert_eq!(OfflineStore::open(bench.path()).unwrap_err().cause, in_use);
    assert_eq!(new_epoch(bench.path(), None, false).unwrap_err().cause, in_use);
    drop(first);
    bench.store().unwrap();
}

#[tokio::test]
async fn the_secret_is_for_its_owner_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let bench = Bench::new();
    let secret = bench.store().unwrap().reconnection_secret().unwrap();
    let path = bench.path().join("reconnection-secret");
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(bench.store().unwrap().reconnection_secret().unwrap(), secret);
    assert_ne!(Bench::new().store().unwrap().reconnection_secret().unwrap(), secret);
    std::fs::write(&path, b"short").unwrap();
    let error = bench.store().unwrap().reconnection_secret().unwrap_err();
    assert!(matches!(error.cause, StoreErrorCause::Damaged { .. }), "{error}");
}
