//! Experiments of the eRPC paper, and of the claims about buffers in its section 2.1.

use std::borrow::Cow;

use crate::scenario::incast::Network;
use crate::scenario::{Cpu, ScenarioError, buffers, credits, incast, response_rtt, sessions};
use courser::{Control, Recovery};
use courser_bench::report::Unit;

use crate::declare::points::{
    Axis, Better, Experiment, Figure, Paper, Quantity, Run, Runner, Stated, Tolerance,
};

/// Tolerance of values that follow from the settings except for rounding: half a percent.
const TIGHT: Tolerance = Tolerance::relative(0.005);

/// Tolerance of values that depend on the order of events: 2 %.
const LOOSE: Tolerance = Tolerance::relative(0.02);

const PER_MILLION: f64 = 1e6;

pub(super) const CREDITS: Experiment = Experiment {
    id: "E35",
    title: "Credits by bandwidth-delay product",
    source: "eRPC section 4.3.1",
    model: "Two hosts, one session, two requests of 8 MiB under way. The cable is so long that a \
        credit returns in 6.08 us: 19 kB at 25 Gbit/s. CPUs take no time. Arithmetic is \
        min(1, C x packet / BDP).",
    axis: Axis { label: "credits", unit: Unit::Count, log: false },
    quantities: Cow::Borrowed(&[Quantity {
        name: "share of the line",
        unit: Unit::Percent,
        better: Better::Higher,
        tolerance: TIGHT,
        figure: Figure::Linear,
    }]),
    paper: &[
        Paper {
            quantity: "share of the line",
            series: "25 Gbit/s",
            x: Some(13.0),
            value: Stated::Value(1.0),
            reason: "",
        },
        Paper {
            quantity: "share of the line",
            series: "100 Gbit/s",
            x: Some(52.0),
            value: Stated::Value(1.0),
            reason: "",
        },
    ],
    run: Runner::Of(|size, seed, run| {
        for gbps in size.pick(&[25][..], &[25, 100]) {
            let settings = credits::Settings {
                seed,
                rate_bps: gbps * 1_000_000_000,
                time_ns: size.pick(2_000_000, 20_000_000),
                ..credits::Settings::default()
            };
            run.settings(&settings);
            for p in credits::run(&settings, |_, _| {})?.points {
                let (x, line) = (f64::from(p.credits), p.line_ppm as f64 / PER_MILLION);
                run.add("share of the line", format!("{gbps} Gbit/s"), x, line);
                let expected = p.expected_ppm as f64 / PER_MILLION;
                run.add("share of the line", format!("arithmetic, {gbps} Gbit/s"), x, expected);
            }
        }
        Ok(())
    }),
};

pub(super) const RESPONSES: Experiment = Experiment {
    id: "E44",
    title: "Cost of responses of several packets",
    source: "eRPC section 5.1",
    model: "One call at a time with CPUs as fast as the paper's. The extra is beyond a call with \
        one full packet back and the other packets as fast as the cable takes them.",
    axis: Axis { label: "packets of the response", unit: Unit::Count, log: false },
    quantities: Cow::Borrowed(&[
        Quantity {
            name: "extra, round trips",
            unit: Unit::Plain,
            better: Better::Lower,
            tolerance: TIGHT,
            figure: Figure::None,
        },
        Quantity {
            name: "extra, share of the call",
            unit: Unit::Percent,
            better: Better::Lower,
            tolerance: TIGHT,
            figure: Figure::Linear,
        },
    ]),
    paper: &[
        Paper {
            quantity: "extra, round trips",
            series: "one rack",
            x: None,
            value: Stated::AtMost(1.0),
            reason: "",
        },
        Paper {
            quantity: "extra, round trips",
            series: "two racks",
            x: None,
            value: Stated::AtMost(1.0),
            reason: "",
        },
        Paper {
            quantity: "extra, share of the call",
            series: "one rack",
            x: Some(4.0),
            value: Stated::AtMost(0.2),
            reason: "The share is (RTT - s) / (2 RTT + (k - 2) s) with a packet's time s: 20 % \
                take 16 packets at 25 Gbit/s, or a cable of 5 Gbit/s.",
        },
        Paper {
            quantity: "extra, share of the call",
            series: "one rack, 5 Gbit/s",
            x: Some(4.0),
            value: Stated::AtMost(0.2),
            reason: "",
        },
    ],
    run: Runner::Of(|_, seed, run| {
        let default = response_rtt::Settings { seed, ..response_rtt::Settings::default() };
        let slow = response_rtt::Settings { rate_bps: 5_000_000_000, ..default };
        let two_racks = response_rtt::Settings { two_racks: true, ..default };
        let networks =
            [("one rack", default), ("one rack, 5 Gbit/s", slow), ("two racks", two_racks)];
        for (name, settings) in networks {
            run.settings(&settings);
            let points = response_rtt::run(&settings, None)?.points;
            for p in points.iter().filter(|p| [2, 4, 8, 16, 32].contains(&p.packets)) {
                let x = f64::from(p.packets);
                let share = |ppm: u64| ppm as f64 / PER_MILLION;
                run.add("extra, round trips", name, x, share(p.extra_rtt_ppm));
                run.add("extra, share of the call", name, x, share(p.extra_share_ppm));
            }
        }
        Ok(())
    }),
};

