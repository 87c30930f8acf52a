//! Which hubs there are, and what becomes of each: started on use, closed when idle, removed when nothing is left.
//!
//! ```text
//!          a session wants it         started           idle and empty
//! (none) --------------------> busy ----------> live ------------------> busy ------> closed
//!    ^                         ^  | failed       ^                        | | not so    | a session or a
//!    | of a new one            |  v              +------------------------|-+           | command wants it
//!    +-------------------------|-failed          |                        |             v
//!    ^                         +--- wanted again +------------------------|----------- busy
//!    +---------------------------------------------- long so -------------+
//! ```
//! One task at a time is at work on a hub, and whoever wants the hub waits for it and looks again: so no log ever has two
//! writers. A hub is closed only while nobody has a handle of it, and its shards, asked then, have nobody and nothing under
//! way: what was acknowledged is in its log, and a session that comes meanwhile is begun behind the close.
//!
//! A closed hub has no session: a recovery is refused for certain, and a question is answered as for one that is not there.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::{BoxFuture, FutureExt, Shared, join_all};
use oncewire_protocol::hub::{Action, CommandError, Done};
use oncewire_protocol::log::{Audience, BootId, Time};
use oncewire_protocol::session::may_be_in;
use oncewire_protocol::wire::{GroupName, HubName};

use super::counts::LiveCounts;
use super::{Engine, HubHandle, HubUnavailable, Request};
use crate::store::StoreError;

/// What can be done about a hub whose start can't succeed.
const DAMAGED_HUB_ADVICE: &str = "look at it with `oncewire log verify`, put a copy of it back, or give up what is in it with \
                                  `oncewire log new-epoch` or `oncewire log remove`";

/// How often hubs are looked at that may be closed or removed.
const ROUND: Duration = Duration::from_secs(15);
/// How many of them are closed or removed in one round; the others have their turn in the next.
pub const HUBS_PER_ROUND_MAX: usize = 256;
/// After how many seconds it may be tried again to begin a hub, when there are as many as there may be.
pub const TOO_MANY_HUBS_RETRY_SECONDS: u64 = 60;

/// How long hubs are kept that nobody uses.
#[derive(Debug, Clone, Copy)]
pub struct HubBounds {
    /// For so long one without sessions stays open without being used.
    pub open: Duration,
    /// For so long it is then kept, and never for less than requests of the application are remembered in it.
    pub kept: Duration,
}

impl Default for HubBounds {
    fn default() -> Self {
        Self { open: Duration::from_secs(60), kept: Duration::from_secs(24 * 60 * 60) }
    }
}

/// All hubs that exist.
#[derive(Default)]
pub(super) struct Hubs {
    entries: HashMap<HubName, Entry>,
    /// Nothing is begun any more.
    is_closed: bool,
}

struct Entry {
    phase: Phase,
    /// Names the next start in the hub's log: keys of an earlier one must not come again (R8).
    boot: BootId,
    /// When it was last used or had a session, as far as is known.
    used: Instant,
    /// Whether the store has had it: a start that fails leaves nothing of one that it has not.
    is_new: bool,
    /// Requests of the application that came again and were not executed again.
    repeated: Arc<AtomicU64>,
    /// Why it could not be started, if so. Its sessions, of which there may be some, are missing then.
    failure: Option<HubUnavailable>,
}

enum Phase {
    /// A task is at work on it.
    Busy(Work),
    Live(HubHandle),
    /// Its log is closed, and it has no session.
    Closed,
    /// It could not be started; who wants it has that tried again, if it may succeed.
    Failed,
}

/// Completes when the phase is another one, with the error if a start has failed.
type Work = Shared<BoxFuture<'static, Result<(), HubUnavailable>>>;

/// A hub that a command is for.
pub enum Commanded {
    /// It exists.
    Hub(HubHandle),
    /// It does not, and no command brings it into being: there is nobody whom it could concern.
    Nobody,
}

impl Commanded {
    /// Carries out a command of the application; see [`HubHandle::ask`].
    ///
    /// # Errors
    /// When it is refused, or cannot be stored.
    pub async fn ask(&self, action: Action, request: Option<Request>) -> Result<Done, CommandError> {
        match self {
            Self::Hub(hub) => hub.ask(action, request).await,
            Self::Nobody => of_nobody(&action),
        }
    }
}

