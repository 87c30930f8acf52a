//! The command line: flags, their environment variables and their help.
//!
//! Knows: how settings are spelled for a person. Does not know: what they do; every rule about a value that the
//! configuration file can hold as well is checked there.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::builder::BoolishValueParser;
use clap::{Arg, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use oncewire::config::{AllowedOrigin, Durability, Overrides, Secret, Store, listen_address, public_url};
use oncewire::telemetry::LogFormat;
use oncewire_protocol::wire::{HubName, NameError};
use url::Url;

/// A self-hosted publish/subscribe gateway that speaks the Azure Web PubSub protocols, with exactly-once sessions.
#[derive(Debug, Parser)]
#[command(name = "oncewire", version, arg_required_else_help = true, after_help = EXAMPLES)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Cli {
    /// Takes the command line and the environment; on wrong usage, or when help is asked for, it says so and ends the
    /// process.
    pub fn from_process() -> Self {
        let matches = Self::command().mut_subcommands(|command| command.mut_args(unless_empty)).get_matches();
        Self::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
    }
}

/// A variable that is set to nothing counts as not set: that is how compose files pass what they don't have.
fn unless_empty(argument: Arg) -> Arg {
    let is_empty = argument.get_env().and_then(std::env::var_os).is_some_and(|value| value.is_empty());
    if is_empty { argument.env(None) } else { argument }
}

const EXAMPLES: &str = "\
Examples:
  oncewire dev
      Try it: serve on loopback with a fixed key and print a client URL.
  ONCEWIRE_ACCESS_KEY=\"$(openssl rand -base64 48)\" oncewire serve --listen 0.0.0.0:7080 \\
      --public-url https://chat.example.com
      Serve behind a proxy that ends TLS.
  oncewire token --hub chat --user ann --role webpubsub.joinLeaveGroup --role webpubsub.sendToGroup
      Print a URL with which a client can connect.

Exit codes: 0 success, 1 failure while running, 2 wrong usage or configuration.";

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve clients until SIGTERM or SIGINT.
    #[command(
        after_help = "When all hubs that there were before are there again, one line on standard output says so: on a terminal the connection string \
                            for server SDKs, with the access key in it, elsewhere the endpoint alone.\n\n\
                            Settings come from flags, then from the environment, then from the configuration \
                            file, then from the defaults."
    )]
    Serve(Box<Serve>),
    /// Serve on loopback with a fixed development key, and print what to try next.
    #[command(after_help = "Everybody knows the development key: for trying things out on one machine only.")]
    Dev(Dev),
    /// Print a URL with which a client can connect.
    #[command(after_help = TOKEN_EXAMPLES)]
    Token(Token),
    /// Look at a data directory that no gateway is using, or change it; copy one, also while it is used.
    #[command(subcommand)]
    Log(Log),
}

/// The commands about a data directory.
#[derive(Debug, Subcommand)]
pub enum Log {
    /// Say what is in it: hubs, segments, records, checkpoints.
    Inspect(Hubs),
    /// Read every record and checkpoint, and fold them as a start does. Exit code 1 and the place, if something is damaged.
    Verify(Hubs),
    /// Give hubs a new epoch and an empty log: sessions and messages from before are gone.
    #[command(
        after_help = "Necessary after a backup has been restored that `oncewire log copy` has not made: clients have seen what came after it, under \
                            sequence ids that would be given again. With a new epoch their sessions are refused, and \
                            they open new ones."
    )]
    NewEpoch(NewEpoch),
    /// Make a copy, also of a directory that a gateway is using; then that gateway makes it.
    #[command(
        after_help = "The first start of a copy begins a new epoch: sessions are over, and clients open new ones. What \
                            belongs to the hubs is there. A copy that was not finished is refused."
    )]
    Copy(Copy),
    /// Remove a hub, damaged or not: its sessions, its messages, and all that it remembers.
    Remove(OneHub),
}

