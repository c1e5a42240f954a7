//! The loss experiments as tables.

use crate::experiments::loss::{self, Fit, Point};
use crate::experiments::{bits_pool, fct, lost_call};
use crate::scenario::Latency;
use courser::{Control, Recovery};

use super::seeds::{Completion, Goodput, Spread};

use crate::declare::text::{bps, ns, table};
use courser_kit::units::show_bytes;

/// A share in per cent: `45.6 %`.
fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A probability: `0`, `1e-3`, `5e-2`.
fn chance(share: f64) -> String {
    if share == 0.0 { "0".to_owned() } else { format!("{share:e}") }
}

fn rto(rto_ns: Option<u64>) -> String {
    rto_ns.map_or_else(|| "dynamic".to_owned(), ns)
}

/// The first cell of a row: the scheme, with its control if there are several.
pub(super) fn scheme(scheme: Recovery, control: Control, controls: &[Control]) -> String {
    match controls.len() {
        0 | 1 => scheme.to_string(),
        _ => format!("{scheme}, {}", control.name()),
    }
}

/// Names of controls.
fn controls(all: &[Control]) -> String {
    all.iter().map(|c| c.name()).collect::<Vec<_>>().join(", ")
}

/// The seeds from `first` on.
fn seeds(first: u64, count: usize) -> String {
    match count {
        1 => format!("seed {first}"),
        count => format!("median and range of seeds {first} to {}", first + count as u64 - 1),
    }
}

/// A range, if there is more than one seed.
fn range(has_seeds: bool, min: f64, max: f64, show: impl Fn(f64) -> String) -> String {
    if has_seeds { format!("{} to {}", show(min), show(max)) } else { String::new() }
}

/// Goodput by loss.
pub(super) fn loss(settings: &loss::Settings, points: &[Goodput]) -> String {
    let reorders = points.iter().any(|p| p.point.reorder > 0.0);
    let has_seeds = points.iter().any(|p| p.seeds > 1);
    // The range takes the place of columns that a reader of medians needs less.
    let alone = |text: String| if has_seeds { String::new() } else { text };
    let rows = points.iter().map(|g| {
        let p = &g.point;
        let scheme = scheme(p.scheme, p.control, &settings.controls);
        let mut row = vec![scheme, chance(p.loss)];
        if reorders {
            row.push(format!("{} by {}", percent(p.reorder), ns(p.reorder_max_ns)));
        }
        row.extend([
            rto(p.rto_ns),
            alone(format!("{:.1}", p.goodput_bps as f64 / 1e9)),
            percent(p.goodput_fraction),
            range(has_seeds, g.goodput_fraction_min, g.goodput_fraction_max, |s| {
                format!("{:.1}", s * 100.0)
            }),
            p.paper_fraction.map_or_else(String::new, percent),
            alone(p.lost.to_string()),
            p.retransmitted.to_string(),
            alone(p.duplicates.to_string()),
            p.timeouts.to_string(),
        ]);
        row
    });
    let mut header = vec!["scheme", "loss"];
    if reorders {
        header.push("delayed");
    }
    header.extend([
        "RTO",
        "Gbit/s",
        "of lossless",
        "range",
        "paper",
        "lost",
        "resent",
        "spurious",
        "RTOs",
    ]);
    let caption = format!(
        "goodput of one flow of {} requests, {} in flight, {} credits ({} fill a round trip of \
         {}), control {}, {} of virtual time, {}\n\
         At a loss of 1e-3 the paper has go-back-N close to zero in figure 1 (a NIC, go-back on \
         NACKs) and at 45.6 % in figure 5a (its simulation).",
        show_bytes(settings.request_bytes as u64),
        settings.outstanding,
        settings.credits(),
        settings.bdp_packets(),
        ns(settings.rtt_ns),
        controls(&settings.controls),
        ns(settings.time_ns),
        seeds(settings.seed, points.first().map_or(1, |p| p.seeds)),
    );
    table(&caption, &header, rows)
}

/// The recovery time that gives the paper's goodput.
pub(super) fn fit(fit: &Fit) -> String {
    let row = |what: &str, p: &Point| {
        let paper = p.paper_fraction.map_or_else(String::new, percent);
        vec![what.to_owned(), chance(p.loss), percent(p.goodput_fraction), paper]
    };
    let rows = [row("fitted", &fit.fitted), row("predicted", &fit.predicted)];
    let caption = format!(
        "go-back-N with a recovery time of {}: {:+.1} % off the paper at 1e-2",
        ns(fit.rto_ns),
        fit.error * 100.0,
    );
    table(&caption, &["", "loss", "simulated", "paper"], rows)
}

