//! The incast of the eRPC paper beside what its text compares it with: DCQCN (E101), hosts with
//! jitter and links of 100 Gbit/s (E102), and the bypasses for the common case switched off (E95).

use std::borrow::Cow;

use courser::{Control, Recovery};
use courser_bench::report::Unit;
use courser_sim::fabric::Buffer;
use courser_sim::observe::DropReason;

use super::incast::{self, Incast, Network, Queueing};
use crate::declare::points::{
    Axis, Better, Experiment, Figure, Paper, Quantity, Run, Runner, SHARE, Stated, TIME, Tolerance,
    quantity,
};
use crate::scenario::constants::Without;
use crate::scenario::{Cpu, ScenarioError};

const SENDERS: Axis = Axis { label: "senders", unit: Unit::Count, log: false };
pub(super) const P99: Quantity = Quantity {
    name: "round trip p99",
    unit: Unit::Time,
    better: Better::Lower,
    tolerance: TIME,
    figure: Figure::Linear,
    may_improve: false,
};
const P50: Quantity =
    Quantity { better: Better::Lower, ..quantity("round trip p50", Unit::Time, TIME) };
const GOODPUT: Quantity = Quantity {
    better: Better::Higher,
    ..quantity("goodput", Unit::Bits, Tolerance::relative(0.02))
};
pub(super) const SLOWEST: Quantity =
    quantity("slowest sender / mean", Unit::Plain, Tolerance { relative: 0.0, absolute: 0.1 });
const JAIN: Quantity = quantity("Jain's index", Unit::Plain, SHARE);
const LOSS: Quantity = quantity(
    "loss after the first round trip",
    Unit::Percent,
    Tolerance::relative(0.1).or_absolute(0.000_5),
);

/// The paper's cluster with CPUs as fast as its own and packets of 1,024 data bytes. Senders start
/// within a millisecond, each at a random time.
fn cluster(seed: u64, senders: u32, control: Control) -> Incast {
    Incast {
        seed,
        network: Network::Cx4,
        senders,
        control,
        max_frame: 1_068,
        cpu: Cpu::Erpc,
        starts_ns: 1_000_000,
        ..Incast::default()
    }
}

/// Runs an incast and adds its figures.
fn add(settings: &Incast, series: &str, run: &mut Run) -> Result<Queueing, ScenarioError> {
    run.settings(settings);
    let seen = incast::run(settings)?;
    let x = f64::from(settings.senders);
    run.add(P50.name, series, x, seen.rtt.p50_ns as f64);
    run.add(P99.name, series, x, seen.rtt.p99_ns as f64);
    run.add(GOODPUT.name, series, x, seen.goodput_bps as f64);
    Ok(seen)
}

const TIMELY: &str = "timely";

const fn timely(quantity: &'static str, senders: f64, value: f64) -> Paper {
    Paper::new(quantity, TIMELY, Some(senders), Stated::Value(value)).because(
        "The paper's is a cluster. Here the queue is short most of the time and above Timely's lower \
         threshold of 50 us at times: with 20 senders the median round trip is 12 us and the 99th \
         percentile 79 us, the link is idle for a quarter of the time, and rates are unequal.",
    )
}

pub(crate) const CONTROLS: Experiment = Experiment {
    id: "E101",
    results: include_str!("../../recorded/E101.json"),
    title: "Incast with Timely, DCQCN and the default control",
    source: "eRPC section 6.5, table 5",
    model: "As experiment E81, with control. Senders start within a millisecond, each at a random \
        time. Switches mark for DCQCN by RED from 100 to 400 kB, up to 20 %, and senders have the \
        constants of the DCQCN paper, or a vendor's. Timely has those of C++ eRPC, with the \
        correction of \"ECN or Delay\" or without.",
    axis: SENDERS,
    quantities: Cow::Borrowed(&[P99, P50, GOODPUT, SLOWEST, JAIN]),
    paper: &[
        timely("goodput", 20.0, 21.8e9),
        timely("goodput", 50.0, 18.4e9),
        timely("goodput", 100.0, 22.8e9),
        timely("round trip p50", 20.0, 39e3),
        timely("round trip p50", 50.0, 34e3),
        timely("round trip p50", 100.0, 349e3),
        timely("round trip p99", 20.0, 67e3),
        timely("round trip p99", 50.0, 174e3),
        timely("round trip p99", 100.0, 969e3),
    ],
    run: Runner::Of(|size, seed, run| {
        for &senders in size.pick(&[20][..], &[20, 50, 100]) {
            let patched = size.pick(&[][..], &[Control::TimelyPatched]);
            let all = [Control::Timely, Control::Dcqcn, Control::default()];
            for &control in all.iter().chain(patched) {
                let time_ns = size.pick(2_000_000, 20_000_000);
                let recovery = match control {
                    Control::TwoWindow => Recovery::default(),
                    _ => Recovery::GoBackN,
                };
                let warm_up_ns = time_ns;
                let settings = cluster(seed, senders, control);
                let settings = Incast { warm_up_ns, time_ns, recovery, ..settings };
                one_control(&settings, control.name(), run)?;
                if control == Control::Dcqcn && size.pick(false, true) {
                    let vendor = crate::scenario::constants::Dcqcn::Vendor;
                    let settings = Incast { dcqcn: vendor, ..settings };
                    one_control(&settings, "dcqcn, a vendor's constants", run)?;
                }
            }
        }
        Ok(())
    }),
};

