//! What the demo's page does to sockets, and what their clients make of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use oncewire::config::{Config, Durability};
use oncewire::store::{EmbeddedStore, Store};
use serde_json::{Value, json};

use crate::support::protobuf::{embedded, field, integer};
use crate::support::*;
use crate::tls::Secured;

const DEMO_HUB: &str = "demo";

async fn gateway() -> Gateway {
    Gateway::with(|config| config.demo = true).await
}

/// Has a fault made; returns the status.
async fn fault(address: SocketAddr, path: &str, body: Value) -> u16 {
    let ask = Ask::new(address, "POST", &format!("/demo/faults/{path}"))
        .header("origin", &format!("http://{address}"))
        .header("content-type", "application/json")
        .body(body.to_string());
    ask.send().await.status
}

async fn cut(address: SocketAddr, socket: &Socket) -> u16 {
    fault(address, "cut", json!({"connectionId": socket.identity().connection_id})).await
}

async fn stall(address: SocketAddr, socket: &Socket, milliseconds: u64) -> u16 {
    let connection_id = socket.identity().connection_id;
    fault(address, "stall", json!({"connectionId": connection_id, "milliseconds": milliseconds})).await
}

async fn lose_next_ack(address: SocketAddr, socket: &Socket) -> u16 {
    fault(address, "lose-next-ack", json!({"connectionId": socket.identity().connection_id})).await
}

/// A session in the demo's hub, its `connected` read.
async fn open(connector: Connector, subprotocol: &str, token: Token) -> Socket {
    let mut socket = connector.hub(DEMO_HUB).token(&token).offer(subprotocol).open().await.unwrap();
    socket.read_connected().await;
    socket
}

async fn reliable(address: SocketAddr, token: Token) -> Socket {
    open(Connector::new(address), RELIABLE, token).await
}

async fn recover(address: SocketAddr, identity: &Identity) -> Socket {
    Connector::new(address).hub(DEMO_HUB).recover(identity).offer(RELIABLE).open().await.unwrap()
}

/// A member of `g`, and a publisher.
async fn pair(address: SocketAddr) -> (Socket, Socket) {
    (reliable(address, Token::user("s").group("g")).await, reliable(address, Token::user("p")).await)
}

#[tokio::test]
async fn a_socket_that_is_cut_sees_no_close_frame_and_its_session_goes_on() {
    let gateway = gateway().await;
    let address = gateway.address();
    let (mut subscriber, mut publisher) = pair(address).await;
    publisher.done(publish("g", 1, "one")).await;
    subscriber.expect(message(1, "g", "p", "one")).await;
    let identity = subscriber.identity();
    assert_eq!(cut(address, &subscriber).await, 204);
    subscriber.expect_cut().await;
    publisher.done(publish("g", 2, "two")).await;
    let mut subscriber = recover(address, &identity).await;
    subscriber.expect(message(1, "g", "p", "one")).await;
    subscriber.expect(message(2, "g", "p", "two")).await;
    subscriber.expect_quiet().await;
}

#[tokio::test]
async fn over_tls_a_socket_is_cut_and_an_ack_lost_as_in_the_clear() {
    let secured = Secured::with(|config| config.demo = true).await;
    let address = secured.gateway.address();
    let connector = || secured.gateway.tls_connector(&secured.client);
    let mut subscriber = open(connector(), RELIABLE, Token::user("s").group("g")).await;
    let mut publisher = open(connector(), RELIABLE, Token::user("p")).await;
    let identities = [&subscriber, &publisher].map(Socket::identity);
    let again =
        async |identity| connector().hub(DEMO_HUB).recover(identity).offer(RELIABLE).open().await.unwrap();
    assert_eq!(lose_next_ack(address, &publisher).await, 204);
    publisher.send(publish("g", 1, "one")).await;
    publisher.expect_cut().await;
    subscriber.expect(message(1, "g", "p", "one")).await;
    assert_eq!(cut(address, &subscriber).await, 204);
    subscriber.expect_cut().await;
    again(&identities[1]).await.refused(publish("g", 1, "one"), "Duplicate").await;
    let mut subscriber = again(&identities[0]).await;
    subscriber.expect(message(1, "g", "p", "one")).await;
    subscriber.expect_quiet().await;
}

