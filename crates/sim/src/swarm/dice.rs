//! Random draws of the swarm, and its units of time.

use crate::Rng;

pub(super) const US: u64 = 1_000;
pub(super) const MS: u64 = 1_000_000;

/// Draws with readable weights.
pub(super) trait Dice {
    /// One of the elements; a repeated one is as much more likely.
    fn one<T: Copy>(&mut self, of: &[T]) -> T;
    /// True once in `n` times.
    fn once_in(&mut self, n: u64) -> bool;
}

impl Dice for Rng {
    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}
