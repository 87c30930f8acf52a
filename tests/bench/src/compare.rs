//! Measures the gateway and the floor in turns and relates them.
//!
//! A shared machine changes its speed by the minute, so a single figure is worth little. Within one round both servers
//! run the same load shortly after one another, and what counts is the ratio within the round.

use std::io::{self, Write as _};
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::generator::{Measurement, Subject, Window};
use crate::process::{self, Server};
use crate::procfs::Machine;
use crate::report;
use crate::stats::Summary;

/// How the gateway is run.
#[derive(clap::Args, Clone, Debug)]
pub struct GatewayArgs {
    /// The gateway's binary; it is run as `BINARY serve --listen 127.0.0.1:0 --access-key KEY`.
    #[arg(long, default_value = "target/release/oncewire", value_name = "BINARY")]
    gateway: PathBuf,
    /// One more argument for the gateway's `serve`; may be given several times.
    #[arg(long = "gateway-arg", value_name = "ARGUMENT", allow_hyphen_values = true)]
    gateway_arguments: Vec<String>,
}

/// Which server is compared with the floor.
#[derive(clap::Args, Clone, Debug)]
pub struct ServerArgs {
    #[command(flatten)]
    gateway: GatewayArgs,
    /// Measures the floor in the gateway's place: how far the ratio is from 1 is the noise of this machine.
    #[arg(long)]
    floor_against_itself: bool,
}

/// How the two servers are measured in turns.
#[derive(clap::Args, Clone, Debug)]
pub struct CompareArgs {
    #[command(flatten)]
    server: ServerArgs,
    #[command(flatten)]
    turns: TurnsArgs,
}

/// How often, how long and on which cores is measured.
#[derive(clap::Args, Clone, Debug)]
pub struct TurnsArgs {
    /// How many times each side is measured, with a fresh process each time.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..))]
    pub rounds: u32,
    /// Seconds of load before counting begins.
    #[arg(long, default_value = "1", value_parser = parse_seconds, value_name = "SECONDS")]
    pub warmup: Duration,
    /// Seconds of load that are counted.
    #[arg(long, default_value = "3", value_parser = parse_seconds, value_name = "SECONDS")]
    pub measured: Duration,
    /// The core that the servers are pinned to.
    #[arg(long, default_value_t = 0)]
    pub server_core: usize,
    /// The core that the load generator is pinned to.
    #[arg(long, default_value_t = 1)]
    generator_core: usize,
    /// Niceness of generator and servers; below 0 takes privileges, and helps where others use the machine too.
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    nice: i32,
}

impl GatewayArgs {
    /// The gateway, with these arguments before the given ones.
    pub fn server(&self, arguments: &[String]) -> Server {
        let arguments = [arguments, &self.gateway_arguments].concat();
        Server::Gateway { binary: self.gateway.clone(), arguments }
    }
}

impl TurnsArgs {
    /// Makes this process the generator, on its core and with its niceness.
    ///
    /// # Errors
    /// It may not have that core or niceness.
    pub fn begin(&self) -> Result<Window> {
        rustix::process::setpriority_process(None, self.nice)
            .with_context(|| format!("cannot set niceness {}", self.nice))?;
        process::pin(self.generator_core)?;
        Ok(Window { warmup: self.warmup, measured: self.measured })
    }

    /// What stands at the head of a report on these turns.
    pub fn head(&self, benchmark: &'static str, operation: &'static str, machine: Machine) -> Head {
        Head {
            benchmark,
            operation,
            command: report::command_line(),
            machine,
            warmup_seconds: self.warmup.as_secs_f64(),
            measured_seconds: self.measured.as_secs_f64(),
        }
    }
}

/// What every report on measured turns says first.
#[derive(Serialize)]
pub struct Head {
    benchmark: &'static str,
    operation: &'static str,
    command: String,
    /// As it was before the first turn.
    pub machine: Machine,
    warmup_seconds: f64,
    measured_seconds: f64,
}

