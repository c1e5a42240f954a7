//! The map: `scc::TreeIndex`, whose readers take no lock.
//!
//! 1. Operations on one key are linearizable.
//! 2. A scan visits keys in ascending order, each at most once, and every key that is there during the
//!    whole scan. Of keys that are inserted or removed meanwhile it visits some.
//!
//! The tree copies its entries when a leaf splits, so a value that is replaced in place is behind a
//! pointer that the copies share. A put of a key that is removed at the same time may store into the
//! removed entry: it counts as having come before the removal.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use scc::{Guard, TreeIndex};

/// Keys and values of 8 bytes, in the order of the keys. Threads share it by reference.
///
/// Cost: some 60 bytes an entry.
#[derive(Default)]
pub struct Index {
    tree: TreeIndex<u64, Arc<AtomicU64>>,
}

/// The result of a scan.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sum {
    /// The sum of the values, modulo 2^64.
    pub sum: u64,
    /// Their number.
    pub count: u32,
}

impl Index {
    /// The value of a key.
    pub fn get(&self, key: u64) -> Option<u64> {
        self.tree.peek_with(&key, |_, value| value.load(Ordering::Acquire))
    }

    /// Stores a value. Returns whether it replaced one.
    pub fn put(&self, key: u64, value: u64) -> bool {
        loop {
            let replaced = self.tree.peek_with(&key, |_, old| old.store(value, Ordering::Release));
            if replaced.is_some() {
                return true;
            }
            // Refused if another thread has inserted the key since.
            if self.tree.insert_sync(key, Arc::new(AtomicU64::new(value))).is_ok() {
                return false;
            }
        }
    }

    /// Removes a key. Returns whether it was there.
    pub fn delete(&self, key: u64) -> bool {
        self.tree.remove_sync(&key)
    }

    /// The sum of the values of a key and its successors, `count` keys at most.
    pub fn scan(&self, from: u64, count: u32) -> Sum {
        let guard = Guard::new();
        let mut sum = Sum::default();
        for (_, value) in self.tree.range(from.., &guard).take(count as usize) {
            sum.sum = sum.sum.wrapping_add(value.load(Ordering::Acquire));
            sum.count += 1;
        }
        sum
    }

    /// The keys from one on, in order, `count` at most.
    pub fn keys(&self, from: u64, count: usize) -> Vec<u64> {
        let guard = Guard::new();
        self.tree.range(from.., &guard).take(count).map(|(key, _)| *key).collect()
    }

    /// The number of keys. Visits all of them.
    pub fn count(&self) -> usize {
        self.tree.len()
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").field("depth", &self.tree.depth()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use courser_sim::Rng;

    use super::*;

    #[test]
    fn it_is_a_sorted_map() {
        let (index, mut model) = (Index::default(), BTreeMap::new());
        let mut rng = Rng::new(1);
        for step in 0..30_000 {
            let key = rng.below(2_000).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            match rng.below(4) {
                0 => assert_eq!(index.put(key, step), model.insert(key, step).is_some()),
                1 => assert_eq!(index.delete(key), model.remove(&key).is_some()),
                2 => assert_eq!(index.get(key), model.get(&key).copied()),
                _ => {
                    let count = rng.below(200) as u32;
                    let values = model.range(key..).take(count as usize).map(|(_, value)| *value);
                    let expected = values.fold(Sum::default(), |sum, value| Sum {
                        sum: sum.sum.wrapping_add(value),
                        count: sum.count + 1,
                    });
                    assert_eq!(index.scan(key, count), expected);
                }
            }
        }
        assert_eq!(index.count(), model.len());
        assert!(index.keys(0, usize::MAX).iter().eq(model.keys()));
    }

    #[test]
    fn sums_wrap_and_ends_are_ends() {
        let index = Index::default();
        index.put(u64::MAX, 3);
        index.put(0, u64::MAX);
        assert_eq!(index.scan(0, 128), Sum { sum: 2, count: 2 });
        assert_eq!(index.scan(u64::MAX, 128), Sum { sum: 3, count: 1 });
        assert_eq!(index.scan(0, 0), Sum::default());
    }
}
