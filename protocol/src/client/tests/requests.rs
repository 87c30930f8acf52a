//! Requests and their outcomes.

use super::*;

#[test]
fn an_ack_is_the_outcome() {
    let mut scene = Scene::connected();
    scene.asks(join("g", 1));
    scene.asks(publish("a", 2));
    scene.expect(&[&sent_join("g", 1), &sent("a", 2)]);
    scene.gets(&success(1));
    scene.gets(&success(2));
    scene.expect(&["1 done", "2 done"]);
    scene.gets(&success(2));
    scene.gets(&success(99));
    scene.wait_ms(1_000_000);
    scene.expect(&[]);
}

#[test]
fn duplicate_is_success() {
    let mut scene = Scene::connected();
    scene.asks(publish("a", 1));
    scene.gets(&failure(1, "Duplicate"));
    scene.expect(&[&sent("a", 1), "1 duplicate"]);
}

#[test]
fn what_can_not_succeed_is_not_tried_again() {
    for name in ["Forbidden", "PayloadMismatch", "BadRequest"] {
        let mut scene = Scene::connected();
        scene.asks(publish("a", 1));
        scene.gets(&failure(1, name));
        scene.expect(&[&sent("a", 1), &format!("1 refused: {name}")]);
        scene.wait_ms(1_000_000);
        scene.expect(&[]);
    }
}

#[test]
fn a_passing_failure_is_tried_three_more_times_under_the_same_ack_id() {
    let mut scene = Scene::connected();
    scene.asks(publish("a", 7));
    scene.expect(&[&sent("a", 7)]);
    for _ in 0..3 {
        scene.gets(&failure(7, "InternalServerError"));
        scene.wait_ms(999);
        scene.expect(&[]);
        scene.wait_ms(1);
        scene.expect(&[&sent("a", 7)]);
    }
    scene.gets(&failure(7, "InternalServerError"));
    scene.expect(&["7 refused: InternalServerError"]);
}

#[test]
fn a_request_without_an_answer_is_sent_again_under_the_same_ack_id() {
    let mut scene = Scene::connected();
    scene.asks(publish("a", 7));
    scene.expect(&[&sent("a", 7)]);
    scene.wait_ms(29_999);
    scene.expect(&[]);
    scene.wait_ms(1);
    scene.expect(&[&sent("a", 7)]);
    scene.gets(&failure(7, "Duplicate"));
    scene.expect(&["7 duplicate"]);
}

#[test]
fn a_request_that_is_never_answered_ends_in_doubt() {
    let mut scene = Scene::connected();
    scene.asks(publish("a", 7));
    scene.wait_ms(119_999);
    scene.expect(&[&sent("a", 7), &sent("a", 7), &sent("a", 7), &sent("a", 7)]);
    scene.wait_ms(1);
    scene.expect(&["7 unknown"]);
}

#[test]
fn without_an_ack_timeout_an_answer_is_awaited_for_ever() {
    let mut scene = Scene::connected_with(ClientSettings { ack_timeout_ms: None, ..quiet() });
    scene.asks(publish("a", 7));
    scene.wait_ms(100_000_000);
    scene.gets(&success(7));
    scene.expect(&[&sent("a", 7), "7 done"]);
}

#[test]
fn a_recovery_sends_all_that_has_no_outcome_again_in_the_original_order() {
    let mut scene = Scene::connected();
    scene.asks(join("g", 9));
    scene.asks(publish("a", 4));
    scene.asks(publish("b", 8));
    scene.asks(publish("c", 1));
    scene.gets(&success(4));
    scene.gets(&failure(9, "InternalServerError"));
    scene.expect(&[&sent_join("g", 9), &sent("a", 4), &sent("b", 8), &sent("c", 1), "4 done"]);
    scene.is_cut();
    scene.asks(publish("d", 2));
    scene.expect(&["connect to recover c1 with token-c1"]);
    scene.opens();
    scene.expect(&["recovered", &sent_join("g", 9), &sent("b", 8), &sent("c", 1), &sent("d", 2)]);
    for ack_id in [9, 8, 1, 2] {
        scene.gets(&failure(ack_id, "Duplicate"));
    }
    scene.expect(&["9 duplicate", "8 duplicate", "1 duplicate", "2 duplicate"]);
    scene.wait_ms(1_000_000);
    scene.expect(&[]);
}

