//! The `oncewire` command: flags and file to configuration to run.

mod cli;
mod fold_check;
mod log_command;
#[cfg(unix)]
mod supervisor;

use std::fmt::Write as _;
use std::io::{IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use oncewire::auth::{AccessKeyError, AccessKeys, ClientGrant, KeyName};
use oncewire::config::{Config, Overrides, Scheme, Secret};
use oncewire::edge::TlsError;
use oncewire::gateway::{Gateway, GatewayError};
use oncewire::{engine, gateway, telemetry};
use oncewire_protocol::wire::{GroupName, HubName};
use tokio::sync::Notify;
use url::Url;

use crate::cli::{Cli, Command, Dev, Logging, Serve, Token};

/// Many small objects that live as long as a session: the system's allocator would use more memory for them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// What `dev` serves with. Everybody knows it, so `dev` listens on loopback only.
const DEVELOPMENT_KEY: &str = "oncewire-development-key-for-loopback-only";
const DEVELOPMENT_HUB: &str = "chat";
const DEVELOPMENT_TOKEN_VALIDITY_SECONDS: u64 = 24 * 60 * 60;

/// Why the command ends without success.
enum Failure {
    /// The user has to change the command or the configuration: exit code 2.
    Usage(String),
    /// Something failed while running: exit code 1.
    Runtime(anyhow::Error),
    /// The process that served ended with this code, and has said why.
    #[cfg(unix)]
    Served(u8),
}

fn main() -> ExitCode {
    let result = match Cli::from_process().command {
        Command::Serve(arguments) => serve(&arguments),
        Command::Dev(arguments) => dev(&arguments),
        Command::Token(arguments) => token(&arguments),
        Command::Log(command) => log_command::run(&command),
    };
    let (code, message) = match result {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Usage(message)) => (2, message),
        Err(Failure::Runtime(error)) => (1, format!("{error:#}")),
        #[cfg(unix)]
        Err(Failure::Served(code)) => return ExitCode::from(code),
    };
    // Nothing is left to do when standard error is gone.
    let _ = writeln!(std::io::stderr(), "oncewire: {message}");
    ExitCode::from(code)
}

fn serve(arguments: &Serve) -> Result<(), Failure> {
    let config = Config::load(arguments.config.as_deref(), arguments.overrides()).map_err(usage)?;
    let access_key = config.access_key.clone().ok_or_else(no_access_key)?;
    access_keys(&access_key, config.secondary_access_key.as_ref())?;
    start_logging(&arguments.log)?;
    for warning in config.warnings() {
        tracing::warn!("{warning}");
    }
    let file = arguments.config.as_deref().map(|file| (file, arguments.overrides()));
    // Whatever else standard output is, somebody keeps what is written there: a container's log, a file.
    let shows_key = arguments.print_connection_string || std::io::stdout().is_terminal();
    run(config, file, false, |addresses, config| {
        let endpoint = endpoint(addresses, config)?;
        let ready =
            if shows_key { connection_string(&endpoint, &access_key) } else { format!("ready: {endpoint}") };
        print(&ready)
    })
}

fn dev(arguments: &Dev) -> Result<(), Failure> {
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
#[cfg(unix)]
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
    run(config, None, true, |addresses, config| {
        if arguments.again.is_empty() {
            print(&development_greeting(addresses, config, access_key)?)?;
        }
        let places: Vec<_> =
            addresses.iter().map(|(scheme, address)| format!("{scheme}={address}")).collect();
        lifeline.ready(&places).context("the supervisor is gone").map_err(Failure::Runtime)
    })
}

/// Serves in this process: nobody would start it again.
#[cfg(not(unix))]
fn dev_with(config: Config, arguments: &Dev, access_key: &Secret) -> Result<(), Failure> {
    start_logging(&arguments.log)?;
    run(config, None, false, |addresses, config| print(&development_greeting(addresses, config, access_key)?))
}

