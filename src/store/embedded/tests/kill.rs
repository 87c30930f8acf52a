//! Kills a process that writes, at any moment.
//!
//! The process is this test program again, told by its environment which directory to write in. It says on its standard
//! output what has been acknowledged.

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::*;
use crate::store::conformance::OneByOne;

const DIRECTORY: &str = "ONCEWIRE_TEST_STORE_DIRECTORY";
const DURABILITY: &str = "ONCEWIRE_TEST_STORE_DURABILITY";

/// Segments that are full after some appends, so that many kills fall into the making of one.
const LIMITS: SegmentLimits = SegmentLimits { bytes_max: 100_000, trimmed_bytes_min: 100_000 };

/// The lines of the process: `open END`, `record END`, `checkpoint COVERS`; and what it asks for before, in capitals.
#[tokio::test]
#[ignore = "started by the tests below"]
async fn process_that_writes() {
    let directory = std::env::var(DIRECTORY).unwrap();
    let durability =
        if std::env::var(DURABILITY).unwrap() == "os" { Durability::Os } else { Durability::Sync };
    let environment = Environment { limits: LIMITS, ..Environment::system() };
    let store = EmbeddedStore::open_in(Path::new(&directory), environment, move |_| durability).unwrap();
    let log = store.open(&chat()).await.unwrap();
    let opened = Opened { log, store };
    let say = |what: &str, number: u64| {
        let mut out = std::io::stdout().lock();
        writeln!(out, "\n{what} {number}").unwrap();
        out.flush().unwrap();
    };
    let mut end = opened.log.bounds().await.unwrap().end.0;
    say("open", end);
    for round in 1.. {
        say("RECORD", end + 7);
        let appends = [opened.append(end..end + 3, 200), opened.append(end + 3..end + 7, 3000)];
        futures_util::future::try_join_all(appends).await.unwrap();
        end += 7;
        say("record", end);
        if round % 4 == 0 {
            say("CHECKPOINT", end);
            opened.log.checkpoint(vec![save("one", end, 3000), save("other", end, 5)]).await.unwrap();
            say("checkpoint", end);
            opened.log.trim(Offset(end - end.min(40))).await.unwrap();
        }
    }
}

/// What the process has said.
#[derive(Debug, Default, Clone, Copy)]
struct Said {
    opened: bool,
    records: u64,
    records_asked: u64,
    checkpoint: u64,
    checkpoint_asked: u64,
}

impl Said {
    fn hear(&mut self, line: &str) {
        let Some((what, number)) = line.split_once(' ') else { return };
        let Ok(number) = number.parse() else { return };
        match what {
            "open" => {
                self.opened = true;
                self.records = number;
                self.records_asked = number;
            }
            "record" => self.records = number,
            "RECORD" => self.records_asked = number,
            "checkpoint" => self.checkpoint = number,
            "CHECKPOINT" => self.checkpoint_asked = number,
            _ => {}
        }
    }
}

fn start(directory: &Path, durability: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "store::embedded::tests::kill::process_that_writes"])
        .args(["--ignored", "--nocapture", "--test-threads=1"])
        .env(DIRECTORY, directory)
        .env(DURABILITY, durability)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Starts the process, kills it some time after it was started, and hears all that it said.
fn run_and_kill(directory: &Path, durability: &str, after: Duration, said: &mut Said) {
    let mut child = start(directory, durability);
    let out = child.stdout.take().unwrap();
    let hearing = std::thread::spawn(move || {
        let mut lines = Vec::new();
        for line in BufReader::new(out).lines() {
            lines.push(line.unwrap());
        }
        lines
    });
    std::thread::sleep(after);
    child.kill().unwrap();
    child.wait().unwrap();
    for line in hearing.join().unwrap() {
        said.hear(&line);
    }
}

async fn kill_many_times(durability: &str, kills: u64) {
    let mut bench = Bench::new();
    bench.environment.limits = LIMITS;
    bench.durability = if durability == "os" { Durability::Os } else { Durability::Sync };
    let mut said = Said::default();
    let mut opened_by_children = 0;
    for kill in 0..kills {
        said.opened = false;
        // From before the first file is there to after many segments.
        let after = Duration::from_micros(2_000 + kill * 7_919 % 60_000);
        run_and_kill(bench.path(), durability, after, &mut said);
        opened_by_children += u64::from(said.opened);

        let opened = bench.open().await.unwrap_or_else(|error| panic!("kill {kill}: {error}"));
        let bounds = opened.log.bounds().await.unwrap();
        let possible = said.records..=said.records_asked.max(said.records);
        assert!(possible.contains(&bounds.end.0), "kill {kill}: {bounds:?} {said:?}");
        let expected: Vec<_> = (bounds.first.0..bounds.end.0).map(|n| (n, n)).collect();
        assert_eq!(opened.numbers().await, expected, "kill {kill}");
        let one = opened.log.load("one").await.unwrap().map_or(0, |checkpoint| checkpoint.covers.0);
        let other = opened.log.load("other").await.unwrap().map_or(0, |checkpoint| checkpoint.covers.0);
        assert_eq!(one, other, "kill {kill}: all or none");
        let possible = said.checkpoint..=said.checkpoint_asked.max(said.checkpoint);
        assert!(possible.contains(&one), "kill {kill}: checkpoint {one} {said:?}");
        assert!(bounds.first.0 <= one.saturating_sub(one.min(40)), "kill {kill}: trimmed too far");
        opened.close().await;
        (said.records, said.records_asked) = (bounds.end.0, bounds.end.0);
        (said.checkpoint, said.checkpoint_asked) = (one, one);
    }
    assert!(opened_by_children > kills / 3, "only {opened_by_children} of {kills} processes got to write");
    assert!(said.records > 100, "{said:?}");
}

#[tokio::test]
async fn kills_lose_nothing_that_the_disk_has_acknowledged() {
    kill_many_times("sync", 60).await;
}

#[tokio::test]
async fn kills_lose_nothing_that_the_operating_system_has_acknowledged() {
    kill_many_times("os", 40).await;
}

/// Kills while the first files of a directory are made.
#[tokio::test]
async fn kills_during_the_first_start_leave_a_directory_that_opens() {
    let mut unopened = 0;
    for kill in 0..40 {
        let bench = Bench::new();
        let mut said = Said::default();
        run_and_kill(bench.path(), "sync", Duration::from_micros(1_000 + kill * 500), &mut said);
        unopened += u64::from(!said.opened);
        let opened = bench.open().await.unwrap_or_else(|error| panic!("kill {kill}: {error}"));
        assert!(opened.log.bounds().await.unwrap().end.0 >= said.records, "kill {kill}");
        let report = {
            opened.close().await;
            OfflineStore::open(bench.path()).unwrap().read(&chat(), |_| {})
        };
        assert_eq!(report.damages, [], "kill {kill}");
    }
    assert!(unopened > 5, "only {unopened} kills came before the log was open");
}
