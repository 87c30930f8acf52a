//! The simulation: a whole faulty world around the protocol crate, in plain calls.
//!
//! A world has a gateway (hub shards behind sockets and over a log with a durable prefix, driven by the same calls as in the
//! real one), a network that loses, stalls
//! and cuts, honest clients in the habits of the official ones and a malicious one. It knows no threads, no async and no
//! clock: one generator draws everything from a seed, so the same seed is the same world, and a failure is repeated by
//! one line.
//!
//! First everything goes wrong; then the world heals, and everything has to arrive and to settle. What clients asked for
//! and saw goes to `oncewire-checker`, which judges it and knows nothing of this crate. Beside that the simulation itself
//! judges only whether the healed world comes to rest, stays there, and leaves nothing behind, whether the application
//! hears of the end of each session, whether a restart brings back what was acknowledged long before, and whether nothing is
//! kept or sent longer than it may be.
//!
//! What all this is worth is seen with deliberate faults of the core and of the driver around it: the patches in
//! `mutations/`, which `tests/mutations.rs` applies to a copy of the sources. Each has to be caught.
//!
//! | file | holds |
//! |---|---|
//! | `world.rs` | what is in a world, its time and its loop |
//! | `weather.rs` | which faults a seed has, how often, and the gateway's bounds |
//! | `faults.rs` | faults strike |
//! | `heal.rs` | the second half: settling |
//! | `log.rs` | a log in a vector |
//! | `process.rs` | the gateway's process: shards, their inboxes and their turns |
//! | `appends.rs` | what becomes of appends, and the way back from the log |
//! | `clocks.rs` | the gateway's clocks, and what is promised in terms of time |
//! | `checkpoints.rs` | rounds of checkpoints, and going on from what is stored |
//! | `edge.rs`, `socket.rs` | the gateway's end of a socket: upgrade; when its reader and its writer run |
//! | `network.rs`, `pipe.rs` | sockets, and the client's end of them |
//! | `actor.rs`, `honest.rs`, `malicious.rs`, `raw.rs` | clients |
//! | `application.rs` | the application, which asks through the gateway's REST API |
//! | `handlers.rs` | the application's event handlers |
//! | `recorder.rs` | the history for the checker |
//! | `coverage.rs`, `counts.rs`, `trace.rs`, `random.rs` | counts, the trace and its hash, chance |

mod actor;
mod appends;
mod application;
mod checkpoints;
mod clocks;
mod counts;
mod coverage;
mod edge;
mod faults;
mod handlers;
mod heal;
mod honest;
mod log;
mod malicious;
mod network;
mod pipe;
mod process;
mod random;
mod raw;
mod recorder;
mod socket;
mod trace;
mod weather;
mod world;

pub use coverage::{Coverage, Path};
pub use trace::Trace;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use oncewire_checker::{Statistics, Verdict, check};

use world::World;

/// Why a world did not pass.
#[derive(Debug)]
pub enum Failure {
    /// The checker found broken promises.
    Verdict(Box<Verdict>),
    /// The healed world did not come to rest.
    Unsettled(String),
    /// A client lost its session in the healed world.
    SessionLostAtRest(String),
    /// A client was told that its session is over, and nothing can have ended it.
    SessionRefused(String),
    /// A client was sent again what it had acknowledged long before the process ended.
    AcknowledgedAgain(String),
    /// The gateway keeps what nobody needs any more.
    LeftOver(String),
    /// Something panicked.
    Panicked(String),
    /// A record could not be read back.
    Unreadable(String),
    /// A process could not go on from what is stored.
    Unrestorable(String),
    /// Event handlers were called or told what they should not be, or were never told what they should.
    Handlers(String),
    /// Something was done after its time.
    Clock(String),
    /// Driver and core disagree about their contract.
    Driver(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Verdict(verdict) => write!(f, "{verdict}"),
            Self::Unsettled(what) => write!(f, "the healed world does not settle: {what}"),
            Self::SessionRefused(session) => write!(f, "{session} was ended for no reason"),
            Self::SessionLostAtRest(who) => write!(f, "the healed world lost a session: {who}"),
            Self::AcknowledgedAgain(what) => write!(f, "sent again although acknowledged: {what}"),
            Self::LeftOver(what) => write!(f, "the gateway has something left over: {what}"),
            Self::Panicked(what) => write!(f, "panicked: {what}"),
            Self::Unreadable(what) => write!(f, "a record can't be read back: {what}"),
            Self::Unrestorable(what) => write!(f, "a hub can't be restored: {what}"),
            Self::Handlers(what) => write!(f, "event handlers: {what}"),
            Self::Clock(what) => write!(f, "out of time: {what}"),
            Self::Driver(what) => write!(f, "driver and core disagree: {what}"),
        }
    }
}

/// What became of a world.
#[derive(Debug)]
pub struct Outcome {
    /// Which world.
    pub seed: u64,
    /// The same for the same seed.
    pub trace_hash: u64,
    /// What happened how often.
    pub coverage: Coverage,
    /// What the checker saw.
    pub statistics: Statistics,
    /// Why it did not pass.
    pub failure: Option<Failure>,
}

/// Runs one world. A panic in it is a failure like others.
pub fn run(seed: u64, trace: Trace) -> Outcome {
    catch_unwind(AssertUnwindSafe(|| run_to_the_end(seed, trace))).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Outcome {
            seed,
            trace_hash: 0,
            coverage: Coverage::default(),
            statistics: Statistics::default(),
            failure: Some(Failure::Panicked(text.unwrap_or_default())),
        }
    })
}

fn run_to_the_end(seed: u64, trace: Trace) -> Outcome {
    let mut world = World::new(seed, trace);
    world.run();
    let verdict = check(world.recorder.history());
    let statistics = verdict.statistics.clone();
    let failure = world.failure.take();
    let failure = if verdict.is_ok() { failure } else { Some(Failure::Verdict(Box::new(verdict))) };
    Outcome { seed, trace_hash: world.trace.hash(), coverage: world.coverage, statistics, failure }
}

/// The command that repeats a world.
pub fn repeat_command(seed: u64) -> String {
    format!("cargo run --release -p oncewire-simulation -- --seed {seed}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_makes_the_same_world_twice() {
        for seed in 0..12 {
            let [first, second] = [(); 2].map(|()| run(seed, Trace::default()));
            assert_eq!(first.trace_hash, second.trace_hash, "{}", repeat_command(seed));
            assert_eq!(first.coverage, second.coverage);
        }
    }

    #[test]
    fn seeds_make_different_worlds() {
        assert_ne!(run(1, Trace::default()).trace_hash, run(2, Trace::default()).trace_hash);
    }
}
