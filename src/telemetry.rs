//! Logging: structured events to standard error.
//!
//! Knows: the filter, the two formats, and that no secret may get out. Does not know: what is logged.
//!
//! Levels: ERROR is broken and needs a person; WARN will need one; INFO is the life of the process; DEBUG is a
//! connection; TRACE is a message. No level holds an access key, a token or a payload.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use tracing::Level;
use tracing_subscriber::filter::{EnvFilter, FilterExt, ParseError, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::{SubscriberInitExt, TryInitError};
use tracing_subscriber::{Layer, Registry, fmt};

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
    /// Logging has been set up before in this process.
    #[error(transparent)]
    TwiceInitialised(#[from] TryInitError),
}

/// Starts logging to standard error for the whole process. `filter` is a level, or a list such as
/// `info,oncewire::edge=trace`.
///
/// # Errors
/// When the filter can't be understood, or logging has been set up before.
pub fn init(format: LogFormat, filter: &str) -> Result<(), TelemetryError> {
    let filter = EnvFilter::builder().parse(filter)?.and(ours_in_full());
    let layer: Box<dyn Layer<Registry> + Send + Sync> = match format {
        LogFormat::Text => fmt::layer()
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .with_filter(filter)
            .boxed(),
        LogFormat::Json => fmt::layer().json().with_writer(std::io::stderr).with_filter(filter).boxed(),
    };
    Ok(tracing_subscriber::registry().with(layer).try_init()?)
}

/// Lets libraries speak only at INFO and above, whatever the filter says: below that, HTTP and WebSocket libraries
/// log whole frames and header lines, and with them payloads and tokens.
fn ours_in_full() -> Targets {
    Targets::new().with_target("oncewire", Level::TRACE).with_default(Level::INFO)
}

/// After so long without another failure the next one begins another episode.
const EPISODES_APART: Duration = Duration::from_secs(60);

/// Tells the first failure of an episode, which is worth a warning, from its repetitions: what keeps failing must not
/// flood the log.
#[derive(Debug, Default)]
pub struct Episode {
    last: Option<Instant>,
}

impl Episode {
    /// Takes note of a failure; tells whether it is the first one of an episode.
    pub fn is_news(&mut self, now: Instant) -> bool {
        let earlier = self.last.replace(now);
        earlier.is_none_or(|earlier| now.saturating_duration_since(earlier) >= EPISODES_APART)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_news_once_in_an_episode() {
        let mut episode = Episode::default();
        let start = Instant::now();
        assert!(episode.is_news(start));
        let last = start + EPISODES_APART - Duration::from_millis(1);
        assert!(!episode.is_news(last));
        assert!(!episode.is_news(last + EPISODES_APART / 2));
        assert!(episode.is_news(last + EPISODES_APART * 3 / 2));
    }

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
}
