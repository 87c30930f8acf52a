//! `oncewire dev`: the gateway on loopback with a key that everybody knows, started again when it is killed.

use anyhow::Context as _;
use oncewire::config::{Config, Overrides, Secret};

use crate::access::DEVELOPMENT_KEY;
use crate::cli::Dev;
use crate::failure::{Failure, print, usage};
use crate::running::start_logging;
use crate::{greeting, running, supervisor};

/// Serves with the key of development.
pub fn run(arguments: &Dev) -> Result<(), Failure> {
    if !arguments.listen.ip().is_loopback() || !arguments.tls_listen.ip().is_loopback() {
        return Err(Failure::Usage(
            "dev listens on loopback only, since everybody knows its key; use serve".to_owned(),
        ));
    }
    let access_key = Secret::new(DEVELOPMENT_KEY);
    let overrides = Overrides {
        listen: Some(arguments.listen),
        tls_self_signed: arguments.tls_self_signed.then_some(true),
        tls_listen: Some(arguments.tls_listen),
        access_key: Some(access_key.clone()),
        demo: Some(true),
        ..arguments.storage.overrides()
    };
    let config = Config::from_toml("", overrides).map_err(usage)?;
    let config = Config { is_key_public: true, ..config };
    dev_with(config, arguments, &access_key)
}

/// Serves in a process of its own, which is started again when it is killed.
fn dev_with(mut config: Config, arguments: &Dev, access_key: &Secret) -> Result<(), Failure> {
    if !arguments.supervised {
        let command = supervisor::this_program().map_err(Failure::Runtime)?;
        return match supervisor::supervise(command).map_err(Failure::Runtime)? {
            0 => Ok(()),
            code => Err(Failure::Served(code)),
        };
    }
    let lifeline = supervisor::Lifeline::hold().context("no supervisor").map_err(Failure::Runtime)?;
    for place in &arguments.again {
        match place.split_once('=') {
            Some(("http", address)) => config.listen = Some(address.parse().map_err(usage)?),
            Some(("https", address)) => config.tls_listen = address.parse().map_err(usage)?,
            _ => {}
        }
    }
    start_logging(&arguments.log)?;
    running::run(config, None, true, |addresses, config| {
        let places: Vec<_> =
            addresses.iter().map(|(scheme, address)| format!("{scheme}={address}")).collect();
        // Before anybody is told which process to kill.
        lifeline.ready(&places).context("the supervisor is gone").map_err(Failure::Runtime)?;
        if arguments.again.is_empty() {
            let process = std::process::id();
            print(&greeting::development(addresses, config, access_key, process)?)?;
        }
        Ok(())
    })
}
