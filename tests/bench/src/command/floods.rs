//! `floods`: what floods make of the server's memory, and of others' publishes.

use std::fs;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::ValueEnum as _;
use serde::Serialize;

use crate::compare::{GatewayArgs, parse_seconds};
use crate::endpoint::{Endpoint, Purpose};
use crate::generator::clients::Clients;
use crate::generator::flood::kind::{Bound, Kind};
use crate::generator::flood::{Flood, Load};
use crate::generator::steady::{SteadyLoad, SteadyPlan};
use crate::message::{HUB, RELIABLE_JSON};
use crate::process::{self, ScratchDirectory};
use crate::procfs::{Machine, resident_bytes, resident_bytes_max};
use crate::report;
use crate::stats::Latency;

/// Publishes of the bystander in a second.
const RATE: u32 = 200;
const MIB: f64 = 1024.0 * 1024.0;
/// Memory that no bound counts.
const BESIDE_BYTES: u64 = 100 * 1024 * 1024;

/// Resident memory under floods beside the bounds that are there for them, and what a bystander's publishes wait.
///
/// For each kind of flood a gateway is started with the memory store and small bounds. A bystander in the same hub
/// publishes 200 times a second; its time from publish to ack is taken before the flood and while it goes on. A publish
/// without an ack counts with the time that it has waited by then.
///
/// How to read the table: "idle" is the resident memory before the flood, "peak" the most there ever was (VmHWM), "bounds" the
/// sum of the configured bounds that this kind counts against, and "limit" twice that and 100 MiB, which the peak has to
/// stay below. Three lines follow on the bystander: before, during, and their ratio. Of the ratio the median says what
/// everybody pays, the maximum how long the gateway stood still; a ratio of medians is worth more than one of maxima. Server and
/// generator have a core each, so a flood that takes all of the server's core costs others their share of it: with fair
/// turns some milliseconds, without them as long as the flood has work waiting. "load" is what the kernel took from the
/// generator: read the answers too, a flood of errors is another flood. JSON on standard output has all of it.
#[derive(clap::Args)]
pub struct FloodsArgs {
    /// The kinds of floods; all, if none is named.
    #[arg(value_enum)]
    kinds: Vec<Kind>,
    #[command(flatten)]
    gateway: GatewayArgs,
    /// Seconds before the flood, with the bystander alone.
    #[arg(long, default_value = "3", value_parser = parse_seconds, value_name = "SECONDS")]
    before: Duration,
    /// Seconds of flood.
    #[arg(long, default_value = "5", value_parser = parse_seconds, value_name = "SECONDS")]
    during: Duration,
    /// The core that the server is pinned to.
    #[arg(long, default_value_t = 0)]
    server_core: usize,
    /// The core that flood and bystander are pinned to; the flood gives way.
    #[arg(long, default_value_t = 1)]
    generator_core: usize,
    /// Where the gateway's configuration is written.
    #[arg(long, default_value = "/tmp")]
    directory: PathBuf,
}

#[derive(Serialize)]
struct Report {
    benchmark: &'static str,
    command: String,
    machine: Machine,
    before_seconds: f64,
    during_seconds: f64,
    floods: Vec<Row>,
}

