//! A thread that is there while it has work: it ends when nothing has come for a while, and another one begins with what comes
//! next. So a hub at rest has none.
//!
//! ```text
//! put() --waiting--> take, work, take, work ... nothing for a while --> rest --> (no thread)
//!                      ^                                                            |
//!                      +------------------- another thread <---- put() -------------+
//! ```
//! Knows: when there is a thread. Does not know: what waits, and what is done with it.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::redb_file::definite;
use crate::store::{StoreError, StoreErrorCause};

/// What a worker finds when it looks at what waits.
pub(super) enum Next {
    /// It has taken something to do.
    Work,
    /// There is nothing.
    Rest,
    /// There will be nothing any more.
    End,
}

/// What is done on the thread, and what that needs from one time to the next.
pub(super) trait Worker: Send + Sized + 'static {
    /// What waits for it.
    type Waiting: Send + 'static;
    /// The thread's name.
    const NAME: &'static str;

    /// Takes what is to be done next. Nobody else can put anything meanwhile.
    fn take(&mut self, waiting: &mut Self::Waiting) -> Next;

    /// Does it.
    fn work(&mut self, place: &OnDemand<Self>);

    /// Nothing has come for a while. False if this has to be done again after as long.
    fn rest(&mut self) -> bool {
        true
    }

    /// There will be nothing any more.
    fn end(self) {}

    /// Takes note that the worker has panicked, and does nothing any more.
    fn panicked(waiting: &mut Self::Waiting);
}

/// See the module.
pub(super) struct OnDemand<W: Worker> {
    state: Mutex<State<W>>,
    work: Condvar,
    rest: Duration,
}

struct State<W: Worker> {
    waiting: W::Waiting,
    /// The worker while there is no thread.
    at_rest: Option<W>,
    /// The last one that was begun.
    thread: Option<JoinHandle<()>>,
}

impl<W: Worker> OnDemand<W> {
    /// Without a worker so far. After `rest` without work its thread ends.
    pub(super) fn new(waiting: W::Waiting, rest: Duration) -> Arc<Self> {
        let state = State { waiting, at_rest: None, thread: None };
        Arc::new(Self { state: Mutex::new(state), work: Condvar::new(), rest })
    }

    /// Begins with this worker.
    ///
    /// # Errors
    /// When there can't be a thread.
    pub(super) fn begin(self: &Arc<Self>, worker: W) -> Result<(), StoreError> {
        self.state.lock().at_rest = Some(worker);
        self.put(|_| Ok(()))
    }

    /// Puts something for the worker, and has it work.
    ///
    /// # Errors
    /// Those of `put`, and when there can't be a thread: then nothing was put.
    pub(super) fn put<T>(
        self: &Arc<Self>,
        put: impl FnOnce(&mut W::Waiting) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut state = self.state.lock();
        if let Some(worker) = state.at_rest.take() {
            let worker = Arc::new(Mutex::new(Some(worker)));
            let (place, taken) = (Arc::clone(self), Arc::clone(&worker));
            let run = move || {
                let worker = taken.lock().take();
                worker.into_iter().for_each(|worker| place.run(worker));
            };
            match std::thread::Builder::new().name(W::NAME.to_owned()).spawn(run) {
                Ok(thread) => state.thread = Some(thread),
                Err(error) => {
                    state.at_rest = worker.lock().take();
                    return Err(definite(StoreErrorCause::Io(format!("no thread: {error}"))));
                }
            }
        }
        let done = put(&mut state.waiting);
        drop(state);
        self.work.notify_one();
        done
    }

    /// Looks at what waits, or changes it in a way that is no work.
    pub(super) fn with<T>(&self, work: impl FnOnce(&mut W::Waiting) -> T) -> T {
        work(&mut self.state.lock().waiting)
    }

    /// Waits until the worker has ended, after `last` has told it that nothing comes any more. False if it has panicked.
    pub(super) fn end(&self, last: impl FnOnce(&mut W::Waiting)) -> bool {
        let mut state = self.state.lock();
        last(&mut state.waiting);
        let (at_rest, thread) = (state.at_rest.take(), state.thread.take());
        drop(state);
        self.work.notify_one();
        at_rest.into_iter().for_each(|worker| self.run(worker));
        thread.is_none_or(|thread| thread.join().is_ok())
    }

