//! The configuration file of a running gateway: what is used of it when it changes.

use std::path::PathBuf;

use crate::config::{Config, ConfigError, Overrides};
use crate::events::{Events, EventsError};
use crate::reload::Reloaded;

/// The configuration file of a running gateway. Of what changes in it, the event handlers alone are used.
pub struct ConfigFile {
    events: Events,
    path: PathBuf,
    overrides: Overrides,
    /// Everything else that the gateway was started with.
    rest: Config,
}

/// Why the file can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigFileError {
    /// It is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The handlers that it asks for can't be used.
    #[error(transparent)]
    Events(#[from] EventsError),
}

impl ConfigFile {
    /// The file that `config` was read from, with the overrides that were laid over it.
    pub fn new(events: Events, path: PathBuf, overrides: Overrides, config: &Config) -> Self {
        Self { events, path, overrides, rest: without_handlers(config.clone()) }
    }
}

impl Reloaded for ConfigFile {
    type Contents = String;
    type Error = ConfigFileError;

    fn read(&self) -> Result<String, ConfigFileError> {
        Ok(Config::read_file(&self.path)?)
    }

    fn bytes(text: &String) -> Vec<&[u8]> {
        vec![text.as_bytes()]
    }

    fn take(&mut self, text: String) -> Result<bool, ConfigFileError> {
        let config = Config::from_toml(&text, self.overrides.clone())?;
        let is_different = self.events.replace(&config)?;
        if is_different {
            for warning in config.warnings() {
                tracing::warn!("{warning}");
            }
        }
        if without_handlers(config) != self.rest {
            tracing::info!("the configuration file has other changes: they take effect at the next start");
        }
        Ok(is_different)
    }

    fn log_taken(&self) {
        tracing::info!("the event handlers of the changed configuration file are used from now on");
    }

    fn log_refused(&self, error: &ConfigFileError) {
        tracing::warn!(%error, "the changed configuration file can't be used: the event handlers stay as they were");
    }
}

/// What the file and the overrides say, without the event handlers. A hub that has nothing else is as good as none.
fn without_handlers(mut config: Config) -> Config {
    // Found out at the start, by what the file says.
    config.is_key_public = false;
    for own in config.hubs.values_mut() {
        own.event_handlers.clear();
    }
    config.hubs.retain(|_, own| *own != Default::default());
    config
}
