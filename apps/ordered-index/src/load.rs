//! Fills an index.

use std::sync::Arc;

use crate::index::Index;
use crate::message::{nth_key, nth_value};

/// Most keys that a program loads.
pub const MOST_KEYS: u64 = 100_000_000;

/// Keys between two reports of progress.
const STEP: u64 = 4_096;

/// An index with keys, in the order of their numbers, which is none of the keys. `progress` gets the
/// number of loaded keys.
pub fn filled(keys: u64, mut progress: impl FnMut(u64)) -> Arc<Index> {
    let index = Index::default();
    for n in 0..keys {
        index.put(nth_key(n), nth_value(n));
        if n % STEP == 0 {
            progress(n);
        }
    }
    progress(keys);
    Arc::new(index)
}
