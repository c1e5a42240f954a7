//! What Courser wants to reach, so that a result says by itself whether it does.
//!
//! The figures are for the machines that docs/performance.md names; elsewhere they are a yardstick.

use super::side::Over;
use super::spec::Kind;
use courser_bench::placement::Placement;
use courser_bench::report::{PlacementResult, Unit};
use courser_bench::table;

/// A bound of one quantity at one placement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Goal {
    /// Where it holds; `None`: wherever the cores are.
    placement: Option<Placement>,
    /// The quantity.
    key: &'static str,
    unit: Unit,
    bound: Bound,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    fn is_met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(bound) => value >= bound,
            Self::AtMost(bound) => value <= bound,
        }
    }
}

const NEAR: Option<Placement> = Some(Placement::Near);
const FAR: Option<Placement> = Some(Placement::Far);

const fn goal(placement: Option<Placement>, key: &'static str, unit: Unit, bound: Bound) -> Goal {
    Goal { placement, key, unit, bound }
}

/// The packet size of the systems that are compared with: frames of up to this carry 1 KiB.
const SMALL_FRAME: usize = 1_100;

/// The goals of calls of one load.
pub(super) fn of_calls(
    over: Over,
    kind: Kind,
    load: &super::caller::Load,
    symmetric: bool,
    frame: usize,
) -> Vec<Goal> {
    use Bound::{AtLeast, AtMost};
    use Unit::{Bits, Difference, PerSecond, Plain, Time};
    let small = load.size == 32;
    match (over, kind) {
        (Over::Shm, Kind::Latency) if small => vec![
            goal(NEAR, "raw_p50_ns", Time, AtMost(200.0)),
            goal(NEAR, "difference_ns", Difference, AtMost(45.0)),
            goal(FAR, "raw_p50_ns", Time, AtMost(620.0)),
            goal(FAR, "ratio", Plain, AtMost(1.10)),
        ],
        (Over::Shm, Kind::Rate) if small && load.batch == 3 && load.in_flight == 60 => {
            let (near, far) = if symmetric { (11.9e6, 4.6e6) } else { (18e6, 8.5e6) };
            vec![
                goal(NEAR, "rate_rps", PerSecond, AtLeast(near)),
                goal(FAR, "rate_rps", PerSecond, AtLeast(far)),
            ]
        }
        (Over::Udp, Kind::Rate) if small && load.sessions == 8 && !symmetric => {
            vec![goal(None, "rate_rps", PerSecond, AtLeast(3e6))]
        }
        (Over::Shm, Kind::Bandwidth) if load.size == 8 << 20 && frame <= SMALL_FRAME => vec![
            goal(NEAR, "goodput_bps", Bits, AtLeast(63e9)),
            goal(FAR, "goodput_bps", Bits, AtLeast(14e9)),
        ],
        (Over::Shm, Kind::Bandwidth) if load.size == 8 << 20 => vec![
            goal(NEAR, "goodput_bps", Bits, AtLeast(100e9)),
            goal(FAR, "goodput_bps", Bits, AtLeast(18.9e9)),
            goal(FAR, "ratio", Plain, AtLeast(0.95)),
        ],
        _ => Vec::new(),
    }
}

/// The goals of the default scheme where frames are lost, one in a thousand or one in a hundred.
pub(super) fn under_loss(
    over: Over,
    kind: Kind,
    load: &super::caller::Load,
    thousandth: bool,
    hundredth: bool,
) -> Vec<Goal> {
    let at_least = |key, bound| vec![goal(None, key, Unit::Percent, Bound::AtLeast(bound))];
    match kind {
        Kind::Bandwidth if load.size == 8 << 20 && thousandth => at_least("goodput_fraction", 0.95),
        Kind::Bandwidth if load.size == 8 << 20 && hundredth => at_least("goodput_fraction", 0.85),
        Kind::Rate if over == Over::Shm && load.size == 32 && thousandth => {
            at_least("rate_fraction", 0.9)
        }
        _ => Vec::new(),
    }
}

/// The goals of many sessions.
pub(super) fn of_sessions(sessions: usize) -> Vec<Goal> {
    match sessions {
        20_000 => vec![
            goal(None, "of_8_sessions", Unit::Percent, Bound::AtLeast(0.9)),
            goal(None, "client_bytes_per_session", Unit::Bytes, Bound::AtMost(1024.0)),
            goal(None, "server_bytes_per_session", Unit::Bytes, Bound::AtMost(1024.0)),
        ],
        _ => Vec::new(),
    }
}

/// The goal of more calls in flight: the rate does not fall off a cliff.
pub(super) fn of_sweep() -> Vec<Goal> {
    vec![goal(None, "of_best_fewer", Unit::Plain, Bound::AtLeast(0.85))]
}

/// Adds to a result what is wanted of it, as `wanted_<key>`, and whether all of that is reached.
pub(super) fn judge(result: &mut PlacementResult, goals: &[Goal]) {
    let here = result.placement();
    let mut all_met = None;
    for goal in goals.iter().filter(|goal| goal.placement.is_none() || goal.placement == here) {
        let Some(value) = result.value(goal.key) else { continue };
        let met = goal.bound.is_met(value);
        all_met = Some(all_met.unwrap_or(true) && met);
        let (bound, words) = match goal.bound {
            Bound::AtLeast(bound) => (bound, "at least"),
            Bound::AtMost(bound) => (bound, "at most"),
        };
        let verdict = if met { "reached" } else { "missed" };
        let note = format!("{words} this: {verdict}, {}", table::show(goal.unit, value));
        let label = format!("wanted {}", goal.key);
        result.add_value(&format!("wanted_{}", goal.key), &label, goal.unit, bound, &note);
    }
    if let Some(met) = all_met {
        result.extra.insert("wanted_reached".to_owned(), met.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use courser_bench::report::example;

    #[test]
    fn a_result_is_judged_at_its_placement_only() {
        let report = example();
        let [near, far] = &report.results[..] else { panic!("two placements") };
        let rate = near.value("rate_rps").expect("measured");
        let goals = [
            goal(NEAR, "rate_rps", Unit::PerSecond, Bound::AtLeast(rate)),
            goal(NEAR, "no such key", Unit::Plain, Bound::AtMost(0.0)),
        ];
        let (mut near, mut far) = (near.clone(), far.clone());
        judge(&mut near, &goals);
        judge(&mut far, &goals);
        assert_eq!(near.extra["wanted_reached"], true);
        assert_eq!(near.extra["wanted_rate_rps"], rate);
        assert!(near.rows[0].note.contains("reached"), "{:?}", near.rows);
        assert!(!far.extra.contains_key("wanted_reached"));
        let more = [goal(None, "rate_rps", Unit::PerSecond, Bound::AtMost(1.0)), goals[0]];
        judge(&mut near, &more);
        assert_eq!(near.extra["wanted_reached"], false, "one of two is missed");
    }
}
