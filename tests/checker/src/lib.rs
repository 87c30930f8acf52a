//! Judges histories: what publishers and subscribers of a Web PubSub service asked for and what they saw.
//!
//! The checker knows the promises that the service makes to its clients, and nothing else: it imports neither the protocol
//! crate nor the gateway, so that a fault there can't hide here. The same [`check`] judges a simulation, which pushes
//! [`Event`]s into a [`History`], and real processes, which write them as JSON lines for the command `oncewire-check`.
//!
//! It is made to be *sound* before it is sharp: where a history leaves open whether the service did wrong, it stays silent.
//! What it did judge is counted in [`Statistics`]; a check that was never exercised proves nothing, so look at the counts.
//!
//! ```
//! use oncewire_checker::{Acked, Event, History, Membership, Message, Opened, Publish, Quiesced, check};
//!
//! let mut history = History::new();
//! let recorder = history.recorder("example");
//! let connection = || "c1".to_string();
//! let group = || "lobby".to_string();
//! let message = || "m1".to_string();
//! for event in [
//!     Event::Opened(Opened { connection: connection(), hub: "chat".into(), reliable: true, ..Default::default() }),
//!     Event::Join(Membership { connection: connection(), group: group(), ack_id: Some(1) }),
//!     Event::Acked(Acked { connection: connection(), ack_id: 1, success: true, ..Default::default() }),
//!     Event::Publish(Publish {
//!         connection: connection(), group: group(), message: message(), ack_id: Some(2), ..Default::default()
//!     }),
//!     Event::Delivered(Message { connection: connection(), group: group(), message: message(), sequence_id: Some(1) }),
//!     Event::Acked(Acked { connection: connection(), ack_id: 2, success: true, ..Default::default() }),
//!     Event::Quiesced(Quiesced::default()),
//! ] {
//!     history.push(recorder, event);
//! }
//! let verdict = check(&history);
//! assert!(verdict.is_ok(), "{verdict}");
//! assert_eq!(verdict.statistics.must_arrive, 1);
//! ```
//!
//! # The JSON-lines format
//!
//! One file is what one *recorder* (one process, or one thread that sees everything) observed: UTF-8, one JSON object
//! per line, blank lines ignored, at most [`LINE_BYTES_MAX`] bytes per line. The order of the lines is the order of
//! observation. Unknown fields are refused, so that a misspelt one can't weaken the judgement in silence.
//!
//! ```json
//! {"event":"opened","connection":"c1","hub":"chat","reliable":true}
//! {"event":"join","connection":"c1","group":"lobby","ack_id":1}
//! {"event":"acked","connection":"c1","ack_id":1,"success":true}
//! {"event":"publish","connection":"c1","group":"lobby","message":"m1","ack_id":2}
//! {"event":"delivered","connection":"c1","group":"lobby","message":"m1","sequence_id":1}
//! {"event":"acked","connection":"c1","ack_id":2,"success":false,"error":"Duplicate"}
//! {"event":"quiesced"}
//! ```
//!
//! | `event` | required | optional | when to write it |
//! |---|---|---|---|
//! | `opened` | `connection`, `hub`, `reliable` (bool) | `groups` (list), `observes_sockets` (bool), `unordered_callbacks` (bool) | a new session; before any other line that names this connection |
//! | `dropped` | `connection` | | the socket is gone, the session perhaps not (also server close 1001) |
//! | `resumed` | `connection` | | the same session goes on over another socket |
//! | `closed` | `connection` | `code` (int), `reason`, `by` (`"server"` or `"client"`) | the session is over for good: close 1000, 1003, 1007, 1008, 1009, a refused recovery, or the client gave up |
//! | `join`, `leave` | `connection`, `group` | `ack_id` | **before** the request is handed to the socket; again for each resend |
//! | `publish` | `connection`, `group`, `message` | `ack_id`, `no_echo` (bool), `ttl_seconds` (int), `lane`, `at_ms` (int) | **before** the request is handed to the socket; again for each resend |
//! | `user_event` | `connection`, `message` | `ack_id` | **before** the request is handed to the socket; again for each resend |
//! | `called` | `connection`, `message`, `id` | `state` | an event handler is called with a user event |
//! | `handled` | `connection`, `message`, `success` (bool) | `reply`, `state` | **before** the handler's answer is handed to the service |
//! | `notified` | `connection`, `name`, `id` | `state` | an event handler is told of `connected` or `disconnected` |
//! | `acked` | `connection`, `ack_id`, `success` (bool) | `error` (its name), `definite` (bool) | **after** an ack frame was read, for a join, leave, publish or user event; once per frame |
//! | `received` | `connection`, `group`, `message` | `sequence_id` | a message frame was read, before the client drops repeated ids (only with `observes_sockets`) |
//! | `delivered` | `connection`, `group`, `message` | `sequence_id` | the application got the message, after the client dropped repeated ids |
//! | `sequence_ack` | `connection`, `sequence_id` | | **before** a sequence ack is handed to the socket |
//! | `quiesced` | | `connections` (list), `at_ms` (int) | the heal phase is over: see below |
//! | `signal`, `awaited` | `name` | | order between recorders: see below |
//! | `note` | `text` | | free text (a fault that was injected, say); ignored |
//!
//! Strings that stand for things:
//!
//! * `connection`: the connection id. It must be unique in the whole history, and one recorder writes all of its lines.
//! * `message`: a marker inside the payload by which the receiver knows the message again, unique in the whole history: `"p3-000017"`, say.
//! * `hub`: compared without regard to case, as in URLs. `group`: compared exactly.
//!
//! ## Fields in detail
//!
//! `opened`
//! * `groups`: groups of which the session certainly is a member when the line is written: from the token, or because the
//!   SDK joined them again before it reported `connected`. (Messages may reach such an SDK before it reports the connection
//!   id: hold back what you see until the id is known, then write `opened` first.)
//! * `observes_sockets` (default false): this recorder sees the socket itself. It writes `dropped` and `resumed` for every
//!   change of socket, and frames in the order in which they were read. It permits the judgements about one socket: every
//!   request is acked, in the order of requests; a publisher's own message comes before its ack; redelivery is complete.
//!   What an older socket still yields after `resumed` must not be written, and a request that was never handed to a socket
//!   must either not be written or be followed by `dropped`. Leave it false behind an SDK that recovers without telling.
//! * `unordered_callbacks` (default false): the SDK runs callbacks concurrently (the synchronous Python client does). The
//!   order of messages is then judged by their sequence ids, and nothing is concluded from the order of `delivered` lines.
//!
//! `join`, `leave`, `publish`
//! * A *request* is a pair (connection, ack id). The same pair again is a resend, and must have the same content (all of the
//!   frame, also what a history doesn't show); another content under the same ack id is a test of `PayloadMismatch`. Without
//!   `ack_id` each line is a request of its own, and only a delivery shows that it was executed.
//! * The same `message` in several requests (a new ack id, a new session) permits one delivered copy for each of them.
//!   When you can't tell whether a request went out on the old session or the new one, write it for both and leave out the
//!   `acked`. Retries that an SDK makes on its own with new ack ids: write as many `publish` lines without `ack_id` as it may
//!   make tries.
//! * A user event is a request like these. Its `message` is the marker in its payload.
//! * `lane`: publishes of one connection are ordered as long as one thread makes them. Concurrent threads on one connection
//!   name their lane each, and are then ordered only within it.
//! * `ttl_seconds` above 0: the message may expire, and is then missing rightly. It has to arrive only when `at_ms` on the
//!   `publish` and on the subscriber's `quiesced` show that its time was not over.
//! * `at_ms`: milliseconds since the Unix epoch by a clock that the gateway shares and that doesn't jump. Used for nothing
//!   but `ttl_seconds`.
//! * What others do to a session (a REST call that adds it to a group or takes it out) is written as `join` or `leave`
//!   without `ack_id`, by the recorder of the session. A REST caller that publishes is a connection of its own: `opened` with
//!   `reliable` false, then `publish` with an ack id of its counting, and `acked` for a 2xx.
//!
//! `called`, `handled`, `notified`
//! * Any recorder may write them, also for connections that nobody has opened (whose clients went away meanwhile, say); those
//!   are passed over. A history with a `user_event` has to hold all calls of handlers, or none.
//! * `reply` is the marker in the message that the handler gives back, unique in the history; a message with it comes to the
//!   session with any `group`. An answer that the service can't get any more may be left out.
//! * `id` is the event's id (`ce-id`). It is compared within one connection. `state` is opaque; absent and empty differ.
//!
//! `acked`
//! * Write what an ack frame said and nothing else: an SDK call that failed because the socket went away or time ran out has
//!   no `acked`. JavaScript: `isDuplicated` true is `"success":false,"error":"Duplicate"`; a `SendMessageError` with
//!   `errorDetail` is its `name`.
//! * `definite` says that an error means "certainly not executed". Default: true for `Forbidden`, false for other names
//!   (`Duplicate` and `PayloadMismatch` have a meaning of their own). With `"definite":true` on an `InternalServerError` a
//!   delivery without another try is a violation.
//!
//! `closed`
//! * It is about the session. A refused attempt of someone else to take it over is not a `closed`; neither is a socket error.
//!
//! `quiesced`
//! * Promise of its writer: all recorders have stopped publishing, and everything that has to arrive has had all the time it
//!   needs. It demands completeness of this recorder's sessions that are open and attached, or of those in `connections` when
//!   that is given. A socket can be dead without anyone's notice: behind an SDK that hides drops, list the connections that
//!   have just answered (an ack read after the last publish, say).
//! * Publishes that this recorder sees acked only afterwards are not demanded. What arrives after `quiesced` counts as
//!   arrived.
//!
//! ## Several recorders
//!
//! Lines of one file are ordered. Between files nothing is assumed except what `signal` and `awaited` say: everything before
//! `{"event":"signal","name":"subscribed"}` in one file happened before everything after
//! `{"event":"awaited","name":"subscribed"}` in another. A name is signalled once and may be awaited by many. Without it a
//! publish in one file can't be shown to follow a join in another, and so no message is ever missing between the two; order,
//! copies and phantoms are judged all the same. The typical test: each subscriber signals after its join acks, and the
//! publisher awaits them all.
//!
//! # What is judged
//!
//! Each [`ViolationKind`] says what it means and which evidence it needs. Assumed of clients: they write requests to a
//! socket in the order of the lines, resend within the service's ack window, and drop messages whose sequence id is not above
//! the largest seen. A session whose client acknowledges a sequence id that it has not seen yet may lose messages by its own
//! fault, and is not judged for loss.

mod acks;
mod causality;
mod deliveries;
mod event;
mod events;
mod findings;
mod history;
mod ledger;
mod membership;
mod sequence;
mod session;
mod statistics;
mod verdict;

pub use event::{
    Acked, Called, Closed, ClosedBy, Event, Handled, Membership, Message, Note, Notified, Opened, Publish,
    Quiesced, SequenceAck, Signal, Socket, UserEvent,
};
pub use history::{History, LINE_BYTES_MAX, ReadError, RecorderId};
pub use statistics::Statistics;
pub use verdict::{Evidence, KEPT_PER_KIND_MAX, Malformed, SHOWN_MAX, Verdict, Violation, ViolationKind};

/// Judges a history.
#[must_use]
pub fn check(history: &History) -> Verdict {
    let mut findings = findings::Findings::new(history);
    let causality = causality::Causality::new(&mut findings);
    let ledger = ledger::Ledger::new(&mut findings);
    sequence::judge(&mut findings, &ledger);
    deliveries::judge(&mut findings, &ledger, &causality);
    events::judge(&mut findings, &ledger, &causality);
    findings.into_verdict()
}
