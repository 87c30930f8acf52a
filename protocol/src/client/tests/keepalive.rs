//! Pings, silence, and what else the gateway says.

use super::*;

const PING: &str = r#"send {"type":"ping"}"#;
const PONG: &str = r#"{"type":"pong"}"#;

#[test]
fn a_client_pings_every_20_seconds() {
    let mut scene = Scene::connected_with(ClientSettings::default());
    for _ in 0..10 {
        scene.wait_ms(19_999);
        scene.expect(&[]);
        scene.wait_ms(1);
        scene.expect(&[PING]);
        scene.gets(PONG);
    }
}

#[test]
fn a_socket_that_says_nothing_for_120_seconds_is_given_up_and_the_session_recovered() {
    let mut scene = Scene::connected_with(ClientSettings::default());
    scene.wait_ms(119_999);
    scene.expect(&[PING; 5]);
    scene.wait_ms(1);
    scene.expect(&["close", "connect to recover c1 with token-c1"]);
}

#[test]
fn anything_that_arrives_counts_as_life() {
    let mut scene = Scene::connected_with(ClientSettings { ping_ms: None, ..ClientSettings::default() });
    for text in [PONG, r#"{"type":"news"}"#, &success(77), "no JSON"] {
        scene.wait_ms(119_999);
        scene.gets(text);
    }
    scene.wait_ms(119_999);
    scene.expect(&["undecodable: not a message of the subprotocol"]);
    scene.wait_ms(1);
    scene.expect(&["close", "connect to recover c1 with token-c1"]);
}

#[test]
fn a_client_without_keepalive_has_no_timer() {
    let scene = Scene::connected();
    assert_eq!(scene.client.poll_timeout(), None);
    assert_eq!(Scene::connected_with(ClientSettings::like_python()).client.poll_timeout(), None);
}

#[test]
fn what_it_does_not_know_is_passed_over() {
    let mut scene = Scene::connected();
    scene.gets(r#"{"type":"groupStateUpdate","group":"g","items":[]}"#);
    scene.gets(PONG);
    scene.expect(&[]);
}

#[test]
fn the_reason_of_a_close_is_passed_on() {
    let mut scene = Scene::connected();
    scene.gets(r#"{"type":"system","event":"disconnected","message":"maintenance"}"#);
    scene.expect(&["told: maintenance"]);
}

#[test]
fn answers_to_invocations_and_streams_are_passed_on() {
    let mut scene = Scene::connected();
    scene.gets(r#"{"type":"streamClosed","streamId":"s","error":{"name":"BadRequest","message":"m"}}"#);
    scene.expect(&[r#"StreamClosed { stream_id: "s", error: AckError { name: BadRequest, message: "m" } }"#]);
}

#[test]
fn debug_shows_neither_payloads_nor_tokens() {
    let mut scene = Scene::connected();
    scene.asks(publish("secret", 1));
    scene.is_cut();
    let mut outputs = Vec::new();
    while let Some(output) = scene.client.poll_output() {
        outputs.push(output);
    }
    assert!(outputs.iter().any(|output| matches!(output, Output::Send { .. })));
    let shown = format!("{outputs:?} {:?}", scene.client);
    assert!(!shown.contains("secret") && !shown.contains("token-c1"), "{shown}");
}
