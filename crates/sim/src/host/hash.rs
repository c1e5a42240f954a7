//! Hashes that are the same on every machine: of the event log and of frames' bytes.

use std::hash::Hasher;

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// A running hash over numbers: the event log's digest.
#[derive(Clone, Debug)]
pub(crate) struct Mix(u64);

impl Mix {
    pub(crate) fn new(seed: u64) -> Self {
        Mix(seed ^ 0x243f_6a88_85a3_08d3)
    }

    #[inline]
    pub(crate) fn mix(&mut self, word: u64) {
        let wide = u128::from(self.0 ^ word) * 0x9fb2_1c65_1e98_df25_u128;
        self.0 = (wide as u64) ^ (wide >> 64) as u64 ^ 0x1319_8a2e_0370_7344;
    }

    pub(crate) fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 29
    }
}

/// For sets of numbers: fast, and the same on every machine.
impl Hasher for Mix {
    fn finish(&self) -> u64 {
        Mix::finish(self)
    }

    fn write(&mut self, bytes: &[u8]) {
        self.mix(xxh3_64(bytes));
    }

    fn write_u16(&mut self, n: u16) {
        self.mix(n.into());
    }

    fn write_u32(&mut self, n: u32) {
        self.mix(n.into());
    }

    fn write_u64(&mut self, n: u64) {
        self.mix(n);
    }

    fn write_usize(&mut self, n: usize) {
        self.mix(n as u64);
    }
}

impl Default for Mix {
    fn default() -> Self {
        Mix::new(0)
    }
}

/// Hashes the bytes of a frame's pieces, including where each piece ends.
#[inline]
pub(crate) fn payload_hash<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> u64 {
    pieces.fold(0, |before, piece| xxh3_64_with_seed(piece, before))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bit_matters_in_every_piece() {
        let bytes: Vec<u8> = (0..61u8).collect();
        let hash = |bytes: &[u8], at| {
            let (head, rest): (&[u8], &[u8]) = bytes.split_at(at);
            payload_hash([head, rest].into_iter())
        };
        for at in [0, 7, 8, 40, 61] {
            let whole = hash(&bytes, at);
            assert_eq!(hash(&bytes.clone(), at), whole);
            for bit in 0..bytes.len() * 8 {
                let mut other = bytes.clone();
                other[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(hash(&other, at), whole, "{bit}");
            }
            assert_ne!(hash(&[bytes.clone(), vec![0]].concat(), at), whole);
        }
    }

    #[test]
    fn a_digest_depends_on_numbers_and_their_order() {
        let hash = |numbers: &[u32]| {
            let mut mix = Mix::default();
            numbers.iter().for_each(|&n| mix.write_u32(n));
            Hasher::finish(&mix)
        };
        assert_eq!(hash(&[1, 2]), hash(&[1, 2]));
        assert!(hash(&[1, 2]) != hash(&[2, 1]) && hash(&[0]) != hash(&[0, 0]));
    }
}
