//! Experiments of the MELO paper, and further ones of loss recovery.

use std::borrow::Cow;

use crate::experiments::loss::Reorder;
use crate::experiments::{bits_pool, fct, loss, lost_call};
use courser::{Control, Recovery};
use courser_bench::report::Unit;

use crate::declare::points::{
    Axis, Better, Experiment, Figure, Paper, Quantity, Runner, Stated, Tolerance,
};

/// Tolerance of the goodput of one flow: 1 % of it, or a thousandth of the line rate.
const GOODPUT: Quantity = Quantity {
    name: "goodput",
    unit: Unit::Percent,
    better: Better::Higher,
    tolerance: Tolerance::relative(0.01).or_absolute(0.001),
    figure: Figure::Linear,
};

const LOSS_AXIS: Axis =
    Axis { label: "chance that a packet is lost", unit: Unit::Plain, log: true };

const ONE_FLOW: &str = "MELO's fabric, two hosts under one leaf: 40 Gbit/s, 1,024 data bytes a \
    packet, a round trip of 16 us, credits of three bandwidth-delay products, requests of 64 MiB \
    one after the other. The leaf loses data and credit returns alike. CPUs cost nothing. \
    Go-back-N, with and without NACKs, and MELO use a recovery time of 262 us, with which \
    go-back-N without NACKs has the paper's 45.6 % at 1e-3. Goodput is a share of the same \
    scheme's without loss; a lost packet has used the link, so 1 - p is the bound.";

const UNDER_DCQCN: &str = "MELO's fabric, two hosts under one leaf: 40 Gbit/s, 1,024 data bytes a \
    packet, a round trip of 16 us, credits of three bandwidth-delay products, requests of 64 MiB \
    one after the other, DCQCN. The leaf loses data and credit returns alike, and marks by RED \
    from 100 to 400 kB, up to 20 %; one flow fills no queue there, so that nothing is marked. CPUs \
    cost nothing. go-back-n goes back on timeouts only, go-back-n-nack on NACKs, as NICs do; its \
    series \"one BDP\" has credits of one bandwidth-delay product, so that no packets wait in the \
    sender's NIC. The recovery time is 262 us, with which go-back-n has the paper's 45.6 % at \
    1e-3. The paper contradicts itself at 1e-3: close to zero in figure 1 (a NIC), 45.6 % in \
    figure 5a (its simulation). Goodput is a share of the same scheme's without loss; a lost \
    packet has used the link, so 1 - p is the bound.";

const NACK_COSTS_A_ROUND_TRIP: &str = "A NACK costs what is in flight and in the sender's NIC: 213 \
    packets with these credits, 71 with credits of one bandwidth-delay product, so that 82 % and \
    93 % remain at 1e-3. Figure 5a is as if each loss cost 1,190 packets, at 1e-2 as well: the \
    paper does not state why. Figure 1 is its measurement of a NIC, close to zero from 1e-3 on.";

/// The paper's value at a loss rate.
const fn paper_goodput(series: &'static str, loss: f64, share: f64, reason: &'static str) -> Paper {
    Paper { quantity: "goodput", series, x: Some(loss), value: Stated::Value(share), reason }
}

/// The paper's values of go-back-N on NACKs: figure 1, and figure 5a.
const fn paper_nack(series: &'static str, loss: f64, value: Stated) -> Paper {
    let reason = NACK_COSTS_A_ROUND_TRIP;
    Paper { quantity: "goodput", series, x: Some(loss), value, reason }
}

