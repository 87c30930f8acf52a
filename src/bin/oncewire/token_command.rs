//! `oncewire token`: prints a URL with which a client can connect.

use std::io::Write as _;

use oncewire::auth::ClientGrant;
use oncewire::config::{Config, Overrides, Scheme};
use oncewire::engine;
use oncewire_protocol::session::Permissions;
use oncewire_protocol::wire::{GroupName, HubName};
use url::Url;

use crate::access::{DEVELOPMENT_KEY, access_keys, no_access_key};
use crate::cli::Token;
use crate::failure::{Failure, print, runtime_failure, usage};

/// Makes a token of what flags, environment and file say.
pub fn run(arguments: &Token) -> Result<(), Failure> {
    let config = Config::load(arguments.config.as_deref(), overrides(arguments)).map_err(usage)?;
    let access_key = config
        .access_key
        .clone()
        .ok_or_else(|| no_access_key(&format!("that of oncewire dev is {DEVELOPMENT_KEY}")))?;
    let keys = access_keys(&access_key, None)?;
    HubName::new(&arguments.hub).map_err(|error| Failure::Usage(format!("--hub: {error}")))?;
    for group in &arguments.groups {
        GroupName::new(group).map_err(|error| Failure::Usage(format!("--group {group:?}: {error}")))?;
    }
    if arguments.roles.iter().any(|role| role.trim().is_empty()) {
        return Err(Failure::Usage("--role is empty".to_owned()));
    }
    let grant = ClientGrant {
        endpoint: &endpoint(&config)?,
        hub: &arguments.hub,
        user_id: arguments.user.as_deref(),
        roles: &arguments.roles,
        groups: &arguments.groups,
        validity_seconds: u64::from(arguments.minutes) * 60,
    };
    let url = keys.client_url(&grant, engine::wall_clock().unix_seconds()).map_err(usage)?;
    for role in arguments.roles.iter().filter(|role| !Permissions::is_role(role)) {
        // It may mean something to the application.
        let _ = writeln!(
            std::io::stderr(),
            "oncewire: warning: the role {role:?} allows nothing. Roles are webpubsub.joinLeaveGroup and \
             webpubsub.sendToGroup, for one group with a dot and its name behind, and written just so"
        );
    }
    print(url.as_str())
}

fn overrides(arguments: &Token) -> Overrides {
    Overrides {
        access_key: arguments.access_key.clone(),
        public_urls: arguments.endpoint.clone(),
        ..Overrides::default()
    }
}

/// Where clients reach the gateway that this configuration is of.
fn endpoint(config: &Config) -> Result<Url, Failure> {
    let http = config.http_address().map(|local| (Scheme::Http, local));
    let https = config.https_address().map(|local| (Scheme::Https, local));
    // In the order in which a gateway tells them.
    let (scheme, local) = https.or(http).unwrap_or((Scheme::Https, config.tls_listen));
    config.endpoint(scheme, local).parse().map_err(runtime_failure)
}
