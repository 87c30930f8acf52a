//! Sequence ids and their acknowledgement.

use super::*;
use crate::wire::Subprotocol;

#[test]
fn the_largest_id_is_acknowledged_within_a_second() {
    let mut scene = Scene::connected();
    scene.gets(&message(1, "a"));
    scene.wait_ms(600);
    scene.gets(&message(2, "b"));
    scene.wait_ms(399);
    scene.expect(&["deliver 1 a", "deliver 2 b"]);
    scene.wait_ms(1);
    scene.expect(&[&acked(2)]);
    scene.wait_ms(100_000);
    scene.expect(&[]);
}

#[test]
fn repeated_messages_are_dropped_and_acknowledged_again() {
    let mut scene = Scene::connected();
    scene.gets(&message(1, "a"));
    scene.gets(&message(2, "b"));
    scene.wait_ms(1_000);
    scene.expect(&["deliver 1 a", "deliver 2 b", &acked(2)]);
    scene.gets(&message(1, "a"));
    scene.wait_ms(1_000);
    scene.expect(&[&acked(2)]);
}

#[test]
fn gaps_are_accepted() {
    let mut scene = Scene::connected();
    scene.gets(&message(3, "a"));
    scene.gets(&message(7, "b"));
    scene.gets(&message(5, "late"));
    scene.expect(&["deliver 3 a", "deliver 7 b"]);
}

#[test]
fn a_jump_of_more_than_300_is_acknowledged_at_once() {
    let mut scene = Scene::connected();
    scene.gets(&message(300, "a"));
    scene.gets(&message(600, "b"));
    scene.expect(&["deliver 300 a", "deliver 600 b"]);
    scene.gets(&message(901, "c"));
    scene.expect(&["deliver 901 c", &acked(901)]);
    scene.wait_ms(100_000);
    scene.expect(&[]);
}

#[test]
fn without_the_quick_ack_a_jump_waits_like_any_other_id() {
    let mut scene = Scene::connected_with(ClientSettings { quick_ack: false, ..quiet() });
    scene.gets(&message(1, "a"));
    scene.gets(&message(1_000, "b"));
    scene.expect(&["deliver 1 a", "deliver 1000 b"]);
    scene.wait_ms(1_000);
    scene.expect(&[&acked(1_000)]);
}

#[test]
fn an_ack_that_fell_due_without_a_socket_goes_to_the_next_one() {
    let mut scene = Scene::connected();
    scene.gets(&message(1, "a"));
    scene.expect(&["deliver 1 a"]);
    scene.is_cut();
    scene.expect(&["connect to recover c1 with token-c1"]);
    scene.wait_ms(2_000);
    scene.expect(&[]);
    scene.opens();
    scene.expect(&["recovered"]);
    scene.wait_ms(0);
    scene.expect(&[&acked(1)]);
}

#[test]
fn a_client_whose_wait_begins_anew_with_each_socket_acknowledges_only_on_one_that_lasts() {
    let mut scene = Scene::connected_with(ClientSettings::like_java());
    scene.gets(&message(1, "a"));
    scene.expect(&["deliver 1 a"]);
    for _ in 0..3 {
        scene.wait_ms(4_999);
        scene.is_cut_and_recovers();
        scene.expect(&["recovered"]);
    }
    scene.gets(&message(1_000, "b"));
    scene.wait_ms(4_999);
    scene.expect(&["deliver 1000 b"]);
    scene.wait_ms(1);
    scene.expect(&[&acked(1_000)]);
    scene.is_cut_and_recovers();
    scene.wait_ms(100_000);
    scene.expect(&["recovered"]);
}

#[test]
fn a_new_session_counts_anew() {
    let mut scene = Scene::connected();
    scene.gets(&message(5, "a"));
    scene.expect(&["deliver 5 a"]);
    assert_eq!(scene.client.largest_sequence_id(), 5);
    scene.is_closed(1008);
    scene.wait_ms(1_000);
    scene.opens();
    scene.gets(&connected("c2"));
    scene.expect(&["lost c1", "connect", "connected c2"]);
    assert_eq!(scene.client.largest_sequence_id(), 0);
    scene.gets(&message(1, "b"));
    scene.wait_ms(1_000);
    scene.expect(&["deliver 1 b", &acked(1)]);
}

#[test]
fn messages_without_ids_are_delivered_and_not_acknowledged() {
    let mut scene = Scene::connected_with(ClientSettings { subprotocol: Subprotocol::Json, ..quiet() });
    for _ in 0..2 {
        scene.gets(r#"{"type":"message","from":"server","dataType":"json","data":{"n":1}}"#);
    }
    scene.wait_ms(10_000);
    scene.expect(&[r#"deliver {"n":1}"#, r#"deliver {"n":1}"#]);
}
