//! The engine over logs that are slow and that fail, without sockets.

use std::future::poll_fn;
use std::sync::atomic::AtomicBool;
use std::task::Poll;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::StreamExt;
use oncewire_protocol::hub::SocketEnd;
use oncewire_protocol::log::{Body, Certainty, Offset, Permission, Record, SessionIdentity};
use oncewire_protocol::session::{Progress, Request, SharedOutbox};
use oncewire_protocol::wire::{
    AckError, Downstream, ErrorName, FrameKind, GroupName, Message, Metadata, Payload, PayloadKind, Received,
    ReconnectionToken, SequenceId, Upstream, decode_downstream,
};
use tokio::sync::Semaphore;

use oncewire_protocol::hub::Attachment;

use super::*;
use crate::store::{Interception, Log, MemoryStore, StoreErrorCause, Tail, intercept};

#[path = "calls_tests.rs"]
mod calls;
#[path = "hubs_tests.rs"]
mod hubs;
#[path = "kept_tests.rs"]
mod kept;
#[path = "restart_tests.rs"]
mod restart;

/// A store whose appends wait for permits and fail as told.
struct TestStore {
    inner: MemoryStore,
    control: Arc<Control>,
}

struct Control {
    permits: Semaphore,
    /// Faults of the next appends that hold a publish.
    faults: Mutex<Vec<Certainty>>,
    /// Whether tails fail from now on.
    is_unreadable: AtomicBool,
    /// Whether faults are such that the store can't go on.
    is_fatal: AtomicBool,
}

impl Store for TestStore {
    fn open(&self, hub: &HubName) -> BoxFuture<'_, Result<Arc<dyn Log>, StoreError>> {
        let inner = self.inner.open(hub);
        let control = Arc::clone(&self.control);
        async move { Ok(intercept(inner.await?, TestAppends(control))) }.boxed()
    }

    fn remove(&self, hub: &HubName) -> BoxFuture<'_, Result<(), StoreError>> {
        self.inner.remove(hub)
    }
}

struct TestAppends(Arc<Control>);

impl Interception for TestAppends {
    fn append(
        &self,
        log: &Arc<dyn Log>,
        records: Vec<Arc<Record>>,
    ) -> BoxFuture<'static, Result<(), StoreError>> {
        let publishes = records.iter().any(|record| matches!(record.body, Body::Published(_)));
        let fault = if publishes { self.0.faults.lock().pop() } else { None };
        let (log, control) = (Arc::clone(log), Arc::clone(&self.0));
        async move {
            control.permits.acquire().await.expect("never closed").forget();
            let is_fatal = control.is_fatal.load(Ordering::Relaxed);
            let cause = if is_fatal {
                StoreErrorCause::Fatal("a sync".to_owned())
            } else {
                StoreErrorCause::Injected
            };
            let failed = |certainty| StoreError { certainty, cause };
            match fault {
                None => log.append(records).await,
                Some(Certainty::Definite) => Err(failed(Certainty::Definite)),
                Some(Certainty::Indefinite) => {
                    log.append(records).await.and(Err(failed(Certainty::Indefinite)))
                }
            }
        }
        .boxed()
    }

    fn tail(&self, log: &Arc<dyn Log>, from: Offset) -> Tail {
        let control = Arc::clone(&self.0);
        let failed = StoreError { certainty: Certainty::Definite, cause: StoreErrorCause::Injected };
        let or_failed = move |portion| {
            if control.is_unreadable.load(Ordering::Relaxed) { Err(failed.clone()) } else { portion }
        };
        log.tail(from).map(or_failed).boxed()
    }
}

struct World {
    control: Arc<Control>,
    engine: Engine,
}

impl World {
    fn new(hub_shards: u16) -> Self {
        let control = Arc::new(Control {
            permits: Semaphore::new(1_000_000),
            faults: Mutex::default(),
            is_unreadable: AtomicBool::new(false),
            is_fatal: AtomicBool::new(false),
        });
        let store = TestStore { inner: MemoryStore::default(), control: Arc::clone(&control) };
        let config = Config { hub_shards, ..Config::default() };
        Self { control, engine: Engine::new(Arc::new(config), Arc::new(store), BootId(1)) }
    }

    async fn hub(&self) -> HubHandle {
        self.engine.hub_to_join(&hub_name()).await.unwrap()
    }

