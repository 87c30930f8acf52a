//! Recovery: what continues, and what is refused for good.

use std::time::Duration;

use jsonwebtoken::Algorithm;
use serde_json::json;

use crate::support::*;

/// A reliable member of `g` that has got `messages` messages and acknowledged some of them, and a publisher.
async fn scene(gateway: &Gateway, messages: u64, acknowledged: u64) -> (Socket, Socket) {
    let mut subscriber = gateway.session(RELIABLE, &Token::user("s").group("g")).await;
    let mut publisher = gateway.reliable("p").await;
    for n in 1..=messages {
        publisher.done(publish("g", n, &n.to_string())).await;
        subscriber.expect(message(n, "g", "p", &n.to_string())).await;
    }
    subscriber.send(sequence_ack(acknowledged)).await;
    subscriber.expect_quiet().await;
    (subscriber, publisher)
}

#[tokio::test]
async fn s22_1_05_redelivery_after_drop() {
    let gateway = Gateway::start().await;
    let (subscriber, mut publisher) = scene(&gateway, 10, 4).await;
    let identity = subscriber.identity();
    subscriber.cut();
    for n in 11..=13 {
        publisher.done(publish("g", n, &n.to_string())).await;
    }
    let mut subscriber = gateway.recover(&identity).await;
    for n in 5..=13 {
        subscriber.expect(message(n, "g", "p", &n.to_string())).await;
    }
    publisher.done(publish("g", 14, "14")).await;
    subscriber.expect(message(14, "g", "p", "14")).await;
}

/// On a fast machine it has to wait from the fifth time on.
#[tokio::test]
async fn a_client_that_closes_at_what_it_is_sent_is_let_in_again_each_time() {
    let gateway = Gateway::start().await;
    let (mut subscriber, _publisher) = scene(&gateway, 1, 0).await;
    let identity = subscriber.identity();
    for _ in 0..6 {
        subscriber.close(1009).await;
        subscriber = gateway.recover(&identity).await;
        subscriber.expect(message(1, "g", "p", "1")).await;
    }
    subscriber.send(sequence_ack(1)).await;
    subscriber.expect_quiet().await;
    subscriber.cut();
    gateway.recover(&identity).await.expect_quiet().await;
}

#[tokio::test]
async fn redelivered_messages_are_the_same_letter_by_letter() {
    let gateway = Gateway::start().await;
    let (subscriber, mut publisher) = scene(&gateway, 0, 0).await;
    let identity = subscriber.identity();
    publisher
        .send_text(
            r#"{"type":"sendToGroup","group":"g","dataType":"json","data":{ "n":1.0 },"metadata":{"K":"v"}}"#,
        )
        .await;
    publisher.send(json!({"type": "sendToGroup", "group": "g", "dataType": "binary", "data": "AP8="})).await;
    let mut subscriber = subscriber;
    let first = [subscriber.read_text().await, subscriber.read_text().await];
    for _ in 0..3 {
        subscriber.cut();
        subscriber = gateway.recover(&identity).await;
        assert_eq!([subscriber.read_text().await, subscriber.read_text().await], first);
    }
}

#[tokio::test]
async fn s22_04_a_recovery_sends_no_connected_and_replays_before_anything_new() {
    let gateway = Gateway::start().await;
    let (subscriber, mut publisher) = scene(&gateway, 3, 0).await;
    let identity = subscriber.identity();
    subscriber.cut();
    let mut subscriber = gateway.recover(&identity).await;
    subscriber.send(publish("g", 1, "mine")).await;
    publisher.done(publish("g", 4, "4")).await;
    for n in 1..=3 {
        subscriber.expect(message(n, "g", "p", &n.to_string())).await;
    }
    let heard = subscriber.settle().await;
    assert_eq!(heard.iter().filter(|message| message["type"] == "message").count(), 2, "{heard:?}");
    assert!(heard.contains(&success(1)), "{heard:?}");
}

