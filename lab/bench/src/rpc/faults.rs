//! `courser bench latency|rate|bandwidth --fault SPEC --recovery SCHEME,...`: the cost of lost packets
//! under several schemes of loss recovery.
//!
//! Each scheme has a pair of endpoints without faults and one for each plan of faults; their windows
//! alternate. Both sides apply the plan to the frames that they send, so requests, responses and
//! acknowledgements are affected equally: a packet and its acknowledgement both arrive with a
//! probability of (1 - p)². The endpoints without faults have the same middleware, which passes all
//! frames, so the fraction of their figures is the cost of the faults alone.

use std::str::FromStr;

use courser::{EndpointStats, Recovery};
use courser_net::{FaultPlan, FaultSyntax};

use super::error::BenchError;
use super::load::Load;
use super::side::Variant;
use super::spec::{BenchSpec, Kind, MAX_MEMORY};
use super::steps::{Steps, Windows};
use crate::report::{PlacementResult, Report, Unit};
use crate::window::Progress;

/// Most endpoints of a side: each has its own buffers, and a window in each round.
const MAX_POINTS: usize = 16;

/// Plans of faults, each a point of the series. The text has the parts of a [`FaultPlan`]; a name that
/// occurs again begins another plan. `loss=1e-3,loss=1e-2` are two plans.
#[derive(Clone, Debug, PartialEq)]
pub struct Faults(pub Vec<FaultPlan>);

impl FromStr for Faults {
    type Err = FaultSyntax;

    fn from_str(text: &str) -> Result<Self, FaultSyntax> {
        let name = |part: &str| part.split('=').next().unwrap_or_default().trim().to_owned();
        let mut plans: Vec<Vec<&str>> = vec![Vec::new()];
        for part in text.split(',') {
            match plans.last_mut() {
                Some(plan) if plan.iter().all(|other| name(other) != name(part)) => plan.push(part),
                _ => plans.push(vec![part]),
            }
        }
        plans.iter().map(|plan| plan.join(",").parse()).collect::<Result<_, _>>().map(Faults)
    }
}

/// A scheme under a plan of faults; `None` without the middleware.
#[derive(Clone, Debug, PartialEq)]
struct Point {
    scheme: Recovery,
    fault: Option<FaultPlan>,
    /// The point of the same scheme without faults.
    sound: usize,
    /// The point of go-back-N under the same faults, if this is another scheme.
    go_back_n: Option<usize>,
}

/// Every scheme without faults and with each plan, in the order of the windows. Duplicates of schemes
/// and plans are removed.
fn points(schemes: &[Recovery], plans: &[FaultPlan]) -> Vec<Point> {
    let mut faults = vec![FaultPlan::default()];
    for plan in plans {
        if !faults.contains(plan) {
            faults.push(plan.clone());
        }
    }
    let wrapped = !plans.is_empty();
    let mut unique: Vec<Recovery> = Vec::new();
    for &scheme in schemes {
        if !unique.contains(&scheme) {
            unique.push(scheme);
        }
    }
    let simplest = unique.iter().position(|&scheme| scheme == Recovery::GoBackN);
    let mut all = Vec::new();
    for (row, &scheme) in unique.iter().enumerate() {
        for (at, fault) in faults.iter().enumerate() {
            all.push(Point {
                scheme,
                fault: wrapped.then(|| fault.clone()),
                sound: row * faults.len(),
                go_back_n: simplest.filter(|&r| r != row).map(|r| r * faults.len() + at),
            });
        }
    }
    all
}

/// Runs the benchmark; the calling thread is pinned meanwhile.
///
/// # Errors
/// [`BenchError`], in one line each.
pub fn run(
    spec: &BenchSpec,
    schemes: &[Recovery],
    plans: &[FaultPlan],
    progress: &mut dyn FnMut(&Progress),
) -> Result<Report, BenchError> {
    spec.check()?;
    let loads = spec.loads();
    let [load] = &loads[..] else {
        let limits = "one: give one --size and one --batch".to_owned();
        return Err(BenchError::Spec { what: "the load under faults", limits });
    };
    let points = points(schemes, plans);
    check(&points, load)?;
    let variant = |point: &Point| Variant {
        recovery: point.scheme,
        fault: point.fault.as_ref().map(FaultPlan::to_string),
        ..spec.variant()
    };
    let steps = Steps {
        name: spec.kind.name(),
        over: spec.transport,
        plan: spec.plan,
        variants: points.iter().map(variant).collect(),
        loads: vec![(spec.kind, load.clone())],
    };
    let report = steps.run(progress, &|step, windows, result| {
        add_counters(spec.kind, &points, step, windows, result);
    });
    report.map(|mut report| {
        let sides = if plans.is_empty() { "none" } else { "frames that either side sends" };
        // Each result has its own scheme.
        report.config.remove("recovery");
        report.config.insert("faults_of".to_owned(), sides.into());
        report
    })
}