/// Which data directory.
#[derive(Debug, Args)]
pub struct DataDirectory {
    /// Directory of the disk store
    #[arg(long = "data-dir", value_name = "DIR", env = "ONCEWIRE_DATA_DIR")]
    pub path: PathBuf,
}

/// Which hubs of a data directory.
#[derive(Debug, Args)]
pub struct Hubs {
    /// The directory.
    #[command(flatten)]
    pub directory: DataDirectory,

    /// This hub alone [default: all hubs]
    #[arg(long = "hub", value_name = "HUB", value_parser = hub_name)]
    pub only: Option<HubName>,
}

/// Which hubs get a new epoch, and how.
#[derive(Debug, Args)]
pub struct NewEpoch {
    /// Which hubs.
    #[command(flatten)]
    pub hubs: Hubs,

    /// Keep what belongs to the hubs: only sessions end, at the next start
    #[arg(long)]
    pub keep: bool,
}

/// Arguments of `log copy`.
#[derive(Debug, Args)]
pub struct Copy {
    /// The directory.
    #[command(flatten)]
    pub directory: DataDirectory,

    /// Directory for the copy, empty or not there yet
    #[arg(long, value_name = "DIR")]
    pub to: PathBuf,
}

/// Which hub of a data directory.
#[derive(Debug, Args)]
pub struct OneHub {
    /// The directory.
    #[command(flatten)]
    pub directory: DataDirectory,

    /// The hub
    #[arg(long, value_name = "HUB", value_parser = hub_name)]
    pub hub: HubName,
}

const TOKEN_EXAMPLES: &str = "\
Examples:
  oncewire token --hub chat --user ann --role webpubsub.joinLeaveGroup --role webpubsub.sendToGroup
      A user who may join every group and publish to it.
  oncewire token --hub chat --group news --minutes 1440 --endpoint https://chat.example.com
      A reader who is in one group from the start, for a day.";

/// Arguments of `serve`.
#[derive(Debug, Args)]
pub struct Serve {
    /// Address and port for plain http; port 0 picks a free one [default: 127.0.0.1:7080, none with TLS]
    #[arg(long, value_name = "ADDRESS:PORT", env = "ONCEWIRE_LISTEN", value_parser = listen_address)]
    listen: Option<SocketAddr>,

    /// Address and port for plain http where --listen is not given and TLS is off
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        env = "ONCEWIRE_DEFAULT_LISTEN",
        value_parser = listen_address,
        hide = true
    )]
    default_listen: Option<SocketAddr>,

    /// Whether and where https is served.
    #[command(flatten)]
    tls: Tls,

    /// Address and port of a listener of its own for health, /livez and metrics; port 0 picks a free one [default: none]
    #[arg(long, value_name = "ADDRESS:PORT", env = "ONCEWIRE_ADMIN_LISTEN")]
    admin_listen: Option<SocketAddr>,

    /// Access key, at least 32 bytes. A command line is visible to every local user: better use the variable
    #[arg(long, value_name = "KEY", env = "ONCEWIRE_ACCESS_KEY", hide_env_values = true, value_parser = secret)]
    access_key: Option<Secret>,

    /// A second access key that is accepted too, while keys are being rotated
    #[arg(long, value_name = "KEY", env = "ONCEWIRE_SECONDARY_KEY", hide_env_values = true, value_parser = secret)]
    secondary_key: Option<Secret>,

    /// Where sessions and messages are kept.
    #[command(flatten)]
    storage: Storage,

    /// URL under which clients reach this gateway; may be given several times, in the variable with commas
    #[arg(
        long = "public-url",
        value_name = "URL",
        env = "ONCEWIRE_PUBLIC_URL",
        value_delimiter = ',',
        value_parser = public_url
    )]
    public_urls: Vec<Url>,

    /// Origin whose pages may connect from a browser, or * for all; may be given several times, in the variable with
    /// commas [default: any with a token, the gateway's own without]
    #[arg(
        long = "allowed-origin",
        value_name = "ORIGIN",
        env = "ONCEWIRE_ALLOWED_ORIGIN",
        value_delimiter = ','
    )]
    allowed_origins: Vec<AllowedOrigin>,

    /// Serve the demo page at / too; everybody who reaches it gets access tokens for the hub demo
    #[arg(long, env = "ONCEWIRE_DEMO", value_parser = BoolishValueParser::new())]
    demo: bool,

    /// Count as healthy although hubs are damaged, which are then not served
    #[arg(long, env = "ONCEWIRE_START_WITH_DAMAGED_HUBS", value_parser = BoolishValueParser::new())]
    start_with_damaged_hubs: bool,

    /// Print the connection string, with the access key in it, also where standard output is no terminal
    #[arg(long, env = "ONCEWIRE_PRINT_CONNECTION_STRING", value_parser = BoolishValueParser::new())]
    pub print_connection_string: bool,

    /// Configuration file in TOML
    #[arg(long, value_name = "FILE", env = "ONCEWIRE_CONFIG")]
    pub config: Option<PathBuf>,

    /// How to log.
    #[command(flatten)]
    pub log: Logging,
}