#[tokio::test]
async fn a_recovery_with_nothing_to_redeliver_says_nothing() {
    let gateway = Gateway::start().await;
    let (subscriber, _publisher) = scene(&gateway, 3, 3).await;
    let identity = subscriber.identity();
    subscriber.cut();
    gateway.recover(&identity).await.expect_quiet().await;
}

#[tokio::test]
async fn a_session_is_recovered_any_number_of_times_with_the_same_token() {
    let gateway = Gateway::start().await;
    let (mut subscriber, mut publisher) = scene(&gateway, 0, 0).await;
    let identity = subscriber.identity();
    for n in 1..=30 {
        subscriber.cut();
        publisher.done(publish("g", n, "x")).await;
        subscriber = gateway.recover(&identity).await;
        subscriber.expect(message(n, "g", "p", "x")).await;
        subscriber.send(sequence_ack(n)).await;
        subscriber.expect_quiet().await;
    }
}

#[tokio::test]
async fn the_user_the_groups_and_the_subprotocol_survive() {
    let gateway = Gateway::start().await;
    let (mut subscriber, _publisher) = scene(&gateway, 0, 0).await;
    subscriber.done(join("joined", 1)).await;
    subscriber.done(leave("g", 2)).await;
    let identity = subscriber.identity();
    subscriber.cut();
    let recovery = gateway.connector().recover(&identity).offer(RELIABLE);
    let (mut subscriber, selected) = recovery.selected().await.unwrap();
    assert_eq!(selected.as_deref(), Some(RELIABLE));
    subscriber.send(publish("joined", 3, "x")).await;
    subscriber.expect(message(1, "joined", "s", "x")).await;
    subscriber.expect(success(3)).await;
    subscriber.done(publish("g", 4, "left")).await;
}

#[tokio::test]
async fn the_hub_is_found_whatever_its_case_and_by_the_older_url() {
    let gateway = Gateway::start().await;
    let (mut subscriber, _publisher) = scene(&gateway, 0, 0).await;
    let identity = subscriber.identity();
    for path in ["/client/hubs/CHAT", "/client?hub=Chat", "/client/?hub=chat"] {
        subscriber.cut();
        subscriber = gateway.connector().path(path).recover(&identity).offer(RELIABLE).open().await.unwrap();
        subscriber.expect_quiet().await;
    }
}

#[tokio::test]
async fn s22_02_a_refused_recovery_is_101_and_then_1008() {
    let gateway = Gateway::start().await;
    let (subscriber, _publisher) = scene(&gateway, 1, 0).await;
    let identity = subscriber.identity();
    let changed = |change: &dyn Fn(&mut Identity)| {
        let mut identity = identity.clone();
        change(&mut identity);
        identity
    };
    let mut flipped = identity.reconnection_token.clone().into_bytes();
    flipped[5] = if flipped[5] == b'A' { b'B' } else { b'A' };
    for wrong in [
        changed(&|identity| identity.connection_id = "unknown".into()),
        changed(&|identity| identity.reconnection_token = "unknown".into()),
        changed(&|identity| identity.reconnection_token.clear()),
        changed(&|identity| identity.reconnection_token = String::from_utf8(flipped.clone()).unwrap()),
        changed(&|identity| identity.reconnection_token.push('A')),
    ] {
        let mut socket = gateway.recover(&wrong).await;
        assert_eq!(socket.expect_close_reason(1008).await, "The connection could not be recovered.");
    }
    let without_token = gateway.connector().query("awps_connection_id", &identity.connection_id);
    without_token.offer(RELIABLE).open().await.unwrap().expect_close(1008).await;
    for hub in ["other", "never-used"] {
        let elsewhere = gateway.connector().hub(hub).recover(&identity).offer(RELIABLE);
        elsewhere.open().await.unwrap().expect_close(1008).await;
    }
    let other_subprotocol = gateway.connector().recover(&identity).offer(JSON);
    other_subprotocol.open().await.unwrap().expect_close(1008).await;

    subscriber.cut();
    let mut subscriber = gateway.recover(&identity).await;
    subscriber.expect(message(1, "g", "p", "1")).await;
}