    /// Makes appends wait until the guard is dropped.
    fn hold_appends(&self) -> HeldAppends<'_> {
        HeldAppends(&self.control.permits, self.control.permits.forget_permits(usize::MAX))
    }

    fn fail_next_publish(&self, certainty: Certainty) {
        self.control.faults.lock().push(certainty);
    }
}

struct HeldAppends<'a>(&'a Semaphore, usize);

impl Drop for HeldAppends<'_> {
    fn drop(&mut self) {
        self.0.add_permits(self.1);
    }
}

fn hub_name() -> HubName {
    HubName::new("chat").unwrap()
}

fn group(name: &str) -> GroupName {
    GroupName::new(name).unwrap()
}

fn session(id: &str, groups: &[&str]) -> NewSession {
    NewSession {
        identity: SessionIdentity {
            connection_id: ConnectionId::new(id),
            user_id: None,
            subprotocol: Subprotocol::JsonReliable,
            custom_subprotocol: None,
        },
        roles: vec!["webpubsub.sendToGroup.room".to_owned()],
        groups: groups.iter().map(|name| group(name)).collect(),
        reconnection_token: Some(ReconnectionToken("proof".to_owned())),
        state: None,
    }
}

fn publish(text: &'static str, ack_id: u64) -> Upstream {
    Upstream::SendToGroup {
        group: group("room"),
        payload: Payload { kind: PayloadKind::Text, bytes: Bytes::from_static(text.as_bytes()) },
        metadata: Metadata::default(),
        ack_id: Some(ack_id),
        no_echo: false,
        ttl_seconds: 0,
    }
}

async fn submit(socket: &AttachedSocket, message: Upstream) {
    socket.submit(vec![Request { message, bytes: 100 }]).await;
}

/// The next frames that the socket's writer would write.
async fn transmit(socket: &AttachedSocket) -> Vec<Received> {
    let attachment = socket.attachment();
    let (mut out, mut sent) = (BytesMut::new(), Vec::new());
    poll_fn(|context| {
        let mut outbox = attachment.outbox.lock();
        let epoch = attachment.session.epoch;
        match outbox.transmit(epoch, socket.clock().now(), 1 << 20, &mut out, &mut sent, context.waker()) {
            Progress::Idle => Poll::Pending,
            Progress::Frames | Progress::LastFrames => Poll::Ready(()),
            other => panic!("{other:?}"),
        }
    })
    .await;
    let mut begin = 0;
    let frames = sent.iter().map(|item| {
        let mut frame = &out[begin..item.end];
        begin = item.end;
        frame.advance(if frame[1] == 126 { 4 } else { 2 });
        decode_downstream(
            Subprotocol::JsonReliable.encoding(),
            FrameKind::Text,
            &Bytes::copy_from_slice(frame),
        )
        .unwrap()
    });
    frames.collect()
}

/// Opens a session and takes its first message.
async fn open(hub: &HubHandle, id: &str, groups: &[&str]) -> AttachedSocket {
    let socket = hub.open(session(id, groups)).await.unwrap();
    let first = transmit(&socket).await;
    assert!(
        matches!(&first[..], [Received::Control(Downstream::Connected { connection_id, reconnection_token: Some(_), .. })]
            if connection_id.as_str() == id)
    );
    socket
}

fn text(received: &Received) -> (&str, SequenceId) {
    match received {
        Received::Message {
            message: Message { payload: Payload { kind: PayloadKind::Text, bytes }, .. },
            sequence_id: Some(id),
        } => (std::str::from_utf8(bytes).unwrap(), *id),
        other => panic!("{other:?}"),
    }
}

fn ack(received: &Received) -> (u64, Option<ErrorName>) {
    match received {
        Received::Control(Downstream::Ack { ack_id, error }) => {
            (*ack_id, error.as_ref().map(|AckError { name, .. }| *name))
        }
        other => panic!("{other:?}"),
    }
}

/// Frames until this many have come.
async fn receive(socket: &AttachedSocket, count: usize) -> Vec<Received> {
    let mut received = Vec::new();
    while received.len() < count {
        received.extend(transmit(socket).await);
    }
    received
}

