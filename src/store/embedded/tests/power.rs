//! Losses of power: at every sync, and with a damaged tail.

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};

use super::faulty_disk::{Faults, FaultyDisk, overwrite};
use super::*;
use crate::store::conformance::OneByOne;

/// What the store has acknowledged.
#[derive(Debug, Default)]
struct Acknowledged {
    records: u64,
    /// What a trim was asked for up to.
    trimmed: u64,
    checkpoint: u64,
    /// What was asked for when the power failed.
    attempted: u64,
    attempted_checkpoint: u64,
    epoch: Option<oncewire_protocol::log::LogEpoch>,
}

/// Appends, saves, trims and rolls until the power fails, or to the end.
async fn run(bench: &Bench, done: &mut Acknowledged) -> Result<(), StoreError> {
    let opened = bench.open().await?;
    done.epoch = Some(opened.log.epoch().await.unwrap());
    for round in 0..8 {
        // Two appends under way at once, the second larger than a page.
        let begin = done.records;
        done.attempted = begin + 5;
        let one = opened.append(begin..begin + 2, 300);
        let other = opened.append(begin + 2..begin + 5, 9000);
        let (one, other) = futures_util::future::join(one, other).await;
        if one.is_ok() {
            done.records = begin + 2;
        }
        other?;
        done.records = begin + 5;
        done.attempted_checkpoint = round + 1;
        let change = vec![save("one", round + 1, 5000), save("other", round + 1, 10)];
        opened.log.checkpoint(change).await?;
        done.checkpoint = round + 1;
        done.trimmed = begin;
        opened.log.trim(Offset(begin)).await?;
    }
    opened.store.close().await
}

/// What a start finds must be what was acknowledged, and perhaps what was under way.
async fn check(bench: &Bench, done: &Acknowledged, context: &str) {
    let opened = bench.open().await.unwrap_or_else(|error| panic!("{context}: {error}"));
    let bounds = opened.log.bounds().await.unwrap();
    assert!(bounds.first.0 <= done.trimmed, "{context}: {bounds:?}");
    assert!((done.records..=done.attempted).contains(&bounds.end.0), "{context}: {bounds:?} {done:?}");
    if let Some(epoch) = done.epoch {
        assert_eq!(opened.log.epoch().await.unwrap(), epoch, "{context}");
    }
    let expected: Vec<_> = (bounds.first.0..bounds.end.0).map(|n| (n, n)).collect();
    assert_eq!(opened.numbers().await, expected, "{context}");
    let one = opened.log.load("one").await.unwrap().map_or(0, |checkpoint| checkpoint.covers.0);
    let other = opened.log.load("other").await.unwrap().map_or(0, |checkpoint| checkpoint.covers.0);
    assert_eq!(one, other, "{context}: all or none");
    assert!((done.checkpoint..=done.attempted_checkpoint).contains(&one), "{context}: {one} {done:?}");
    let end = bounds.end.0;
    assert_eq!(opened.append(end..end + 1, 100).await.unwrap(), [bounds.end], "{context}");
    opened.log.checkpoint(vec![save("one", 99, 1)]).await.unwrap();
    opened.close().await;
    let again = bench.open().await.unwrap();
    assert_eq!(again.numbers().await.len(), expected.len() + 1, "{context}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_survives_a_loss_of_power_at_every_sync() {
    let mut lost = 0;
    let mut syncs = 0;
    for after in 0.. {
        let mut reached_end = false;
        for seed in 0..4 {
            let disk = FaultyDisk::with(Faults { power_fails_after_syncs: Some(after), ..Faults::default() });
            let mut bench = Bench::with_disk(disk.clone());
            bench.environment.limits = SegmentLimits { bytes_max: 60_000, trimmed_bytes_min: 60_000 };
            let mut done = Acknowledged::default();
            reached_end = run(&bench, &mut done).await.is_ok();
            syncs = disk.syncs();
            lost += disk.lose_unsynced(after * 1000 + seed);
            bench.environment.disk = Arc::new(FaultyDisk::default());
            check(&bench, &done, &format!("power lost after {after} syncs, seed {seed}")).await;
        }
        if reached_end {
            break;
        }
    }
    assert!(syncs > 60, "{syncs} syncs: the scenario has become too small");
    assert!(lost > 500, "{lost} pages, lengths and names were lost: too few to mean anything");
}

/// The bytes of the last, unacknowledged commit are mixed with old ones by sector, and some of its bits are flipped.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_unacknowledged_tail_costs_nothing_that_was_acknowledged() {
    let disk = FaultyDisk::default();
    let bench = Bench::with_disk(disk.clone());
    let opened = bench.open().await.unwrap();
    for n in 0..20 {
        opened.append(n * 3..n * 3 + 3, 1500).await.unwrap();
    }
    let path = bench.segments()[0].clone();
    let acknowledged = std::fs::read(&path).unwrap();
    opened.append(60..75, 1500).await.unwrap();
    let newer = std::fs::read(&path).unwrap();
    disk.cut_power();
    drop(opened);
    let differing: Vec<usize> =
        (0..newer.len()).filter(|at| acknowledged.get(*at) != newer.get(*at)).collect();
    assert!(differing.len() > 10_000, "{}", differing.len());

    let mut bench = bench;
    let (mut kept, mut dropped) = (0, 0);
    for seed in 0..200 {
        let mut random = StdRng::seed_from_u64(seed);
        let mut damaged = newer.clone();
        if seed % 2 == 0 {
            for _ in 0..random.random_range(1..20) {
                damaged[differing[random.random_range(0..differing.len())]] ^= 1 << random.random_range(0..8);
            }
        } else {
            for (sector, old) in acknowledged.chunks(512).enumerate() {
                if random.random() {
                    damaged[sector * 512..sector * 512 + old.len()].copy_from_slice(old);
                }
            }
        }
        overwrite(&path, &damaged);
        bench.environment.disk = Arc::new(FaultyDisk::default());
        let opened = bench.open().await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let numbers = opened.numbers().await;
        match numbers.len() {
            60 => dropped += 1,
            75 => kept += 1,
            other => panic!("seed {seed}: {other} records"),
        }
        assert!(numbers.iter().all(|(offset, number)| offset == number), "seed {seed}");
        drop(opened);
    }
    assert!(dropped > 100, "{dropped} tails were taken back, {kept} kept");
}
