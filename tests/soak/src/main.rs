//! Kills a gateway as often as one likes, in rounds over the same data.

use std::io::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::Parser;
use indicatif::{ProgressBar, ProgressStyle};
use oncewire_soak::{Gateway, GatewayCommand, Round, judge, run};

/// Kills a gateway with SIGKILL at random moments under load, and has the checker judge what its clients saw.
#[derive(Parser)]
#[command(
    after_help = "Exit codes: 0 nothing was lost, repeated or reordered; 1 something was, or the run failed; \
                        2 wrong usage."
)]
struct Arguments {
    /// How often to kill
    #[arg(long, default_value_t = 100)]
    kills: u32,
    /// Kills between two judgements; sessions last for one round
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    kills_per_round: u32,
    /// How many clients there are
    #[arg(long, default_value_t = 8)]
    clients: usize,
    /// Outcomes of requests between two kills at least
    #[arg(long, default_value_t = 30)]
    outcomes_min: u64,
    /// The gateway's program [default: oncewire beside this one]
    #[arg(long)]
    gateway: Option<PathBuf>,
    /// What an ack waits for: sync or os
    #[arg(long, default_value = "sync")]
    durability: String,
    /// One more argument of `serve`; may be given several times
    #[arg(long = "gateway-arg", allow_hyphen_values = true)]
    gateway_arguments: Vec<String>,
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

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let temporary = tempfile::tempdir()?;
    let data_dir = arguments.data_dir.clone().unwrap_or_else(|| temporary.path().join("data"));
    let beside = std::env::current_exe()?.with_file_name("oncewire");
    let binary = arguments.gateway.as_deref().unwrap_or(&beside);
    let mut command = GatewayCommand::on_disk(binary, &data_dir, &arguments.durability);
    command.arguments.extend(arguments.gateway_arguments.clone());
    let mut gateway = Gateway::start(command).await?;
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} kills, {elapsed_precise}")?;
    let progress = ProgressBar::new(u64::from(arguments.kills)).with_style(style);
    let seed = arguments.seed.unwrap_or_else(rand::random);
    let mut killed = 0;
    for number in 0.. {
        if killed >= arguments.kills {
            break;
        }
        let kills = arguments.kills_per_round.min(arguments.kills - killed);
        let round = Round {
            kills,
            clients: arguments.clients,
            outcomes_min: arguments.outcomes_min,
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
        killed += report.kills;
        progress.set_position(u64::from(killed));
        progress.suspend(|| writeln!(std::io::stdout(), "seed {}: {report}", round.seed))?;
    }
    progress.finish_and_clear();
    writeln!(std::io::stdout(), "{killed} kills: nothing lost, repeated or reordered")?;
    gateway.stop().await
}

fn keep(history: &oncewire_checker::History, path: &std::path::Path) -> Result<()> {
    let file = std::fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut output = std::io::BufWriter::new(file);
    for (recorder, _) in history.recorders() {
        history.write(recorder, &mut output)?;
    }
    Ok(())
}