#[tokio::test]
async fn s22_1_08_an_access_token_in_the_url_counts_for_nothing() {
    let gateway = Gateway::start().await;
    let (mut subscriber, _publisher) = scene(&gateway, 1, 0).await;
    let identity = subscriber.identity();
    let expired = Token::user("s").claim("exp", json!(now_unix_seconds() - 100_000));
    for connector in [
        gateway.connector().token(&expired),
        gateway.connector().token(&Token::user("somebody else")),
        gateway.connector().token(&expired.clone().algorithm(Algorithm::HS512)),
        gateway.connector().query("access_token", "bad"),
        gateway.connector().header("Authorization", "Bearer bad"),
    ] {
        subscriber.cut();
        subscriber = connector.recover(&identity).offer(RELIABLE).open().await.unwrap();
        subscriber.expect(message(1, "g", "p", "1")).await;
    }
}

#[tokio::test]
async fn s22_1_09_a_token_of_another_session_is_refused_and_the_session_lives() {
    let gateway = Gateway::start().await;
    let (mut subscriber, mut publisher) = scene(&gateway, 1, 0).await;
    let identity = subscriber.identity();
    let crossed = Identity {
        connection_id: identity.connection_id.clone(),
        reconnection_token: publisher.identity().reconnection_token,
    };
    gateway.expect_unrecoverable(&crossed).await;
    publisher.done(publish("g", 2, "2")).await;
    subscriber.expect(message(2, "g", "p", "2")).await;
    subscriber.cut();
    let mut subscriber = gateway.recover(&identity).await;
    subscriber.expect(message(1, "g", "p", "1")).await;
}

#[tokio::test]
async fn s22_1_10_after_the_window_a_recovery_is_refused() {
    let gateway = Gateway::with(|config| config.session_retention_seconds = 1).await;
    let (subscriber, _publisher) = scene(&gateway, 1, 0).await;
    let identity = subscriber.identity();
    subscriber.cut();
    // A slow machine may let the session live on for a while after its time.
    soon(async {
        loop {
            tokio::time::sleep(Duration::from_secs(2)).await;
            let mut socket = gateway.recover(&identity).await;
            match socket.next().await {
                Event::Close(1008, _) => break,
                Event::Message(_) => socket.cut(),
                other => panic!("{other:?}"),
            }
        }
    })
    .await;
}

#[tokio::test]
async fn within_the_window_a_session_waits() {
    let gateway = Gateway::with(|config| config.session_retention_seconds = 30).await;
    let (subscriber, _publisher) = scene(&gateway, 1, 0).await;
    let identity = subscriber.identity();
    subscriber.cut();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let mut subscriber = gateway.recover(&identity).await;
    subscriber.expect(message(1, "g", "p", "1")).await;
}

#[tokio::test]
async fn an_attached_session_outlives_the_window() {
    let gateway = Gateway::with(|config| config.session_retention_seconds = 1).await;
    let (subscriber, mut publisher) = scene(&gateway, 1, 0).await;
    let identity = subscriber.identity();
    subscriber.cut();
    let mut subscriber = gateway.recover(&identity).await;
    subscriber.expect(message(1, "g", "p", "1")).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    publisher.done(publish("g", 2, "2")).await;
    subscriber.expect(message(2, "g", "p", "2")).await;
}

#[tokio::test]
async fn a_session_without_recovery_ends_with_its_socket() {
    let gateway = Gateway::start().await;
    let plain = gateway.session(JSON, &Token::user("j").group("g")).await;
    let mut identity = plain.identity();
    assert!(identity.reconnection_token.is_empty());
    gateway.expect_unrecoverable(&identity).await;
    identity.reconnection_token = gateway.reliable("r").await.identity().reconnection_token;
    gateway.expect_unrecoverable(&identity).await;
}

#[tokio::test]
async fn another_gateway_refuses_tokens_of_this_one() {
    let here = Gateway::start().await;
    let there = Gateway::start().await;
    let subscriber = here.reliable("s").await;
    let _warm = there.reliable("w").await;
    there.expect_unrecoverable(&subscriber.identity()).await;
}
