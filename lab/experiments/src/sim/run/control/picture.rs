//! The experiments of congestion control as pictures.

use crate::experiments::{
    background, first_burst, join_leave, operating_range, uncongested, uplink,
};
use courser::Control;
use courser_bench::report::Unit;
use courser_kit::units::{show_bytes, show_ns};

use super::tables::{buffer, marks, names};
use crate::declare::seeds::Row;
use crate::declare::text::counted;
use crate::experiment;
use crate::picture::{Axis, Chart, Style};

/// The calls beside an incast, with it and without.
pub(super) fn background(rows: &[Row<background::Settings, background::Outcome>]) -> Chart {
    let Some((first, _)) = rows.first() else { return Chart::bars("", LATENCY) };
    let senders = counted(first.senders, "sender");
    let title = format!("Calls beside an incast of {senders}, by control and recovery");
    let mut chart = Chart::bars(title, LATENCY);
    for (s, o) in rows {
        let name = names(&s.hosts);
        let large = format!("{name}: {}", show_bytes(s.background_bytes as u64));
        let small = format!("{name}: 32 B to the victim");
        for (style, series, calls) in
            [(Style::Main, "with the incast", &o.incast), (Style::Second, "without", &o.quiet)]
        {
            for (row, latency) in [(&large, &calls.background), (&small, &calls.to_victim)] {
                // A short run may have none of them.
                if latency.count > 0 {
                    chart.bar(style, series, row, latency.p99_ns as f64);
                }
            }
        }
        if s.hosts.control == Control::default() {
            let stated = experiment::stated("E83", "latency p99", "default");
            let same = stated.into_iter().filter(|(senders, _)| *senders == f64::from(s.senders));
            let row = chart.row(&large);
            let line = chart.line(Style::Main, "with the incast");
            line.add_paper("the paper, with its control", same.map(|(_, ns)| (row, ns)));
        }
    }
    chart
}

const LATENCY: Axis = Axis::linear("latency p99", Unit::Time);

/// The lowest goodput by round trip: a line for each rate, frame size and jitter.
pub(super) fn operating_range(
    rows: &[Row<operating_range::Settings, operating_range::Outcome>],
) -> Chart {
    let mut chart = Chart::lines(
        "Lowest goodput of all numbers of senders, by control and recovery",
        Axis::log("base round trip", Unit::Time),
        Axis::linear("goodput, share of the link", Unit::Percent),
    );
    for (s, o) in rows {
        let name = format!(
            "{}, {} Gbit/s, {}, jitter {}",
            names(&s.hosts),
            s.rate_bps / 1_000_000_000,
            show_bytes(s.hosts.max_frame as u64),
            show_ns(s.jitter_ns as f64),
        );
        let (x, y) = (s.base_rtt_ns.max(1) as f64, o.goodput_share);
        let points = &mut chart.line(Style::Main, name).points;
        match points.iter_mut().find(|point| point.0 == x) {
            Some(point) => point.1 = point.1.min(y),
            None => points.push((x, y)),
        }
    }
    chart
}

/// Jain's index after each change.
pub(super) fn join_leave(rows: &[Row<join_leave::Settings, join_leave::Outcome>]) -> Chart {
    let mut chart = Chart::lines(
        "Senders that join one after the other and leave, by control and recovery",
        Axis::linear("time of the change", Unit::Time),
        Axis::linear("Jain's index until the next", Unit::Plain),
    );
    for (s, o) in rows {
        let at_ns = |change: usize| (change as u64 * s.every_ns) as f64;
        let points = o.windows.iter().enumerate().map(|(n, w)| (at_ns(n), w.jain));
        chart.line(Style::Main, names(&s.hosts)).points.extend(points);
    }
    chart
}

/// The longest and the median burst, as multiples of the ideal time.
pub(super) fn first_burst(rows: &[Row<first_burst::Settings, first_burst::Outcome>]) -> Chart {
    let Some((first, _)) = rows.first() else { return Chart::lines("", REQUEST, IDEAL) };
    let title = format!("First bursts of {} idle senders, by control and recovery", first.senders);
    let mut chart = Chart::lines(title, REQUEST, IDEAL);
    for (s, o) in rows {
        let name = format!("{}, {} kB", names(&s.hosts), s.buffer_bytes / 1_000);
        let (x, ideal_ns) = (s.request_bytes as f64, o.ideal_ns.max(1) as f64);
        chart.line(Style::Main, format!("{name}: longest")).points.push((x, o.ratio));
        let median = o.round.p50_ns as f64 / ideal_ns;
        chart.line(Style::Second, format!("{name}: p50")).points.push((x, median));
    }
    chart
}

const REQUEST: Axis = Axis::log("request", Unit::Bytes);
const IDEAL: Axis = Axis::linear("burst / its ideal time", Unit::Plain);

/// Goodput and fairness of the flows over an uplink, and of the one beside it.
pub(super) fn uplink(rows: &[Row<uplink::Settings, uplink::Outcome>]) -> Chart {
    let share = Axis::linear("share", Unit::Plain);
    let Some((first, _)) = rows.first() else { return Chart::bars("", share) };
    let title = format!(
        "{} flows over an uplink with half of their rate, by control and recovery",
        first.flows
    );
    let mut chart = Chart::bars(title, share);
    for (s, o) in rows {
        let marks = marks(s.mark_bytes);
        let row = format!("{}, {}, marks: {marks}", names(&s.hosts), buffer(s.buffer_bytes));
        for (name, value) in [
            ("goodput, share of the uplink", o.goodput_share),
            ("Jain's index", o.jain),
            ("innocent flow, share of its rate", o.innocent_share()),
        ] {
            chart.bar(Style::Main, name, &row, value);
        }
    }
    chart
}

/// Completion times of small and large calls: a colour for each control and recovery.
pub(super) fn uncongested(rows: &[Row<uncongested::Settings, uncongested::Outcome>]) -> Chart {
    let time = Axis::linear("completion time", Unit::Time);
    let Some((first, o)) = rows.first() else { return Chart::bars("", time) };
    let title = format!(
        "{} hosts, links {:.1} % loaded, by control and recovery",
        first.nodes,
        o.load * 100.0
    );
    let mut chart = Chart::bars(title, time);
    for (s, o) in rows {
        let large = show_bytes(s.large_bytes as u64);
        for (calls, latency) in [("32 B", &o.small), (&large, &o.large)] {
            let percentiles = [("p50", latency.p50_ns), ("p99", latency.p99_ns)];
            // A short run may have no call of a kind.
            for (percentile, ns) in percentiles.into_iter().filter(|_| latency.count > 0) {
                let row = format!("{calls}: {percentile}");
                chart.bar(Style::Main, &names(&s.hosts), &row, ns as f64);
            }
        }
    }
    chart
}
