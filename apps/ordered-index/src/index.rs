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
/// Cost: some 75 bytes an entry, so that the limit of keys is one of memory.
pub struct Index {
    tree: TreeIndex<u64, Arc<AtomicU64>>,
    most: u64,
    /// Keys, and puts that are about to insert one: `most` at most.
    count: AtomicU64,
}

/// Most keys of an index by default: some 750 MB.
pub const DEFAULT_MOST: u64 = 10_000_000;

/// A new key was not stored, because the index has as many as it may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the index is full; remove keys, or serve it with a larger --max-keys")]
pub struct Full;

impl Default for Index {
    fn default() -> Self {
        Index::with_limit(DEFAULT_MOST)
    }
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
    /// An index of at most this number of keys.
    pub fn with_limit(most: u64) -> Index {
        Index { tree: TreeIndex::default(), most, count: AtomicU64::new(0) }
    }

    /// The value of a key.
    pub fn get(&self, key: u64) -> Option<u64> {
        self.tree.peek_with(&key, |_, value| value.load(Ordering::Acquire))
    }

    /// Stores a value. Returns whether it replaced one.
    ///
    /// # Errors
    /// The key is new, and the index is full.
    pub fn put(&self, key: u64, value: u64) -> Result<bool, Full> {
        loop {
            let replaced = self.tree.peek_with(&key, |_, old| old.store(value, Ordering::Release));
            if replaced.is_some() {
                return Ok(true);
            }
            // Counted before, so that threads do not exceed the limit together.
            let more = |count| (count < self.most).then_some(count + 1);
            self.count
                .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)
                .map_err(|_| Full)?;
            // Refused if another thread has inserted the key since.
            if self.tree.insert_sync(key, Arc::new(AtomicU64::new(value))).is_ok() {
                return Ok(false);
            }
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Removes a key. Returns whether it was there.
    pub fn delete(&self, key: u64) -> bool {
        let is_removed = self.tree.remove_sync(&key);
        if is_removed {
            self.count.fetch_sub(1, Ordering::Relaxed);
        }
        is_removed
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
                0 => assert_eq!(index.put(key, step), Ok(model.insert(key, step).is_some())),
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
        index.put(u64::MAX, 3).unwrap();
        index.put(0, u64::MAX).unwrap();
        assert_eq!(index.scan(0, 128), Sum { sum: 2, count: 2 });
        assert_eq!(index.scan(u64::MAX, 128), Sum { sum: 3, count: 1 });
        assert_eq!(index.scan(0, 0), Sum::default());
    }

    #[test]
    fn a_full_index_refuses_new_keys_only_and_threads_do_not_exceed_it() {
        let index = Index::with_limit(1_000);
        let stored: u64 = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|thread| {
                    let index = &index;
                    let is_stored = move |n: &u64| index.put(4 * n + thread, 1).is_ok();
                    scope.spawn(move || (0..500).filter(is_stored).count() as u64)
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!((stored, index.count()), (1_000, 1_000));
        let key = index.keys(0, 1)[0];
        assert_eq!((index.put(u64::MAX, 1), index.put(key, 2)), (Err(Full), Ok(true)));
        assert!(index.delete(key) && !index.delete(key));
        assert_eq!((index.put(u64::MAX, 1), index.put(key, 2)), (Ok(false), Err(Full)));
    }
}
