//! `beside`: what a delivery costs in a hub in memory while another hub of the gateway writes to the disk.

use std::fs;
use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use super::fanout::LoadArgs;
use crate::compare::{GatewayArgs, Head, TurnsArgs};
use crate::generator::steady::{SteadyLoad, SteadyPlan};
use crate::generator::{Measurement, Subject, Window, fanout};
use crate::process::{self, ScratchDirectory};
use crate::procfs::{CpuTime, Machine};
use crate::report;
use crate::stats::Summary;

/// The hub that writes to the disk. That of `fanout` is in memory.
const LOADED_HUB: &str = "loaded";
/// How long the load runs before its own cost is read, and how long it is read.
const LOAD_WARMUP: Duration = Duration::from_secs(1);
const LOAD_MEASURED: Duration = Duration::from_secs(3);

/// What a delivery costs in a hub in memory while another hub of the same gateway writes to the disk.
///
/// Each round measures the fan-out of `fanout` twice, alone and beside a publisher to a hub with durability `sync`, in
/// fresh processes. What the publisher itself costs is measured first, without the fan-out, and taken off. `ratio` is
/// deliveries per CPU-second beside the load divided by those without it.
#[derive(clap::Args)]
pub struct BesideArgs {
    /// Where the loaded hub's files are made, and removed again: on the disk that is to be measured.
    #[arg(long, default_value = ".", value_name = "DIRECTORY")]
    directory: PathBuf,
    #[command(flatten)]
    load: LoadArgs,
    /// Publishes that a publisher of the fan-out sends at once.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=1024))]
    burst: u32,
    /// Publishes to the loaded hub in a second.
    #[arg(long, default_value_t = 2_000, value_parser = clap::value_parser!(u32).range(100..=100_000))]
    rate: u32,
    #[command(flatten)]
    gateway: GatewayArgs,
    #[command(flatten)]
    turns: TurnsArgs,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    head: Head,
    /// Median and spread of the rounds' ratios: the result.
    ratio: Summary,
    alone_cpu_ns_per_delivery: Summary,
    beside_cpu_ns_per_delivery: Summary,
    rounds: Vec<Round>,
}

/// Both, one shortly after the other.
#[derive(Clone, Copy, Debug, Serialize)]
struct Round {
    alone: Measurement,
    beside: Measurement,
    load: Load,
}

/// What the loaded hub did meanwhile.
#[derive(Clone, Copy, Debug, Serialize)]
struct Load {
    /// CPU time of the server for each publish, without the fan-out.
    cpu_ns_per_publish: f64,
    /// Acknowledged publishes in a second, beside the fan-out.
    publishes_per_second: f64,
}

impl Round {
    fn alone_ns(&self) -> f64 {
        self.alone.cpu_ns_per_operation()
    }

    /// CPU time per delivery, without that of the loaded hub's publishes.
    fn beside_ns(&self) -> f64 {
        let Load { cpu_ns_per_publish, publishes_per_second } = self.load;
        let load_ns = cpu_ns_per_publish * publishes_per_second * self.beside.wall_ns as f64 / 1e9;
        (self.beside.cpu_ns as f64 - load_ns) / self.beside.operations as f64
    }

    fn ratio(&self) -> f64 {
        self.alone_ns() / self.beside_ns()
    }
}