/// What a command comes to where no session is.
fn of_nobody(action: &Action) -> Result<Done, CommandError> {
    match action {
        Action::ChangeRule { .. } => Err(CommandError::UnknownConnection),
        Action::Refuse(refusal) => Err((*refusal).into()),
        Action::Add { selection, .. } => match selection.audience {
            Audience::Connection(_) => Err(CommandError::UnknownConnection),
            Audience::User(_) => Err(CommandError::UnknownUser),
            Audience::All | Audience::Group(_) => Ok(Done::Executed),
        },
        Action::Send(_) | Action::Remove { .. } | Action::Close { .. } => Ok(Done::Executed),
    }
}

/// What a hub is looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Want {
    /// To find sessions: one that has none need not be there.
    Sessions,
    /// To be used, if it exists.
    Existing,
    /// To be used in any case.
    Any,
}

/// What a look at the hubs finds.
enum Found {
    Live(HubHandle),
    Busy(Work),
    /// There is no session in it.
    Empty,
}

impl Engine {
    /// A hub, brought into being and started if need be.
    ///
    /// # Errors
    /// When it can't be used now, or there are as many hubs as there may be and it is not one of them.
    pub async fn hub_to_join(&self, name: &HubName) -> Result<HubHandle, HubUnavailable> {
        loop {
            match self.look(name, Want::Any)? {
                Found::Live(handle) => return Ok(handle),
                Found::Busy(work) => work.await?,
                Found::Empty => return Err(HubUnavailable::Starting),
            }
        }
    }

    /// A hub that has sessions, or may have; none if there is none.
    ///
    /// # Errors
    /// When it exists and cannot be used now.
    pub async fn hub_with_sessions(&self, name: &HubName) -> Result<Option<HubHandle>, HubUnavailable> {
        self.wanted_hub(name, Want::Sessions).await
    }

    async fn wanted_hub(&self, name: &HubName, want: Want) -> Result<Option<HubHandle>, HubUnavailable> {
        loop {
            match self.look(name, want)? {
                Found::Live(handle) => return Ok(Some(handle)),
                Found::Busy(work) => work.await?,
                Found::Empty => return Ok(None),
            }
        }
    }

    /// The same without waiting. Recoveries use it: a token alone must not bring hubs into being.
    ///
    /// # Errors
    /// When it exists and is not in use yet. It is being started then.
    pub fn hub_at_once(&self, name: &HubName) -> Result<Option<HubHandle>, HubUnavailable> {
        match self.look(name, Want::Sessions)? {
            Found::Live(handle) => Ok(Some(handle)),
            Found::Busy(_) => Err(HubUnavailable::Starting),
            Found::Empty => Ok(None),
        }
    }

    /// The hub that a command of the application is for. One that exists is started, since it may know the command; none is
    /// brought into being.
    ///
    /// # Errors
    /// When it exists and cannot be used now.
    pub async fn hub_to_command(&self, name: &HubName) -> Result<Commanded, HubUnavailable> {
        let hub = self.wanted_hub(name, Want::Existing).await?;
        Ok(hub.map_or(Commanded::Nobody, Commanded::Hub))
    }

    /// Whether a session could begin in a hub. Nothing comes into being.
    ///
    /// # Errors
    /// When it can't be used now, or there are as many hubs as there may be and it is not one of them.
    pub async fn admits(&self, name: &HubName) -> Result<(), HubUnavailable> {
        if self.hub_with_sessions(name).await?.is_some() {
            return Ok(());
        }
        let hubs = self.0.hubs.lock();
        if hubs.entries.contains_key(name) { Ok(()) } else { self.check_room(&hubs) }
    }

    /// Whether a session may be in so many groups.
    pub fn takes_groups(&self, groups: &[GroupName]) -> bool {
        let groups: std::collections::BTreeSet<_> = groups.iter().collect();
        may_be_in(groups.into_iter(), self.0.config.groups_per_session_max)
    }

