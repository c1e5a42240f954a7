//! Traces a type: runs its `Deserialize` with made-up values, and records what it reads.
//!
//! # Invariants
//! 1. A run depends on nothing but the record, and runs that change nothing are the last. All that
//!    changes is counted up to a limit, so the number of runs has one.
//! 2. A run is bounded: by levels and stack for types that contain themselves, by steps for all else.
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

use serde::de::DeserializeOwned;

use self::record::{ROOT, Record};
use super::model::Shape;

/// Runs for one type, and those that find its required fields.
const MAX_RUNS: u32 = 50_000;
const MAX_PROBES: u32 = 10_000;

/// The shape of a type.
pub(super) fn trace<T: DeserializeOwned>() -> Shape {
    let mut record = Record::new();
    let is_finished = run::<T>(&mut record, MAX_RUNS);
    if record.is_cut() || !is_finished {
        return Shape::named::<T>();
    }
    let shape = record.shape();
    record.begin_probes();
    run::<T>(&mut record, MAX_PROBES);
    // The form does not depend on values without some field.
    let probed = record.shape();
    if probed == shape { probed } else { shape }
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
