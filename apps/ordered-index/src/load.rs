//! Fills an index.

use std::sync::Arc;

use crate::index::{DEFAULT_MOST, Index};
use crate::message::{nth_key, nth_value};

/// Most keys that a program loads.
pub const MOST_KEYS: u64 = 100_000_000;

/// Keys between two reports of progress.
const STEP: u64 = 4_096;

/// An index with keys, in the order of their numbers, which is none of the keys, and with room for
/// [`DEFAULT_MOST`]. `progress` gets the number of loaded keys.
pub fn filled(keys: u64, progress: impl FnMut(u64)) -> Arc<Index> {
    fill(Index::with_limit(keys.max(DEFAULT_MOST)), keys, progress)
}

/// Stores keys in an index, as many as there is room for.
pub fn fill(index: Index, keys: u64, mut progress: impl FnMut(u64)) -> Arc<Index> {
    for n in 0..keys {
        if index.put(nth_key(n), nth_value(n)).is_err() {
            break;
        }
        if n % STEP == 0 {
            progress(n);
        }
    }
    progress(keys);
    Arc::new(index)
}
