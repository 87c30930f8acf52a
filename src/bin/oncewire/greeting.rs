//! What `dev` prints when it is ready: where it is, and what to try first.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;

use oncewire::auth::ClientGrant;
use oncewire::config::{Config, Durability, Scheme, Secret, Store};
use oncewire::edge::SELF_SIGNED_CERTIFICATE_FILE;
use oncewire::engine;
use url::Url;

use crate::access::{access_keys, connection_string, endpoint};
use crate::failure::{Failure, runtime_failure, usage};

const HUB: &str = "chat";
const TOKEN_VALIDITY_SECONDS: u64 = 24 * 60 * 60;

/// Publishes a number twice a second, and says what comes back. It holds no single quote, since it stands between two.
const TRY_IT: &str = include_str!("try_it.js");

/// The demo page, the connection string, a client URL, and a program that works with nothing but Node: in the clear, where
/// that is served, since Node does not trust the certificate of https. `to_kill` is the process that is started again when
/// it is killed.
pub fn development(
    addresses: &[(Scheme, SocketAddr)],
    config: &Config,
    access_key: &Secret,
    to_kill: u32,
) -> Result<String, Failure> {
    let endpoint = endpoint(addresses, config)?;
    let base: Url = endpoint.parse().map_err(runtime_failure)?;
    let in_the_clear = match addresses.iter().find(|(scheme, _)| *scheme == Scheme::Http) {
        Some((scheme, local)) => config.endpoint(*scheme, *local).parse().map_err(runtime_failure)?,
        None => base.clone(),
    };
    let url = client_url(&base, access_key)?;
    let node_url = client_url(&in_the_clear, access_key)?;
    let mut greeting = format!("demo page: {base}\n{}\n", connection_string(&endpoint, access_key));
    // Writing into a string does not fail.
    let _ = writeln!(greeting, "client URL: {url}");
    if base.scheme() == "http" {
        greeting.push_str(
            "\nFor plain http the server SDK of JavaScript wants the option { allowInsecureConnection: true }. \
             What needs https gets it with --tls.\n",
        );
    }
    if let Some(certificate) = certificate(config) {
        let certificate = certificate.display();
        let _ = write!(
            greeting,
            "\ncertificate: {certificate}\n\
             Who connects with https or wss has to trust it:\n\
             \x20 Node:                NODE_EXTRA_CA_CERTS='{certificate}' node client.mjs\n\
             \x20 Python, clients:     SSL_CERT_FILE='{certificate}' python client.py\n\
             \x20 Python, server SDK:  REQUESTS_CA_BUNDLE='{certificate}' python server.py\n\
             \x20 browsers:            open {base} once and go on past the warning, or import the file\n"
        );
    }
    let program = TRY_IT.trim_end().replace("{url}", node_url.as_str());
    let _ = write!(
        greeting,
        "\nTry it with Node 20.10 or later: it publishes a number twice a second, and says what comes back.\n\n\
         node --experimental-websocket -e '{program}'\n"
    );
    let outcome = outcome_of_a_kill(config.store, config.hub(HUB).durability);
    let _ = write!(
        greeting,
        "\nMeanwhile, in another terminal, kill the process that serves, which is then started again. {outcome}:\n\n\
         kill -9 {to_kill}\n"
    );
    Ok(greeting)
}

/// What becomes of sessions and messages when the process is killed.
fn outcome_of_a_kill(store: Store, durability: Durability) -> &'static str {
    match (store, durability) {
        (Store::Memory, _) => {
            "With --store memory everything is lost with it, sessions and messages: clients get new sessions"
        }
        (Store::Disk, Durability::Memory) => {
            "With --durability memory everything is lost with it, sessions and messages: clients get new sessions"
        }
        (Store::Disk, Durability::Os | Durability::Sync) => "Nothing is lost, and nothing comes twice",
    }
}

/// The file with the certificate that clients have to trust, if there is one.
fn certificate(config: &Config) -> Option<PathBuf> {
    let is_kept = config.tls_self_signed && config.store == Store::Disk;
    let file = is_kept.then(|| config.data_dir.join(SELF_SIGNED_CERTIFICATE_FILE))?;
    Some(std::path::absolute(&file).unwrap_or(file))
}

fn client_url(endpoint: &Url, access_key: &Secret) -> Result<Url, Failure> {
    let roles = ["webpubsub.joinLeaveGroup", "webpubsub.sendToGroup"].map(str::to_owned);
    let grant = ClientGrant {
        endpoint,
        hub: HUB,
        user_id: Some("dev"),
        roles: &roles,
        groups: &[],
        validity_seconds: TOKEN_VALIDITY_SECONDS,
    };
    access_keys(access_key, None)?.client_url(&grant, engine::wall_clock().unix_seconds()).map_err(usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_can_stand_between_single_quotes() {
        assert!(!TRY_IT.contains('\''), "{TRY_IT}");
        assert_eq!(TRY_IT.matches("{url}").count(), 1);
    }
}
