//! Recoveries that come to nothing: a client that can't take what waits for it closes its socket, recovers its session and
//! gets the same again, without end. Such a client is made to wait before it is let in. One whose network cuts it off is not:
//! it never closed its socket, and it may have no time to lose.

use crate::log::Time;
use crate::wire::SequenceId;

/// Recoveries in a row that may come to nothing before the next one waits.
const RECOVERIES_IN_VAIN_MAX: u32 = 4;
/// How long the first of them waits, in milliseconds; each further one twice as long as the one before.
const WAIT_MS_MIN: u64 = 500;
/// How long one waits at most, in milliseconds.
const RECOVERY_WAIT_MS_MAX: u64 = 5_000;
/// A socket that has lived so long, in milliseconds, was not closed because of what it was sent first.
const SOCKET_MS: u64 = 1_000;

/// See the module.
#[derive(Debug, Default)]
pub struct Recoveries {
    in_vain: u32,
    socket: Option<Recovered>,
}

/// A socket that has recovered the session while something was unacknowledged.
#[derive(Debug)]
struct Recovered {
    at: Time,
    first_unacknowledged: SequenceId,
}

impl Recoveries {
    /// A socket has recovered the session.
    pub fn recovered(&mut self, now: Time, first_unacknowledged: Option<SequenceId>) {
        let recovered = |first_unacknowledged| Recovered { at: now, first_unacknowledged };
        self.socket = first_unacknowledged.map(recovered);
    }

    /// The session's socket is gone; its client closed it, or it was lost.
    pub fn over(&mut self, now: Time, is_closed_by_client: bool, first_unacknowledged: Option<SequenceId>) {
        let was_in_vain = self.socket.take().is_some_and(|socket| {
            is_closed_by_client
                && first_unacknowledged == Some(socket.first_unacknowledged)
                && now.0.saturating_sub(socket.at.0) < SOCKET_MS
        });
        self.in_vain = if was_in_vain { self.in_vain.saturating_add(1) } else { 0 };
    }

    /// How long the next recovery has to wait, in milliseconds, and whether it is the first of this row.
    pub fn wait(&self) -> Option<(u64, bool)> {
        let beyond = self.in_vain.checked_sub(RECOVERIES_IN_VAIN_MAX)?;
        let ms = WAIT_MS_MIN.checked_shl(beyond.min(16)).unwrap_or(RECOVERY_WAIT_MS_MAX);
        Some((ms.min(RECOVERY_WAIT_MS_MAX), beyond == 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A recovery at a time whose socket lives for so long.
    fn recover(recoveries: &mut Recoveries, at: u64, ms: u64, first: [Option<u64>; 2]) {
        recoveries.recovered(Time(at), first[0]);
        recoveries.over(Time(at + ms), true, first[1]);
    }

    #[test]
    fn from_the_fifth_recovery_in_vain_on_each_waits_longer_up_to_five_seconds() {
        let mut recoveries = Recoveries::default();
        let mut waits = Vec::new();
        for n in 0..10 {
            waits.push(recoveries.wait().map(|(ms, _)| ms));
            recover(&mut recoveries, n * 2_000, SOCKET_MS - 1, [Some(7); 2]);
        }
        let later = [500, 1_000, 2_000, 4_000, 5_000, 5_000];
        assert_eq!(waits, [[None; 4].as_slice(), &later.map(Some)].concat());
        recoveries.in_vain = u32::MAX;
        assert_eq!(recoveries.wait(), Some((RECOVERY_WAIT_MS_MAX, false)));
    }

    #[test]
    fn an_ack_a_longer_life_or_nothing_to_send_ends_the_row() {
        let ends = [
            (SOCKET_MS - 1, [Some(7), Some(8)]),
            (SOCKET_MS - 1, [Some(7), None]),
            (SOCKET_MS, [Some(7), Some(7)]),
            (SOCKET_MS - 1, [None, Some(7)]),
        ];
        for (ms, first) in ends {
            let mut recoveries = Recoveries::default();
            (0..4).for_each(|n| recover(&mut recoveries, n, 0, [Some(7); 2]));
            assert_eq!(recoveries.wait(), Some((WAIT_MS_MIN, true)));
            recover(&mut recoveries, 10, ms, first);
            assert_eq!(recoveries.wait(), None, "{ms} {first:?}");
        }
    }

    #[test]
    fn a_client_that_is_cut_off_again_and_again_does_not_wait() {
        let mut recoveries = Recoveries::default();
        for n in 0..100 {
            assert_eq!(recoveries.wait(), None);
            recoveries.recovered(Time(n), Some(7));
            recoveries.over(Time(n), false, Some(7));
        }
    }
}
