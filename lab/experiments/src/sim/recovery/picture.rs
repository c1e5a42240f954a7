//! The loss experiments as pictures: lines for simulated values, rings for values of the paper.

use crate::experiments::loss::{self, PAPER, Point};
use crate::experiments::{bits_pool, fct, lost_call};
use courser::{Control, Recovery};
use courser_bench::report::Unit;

use super::seeds::{Completion, Goodput};
use super::tables::scheme;
use crate::picture::{Axis, Chart, Range, Style};

/// Goodput by the parameter that varies: loss, recovery time or reordering.
pub(super) fn loss(settings: &loss::Settings, points: &[Goodput]) -> Chart {
    type X = fn(&Point) -> f64;
    let mut each = points.iter().map(|g| &g.point);
    let first = each.next();
    let varies = |x: X| points.iter().any(|g| first.is_some_and(|first| x(&g.point) != x(first)));
    let rto_ns: X = |p| p.rto_ns.unwrap_or_default() as f64;
    let (x, axis): (X, _) = if varies(|p| p.reorder) {
        (|p| p.reorder, Axis::log("share of packets that come late", Unit::Percent))
    } else if varies(rto_ns) && !varies(|p| p.loss) {
        (rto_ns, Axis::log("recovery time", Unit::Time))
    } else {
        (|p| p.loss, Axis::log("chance that a packet is lost", Unit::Percent))
    };
    let is_loss = !varies(|p| p.reorder) && (varies(|p| p.loss) || !varies(rto_ns));
    let mut chart = Chart::lines(
        "Goodput of one flow, as a share of that without loss",
        axis,
        Axis::linear("goodput, share of lossless", Unit::Percent),
    );
    for g in points {
        let p = &g.point;
        let line = chart.line(Style::Main, scheme(p.scheme, p.control, &settings.controls));
        line.points.push((x(p), p.goodput_fraction));
        if g.seeds > 1 {
            let (low, high) = (g.goodput_fraction_min, g.goodput_fraction_max);
            line.ranges.push(Range { x: x(p), low, high });
        }
        if line.paper.is_none() && is_loss {
            let same = PAPER.iter().filter(|paper| paper.0 == p.scheme);
            let values = same.map(|paper| (f64::from(paper.1) / 1e6, paper.2));
            line.add_paper(format!("{} in the paper", p.scheme), values);
        }
    }
    chart
}

/// The 99th percentile of completion times by load.
pub(super) fn fct(settings: &fct::Settings, points: &[Completion]) -> Chart {
    let mut chart = Chart::lines(
        "Web-search flows over a lossy spine: 99th percentile of completion times",
        Axis::linear("load", Unit::Percent),
        Axis::linear("completion time", Unit::Time),
    );
    let name =
        |scheme_of: Recovery, control: Control| scheme(scheme_of, control, &settings.controls);
    for c in points {
        let p = &c.point;
        let line = chart.line(Style::Main, name(p.scheme, p.control));
        line.points.push((p.load, p.fct_p99_ns as f64));
        if c.seeds > 1 {
            let (low, high) = (c.fct_p99_min_ns as f64, c.fct_p99_max_ns as f64);
            line.ranges.push(Range { x: p.load, low, high });
        }
    }
    // The paper only has MELO's improvement over go-back-N, which gives bounds for MELO.
    for p in points.iter().map(|c| &c.point).filter(|p| p.scheme == Recovery::GoBackN) {
        let bounds = [fct::PAPER.0, fct::PAPER.1].map(|n| (p.load, p.fct_p99_ns as f64 / n));
        let line = chart.line(Style::Main, name(Recovery::Melo, p.control));
        line.add_paper("melo in the paper: 2.11 to 3.11 times better than go-back-n", bounds);
    }
    chart
}

/// Peak use of the pool by connections: a line for each loss.
pub(super) fn bits_pool(points: &[bits_pool::Point]) -> Chart {
    let mut chart = Chart::lines(
        "Peak use of MELO's pool of bits",
        Axis::linear("connections", Unit::Count),
        Axis::linear("share of the pool", Unit::Percent),
    );
    for p in points {
        let x = f64::from(p.connections);
        let line = chart.line(Style::Main, format!("loss {} %", (p.loss * 1e6).round() / 1e4));
        line.points.push((x, p.pool_fraction));
        line.add_paper("the paper", p.paper_fraction.map(|share| (x, share)));
    }
    chart
}

/// Latency of small calls by what they lost: a row for each scheme.
pub(super) fn lost_call(points: &[lost_call::Point]) -> Chart {
    let title = "Latency of a small call that lost a packet";
    let mut chart = Chart::bars(title, Axis::log("latency", Unit::Time));
    for p in points {
        let row = p.scheme.to_string();
        for (style, name, ns) in [
            (Style::Main, "no loss in the run: p99", p.lossless.p99_ns),
            (Style::Main, "lost one packet: p99", p.lost_one.p99_ns),
            (Style::Second, "lost one packet: p50", p.lost_one.p50_ns),
            (Style::Calculated, "p99 without loss and 3 round trips", p.bound_ns),
        ] {
            chart.bar(style, name, &row, ns as f64);
        }
    }
    chart
}
