//! Bandwidth of large requests (E77).

use std::borrow::Cow;

use crate::scenario::bandwidth;
use courser_bench::report::Unit;

use crate::declare::points::{
    Axis, Better, Experiment, Figure, Paper, Quantity, Runner, Stated, Tolerance,
};

/// Whole requests are counted: one more or less of the largest is 3 % of those in a full run.
const REQUESTS: Tolerance = Tolerance::relative(0.03);

const SERIES: &str = "one request in flight";

pub(super) const BANDWIDTH: Experiment = Experiment {
    id: "E77",
    title: "Bandwidth of large requests",
    source: "eRPC section 6.4, figure 6",
    model: "Two hosts at a switch with 100 Gbit/s, one session with 32 credits and one request in \
        flight, frames of 4 KiB of data, CPUs as calibrated on a machine. A write is arithmetic: \
        its packets at line rate, then one round trip of the idle network.",
    axis: Axis { label: "request", unit: Unit::Bytes, log: true },
    quantities: Cow::Borrowed(&[
        Quantity {
            name: "goodput",
            unit: Unit::Bits,
            better: Better::Higher,
            tolerance: REQUESTS,
            figure: Figure::Linear,
        },
        Quantity {
            name: "share of a write",
            unit: Unit::Percent,
            better: Better::Higher,
            tolerance: REQUESTS,
            figure: Figure::Linear,
        },
    ]),
    paper: &[
        Paper {
            quantity: "goodput",
            series: SERIES,
            x: Some(8_388_608.0),
            value: Stated::Value(75e9),
            reason: "The paper's core is the limit. The model's CPU takes less time for a packet than \
                the link.",
        },
        of_a_write(32_768.0),
        of_a_write(131_072.0),
        of_a_write(1_048_576.0),
        of_a_write(8_388_608.0),
    ],
    run: Runner::Of(|size, seed, run| {
        let default = bandwidth::Settings::default();
        let settings = bandwidth::Settings {
            seed,
            request_bytes: size.pick(vec![1 << 10, 32 << 10, 1 << 20], default.request_bytes),
            time_ns: size.pick(2_000_000, 20_000_000),
            ..default
        };
        run.settings(&settings);
        for row in bandwidth::run(&settings, |_, _| {})? {
            let x = row.request_bytes as f64;
            run.add("goodput", SERIES, x, row.goodput_bps as f64);
            run.add("share of a write", SERIES, x, row.write_fraction);
        }
        Ok(())
    }),
};

/// The paper has at least 70 % for 32 kB and more.
const fn of_a_write(bytes: f64) -> Paper {
    let value = Stated::AtLeast(0.7);
    Paper { quantity: "share of a write", series: SERIES, x: Some(bytes), value, reason: "" }
}
