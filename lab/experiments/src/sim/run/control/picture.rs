//! The experiments of congestion control as pictures.

use crate::experiments::{background, join_leave, operating_range};
use courser::Control;
use courser_bench::report::Unit;
use courser_kit::units::{show_bytes, show_ns};

use super::tables::names;
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