#[test]
fn nothing_is_sent_again_while_there_is_no_socket() {
    let mut scene = Scene::connected();
    scene.asks(publish("a", 1));
    scene.expect(&[&sent("a", 1)]);
    scene.is_cut();
    scene.wait_ms(9_000);
    scene.expect(&["connect to recover c1 with token-c1"]);
    scene.opens();
    scene.expect(&["recovered", &sent("a", 1)]);
    scene.wait_ms(29_999);
    scene.expect(&[]);
}

#[test]
fn a_late_answer_to_an_earlier_copy_is_the_outcome_and_the_other_answer_is_passed_over() {
    let mut scene = Scene::connected();
    scene.asks(publish("a", 1));
    scene.is_cut_and_recovers_silently();
    scene.gets(&success(1));
    scene.gets(&failure(1, "Duplicate"));
    scene.expect(&["1 done"]);
}

#[test]
fn a_refusal_of_one_copy_leaves_the_others_in_doubt() {
    let mut scene = Scene::connected();
    scene.asks(publish("a", 1));
    scene.is_cut_and_recovers_silently();
    scene.gets(&failure(1, "Forbidden"));
    scene.expect(&["1 refused perhaps: Forbidden"]);
}

#[test]
fn the_loss_of_the_session_leaves_what_was_sent_in_doubt_and_keeps_the_rest() {
    let mut scene = Scene::connected();
    scene.wait_ms(5_000);
    scene.asks(publish("sent", 1));
    scene.asks(publish("failed", 2));
    scene.gets(&failure(2, "InternalServerError"));
    scene.expect(&[&sent("sent", 1), &sent("failed", 2)]);
    scene.is_cut();
    scene.asks(publish("waiting", 3));
    scene.expect(&["connect to recover c1 with token-c1"]);
    scene.fails_to_open();
    scene.wait_ms(1_000);
    scene.expect(&["connect to recover c1 with token-c1"]);
    scene.opens_and_is_refused();
    scene.expect(&["1 unknown", "2 unknown", "3 unknown", "lost c1", "connect"]);
}

#[test]
fn what_certainly_was_not_executed_goes_to_the_new_session() {
    let mut scene = Scene::connected();
    scene.wait_ms(5_000);
    scene.asks(publish("sent", 1));
    scene.asks(publish("failed", 2));
    scene.gets(&failure(2, "InternalServerError"));
    scene.expect(&[&sent("sent", 1), &sent("failed", 2)]);
    scene.is_closed(1008);
    scene.asks(publish("waiting", 3));
    scene.expect(&["1 unknown", "lost c1", "connect"]);
    scene.opens();
    scene.expect(&[]);
    scene.gets(&connected("c2"));
    scene.expect(&["connected c2", &sent("failed", 2), &sent("waiting", 3)]);
}

#[test]
fn on_demand_what_is_in_doubt_goes_to_the_new_session_too_but_not_without_end() {
    let settings = ClientSettings { resend_to_new_session: true, request_retries_max: 2, ..quiet() };
    let mut scene = Scene::connected_with(settings);
    scene.asks(publish("a", 1));
    scene.expect(&[&sent("a", 1)]);
    for session in ["c2", "c3"] {
        scene.wait_ms(5_000);
        scene.is_closed(1008);
        scene.opens_after_loss();
        scene.gets(&connected(session));
        scene.expect(&[&format!("connected {session}"), &sent("a", 1)]);
    }
    scene.wait_ms(5_000);
    scene.is_closed(1008);
    scene.expect(&["1 unknown", "lost c3", "connect"]);
}

#[test]
fn requests_wait_for_the_session_or_only_for_the_socket() {
    let mut scene = Scene::new(quiet());
    scene.asks(publish("a", 1));
    scene.input(Input::Start);
    scene.opens_first();
    scene.expect(&["connect"]);
    scene.gets(&connected("c1"));
    scene.expect(&["connected c1", &sent("a", 1)]);

    let mut scene = Scene::new(ClientSettings { requests_before_connected: true, ..quiet() });
    scene.asks(publish("a", 1));
    scene.input(Input::Start);
    scene.opens_first();
    scene.asks(publish("b", 2));
    scene.expect(&["connect", &sent("a", 1), &sent("b", 2)]);
    scene.gets(&connected("c1"));
    scene.expect(&["connected c1"]);
    scene.gets(&success(1));
    scene.expect(&["1 done"]);
}

