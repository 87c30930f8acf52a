//! Hubs that come and go: which there are, what is no part of them, and how one is removed.

use std::fs;

use super::super::disk::{DiskDirectory, DiskFile};
use super::*;

fn other() -> HubName {
    HubName::new("other").unwrap()
}

/// A bench whose hubs `chat` and `other` have records.
async fn two_hubs() -> Bench {
    let bench = Bench::new();
    let opened = bench.open().await.unwrap();
    opened.append(0..5, 200).await.unwrap();
    let log = opened.store.open(&other()).await.unwrap();
    log.append(vec![published(0, 10)]).await.unwrap();
    opened.close().await;
    bench
}

#[tokio::test]
async fn a_stray_file_or_folder_is_passed_over() {
    let bench = two_hubs().await;
    let hub = bench.hub_path();
    for file in
        ["notes.txt", "notes.txt.tmp", "meta.redb.bak", "x0.redb", ".redb", "00000000000000000005.redb.orig"]
    {
        fs::write(hub.join(file), "stray").unwrap();
        fs::write(bench.path().join(file), "stray").unwrap();
        fs::write(bench.path().join("hubs").join(file), "stray").unwrap();
    }
    // One of them has a name that a hub could have, another that of a file which a stop left unfinished.
    for folder in ["hubs/empty", "hubs/lost+found", "hubs/chat/folder", "hubs/chat/folder.tmp", "lost+found"]
    {
        fs::create_dir(bench.path().join(folder)).unwrap();
    }
    let opened = bench.open().await.unwrap();
    assert_eq!(opened.numbers().await.len(), 5);
    assert_eq!(opened.store.hubs().await.unwrap(), [chat(), other()]);
    opened.append(5..6, 200).await.unwrap();
    opened.close().await;
    let offline = OfflineStore::open(bench.path()).unwrap();
    assert_eq!(offline.hubs(None).unwrap(), [chat(), other()]);
    let report = offline.read(&chat(), |_| {});
    assert_eq!((report.damages, report.segments.len()), (Vec::new(), 1));
    drop(offline);
    new_epoch(bench.path(), None, false).unwrap();
    assert_eq!(
        fs::read(hub.join("notes.txt.tmp")).unwrap(),
        b"stray",
        "what is not the store's is left alone"
    );
}

#[tokio::test]
async fn a_segment_that_is_not_there_is_noticed_whatever_lies_in_its_place() {
    let mut bench = Bench::new();
    bench.environment.limits = SegmentLimits { bytes_max: 1, trimmed_bytes_min: u64::MAX };
    let opened = bench.open().await.unwrap();
    for n in 0..6 {
        opened.append(n..n + 1, 200).await.unwrap();
    }
    opened.close().await;
    let segments = bench.segments();
    assert!(segments.len() >= 3, "{segments:?}");
    let mut renamed = segments[1].clone().into_os_string();
    renamed.push(".orig");
    fs::rename(&segments[1], renamed).unwrap();
    let opened = bench.open().await.unwrap();
    let mut tail = opened.log.tail(Offset(0));
    let error = loop {
        match tail.next().await.unwrap() {
            Ok(_) => {}
            Err(error) => break error,
        }
    };
    assert!(matches!(error.cause, StoreErrorCause::Damaged { .. }), "{error}");
}

#[tokio::test]
async fn a_new_epoch_of_one_hub_leaves_the_others_as_they_are() {
    let bench = two_hubs().await;
    let epochs = async || {
        let opened = bench.open().await.unwrap();
        let kept = opened.store.open(&other()).await.unwrap();
        let epochs = (opened.log.epoch().await.unwrap(), kept.epoch().await.unwrap());
        assert_eq!(kept.bounds().await.unwrap().end, Offset(1));
        opened.close().await;
        epochs
    };
    let before = epochs().await;
    assert_eq!(new_epoch(bench.path(), Some(&chat()), false).unwrap(), [chat()]);
    let after = epochs().await;
    assert_ne!(after.0, before.0);
    assert_eq!(after.1, before.1);
}

#[tokio::test]
async fn commands_name_a_hub_that_is_not_there() {
    let bench = two_hubs().await;
    fs::create_dir(bench.path().join("hubs/empty")).unwrap();
    for name in ["nobody", "empty"] {
        let hub = HubName::new(name).unwrap();
        let directory = bench.path().display().to_string();
        let missing = StoreErrorCause::NoSuchHub { hub: name.to_owned(), directory };
        assert_eq!(new_epoch(bench.path(), Some(&hub), false).unwrap_err().cause, missing);
        assert_eq!(remove_hub(bench.path(), &hub).unwrap_err().cause, missing);
        let offline = OfflineStore::open(bench.path()).unwrap();
        assert_eq!(offline.hubs(Some(&hub)).unwrap_err().cause, missing);
    }
}

