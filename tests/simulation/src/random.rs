//! The one source of chance. Knows no clock and no operating system: a seed means the same draws for ever.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

/// ChaCha8, whose output is fixed by its definition, with draws written out here because a library's may change.
#[derive(Debug)]
pub struct Random(ChaCha8Rng);

impl Random {
    /// The draws of a seed.
    pub fn new(seed: u64) -> Self {
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        Self(ChaCha8Rng::from_seed(bytes))
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below a bound; 0 for the bound 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.number()) * u128::from(bound)) >> 64) as u64
    }

    /// A number in a range, both ends included.
    pub fn within(&mut self, (low, high): (u64, u64)) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// Yes, this often in a thousand.
    pub fn permille(&mut self, often: u64) -> bool {
        self.below(1000) < often
    }

    /// An index into something of this length, which must not be 0.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// One of several; the slice must not be empty.
    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.index(all.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_means_these_draws_for_ever() {
        let mut random = Random::new(7);
        let draws: Vec<u64> = (0..4).map(|_| random.below(1000)).collect();
        assert_eq!(draws, FIXED);
    }

    const FIXED: [u64; 4] = [764, 465, 5, 301];

    #[test]
    fn ranges_include_both_ends() {
        let mut random = Random::new(1);
        let mut seen = [false; 3];
        for _ in 0..100 {
            seen[random.within((4, 6)) as usize - 4] = true;
        }
        assert_eq!(seen, [true; 3]);
        assert_eq!(random.below(0), 0);
    }
}
