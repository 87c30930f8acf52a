//! A log that is slow or fails, behind a running gateway.

use std::sync::Arc;

use serde_json::json;

use crate::support::*;

async fn gateway() -> (Gateway, HeldStore) {
    let store = HeldStore::default();
    (Gateway::with_store(Arc::new(store.clone()), |_| {}).await, store)
}

/// A publisher, and a subscriber of `g`.
async fn scene(gateway: &Gateway) -> (Socket, Socket) {
    let subscriber = gateway.session(RELIABLE, &Token::user("s").group("g")).await;
    (gateway.reliable("p").await, subscriber)
}

#[tokio::test]
async fn nothing_is_delivered_or_acknowledged_before_it_is_in_the_log() {
    let (gateway, store) = gateway().await;
    let (mut publisher, mut subscriber) = scene(&gateway).await;
    store.hold();
    publisher.send(publish("g", 1, "x")).await;
    store.holds(1).await;
    a_while().await;
    for socket in [&mut publisher, &mut subscriber] {
        socket.send(json!({"type": "ping"})).await;
        socket.expect(json!({"type": "pong"})).await;
    }
    store.release();
    publisher.expect(success(1)).await;
    subscriber.expect(message(1, "g", "p", "x")).await;
}

#[tokio::test]
async fn connected_is_not_said_before_the_session_is_in_the_log() {
    let (gateway, store) = gateway().await;
    let _first = gateway.reliable("a").await;
    store.hold();
    let opening = tokio::spawn(gateway.connector().token(&Token::user("b")).offer(RELIABLE).open());
    store.holds(1).await;
    a_while().await;
    assert!(!opening.is_finished());
    store.release();
    opening.await.unwrap().unwrap().read_connected().await;
}

#[tokio::test]
async fn a_definite_failure_is_answered_and_the_same_ack_id_succeeds_later() {
    let (gateway, store) = gateway().await;
    let (mut publisher, mut subscriber) = scene(&gateway).await;
    store.fail_next(Failure::Definite);
    publisher.refused(publish("g", 1, "once"), "InternalServerError").await;
    let failed: Vec<_> = gateway.engine().counters().appends_failed.all().collect();
    assert_eq!(failed, [("definite", 1), ("indefinite", 0)]);
    publisher.done(publish("g", 1, "once")).await;
    publisher.refused(publish("g", 1, "once"), "Duplicate").await;
    assert_eq!(subscriber.settle().await, [message(1, "g", "p", "once")]);
}

#[tokio::test]
async fn an_indefinite_failure_is_retried_by_the_gateway_and_there_is_one_copy() {
    for failure in [Failure::IndefiniteStored, Failure::IndefiniteLost] {
        let (gateway, store) = gateway().await;
        let (mut publisher, mut subscriber) = scene(&gateway).await;
        store.fail_next(failure);
        publisher.done(publish("g", 1, "once")).await;
        publisher.refused(publish("g", 1, "once"), "Duplicate").await;
        assert_eq!(subscriber.settle().await, [message(1, "g", "p", "once")], "{failure:?}");
    }
}

#[tokio::test]
async fn a_client_that_sends_again_while_the_outcome_is_unknown_makes_no_second_copy() {
    for failure in [Failure::IndefiniteStored, Failure::IndefiniteLost, Failure::Definite] {
        let (gateway, store) = gateway().await;
        let (mut publisher, mut subscriber) = scene(&gateway).await;
        let identity = publisher.identity();
        store.hold();
        store.fail_next(failure);
        publisher.send(publish("g", 1, "once")).await;
        store.holds(1).await;
        publisher.cut();
        let mut publisher = gateway.recover(&identity).await;
        publisher.send(publish("g", 1, "once")).await;
        store.release();
        let mut answers = vec![publisher.read().await, publisher.read().await];
        if answers.iter().all(|ack| ack["success"] == false) {
            answers.push(publisher.ask(publish("g", 1, "once")).await);
        }
        let is_executed =
            |ack: &serde_json::Value| ack["success"] == true || ack["error"]["name"] == "Duplicate";
        assert!(answers.iter().any(is_executed), "{failure:?}: {answers:?}");
        assert_eq!(subscriber.settle().await, [message(1, "g", "p", "once")], "{failure:?}");
    }
}

