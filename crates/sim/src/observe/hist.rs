//! Distributions of times.

use hdrhistogram::Histogram;
use serde_json::{Map, Value, json};

/// Times in ns with three significant digits, up to 1,000 s (longer ones are clamped). Extremes and
/// mean are exact. 250 KiB.
#[derive(Clone, Debug)]
pub struct Times {
    histogram: Histogram<u64>,
    sum_ns: u128,
    min_ns: u64,
    max_ns: u64,
}

/// The longest time, to which longer ones are clamped.
const MAX_NS: u64 = 1_000_000_000_000;

/// Quantiles of a report.
const QUANTILES: [(&str, f64); 5] =
    [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99_9", 0.999), ("p99_99", 0.9999)];

impl Default for Times {
    fn default() -> Self {
        let histogram =
            Histogram::new_with_bounds(1, MAX_NS, 3).expect("constant bounds are valid");
        Times { histogram, sum_ns: 0, min_ns: u64::MAX, max_ns: 0 }
    }
}

impl Times {
    /// Adds a time.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.histogram.saturating_record(ns);
        self.sum_ns += u128::from(ns);
        self.min_ns = self.min_ns.min(ns);
        self.max_ns = self.max_ns.max(ns);
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.histogram.len()
    }

    /// The time that a share `q` (0 to 1) of all does not exceed, ns; `None` if empty. At most 0.1
    /// % too long.
    pub fn quantile_ns(&self, q: f64) -> Option<u64> {
        (self.count() > 0).then(|| self.histogram.value_at_quantile(q).min(self.max_ns))
    }

    /// The mean, ns, rounded down; `None` if empty.
    pub fn mean_ns(&self) -> Option<u64> {
        self.sum_ns.checked_div(self.count().into()).map(|mean| mean as u64)
    }

    /// The shortest and the longest, ns; `None` if empty.
    pub fn extremes_ns(&self) -> Option<(u64, u64)> {
        (self.count() > 0).then_some((self.min_ns, self.max_ns))
    }

    /// Adds all times of another.
    pub fn merge(&mut self, other: &Times) {
        self.histogram.add(&other.histogram).expect("both have the same bounds");
        self.sum_ns += other.sum_ns;
        self.min_ns = self.min_ns.min(other.min_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// Adds `NAME_count`, `NAME_min_ns`, `NAME_mean_ns`, `NAME_p50_ns` and so on, `NAME_max_ns` to
    /// an object; `null` where there are no times.
    pub fn put(&self, into: &mut Map<String, Value>, name: &str) {
        let extremes = self.extremes_ns();
        let mut put = |key: &str, value| into.insert(format!("{name}_{key}"), value);
        put("count", json!(self.count()));
        put("min_ns", json!(extremes.map(|(min, _)| min)));
        put("mean_ns", json!(self.mean_ns()));
        for (key, q) in QUANTILES {
            put(&format!("{key}_ns"), json!(self.quantile_ns(q)));
        }
        put("max_ns", json!(extremes.map(|(_, max)| max)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_thousandth_and_extremes_exact() {
        let mut t = Times::default();
        (1..=10_000).for_each(|us| t.record(us * 1_000 + 7));
        for (q, want) in [(0.5, 5_000_007), (0.99, 9_900_007), (0.999, 9_990_007)] {
            let got = t.quantile_ns(q).unwrap();
            assert!((want..=want + want / 1_000).contains(&got), "{q}: {got}");
        }
        assert_eq!(t.extremes_ns(), Some((1_007, 10_000_007)));
        assert_eq!((t.count(), t.mean_ns()), (10_000, Some(5_000_507)));
        assert_eq!(t.quantile_ns(1.0), Some(10_000_007));
    }

    #[test]
    fn empty_zero_and_maximal_times_are_handled() {
        let mut t = Times::default();
        let mut object = Map::new();
        t.put(&mut object, "rtt");
        assert_eq!((&object["rtt_count"], &object["rtt_p50_ns"]), (&json!(0), &Value::Null));
        t.record(0);
        t.record(u64::MAX);
        t.put(&mut object, "rtt");
        assert_eq!((&object["rtt_min_ns"], &object["rtt_max_ns"]), (&json!(0), &json!(u64::MAX)));
        assert!(object["rtt_p99_9_ns"].as_u64().unwrap() >= MAX_NS);
        assert_eq!(object.len(), 9);
    }

    #[test]
    fn merging_equals_recording_together() {
        let (mut a, mut b, mut both) = (Times::default(), Times::default(), Times::default());
        for ns in [5, 70, 900] {
            a.record(ns);
            b.record(ns * 1_000);
            both.record(ns);
            both.record(ns * 1_000);
        }
        a.merge(&b);
        let json = |t: &Times| {
            let mut object = Map::new();
            t.put(&mut object, "x");
            object
        };
        assert_eq!(json(&a), json(&both));
    }
}
