//! Event handlers that the test answers for.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use oncewire_protocol::hub::{Connected, EventError, Handled, UserEvent};
use oncewire_protocol::log::{Disconnected, HandlerReply};
use oncewire_protocol::wire::EventName;
use tokio::sync::watch;

use super::*;
use crate::engine::{Accepted, ConnectRefused, Connecting, EventHandlers};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Hands everything to the test.
struct Scripted {
    changes: watch::Sender<u64>,
    takes_disconnected: AtomicBool,
    asked: mpsc::UnboundedSender<Asked>,
}

enum Asked {
    Event(UserEvent, oneshot::Sender<Result<Handled, EventError>>),
    Connected(Connected),
    /// Answered by whether it is taken.
    Disconnected(Disconnected, oneshot::Sender<bool>),
}

impl EventHandlers for Scripted {
    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn takes_connect(&self, _: &HubName) -> bool {
        false
    }

    fn takes_disconnected(&self, _: &HubName) -> bool {
        self.takes_disconnected.load(Ordering::Relaxed)
    }

    fn connect(&self, _: Connecting) -> BoxFuture<'static, Result<Accepted, ConnectRefused>> {
        std::future::ready(Err(ConnectRefused::Failed)).boxed()
    }

    fn connected(&self, _: &HubName, connected: Connected) {
        let _ = self.asked.send(Asked::Connected(connected));
    }

    fn user_event(&self, _: &HubName, event: UserEvent) -> BoxFuture<'static, Result<Handled, EventError>> {
        let (answer, answered) = oneshot::channel();
        let _ = self.asked.send(Asked::Event(event, answer));
        async { answered.await.unwrap_or(Err(EventError::Failed)) }.boxed()
    }

    fn disconnected(&self, _: &HubName, disconnected: Disconnected) -> BoxFuture<'static, bool> {
        let (told, is_told) = oneshot::channel();
        let _ = self.asked.send(Asked::Disconnected(disconnected, told));
        async {
            match is_told.await {
                Ok(is_told) => is_told,
                // A test that lets go of it leaves it unanswered.
                Err(_) => std::future::pending().await,
            }
        }
        .boxed()
    }
}

/// What the handlers of a hub are asked, one after the other.
pub(super) struct Application {
    handlers: Arc<Scripted>,
    asked: mpsc::UnboundedReceiver<Asked>,
}

impl Application {
    pub(super) fn new(takes_disconnected: bool) -> Self {
        let (asked, receiver) = mpsc::unbounded_channel();
        let takes_disconnected = AtomicBool::new(takes_disconnected);
        let handlers = Arc::new(Scripted { changes: watch::Sender::new(0), takes_disconnected, asked });
        Self { handlers, asked: receiver }
    }

    pub(super) fn handlers(&self) -> Arc<dyn EventHandlers> {
        Arc::clone(&self.handlers) as Arc<dyn EventHandlers>
    }

    pub(super) fn engine(&self, store: Arc<dyn Store>, boot: u128) -> Engine {
        let config = Arc::new(Config { hub_shards: 1, ..Config::default() });
        Engine::with_event_handlers(config, store, BootId(boot), self.handlers(), Arc::default())
    }

    async fn next(&mut self) -> Asked {
        let next = tokio::time::timeout(PATIENCE, self.asked.recv());
        next.await.expect("nothing is asked").expect("handlers that live as long as this")
    }

    async fn event(&mut self) -> (UserEvent, oneshot::Sender<Result<Handled, EventError>>) {
        loop {
            if let Asked::Event(event, answer) = self.next().await {
                return (event, answer);
            }
        }
    }

    pub(super) async fn disconnected(&mut self) -> (Disconnected, oneshot::Sender<bool>) {
        loop {
            if let Asked::Disconnected(disconnected, told) = self.next().await {
                return (disconnected, told);
            }
        }
    }
}

