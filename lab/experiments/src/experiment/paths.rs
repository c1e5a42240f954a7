//! Experiments of congestion control that have no counterpart in a paper: responses of many servers
//! at once, a path that becomes longer, and a slow handler.

use crate::scenario::slow_handler::Handler;
use crate::scenario::{Hosts, fan_in, reroute, slow_handler};
use courser::Control;
use courser_bench::report::Unit;

use super::control::{SHARE, TIME, quantity};
use super::{Axis, Experiment, Tolerance};

/// Courser's own and, for comparison, none.
const CONTROLS: [Control; 2] = [Control::TwoWindow, Control::None];

pub(super) const FAN_IN: Experiment = Experiment {
    id: "fan-in",
    title: "Responses of many servers to one client",
    source: "Courser ADR 35",
    model: "Servers at one switch with 25 Gbit/s and 480 kB for each port; a client calls all of \
        them at once, and each answers 64 kB. 32 credits, frames of 1,072 bytes, CPUs that take \
        no time. Calculated: all responses on the client's link, and an idle round trip.",
    axis: Axis { label: "servers", unit: Unit::Count, log: true },
    quantities: &[
        quantity("longest round / calculated", Unit::Plain, SHARE),
        quantity("median round / calculated", Unit::Plain, SHARE),
        quantity("drops", Unit::Count, TIME),
    ],
    paper: &[],
    run: |size, seed, run| {
        for control in CONTROLS {
            for &servers in size.pick(&[20][..], &[20, 100]) {
                let rounds = size.pick(3, 10);
                let default = fan_in::Settings::default();
                let settings = fan_in::Settings { seed, control, servers, rounds, ..default };
                run.settings(&settings);
                let seen = fan_in::run(&settings, None)?;
                let (x, name) = (f64::from(servers), control.name());
                let ratio = |ns: u64| ns as f64 / seen.expected_ns as f64;
                run.add("longest round / calculated", name, x, ratio(seen.completion.max_ns));
                run.add("median round / calculated", name, x, ratio(seen.completion.p50_ns));
                run.add("drops", name, x, seen.drops as f64);
            }
        }
        Ok(())
    },
};

pub(super) const REROUTE: Experiment = Experiment {
    id: "reroute",
    title: "Goodput after a path has become longer",
    source: "Courser ADR 35",
    model: "Senders of 8 MiB requests at one switch with 25 Gbit/s, 64 credits; from one moment on \
        packets to the server take 10 us longer. Goodput in slices of 1 ms. The time until the \
        last slice below 0.95 of the goodput before; all slices if that is the last one.",
    axis: Axis { label: "senders", unit: Unit::Count, log: true },
    quantities: &[
        quantity("at 0.95 after", Unit::Time, TIME.or_absolute(1e6)),
        quantity("lowest 1 ms / before", Unit::Plain, SHARE),
        quantity("goodput before, share of the link", Unit::Plain, SHARE),
    ],
    paper: &[],
    run: |size, seed, run| {
        for &control in size.pick(&CONTROLS[..1], &CONTROLS) {
            for &senders in size.pick(&[1][..], &[1, 2, 20]) {
                let default = reroute::Settings::default();
                let settings = reroute::Settings {
                    hosts: Hosts { seed, control, ..default.hosts },
                    senders,
                    warm_up_ns: size.pick(5_000_000, default.warm_up_ns),
                    slices: size.pick(10, default.slices),
                    ..default
                };
                run.settings(&settings);
                let seen = reroute::run(&settings)?;
                let (x, name) = (f64::from(senders), control.name());
                let all_ns = u64::from(settings.slices) * settings.slice_ns;
                let after_ns = seen.recovered_after_ns.unwrap_or(all_ns);
                run.add("at 0.95 after", name, x, after_ns as f64);
                run.add("lowest 1 ms / before", name, x, seen.lowest_share);
                run.add("goodput before, share of the link", name, x, seen.before_share);
            }
        }
        Ok(())
    },
};

pub(super) const SLOW_HANDLER: Experiment = Experiment {
    id: "slow-handler",
    title: "Window of a path around a slow handler",
    source: "Courser ADR 5",
    model: "Two hosts at a switch with 25 Gbit/s. Eight calls of 1 MiB, a call to a handler of \
        20 ms, another call of 1 MiB. The handler runs on the thread of its endpoint, on a \
        worker, or replies by a timer.",
    axis: Axis { label: "request of the slow call", unit: Unit::Bytes, log: true },
    quantities: &[
        quantity("window before, packets", Unit::Count, Tolerance { relative: 0.1, absolute: 1.0 }),
        quantity("window after / before", Unit::Plain, SHARE),
        quantity("1 MiB after / before", Unit::Plain, SHARE),
    ],
    paper: &[],
    run: |size, seed, run| {
        for handler in Handler::ALL {
            for &request_bytes in size.pick(&[32][..], &[32, 64_000]) {
                let hosts = Hosts { seed, ..Hosts::default() };
                let default = slow_handler::Settings::default();
                let settings = slow_handler::Settings { hosts, handler, request_bytes, ..default };
                run.settings(&settings);
                let seen = slow_handler::run(&settings)?;
                let (x, name) = (request_bytes as f64, handler.name());
                if let (Some(before), Some(after)) = (seen.window_before, seen.window_after) {
                    run.add("window before, packets", name, x, before.into());
                    run.add("window after / before", name, x, f64::from(after) / f64::from(before));
                }
                let ratio = seen.large_after_ns as f64 / seen.large_before_ns as f64;
                run.add("1 MiB after / before", name, x, ratio);
            }
        }
        Ok(())
    },
};
