//! Files of this version, of a version that nobody knows, and damaged ones.

use std::fs;

use super::faulty_disk::overwrite;
use super::*;

/// Files that this version wrote: a hub `chat` with records 0 to 4 in the segment from 0 on and 5 to 9 in the segment from
/// 5 on, and two checkpoints. A change of the layout needs a new version and a fixture of its own; this one stays.
const FIXTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/src/store/embedded/tests/fixture-3");

pub(super) fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

fn fixture() -> Bench {
    let bench = Bench::new();
    copy(Path::new(FIXTURE), bench.path());
    bench
}

/// Makes the fixture's files; what they hold is pinned by the test below.
#[tokio::test]
#[ignore = "writes the fixture; run by hand when a new version needs one"]
async fn write_the_fixture() {
    let mut bench = Bench::new();
    bench.environment.limits = SegmentLimits { bytes_max: 1, trimmed_bytes_min: u64::MAX };
    let opened = bench.open().await.unwrap();
    opened.store.reconnection_secret().unwrap();
    opened.append(0..5, 40).await.unwrap();
    opened.close().await;
    bench.environment.limits = SegmentLimits::default();
    let opened = bench.open().await.unwrap();
    opened.append(5..10, 40).await.unwrap();
    opened.log.checkpoint(vec![save("a", 3, 100), save("b", 4, 0)]).await.unwrap();
    println!("the epoch is {:?}", opened.log.epoch().await.unwrap());
    opened.close().await;
    copy(bench.path(), Path::new(FIXTURE));
}

#[tokio::test]
async fn files_of_version_3_are_read() {
    let bench = fixture();
    let opened = bench.open().await.unwrap();
    assert_eq!(opened.log.epoch().await.unwrap().0, 0x6703_7972_697f_b725_530d_f958_d70b_098d);
    let secret = fs::read(Path::new(FIXTURE).join("reconnection-secret")).unwrap();
    assert_eq!(opened.store.reconnection_secret().unwrap().as_slice(), secret);
    assert_eq!(opened.numbers().await, (0..10).map(|n| (n, n)).collect::<Vec<_>>());
    let mut checkpoints = opened.log.load_all("");
    let checkpoints = checkpoints.next().await.unwrap().unwrap();
    let CheckpointChange::Save { covers, bytes, .. } = save("a", 3, 100) else { panic!() };
    let checkpoint = Checkpoint { covers, bytes };
    assert_eq!(checkpoints[0], ("a".to_owned(), checkpoint));
    assert_eq!(checkpoints[1].1.covers, Offset(4));
    assert_eq!(opened.append(10..11, 40).await.unwrap(), [Offset(10)]);
}

#[tokio::test]
async fn an_unknown_directory_version_is_refused() {
    let bench = fixture();
    let place = bench.path().join("format").display().to_string();
    // Records and checkpoints have other forms in those of before.
    for found in [1, 2, 4] {
        fs::write(bench.path().join("format"), format!("{found}\n")).unwrap();
        let error = bench.store().err().unwrap();
        assert_eq!(error.cause, StoreErrorCause::UnknownVersion { place: place.clone(), found, known: 3 });
        let text = format!("format version {found} is unknown; this build reads version 3");
        assert!(error.to_string().contains(&text), "{error}");
        assert_eq!(OfflineStore::open(bench.path()).unwrap_err().cause, error.cause);
    }
    for (text, what) in [("one", "no format version"), ("", "no format version")] {
        fs::write(bench.path().join("format"), text).unwrap();
        let what = what.to_owned();
        assert_eq!(
            bench.store().err().unwrap().cause,
            StoreErrorCause::Damaged { place: place.clone(), what }
        );
    }
    fs::remove_file(bench.path().join("format")).unwrap();
    assert!(matches!(bench.store().err().unwrap().cause, StoreErrorCause::Damaged { .. }));
}

#[tokio::test]
async fn an_unknown_file_version_is_refused() {
    const STATE: redb::TableDefinition<&str, &[u8]> = redb::TableDefinition::new("state");
    for name in ["meta.redb", "00000000000000000005.redb"] {
        let bench = fixture();
        let path = bench.hub_path().join(name);
        let database = redb::Database::open(&path).unwrap();
        let transaction = database.begin_write().unwrap();
        transaction.open_table(STATE).unwrap().insert("layout", &7_u32.to_le_bytes()[..]).unwrap();
        transaction.commit().unwrap();
        drop(database);
        let error = bench.open().await.err().unwrap();
        let place = path.display().to_string();
        assert_eq!(error.cause, StoreErrorCause::UnknownVersion { place, found: 7, known: 1 });
        let report = OfflineStore::open(bench.path()).unwrap().read(&chat(), |_| {});
        assert_eq!(report.damages, [error.cause]);
    }
}

