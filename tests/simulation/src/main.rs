//! Runs worlds: any number of them, or one with a trace to read.

use std::io::{BufWriter, Write as _};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use clap::Parser;
use oncewire_simulation::{Coverage, Trace, repeat_command, run};

/// Simulates whole faulty worlds and judges them.
#[derive(Parser)]
struct Arguments {
    /// How many worlds to run.
    #[arg(long, default_value_t = 1000)]
    seeds: u64,
    /// The first seed.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Runs this one alone, with a trace.
    #[arg(long)]
    seed: Option<u64>,
    /// Stops after so many failures.
    #[arg(long, default_value_t = 1)]
    failures: usize,
}

fn main() -> anyhow::Result<ExitCode> {
    let arguments = Arguments::parse();
    match arguments.seed {
        Some(seed) => one(seed),
        None => many(&arguments),
    }
}

fn one(seed: u64) -> anyhow::Result<ExitCode> {
    let outcome = run(seed, Trace::readable(Box::new(BufWriter::new(std::io::stdout()))));
    let mut out = std::io::stdout();
    writeln!(out, "seed {seed}: trace {:016x}", outcome.trace_hash)?;
    if let Some(failure) = &outcome.failure {
        writeln!(out, "{failure}")?;
    }
    Ok(exit_code(outcome.failure.is_none()))
}

fn many(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let next = AtomicU64::new(arguments.from);
    let end = arguments.from.saturating_add(arguments.seeds);
    let total = Mutex::new((Coverage::default(), Vec::new()));
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end {
                return;
            }
            let outcome = run(seed, Trace::default());
            let mut total = total.lock().unwrap_or_else(PoisonError::into_inner);
            total.0.add(&outcome.coverage);
            if let Some(failure) = outcome.failure {
                total.1.push((seed, failure.to_string()));
                if total.1.len() >= arguments.failures {
                    next.store(end, Ordering::Relaxed);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |cores| cores.get()) {
            scope.spawn(work);
        }
    });
    let (coverage, failures) = total.into_inner().unwrap_or_else(PoisonError::into_inner);
    let mut out = std::io::stdout();
    writeln!(out, "{coverage}")?;
    for (seed, failure) in &failures {
        writeln!(out, "seed {seed}: {failure}\nrepeat: {}\n", repeat_command(*seed))?;
    }
    if failures.is_empty() {
        writeln!(out, "{} worlds passed", arguments.seeds)?;
    }
    Ok(exit_code(failures.is_empty()))
}

fn exit_code(is_passed: bool) -> ExitCode {
    if is_passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