impl Serve {
    /// What flags and environment set, to be laid over the file.
    pub fn overrides(&self) -> Overrides {
        Overrides {
            listen: self.listen,
            default_listen: self.default_listen,
            admin_listen: self.admin_listen,
            tls_cert: self.tls.tls_cert.clone(),
            tls_key: self.tls.tls_key.clone(),
            tls_self_signed: self.tls.tls_self_signed.then_some(true),
            tls_listen: self.tls.tls_listen,
            access_key: self.access_key.clone(),
            secondary_access_key: self.secondary_key.clone(),
            public_urls: self.public_urls.clone(),
            allowed_origins: self.allowed_origins.clone(),
            demo: self.demo.then_some(true),
            start_with_damaged_hubs: self.start_with_damaged_hubs.then_some(true),
            ..self.storage.overrides()
        }
    }
}

/// Whether and where https is served.
#[derive(Debug, Args)]
pub struct Tls {
    /// Certificate for https, in PEM, with its chain; read again when it changes
    #[arg(long, value_name = "FILE", env = "ONCEWIRE_TLS_CERT")]
    tls_cert: Option<PathBuf>,

    /// Private key of that certificate, in PEM
    #[arg(long, value_name = "FILE", env = "ONCEWIRE_TLS_KEY")]
    tls_key: Option<PathBuf>,

    /// Serve https with a certificate made here, kept in the data directory; clients have to be told to trust it
    #[arg(long, env = "ONCEWIRE_TLS_SELF_SIGNED", value_parser = BoolishValueParser::new())]
    tls_self_signed: bool,

    /// Address and port for https; port 0 picks a free one [default: 127.0.0.1:8443]
    #[arg(long, value_name = "ADDRESS:PORT", env = "ONCEWIRE_TLS_LISTEN", value_parser = listen_address)]
    tls_listen: Option<SocketAddr>,
}

/// Arguments of `dev`.
#[derive(Debug, Args)]
pub struct Dev {
    /// Loopback address and port to listen on; port 0 picks a free one
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        env = "ONCEWIRE_LISTEN",
        default_value = "127.0.0.1:7080",
        value_parser = listen_address
    )]
    pub listen: SocketAddr,

    /// Serve https too, with a certificate made here, kept in the data directory; clients have to be told to trust it
    #[arg(
        long,
        visible_alias = "tls",
        env = "ONCEWIRE_TLS_SELF_SIGNED",
        value_parser = BoolishValueParser::new()
    )]
    pub tls_self_signed: bool,

    /// Loopback address and port for https; port 0 picks a free one
    #[arg(
        long,
        value_name = "ADDRESS:PORT",
        env = "ONCEWIRE_TLS_LISTEN",
        default_value = "127.0.0.1:8443",
        value_parser = listen_address
    )]
    pub tls_listen: SocketAddr,

    /// Where sessions and messages are kept.
    #[command(flatten)]
    pub storage: Storage,

    /// How to log.
    #[command(flatten)]
    pub log: Logging,

    /// Set by the supervisor for the process that serves.
    #[arg(long, hide = true)]
    pub supervised: bool,

    /// Where the process before this one served, by scheme.
    #[arg(long, hide = true, value_name = "SCHEME=ADDRESS:PORT")]
    pub again: Vec<String>,
}