/// The rate of a thread, and the latency.
const RATE_QUANTITIES: &[Quantity] = &[
    Quantity {
        name: "calls per second and thread",
        unit: Unit::PerSecond,
        better: Better::Higher,
        tolerance: LOOSE,
        figure: Figure::Linear,
    },
    Quantity {
        name: "latency p50",
        unit: Unit::Time,
        better: Better::Lower,
        tolerance: LOOSE,
        figure: Figure::None,
    },
    Quantity {
        name: "latency p99",
        unit: Unit::Time,
        better: Better::Lower,
        tolerance: Tolerance::relative(0.05),
        figure: Figure::None,
    },
];

pub(super) const RATE: Experiment = Experiment {
    id: "E73",
    title: "Rate of small calls by batch",
    source: "eRPC section 6.2, figure 4",
    model: "11 nodes of the paper's CX4 cluster with one thread each, client and server at once; \
        60 requests of 32 B in flight in batches to threads drawn at random. Each thread calls \
        at this rate and serves as many. No congestion control; the paper has 5.44 M/s without. \
        The CPU table erpc is set to that rate, so that the rate is no result of ours; courser \
        is from counted instructions, without any gain of sending or receiving in bursts.",
    axis: Axis { label: "requests of a batch", unit: Unit::Count, log: false },
    quantities: Cow::Borrowed(RATE_QUANTITIES),
    paper: &[Paper {
        quantity: "calls per second and thread",
        series: "CPU erpc",
        x: Some(3.0),
        value: Stated::Value(5.44e6),
        reason: "Table erpc makes the paper's rate with a frame for each packet. Courser puts \
            packets that leave together for the same node into one frame, and pays for fewer \
            frames: 60 requests are in flight to 10 nodes.",
    }],
    run: Runner::Of(|size, seed, run| {
        for cpu in [Cpu::Erpc, Cpu::Courser] {
            for batch in [1, 3, 5, 11] {
                let settings = sessions::Settings {
                    seed,
                    nodes: 11,
                    // The largest multiple of the batch up to the paper's 60.
                    in_flight: 60 / batch * batch,
                    batch,
                    cpu,
                    time_ns: size.pick(500_000, 10_000_000),
                    ..sessions::Settings::default()
                };
                calls(&settings, f64::from(batch), format!("CPU {}", cpu.name()), run)?;
            }
        }
        Ok(())
    }),
};

/// Runs threads that all call each other.
fn calls(
    settings: &sessions::Settings,
    x: f64,
    series: String,
    run: &mut Run,
) -> Result<sessions::Outcome, ScenarioError> {
    run.settings(settings);
    let outcome = sessions::run(settings, None)?;
    let rate = outcome.rate_per_node_rps as f64 / f64::from(settings.threads);
    run.add("calls per second and thread", series.clone(), x, rate);
    run.add("latency p50", series.clone(), x, outcome.latency.p50_ns as f64);
    run.add("latency p99", series, x, outcome.latency.p99_ns as f64);
    Ok(outcome)
}

