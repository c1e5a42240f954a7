//! Histograms of latencies, in the layout of HdrHistogram: exact up to 127 ns, and above in 64 steps for
//! each power of two.

use std::sync::atomic::{AtomicU64, Ordering};

use courser_buf::stats::{Field, Group, Kind, Sample, Stats};

/// Steps for each power of two: the middle of a step is within 0.8 % of each value in it.
const STEPS: u64 = 64;
/// log2 of it.
const BITS: u32 = STEPS.ilog2();
/// Latencies up to 2^36 ns, 68 s, have steps. Longer ones are counted in the last step.
const LONGEST_BITS: u32 = 36;
const BUCKETS: usize = ((LONGEST_BITS - BITS + 1) as usize) << BITS;

/// The step of a latency.
#[inline]
fn bucket(ns: u64) -> usize {
    // Values below two rows of steps have rows of their own width.
    let shift = (ns | STEPS).ilog2() - BITS;
    ((u64::from(shift) << BITS) + (ns >> shift)) as usize
}

/// The least latency of a step, ns, and how many ns it has.
fn range(bucket: usize) -> (u64, u64) {
    let row = (bucket as u64 >> BITS).saturating_sub(1);
    let from = (bucket as u64 - (row << BITS)) << row;
    (from, 1 << row)
}

/// Counters of latencies. About 16 KiB.
#[derive(Debug)]
pub(super) struct Buckets(Box<[AtomicU64]>);

impl Buckets {
    pub(super) fn new() -> Self {
        Buckets((0..BUCKETS).map(|_| AtomicU64::new(0)).collect())
    }

    /// The counter of a latency.
    #[inline]
    pub(super) fn of(&self, ns: u64) -> &AtomicU64 {
        match self.0.get(bucket(ns)) {
            Some(counter) => counter,
            None => self.last(),
        }
    }

    #[cold]
    fn last(&self) -> &AtomicU64 {
        &self.0[BUCKETS - 1]
    }

    /// Their sum.
    #[cfg(test)]
    pub(super) fn total(&self) -> u64 {
        self.0.iter().map(|counter| counter.load(Ordering::Relaxed)).sum()
    }

    /// The latencies so far.
    pub(super) fn read(&self) -> Latency {
        let counts = self.0.iter().map(|counter| counter.load(Ordering::Acquire));
        let counts = counts.enumerate().filter(|(_, count)| *count > 0);
        Latency { counts: counts.map(|(at, count)| (at as u16, count)).collect() }
    }
}

/// A histogram of latencies with two significant digits: exact up to 127 ns, within 0.8 % up to 68 s.
/// Longer ones are counted as 68 s. It is the layout of HdrHistogram.
///
/// ```
/// use courser::service::Latency;
///
/// let nothing = Latency::default();
/// assert_eq!((nothing.count(), nothing.quantile_ns(0.99)), (0, None));
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Latency {
    /// The steps that are not empty, in their order.
    counts: Vec<(u16, u64)>,
}

impl Latency {
    /// Latencies that were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().map(|(_, count)| count).sum()
    }

    /// The latency that this part of the calls (0 to 1) had at most, ns; `None`: there are no calls.
    /// 0.5 is the median.
    pub fn quantile_ns(&self, part: f64) -> Option<u64> {
        let total = self.count();
        let rank = ((total as f64 * part.clamp(0.0, 1.0)).ceil() as u64).clamp(1, total.max(1));
        let mut seen = 0;
        let found = self.counts.iter().find(|(_, count)| {
            seen += count;
            seen >= rank
        });
        found.map(|(at, _)| {
            let (from, width) = range(usize::from(*at));
            from + width / 2
        })
    }

    /// The longest latency, ns, at most 1.6 % too long.
    pub fn max_ns(&self) -> Option<u64> {
        self.counts
            .last()
            .map(|(at, _)| range(usize::from(*at)))
            .map(|(from, width)| from + width - 1)
    }

    /// The sum of all latencies, ns, within 0.8 %.
    pub fn sum_ns(&self) -> u64 {
        let sums = self.counts.iter().map(|(at, count)| {
            let (from, width) = range(usize::from(*at));
            count.saturating_mul(from + width / 2)
        });
        sums.fold(0, u64::saturating_add)
    }

    /// Latencies of at most `ns`, in whole steps.
    pub fn count_up_to(&self, ns: u64) -> u64 {
        let last = bucket(ns);
        let counts = self.counts.iter().take_while(|(at, _)| usize::from(*at) <= last);
        counts.map(|(_, count)| count).sum()
    }
}