fn event(text: &'static str, ack_id: u64) -> Upstream {
    Upstream::Event {
        event: EventName::new("say").unwrap(),
        payload: Payload { kind: PayloadKind::Text, bytes: Bytes::from_static(text.as_bytes()) },
        metadata: Metadata::default(),
        ack_id: Some(ack_id),
    }
}

fn reply(text: &'static str) -> Result<Handled, EventError> {
    let payload = Payload { kind: PayloadKind::Text, bytes: Bytes::from_static(text.as_bytes()) };
    let reply = Some(HandlerReply { payload, metadata: Metadata::default() });
    Ok(Handled { reply, state: None })
}

#[tokio::test]
async fn a_handler_that_is_at_work_holds_up_nobody_but_the_requests_behind_its_event() {
    let mut application = Application::new(false);
    let hub = application.engine(Arc::new(MemoryStore::default()), 1).hub_to_join(&hub_name()).await.unwrap();
    let slow = open(&hub, "slow", &["room"]).await;
    let Asked::Connected(connected) = application.next().await else { panic!("not told of a new session") };
    assert_eq!(
        (connected.subject.identity.connection_id.as_str(), connected.id.to_string().as_str()),
        ("slow", "1")
    );
    let other = open(&hub, "other", &["room"]).await;
    submit(&slow, event("long", 1)).await;
    let (long, answer) = application.event().await;
    assert_eq!(
        (long.subject.identity.connection_id.as_str(), &long.payload.bytes[..]),
        ("slow", &b"long"[..])
    );
    submit(&slow, publish("behind", 2)).await;
    submit(&other, event("short", 1)).await;
    let (_, short) = application.event().await;
    short.send(reply("done")).unwrap();
    let received = receive(&other, 2).await;
    assert_eq!((text(&received[0]), ack(&received[1])), (("done", 1), (1, None)));
    submit(&other, publish("meanwhile", 2)).await;
    assert_eq!(text(&receive(&slow, 1).await[0]), ("meanwhile", 1));
    answer.send(reply("done at last")).unwrap();
    let received = receive(&slow, 4).await;
    assert_eq!((text(&received[0]), ack(&received[1])), (("done at last", 2), (1, None)));
    assert_eq!(text(&received[2]), ("behind", 3));
}

#[tokio::test]
async fn an_end_is_told_by_the_next_process_when_this_one_could_not() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = Application::new(true);
    let engine = first.engine(Arc::new(restart::store(directory.path()).await), 1);
    let hub = engine.hub_to_join(&hub_name()).await.unwrap();
    let socket = open(&hub, "s", &[]).await;
    socket.close(SocketEnd::ClosedForGood).await;
    let (untold, _not_taken) = first.disconnected().await;
    drop((hub, engine));
    let mut second = Application::new(true);
    let engine = second.engine(Arc::new(restart::store(directory.path()).await), 2);
    let hub = engine.hub_to_join(&hub_name()).await.unwrap();
    let (told, taken) = second.disconnected().await;
    assert_eq!(told, untold);
    taken.send(true).unwrap();
    open(&hub, "later", &[]).await.close(SocketEnd::ClosedForGood).await;
    assert_eq!(second.disconnected().await.0.subject.identity.connection_id.as_str(), "later");
}

#[tokio::test]
async fn whether_ends_are_told_changes_with_the_configuration() {
    let mut application = Application::new(false);
    let hub = application.engine(Arc::new(MemoryStore::default()), 1).hub_to_join(&hub_name()).await.unwrap();
    open(&hub, "before", &[]).await.close(SocketEnd::ClosedForGood).await;
    open(&hub, "between", &[]).await;
    application.handlers.takes_disconnected.store(true, Ordering::Relaxed);
    application.handlers.changes.send_modify(|change| *change += 1);
    // Each turn looks for changes; that one was taken is seen by what is told of a session that ends later.
    let mut sessions = 0;
    let told = loop {
        sessions += 1;
        open(&hub, &format!("after-{sessions}"), &[]).await.close(SocketEnd::ClosedForGood).await;
        let next = tokio::time::timeout(Duration::from_millis(50), application.disconnected());
        if let Ok((told, _)) = next.await {
            break told;
        }
    };
    assert!(told.subject.identity.connection_id.as_str().starts_with("after-"));
}

