//! Copies of a directory: of one in use and of one that is not, and those that were not finished.

use std::fs;

use super::super::disk::{DiskDirectory, DiskFile};
use super::faulty_disk::{Faults, FaultyDisk};
use super::*;
use crate::store::conformance::OneByOne;

fn other() -> HubName {
    HubName::new("other").unwrap()
}

/// A disk that calls a hook before each file is made, renamed or removed.
struct Watched<F>(F);

impl<F> std::fmt::Debug for Watched<F> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Watched")
    }
}

impl<F: Fn(&Path) + Send + Sync + 'static> Disk for Watched<F> {
    fn create(&self, path: &Path) -> std::io::Result<Arc<dyn DiskFile>> {
        self.0(path);
        SystemDisk.create(path)
    }
    fn open(&self, path: &Path) -> std::io::Result<Arc<dyn DiskFile>> {
        SystemDisk.open(path)
    }
    fn open_read_only(&self, path: &Path) -> std::io::Result<Arc<dyn DiskFile>> {
        SystemDisk.open_read_only(path)
    }
    fn rename(&self, from: &Path, to: &Path) -> std::io::Result<()> {
        self.0(to);
        SystemDisk.rename(from, to)
    }
    fn remove(&self, path: &Path) -> std::io::Result<()> {
        self.0(path);
        SystemDisk.remove(path)
    }
    fn open_directory(&self, path: &Path) -> std::io::Result<Arc<dyn DiskDirectory>> {
        SystemDisk.open_directory(path)
    }
}

/// The same with another disk.
fn on_disk(bench: Bench, disk: impl Disk) -> Bench {
    Bench { environment: Environment { disk: Arc::new(disk), ..bench.environment }, ..bench }
}

fn in_steps(bench: &mut Bench) {
    bench.environment.limits = SegmentLimits { bytes_max: 200_000, trimmed_bytes_min: 200_000 };
}

/// Copies while the store is in use; returns what was told.
async fn copy(store: &Arc<EmbeddedStore>, to: &Path) -> Result<Vec<(HubName, HubCopied)>, StoreError> {
    let (store, to) = (Arc::clone(store), to.to_owned());
    let copied = tokio::task::spawn_blocking(move || {
        let mut told = Vec::new();
        store.copy(&to, &AtomicBool::new(false), |hub, copied| told.push((hub.clone(), copied)))?;
        Ok(told)
    });
    copied.await.unwrap()
}

/// A bench over the copy in a directory.
fn copied(directory: TempDir) -> Bench {
    Bench { directory, ..Bench::new() }
}

/// A bench of one hub that is at rest, with records 0 to 39 in some segments and a checkpoint.
async fn written() -> Bench {
    written_on(SystemDisk).await
}