    fn run(&self, mut worker: W) {
        let _guard = PanicGuard(self);
        let mut has_rested = false;
        loop {
            let mut state = self.state.lock();
            match worker.take(&mut state.waiting) {
                Next::Work => {
                    drop(state);
                    worker.work(self);
                    has_rested = false;
                }
                Next::End => {
                    drop(state);
                    return worker.end();
                }
                Next::Rest if has_rested => {
                    state.at_rest = Some(worker);
                    return;
                }
                Next::Rest => {
                    let is_over = self.work.wait_for(&mut state, self.rest).timed_out();
                    drop(state);
                    has_rested = is_over && worker.rest();
                }
            }
        }
    }
}

struct PanicGuard<'a, W: Worker>(&'a OnDemand<W>);

impl<W: Worker> Drop for PanicGuard<'_, W> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.with(W::panicked);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use super::*;

    /// Sends what is put, by the thread that it is taken on.
    struct Echo {
        taken: Option<u32>,
        out: Sender<(u32, std::thread::ThreadId)>,
        rests: u32,
    }

    #[derive(Default)]
    struct Inbox {
        numbers: Vec<u32>,
        is_over: bool,
        has_panicked: bool,
    }

    impl Worker for Echo {
        type Waiting = Inbox;
        const NAME: &'static str = "echo";

        fn take(&mut self, waiting: &mut Inbox) -> Next {
            self.taken = waiting.numbers.pop();
            match self.taken {
                Some(_) => Next::Work,
                None if waiting.is_over => Next::End,
                None => Next::Rest,
            }
        }

        fn work(&mut self, _: &OnDemand<Self>) {
            let number = self.taken.take().unwrap();
            assert_ne!(number, u32::MAX);
            self.out.send((number, std::thread::current().id())).unwrap();
        }

        fn rest(&mut self) -> bool {
            self.rests += 1;
            self.rests > 1
        }

        fn panicked(waiting: &mut Inbox) {
            waiting.has_panicked = true;
        }
    }

    fn put(place: &Arc<OnDemand<Echo>>, number: u32) {
        place
            .put(|inbox| {
                inbox.numbers.push(number);
                Ok(())
            })
            .unwrap();
    }

    fn has_thread(place: &OnDemand<Echo>) -> bool {
        place.state.lock().at_rest.is_none()
    }

    #[test]
    fn a_thread_at_rest_ends_and_the_next_work_has_another() {
        let (out, echoed) = channel();
        let place = OnDemand::new(Inbox::default(), Duration::from_millis(1));
        place.begin(Echo { taken: None, out, rests: 0 }).unwrap();
        let mut threads = Vec::new();
        for number in 1..=3 {
            while has_thread(&place) {
                std::thread::yield_now();
            }
            put(&place, number);
            let (echo, thread) = echoed.recv().unwrap();
            assert_eq!(echo, number);
            threads.push(thread);
        }
        threads.dedup();
        assert_eq!(threads.len(), 3);
        put(&place, 4);
        assert!(place.end(|inbox| inbox.is_over = true));
        assert_eq!(echoed.try_recv().unwrap().0, 4, "what came before the end is done");
    }

    #[test]
    fn nothing_that_is_put_is_left_lying_however_short_the_rest() {
        let (out, echoed) = channel();
        let place = OnDemand::new(Inbox::default(), Duration::from_nanos(1));
        place.begin(Echo { taken: None, out, rests: 9 }).unwrap();
        for number in 0..20_000 {
            put(&place, number);
            assert_eq!(echoed.recv().unwrap().0, number);
        }
        assert!(place.end(|inbox| inbox.is_over = true));
    }

    #[test]
    fn a_worker_that_panics_takes_note_and_does_nothing_more() {
        let (out, echoed) = channel();
        let place = OnDemand::new(Inbox::default(), Duration::from_secs(60));
        place.begin(Echo { taken: None, out, rests: 0 }).unwrap();
        put(&place, u32::MAX);
        assert!(echoed.recv().is_err());
        put(&place, 1);
        assert!(!place.end(|inbox| inbox.is_over = true));
        assert!(place.with(|inbox| inbox.has_panicked));
    }
}
