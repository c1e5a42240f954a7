//! Latency histograms; recording does not allocate and cannot fail.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest latency, 10 s; longer ones are recorded as this. Windows are at most 1 s long, so only a
/// clock error reaches the limit.
const MAX_NS: u64 = 10_000_000_000;

/// Three decimal digits: exact up to 2 µs, within 0.1 % above.
const DIGITS: u8 = 3;

/// Latencies of one window and of the window before, ns. About 400 KiB. All pages are written at
/// creation, so that no page fault occurs within a window.
#[derive(Clone, Debug)]
pub struct Latency {
    now: Histogram<u64>,
    last: Histogram<u64>,
}

/// Percentiles of one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Percentiles {
    /// Median, ns.
    pub p50_ns: u64,
    /// 99th percentile, ns.
    pub p99_ns: u64,
    /// Number of samples.
    pub samples: u64,
}

/// High percentiles over many windows, because a single window has too few samples for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// 90th percentile, ns.
    pub p90_ns: u64,
    /// 99.9th percentile, ns.
    pub p999_ns: u64,
    /// 99.99th percentile, ns.
    pub p9999_ns: u64,
    /// Number of samples.
    pub samples: u64,
}

fn histogram() -> Histogram<u64> {
    // Cannot fail: the bounds are constants within the accepted range.
    let mut histogram =
        Histogram::new_with_bounds(1, MAX_NS, DIGITS).expect("constant bounds are valid");
    histogram.record_n(1, 1).expect("1 is within the bounds");
    // Clearing writes every counter: it is the first touch of the memory.
    histogram.reset();
    histogram
}

impl Default for Latency {
    fn default() -> Self {
        Self::new()
    }
}

impl Latency {
    /// An empty histogram of fixed size.
    pub fn new() -> Self {
        Self { now: histogram(), last: histogram() }
    }

    /// Records one operation. Costs a few ns. Values outside 1 ns to 10 s are recorded as the limit.
    #[inline]
    pub fn record(&mut self, ns: u64) {
        self.now.saturating_record(ns.max(1));
    }

    /// Returns the percentiles of the window and clears it; `None` without samples. Costs about 20 µs,
    /// so it is called outside the timed part of a window.
    pub fn take(&mut self) -> Option<Percentiles> {
        std::mem::swap(&mut self.now, &mut self.last);
        self.now.reset();
        if self.last.is_empty() {
            return None;
        }
        Some(Percentiles {
            p50_ns: self.last.value_at_quantile(0.50),
            p99_ns: self.last.value_at_quantile(0.99),
            samples: self.last.len(),
        })
    }
}

/// Latencies of many windows.
#[derive(Clone, Debug)]
pub struct Pooled(Histogram<u64>);

impl Default for Pooled {
    fn default() -> Self {
        Self::new()
    }
}

impl Pooled {
    /// An empty histogram of fixed size.
    pub fn new() -> Self {
        Self(histogram())
    }

    /// Adds the window whose percentiles were taken last.
    pub fn add(&mut self, latency: &Latency) {
        // All histograms have the same bounds, so this cannot fail.
        let _ = self.0.add(&latency.last);
    }

    /// Percentiles of all windows; `None` without samples.
    pub fn tail(&self) -> Option<Tail> {
        (!self.0.is_empty()).then(|| Tail {
            p90_ns: self.0.value_at_quantile(0.90),
            p999_ns: self.0.value_at_quantile(0.999),
            p9999_ns: self.0.value_at_quantile(0.9999),
            samples: self.0.len(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_known_values() {
        let mut latency = Latency::new();
        for ns in 1..=1000 {
            latency.record(ns);
        }
        let expected = Percentiles { p50_ns: 500, p99_ns: 990, samples: 1000 };
        assert_eq!(latency.take(), Some(expected));
    }

    #[test]
    fn taking_percentiles_clears_the_window() {
        let mut latency = Latency::new();
        assert_eq!(latency.take(), None);
        latency.record(7);
        assert_eq!(latency.take().map(|p| p.samples), Some(1));
        assert_eq!(latency.take(), None);
    }

    #[test]
    fn values_out_of_range_are_counted_at_the_limit() {
        let mut latency = Latency::new();
        latency.record(0);
        assert_eq!(latency.take().map(|p| p.p50_ns), Some(1));
        latency.record(u64::MAX);
        let p50 = latency.take().expect("one sample").p50_ns;
        assert!((MAX_NS..MAX_NS + MAX_NS / 500).contains(&p50), "{p50}");
    }
}
