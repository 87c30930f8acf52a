//! Benchmarks of the gateway against a floor.
//!
//! The floor ([`floor`]) is the least that any server could do for the same traffic, kept in this program so that both
//! are measured on the same machine within the same minute. Results are CPU time of the server process per operation,
//! which other users of the machine disturb less than rates and latencies, and best of all the ratio of the two. Linux
//! only: epoll, `/proc` and pinning are what it is made of.
//!
//! From leaves to roots: [`frame`], [`handshake`], [`message`], [`token`] and [`endpoint`] are the protocol;
//! [`poll`] is the sockets; [`procfs`] and [`stats`] are the figures; [`generator`] makes the load; [`process`] starts
//! servers; [`compare`] measures in turns and [`report`] writes; [`command`] has the flags.

mod command;
mod compare;
mod endpoint;
mod floor;
mod frame;
mod generator;
mod handshake;
mod message;
mod poll;
mod process;
mod procfs;
mod report;
mod stats;
mod token;

use anyhow::Result;
use clap::{Parser, Subcommand};

/// Benchmarks of the gateway against a floor: the least that any server could do for the same traffic.
///
/// Servers are pinned to one core and the load generator to another; results are CPU time of the server, measured in
/// turns with the floor. JSON goes to standard output, progress and a table to standard error. Build with `--release`,
/// the gateway too.
#[derive(Parser)]
#[command(name = "oncewire-bench")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Fanout(command::fanout::FanoutArgs),
    Publish(command::publish::PublishArgs),
    #[command(alias = "accepts")]
    Accept(command::accept::AcceptArgs),
    IdleMemory(command::idle_memory::IdleMemoryArgs),
    Beside(command::beside::BesideArgs),
    Rest(command::rest::RestArgs),
    Joins(command::joins::JoinsArgs),
    Events(command::events::EventsArgs),
    Store(command::store::StoreArgs),
    Floods(command::floods::FloodsArgs),
    Restart(command::restart::RestartArgs),
    #[command(hide = true)]
    RestartProcess(command::restart::RestartProcessArgs),
    Generator(command::generator::GeneratorArgs),
    Floor(floor::FloorArgs),
}

fn main() -> Result<()> {
    match Cli::parse().command {
        Command::Fanout(args) => command::fanout::run(&args),
        Command::Publish(args) => command::publish::run(&args),
        Command::Accept(args) => command::accept::run(&args),
        Command::IdleMemory(args) => command::idle_memory::run(&args),
        Command::Beside(args) => command::beside::run(&args),
        Command::Rest(args) => command::rest::run(&args),
        Command::Joins(args) => command::joins::run(&args),
        Command::Events(args) => command::events::run(&args),
        Command::Floods(args) => command::floods::run(&args),
        Command::Store(args) => command::store::run(&args),
        Command::Restart(args) => command::restart::run(&args),
        Command::RestartProcess(args) => command::restart::run_process(&args),
        Command::Generator(args) => command::generator::run(&args),
        Command::Floor(args) => match floor::run(&args)? {},
    }
}
