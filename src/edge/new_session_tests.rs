use futures_util::future::{BoxFuture, FutureExt};
use oncewire_protocol::log::BootId;
use oncewire_protocol::wire::{GroupName, UserId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot, watch};

use super::*;
use crate::auth::{AccessKeys, ReconnectionTokens};
use crate::config::{Config, HubOverrides};
use crate::edge::{Edge, Gate, Listeners, Operations, listen, serve};
use crate::engine::{Connected, Connecting, Engine, EventError, EventHandlers, Handled, UserEvent};
use crate::store::MemoryStore;

type Answer = Result<Accepted, ConnectRefused>;

/// Takes `connect` of the hub `asked` alone, and lets the test answer.
struct Application {
    calls: mpsc::UnboundedSender<(Connecting, oneshot::Sender<Answer>)>,
    told: mpsc::UnboundedSender<Disconnected>,
    changes: watch::Sender<u64>,
}

impl EventHandlers for Application {
    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn takes_connect(&self, hub: &HubName) -> bool {
        hub.as_str() == "asked"
    }

    fn takes_disconnected(&self, _: &HubName) -> bool {
        true
    }

    fn connect(&self, connecting: Connecting) -> BoxFuture<'static, Answer> {
        let (reply, answer) = oneshot::channel();
        self.calls.send((connecting, reply)).unwrap();
        answer.map(|answer| answer.unwrap_or(Err(ConnectRefused::Failed))).boxed()
    }

    fn connected(&self, _: &HubName, _: Connected) {}

    fn user_event(&self, _: &HubName, _: UserEvent) -> BoxFuture<'static, Result<Handled, EventError>> {
        std::future::ready(Err(EventError::NoHandler)).boxed()
    }

    /// Never comes to an end: so a farewell that is under way stays so.
    fn disconnected(&self, _: &HubName, disconnected: Disconnected) -> BoxFuture<'static, bool> {
        self.told.send(disconnected).unwrap();
        std::future::pending().boxed()
    }
}

/// What the application has heard.
struct Heard {
    calls: mpsc::UnboundedReceiver<(Connecting, oneshot::Sender<Answer>)>,
    told: mpsc::UnboundedReceiver<Disconnected>,
}

impl Heard {
    async fn call(&mut self) -> (Connecting, oneshot::Sender<Answer>) {
        self.calls.recv().await.unwrap()
    }
}

/// An edge whose hubs are all anonymous, and the application behind it.
fn edge(mut config: Config) -> (Edge, Heard) {
    for hub in ["asked", "other"] {
        config.hubs.insert(hub.to_owned(), HubOverrides { anonymous: true, ..HubOverrides::default() });
    }
    let (calls, asked) = mpsc::unbounded_channel();
    let (telling, told) = mpsc::unbounded_channel();
    let application = Application { calls, told: telling, changes: watch::Sender::new(0) };
    let config = Arc::new(config);
    let store = Arc::new(MemoryStore::default());
    let engine = Engine::with_event_handlers(
        Arc::clone(&config),
        store,
        BootId(1),
        Arc::new(application),
        Arc::default(),
    );
    let edge = Edge {
        config,
        access_keys: AccessKeys::new("a key of at least thirty-two bytes", None).unwrap(),
        reconnection_tokens: ReconnectionTokens::new([1; 32]),
        engine,
        faults: None,
    };
    (edge, Heard { calls: asked, told })
}

/// An edge that serves.
struct World {
    port: u16,
    heard: Heard,
    stop: Option<oneshot::Sender<()>>,
}

impl World {
    fn start(config: Config) -> Self {
        let (edge, heard) = edge(config);
        let listener = listen(([127, 0, 0, 1], 0).into()).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (stop, stopped) = oneshot::channel::<()>();
        let listeners =
            Listeners { http: Some(listener), https: None, gate: Gate::new(&edge.config, Arc::default()) };
        tokio::spawn(serve(edge, listeners, Operations::default(), stopped.map(drop)));
        Self { port, heard, stop: Some(stop) }
    }

    /// Asks for an upgrade.
    async fn knock(&self, target: &str, more: &str) -> TcpStream {
        let mut socket = TcpStream::connect(("127.0.0.1", self.port)).await.unwrap();
        let request = format!(
            "GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{more}\r\n"
        );
        socket.write_all(request.as_bytes()).await.unwrap();
        socket
    }
}

