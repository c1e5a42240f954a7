//! The map under concurrent writers and scans.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use courser_ordered_index::index::Index;
use courser_ordered_index::message::nth_key;
use courser_sim::Rng;
use courser_sim::history::{History, KvAnswer, KvModel, KvOp, Limits};

/// Keys that stay: every second one.
const STABLE: u64 = 4_000;

/// Calls a function in a thread until the flag is set.
fn churn(index: &Index, ends: &AtomicBool, seed: u64, mut step: impl FnMut(&Index, &mut Rng)) {
    let mut rng = Rng::new(seed);
    while !ends.load(Ordering::Relaxed) {
        step(index, &mut rng);
    }
}

/// Ends the other threads, also when this one panics.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The keys between those that stay are inserted and removed, so that leaves split and merge.
fn insert_and_remove(index: &Index, rng: &mut Rng) {
    // Whole regions at a time: single keys split no leaf.
    let first = rng.below(STABLE);
    let keys = (first..STABLE.min(first + 200)).map(|n| 2 * n + 1);
    if rng.chance_ppm(500_000) {
        keys.for_each(|key| _ = index.put(key, key).unwrap());
    } else {
        keys.for_each(|key| _ = index.delete(key));
    }
}

#[test]
fn a_scan_visits_keys_that_stay_in_order_and_once() {
    let index = Index::default();
    (0..STABLE).for_each(|n| _ = index.put(2 * n, 1).unwrap());
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        for seed in 0..2 {
            let (index, ends) = (&index, &ends);
            scope.spawn(move || churn(index, ends, seed, insert_and_remove));
        }
        // Values that stay are replaced in place meanwhile.
        let (of, flag) = (&index, &ends);
        scope.spawn(move || {
            churn(of, flag, 9, |index, rng| {
                assert_eq!(
                    index.put(2 * rng.below(STABLE), 1),
                    Ok(true),
                    "a key that stays is missing"
                );
            })
        });
        let _ends = Ends(&ends);
        let mut rng = Rng::new(7);
        for _ in 0..10_000 {
            let from = rng.below(2 * STABLE);
            let keys = index.keys(from, 300);
            assert!(keys.is_sorted_by(|a, b| a < b), "{keys:?}");
            let Some(last) = keys.last().copied() else { continue };
            let stay = keys.iter().copied().filter(|key| key % 2 == 0);
            let expected = (from.div_ceil(2)..=last / 2).map(|n| 2 * n);
            assert!(stay.eq(expected), "from {from}: {keys:?}");
            let key = 2 * rng.below(STABLE);
            assert_eq!(index.get(key), Some(1), "{key}");
        }
    });
    let odd = index.keys(0, usize::MAX).into_iter().filter(|key| key % 2 == 1);
    for key in odd {
        assert!(index.delete(key), "{key}");
    }
    assert!(index.keys(0, usize::MAX).into_iter().eq((0..STABLE).map(|n| 2 * n)));
    assert_eq!(index.scan(0, u32::MAX).sum, STABLE);
}

#[test]
fn operations_on_a_key_are_linearizable() {
    const THREADS: u64 = 3;
    for seed in 0..20 {
        let index = Arc::new(Index::default());
        // Neighbours, so that the keys share a leaf that splits.
        (0..200).for_each(|n| _ = index.put(1_000 + n, 0).unwrap());
        let history = Mutex::new(History::default());
        let zero = Instant::now();
        let now_ns = || zero.elapsed().as_nanos() as u64;
        thread::scope(|scope| {
            for thread in 0..THREADS {
                let (index, history) = (&index, &history);
                scope.spawn(move || {
                    let mut rng = Rng::new(seed * THREADS + thread);
                    let mut own = Vec::new();
                    for turn in 0..2_000 {
                        let key = rng.below(8);
                        let value = 1 + turn * THREADS + thread;
                        let begin_ns = now_ns();
                        let (op, answer) = match rng.below(4) {
                            0 | 1 => (KvOp::Get(key), KvAnswer::Value(index.get(key))),
                            2 => {
                                let replaced = index.put(key, value).unwrap();
                                (KvOp::Put(key, value), KvAnswer::Replaced(replaced))
                            }
                            _ => (KvOp::Delete(key), KvAnswer::Removed(index.delete(key))),
                        };
                        own.push((begin_ns, now_ns(), op, answer));
                        // Splits of the leaf meanwhile.
                        index.put(100 + nth_key(turn) % 100, 0).unwrap();
                    }
                    let mut history = history.lock().unwrap();
                    for (begin_ns, end_ns, op, answer) in own {
                        let call = history.begin(begin_ns, op);
                        history.end(call, end_ns, answer);
                    }
                });
            }
        });
        let history = history.into_inner().unwrap();
        assert_eq!(history.calls().len(), 6_000);
        history.assert_linearizable(&KvModel::default(), Limits::default());
    }
}
