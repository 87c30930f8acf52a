//! Several recorders: what is judged without knowing their order, and what signals add.

use oncewire_checker::check;

use crate::script::history;

crate::cases! {
    missing_between_recorders_without_a_signal: [] "
        @s; open s; join s g 1; ok s 1; quiesced
        @p; open p; pub p g m1 1; ok p 1; quiesced"
    missing_between_recorders_with_a_signal: [Lost] "
        @s; open s; join s g 1; ok s 1; signal ready; quiesced
        @p; open p; await ready; pub p g m1 1; ok p 1; quiesced"
    missing_between_recorders_when_the_publisher_was_killed: [Lost] "
        @s; open s; join s g 1; ok s 1; signal ready; quiesced
        @p; open p; await ready; pub p g m1 1; ok p 1"
    acked_after_the_publishers_own_quiesced: [] "
        @s; open s; join s g 1; ok s 1; signal ready; quiesced
        @p; open p; await ready; quiesced; pub p g m1 1; ok p 1"
    the_signal_is_awaited_too_late: [] "
        @s; open s; join s g 1; ok s 1; signal ready; quiesced
        @p; open p; pub p g m1 1; await ready; ok p 1; quiesced"
    the_signal_is_given_too_early: [] "
        @s; open s; join s g 1; signal ready; ok s 1; quiesced
        @p; open p; await ready; pub p g m1 1; ok p 1; quiesced"
    a_signal_passed_on: [Lost] "
        @s; open s; join s g 1; ok s 1; signal ready; quiesced
        @driver; await ready; signal go
        @p; open p; await go; pub p g m1 1; ok p 1; quiesced"
    files_in_the_other_order: [Lost] "
        @p; open p; await ready; pub p g m1 1; ok p 1; quiesced
        @s; open s; join s g 1; ok s 1; signal ready; quiesced"
    a_leave_elsewhere_may_have_come_first: [] "
        @s; open s in=g; signal ready; leave s g 1; ok s 1; quiesced
        @p; open p; await ready; pub p g m1 1; ok p 1; quiesced"
    a_leave_elsewhere_that_waited: [Lost] "
        @s; open s in=g; signal ready; await sent; leave s g 1; ok s 1; quiesced
        @p; open p; await ready; pub p g m1 1; ok p 1; signal sent; quiesced"
    sent_after_a_leave_elsewhere: [AfterLeave] "
        @s; open s in=g; leave s g 1; ok s 1; signal left; got s g m1; quiesced
        @p; open p; await left; pub p g m1 1; ok p 1; quiesced"
    sent_before_or_after_a_leave_elsewhere: [] "
        @s; open s in=g; leave s g 1; ok s 1; got s g m1; quiesced
        @p; open p; pub p g m1 1; ok p 1; quiesced"
    order_needs_no_signal: [OutOfOrder] "
        @s; open s in=g; got s g m2; got s g m1; quiesced
        @p; open p; pub p g m1 1; pub p g m2 2; ok p 1; ok p 2; quiesced"
    copies_need_no_signal: [Duplicated] "
        @s; open s in=g; got s g m1; got s g m1; quiesced
        @p; open p; pub p g m1 1; ok p 1; quiesced"
    phantoms_need_no_signal: [Phantom] "
        @s; open s in=g; got s g m1; quiesced
        @p; open p; quiesced"
    delivered_and_published_in_unknown_order: [] "
        @s; open s in=g; got s g m1; quiesced
        @p; open p; pub p g m1 1; ok p 1; quiesced"
    published_after_the_delivery_elsewhere: [Phantom] "
        @s; open s in=g; got s g m1; signal seen; quiesced
        @p; open p; await seen; pub p g m1 1; ok p 1; quiesced"
    a_delivery_elsewhere_does_not_date_a_resend: [] "
        @p; open p; pub p g m1 1; pub p g m2 2; pub p g m1 1; ok p 2; dup p 1; quiesced
        @s; open s in=g; got s g m2; got s g m1; quiesced"
}

#[test]
fn lines_that_no_recorder_should_write() {
    for script in [
        "got s g m1",
        "open s; open s",
        "@a; open s; @b; got s g m1",
        "@a; open s; @b; open s",
        "open s plain; resume s",
        "open s; frame s g m1",
        "open s; close s; quiesced s",
        "quiesced s",
        "signal x; signal x",
        "await x",
        "@a; await x; signal y; @b; await y; signal x",
    ] {
        let verdict = check(&history(script));
        assert!(verdict.malformed_count > 0, "{script}: {verdict}");
        assert!(!verdict.is_ok());
    }
}

#[test]
fn checks_are_counted_when_they_apply_and_only_then() {
    let verdict = check(&history(
        "open p frames in=g; open s; open t; join s g 1; ok s 1; join t g 1; ok t 1; leave t g 2; ok t 2
         pub p g m1 1; got p g m1; ok p 1; got s g m1; pub p g m2 2 noecho; ok p 2; got s g m2 #9
         pub p g m3 3 ttl=1; got p g m3; ok p 3; pub p g m3 3 ttl=1; dup p 3; quiesced s p",
    ));
    let s = &verdict.statistics;
    assert!(verdict.is_ok(), "{verdict}");
    assert_eq!((s.opened, s.publish, s.requests, s.resends), (3, 4, 6, 1));
    assert_eq!((s.acked, s.acked_success, s.acked_duplicate), (7, 6, 1));
    assert_eq!((s.must_arrive, s.must_not_arrive, s.must_arrive_unless_expired), (3, 3, 2));
    assert_eq!((s.echoes_suppressed, s.own_before_ack_judged, s.answers_demanded), (1, 1, 4));
    assert_eq!((s.copies_judged, s.order_judged, s.ack_order_judged), (4, 2, 4));
    assert_eq!((s.sequence_ids_judged, s.sequence_id_jumps, s.sessions_live_at_quiesce), (4, 1, 2));
    assert_eq!((s.received, s.redelivered_frames_judged, s.mismatches_judged), (0, 0, 0));
}
