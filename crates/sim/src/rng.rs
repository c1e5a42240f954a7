//! The only source of randomness: one generator for each purpose, all derived from the world's
//! seed, so that an additional draw for one purpose changes no other.

/// Probabilities are in parts of this.
pub(crate) const MILLION: u32 = 1_000_000;

/// A seeded generator (splitmix64: Steele, Lea and Flood, OOPSLA '14); every seed is usable.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The generator of a seed.
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// An independent generator for a purpose: equal seed and purpose result in equal numbers,
    /// whatever is drawn elsewhere.
    pub fn stream(seed: u64, purpose: u64) -> Self {
        let mut rng = Rng(seed ^ purpose.wrapping_mul(0xd6e8_feb8_6659_fd93));
        Rng(rng.next_u64())
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, 0 when `n` is 0; the bias is below `n` / 2^64.
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included; `low` when `high` is less.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// True with this probability, per million.
    pub fn chance_ppm(&mut self, ppm: u32) -> bool {
        self.below(u64::from(MILLION)) < u64::from(ppm)
    }

    /// A random element; `None` of an empty slice.
    pub fn pick<'a, T>(&mut self, of: &'a [T]) -> Option<&'a T> {
        of.get(self.below(of.len() as u64) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_reproducible_and_independent() {
        let draw = |purpose| Rng::stream(7, purpose).next_u64();
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
        assert_ne!(Rng::new(1).next_u64(), Rng::new(2).next_u64());
    }

    #[test]
    fn ranges_are_kept_and_reached() {
        let mut rng = Rng::new(3);
        let mut seen = [0u32; 4];
        for _ in 0..4000 {
            seen[rng.between(10, 13) as usize - 10] += 1;
        }
        assert!(seen.iter().all(|&n| (850..1150).contains(&n)), "{seen:?}");
        assert_eq!((rng.below(0), rng.between(5, 5)), (0, 5));
        assert!(!rng.chance_ppm(0) && rng.chance_ppm(MILLION));
        assert_eq!(rng.pick::<u8>(&[]), None);
    }
}