#[tokio::test]
async fn with_a_log_that_goes_with_the_process_every_session_is_told_to_be_over() {
    let mut application = Application::new(true);
    let engine = application.engine(Arc::new(MemoryStore::default()), 1);
    let hub = engine.hub_to_join(&hub_name()).await.unwrap();
    let _socket = open(&hub, "s", &[]).await;
    let closing = tokio::spawn(async move { engine.close().await });
    let (told, taken) = application.disconnected().await;
    assert_eq!(
        (told.subject.identity.connection_id.as_str(), told.reason.as_str()),
        ("s", "The gateway was stopped.")
    );
    assert!(!closing.is_finished(), "the application is waited for");
    taken.send(true).unwrap();
    closing.await.unwrap().unwrap();
}

#[tokio::test]
async fn so_many_ends_are_told_at_a_time_and_the_others_wait() {
    let mut application = Application::new(true);
    let hub = application.engine(Arc::new(MemoryStore::default()), 1).hub_to_join(&hub_name()).await.unwrap();
    let sessions = crate::engine::calls::TELLING_MAX + 3;
    for n in 0..sessions {
        open(&hub, &format!("s{n}"), &[]).await.close(SocketEnd::ClosedForGood).await;
    }
    let mut orders = Vec::new();
    while orders.len() < crate::engine::calls::TELLING_MAX {
        orders.push(application.disconnected().await.1);
    }
    while let Ok(asked) = application.asked.try_recv() {
        assert!(matches!(asked, Asked::Connected(_)), "one more is told");
    }
    for told in orders {
        told.send(true).unwrap();
    }
    for _ in crate::engine::calls::TELLING_MAX..sessions {
        application.disconnected().await;
    }
}

#[tokio::test(start_paused = true)]
async fn ends_that_a_handler_does_not_take_hold_up_no_others() {
    let mut application = Application::new(true);
    let hub = application.engine(Arc::new(MemoryStore::default()), 1).hub_to_join(&hub_name()).await.unwrap();
    let sessions = crate::engine::calls::TELLING_MAX + 1;
    for n in 0..sessions {
        open(&hub, &format!("s{n}"), &[]).await.close(SocketEnd::ClosedForGood).await;
    }
    let refused =
        |disconnected: &Disconnected| disconnected.subject.identity.connection_id.as_str() != "s256";
    let mut attempts = 0;
    let (last, taken) = loop {
        match application.disconnected().await {
            (disconnected, taken) if refused(&disconnected) => taken.send(false).unwrap(),
            told => break told,
        }
        attempts += 1;
    };
    assert!(attempts <= crate::engine::calls::TELLING_MAX, "its turn comes before theirs comes again");
    taken.send(true).unwrap();
    assert_eq!(last.reason, "");
    let (again, taken) = application.disconnected().await;
    assert!(refused(&again), "the others are told again");
    taken.send(true).unwrap();
}

#[tokio::test]
async fn a_shard_whose_inbox_is_never_empty_takes_answers_all_the_same() {
    let mut application = Application::new(false);
    let hub = application.engine(Arc::new(MemoryStore::default()), 1).hub_to_join(&hub_name()).await.unwrap();
    let asking = open(&hub, "asking", &[]).await;
    submit(&asking, event("x", 1)).await;
    let (_, answer) = application.event().await;
    let flood = {
        let hub = hub.clone();
        async move {
            loop {
                let looks = (0..2 * crate::engine::shard::TURN_INPUTS_MAX)
                    .map(|_| hub.has(oncewire_protocol::log::Audience::All));
                futures_util::future::join_all(looks).await;
            }
        }
    };
    let answered = async {
        answer.send(reply("done")).unwrap();
        receive(&asking, 2).await
    };
    tokio::select! {
        biased;
        () = flood => unreachable!("it does not end"),
        received = answered => assert_eq!(ack(&received[1]), (1, None)),
    }
}
