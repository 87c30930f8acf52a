//! Clients without a subprotocol: bare payloads, published to one group or taken as events.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::support::*;

const SEND: &str = "webpubsub.sendToGroup";

/// A member of `g` that may publish.
fn member(name: &str) -> Token {
    Token::bare().named(name).role(SEND).group("g")
}

#[tokio::test]
async fn each_frame_is_published_to_the_group_of_the_handshake() {
    let gateway = Gateway::start().await;
    let mut subscriber = gateway.session(RELIABLE, &Token::bare().group("g")).await;
    let mut listener = gateway.raw(&Token::bare().group("g")).await;
    let mut raw = gateway.raw_publisher("g", &Token::bare().named("ada").role(SEND)).await;
    for text in ["hi \"there\"\n\u{1F600}", "", r#"{"type":"ping"}"#, "null"] {
        raw.send_text(text).await;
        let heard = subscriber.read().await;
        assert_eq!((&heard["dataType"], &heard["data"]), (&json!("text"), &json!(text)));
        assert_eq!((&heard["group"], &heard["fromUserId"]), (&json!("g"), &json!("ada")));
        assert!(heard.get("metadata").is_none());
        listener.expect_bare(Bare::text(text)).await;
    }
    raw.send_binary(b"\x00\xff{}").await;
    let heard = subscriber.read().await;
    assert_eq!((&heard["dataType"], &heard["data"]), (&json!("binary"), &json!("AP97fQ==")));
    listener.expect_bare(Bare::binary(b"\x00\xff{}")).await;
    raw.send_binary(b"").await;
    listener.expect_bare(Bare::binary(b"")).await;
}

#[tokio::test]
async fn a_member_hears_itself_unless_it_said_no_echo() {
    let gateway = Gateway::start().await;
    for (no_echo, hears_itself) in [("", true), ("FALSE", true), ("True", false)] {
        let group = Token::bare().group("g");
        let mut other = gateway.raw(&group).await;
        let connector = gateway.connector().query("webpubsub_mode", "SENDTOGROUP").query("group", "g");
        let connector = connector.query("noEcho", no_echo);
        let mut raw = connector.token(&group.clone().named("ada").role(SEND)).open().await.unwrap();
        let mut same_user = gateway.raw(&group.named("ada")).await;
        raw.send_text("1").await;
        gateway.reliable("p").await.done(publish("g", 1, "2")).await;
        for all in [&mut other, &mut same_user] {
            all.expect_bare(Bare::text("1")).await;
            all.expect_bare(Bare::text("2")).await;
        }
        if hears_itself {
            raw.expect_bare(Bare::text("1")).await;
        }
        raw.expect_bare(Bare::text("2")).await;
    }
}

#[tokio::test]
async fn a_raw_client_gets_payloads_and_nothing_around_them() {
    let gateway = Gateway::start().await;
    let mut raw = gateway.raw_publisher("g", &member("r").group("h")).await;
    let mut publisher = gateway.reliable("p").await;
    let mut with_metadata = publish("h", 1, "other group");
    with_metadata["metadata"] = json!({"trace": "a1"});
    publisher.done(with_metadata).await;
    raw.expect_bare(Bare::text("other group")).await;
    publisher
        .done(json!({"type": "sendToGroup", "group": "g", "ackId": 2, "metadata": {"only": "this"}}))
        .await;
    raw.expect_bare(Bare::text("")).await;
    raw.ping(b"x").await;
    assert_eq!(raw.read_pong().await, b"x");
    for text in [r#"{"type":"ping"}"#, r#"{"type":"joinGroup","group":"x","ackId":1}"#] {
        raw.send_text(text).await;
        raw.expect_bare(Bare::text(text)).await;
    }
}