/// The head of the answer, in lower case, and what follows up to the length that it tells.
async fn answer(socket: &mut TcpStream) -> (String, String) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(socket.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap().to_ascii_lowercase();
    let length = head.split("content-length: ").nth(1).and_then(|rest| rest.split("\r\n").next());
    let mut body = vec![0; length.map_or(0, |length| length.parse().unwrap())];
    socket.read_exact(&mut body).await.unwrap();
    (head, String::from_utf8(body).unwrap())
}

async fn status(socket: &mut TcpStream) -> u16 {
    answer(socket).await.0[9..12].parse().unwrap()
}

fn accepted() -> Accepted {
    Accepted { user_id: None, roles: Vec::new(), groups: Vec::new(), subprotocol: None, state: None }
}

const ASKED: &str = "/client/hubs/asked";
const OTHER: &str = "/client/hubs/other";
const RELIABLE: &str = "Sec-WebSocket-Protocol: json.reliable.webpubsub.azure.v1\r\n";

#[tokio::test]
async fn a_session_begins_as_its_handler_says() {
    let mut world = World::start(Config::default());
    let mut socket = world.knock(&format!("{ASKED}?room=7"), RELIABLE).await;
    let (connecting, reply) = world.heard.call().await;
    assert_eq!(connecting.query, [("room".to_owned(), vec!["7".to_owned()])]);
    assert_eq!(connecting.subprotocols, ["json.reliable.webpubsub.azure.v1"]);
    let ann = Accepted { user_id: Some(UserId::new("ann")), ..accepted() };
    reply.send(Ok(ann)).unwrap();
    let (head, _) = answer(&mut socket).await;
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    let mut first = vec![0; 512];
    let read = socket.read(&mut first).await.unwrap();
    let first = String::from_utf8_lossy(&first[..read]);
    assert!(first.contains(r#""userId":"ann""#), "{first}");
    assert!(first.contains(connecting.connection_id.as_str()), "{first}");
}

#[tokio::test]
async fn a_refusal_has_the_handlers_status_and_a_failure_its_own() {
    let mut world = World::start(Config::default());
    for (refused, expected) in [
        (ConnectRefused::ByHandler(403), "403"),
        (ConnectRefused::ByHandler(401), "401"),
        (ConnectRefused::ByHandler(429), "429"),
        (ConnectRefused::Failed, "500"),
        (ConnectRefused::FailedWith(502), "502"),
        (ConnectRefused::Busy, "503"),
    ] {
        let mut socket = world.knock(ASKED, RELIABLE).await;
        world.heard.call().await.1.send(Err(refused)).unwrap();
        let (head, body) = answer(&mut socket).await;
        assert!(head.starts_with(&format!("http/1.1 {expected} ")), "{head}");
        assert!(head.contains("content-type: text/plain"), "{head}");
        let is_failure = matches!(refused, ConnectRefused::Failed | ConnectRefused::FailedWith(_));
        let expected_text =
            if is_failure { "the application could not be asked" } else { "the application " };
        assert!(body.starts_with(expected_text), "{body}");
        assert_eq!(head.contains("www-authenticate: bearer"), expected == "401");
    }
    assert!(world.heard.told.try_recv().is_err(), "what was refused has no end");
}

#[tokio::test]
async fn a_handler_may_choose_any_subprotocol_that_is_offered() {
    let mut world = World::start(Config::default());
    let offer = "Sec-WebSocket-Protocol: mine, json.webpubsub.azure.v1, JSON.reliable.webpubsub.azure.v1\r\n";
    // A session of one that is not reliable ends with its socket.
    let mut open = Vec::new();
    for (chosen, expected) in [
        (None, Some("json.webpubsub.azure.v1")),
        (Some(""), Some("json.webpubsub.azure.v1")),
        (Some("mine"), Some("mine")),
        (Some("json.reliable.webpubsub.azure.v1"), Some("json.reliable.webpubsub.azure.v1")),
        (Some("theirs"), None),
    ] {
        let mut socket = world.knock(ASKED, offer).await;
        let chosen = Accepted { subprotocol: chosen.map(str::to_owned), ..accepted() };
        world.heard.call().await.1.send(Ok(chosen)).unwrap();
        let (head, _) = answer(&mut socket).await;
        match expected {
            Some(name) => assert!(head.contains(&format!("sec-websocket-protocol: {name}\r\n")), "{head}"),
            None => assert!(head.starts_with("http/1.1 500 "), "{head}"),
        }
        open.push(socket);
    }
    let mut without = world.knock(ASKED, "").await;
    world.heard.call().await.1.send(Ok(Accepted { subprotocol: Some("mine".into()), ..accepted() })).unwrap();
    assert_eq!(status(&mut without).await, 500);
    assert!(world.heard.told.try_recv().is_err(), "an answer that is not valid accepts nothing");
}

#[tokio::test]
async fn other_checks_come_before_the_handler() {
    let mut world = World::start(Config::default());
    for (query, expected) in [("?access_token=x", 401), ("?webpubsub_mode=nonsense", 400)] {
        let mut socket = world.knock(&format!("{ASKED}{query}"), RELIABLE).await;
        assert_eq!(status(&mut socket).await, expected);
    }
    let recovery = format!("{ASKED}?awps_connection_id=c&awps_reconnection_token=t");
    assert_eq!(status(&mut world.knock(&recovery, RELIABLE).await).await, 101, "and then 1008");
    assert!(world.heard.calls.try_recv().is_err());
}

#[tokio::test]
async fn whoever_waits_for_a_handler_takes_no_place_of_those_who_shake_hands() {
    let mut world = World::start(Config { handshakes_pending_max: 1, ..Config::default() });
    let mut slow = world.knock(ASKED, RELIABLE).await;
    let (_, reply) = world.heard.call().await;
    assert_eq!(status(&mut world.knock(OTHER, RELIABLE).await).await, 101);
    reply.send(Ok(accepted())).unwrap();
    assert_eq!(status(&mut slow).await, 101);
}

#[tokio::test]
async fn whoever_waits_for_a_handler_has_its_place_among_the_sockets() {
    let mut world = World::start(Config { connections_max: Some(1), ..Config::default() });
    let mut slow = world.knock(ASKED, RELIABLE).await;
    let (_, reply) = world.heard.call().await;
    assert_eq!(status(&mut world.knock(OTHER, RELIABLE).await).await, 503);
    reply.send(Err(ConnectRefused::ByHandler(403))).unwrap();
    assert_eq!(status(&mut slow).await, 403);
    assert_eq!(status(&mut world.knock(OTHER, RELIABLE).await).await, 101);
}

#[tokio::test(start_paused = true)]
async fn a_handshakes_time_does_not_run_while_the_handler_thinks() {
    let mut world = World::start(Config::default());
    let mut socket = world.knock(ASKED, RELIABLE).await;
    let (_, reply) = world.heard.call().await;
    tokio::time::sleep(Duration::from_secs(10 * Config::default().handshake_timeout_seconds)).await;
    reply.send(Ok(accepted())).unwrap();
    assert_eq!(status(&mut socket).await, 101);
}

#[tokio::test]
async fn a_stopping_gateway_waits_for_no_handler() {
    let mut world = World::start(Config::default());
    let mut socket = world.knock(ASKED, RELIABLE).await;
    let (_, reply) = world.heard.call().await;
    world.stop.take().unwrap().send(()).unwrap();
    assert_eq!(status(&mut socket).await, 503);
    assert!(reply.is_closed());
}

/// A client of the hub that is asked, before it asks.
async fn newcomer(shared: &Arc<Shared>) -> Newcomer {
    let begin = Begin {
        hub: HubName::new("asked").unwrap(),
        user_id: None,
        roles: Vec::new(),
        groups: Vec::new(),
        publishes_to: None,
    };
    let selected = Selected { subprotocol: Subprotocol::JsonReliable, spelling: None };
    Newcomer::new(shared, begin, selected).await.unwrap()
}

fn request() -> request::Parts {
    axum::http::Request::new(()).into_parts().0
}

/// Has one accepted, and too many groups keep it from being opened.
async fn fail_after_leave(shared: &Arc<Shared>, heard: &mut Heard) -> (Connecting, Option<Refusal>) {
    let (newcomer, request) = (newcomer(shared).await, request());
    let groups = ["a", "b"].map(|group| GroupName::new(group).unwrap()).to_vec();
    let answering = async {
        let (connecting, reply) = heard.call().await;
        reply.send(Ok(Accepted { groups, ..accepted() })).unwrap();
        connecting
    };
    let (connecting, asked) = tokio::join!(answering, newcomer.ask(&request));
    (connecting, asked.ok().unwrap().open().await.err())
}

#[tokio::test]
async fn who_was_accepted_and_left_meanwhile_is_over_for_the_handler() {
    let (edge, mut heard) = edge(Config::default());
    let shared = Shared::new(edge);
    let (newcomer, request) = (newcomer(&shared).await, request());
    let asking = newcomer.ask(&request);
    let (connecting, reply) = tokio::select! {
        call = heard.call() => call,
        _ = asking => unreachable!("nobody has answered"),
    };
    let state = Some(HandlerState("noted".into()));
    let ann = Some(UserId::new("ann"));
    reply.send(Ok(Accepted { user_id: ann.clone(), state: state.clone(), ..accepted() })).unwrap();
    let told = heard.told.recv().await.unwrap();
    assert_eq!(told.id().to_string(), "1");
    assert_eq!(told.subject.identity.connection_id, connecting.connection_id);
    assert_eq!((told.subject.identity.user_id, told.subject.state), (ann, state));
}

#[tokio::test(start_paused = true)]
async fn clients_that_had_left_kept_their_places_until_the_handler_gave_up() {
    let (edge, mut heard) = edge(Config { connections_max: Some(1), ..Config::default() });
    let shared = Shared::new(edge);
    let (newcomer, request) = (newcomer(&shared).await, request());
    let asking = newcomer.ask(&request);
    let (_, mut reply) = tokio::select! {
        call = heard.call() => call,
        _ = asking => unreachable!("nobody has answered"),
    };
    assert!(shared.sockets.reserve().is_none(), "the handler may still answer");
    reply.closed().await;
    shared.tasks.close();
    shared.tasks.wait().await;
    assert!(shared.sockets.reserve().is_some());
}

#[tokio::test]
async fn who_was_accepted_and_could_not_be_let_in_is_over_for_the_handler() {
    let (edge, mut heard) = edge(Config { groups_per_session_max: 1, ..Config::default() });
    let shared = Shared::new(edge);
    let (connecting, refusal) = fail_after_leave(&shared, &mut heard).await;
    assert_eq!(refusal, Some(Refusal::HandlerFailed), "the groups were the handler's, not the token's");
    assert_eq!(heard.told.recv().await.unwrap().subject.identity.connection_id, connecting.connection_id);
}

#[tokio::test]
async fn handlers_that_never_answer_are_told_of_so_many_ends_at_once() {
    let (edge, mut heard) = edge(Config { groups_per_session_max: 1, ..Config::default() });
    let shared = Shared::new(edge);
    for _ in 0..FAREWELLS_MAX {
        fail_after_leave(&shared, &mut heard).await;
        heard.told.recv().await.unwrap();
    }
    fail_after_leave(&shared, &mut heard).await;
    assert_eq!(shared.farewells.available_permits(), 0);
    let counters = shared.edge.engine.counters();
    assert!(counters.events_failed.all().any(|count| count == ("busy", 1)), "and that is told");
    shared.is_stopping.cancel();
    shared.tasks.close();
    shared.tasks.wait().await;
    assert!(heard.told.try_recv().is_err(), "one too many");
    assert_eq!(shared.farewells.available_permits(), FAREWELLS_MAX);
}

#[tokio::test]
async fn who_is_not_let_in_leaves_no_hub() {
    let (edge, mut heard) = edge(Config { groups_per_session_max: 1, ..Config::default() });
    let engine = edge.engine.clone();
    let shared = Shared::new(edge);
    let (newcomer, request) = (newcomer(&shared).await, request());
    let refusing = async {
        let (_, reply) = heard.call().await;
        reply.send(Err(ConnectRefused::ByHandler(403))).unwrap();
    };
    let ((), asked) = tokio::join!(refusing, newcomer.ask(&request));
    assert_eq!(asked.err(), Some(Refusal::ByHandler(403)));
    fail_after_leave(&shared, &mut heard).await;
    assert!(engine.counts().is_empty());
}
