//! Using files again when they change.
//!
//! The files are read every few seconds and compared by what is in them: whichever way they are replaced (written over,
//! renamed, a link that points elsewhere, on a network's file system), that finds it. What can't be used changes nothing.
//!
//! Does not know: what is in the files, and what uses it.

use std::fmt::Display;
use std::sync::LazyLock;
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::sync::watch;

/// How often the files are read.
const INTERVAL: Duration = Duration::from_secs(2);

/// Orders to look at once: of the whole process, as the signal is that stands for them.
static ORDERS: LazyLock<watch::Sender<u64>> = LazyLock::new(|| watch::Sender::new(0));

/// Has all files looked at now; tells how many watches there are that do so.
pub fn look_now() -> usize {
    ORDERS.send_modify(|orders| *orders += 1);
    ORDERS.receiver_count()
}

/// What is made of files, and can be made of them again.
pub trait Reloaded: Send + 'static {
    /// What is in the files.
    type Contents: Send;
    /// Why that can't be used.
    type Error: Display + Send;

    /// Reads the files.
    ///
    /// # Errors
    /// When that is not possible.
    fn read(&self) -> Result<Self::Contents, Self::Error>;

    /// The bytes of each file.
    fn bytes(contents: &Self::Contents) -> Vec<&[u8]>;

    /// Uses this from now on. Tells whether it makes a difference.
    ///
    /// # Errors
    /// When it can't be used: then what was used before still is.
    fn take(&mut self, contents: Self::Contents) -> Result<bool, Self::Error>;

    /// Logs that something else is used from now on.
    fn log_taken(&self);

    /// Logs why what is in the files now is not used.
    fn log_refused(&self, error: &Self::Error);
}

/// What was found in files, without keeping it.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    Contents([u8; 32]),
    /// They could not be read; why not.
    Unreadable(String),
}

impl Found {
    fn of<R: Reloaded>(read: &Result<R::Contents, R::Error>) -> Self {
        match read {
            Ok(contents) => {
                let mut digest = Sha256::new();
                for file in R::bytes(contents) {
                    // The length divides them.
                    digest.update((file.len() as u64).to_be_bytes());
                    digest.update(file);
                }
                Self::Contents(digest.finalize().into())
            }
            Err(error) => Self::Unreadable(error.to_string()),
        }
    }
}

/// What came of a look at the files.
#[derive(Debug)]
pub enum Outcome<E> {
    /// Nothing to speak of.
    Nothing,
    /// There is something else, and it is used.
    Taken,
    /// What is there now can't be used.
    Refused(E),
}

/// Looks at the files now and then.
pub struct Watch<R> {
    reloaded: R,
    current: Option<Found>,
    /// What can't be used, and how many looks in a row have found it.
    suspect: Option<(Found, u8)>,
}

impl<R: Reloaded> Watch<R> {
    /// `contents` is what is used so far, as far as that is known.
    pub fn new(reloaded: R, contents: Option<R::Contents>) -> Self {
        let current = contents.map(|contents| Found::of::<R>(&Ok(contents)));
        Self { reloaded, current, suspect: None }
    }

    /// What is made of the files.
    pub fn reloaded(&self) -> &R {
        &self.reloaded
    }

    /// Looks until it is dropped.
    pub async fn run(mut self) {
        let mut orders = ORDERS.subscribe();
        loop {
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                Ok(()) = orders.changed() => {}
            }
            let looked = tokio::task::spawn_blocking(move || {
                let outcome = self.look();
                (self, outcome)
            });
            // Only the end of the process keeps such a task from its own end.
            let Ok((watch, outcome)) = looked.await else { return };
            self = watch;
            match outcome {
                Outcome::Nothing => {}
                Outcome::Taken => self.reloaded.log_taken(),
                Outcome::Refused(error) => self.reloaded.log_refused(&error),
            }
        }
    }

    /// Looks once. Files can't be replaced all at once, nor one be written so: what can't be used counts only when it is
    /// still there at the next look.
    pub fn look(&mut self) -> Outcome<R::Error> {
        let read = self.reloaded.read();
        let found = Found::of::<R>(&read);
        if self.current.as_ref() == Some(&found) {
            self.suspect = None;
            return Outcome::Nothing;
        }
        match read.and_then(|contents| self.reloaded.take(contents)) {
            Ok(is_different) => {
                self.current = Some(found);
                self.suspect = None;
                if is_different { Outcome::Taken } else { Outcome::Nothing }
            }
            Err(error) => {
                let looks = match self.suspect.take() {
                    Some((suspect, looks)) if suspect == found => looks.saturating_add(1),
                    _ => 1,
                };
                self.suspect = Some((found, looks));
                if looks == 2 { Outcome::Refused(error) } else { Outcome::Nothing }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::mpsc;
    use tokio::time::Instant;

    use super::*;

    /// A file with another number at each look.
    struct Counting {
        looks: u64,
        taken: mpsc::UnboundedSender<Duration>,
        start: Instant,
    }

    impl Reloaded for Counting {
        type Contents = [u8; 8];
        type Error = String;

        fn read(&self) -> Result<[u8; 8], String> {
            Ok(self.looks.to_be_bytes())
        }

        fn bytes(contents: &[u8; 8]) -> Vec<&[u8]> {
            vec![contents]
        }

        fn take(&mut self, _: [u8; 8]) -> Result<bool, String> {
            self.looks += 1;
            Ok(true)
        }

        fn log_taken(&self) {
            self.taken.send(self.start.elapsed()).unwrap();
        }

        fn log_refused(&self, error: &String) {
            panic!("{error}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_order_has_files_looked_at_before_their_time() {
        let (taken, mut takes) = mpsc::unbounded_channel();
        let start = Instant::now();
        let watch = tokio::spawn(Watch::new(Counting { looks: 0, taken, start }, None).run());
        assert_eq!(takes.recv().await, Some(INTERVAL));
        assert!(look_now() > 0);
        assert_eq!(takes.recv().await, Some(INTERVAL), "no time has passed");
        assert_eq!(takes.recv().await, Some(2 * INTERVAL));
        watch.abort();
    }
}
