//! What follows when a socket is lost.

use super::*;
use crate::wire::Subprotocol;

const RECOVER: &str = "connect to recover c1 with token-c1";

#[test]
fn a_client_does_nothing_before_it_is_started() {
    let mut scene = Scene::new(quiet());
    scene.wait_ms(1_000_000);
    scene.expect(&[]);
    scene.input(Input::Start);
    scene.input(Input::Start);
    scene.expect(&["connect"]);
}

#[test]
fn a_lost_socket_is_recovered_at_once_and_the_session_goes_on() {
    let mut scene = Scene::connected();
    scene.gets(&message(1, "a"));
    scene.expect(&["deliver 1 a"]);
    scene.is_cut();
    scene.expect(&[RECOVER]);
    scene.opens();
    scene.expect(&["recovered"]);
    scene.gets(&message(1, "a"));
    scene.gets(&message(2, "b"));
    scene.expect(&["deliver 2 b"]);
}

#[test]
fn every_close_code_but_1008_is_followed_by_a_recovery() {
    for code in [1000, 1001, 1002, 1003, 1006, 1007, 1009, 1011, 1012, 4000] {
        let mut scene = Scene::connected();
        scene.is_closed(code);
        scene.expect(&[RECOVER]);
    }
}

#[test]
fn close_code_1008_ends_the_session_at_once() {
    let mut scene = Scene::connected();
    scene.wait_ms(5_000);
    scene.is_closed(1008);
    scene.expect(&["lost c1", "connect"]);
    scene.opens();
    scene.gets(&connected("c2"));
    scene.expect(&["connected c2"]);
}

#[test]
fn a_refused_recovery_leads_to_a_new_session() {
    let mut scene = Scene::connected();
    scene.wait_ms(5_000);
    scene.is_cut_and_recovers();
    scene.expect(&["recovered"]);
    scene.is_closed(1008);
    scene.expect(&["lost c1", "connect"]);
}

#[test]
fn recovery_is_tried_each_second_for_30_seconds_and_then_a_new_session_is_opened() {
    let mut scene = Scene::connected();
    scene.is_cut();
    scene.expect(&[RECOVER]);
    for _ in 1..30 {
        scene.fails_to_open();
        scene.expect(&[]);
        scene.wait_ms(999);
        scene.expect(&[]);
        scene.wait_ms(1);
        scene.expect(&[RECOVER]);
    }
    scene.fails_to_open();
    scene.wait_ms(1_000);
    scene.expect(&["lost c1", "connect"]);
    for _ in 0..100 {
        scene.fails_to_open();
        scene.wait_ms(999);
        scene.expect(&[]);
        scene.wait_ms(1);
        scene.expect(&["connect"]);
    }
}

#[test]
fn a_recovery_late_in_the_window_keeps_the_session_and_the_next_one_has_a_whole_window() {
    let mut scene = Scene::connected();
    scene.is_cut();
    for _ in 0..29 {
        scene.expect(&[RECOVER]);
        scene.fails_to_open();
        scene.wait_ms(1_000);
    }
    scene.expect(&[RECOVER]);
    scene.opens();
    scene.gets(&message(1, "a"));
    scene.expect(&["recovered", "deliver 1 a"]);
    scene.is_cut();
    for _ in 0..29 {
        scene.expect(&[RECOVER]);
        scene.fails_to_open();
        scene.wait_ms(1_000);
    }
    scene.expect(&[RECOVER]);
}

#[test]
fn sockets_that_open_and_are_of_no_use_do_not_prolong_the_recovery() {
    let mut scene = Scene::connected();
    scene.is_cut();
    for _ in 0..30 {
        scene.expect(&[RECOVER]);
        scene.opens();
        scene.expect(&["recovered"]);
        scene.is_cut();
        scene.expect(&[]);
        scene.wait_ms(1_000);
    }
    scene.expect(&["lost c1", "connect"]);
}

#[test]
fn a_recovered_socket_that_stayed_open_in_silence_was_of_use() {
    let mut scene = Scene::connected();
    scene.is_cut_and_recovers();
    scene.expect(&["recovered"]);
    scene.wait_ms(1_000_000);
    scene.is_cut();
    scene.expect(&[RECOVER]);
}