#[tokio::test]
async fn files_that_are_no_databases_are_refused() {
    for name in ["meta.redb", "00000000000000000005.redb"] {
        for content in [&b""[..], b"nonsense", &[0; 100_000]] {
            let bench = fixture();
            let path = bench.hub_path().join(name);
            fs::write(&path, content).unwrap();
            let error = bench.open().await.err().unwrap();
            let StoreErrorCause::Damaged { place, .. } = &error.cause else { panic!("{error}") };
            assert_eq!(*place, path.display().to_string());
            assert_eq!(fs::read(&path).unwrap(), content, "it is left as it is");
        }
    }
    let bench = fixture();
    let stranger = bench.hub_path().join("0000000000000000005.redb");
    fs::write(&stranger, b"").unwrap();
    let error = bench.open().await.err().unwrap();
    assert!(matches!(error.cause, StoreErrorCause::Damaged { .. }), "{error}");
}

#[tokio::test]
async fn what_a_stop_left_unfinished_is_removed() {
    let bench = fixture();
    let unfinished =
        [bench.path().join("format.tmp"), bench.hub_path().join("00000000000000000010.redb.tmp")];
    for path in &unfinished {
        fs::write(path, b"unfinished").unwrap();
    }
    let opened = bench.open().await.unwrap();
    assert_eq!(opened.numbers().await.len(), 10);
    assert!(unfinished.iter().all(|path| !path.exists()));
}

#[tokio::test]
async fn a_report_says_what_there_is() {
    let bench = fixture();
    let offline = OfflineStore::open(bench.path()).unwrap();
    assert_eq!(offline.hubs(None).unwrap(), [chat()]);
    let (mut records, mut checkpoints, mut bytes) = (Vec::new(), Vec::new(), 0);
    let report = offline.read(&chat(), |found| match found {
        Found::Record(offset, record) => records.push((offset.0, number(&record))),
        Found::Checkpoint(key, checkpoint) => checkpoints.push((key.to_owned(), checkpoint.covers.0)),
        Found::Progress(more) => bytes += more,
    });
    assert_eq!(records, (0..10).map(|n| (n, n)).collect::<Vec<_>>());
    assert_eq!(checkpoints, [("a".to_owned(), 3), ("b".to_owned(), 4)]);
    let segments: Vec<_> =
        report.segments.iter().map(|segment| (segment.first.0, segment.end.0, segment.groups)).collect();
    assert_eq!(segments, [(0, 5, 1), (5, 10, 1)]);
    assert_eq!((report.damages.len(), report.checkpoints, report.is_unsynced), (0, 2, false));
    let total = offline.file_bytes(&chat()).unwrap();
    assert!(bytes >= total && bytes < total * 2, "{bytes} of {total}");
}

/// Each file with some of its bytes overwritten: what is read is what was written, or the report names the file.
#[tokio::test(flavor = "multi_thread")]
async fn damage_is_found_and_named() {
    let bench = fixture();
    let mut found = 0;
    for name in ["meta.redb", "00000000000000000000.redb", "00000000000000000005.redb"] {
        let path = bench.hub_path().join(name);
        let intact = fs::read(&path).unwrap();
        let content: Vec<usize> = (0..intact.len()).filter(|at| intact[*at] != 0).collect();
        for at in content.iter().step_by(content.len() / 150 + 1) {
            let mut damaged = intact.clone();
            damaged[*at] ^= 0x5a;
            overwrite(&path, &damaged);
            let mut records = Vec::new();
            let report = OfflineStore::open(bench.path()).unwrap().read(&chat(), |item| {
                if let Found::Record(offset, record) = item {
                    assert_eq!(offset.0, number(&record));
                    records.push(offset.0);
                }
            });
            let is_whole = records == (0..10).collect::<Vec<_>>() && report.checkpoints == 2;
            assert!(is_whole || !report.damages.is_empty(), "{name}, byte {at}: {records:?}");
            found += usize::from(!report.damages.is_empty());
            for damage in &report.damages {
                assert!(damage.to_string().contains("redb"), "{damage}");
            }
            assert_eq!(fs::read(&path).unwrap(), damaged, "reading changes nothing");
        }
        fs::write(&path, intact).unwrap();
    }
    assert!(found > 40, "{found} damages were found");
}

#[tokio::test]
async fn a_gap_between_segments_is_found() {
    let bench = fixture();
    let hub = bench.hub_path();
    fs::rename(hub.join("00000000000000000005.redb"), hub.join("00000000000000000006.redb")).unwrap();
    let report = OfflineStore::open(bench.path()).unwrap().read(&chat(), |_| {});
    assert!(!report.damages.is_empty());
    assert!(report.damages.iter().all(|damage| damage.to_string().contains("00000000000000000006")));
}