/// What came of one flood.
#[derive(Serialize)]
struct Row {
    kind: Kind,
    bounds: Vec<Bound>,
    bounds_bytes: u64,
    idle_bytes: u64,
    peak_bytes: u64,
    is_within_limit: bool,
    before: Latency,
    during: Latency,
    /// How long the flood went on, from its beginning.
    seconds: f64,
    load: Load,
    /// Why the bystander could not go on, if it could not.
    bystander_failure: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// A gateway cannot be started or pinned, or ends; a bystander fails.
pub fn run(args: &FloodsArgs) -> Result<()> {
    process::allow_descriptors(12_000)?;
    let machine = Machine::describe()?;
    process::pin(args.generator_core)?;
    let kinds = if args.kinds.is_empty() { Kind::value_variants() } else { &args.kinds[..] };
    let mut floods = Vec::new();
    for kind in kinds {
        floods.push(measure(args, *kind).with_context(|| format!("{kind:?}"))?);
    }
    // Not one by one: the gateways' logs would stand in between.
    let mut out = io::stderr();
    write_titles(&mut out, &machine)?;
    for row in &floods {
        row.write(&mut out)?;
    }
    let failed = floods.iter().filter(|row| row.bystander_failure.is_some()).count();
    report::print_json(&Report {
        benchmark: "floods",
        command: report::command_line(),
        machine,
        before_seconds: args.before.as_secs_f64(),
        during_seconds: args.during.as_secs_f64(),
        floods,
    })?;
    anyhow::ensure!(failed == 0, "the bystander failed in {failed} floods");
    Ok(())
}

fn measure(args: &FloodsArgs, kind: Kind) -> Result<Row> {
    let scratch = ScratchDirectory::of_run(&args.directory, "floods");
    fs::create_dir_all(scratch.path())?;
    let config = scratch.path().join("gateway.toml");
    fs::write(&config, kind.configuration())?;
    let config = config.into_os_string().into_string().ok().context("a path that is no UTF-8")?;
    let arguments = ["--config".to_owned(), config];
    let running = args.gateway.server(&arguments).start(Some(args.server_core))?;
    let mut idle = idle_sessions(&running.endpoint, kind.idle_sessions())?;

    let plan = SteadyPlan { hub: HUB, rate: RATE, payload_bytes: 128 };
    let bystander = SteadyLoad::begin(&running.endpoint, plan)?;
    // Its handshake, and the first publishes of a fresh process.
    pass(&mut idle, Duration::from_secs(1))?;
    bystander.take_waits();
    pass(&mut idle, args.before)?;
    let before = Latency::of(bystander.take_waits()).context("before the flood")?;
    let idle_bytes = resident_bytes(running.pid())?;

    let began = Instant::now();
    let flood = Flood::begin(&running.endpoint, kind);
    pass(&mut idle, args.during)?;
    let waits = bystander.take_waits();
    let load = flood.stop()?;
    let seconds = began.elapsed().as_secs_f64();
    let peak_bytes = resident_bytes_max(running.pid()).context("the gateway ended")?;
    let during = Latency::of(waits).context("no publish of the bystander was under way")?;
    let bounds = kind.bounds();
    let bounds_bytes = bounds.iter().map(|bound| bound.bytes).sum();
    Ok(Row {
        kind,
        bounds,
        bounds_bytes,
        idle_bytes,
        peak_bytes,
        is_within_limit: peak_bytes <= limit(bounds_bytes),
        before,
        during,
        seconds,
        load,
        bystander_failure: bystander.stop().err().map(|error| format!("{error:#}")),
    })
}

/// What the peak has to stay below.
fn limit(bounds_bytes: u64) -> u64 {
    2 * bounds_bytes + BESIDE_BYTES
}

fn idle_sessions(endpoint: &Endpoint, count: usize) -> Result<Clients> {
    let mut clients = Clients::new()?;
    if count > 0 {
        let target = endpoint.client_target_in(HUB, Purpose::Publish, Some("idle"))?;
        clients.open_all(count, endpoint, &target, RELIABLE_JSON)?;
    }
    Ok(clients)
}

/// Lets time pass; idle sessions answer pings meanwhile.
fn pass(idle: &mut Clients, duration: Duration) -> Result<()> {
    let until = Instant::now() + duration;
    while Instant::now() < until {
        let rest = until.saturating_duration_since(Instant::now());
        idle.turn(rest.min(Duration::from_millis(200)), |_, _| Ok(()))?;
    }
    Ok(())
}

fn write_titles(out: &mut impl Write, machine: &Machine) -> Result<()> {
    let Machine { cpu_model, cores, kernel, load_average } = machine;
    writeln!(out, "\nfloods: resident memory in MiB, a bystander's publish to ack in ms, and the load")?;
    writeln!(out, "{cpu_model}, {cores} cores, Linux {kernel}, load {load_average}")?;
    Ok(writeln!(
        out,
        "{:<15}{:>6}{:>7}{:>8}{:>7}{:>8} {:<7}{:>9}{:>9}{:>9}  load",
        "", "idle", "peak", "bounds", "limit", "within", "", "p50", "p99", "max"
    )?)
}

impl Row {
    fn write(&self, out: &mut impl Write) -> Result<()> {
        let Self { kind, idle_bytes, peak_bytes, bounds_bytes, before, during, load, seconds, .. } = self;
        let name = kind.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default();
        let [idle, peak, bounds, limit] = [*idle_bytes, *peak_bytes, *bounds_bytes, limit(*bounds_bytes)]
            .map(|bytes| (bytes as f64 / MIB).round());
        let within = if self.is_within_limit { "yes" } else { "NO" };
        write!(out, "{name:<15}{idle:>6}{peak:>7}{bounds:>8}{limit:>7}{within:>8} ")?;
        write_latency(out, "before", *before)?;
        writeln!(
            out,
            "  {:.0} {}/s, {:.1} MB/s",
            load.parts as f64 / seconds,
            kind.unit(),
            load.bytes as f64 / 1e6 / seconds
        )?;
        write!(out, "{:<52}", "")?;
        write_latency(out, "during", *during)?;
        let Load { opened, hung_up, unconnected, refusals, answers, .. } = load;
        writeln!(
            out,
            "  {opened} opened, {hung_up} hung up on, {unconnected} unconnected, {refusals} refusals"
        )?;
        let [p50, p99, max] = self.ratios();
        writeln!(out, "{:<52}{:<7}{p50:>9.1}{p99:>9.1}{max:>9.1}  answers {answers:?}", "", "ratio")?;
        match &self.bystander_failure {
            Some(failure) => Ok(writeln!(out, "{:<52}the bystander failed: {failure}", "")?),
            None => Ok(()),
        }
    }

    fn ratios(&self) -> [f64; 3] {
        let figures = |latency: &Latency| [latency.median_ms, latency.p99_ms, latency.maximum_ms];
        let (before, during) = (figures(&self.before), figures(&self.during));
        [0, 1, 2].map(|at| during[at] / before[at])
    }
}

fn write_latency(out: &mut impl Write, name: &str, latency: Latency) -> Result<()> {
    let Latency { median_ms, p99_ms, maximum_ms, .. } = latency;
    Ok(write!(out, "{name:<7}{median_ms:>9.3}{p99_ms:>9.3}{maximum_ms:>9.3}")?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_sets_during_against_before_and_the_peak_against_its_limit() {
        let latency = |median_ms| Latency { count: 1, median_ms, p99_ms: 4.0, maximum_ms: 10.0 };
        let row = Row {
            kind: Kind::SlowBodies,
            bounds: Kind::SlowBodies.bounds(),
            bounds_bytes: 50 << 20,
            idle_bytes: 10 << 20,
            peak_bytes: 201 << 20,
            is_within_limit: false,
            before: latency(0.5),
            during: latency(1.0),
            seconds: 2.0,
            load: Load { parts: 10, bytes: 4_000_000, ..Load::default() },
            bystander_failure: None,
        };
        assert_eq!(limit(row.bounds_bytes), 200 << 20);
        assert_eq!(row.ratios(), [2.0, 1.0, 1.0]);
        let mut out = Vec::new();
        row.write(&mut out).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.contains("5 pieces/s, 2.0 MB/s") && text.contains(" 201 ") && text.contains("NO"),
            "{text}"
        );
    }
}
