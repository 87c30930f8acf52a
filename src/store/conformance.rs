//! One suite for all stores. Each check gets a store of its own from the factory and tests one promise of
//! [`Log`](super::Log).

use std::sync::Arc;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::stream::{StreamExt, TryStreamExt};
use oncewire_protocol::hub::Shard;
use oncewire_protocol::log::{BootId, Offset, Record, Time};
use oncewire_protocol::wire::HubName;

use super::{Bounds, Checkpoint, CheckpointChange, Log, LogHealth, Store, StoreError, StoreErrorCause, Tail};

/// Runs the whole suite; `factory` makes an empty store.
pub async fn run<F: Future<Output = Arc<dyn Store>>>(factory: impl Fn() -> F) {
    appended_records_come_back_in_order(&*factory().await).await;
    concurrent_appends_keep_each_callers_order(&*factory().await).await;
    a_tail_waits_for_what_is_appended_later(&*factory().await).await;
    a_record_is_visible_when_its_append_returns(&*factory().await).await;
    many_tails_see_the_same_order(&*factory().await).await;
    a_trimmed_offset_cannot_be_tailed(&*factory().await).await;
    trimming_past_the_end_forgets_all_and_offsets_go_on(&*factory().await).await;
    checkpoints_are_replaced_listed_and_deleted(&*factory().await).await;
    checkpoint_changes_are_made_in_order(&*factory().await).await;
    checkpoints_are_read_by_the_beginning_of_their_keys(&*factory().await).await;
    a_log_of_one_process_is_always_within_reach(&*factory().await).await;
    hubs_have_logs_of_their_own(&*factory().await).await;
    the_same_hub_has_the_same_log_and_epoch(&*factory().await).await;
    a_hub_that_was_closed_goes_on_where_it_was(&*factory().await).await;
    a_hub_that_was_removed_begins_anew_and_its_old_log_changes_nothing(&*factory().await).await;
}

async fn open(store: &dyn Store) -> Arc<dyn Log> {
    store.open(&HubName::new("chat").unwrap()).await.unwrap()
}

/// A record that its time tells from others.
fn record(time: u64) -> Arc<Record> {
    Arc::new(Shard::booted(BootId(1), Time(time), false))
}

fn records(times: std::ops::Range<u64>) -> Vec<Arc<Record>> {
    times.map(record).collect()
}

async fn read(tail: &mut Tail, count: usize) -> Vec<(Offset, u64)> {
    let mut read = Vec::new();
    while read.len() < count {
        let portion = tail.next().await.unwrap().unwrap();
        assert!(!portion.is_empty(), "a portion holds at least one record");
        read.extend(portion.into_iter().map(|(offset, record)| (offset, record.time.0)));
    }
    assert_eq!(read.len(), count, "no more than was appended");
    read
}

/// Appends, and reads at which offsets.
async fn appended(log: &dyn Log, records: Vec<Arc<Record>>) -> Vec<Offset> {
    let (count, end) = (records.len(), log.end_now().await.unwrap());
    log.append(records).await.unwrap();
    read(&mut log.tail(end), count).await.into_iter().map(|(offset, _)| offset).collect()
}

/// What tests ask of checkpoints beside [`Log::load_all`].
pub trait OneByOne {
    /// The checkpoint under a key.
    async fn load(&self, key: &str) -> Result<Option<Checkpoint>, StoreError>;

    /// The keys of all, sorted.
    async fn list(&self) -> Result<Vec<String>, StoreError>;
}

impl<L: Log + ?Sized> OneByOne for L {
    async fn load(&self, key: &str) -> Result<Option<Checkpoint>, StoreError> {
        let all = self.load_all(key).try_concat().await?;
        Ok(all.into_iter().find(|(found, _)| found == key).map(|(_, checkpoint)| checkpoint))
    }

    async fn list(&self) -> Result<Vec<String>, StoreError> {
        Ok(self.load_all("").try_concat().await?.into_iter().map(|(key, _)| key).collect())
    }
}

fn times(read: &[(Offset, u64)]) -> Vec<u64> {
    read.iter().map(|(_, time)| *time).collect()
}

async fn appended_records_come_back_in_order(store: &dyn Store) {
    let log = open(store).await;
    let mut offsets = appended(&*log, records(0..3)).await;
    offsets.extend(appended(&*log, records(3..2000)).await);
    assert!(offsets.is_sorted_by(|a, b| a < b), "offsets increase strictly");
    let read = read(&mut log.tail(Offset(0)), 2000).await;
    assert_eq!(times(&read), (0..2000).collect::<Vec<_>>());
    assert_eq!(read.iter().map(|(offset, _)| *offset).collect::<Vec<_>>(), offsets);
    assert_eq!(log.bounds().await.unwrap().end, Offset(offsets[1999].0 + 1), "right behind the last one");
    assert_eq!(log.end_now().await.unwrap(), Offset(offsets[1999].0 + 1));
    let from_middle = self::read(&mut log.tail(offsets[1500]), 500).await;
    assert_eq!(times(&from_middle), (1500..2000).collect::<Vec<_>>());
}