#[tokio::test]
async fn faults_find_the_newest_socket_of_a_session_and_no_other() {
    let gateway = gateway().await;
    let address = gateway.address();
    let mut old = reliable(address, Token::user("s")).await;
    old.expect_quiet().await;
    let mut new = recover(address, &old.identity()).await;
    new.expect_quiet().await;
    let identified = old.identity();
    old.expect_cut().await;
    let other = reliable(address, Token::user("o")).await;
    let by_id = json!({"connectionId": identified.connection_id});
    assert_eq!(fault(address, "cut", by_id.clone()).await, 204);
    new.expect_cut().await;
    // Its place is given up behind the last byte.
    soon(async {
        while fault(address, "cut", by_id.clone()).await != 404 {
            a_while().await;
        }
    })
    .await;
    assert_eq!(fault(address, "cut", json!({"connectionId": "unknown"})).await, 404);
    let mut chat = gateway.reliable("in another hub").await;
    for socket in [&chat] {
        assert_eq!(cut(address, socket).await, 404);
        assert_eq!(stall(address, socket, 1).await, 404);
        assert_eq!(lose_next_ack(address, socket).await, 404);
    }
    chat.expect_quiet().await;
    assert_eq!(cut(address, &other).await, 204);
    other.expect_cut().await;
}

#[tokio::test]
async fn a_session_that_is_not_reliable_ends_with_the_socket_that_is_cut() {
    let gateway = gateway().await;
    let address = gateway.address();
    let plain = open(gateway.connector(), JSON, Token::user("j")).await;
    let identity = plain.identity();
    assert_eq!(cut(address, &plain).await, 204);
    plain.expect_cut().await;
    recover(address, &identity).await.expect_close(1008).await;
}

#[tokio::test]
async fn a_stalled_socket_is_neither_read_nor_written_and_then_goes_on() {
    let gateway = gateway().await;
    let address = gateway.address();
    let (mut stalled, mut publisher) = pair(address).await;
    stalled.expect_quiet().await;
    assert_eq!(stall(address, &stalled, 60_000).await, 204);
    publisher.done(join("h", 1)).await;
    publisher.done(publish("g", 2, "one")).await;
    stalled.send_together([publish("h", 1, "two"), join("i", 2)]).await;
    let nothing = tokio::time::timeout(Duration::from_millis(300), stalled.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
    publisher.expect_quiet().await;
    // Another one begins anew, and is over soon.
    assert_eq!(stall(address, &stalled, 1).await, 204);
    stalled.expect(message(1, "g", "p", "one")).await;
    stalled.expect(success(1)).await;
    stalled.expect(success(2)).await;
    publisher.expect(message(1, "h", "s", "two")).await;
    stalled.expect_quiet().await;
}

#[tokio::test]
async fn a_stalled_socket_is_sent_no_ping_and_not_taken_for_dead() {
    let gateway = Gateway::with(|config| {
        config.demo = true;
        config.websocket_ping_seconds = 1;
    })
    .await;
    let address = gateway.address();
    let mut stalled = reliable(address, Token::user("s")).await;
    stalled.expect_quiet().await;
    assert_eq!(stall(address, &stalled, 60_000).await, 204);
    let pings = stalled.pings();
    // More intervals than a client may be silent for.
    let nothing = tokio::time::timeout(Duration::from_millis(4500), stalled.next()).await;
    assert!(nothing.is_err(), "{nothing:?}");
    assert_eq!(stalled.pings(), pings);
    assert_eq!(stall(address, &stalled, 1).await, 204);
    stalled.expect_quiet().await;
    // What was due meanwhile comes once.
    assert!(stalled.pings() <= pings + 2);
}

#[tokio::test]
async fn a_stall_ends_with_its_socket() {
    let gateway = gateway().await;
    let address = gateway.address();
    let (stalled, mut publisher) = pair(address).await;
    assert_eq!(stall(address, &stalled, 60_000).await, 204);
    publisher.done(publish("g", 1, "one")).await;
    let mut new = recover(address, &stalled.identity()).await;
    stalled.expect_cut().await;
    new.expect(message(1, "g", "p", "one")).await;
    new.expect_quiet().await;
    assert_eq!(stall(address, &publisher, 60_000).await, 204);
    assert_eq!(cut(address, &publisher).await, 204);
    publisher.expect_cut().await;
}

#[tokio::test]
async fn a_stall_takes_from_one_millisecond_to_a_minute() {
    let gateway = gateway().await;
    for (milliseconds, status) in [
        (json!(0), 400),
        (json!(1), 404),
        (json!(60_000), 404),
        (json!(60_001), 400),
        (json!(-1), 400),
        (json!(1.5), 400),
        (json!("1"), 400),
    ] {
        let body = json!({"connectionId": "none", "milliseconds": milliseconds});
        assert_eq!(fault(gateway.address(), "stall", body.clone()).await, status, "{body}");
    }
    for (path, body) in [
        ("stall", json!({"connectionId": "none"})),
        ("cut", json!({"connectionId": "none", "milliseconds": 1})),
        ("cut", json!({"connectionId": 1})),
        ("lose-next-ack", json!({"connection_id": "none"})),
    ] {
        assert_eq!(fault(gateway.address(), path, body.clone()).await, 400, "{path} {body}");
    }
}

/// The next publish is executed and its ack lost; sent again it is a duplicate, and arrives once.
async fn an_ack_is_lost(gateway: Gateway) {
    let address = gateway.address();
    let mut subscriber = reliable(address, Token::user("s").group("g")).await;
    let token = Token::bare().named("p").role("webpubsub.joinLeaveGroup").role("webpubsub.sendToGroup.g");
    let mut publisher = reliable(address, token).await;
    publisher.done(publish("g", 1, "before")).await;
    assert_eq!(lose_next_ack(address, &publisher).await, 204);
    assert_eq!(lose_next_ack(address, &publisher).await, 204, "twice is once");
    // Neither what is no publish, nor has no ack, nor is not executed.
    publisher.done(join("h", 2)).await;
    publisher.refused(publish("forbidden", 3, "x"), "Forbidden").await;
    publisher.refused(publish("g", 1, "before"), "Duplicate").await;
    publisher.send(json!({"type": "sendToGroup", "group": "g", "dataType": "text", "data": "no ack"})).await;
    publisher.expect_quiet().await;
    let identity = publisher.identity();
    publisher.send(publish("g", 4, "lost ack")).await;
    publisher.expect_cut().await;
    let mut publisher = recover(address, &identity).await;
    publisher.refused(publish("g", 4, "lost ack"), "Duplicate").await;
    publisher.done(publish("g", 5, "after")).await;
    for (sequence_id, text) in [(1, "before"), (2, "no ack"), (3, "lost ack"), (4, "after")] {
        subscriber.expect(message(sequence_id, "g", "p", text)).await;
    }
    subscriber.expect_quiet().await;
}

#[tokio::test]
async fn a_lost_ack_leaves_its_publish_executed_once_in_memory() {
    an_ack_is_lost(gateway().await).await;
}

#[tokio::test]
async fn a_lost_ack_leaves_its_publish_executed_once_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(directory.path(), |_| Durability::Sync).unwrap();
    an_ack_is_lost(with_store(Arc::new(store)).await).await;
}

