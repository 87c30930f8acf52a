//! The log's lines on their way to standard error: a thread of their own writes them, so that nobody else waits when the
//! reader of standard error stops. What does not fit meanwhile is dropped and counted.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::episode;

/// Lines that wait to be written, in bytes; as many again may be on their way to standard error.
pub const LOG_BYTES_MAX: usize = 1024 * 1024;
/// How often the thread looks whether an episode is over.
const TICK: Duration = Duration::from_secs(1);

/// Takes lines, and never waits. Copies share the lines.
#[derive(Clone, Default)]
pub(super) struct Lossy(Arc<Shared>);

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    /// There is something to write.
    filled: Condvar,
    /// Something was written.
    drained: Condvar,
}

#[derive(Default)]
struct Waiting {
    lines: Vec<u8>,
    /// Whether more is on its way to standard error.
    is_writing: bool,
    /// Lines that did not fit, and those of them that have been told.
    dropped: u64,
    told: u64,
    /// Lines that standard error did not take.
    refused: u64,
}

impl Lossy {
    /// Adds a line, if it fits.
    fn push(&self, line: &[u8]) {
        let mut waiting = self.0.waiting.lock();
        if waiting.lines.len() + line.len() > LOG_BYTES_MAX {
            waiting.dropped += 1;
        } else {
            waiting.lines.extend_from_slice(line);
        }
        drop(waiting);
        self.0.filled.notify_one();
    }

    /// Lines that were not written.
    pub(super) fn dropped_lines(&self) -> u64 {
        let waiting = self.0.waiting.lock();
        waiting.dropped + waiting.refused
    }

    /// Waits until all that came before is written, but no longer than this; tells whether it is.
    pub(super) fn flush(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut waiting = self.0.waiting.lock();
        while waiting.is_writing || !waiting.lines.is_empty() {
            if self.0.drained.wait_until(&mut waiting, deadline).timed_out() {
                return !waiting.is_writing && waiting.lines.is_empty();
            }
        }
        true
    }

    /// Writes for ever.
    pub(super) fn run(&self, mut out: impl io::Write) {
        let mut lines = Vec::new();
        loop {
            self.write_next(&mut lines, &mut out);
            episode::tell_ends(Instant::now());
        }
    }

    /// Writes what waits, if anything comes within a tick. `lines` is empty before and after.
    fn write_next(&self, lines: &mut Vec<u8>, out: &mut impl io::Write) {
        let mut waiting = self.0.waiting.lock();
        if waiting.lines.is_empty() {
            self.0.filled.wait_for(&mut waiting, TICK);
        }
        if waiting.lines.is_empty() {
            return;
        }
        std::mem::swap(&mut waiting.lines, lines);
        waiting.is_writing = true;
        let dropped = waiting.dropped - waiting.told;
        waiting.told = waiting.dropped;
        drop(waiting);
        let written = out.write_all(lines).and_then(|()| out.flush());
        if written.is_ok() && dropped > 0 {
            // They would have stood behind these.
            tracing::warn!(lines = dropped, "log lines were dropped: standard error is not read fast enough");
        }
        let mut waiting = self.0.waiting.lock();
        if written.is_err() {
            waiting.refused += lines.iter().filter(|byte| **byte == b'\n').count() as u64;
        }
        lines.clear();
        waiting.is_writing = false;
        drop(waiting);
        self.0.drained.notify_all();
    }
}

/// Each call is one line.
impl io::Write for Lossy {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A standard error that takes what it is given when it is told to.
    struct Reader {
        begun: Sender<()>,
        goes_on: Receiver<()>,
        taken: Arc<Mutex<Vec<u8>>>,
    }

    impl io::Write for Reader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.begun.send(()).unwrap();
            self.goes_on.recv().map_err(|_| io::ErrorKind::BrokenPipe)?;
            self.taken.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_reader_that_stops_holds_nobody_up_and_what_does_not_fit_is_counted() {
        let mut log = Lossy::default();
        let (begun, begins) = channel();
        let (go_on, goes_on) = channel();
        let taken = Arc::<Mutex<Vec<u8>>>::default();
        let reader = Reader { begun, goes_on, taken: Arc::clone(&taken) };
        log.write_all(b"first\n").unwrap();
        let writer = log.clone();
        std::thread::spawn(move || writer.run(reader));
        begins.recv().unwrap();
        let line = [&[b'x'; 1023][..], b"\n"].concat();
        for _ in 0..LOG_BYTES_MAX / line.len() {
            log.write_all(&line).unwrap();
        }
        assert_eq!(log.dropped_lines(), 0, "exactly what may wait");
        log.write_all(b"\n").unwrap();
        log.write_all(&line).unwrap();
        assert_eq!(log.dropped_lines(), 2);
        assert!(!log.flush(Duration::ZERO));
        go_on.send(()).unwrap();
        begins.recv().unwrap();
        go_on.send(()).unwrap();
        assert!(log.flush(Duration::from_secs(60)));
        assert_eq!(taken.lock().len(), b"first\n".len() + LOG_BYTES_MAX);
        log.write_all(b"again\n").unwrap();
        begins.recv().unwrap();
        go_on.send(()).unwrap();
        assert!(log.flush(Duration::from_secs(60)));
        assert!(taken.lock().ends_with(b"again\n"));
        // Whoever reads is gone.
        drop(go_on);
        log.write_all(b"to nobody\n").unwrap();
        assert!(log.flush(Duration::from_secs(60)));
        assert_eq!(log.dropped_lines(), 3);
    }
}
