//! The clocks: the wall clock, for what others read, and each hub's own time, for what it promises.
//!
//! ```text
//! wall clock   --read once--> boot's clock --as far ahead as the hub's log was--> hub's time
//!                             (monotonic from there)
//! tokens, certificates, dates                          retention, time-to-live, windows, checkpoints
//! ```
//! See [`HubTime`] for why. While the machine sleeps, a hub's time stands still.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use oncewire_protocol::log::{HubTime, Time};
use oncewire_protocol::wire::HubName;
use parking_lot::Mutex;
use tokio::time::Instant;

/// A log that is further ahead of the wall clock than this deserves a word, in milliseconds.
const BEHIND_LOG_MS_MAX: u64 = 300_000;

/// The wall clock: for tokens, certificates, and dates that others read. It may jump, in both directions.
pub fn wall_clock() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}

/// A boot's clock: the wall clock at its start, and monotonic from there. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct BootClock(Arc<BootState>);

#[derive(Debug)]
struct BootState {
    began: Time,
    began_at: Instant,
    has_warned: AtomicBool,
    /// Hubs whose logs were ahead. One that is closed and opened again goes on as it was.
    ahead: Mutex<HashMap<HubName, HubTime>>,
}

impl BootClock {
    /// The clock of a boot that begins now, when the wall clock says this.
    pub(super) fn begin(wall: Time) -> Self {
        let state = BootState {
            began: wall,
            began_at: Instant::now(),
            has_warned: AtomicBool::new(false),
            ahead: Mutex::default(),
        };
        Self(Arc::new(state))
    }

    fn now(&self) -> Time {
        self.0.began.plus_ms(u64::try_from(self.0.began_at.elapsed().as_millis()).unwrap_or(u64::MAX))
    }

    fn hub_time(&self, hub: &HubName, last: Time) -> HubTime {
        let mut ahead = self.0.ahead.lock();
        let known = ahead.get(hub).copied().unwrap_or_default();
        let time = HubTime::begin(self.now(), last);
        if known.ahead_ms() >= time.ahead_ms() {
            return known;
        }
        ahead.insert(hub.clone(), time);
        time
    }

    /// The clock of a hub that is being opened. It is of no use before [`HubClock::begin`].
    pub(super) fn hub(&self, hub: &HubName) -> HubClock {
        let state = HubState { hub: hub.clone(), boot: self.clone(), time: OnceLock::new() };
        HubClock(Arc::new(state))
    }
}

/// A hub's time, which never jumps and never goes backwards. Cheap to clone.
#[derive(Debug, Clone)]
pub struct HubClock(Arc<HubState>);

#[derive(Debug)]
struct HubState {
    hub: HubName,
    boot: BootClock,
    time: OnceLock<HubTime>,
}

impl HubClock {
    /// The hub's time now.
    pub fn now(&self) -> Time {
        let time = self.0.time.get().copied().unwrap_or_default();
        time.at(self.0.boot.now())
    }

    /// One that stands beside no hub.
    #[cfg(test)]
    pub(crate) fn for_test() -> Self {
        BootClock::begin(wall_clock()).hub(&HubName::new("test").unwrap_or_else(|_| unreachable!()))
    }

    /// The hub's time begins, when all that was in its log has been folded. `last` is the latest time there.
    pub(super) fn begin(&self, last: Time) -> Time {
        self.0.time.get_or_init(|| {
            let HubState { hub, boot, .. } = &*self.0;
            let time = boot.hub_time(hub, last);
            if time.ahead_ms() > BEHIND_LOG_MS_MAX && !boot.0.has_warned.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    %hub,
                    ahead_seconds = time.ahead_ms() / 1000,
                    "the wall clock is behind what the hub's log says: the hub goes on from its log's time, and so does \
                     any other that is ahead; tokens and certificates go by the wall clock"
                );
            }
            time
        });
        self.now()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn hub() -> HubName {
        HubName::new("chat").unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_hubs_time_begins_at_the_later_of_wall_clock_and_log_and_only_time_moves_it() {
        for (wall, last, begins) in
            [(5_000, 0, 5_000), (5_000, 5_000, 5_000), (5_000, 90_000_000_000, 90_000_000_000)]
        {
            let clock = BootClock::begin(Time(wall)).hub(&hub());
            assert_eq!(clock.begin(Time(last)), Time(begins));
            tokio::time::advance(Duration::from_millis(1_234)).await;
            assert_eq!(clock.now(), Time(begins + 1_234));
            assert_eq!(clock.begin(Time(u64::MAX)), Time(begins + 1_234), "it begins once");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_hub_that_is_opened_later_counts_from_the_start_of_the_process() {
        let boot = BootClock::begin(Time(5_000));
        tokio::time::advance(Duration::from_secs(60)).await;
        assert_eq!(boot.hub(&hub()).begin(Time(0)), Time(65_000));
    }

    #[tokio::test(start_paused = true)]
    async fn a_hub_that_is_opened_again_goes_on_as_it_was() {
        let boot = BootClock::begin(Time(5_000));
        assert_eq!(boot.hub(&hub()).begin(Time(1_000_000)), Time(1_000_000));
        tokio::time::advance(Duration::from_secs(60)).await;
        for expected in [1_060_000, 3_060_000] {
            // Nothing was written to its log since.
            assert_eq!(boot.hub(&hub()).begin(Time(1_000_000)), Time(expected));
            tokio::time::advance(Duration::from_secs(2_000)).await;
        }
    }
}
