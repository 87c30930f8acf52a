//! A hub's own time: what retention, time-to-live and windows of requests run on.
//!
//! ```text
//! wall clock of the boot   read once, when the process starts, and monotonic from there
//! hub's time               = that + how far the log was ahead when the hub was opened; so it never jumps, never goes
//!                          backwards, and is never behind what the log says
//! ```
//! A wall clock that was wrong for a moment would otherwise hold everything up until it is as late as the log again, also
//! after a restart. One that is ahead of the log can't be told from a process that was away for long.

use super::Time;

/// How a hub's time follows from the boot's clock. It holds as long as the boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HubTime {
    ahead_ms: u64,
}

impl HubTime {
    /// The hub's time begins at the later of the boot's clock, and the last time in its log, checkpoints included.
    pub fn begin(boot: Time, last: Time) -> Self {
        Self { ahead_ms: last.0.saturating_sub(boot.0) }
    }

    /// The hub's time when the boot's clock says this.
    pub fn at(self, boot: Time) -> Time {
        boot.plus_ms(self.ahead_ms)
    }

    /// How far the log was ahead of the boot's clock, in milliseconds.
    pub fn ahead_ms(self) -> u64 {
        self.ahead_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_at_the_later_of_clock_and_log_and_goes_on_with_the_clock() {
        for (boot, last, begin, later) in
            [(1_000, 0, 1_000, 1_500), (1_000, 1_000, 1_000, 1_500), (1_000, 9_000, 9_000, 9_500)]
        {
            let time = HubTime::begin(Time(boot), Time(last));
            assert_eq!(time.at(Time(boot)), Time(begin));
            assert_eq!(time.at(Time(boot + 500)), Time(later));
        }
        let end = HubTime::begin(Time(0), Time(u64::MAX));
        assert_eq!(end.at(Time(5)), Time(u64::MAX));
    }
}