#[test]
fn requests_sent_to_a_session_without_a_name_are_in_doubt_when_its_socket_is_lost() {
    let mut scene = Scene::new(ClientSettings { requests_before_connected: true, ..quiet() });
    scene.asks(publish("a", 1));
    scene.input(Input::Start);
    scene.opens_first();
    scene.is_cut();
    scene.expect(&["connect", &sent("a", 1), "1 unknown"]);
    scene.wait_ms(1_000);
    scene.expect(&["connect"]);
}

#[test]
fn a_request_without_an_ack_id_is_sent_now_or_not_at_all() {
    let mut scene = Scene::new(quiet());
    assert_eq!(scene.tries(publish("a", None)), Err(RequestError::NotConnected));
    let mut scene = Scene::connected();
    scene.asks(publish("a", None));
    scene.expect(&[r#"send {"type":"sendToGroup","group":"g","dataType":"text","data":"a"}"#]);
    scene.is_cut();
    assert_eq!(scene.tries(publish("b", None)), Err(RequestError::NotConnected));
    scene.expect(&["connect to recover c1 with token-c1"]);
    scene.opens();
    scene.expect(&["recovered"]);
}

#[test]
fn pending_requests_are_bounded_by_number() {
    let mut scene = Scene::connected_with(ClientSettings { pending_requests_max: 2, ..quiet() });
    scene.asks(publish("a", 1));
    scene.asks(publish("b", 2));
    assert_eq!(scene.tries(publish("c", 3)), Err(RequestError::TooManyPending));
    scene.gets(&success(1));
    scene.asks(publish("c", 3));
    scene.expect(&[&sent("a", 1), &sent("b", 2), "1 done", &sent("c", 3)]);
}

#[test]
fn pending_requests_are_bounded_by_bytes() {
    let bytes = sent("a", 1).len() - "send ".len();
    let mut scene = Scene::connected_with(ClientSettings { pending_bytes_max: 2 * bytes, ..quiet() });
    assert_eq!(scene.tries(publish(&"a".repeat(bytes + 2), 1)), Err(RequestError::TooManyPending));
    scene.asks(publish("a", 1));
    scene.asks(publish("b", 2));
    assert_eq!(scene.tries(publish("", 3)), Err(RequestError::TooManyPending));
    scene.gets(&success(1));
    scene.asks(publish("c", 3));
    assert_eq!(scene.client.pending_requests(), 2);
}

#[test]
fn an_ack_id_names_one_pending_request() {
    let mut scene = Scene::connected();
    scene.asks(publish("a", 1));
    assert_eq!(scene.tries(publish("b", 1)), Err(RequestError::AckIdPending));
    scene.gets(&success(1));
    scene.asks(publish("b", 1));
    scene.expect(&[&sent("a", 1), "1 done", &sent("b", 1)]);
}

#[test]
fn counted_ack_ids_go_on_over_sessions_and_never_meet_chosen_ones() {
    let mut scene = Scene::connected();
    assert_eq!(scene.client.fresh_ack_id(), 1);
    assert_eq!(scene.client.fresh_ack_id(), 2);
    scene.is_closed(1008);
    assert_eq!(scene.client.fresh_ack_id(), 3);
    scene.asks(publish("a", 10));
    scene.asks(publish("a", 5));
    assert_eq!(scene.client.fresh_ack_id(), 11);
    scene.asks(publish("a", u64::MAX));
    assert_eq!(scene.client.fresh_ack_id(), 12);
}

#[test]
fn stopping_gives_every_request_its_outcome() {
    let mut scene = Scene::connected();
    scene.asks(publish("sent", 1));
    scene.is_cut();
    scene.asks(publish("waiting", 2));
    scene.expect(&[&sent("sent", 1), "connect to recover c1 with token-c1"]);
    scene.input(Input::Stop);
    scene.expect(&["close 1000", "1 unknown", "2 notexecuted", "lost c1"]);
    assert_eq!(scene.client.pending_requests(), 0);
}

#[test]
fn a_new_session_joins_the_groups_again_before_anything_else() {
    let mut scene = Scene::connected();
    for (ack_id, name) in (1..).zip(["x", "g", "left", "refused"]) {
        scene.asks(join(name, ack_id));
        scene.gets(&if name == "refused" { failure(ack_id, "Forbidden") } else { success(ack_id) });
    }
    scene.asks(leave("left", 5));
    scene.gets(&success(5));
    scene.wait_ms(5_000);
    scene.is_closed(1008);
    scene.asks(publish("a", 6));
    scene.opens_after_loss();
    scene.gets(&connected("c2"));
    scene.expect(&["connected c2", &sent_join("g", 7), &sent_join("x", 8), &sent("a", 6)]);
    scene.gets(&success(7));
    scene.gets(&failure(8, "Forbidden"));
    scene.gets(&success(6));
    scene.expect(&["not rejoined x: Forbidden", "6 done"]);
    scene.wait_ms(5_000);
    scene.is_closed(1008);
    scene.opens_after_loss();
    scene.gets(&connected("c3"));
    scene.expect(&["connected c3", &sent_join("g", 9)]);
}

#[test]
fn a_recovery_joins_nothing_again() {
    let mut scene = Scene::connected();
    scene.asks(join("g", 1));
    scene.gets(&success(1));
    scene.is_cut_and_recovers_silently();
    scene.expect(&[]);
}

#[test]
fn a_group_that_was_being_left_when_the_session_was_lost_is_not_joined_again() {
    let mut scene = Scene::connected();
    scene.asks(join("g", 1));
    scene.gets(&success(1));
    scene.asks(leave("g", 2));
    scene.wait_ms(5_000);
    scene.is_closed(1008);
    scene.opens_after_loss();
    scene.gets(&connected("c2"));
    scene.expect(&["connected c2"]);
}

#[test]
fn a_client_that_does_not_rejoin_remembers_no_groups() {
    let settings = ClientSettings { auto_rejoin: false, rejoin_groups_max: 0, ..quiet() };
    let mut scene = Scene::connected_with(settings);
    scene.asks(join("g", 1));
    scene.gets(&success(1));
    scene.wait_ms(5_000);
    scene.is_closed(1008);
    scene.opens_after_loss();
    scene.gets(&connected("c2"));
    scene.expect(&["connected c2"]);
}

#[test]
fn groups_that_are_being_joined_count_as_groups_to_rejoin() {
    let mut scene = Scene::connected_with(ClientSettings { rejoin_groups_max: 2, ..quiet() });
    scene.asks(join("a", 1));
    scene.asks(join("b", 2));
    assert_eq!(scene.tries(join("c", 3)), Err(RequestError::TooManyGroups));
    scene.asks(join("b", 4));
    scene.gets(&success(1));
    assert_eq!(scene.tries(join("c", 5)), Err(RequestError::TooManyGroups));
}

#[test]
fn groups_to_rejoin_are_bounded() {
    let mut scene = Scene::connected_with(ClientSettings { rejoin_groups_max: 1, ..quiet() });
    scene.asks(join("a", 1));
    scene.gets(&success(1));
    assert_eq!(scene.tries(join("b", 2)), Err(RequestError::TooManyGroups));
    scene.asks(join("a", 3));
    scene.gets(&success(3));
    scene.asks(leave("a", 4));
    scene.gets(&success(4));
    scene.asks(join("b", 5));
}

impl Scene {
    fn opens_first(&mut self) {
        self.drain();
        self.opens();
    }

    /// Opens the socket that follows a lost session, passing over what was said.
    fn opens_after_loss(&mut self) {
        self.drain();
        self.heard.clear();
        self.opens();
    }

    fn opens_and_is_refused(&mut self) {
        self.opens();
        self.drain();
        self.heard.clear();
        self.is_closed(1008);
    }

    fn is_cut_and_recovers_silently(&mut self) {
        self.is_cut();
        self.drain();
        self.opens();
        self.drain();
        self.heard.clear();
    }
}
