//! Hubs from before that can't be started.

use super::*;

/// A store with a hub from before, which can't be opened so many times.
struct Ill {
    inner: MemoryStore,
    failures: AtomicU64,
    cause: StoreErrorCause,
}

impl Store for Ill {
    fn open(&self, hub: &HubName) -> BoxFuture<'_, Result<Arc<dyn Log>, StoreError>> {
        let less = |failures: u64| failures.checked_sub(1);
        if self.failures.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
            let error = StoreError { certainty: Certainty::Definite, cause: self.cause.clone() };
            return std::future::ready(Err(error)).boxed();
        }
        self.inner.open(hub)
    }

    fn hubs(&self) -> BoxFuture<'_, Result<Vec<HubName>, StoreError>> {
        std::future::ready(Ok(vec![hub_name()])).boxed()
    }

    fn remove(&self, hub: &HubName) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.remove(hub)
    }
}

fn engine(failures: u64, cause: StoreErrorCause) -> Engine {
    let store = Ill { inner: MemoryStore::default(), failures: failures.into(), cause };
    Engine::new(Arc::new(Config::default()), Arc::new(store), BootId(1))
}

#[tokio::test(start_paused = true)]
async fn what_may_pass_is_tried_again_until_the_hub_is_there() {
    let engine = engine(3, StoreErrorCause::Io("too many open files".to_owned()));
    engine.start_kept_hubs().await.unwrap().started().await;
    assert_eq!(engine.damaged_hubs(), [hub_name()]);
    assert_eq!(engine.hub_at_once(&hub_name()).map(|_| ()), Err(HubUnavailable::Starting), "it exists");
    let began = tokio::time::Instant::now();
    while engine.hub_at_once(&hub_name()).is_err() {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(began.elapsed() < Duration::from_secs(60), "by the paused clock");
    }
    assert!(engine.damaged_hubs().is_empty());
    open(&engine.hub_to_join(&hub_name()).await.unwrap(), "alice", &[]).await;
}

#[tokio::test(start_paused = true)]
async fn what_is_damaged_is_not_tried_again() {
    let cause = StoreErrorCause::Damaged { place: "here".to_owned(), what: "a bit".to_owned() };
    let engine = engine(1, cause);
    engine.start_kept_hubs().await.unwrap().started().await;
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert!(matches!(engine.hub_to_join(&hub_name()).await, Err(HubUnavailable::Log(_))));
        assert!(matches!(engine.hub_at_once(&hub_name()), Err(HubUnavailable::Log(_))));
    }
    assert_eq!(engine.damaged_hubs(), [hub_name()]);
}

#[tokio::test]
async fn a_hub_that_was_not_there_before_is_not_damaged_when_it_cannot_be_made() {
    let engine = engine(1, StoreErrorCause::Full("no room".to_owned()));
    assert!(matches!(engine.hub_to_join(&hub_name()).await, Err(HubUnavailable::Log(_))));
    assert!(engine.damaged_hubs().is_empty());
    engine.hub_to_join(&hub_name()).await.unwrap();
}

#[tokio::test]
async fn a_log_that_cannot_be_read_at_a_start_does_not_end_the_process() {
    let world = World::new(2);
    world.control.is_unreadable.store(true, Ordering::Relaxed);
    assert!(matches!(world.engine.hub_to_join(&hub_name()).await, Err(HubUnavailable::Log(_))));
    assert!(world.engine.failed().now_or_never().is_none());
    world.control.is_unreadable.store(false, Ordering::Relaxed);
    let hub = world.hub().await;
    open(&hub, "alice", &["room"]).await;
}
