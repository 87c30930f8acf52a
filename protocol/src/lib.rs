//! Everything of Oncewire that is true without I/O.
//!
//! The one idea: **each hub is one ordered log, and a session is a fold over that log.** Whatever changes shared
//! state is first appended to the hub's log as a record and takes effect only when the record comes back with its
//! offset. Live delivery, redelivery after a reconnect and recovery after a restart are the same function over the
//! same records.
//!
//! This crate knows no async runtime, sockets, files, clock or randomness: time and ids come in as arguments, and
//! iteration order is deterministic, so the whole of it can be simulated with plain calls.
//!
//! | module | knows | does not know |
//! |---|---|---|
//! | [`wire`] | bytes to typed messages and back, limits, error names, close codes | sessions, who is connected |
//! | [`filter`] | the filter language, over one connection | sessions, hubs, who asks |
//! | [`log`] | what a record is and its stable encoding | where it is stored |
//! | [`session`] | one session's state | other sessions, sockets' bytes, the wall clock |
//! | [`hub`] | a shard's sessions, the group and user index, timers | async, threads, stores, HTTP |
//! | [`driver`] | what happens around a shard and at its sockets, in which order | async, threads, stores, HTTP, the clock |
//! | [`client`] | the client's half: recovery, sequence acks, resend | sockets, hubs |
//!
//! Imports run one way: `driver -> hub -> session -> log -> {filter, wire}`, `client -> wire`.
//!
//! # Rules that never bend
//!
//! Code and tests name them by number.
//!
//! * **R1** *Ids stick.* Within a session a sequence id, once sent, names the same message for ever.
//! * **R2** *Ids are a pure function* of the records delivered to the session so far: strictly increasing, from 1,
//!   below 2^53. They jump by 301 after 128 deliveries or 4 MiB of payload, so that clients with a quick ack
//!   acknowledge there and then.
//! * **R3** *Log first.* Nothing is sent or acknowledged before its record is in the log, durable where the store is.
//! * **R4** *Refuse before, never inside.* Every refusal (format, permission, fencing, limits, duplicates) happens
//!   before the append, against applied state plus the session's own pending records. A record in the log always
//!   takes effect; applying passes over only a repeated key, an ended session, and in a log that several gateways share
//!   what a gateway wrote that is gone, and what says of itself when it does not count any more. Such a condition looks
//!   at the whole hub or at the record's own session only, so that all shards and gateways agree.
//! * **R5** *Apply is blind to time and bounds.* Applying reads no clock and enforces no limit: it uses the latest time
//!   that records so far were stamped with. Overflow, expiry and shedding are decided by whoever decides for the session
//!   alone, who appends `Ended`: its holder once it speaks, of a session that nobody holds the leader. Time-to-live is judged when transmitting.
//! * **R6** *One socket.* A session is attached to at most one socket; the newest valid attachment wins at once.
//!   What an older socket still says changes nothing; a record it had already appended counts, and its ack goes to
//!   the new socket. Between gateways the last `Attached` in the log is the newest.
//! * **R7** *One batch in flight per session.* Requests are appended in order; those that arrive meanwhile form the
//!   next batch. After a failure nothing later is appended before the failed batch is settled. A duplicate waits for
//!   its original's outcome; the pending set outlives the socket. At any offset one gateway speaks for a session: it
//!   releases the session only when its batch is settled, and the next speaks only after that, or when it is gone.
//! * **R8** *Every record has a key.* An append that may or may not have happened is retried under the same key, and
//!   the fold passes over the second copy.
//! * **R9** *Bounded.* An outbox that overflows ends its session (a record, close code 1008); it never drops one
//!   message. A process budget counts each shared body once. A session whose `Ended` cannot be appended is *doomed*:
//!   socket closed, outbox freed, resumes undecided, `Ended` retried. Pending requests and replies per socket are
//!   bounded; at the bound reading stops.
//! * **R10** *Certainty.* A recovery that is definitely refused gets 101 and then close 1008; one that cannot be
//!   decided now gets HTTP 503, so that the client keeps trying.
//! * **R11** *One fold.* Live, resume, restart and takeover use the same apply; the checker in the tests never does.
//! * **R12** *Epoch.* A log has an epoch and a reconnection token names it. When history may have been lost the epoch
//!   changes and old tokens are refused with 1008.
//! * **R13** *Trim answers for it.* The log is never trimmed past what a live session still needs; the few messages that an
//!   idle session still needs are copied into the checkpoint, so that it can't pin the log.
//! * **R14** *Positions move by records.* A stored position moves in the same record as its effect where the effect is in
//!   the hub, else behind it. So sequence acks go into the log as marks: at most a second later, at once when a session
//!   has acknowledged a quarter of its bound, all of them at a stop. A crash may bring back what was acknowledged since
//!   the last mark; so that it makes no session too large, twice its bounds hold until its client has acknowledged all
//!   that was brought back, and for one retention the process budget is larger by it, at most twice itself.
//! * **R15** *The cost of a request does not grow with what it does not touch*: not with the session's groups, the hub's
//!   sessions or hubs, or what is kept; where many must be looked at, in portions between which others are served.

pub mod client;
pub mod driver;
pub mod filter;
pub mod hub;
pub mod log;
pub mod session;
pub mod wire;
