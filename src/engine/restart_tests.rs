//! Engines one after the other over the same directory.

use std::path::Path;

use oncewire_protocol::hub::CheckpointBounds;
use oncewire_protocol::log::Audience;
use tempfile::TempDir;

use super::*;
use crate::config::Durability;
use crate::store::conformance::OneByOne;
use crate::store::{CheckpointChange, EmbeddedStore};

/// Rounds after every few records.
const OFTEN: CheckpointBounds = CheckpointBounds {
    log_bytes_min: 2_000,
    log_bytes_per_state_byte: 0,
    rest_log_bytes_min: u64::MAX,
    rest_ms: 60_000,
    retry_ms: 0,
    write_bytes: 500,
    step_chunks: 1024,
    step_bytes: 1 << 20,
};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) async fn store(directory: &Path) -> EmbeddedStore {
    let opened = async {
        loop {
            // An engine that was dropped lets go of the directory when its shards have ended.
            match EmbeddedStore::open(directory, |_| Durability::Os) {
                Err(StoreError { cause: StoreErrorCause::Locked(_), .. }) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                opened => return opened.unwrap(),
            }
        }
    };
    tokio::time::timeout(PATIENCE, opened).await.expect("the directory stays locked")
}

async fn engine(directory: &Path, boot: u128, hub_shards: u16) -> Engine {
    let config = Arc::new(Config { hub_shards, ..Config::default() });
    Engine::with_checkpoints(config, Arc::new(store(directory).await), BootId(boot), OFTEN)
}

/// The hub once it has started.
async fn found(engine: &Engine) -> HubHandle {
    let found = async {
        loop {
            match engine.hub_at_once(&hub_name()) {
                Ok(found) => return found.expect("the hub exists"),
                Err(HubUnavailable::Starting) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(error) => panic!("{error}"),
            }
        }
    };
    tokio::time::timeout(PATIENCE, found).await.expect("the hub does not start")
}

/// A socket of a session that was opened before. Its hub may not be live yet.
async fn resume(hub: &HubHandle, id: &str) -> AttachedSocket {
    let resumed = async {
        loop {
            match hub.resume(ConnectionId::new(id), Subprotocol::JsonReliable).await {
                Ok(socket) => return socket,
                Err(error) => assert_eq!(error, OpenError::Unavailable),
            }
        }
    };
    tokio::time::timeout(PATIENCE, resumed).await.expect("the session can't be resumed")
}

async fn publish_many(socket: &AttachedSocket, ack_ids: std::ops::Range<u64>) {
    for ack_id in ack_ids {
        submit(socket, publish("some text", ack_id)).await;
        assert_eq!(ack(&receive(socket, 1).await[0]), (ack_id, None));
    }
}

#[tokio::test]
async fn sessions_go_on_in_the_next_process_in_any_number_of_shards() {
    let directory = TempDir::new().unwrap();
    let first = engine(directory.path(), 1, 2).await;
    first.start_kept_hubs().await.unwrap();
    assert!(first.hub_at_once(&hub_name()).unwrap().is_none(), "there is none yet");
    let hub = first.hub_to_join(&hub_name()).await.unwrap();
    let epoch = hub.epoch();
    let publisher = open(&hub, "publisher", &[]).await;
    let subscriber = open(&hub, "subscriber", &["room"]).await;
    let idle = open(&hub, "idle", &["room"]).await;
    publish_many(&publisher, 0..100).await;
    let sent = receive(&subscriber, 100).await;
    subscriber.attachment().receive(Upstream::SequenceAck { sequence_id: 90 });
    drop((publisher, subscriber, idle, hub, first));
    for (boot, shards) in [(2, 1), (3, 3), (4, 3)] {
        let engine = engine(directory.path(), boot, shards).await;
        engine.start_kept_hubs().await.unwrap();
        let hub = found(&engine).await;
        assert_eq!(hub.epoch(), epoch);
        let publisher = resume(&hub, "publisher").await;
        submit(&publisher, publish("some text", 99)).await;
        assert_eq!(ack(&receive(&publisher, 1).await[0]), (99, Some(ErrorName::Duplicate)));
        let subscriber = resume(&hub, "subscriber").await;
        let again = receive(&subscriber, 10).await;
        let (first, _) = again.iter().map(text).map(|(_, id)| (id, ())).next().unwrap();
        assert!(first <= 91, "{first} was not acknowledged");
        let from = sent.iter().position(|message| text(message).1 == first).unwrap();
        assert_eq!(again[..sent.len() - from], sent[from..]);
        let idle = resume(&hub, "idle").await;
        assert_eq!(receive(&idle, 100).await[..100], sent);
        // Enough for rounds, so that the next process has more checkpoints than log.
        publish_many(&publisher, boot as u64 * 1_000..boot as u64 * 1_000 + 100).await;
        drop((publisher, subscriber, idle, hub));
        engine.close().await.unwrap();
    }
    let checkpoints = store(directory.path()).await.open(&hub_name()).await.unwrap().list().await.unwrap();
    assert!(checkpoints.contains(&"hub".to_owned()), "{checkpoints:?}");
    assert!(
        checkpoints.iter().any(|key| key.starts_with("message/")),
        "the idle session's messages are copied"
    );
}

