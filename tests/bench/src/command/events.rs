//! `events`: what bringing user events to a handler costs.

use std::fs;
use std::io::{self, Write as _};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::compare::{GatewayArgs, Head, TurnsArgs};
use crate::generator::events::{self, EventPlan};
use crate::generator::{Measurement, Subject};
use crate::message::HUB;
use crate::process::ScratchDirectory;
use crate::procfs::Machine;
use crate::report;
use crate::stats::Summary;

/// What bringing user events to a handler costs: events per server CPU-second, and the time that the gateway adds.
///
/// The handler is in this program, on the generator's core, and gives back what it gets. Each session has one event under
/// way; an event counts when its session has what the handler gave back and then the ack. After that, in the same round and
/// with the same gateway, one session alone: how long an event takes, and by turns a bare HTTP call with the same body to
/// the same handler. `latency ratio` is the median of the one divided by the median of the other.
///
/// Azure's own table of throughput says that a unit brings 500 events a second to a handler, and 100 units 50,000.
#[derive(clap::Args)]
pub struct EventsArgs {
    /// Sessions, each with one event under way.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    sessions: u16,
    /// Bytes of text in each event.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(16..=65_536))]
    payload_bytes: u32,
    /// Events, and bare calls, whose time is taken in each round.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(1..))]
    latencies: u32,
    #[command(flatten)]
    gateway: GatewayArgs,
    #[command(flatten)]
    turns: TurnsArgs,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    head: Head,
    sessions: u16,
    payload_bytes: u32,
    events_per_cpu_second: Summary,
    event_microseconds: Summary,
    bare_call_microseconds: Summary,
    /// Per round, of the medians.
    latency_ratio: Summary,
    rounds: Vec<Round>,
}

#[derive(Serialize)]
struct Round {
    throughput: Measurement,
    /// Medians, in microseconds.
    event: f64,
    bare_call: f64,
}

/// Runs the command.
///
/// # Errors
/// The gateway cannot be started or pinned, or gives another answer than the handler did.
pub fn run(args: &EventsArgs) -> Result<()> {
    let machine = Machine::describe()?;
    let window = args.turns.begin()?;
    // After that, so that it is on the generator's core.
    let handler = events::start_handler()?;
    let scratch = ScratchDirectory::of_run(&std::env::temp_dir(), "events");
    fs::create_dir_all(scratch.path())?;
    let config = scratch.path().join("gateway.toml");
    fs::write(
        &config,
        format!(
            "[[hubs.\"{HUB}\".event_handlers]]\nurl_template = \"http://{handler}/{{event}}\"\nuser_event_pattern = \"*\"\n"
        ),
    )?;
    let arguments = ["--config".to_owned(), config.to_str().context("a path in UTF-8")?.to_owned()];
    let payload_bytes = args.payload_bytes as usize;
    let mut rounds = Vec::new();
    for index in 0..args.turns.rounds {
        let running = args.gateway.server(&arguments).start(Some(args.turns.server_core))?;
        let subject = Subject { endpoint: running.endpoint.clone(), pid: running.pid() };
        let plan = EventPlan { sessions: args.sessions, payload_bytes, window };
        let throughput = events::run(&subject, &plan)?;
        let (of_events, of_calls) = events::latencies(&subject, handler, payload_bytes, args.latencies)?;
        rounds.push(Round { throughput, event: median(of_events)?, bare_call: median(of_calls)? });
        writeln!(io::stderr(), "round {}/{}", index + 1, args.turns.rounds)?;
    }
    report(args, machine, rounds)
}

fn median(times: Vec<Duration>) -> Result<f64> {
    Ok(Summary::of(times.into_iter().map(|time| time.as_secs_f64() * 1e6))?.median)
}

fn report(args: &EventsArgs, machine: Machine, rounds: Vec<Round>) -> Result<()> {
    let report = Report {
        head: args.turns.head("events", "event", machine),
        sessions: args.sessions,
        payload_bytes: args.payload_bytes,
        events_per_cpu_second: Summary::of(
            rounds.iter().map(|round| round.throughput.operations_per_cpu_second()),
        )?,
        event_microseconds: Summary::of(rounds.iter().map(|round| round.event))?,
        bare_call_microseconds: Summary::of(rounds.iter().map(|round| round.bare_call))?,
        latency_ratio: Summary::of(rounds.iter().map(|round| round.event / round.bare_call))?,
        rounds,
    };
    let mut out = io::stderr();
    report::write_titles(
        &mut out,
        "events: user events to a handler that gives them back",
        &report.head.machine,
    )?;
    report::write_row(&mut out, "events", "CPU-s", &report.events_per_cpu_second, 0)?;
    report::write_row(&mut out, "event", "us", &report.event_microseconds, 1)?;
    report::write_row(&mut out, "bare call", "us", &report.bare_call_microseconds, 1)?;
    report::write_row(&mut out, "latency", "ratio", &report.latency_ratio, 2)?;
    report::print_json(&report)
}
