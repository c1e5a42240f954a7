//! The incast of the eRPC paper that its control leaves open: recorded points that are composed of
//! several experiments.

use std::borrow::Cow;

use super::first_burst::{self, FirstBurst};
use super::incast::{self, Incast, TIMELY, TIMELY_CX4};
use super::incast_table::{P99, SLOWEST};
use super::join_leave::{self, JoinLeave};
use super::operating_range::{self, OperatingRange};
use super::uplink::{self, Uplink};
use crate::scenario::{Cpu, Hosts, ScenarioError};
use courser::Control;
use courser_bench::report::Unit;

use crate::declare::points::{Axis, Experiment, Run, Runner, SHARE, TIME, quantity};

const OWN: &str = "default";

pub(crate) const INCAST: Experiment = Experiment {
    id: "E82",
    results: include_str!("../../recorded/E82.json"),
    title: "Incast with the default control",
    source: "eRPC section 6.5",
    model: "One switch at 25 Gbit/s, 32 credits, frames of 1,072 bytes, CPUs that take no time, \
        Courser's own recovery; the series of CX4 are on the paper's cluster, with CPUs as fast as \
        the paper's and packets of 1,024 data bytes. Timely is the paper's control in the same \
        simulation, and the paper's values are those of Timely on a real cluster. Requests of \
        8 MiB; completion is that of calls of 64 KiB in a closed loop, with the time that they \
        wait at their sender. Also: the least Jain's index in the 10 ms after a sender joins; the \
        longest first burst of idle senders with 64 kB each, as a multiple of its bytes' time; an \
        uplink with half of its senders' rate; and other rates, round trips and frames without \
        other settings.",
    axis: Axis { label: "senders", unit: Unit::Count, log: true },
    quantities: Cow::Borrowed(&[
        P99,
        quantity("goodput, share of the link", Unit::Plain, SHARE),
        SLOWEST,
        quantity("completion p50", Unit::Time, TIME),
        quantity("completion p99", Unit::Time, TIME),
        quantity("least Jain's index, joins", Unit::Plain, SHARE),
        quantity("first burst / its bytes' time", Unit::Plain, SHARE),
        quantity("innocent flow, share of its rate", Unit::Plain, SHARE),
    ]),
    paper: TIMELY,
    run: Runner::Of(|size, seed, run| {
        let hosts = Hosts { seed, ..Hosts::default() };
        for &senders in size.pick(&[20, 50][..], &[20, 50, 100]) {
            incasts(size.pick(2_000_000, 20_000_000), senders, hosts, run)?;
        }
        for &senders in size.pick(&[20][..], &[20, 50, 100]) {
            clusters(size.pick(2_000_000, 20_000_000), senders, hosts, run)?;
        }
        changes(size.pick(3, 10), hosts, run)?;
        for &senders in size.pick(&[100][..], &[20, 50, 100]) {
            let rounds = size.pick(1, 10);
            let settings = FirstBurst { hosts, senders, rounds, ..FirstBurst::default() };
            run.settings(&settings);
            let ratio = first_burst::run(&settings)?.ratio;
            run.add("first burst / its bytes' time", OWN, senders.into(), ratio);
        }
        let time_ns = size.pick(2_000_000, 20_000_000);
        let flows = size.pick(2, 8);
        let settings = Uplink { hosts, flows, warm_up_ns: time_ns, time_ns, ..Uplink::default() };
        run.settings(&settings);
        let seen = uplink::run(&settings)?;
        let share = seen.innocent_share();
        run.add("innocent flow, share of its rate", OWN, flows.into(), share);
        run.add("goodput, share of the link", "2:1 uplink", flows.into(), seen.goodput_share);
        networks(size.pick(&SHORT_RANGE[..], &RANGE), hosts, run)
    }),
};

fn incasts(time_ns: u64, senders: u32, hosts: Hosts, run: &mut Run) -> Result<(), ScenarioError> {
    let settings = Incast {
        seed: hosts.seed,
        senders,
        max_frame: hosts.max_frame,
        control: hosts.control,
        recovery: hosts.recovery,
        warm_up_ns: time_ns,
        time_ns,
        ..Incast::default()
    };
    for control in [hosts.control, Control::Timely] {
        one_incast(&Incast { control, ..settings }, control.name(), run)?;
    }
    let x = f64::from(senders);
    for control in [Control::None, hosts.control] {
        let settings = Incast { control, request_bytes: 64 << 10, ..settings };
        run.settings(&settings);
        let completion = incast::run(&settings)?.completion;
        run.add("completion p50", control.name(), x, completion.p50_ns as f64);
        run.add("completion p99", control.name(), x, completion.p99_ns as f64);
    }
    Ok(())
}

/// An incast in the paper's cluster, with the default control and with the paper's.
fn clusters(time_ns: u64, senders: u32, hosts: Hosts, run: &mut Run) -> Result<(), ScenarioError> {
    for (control, series) in [(hosts.control, "default, CX4"), (Control::Timely, TIMELY_CX4)] {
        let settings = Incast {
            seed: hosts.seed,
            network: incast::Network::Cx4,
            senders,
            max_frame: 1_068,
            control,
            recovery: hosts.recovery,
            cpu: Cpu::Erpc,
            warm_up_ns: time_ns,
            time_ns,
            ..Incast::default()
        };
        one_incast(&settings, series, run)?;
    }
    Ok(())
}

/// Round trip, goodput and fairness of an incast.
fn one_incast(settings: &Incast, series: &str, run: &mut Run) -> Result<(), ScenarioError> {
    run.settings(settings);
    let seen = incast::run(settings)?;
    let x = f64::from(settings.senders);
    run.add("round trip p99", series, x, seen.rtt.p99_ns as f64);
    run.add("goodput, share of the link", series, x, seen.share());
    run.add("slowest sender / mean", series, x, seen.slowest_share);
    Ok(())
}

fn changes(senders: u32, hosts: Hosts, run: &mut Run) -> Result<(), ScenarioError> {
    let settings = JoinLeave { hosts, senders, ..JoinLeave::default() };
    run.settings(&settings);
    let jain = join_leave::run(&settings)?.jain_after_join;
    run.add("least Jain's index, joins", OWN, senders.into(), jain);
    Ok(())
}

/// Gbit/s, base round trip in us, bytes of a frame.
type Network = (u64, u64, usize);

const SHORT_RANGE: [Network; 2] = [(10, 1, 1_072), (100, 5, 8_192)];

const RANGE: [Network; 8] = [
    (10, 1, 1_072),
    (10, 100, 8_192),
    (25, 1, 8_192),
    (25, 25, 1_072),
    (100, 5, 8_192),
    (100, 25, 1_072),
    (400, 5, 8_192),
    (400, 100, 8_192),
];

fn networks(networks: &[Network], hosts: Hosts, run: &mut Run) -> Result<(), ScenarioError> {
    for &(gbps, rtt_us, max_frame) in networks {
        for senders in [2, 20] {
            let settings = OperatingRange {
                hosts,
                max_frame,
                senders,
                rate_bps: gbps * 1_000_000_000,
                base_rtt_ns: rtt_us * 1_000,
                ..OperatingRange::default()
            };
            run.settings(&settings);
            let share = operating_range::run(&settings)?.goodput_share;
            let series = format!("{gbps} Gbit/s, {rtt_us} us, frames of {max_frame} B");
            run.add("goodput, share of the link", series, senders.into(), share);
        }
    }
    Ok(())
}
