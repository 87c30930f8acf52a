//! Kills a gateway as often as one likes, in rounds over the same data.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use oncewire_soak::{Counts, Fast, Gateway, GatewayCommand, Patient, Redelivered, Report, Round, judge, run};

/// How much longer than asked the publishes of `patient` may take, as a factor.
const PACE_MAX: f64 = 1.05;

/// Kills a gateway with SIGKILL at random moments under load, and has the checker judge what its clients saw.
#[derive(Parser)]
#[command(
    after_help = "Exit codes: 0 nothing was lost, repeated or reordered; 1 something was, or the run failed; \
                        2 wrong usage.",
    args_conflicts_with_subcommands = true
)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// How often to kill
    #[arg(long, default_value_t = 100)]
    kills: u32,
    /// How often to stop with SIGTERM instead, in a thousand; stops come in addition to the kills
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(..1000))]
    stops_permille: u32,
    /// Seconds between two kills at least
    #[arg(long, default_value = "0", value_parser = seconds)]
    min_seconds: Duration,
    /// Seconds between two kills at most
    #[arg(long, default_value = "0.3", value_parser = seconds)]
    max_seconds: Duration,
    /// Kills between two judgements; sessions last for one round, and all that is seen in it is kept in memory
    #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    kills_per_round: u32,
    /// How many clients there are that do things at random
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// How long such a client may rest between two requests, in milliseconds [default: 12 where kills are at most a
    /// second apart, else 100]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    rest_ms_max: Option<u64>,
    /// Outcomes of requests between two kills at least
    #[arg(long, default_value_t = 30)]
    outcomes_min: u64,
    /// How many fast subscribers there are, by turns with the habits of the JavaScript, Python and Java clients
    #[arg(long, default_value_t = 3)]
    fast_subscribers: usize,
    /// Publishes in a second to fast subscribers; to those with Java's habits a fifth of it
    #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(50..=100_000))]
    fast_rate: u32,
    #[command(flatten)]
    program: ProgramArguments,
    /// For faults, pauses and what clients do; by default from the clock
    #[arg(long)]
    seed: Option<u64>,
    /// Where to keep the history of a round that failed, for oncewire-check
    #[arg(long, default_value = "soak-history.jsonl")]
    history: PathBuf,
    /// The data directory; by default a new one that is removed at the end
    #[arg(long)]
    data_dir: Option<PathBuf>,
}

/// How the gateway is started.
#[derive(clap::Args)]
struct ProgramArguments {
    /// The gateway's program [default: oncewire beside this one]
    #[arg(long)]
    gateway: Option<PathBuf>,
    /// What an ack waits for: sync or os
    #[arg(long, default_value = "sync")]
    durability: String,
    /// One more argument of `serve`; may be given several times
    #[arg(long = "gateway-arg", allow_hyphen_values = true)]
    gateway_arguments: Vec<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Shows that the default bounds are enough for a client that acknowledges every 5 s
    ///
    /// Kills nothing. First 2,500 messages in a second for a minute over one socket, then 1,000 in a second for 20 s with
    /// the socket cut every 4 s, so that an ack never becomes due while it lasts. Anything lost, doubled, reordered or
    /// refused, a socket that the gateway closes, and a pace that this machine can't keep make it fail.
    Patient {
        #[command(flatten)]
        program: ProgramArguments,
    },
}

/// What `patient` runs.
const PATIENT: [(&str, Patient); 2] = [
    ("one socket", Patient { hub: "one_socket", publishes_per_second: 2_500, seconds: 60, cut_every: None }),
    (
        "cut every 4 s",
        Patient {
            hub: "cut",
            publishes_per_second: 1_000,
            seconds: 20,
            cut_every: Some(Duration::from_secs(4)),
        },
    ),
];

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match &arguments.command {
        Some(Command::Patient { program }) => patient(program).await,
        None => soak(&arguments).await,
    }
}

async fn patient(program: &ProgramArguments) -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let mut gateway = Gateway::start(program.command(&temporary.path().join("data"))?).await?;
    let mut failed = 0;
    for (name, patient) in PATIENT {
        let report = patient.run(&gateway).await?;
        let is_paced = report.took <= Duration::from_secs(patient.seconds.into()).mul_f64(PACE_MAX);
        let verdict = match (report.is_ok(), is_paced) {
            (true, true) => "ok",
            (true, false) => "too slow to show anything",
            (false, _) => "FAILED",
        };
        failed += usize::from(verdict != "ok");
        writeln!(
            std::io::stdout(),
            "{name}, {} in a second for {} s: {verdict}: {report}",
            patient.publishes_per_second,
            patient.seconds
        )?;
        if !report.verdict.is_ok() {
            writeln!(std::io::stdout(), "{}", report.verdict)?;
        }
    }
    gateway.stop().await?;
    ensure!(failed == 0, "{failed} of {} runs failed", PATIENT.len());
    Ok(())
}