    /// Looks at a hub. One that is wanted and closed is started, and one that could not be started is tried again.
    fn look(&self, name: &HubName, want: Want) -> Result<Found, HubUnavailable> {
        let mut hubs = self.0.hubs.lock();
        let hubs = &mut *hubs;
        if !hubs.entries.contains_key(name) {
            if want != Want::Any {
                return Ok(Found::Empty);
            }
            self.check_room(hubs)?;
        }
        let entry = hubs.entries.entry(name.clone()).or_insert_with(|| Entry::new(self.0.boot, true));
        match &entry.phase {
            Phase::Live(handle) => {
                if want != Want::Sessions {
                    entry.used = Instant::now();
                }
                Ok(Found::Live(handle.clone()))
            }
            Phase::Busy(work) => Ok(Found::Busy(work.clone())),
            Phase::Closed if want == Want::Sessions => Ok(Found::Empty),
            Phase::Closed | Phase::Failed if hubs.is_closed => Err(HubUnavailable::Starting),
            Phase::Closed | Phase::Failed => {
                if let Some(error) = entry.lasting_failure() {
                    return Err(error);
                }
                let is_used = want != Want::Sessions;
                Ok(Found::Busy(self.begin(name, entry, |engine, name| engine.start_hub(name, is_used))))
            }
        }
    }

    fn check_room(&self, hubs: &Hubs) -> Result<(), HubUnavailable> {
        if hubs.is_closed {
            return Err(HubUnavailable::Starting);
        }
        let hubs_max = self.0.config.hubs_max.unwrap_or(usize::MAX);
        if hubs.entries.len() < hubs_max { Ok(()) } else { Err(HubUnavailable::TooMany(hubs_max)) }
    }

