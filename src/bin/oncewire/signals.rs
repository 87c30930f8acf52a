//! The signals that the gateway listens to.

use std::io;

use oncewire::reload;
use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};

/// What comes when a file would grow beyond the limit of a process (`ulimit -f`), on Linux and macOS. Unless it is listened
/// to, it ends the process; otherwise the write fails as on a full disk.
const FILE_SIZE_SIGNAL: i32 = 25;

/// The signals that end the gateway.
pub struct Signals {
    terminate: unix::Signal,
    interrupt: unix::Signal,
}

impl Signals {
    /// Begins to listen: from here on they do not end the process.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn listen() -> io::Result<Self> {
        // The handler stays when its listener is gone.
        drop(signal(SignalKind::from_raw(FILE_SIZE_SIGNAL))?);
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// The next SIGTERM or SIGINT.
    pub async fn next(&mut self) -> Signal {
        tokio::select! {
            _ = self.terminate.recv() => Signal::TERM,
            _ = self.interrupt.recv() => Signal::INT,
        }
    }
}

/// The signal that has files read again. Without this it would end the process.
pub struct HangUps(unix::Signal);

impl HangUps {
    /// Begins to listen.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn listen() -> io::Result<Self> {
        Ok(Self(signal(SignalKind::hangup())?))
    }

    /// For ever, at each SIGHUP.
    pub async fn reload(&mut self) {
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
