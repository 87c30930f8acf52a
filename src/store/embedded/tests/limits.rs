//! The bounds of what waits.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::checkpoint_thread::ORDERS_MAX;
use super::super::committer::{COMMIT_BYTES_MAX, QUEUE_BYTES_MAX, QUEUE_RECORDS_MAX};
use super::faulty_disk::FaultyDisk;
use super::*;

/// A store whose committer waits for a sync that does not end, with one record.
async fn held()
-> (Bench, FaultyDisk, Opened, futures_util::future::BoxFuture<'static, Result<(), StoreError>>) {
    let disk = FaultyDisk::default();
    let bench = Bench::with_disk(disk.clone());
    let opened = bench.open().await.unwrap();
    disk.hold_syncs(true);
    let first = opened.log.append(vec![published(0, 10)]);
    disk.wait_for_held().await;
    (bench, disk, opened, first)
}

#[tokio::test]
async fn what_waits_for_the_disk_is_bounded_in_records() {
    let (_bench, disk, opened, first) = held().await;
    let filler = published(1, 10);
    let all = opened.log.append(vec![Arc::clone(&filler); QUEUE_RECORDS_MAX]);
    let error = opened.log.append(vec![Arc::clone(&filler)]).await.unwrap_err();
    assert_eq!(error.cause, StoreErrorCause::Overloaded);
    disk.hold_syncs(false);
    first.await.unwrap();
    all.await.unwrap();
    assert_eq!(opened.log.end_now().await.unwrap(), Offset(QUEUE_RECORDS_MAX as u64 + 1));
    opened.log.append(vec![filler]).await.unwrap();
}

#[tokio::test]
async fn what_waits_for_the_disk_is_bounded_in_bytes() {
    let (_bench, disk, opened, first) = held().await;
    let filler = published(1, QUEUE_BYTES_MAX / 8);
    let fit: Vec<_> = (0..7).map(|_| opened.log.append(vec![Arc::clone(&filler)])).collect();
    let error = opened.log.append(vec![Arc::clone(&filler)]).await.unwrap_err();
    assert_eq!(error.cause, StoreErrorCause::Overloaded);
    disk.hold_syncs(false);
    first.await.unwrap();
    futures_util::future::try_join_all(fit).await.unwrap();
}

#[tokio::test]
async fn an_append_of_any_size_may_wait_alone() {
    let (_bench, disk, opened, first) = held().await;
    let large = opened.log.append(vec![published(1, QUEUE_BYTES_MAX / 2 + 1); 2]);
    disk.hold_syncs(false);
    first.await.unwrap();
    large.await.unwrap();
}

#[tokio::test]
async fn all_that_waits_shares_a_commit_up_to_its_bound() {
    let (_bench, disk, opened, first) = held().await;
    let small: Vec<_> = (0..100).map(|n| opened.log.append(vec![published(n, 100)])).collect();
    let before = disk.syncs();
    disk.hold_syncs(false);
    first.await.unwrap();
    futures_util::future::try_join_all(small).await.unwrap();
    let syncs = disk.syncs() - before;
    assert!(syncs <= 4, "{syncs} syncs for 100 appends that waited together");

    disk.hold_syncs(true);
    let first = opened.log.append(vec![published(0, 10)]);
    disk.wait_for_held().await;
    let record_bytes = 10_000;
    let large = opened.log.append((0..300).map(|n| published(n, record_bytes)).collect());
    disk.hold_syncs(false);
    first.await.unwrap();
    large.await.unwrap();
    assert_eq!(opened.numbers().await.len(), 402);
    drop(opened);
    let report = OfflineStore::open(_bench.path()).unwrap().read(&chat(), |_| {});
    let expected = 300_usize.div_ceil(COMMIT_BYTES_MAX / (record_bytes + 100));
    let groups = report.segments[0].groups as usize;
    assert!((3 + expected..=5 + expected * 4).contains(&groups), "{groups} groups");
}

#[tokio::test]
async fn orders_to_the_keeper_are_bounded() {
    let disk = FaultyDisk::default();
    let bench = Bench::with_disk(disk.clone());
    let opened = bench.open().await.unwrap();
    disk.hold_syncs(true);
    let first = opened.log.checkpoint(vec![save("a", 1, 10)]);
    disk.wait_for_held().await;
    let refused = AtomicUsize::new(0);
    let others: Vec<_> = (0..ORDERS_MAX + 1)
        .map(|_| opened.log.checkpoint(Vec::new()))
        .filter_map(|order| match order.now_or_never_or_keep() {
            Ok(order) => Some(order),
            Err(error) => {
                assert_eq!(error.cause, StoreErrorCause::Overloaded);
                refused.fetch_add(1, Ordering::Relaxed);
                None
            }
        })
        .collect();
    assert_eq!((others.len(), refused.into_inner()), (ORDERS_MAX, 1));
    disk.hold_syncs(false);
    first.await.unwrap();
    futures_util::future::try_join_all(others).await.unwrap();
}

/// An order that is not answered yet, or the refusal.
trait NowOrKeep: Sized {
    fn now_or_never_or_keep(self) -> Result<Self, StoreError>;
}

impl NowOrKeep for futures_util::future::BoxFuture<'static, Result<(), StoreError>> {
    fn now_or_never_or_keep(mut self) -> Result<Self, StoreError> {
        match futures_util::FutureExt::now_or_never(&mut self) {
            Some(Err(error)) => Err(error),
            Some(Ok(())) => panic!("the checkpoint thread is held"),
            None => Ok(self),
        }
    }
}

#[tokio::test]
async fn a_tail_that_is_far_behind_reads_the_same_from_the_disk() {
    let bench = Bench::new();
    let opened = bench.open().await.unwrap();
    let mut behind = opened.log.tail(Offset(0));
    let mut ahead = opened.log.tail(Offset(0));
    let count = super::super::unread::KEPT_RECORDS_MAX as u64 + 5000;
    let mut ahead_read = 0;
    for begin in (0..count).step_by(1000) {
        opened.append(begin..(begin + 1000).min(count), 20).await.unwrap();
        while let Some(portion) = futures_util::FutureExt::now_or_never(ahead.next()) {
            ahead_read += portion.unwrap().unwrap().len() as u64;
        }
    }
    assert_eq!(ahead_read, count, "who keeps up never waits for the disk");
    let mut next = 0;
    while next < count {
        for (offset, record) in behind.next().await.unwrap().unwrap() {
            assert_eq!((offset.0, number(&record)), (next, next));
            next += 1;
        }
    }
}