fn token(arguments: &Token) -> Result<(), Failure> {
    let access_key = arguments.access_key.clone().ok_or_else(no_access_key)?;
    let keys = access_keys(&access_key, None)?;
    HubName::new(&arguments.hub).map_err(|error| Failure::Usage(format!("--hub: {error}")))?;
    for group in &arguments.groups {
        GroupName::new(group).map_err(|error| Failure::Usage(format!("--group {group:?}: {error}")))?;
    }
    if arguments.roles.iter().any(|role| role.trim().is_empty()) {
        return Err(Failure::Usage("--role is empty".to_owned()));
    }
    let endpoint = arguments.endpoint().ok_or_else(|| Failure::Usage("--endpoint is empty".to_owned()))?;
    let grant = ClientGrant {
        endpoint,
        hub: &arguments.hub,
        user_id: arguments.user.as_deref(),
        roles: &arguments.roles,
        groups: &arguments.groups,
        validity_seconds: u64::from(arguments.minutes) * 60,
    };
    let url = keys.client_url(&grant, engine::wall_clock().unix_seconds()).map_err(usage)?;
    print(url.as_str())
}

/// Binds, and serves until a signal comes; `greet` is called once the gateway takes work. Whoever interrupts it once more
/// does not want to wait for clients to go away. `file` is where the configuration comes from, and what was laid over it;
/// `is_supervised` tells that this process is started again when it is killed.
fn run(
    config: Config,
    file: Option<(&Path, Overrides)>,
    is_supervised: bool,
    greet: impl FnOnce(&[(Scheme, SocketAddr)], &Config) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("can't start the runtime")
        .map_err(Failure::Runtime)?;
    let outcome = runtime.block_on(async {
        // First of all: whoever starts this may send one at any time.
        let mut signals = Signals::listen().context("can't listen for signals").map_err(Failure::Runtime)?;
        raise_descriptor_limit();
        let listeners = gateway::bind(&config).await.map_err(runtime_failure)?;
        let addresses = listeners.addresses().map_err(runtime_failure)?;
        let admin_address = listeners.admin_address().map_err(runtime_failure)?;
        let gateway = Gateway::open(config.clone()).map_err(|error| match error {
            GatewayError::Tls(TlsError::Certificate(error)) => usage(error),
            GatewayError::Events(error) => usage(error),
            error => runtime_failure(error),
        })?;
        let gateway = gateway.supervised(is_supervised);
        let gateway = match file {
            Some((file, overrides)) => gateway.reloading(file, overrides),
            None => gateway,
        };
        for (scheme, address) in &addresses {
            tracing::info!(%scheme, %address, process = std::process::id(), "listening");
        }
        if let Some(address) = admin_address {
            tracing::info!(%address, "listening for the operator's machinery");
        }
        let stop = Arc::new(Notify::new());
        let stopped = Arc::clone(&stop).notified_owned();
        let readiness = gateway.readiness();
        let serving = gateway.serve(listeners, stopped);
        let greeting = async {
            readiness.reached().await;
            tracing::info!("ready");
            match greet(&addresses, &config) {
                Ok(()) => std::future::pending().await,
                Err(failure) => failure,
            }
        };
        let impatience = async {
            signals.first().await;
            stop.notify_one();
            signals.interrupt().await;
        };
        tokio::select! {
            served = serving => served.map_err(runtime_failure)?,
            failure = greeting => return Err(failure),
            () = impatience => return Err(Failure::Runtime(anyhow::anyhow!("interrupted while shutting down"))),
        }
        tracing::info!("stopped");
        Ok(())
    });
    if outcome.is_err() {
        // Whatever still runs is not waited for.
        runtime.shutdown_background();
    }
    outcome
}

/// Each client takes a descriptor, and the usual soft limit allows a thousand: takes as many as the operator allows.
fn raise_descriptor_limit() {
    match rlimit::increase_nofile_limit(u64::MAX) {
        Ok(descriptors) => tracing::debug!(descriptors, "limit of open descriptors"),
        Err(error) => tracing::warn!(%error, "the limit of open descriptors can't be raised"),
    }
}

/// The URL that clients are told: the first of those that they can use.
fn endpoint(addresses: &[(Scheme, SocketAddr)], config: &Config) -> Result<String, Failure> {
    match addresses {
        [(scheme, local), ..] => Ok(config.endpoint(*scheme, *local)),
        [] => Err(Failure::Runtime(anyhow::anyhow!("there is no address to listen on"))),
    }
}

/// The one line that holds the access key: it goes to standard output, never into the log.
fn connection_string(endpoint: &str, access_key: &Secret) -> String {
    format!("connection string: Endpoint={endpoint};AccessKey={};Version=1.0;", access_key.expose())
}

