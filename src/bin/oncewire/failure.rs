//! Why the command ends without success: the exit code, and what is said.

use std::io::{ErrorKind, Write as _};

/// What a shell shows of a command that SIGPIPE has ended, as it ends most of them when nobody reads on.
const NO_READER_EXIT_CODE: u8 = 128 + 13;

/// Why the command ends without success.
pub enum Failure {
    /// The user has to change the command or the configuration: exit code 2.
    Usage(String),
    /// Something failed while running: exit code 1.
    Runtime(anyhow::Error),
    /// Nobody reads what is printed any more, which is no news to whoever stopped.
    NoReader,
    /// The process that served ended with this code, and has said why.
    Served(u8),
}

impl Failure {
    /// The exit code, and the line for standard error where something is left to say.
    pub fn outcome(self) -> (u8, Option<String>) {
        match self {
            Self::Usage(message) => (2, Some(message)),
            Self::Runtime(error) => (1, Some(format!("{error:#}"))),
            Self::NoReader => (NO_READER_EXIT_CODE, None),
            Self::Served(code) => (code, None),
        }
    }
}

/// An error that the user can put right.
pub fn usage(error: impl std::error::Error) -> Failure {
    Failure::Usage(error.to_string())
}

/// An error of a command that had begun its work.
pub fn runtime_failure(error: impl std::error::Error + Send + Sync + 'static) -> Failure {
    Failure::Runtime(error.into())
}

/// Prints a line to standard output.
///
/// # Errors
/// When it can't be written there.
pub fn print(text: &str) -> Result<(), Failure> {
    writeln!(std::io::stdout(), "{text}").map_err(|error| match error.kind() {
        ErrorKind::BrokenPipe => Failure::NoReader,
        _ => Failure::Runtime(anyhow::Error::new(error).context("can't write to standard output")),
    })
}
