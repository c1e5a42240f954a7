//! Sets of calls that have taken effect.

/// A set of small numbers. Memory is that of its unusual part: full words at the beginning and empty
/// ones at the end are not copied into a [`Key`].
#[derive(Clone, Debug)]
pub(super) struct Bits {
    words: Vec<u64>,
}

/// A set as an entry of a table.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Key {
    full: u32,
    words: Box<[u64]>,
}

impl Bits {
    pub(super) fn new(len: usize) -> Self {
        Bits { words: vec![0; len.div_ceil(64)] }
    }

    pub(super) fn set(&mut self, at: usize) {
        self.words[at / 64] |= 1 << (at % 64);
    }

    pub(super) fn clear(&mut self, at: usize) {
        self.words[at / 64] &= !(1 << (at % 64));
    }

    pub(super) fn contains(&self, at: usize) -> bool {
        self.words[at / 64] & 1 << (at % 64) != 0
    }

    /// Returns whether all numbers are in another set of the same size.
    pub(super) fn is_subset(&self, of: &Bits) -> bool {
        self.words.iter().zip(&of.words).all(|(a, b)| a & !b == 0)
    }

    pub(super) fn key(&self) -> Key {
        let full = self.words.iter().take_while(|word| **word == u64::MAX).count();
        let rest = &self.words[full..];
        let used = rest.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        Key { full: full as u32, words: rest[..used].into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_equal_for_equal_sets_only() {
        let mut keys = std::collections::HashSet::new();
        for at in 0..256 {
            let mut bits = Bits::new(256);
            (0..at).for_each(|n| bits.set(n));
            assert!(keys.insert(bits.key()));
            if at > 1 {
                bits.clear(0);
                assert!(keys.insert(bits.key()));
                bits.set(0);
                assert!(!keys.insert(bits.key()));
            }
        }
    }
}
