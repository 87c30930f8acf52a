//! Counts: what a history holds, and how often each check really applied to it.

use std::fmt;

use serde::Serialize;

macro_rules! statistics {
    ($($(#[doc = $doc:literal])+ $field:ident,)+) => {
        /// Counts over one history. Behind each check stands how often it really applied: zero means that it proved
        /// nothing.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
        pub struct Statistics { $($(#[doc = $doc])+ pub $field: u64,)+ }

        impl Statistics {
            /// All counts with their names.
            pub fn rows(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [$((stringify!($field), self.$field),)+].into_iter()
            }
        }
    };
}

statistics! {
    /// Events of all kinds.
    events,
    /// Sessions opened.
    opened,
    /// Sockets dropped.
    dropped,
    /// Sessions resumed.
    resumed,
    /// Sessions ended.
    closed,
    /// Tries to join.
    join,
    /// Tries to leave.
    leave,
    /// Tries to publish.
    publish,
    /// Tries to send a user event.
    user_events,
    /// Calls of event handlers.
    called,
    /// Their answers.
    handled,
    /// System events of which event handlers were told.
    notified,
    /// Acks.
    acked,
    /// Acks that said success.
    acked_success,
    /// Acks that said `Duplicate`.
    acked_duplicate,
    /// Acks that said `PayloadMismatch`.
    acked_mismatch,
    /// Acks with any other error.
    acked_error,
    /// Frames received.
    received,
    /// Messages delivered.
    delivered,
    /// Sequence acks sent.
    sequence_acks,
    /// Lines that say `quiesced`.
    quiesced,
    /// Signals between recorders.
    signals,
    /// Requests: different pairs of connection and ack id, and requests without one.
    requests,
    /// Tries of a request after its first.
    resends,
    /// Sessions that were attached at a `quiesced`, so that completeness was demanded of them.
    sessions_live_at_quiesce,
    /// Sessions not judged for loss because their client acknowledged ids that it had not seen.
    sessions_acking_ahead,
    /// Pairs of message and session where the message had to arrive.
    must_arrive,
    /// Of these, pairs where it had to arrive only because a later message of the same publisher did.
    must_arrive_by_precedence,
    /// Pairs that were let off because the message's time may have been over.
    must_arrive_unless_expired,
    /// Pairs of message and session of that group at another time where the message must not arrive.
    must_not_arrive,
    /// Messages with `no_echo` whose publisher certainly was a member.
    echoes_suppressed,
    /// Deliveries judged against an earlier message of the same publisher to the same group.
    order_judged,
    /// Deliveries counted against the requests that could explain them.
    copies_judged,
    /// Tries that had to be acked by `quiesced`.
    answers_demanded,
    /// Acks compared with the order of requests on their socket.
    ack_order_judged,
    /// Own messages compared with the place of their ack.
    own_before_ack_judged,
    /// Sequence ids looked at.
    sequence_ids_judged,
    /// Sequence ids more than one above the one before.
    sequence_id_jumps,
    /// Frames whose sequence id had been received before, compared with the earlier frame.
    redelivered_frames_judged,
    /// Events that were executed, compared with the calls of their handler.
    handlings_judged,
    /// Replies of event handlers that had to arrive.
    replies_demanded,
    /// Replies compared with the place of their event's ack.
    reply_before_ack_judged,
    /// Requests behind an event on one socket, compared with the answer of its handler.
    overtakings_judged,
    /// Events of which the state that handlers were told was judged.
    states_judged,
    /// Ids of events looked at.
    event_ids_judged,
    /// Acks for an ack id that had been used for different requests.
    mismatches_judged,
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rows().try_for_each(|(name, count)| writeln!(f, "{name:32} {count:>12}"))
    }
}
