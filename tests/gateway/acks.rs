//! Publisher acks: what an ack id executed once stays executed.

use oncewire::engine::Action;
use oncewire_protocol::log::Permission;
use oncewire_protocol::wire::{ConnectionId, GroupName, HubName};
use serde_json::json;

use crate::support::*;

#[tokio::test]
async fn s22_1_01_the_second_of_two_equal_requests_is_a_duplicate_and_receivers_get_one_message() {
    let gateway = Gateway::start().await;
    for mut publisher in [gateway.reliable("p").await, gateway.json("p").await] {
        let mut subscriber = gateway.reliable("s").await;
        subscriber.done(join("g", 1)).await;
        publisher.done(publish("g", 5, "once")).await;
        publisher.refused(publish("g", 5, "once"), "Duplicate").await;
        publisher.refused(publish("g", 5, "once"), "Duplicate").await;
        assert_eq!(subscriber.settle().await, [message(1, "g", "p", "once")]);
    }
}

#[tokio::test]
async fn s22_1_02_a_request_that_was_forbidden_is_executed_under_the_same_ack_id_once_permitted() {
    let gateway = Gateway::start().await;
    let mut publisher = gateway.session(RELIABLE, &Token::bare().named("p")).await;
    let mut subscriber = gateway.reliable("s").await;
    subscriber.done(join("g", 1)).await;
    publisher.refused(publish("g", 5, "hi"), "Forbidden").await;

    let hub = gateway.engine().hub_to_join(&HubName::new(HUB).unwrap()).await.unwrap();
    let connection_id = ConnectionId::new(&publisher.identity().connection_id);
    let group = GroupName::new("g").unwrap();
    let rule = |allow| {
        let (connection_id, group) = (connection_id.clone(), group.clone());
        Action::ChangeRule { connection_id, permission: Permission::SendToGroup, group, allow }
    };
    hub.ask(rule(true), None).await.unwrap();
    publisher.done(publish("g", 5, "hi")).await;
    publisher.refused(publish("g", 5, "hi"), "Duplicate").await;
    publisher.refused(publish("other", 6, "hi"), "Forbidden").await;

    hub.ask(rule(false), None).await.unwrap();
    publisher.refused(publish("g", 7, "no more"), "Forbidden").await;
    publisher.refused(publish("g", 5, "hi"), "Duplicate").await;
    assert_eq!(subscriber.settle().await, [message(1, "g", "p", "hi")]);
}

#[tokio::test]
async fn grants_survive_a_recovery() {
    let gateway = Gateway::start().await;
    let publisher = gateway.session(RELIABLE, &Token::bare().named("p")).await;
    let identity = publisher.identity();
    let hub = gateway.engine().hub_to_join(&HubName::new(HUB).unwrap()).await.unwrap();
    let connection_id = ConnectionId::new(&identity.connection_id);
    let group = GroupName::new("g").unwrap();
    let permission = Permission::JoinLeaveGroup;
    hub.ask(Action::ChangeRule { connection_id, permission, group, allow: true }, None).await.unwrap();
    publisher.cut();
    let mut publisher = gateway.recover(&identity).await;
    publisher.done(join("g", 1)).await;
    publisher.refused(join("h", 2), "Forbidden").await;
}

/// Azure answers Duplicate here, too; its client takes that for a success and never learns that nothing was done.
#[tokio::test]
async fn s22_1_03_an_ack_id_that_was_used_for_another_request_is_refused_and_nothing_is_executed() {
    let gateway = Gateway::start().await;
    let mut socket = gateway.reliable("a").await;
    socket.done(join("g", 5)).await;
    socket.refused(leave("g", 5), "PayloadMismatch").await;
    socket.refused(publish("g", 5, "no"), "PayloadMismatch").await;
    socket.refused(join("h", 5), "PayloadMismatch").await;
    socket.refused(join("g", 5), "Duplicate").await;
    socket.send(publish("g", 6, "still a member")).await;
    socket.expect(message(1, "g", "a", "still a member")).await;
    socket.expect(success(6)).await;
}

#[tokio::test]
async fn every_field_that_makes_a_difference_makes_another_request() {
    let gateway = Gateway::start().await;
    let mut socket = gateway.reliable("a").await;
    let request = json!({
        "type": "sendToGroup", "group": "g", "ackId": 1, "dataType": "text", "data": "x",
        "noEcho": true, "ttlSeconds": 60, "metadata": {"k": "v", "l": "w"},
    });
    socket.done(request.clone()).await;
    for (field, value) in [
        ("group", json!("h")),
        ("data", json!("y")),
        ("dataType", json!("json")),
        ("noEcho", json!(false)),
        ("ttlSeconds", json!(61)),
        ("metadata", json!({"k": "v", "l": "x"})),
        ("metadata", json!({"k": "v"})),
    ] {
        let mut other = request.clone();
        other[field] = value;
        socket.refused(other, "PayloadMismatch").await;
    }
    socket
        .send_text(
            r#"{"metadata":{"l":"w","k":"v"},"ttlSeconds":60,"noEcho":true,"data":"\u0078","dataType":"Text","ackId":1,"group":"g","type":"sendtogroup"}"#,
        )
        .await;
    let ack = socket.read().await;
    assert_eq!(ack["error"]["name"], "Duplicate", "the same request in another spelling: {ack}");
}