    /// Sets a task of its own to work on a hub: whoever waits may go away, and nothing must be left half done.
    fn begin<F: Future<Output = Result<(), HubUnavailable>> + Send + 'static>(
        &self,
        name: &HubName,
        entry: &mut Entry,
        work: impl FnOnce(Engine, HubName) -> F,
    ) -> Work {
        let failures = self.0.failures.clone();
        let work = work(self.clone(), name.clone());
        let task = tokio::spawn(async move {
            // A hub that nobody is at work on any more would be busy for ever.
            let _guard = failures.panic_guard();
            work.await
        });
        let work = task.map(|done| done.unwrap_or(Err(HubUnavailable::Starting))).boxed().shared();
        entry.phase = Phase::Busy(work.clone());
        work
    }

    /// `is_used` is whether that is a use of it.
    async fn start_hub(self, name: HubName, is_used: bool) -> Result<(), HubUnavailable> {
        let start = {
            let hubs = self.0.hubs.lock();
            hubs.entries.get(&name).map(|entry| (entry.boot, Arc::clone(&entry.repeated)))
        };
        let (boot, repeated) = start.ok_or(HubUnavailable::Starting)?;
        let started = self.start(&name, boot, repeated).await;
        let mut hubs = self.0.hubs.lock();
        let Some(entry) = hubs.entries.get_mut(&name) else { return Err(HubUnavailable::Starting) };
        match started {
            Ok((handle, empty_since)) => {
                entry.is_new = false;
                entry.failure = None;
                entry.used = before(handle.time(), empty_since.filter(|_| !is_used));
                entry.phase = Phase::Live(handle);
                Ok(())
            }
            Err(error) => {
                if error.is_of_stop() {
                    entry.phase = Phase::Failed;
                } else if entry.is_new && !error.is_lasting() {
                    if self.0.start_failures.is_news(Instant::now()) {
                        tracing::warn!(hub = %name, %error, "a hub can't be started");
                    } else {
                        tracing::debug!(hub = %name, %error, "a hub can't be started");
                    }
                    hubs.entries.remove(&name);
                } else {
                    entry.phase = Phase::Failed;
                    entry.note_failure(&name, &error);
                }
                Err(error)
            }
        }
    }

    /// Starts a hub that the store has from before, in the background. It is known to exist when this has returned.
    pub(super) fn begin_kept(&self, name: &HubName) {
        let mut hubs = self.0.hubs.lock();
        let entry = hubs.entries.entry(name.clone()).or_insert_with(|| Entry::new(self.0.boot, false));
        if matches!(entry.phase, Phase::Closed | Phase::Failed) {
            drop(self.begin(name, entry, |engine, name| engine.start_hub(name, false)));
        }
    }

    /// Tries to start a hub that exists and could not be started. That is no use of it.
    pub(super) async fn try_again(&self, name: &HubName) -> Result<(), HubUnavailable> {
        self.wanted_hub(name, Want::Sessions).await.map(drop)
    }

    /// Hubs whose sessions can't be served because what is stored of them is damaged or could not be read, by their names.
    pub fn damaged_hubs(&self) -> Vec<HubName> {
        let hubs = self.0.hubs.lock();
        let damaged = hubs.entries.iter().filter(|(_, entry)| entry.failure.is_some());
        let mut names: Vec<_> = damaged.map(|(name, _)| name.clone()).collect();
        names.sort_unstable();
        names
    }

    /// Looks after the hubs for ever: closes those that are idle and empty, and removes those that have long been so.
    pub async fn look_after_hubs(self) {
        loop {
            tokio::time::sleep(ROUND).await;
            self.look_at_hubs().await;
        }
    }

    /// One round of this, for so many hubs at most. Those that are in use are not held up.
    pub async fn look_at_hubs(&self) {
        let bounds = self.0.hub_bounds;
        let mut to_close = Vec::new();
        let mut removals = Vec::new();
        {
            let mut hubs = self.0.hubs.lock();
            if hubs.is_closed {
                return;
            }
            for (name, entry) in &mut hubs.entries {
                if to_close.len() + removals.len() == HUBS_PER_ROUND_MAX {
                    break;
                }
                let unused = entry.used.elapsed();
                match &entry.phase {
                    // The log of one in memory goes with its shards, so that it can only be removed.
                    Phase::Live(handle) if !handle.outlives_process() && unused < self.kept(name) => {}
                    Phase::Live(handle) if unused >= bounds.open && handle.is_alone() => {
                        to_close.push((name.clone(), handle.clone(), entry.used));
                    }
                    Phase::Closed if unused >= self.kept(name) => {
                        removals.push(self.begin(name, entry, Engine::remove_hub));
                    }
                    _ => {}
                }
            }
        }
        join_all(to_close.into_iter().map(|(name, handle, used)| self.close_if_idle(name, handle, used)))
            .await;
        join_all(removals).await;
    }

    /// How long a hub is kept without being used. Whatever its application's requests are remembered for is over then.
    fn kept(&self, name: &HubName) -> Duration {
        let window = self.0.config.hub(name.as_str()).idempotency_window_seconds;
        self.0.hub_bounds.kept.max(Duration::from_secs(window))
    }

    async fn close_if_idle(&self, name: HubName, handle: HubHandle, used: Instant) {
        // Asked in its ordinary life first: most hubs that are asked are not idle, and nobody shall wait for them.
        let is_idle = handle.is_idle().await;
        drop(handle);
        let work = {
            let mut hubs = self.0.hubs.lock();
            let is_closed = hubs.is_closed;
            let Some(entry) = hubs.entries.get_mut(&name) else { return };
            if !is_idle {
                entry.used = Instant::now();
                return;
            }
            match &entry.phase {
                Phase::Live(handle) if entry.used == used && handle.is_alone() && !is_closed => {
                    let handle = handle.clone();
                    self.begin(&name, entry, |engine, name| engine.close_hub(name, handle))
                }
                _ => return,
            }
        };
        // It has told what went wrong.
        let _ = work.await;
    }

    /// Closes a hub of which nobody else has a handle, and removes it if it has long been empty.
    async fn close_hub(self, name: HubName, handle: HubHandle) -> Result<(), HubUnavailable> {
        let unused = self.0.hubs.lock().entries.get(&name).map(|entry| entry.used.elapsed());
        let is_to_be_removed = unused.is_some_and(|unused| unused >= self.kept(&name));
        if !handle.is_idle().await {
            self.set_phase(&name, Phase::Live(handle));
            return Ok(());
        }
        let now = handle.time();
        handle.quit().await;
        if is_to_be_removed {
            return self.remove_hub(name).await;
        }
        let empty_since = Time(now.0.saturating_sub(unused.map_or(0, |unused| unused.as_millis() as u64)));
        match self.0.store.close_hub(&name, empty_since).await {
            Ok(()) => {
                tracing::info!(hub = %name, "hub closed: it has no session");
                self.set_phase(&name, Phase::Closed);
            }
            Err(error) => {
                self.report(&name, &error, "a hub was not closed in good order");
                self.set_phase(&name, Phase::Failed);
            }
        }
        Ok(())
    }

    async fn remove_hub(self, name: HubName) -> Result<(), HubUnavailable> {
        match self.0.store.remove(&name).await {
            Ok(()) => {
                tracing::info!(hub = %name, "hub removed: it has had no session for long");
                self.0.hubs.lock().entries.remove(&name);
            }
            Err(error) => {
                self.report(&name, &error, "a hub could not be removed");
                // It has its turn again when it has been kept for as long once more.
                self.set_phase(&name, Phase::Closed);
            }
        }
        Ok(())
    }

    fn report(&self, name: &HubName, error: &StoreError, what: &str) {
        tracing::warn!(hub = %name, %error, "{what}");
        self.0.failures.report(error);
    }

    /// The phase after one that was busy. The next start is another boot.
    fn set_phase(&self, name: &HubName, phase: Phase) {
        if let Some(entry) = self.0.hubs.lock().entries.get_mut(name) {
            if !matches!(phase, Phase::Live(_)) {
                entry.boot = BootId(rand::random());
            }
            if matches!(phase, Phase::Closed) && entry.used.elapsed() >= self.kept(name) {
                entry.used = Instant::now();
            }
            entry.phase = phase;
        }
    }

    /// Begins nothing more, waits for what is under way, and returns the hubs that are live.
    pub(super) async fn close_hubs(&self) -> Vec<HubHandle> {
        let works: Vec<_> = {
            let mut hubs = self.0.hubs.lock();
            hubs.is_closed = true;
            let works = hubs.entries.values().filter_map(|entry| match &entry.phase {
                Phase::Busy(work) => Some(work.clone()),
                _ => None,
            });
            works.collect()
        };
        join_all(works).await;
        let hubs = self.0.hubs.lock();
        let live = hubs.entries.values().filter_map(|entry| match &entry.phase {
            Phase::Live(handle) => Some(handle.clone()),
            _ => None,
        });
        live.collect()
    }

    /// All hubs that are live, with their counts, or closed, and the requests that were repeated in each.
    pub(super) fn all_hubs(&self) -> Vec<(HubName, Option<Arc<LiveCounts>>, u64)> {
        let hubs = self.0.hubs.lock();
        let all = hubs.entries.iter().filter_map(|(name, entry)| {
            let counts = match &entry.phase {
                Phase::Live(handle) => Some(Arc::clone(&handle.0.counts)),
                Phase::Closed => None,
                Phase::Busy(_) | Phase::Failed => return None,
            };
            Some((name.clone(), counts, entry.repeated.load(Ordering::Relaxed)))
        });
        all.collect()
    }
}