/// Where sessions and messages are kept.
#[derive(Debug, Args)]
pub struct Storage {
    /// Where sessions and messages are kept: on disk they survive a crash, in memory nothing does [default: disk]
    #[arg(long, value_enum, value_name = "STORE", env = "ONCEWIRE_STORE")]
    store: Option<Store>,

    /// Directory of the disk store, made if it is not there [default: ./data]
    #[arg(long, value_name = "DIR", env = "ONCEWIRE_DATA_DIR")]
    data_dir: Option<PathBuf>,

    /// What an acknowledgement waits for, with the disk store [default: sync]
    #[arg(long, value_enum, value_name = "WHAT", env = "ONCEWIRE_DURABILITY")]
    durability: Option<Durability>,
}

impl Storage {
    /// What flags and environment set, to be laid over the file.
    pub fn overrides(&self) -> Overrides {
        Overrides {
            store: self.store,
            data_dir: self.data_dir.clone(),
            durability: self.durability,
            ..Overrides::default()
        }
    }
}

/// Arguments of `token`.
#[derive(Debug, Args)]
pub struct Token {
    /// The hub that the client may connect to
    #[arg(long, value_name = "HUB", env = "ONCEWIRE_HUB")]
    pub hub: String,

    /// The user that the client acts for; without it the client is anonymous
    #[arg(long, value_name = "USER", env = "ONCEWIRE_USER")]
    pub user: Option<String>,

    /// A role, such as webpubsub.joinLeaveGroup or webpubsub.sendToGroup.news; may be given several times
    #[arg(long = "role", value_name = "ROLE", env = "ONCEWIRE_ROLE")]
    pub roles: Vec<String>,

    /// A group that the client is in from the start; may be given several times
    #[arg(long = "group", value_name = "GROUP", env = "ONCEWIRE_GROUP")]
    pub groups: Vec<String>,

    /// For how many minutes a client may connect with the URL; a connection made in time stays
    #[arg(
        long,
        value_name = "MINUTES",
        env = "ONCEWIRE_MINUTES",
        default_value_t = 60,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub minutes: u32,

    /// URL under which clients reach the gateway; the first, where the variable lists several [default: what the
    /// configuration file says, else http://127.0.0.1:7080]
    #[arg(
        long,
        visible_alias = "public-url",
        value_name = "URL",
        env = "ONCEWIRE_PUBLIC_URL",
        value_delimiter = ',',
        value_parser = public_url
    )]
    pub endpoint: Vec<Url>,

    /// Access key of the gateway. A command line is visible to every local user: better use the variable
    #[arg(long, value_name = "KEY", env = "ONCEWIRE_ACCESS_KEY", hide_env_values = true, value_parser = secret)]
    pub access_key: Option<Secret>,

    /// Configuration file of the gateway, for its key and for where clients reach it
    #[arg(long, value_name = "FILE", env = "ONCEWIRE_CONFIG")]
    pub config: Option<PathBuf>,
}

/// How to log.
#[derive(Debug, Args)]
pub struct Logging {
    /// Format of the log on standard error
    #[arg(
        long = "log-format",
        value_enum,
        value_name = "FORMAT",
        env = "ONCEWIRE_LOG_FORMAT",
        default_value = "text"
    )]
    pub format: LogFormat,

    /// What to log: a level, or a list such as info,oncewire::edge=debug
    #[arg(long = "log", value_name = "FILTER", env = "ONCEWIRE_LOG", default_value = "info")]
    pub filter: String,
}

fn hub_name(text: &str) -> Result<HubName, NameError> {
    HubName::new(text)
}

fn secret(text: &str) -> Result<Secret, Infallible> {
    Ok(Secret::new(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_are_consistent() {
        Cli::command().debug_assert();
    }
}
