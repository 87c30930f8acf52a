//! Sequence ids, their acknowledgement, echo, and time-to-live.

use std::time::Duration;

use serde_json::json;

use crate::support::*;

#[tokio::test]
async fn s22_05_ids_begin_at_1_and_only_messages_of_reliable_sessions_have_one() {
    let gateway = Gateway::start().await;
    let mut reliable = gateway.reliable("r").await;
    let mut plain = gateway.json("j").await;
    for socket in [&mut reliable, &mut plain] {
        socket.done(join("g", 1)).await;
        socket.send(json!({"type": "ping"})).await;
        socket.expect(json!({"type": "pong"})).await;
    }
    reliable.send(publish("g", 2, "a")).await;
    reliable.expect(message(1, "g", "r", "a")).await;
    reliable.expect(success(2)).await;
    plain.expect(unsequenced("g", "r", "a")).await;
    reliable.refused(publish("g", 2, "a"), "Duplicate").await;
    plain.send(publish("g", 2, "b")).await;
    plain.expect(unsequenced("g", "j", "b")).await;
    plain.expect(success(2)).await;
    reliable.expect(message(2, "g", "j", "b")).await;
}

#[tokio::test]
async fn ids_count_over_all_groups_of_a_session() {
    let gateway = Gateway::start().await;
    let mut subscriber = gateway.session(RELIABLE, &Token::bare().group("a").group("b")).await;
    let mut publisher = gateway.reliable("p").await;
    for (ack_id, group) in (1..).zip(["a", "b", "c", "a"]) {
        publisher.done(publish(group, ack_id, "x")).await;
    }
    for (sequence_id, group) in (1..).zip(["a", "b", "a"]) {
        subscriber.expect(message(sequence_id, group, "p", "x")).await;
    }
    subscriber.expect_quiet().await;
}

#[tokio::test]
async fn ids_jump_by_301_after_128_deliveries_so_that_clients_acknowledge() {
    let gateway = Gateway::start().await;
    let mut subscriber = gateway.session(RELIABLE, &Token::bare().group("g")).await;
    let mut publisher = gateway.reliable("p").await;
    publisher.send_together((1..=400).map(|ack_id| publish("g", ack_id, "x"))).await;
    let mut last = 0;
    let mut jumps = 0;
    for n in 1..=400 {
        let id = subscriber.read().await["sequenceId"].as_u64().unwrap();
        match id - last {
            1 => {}
            301 => jumps += 1,
            other => panic!("message {n}: a step of {other}"),
        }
        last = id;
    }
    assert_eq!(jumps, 3);
}

#[tokio::test]
async fn s22_1_14_sequence_acks_of_0_of_earlier_and_of_future_ids() {
    let gateway = Gateway::start().await;
    let mut subscriber = gateway.session(RELIABLE, &Token::bare().group("g")).await;
    let identity = subscriber.identity();
    let mut publisher = gateway.reliable("p").await;
    for n in 1..=5 {
        publisher.done(publish("g", n, "x")).await;
        subscriber.expect(message(n, "g", "p", "x")).await;
    }
    for id in [3, 0, 2] {
        subscriber.send(sequence_ack(id)).await;
    }
    subscriber.expect_quiet().await;
    subscriber.cut();
    let mut subscriber = gateway.recover(&identity).await;
    subscriber.expect(message(4, "g", "p", "x")).await;
    subscriber.expect(message(5, "g", "p", "x")).await;
    subscriber.expect_quiet().await;

    subscriber.send(sequence_ack(1_000_000)).await;
    subscriber.expect_quiet().await;
    subscriber.cut();
    let mut subscriber = gateway.recover(&identity).await;
    publisher.done(publish("g", 6, "new")).await;
    subscriber.expect(message(6, "g", "p", "new")).await;
    subscriber.cut();
    let mut subscriber = gateway.recover(&identity).await;
    subscriber.expect(message(6, "g", "p", "new")).await;
}

#[tokio::test]
async fn a_sequence_ack_may_be_spelled_as_the_first_draft_had_it() {
    let gateway = Gateway::start().await;
    let mut subscriber = gateway.session(RELIABLE, &Token::bare().group("g")).await;
    let identity = subscriber.identity();
    let mut publisher = gateway.reliable("p").await;
    for n in 1..=2 {
        publisher.done(publish("g", n, "x")).await;
        subscriber.expect(message(n, "g", "p", "x")).await;
    }
    subscriber.send(json!({"type": "ack", "sequenceId": 1})).await;
    subscriber.expect_quiet().await;
    subscriber.cut();
    let mut subscriber = gateway.recover(&identity).await;
    subscriber.expect(message(2, "g", "p", "x")).await;
}

#[tokio::test]
async fn a_sequence_ack_of_a_session_without_ids_is_passed_over() {
    let gateway = Gateway::start().await;
    let mut plain = gateway.json("j").await;
    plain.send(sequence_ack(7)).await;
    plain.done(join("g", 1)).await;
}

#[tokio::test]
async fn s22_16_no_echo_leaves_out_the_sending_session_only() {
    let gateway = Gateway::start().await;
    let mut sender = gateway.reliable("ada").await;
    sender.done(join("g", 1)).await;
    let mut request = publish("g", 2, "hi");
    request["noEcho"] = json!(true);
    sender.done(request).await;
    sender.expect_quiet().await;
    sender.send(publish("g", 3, "echo")).await;
    sender.expect(message(1, "g", "ada", "echo")).await;
    sender.expect(success(3)).await;
}

#[tokio::test]
async fn s22_1_19_with_no_echo_the_users_other_session_gets_the_message() {
    let gateway = Gateway::start().await;
    let mut sender = gateway.reliable("ada").await;
    let mut other = gateway.reliable("ada").await;
    for socket in [&mut sender, &mut other] {
        socket.done(join("g", 1)).await;
    }
    let mut request = publish("g", 2, "hi");
    request["noEcho"] = json!(true);
    sender.done(request).await;
    other.expect(message(1, "g", "ada", "hi")).await;
    sender.expect_quiet().await;
}

#[tokio::test]
async fn a_message_past_its_time_to_live_is_not_redelivered_and_its_id_stays_used() {
    let gateway = Gateway::start().await;
    let subscriber = gateway.session(RELIABLE, &Token::bare().group("g")).await;
    let identity = subscriber.identity();
    subscriber.cut();
    let mut publisher = gateway.reliable("p").await;
    let mut short = publish("g", 1, "short");
    short["ttlSeconds"] = json!(1);
    publisher.done(short).await;
    publisher.done(publish("g", 2, "long")).await;
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let mut subscriber = gateway.recover(&identity).await;
    subscriber.expect(message(2, "g", "p", "long")).await;
    subscriber.expect_quiet().await;
}

#[tokio::test]
async fn a_subscriber_that_went_away_does_not_fail_the_publisher() {
    let gateway = Gateway::start().await;
    let subscriber = gateway.session(RELIABLE, &Token::bare().group("g")).await;
    let plain = gateway.session(JSON, &Token::bare().group("g")).await;
    subscriber.cut();
    plain.cut();
    let mut publisher = gateway.reliable("p").await;
    for n in 1..=10 {
        publisher.done(publish("g", n, "x")).await;
    }
}