/// Runs the command.
///
/// # Errors
/// The gateway cannot be started or pinned, or breaks its promises.
pub fn run(args: &BesideArgs) -> Result<()> {
    process::allow_descriptors(args.load.descriptors())?;
    let machine = Machine::describe()?;
    let window = args.turns.begin()?;
    let mut rounds = Vec::new();
    for index in 0..args.turns.rounds {
        // Whoever goes first alternates, so that a steady drift of the machine favours neither.
        let round = if index % 2 == 0 {
            let (alone, _) = measure(args, window, false)?;
            let (beside, load) = measure(args, window, true)?;
            Round { alone, beside, load: load.context("no load")? }
        } else {
            let (beside, load) = measure(args, window, true)?;
            Round { alone: measure(args, window, false)?.0, beside, load: load.context("no load")? }
        };
        writeln!(
            io::stderr(),
            "round {}/{}: {:.0} ns alone, {:.0} ns beside {:.0} publishes a second; ratio {:.3}",
            index + 1,
            args.turns.rounds,
            round.alone_ns(),
            round.beside_ns(),
            round.load.publishes_per_second,
            round.ratio()
        )?;
        rounds.push(round);
    }
    let report = Report {
        head: args.turns.head("beside", "delivery", machine),
        ratio: Summary::of(rounds.iter().map(Round::ratio))?,
        alone_cpu_ns_per_delivery: Summary::of(rounds.iter().map(Round::alone_ns))?,
        beside_cpu_ns_per_delivery: Summary::of(rounds.iter().map(Round::beside_ns))?,
        rounds,
    };
    let mut out = io::stderr();
    report::write_titles(
        &mut out,
        "beside: server CPU ns per delivery; ratio of rates",
        &report.head.machine,
    )?;
    report::write_row(&mut out, "delivery", "alone", &report.alone_cpu_ns_per_delivery, 0)?;
    report::write_row(&mut out, "", "beside", &report.beside_cpu_ns_per_delivery, 0)?;
    report::write_row(&mut out, "", "ratio", &report.ratio, 3)?;
    report::print_json(&report)
}

/// The fan-out in a fresh process, perhaps beside the load.
fn measure(args: &BesideArgs, window: Window, is_loaded: bool) -> Result<(Measurement, Option<Load>)> {
    let scratch = ScratchDirectory::of_run(&args.directory, "beside");
    fs::create_dir_all(scratch.path())?;
    let config = scratch.path().join("gateway.toml");
    let hubs = format!(
        "[hubs.\"{}\"]\ndurability = \"memory\"\n[hubs.\"{LOADED_HUB}\"]\ndurability = \"sync\"\n",
        crate::message::HUB
    );
    fs::write(&config, hubs)?;
    let text = |path: PathBuf| path.into_os_string().into_string().ok().context("a path that is no UTF-8");
    let arguments = [
        "--config".to_owned(),
        text(config)?,
        "--store".to_owned(),
        "disk".to_owned(),
        "--data-dir".to_owned(),
        text(scratch.path().join("data"))?,
    ];
    let running = args.gateway.server(&arguments).start(Some(args.turns.server_core))?;
    let subject = Subject { endpoint: running.endpoint.clone(), pid: running.pid() };
    let plan = args.load.plan(args.burst, window);
    if !is_loaded {
        return Ok((fanout::run(&subject, &plan)?, None));
    }
    let steady = SteadyPlan { hub: LOADED_HUB, rate: args.rate, payload_bytes: 200 };
    let load = SteadyLoad::begin(&subject.endpoint, steady)?;
    std::thread::sleep(LOAD_WARMUP);
    let (before, cpu) = (load.acknowledged(), CpuTime::of_process(subject.pid)?);
    std::thread::sleep(LOAD_MEASURED);
    let cpu_ns = CpuTime::of_process(subject.pid)?.since(&cpu).as_nanos() as f64;
    let published = load.acknowledged() - before;
    ensure!(published > 0, "no publish to the loaded hub was acknowledged");
    let (before, began) = (load.acknowledged(), Instant::now());
    let measurement = fanout::run(&subject, &plan)?;
    let publishes_per_second = (load.acknowledged() - before) as f64 / began.elapsed().as_secs_f64();
    load.stop()?;
    let load = Load { cpu_ns_per_publish: cpu_ns / published as f64, publishes_per_second };
    Ok((measurement, Some(load)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_load_itself_costs_is_taken_off() {
        let alone = Measurement { operations: 1_000, cpu_ns: 1_000_000, wall_ns: 1_000_000_000 };
        let beside = Measurement { cpu_ns: 1_250_000, ..alone };
        let load = Load { cpu_ns_per_publish: 50.0, publishes_per_second: 5_000.0 };
        assert_eq!(Round { alone, beside, load }.ratio(), 1.0);
    }
}
