//! Traces a type: runs its `Deserialize` with made-up values, and records what it reads.
//!
//! # Invariants
//! 1. A run depends on nothing but the record, and runs that change nothing are the last. All that
//!    changes is counted up to a limit, so the number of runs has one.
//! 2. A run is bounded: by levels for types that contain themselves, by steps for all else.
//!    The first time that an option, a list or an enum is met it is entered; within itself it takes the
//!    shortest way that is known.
//! 3. An error is the fault of the innermost place whose type returned it. The place is tried again with
//!    other values; if it refuses all, it is read behind its siblings, so that they are recorded.
//! 4. What is not known has the name of a Rust type in the shape, so it is never the same as a part of a
//!    type with another name. If a limit was reached before all was read, that
//!    is the whole value.
//! 5. Required fields are found behind all else, by values that lack one. They change no form.

mod form;
mod read;
mod record;

use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;

use serde::de::DeserializeOwned;

use self::record::{ROOT, Record};
use super::model::Shape;

/// Runs for one type, and those that find its required fields.
const MAX_RUNS: u32 = 50_000;
const MAX_PROBES: u32 = 10_000;

/// Stack of a run here. Threads have at least 2 MiB by default.
pub(super) const MAX_STACK: usize = 512 << 10;
/// Stack of a thread for a type that needs more, and the part of it that runs may use: 1 MiB for each of
/// the levels. So the levels are the limit, whatever stack a build of the program needs for each.
const LARGE_STACK: usize = 72 << 20;
const MAX_LARGE_STACK: usize = 64 << 20;

/// The shape of a type.
pub(super) fn trace<T: DeserializeOwned>() -> Shape {
    let (shape, is_out_of_stack) = trace_within::<T>(MAX_STACK);
    if !is_out_of_stack {
        return shape;
    }
    thread::scope(|scope| {
        // Its pages are memory when they are used.
        let thread = thread::Builder::new().name("courser-shape".into()).stack_size(LARGE_STACK);
        let large = thread.spawn_scoped(scope, || trace_within::<T>(MAX_LARGE_STACK).0);
        large.ok().and_then(|thread| thread.join().ok()).unwrap_or(shape)
    })
}

/// The shape of a type, and whether that depends on the stack.
pub(super) fn trace_within<T: DeserializeOwned>(most_stack: usize) -> (Shape, bool) {
    let mut record = Record::new(most_stack);
    let is_finished = run::<T>(&mut record, MAX_RUNS);
    if record.is_cut() || !is_finished {
        return (Shape::named::<T>(), record.is_out_of_stack);
    }
    let shape = record.shape();
    record.begin_probes();
    run::<T>(&mut record, MAX_PROBES);
    // The form does not depend on values without some field.
    let probed = record.shape();
    (if probed == shape { probed } else { shape }, record.is_out_of_stack)
}

/// Reads values until the record does not change. Returns whether it ends before the limit.
fn run<T: DeserializeOwned>(record: &mut Record, most: u32) -> bool {
    for _ in 0..most {
        record.begin();
        let run = || record.at(ROOT, PhantomData::<T>).is_ok();
        if catch_unwind(AssertUnwindSafe(run)).is_err() {
            record.panicked();
        }
        if record.is_finished() {
            return true;
        }
    }
    false
}