pub(super) const LOSS: Experiment = Experiment {
    id: "M23",
    title: "Goodput of one flow against loss",
    source: "MELO sections 2.2 and 4.1.1, figures 1 and 5a",
    model: UNDER_DCQCN,
    axis: LOSS_AXIS,
    quantities: Cow::Borrowed(&[
        GOODPUT,
        Quantity {
            name: "sent again for nothing",
            unit: Unit::Percent,
            better: Better::Lower,
            tolerance: Tolerance::relative(0.2).or_absolute(0.001),
            figure: Figure::None,
        },
    ]),
    paper: &[
        paper_goodput("go-back-n", 1e-3, 0.456, ""),
        paper_goodput(
            "go-back-n",
            1e-2,
            0.071,
            "The recovery time is fitted at 1e-3; with 263 us 7.4 % follow here.",
        ),
        paper_nack("go-back-n-nack", 1e-3, Stated::Range(0.0, 0.456)),
        paper_nack("go-back-n-nack", 1e-2, Stated::Range(0.0, 0.071)),
        paper_nack("go-back-n-nack, one BDP", 1e-3, Stated::Range(0.0, 0.456)),
        paper_nack("go-back-n-nack, one BDP", 1e-2, Stated::Range(0.0, 0.071)),
        paper_goodput("melo", 1e-3, 0.999, ""),
        paper_goodput(
            "melo",
            1e-2,
            0.99,
            "Packets that are lost twice wait for the recovery time. With 50 us MELO has 98.9 % \
             (experiment M15); the paper does not state its own.",
        ),
    ],
    run: Runner::Of(|size, seed, run| {
        let settings = loss::Settings {
            seed,
            loss_ppm: size.pick(vec![1_000, 10_000], vec![10, 100, 1_000, 10_000, 50_000]),
            warm_up_ns: size.pick(Some(5_000_000), None),
            time_ns: size.pick(20_000_000, 200_000_000),
            ..loss::Settings::default()
        };
        let schemes = vec![Recovery::GoBackNNack];
        let narrow = loss::Settings { schemes, window_permille: 1_000, ..settings.clone() };
        run.settings(&settings);
        run.settings(&narrow);
        for p in loss::run(&settings, |_, _| {})? {
            run.add("goodput", p.scheme.name(), p.loss, p.goodput_fraction);
            run.add("sent again for nothing", p.scheme.name(), p.loss, p.spurious_fraction);
            if p.scheme == Recovery::Selective {
                run.add("goodput", "bound, 1 - p", p.loss, 1.0 - p.loss);
            }
        }
        for p in loss::run(&narrow, |_, _| {})? {
            let series = format!("{}, one BDP", p.scheme);
            run.add("goodput", series, p.loss, p.goodput_fraction);
        }
        Ok(())
    }),
};

pub(super) const CONTROLS: Experiment = Experiment {
    id: "M28",
    title: "Goodput of one flow by loss and control",
    source: "MELO section 4: recovery does not depend on the congestion control",
    model: "As experiment M23, with each of none, Timely, DCQCN, Swift and Courser's own control. \
        Timely and DCQCN take no notice of losses, the other two do. Goodput is a share of that \
        without loss under the same control.",
    axis: LOSS_AXIS,
    quantities: Cow::Borrowed(&[GOODPUT]),
    paper: &[
        paper_goodput("melo, dcqcn", 1e-3, 0.999, ""),
        paper_goodput(
            "melo, dcqcn",
            1e-2,
            0.99,
            "Packets that are lost twice wait for the recovery time: see experiment M15.",
        ),
    ],
    run: Runner::Of(|size, seed, run| {
        let all =
            [Control::None, Control::Timely, Control::Dcqcn, Control::Swift, Control::TwoWindow];
        let settings = loss::Settings {
            seed,
            controls: size.pick(&all[..3], &all[..]).to_vec(),
            schemes: size.pick(
                vec![Recovery::Melo],
                vec![Recovery::GoBackNNack, Recovery::Melo, Recovery::Selective],
            ),
            loss_ppm: size.pick(vec![10_000], vec![1_000, 10_000]),
            warm_up_ns: size.pick(Some(5_000_000), None),
            time_ns: size.pick(10_000_000, 100_000_000),
            ..loss::Settings::default()
        };
        run.settings(&settings);
        for p in loss::run(&settings, |_, _| {})? {
            let series = format!("{}, {}", p.scheme, p.control.name());
            run.add("goodput", series, p.loss, p.goodput_fraction);
        }
        Ok(())
    }),
};

