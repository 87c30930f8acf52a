//! The access keys that the command takes, and the strings in which clients are told of them.

use std::net::SocketAddr;

use oncewire::auth::{AccessKeyError, AccessKeys, KeyName};
use oncewire::config::{Config, Scheme, Secret};

use crate::failure::Failure;

/// What `dev` serves with. Everybody knows it, so `dev` listens on loopback only.
pub const DEVELOPMENT_KEY: &str = "oncewire-development-key-for-loopback-only";

/// The URL that clients are told: the first of those that they can use.
pub fn endpoint(addresses: &[(Scheme, SocketAddr)], config: &Config) -> Result<String, Failure> {
    match addresses {
        [(scheme, local), ..] => Ok(config.endpoint(*scheme, *local)),
        [] => Err(Failure::Runtime(anyhow::anyhow!("there is no address to listen on"))),
    }
}

/// The one line that holds the access key: it goes to standard output, never into the log.
pub fn connection_string(endpoint: &str, access_key: &Secret) -> String {
    format!("connection string: Endpoint={endpoint};AccessKey={};Version=1.0;", access_key.expose())
}

pub fn no_access_key(advice: &str) -> Failure {
    Failure::Usage(format!(
        "no access key: set ONCEWIRE_ACCESS_KEY, give --access-key, or put access_key into the configuration file; {advice}"
    ))
}

/// The key of `dev` is for loopback: everybody knows it.
pub fn refuse_public_key(config: Config) -> Result<Config, Failure> {
    let is_public = |key: &Option<Secret>| key.as_ref().is_some_and(|key| key.expose() == DEVELOPMENT_KEY);
    if !is_public(&config.access_key) && !is_public(&config.secondary_access_key) {
        return Ok(config);
    }
    let addresses = [config.http_address(), config.https_address()];
    if addresses.into_iter().flatten().any(|address| !address.ip().is_loopback()) {
        return Err(Failure::Usage(
            "this is the key of oncewire dev, which everybody knows: with it, serve listens on loopback only"
                .to_owned(),
        ));
    }
    Ok(Config { is_key_public: true, ..config })
}

pub fn access_keys(primary: &Secret, secondary: Option<&Secret>) -> Result<AccessKeys, Failure> {
    AccessKeys::new(primary.expose(), secondary.map(Secret::expose)).map_err(|error| {
        let (AccessKeyError::TooShort(name) | AccessKeyError::BadCharacter(name)) = error;
        let source = match name {
            KeyName::Primary => "ONCEWIRE_ACCESS_KEY, --access-key or access_key",
            KeyName::Secondary => "ONCEWIRE_SECONDARY_KEY, --secondary-key or secondary_access_key",
        };
        Failure::Usage(format!("{error} ({source})"))
    })
}
