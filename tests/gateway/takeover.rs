//! A recovery while the old socket still looks alive: the newest wins at once.

use std::sync::Arc;

use serde_json::json;

use crate::support::*;

#[tokio::test]
async fn s22_1_06_a_recovery_takes_over_an_idle_socket_and_the_old_one_is_cut() {
    let gateway = Gateway::start().await;
    let mut old = gateway.session(RELIABLE, &Token::user("s").group("g")).await;
    let mut publisher = gateway.reliable("p").await;
    publisher.done(publish("g", 1, "1")).await;
    old.expect(message(1, "g", "p", "1")).await;
    let mut new = gateway.recover(&old.identity()).await;
    new.expect(message(1, "g", "p", "1")).await;
    old.expect_cut().await;
    publisher.done(publish("g", 2, "2")).await;
    new.expect(message(2, "g", "p", "2")).await;
}

#[tokio::test]
async fn s22_03_what_the_old_socket_still_says_changes_nothing() {
    let gateway = Gateway::start().await;
    let mut old = gateway.session(RELIABLE, &Token::user("s").group("g")).await;
    let mut publisher = gateway.reliable("p").await;
    publisher.done(publish("g", 1, "1")).await;
    let identity = old.identity();
    old.expect(message(1, "g", "p", "1")).await;
    let mut new = gateway.recover(&identity).await;
    new.expect(message(1, "g", "p", "1")).await;
    // The old socket may be gone already: what counts is that none of this has an effect.
    for message in [leave("g", 1), sequence_ack(1), json!({"type": "nonsense"})] {
        let text = message.to_string();
        let _ = old.try_send(text.into(), std::time::Duration::from_secs(1)).await;
    }
    drop(old);
    publisher.done(publish("g", 2, "2")).await;
    new.expect(message(2, "g", "p", "2")).await;
    new.expect_quiet().await;
    new.cut();
    let mut new = gateway.recover(&identity).await;
    new.expect(message(1, "g", "p", "1")).await;
    new.expect(message(2, "g", "p", "2")).await;
}

/// Azure refuses one of two with 1008. Here the newest wins and the older is cut without a close frame, since 1008 would
/// make an official client abandon a session that lives.
#[tokio::test]
async fn s22_1_07_of_two_recoveries_at_once_one_wins_and_the_session_lives() {
    let gateway = Gateway::start().await;
    for _ in 0..20 {
        let subscriber = gateway.session(RELIABLE, &Token::user("s").group("g")).await;
        let identity = subscriber.identity();
        subscriber.cut();
        let (mut a, mut b) = tokio::join!(gateway.recover(&identity), gateway.recover(&identity));
        let mut publisher = gateway.reliable("p").await;
        publisher.done(publish("g", 1, "1")).await;
        let expected = Event::Message(message(1, "g", "p", "1"));
        let heard = [a.next().await, b.next().await];
        assert!(
            heard == [Event::Dropped, expected.clone()] || heard == [expected, Event::Dropped],
            "{heard:?}"
        );
    }
}

#[tokio::test]
async fn a_chain_of_takeovers_leaves_the_last_one() {
    let gateway = Gateway::start().await;
    let mut old = gateway.session(RELIABLE, &Token::user("s").group("g")).await;
    let identity = old.identity();
    let mut publisher = gateway.reliable("p").await;
    for n in 1..=20 {
        let new = gateway.recover(&identity).await;
        old.expect_cut().await;
        old = new;
        publisher.done(publish("g", n, "x")).await;
        old.expect(message(n, "g", "p", "x")).await;
        old.send(sequence_ack(n)).await;
        old.expect_quiet().await;
    }
}

#[tokio::test]
async fn a_request_under_way_is_carried_to_its_end_and_answered_on_the_new_socket() {
    let store = HeldStore::default();
    let gateway = Gateway::with_store(Arc::new(store.clone()), |_| {}).await;
    let mut subscriber = gateway.session(RELIABLE, &Token::user("s").group("g")).await;
    let mut old = gateway.reliable("p").await;
    store.hold();
    old.send(publish("g", 7, "once")).await;
    store.holds(1).await;
    let mut new = gateway.recover(&old.identity()).await;
    old.expect_cut().await;
    new.send(publish("g", 7, "once")).await;
    store.release();
    new.expect(success(7)).await;
    let ack = new.read().await;
    assert_eq!(ack["error"]["name"], "Duplicate", "{ack}");
    assert_eq!(subscriber.settle().await, [message(1, "g", "p", "once")]);
}

#[tokio::test]
async fn a_socket_that_was_taken_over_half_open_does_not_hold_the_session() {
    let gateway = Gateway::start().await;
    let connector = gateway.connector().token(&Token::user("s").group("g"));
    let mut old = connector.offer(RELIABLE).receive_buffer_bytes(4096).open().await.unwrap();
    old.read_connected().await;
    let identity = old.identity();
    let mut publisher = gateway.reliable("p").await;
    // Nobody reads `old` any more: its side of the stream fills up.
    let text = "x".repeat(100_000);
    for n in 1..=40 {
        publisher.done(publish("g", n, &text)).await;
    }
    let mut new = gateway.recover(&identity).await;
    for n in 1..=40 {
        new.expect(message(n, "g", "p", &text)).await;
    }
    drop(old);
}