async fn concurrent_appends_keep_each_callers_order(store: &dyn Store) {
    let log = open(store).await;
    let writers = (0..8).map(|writer| {
        let log = Arc::clone(&log);
        tokio::spawn(async move {
            // Called in order, awaited together.
            let appends: Vec<_> = (0..50).map(|n| log.append(vec![record(writer * 1000 + n)])).collect();
            futures_util::future::try_join_all(appends).await.unwrap();
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let read = times(&read(&mut log.tail(Offset(0)), 400).await);
    for writer in 0..8 {
        let own: Vec<_> = read.iter().filter(|time| **time / 1000 == writer).collect();
        assert_eq!(own.len(), 50);
        assert!(own.is_sorted());
    }
}

async fn a_tail_waits_for_what_is_appended_later(store: &dyn Store) {
    let log = open(store).await;
    let mut tail = log.tail(log.bounds().await.unwrap().end);
    assert!(tail.next().now_or_never().is_none());
    let reader = tokio::spawn(async move { times(&read(&mut tail, 2).await) });
    log.append(vec![record(7)]).await.unwrap();
    log.append(vec![record(8)]).await.unwrap();
    assert_eq!(reader.await.unwrap(), [7, 8]);
}

async fn a_record_is_visible_when_its_append_returns(store: &dyn Store) {
    let log = open(store).await;
    let mut tail = log.tail(Offset(0));
    for n in 0..20 {
        log.append(vec![record(n)]).await.unwrap();
        let portion = tail.next().now_or_never().expect("visible at once").unwrap().unwrap();
        assert_eq!(portion.len(), 1);
    }
}

async fn many_tails_see_the_same_order(store: &dyn Store) {
    let log = open(store).await;
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let mut tail = log.tail(Offset(0));
            tokio::spawn(async move { read(&mut tail, 300).await })
        })
        .collect();
    let appends: Vec<_> = (0..100).map(|n| log.append(records(n * 3..n * 3 + 3))).collect();
    futures_util::future::try_join_all(appends).await.unwrap();
    let mut seen = Vec::new();
    for reader in readers {
        seen.push(reader.await.unwrap());
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[0], seen[2]);
}

async fn a_trimmed_offset_cannot_be_tailed(store: &dyn Store) {
    let log = open(store).await;
    let offsets = appended(&*log, records(0..10)).await;
    log.trim(offsets[6]).await.unwrap();
    assert!(log.bounds().await.unwrap().first <= offsets[6], "nothing is trimmed that was to be kept");
    assert_eq!(times(&read(&mut log.tail(offsets[6]), 4).await), [6, 7, 8, 9]);
    let end = log.bounds().await.unwrap().end;
    log.trim(end).await.unwrap();
    let first = log.bounds().await.unwrap().first;
    if first > offsets[0] {
        let error = log.tail(offsets[0]).next().await.unwrap().unwrap_err();
        assert_eq!(error.cause, StoreErrorCause::Trimmed { first: first.0 });
    }
}

async fn trimming_past_the_end_forgets_all_and_offsets_go_on(store: &dyn Store) {
    let log = open(store).await;
    let last = appended(&*log, records(0..5)).await[4];
    log.trim(Offset(u64::MAX)).await.unwrap();
    let Bounds { end, .. } = log.bounds().await.unwrap();
    assert_eq!(end, Offset(last.0 + 1), "trimmed ones count");
    let next = appended(&*log, vec![record(5)]).await[0];
    assert!(next > last, "an offset is never used twice");
    assert_eq!(times(&read(&mut log.tail(end), 1).await), [5]);
}

async fn checkpoints_are_replaced_listed_and_deleted(store: &dyn Store) {
    let log = open(store).await;
    assert_eq!(log.load("a").await.unwrap(), None);
    log.checkpoint(vec![save("b", 1, "one")]).await.unwrap();
    log.checkpoint(vec![save("a", 2, "two"), save("b", 3, "")]).await.unwrap();
    assert_eq!(log.list().await.unwrap(), ["a", "b"]);
    assert_eq!(log.load("b").await.unwrap(), Some(checkpoint(3, "")));
    log.checkpoint(vec![delete("b")]).await.unwrap();
    log.checkpoint(vec![delete("b")]).await.unwrap();
    log.checkpoint(Vec::new()).await.unwrap();
    assert_eq!(log.load("b").await.unwrap(), None);
    assert_eq!(log.list().await.unwrap(), ["a"]);
}

async fn checkpoint_changes_are_made_in_order(store: &dyn Store) {
    let log = open(store).await;
    let changes =
        vec![save("a", 1, "one"), delete("a"), save("b", 1, "one"), save("b", 2, "two"), delete("c")];
    log.checkpoint(changes).await.unwrap();
    assert_eq!(log.list().await.unwrap(), ["b"]);
    assert_eq!(log.load("b").await.unwrap(), Some(checkpoint(2, "two")));
    assert_eq!(
        log.bounds().await.unwrap().first,
        log.bounds().await.unwrap().end,
        "checkpoints take no offsets"
    );
}

async fn checkpoints_are_read_by_the_beginning_of_their_keys(store: &dyn Store) {
    let log = open(store).await;
    let count = 5000;
    let changes = (0..count).map(|n| save(&format!("session/{n:05}"), n, &n.to_string())).collect();
    log.checkpoint(changes).await.unwrap();
    log.checkpoint(vec![save("sessioo", 1, "other"), save("s", 1, "other"), delete("session/00000")])
        .await
        .unwrap();
    let mut loading = log.load_all("session/");
    let mut loaded = Vec::new();
    while let Some(portion) = loading.next().await {
        let portion = portion.unwrap();
        assert!(!portion.is_empty(), "a portion holds at least one");
        loaded.extend(portion);
    }
    let expected = (1..count).map(|n| (format!("session/{n:05}"), checkpoint(n, &n.to_string())));
    assert!(loaded.into_iter().eq(expected));
    assert!(log.load_all("t").next().await.is_none());
}

fn checkpoint(covers: u64, text: &str) -> Checkpoint {
    Checkpoint { covers: Offset(covers), bytes: Bytes::copy_from_slice(text.as_bytes()) }
}

fn save(key: &str, covers: u64, text: &str) -> CheckpointChange {
    let Checkpoint { covers, bytes } = checkpoint(covers, text);
    CheckpointChange::Save { key: key.to_owned(), covers, bytes }
}

fn delete(key: &str) -> CheckpointChange {
    CheckpointChange::Delete { key: key.to_owned() }
}

async fn a_log_of_one_process_is_always_within_reach(store: &dyn Store) {
    let log = open(store).await;
    assert!(!log.is_shared());
    let health = log.health();
    log.append(records(0..5)).await.unwrap();
    assert_eq!(*health.borrow(), LogHealth::LOCAL);
}

async fn hubs_have_logs_of_their_own(store: &dyn Store) {
    let one = open(store).await;
    let other = store.open(&HubName::new("other").unwrap()).await.unwrap();
    one.append(vec![record(1)]).await.unwrap();
    assert_eq!(other.bounds().await.unwrap().first, other.bounds().await.unwrap().end);
    assert_ne!(one.epoch().await.unwrap(), other.epoch().await.unwrap());
}

async fn the_same_hub_has_the_same_log_and_epoch(store: &dyn Store) {
    let first = open(store).await;
    first.append(vec![record(1)]).await.unwrap();
    let again = open(store).await;
    assert_eq!(first.epoch().await.unwrap(), again.epoch().await.unwrap());
    assert_eq!(times(&read(&mut again.tail(Offset(0)), 1).await), [1]);
}

async fn a_hub_that_was_closed_goes_on_where_it_was(store: &dyn Store) {
    let hub = HubName::new("chat").unwrap();
    store.close_hub(&hub, Time(1)).await.unwrap();
    let first = open(store).await;
    let offset = appended(&*first, vec![record(1)]).await[0];
    first.checkpoint(vec![save("a", offset.0, "one")]).await.unwrap();
    let epoch = first.epoch().await.unwrap();
    drop(first);
    for _ in 0..2 {
        store.close_hub(&hub, Time(1)).await.unwrap();
    }
    let again = open(store).await;
    assert_eq!(again.epoch().await.unwrap(), epoch);
    assert_eq!(again.load("a").await.unwrap(), Some(checkpoint(offset.0, "one")));
    let next = appended(&*again, vec![record(2)]).await[0];
    assert!(next > offset);
    assert_eq!(times(&read(&mut again.tail(offset), 2).await), [1, 2]);
}

async fn a_hub_that_was_removed_begins_anew_and_its_old_log_changes_nothing(store: &dyn Store) {
    let hub = HubName::new("chat").unwrap();
    store.remove(&hub).await.unwrap();
    let first = open(store).await;
    first.append(vec![record(1)]).await.unwrap();
    store.remove(&hub).await.unwrap();
    let again = open(store).await;
    assert_ne!(again.epoch().await.unwrap(), first.epoch().await.unwrap());
    assert_eq!(again.bounds().await.unwrap().first, again.bounds().await.unwrap().end);
    // Refused or not, it is another log's.
    let _ = first.append(vec![record(2)]).await;
    let _ = first.checkpoint(vec![save("a", 1, "one")]).await;
    again.append(vec![record(3)]).await.unwrap();
    assert_eq!(times(&read(&mut again.tail(again.bounds().await.unwrap().first), 1).await), [3]);
    assert_eq!(again.list().await.unwrap(), [""; 0]);
}
