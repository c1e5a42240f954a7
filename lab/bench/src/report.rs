//! The result of a benchmark as JSON.
//!
//! The report is one object: `bench`, `transport`, `config`, `results`, `environment`. `results` has
//! one object per placement. A quantity `q` has the keys `q` (the median over windows), `q_min`,
//! `q_max`, `q_ci_low`, `q_ci_high` (95 %; `null` below six windows). Quantities that a benchmark does
//! not measure are absent. Keys are stable: they may be added, but not renamed; the test
//! `keys_are_stable` lists them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::contention::BUSY;
use super::placement::Placement;
use super::stats::{Ratio, Summary};
use super::window::{Outcome, Pair, Sample};
use courser_kit::environment::Environment;
use courser_kit::latency::Tail;

mod example;

pub use example::example;

/// A benchmark's result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the benchmark.
    pub bench: String,
    /// Address scheme of the transport.
    pub transport: String,
    /// Parameters of the benchmark.
    pub config: Map<String, Value>,
    /// One entry per placement.
    pub results: Vec<PlacementResult>,
    /// The machine of the measurement.
    pub environment: Environment,
}

/// The key of [`Report::config`] with [`Runner::cpu_wait`](super::window::Runner::cpu_wait).
pub const CPU_WAIT: &str = "cpu_wait_share";

impl Report {
    /// The share of the time for which the benchmark waited for a CPU, if it is at least [`BUSY`].
    pub fn disturbed(&self) -> Option<f64> {
        self.config.get(CPU_WAIT)?.as_f64().filter(|&share| share >= BUSY)
    }
}