#[tokio::test]
async fn a_hub_that_cannot_be_restored_is_not_served_and_not_unknown() {
    let directory = TempDir::new().unwrap();
    let log = store(directory.path()).await.open(&hub_name()).await.unwrap();
    log.append(vec![Arc::new(Shard::booted(BootId(1), wall_clock(), false))]).await.unwrap();
    let (covers, bytes) = (Offset(0), Bytes::from_static(b"\xff"));
    let broken = CheckpointChange::Save { key: "hub".to_owned(), covers, bytes };
    log.checkpoint(vec![broken]).await.unwrap();
    drop(log);
    let engine = engine(directory.path(), 2, 1).await;
    let kept_hubs = engine.start_kept_hubs().await.unwrap();
    tokio::time::timeout(PATIENCE, kept_hubs.started()).await.expect("it never fails");
    let error = HubUnavailable::Checkpoint(CheckpointError::UnknownVersion(0xff));
    assert_eq!(engine.hub_to_join(&hub_name()).await.map(|_| ()), Err(error.clone()));
    assert_eq!(
        engine.hub_at_once(&hub_name()).map(|_| ()),
        Err(error),
        "and it is not tried again and again"
    );
    assert_eq!(engine.damaged_hubs(), [hub_name()]);
    assert!(engine.failed().now_or_never().is_none(), "the others are served");
}

#[tokio::test]
async fn a_store_that_cannot_go_on_is_reported() {
    let world = World::new(1);
    let hub = world.hub().await;
    let publisher = open(&hub, "publisher", &[]).await;
    assert!(world.engine.failed().now_or_never().is_none());
    world.fail_next_publish(Certainty::Definite);
    submit(&publisher, publish("hi", 1)).await;
    receive(&publisher, 1).await;
    assert!(world.engine.failed().now_or_never().is_none(), "other failures are no reason to end");
    world.control.is_fatal.store(true, Ordering::Relaxed);
    world.fail_next_publish(Certainty::Indefinite);
    submit(&publisher, publish("ho", 2)).await;
    let error = tokio::time::timeout(PATIENCE, world.engine.failed()).await.expect("a report");
    assert!(error.is_fatal());
}

#[tokio::test]
async fn a_start_goes_on_although_who_asked_for_it_has_gone() {
    let directory = TempDir::new().unwrap();
    let engine = engine(directory.path(), 1, 1).await;
    assert!(engine.hub_to_join(&hub_name()).now_or_never().is_none(), "it waits for the disk");
    found(&engine).await;
}

#[tokio::test]
async fn what_was_asked_for_before_a_close_is_in_the_log() {
    let directory = TempDir::new().unwrap();
    let first = engine(directory.path(), 1, 2).await;
    let hub = first.hub_to_join(&hub_name()).await.unwrap();
    let publisher = open(&hub, "publisher", &[]).await;
    let subscriber = open(&hub, "subscriber", &["room"]).await;
    for ack_id in 0..200 {
        submit(&publisher, publish("some text", ack_id)).await;
    }
    first.close().await.unwrap();
    drop((publisher, subscriber, hub, first));
    let second = engine(directory.path(), 2, 2).await;
    second.start_kept_hubs().await.unwrap();
    let subscriber = resume(&found(&second).await, "subscriber").await;
    receive(&subscriber, 200).await;
}

#[tokio::test]
async fn a_hub_goes_on_from_its_logs_time_when_the_wall_clock_is_behind_it() {
    const AHEAD_MS: u64 = 30 * 24 * 3_600_000;
    let directory = TempDir::new().unwrap();
    let engine = async |boot: u128, wall: Time| {
        let config = Arc::new(Config { session_retention_seconds: 1, ..Config::default() });
        let store = Arc::new(store(directory.path()).await);
        Engine::with_all(
            config,
            store,
            BootId(boot),
            wall,
            OFTEN,
            HubBounds::default(),
            Arc::new(NoEventHandlers::default()),
            Arc::default(),
        )
    };
    let wall = wall_clock();
    let first = engine(1, wall.plus_ms(AHEAD_MS)).await;
    let hub = first.hub_to_join(&hub_name()).await.unwrap();
    let session = open(&hub, "session", &[]).await;
    publish_many(&session, 0..50).await;
    let ahead = hub.0.clock.now();
    assert!(ahead >= wall.plus_ms(AHEAD_MS));
    drop((session, hub));
    first.close().await.unwrap();
    drop(first);
    let second = engine(2, wall).await;
    second.start_kept_hubs().await.unwrap();
    let hub = found(&second).await;
    assert!(hub.0.clock.now() >= wall.plus_ms(AHEAD_MS));
    let ended = async {
        while hub.has(Audience::All).await.unwrap() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("the session is kept for thirty days");
}
