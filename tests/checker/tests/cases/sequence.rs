//! Sequence ids, at the application and on each socket.

crate::cases! {
    reliable_without_an_id: [SequenceIdMissing] "
        open p; open s in=g; pub p g m1; got s g m1 #none"
    plain_with_an_id: [SequenceIdUnexpected] "
        open p; open s plain in=g; pub p g m1; got s g m1 #1"
    plain_without_an_id: [] "
        open p; open s plain in=g; pub p g m1; got s g m1"
    id_zero: [SequenceIdZero] "
        open p; open s in=g; pub p g m1; got s g m1 #0"
    id_too_large_for_javascript: [SequenceIdTooLarge] "
        open p; open s in=g; pub p g m1; got s g m1 #9007199254740992"
    largest_id_for_javascript: [] "
        open p; open s in=g; pub p g m1; got s g m1 #9007199254740991"
    id_repeated_at_the_application: [SequenceIdNotIncreasing] "
        open p; open s in=g; pub p g m1; pub p g m2; got s g m1 #1; got s g m2 #1"
    id_shrinks_at_the_application: [SequenceIdNotIncreasing] "
        open p; open s in=g; pub p g m1; pub p g m2; got s g m1 #5; got s g m2 #4"
    ids_jump: [] "
        open p; open s in=g; pub p g m1; pub p g m2; got s g m1 #1; got s g m2 #302"
    ids_start_anywhere: [] "
        open p; open s in=g; pub p g m1; got s g m1 #77"
    id_repeated_on_one_socket: [SequenceIdNotIncreasing] "
        open p; open s frames in=g; pub p g m1; frame s g m1 #1; got s g m1 #1; frame s g m1 #1"
    id_repeated_on_the_next_socket: [] "
        open p; open s frames in=g; pub p g m1; frame s g m1 #1; got s g m1 #1; drop s; resume s; frame s g m1 #1"
    id_shrinks_on_one_socket: [SequenceIdNotIncreasing] "
        open p; open s frames in=g; pub p g m1; pub p g m2; frame s g m1 #2; got s g m1 #2; frame s g m2 #1"

    other_message_under_an_id: [SequenceIdRenamed] "
        open p; open s frames in=g; pub p g m1; pub p g m2
        frame s g m1 #1; got s g m1 #1; drop s; resume s; frame s g m2 #1"
    other_group_under_an_id: [SequenceIdRenamed] "
        open p; open s frames in=g; pub p g m1
        frame s g m1 #1; got s g m1 #1; drop s; resume s; frame s h m1 #1"
    other_message_at_the_application: [SequenceIdRenamed] "
        open p; open s frames in=g; pub p g m1; pub p g m2; frame s g m1 #1; got s g m2 #1"
    id_for_the_first_time_below_a_larger_one: [SequenceIdInGap] "
        open p; open s frames in=g; pub p g m1; pub p g m2; pub p g m3
        frame s g m1 #1; got s g m1 #1; frame s g m3 #5; got s g m3 #5; sack s 5; drop s; resume s; frame s g m2 #3"
    what_seemed_expired_may_come_below_a_larger_id: [] "
        open p; open s frames in=g; pub p g m1; pub p g m2 ttl=5; pub p g m3
        frame s g m1 #1; got s g m1 #1; frame s g m3 #3; got s g m3 #3
        drop s; resume s; frame s g m1 #1; frame s g m2 #2; frame s g m3 #3"

    redelivery_from_the_first_that_was_not_acked: [] "
        open p; open s frames in=g; pub p g m1; pub p g m2; pub p g m3; pub p g m4
        frame s g m1 #1; got s g m1 #1; frame s g m2 #2; got s g m2 #2; frame s g m3 #3; got s g m3 #3; sack s 1
        drop s; resume s; frame s g m2 #2; frame s g m3 #3; frame s g m4 #4; got s g m4 #4"
    redelivery_from_further_back_when_the_ack_was_lost: [] "
        open p; open s frames in=g; pub p g m1; pub p g m2; pub p g m3
        frame s g m1 #1; got s g m1 #1; frame s g m2 #2; got s g m2 #2; sack s 2
        drop s; resume s; frame s g m1 #1; frame s g m2 #2; frame s g m3 #3; got s g m3 #3"
    redelivery_passes_one_over: [RedeliverySkipped] "
        open p; open s frames in=g; pub p g m1; pub p g m2; pub p g m3
        frame s g m1 #1; got s g m1 #1; frame s g m2 #2; got s g m2 #2; frame s g m3 #3; got s g m3 #3
        drop s; resume s; frame s g m1 #1; frame s g m3 #3"
    redelivery_left_out: [RedeliverySkipped] "
        open p; open s frames in=g; pub p g m1; pub p g m2
        frame s g m1 #1; got s g m1 #1; drop s; resume s; frame s g m2 #2; got s g m2 #2"
    redelivery_may_leave_out_what_expired: [] "
        open p; open s frames in=g; pub p g m1 ttl=5; pub p g m2
        frame s g m1 #1; got s g m1 #1; drop s; resume s; frame s g m2 #2; got s g m2 #2"
    redelivery_may_stop_at_the_next_drop: [] "
        open p; open s frames in=g; pub p g m1; pub p g m2
        frame s g m1 #1; got s g m1 #1; frame s g m2 #2; got s g m2 #2
        drop s; resume s; frame s g m1 #1; drop s; resume s; frame s g m1 #1; frame s g m2 #2"
    an_ack_during_redelivery_cuts_it_short: [] "
        open p; open s frames in=g; pub p g m1; pub p g m2; pub p g m3
        frame s g m1 #1; got s g m1 #1; frame s g m2 #2; got s g m2 #2
        drop s; resume s; frame s g m1 #1; sack s 2; frame s g m3 #3; got s g m3 #3"
    acks_lift_the_duty_to_redeliver: [] "
        open p; open s frames in=g; pub p g m1; pub p g m2
        frame s g m1 #1; got s g m1 #1; sack s 1; drop s; resume s; frame s g m2 #2; got s g m2 #2"
    plain_frames_have_no_ids: [] "
        open p; open s plain frames in=g; pub p g m1; frame s g m1; got s g m1"
}