impl Entry {
    fn new(boot: BootId, is_new: bool) -> Self {
        Self {
            phase: Phase::Closed,
            boot,
            used: Instant::now(),
            is_new,
            repeated: Arc::default(),
            failure: None,
        }
    }

    /// Why no attempt to start it can succeed in this process, if so.
    fn lasting_failure(&self) -> Option<HubUnavailable> {
        self.failure.clone().filter(HubUnavailable::is_lasting)
    }

    /// Takes note of why it could not be started, and says so once.
    fn note_failure(&mut self, hub: &HubName, error: &HubUnavailable) {
        if self.failure.replace(error.clone()).is_none() {
            let advice = if error.is_lasting() { DAMAGED_HUB_ADVICE } else { "it is tried again" };
            tracing::error!(%hub, %error, "a hub can't be started, and its clients are answered 503: {advice}");
        } else {
            tracing::debug!(%hub, %error, "a hub still can't be started");
        }
    }
}

/// The moment at which it was `since`, by a clock that goes evenly.
fn before(now: Time, since: Option<Time>) -> Instant {
    let elapsed = Duration::from_millis(since.map_or(0, |since| now.0.saturating_sub(since.0)));
    let this = Instant::now();
    // None, where the machine has not been running for so long.
    this.checked_sub(elapsed).unwrap_or(this)
}
