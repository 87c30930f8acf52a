//! When a hub begins anew, and when it must not.

use super::*;
use crate::store::conformance::OneByOne;

/// A bench whose kernel says that this is a certain boot.
fn bench(boot_id: Option<&str>, durability: Durability) -> Bench {
    let mut bench = Bench::new();
    bench.durability = durability;
    bench.environment.boot_id = boot_id.map(str::to_owned);
    bench
}

fn rebooted(bench: Bench, boot_id: Option<&str>, durability: Durability) -> Bench {
    let boot_id = boot_id.map(str::to_owned);
    Bench { durability, environment: Environment { boot_id, ..bench.environment }, ..bench }
}

/// Writes something and goes away in good order or as if killed.
async fn write(bench: &Bench, is_closed: bool) -> oncewire_protocol::log::LogEpoch {
    let opened = bench.open().await.unwrap();
    opened.append(0..5, 200).await.unwrap();
    opened.log.checkpoint(vec![save("a", 3, 10)]).await.unwrap();
    let epoch = opened.log.epoch().await.unwrap();
    if is_closed {
        opened.close().await;
    } else {
        forget(bench, opened);
    }
    epoch
}

/// Leaves the files as a kill leaves them, and lets the directory go.
fn forget(bench: &Bench, opened: Opened) {
    let copy = tempfile::tempdir().unwrap();
    let files: Vec<_> =
        std::fs::read_dir(bench.hub_path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    for file in &files {
        std::fs::copy(file, copy.path().join(file.file_name().unwrap())).unwrap();
    }
    drop(opened);
    for file in &files {
        std::fs::copy(copy.path().join(file.file_name().unwrap()), file).unwrap();
    }
}

async fn is_kept(bench: &Bench, epoch: oncewire_protocol::log::LogEpoch) -> bool {
    let opened = bench.open().await.unwrap();
    let records = opened.numbers().await.len();
    let checkpoints = opened.log.list().await.unwrap().len();
    let is_same = opened.log.epoch().await.unwrap() == epoch;
    assert_eq!((records, checkpoints), if is_same { (5, 1) } else { (0, 0) });
    is_same
}

#[tokio::test]
async fn unsynced_history_survives_a_kill_and_not_a_reboot() {
    use Durability::{Os, Sync};
    // Durability before, closed in good order, boot after, durability after: kept?
    let cases = [
        (Os, false, Some("one"), Os, true),
        (Os, false, Some("one"), Sync, true),
        (Os, false, Some("two"), Os, false),
        (Os, false, Some("two"), Sync, false),
        (Os, false, None, Os, false),
        (Os, true, Some("two"), Os, true),
        (Os, true, None, Sync, true),
        (Sync, false, Some("two"), Sync, true),
        (Sync, false, Some("two"), Os, true),
        (Sync, true, None, Os, true),
    ];
    for case in cases {
        let (before, is_closed, boot_id, after, expected) = case;
        let bench = bench(Some("one"), before);
        let epoch = write(&bench, is_closed).await;
        let bench = rebooted(bench, boot_id, after);
        assert_eq!(is_kept(&bench, epoch).await, expected, "{case:?}");
    }
}

#[tokio::test]
async fn a_kernel_that_does_not_say_its_boot_is_trusted_only_after_a_close() {
    for (is_closed, expected) in [(true, true), (false, false)] {
        let bench = bench(None, Durability::Os);
        let epoch = write(&bench, is_closed).await;
        assert_eq!(is_kept(&bench, epoch).await, expected);
    }
}

#[tokio::test]
async fn once_synced_history_survives_every_later_reboot() {
    let bench = bench(Some("one"), Durability::Os);
    let epoch = write(&bench, false).await;
    let bench = rebooted(bench, Some("one"), Durability::Sync);
    let opened = bench.open().await.unwrap();
    forget(&bench, opened);
    let bench = rebooted(bench, Some("two"), Durability::Sync);
    assert!(is_kept(&bench, epoch).await);
}

#[tokio::test]
async fn a_hub_in_memory_forgets_what_the_disk_had() {
    let bench = bench(Some("one"), Durability::Sync);
    let epoch = write(&bench, true).await;
    let bench = rebooted(bench, Some("one"), Durability::Memory);
    let opened = bench.open().await.unwrap();
    opened.append(0..5, 10).await.unwrap();
    opened.close().await;
    let bench = rebooted(bench, Some("one"), Durability::Sync);
    assert!(!is_kept(&bench, epoch).await);
}

#[tokio::test]
async fn a_new_epoch_empties_all_hubs_and_keeps_the_secret() {
    let bench = bench(Some("one"), Durability::Sync);
    let secret = bench.store().unwrap().reconnection_secret().unwrap();
    let epoch = write(&bench, false).await;
    let other = HubName::new("other").unwrap();
    bench.store().unwrap().open(&other).await.unwrap();
    assert_eq!(new_epoch(bench.path(), None, false).unwrap(), [chat(), other]);
    assert!(!is_kept(&bench, epoch).await);
    assert_eq!(bench.store().unwrap().reconnection_secret().unwrap(), secret);
}

#[tokio::test]
async fn a_wiped_directory_has_another_epoch_and_another_secret() {
    let bench = bench(Some("one"), Durability::Sync);
    let secret = bench.store().unwrap().reconnection_secret().unwrap();
    let epoch = write(&bench, true).await;
    std::fs::remove_dir_all(bench.path()).unwrap();
    assert!(!is_kept(&bench, epoch).await);
    assert_ne!(bench.store().unwrap().reconnection_secret().unwrap(), secret);
}