#[test]
fn an_attempt_that_hangs_is_given_up() {
    let mut scene = Scene::connected();
    scene.is_cut();
    scene.expect(&[RECOVER]);
    scene.wait_ms(9_999);
    scene.expect(&[]);
    scene.wait_ms(1);
    scene.expect(&["close"]);
    scene.wait_ms(1_000);
    scene.expect(&[RECOVER]);
}

#[test]
fn a_new_session_that_gets_no_name_is_given_up() {
    let mut scene = Scene::new(quiet());
    scene.input(Input::Start);
    scene.expect(&["connect"]);
    scene.opens();
    scene.wait_ms(10_000);
    scene.expect(&["close"]);
    scene.wait_ms(1_000);
    scene.expect(&["connect"]);
}

#[test]
fn sessions_that_are_refused_as_soon_as_they_begin_are_a_second_apart() {
    let mut scene = Scene::connected();
    scene.is_closed(1008);
    scene.expect(&["lost c1"]);
    scene.wait_ms(999);
    scene.expect(&[]);
    scene.wait_ms(1);
    scene.expect(&["connect"]);
}

#[test]
fn what_an_older_socket_still_says_changes_nothing() {
    let mut scene = Scene::connected();
    let old = scene.socket;
    scene.is_cut_and_recovers();
    scene.expect(&["recovered"]);
    scene.gets_on(old, &message(1, "a"));
    scene.input(Input::Closed { socket: old, code: Some(1008) });
    scene.input(Input::ConnectFailed { socket: old });
    scene.input(Input::Opened { socket: old });
    scene.expect(&[]);
    scene.gets(&message(1, "a"));
    scene.expect(&["deliver 1 a"]);
}

#[test]
fn a_repeated_connected_message_only_replaces_the_token() {
    let mut scene = Scene::connected();
    scene.is_cut_and_recovers();
    scene.gets(&message(1, "a"));
    scene.gets(
        r#"{"type":"system","event":"connected","connectionId":"c1","userId":"u","reconnectionToken":"newer"}"#,
    );
    scene.expect(&["recovered", "deliver 1 a"]);
    scene.gets(r#"{"type":"system","event":"connected","connectionId":"c1"}"#);
    scene.is_cut();
    scene.expect(&["connect to recover c1 with newer"]);
}

#[test]
fn another_session_on_the_socket_of_a_recovery_is_a_new_one() {
    let mut scene = Scene::connected();
    scene.gets(&message(1, "a"));
    scene.expect(&["deliver 1 a"]);
    scene.is_cut_and_recovers();
    scene.gets(&connected("c2"));
    scene.gets(&message(1, "b"));
    scene.expect(&["recovered", "lost c1", "connected c2", "deliver 1 b"]);
}

#[test]
fn without_a_reliable_subprotocol_each_socket_is_a_session() {
    let mut scene = Scene::connected_with(ClientSettings { subprotocol: Subprotocol::Json, ..quiet() });
    scene.wait_ms(5_000);
    scene.is_cut();
    scene.expect(&["lost c1", "connect"]);
}

#[test]
fn a_stopped_client_closes_and_stays_away_until_it_is_started_again() {
    let mut scene = Scene::connected();
    let old = scene.socket;
    scene.input(Input::Stop);
    scene.expect(&["close 1000", "lost c1"]);
    scene.input(Input::Closed { socket: old, code: Some(1000) });
    scene.wait_ms(100_000);
    scene.input(Input::Stop);
    scene.expect(&[]);
    scene.input(Input::Start);
    scene.expect(&["connect"]);
    scene.opens();
    scene.gets(&connected("c2"));
    scene.expect(&["connected c2"]);
}

#[test]
fn a_client_is_stopped_during_an_attempt_and_between_two() {
    let mut scene = Scene::connected_with(ClientSettings { stop_code: None, ..quiet() });
    scene.is_cut();
    scene.expect(&[RECOVER]);
    scene.input(Input::Stop);
    scene.expect(&["close", "lost c1"]);
    scene.input(Input::Start);
    scene.expect(&["connect"]);
    scene.fails_to_open();
    scene.input(Input::Stop);
    scene.wait_ms(100_000);
    scene.expect(&[]);
}
