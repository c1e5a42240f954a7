//! Results as tables: measured beside expected.

use comfy_table::{CellAlignment, Table};
use courser_sim::scenario::{bandwidth, buffers, credits, incast, response_rtt, sessions};

use super::Timed;
use super::figures::Speed;
use courser_bench::program::grid;
use courser_bench::program::units::{show_bytes, show_ns, show_per_second};

pub(in crate::sim) fn table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> Table {
    let mut table = grid::ruled(header.to_vec());
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

pub(in crate::sim) fn ns(ns: u64) -> String {
    show_ns(ns as f64)
}

pub(in crate::sim) fn bps(bps: u64) -> String {
    show_per_second(bps as f64, "bit/s")
}

/// A part per million, in per cent.
fn percent(ppm: u64) -> String {
    format!("{:.1} %", ppm as f64 / 10_000.0)
}

pub(super) fn e76(settings: &sessions::Settings, timed: &Timed) -> String {
    let Timed { outcome: seen, wall, prepare_wall_s } = timed;
    let row = |what: &str, here: String, paper: &str| vec![what.to_owned(), here, paper.to_owned()];
    let l = &seen.latency;
    let rows = [
        row("latency p50", ns(l.p50_ns), "12.7 µs at 1 thread"),
        row("latency p99", ns(l.p99_ns), ""),
        row("latency p99.9", ns(l.p99_9_ns), ""),
        row("latency p99.99", ns(l.p99_99_ns), "below 700 µs at 10 threads"),
        row(
            "calls per node, and as many served",
            show_per_second(seen.rate_per_node_rps as f64, "/s"),
            "12.3 M/s at 10 threads",
        ),
        row("sent per node, on the wire", bps(seen.wire_per_node_bps), "18.1 Gbit/s at 10 threads"),
        row(
            "retransmissions per node",
            show_per_second(seen.retransmitted_per_node_per_s as f64, "/s"),
            "below 1,700 /s; seen above 2 threads",
        ),
        row("datagrams lost", seen.traffic.drops_total().to_string(), ""),
        row("sessions per node", seen.sessions_per_node.to_string(), "19,980 at 10 threads"),
    ];
    let memory = wall
        .peak_rss_bytes
        .map_or_else(String::new, |bytes| format!(", {} MiB of memory", bytes >> 20));
    format!(
        "{} nodes, {} threads each, {} requests under way in batches of {}, {} CPUs, {} of \
         virtual time, seed {}\n{}\n\
         {:.1} s ({:.1} s of processor time) for {} deliveries, {}; {:.1} s before{memory}\n",
        settings.nodes,
        settings.threads,
        settings.in_flight,
        settings.batch,
        settings.cpu.name(),
        ns(settings.time_ns),
        settings.seed,
        table(&["", "simulated", "paper"], rows),
        wall.wall_s,
        wall.cpu_s,
        seen.traffic.datagrams_delivered,
        show_per_second(wall.deliveries_per_wall_s, "/s"),
        prepare_wall_s,
    )
}

pub(super) fn incast(runs: &[(incast::Settings, incast::Outcome)]) -> String {
    match runs {
        [(settings, seen)] => one_incast(settings, seen),
        _ => incasts(runs),
    }
}

/// A row for each run.
fn incasts(runs: &[(incast::Settings, incast::Outcome)]) -> String {
    let rows = runs.iter().map(|(settings, seen)| {
        let share = seen.goodput_bps as f64 / seen.expected_goodput_bps as f64;
        vec![
            settings.control.name().to_owned(),
            settings.senders.to_string(),
            ns(seen.rtt.p50_ns),
            ns(seen.rtt.p99_ns),
            format!("{share:.3}"),
            show_bytes(seen.queue_p99_bytes),
            seen.drops.to_string(),
            format!("{:.2}", seen.slowest_share),
            format!("{:.2}", seen.jain),
        ]
    });
    let head = ["control", "N", "p50", "p99", "goodput", "queue", "drops", "slowest", "Jain"];
    let Some((settings, _)) = runs.first() else { return String::new() };
    format!(
        "{} credits, {} requests, {}, seed {}; goodput as a share of the link's,\nqueue of the \
         receiver's link at p99, the slowest sender's share of the mean\n{}\n",
        settings.credits,
        show_bytes(settings.request_bytes as u64),
        settings.recovery,
        settings.seed,
        table(&head, rows),
    )
}

fn one_incast(settings: &incast::Settings, seen: &incast::Outcome) -> String {
    let row = |what: &str, here: String, expected: String| vec![what.to_owned(), here, expected];
    let rows = [
        row("goodput", bps(seen.goodput_bps), bps(seen.expected_goodput_bps)),
        row("round trip p50", ns(seen.rtt.p50_ns), ns(seen.expected_rtt_ns)),
        row("round trip p99", ns(seen.rtt.p99_ns), ns(seen.expected_rtt_ns)),
        row("queue, mean", format!("{} B", seen.queue_mean_bytes), String::new()),
        row("queue, most", format!("{} B", seen.queue_max_bytes), String::new()),
        row("datagrams lost", seen.traffic.drops_total().to_string(), "0".to_owned()),
        row("sent again", seen.traffic.retransmitted.to_string(), "0".to_owned()),
    ];
    format!(
        "{} senders with {} credits each, {} requests, {} CPUs, congestion control: {}, seed {}\n\
         {}\n",
        settings.senders,
        settings.credits,
        show_bytes(settings.request_bytes as u64),
        settings.cpu.name(),
        settings.control.name(),
        settings.seed,
        table(&["", "simulated", "arithmetic"], rows),
    )
}

pub(super) fn buffers(settings: &buffers::Settings, points: &[buffers::Point]) -> String {
    let rows = points.iter().map(|p| {
        let kind = if p.is_static { "static" } else { "dynamic" };
        vec![
            p.senders.to_string(),
            format!("{} kB", p.windows_bytes / 1_000),
            format!("{} kB {kind}", p.buffer_bytes / 1_000),
            if p.overflow_expected { "yes" } else { "no" }.to_owned(),
            p.overflows.to_string(),
            percent(p.loss_ppm),
            p.retransmitted.to_string(),
            bps(p.goodput_bps),
            format!("{} kB", p.queue_max_bytes / 1_000),
        ]
    });
    let header = [
        "senders",
        "windows",
        "a queue may hold",
        "overflow expected",
        "lost",
        "loss",
        "sent again",
        "goodput",
        "queue, most",
    ];
    format!(
        "{} credits a session, {} of virtual time, seed {}\n{}\n",
        settings.credits,
        ns(settings.time_ns),
        settings.seed,
        table(&header, rows),
    )
}

pub(super) fn credits(settings: &credits::Settings, seen: &credits::Outcome) -> String {
    let rows = seen.points.iter().map(|p| {
        vec![
            p.credits.to_string(),
            bps(p.goodput_bps),
            percent(p.line_ppm),
            percent(p.expected_ppm),
        ]
    });
    format!(
        "{} with a round trip of {}: BDP {} B, packets of {} B, so {} credits fill it\n{}\n",
        bps(settings.rate_bps),
        ns(settings.rtt_ns),
        seen.bdp_bytes,
        seen.packet_bytes,
        seen.full_credits,
        table(&["credits", "goodput", "of the line", "arithmetic"], rows),
    )
}

pub(super) fn bandwidth(settings: &bandwidth::Settings, rows: &[bandwidth::Row]) -> String {
    let lines = rows.iter().map(|row| {
        vec![
            show_bytes(row.request_bytes as u64),
            bps(row.goodput_bps),
            bps(row.write_bps),
            format!("{:.0} %", row.write_fraction * 100.0),
        ]
    });
    format!(
        "One request in flight over {}, {} credits, {} CPUs, seed {}\n{}\n",
        bps(settings.rate_bps),
        settings.credits,
        settings.cpu.name(),
        settings.seed,
        table(&["request", "goodput", "write", "of the write"], lines),
    )
}

pub(super) fn response_rtt(
    settings: &response_rtt::Settings,
    seen: &response_rtt::Outcome,
) -> String {
    let rows = seen.points.iter().map(|p| {
        vec![
            p.packets.to_string(),
            ns(p.latency_ns),
            ns(p.without_rfr_ns),
            ns(p.extra_ns),
            format!("{:.2}", p.extra_rtt_ppm as f64 / 1e6),
            percent(p.extra_share_ppm),
        ]
    });
    let header = ["packets", "call", "without RFRs", "extra", "in RTTs", "of the call"];
    format!(
        "{} cables, {}, {} CPUs: a call of 32 B takes {}, one with a full packet back {} (1 RTT)\n\
         {}\n",
        bps(settings.rate_bps),
        if settings.two_racks { "two racks" } else { "one rack" },
        settings.cpu.name(),
        ns(seen.small_ns),
        ns(seen.rtt_ns),
        table(&header, rows),
    )
}

pub(super) fn speed(results: &[Speed]) -> String {
    let rate = |rate| show_per_second(rate, "/s");
    let rows = results.iter().map(|s| {
        let (low, high) = (s.deliveries_per_cpu_s_min, s.deliveries_per_cpu_s_max);
        vec![
            s.load.name().to_owned(),
            rate(s.deliveries_per_cpu_s),
            format!("{} - {}", rate(low), rate(high)),
            rate(s.deliveries_per_wall_s),
            format!("{:.3}", s.virtual_s_per_wall_s),
        ]
    });
    let header = [
        "two hosts",
        "deliveries per second of processor time",
        "range",
        "of real time",
        "virtual s per s",
    ];
    format!("{}\n", table(&header, rows))
}