/// Declares the five keys of a quantity. They are written out so that a text search finds them.
macro_rules! quantity {
    ($(#[$doc:meta])* $name:ident: $median:ident, $min:ident, $max:ident, $low:ident, $high:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
        #[allow(missing_docs)]
        pub struct $name {
            pub $median: f64,
            pub $min: f64,
            pub $max: f64,
            pub $low: Option<f64>,
            pub $high: Option<f64>,
        }

        impl From<Summary> for $name {
            fn from(summary: Summary) -> Self {
                Self {
                    $median: summary.median,
                    $min: summary.min,
                    $max: summary.max,
                    $low: summary.ci.map(|ci| ci.low),
                    $high: summary.ci.map(|ci| ci.high),
                }
            }
        }
    };
}

quantity!(
    /// Round trip of the probes around the windows, ns. A wide range means that the windows mix
    /// several states of the machine.
    ProbeNs: probe_ns, probe_ns_min, probe_ns_max, probe_ns_ci_low, probe_ns_ci_high
);
quantity!(
    /// Median latency of the measured workload, ns.
    LatencyP50: latency_p50_ns, latency_p50_ns_min, latency_p50_ns_max,
    latency_p50_ns_ci_low, latency_p50_ns_ci_high
);
quantity!(
    /// 99th percentile of its latency, ns.
    LatencyP99: latency_p99_ns, latency_p99_ns_min, latency_p99_ns_max,
    latency_p99_ns_ci_low, latency_p99_ns_ci_high
);
quantity!(
    /// Median latency of the raw baseline, ns.
    RawP50: raw_p50_ns, raw_p50_ns_min, raw_p50_ns_max, raw_p50_ns_ci_low, raw_p50_ns_ci_high
);
quantity!(
    /// 99th percentile of its latency, ns.
    RawP99: raw_p99_ns, raw_p99_ns_min, raw_p99_ns_max, raw_p99_ns_ci_low, raw_p99_ns_ci_high
);
quantity!(
    /// Calls per second.
    Rate: rate_rps, rate_rps_min, rate_rps_max, rate_rps_ci_low, rate_rps_ci_high
);
quantity!(
    /// Packets (or packet exchanges) per second of the raw baseline.
    RawRate: raw_rate_pps, raw_rate_pps_min, raw_rate_pps_max, raw_rate_pps_ci_low,
    raw_rate_pps_ci_high
);
quantity!(
    /// Payload bits per second.
    Goodput: goodput_bps, goodput_bps_min, goodput_bps_max, goodput_bps_ci_low,
    goodput_bps_ci_high
);
quantity!(
    /// Payload bits per second of the raw baseline.
    RawGoodput: raw_goodput_bps, raw_goodput_bps_min, raw_goodput_bps_max,
    raw_goodput_bps_ci_low, raw_goodput_bps_ci_high
);
quantity!(
    /// Measured over raw within each pair, for the quantity named by `ratio_of`.
    PairRatio: ratio, ratio_min, ratio_max, ratio_ci_low, ratio_ci_high
);

/// The results of the windows of one placement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlacementResult {
    /// `near`, `far`, or `untagged`.
    pub placement: String,
    /// Windows of the measured workload that the medians include.
    pub windows: usize,
    /// Windows of the run that no result includes.
    pub windows_dropped: usize,
    /// Round trips of the probes, if there were any.
    #[serde(flatten)]
    pub probe: Option<ProbeNs>,
    /// Median latency, if measured.
    #[serde(flatten)]
    pub latency_p50: Option<LatencyP50>,
    /// 99th percentile, if measured.
    #[serde(flatten)]
    pub latency_p99: Option<LatencyP99>,
    /// Raw median latency, if measured.
    #[serde(flatten)]
    pub raw_p50: Option<RawP50>,
    /// Raw 99th percentile, if measured.
    #[serde(flatten)]
    pub raw_p99: Option<RawP99>,
    /// Call rate, if measured.
    #[serde(flatten)]
    pub rate: Option<Rate>,
    /// Raw packet rate, if measured.
    #[serde(flatten)]
    pub raw_rate: Option<RawRate>,
    /// Goodput, if measured.
    #[serde(flatten)]
    pub goodput: Option<Goodput>,
    /// Raw goodput, if measured.
    #[serde(flatten)]
    pub raw_goodput: Option<RawGoodput>,
    /// Key of the quantity that `ratio` compares, if there is a baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_of: Option<String>,
    /// Pairs that the ratio includes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs: Option<usize>,
    /// Median of the ratios within pairs, with its interval.
    #[serde(flatten)]
    pub ratio: Option<PairRatio>,
    /// Ratio of the two medians, as a check of `ratio`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio_of_medians: Option<f64>,
    /// Keys of single benchmarks: the point of a series, and further quantities.
    #[serde(flatten)]
    pub extra: Map<String, Value>,
    /// The point of a series as text, for tables.
    #[serde(skip)]
    pub point: String,
    /// Further quantities, for tables.
    #[serde(skip)]
    pub rows: Vec<Row>,
}

/// A further quantity as a row of a table.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Name.
    pub label: String,
    /// Unit.
    pub unit: Unit,
    /// The median, or the only value.
    pub value: f64,
    /// The distribution over windows, if there are several values.
    pub spread: Option<Summary>,
    /// Text in place of the distribution.
    pub note: String,
}

/// Unit of a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A time, ns.
    Time,
    /// A difference of times, ns.
    Difference,
    /// Operations per second.
    PerSecond,
    /// Bits per second.
    Bits,
    /// Bytes.
    Bytes,
    /// A plain number.
    Plain,
    /// A count.
    Count,
    /// A fraction, shown in percent.
    Percent,
}

impl PlacementResult {
    /// Sets the point of the series.
    pub fn at_point(&mut self, key: &str, value: impl Into<Value>, words: String) {
        self.extra.insert(key.to_owned(), value.into());
        self.point = words;
    }

    /// Adds a quantity over several windows, with its five keys.
    pub fn add(&mut self, key: &str, label: &str, unit: Unit, summary: Summary) {
        insert(&mut self.extra, key, summary);
        let (label, value, spread) = (label.to_owned(), summary.median, Some(summary));
        self.rows.push(Row { label, unit, value, spread, note: String::new() });
    }

