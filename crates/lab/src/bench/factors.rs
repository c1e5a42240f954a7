//! `courser bench factors`: what each optimization is worth (E75) `[eRPC §6.2, Table 3]`.
//!
//! The small-RPC rate with B = 3, with everything on and then with one optimization after another
//! switched off, on both sides, and left off.

use courser_bench::report::{Metric, PlacementResult, Report, Unit};
use courser_bench::rpc::side::{Over, Variant};
use courser_bench::rpc::spec::BenchError;
use courser_bench::rpc::steps::{Steps, Windows, small_rate};
use courser_bench::rpc::switch::Switch;
use courser_bench::window::{Plan, Progress};

/// The paper's row for the same step: calls per second with it off, and what that costs of the rate
/// one row above.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Paper {
    rate_rps: f64,
    loss: f64,
}

/// The paper's rate with everything on.
const PAPER_BASELINE_RPS: f64 = 4.96e6;

/// The paper's figures. Between the first and the second of them it has also switched off what
/// is only there with congestion control, and the multi-packet receive queue of its NIC.
fn paper(switch: Switch) -> Option<Paper> {
    let (rate_rps, loss) = match switch {
        Switch::BatchedTimestamps => (4.84e6, 0.024),
        Switch::PreallocatedResponses => (3.55e6, 0.126),
        Switch::ZeroCopyRequests => (3.05e6, 0.140),
        Switch::Prefetch | Switch::Packing | Switch::Trains | Switch::RequestCopies => return None,
    };
    Some(Paper { rate_rps, loss })
}

/// Runs the benchmark; the calling thread is pinned meanwhile.
///
/// # Errors
/// [`BenchError`], in one line each.
pub(crate) fn run(
    over: Over,
    plan: Plan,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Report, BenchError> {
    let switches: Vec<Switch> =
        Switch::ALL.into_iter().filter(|switch| switch.means_something(over)).collect();
    let step = |off: usize| Variant { off: switches[..off].to_vec(), ..Variant::default() };
    let variants: Vec<Variant> = (0..=switches.len()).map(step).collect();
    let steps = Steps { name: "factors", over, plan, variants, loads: vec![small_rate(plan)] };
    steps.run(progress, &|step, windows, result| match step.checked_sub(1) {
        None => {
            result.at_point("switched_off", "nothing", "everything on".to_owned());
            paper_rate(result, PAPER_BASELINE_RPS);
        }
        Some(before) => tell(switches[before], step, windows, result),
    })
}

fn paper_rate(result: &mut PlacementResult, rate_rps: f64) {
    let label = "paper's rate";
    result.add_value("paper_rate_rps", label, Unit::PerSecond, rate_rps, PAPER);
}

/// Says what was switched off in a step, and what that cost, here and in the paper.
fn tell(switch: Switch, step: usize, windows: &Windows<'_, '_>, result: &mut PlacementResult) {
    result.at_point("switched_off", switch.name(), switch.words().to_owned());
    let compared = [
        ("of_step_before", "of the step before", step - 1),
        ("of_everything_on", "of everything on", 0),
    ];
    for (key, label, base) in compared {
        if let Some(share) = windows.ratio(step, base, Metric::Rate, result) {
            result.add(key, label, Unit::Percent, share);
        }
    }
    if let Some(paper) = paper(switch) {
        paper_rate(result, paper.rate_rps);
        let (key, label) = ("paper_of_step_before", "paper: of the step before");
        result.add_value(key, label, Unit::Percent, 1.0 - paper.loss, PAPER);
    }
}

/// Where the paper's figures stand.
const PAPER: &str = "eRPC, NSDI '19, Table 3";
