//! The order of things that clients may rely on.

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::support::*;

/// The texts of messages that came.
fn texts(messages: &[Value]) -> Vec<&str> {
    messages.iter().filter_map(|message| message["data"].as_str()).collect()
}

#[tokio::test]
async fn acks_follow_the_order_of_requests_whatever_their_outcome() {
    for gateway in [Gateway::start().await, Gateway::sharded().await] {
        let mut socket = gateway.session(RELIABLE, &Token::bare().role("webpubsub.joinLeaveGroup.g")).await;
        let mut requests = Vec::new();
        for ack_id in 0..100 {
            requests.push(match ack_id % 4 {
                0 => join("g", ack_id),
                1 => join("forbidden", ack_id),
                2 => leave("g", ack_id),
                _ => json!({"type": "event", "event": "e", "ackId": ack_id, "dataType": "text", "data": ""}),
            });
        }
        socket.send_together(requests).await;
        for ack_id in 0..100 {
            let ack = socket.read().await;
            assert_eq!(ack["ackId"], ack_id, "{ack}");
            assert_eq!(ack["success"], ack_id % 2 == 0, "{ack}");
        }
    }
}

#[tokio::test]
async fn requests_of_a_session_are_executed_one_after_the_other() {
    for gateway in [Gateway::start().await, Gateway::sharded().await] {
        let mut socket = gateway.reliable("a").await;
        let requests = (0..50).flat_map(|n| {
            [
                publish("g", 4 * n, "not a member"),
                join("g", 4 * n + 1),
                publish("g", 4 * n + 2, "a member"),
                leave("g", 4 * n + 3),
            ]
        });
        socket.send_together(requests).await;
        let heard = socket.settle().await;
        assert_eq!(texts(&heard), ["a member"; 50]);
        let acks: Vec<_> = heard.iter().filter_map(|message| message["ackId"].as_u64()).collect();
        assert_eq!(acks, (0..200).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn one_publishers_messages_reach_each_subscriber_in_its_order() {
    for gateway in [Gateway::start().await, Gateway::sharded().await] {
        let mut subscribers = Vec::new();
        for n in 0..6 {
            let subprotocol = if n % 2 == 0 { RELIABLE } else { JSON };
            subscribers.push(gateway.session(subprotocol, &Token::bare().group("g")).await);
        }
        let mut publishers = Vec::new();
        for user in ["x", "y", "z"] {
            publishers.push(gateway.reliable(user).await);
        }
        join_all(publishers.iter_mut().map(async |publisher| {
            publisher.send_together((1..=300).map(|n| publish("g", n, &n.to_string()))).await;
            for n in 1..=300 {
                publisher.expect(success(n)).await;
            }
        }))
        .await;
        for subscriber in &mut subscribers {
            let heard = subscriber.settle().await;
            assert_eq!(heard.len(), 900);
            for user in ["x", "y", "z"] {
                let numbers = heard.iter().filter(|message| message["fromUserId"] == user);
                let numbers: Vec<_> = numbers.map(|message| message["data"].as_str().unwrap()).collect();
                assert_eq!(numbers, (1..=300).map(|n| n.to_string()).collect::<Vec<_>>(), "{user}");
            }
            let ids: Vec<_> = heard.iter().filter_map(|message| message["sequenceId"].as_u64()).collect();
            assert!(ids.is_sorted_by(|a, b| a < b), "{ids:?}");
        }
    }
}

#[tokio::test]
async fn a_join_takes_effect_before_its_ack_and_so_does_a_leave() {
    for gateway in [Gateway::start().await, Gateway::sharded().await] {
        let mut subscriber = gateway.reliable("s").await;
        let mut publisher = gateway.reliable("p").await;
        for n in 1..=50 {
            subscriber.done(join("g", 2 * n)).await;
            publisher.done(publish("g", 2 * n, "inside")).await;
            subscriber.expect(message(n, "g", "p", "inside")).await;
            subscriber.done(leave("g", 2 * n + 1)).await;
            publisher.done(publish("g", 2 * n + 1, "outside")).await;
        }
        subscriber.expect_quiet().await;
    }
}

#[tokio::test]
async fn s22_08_a_publisher_gets_its_own_message_before_its_ack() {
    for gateway in [Gateway::start().await, Gateway::sharded().await] {
        for mut socket in [gateway.reliable("a").await, gateway.json("a").await] {
            socket.done(join("g", 1)).await;
            for n in 2..=100 {
                socket.send(publish("g", n, "mine")).await;
                assert_eq!(socket.read().await["data"], "mine");
                socket.expect(success(n)).await;
            }
            socket.done(leave("g", 101)).await;
        }
    }
}

#[tokio::test]
async fn an_acknowledged_message_is_on_its_way_to_every_member() {
    for gateway in [Gateway::start().await, Gateway::sharded().await] {
        let mut publisher = gateway.reliable("p").await;
        let mut subscribers = Vec::new();
        for _ in 0..20 {
            subscribers.push(gateway.session(RELIABLE, &Token::bare().group("g")).await);
        }
        for n in 1..=20 {
            publisher.done(publish("g", n, "x")).await;
            for subscriber in &mut subscribers {
                assert_eq!(subscriber.settle().await, [message(n, "g", "p", "x")]);
            }
        }
    }
}
