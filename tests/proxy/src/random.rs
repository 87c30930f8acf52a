//! Faults drawn from a seed, one for each connection.
//!
//! The draw depends on the seed and on the connection's number alone, so a client that reconnects in another rhythm still
//! meets the same fault on its n-th connection.

use serde::{Deserialize, Serialize};

use crate::fault::{Action, Direction, Fault};

/// A seeded schedule: every connection without a plan of its own gets one fault at a random offset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RandomFaults {
    /// Same seed, same faults.
    pub seed: u64,
    /// The smallest offset in bytes, counted from the start of the connection.
    pub bytes_min: u64,
    /// The largest offset in bytes.
    pub bytes_max: u64,
    /// The last connection number that gets a fault; later ones are left alone, so that a run can end.
    pub connections_max: u64,
    /// The actions to choose from; empty means that nothing happens.
    pub actions: Vec<Action>,
}

impl RandomFaults {
    /// The fault of connection number `number`, if it gets one.
    pub fn draw(&self, number: u64) -> Option<Fault> {
        if self.actions.is_empty() || number > self.connections_max {
            return None;
        }
        let mut state = self.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let direction = Direction::BOTH[pick(&mut state, 2)];
        let span = self.bytes_max.saturating_sub(self.bytes_min).saturating_add(1).max(1);
        let after_bytes = self.bytes_min + split_mix(&mut state) % span;
        let action = self.actions[pick(&mut state, self.actions.len())];
        Some(Fault { direction, after_bytes, action })
    }
}

fn pick(state: &mut u64, choices: usize) -> usize {
    (split_mix(state) % choices as u64) as usize
}

/// SplitMix64. Written out because a seed must mean the same faults for ever, which generators of a library do not promise
/// across its versions.
fn split_mix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mut mixed = *state;
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(seed: u64) -> RandomFaults {
        RandomFaults {
            seed,
            bytes_min: 100,
            bytes_max: 199,
            connections_max: 1_000,
            actions: vec![Action::CutRst, Action::CutFin, Action::ClientDies],
        }
    }

    #[test]
    fn the_same_seed_draws_the_same_faults() {
        let draw = |seed| (1..=50).map(|number| faults(seed).draw(number)).collect::<Vec<_>>();
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn draws_cover_both_directions_all_actions_and_both_ends_of_the_range() {
        let drawn: Vec<_> = (1..=1_000).filter_map(|number| faults(1).draw(number)).collect();
        assert_eq!(drawn.len(), 1_000);
        for direction in Direction::BOTH {
            assert!(drawn.iter().any(|fault| fault.direction == direction));
        }
        for action in faults(1).actions {
            assert!(drawn.iter().any(|fault| fault.action == action));
        }
        assert_eq!(drawn.iter().map(|fault| fault.after_bytes).min(), Some(100));
        assert_eq!(drawn.iter().map(|fault| fault.after_bytes).max(), Some(199));
    }

    #[test]
    fn connections_past_the_last_one_are_left_alone() {
        assert!(faults(1).draw(1_000).is_some());
        assert!(faults(1).draw(1_001).is_none());
        assert!(RandomFaults { actions: Vec::new(), ..faults(1) }.draw(1).is_none());
    }

    #[test]
    fn the_whole_range_of_offsets_does_not_overflow() {
        let all = RandomFaults { bytes_min: 0, bytes_max: u64::MAX, ..faults(3) };
        assert!(all.draw(1).is_some());
        let one = RandomFaults { bytes_min: 5, bytes_max: 5, ..faults(3) };
        assert_eq!(one.draw(1).map(|fault| fault.after_bytes), Some(5));
        let reversed = RandomFaults { bytes_min: 9, bytes_max: 3, ..faults(3) };
        assert_eq!(reversed.draw(1).map(|fault| fault.after_bytes), Some(9));
    }
}