pub(super) const RECOVERY_TIME: Experiment = Experiment {
    id: "M15",
    title: "Recovery time of lost retransmissions",
    source: "MELO section 3.2.3",
    model: ONE_FLOW,
    axis: Axis { label: "recovery time", unit: Unit::Time, log: true },
    quantities: Cow::Borrowed(&[GOODPUT]),
    paper: &[Paper {
        quantity: "goodput",
        series: "melo, loss 1e-2",
        x: Some(50_000.0),
        value: Stated::Value(0.99),
        reason: "",
    }],
    run: Runner::Of(|size, seed, run| {
        let settings = loss::Settings {
            seed,
            schemes: vec![Recovery::Melo],
            controls: vec![Control::None],
            loss_ppm: vec![10_000],
            rto_ns: size.pick(
                vec![50_000, 250_000],
                vec![30_000, 40_000, 50_000, 60_000, 75_000, 100_000, 250_000],
            ),
            warm_up_ns: size.pick(Some(5_000_000), None),
            time_ns: size.pick(20_000_000, 200_000_000),
            ..loss::Settings::default()
        };
        run.settings(&settings);
        for p in loss::run(&settings, |_, _| {})? {
            let rto_ns = p.rto_ns.unwrap_or_default() as f64;
            run.add("goodput", "melo, loss 1e-2", rto_ns, p.goodput_fraction);
        }
        Ok(())
    }),
};

pub(super) const REORDERING: Experiment = Experiment {
    id: "E58",
    title: "Goodput of one flow against reordering",
    source: "eRPC section 5.3 (which takes reordered packets for lost)",
    model: "As experiment M23, without loss and congestion control; packets with data come up to three round trips late, \
        with Courser's default recovery. Counted after 100 ms, in which the reorder window has \
        adapted (short runs: 20 ms).",
    axis: Axis { label: "share of packets that come late", unit: Unit::Plain, log: true },
    quantities: Cow::Borrowed(&[
        GOODPUT,
        Quantity {
            name: "sent again for nothing",
            unit: Unit::Percent,
            better: Better::Lower,
            tolerance: Tolerance::relative(0.2).or_absolute(0.001),
            figure: Figure::None,
        },
    ]),
    paper: &[],
    run: Runner::Of(|size, seed, run| {
        let late = |ppm| Reorder { ppm, max_ns: 48_000 };
        let settings = loss::Settings {
            seed,
            schemes: vec![Recovery::Selective],
            controls: vec![Control::None],
            loss_ppm: vec![0],
            reorder: size
                .pick(&[10_000][..], &[1_000, 10_000, 50_000, 100_000])
                .iter()
                .map(|&ppm| late(ppm))
                .collect(),
            warm_up_ns: size.pick(Some(20_000_000), None),
            time_ns: size.pick(20_000_000, 200_000_000),
            ..loss::Settings::default()
        };
        run.settings(&settings);
        for p in loss::run(&settings, |_, _| {})? {
            run.add("goodput", p.scheme.name(), p.reorder, p.goodput_fraction);
            run.add("sent again for nothing", p.scheme.name(), p.reorder, p.spurious_fraction);
        }
        Ok(())
    }),
};