/// Limits the number of points and their memory.
fn check(points: &[Point], load: &Load) -> Result<(), BenchError> {
    let error = |what, limits| Err(BenchError::Spec { what, limits });
    if points.len() > MAX_POINTS {
        let limits = format!("at most {MAX_POINTS}: name fewer schemes or faults in one run");
        return error("schemes times plans of faults, including none,", limits);
    }
    let requests = load.size.saturating_mul(load.chains().1).saturating_mul(points.len());
    if requests > MAX_MEMORY {
        let limits = format!("at most {MAX_MEMORY} bytes: give a smaller --size or --in-flight");
        return error("the requests of all schemes and faults together", limits);
    }
    Ok(())
}

/// Adds to a result its scheme and plan, the fraction of the figure without faults, and the client's
/// counters of loss recovery over all windows, including those of other placements and of the warm-up.
fn add_counters(
    kind: Kind,
    points: &[Point],
    step: usize,
    windows: &Windows<'_, '_>,
    result: &mut PlacementResult,
) {
    let point = &points[step];
    let plan = point.fault.clone().unwrap_or_default();
    let words = format!("{} {plan}", point.scheme);
    result.at_point("scheme", point.scheme.name(), words);
    result.extra.insert("loss".to_owned(), (f64::from(plan.loss_ppm) / 1e6).into());
    result.extra.insert("fault".to_owned(), plan.to_string().into());
    let key = match kind {
        Kind::Latency => "latency_p50_fraction",
        Kind::Rate => "rate_fraction",
        Kind::Bandwidth => "goodput_fraction",
    };
    let metric = kind.metric();
    if point.fault.is_some()
        && let Some(share) = windows.ratio(step, point.sound, metric, result)
    {
        result.add(key, "of the same without faults", Unit::Percent, share);
    }
    if let Some(base) = point.go_back_n
        && let Some(share) = windows.ratio(step, base, metric, result)
    {
        result.add("of_go_back_n", "of go-back-n", Unit::Percent, share);
    }
    count(&windows.client(step), result);
}

/// The counters of loss recovery; a table shows those that are not 0.
fn count(client: &EndpointStats, result: &mut PlacementResult) {
    let counters = [
        ("tx_packets", "packets sent", client.tx_packets),
        ("retransmitted", "resent", client.retransmitted),
        ("rollbacks", "rollbacks", client.rollbacks),
        ("lost", "declared lost", client.lost),
        ("probes", "probes", client.probes),
        ("spurious", "resent needlessly", client.spurious),
    ];
    for (key, label, value) in counters {
        if value > 0 {
            result.add_value(key, label, Unit::Count, value as f64, "by the client");
        }
        result.extra.insert(key.to_owned(), value.into());
    }
}

#[cfg(test)]
mod tests {
    use Recovery::{GoBackN, Selective};

    use super::*;

    #[test]
    fn each_scheme_has_a_point_without_faults_for_comparison() {
        let plans = [FaultPlan::loss(1_000), FaultPlan::default(), FaultPlan::loss(1_000)];
        let points = points(&[GoBackN, Selective, GoBackN], &plans);
        let seen: Vec<_> = points
            .iter()
            .map(|p| {
                let ppm = p.fault.as_ref().map(|fault| fault.loss_ppm);
                (p.scheme, ppm, p.sound, p.go_back_n)
            })
            .collect();
        assert_eq!(
            seen,
            [
                (GoBackN, Some(0), 0, None),
                (GoBackN, Some(1_000), 0, None),
                (Selective, Some(0), 2, Some(0)),
                (Selective, Some(1_000), 2, Some(1)),
            ]
        );
    }

    #[test]
    fn a_name_that_occurs_again_begins_another_plan() {
        let plans = |text: &str| text.parse::<Faults>().map(|faults| faults.0);
        let loss = FaultPlan::loss;
        assert_eq!(
            plans("loss=0,loss=1e-3, loss=1e-2"),
            Ok(vec![loss(0), loss(1_000), loss(10_000)])
        );
        let both = FaultPlan { reorder_ppm: 20_000, reorder_span: 3, ..loss(1_000) };
        let text = "loss=1e-3,reorder=0.02,span=3,loss=1e-2";
        assert_eq!(plans(text), Ok(vec![both, loss(10_000)]));
        assert!(plans("1e-3,1e-2").is_err());
    }

    #[test]
    fn without_plans_there_is_no_fault_middleware() {
        let points = points(&Recovery::ALL, &[]);
        assert_eq!(points.len(), Recovery::ALL.len());
        assert!(points.iter().all(|p| p.fault.is_none()));
    }

    #[test]
    fn points_and_their_memory_are_limited() {
        let load = BenchSpec::new(Kind::Bandwidth, crate::window::Plan::quick()).loads();
        let plans: Vec<_> = (1..10).map(FaultPlan::loss).collect();
        let error = |points: &[Point], load: &Load| check(points, load).expect_err("too many");
        let many = error(&points(&Recovery::ALL, &plans), &load[0]).to_string();
        assert!(many.contains("fewer"), "{many}");
        let large = Load { size: 128 << 20, ..load[0].clone() };
        let large = error(&points(&Recovery::ALL, &plans[..1]), &large).to_string();
        assert!(large.contains("--size"), "{large}");
        let three = &Recovery::ALL[..3];
        assert!(check(&points(three, &plans[..4]), &load[0]).is_ok());
    }
}