/// The demo page, the connection string, a client URL, and a line that works with nothing but Node: in the clear, where
/// that is served, since Node does not trust the certificate of https.
fn development_greeting(
    addresses: &[(Scheme, SocketAddr)],
    config: &Config,
    access_key: &Secret,
) -> Result<String, Failure> {
    let endpoint = endpoint(addresses, config)?;
    let base: Url = endpoint.parse().map_err(runtime_failure)?;
    let in_the_clear = match addresses.iter().find(|(scheme, _)| *scheme == Scheme::Http) {
        Some((scheme, local)) => config.endpoint(*scheme, *local).parse().map_err(runtime_failure)?,
        None => base.clone(),
    };
    let url = development_url(&base, access_key)?;
    let node_url = development_url(&in_the_clear, access_key)?;
    let mut greeting = format!("demo page: {base}\n{}\n", connection_string(&endpoint, access_key));
    let _ = write!(
        greeting,
        "client URL: {url}\n\n\
         Try it with Node 20.10 or later, in as many terminals as you like: each line sent reaches all of them.\n\n\
         node --experimental-websocket -e 'const ws = new WebSocket(\"{node_url}\", \"json.webpubsub.azure.v1\"); \
         const send = (m) => ws.send(JSON.stringify(m)); \
         ws.onmessage = (e) => console.log(e.data); \
         ws.onopen = () => {{ send({{type: \"joinGroup\", group: \"room\", ackId: 1}}); \
         process.stdin.on(\"data\", (d) => \
         send({{type: \"sendToGroup\", group: \"room\", dataType: \"text\", data: String(d).trim()}})) }}'\n"
    );
    Ok(greeting)
}

fn development_url(endpoint: &Url, access_key: &Secret) -> Result<Url, Failure> {
    let roles = ["webpubsub.joinLeaveGroup", "webpubsub.sendToGroup"].map(str::to_owned);
    let grant = ClientGrant {
        endpoint,
        hub: DEVELOPMENT_HUB,
        user_id: Some("dev"),
        roles: &roles,
        groups: &[],
        validity_seconds: DEVELOPMENT_TOKEN_VALIDITY_SECONDS,
    };
    access_keys(access_key, None)?.client_url(&grant, engine::wall_clock().unix_seconds()).map_err(usage)
}

fn start_logging(log: &Logging) -> Result<(), Failure> {
    telemetry::init(log.format, &log.filter).map_err(usage)
}

fn no_access_key() -> Failure {
    Failure::Usage(
        "no access key: set ONCEWIRE_ACCESS_KEY, give --access-key, or (serve) put access_key into the \
         configuration file; to try things out without one, use oncewire dev"
            .to_owned(),
    )
}

fn access_keys(primary: &Secret, secondary: Option<&Secret>) -> Result<AccessKeys, Failure> {
    AccessKeys::new(primary.expose(), secondary.map(Secret::expose)).map_err(|error| {
        let (AccessKeyError::TooShort(name) | AccessKeyError::BadCharacter(name)) = error;
        let source = match name {
            KeyName::Primary => "ONCEWIRE_ACCESS_KEY, --access-key or access_key",
            KeyName::Secondary => "ONCEWIRE_SECONDARY_KEY, --secondary-key or secondary_access_key",
        };
        Failure::Usage(format!("{error} ({source})"))
    })
}

/// The signals that end the gateway.
#[cfg(unix)]
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

#[cfg(unix)]
impl Signals {
    fn listen() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Completes at a SIGTERM or SIGINT.
    async fn first(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }

    /// Completes at a SIGINT.
    async fn interrupt(&mut self) {
        let _ = self.interrupt.recv().await;
    }
}

/// The signals that end the gateway.
#[cfg(not(unix))]
struct Signals;

#[cfg(not(unix))]
impl Signals {
    fn listen() -> std::io::Result<Self> {
        Ok(Self)
    }

    /// Completes at a Ctrl-C.
    async fn first(&mut self) {
        self.interrupt().await;
    }

    /// Completes at a Ctrl-C.
    async fn interrupt(&mut self) {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending().await
        }
    }
}

fn print(text: &str) -> Result<(), Failure> {
    writeln!(std::io::stdout(), "{text}").context("can't write to standard output").map_err(Failure::Runtime)
}

fn usage(error: impl std::error::Error) -> Failure {
    Failure::Usage(error.to_string())
}

fn runtime_failure(error: impl std::error::Error + Send + Sync + 'static) -> Failure {
    Failure::Runtime(error.into())
}
