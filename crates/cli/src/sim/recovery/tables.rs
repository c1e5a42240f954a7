//! The loss experiments as tables.

use courser_sim::scenario::loss::{self, Fit, Point};

use crate::sim::run::tables::{bps, ns, table};
use crate::units::show_bytes;

/// A share in per cent: `45.6 %`.
fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// A chance as people write it: `0`, `1e-3`, `5e-2`.
fn chance(share: f64) -> String {
    if share == 0.0 { "0".to_owned() } else { format!("{share:e}") }
}

fn rto(rto_ns: Option<u64>) -> String {
    rto_ns.map_or_else(|| "by round trips".to_owned(), ns)
}

/// Throughput against loss.
pub(super) fn loss(settings: &loss::Settings, points: &[Point]) -> String {
    let reorders = points.iter().any(|p| p.reorder > 0.0);
    let rows = points.iter().map(|p| {
        let mut row = vec![p.scheme.to_string(), chance(p.loss)];
        if reorders {
            row.push(format!("{} by {}", percent(p.reorder), ns(p.reorder_max_ns)));
        }
        row.extend([
            rto(p.rto_ns),
            bps(p.goodput_bps),
            percent(p.goodput_fraction),
            percent(1.0 - p.loss),
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
        header.push("late");
    }
    header.extend([
        "RTO",
        "goodput",
        "of lossless",
        "bound",
        "paper",
        "lost",
        "sent again",
        "for nothing",
        "timeouts",
    ]);
    format!(
        "one flow of {} requests, {} under way, {} credits ({} fill a round trip of {}), {} of \
         virtual time, seed {}\n{}\n",
        show_bytes(settings.request_bytes as u64),
        settings.outstanding,
        settings.credits(),
        settings.bdp_packets(),
        ns(settings.rtt_ns),
        ns(settings.time_ns),
        settings.seed,
        table(&header, rows),
    )
}

/// The recovery time that the paper leaves out.
pub(super) fn fit(fit: &Fit) -> String {
    let row = |what: &str, p: &Point| {
        let paper = p.paper_fraction.map_or_else(String::new, percent);
        vec![what.to_owned(), chance(p.loss), percent(p.goodput_fraction), paper]
    };
    let rows = [row("fitted", &fit.fitted), row("follows", &fit.predicted)];
    format!(
        "go-back-N with a recovery time of {}: {:+.1} % off the paper at 1e-2\n{}\n",
        ns(fit.rto_ns),
        fit.error * 100.0,
        table(&["", "loss", "simulated", "paper"], rows),
    )
}
