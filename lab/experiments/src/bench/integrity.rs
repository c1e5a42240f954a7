//! `courser-lab bench integrity`: the cost of a checksum of each frame.
//!
//! The same calls with [`Integrity::None`] and with [`Integrity::Crc`], in alternating windows: the
//! rate of small calls on eight sessions, and the bandwidth of one large request.

use courser::Integrity;
use courser_bench::report::{Metric, Report, Unit};
use courser_bench::rpc::error::BenchError;
use courser_bench::rpc::side::{Over, Variant};
use courser_bench::rpc::spec::{BenchSpec, Kind};
use courser_bench::rpc::steps::{Steps, small_rate};
use courser_bench::window::{Plan, Progress};

/// What is compared; the first one is the base.
const CHOICES: [Integrity; 2] = [Integrity::None, Integrity::Crc];

/// Bytes in a large request.
const LARGE: usize = 8 << 20;

/// Runs the benchmark; the calling thread is pinned meanwhile.
///
/// # Errors
/// [`BenchError`], in one line each.
pub(crate) fn run(
    over: Over,
    plan: Plan,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Report, BenchError> {
    let variant =
        |integrity| Variant { integrity: Some(integrity), size: LARGE, ..Variant::default() };
    let mut large = BenchSpec::new(Kind::Bandwidth, plan);
    large.size = LARGE;
    let loads = vec![small_rate(plan), (large.kind, large.loads().remove(0))];
    let variants = CHOICES.map(variant).to_vec();
    let steps = Steps { name: "integrity", over, plan, variants, loads };
    steps.run(progress, &|step, windows, result| {
        let integrity = CHOICES[step];
        result.at_point("integrity", integrity.name(), integrity.name().to_owned());
        if step == 0 {
            return;
        }
        let compared = [
            (Metric::Rate, "rate_of_none", "rate of none"),
            (Metric::Goodput, "goodput_of_none", "goodput of none"),
        ];
        for (load, (metric, key, label)) in compared.into_iter().enumerate() {
            if let Some(share) = windows.ratio_of(load, (step, 0), metric, result) {
                result.add(key, label, Unit::Percent, share);
            }
        }
    })
}