async fn with_store(store: Arc<dyn Store>) -> Gateway {
    Gateway::with_store(store, |config: &mut Config| config.demo = true).await
}

#[tokio::test]
async fn publishes_behind_the_one_whose_ack_is_lost_arrive_once_too() {
    let gateway = gateway().await;
    let address = gateway.address();
    let (mut subscriber, mut publisher) = pair(address).await;
    let identity = publisher.identity();
    publisher.done(join("g", 100)).await;
    assert_eq!(lose_next_ack(address, &publisher).await, 204);
    let publishes = || (1..=20).map(|n| publish("g", n, &n.to_string()));
    publisher.send_together(publishes()).await;
    // Its own messages may come before that, its acks may not.
    loop {
        match publisher.next().await {
            Event::Message(heard) => assert_eq!(heard["type"], "message"),
            Event::Dropped => break,
            other => panic!("{other:?}"),
        }
    }
    let mut publisher = recover(address, &identity).await;
    publisher.send_together(publishes()).await;
    let mut acks = Vec::new();
    while acks.len() < 20 {
        let heard = publisher.read().await;
        if heard["type"] == "ack" {
            acks.push(heard["ackId"].as_u64().unwrap());
            let is_known = heard["success"] == true || heard["error"]["name"] == "Duplicate";
            assert!(is_known && (acks.len() > 1 || heard["success"] == false), "{heard}");
        }
    }
    assert_eq!(acks, (1..=20).collect::<Vec<_>>());
    for n in 1..=20 {
        subscriber.expect(message(n, "g", "p", &n.to_string())).await;
    }
    subscriber.expect_quiet().await;
}

#[tokio::test]
async fn an_ack_that_comes_late_is_lost_still_and_one_that_was_due_before_is_not() {
    let store = HeldStore::default();
    let gateway = with_store(Arc::new(store.clone())).await;
    let address = gateway.address();
    let (mut subscriber, mut publisher) = pair(address).await;
    let identity = publisher.identity();
    store.hold();
    publisher.send(publish("g", 1, "under way")).await;
    store.holds(1).await;
    assert_eq!(lose_next_ack(address, &publisher).await, 204);
    publisher.send(publish("g", 2, "lost ack")).await;
    publisher.send(json!({"type": "ping"})).await;
    publisher.expect(json!({"type": "pong"})).await;
    store.release();
    publisher.expect(success(1)).await;
    publisher.expect_cut().await;
    let mut publisher = recover(address, &identity).await;
    publisher.refused(publish("g", 2, "lost ack"), "Duplicate").await;
    subscriber.expect(message(1, "g", "p", "under way")).await;
    subscriber.expect(message(2, "g", "p", "lost ack")).await;
    subscriber.expect_quiet().await;
}

