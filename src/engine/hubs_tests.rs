//! Hubs that come into being, are closed when idle, started again, and removed.

use oncewire_protocol::hub::CheckpointBounds;
use oncewire_protocol::log::{Audience, IdempotencyKey, RequestName, RequestParts, Selection, Sent};
use oncewire_protocol::wire::UserId;
use tempfile::TempDir;

use super::restart::store;
use super::*;
use crate::engine::hubs::HUBS_PER_ROUND_MAX;
use crate::store::EmbeddedStore;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Closed at the first look, and removed at the next one.
const AT_ONCE: HubBounds = HubBounds { open: Duration::ZERO, kept: Duration::ZERO };
/// Closed at the first look, and kept.
const KEPT: HubBounds = HubBounds { open: Duration::ZERO, kept: Duration::from_secs(24 * 60 * 60) };

/// A gateway that remembers no request, so that nothing keeps an empty hub but the bounds.
fn config() -> Config {
    Config { idempotency_window_seconds: 0, ..Config::default() }
}

fn engine_over(store: Arc<dyn Store>, boot: u128, config: Config, bounds: HubBounds) -> Engine {
    let checkpoints = CheckpointBounds { rest_ms: 0, ..CheckpointBounds::default() };
    Engine::with_bounds(Arc::new(config), store, BootId(boot), checkpoints, bounds)
}

async fn engine(directory: &TempDir, boot: u128, config: Config, bounds: HubBounds) -> Engine {
    let store: EmbeddedStore = store(directory.path()).await;
    engine_over(Arc::new(store), boot, config, bounds)
}

/// How many files below a directory this process has open, its lock aside.
fn open_files(directory: &TempDir) -> usize {
    let real = std::fs::canonicalize(directory.path()).unwrap().join("hubs");
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let targets = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
    targets.filter(|target| target.starts_with(&real)).count()
}

