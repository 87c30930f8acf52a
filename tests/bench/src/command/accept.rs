//! `accept`: what one new connection costs.

use anyhow::Result;
use serde_json::json;

use crate::compare::{CompareArgs, Comparison};
use crate::generator::accept;

/// What one new connection costs: server CPU time per handshake, against the floor.
///
/// Clients connect with a token, wait for the `connected` message and reset the connection, at once replaced by others.
/// Read the ratio as in `fanout`. The floor does not check tokens: the price of that, of the HTTP server and of opening
/// and ending a session is what the ratio shows.
#[derive(clap::Args)]
pub struct AcceptArgs {
    /// Handshakes that are under way at the same time; each value is measured in each round.
    #[arg(long, value_delimiter = ',', default_value = "64",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    in_flight: Vec<u32>,
    #[command(flatten)]
    compare: CompareArgs,
}

/// Runs the command.
///
/// # Errors
/// See [`Comparison::run`] and [`accept::run`].
pub fn run(args: &AcceptArgs) -> Result<()> {
    let comparison = Comparison {
        benchmark: "accept",
        operation: "handshake",
        setting: ("in flight", &args.in_flight),
        load: json!({}),
    };
    comparison
        .run(&args.compare, |subject, window, in_flight| accept::run(subject, in_flight as usize, window))
}
