//! Disks that are full, broken or only to be read.

use std::process::Command;

use oncewire_protocol::log::Certainty;

use super::faulty_disk::{Faults, FaultyDisk};
use super::*;
use crate::store::conformance::OneByOne;

/// A small file system of its own, while it lives.
struct Mount {
    directory: TempDir,
    /// What it is on.
    _image: TempDir,
}

#[derive(Debug, Clone, Copy)]
enum FileSystem {
    Tmpfs,
    Ext4,
}

impl Mount {
    /// None, with the reason on standard error, where this user may not mount or the machine lacks what it takes.
    fn new(file_system: FileSystem) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let image = tempfile::tempdir().unwrap();
        let file = image.path().join("image");
        let mounted = match file_system {
            FileSystem::Tmpfs => {
                command("mount", &["-t", "tmpfs", "-o", "size=6m", "tmpfs"], &[directory.path()])
            }
            FileSystem::Ext4 => std::fs::File::create(&file)
                .and_then(|image| image.set_len(8 << 20))
                .map_err(|error| error.to_string())
                .and_then(|()| command("mkfs.ext4", &["-q", "-m", "0"], &[&file]))
                .and_then(|()| command("mount", &["-t", "ext4", "-o", "loop"], &[&file, directory.path()])),
        };
        match mounted {
            Ok(()) => Some(Self { directory, _image: image }),
            Err(reason) => {
                eprintln!("skipped: a small {file_system:?} cannot be mounted here: {reason}");
                None
            }
        }
    }

    fn remount(&self, options: &str) {
        command("mount", &["-o", &format!("remount,{options}")], &[self.directory.path()]).unwrap();
    }

    fn store(&self, limits: SegmentLimits) -> Result<EmbeddedStore, StoreError> {
        let environment = Environment { limits, ..Environment::system() };
        EmbeddedStore::open_in(&self.directory.path().join("data"), environment, |_| Durability::Sync)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.directory.path()).status();
    }
}

fn command(program: &str, arguments: &[&str], paths: &[&Path]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).args(paths).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr)))
}

fn assert_full(error: &StoreError) {
    assert!(matches!(error.cause, StoreErrorCause::Full(_)), "{error}");
    assert_eq!(error.certainty, oncewire_protocol::log::Certainty::Definite, "{error}");
    assert!(!error.is_fatal());
}

#[tokio::test]
async fn on_a_full_file_system_appends_are_refused_until_there_is_room() {
    for file_system in [FileSystem::Tmpfs, FileSystem::Ext4] {
        if let Some(mount) = Mount::new(file_system) {
            fill_and_make_room(&mount).await;
        }
    }
}

async fn fill_and_make_room(mount: &Mount) {
    let limits = SegmentLimits { bytes_max: 1_000_000, trimmed_bytes_min: 1_000_000 };
    let store = mount.store(limits).unwrap();
    let log = store.open(&chat()).await.unwrap();
    let opened = Opened { log, store };
    let mut tail = opened.log.tail(Offset(0));
    let mut accepted = Vec::new();
    let mut refused = 0;
    for number in 0..2000 {
        match opened.append(number..number + 1, 10_000).await {
            Ok(_) => accepted.push(number),
            Err(error) => {
                assert_full(&error);
                refused += 1;
            }
        }
        if refused == 50 {
            break;
        }
    }
    assert_eq!(refused, 50);
    assert!(accepted.len() > 150, "{} records of 10 KB in 6 MB", accepted.len());
    // Smaller ones may still find room, then none does.
    while let Ok(offsets) =
        opened.append(100_000 + accepted.len() as u64..100_001 + accepted.len() as u64, 8).await
    {
        assert_eq!(offsets, [Offset(accepted.len() as u64)]);
        accepted.push(100_000 + accepted.len() as u64);
    }
    // Reading goes on, and finds what was accepted and nothing else.
    let expected: Vec<_> = (0..).zip(accepted.iter().copied()).collect();
    assert_eq!(opened.numbers().await, expected);
    let mut tailed = 0;
    while tailed < accepted.len() {
        tailed += tail.next().await.unwrap().unwrap().len();
    }
    if let Err(error) = opened.log.checkpoint(vec![save("large", 1, 5_000_000)]).await {
        assert_full(&error);
    }
    assert_eq!(opened.log.list().await.unwrap(), [""; 0]);

    // Room comes back by trimming.
    opened.log.trim(Offset(accepted.len() as u64 - 20)).await.unwrap();
    let end = opened.log.bounds().await.unwrap().end.0;
    assert_eq!(opened.append(7..9, 10_000).await.unwrap(), [Offset(end), Offset(end + 1)]);
    opened.log.checkpoint(vec![save("small", 2, 100)]).await.unwrap();
    let numbers = opened.numbers().await;
    assert_eq!(numbers.last(), Some(&(end + 1, 8)));
    drop(opened);
    let store = mount.store(limits).unwrap();
    let log = store.open(&chat()).await.unwrap();
    let opened = Opened { log, store };
    assert_eq!(opened.numbers().await, numbers);
    assert_eq!(opened.log.list().await.unwrap(), ["small"]);
}