/// The declaration of a number of a histogram.
const fn field(name: &'static str, kind: Kind, unit: &'static str, help: &'static str) -> Field {
    Field { name, kind, unit, help, labels: &[] }
}

impl Stats for Latency {
    const GROUP: &'static Group = &Group {
        name: "latency",
        type_name: "Latency",
        fields: &[
            field("count", Kind::Counter, "calls", "Calls that were measured."),
            field("sum_ns", Kind::Counter, "ns", "Their latencies together, within 0.8 %."),
            field("p50_ns", Kind::Gauge, "ns", "The median, within 0.8 %."),
            field("p99_ns", Kind::Gauge, "ns", "The latency of 99 % of the calls, at most."),
            field("p999_ns", Kind::Gauge, "ns", "The latency of 99.9 % of the calls, at most."),
            field("max_ns", Kind::Peak, "ns", "The longest latency."),
        ],
    };

    fn visit(&self, visitor: &mut dyn FnMut(Sample)) {
        let values = [
            Some(self.count()),
            Some(self.sum_ns()),
            self.quantile_ns(0.5),
            self.quantile_ns(0.99),
            self.quantile_ns(0.999),
            self.max_ns(),
        ];
        for (field, value) in Self::GROUP.fields.iter().zip(values) {
            visitor(Sample { field, label: None, value });
        }
    }

    fn merge(&mut self, other: &Self) {
        for (at, count) in &other.counts {
            match self.counts.binary_search_by_key(at, |(known, _)| *known) {
                Ok(known) => self.counts[known].1 = self.counts[known].1.saturating_add(*count),
                Err(new) => self.counts.insert(new, (*at, *count)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(latencies: impl IntoIterator<Item = u64>) -> Latency {
        let buckets = Buckets::new();
        for ns in latencies {
            buckets.of(ns).fetch_add(1, Ordering::Relaxed);
        }
        assert_eq!(buckets.total(), buckets.read().count());
        buckets.read()
    }

    #[test]
    fn each_latency_is_in_the_step_that_has_it() {
        let mut next = 0;
        for at in 0..BUCKETS {
            let (from, width) = range(at);
            assert_eq!(from, next, "the steps are without gaps: {at}");
            assert_eq!((bucket(from), bucket(from + width - 1)), (at, at));
            assert!(width == 1 || width * STEPS <= from, "{width} at {from}");
            next = from + width;
        }
        assert_eq!(next, 1 << LONGEST_BITS);
    }

    #[test]
    fn quantiles_are_those_of_a_crate_for_hdr_histograms() {
        let mut theirs = hdrhistogram::Histogram::<u64>::new_with_bounds(1, 1 << 36, 3).unwrap();
        let mut state = 1_u64;
        let latencies: Vec<_> = (0..50_000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (state >> 33) >> ((state >> 20) % 24)
            })
            .collect();
        latencies.iter().for_each(|ns| theirs.record(*ns).unwrap());
        let ours = of(latencies.iter().copied());
        for part in [0.0, 0.1, 0.5, 0.9, 0.99, 0.999, 1.0] {
            let (own, known) = (ours.quantile_ns(part).unwrap(), theirs.value_at_quantile(part));
            assert!(own.abs_diff(known) * 100 <= known, "{own} and {known} at {part}");
        }
        assert_eq!(ours.count(), theirs.len());
        let mean = ours.sum_ns() as f64 / ours.count() as f64;
        assert!((mean / theirs.mean() - 1.0).abs() < 0.01);
        assert!(ours.max_ns().unwrap().abs_diff(theirs.max()) * 50 <= theirs.max());
    }

    #[test]
    fn a_latency_beyond_the_range_is_counted_in_the_last_step() {
        let all = of([u64::MAX, 1 << 36, 3]);
        assert_eq!((all.count(), all.max_ns()), (3, Some((1 << 36) - 1)));
        assert_eq!((all.count_up_to(3), all.count_up_to(2)), (1, 0));
        assert_eq!(all.count_up_to(u64::MAX), 3);
    }

    #[test]
    fn merged_histograms_have_the_calls_of_both() {
        let mut all = of([1, 5, 900]);
        all.merge(&of([5, 7_000]));
        assert_eq!(all, of([1, 5, 5, 900, 7_000]));
    }
}