pub(super) const LOST_CALL: Experiment = Experiment {
    id: "E56",
    title: "A small call that loses a packet",
    source: "eRPC section 5.2.3 (which waits 5 ms for its timeout)",
    model: "Calls of 32 B between two hosts at one switch, which loses 1e-3 of the datagrams; CPUs \
        as fast as the paper's. Calls are told apart by how many of their packets were lost.",
    axis: Axis { label: "calls in flight", unit: Unit::Count, log: false },
    quantities: Cow::Borrowed(&[
        Quantity {
            name: "p99 without loss",
            unit: Unit::Time,
            better: Better::Lower,
            tolerance: Tolerance::relative(0.01),
            figure: Figure::None,
        },
        Quantity {
            name: "p99 of calls that lost a packet",
            unit: Unit::Time,
            better: Better::Lower,
            tolerance: Tolerance::relative(0.05),
            figure: Figure::Log,
        },
        Quantity {
            name: "longest of calls that lost a packet",
            unit: Unit::Time,
            better: Better::Lower,
            tolerance: Tolerance::relative(0.1),
            figure: Figure::None,
        },
    ]),
    paper: &[Paper {
        quantity: "p99 of calls that lost a packet",
        series: "go-back-n",
        x: None,
        value: Stated::Value(5e6),
        reason: "Courser's shortest timeout is 1 ms, and follows the round trips. The default \
            recovery does not wait for it.",
    }],
    run: Runner::Of(|size, seed, run| {
        for in_flight in [1, 8] {
            let settings = lost_call::Settings {
                seed,
                calls: size.pick(10_000, 100_000),
                in_flight,
                ..lost_call::Settings::default()
            };
            run.settings(&settings);
            let x = f64::from(in_flight);
            for p in lost_call::run(&settings, |_, _| {})? {
                let scheme = p.scheme.name();
                let (p99, max) = (p.lost_one.p99_ns as f64, p.lost_one.max_ns as f64);
                run.add("p99 without loss", scheme, x, p.lossless.p99_ns as f64);
                run.add("p99 of calls that lost a packet", scheme, x, p99);
                run.add("longest of calls that lost a packet", scheme, x, max);
            }
        }
        Ok(())
    }),
};

const OTHER_LOADS: &str = "The paper has a range over its loads; its sizes of buffers, RED limits and \
    number of flows are not stated. A NACK repairs a loss in a round trip here, which leaves less \
    to gain than in the paper, whose go-back-N loses more by each loss (experiment M23). Where the \
    slowest flows wait for others at the link of their sender, with or without loss, no recovery \
    could be faster: the bound.";

/// Go-back-N on timeouts, and on NACKs.
const SLOW: [Recovery; 2] = [Recovery::GoBackN, Recovery::GoBackNNack];

/// How much better other schemes are.
const BETTER: [&str; 2] = ["times better than go-back-n", "times better than go-back-n-nack"];

pub(super) const COMPLETION: Experiment = Experiment {
    id: "M24",
    title: "Web-search flows over a lossy spine",
    source: "MELO section 4.1.2, figure 5b",
    model: "MELO's fabric of 320 hosts, 32 leaves and four spines (short runs: 20 hosts in two \
        leaves), web-search flow sizes, Poisson arrivals, 300 flows at each load (short runs: 60), \
        the same for every scheme, credits of one bandwidth-delay product, DCQCN with marking by RED \
        from 100 to 400 kB, up to 20 %; spine 0 loses 1 % of what crosses it. go-back-n goes back \
        on timeouts only, go-back-n-nack on NACKs, as in the paper. The bound is the time of either \
        over that of the default without loss.",
    axis: Axis { label: "load", unit: Unit::Percent, log: false },
    quantities: Cow::Borrowed(&[
        Quantity {
            name: "99th percentile",
            unit: Unit::Time,
            better: Better::Lower,
            tolerance: Tolerance::relative(0.05),
            figure: Figure::Linear,
        },
        Quantity {
            name: BETTER[0],
            unit: Unit::Plain,
            better: Better::Higher,
            tolerance: Tolerance::relative(0.05),
            figure: Figure::Linear,
        },
        Quantity {
            name: BETTER[1],
            unit: Unit::Plain,
            better: Better::Higher,
            tolerance: Tolerance::relative(0.05),
            figure: Figure::Linear,
        },
    ]),
    paper: &[Paper {
        quantity: BETTER[1],
        series: "melo",
        x: None,
        value: Stated::Range(fct::PAPER.0, fct::PAPER.1),
        reason: OTHER_LOADS,
    }],
    run: Runner::Of(|size, seed, run| {
        let lossy = fct::Settings {
            seed,
            load_ppm: size.pick(vec![300_000, 800_000], vec![100_000, 500_000, 900_000]),
            hosts: size.pick(20, 320),
            flows: size.pick(60, 300),
            ..fct::Settings::default()
        };
        let schemes = vec![Recovery::Selective];
        let lossless = fct::Settings { schemes, loss_ppm: 0, ..lossy.clone() };
        run.settings(&lossy);
        run.settings(&lossless);
        let points = fct::run(&lossy, |_, _| {})?;
        let ideal = fct::run(&lossless, |_, _| {})?;
        let named = points.iter().map(|p| (p.scheme.name(), p));
        for (name, p) in named.chain(ideal.iter().map(|p| ("default, no loss", p))) {
            let p99 = p.fct_p99_ns as f64;
            run.add("99th percentile", name, p.load, p99);
            let name = if name == "default, no loss" { "bound" } else { name };
            for (quantity, than) in BETTER.into_iter().zip(SLOW) {
                let slow = points.iter().find(|q| q.scheme == than && q.load == p.load);
                if let Some(slow) = slow.filter(|_| !SLOW.contains(&p.scheme)) {
                    run.add(quantity, name, p.load, slow.fct_p99_ns as f64 / p99);
                }
            }
        }
        Ok(())
    }),
};