#[tokio::test]
async fn a_log_on_a_full_file_system_opens_and_reads() {
    for file_system in [FileSystem::Tmpfs, FileSystem::Ext4] {
        if let Some(mount) = Mount::new(file_system) {
            open_when_full(&mount).await;
        }
    }
}

async fn open_when_full(mount: &Mount) {
    let limits = SegmentLimits { bytes_max: 1_000_000, trimmed_bytes_min: 1_000_000 };
    let store = mount.store(limits).unwrap();
    let log = store.open(&chat()).await.unwrap();
    let opened = Opened { log, store };
    for number in 0..150 {
        opened.append(number..number + 1, 10_000).await.unwrap();
    }
    let filler = mount.directory.path().join("filler");
    let _ = std::fs::write(&filler, vec![1; 6_000_000]);
    drop(opened);
    let store = mount.store(limits).unwrap();
    let log = store.open(&chat()).await.unwrap();
    let opened = Opened { log, store };
    assert_eq!(opened.numbers().await.len(), 150);
    std::fs::remove_file(filler).unwrap();
    opened.append(150..151, 10_000).await.unwrap();
}

/// After a stop that was none in good order, redb has to repair its files before it can write.
#[tokio::test]
async fn a_disk_without_any_room_is_read_and_written_again_when_there_is_room() {
    let disk = FaultyDisk::default();
    let mut bench = Bench::with_disk(disk.clone());
    let opened = bench.open().await.unwrap();
    opened.append(0..10, 300).await.unwrap();
    opened.log.checkpoint(vec![save("a", 1, 10)]).await.unwrap();
    disk.cut_power();
    drop(opened);
    let disk = FaultyDisk::with(Faults { writes_find_no_room: true, ..Faults::default() });
    bench.environment.disk = Arc::new(disk.clone());
    let opened = bench.open().await.unwrap();
    assert_eq!(opened.numbers().await.len(), 10);
    assert_eq!(opened.log.list().await.unwrap(), ["a"]);
    assert_full(&opened.append(10..11, 300).await.unwrap_err());
    assert_full(&opened.log.checkpoint(vec![save("b", 2, 10)]).await.unwrap_err());
    disk.set(Faults::default());
    assert_eq!(opened.append(10..11, 300).await.unwrap(), [Offset(10)]);
    opened.log.checkpoint(vec![save("b", 2, 10)]).await.unwrap();
    drop(opened);
    let again = bench.open().await.unwrap();
    assert_eq!(again.numbers().await, (0..11).map(|n| (n, n)).collect::<Vec<_>>());
    assert_eq!(again.log.list().await.unwrap(), ["a", "b"]);
}

