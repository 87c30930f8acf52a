//! `idle-memory`: what a session costs that does nothing.

use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Serialize;

use crate::compare::{ServerArgs, parse_seconds};
use crate::endpoint::Purpose;
use crate::generator::clients::Clients;
use crate::message::{Downstream, RELIABLE_JSON};
use crate::procfs::{Machine, resident_bytes};
use crate::{process, report};

/// What an idle session costs: resident memory of the server per open reliable session.
///
/// Opens sessions that are in one group, answers the server's pings and sends nothing else. Memory is read before the
/// first session and again after holding all of them for a while, longer than two intervals of the gateway's pings, since
/// a session may take memory when it first sends. Kernel memory of the sockets is not in it.
#[derive(clap::Args)]
pub struct IdleMemoryArgs {
    #[command(flatten)]
    server: ServerArgs,
    /// How many sessions to open.
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=200_000))]
    sessions: u32,
    /// Seconds to hold all sessions before the memory is read.
    #[arg(long, default_value = "45", value_parser = parse_seconds, value_name = "SECONDS")]
    hold: Duration,
}

#[derive(Serialize)]
struct Report {
    benchmark: &'static str,
    command: String,
    machine: Machine,
    sessions: u32,
    hold_seconds: f64,
    /// Resident memory before the first session.
    before_bytes: u64,
    /// Resident memory when the last session was open.
    opened_bytes: u64,
    /// Resident memory at the end.
    held_bytes: u64,
    /// The result.
    bytes_per_session: f64,
}

/// Runs the command.
///
/// # Errors
/// The server cannot be started, a handshake fails, or the server closes a session.
pub fn run(args: &IdleMemoryArgs) -> Result<()> {
    process::allow_descriptors(u64::from(args.sessions) + 256)?;
    let machine = Machine::describe()?;
    let running = args.server.server().start(None)?;
    let target = running.endpoint.client_target(Purpose::Subscribe)?;
    let before_bytes = resident_bytes(running.pid())?;

    let mut clients = Clients::new()?;
    clients.open_all(args.sessions as usize, &running.endpoint, &target, RELIABLE_JSON)?;
    let opened_bytes = resident_bytes(running.pid())?;

    let opened_at = Instant::now();
    while opened_at.elapsed() < args.hold {
        clients.turn(Duration::from_millis(500), |key, message| {
            anyhow::ensure!(message == Downstream::Other, "client {key} got {message:?} while all are idle");
            Ok(())
        })?;
    }
    let held_bytes = resident_bytes(running.pid())?;
    let report = Report {
        benchmark: "idle-memory",
        command: report::command_line(),
        machine,
        sessions: args.sessions,
        hold_seconds: args.hold.as_secs_f64(),
        before_bytes,
        opened_bytes,
        held_bytes,
        bytes_per_session: bytes_per_session(before_bytes, held_bytes, args.sessions),
    };
    writeln!(
        io::stderr(),
        "{} idle sessions: {:.2} KB each ({:.1} MB before, {:.1} MB opened, {:.1} MB held)",
        args.sessions,
        report.bytes_per_session / 1e3,
        before_bytes as f64 / 1e6,
        opened_bytes as f64 / 1e6,
        held_bytes as f64 / 1e6
    )?;
    report::print_json(&report)
}

fn bytes_per_session(before_bytes: u64, after_bytes: u64, sessions: u32) -> f64 {
    (after_bytes as f64 - before_bytes as f64) / f64::from(sessions)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_may_also_shrink() {
        assert_eq!(bytes_per_session(1_000, 51_000, 10), 5_000.0);
        assert_eq!(bytes_per_session(2_000, 1_000, 10), -100.0);
    }
}
