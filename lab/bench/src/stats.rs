//! Medians, ranges and intervals of small samples.
//!
//! Window results are neither normal nor symmetric, because a host only slows windows down. The
//! statistics therefore assume no distribution: the interval of a median consists of two order
//! statistics, chosen by the binomial distribution. Fewer than six values have no 95 % interval.

/// Probability that the interval does not contain the median.
const ALPHA: f64 = 0.05;

/// A confidence interval.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

/// One quantity over many windows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Number of values.
    pub count: usize,
    /// Median; the mean of the middle two for an even number of values.
    pub median: f64,
    /// Smallest value.
    pub min: f64,
    /// Largest value.
    pub max: f64,
    /// 95 % confidence interval of the median; `None` below six values.
    pub ci: Option<Interval>,
}

impl Summary {
    /// Summarises `values`; `None` without values. Values that are not finite come from empty windows
    /// and are skipped.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        let count = sorted.len();
        let ci = ci_rank(count)
            .map(|rank| Interval { low: sorted[rank - 1], high: sorted[count - rank] });
        Some(Self { count, median: median_of_sorted(&sorted)?, min, max, ci })
    }
}

/// Median of `values`, which are sorted; `None` without values.
pub fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    median_of_sorted(values)
}

fn median_of_sorted(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    if sorted.len() % 2 == 1 {
        return Some(upper);
    }
    let lower = sorted[sorted.len() / 2 - 1];
    // Halving first: the sum of two large values could overflow.
    Some(lower / 2.0 + upper / 2.0)
}

/// Ratio of the measured values to those of the baseline.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// Ratios within pairs: each measured value over that of its neighbouring window.
    pub per_pair: Summary,
    /// Ratio of the medians of all measured and all baseline values. A difference from `per_pair`
    /// indicates a drift during the run.
    pub of_medians: f64,
}

impl Ratio {
    /// Computes the ratio of `(measured, baseline)` pairs. Pairs with a value that is not positive and
    /// finite are skipped; `None` if no pair remains.
    pub fn of(pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let usable = |v: f64| v.is_finite() && v > 0.0;
        let (mut measured, mut baseline): (Vec<f64>, Vec<f64>) =
            pairs.into_iter().filter(|&(m, b)| usable(m) && usable(b)).unzip();
        let per_pair = Summary::of(measured.iter().zip(&baseline).map(|(m, b)| m / b))?;
        Some(Self { per_pair, of_medians: median(&mut measured)? / median(&mut baseline)? })
    }
}

/// The rank `r` for which [r-th smallest, r-th largest] of `n` values contains the median of their
/// distribution with a probability of at least 95 %: the largest `r` with
/// 2 P(Bin(n, 1/2) < r) <= 0.05. `None` if the whole range has a lower probability.
fn ci_rank(n: usize) -> Option<usize> {
    // Terms are kept as logarithms: 2^-n leaves the range of f64 at n = 1075.
    let mut ln_term = -(n as f64) * std::f64::consts::LN_2;
    let mut below = 0.0;
    let mut rank = 0;
    while rank <= n / 2 {
        below += ln_term.exp();
        if 2.0 * below > ALPHA {
            break;
        }
        ln_term += ((n - rank) as f64 / (rank + 1) as f64).ln();
        rank += 1;
    }
    (rank > 0).then_some(rank)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_known_values() {
        assert_eq!(median(&mut []), None);
        assert_eq!(median(&mut [3.0]), Some(3.0));
        assert_eq!(median(&mut [9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&mut [4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(&mut [f64::MAX, f64::MAX]), Some(f64::MAX));
    }

    /// Ranks from published tables of the binomial (sign test) interval.
    #[test]
    fn interval_ranks_match_the_tables() {
        for (n, rank) in [
            (0, None),
            (1, None),
            (5, None),
            (6, Some(1)),
            (8, Some(1)),
            (9, Some(2)),
            (10, Some(2)),
            (20, Some(6)),
            (25, Some(8)),
            (50, Some(18)),
            (100, Some(40)),
        ] {
            assert_eq!(ci_rank(n), rank, "n = {n}");
        }
    }

    /// For large n the rank tends to n/2 - 1.96 sqrt(n)/2; checks the logarithmic sum
    /// where a plain one would underflow.
    #[test]
    fn interval_ranks_of_many_values() {
        for n in [1_000_usize, 10_000, 100_000] {
            let expected = n as f64 / 2.0 - 0.98 * (n as f64).sqrt();
            let rank = ci_rank(n).expect("wide enough") as f64;
            assert!((rank - expected).abs() < 2.0, "{n}: {rank} not {expected}");
        }
    }

    #[test]
    fn summary_of_known_values() {
        let summary = Summary::of((1..=20).rev().map(f64::from)).expect("not empty");
        assert_eq!(summary.count, 20);
        assert_eq!(summary.median, 10.5);
        assert_eq!((summary.min, summary.max), (1.0, 20.0));
        let ci = summary.ci.expect("20 values are enough");
        assert_eq!((ci.low, ci.high), (6.0, 15.0));
    }

    #[test]
    fn few_values_have_no_interval_and_none_have_no_summary() {
        assert_eq!(Summary::of([1.0; 5]).expect("not empty").ci, None);
        assert_eq!(Summary::of([]), None);
        assert_eq!(Summary::of([f64::NAN, f64::INFINITY]), None);
    }

    #[test]
    fn a_ratio_is_taken_within_pairs() {
        // The machine becomes three times slower halfway; the ratio does not change.
        let pairs = [(8.0, 10.0), (8.0, 10.0), (2.4, 3.0), (2.7, 3.0)];
        let ratio = Ratio::of(pairs).expect("pairs");
        assert!((ratio.per_pair.median - 0.8).abs() < 1e-9);
        assert!((ratio.of_medians - 5.35 / 6.5).abs() < 1e-9);
    }

    #[test]
    fn pairs_without_a_usable_value_are_skipped() {
        assert_eq!(Ratio::of([(1.0, 0.0), (0.0, 1.0), (f64::NAN, 1.0)]), None);
        let ratio = Ratio::of([(1.0, 0.0), (1.0, 2.0)]).expect("one pair");
        assert_eq!((ratio.per_pair.count, ratio.per_pair.median), (1, 0.5));
    }
}