/// The series with the calibrated table of CPU costs.
const MEASURED: &str = "CPU measured";

pub(super) const SESSIONS: Experiment = Experiment {
    id: "E76",
    title: "Many nodes that all talk to each other",
    source: "eRPC section 6.3, figure 5",
    model: "100 nodes of the paper's CX4 cluster in five racks, each thread with a session to \
        every other one (short runs: 20 nodes), 60 requests of 32 B in flight in batches of \
        three. 198 sessions a node with one thread, 796 with two; the paper's ten threads and \
        19,980 sessions are not simulated, and its bounds of the latency's p99.99 and of packets \
        sent again are those of ten threads. The CPU table measured is calibrated on a machine with \
        shared memory, erpc is set to the paper's rate, courser is from counted instructions. No \
        congestion control, no caches, an ideal NIC.",
    axis: Axis { label: "threads of a node", unit: Unit::Count, log: false },
    quantities: Cow::Borrowed(&[
        RATE_QUANTITIES[0],
        Quantity {
            name: "latency p50",
            unit: Unit::Time,
            better: Better::Lower,
            tolerance: LOOSE,
            figure: Figure::Linear,
        },
        RATE_QUANTITIES[2],
        Quantity {
            name: "latency p99.99",
            unit: Unit::Time,
            better: Better::Lower,
            tolerance: Tolerance::relative(0.1),
            figure: Figure::None,
        },
        Quantity {
            name: "sent per node",
            unit: Unit::Bits,
            better: Better::Neither,
            tolerance: LOOSE,
            figure: Figure::None,
        },
        Quantity {
            name: "packets sent again per node and second",
            unit: Unit::PerSecond,
            better: Better::Lower,
            tolerance: Tolerance::relative(0.1).or_absolute(10.0),
            figure: Figure::None,
        },
    ]),
    paper: &[
        Paper {
            quantity: "latency p50",
            series: MEASURED,
            x: Some(1.0),
            value: Stated::Value(12_700.0),
            reason: "The thread is the bottleneck: latency is 54 requests over the rate. The table \
                is of a faster CPU than the paper's, without the driver of a NIC.",
        },
        Paper {
            quantity: "latency p99.99",
            series: MEASURED,
            x: None,
            value: Stated::AtMost(700_000.0),
            reason: "",
        },
        Paper {
            quantity: "packets sent again per node and second",
            series: MEASURED,
            x: None,
            value: Stated::AtMost(1_700.0),
            reason: "",
        },
        Paper {
            quantity: "latency p50",
            series: "CPU erpc",
            x: Some(1.0),
            value: Stated::Value(12_700.0),
            reason: "The thread is the bottleneck: latency is 54 requests over the rate. The \
                paper's is with congestion control (9 %), and caches that 198 sessions share; \
                its idle round trips are longer too (6 us between racks, 4.2 us here).",
        },
        Paper {
            quantity: "latency p99.99",
            series: "CPU erpc",
            x: None,
            value: Stated::AtMost(700_000.0),
            reason: "",
        },
        Paper {
            quantity: "packets sent again per node and second",
            series: "CPU erpc",
            x: None,
            value: Stated::AtMost(1_700.0),
            reason: "",
        },
    ],
    run: Runner::Of(|size, seed, run| {
        let nodes = size.pick(20, 100);
        let threads = [
            (Cpu::Measured, 1),
            (Cpu::Measured, 2),
            (Cpu::Erpc, 1),
            (Cpu::Erpc, 2),
            (Cpu::Courser, 1),
        ];
        for (cpu, threads) in threads {
            let full_ns = if threads == 1 { 10_000_000 } else { 3_000_000 };
            let time_ns = size.pick(500_000, full_ns);
            let settings =
                sessions::Settings { seed, nodes, threads, cpu, time_ns, ..Default::default() };
            let (x, series) = (f64::from(threads), format!("CPU {}", cpu.name()));
            let outcome = calls(&settings, x, series.clone(), run)?;
            let resent = outcome.retransmitted_per_node_per_s as f64;
            run.add("latency p99.99", series.clone(), x, outcome.latency.p99_99_ns as f64);
            run.add("sent per node", series.clone(), x, outcome.wire_per_node_bps as f64);
            run.add("packets sent again per node and second", series, x, resent);
        }
        Ok(())
    }),
};