#[tokio::test]
async fn messages_cross_shards_and_arrive_before_the_publishers_own_ack() {
    for shards in [1, 3] {
        let world = World::new(shards);
        let hub = world.hub().await;
        let sockets: Vec<AttachedSocket> = futures_util::future::join_all((0..8).map(|n| {
            let hub = hub.clone();
            async move { open(&hub, &format!("s{n}"), &["room"]).await }
        }))
        .await;
        submit(&sockets[0], publish("one", 1)).await;
        submit(&sockets[0], publish("two", 2)).await;
        let own = receive(&sockets[0], 4).await;
        let position = |of: &dyn Fn(&Received) -> bool| own.iter().position(of).unwrap();
        let is_text = |wanted: &'static str| {
            move |received: &Received| {
                matches!(received, Received::Message { .. }) && text(received).0 == wanted
            }
        };
        let is_ack = |wanted| {
            move |received: &Received| {
                matches!(received, Received::Control(_)) && ack(received) == (wanted, None)
            }
        };
        assert!(position(&is_text("one")) < position(&is_ack(1)));
        assert!(position(&is_text("two")) < position(&is_ack(2)));
        assert!(position(&is_ack(1)) < position(&is_ack(2)));
        for socket in &sockets[1..] {
            let received = receive(socket, 2).await;
            assert_eq!(received.iter().map(text).collect::<Vec<_>>(), [("one", 1), ("two", 2)]);
        }
    }
}

#[tokio::test]
async fn r3_nothing_is_sent_or_acknowledged_before_it_is_in_the_log() {
    let world = World::new(1);
    let hub = world.hub().await;
    let publisher = open(&hub, "publisher", &[]).await;
    let subscriber = open(&hub, "subscriber", &["room"]).await;
    let held = world.hold_appends();
    submit(&publisher, publish("hi", 1)).await;
    for _ in 0..100 {
        tokio::task::yield_now().await;
        assert!(transmit(&subscriber).now_or_never().is_none());
        assert!(transmit(&publisher).now_or_never().is_none());
    }
    drop(held);
    assert_eq!(text(&transmit(&subscriber).await[0]), ("hi", 1));
    assert_eq!(ack(&transmit(&publisher).await[0]), (1, None));
}

#[tokio::test]
async fn an_append_that_definitely_failed_is_told_and_may_be_sent_again() {
    let world = World::new(1);
    let hub = world.hub().await;
    let publisher = open(&hub, "publisher", &[]).await;
    let subscriber = open(&hub, "subscriber", &["room"]).await;
    world.fail_next_publish(Certainty::Definite);
    submit(&publisher, publish("hi", 1)).await;
    assert_eq!(ack(&transmit(&publisher).await[0]), (1, Some(ErrorName::InternalServerError)));
    submit(&publisher, publish("hi", 1)).await;
    assert_eq!(ack(&transmit(&publisher).await[0]), (1, None));
    submit(&publisher, publish("hi", 1)).await;
    assert_eq!(ack(&transmit(&publisher).await[0]), (1, Some(ErrorName::Duplicate)));
    submit(&publisher, publish("ho", 1)).await;
    assert_eq!(ack(&transmit(&publisher).await[0]), (1, Some(ErrorName::PayloadMismatch)));
    submit(&publisher, publish("end", 2)).await;
    let received = receive(&subscriber, 2).await;
    assert_eq!(received.iter().map(text).collect::<Vec<_>>(), [("hi", 1), ("end", 2)]);
}

#[tokio::test]
async fn an_append_that_may_have_failed_is_settled_without_a_second_copy() {
    let world = World::new(1);
    let hub = world.hub().await;
    let publisher = open(&hub, "publisher", &[]).await;
    let subscriber = open(&hub, "subscriber", &["room"]).await;
    world.fail_next_publish(Certainty::Indefinite);
    submit(&publisher, publish("hi", 1)).await;
    assert_eq!(ack(&transmit(&publisher).await[0]), (1, None));
    // Long enough for a retry that should not be there.
    tokio::time::sleep(Duration::from_millis(300)).await;
    submit(&publisher, publish("end", 2)).await;
    let received = receive(&subscriber, 2).await;
    assert_eq!(received.iter().map(text).collect::<Vec<_>>(), [("hi", 1), ("end", 2)]);
}

