//! The ordinary run: a thousand worlds pass, and everything that can go wrong in a world did go wrong in some.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use oncewire_simulation::{Coverage, Trace, repeat_command, run};

const SEEDS: u64 = 1_000;

#[derive(Default)]
struct Total {
    coverage: Coverage,
    judged: BTreeMap<&'static str, u64>,
    failures: Vec<String>,
}

#[test]
fn worlds_pass_and_everything_happens_in_some() {
    let next = AtomicU64::new(0);
    let total = Mutex::new(Total::default());
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| work(&next, &total));
        }
    });
    let Total { coverage, judged, failures } = total.into_inner().unwrap();
    println!("{coverage}");
    judged.iter().for_each(|(check, count)| println!("{check:60} {count:>12}"));
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(coverage.missing(), Vec::<&str>::new(), "these never happened");
    // One recorder sees everything, so it needs no signals.
    let idle: Vec<_> = judged.iter().filter(|(check, count)| **count == 0 && **check != "signals").collect();
    assert!(idle.is_empty(), "the checker never came to judge these: {idle:?}");
}

fn work(next: &AtomicU64, total: &Mutex<Total>) {
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= SEEDS {
            return;
        }
        let outcome = run(seed, Trace::default());
        let Ok(mut total) = total.lock() else { return };
        total.coverage.add(&outcome.coverage);
        for (check, count) in outcome.statistics.rows() {
            *total.judged.entry(check).or_default() += count;
        }
        if let Some(failure) = outcome.failure {
            total.failures.push(format!("{}\nseed {seed}: {failure}", repeat_command(seed)));
            next.store(SEEDS, Ordering::Relaxed);
        }
    }
}