#[tokio::test]
async fn s22_1_04_ack_ids_are_remembered_over_a_recovery() {
    let gateway = Gateway::start().await;
    let mut subscriber = gateway.reliable("s").await;
    subscriber.done(join("g", 1)).await;
    let mut publisher = gateway.reliable("p").await;
    let identity = publisher.identity();
    publisher.done(publish("g", 5, "once")).await;
    publisher.cut();
    let mut publisher = gateway.recover(&identity).await;
    publisher.refused(publish("g", 5, "once"), "Duplicate").await;
    publisher.done(publish("g", 6, "two")).await;
    let heard = subscriber.settle().await;
    assert_eq!(heard, [message(1, "g", "p", "once"), message(2, "g", "p", "two")]);
}

#[tokio::test]
async fn ack_ids_of_different_sessions_are_independent() {
    let gateway = Gateway::start().await;
    let mut first = gateway.reliable("same").await;
    let mut second = gateway.reliable("same").await;
    first.done(publish("g", 5, "x")).await;
    second.done(publish("g", 5, "x")).await;
}

#[tokio::test]
async fn s22_06_at_least_1000_ack_ids_are_remembered_in_any_order() {
    let gateway = Gateway::start().await;
    let mut socket = gateway.reliable("a").await;
    let ids = || (0..1000_u64).map(|n| (n * 7919) % 1009 * 1_000_003);
    socket.send_together(ids().map(|ack_id| publish("g", ack_id, "x"))).await;
    for ack_id in ids() {
        socket.expect(success(ack_id)).await;
    }
    socket.send_together(ids().map(|ack_id| publish("g", ack_id, "x"))).await;
    for ack_id in ids() {
        let ack = socket.read().await;
        assert_eq!((&ack["ackId"], &ack["error"]["name"]), (&json!(ack_id), &json!("Duplicate")), "{ack}");
    }
}

#[tokio::test]
async fn the_window_of_ack_ids_forgets_the_oldest() {
    let gateway = Gateway::with(|config| config.ack_window_ids = 10).await;
    let mut socket = gateway.reliable("a").await;
    for ack_id in 1..=11 {
        socket.done(publish("g", ack_id, "x")).await;
    }
    socket.refused(publish("g", 2, "x"), "Duplicate").await;
    socket.done(publish("g", 1, "x")).await;
}

#[tokio::test]
async fn s22_07_a_duplicate_waits_for_its_original() {
    let store = HeldStore::default();
    let gateway = Gateway::with_store(std::sync::Arc::new(store.clone()), |_| {}).await;
    let mut subscriber = gateway.reliable("s").await;
    subscriber.done(join("g", 1)).await;
    let mut publisher = gateway.reliable("p").await;
    store.hold();
    publisher.send_together([publish("g", 5, "once"), publish("g", 5, "once")]).await;
    store.holds(1).await;
    publisher.send(publish("g", 5, "once")).await;
    publisher.send(json!({"type": "ping"})).await;
    publisher.expect(json!({"type": "pong"})).await;
    store.release();
    publisher.expect(success(5)).await;
    for _ in 0..2 {
        let ack = publisher.read().await;
        assert_eq!(ack["error"]["name"], "Duplicate", "{ack}");
    }
    assert_eq!(subscriber.settle().await, [message(1, "g", "p", "once")]);
}

#[tokio::test]
async fn another_request_under_the_ack_id_of_a_pending_one_is_refused() {
    let store = HeldStore::default();
    let gateway = Gateway::with_store(std::sync::Arc::new(store.clone()), |_| {}).await;
    let mut subscriber = gateway.session(RELIABLE, &Token::bare().group("g")).await;
    let mut publisher = gateway.reliable("p").await;
    store.hold();
    publisher.send(publish("g", 5, "a")).await;
    store.holds(1).await;
    publisher.send(publish("g", 5, "b")).await;
    publisher.send_together([publish("g", 6, "c"), publish("g", 6, "d")]).await;
    store.release();
    for (ack_id, is_first) in [(5, true), (5, false), (6, true), (6, false)] {
        let ack = publisher.read().await;
        assert_eq!(ack["ackId"], ack_id, "{ack}");
        assert_eq!(ack["success"], is_first, "{ack}");
        assert!(is_first || ack["error"]["name"] == "PayloadMismatch", "{ack}");
    }
    let heard = subscriber.settle().await;
    assert_eq!(heard, [message(1, "g", "p", "a"), message(2, "g", "p", "c")]);
}