#[tokio::test]
async fn a_write_that_finds_no_room_is_refused_for_certain() {
    let disk = FaultyDisk::default();
    let bench = Bench::with_disk(disk.clone());
    let opened = bench.open().await.unwrap();
    opened.append(0..10, 300).await.unwrap();
    opened.log.checkpoint(vec![save("a", 1, 10)]).await.unwrap();
    disk.set(Faults { writes_find_no_room: true, ..Faults::default() });
    for number in 100..105 {
        assert_full(&opened.append(number..number + 1, 300).await.unwrap_err());
        assert_full(&opened.log.checkpoint(vec![save("b", 2, 10)]).await.unwrap_err());
    }
    assert_eq!(opened.numbers().await.len(), 10);
    assert_eq!(opened.log.list().await.unwrap(), ["a"]);
    disk.set(Faults::default());
    assert_eq!(opened.append(10..12, 300).await.unwrap(), [Offset(10), Offset(11)]);
    opened.log.checkpoint(vec![save("b", 2, 10)]).await.unwrap();
    drop(opened);
    let again = bench.open().await.unwrap();
    assert_eq!(again.numbers().await, (0..12).map(|n| (n, n)).collect::<Vec<_>>());
    assert_eq!(again.log.list().await.unwrap(), ["a", "b"]);
}

/// A write fails in the midst of a commit, at each of its writes in turn: the answer says what is there.
#[tokio::test]
async fn after_a_failed_write_the_answer_is_what_a_start_finds() {
    let (mut kept, mut refused) = (0, 0);
    for after in 0..60 {
        let disk = FaultyDisk::default();
        let bench = Bench::with_disk(disk.clone());
        let opened = bench.open().await.unwrap();
        opened.append(0..10, 300).await.unwrap();
        disk.set(Faults { writes_fail_after: Some(after), ..Faults::default() });
        let mut end = 10;
        for number in 10..16 {
            match opened.append(end..end + 1, 5000).await {
                Ok(offsets) => {
                    assert_eq!(offsets, [Offset(end)], "after {after} writes, record {number}");
                    end += 1;
                    kept += 1;
                }
                Err(error) => {
                    assert!(!error.is_fatal(), "{error}");
                    assert_eq!(error.certainty, oncewire_protocol::log::Certainty::Definite, "{error}");
                    refused += 1;
                }
            }
        }
        assert_eq!(opened.numbers().await.len() as u64, end, "after {after} writes");
        disk.lose_unsynced(after);
        drop(opened);
        let mut bench = bench;
        bench.environment.disk = Arc::new(FaultyDisk::default());
        let again = bench.open().await.unwrap();
        assert_eq!(
            again.numbers().await,
            (0..end).map(|n| (n, n)).collect::<Vec<_>>(),
            "after {after} writes"
        );
    }
    assert!(kept > 50 && refused > 50, "{kept} kept, {refused} refused");
}

#[tokio::test]
async fn after_a_failed_sync_nothing_is_taken_any_more() {
    let disk = FaultyDisk::default();
    let bench = Bench::with_disk(disk.clone());
    let opened = bench.open().await.unwrap();
    opened.append(0..10, 300).await.unwrap();
    disk.set(Faults { syncs_fail: true, ..Faults::default() });
    let error = opened.append(10..11, 300).await.unwrap_err();
    assert!(error.is_fatal(), "{error}");
    assert_eq!(error.certainty, oncewire_protocol::log::Certainty::Indefinite);
    assert!(error.to_string().contains("the disk is broken"), "{error}");
    disk.set(Faults::default());
    let error = opened.append(11..12, 300).await.unwrap_err();
    assert!(error.is_fatal(), "{error}");
    assert!(opened.log.checkpoint(vec![save("a", 1, 10)]).await.unwrap_err().is_fatal());
    assert_eq!(opened.numbers().await.len(), 10, "reading goes on");
}

#[tokio::test]
async fn a_failed_sync_of_checkpoints_ends_the_log_too() {
    let disk = FaultyDisk::default();
    let bench = Bench::with_disk(disk.clone());
    let opened = bench.open().await.unwrap();
    disk.set(Faults { syncs_fail: true, ..Faults::default() });
    assert!(opened.log.checkpoint(vec![save("a", 1, 10)]).await.unwrap_err().is_fatal());
    disk.set(Faults::default());
    assert!(opened.append(0..1, 300).await.unwrap_err().is_fatal());
}