async fn written_on(disk: impl Disk) -> Bench {
    let mut bench = Bench::with_disk(disk);
    in_steps(&mut bench);
    let opened = bench.open().await.unwrap();
    for n in 0..4 {
        opened.append(n * 10..n * 10 + 10, 8000).await.unwrap();
    }
    opened.log.checkpoint(vec![save("a", 3, 70_000), save("b", 4, 1)]).await.unwrap();
    opened.close().await;
    bench
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_holds_what_there_was_and_says_that_it_is_one() {
    for is_open in [true, false] {
        let bench = written().await;
        fs::write(bench.path().join("self-signed.pem"), "pair").unwrap();
        fs::write(bench.path().join("notes.txt"), "stray").unwrap();
        let secret = bench.store().unwrap().reconnection_secret().unwrap();
        let store = Arc::new(bench.store().unwrap());
        let epoch = {
            let log = store.open(&chat()).await.unwrap();
            log.epoch().await.unwrap()
        };
        if !is_open {
            store.close_hub(&chat(), Time(5)).await.unwrap();
        }
        let to = TempDir::new().unwrap();
        let told = copy(&store, to.path()).await.unwrap();
        assert_eq!(told, [(chat(), HubCopied::Whole(40))]);
        assert_eq!(fs::read(to.path().join("self-signed.pem")).unwrap(), b"pair");
        assert!(!to.path().join("notes.txt").exists() && !to.path().join("copying").exists());

        let report = OfflineStore::open(to.path()).unwrap().read(&chat(), |_| {});
        assert_eq!((report.is_copy, report.damages.len(), report.checkpoints), (true, 0, 2));
        assert!(
            report.segments.len() > 1 && OfflineStore::open(to.path()).unwrap().read(&chat(), |_| {}).is_copy
        );
        let bench = copied(to);
        let opened = bench.open().await.unwrap();
        assert!(opened.log.is_copy());
        assert_eq!(opened.log.epoch().await.unwrap(), epoch, "its own begins once its sessions are over");
        assert_eq!(opened.numbers().await, (0..40).map(|n| (n, n)).collect::<Vec<_>>());
        assert_eq!(opened.log.load("a").await.unwrap().unwrap().bytes.len(), 70_000);
        assert_ne!(opened.store.reconnection_secret().unwrap(), secret);
        opened.append(40..41, 10).await.unwrap();
        opened.log.begin_epoch().await.unwrap();
        let begun = opened.log.epoch().await.unwrap();
        assert!(begun != epoch && !opened.log.is_copy());
        drop(opened);
        let opened = bench.open().await.unwrap();
        assert_eq!((opened.log.epoch().await.unwrap(), opened.log.is_copy()), (begun, false));
        assert_eq!(opened.numbers().await.len(), 41);
        // The original knows nothing of it.
        let log = store.open(&chat()).await.unwrap();
        assert_eq!(
            (log.epoch().await.unwrap(), log.is_copy(), log.bounds().await.unwrap().end),
            (epoch, false, Offset(40))
        );
    }
}

#[tokio::test]
async fn a_directory_that_nobody_uses_is_copied_too() {
    let bench = written().await;
    let to = TempDir::new().unwrap();
    let mut told = Vec::new();
    let offline = OfflineStore::open(bench.path()).unwrap();
    offline.copy(to.path(), |hub, copied| told.push((hub.clone(), copied))).unwrap();
    assert_eq!(told, [(chat(), HubCopied::Whole(40))]);
    // A copy of a copy is one as well.
    let again = TempDir::new().unwrap();
    OfflineStore::open(to.path()).unwrap().copy(again.path(), |_, _| {}).unwrap();
    let opened = copied(again);
    let opened = opened.open().await.unwrap();
    assert_eq!((opened.numbers().await.len(), opened.log.is_copy()), (40, true));
}

/// What is appended meanwhile may be in the copy or not; what was acknowledged before is.
#[tokio::test(flavor = "multi_thread")]
async fn a_copy_of_a_log_that_is_written_is_a_beginning_of_it() {
    let mut bench = Bench::new();
    in_steps(&mut bench);
    let opened = bench.open().await.unwrap();
    let (log, store) = (Arc::clone(&opened.log), Arc::new(opened.store));
    let (acknowledged, is_over) = (Arc::new(Mutex::new(0_u64)), Arc::new(AtomicBool::new(false)));
    let writer = tokio::spawn({
        let (acknowledged, is_over) = (Arc::clone(&acknowledged), Arc::clone(&is_over));
        async move {
            for n in 0_u64.. {
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
                log.append(vec![published(n, 5000)]).await.unwrap();
                let last = Offset(log.end_now().await.unwrap().0 - 1);
                log.checkpoint(vec![save("newest", last.0, 100)]).await.unwrap();
                *acknowledged.lock() = last.0 + 1;
                // Copies need what was there when they began.
                log.trim(Offset(last.0.saturating_sub(20))).await.unwrap();
            }
        }
    });
    for _ in 0..8 {
        while *acknowledged.lock() < 50 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let before = *acknowledged.lock();
        let to = TempDir::new().unwrap();
        copy(&store, to.path()).await.unwrap();
        let bench = copied(to);
        let opened = bench.open().await.unwrap();
        let numbers = opened.numbers().await;
        let first = opened.log.bounds().await.unwrap().first;
        assert_eq!(
            numbers,
            (first.0..opened.log.bounds().await.unwrap().end.0).map(|n| (n, n)).collect::<Vec<_>>()
        );
        assert!(numbers.len() as u64 + first.0 >= before, "an acknowledged record is missing");
        let covers = opened.log.load("newest").await.unwrap().unwrap().covers;
        assert!(covers.0 + 1 >= before && covers < opened.log.bounds().await.unwrap().end, "{covers:?}");
        assert!(first.0 <= covers.0.saturating_sub(20), "{first:?} is behind what was kept for {covers:?}");
    }
    is_over.store(true, Ordering::SeqCst);
    writer.await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_trimmed_while_it_is_copied_is_in_the_copy_and_goes_afterwards() {
    let bench = written().await;
    let log: Arc<Mutex<Option<Arc<dyn Log>>>> = Arc::default();
    let runtime = tokio::runtime::Handle::current();
    let hook = {
        let log = Arc::clone(&log);
        move |path: &Path| {
            // The first file of the hub in the copy.
            let is_first = path.ends_with("copy/hubs/chat/meta.redb.tmp");
            if let Some(log) = log.lock().clone().filter(|_| is_first) {
                runtime.block_on(log.trim(Offset(40))).unwrap();
                runtime.block_on(log.append(vec![published(40, 10)])).unwrap();
            }
        }
    };
    let bench = on_disk(bench, Watched(hook));
    let opened = bench.open().await.unwrap();
    *log.lock() = Some(Arc::clone(&opened.log));
    let store = Arc::new(opened.store);
    let place = TempDir::new().unwrap();
    let to = place.path().join("copy");
    copy(&store, &to).await.unwrap();
    let report = OfflineStore::open(&to).unwrap().read(&chat(), |_| {});
    assert_eq!((report.damages, report.segments[0].first), (Vec::new(), Offset(0)));
    assert!(report.segments.last().unwrap().end >= Offset(40));
    let trimmed = async {
        while opened.log.bounds().await.unwrap().first == Offset(0) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), trimmed)
        .await
        .expect("the original keeps what was trimmed");
    log.lock().take();
}

#[tokio::test]
async fn a_copy_is_made_only_where_nothing_is() {
    let bench = written().await;
    let offline = OfflineStore::open(bench.path()).unwrap();
    let place = TempDir::new().unwrap();
    fs::write(place.path().join("file"), "").unwrap();
    std::os::unix::fs::symlink(bench.path(), place.path().join("link")).unwrap();
    for (to, expected) in [
        (place.path().to_owned(), "it is not empty"),
        (place.path().join("file"), "it is no directory"),
        (bench.path().join("copy"), "it is within"),
        (bench.path().join("hubs/chat/a/b"), "it is within"),
        (place.path().join("link/copy"), "it is within"),
        (bench.path().to_owned(), "it is within"),
    ] {
        let error = offline.copy(&to, |_, _| {}).unwrap_err();
        let StoreErrorCause::BadTarget { place, what } = &error.cause else { panic!("{error}") };
        assert!(*place == to.display().to_string() && what.starts_with(expected), "{error}");
    }
    let before = fs::read_dir(bench.path()).unwrap().count();
    offline.copy(&place.path().join("new/deep"), |_, _| {}).unwrap();
    assert_eq!(fs::read_dir(bench.path()).unwrap().count(), before, "the original is as it was");
}

#[tokio::test]
async fn a_copy_that_a_kill_interrupts_anywhere_never_starts() {
    let bench = written().await;
    let place = TempDir::new().unwrap();
    let to = place.path().join("copy");
    let steps: Arc<Mutex<usize>> = Arc::default();
    // What is there before each step is what a kill would leave.
    let hook = {
        let (steps, to, kills) = (Arc::clone(&steps), to.clone(), place.path().to_owned());
        move |path: &Path| {
            if path.starts_with(&to) {
                let mut steps = steps.lock();
                super::format::copy(&to, &kills.join(format!("killed-{}", *steps)));
                *steps += 1;
            }
        }
    };
    let bench = on_disk(bench, Watched(hook));
    copy(&Arc::new(bench.store().unwrap()), &to).await.unwrap();
    let steps = *steps.lock();
    assert!(steps > 10, "{steps} steps");
    let mut finished = 0;
    for step in 0..steps {
        let directory = place.path().join(format!("killed-{step}"));
        let is_finished = directory.join("format").exists();
        let opened = EmbeddedStore::open(&directory, |_| Durability::Sync);
        if is_finished {
            // Only that it is being made is still said.
            let store = opened.unwrap();
            assert!(store.open(&chat()).await.unwrap().is_copy());
            finished += 1;
        } else if step > 1 {
            let expected = StoreErrorCause::UnfinishedCopy(directory.display().to_string());
            assert_eq!(opened.err().unwrap().cause, expected, "step {step}");
            assert_eq!(new_epoch(&directory, None, false).unwrap_err().cause, expected);
            assert_eq!(OfflineStore::open(&directory).unwrap_err().cause, expected);
        } else {
            assert_eq!(opened.unwrap().hubs().await.unwrap(), [], "there was nothing in it yet");
        }
    }
    assert_eq!(finished, 1);
}

#[tokio::test]
async fn a_copy_that_finds_no_room_leaves_nothing_and_the_original_goes_on() {
    let disk = FaultyDisk::default();
    let bench = written_on(disk.clone()).await;
    let opened = bench.open().await.unwrap();
    let store = Arc::new(opened.store);
    let place = TempDir::new().unwrap();
    let to = place.path().join("copy");
    let files = std::iter::once(bench.hub_path().join("meta.redb")).chain(bench.segments());
    let used: u64 = files.map(|file| file.metadata().unwrap().len()).sum();
    disk.set(Faults { bytes_max: Some(used + 200_000), ..Faults::default() });
    let error = copy(&store, &to).await.unwrap_err();
    assert!(matches!(error.cause, StoreErrorCause::Full(_)), "{error}");
    assert!(!to.exists());
    disk.set(Faults::default());
    opened.log.append(vec![published(40, 10)]).await.unwrap();
    assert_eq!(copy(&store, &to).await.unwrap(), [(chat(), HubCopied::Whole(41))]);
}

#[tokio::test]
async fn a_damaged_hub_is_left_out_and_named() {
    // The hub can't be opened with the one damage, and can with the other, until that segment is read.
    for (damage, can_be_opened) in [("meta.redb", false), ("00000000000000000000.redb", true)] {
        let bench = written().await;
        let opened = bench.open().await.unwrap();
        opened.store.open(&other()).await.unwrap().append(vec![published(0, 10)]).await.unwrap();
        opened.close().await;
        fs::write(bench.hub_path().join(damage), "nonsense").unwrap();
        let store = Arc::new(bench.store().unwrap());
        assert_eq!(store.open(&chat()).await.is_ok(), can_be_opened);
        let to = TempDir::new().unwrap();
        let told = copy(&store, to.path()).await.unwrap();
        assert!(
            matches!(&told[..], [(hub, HubCopied::LeftOut(StoreErrorCause::Damaged { .. })), (kept, HubCopied::Whole(1))]
                if *hub == chat() && *kept == other()),
            "{told:?}"
        );
        assert_eq!(copied(to).store().unwrap().hubs().await.unwrap(), [other()]);
    }
}

#[tokio::test]
async fn what_a_loss_of_power_has_made_worthless_is_not_in_a_copy() {
    let mut bench = written().await;
    let mark = |bench: &Bench, boot: &str| {
        let meta = super::super::meta::Meta::open(Arc::new(SystemDisk), &bench.hub_path()).unwrap();
        meta.set_unsynced_boot(Some(boot)).unwrap();
        meta.close();
    };
    for (boot, expected) in [("this", vec![(chat(), HubCopied::Whole(40))]), ("another", Vec::new())] {
        mark(&bench, boot);
        bench.environment.boot_id = Some("this".to_owned());
        let to = TempDir::new().unwrap();
        assert_eq!(copy(&Arc::new(bench.store().unwrap()), to.path()).await.unwrap(), expected);
        let report = OfflineStore::open(to.path()).unwrap().read(&chat(), |_| {});
        assert!(!report.is_unsynced, "all of a copy is synced");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_that_nobody_wants_any_more_is_given_up() {
    let bench = written().await;
    let store = bench.store().unwrap();
    let place = TempDir::new().unwrap();
    let to = place.path().join("copy");
    let given_up = tokio::task::spawn_blocking(move || store.copy(&to, &AtomicBool::new(true), |_, _| {}));
    assert_eq!(given_up.await.unwrap().unwrap_err().cause, StoreErrorCause::CopyGivenUp);
    assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn one_copy_is_made_at_a_time() {
    let bench = written().await;
    let store = Arc::new(bench.store().unwrap());
    let other: Arc<Mutex<Option<StoreErrorCause>>> = Arc::default();
    let place = TempDir::new().unwrap();
    let (one, two) = (place.path().join("one"), place.path().join("two"));
    let copying = tokio::task::spawn_blocking({
        let (store, other) = (Arc::clone(&store), Arc::clone(&other));
        move || {
            store.copy(&one, &AtomicBool::new(false), |_, _| {
                let refused = store.copy(&two, &AtomicBool::new(false), |_, _| {}).unwrap_err();
                *other.lock() = Some(refused.cause);
            })
        }
    });
    copying.await.unwrap().unwrap();
    assert_eq!(*other.lock(), Some(StoreErrorCause::CopyUnderWay));
}

#[tokio::test]
async fn a_hub_that_is_kept_in_a_new_epoch_is_taken_for_a_copy() {
    let bench = written().await;
    let opened = bench.open().await.unwrap();
    let epoch = opened.log.epoch().await.unwrap();
    opened.close().await;
    assert_eq!(new_epoch(bench.path(), Some(&chat()), true).unwrap(), [chat()]);
    let opened = bench.open().await.unwrap();
    assert_eq!((opened.log.is_copy(), opened.numbers().await.len()), (true, 40));
    opened.log.begin_epoch().await.unwrap();
    assert_ne!(opened.log.epoch().await.unwrap(), epoch);
}

#[tokio::test]
async fn since_when_a_hub_is_empty_is_kept_as_long_as_nothing_is_appended() {
    let bench = written().await;
    let opened = bench.open().await.unwrap();
    assert_eq!(opened.log.empty_since(), None);
    opened.store.close_hub(&chat(), Time(5)).await.unwrap();
    let error = opened.append(40..41, 10).await.unwrap_err();
    assert_eq!(error.cause, StoreErrorCause::Closed, "the old log takes nothing");
    let error = opened.log.trim(Offset(30)).await.unwrap_err();
    assert_eq!(error.cause, StoreErrorCause::Closed);
    let again = opened.store.open(&chat()).await.unwrap();
    assert_eq!(again.empty_since(), Some(Time(5)));
    again.append(vec![published(40, 10)]).await.unwrap();
    drop(again);
    opened.close().await;
    assert_eq!(bench.open().await.unwrap().log.empty_since(), None);
}