/// Looks at the hubs until so it is.
async fn look_until(engine: &Engine, is_so: impl Fn() -> bool) {
    let looked = async {
        while !is_so() {
            engine.look_at_hubs().await;
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(PATIENCE, looked).await.expect("it never is");
}

/// Opens a session, publishes to itself, and closes it for good.
async fn visit(engine: &Engine, id: &str) {
    let hub = engine.hub_to_join(&hub_name()).await.unwrap();
    let socket = open(&hub, id, &["room"]).await;
    submit(&socket, publish("hi", 1)).await;
    let received = receive(&socket, 2).await;
    assert_eq!((text(&received[0]).0, ack(&received[1])), ("hi", (1, None)));
    socket.close(SocketEnd::ClosedForGood).await;
}

fn send() -> Action {
    Action::Send(Sent {
        selection: Selection::whole(Audience::All),
        ttl_seconds: 0,
        payload: Payload { kind: PayloadKind::Text, bytes: Bytes::from_static(b"to all") },
        metadata: Metadata::default(),
    })
}

fn request(id: &str) -> Option<crate::engine::Request> {
    let parts = RequestParts { id, client_id: None, method: "POST", target: "/", headers: &[], body: b"" };
    let name = RequestName::of(parts);
    let key = IdempotencyKey { name, window_seconds: 300, window_requests: 10, first_sent: None };
    Some(crate::engine::Request { key, is_strict: false })
}

async fn ask(
    engine: &Engine,
    action: Action,
    request: Option<crate::engine::Request>,
) -> Result<Done, CommandError> {
    engine.hub_to_command(&hub_name()).await.unwrap().ask(action, request).await
}

#[tokio::test]
async fn no_hub_comes_into_being_by_what_changes_nothing() {
    let directory = TempDir::new().unwrap();
    let engine = engine(&directory, 1, config(), KEPT).await;
    let (one, user) = (Audience::Connection(ConnectionId::new("a")), Audience::User(UserId::new("u")));
    let add = |audience| Action::Add { selection: Selection::whole(audience), groups: vec![group("g")] };
    let rule = |allow| Action::ChangeRule {
        connection_id: ConnectionId::new("a"),
        permission: Permission::SendToGroup,
        group: group("g"),
        allow,
    };
    for (action, expected) in [
        (send(), Ok(Done::Executed)),
        (
            Action::Close { selection: Selection::whole(Audience::All), reason: String::new() },
            Ok(Done::Executed),
        ),
        (Action::Remove { selection: Selection::whole(one.clone()), groups: Vec::new() }, Ok(Done::Executed)),
        (add(Audience::All), Ok(Done::Executed)),
        (add(one), Err(CommandError::UnknownConnection)),
        (add(user), Err(CommandError::UnknownUser)),
        (rule(true), Err(CommandError::UnknownConnection)),
        (rule(false), Err(CommandError::UnknownConnection)),
    ] {
        assert_eq!(ask(&engine, action.clone(), request("id")).await, expected, "{action:?}");
    }
    assert!(engine.hub_with_sessions(&hub_name()).await.unwrap().is_none());
    assert!(engine.hub_at_once(&hub_name()).unwrap().is_none());
    engine.admits(&hub_name()).await.unwrap();
    assert!(engine.counts().is_empty());
    assert!(!directory.path().join("hubs/chat").exists());
}

#[tokio::test]
async fn a_hub_that_could_not_be_begun_does_not_exist() {
    let directory = TempDir::new().unwrap();
    let engine = engine(&directory, 1, Config { hubs_max: Some(1), ..config() }, KEPT).await;
    std::fs::write(directory.path().join("hubs/chat"), "in the way").unwrap();
    assert!(engine.hub_to_join(&hub_name()).await.is_err());
    assert!(engine.hub_at_once(&hub_name()).unwrap().is_none());
    let other = HubName::new("other").unwrap();
    engine.hub_to_join(&other).await.expect("the other took no place");
    std::fs::remove_file(directory.path().join("hubs/chat")).unwrap();
    assert_eq!(engine.hub_to_join(&hub_name()).await.err(), Some(HubUnavailable::TooMany(1)));
}

#[tokio::test]
async fn an_idle_hub_is_closed_and_goes_on_where_it_was() {
    for hub_shards in [1, 3] {
        let directory = TempDir::new().unwrap();
        let engine = engine(&directory, 1, Config { hub_shards, ..config() }, KEPT).await;
        visit(&engine, "first").await;
        let epoch = engine.hub_to_join(&hub_name()).await.unwrap().epoch();
        assert_eq!(ask(&engine, send(), request("once")).await, Ok(Done::Executed));
        assert!(open_files(&directory) > 0);
        for n in 0..3 {
            look_until(&engine, || open_files(&directory) == 0).await;
            // Nobody is there: that is known without it.
            assert!(engine.hub_at_once(&hub_name()).unwrap().is_none());
            assert!(engine.hub_with_sessions(&hub_name()).await.unwrap().is_none());
            assert_eq!(engine.counts().len(), 1, "it exists");
            assert_eq!(open_files(&directory), 0);
            visit(&engine, &format!("again {n}")).await;
            assert_eq!(engine.hub_to_join(&hub_name()).await.unwrap().epoch(), epoch);
            look_until(&engine, || open_files(&directory) == 0).await;
            assert_eq!(ask(&engine, send(), request("once")).await, Ok(Done::Repeated));
        }
        assert_eq!(engine.counts()[0].requests_repeated, 3, "it counts on");
        engine.close().await.unwrap();
        drop(engine);
        let engine = self::engine(&directory, 2, Config { hub_shards, ..config() }, KEPT).await;
        engine.start_kept_hubs().await.unwrap();
        assert_eq!(ask(&engine, send(), request("once")).await, Ok(Done::Repeated));
        visit(&engine, "last").await;
    }
}

#[tokio::test]
async fn a_hub_with_a_session_or_a_handle_stays_open() {
    let directory = TempDir::new().unwrap();
    let engine = engine(&directory, 1, config(), AT_ONCE).await;
    let hub = engine.hub_to_join(&hub_name()).await.unwrap();
    for _ in 0..10 {
        engine.look_at_hubs().await;
    }
    let socket = open(&hub, "one", &["room"]).await;
    drop(hub);
    for ack_id in 0..10 {
        engine.look_at_hubs().await;
        submit(&socket, publish("hi", ack_id)).await;
        assert_eq!(ack(&receive(&socket, 2).await[1]), (ack_id, None));
    }
    // Detached, it waits for its client.
    socket.close(SocketEnd::Lost).await;
    for _ in 0..10 {
        engine.look_at_hubs().await;
    }
    let hub = engine.hub_at_once(&hub_name()).unwrap().expect("it is live");
    hub.resume(ConnectionId::new("one"), Subprotocol::JsonReliable).await.unwrap();
}

/// Sockets that come all the time to a hub that is closed whenever it can be.
#[tokio::test(flavor = "multi_thread")]
async fn a_socket_that_opens_while_its_hub_is_being_closed_loses_nothing() {
    const SESSIONS: usize = 150;
    let directory = TempDir::new().unwrap();
    let engine = engine(&directory, 1, config(), KEPT).await;
    let closer = tokio::spawn({
        let engine = engine.clone();
        async move {
            loop {
                engine.look_at_hubs().await;
                tokio::task::yield_now().await;
            }
        }
    });
    let mut closes = 0;
    for n in 0..SESSIONS {
        visit(&engine, &format!("session {n}")).await;
        closes += usize::from(engine.hub_at_once(&hub_name()).is_ok_and(|hub| hub.is_none()));
        if n % 3 == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    closer.abort();
    let _ = closer.await;
    engine.close().await.unwrap();
    drop(engine);
    let log = store(directory.path()).await.open(&hub_name()).await.unwrap();
    let (mut tail, mut published, mut boots) = (log.tail(log.bounds().await.unwrap().first), 0, 0);
    let mut keys = std::collections::BTreeSet::new();
    let end = log.bounds().await.unwrap().end;
    let mut next = log.bounds().await.unwrap().first;
    while next < end {
        for (offset, record) in tail.next().await.unwrap().unwrap() {
            next = Offset(offset.0 + 1);
            let key = record.key.boot;
            assert!(keys.insert((key.boot, key.shard, key.counter)), "a key is used twice: {record:?}");
            published += usize::from(matches!(record.body, Body::Published(_)));
            boots += usize::from(matches!(record.body, Body::Booted { .. }));
        }
    }
    assert_eq!(published, SESSIONS, "each publish was acknowledged, and is there once");
    assert!(boots > 1, "it was never closed: {closes}");
}

#[tokio::test]
async fn a_hub_that_has_long_been_empty_is_removed() {
    let directory = TempDir::new().unwrap();
    let engine = engine(&directory, 1, config(), AT_ONCE).await;
    visit(&engine, "one").await;
    let epoch = engine.hub_to_join(&hub_name()).await.unwrap().epoch();
    let path = directory.path().join("hubs/chat");
    assert!(path.exists());
    look_until(&engine, || !path.exists()).await;
    assert!(engine.counts().is_empty());
    assert_eq!(ask(&engine, send(), None).await, Ok(Done::Executed));
    assert!(!path.exists(), "nor does a send bring it back");
    visit(&engine, "one").await;
    assert_ne!(engine.hub_to_join(&hub_name()).await.unwrap().epoch(), epoch, "tokens of before are refused");
}

#[tokio::test]
async fn a_hub_is_kept_while_requests_are_remembered_in_it() {
    let directory = TempDir::new().unwrap();
    let remembering = Config { idempotency_window_seconds: 300, ..Config::default() };
    let engine = engine(&directory, 1, remembering, AT_ONCE).await;
    visit(&engine, "one").await;
    assert_eq!(ask(&engine, send(), request("once")).await, Ok(Done::Executed));
    look_until(&engine, || open_files(&directory) == 0).await;
    engine.look_at_hubs().await;
    assert!(directory.path().join("hubs/chat").exists());
    assert_eq!(ask(&engine, send(), request("once")).await, Ok(Done::Repeated));
}

#[tokio::test]
async fn the_time_that_a_hub_has_been_empty_goes_on_over_a_restart() {
    let directory = TempDir::new().unwrap();
    let day = Duration::from_secs(24 * 60 * 60);
    let first = store(directory.path()).await;
    let log = first.open(&hub_name()).await.unwrap();
    log.append(vec![Arc::new(Shard::booted(BootId(1), wall_clock(), false))]).await.unwrap();
    drop(log);
    let yesterday = Time(wall_clock().0 - day.as_millis() as u64);
    first.close_hub(&hub_name(), yesterday).await.unwrap();
    drop(first);
    let engine = engine(&directory, 2, config(), KEPT).await;
    engine.start_kept_hubs().await.unwrap();
    let path = directory.path().join("hubs/chat");
    look_until(&engine, || !path.exists()).await;
}

#[tokio::test]
async fn a_hub_with_an_end_that_is_not_told_stays() {
    let mut application = super::calls::Application::new(true);
    let directory = TempDir::new().unwrap();
    let handlers = application.handlers();
    let store = Arc::new(store(directory.path()).await);
    let checkpoints = CheckpointBounds::default();
    let (config, boot, now) = (Arc::new(config()), BootId(1), wall_clock());
    let engine = Engine::with_all(config, store, boot, now, checkpoints, AT_ONCE, handlers, Arc::default());
    visit(&engine, "one").await;
    let (ended, told) = application.disconnected().await;
    assert_eq!(ended.subject.identity.connection_id, ConnectionId::new("one"));
    for _ in 0..10 {
        engine.look_at_hubs().await;
    }
    assert!(open_files(&directory) > 0);
    told.send(true).unwrap();
    let path = directory.path().join("hubs/chat");
    look_until(&engine, || !path.exists()).await;
}

#[tokio::test]
async fn one_more_hub_than_there_may_be_is_refused_and_the_others_go_on() {
    for store in [true, false] {
        let directory = TempDir::new().unwrap();
        let two = Config { hubs_max: Some(2), ..config() };
        let engine = if store {
            engine(&directory, 1, two, AT_ONCE).await
        } else {
            engine_over(Arc::new(MemoryStore::default()), 1, two, AT_ONCE)
        };
        let others: Vec<_> = ["b", "c"].map(|name| HubName::new(name).unwrap()).into();
        visit(&engine, "one").await;
        let kept = open(&engine.hub_to_join(&others[0]).await.unwrap(), "kept", &[]).await;
        assert_eq!(engine.hub_to_join(&others[1]).await.err(), Some(HubUnavailable::TooMany(2)));
        assert_eq!(engine.admits(&others[1]).await, Err(HubUnavailable::TooMany(2)));
        assert!(engine.hub_at_once(&others[1]).unwrap().is_none(), "a recovery there is refused for certain");
        for name in [&hub_name(), &others[0]] {
            engine.admits(name).await.unwrap();
            engine.hub_to_join(name).await.unwrap();
        }
        let removed = async {
            while engine.admits(&others[1]).await.is_err() {
                engine.look_at_hubs().await;
            }
        };
        tokio::time::timeout(PATIENCE, removed).await.expect("the empty one leaves its place");
        engine.hub_to_join(&others[1]).await.unwrap();
        submit(&kept, publish("hi", 1)).await;
        assert_eq!(ack(&receive(&kept, 1).await[0]), (1, None));
    }
}

#[tokio::test]
async fn a_round_closes_no_more_hubs_than_its_bound() {
    let engine = engine_over(Arc::new(MemoryStore::default()), 1, config(), AT_ONCE);
    for n in 0..=HUBS_PER_ROUND_MAX {
        engine.hub_to_join(&HubName::new(&format!("h{n}")).unwrap()).await.unwrap();
    }
    engine.look_at_hubs().await;
    assert_eq!(engine.counts().len(), 1);
    engine.look_at_hubs().await;
    assert_eq!(engine.counts().len(), 0);
}

#[tokio::test]
async fn an_engine_that_is_closed_begins_no_hub() {
    let directory = TempDir::new().unwrap();
    let engine = engine(&directory, 1, config(), KEPT).await;
    visit(&engine, "one").await;
    engine.close().await.unwrap();
    assert_eq!(
        engine.hub_to_join(&HubName::new("other").unwrap()).await.err(),
        Some(HubUnavailable::Starting)
    );
    assert!(!directory.path().join("hubs/other").exists());
}

/// Copies the directory of an engine as a gateway does.
async fn copy(store: &Arc<EmbeddedStore>, to: &std::path::Path) {
    let (store, to) = (Arc::clone(store), to.to_owned());
    let copied = tokio::task::spawn_blocking(move || store.copy(&to, &AtomicBool::new(false), |_, _| {}));
    copied.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_ends_its_sessions_and_keeps_what_belongs_to_the_hub() {
    let directory = TempDir::new().unwrap();
    let mut application = super::calls::Application::new(true);
    let original = Arc::new(store(directory.path()).await);
    let engine = application.engine(Arc::clone(&original) as Arc<dyn Store>, 1);
    let hub = engine.hub_to_join(&hub_name()).await.unwrap();
    let epoch = hub.epoch();
    let one = open(&hub, "one", &["room"]).await;
    let gone = open(&hub, "gone", &[]).await;
    gone.close(SocketEnd::ClosedForGood).await;
    // Nobody takes it in the original: it is to be told in both.
    let (_, _untold) = application.disconnected().await;
    assert_eq!(ask(&engine, send(), request("once")).await, Ok(Done::Executed));
    let to = TempDir::new().unwrap();
    copy(&original, to.path()).await;

    submit(&one, publish("after it", 1)).await;
    assert_eq!(receive(&one, 3).await.len(), 3, "the original goes on");
    drop(original);

    // A start that is interrupted between the end of the sessions and the new epoch is begun again.
    let interrupted = store(to.path()).await;
    let log = interrupted.open(&hub_name()).await.unwrap();
    assert!(log.is_copy());
    assert_eq!(log.epoch().await.unwrap(), epoch);
    log.append(vec![Arc::new(Shard::booted_from_copy(BootId(7), wall_clock(), true))]).await.unwrap();
    drop((log, interrupted));

    for boot in [8, 9] {
        let mut application = super::calls::Application::new(true);
        let copied = Arc::new(store(to.path()).await);
        let engine = application.engine(Arc::clone(&copied) as Arc<dyn Store>, boot);
        engine.start_kept_hubs().await.unwrap();
        let hub = engine.hub_to_join(&hub_name()).await.unwrap();
        assert_ne!(hub.epoch(), epoch);
        let log = copied.open(&hub_name()).await.unwrap();
        assert!(!log.is_copy());
        let resumed = hub.resume(ConnectionId::new("one"), Subprotocol::JsonReliable).await;
        assert_eq!(resumed.err(), Some(OpenError::Refused));
        assert_eq!(engine.counts()[0].sessions, 0);
        assert_eq!(ask(&engine, send(), request("once")).await, Ok(Done::Repeated));
        // Not answered, so that the next boot tells them as well.
        let told = [application.disconnected().await.0, application.disconnected().await.0];
        let mut ended: Vec<_> =
            told.iter().map(|told| told.subject.identity.connection_id.as_str()).collect();
        ended.sort_unstable();
        assert_eq!(ended, ["gone", "one"]);
        assert!(told.iter().any(|told| told.reason == "The gateway was restarted."));
        drop((hub, log, engine, copied, application));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_copy_whose_first_start_got_to_half_of_its_hubs_goes_on_with_the_others() {
    let directory = TempDir::new().unwrap();
    let original = Arc::new(store(directory.path()).await);
    let engine = engine_over(Arc::clone(&original) as Arc<dyn Store>, 1, config(), KEPT);
    let other = HubName::new("other").unwrap();
    for name in [&hub_name(), &other] {
        let hub = engine.hub_to_join(name).await.unwrap();
        std::mem::forget(open(&hub, "one", &[]).await);
    }
    let to = TempDir::new().unwrap();
    copy(&original, to.path()).await;
    let half = store(to.path()).await;
    let log = half.open(&other).await.unwrap();
    log.append(vec![Arc::new(Shard::booted_from_copy(BootId(7), wall_clock(), false))]).await.unwrap();
    log.begin_epoch().await.unwrap();
    let epoch = log.epoch().await.unwrap();
    drop((log, half));
    let engine = self::engine(&to, 8, config(), KEPT).await;
    engine.start_kept_hubs().await.unwrap();
    assert_eq!(engine.hub_to_join(&other).await.unwrap().epoch(), epoch, "it began its epoch before");
    for name in [&hub_name(), &other] {
        let resumed = engine.hub_to_join(name).await.unwrap();
        let resumed = resumed.resume(ConnectionId::new("one"), Subprotocol::JsonReliable).await;
        assert_eq!(resumed.err(), Some(OpenError::Refused), "{name}");
    }
}
