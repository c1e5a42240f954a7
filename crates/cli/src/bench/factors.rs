//! `courser bench factors`: what each optimization is worth (E75) `[eRPC §6.2, Table 3]`.
//!
//! The small-RPC rate with B = 3, with everything on and then with one optimization after another
//! switched off, on both sides, and left off.

use clap::ValueEnum;
use courser::{Config, Offload, UdpOptions};
use serde::{Deserialize, Serialize};

use super::side::{Over, Variant};
use super::spec::BenchError;
use super::steps::{Steps, Windows, small_rate};
use courser_bench::report::{Metric, PlacementResult, Report, Unit};
use courser_bench::window::{Plan, Progress};

/// An optimization that can be switched off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Switch {
    /// The clock is read for a burst of packets, not for each `[eRPC §5.2.2]`.
    BatchedTimestamps,
    /// Slots keep a buffer for their response `[eRPC §4.3]`.
    PreallocatedResponses,
    /// Handlers read requests in the received frame `[eRPC §4.2.3]`.
    ZeroCopyRequests,
    /// The state that the next frames need is fetched ahead.
    Prefetch,
    /// Small packets share frames.
    Packing,
    /// Trains of frames that the kernel takes and hands over as one.
    Trains,
    /// What arrives of a large request is copied to its message (E78). Not one of the series: the
    /// server's handlers get arbitrary bytes without it.
    RequestCopies,
}

/// The paper's row for the same step: calls per second with it off, and what that costs of the rate
/// one row above.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Paper {
    rate_rps: f64,
    loss: f64,
}

/// The paper's rate with everything on.
const PAPER_BASELINE_RPS: f64 = 4.96e6;

impl Switch {
    /// In the order in which they are switched off: the paper's, then those that it has not.
    const ALL: [Self; 6] = [
        Self::BatchedTimestamps,
        Self::PreallocatedResponses,
        Self::ZeroCopyRequests,
        Self::Prefetch,
        Self::Packing,
        Self::Trains,
    ];

    /// Switches it off.
    pub(super) fn turn_off(self, config: &mut Config) {
        if self == Self::Trains {
            let off = Some(Offload::Off);
            let options = UdpOptions { gso: off, gro: off, ..UdpOptions::default() };
            config.transport = std::mem::take(&mut config.transport).with(options);
            return;
        }
        let switch = match self {
            Self::BatchedTimestamps => &mut config.batched_timestamps,
            Self::PreallocatedResponses => &mut config.tuning.prealloc_responses,
            Self::ZeroCopyRequests => &mut config.tuning.zero_copy_rx,
            Self::Prefetch => &mut config.tuning.prefetch,
            Self::Packing => &mut config.tuning.packing,
            Self::Trains => return,
            Self::RequestCopies => &mut config.tuning.copy_requests,
        };
        *switch = false;
    }

    /// Whether there is such a thing over this transport.
    fn means_something(self, over: Over) -> bool {
        self != Self::Trains || over == Over::Udp
    }

    /// The name in reports.
    fn name(self) -> &'static str {
        match self {
            Self::BatchedTimestamps => "batched_timestamps",
            Self::PreallocatedResponses => "preallocated_responses",
            Self::ZeroCopyRequests => "zero_copy_requests",
            Self::Prefetch => "prefetch",
            Self::Packing => "packing",
            Self::Trains => "trains",
            Self::RequestCopies => "request_copies",
        }
    }

    /// What it is, for tables.
    fn words(self) -> &'static str {
        match self {
            Self::BatchedTimestamps => "- batched timestamps",
            Self::PreallocatedResponses => "- preallocated responses",
            Self::ZeroCopyRequests => "- zero-copy requests",
            Self::Prefetch => "- prefetch",
            Self::Packing => "- packets that share frames",
            Self::Trains => "- trains of frames",
            Self::RequestCopies => "- copies of requests",
        }
    }

    /// The paper's figures. Between the first and the second of them it has also switched off what
    /// is only there with congestion control, and the multi-packet receive queue of its NIC.
    fn paper(self) -> Option<Paper> {
        let (rate_rps, loss) = match self {
            Self::BatchedTimestamps => (4.84e6, 0.024),
            Self::PreallocatedResponses => (3.55e6, 0.126),
            Self::ZeroCopyRequests => (3.05e6, 0.140),
            Self::Prefetch | Self::Packing | Self::Trains | Self::RequestCopies => return None,
        };
        Some(Paper { rate_rps, loss })
    }
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
    if let Some(paper) = switch.paper() {
        paper_rate(result, paper.rate_rps);
        let (key, label) = ("paper_of_step_before", "paper: of the step before");
        result.add_value(key, label, Unit::Percent, 1.0 - paper.loss, PAPER);
    }
}

/// Where the paper's figures stand.
const PAPER: &str = "eRPC, NSDI '19, Table 3";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_switch_changes_a_setting_of_its_own() {
        let mut config = Config::default();
        let mut seen = vec![format!("{config:?}")];
        for switch in Switch::ALL.into_iter().chain([Switch::RequestCopies]) {
            switch.turn_off(&mut config);
            let now = format!("{config:?}");
            assert!(!seen.contains(&now), "{}", switch.name());
            seen.push(now);
        }
    }
}
