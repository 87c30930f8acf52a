//! `generator`: the load of `fanout` on a server that runs already.

use std::time::Duration;

use anyhow::Result;
use serde_json::json;

use super::fanout::LoadArgs;
use crate::endpoint::Endpoint;
use crate::generator::{Subject, Window, fanout};
use crate::{compare, process, report};

/// Applies the load of `fanout` once to a server that runs already, for example under a profiler.
///
/// One thread. Checks that every subscriber gets every publish once and in order, and prints deliveries, the server's
/// CPU time and the time that passed as JSON.
#[derive(clap::Args)]
pub struct GeneratorArgs {
    /// The server's connection string, as its ready line has it.
    #[arg(long)]
    connection_string: Endpoint,
    /// The server's process id, for its CPU time.
    #[arg(long)]
    server_pid: u32,
    #[command(flatten)]
    load: LoadArgs,
    /// Publishes that a publisher sends at once.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    burst: u32,
    /// Seconds of load before counting begins.
    #[arg(long, default_value = "1", value_parser = compare::parse_seconds, value_name = "SECONDS")]
    warmup: Duration,
    /// Seconds of load that are counted.
    #[arg(long, default_value = "10", value_parser = compare::parse_seconds, value_name = "SECONDS")]
    measured: Duration,
    /// The core to pin the generator to.
    #[arg(long)]
    core: Option<usize>,
}

/// Runs the command.
///
/// # Errors
/// See [`fanout::run`].
pub fn run(args: &GeneratorArgs) -> Result<()> {
    process::allow_descriptors(args.load.descriptors())?;
    if let Some(core) = args.core {
        process::pin(core)?;
    }
    let subject = Subject { endpoint: args.connection_string.clone(), pid: args.server_pid };
    let window = Window { warmup: args.warmup, measured: args.measured };
    let measurement = fanout::run(&subject, &args.load.plan(args.burst, window))?;
    report::print_json(&json!({
        "deliveries": measurement.operations,
        "server_cpu_ns": measurement.cpu_ns,
        "wall_ns": measurement.wall_ns,
        "server_cpu_ns_per_delivery": measurement.cpu_ns_per_operation(),
    }))
}