#[tokio::test]
async fn s22_1_24_a_raw_client_without_the_role_is_closed_with_1008_at_its_first_frame() {
    let gateway = Gateway::start().await;
    let mut subscriber = gateway.session(RELIABLE, &Token::bare().group("g")).await;
    let mut publisher = gateway.reliable("p").await;
    for (number, role) in ["webpubsub.joinLeaveGroup", "webpubsub.sendToGroup.other"].iter().enumerate() {
        let mut raw = gateway.raw_publisher("g", &Token::bare().group("g").role(role)).await;
        // Until then it is a client as any other.
        publisher.done(publish("g", number as u64, "x")).await;
        raw.expect_bare(Bare::text("x")).await;
        raw.send_text("forbidden").await;
        let reason = raw.expect_close_reason(1008).await;
        assert_eq!(reason, "The connection is not authorized for raw sendToGroup mode.");
        assert_eq!(raw.next().await, Event::Dropped);
    }
    assert_eq!(subscriber.settle().await, [message(1, "g", "p", "x"), message(2, "g", "p", "x")]);
}

#[tokio::test]
async fn patterns_and_literal_roles_count_for_raw_clients_too() {
    let gateway = Gateway::start().await;
    for (role, group, may_send) in [
        ("webpubsub.sendToGroup.a.b", "a.b", true),
        ("webpubsub.sendToGroups.a.*", "a.b", true),
        ("webpubsub.sendToGroups.a.*", "a.b.c", false),
        ("webpubsub.sendToGroup.*", "a", false),
    ] {
        let mut raw = gateway.raw_publisher(group, &Token::bare().group(group).role(role)).await;
        raw.send_text("x").await;
        if may_send {
            raw.expect_bare(Bare::text("x")).await;
        } else {
            raw.expect_close(1008).await;
        }
    }
}

