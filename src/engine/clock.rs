//! The one place that reads the wall clock for the core.

use std::time::{SystemTime, UNIX_EPOCH};

use oncewire_protocol::log::Time;

/// The time now. It may go backwards; the core's records do not.
pub fn now() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
}
