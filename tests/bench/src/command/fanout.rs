//! `fanout`: what one delivery costs.

use anyhow::Result;
use serde_json::json;

use crate::compare::{CompareArgs, Comparison};
use crate::generator::Window;
use crate::generator::fanout::{self, FanoutPlan};

/// What one delivery costs: server CPU time per message that reaches a subscriber, against the floor.
///
/// Publishers send bursts to one group; the next burst goes out when every subscriber has all of the last one and every
/// publish is acknowledged. Deliveries of one burst can share a write, so a larger burst is cheaper per delivery. Each
/// subscriber sends one sequence ack a second. Any loss, repetition or disorder fails the run.
///
/// Reading it: `ratio` is the gateway's deliveries per CPU-second divided by the floor's, per round, so 0.8 means that
/// the gateway needs 25 % more CPU than the least possible. Trust its median and look at its quartiles; nanoseconds
/// depend on the machine and on who else uses it. `--floor-against-itself` shows the noise.
#[derive(clap::Args)]
pub struct FanoutArgs {
    #[command(flatten)]
    load: LoadArgs,
    /// Publishes that a publisher sends at once; each value is measured in each round.
    #[arg(long = "bursts", value_delimiter = ',', default_value = "1,8",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    bursts: Vec<u32>,
    #[command(flatten)]
    compare: CompareArgs,
}

/// The load, but for its bursts.
#[derive(clap::Args, Clone, Copy)]
pub struct LoadArgs {
    /// Sessions that receive everything.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    subscribers: u32,
    /// Sessions that publish.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    publishers: u16,
    /// Bytes of text in each publish.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(16..=65_536))]
    payload_bytes: u32,
}

impl LoadArgs {
    /// Descriptors that each of both ends needs.
    pub fn descriptors(&self) -> u64 {
        u64::from(self.subscribers) + u64::from(self.publishers) + 256
    }

    /// The plan with these bursts.
    pub fn plan(&self, burst: u32, window: Window) -> FanoutPlan {
        FanoutPlan {
            subscribers: self.subscribers as usize,
            publishers: self.publishers,
            burst,
            payload_bytes: self.payload_bytes as usize,
            window,
        }
    }
}

/// Runs the command.
///
/// # Errors
/// See [`Comparison::run`] and [`fanout::run`].
pub fn run(args: &FanoutArgs) -> Result<()> {
    let load = args.load;
    crate::process::allow_descriptors(load.descriptors())?;
    let comparison = Comparison {
        benchmark: "fanout",
        operation: "delivery",
        setting: ("burst", &args.bursts),
        load: json!({
            "subscribers": load.subscribers, "publishers": load.publishers, "payload_bytes": load.payload_bytes,
        }),
    };
    comparison.run(&args.compare, |subject, window, burst| fanout::run(subject, &load.plan(burst, window)))
}