    /// Adds a quantity with a single value.
    pub fn add_value(&mut self, key: &str, label: &str, unit: Unit, value: f64, note: &str) {
        self.extra.insert(key.to_owned(), value.into());
        let (label, note) = (label.to_owned(), note.to_owned());
        self.rows.push(Row { label, unit, value, spread: None, note });
    }

    /// Adds the high percentiles of a workload; `prefix` is `latency` or `raw`.
    pub fn add_tail(&mut self, prefix: &str, tail: Tail) {
        let note = format!("of {} samples", tail.samples);
        let all = [("p90", tail.p90_ns), ("p999", tail.p999_ns), ("p9999", tail.p9999_ns)];
        for ((key, ns), name) in all.into_iter().zip(["p90", "p99.9", "p99.99"]) {
            let (key, label) = (format!("{prefix}_{key}_ns"), format!("{prefix} {name}"));
            self.add_value(&key, &label, Unit::Time, ns as f64, &note);
        }
        self.extra.insert(format!("{prefix}_samples"), tail.samples.into());
    }

    /// The value of a key of this result.
    pub fn value(&self, key: &str) -> Option<f64> {
        serde_json::to_value(self).ok()?.get(key)?.as_f64()
    }

    /// The placement; `None` for `untagged`.
    pub fn placement(&self) -> Option<Placement> {
        match self.placement.as_str() {
            "near" => Some(Placement::Near),
            "far" => Some(Placement::Far),
            _ => None,
        }
    }
}

/// Inserts a quantity with its five keys.
pub fn insert(object: &mut Map<String, Value>, key: &str, summary: Summary) {
    let keys = [("", summary.median), ("_min", summary.min), ("_max", summary.max)];
    for (suffix, value) in keys {
        object.insert(format!("{key}{suffix}"), value.into());
    }
    let ci = summary.ci;
    object.insert(format!("{key}_ci_low"), ci.map(|ci| ci.low).into());
    object.insert(format!("{key}_ci_high"), ci.map(|ci| ci.high).into());
}

/// The main quantity of a benchmark, which `ratio` compares. Latency is also reported whenever the
/// workload records it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// Median latency; a ratio above 1 is slower than raw.
    Latency,
    /// 99th percentile of latency, likewise.
    LatencyP99,
    /// Operations per second; a ratio below 1 is slower than raw.
    Rate,
    /// Payload bits per second; a ratio below 1 is slower than raw.
    Goodput,
    /// Processor time of an operation; a ratio above 1 takes more.
    CpuTime,
}

impl Metric {
    /// Its key in reports.
    pub fn key(self) -> &'static str {
        match self {
            Self::Latency => "latency_p50_ns",
            Self::LatencyP99 => "latency_p99_ns",
            Self::Rate => "rate_rps",
            Self::Goodput => "goodput_bps",
            Self::CpuTime => "cpu_per_call_ns",
        }
    }

    /// The value of this quantity in a window.
    pub fn value(self, sample: &Sample) -> Option<f64> {
        match self {
            Self::Latency => p50(sample),
            Self::LatencyP99 => p99(sample),
            Self::Rate => Some(sample.rate()),
            Self::Goodput => Some(sample.goodput_bps()),
            Self::CpuTime => sample.cpu_per_operation_ns(),
        }
    }
}

fn p50(sample: &Sample) -> Option<f64> {
    sample.latency.map(|latency| latency.p50_ns as f64)
}

fn p99(sample: &Sample) -> Option<f64> {
    sample.latency.map(|latency| latency.p99_ns as f64)
}

