//! A shape with its targets: the runs that it is compared with, and which targets it meets.

use std::sync::{Mutex, PoisonError};

use serde::Serialize;

use super::load::Load;
use super::rows::{Limit, Shape, of_name};
use super::simulate::{SLICE_NS, Seen, simulate};
use crate::scenario::{ScenarioError, check};

/// Results of a shape.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Judged {
    /// Its name.
    pub shape: &'static str,
    /// Its figures.
    #[serde(flatten)]
    pub seen: Seen,
    /// Round trip of a full packet on the idle network, ns.
    pub base_rtt_ns: u64,
    /// Packets accepted as a share of those without control; `None`: not compared.
    pub of_none: Option<f64>,
    /// The end of the last millisecond whose round trips are above the limit of the shape, or four
    /// base round trips, ns after the first start, or after the end of small calls that end; `None`:
    /// the last millisecond is above it.
    pub settled_after_ns: Option<u64>,
    /// Its targets.
    pub targets: Vec<Aim>,
    /// Shown: calls of one packet are small calls themselves.
    #[serde(skip)]
    pub(super) calls_ns: Option<u64>,
    /// The loads of drops are those with a buffer for each port.
    #[serde(skip)]
    pub(super) has_small_buffer: bool,
}

/// A target and what was measured.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Aim {
    /// The figure.
    pub figure: Figure,
    /// The measured value; times in ns, queues in bytes.
    pub value: f64,
    /// Its limit.
    pub limit: f64,
    /// True if it is within the limit.
    pub met: bool,
}

/// A figure that has a target.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Figure {
    /// 99th percentile of round trips.
    Rtt,
    /// 99th percentile of calls.
    Calls,
    /// 99th percentile of small calls.
    Small,
    /// Packets accepted, as a share of those without control.
    OfNone,
    /// Share of the slowest flow in the mean.
    Slowest,
    /// The longest queue.
    Queue,
    /// The time until round trips are short again.
    Back,
}

impl Figure {
    /// Larger values are better.
    pub(super) fn is_at_least(self) -> bool {
        matches!(self, Figure::OfNone | Figure::Slowest)
    }
}

impl Aim {
    fn new(figure: Figure, value: f64, limit: f64) -> Aim {
        let met = if figure.is_at_least() { value >= limit } else { value <= limit };
        Aim { figure, value, limit, met }
    }
}

/// Runs of this program: the runs that shapes are compared with are often the same.
static RUNS: Mutex<Vec<(Load, Seen)>> = Mutex::new(Vec::new());

/// Runs a load, unless that was done.
fn run(load: &Load) -> Result<Seen, ScenarioError> {
    let runs = || RUNS.lock().unwrap_or_else(PoisonError::into_inner);
    let known = runs().iter().find(|(other, _)| other == load).map(|(_, seen)| seen.clone());
    if let Some(seen) = known {
        return Ok(seen);
    }
    let idle = load.idle();
    let base_rtt_ns = if idle == *load { 0 } else { base_rtt_ns(load)? };
    let seen = simulate(load, base_rtt_ns)?;
    runs().push((*load, seen.clone()));
    Ok(seen)
}

/// Round trip of a full packet on the idle network.
fn base_rtt_ns(load: &Load) -> Result<u64, ScenarioError> {
    let base_ns = run(&load.idle())?.rtt.min_ns;
    check(base_ns > 0, "delay_ns", load.delay_ns, "a round trip that ends in an idle network")?;
    Ok(base_ns)
}