#[tokio::test]
async fn a_dropped_socket_can_be_resumed_and_misses_nothing() {
    let world = World::new(1);
    let hub = world.hub().await;
    let publisher = open(&hub, "publisher", &[]).await;
    let subscriber = open(&hub, "subscriber", &["room"]).await;
    submit(&publisher, publish("one", 1)).await;
    assert_eq!(text(&transmit(&subscriber).await[0]), ("one", 1));
    drop(subscriber);
    submit(&publisher, publish("two", 2)).await;
    assert_eq!(ack(&receive(&publisher, 2).await[1]), (2, None));
    let resumed = hub.resume(ConnectionId::new("subscriber"), Subprotocol::JsonReliable).await.unwrap();
    let received = receive(&resumed, 2).await;
    assert_eq!(received.iter().map(text).collect::<Vec<_>>(), [("one", 1), ("two", 2)]);

    resumed.close(SocketEnd::ClosedForGood).await;
    let refused = hub.resume(ConnectionId::new("subscriber"), Subprotocol::JsonReliable).await;
    assert_eq!(refused.err(), Some(OpenError::Refused));
}

#[tokio::test]
async fn a_session_whose_opener_went_away_waits_for_its_client() {
    let world = World::new(1);
    let hub = world.hub().await;
    let held = world.hold_appends();
    let mut opening = Box::pin(hub.open(session("impatient", &["room"])));
    assert!(opening.as_mut().now_or_never().is_none());
    drop(opening);
    drop(held);
    let publisher = open(&hub, "publisher", &[]).await;
    submit(&publisher, publish("hi", 1)).await;
    assert_eq!(ack(&transmit(&publisher).await[0]), (1, None));
    let resumed = hub.resume(ConnectionId::new("impatient"), Subprotocol::JsonReliable).await.unwrap();
    assert_eq!(text(&transmit(&resumed).await[0]), ("hi", 1));
}

async fn change_rule(
    hub: &HubHandle,
    connection_id: ConnectionId,
    permission: Permission,
    name: &str,
    allow: bool,
) -> Result<Done, CommandError> {
    hub.ask(Action::ChangeRule { connection_id, permission, group: group(name), allow }, None).await
}

#[tokio::test]
async fn s22_1_02_a_forbidden_request_may_be_sent_again_after_a_grant() {
    let world = World::new(1);
    let hub = world.hub().await;
    let client = open(&hub, "client", &[]).await;
    let join = || Upstream::JoinGroup { group: group("ops"), ack_id: Some(7) };
    submit(&client, join()).await;
    assert_eq!(ack(&transmit(&client).await[0]), (7, Some(ErrorName::Forbidden)));
    let id = || ConnectionId::new("client");
    change_rule(&hub, id(), Permission::JoinLeaveGroup, "ops", true).await.unwrap();
    submit(&client, join()).await;
    assert_eq!(ack(&transmit(&client).await[0]), (7, None));
    change_rule(&hub, id(), Permission::JoinLeaveGroup, "ops", false).await.unwrap();
    submit(&client, Upstream::LeaveGroup { group: group("ops"), ack_id: Some(8) }).await;
    assert_eq!(ack(&transmit(&client).await[0]), (8, Some(ErrorName::Forbidden)));
    let unknown = change_rule(&hub, ConnectionId::new("nobody"), Permission::SendToGroup, "ops", true).await;
    assert_eq!(unknown, Err(CommandError::UnknownConnection));
}

#[tokio::test]
async fn the_log_is_trimmed_behind_what_all_shards_have_applied() {
    let world = World::new(2);
    let hub = world.hub().await;
    let publisher = open(&hub, "publisher", &[]).await;
    for ack_id in 0..3000 {
        submit(&publisher, publish("hi", ack_id)).await;
    }
    let mut acks = 0;
    while acks < 3000 {
        acks += transmit(&publisher).await.len();
    }
    let log = world.engine.0.store.open(&hub_name()).await.unwrap();
    // The other shard follows in its own time.
    let trimmed = async {
        while log.bounds().await.unwrap().first.0 < 3000 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), trimmed).await.expect("the log keeps what nobody needs");
}

#[tokio::test]
async fn a_shard_stops_when_its_log_cannot_be_read_and_passes_over_nothing() {
    let world = World::new(1);
    let hub = world.hub().await;
    let publisher = open(&hub, "publisher", &[]).await;
    world.control.is_unreadable.store(true, Ordering::Relaxed);
    submit(&publisher, publish("hi", 1)).await;
    let opening = hub.open(session("late", &[]));
    let opened = tokio::time::timeout(Duration::from_secs(60), opening).await.expect("the shard goes on");
    assert_eq!(opened.err(), Some(OpenError::Unavailable));
    let failed = tokio::time::timeout(Duration::from_secs(60), world.engine.failed());
    failed.await.expect("the process goes on without these sessions");
}

