//! The loss experiments as tables.

use courser::Recovery;
use courser_sim::scenario::loss::{self, Fit, Point};
use courser_sim::scenario::{Latency, bits_pool, fct, lost_call};

use crate::sim::run::tables::{bps, ns, table};
use courser_bench::program::units::show_bytes;

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

/// Goodput by loss.
pub(super) fn loss(settings: &loss::Settings, points: &[Point]) -> String {
    let reorders = points.iter().any(|p| p.reorder > 0.0);
    let rows = points.iter().map(|p| {
        let mut row = vec![p.scheme.to_string(), chance(p.loss)];
        if reorders {
            row.push(format!("{} by {}", percent(p.reorder), ns(p.reorder_max_ns)));
        }
        row.extend([
            rto(p.rto_ns),
            format!("{:.1}", p.goodput_bps as f64 / 1e9),
            percent(p.goodput_fraction),
            p.paper_fraction.map_or_else(String::new, percent),
            p.lost.to_string(),
            p.retransmitted.to_string(),
            p.duplicates.to_string(),
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
        "paper",
        "lost",
        "resent",
        "spurious",
        "timeouts",
    ]);
    let caption = format!(
        "goodput of one flow of {} requests, {} in flight, {} credits ({} fill a round trip of \
         {}), {} of virtual time, seed {}",
        show_bytes(settings.request_bytes as u64),
        settings.outstanding,
        settings.credits(),
        settings.bdp_packets(),
        ns(settings.rtt_ns),
        ns(settings.time_ns),
        settings.seed,
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
pub(super) fn fct(settings: &fct::Settings, points: &[fct::Point]) -> String {
    let slowest = |load: f64| {
        let same = points.iter().find(|p| p.scheme == Recovery::GoBackN && p.load == load);
        same.map(|p| p.fct_p99_ns)
    };
    let rows = points.iter().map(|p| {
        let better = slowest(p.load).map(|ns| ns as f64 / p.fct_p99_ns.max(1) as f64);
        vec![
            p.scheme.to_string(),
            format!("{:.2}", p.load),
            ns(p.fct_p50_ns),
            ns(p.fct_mean_ns),
            ns(p.fct_p99_ns),
            better.map_or_else(String::new, |times| format!("{times:.2}")),
            p.shared.to_string(),
            p.lost.to_string(),
            p.overflows.to_string(),
            p.retransmitted.to_string(),
            p.timeouts.to_string(),
        ]
    });
    let header = [
        "scheme",
        "load",
        "p50",
        "mean",
        "p99",
        "times better",
        "shared",
        "lost",
        "queue drops",
        "resent",
        "RTOs",
    ];
    let caption = format!(
        "{} web-search flows at each load, {} hosts, {} lanes of {} credits, spine 0 loses {}, RTO \
         {}, seed {}; shared: flows without a lane of their own\n\
         In the paper MELO is {} to {} times better than go-back-N.",
        settings.flows,
        settings.hosts,
        settings.lanes,
        settings.credits(),
        percent(f64::from(settings.loss_ppm) / 1e6),
        ns(settings.rto_ns),
        settings.seed,
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