/// A comparison: one kind of operation, and the values of the one setting that is varied.
pub struct Comparison<'a> {
    /// The command's name.
    pub benchmark: &'static str,
    /// What is counted.
    pub operation: &'static str,
    /// The setting that is varied, and its values.
    pub setting: (&'static str, &'a [u32]),
    /// All other settings.
    pub load: serde_json::Value,
}

impl ServerArgs {
    /// The program to compare with the floor.
    pub fn server(&self) -> Server {
        if self.floor_against_itself {
            return Server::Floor;
        }
        self.gateway.server(&[])
    }
}

impl Comparison<'_> {
    /// Runs all rounds and reports: JSON on standard output, progress and a table on standard error.
    ///
    /// # Errors
    /// A server cannot be started or pinned, or `measure` fails.
    pub fn run(
        &self,
        args: &CompareArgs,
        mut measure: impl FnMut(&Subject, Window, u32) -> Result<Measurement>,
    ) -> Result<()> {
        let machine = Machine::describe()?;
        let CompareArgs { server: compared, turns } = args;
        let window = turns.begin()?;
        let (name, values) = self.setting;
        let mut cells: Vec<(u32, Vec<Round>)> = values.iter().map(|value| (*value, Vec::new())).collect();
        for index in 0..turns.rounds {
            for (value, rounds) in &mut cells {
                let mut one = |server: Server| -> Result<Measurement> {
                    let running = server.start(Some(turns.server_core))?;
                    let subject = Subject { endpoint: running.endpoint.clone(), pid: running.pid() };
                    measure(&subject, window, *value).with_context(|| format!("{server:?}, {name} {value}"))
                };
                // Whoever goes first alternates, so that a steady drift of the machine favours neither.
                let round = if index % 2 == 0 {
                    let floor = one(Server::Floor)?;
                    Round { floor, subject: one(compared.server())? }
                } else {
                    let subject = one(compared.server())?;
                    Round { subject, floor: one(Server::Floor)? }
                };
                writeln!(
                    io::stderr(),
                    "round {}/{}, {name} {value}: ratio {:.3}",
                    index + 1,
                    turns.rounds,
                    round.ratio()
                )?;
                rounds.push(round);
            }
        }
        let cells = cells.into_iter().map(|(value, rounds)| Cell::of(name, value, rounds));
        let report = Report {
            head: turns.head(self.benchmark, self.operation, machine),
            subject: if compared.floor_against_itself { "floor" } else { "gateway" },
            load: &self.load,
            cells: cells.collect::<Result<_>>()?,
        };
        report.write_table(&mut io::stderr())?;
        report::print_json(&report)
    }
}

/// Both servers under the same load, one shortly after the other.
#[derive(Clone, Copy, Debug, Serialize)]
struct Round {
    floor: Measurement,
    subject: Measurement,
}

impl Round {
    /// The subject's operations per CPU-second relative to the floor's.
    fn ratio(&self) -> f64 {
        self.subject.operations_per_cpu_second() / self.floor.operations_per_cpu_second()
    }

    /// The same by the clock on the wall.
    fn ratio_per_second(&self) -> f64 {
        self.subject.operations_per_second() / self.floor.operations_per_second()
    }
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    head: Head,
    subject: &'static str,
    load: &'a serde_json::Value,
    cells: Vec<Cell>,
}

/// All rounds of one value of the setting that is varied.
#[derive(Serialize)]
struct Cell {
    setting: &'static str,
    value: u32,
    /// Median and spread of the rounds' ratios, not the ratio of the medians.
    ratio: Summary,
    /// The same of rates by the clock on the wall.
    ratio_per_second: Summary,
    floor: Side,
    subject: Side,
    rounds: Vec<Round>,
}