#[tokio::test]
async fn hubs_are_found_only_when_they_are_in_use() {
    let world = World::new(1);
    assert!(world.engine.hub_at_once(&hub_name()).unwrap().is_none());
    let hub = world.hub().await;
    assert_eq!(world.engine.hub_at_once(&hub_name()).unwrap().unwrap().epoch(), hub.epoch());
    let other = world.engine.hub_to_join(&HubName::new("other").unwrap()).await.unwrap();
    assert_ne!(other.epoch(), hub.epoch());
    open(&hub, "client", &[]).await;
    let elsewhere = other.resume(ConnectionId::new("client"), Subprotocol::JsonReliable).await;
    assert_eq!(elsewhere.err(), Some(OpenError::Refused));
}

/// A caller may be gone (its handshake timed out, its connection broke) after it was answered and before it looked.
#[tokio::test]
async fn a_socket_that_nobody_came_for_is_lost() {
    let world = World::new(1);
    let hub = world.hub().await;
    let id = ConnectionId::new("client");
    let mut new = session("client", &[]);
    new.identity.subprotocol = Subprotocol::Json;
    let grant = || change_rule(&hub, id.clone(), Permission::SendToGroup, "room", true);
    let mut opening = Box::pin(hub.open(new));
    assert!(opening.as_mut().now_or_never().is_none());
    while grant().await == Err(CommandError::UnknownConnection) {
        tokio::task::yield_now().await;
    }
    assert_eq!(grant().await, Ok(Done::Executed), "the session is there, and nobody has taken its socket");
    drop(opening);
    let gone = async {
        while grant().await.is_ok() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.expect("the session stays attached to nobody");
    assert_eq!(grant().await, Err(CommandError::UnknownConnection));
}

/// On one thread the shard's task does not run while this one does: its inbox fills up.
#[tokio::test]
async fn at_the_bound_of_a_shards_inbox_senders_wait_and_nothing_is_lost() {
    let world = World::new(1);
    let hub = world.hub().await;
    let socket = open(&hub, "a", &[]).await;
    let ask = |ack_id: usize| submit(&socket, publish("x", ack_id as u64));
    let taken = (1..=INBOX_INPUTS_MAX).take_while(|n| ask(*n).now_or_never().is_some()).count();
    assert_eq!(taken, INBOX_INPUTS_MAX);
    let mut late = Box::pin(ask(INBOX_INPUTS_MAX + 1));
    assert!(late.as_mut().now_or_never().is_none(), "one more waits");
    late.await;
    let received = receive(&socket, INBOX_INPUTS_MAX + 1).await;
    let acks: Vec<_> = received.iter().map(ack).collect();
    assert_eq!(acks, (1..=INBOX_INPUTS_MAX as u64 + 1).map(|n| (n, None)).collect::<Vec<_>>());
}

/// Notes how many messages wait for a client when its writer is woken.
struct AtWake(SharedOutbox, Mutex<Vec<usize>>);

impl std::task::Wake for AtWake {
    fn wake(self: Arc<Self>) {
        self.1.lock().push(self.0.lock().messages());
    }
}

#[tokio::test]
async fn a_turn_takes_so_many_inputs_and_then_writers_are_woken() {
    for inputs in [shard::TURN_INPUTS_MAX, shard::TURN_INPUTS_MAX + 1] {
        let world = World::new(1);
        let hub = world.hub().await;
        let (subscriber, publisher) = (open(&hub, "s", &["room"]).await, open(&hub, "p", &[]).await);
        let Attachment { session, outbox } = subscriber.attachment();
        let at_wake = Arc::new(AtWake(Arc::clone(outbox), Mutex::default()));
        let waker = std::task::Waker::from(Arc::clone(&at_wake));
        let idle = outbox.lock().transmit(
            session.epoch,
            subscriber.clock().now(),
            1,
            &mut BytesMut::new(),
            &mut Vec::new(),
            &waker,
        );
        assert_eq!(idle, Progress::Idle);
        for ack_id in 1..=inputs {
            submit(&publisher, publish("x", ack_id as u64)).await;
        }
        receive(&publisher, inputs).await;
        assert_eq!(at_wake.1.lock().first(), Some(&shard::TURN_INPUTS_MAX), "of {inputs}");
        assert_eq!(outbox.lock().messages(), inputs);
    }
}