impl ProgramArguments {
    /// The gateway over this directory.
    fn command(&self, data_dir: &Path) -> Result<GatewayCommand> {
        let beside = std::env::current_exe()?.with_file_name("oncewire");
        let binary = self.gateway.as_deref().unwrap_or(&beside);
        let mut command = GatewayCommand::on_disk(binary, data_dir, &self.durability);
        command.arguments.extend(self.gateway_arguments.clone());
        Ok(command)
    }
}

async fn soak(arguments: &Arguments) -> Result<()> {
    let temporary = tempfile::tempdir()?;
    let data_dir = arguments.data_dir.clone().unwrap_or_else(|| temporary.path().join("data"));
    let fast =
        Fast { subscribers: arguments.fast_subscribers, publishes_per_second: arguments.fast_rate, haste: 1 };
    let configuration = temporary.path().join("oncewire.toml");
    std::fs::write(&configuration, fast.configuration())?;
    let mut command = arguments.program.command(&data_dir)?;
    command.arguments.extend(["--config".to_owned(), configuration.display().to_string()]);
    let mut gateway = Gateway::start(command).await?;
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} kills, {elapsed_precise}")?;
    let progress = ProgressBar::new(u64::from(arguments.kills)).with_style(style);
    let is_quick = arguments.max_seconds <= Duration::from_secs(1);
    let rest_ms_max = arguments.rest_ms_max.unwrap_or(if is_quick { 12 } else { 100 });
    let seed = arguments.seed.unwrap_or_else(rand::random);
    let mut total = Total::default();
    for number in 0.. {
        if total.kills >= arguments.kills {
            break;
        }
        let round = Round {
            kills: arguments.kills_per_round.min(arguments.kills - total.kills),
            stops_permille: arguments.stops_permille,
            run_min: arguments.min_seconds,
            run_more: arguments.max_seconds.saturating_sub(arguments.min_seconds),
            clients: arguments.clients,
            rest_ms_max,
            outcomes_min: arguments.outcomes_min,
            fast: (fast.subscribers > 0).then_some(fast),
            seed: seed.wrapping_add(number),
        };
        let report = run(&mut gateway, &round).await.with_context(|| format!("seed {}", round.seed))?;
        if let Err(error) = judge(&report) {
            keep(&report.history, &arguments.history)?;
            return Err(error.context(format!(
                "seed {}; history in {}",
                round.seed,
                arguments.history.display()
            )));
        }
        total.add(&report);
        progress.set_position(u64::from(total.kills));
        progress.suspend(|| writeln!(std::io::stdout(), "seed {}: {report}", round.seed))?;
    }
    progress.finish_and_clear();
    total.print(fast.bound())?;
    gateway.stop().await?;
    let settled = total.redelivered.settled;
    ensure!(
        settled == 0,
        "{settled} messages came again although they had been acknowledged 2 s before a kill"
    );
    Ok(())
}

/// What all rounds came to.
#[derive(Default)]
struct Total {
    kills: u32,
    stops: u32,
    counts: Counts,
    redelivered: Redelivered,
}

impl Total {
    fn add(&mut self, report: &Report) {
        self.kills += report.kills;
        self.stops += report.stops;
        self.counts.add(&report.counts);
        if let Some(redelivered) = &report.redelivered {
            self.redelivered.add(redelivered);
        }
    }

    /// A round in which anything was lost, repeated, reordered or refused has ended the run before.
    fn print(&self, bound: u64) -> Result<()> {
        let Self { kills, stops, counts, redelivered } = self;
        writeln!(
            std::io::stdout(),
            "{kills} kills, {stops} stops, {} requests, {} deliveries; 0 sessions refused, 0 lost, 0 doubled, 0 reordered\n\
             outboxes of {bound}: {redelivered}",
            counts.published,
            counts.delivered
        )?;
        Ok(())
    }
}

fn seconds(text: &str) -> Result<Duration> {
    Ok(Duration::try_from_secs_f64(text.parse()?)?)
}

fn keep(history: &oncewire_checker::History, path: &Path) -> Result<()> {
    let file = std::fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut output = std::io::BufWriter::new(file);
    for (recorder, _) in history.recorders() {
        history.write(recorder, &mut output)?;
    }
    Ok(())
}
