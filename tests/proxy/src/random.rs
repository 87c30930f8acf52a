//! Faults drawn from a seed, for each connection.
//!
//! The draw depends on the seed and on the connection's number alone, so a client that reconnects in another rhythm still
//! meets the same fault on its n-th connection.

use serde::{Deserialize, Serialize};

use crate::fault::{Action, Direction, Fault};

/// A seeded schedule: every connection without a plan of its own gets one fault in each direction at random offsets, of
/// which the first to be reached strikes. One direction alone would leave a client that only listens, or only talks, unharmed.
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
    /// The faults of connection number `number`: none, or one for each direction.
    pub fn draw(&self, number: u64) -> Vec<Fault> {
        if self.actions.is_empty() || number > self.connections_max {
            return Vec::new();
        }
        let mut state = self.seed ^ number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let span = self.bytes_max.saturating_sub(self.bytes_min).saturating_add(1).max(1);
        let mut fault = |direction| {
            let after_bytes = self.bytes_min + split_mix(&mut state) % span;
            let choice = split_mix(&mut state) % self.actions.len() as u64;
            let action = self.actions[choice as usize];
            Fault { direction, after_bytes, action }
        };
        Direction::BOTH.map(&mut fault).to_vec()
    }
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
        let drawn: Vec<_> = (1..=1_000).flat_map(|number| faults(1).draw(number)).collect();
        for direction in Direction::BOTH {
            assert_eq!(drawn.iter().filter(|fault| fault.direction == direction).count(), 1_000);
        }
        for action in faults(1).actions {
            assert!(drawn.iter().any(|fault| fault.action == action));
        }
        assert_eq!(drawn.iter().map(|fault| fault.after_bytes).min(), Some(100));
        assert_eq!(drawn.iter().map(|fault| fault.after_bytes).max(), Some(199));
    }

    #[test]
    fn connections_past_the_last_one_are_left_alone() {
        assert_eq!(faults(1).draw(1_000).len(), 2);
        assert!(faults(1).draw(1_001).is_empty());
        assert!(RandomFaults { actions: Vec::new(), ..faults(1) }.draw(1).is_empty());
    }

    #[test]
    fn the_whole_range_of_offsets_does_not_overflow() {
        let all = RandomFaults { bytes_min: 0, bytes_max: u64::MAX, ..faults(3) };
        assert_eq!(all.draw(1).len(), 2);
        let one = RandomFaults { bytes_min: 5, bytes_max: 5, ..faults(3) };
        assert!(one.draw(1).iter().all(|fault| fault.after_bytes == 5));
        let reversed = RandomFaults { bytes_min: 9, bytes_max: 3, ..faults(3) };
        assert!(reversed.draw(1).iter().all(|fault| fault.after_bytes == 9));
    }
}