#[tokio::test]
async fn requests_behind_a_failed_one_keep_their_order() {
    let (gateway, store) = gateway().await;
    let (mut publisher, mut subscriber) = scene(&gateway).await;
    store.hold();
    store.fail_next(Failure::IndefiniteLost);
    publisher.send(publish("g", 1, "1")).await;
    store.holds(1).await;
    publisher.send_together((2..=10).map(|n| publish("g", n, &n.to_string()))).await;
    store.release();
    for n in 1..=10 {
        publisher.expect(success(n)).await;
        subscriber.expect(message(n, "g", "p", &n.to_string())).await;
    }
}

#[tokio::test]
async fn a_socket_whose_session_can_not_be_stored_is_told_to_come_back() {
    let (gateway, store) = gateway().await;
    let _first = gateway.reliable("a").await;
    store.fail_next(Failure::Definite);
    assert_eq!(gateway.connector().token(&Token::user("b")).offer(RELIABLE).status().await, 503);
    gateway.reliable("b").await.done(join("g", 1)).await;
}

#[tokio::test]
async fn acks_wait_for_the_log_and_pings_do_not() {
    let (gateway, store) = gateway().await;
    let (mut publisher, _subscriber) = scene(&gateway).await;
    store.hold();
    publisher.send(join("g", 1)).await;
    store.holds(1).await;
    for _ in 0..10 {
        publisher.send(json!({"type": "ping"})).await;
        publisher.expect(json!({"type": "pong"})).await;
    }
    store.release();
    publisher.expect(success(1)).await;
}

#[tokio::test]
async fn a_recovery_needs_no_log() {
    let (gateway, store) = gateway().await;
    let (mut publisher, subscriber) = scene(&gateway).await;
    publisher.done(publish("g", 1, "x")).await;
    let identity = subscriber.identity();
    store.hold();
    subscriber.cut();
    let mut subscriber = gateway.recover(&identity).await;
    subscriber.expect(message(1, "g", "p", "x")).await;
    store.release();
}

#[tokio::test]
async fn while_the_end_of_a_session_can_not_be_stored_a_recovery_is_503_and_then_1008() {
    let store = HeldStore::default();
    let change = |config: &mut oncewire::config::Config| config.outbox_messages_max = 1;
    let gateway = Gateway::with_store(Arc::new(store.clone()), change).await;
    let (mut publisher, mut subscriber) = scene(&gateway).await;
    let identity = subscriber.identity();
    store.refuse_endings(true);
    publisher.done(publish("g", 1, "1")).await;
    publisher.done(publish("g", 2, "2")).await;
    // The socket is closed in any case; that its code is 1008 is true only once the end is in the log.
    soon(async { while let Event::Message(_) = subscriber.next().await {} }).await;
    let recover = || gateway.connector().recover(&identity).offer(RELIABLE);
    for _ in 0..3 {
        assert_eq!(recover().status().await, 503);
    }
    publisher.done(publish("g", 3, "3")).await;
    store.refuse_endings(false);
    soon(async {
        loop {
            match recover().open().await {
                Ok(socket) => break socket.expect_close(1008).await,
                Err(_) => a_while().await,
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_client_that_goes_away_while_its_session_is_being_stored_leaves_nothing_behind() {
    let (gateway, store) = gateway().await;
    let mut publisher = gateway.reliable("p").await;
    store.hold();
    let connector = gateway.connector().token(&Token::user("gone").group("g")).offer(RELIABLE);
    let opening = tokio::spawn(connector.open());
    store.holds(1).await;
    opening.abort();
    store.release();
    publisher.done(publish("g", 1, "x")).await;
    let mut subscriber = gateway.session(RELIABLE, &Token::bare().group("g")).await;
    publisher.done(publish("g", 2, "y")).await;
    subscriber.expect(message(1, "g", "p", "y")).await;
}
