//! `courser-lab bench credits`: performance by the credits of a session (E37) `[eRPC section 4.3.2]`.
//!
//! For C = 1 to 64: the latency of one small call, the rate of many small calls on eight sessions, and
//! the bandwidth of one large request.

use courser_bench::report::Report;
use courser_bench::rpc::error::BenchError;
use courser_bench::rpc::side::{Over, Variant};
use courser_bench::rpc::spec::{BenchSpec, Kind};
use courser_bench::rpc::steps::{Steps, small_rate};
use courser_bench::window::{Plan, Progress};

/// Numbers of credits that are measured.
const CREDITS: [u32; 7] = [1, 2, 4, 8, 16, 32, 64];

/// Runs the benchmark with large requests of `size` bytes; the calling thread is pinned meanwhile.
///
/// # Errors
/// [`BenchError`], in one line each.
pub(crate) fn run(
    over: Over,
    plan: Plan,
    size: usize,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Report, BenchError> {
    let variants =
        CREDITS.map(|credits| Variant { credits: Some(credits), size, ..Variant::default() });
    let mut large = BenchSpec::new(Kind::Bandwidth, plan);
    large.size = size;
    let mut loads = vec![BenchSpec::new(Kind::Latency, plan), large]
        .into_iter()
        .map(|spec| (spec.kind, spec.loads().remove(0)))
        .collect::<Vec<_>>();
    loads.insert(1, small_rate(plan));
    let steps = Steps { name: "credits", over, plan, variants: variants.to_vec(), loads };
    steps.run(progress, &|step, _, result| {
        let credits = CREDITS[step];
        result.at_point("credits", credits, format!("C = {credits}"));
    })
}
