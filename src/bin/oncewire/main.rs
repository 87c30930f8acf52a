//! The `oncewire` command: which subcommand runs, and how the process ends.

mod access;
mod allocator;
mod cli;
mod dev_command;
mod failure;
mod fold_check;
mod greeting;
mod log_command;
mod running;
mod serve_command;
mod signals;
mod supervisor;
mod token_command;

use std::io::Write as _;
use std::process::ExitCode;

use oncewire::telemetry;

use crate::cli::{Cli, Command};

fn main() -> ExitCode {
    allocator::shorten_purge_delay();
    let result = match Cli::from_process().command {
        Command::Serve(arguments) => serve_command::run(&arguments),
        Command::Dev(arguments) => dev_command::run(&arguments),
        Command::Token(arguments) => token_command::run(&arguments),
        Command::Log(command) => log_command::run(&command),
    };
    let has_reader = telemetry::finish();
    let Err(failure) = result else {
        return ExitCode::SUCCESS;
    };
    let (code, message) = failure.outcome();
    if let Some(message) = message.filter(|_| has_reader) {
        // Nothing is left to do when standard error is gone, and whoever does not read it would be waited for.
        let _ = writeln!(std::io::stderr(), "oncewire: {message}");
    }
    ExitCode::from(code)
}
