//! `publish`: what one inbound publish costs.

use anyhow::Result;
use serde_json::json;

use crate::compare::{CompareArgs, Comparison};
use crate::generator::inbound::{self, InboundPlan};

/// What one inbound publish costs: server CPU time per acknowledged publish, against the floor.
///
/// Publishers send bursts to a group without members, each its next one when its last is acknowledged. Read the ratio
/// as in `fanout`. The floor only unmasks, finds the ack id and answers, while the gateway parses, checks permissions,
/// detects duplicates and logs: a large burst, where the system calls are shared, shows the price of that.
#[derive(clap::Args)]
pub struct PublishArgs {
    /// Sessions that publish.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=1024))]
    publishers: u16,
    /// Publishes that a publisher sends at once; each value is measured in each round.
    #[arg(long = "bursts", value_delimiter = ',', default_value = "1,16",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    bursts: Vec<u32>,
    /// Bytes of text in each publish.
    #[arg(long, default_value_t = 128, value_parser = clap::value_parser!(u32).range(16..=65_536))]
    payload_bytes: u32,
    #[command(flatten)]
    compare: CompareArgs,
}

/// Runs the command.
///
/// # Errors
/// See [`Comparison::run`] and [`inbound::run`].
pub fn run(args: &PublishArgs) -> Result<()> {
    let PublishArgs { publishers, payload_bytes, .. } = *args;
    let comparison = Comparison {
        benchmark: "publish",
        operation: "publish",
        setting: ("burst", &args.bursts),
        load: json!({ "publishers": publishers, "payload_bytes": payload_bytes }),
    };
    comparison.run(&args.compare, |subject, window, burst| {
        let payload_bytes = payload_bytes as usize;
        inbound::run(subject, &InboundPlan { publishers, burst, payload_bytes, window })
    })
}
