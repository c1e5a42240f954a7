//! A latency histogram that never allocates and never fails while it is timed.

use hdrhistogram::Histogram;

/// Longest latency told apart, 10 s; anything above is counted as this. A benchmark
/// window lasts at most a second, so the limit only catches a broken clock.
const MAX_NS: u64 = 10_000_000_000;

/// Three decimal digits: exact up to 2 µs, within 0.1 % above.
const DIGITS: u8 = 3;

/// Latencies of one window, in ns. About 200 KiB, all of it written once at the start
/// so that no page is touched for the first time inside a window.
#[derive(Clone, Debug)]
pub(crate) struct Latency(Histogram<u64>);

/// What one window's histogram is reduced to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Percentiles {
    /// Median, ns.
    pub(crate) p50_ns: u64,
    /// 99th percentile, ns.
    pub(crate) p99_ns: u64,
    /// Samples behind the two.
    pub(crate) samples: u64,
}

impl Latency {
    /// An empty histogram of fixed size.
    pub(crate) fn new() -> Self {
        // The bounds are constants inside the accepted range (the tests construct one),
        // so this cannot fail at run time.
        let mut histogram =
            Histogram::new_with_bounds(1, MAX_NS, DIGITS).expect("constant bounds are valid");
        histogram.record_n(1, 1).expect("1 is within the bounds");
        // Clearing writes every counter: it is the first touch of the memory.
        histogram.reset();
        Self(histogram)
    }

    /// Counts one operation. A few ns; values outside 1 ns to 10 s count as the limit.
    #[inline]
    pub(crate) fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns.max(1));
    }

    /// Percentiles of what was recorded since the last call, `None` if nothing was;
    /// empties the histogram. Outside the timed part of a window: it costs ~20 µs.
    pub(crate) fn take(&mut self) -> Option<Percentiles> {
        if self.0.is_empty() {
            return None;
        }
        let percentiles = Percentiles {
            p50_ns: self.0.value_at_quantile(0.50),
            p99_ns: self.0.value_at_quantile(0.99),
            samples: self.0.len(),
        };
        self.0.reset();
        Some(percentiles)
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
    fn taking_empties() {
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