#[derive(Serialize)]
struct Side {
    cpu_ns_per_operation: Summary,
    operations_per_cpu_second: Summary,
    /// By the clock on the wall: of a server that its core keeps from more, what one core does.
    operations_per_second: Summary,
    /// Share of its core that the server used. Below 1 it waited, for the generator or for others on its core.
    core_share: Summary,
}

impl Cell {
    fn of(setting: &'static str, value: u32, rounds: Vec<Round>) -> Result<Self> {
        Ok(Self {
            setting,
            value,
            ratio: Summary::of(rounds.iter().map(Round::ratio))?,
            ratio_per_second: Summary::of(rounds.iter().map(Round::ratio_per_second))?,
            floor: Side::of(|| rounds.iter().map(|round| round.floor))?,
            subject: Side::of(|| rounds.iter().map(|round| round.subject))?,
            rounds,
        })
    }
}

impl Side {
    fn of<I: Iterator<Item = Measurement>>(measurements: impl Fn() -> I) -> Result<Self> {
        Ok(Self {
            cpu_ns_per_operation: Summary::of(measurements().map(|one| one.cpu_ns_per_operation()))?,
            operations_per_cpu_second: Summary::of(
                measurements().map(|one| one.operations_per_cpu_second()),
            )?,
            operations_per_second: Summary::of(measurements().map(|one| one.operations_per_second()))?,
            core_share: Summary::of(measurements().map(|one| one.cpu_ns as f64 / one.wall_ns as f64))?,
        })
    }
}

impl Report<'_> {
    fn write_table(&self, out: &mut impl io::Write) -> Result<()> {
        let Self { head: Head { benchmark, operation, machine, .. }, subject, .. } = self;
        let about = format!(
            "{benchmark}: {subject} against floor, server CPU ns per {operation}; ratio of rates; {}",
            self.load
        );
        report::write_titles(out, &about, machine)?;
        for cell in &self.cells {
            let name = format!("{} {}", cell.setting, cell.value);
            report::write_row(out, &name, "floor", &cell.floor.cpu_ns_per_operation, 0)?;
            report::write_row(out, "", subject, &cell.subject.cpu_ns_per_operation, 0)?;
            report::write_row(out, "", "ratio", &cell.ratio, 3)?;
            report::write_row(out, "a second", "floor", &cell.floor.operations_per_second, 0)?;
            report::write_row(out, "", subject, &cell.subject.operations_per_second, 0)?;
            report::write_row(out, "", "ratio", &cell.ratio_per_second, 3)?;
        }
        Ok(())
    }
}

/// Reads a number of seconds, for flags.
///
/// # Errors
/// It is no number, negative, or far too large.
pub fn parse_seconds(text: &str) -> Result<Duration> {
    Ok(Duration::try_from_secs_f64(text.parse()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(floor_ns: u64, subject_ns: u64) -> Round {
        let one = |cpu_ns| Measurement { operations: 1_000, cpu_ns, wall_ns: 4_000_000 };
        Round { floor: one(floor_ns), subject: one(subject_ns) }
    }

    #[test]
    fn ratio_is_below_one_when_the_subject_needs_more_cpu() {
        assert_eq!(round(1_000_000, 1_250_000).ratio(), 0.8);
    }

    #[test]
    fn a_cell_takes_the_median_of_the_ratios() {
        // The second round was disturbed, for both alike: the ratio of the medians would be 1.
        let rounds = vec![round(100, 200), round(1_000, 2_000), round(300, 200)];
        let cell = Cell::of("burst", 1, rounds).unwrap();
        assert_eq!((cell.ratio.minimum, cell.ratio.median, cell.ratio.maximum), (0.5, 0.5, 1.5));
        assert_eq!(cell.floor.cpu_ns_per_operation.median, 0.3);
        assert_eq!(cell.floor.core_share.maximum, 0.000_25);
    }

    #[test]
    fn seconds_may_be_fractions() {
        assert_eq!(parse_seconds("0.5").unwrap(), Duration::from_millis(500));
        assert!(parse_seconds("-1").is_err());
    }
}
