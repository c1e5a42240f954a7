//! An example report for tests.

use super::super::placement::Tag;
use super::super::report;
use super::super::window::ProbeRange;
use super::*;
use courser_kit::affinity;
use courser_kit::latency::Percentiles;

pub(super) const NEAR: Tag = Tag::At(Placement::Near);
pub(super) const FAR: Tag = Tag::At(Placement::Far);

/// A window of 1 ms with the given rate (per ms), one byte an operation.
pub(super) fn sample(operations: u64, p50_ns: u64) -> Sample {
    Sample {
        operations,
        bytes: operations,
        elapsed_ns: 1_000_000,
        latency: Some(Percentiles { p50_ns, p99_ns: 2 * p50_ns, samples: operations }),
        cpu_ns: None,
    }
}

pub(super) fn pair(tag: Tag, measured: u64, raw: u64) -> Pair {
    let probes = Some(ProbeRange { min_ns: 100, max_ns: 120 });
    Pair { tag, probes, measured: sample(measured, 200), raw: Some(sample(raw, 160)) }
}

pub(super) fn outcome(pairs: impl IntoIterator<Item = Pair>) -> Outcome {
    Outcome { pairs: pairs.into_iter().collect() }
}

/// A report with every quantity at two placements, for tests of programs that show reports.
///
/// # Panics
/// No core can be used.
pub fn example() -> Report {
    let pairs = (0..12).map(|i| pair(if i < 8 { NEAR } else { FAR }, 80 + i, 100));
    let mut results = report::results(&outcome(pairs), Metric::Rate);
    let goodput = report::results(&outcome([pair(NEAR, 5, 10)]), Metric::Goodput);
    results[0].goodput = goodput[0].goodput;
    results[0].raw_goodput = goodput[0].raw_goodput;
    Report {
        bench: "test".to_owned(),
        transport: "shm".to_owned(),
        config: serde_json::Map::from_iter([("size".to_owned(), 32.into())]),
        results,
        environment: Environment::collect(None, &affinity::choose().expect("cores")),
    }
}