#[tokio::test]
async fn what_was_published_before_a_forbidden_or_broken_frame_arrives() {
    let gateway = Gateway::start().await;
    let mut subscriber = gateway.session(RELIABLE, &Token::bare().group("g")).await;
    let mut raw = gateway.raw_publisher("g", &member("r")).await;
    // Two texts and one that is not UTF-8, in one write.
    raw.send_raw(b"\x81\x81\0\0\0\0a\x81\x81\0\0\0\0b\x81\x81\0\0\0\0\xff\x81\x81\0\0\0\0c").await;
    loop {
        match raw.next_bare_or_close().await {
            Ok(Bare::Text(own)) => assert!(own == "a" || own == "b"),
            Ok(other) => panic!("{other:?}"),
            Err((1007, reason)) => break assert!(!reason.is_empty()),
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(subscriber.settle().await, [message(1, "g", "r", "a"), message(2, "g", "r", "b")]);
}

#[tokio::test]
async fn a_frame_of_a_client_that_sends_events_closes_with_1011_while_there_is_no_handler() {
    let gateway = Gateway::start().await;
    let mut subscriber = gateway.session(RELIABLE, &Token::bare().group("g")).await;
    for parameters in [&[][..], &[("webpubsub_mode", "sendEvent"), ("group", "g")], &[("group", "g")]] {
        for frame in [Bare::text("x"), Bare::binary(b"x")] {
            let connector = parameters
                .iter()
                .fold(gateway.connector(), |connector, (name, value)| connector.query(name, value));
            let mut raw = connector.token(&member("r")).open().await.unwrap();
            raw.send_bare(&frame).await;
            let reason = raw.expect_close_reason(1011).await;
            assert_eq!(reason, "No event handler of the hub takes this event.", "{parameters:?}");
        }
    }
    subscriber.expect_quiet().await;
}

#[tokio::test]
async fn a_client_that_only_listens_needs_no_role_and_no_handler() {
    let gateway = Gateway::start().await;
    let mut raw = gateway.raw(&Token::bare().group("g")).await;
    let mut publisher = gateway.reliable("p").await;
    for number in 1..=3 {
        publisher.done(publish("g", number, &number.to_string())).await;
        raw.expect_bare(Bare::text(&number.to_string())).await;
    }
}

#[tokio::test]
async fn raw_parameters_mean_nothing_to_a_client_with_a_subprotocol() {
    let gateway = Gateway::start().await;
    let connector = gateway.connector().query("webpubsub_mode", "sendToGroup").query("group", "g");
    let mut json = connector.token(&member("j")).offer(JSON).open().await.unwrap();
    json.read_connected().await;
    json.done(json!({"type": "sendToGroup", "group": "h", "ackId": 1, "dataType": "text", "data": "x"}))
        .await;
    json.send_text("bare").await;
    json.expect_close(1007).await;
}

#[tokio::test]
async fn a_message_in_fragments_is_published_once_and_whole() {
    let gateway = Gateway::start().await;
    let mut raw = gateway.raw_publisher("g", &member("r")).await;
    raw.send_raw(b"\x02\x82\0\0\0\0ab").await;
    raw.send_raw(b"\x89\x80\0\0\0\0").await;
    raw.send_raw(b"\x00\x80\0\0\0\0").await;
    raw.send_raw(b"\x80\x81\0\0\0\0c").await;
    raw.expect_bare(Bare::binary(b"abc")).await;
}

#[tokio::test]
async fn a_raw_message_of_1_mib_is_published_and_one_byte_more_closes_with_1009() {
    let gateway = Gateway::start().await;
    let mut raw = gateway.raw_publisher("g", &member("r")).await;
    let largest = vec![7; 1024 * 1024];
    raw.send_binary(&largest).await;
    assert!(raw.read_bare().await == Bare::Binary(largest.clone()));
    raw.send_binary(&[&largest[..], b"x"].concat()).await;
    raw.expect_close(1009).await;
}

#[tokio::test]
async fn messages_of_a_raw_client_keep_their_order_among_those_of_others() {
    let gateway = Gateway::start().await;
    let mut subscriber = gateway.session(RELIABLE, &Token::bare().group("g")).await;
    let mut raw = gateway.raw_publisher("g", &Token::bare().named("r").role(SEND)).await;
    let mut json = gateway.json("j").await;
    for number in 0..200_u64 {
        raw.send_text(&number.to_string()).await;
        json.send(publish("g", number, &number.to_string())).await;
    }
    let mut heard: [Vec<String>; 2] = Default::default();
    while heard.iter().any(|texts| texts.len() < 200) {
        let message: Value = subscriber.read().await;
        let publisher = usize::from(message["fromUserId"] == "j");
        heard[publisher].push(message["data"].as_str().unwrap().to_owned());
    }
    let expected: Vec<_> = (0..200).map(|number| number.to_string()).collect();
    assert!(heard.iter().all(|texts| *texts == expected), "{heard:?}");
}

#[tokio::test]
async fn a_raw_publish_that_is_certainly_not_stored_closes_with_1011() {
    let store = HeldStore::default();
    let gateway = Gateway::with_store(Arc::new(store.clone()), |_| {}).await;
    let mut subscriber = gateway.session(RELIABLE, &Token::bare().group("g")).await;
    let mut raw = gateway.raw_publisher("g", &Token::bare().named("r").role(SEND)).await;
    store.fail_next(Failure::Definite);
    raw.send_text("lost").await;
    assert_eq!(raw.expect_close_reason(1011).await, "The message could not be stored.");
    subscriber.expect_quiet().await;

    for failure in [Failure::IndefiniteLost, Failure::IndefiniteStored] {
        let mut raw = gateway.raw_publisher("g", &member("r")).await;
        store.fail_next(failure);
        raw.send_text("in doubt").await;
        raw.expect_bare(Bare::text("in doubt")).await;
        raw.send_text("after").await;
        raw.expect_bare(Bare::text("after")).await;
        raw.close(1000).await;
    }
    let texts: Vec<_> = subscriber.settle().await.iter().map(|message| message["data"].clone()).collect();
    assert_eq!(texts, ["in doubt", "after", "in doubt", "after"]);
}

#[tokio::test]
async fn a_raw_client_that_goes_away_leaves_its_groups_and_what_it_said_last_arrives() {
    let gateway = Gateway::start().await;
    let mut subscriber = gateway.session(RELIABLE, &Token::bare().group("g")).await;
    for number in 1..=20 {
        let mut raw = gateway.raw_publisher("g", &Token::bare().named("r").role(SEND)).await;
        raw.send_text("bye").await;
        assert_eq!(raw.close(1000).await, Event::Close(1000, String::new()));
        subscriber.expect(message(number, "g", "r", "bye")).await;
    }
}