#[tokio::test]
async fn an_ack_that_goes_to_a_newer_socket_is_not_lost() {
    let store = HeldStore::default();
    let gateway = with_store(Arc::new(store.clone())).await;
    let address = gateway.address();
    let (mut subscriber, mut old) = pair(address).await;
    assert_eq!(lose_next_ack(address, &old).await, 204);
    store.hold();
    old.send(publish("g", 1, "once")).await;
    store.holds(1).await;
    let mut new = recover(address, &old.identity()).await;
    old.expect_cut().await;
    store.release();
    new.expect(success(1)).await;
    subscriber.expect(message(1, "g", "p", "once")).await;
    subscriber.expect_quiet().await;
}

#[tokio::test]
async fn an_ack_in_protobuf_is_lost_too() {
    let gateway = gateway().await;
    let address = gateway.address();
    let mut subscriber = reliable(address, Token::user("s").group("g")).await;
    let connector = gateway.connector().hub(DEMO_HUB).token(&Token::user("p")).offer(PROTOBUF_RELIABLE);
    let mut publisher = connector.open().await.unwrap();
    let Bare::Binary(connected) = publisher.read_bare().await else { panic!("not binary") };
    // SystemMessage 3, its connected_message 1, in which the first field is the connection id.
    assert_eq!((connected[0], connected[2], connected[4]), (3 << 3 | 2, 1 << 3 | 2, 1 << 3 | 2));
    let id = &connected[6..6 + usize::from(connected[5])];
    let body = json!({"connectionId": std::str::from_utf8(id).unwrap()});
    assert_eq!(fault(address, "lose-next-ack", body).await, 204);
    // JoinGroupMessage 6, SendToGroupMessage 1 with MessageData of a text.
    let join = embedded(6, &[field(1, b"h"), integer(2, 1)]);
    publisher.send_binary(&join).await;
    publisher.expect_bare(Bare::binary(&embedded(1, &[integer(1, 1), integer(2, 1)]))).await;
    let text = embedded(3, &[field(1, b"once")]);
    publisher.send_binary(&embedded(1, &[field(1, b"g"), integer(2, 2), text])).await;
    publisher.expect_cut().await;
    subscriber.expect(message(1, "g", "p", "once")).await;
    subscriber.expect_quiet().await;
}

#[tokio::test]
async fn each_fault_is_one_event_that_says_what_it_did() {
    let served = Served::start(None, &["--demo", "--log-format", "json", "--log", "info"]).await;
    let address = served.address;
    let (mut subscriber, mut publisher) = pair(address).await;
    publisher.done(publish("g", 1, "Xsecret-textX")).await;
    subscriber.expect(message(1, "g", "p", "Xsecret-textX")).await;
    let ids = [&subscriber, &publisher].map(|socket| socket.identity().connection_id);
    assert_eq!(cut(address, &subscriber).await, 204);
    subscriber.expect_cut().await;
    assert_eq!(stall(address, &publisher, 1).await, 204);
    publisher.done(publish("g", 2, "Xsecret-textX")).await;
    assert_eq!(lose_next_ack(address, &publisher).await, 204);
    publisher.send(publish("g", 3, "Xsecret-textX")).await;
    publisher.expect_cut().await;
    let idle = reliable(address, Token::user("i")).await;
    let idle_id = idle.identity().connection_id;
    assert_eq!(lose_next_ack(address, &idle).await, 204);
    assert_eq!(stall(address, &idle, 60_000).await, 204);
    assert_eq!(cut(address, &idle).await, 204);
    idle.expect_cut().await;
    let (_, log) = served.stop().await;
    assert!(!log.contains("Xsecret"), "{log}");
    let events: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let made = |name: &str, id: &str| {
        let fields = events.iter().map(|event| &event["fields"]);
        let made: Vec<_> =
            fields.filter(|made| made["fault"] == name && made["connection_id"] == id).collect();
        assert_eq!(made.len(), 1, "{name}: {log}");
        made[0]
    };
    let cut = made("cut", &ids[0]);
    assert_eq!(
        (&cut["effect"], &cut["unacknowledged"]),
        (&json!("dropped without a close frame"), &json!(1))
    );
    let stall = made("stall", &ids[1]);
    assert_eq!((&stall["effect"], &stall["milliseconds"]), (&json!("neither read nor written"), &json!(1)));
    let lost = made("lose-next-ack", &ids[1]);
    assert_eq!(
        (&lost["effect"], &lost["ack_id"]),
        (&json!("executed, dropped in place of its ack"), &json!(3))
    );
    assert_eq!(made("cut", &idle_id)["effect"], "dropped without a close frame");
    assert_eq!(made("lose-next-ack", &idle_id)["effect"], "none: the socket ended first");
    assert!(made("stall", &idle_id)["effect"].as_str().unwrap().ends_with("until the socket ended"));
}