/// Runs a shape and what it is compared with. `load_of` makes the load of a shape; `alone`: it is not
/// compared with the run without control.
pub(super) fn judge(
    shape: &'static Shape,
    load_of: &dyn Fn(&Shape) -> Load,
    alone: bool,
) -> Result<Judged, ScenarioError> {
    let load = load_of(shape);
    crate::declare::parameter::check(&load)?;
    load.check()?;
    let (seen, base_ns) = (run(&load)?, base_rtt_ns(&load)?);
    let none = if alone { None } else { Some(run(&load.without_control())?) };
    let base_limit_ns = (4 * base_ns).max(base_ns + 12 * load.packet_time_ns());
    // Frames wait for jitter on both ways.
    let base_limit_ns = (base_limit_ns + 2 * load.jitter_ns) as f64;
    let limit_of = |limit: Limit, p99: fn(&Seen) -> u64| -> Result<Option<f64>, ScenarioError> {
        Ok(match limit {
            Limit::Base => Some(base_limit_ns),
            Limit::OfNone(times) => none.as_ref().map(|none| times * p99(none) as f64),
            Limit::WithoutSmall(times) => Some(times * p99(&run(&load.without_small())?) as f64),
            Limit::OfShape(name, times) => match of_name(name) {
                Some(other) => Some(times * p99(&run(&load_of(other))?) as f64),
                None => None,
            },
        })
    };
    let target = &shape.target;
    let mut targets = Vec::new();
    let mut aim = |figure, value: f64, limit: Option<f64>| {
        targets.extend(limit.map(|limit| Aim::new(figure, value, limit)));
    };
    let rtt_limit = target.rtt.map(|limit| limit_of(limit, |seen| seen.rtt.p99_ns)).transpose()?;
    let calls = target.calls.map(|limit| limit_of(limit, |seen| seen.completion.p99_ns));
    let of_none = none.as_ref().map(|none| seen.line_share / none.line_share);
    let settled =
        settled_after_ns(&load, &seen.slices, rtt_limit.flatten().unwrap_or(base_limit_ns));
    aim(Figure::Rtt, seen.rtt.p99_ns as f64, rtt_limit.flatten());
    aim(Figure::Calls, seen.completion.p99_ns as f64, calls.transpose()?.flatten());
    aim(Figure::Small, seen.small.p99_ns as f64, target.small_ns);
    // A run that is not compared has its share of the link.
    aim(Figure::OfNone, of_none.unwrap_or(seen.line_share), Some(target.of_none));
    aim(Figure::Slowest, seen.slowest_share, target.slowest);
    aim(Figure::Queue, seen.queue_max_bytes as f64, target.queue_bytes);
    let back_ns = settled.map_or(f64::INFINITY, |ns| ns as f64);
    aim(Figure::Back, back_ns, target.back_ns.map(|ns| ns as f64));
    Ok(Judged {
        shape: shape.name,
        base_rtt_ns: base_ns,
        of_none,
        settled_after_ns: settled,
        targets,
        calls_ns: match target.calls {
            Some(_) => Some(seen.completion.p99_ns),
            None => (load.small > 0).then_some(seen.small.p99_ns),
        },
        has_small_buffer: load.buffer_bytes > 0,
        seen,
    })
}

/// The end of the last slice above a limit, after the first start or the end of small calls.
fn settled_after_ns(load: &Load, slices: &[u64], limit_ns: f64) -> Option<u64> {
    let from_ns = if load.small_ends { load.warm_up_ns() } else { 0 };
    let slices = slices.get((from_ns / SLICE_NS) as usize..)?;
    let last = slices.iter().rposition(|&p99_ns| p99_ns as f64 > limit_ns);
    let above = last.map_or(0, |at| at + 1);
    (above == 0 || above < slices.len()).then(|| above as u64 * SLICE_NS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_has_settled_after_its_last_slice_above_the_limit() {
        let load = Load::default();
        let after = |slices: &[u64]| settled_after_ns(&load, slices, 10.0);
        assert_eq!(after(&[9, 11, 12, 10, 3]), Some(3 * SLICE_NS));
        assert_eq!(after(&[9, 10, 8]), Some(0));
        assert_eq!(after(&[9, 10, 11]), None);
        let ends = Load { small_ends: true, ..load };
        let first = (ends.warm_up_ns() / SLICE_NS) as usize;
        let mut slices = vec![99; first];
        slices.extend([11, 5, 5]);
        assert_eq!(settled_after_ns(&ends, &slices, 10.0), Some(SLICE_NS));
    }
}