/// One result per placement that occurred, near first; without any placement, one `untagged` result
/// over all windows. Empty only without windows.
pub fn results(outcome: &Outcome, metric: Metric) -> Vec<PlacementResult> {
    let near: Vec<&Pair> = outcome.at(Placement::Near).collect();
    let far: Vec<&Pair> = outcome.at(Placement::Far).collect();
    let mut groups = vec![("near", near), ("far", far)];
    groups.retain(|(_, pairs)| !pairs.is_empty());
    if groups.is_empty() && !outcome.pairs.is_empty() {
        groups.push(("untagged", outcome.pairs.iter().collect()));
    }
    let counted: usize = groups.iter().map(|(_, pairs)| pairs.len()).sum();
    let dropped = outcome.pairs.len() - counted;
    groups
        .iter()
        .map(|(placement, pairs)| placement_result(placement, pairs, dropped, metric))
        .collect()
}

/// Sorts the results of a series by placement: near, far, untagged, each in the order of the series.
pub fn by_placement(mut results: Vec<PlacementResult>) -> Vec<PlacementResult> {
    // The sort is stable.
    results.sort_by_key(|result| match result.placement() {
        Some(Placement::Near) => 0,
        Some(Placement::Far) => 1,
        None => 2,
    });
    results
}

/// Summary of a value over the pairs of a placement, grouped as in [`results`].
pub fn over_pairs(
    outcome: &Outcome,
    placement: Option<Placement>,
    value: impl FnMut(&Pair) -> Option<f64>,
) -> Option<Summary> {
    match placement {
        Some(placement) => Summary::of(outcome.at(placement).filter_map(value)),
        None => Summary::of(outcome.pairs.iter().filter_map(value)),
    }
}

/// A quantity over that of the baseline within each pair of a placement.
pub fn ratio(outcome: &Outcome, metric: Metric, placement: Option<Placement>) -> Option<Summary> {
    let mut pairs = Vec::new();
    let _ = over_pairs(outcome, placement, |pair| {
        let raw = metric.value(pair.raw.as_ref()?)?;
        pairs.push((metric.value(&pair.measured)?, raw));
        None
    });
    Ratio::of(pairs).map(|ratio| ratio.per_pair)
}

fn placement_result(
    placement: &str,
    pairs: &[&Pair],
    windows_dropped: usize,
    metric: Metric,
) -> PlacementResult {
    let measured = |value: &dyn Fn(&Sample) -> Option<f64>| {
        Summary::of(pairs.iter().filter_map(|pair| value(&pair.measured)))
    };
    let raw = |value: &dyn Fn(&Sample) -> Option<f64>| {
        Summary::of(pairs.iter().filter_map(|pair| value(pair.raw.as_ref()?)))
    };
    let only = |wanted: Metric| {
        move |sample: &Sample| (metric == wanted).then(|| wanted.value(sample)).flatten()
    };
    let probes = pairs
        .iter()
        .filter_map(|pair| pair.probes)
        .flat_map(|range| [range.min_ns as f64, range.max_ns as f64]);
    let ratio = Ratio::of(pairs.iter().filter_map(|pair| {
        let raw = metric.value(pair.raw.as_ref()?)?;
        Some((metric.value(&pair.measured)?, raw))
    }));
    PlacementResult {
        placement: placement.to_owned(),
        windows: pairs.len(),
        windows_dropped,
        probe: Summary::of(probes).map(Into::into),
        latency_p50: measured(&p50).map(Into::into),
        latency_p99: measured(&p99).map(Into::into),
        raw_p50: raw(&p50).map(Into::into),
        raw_p99: raw(&p99).map(Into::into),
        rate: measured(&only(Metric::Rate)).map(Into::into),
        raw_rate: raw(&only(Metric::Rate)).map(Into::into),
        goodput: measured(&only(Metric::Goodput)).map(Into::into),
        raw_goodput: raw(&only(Metric::Goodput)).map(Into::into),
        ratio_of: ratio.map(|_| metric.key().to_owned()),
        pairs: ratio.map(|ratio| ratio.per_pair.count),
        ratio: ratio.map(|ratio| ratio.per_pair.into()),
        ratio_of_medians: ratio.map(|ratio| ratio.of_medians),
        extra: Map::new(),
        point: String::new(),
        rows: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
