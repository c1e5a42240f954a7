//! Runs with several seeds: the result of each case with the median, and the range of all.

use crate::experiments::{fct, loss};
use serde::Serialize;

use courser::Recovery;
use courser_kit::Failure;

use crate::declare::seeds::each_seed;

/// A value over all seeds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
}

impl Spread {
    /// Of one value or more.
    fn of(mut values: Vec<f64>) -> Spread {
        values.sort_by(f64::total_cmp);
        let (last, of) = (values.len().saturating_sub(1), |at: usize| values.get(at).copied());
        let of = |at| of(at).unwrap_or(0.0);
        Spread { median: of(last / 2), min: of(0), max: of(last) }
    }
}

/// The point whose value is the median, and the values of all seeds.
fn middle<P: Clone>(seeds: &[Vec<P>], at: usize, value: impl Fn(&P) -> f64) -> (P, Spread) {
    let mut points: Vec<&P> = seeds.iter().map(|points| &points[at]).collect();
    points.sort_by(|a, b| value(a).total_cmp(&value(b)));
    let spread = Spread::of(points.iter().map(|p| value(p)).collect());
    (points[(points.len() - 1) / 2].clone(), spread)
}

/// The goodput of one flow over all seeds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Goodput {
    #[serde(flatten)]
    pub(super) point: loss::Point,
    /// Number of seeds; the other fields are those of the seed with the median.
    pub(super) seeds: usize,
    pub(super) goodput_fraction_min: f64,
    pub(super) goodput_fraction_max: f64,
}

pub(super) fn loss(settings: &loss::Settings, seeds: u64) -> Result<Vec<Goodput>, Failure> {
    let all = each_seed((settings.seed, seeds), |seed, step| {
        loss::run(&loss::Settings { seed, ..settings.clone() }, step)
    })?;
    let of = |at| {
        let (point, spread) = middle(&all, at, |p| p.goodput_fraction);
        let (min, max) = (spread.min, spread.max);
        Goodput { point, seeds: all.len(), goodput_fraction_min: min, goodput_fraction_max: max }
    };
    Ok((0..all[0].len()).map(of).collect())
}

/// The completion times at a load over all seeds.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(super) struct Completion {
    #[serde(flatten)]
    pub(super) point: fct::Point,
    /// Number of seeds; the other fields are those of the seed with the median.
    pub(super) seeds: usize,
    pub(super) fct_p99_min_ns: u64,
    pub(super) fct_p99_max_ns: u64,
    /// 99th percentile of go-back-N, on timeouts and on NACKs, over that of the same seed here.
    pub(super) better_than_go_back_n: Option<Spread>,
    pub(super) better_than_go_back_n_nack: Option<Spread>,
}

pub(super) fn fct(settings: &fct::Settings, seeds: u64) -> Result<Vec<Completion>, Failure> {
    let all = each_seed((settings.seed, seeds), |seed, step| {
        fct::run(&fct::Settings { seed, ..settings.clone() }, step)
    })?;
    let of = |at| {
        let (point, spread) = middle(&all, at, |p| p.fct_p99_ns as f64);
        let better = |than| better(&all, at, than);
        Completion {
            seeds: all.len(),
            fct_p99_min_ns: spread.min as u64,
            fct_p99_max_ns: spread.max as u64,
            better_than_go_back_n: better(Recovery::GoBackN),
            better_than_go_back_n_nack: better(Recovery::GoBackNNack),
            point,
        }
    };
    Ok((0..all[0].len()).map(of).collect())
}

/// How many times better the 99th percentile of a point is than that of another scheme with the same
/// control, load and seed.
fn better(seeds: &[Vec<fct::Point>], at: usize, than: Recovery) -> Option<Spread> {
    let times = seeds.iter().map(|points| {
        let p = &points[at];
        let same = |q: &&fct::Point| (q.scheme, q.control, q.load) == (than, p.control, p.load);
        let slow = points.iter().find(same).filter(|_| p.scheme != than)?;
        Some(slow.fct_p99_ns as f64 / p.fct_p99_ns.max(1) as f64)
    });
    times.collect::<Option<Vec<_>>>().map(Spread::of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_point_of_a_case_is_that_of_the_median_seed() {
        let seeds = [vec![(3.0, 'c')], vec![(1.0, 'a')], vec![(2.0, 'b')], vec![(9.0, 'd')]];
        let (point, spread) = middle(&seeds, 0, |p| p.0);
        assert_eq!((point, spread), ((2.0, 'b'), Spread { median: 2.0, min: 1.0, max: 9.0 }));
    }
}