const SMALLER_BDP: &str = "A bandwidth-delay product is 885 packets here and 992 in the paper, \
    because our packets carry their headers besides the kilobyte: 89.2 % of the paper's bits.";

pub(super) const POOL: Experiment = Experiment {
    id: "M26",
    title: "Use of MELO's bits pool",
    source: "MELO section 4.2.2, figure 6b",
    model: "Two hosts under different leaves, a round trip of 200 us, the receiver's leaf lossy. \
        All connections together have the credits of one bandwidth-delay product, and each sends \
        no further than its credits behind a packet that is missing. Most bits in use of 1,024.",
    axis: Axis { label: "connections", unit: Unit::Count, log: false },
    quantities: Cow::Borrowed(&[
        Quantity {
            name: "bits in use",
            unit: Unit::Percent,
            better: Better::Lower,
            tolerance: Tolerance::relative(0.05),
            figure: Figure::Linear,
        },
        Quantity {
            name: "goodput",
            unit: Unit::Bits,
            better: Better::Higher,
            tolerance: Tolerance::relative(0.03),
            figure: Figure::None,
        },
    ]),
    paper: &[
        paper_pool("loss 0.1 %", 1.0, 0.969),
        paper_pool("loss 0.5 %", 1.0, 0.969),
        paper_pool("loss 1.0 %", 1.0, 0.969),
        paper_pool("loss 2.0 %", 1.0, 0.969),
        paper_pool("loss 2.0 %", 20.0, 0.656),
    ],
    run: Runner::Of(|size, seed, run| {
        let settings = bits_pool::Settings {
            seed,
            connections: size.pick(vec![1, 20], vec![1, 5, 10, 15, 20]),
            loss_ppm: size.pick(vec![20_000], vec![1_000, 5_000, 10_000, 20_000]),
            time_ns: size.pick(10_000_000, 50_000_000),
            ..bits_pool::Settings::default()
        };
        run.settings(&settings);
        for p in bits_pool::run(&settings, |_, _| {})? {
            let series = format!("loss {:.1} %", p.loss * 100.0);
            let x = f64::from(p.connections);
            run.add("bits in use", series.clone(), x, p.pool_fraction);
            run.add("goodput", series, x, p.goodput_bps as f64);
        }
        Ok(())
    }),
};

/// The paper's share of the pool.
const fn paper_pool(series: &'static str, connections: f64, share: f64) -> Paper {
    Paper {
        quantity: "bits in use",
        series,
        x: Some(connections),
        value: Stated::Value(share),
        reason: SMALLER_BDP,
    }
}
