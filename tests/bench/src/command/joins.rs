//! `joins`: what a join costs a client that is in many groups.

use std::io::{self, Write as _};

use anyhow::{Context as _, Result};
use serde::Serialize;

use crate::compare::{GatewayArgs, Head, TurnsArgs};
use crate::generator::joins::{self, JoinsPlan};
use crate::generator::{Measurement, Subject};
use crate::procfs::Machine;
use crate::report;
use crate::stats::Summary;

/// What a join and a leave cost a client by the groups that it is in: server CPU time per pair.
///
/// Each round measures all numbers of groups, each in a fresh process. `ratio` is the cost divided by that of the first
/// number in the same round: how much more one pays who is in many groups.
#[derive(clap::Args)]
pub struct JoinsArgs {
    /// Groups that the client is in, with the one that it joins and leaves. A session may be in 10,000 by default.
    #[arg(long, value_delimiter = ',', default_value = "1,100,10000",
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    groups: Vec<u32>,
    /// Pairs of a join and a leave that are sent at once.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=256))]
    burst: u32,
    #[command(flatten)]
    gateway: GatewayArgs,
    #[command(flatten)]
    turns: TurnsArgs,
}

#[derive(Serialize)]
struct Report {
    #[serde(flatten)]
    head: Head,
    burst: u32,
    cells: Vec<Cell>,
}

#[derive(Serialize)]
struct Cell {
    groups: u32,
    /// The result: the cost divided by that of the first cell, in the same round.
    ratio: Summary,
    cpu_ns_per_pair: Summary,
    rounds: Vec<Measurement>,
}

/// Runs the command.
///
/// # Errors
/// The gateway cannot be started or pinned, or refuses.
pub fn run(args: &JoinsArgs) -> Result<()> {
    let machine = Machine::describe()?;
    let window = args.turns.begin()?;
    let mut rounds: Vec<Vec<Measurement>> = vec![Vec::new(); args.groups.len()];
    for index in 0..args.turns.rounds {
        // Whoever goes first alternates, so that a steady drift of the machine favours none.
        let mut order: Vec<usize> = (0..args.groups.len()).collect();
        if index % 2 == 1 {
            order.reverse();
        }
        for cell in order {
            let running = args.gateway.server(&[]).start(Some(args.turns.server_core))?;
            let subject = Subject { endpoint: running.endpoint.clone(), pid: running.pid() };
            let plan = JoinsPlan { groups: args.groups[cell], burst: args.burst, window };
            rounds[cell].push(joins::run(&subject, &plan)?);
        }
        writeln!(io::stderr(), "round {}/{}", index + 1, args.turns.rounds)?;
    }
    let first = rounds.first().context("no number of groups")?.clone();
    let cells = args.groups.iter().zip(rounds).map(|(groups, rounds)| Cell::of(*groups, &first, rounds));
    let report = Report {
        head: args.turns.head("joins", "join and leave", machine),
        burst: args.burst,
        cells: cells.collect::<Result<_>>()?,
    };
    let mut out = io::stderr();
    let about = "joins: server CPU ns per join and leave; ratio to the first number of groups";
    report::write_titles(&mut out, about, &report.head.machine)?;
    for cell in &report.cells {
        report::write_row(&mut out, &format!("{} groups", cell.groups), "ns", &cell.cpu_ns_per_pair, 0)?;
        report::write_row(&mut out, "", "ratio", &cell.ratio, 3)?;
    }
    report::print_json(&report)
}

impl Cell {
    fn of(groups: u32, first: &[Measurement], rounds: Vec<Measurement>) -> Result<Self> {
        let cost = Measurement::cpu_ns_per_operation;
        Ok(Self {
            groups,
            ratio: Summary::of(rounds.iter().zip(first).map(|(one, first)| cost(one) / cost(first)))?,
            cpu_ns_per_pair: Summary::of(rounds.iter().map(cost))?,
            rounds,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ratio_is_that_of_one_round() {
        let of = |cpu_ns| Measurement { operations: 10, cpu_ns, wall_ns: 1 };
        let cell = Cell::of(100, &[of(100), of(200)], vec![of(150), of(300)]).unwrap();
        assert_eq!((cell.ratio.minimum, cell.ratio.maximum), (1.5, 1.5));
        assert_eq!((cell.cpu_ns_per_pair.minimum, cell.cpu_ns_per_pair.maximum), (15.0, 30.0));
    }
}