#[tokio::test]
async fn a_removed_hub_is_gone_and_begins_anew() {
    let bench = two_hubs().await;
    let epoch = {
        let opened = bench.open().await.unwrap();
        let epoch = opened.log.epoch().await.unwrap();
        opened.close().await;
        epoch
    };
    remove_hub(bench.path(), &chat()).unwrap();
    assert!(!bench.hub_path().exists());
    let store = bench.store().unwrap();
    assert_eq!(store.hubs().await.unwrap(), [other()]);
    drop(store);
    let opened = bench.open().await.unwrap();
    assert_ne!(opened.log.epoch().await.unwrap(), epoch);
    assert_eq!(opened.numbers().await, []);
}

#[tokio::test]
async fn a_damaged_hub_can_be_removed_and_what_is_not_the_stores_stays() {
    for damage in ["meta.redb", "00000000000000000000.redb"] {
        let bench = two_hubs().await;
        fs::write(bench.hub_path().join(damage), "nonsense").unwrap();
        fs::write(bench.hub_path().join("notes.txt"), "mine").unwrap();
        assert!(bench.open().await.is_err());
        remove_hub(bench.path(), &chat()).unwrap();
        assert_eq!(bench.store().unwrap().hubs().await.unwrap(), [other()]);
        let left: Vec<_> =
            fs::read_dir(bench.hub_path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["notes.txt"]);
        assert_eq!(bench.open().await.unwrap().numbers().await, []);
    }
}

#[tokio::test]
async fn a_hub_whose_epoch_is_lost_is_damaged() {
    let bench = two_hubs().await;
    fs::remove_file(bench.hub_path().join("meta.redb")).unwrap();
    let error = bench.open().await.err().unwrap();
    assert!(matches!(error.cause, StoreErrorCause::Damaged { .. }), "{error}");
    assert_eq!(bench.store().unwrap().hubs().await.unwrap(), [chat(), other()]);
    new_epoch(bench.path(), Some(&chat()), false).unwrap();
    assert_eq!(bench.open().await.unwrap().numbers().await, []);
}

#[tokio::test]
async fn a_hub_whose_only_segment_was_missing_began_anew_and_nobody_was_told() {
    let bench = two_hubs().await;
    for base in super::super::directory::segment_bases(&bench.hub_path()).unwrap() {
        fs::remove_file(segment::path(&bench.hub_path(), base)).unwrap();
    }
    let error = bench.open().await.err().unwrap();
    assert!(error.to_string().contains("all segments of the log are missing"), "{error}");
    let report = OfflineStore::open(bench.path()).unwrap().read(&chat(), |_| {});
    assert!(matches!(report.damages[..], [StoreErrorCause::Damaged { .. }]), "{report:?}");
    assert_eq!(bench.store().unwrap().hubs().await.unwrap(), [chat(), other()]);
    new_epoch(bench.path(), Some(&chat()), false).unwrap();
    assert_eq!(bench.open().await.unwrap().numbers().await, []);
}

/// Fails for good once so many files have been removed or renamed.
#[derive(Debug)]
struct Dying(Mutex<u32>);

impl Dying {
    fn live(&self) -> std::io::Result<()> {
        let mut left = self.0.lock();
        *left = left.checked_sub(1).ok_or_else(|| std::io::Error::other("killed"))?;
        Ok(())
    }
}

impl Disk for Dying {
    fn create(&self, path: &Path) -> std::io::Result<Arc<dyn DiskFile>> {
        SystemDisk.create(path)
    }
    fn open(&self, path: &Path) -> std::io::Result<Arc<dyn DiskFile>> {
        SystemDisk.open(path)
    }
    fn open_read_only(&self, path: &Path) -> std::io::Result<Arc<dyn DiskFile>> {
        SystemDisk.open_read_only(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        self.live().and_then(|()| SystemDisk.rename(from, to))
    }
    fn remove(&self, path: &Path) -> std::io::Result<()> {
        self.live().and_then(|()| SystemDisk.remove(path))
    }
    fn open_directory(&self, path: &Path) -> std::io::Result<Arc<dyn DiskDirectory>> {
        SystemDisk.open_directory(path)
    }
}

#[tokio::test]
async fn a_removal_that_is_interrupted_leaves_the_hub_as_it_was_or_gone() {
    for steps in 0.. {
        let bench = two_hubs().await;
        let directory = DataDirectory::open(bench.path(), Arc::new(Dying(Mutex::new(steps)))).unwrap();
        let is_removed = directory.remove_hub(&chat()).is_ok();
        drop(directory);
        let opened = bench.open().await.unwrap();
        let records = opened.numbers().await.len();
        assert_eq!(records, if steps == 0 { 5 } else { 0 }, "after {steps} steps");
        assert!(!bench.hub_path().join("removed.redb").exists());
        if is_removed {
            assert_eq!(steps, 3, "one file is renamed, two are removed");
            return;
        }
    }
}