/// Completion times of flows.
pub(super) fn fct(settings: &fct::Settings, points: &[Completion]) -> String {
    let has_seeds = points.iter().any(|p| p.seeds > 1);
    let times = |spread: Option<Spread>| {
        let shown = |s: Spread| {
            let range = range(has_seeds, s.min, s.max, |times| format!("{times:.2}"));
            format!("{:.2} {range}", s.median).trim_end().to_owned()
        };
        spread.map_or_else(String::new, shown)
    };
    let alone = |text: String| if has_seeds { String::new() } else { text };
    let rows = points.iter().map(|c| {
        let p = &c.point;
        vec![
            scheme(p.scheme, p.control, &settings.controls),
            format!("{:.2}", p.load),
            ns(p.fct_p50_ns),
            ns(p.fct_p99_ns),
            range(has_seeds, c.fct_p99_min_ns as f64, c.fct_p99_max_ns as f64, |ns| {
                format!("{:.1}", ns / 1e6)
            }),
            times(c.better_than_go_back_n),
            times(c.better_than_go_back_n_nack),
            alone(p.lost.to_string()),
            p.overflows.to_string(),
            p.retransmitted.to_string(),
            p.timeouts.to_string(),
        ]
    });
    let header = [
        "scheme",
        "load",
        "p50",
        "p99",
        "range, ms",
        "better than timeout",
        "better than NACK",
        "lost",
        "queue drops",
        "resent",
        "RTOs",
    ];
    let caption = format!(
        "{} web-search flows at each load, {} hosts, {} lanes of {} credits, control {}, spine 0 \
         loses {}, RTO {}, {}\n\
         Better: the p99 of go-back-N on timeouts, and on NACKs, over that of the row. In the paper \
         MELO is {} to {} times better than go-back-N on NACKs, with DCQCN.",
        settings.flows,
        settings.hosts,
        settings.lanes,
        settings.credits(),
        controls(&settings.controls),
        percent(f64::from(settings.loss_ppm) / 1e6),
        ns(settings.rto_ns),
        seeds(settings.seed, points.first().map_or(1, |p| p.seeds)),
        fct::PAPER.0,
        fct::PAPER.1,
    );
    table(&caption, &header, rows)
}

/// Use of the bits pool.
pub(super) fn bits_pool(settings: &bits_pool::Settings, points: &[bits_pool::Point]) -> String {
    let rows = points.iter().map(|p| {
        vec![
            p.connections.to_string(),
            percent(p.loss),
            p.credits.to_string(),
            p.bits_peak.to_string(),
            percent(p.pool_fraction),
            p.paper_fraction.map_or_else(String::new, percent),
            p.refused.to_string(),
            bps(p.goodput_bps),
            p.timeouts.to_string(),
        ]
    });
    let header = [
        "connections",
        "loss",
        "credits each",
        "peak bits",
        "of the pool",
        "paper",
        "refused",
        "goodput",
        "timeouts",
    ];
    let caption = format!(
        "{} packets fill a round trip of {}, {} of virtual time, RTO {}, seed {}",
        settings.bdp_packets(),
        ns(settings.rtt_ns),
        ns(settings.time_ns),
        ns(settings.rto_ns),
        settings.seed,
    );
    table(&caption, &header, rows)
}

/// Latency of small calls by the packets that they lost.
pub(super) fn lost_call(settings: &lost_call::Settings, points: &[lost_call::Point]) -> String {
    let row = |scheme: String, what: &str, l: &Latency, note: String| {
        let time = |of| if l.count == 0 { String::new() } else { ns(of) };
        let count = l.count.to_string();
        let times = [time(l.p50_ns), time(l.p99_ns), time(l.max_ns)];
        [vec![scheme, what.to_owned(), count], times.to_vec(), vec![note]].concat()
    };
    let rows = points.iter().flat_map(|p| {
        let bound = format!("bound {} + reordering window", ns(p.bound_ns));
        let worst = format!("lossless p99 + {:.1} RTT", p.worst_rtts);
        [
            row(p.scheme.to_string(), "without loss", &p.lossless, bound),
            row(String::new(), "lost no packet", &p.unharmed, String::new()),
            row(String::new(), "lost one packet", &p.lost_one, worst),
            row(String::new(), "lost several", &p.lost_more, String::new()),
        ]
    });
    let caption = format!(
        "calls of 32 bytes, {} in flight, loss {}, {} CPUs, seed {}",
        settings.in_flight,
        chance(f64::from(settings.loss_ppm) / 1e6),
        settings.cpu.name(),
        settings.seed,
    );
    table(&caption, &["scheme", "calls", "count", "p50", "p99", "longest", ""], rows)
}