fn one_control(settings: &Incast, series: &str, run: &mut Run) -> Result<(), ScenarioError> {
    let seen = add(settings, series, run)?;
    let x = f64::from(settings.senders);
    run.add(SLOWEST.name, series, x, seen.slowest_share);
    run.add(JAIN.name, series, x, seen.jain);
    Ok(())
}

/// Longest delay of a frame at its receiver, ns.
const JITTER_NS: u64 = 20_000;

const GBPS_25: u64 = 25_000_000_000;
const GBPS_100: u64 = 100_000_000_000;

/// Buffer of a switch, of which one queue gets eight ninths.
const fn dynamic(bytes: u64) -> Buffer {
    Buffer::Shared { bytes, alpha_num: 8, alpha_den: 1 }
}

pub(crate) const RATES: Experiment = Experiment {
    id: "E102",
    results: include_str!("../../recorded/E102.json"),
    title: "Incast with jitter of hosts, at 25 and 100 Gbit/s",
    source: "eRPC section 2.1 (switches of 100 Gbit/s with 42 and 32 MB) and 6.5",
    model: "Experiments E82 and E84 at one switch with 64 credits, frames of 1,072 bytes, CPUs that \
        take no time and random starts. Every frame is delayed at its receiver by 0 to 20 us. \
        Switches have 12 MB at 25 Gbit/s, or 480 kB for a port; at 100 Gbit/s 42 and 32 MB, of \
        which one queue gets eight ninths.",
    axis: SENDERS,
    quantities: Cow::Borrowed(&[P99, P50, GOODPUT, SLOWEST, LOSS]),
    paper: &[],
    run: Runner::Of(|size, seed, run| {
        let buffers: &[(u64, &str, Buffer)] = &[
            (GBPS_25, "25 Gbit/s, 12 MB", dynamic(12_000_000)),
            (GBPS_100, "100 Gbit/s, 42 MB", dynamic(42_000_000)),
            (GBPS_25, "25 Gbit/s, 480 kB", Buffer::PerPort { bytes: 480_000 }),
            (GBPS_100, "100 Gbit/s, 32 MB", dynamic(32_000_000)),
        ];
        for &senders in size.pick(&[20][..], &[20, 50, 100]) {
            for &(rate_bps, name, buffer) in size.pick(&buffers[..2], buffers) {
                let controls = [Control::default(), Control::None];
                for control in size.pick(&controls[..1], &controls) {
                    let time_ns = size.pick(1_000_000, 10_000_000) * GBPS_100 / rate_bps / 4;
                    let settings = Incast {
                        seed,
                        senders,
                        control: *control,
                        recovery: Recovery::default(),
                        credits: 64,
                        max_frame: 1_072,
                        rate_bps,
                        jitter_ns: JITTER_NS,
                        starts_ns: 1_000_000,
                        buffer: Some(buffer),
                        warm_up_ns: 2_000_000 + time_ns,
                        time_ns,
                        ..Incast::default()
                    };
                    let series = format!("{}, {name}", control.name());
                    one_rate(&settings, &series, run)?;
                }
            }
        }
        Ok(())
    }),
};

fn one_rate(settings: &Incast, series: &str, run: &mut Run) -> Result<(), ScenarioError> {
    let seen = add(settings, series, run)?;
    let x = f64::from(settings.senders);
    run.add(SLOWEST.name, series, x, seen.slowest_share);
    let lost = seen.after_first_rtt.dropped(DropReason::BufferFull);
    let arrived = seen.after_first_rtt.request_packets + lost;
    run.add(LOSS.name, series, x, lost as f64 / arrived.max(1) as f64);
    Ok(())
}

pub(crate) const BYPASSES: Experiment = Experiment {
    id: "E95",
    results: include_str!("../../recorded/E95.json"),
    title: "Incast without the bypasses for the common case",
    source: "eRPC section 6.5",
    model: "As experiment E101 with Timely, and with updates of the rate at every frame, with pacing \
        of uncongested paths, with a clock reading for each packet, or all three. The model of CPUs \
        has no cost of these: only their effect on round trips is shown. The paper states that \
        there is none.",
    axis: SENDERS,
    quantities: Cow::Borrowed(&[P99, P50, GOODPUT]),
    paper: &[],
    run: Runner::Of(|size, seed, run| {
        let single = [Without::Update, Without::Pacing, Without::Timestamps];
        let both = [Without::Nothing, Without::All];
        for &senders in size.pick(&[20][..], &[20, 50, 100]) {
            for &without in both.iter().chain(size.pick(&[][..], &single)) {
                let time_ns = size.pick(2_000_000, 20_000_000);
                let settings = cluster(seed, senders, Control::Timely);
                let settings = Incast { warm_up_ns: time_ns, time_ns, without, ..settings };
                add(&settings, &format!("without {}", without.name()), run)?;
            }
        }
        Ok(())
    }),
};