const NO_REASON_GIVEN: &str = "The paper's round trips are those of 9 to 13 % fewer bytes in \
    flight: N x 32 packets of 1,024 bytes and any headers take longer at 25 Gbit/s than it \
    reports (20 x 32 x 1,024 B alone are 210 us).";

/// A round trip of the paper's incast.
const fn paper_rtt(quantity: &'static str, senders: f64, us: f64) -> Paper {
    Paper {
        quantity,
        series: "simulated",
        x: Some(senders),
        value: Stated::Value(us * 1e3),
        reason: NO_REASON_GIVEN,
    }
}

/// The paper's goodput of an incast.
const fn paper_goodput(senders: f64, gbps: f64) -> Paper {
    Paper {
        quantity: "goodput",
        series: "simulated",
        x: Some(senders),
        value: Stated::Value(gbps * 1e9),
        reason: "",
    }
}

pub(super) const INCAST: Experiment = Experiment {
    id: "E81",
    title: "Incast without congestion control",
    source: "eRPC section 6.5, table 5 (rows without congestion control)",
    model: "N clients of the CX4 cluster with one 8 MiB request each in flight to one server, 32 \
        credits, packets of 1,024 data bytes, CPUs as fast as the paper's. Arithmetic: N x 32 \
        packets stand before the server's cable.",
    axis: Axis { label: "senders", unit: Unit::Count, log: false },
    quantities: Cow::Borrowed(&[
        Quantity {
            name: "goodput",
            unit: Unit::Bits,
            better: Better::Higher,
            tolerance: TIGHT,
            figure: Figure::None,
        },
        Quantity {
            name: "round trip p50",
            unit: Unit::Time,
            better: Better::Lower,
            tolerance: Tolerance::relative(0.01),
            figure: Figure::Linear,
        },
        Quantity {
            name: "round trip p99",
            unit: Unit::Time,
            better: Better::Lower,
            tolerance: Tolerance::relative(0.01),
            figure: Figure::None,
        },
    ]),
    paper: &[
        paper_goodput(20.0, 23.1),
        paper_goodput(50.0, 23.0),
        paper_goodput(100.0, 23.0),
        paper_rtt("round trip p50", 20.0, 202.0),
        paper_rtt("round trip p50", 50.0, 524.0),
        paper_rtt("round trip p50", 100.0, 1_056.0),
        paper_rtt("round trip p99", 20.0, 204.0),
        paper_rtt("round trip p99", 50.0, 524.0),
        paper_rtt("round trip p99", 100.0, 1_060.0),
    ],
    run: Runner::Of(|size, seed, run| {
        for &senders in size.pick(&[20, 50][..], &[20, 50, 100]) {
            let settings = incast::Settings {
                seed,
                network: Network::Cx4,
                senders,
                // Packets of 1,024 bytes of data, as the paper's.
                max_frame: 1_068,
                cpu: Cpu::Erpc,
                warm_up_ns: size.pick(5_000_000, 10_000_000),
                time_ns: size.pick(5_000_000, 20_000_000),
                ..incast::Settings::default()
            };
            run.settings(&settings);
            let outcome = incast::run(&settings, None)?;
            let x = f64::from(senders);
            run.add("goodput", "simulated", x, outcome.goodput_bps as f64);
            run.add("goodput", "arithmetic", x, outcome.expected_goodput_bps as f64);
            run.add("round trip p50", "simulated", x, outcome.rtt.p50_ns as f64);
            run.add("round trip p50", "arithmetic", x, outcome.expected_rtt_ns as f64);
            run.add("round trip p99", "simulated", x, outcome.rtt.p99_ns as f64);
        }
        Ok(())
    }),
};

