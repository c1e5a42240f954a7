//! `courser-lab bench factors`: the effect of each optimization (E75) `[eRPC section 6.2, table 3]`.
//!
//! Measures the small-RPC rate with B = 3. The first step has all optimizations on both sides; each
//! further step switches one more off. Where calls have congestion control these steps use Timely, as
//! the paper's, and two more have all optimizations with no control, and with the default one (E53, E74).

use courser::Control;
use courser_bench::report::{Metric, PlacementResult, Report, Unit};
use courser_bench::rpc::error::BenchError;
use courser_bench::rpc::side::{Over, Variant};
use courser_bench::rpc::steps::{Steps, Windows, small_rate};
use courser_bench::rpc::switch::Switch;
use courser_bench::window::{Plan, Progress};

/// The paper's row for the same step: calls per second, and the loss relative to the row above.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Paper {
    rate_rps: f64,
    loss: f64,
}

/// The paper's rate with all optimizations.
const PAPER_BASELINE_RPS: f64 = 4.96e6;

/// The paper's rate without congestion control.
const PAPER_UNCONTROLLED_RPS: f64 = 5.44e6;

/// The paper's figures. Before the preallocated responses the paper has also switched off the
/// multi-packet receive queue of its NIC.
fn paper(switch: Switch) -> Option<Paper> {
    let (rate_rps, loss) = match switch {
        Switch::BatchedTimestamps => (4.84e6, 0.024),
        Switch::UpdateBypass => (4.52e6, 0.066),
        Switch::PacingBypass => (4.30e6, 0.048),
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
        Switch::ALL.into_iter().filter(|switch| switch.applies_to(over)).collect();
    let controlled = over.has_congestion_control();
    let control = if controlled { Control::Timely } else { Control::default() };
    let step =
        |off: usize| Variant { off: switches[..off].to_vec(), control, ..Variant::default() };
    let mut variants: Vec<Variant> = (0..=switches.len()).map(step).collect();
    if controlled {
        let others = CONTROLS.map(|control| Variant { control, ..Variant::default() });
        variants.extend(others);
    }
    let steps = Steps { name: "factors", over, plan, variants, loads: vec![small_rate(plan)] };
    steps.run(progress, &|step, windows, result| {
        let used = match step.checked_sub(switches.len() + 1) {
            Some(other) => {
                add_control(CONTROLS[other], step, windows, result);
                CONTROLS[other]
            }
            None => {
                add_switched(&switches, step, windows, result);
                control
            }
        };
        let name = if controlled { used.name() } else { Control::None.name() };
        result.extra.insert("control".to_owned(), name.into());
    })
}

/// The controls that Timely is compared with.
const CONTROLS: [Control; 2] = [Control::None, Control::TwoWindow];

/// Adds what was switched off up to this step.
fn add_switched(
    switches: &[Switch],
    step: usize,
    windows: &Windows<'_, '_>,
    result: &mut PlacementResult,
) {
    match step.checked_sub(1) {
        None => {
            result.at_point("switched_off", "nothing", "everything on".to_owned());
            paper_rate(result, PAPER_BASELINE_RPS);
        }
        Some(before) => add_counters(switches[before], step, windows, result),
    }
}

/// Adds the rate of another control with everything on, relative to that of Timely.
fn add_control(
    control: Control,
    step: usize,
    windows: &Windows<'_, '_>,
    result: &mut PlacementResult,
) {
    let (name, words) = match control {
        Control::None => ("congestion_control", "no congestion control"),
        _ => ("nothing", "default control"),
    };
    result.at_point("switched_off", name, words.to_owned());
    add_ratio(("of_everything_on", "of everything on", 0), step, windows, result);
    if control == Control::None {
        paper_rate(result, PAPER_UNCONTROLLED_RPS);
        let (key, label) = ("paper_of_everything_on", "paper: of everything on");
        let share = PAPER_UNCONTROLLED_RPS / PAPER_BASELINE_RPS;
        result.add_value(key, label, Unit::Percent, share, PAPER);
    }
}

/// Adds the ratio of the rate of a step to that of another, by key and label.
fn add_ratio(
    (key, label, base): (&str, &str, usize),
    step: usize,
    windows: &Windows<'_, '_>,
    result: &mut PlacementResult,
) {
    if let Some(share) = windows.ratio(step, base, Metric::Rate, result) {
        result.add(key, label, Unit::Percent, share);
    }
}

fn paper_rate(result: &mut PlacementResult, rate_rps: f64) {
    let label = "paper's rate";
    result.add_value("paper_rate_rps", label, Unit::PerSecond, rate_rps, PAPER);
}

/// Adds the switched-off optimization and its cost, measured and in the paper.
fn add_counters(
    switch: Switch,
    step: usize,
    windows: &Windows<'_, '_>,
    result: &mut PlacementResult,
) {
    result.at_point("switched_off", switch.name(), switch.words().to_owned());
    let compared = [
        ("of_step_before", "of the step before", step - 1),
        ("of_everything_on", "of everything on", 0),
    ];
    for base in compared {
        add_ratio(base, step, windows, result);
    }
    if let Some(paper) = paper(switch) {
        paper_rate(result, paper.rate_rps);
        let (key, label) = ("paper_of_step_before", "paper: of the step before");
        result.add_value(key, label, Unit::Percent, 1.0 - paper.loss, PAPER);
    }
}

/// Source of the paper's figures.
const PAPER: &str = "eRPC, NSDI '19, Table 3";
