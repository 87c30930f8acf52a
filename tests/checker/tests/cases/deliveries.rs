//! Loss, copies, order, phantoms, echoes, hubs.

crate::cases! {
    everything_arrives: [] "
        open p; open s; join s g 1; ok s 1
        pub p g m1 1; ok p 1; got s g m1; quiesced"
    acked_and_never_arrived: [Lost] "
        open p; open s; join s g 1; ok s 1
        pub p g m1 1; ok p 1; quiesced"
    duplicate_after_an_own_resend_counts_as_executed: [Lost] "
        open p; open s; join s g 1; ok s 1
        pub p g m1 1; pub p g m1 1; dup p 1; quiesced"
    one_subscriber_got_it_so_the_other_must_too: [Lost] "
        open p; open s; open t; join s g 1; ok s 1; join t g 1; ok t 1
        pub p g m1; got s g m1; quiesced"
    lost_at_a_session_that_is_not_reliable: [Lost] "
        open p; open s plain; join s g 1; ok s 1
        pub p g m1 1; ok p 1; quiesced"
    lost_although_it_arrived_late_elsewhere: [Lost] "
        open p; open s; join s g 1; ok s 1; join s h 2; ok s 2
        pub p g m1 1; ok p 1; pub p h m2 2; ok p 2; got s h m2; quiesced"
    lost_before_a_later_one_of_the_same_publisher: [Lost] "
        open p; open s; join s g 1; ok s 1
        pub p g m1 1; ok p 1; pub p g m2 2; ok p 2; got s g m2; close s"
    lost_in_the_middle_of_a_resume: [Lost] "
        open p; open s; join s g 1; ok s 1; drop s
        pub p g m1 1; ok p 1; resume s; quiesced"
    lost_by_a_member_from_the_token: [Lost] "
        open p; open s in=g; pub p g m1 1; ok p 1; quiesced"
    requested_twice_and_acked_twice_means_two_copies: [Lost] "
        open p; open s in=g; pub p g m1 1; ok p 1; pub p g m1 2; ok p 2; got s g m1; quiesced"
    executed_without_an_ack_because_somebody_got_it_but_the_time_is_over: [] "
        open p; open s in=g; open t in=g; pub p g m1 1 ttl=10; got s g m1; quiesced"
    not_acked_and_not_arrived: [] "
        open p; open s in=g; pub p g m1 1; err p 1 InternalServerError; quiesced"
    not_acked_yet_arrived: [] "
        open p; open s in=g; pub p g m1 1; err p 1 InternalServerError; got s g m1; quiesced"
    lost_at_one_session_says_nothing_of_the_next: [Lost] "
        open p; open s in=g; open t in=g; pub p g m1 1; ok p 1; got t g m1; quiesced"
    session_ended_before_the_message_came: [] "
        open p; open s in=g; pub p g m1 1; ok p 1; close s; quiesced"
    session_detached_when_quiesced: [] "
        open p; open s in=g; pub p g m1 1; ok p 1; drop s; quiesced"
    socket_of_a_plain_session_dropped: [] "
        open p; open s plain in=g; pub p g m1 1; ok p 1; drop s; quiesced"
    acked_only_after_quiesced: [] "
        open p; open s in=g; pub p g m1 1; quiesced; ok p 1"
    arrived_after_quiesced: [] "
        open p; open s in=g; pub p g m1 1; ok p 1; quiesced; got s g m1"
    not_listed_by_quiesced: [] "
        open p; open s in=g; pub p g m1 1; ok p 1; quiesced p"
    listed_by_quiesced: [Lost] "
        open p; open s in=g; pub p g m1 1; ok p 1; quiesced s"
    later_message_of_another_publisher_demands_nothing: [] "
        open p; open q; open s in=g
        pub p g m1 1; ok p 1; pub q g m2 1; ok q 1; got s g m2; close s"
    later_message_to_another_group_demands_nothing: [] "
        open p; open s in=g; join s h 1; ok s 1
        pub p g m1 1; ok p 1; pub p h m2 2; ok p 2; got s h m2; close s"
    client_acked_what_it_had_not_seen: [] "
        open p; open s in=g; sack s 5; pub p g m1 1; ok p 1; quiesced"
    may_have_expired: [] "
        open p; open s in=g; pub p g m1 1 ttl=10; ok p 1; quiesced"
    may_have_expired_by_the_clock: [] "
        open p; open s in=g; pub p g m1 1 ttl=10 at=1000; ok p 1; quiesced at=11000"
    can_not_have_expired_by_the_clock: [Lost] "
        open p; open s in=g; pub p g m1 1 ttl=10 at=1000; ok p 1; quiesced at=10999"
    a_time_to_live_of_zero_is_none: [Lost] "
        open p; open s in=g; pub p g m1 1 ttl=0; ok p 1; quiesced"

    delivered_twice: [Duplicated] "
        open p; open s in=g; pub p g m1 1; ok p 1; got s g m1; got s g m1; quiesced"
    delivered_twice_after_a_resend: [Duplicated] "
        open p; open s in=g; pub p g m1 1; pub p g m1 1; ok p 1; dup p 1; got s g m1; got s g m1; quiesced"
    delivered_twice_after_a_new_request: [] "
        open p; open s in=g; pub p g m1 1; pub p g m1 2; got s g m1; got s g m1; quiesced"
    delivered_once_to_each: [] "
        open p; open s in=g; open t in=g; pub p g m1 1; ok p 1; got s g m1; got t g m1; quiesced"
    resent_on_a_new_session_both_may_come: [] "
        open p; open s in=g; pub p g m1 1; close p; open q; pub q g m1 1; ok q 1; got s g m1; got s g m1; quiesced"
    resent_on_a_new_session_three_may_not: [Duplicated] "
        open p; open s in=g; pub p g m1 1; close p; open q; pub q g m1 1; ok q 1
        got s g m1; got s g m1; got s g m1; quiesced"

    two_swapped: [OutOfOrder] "
        open p; open s in=g; pub p g m1 1; pub p g m2 2; ok p 1; ok p 2; got s g m2; got s g m1; quiesced"
    two_swapped_without_ack_ids: [OutOfOrder] "
        open p; open s in=g; pub p g m1; pub p g m2; got s g m2; got s g m1; quiesced"
    two_groups_have_no_order: [] "
        open p; open s in=g; join s h 1; ok s 1
        pub p g m1 1; pub p h m2 2; ok p 1; ok p 2; got s h m2; got s g m1; quiesced"
    two_publishers_have_no_order: [] "
        open p; open q; open s in=g
        pub p g m1 1; ok p 1; pub q g m2 1; ok q 1; got s g m2; got s g m1; quiesced"
    two_lanes_have_no_order: [] "
        open p; open s in=g
        pub p g m1 1 lane=a; pub p g m2 2 lane=b; ok p 1; ok p 2; got s g m2; got s g m1; quiesced"
    one_lane_has: [OutOfOrder] "
        open p; open s in=g
        pub p g m1 1 lane=a; pub p g m2 2 lane=a; ok p 1; ok p 2; got s g m2; got s g m1; quiesced"
    failed_and_resent_after_a_later_one: [] "
        open p; open s in=g
        pub p g m1 1; err p 1 InternalServerError; pub p g m2 2; ok p 2; pub p g m1 1; ok p 1
        got s g m2; got s g m1; quiesced"
    unacked_and_resent_after_a_later_one: [] "
        open p; open s in=g
        pub p g m1 1; drop p; resume p; pub p g m2 2; pub p g m1 1; ok p 2; ok p 1; got s g m2; got s g m1; quiesced"
    unacked_and_resent_may_also_have_been_first: [] "
        open p; open s in=g
        pub p g m1 1; drop p; resume p; pub p g m2 2; pub p g m1 1; ok p 2; dup p 1; got s g m1; got s g m2; quiesced"
    resent_after_its_ack_can_not_be_later: [OutOfOrder] "
        open p; open s in=g
        pub p g m1 1; ok p 1; pub p g m2 2; pub p g m1 1; ok p 2; dup p 1; got s g m2; got s g m1; quiesced"
    resent_after_somebody_got_it_can_not_be_later: [OutOfOrder] "
        open p; open s in=g; open t in=g
        pub p g m1 1; got t g m1; pub p g m2 2; pub p g m1 1; ok p 2; got s g m2; got s g m1; got t g m2; quiesced"
    refused_first_so_the_resend_is_what_counts: [OutOfOrder] "
        open p; open s in=g
        pub p g m1 1; err p 1 Forbidden; pub p g m2 2; pub p g m1 1; ok p 2; ok p 1; got s g m1; got s g m2; quiesced"
    both_resent_in_the_other_order: [] "
        open p; open s in=g
        pub p g m1 1; pub p g m2 2; drop p; resume p; pub p g m2 2; pub p g m1 1; ok p 2; ok p 1
        got s g m2; got s g m1; quiesced"
    three_with_one_late: [OutOfOrder] "
        open p; open s in=g
        pub p g m1 1; pub p g m2 2; pub p g m3 3; ok p 1; ok p 2; ok p 3; got s g m1; got s g m3; got s g m2; quiesced"
    unordered_callbacks_are_ordered_by_their_ids: [] "
        open p; open s unordered in=g
        pub p g m1 1; pub p g m2 2; ok p 1; ok p 2; got s g m2 #2; got s g m1 #1; quiesced"
    unordered_callbacks_with_wrong_ids: [OutOfOrder] "
        open p; open s unordered in=g
        pub p g m1 1; pub p g m2 2; ok p 1; ok p 2; got s g m2 #1; got s g m1 #2; quiesced"
    unordered_callbacks_without_ids_are_not_ordered: [] "
        open p; open s plain unordered in=g
        pub p g m1 1; pub p g m2 2; ok p 1; ok p 2; got s g m2; got s g m1; quiesced"

    never_published: [Phantom] "
        open p; open s in=g; got s g m1; quiesced"
    published_to_another_group: [Phantom] "
        open p; open s in=g; join s h 1; ok s 1; pub p g m1; got s h m1; quiesced"
    published_only_afterwards: [Phantom] "
        open p; open s in=g; got s g m1; pub p g m1; quiesced"
    refused_for_good_yet_delivered: [RefusedDelivered] "
        open p; open s in=g; pub p g m1 1; err p 1 Forbidden; got s g m1; quiesced"
    refused_and_tried_again: [] "
        open p; open s in=g; pub p g m1 1; err p 1 Forbidden; pub p g m1 1; got s g m1; quiesced"
    failed_definitely_yet_delivered: [RefusedDelivered] "
        open p; open s in=g; pub p g m1 1; err p 1 InternalServerError definite; got s g m1; quiesced"
    failed_perhaps_and_delivered: [] "
        open p; open s in=g; pub p g m1 1; err p 1 InternalServerError; got s g m1; quiesced"
    forbidden_but_the_recorder_knows_better: [] "
        open p; open s in=g; pub p g m1 1; err p 1 Forbidden indefinite; got s g m1; quiesced"
    the_ack_id_belonged_to_another_message: [RefusedDelivered] "
        open p; open s in=g; pub p g m1 1; ok p 1; pub p g m2 1; err p 1 PayloadMismatch
        got s g m1; got s g m2; quiesced"
    two_messages_under_one_ack_id: [RefusedDelivered] "
        open p; open s in=g; pub p g m1 1; pub p g m2 1; got s g m1; got s g m2; quiesced"
    one_of_two_messages_under_one_ack_id: [] "
        open p; open s in=g; pub p g m1 1; pub p g m2 1; err p 1 PayloadMismatch; got s g m2; quiesced"
    from_another_hub: [HubCrossed] "
        open p hub=other; open s in=g; pub p g m1; got s g m1; quiesced"
    hubs_ignore_case: [] "
        open p hub=CHAT; open s in=g; pub p g m1 1; ok p 1; got s g m1; quiesced"
    another_hub_gets_nothing: [] "
        open p; open s hub=other in=g; pub p g m1 1; ok p 1; quiesced"

    own_message_in_spite_of_no_echo: [Echo] "
        open p in=g; pub p g m1 1 noecho; ok p 1; got p g m1; quiesced"
    no_echo_leaves_out_the_publisher_alone: [] "
        open p in=g; open s in=g; pub p g m1 1 noecho; ok p 1; got s g m1; quiesced"
    no_echo_does_not_leave_out_others: [Lost] "
        open p in=g; open s in=g; pub p g m1 1 noecho; ok p 1; quiesced"
    echo_is_due_without_it: [Lost] "
        open p in=g; pub p g m1 1; ok p 1; quiesced"
    no_echo_of_the_same_message_from_an_earlier_session: [] "
        open p; pub p g m1 1 noecho; close p; open q in=g; pub q g m1 1 noecho; got q g m1; quiesced"
}