const DYNAMIC: &str = "dynamic, 12 MB";

pub(super) const BUFFERS: Experiment = Experiment {
    id: "E84",
    title: "Loss against switch buffers",
    source: "eRPC section 2.1",
    model: "An incast of N windows of 13 packets, a bandwidth-delay product of 19 kB; 512 KiB \
        requests, CPUs that take no time; go-back-N and no congestion control, unless the series \
        names others. Buffers are 12 MB with a dynamic threshold, \
        of which one queue gets eight ninths, or static for each port. Packets are lost where \
        the windows are larger than the queue may be.",
    axis: Axis { label: "senders", unit: Unit::Count, log: true },
    quantities: Cow::Borrowed(&[
        Quantity {
            name: "loss",
            unit: Unit::Percent,
            better: Better::Lower,
            tolerance: Tolerance::relative(0.1).or_absolute(0.001),
            figure: Figure::Linear,
        },
        Quantity {
            name: "loss after the first round trip",
            unit: Unit::Percent,
            better: Better::Lower,
            tolerance: Tolerance::relative(0.1).or_absolute(0.000_5),
            figure: Figure::None,
        },
        Quantity {
            name: "goodput",
            unit: Unit::Bits,
            better: Better::Higher,
            tolerance: Tolerance::relative(0.05),
            figure: Figure::Linear,
        },
    ]),
    paper: &[
        Paper {
            quantity: "loss",
            series: DYNAMIC,
            x: Some(50.0),
            value: Stated::AtMost(0.0),
            reason: "",
        },
        Paper {
            quantity: "loss",
            series: DYNAMIC,
            x: Some(640.0),
            value: Stated::AtMost(0.0),
            reason: "640 x 19 kB are 12 MB in theory. One queue never gets more than eight \
                ninths of the buffer, which are 543 windows.",
        },
    ],
    run: Runner::Of(|size, seed, run| {
        let settings = buffers::Settings {
            seed,
            senders: size.pick(vec![10, 50], vec![10, 20, 50, 100, 640]),
            static_bytes: size.pick(vec![60_000, 240_000], vec![60_000, 120_000, 240_000, 480_000]),
            controls: vec![Control::None],
            recoveries: vec![Recovery::GoBackN],
            time_ns: size.pick(5_000_000, 50_000_000),
            ..buffers::Settings::default()
        };
        losses(&settings, run)?;
        let own = buffers::Settings {
            senders: size.pick(vec![50], vec![20, 50, 100]),
            static_bytes: size.pick(vec![480_000], vec![120_000, 480_000, 1_920_000]),
            controls: vec![Control::default()],
            recoveries: size
                .pick(vec![Recovery::default()], vec![Recovery::GoBackN, Recovery::default()]),
            warm_up_ns: size.pick(5_000_000, settings.warm_up_ns),
            ..settings
        };
        losses(&own, run)
    }),
};

/// Runs an incast with each buffer.
fn losses(settings: &buffers::Settings, run: &mut Run) -> Result<(), ScenarioError> {
    run.settings(settings);
    for p in buffers::run(settings, |_, _| {})? {
        let series = match p.is_static {
            true => format!("static, {} kB", p.buffer_bytes / 1_000),
            false => DYNAMIC.to_owned(),
        };
        let is_paper = (p.control, p.recovery) == (Control::None, Recovery::GoBackN);
        let series = match is_paper {
            true => series,
            false => format!("{series}; control {}, recovery {}", p.control.name(), p.recovery),
        };
        let x = f64::from(p.senders);
        if !is_paper {
            let after = p.loss_after_first_rtt_ppm as f64 / PER_MILLION;
            run.add("loss after the first round trip", series.clone(), x, after);
        }
        run.add("loss", series.clone(), x, p.loss_ppm as f64 / PER_MILLION);
        run.add("goodput", series, x, p.goodput_bps as f64);
    }
    Ok(())
}
