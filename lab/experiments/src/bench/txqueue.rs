//! `courser-lab bench txqueue`: the rate by the length of transmit bursts (E62) `[eRPC section 4.2.2]`.
//!
//! Measures the small-RPC rate with B = 3 and limits of 1 to 256 packets for a transmit burst, on both
//! sides.

use courser_bench::report::{Metric, Report, Unit};
use courser_bench::rpc::error::BenchError;
use courser_bench::rpc::side::{Over, Variant};
use courser_bench::rpc::steps::{Steps, small_rate};
use courser_bench::window::{Plan, Progress};

/// The limits that are measured. The others are compared with the last one.
const BOUNDS: [usize; 9] = [1, 2, 4, 8, 16, 32, 64, 128, 256];

/// Runs the benchmark; the calling thread is pinned meanwhile.
///
/// # Errors
/// [`BenchError`], in one line each.
pub(crate) fn run(
    over: Over,
    plan: Plan,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Report, BenchError> {
    let variants = BOUNDS.map(|bound| Variant { burst: Some(bound), ..Variant::default() });
    let loads = vec![small_rate(plan)];
    let steps = Steps { name: "txqueue", over, plan, variants: variants.to_vec(), loads };
    steps.run(progress, &|step, windows, result| {
        let bound = BOUNDS[step];
        result.at_point("tx_burst", bound, format!("burst of {bound}"));
        let (key, label) = ("packets_per_burst", "packets a burst");
        result.add_value(key, label, Unit::Plain, windows.packets_per_burst(step), "client");
        if let Some(share) = windows.ratio(step, BOUNDS.len() - 1, Metric::Rate, result) {
            result.add("of_longest", "of the longest", Unit::Percent, share);
        }
    })
}
