//! The `oncewire` command: flags and file to configuration to run.

mod cli;
mod fold_check;
mod greeting;
mod log_command;
mod supervisor;
mod token_command;

use std::io::{ErrorKind, IsTerminal as _, Write as _};
use std::net::SocketAddr;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::CommandFactory as _;
use oncewire::auth::{AccessKeyError, AccessKeys, KeyName};
use oncewire::config::{Config, Overrides, Scheme, Secret, variable_advice};
use oncewire::edge::TlsError;
use oncewire::gateway::{Gateway, GatewayError};
use oncewire::{gateway, reload, telemetry};
use tokio::sync::Notify;

use crate::cli::{Cli, Command, Dev, Logging, Serve};

/// Many small objects that live as long as a session: the system's allocator would use more memory for them.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// `mi_option_purge_delay` in `mimalloc.h`; the library's crate has no name for it.
const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;

/// For so long the allocator keeps what was freed before the system gets it back, in milliseconds. With its usual second a
/// flood of large messages that are given up takes some hundred MiB beyond all bounds.
const KEPT_FREE_MS: std::ffi::c_long = 100;

/// What `dev` serves with. Everybody knows it, so `dev` listens on loopback only.
const DEVELOPMENT_KEY: &str = "oncewire-development-key-for-loopback-only";

/// What a shell shows of a command that SIGPIPE has ended, as it ends most of them when nobody reads on.
const NO_READER_EXIT_CODE: u8 = 128 + 13;

/// Why the command ends without success.
enum Failure {
    /// The user has to change the command or the configuration: exit code 2.
    Usage(String),
    /// Something failed while running: exit code 1.
    Runtime(anyhow::Error),
    /// Nobody reads what is printed any more, which is no news to whoever stopped.
    NoReader,
    /// The process that served ended with this code, and has said why.
    Served(u8),
}

/// Has the allocator give memory back sooner, unless `MIMALLOC_PURGE_DELAY` says when.
fn shorten_purge_delay() {
    #[expect(unsafe_code, reason = "there is no safe way to set an option of the allocator")]
    // SAFETY: takes two numbers and checks the first; nothing else is touched.
    unsafe {
        libmimalloc_sys::mi_option_set_default(PURGE_DELAY, KEPT_FREE_MS);
    }
}

fn main() -> ExitCode {
    shorten_purge_delay();
    let result = match Cli::from_process().command {
        Command::Serve(arguments) => serve(&arguments),
        Command::Dev(arguments) => dev(&arguments),
        Command::Token(arguments) => token_command::run(&arguments),
        Command::Log(command) => log_command::run(&command),
    };
    let has_reader = telemetry::finish();
    let (code, message) = match result {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Usage(message)) => (2, message),
        Err(Failure::Runtime(error)) => (1, format!("{error:#}")),
        Err(Failure::NoReader) => return ExitCode::from(NO_READER_EXIT_CODE),
        Err(Failure::Served(code)) => return ExitCode::from(code),
    };
    // Nothing is left to do when standard error is gone, and whoever does not read it would be waited for.
    let _ = has_reader.then(|| writeln!(std::io::stderr(), "oncewire: {message}"));
    ExitCode::from(code)
}

fn serve(arguments: &Serve) -> Result<(), Failure> {
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

/// Binds, and serves until a signal comes; `greet` is called once the gateway takes work. Whoever tells it once more to end
/// does not want to wait for clients to go away. A hang-up has files read again. `file` is where the configuration comes from, and what was laid over it;
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
        let mut hang_ups = HangUps::listen().context("can't listen for signals").map_err(Failure::Runtime)?;
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
            signals.next().await;
            stop.notify_one();
            signals.next().await;
        };
        tokio::select! {
            served = serving => served.map_err(runtime_failure)?,
            failure = greeting => return Err(failure),
            () = impatience => return Err(Failure::Runtime(anyhow::anyhow!("told again to end while shutting down"))),
            () = hang_ups.reload() => {}
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

fn start_logging(log: &Logging) -> Result<(), Failure> {
    telemetry::init(log.format, &log.filter).map_err(usage)
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

fn no_access_key(advice: &str) -> Failure {
    Failure::Usage(format!(
        "no access key: set ONCEWIRE_ACCESS_KEY, give --access-key, or put access_key into the configuration file; {advice}"
    ))
}

/// The key of `dev` is for loopback: everybody knows it.
fn refuse_public_key(config: Config) -> Result<Config, Failure> {
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

/// What comes when a file would grow beyond the limit of a process (`ulimit -f`), on Linux and macOS. Unless it is listened
/// to, it ends the process; otherwise the write fails as on a full disk.
const FILE_SIZE_SIGNAL: i32 = 25;

/// The signals that end the gateway.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn listen() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        // The handler stays when its listener is gone.
        drop(signal(SignalKind::from_raw(FILE_SIZE_SIGNAL))?);
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Completes at a SIGTERM or SIGINT.
    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// The signal that has files read again. Without this it would end the process.
struct HangUps(tokio::signal::unix::Signal);

impl HangUps {
    fn listen() -> std::io::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self(signal(SignalKind::hangup())?))
    }

    /// For ever, at each SIGHUP.
    async fn reload(&mut self) {
        while self.0.recv().await.is_some() {
            let watched = reload::look_now();
            tracing::info!(
                watched,
                "SIGHUP: the files of the certificate and the event handlers are read again, where there are any"
            );
        }
        std::future::pending().await
    }
}

fn print(text: &str) -> Result<(), Failure> {
    writeln!(std::io::stdout(), "{text}").map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::NoReader,
        _ => Failure::Runtime(anyhow::Error::new(error).context("can't write to standard output")),
    })
}

fn usage(error: impl std::error::Error) -> Failure {
    Failure::Usage(error.to_string())
}

fn runtime_failure(error: impl std::error::Error + Send + Sync + 'static) -> Failure {
    Failure::Runtime(error.into())
}