/// Once the new segment has its name, a start would take it for the log's last one: nothing may go to the old one any more.
#[tokio::test]
async fn a_segment_whose_name_may_not_last_ends_the_store() {
    let disk = FaultyDisk::default();
    let mut bench = Bench::with_disk(disk.clone());
    bench.environment.limits.bytes_max = 10_000;
    let opened = bench.open().await.unwrap();
    opened.append(0..5, 300).await.unwrap();
    disk.set(Faults { directory_syncs_fail: true, ..Faults::default() });
    let mut acknowledged = 5;
    let failed = loop {
        match opened.append(acknowledged..acknowledged + 1, 3_000).await {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 100, "it goes on in a segment that is not the last");
    };
    assert!(failed.is_fatal(), "{failed}");
    disk.set(Faults::default());
    drop(opened);
    let opened = bench.open().await.unwrap();
    let kept: Vec<_> = opened.numbers().await.into_iter().map(|(_, number)| number).collect();
    assert!(kept.starts_with(&(0..acknowledged).collect::<Vec<_>>()), "{kept:?}");
}

#[tokio::test]
async fn running_out_of_descriptors_ends_no_store_and_loses_nothing() {
    // Wherever in the making of a segment it is that there is none left.
    for opens_left in 0..4 {
        let disk = FaultyDisk::default();
        let mut bench = Bench::with_disk(disk.clone());
        bench.environment.limits.bytes_max = 10_000;
        let opened = bench.open().await.unwrap();
        disk.set(Faults { opens_left: Some(opens_left), ..Faults::default() });
        for number in 0..20 {
            opened.append(number..number + 1, 3_000).await.unwrap();
        }
        disk.set(Faults::default());
        opened.append(20..30, 3_000).await.unwrap();
        opened.append(30..31, 3_000).await.unwrap();
        assert!(bench.segments().len() > 1, "once there are descriptors again, a new segment is begun");
        drop(opened);
        let opened = bench.open().await.unwrap();
        let kept: Vec<_> = opened.numbers().await.into_iter().map(|(_, number)| number).collect();
        assert_eq!(kept, (0..31).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn without_a_descriptor_the_outcome_of_a_failed_commit_is_known_all_the_same() {
    let disk = FaultyDisk::default();
    let bench = Bench::with_disk(disk.clone());
    let opened = bench.open().await.unwrap();
    opened.append(0..5, 300).await.unwrap();
    opened.log.checkpoint(vec![save("a", 1, 10)]).await.unwrap();
    let full = Faults { writes_find_no_room: true, opens_left: Some(0), ..Faults::default() };
    disk.set(full);
    let error = opened.append(5..6, 300).await.unwrap_err();
    assert_eq!((error.certainty, error.is_fatal()), (Certainty::Definite, false), "{error}");
    let error = opened.log.checkpoint(vec![save("b", 1, 10)]).await.unwrap_err();
    assert_eq!((error.certainty, error.is_fatal()), (Certainty::Definite, false), "{error}");
    disk.set(Faults::default());
    opened.append(5..6, 300).await.unwrap();
    opened.log.checkpoint(vec![save("b", 1, 10)]).await.unwrap();
    assert_eq!(opened.numbers().await.len(), 6);
}

#[tokio::test]
async fn a_directory_that_cannot_be_written_to_is_refused_and_can_be_inspected() {
    let Some(mount) = Mount::new(FileSystem::Tmpfs) else { return };
    let store = mount.store(SegmentLimits::default()).unwrap();
    let log = store.open(&chat()).await.unwrap();
    let opened = Opened { log, store };
    opened.append(0..10, 300).await.unwrap();
    drop(opened);
    mount.remount("ro");
    let error = mount.store(SegmentLimits::default()).err().unwrap();
    assert!(matches!(error.cause, StoreErrorCause::ReadOnly(_)), "{error}");
    let offline = OfflineStore::open(&mount.directory.path().join("data")).unwrap();
    let report = offline.read(&chat(), |_| {});
    assert_eq!((report.damages.len(), report.segments[0].end), (0, Offset(10)));
}
