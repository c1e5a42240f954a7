//! `courser-lab bench memory`: large requests for more memory than the server has (ADR 36).
//!
//! The same 64 calls of 8 MiB at a time, on four sessions, to a server with memory for all of them, for
//! half and for a quarter of them, in alternating windows. A call that ends with an error fails the run.

use courser_bench::report::{Metric, PlacementResult, Report, Unit};
use courser_bench::rpc::error::BenchError;
use courser_bench::rpc::side::{Over, Variant};
use courser_bench::rpc::spec::{BenchSpec, Kind};
use courser_bench::rpc::steps::{Steps, Windows};
use courser_bench::window::{Plan, Progress};

/// Bytes in a request, the calls that are open, and their sessions.
const SIZE: usize = 8 << 20;
const OPEN: u32 = 64;
const SESSIONS: u32 = 4;

/// Message memory of the server, MiB; the first one is the base.
const MEMORY: [usize; 3] = [1024, 256, 128];

/// Runs the benchmark; the calling thread is pinned meanwhile.
///
/// # Errors
/// [`BenchError`], in one line each.
pub(crate) fn run(
    over: Over,
    plan: Plan,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Report, BenchError> {
    let variant = |mib: usize| Variant {
        size: SIZE,
        sessions: SESSIONS as usize,
        server_memory: Some(mib << 20),
        ..Variant::default()
    };
    let mut spec = BenchSpec::new(Kind::Bandwidth, plan);
    (spec.size, spec.sessions, spec.in_flight) = (SIZE, SESSIONS, OPEN);
    let loads = vec![(spec.kind, spec.loads().remove(0))];
    let variants = MEMORY.map(variant).to_vec();
    let steps = Steps { name: "memory", over, plan, variants, loads };
    steps.run(progress, &|step, windows, result| compare(step, windows, result))
}

/// Adds the memory of a step, its goodput relative to the base, and the refusals that its client has
/// not passed to the application.
fn compare(step: usize, windows: &Windows<'_, '_>, result: &mut PlacementResult) {
    let mib = MEMORY[step];
    result.at_point("server_memory_mib", mib, format!("{mib} MiB"));
    let client = windows.client(step);
    let note = "requests refused for lack of memory, then made again";
    result.add_value("held_back", "held back", Unit::Count, client.held_back as f64, note);
    let share = windows.ratio_of(0, (step, 0), Metric::Goodput, result);
    if let Some(share) = share.filter(|_| step > 0) {
        result.add("goodput_of_enough", "goodput of enough", Unit::Percent, share);
    }
}
