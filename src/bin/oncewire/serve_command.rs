//! `oncewire serve`: the gateway with the configuration of flags, environment and file.

use std::io::IsTerminal as _;

use clap::CommandFactory as _;
use oncewire::config::{Config, variable_advice};

use crate::access::{access_keys, connection_string, endpoint, no_access_key, refuse_public_key};
use crate::cli::{Cli, Serve};
use crate::failure::{Failure, print, usage};
use crate::running::{self, start_logging};

/// Loads the configuration, checks it, and serves until a signal comes.
pub fn run(arguments: &Serve) -> Result<(), Failure> {
    let config = Config::load(arguments.config.as_deref(), arguments.overrides()).map_err(usage)?;
    let access_key = config
        .access_key
        .clone()
        .ok_or_else(|| no_access_key("to try things out without one, use oncewire dev"))?;
    access_keys(&access_key, config.secondary_access_key.as_ref())?;
    let config = refuse_public_key(config)?;
    start_logging(&arguments.log)?;
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    warn_of_misspelt_variables();
    let file = arguments.config.as_deref().map(|file| (file, arguments.overrides()));
    // Whatever else standard output is, somebody keeps what is written there: a container's log, a file.
    let shows_key = arguments.print_connection_string || std::io::stdout().is_terminal();
    running::run(config, file, false, |addresses, config| {
        let endpoint = endpoint(addresses, config)?;
        let ready =
            if shows_key { connection_string(&endpoint, &access_key) } else { format!("ready: {endpoint}") };
        print(&ready)
    })
}

/// Says which variables are none of the gateway's, and which may be meant.
fn warn_of_misspelt_variables() {
    let command = Cli::command();
    let arguments = command.get_subcommands().flat_map(clap::Command::get_arguments);
    let known: Vec<&str> = arguments.filter_map(|argument| argument.get_env()?.to_str()).collect();
    for name in std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()) {
        if let Some(meant) = variable_advice(&name, &known) {
            tracing::warn!("the environment variable {name} is none of the gateway's: did you mean {meant}?");
        }
    }
}
