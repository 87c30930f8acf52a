//! What the gateway tells those who run it: structured events on standard error, and counters.
//!
//! Knows: the filter, the two formats, that no secret may get out, that nobody waits for the log, when something that goes
//! wrong is worth a warning, and the names of counters. Does not know: what is logged, and who asks for the counters.
//!
//! Levels: ERROR is broken and needs a person; WARN will need one; INFO is the life of the process; DEBUG is a
//! connection; TRACE is a message. No level holds an access key, a token or a payload.

mod counters;
mod episode;
mod lossy;

use std::io::{self, IsTerminal};
use std::sync::OnceLock;
use std::time::Duration;

use tracing::Level;
use tracing_subscriber::filter::{EnvFilter, FilterExt, LevelFilter, ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer, Registry, fmt};

pub use counters::{
    AppendFailure, Counted, Counters, EventFailure, Family, Reason, RecoveryDelay, RecoveryRefusal,
    RequestShed, RestRefusal, SessionEnd, SocketEnd, StrangerRefusal, TokenRefusal, UpgradeRefusal,
};
pub use episode::{Episode, Episodes};
pub use lossy::LOG_BYTES_MAX;
use lossy::Lossy;

/// How long the end of the process waits for standard error to take the last lines.
const LAST_LINES_WAIT: Duration = Duration::from_secs(1);

/// The log of this process, once there is one.
static LOG: OnceLock<Lossy> = OnceLock::new();

/// How log lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One line of text for a person.
    #[default]
    Text,
    /// One JSON object a line for a machine.
    Json,
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum TelemetryError {
    /// The filter is not a list of `target=level`.
    #[error("the log filter can't be understood: {0}")]
    BadFilter(#[from] ParseError),
    /// A word of the filter stands for nothing.
    #[error(
        "the log filter can't be understood: {0:?} is no level, which are off, error, warn, info, debug and trace; for a part \
         of the gateway a level is given with =, as in oncewire::edge=debug"
    )]
    NoLevel(String),
    /// Logging has been set up before in this process.
    #[error(transparent)]
    TwiceInitialised(#[from] TryInitError),
    /// There is no thread to write it.
    #[error("the log has no thread: {0}")]
    NoThread(#[from] io::Error),
}

/// Starts logging to standard error for the whole process. `filter` is a level, or a list such as
/// `info,oncewire::edge=trace`. A thread of its own writes the lines: up to [`LOG_BYTES_MAX`] of them wait for it, and further
/// ones are dropped and counted.
///
/// # Errors
/// When the filter can't be understood, or logging has been set up before.
pub fn init(format: LogFormat, filter: &str) -> Result<(), TelemetryError> {
    check_words(filter)?;
    let filter = EnvFilter::builder().parse(filter)?.and(ours_in_full());
    let log = Lossy::default();
    let (to_log, writer) = (log.clone(), log.clone());
    let to_log = move || to_log.clone();
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match format {
        LogFormat::Text => {
            fmt::layer().with_writer(to_log).with_ansi(io::stderr().is_terminal()).with_filter(filter).boxed()
        }
        LogFormat::Json => fmt::layer().json().with_writer(to_log).with_filter(filter).boxed(),
    };
    tracing_subscriber::registry().with(layer).try_init()?;
    std::thread::Builder::new().name("log".to_owned()).spawn(move || writer.run(io::stderr()))?;
    // Nobody else sets it: logging is set up once.
    let _ = LOG.set(log);
    Ok(())
}

/// The library takes a word that is no level for a part of the program, of which all is logged, and of the rest nothing: a
/// misspelt level would switch the log off.
fn check_words(filter: &str) -> Result<(), TelemetryError> {
    let words = filter.split(',').map(str::trim).filter(|word| !word.is_empty());
    let mut bare = words.filter(|word| !word.contains(['=', '[']));
    let is_known = |word: &str| word.parse::<LevelFilter>().is_ok() || word.starts_with("oncewire");
    match bare.find(|word| !is_known(word)) {
        Some(word) => Err(TelemetryError::NoLevel(word.to_owned())),
        None => Ok(()),
    }
}

/// The process is about to end: tells what is going on still, and waits for the last lines to be written, for a second at
/// most. False when standard error does not take them: whoever writes there now would wait for ever.
pub fn finish() -> bool {
    episode::tell_all();
    flush()
}

/// Waits for the lines so far to be written, for a second at most; tells whether they are.
pub fn flush() -> bool {
    LOG.get().is_none_or(|log| log.flush(LAST_LINES_WAIT))
}

/// Lines of the log that were not written: there was no room for them, or standard error did not take them.
pub fn dropped_log_lines() -> u64 {
    LOG.get().map_or(0, Lossy::dropped_lines)
}

/// Lets libraries speak only at INFO and above, whatever the filter says: below that, HTTP and WebSocket libraries
/// log whole frames and header lines, and with them payloads and tokens.
fn ours_in_full() -> Targets {
    Targets::new().with_target("oncewire", Level::TRACE).with_default(Level::INFO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_kept_from_logging_what_they_carry() {
        let targets = ours_in_full();
        for ours in ["oncewire", "oncewire::edge", "oncewire_protocol::hub"] {
            assert!(targets.would_enable(ours, &Level::TRACE), "{ours}");
        }
        for library in ["hyper::proto::h1::io", "tungstenite::protocol", "axum::serve", "once"] {
            assert!(targets.would_enable(library, &Level::INFO), "{library}");
            assert!(!targets.would_enable(library, &Level::DEBUG), "{library}");
            assert!(!targets.would_enable(library, &Level::TRACE), "{library}");
        }
    }

    #[test]
    fn a_bad_filter_is_refused() {
        assert!(matches!(init(LogFormat::Text, "oncewire=loud"), Err(TelemetryError::BadFilter(_))));
    }

    #[test]
    fn a_misspelt_level_switched_the_log_off() {
        for bad in ["warning", "verbose", "info,debg", "info;debug", "hyper"] {
            assert!(matches!(init(LogFormat::Text, bad), Err(TelemetryError::NoLevel(_))), "{bad}");
        }
        for good in [
            "",
            "off",
            "WARN",
            "info,oncewire::edge=debug",
            "oncewire",
            "info, hyper=warn",
            "error,[x]=debug",
        ] {
            assert!(check_words(good).is_ok(), "{good}");
        }
    }
}
