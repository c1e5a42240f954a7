//! Results as tables of at most 80 columns: simulated and expected values.

use crate::scenario::{bandwidth, buffers, credits, incast, response_rtt, sessions};

use super::figures::{Speed, Timed};
use crate::declare::seeds::{Cell, Row, Runs};
use crate::declare::text::{bps, ns, table};
use courser_kit::text::{WIDTH, wrap};
use courser_kit::units::{show_bytes, show_per_second};

/// A part per million, in per cent.
fn percent(ppm: u64) -> String {
    match ppm {
        1..1_000 => format!("{:.3} %", ppm as f64 / 10_000.0),
        _ => format!("{:.1} %", ppm as f64 / 10_000.0),
    }
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
            "calls made per node",
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
    let caption = format!(
        "{} nodes, {} threads each, {} requests in flight in batches of {}, {} CPUs, {} of \
         virtual time, seed {}",
        settings.nodes,
        settings.threads,
        settings.in_flight,
        settings.batch,
        settings.cpu.name(),
        ns(settings.time_ns),
        settings.seed,
    );
    let cost = format!(
        "{:.1} s ({:.1} s of CPU time) for {} deliveries, {}; {prepare_wall_s:.1} s before the \
         measurement{memory}",
        wall.wall_s,
        wall.cpu_s,
        seen.traffic.datagrams_delivered,
        show_per_second(wall.deliveries_per_wall_s, "/s"),
    );
    let cost = wrap(&cost, WIDTH).join("\n");
    format!("{}{cost}\n", table(&caption, &["", "simulated", "paper"], rows))
}

pub(super) fn incast(runs: &Runs<Row<incast::Settings, incast::Outcome>>) -> String {
    match runs.cases() {
        [(settings, seen)] if runs.is_one() => one_incast(settings, seen),
        _ => incasts(runs),
    }
}

/// A row for each case.
fn incasts(runs: &Runs<Row<incast::Settings, incast::Outcome>>) -> String {
    let row = |(settings, seen): &Row<incast::Settings, incast::Outcome>| {
        let share = seen.goodput_bps as f64 / seen.expected_goodput_bps as f64;
        vec![
            settings.control.name().into(),
            settings.senders.to_string().into(),
            Cell::of(seen.rtt.p50_ns, ns),
            Cell::of(seen.rtt.p99_ns, ns),
            Cell::decimal(share, 3),
            Cell::of(seen.queue_p99_bytes, show_bytes),
            Cell::count(seen.drops),
            Cell::decimal(seen.slowest_share, 2),
            Cell::decimal(seen.jain, 2),
        ]
    };
    let head = ["control", "N", "p50", "p99", "goodput", "queue", "drops", "slowest", "Jain"];
    let Some((settings, _)) = runs.cases().first() else { return String::new() };
    let caption = format!(
        "{} credits, {} requests, {}, {}; goodput as a share of the link's, queue of the \
         receiver's link at p99, the slowest sender's share of the mean",
        settings.credits,
        show_bytes(settings.request_bytes as u64),
        settings.recovery,
        runs.caption(),
    );
    runs.table(&caption, &head, row)
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
        row("packets resent", seen.traffic.retransmitted.to_string(), "0".to_owned()),
    ];
    let caption = format!(
        "{} senders with {} credits each, {} requests, {} CPUs, congestion control: {}, seed {}",
        settings.senders,
        settings.credits,
        show_bytes(settings.request_bytes as u64),
        settings.cpu.name(),
        settings.control.name(),
        settings.seed,
    );
    table(&caption, &["", "simulated", "calculated"], rows)
}

pub(super) fn buffers(settings: &buffers::Settings, runs: &Runs<buffers::Point>) -> String {
    let row = |p: &buffers::Point| {
        let kind = if p.is_static { "static" } else { "dynamic" };
        vec![
            format!("{}, {}", p.control.name(), p.recovery).into(),
            p.senders.to_string().into(),
            format!("{} kB {kind}", p.buffer_bytes / 1_000).into(),
            if p.overflow_expected { "yes" } else { "no" }.into(),
            Cell::count(p.overflows),
            Cell::of(p.loss_ppm, percent),
            Cell::of(p.loss_after_first_rtt_ppm, percent),
            Cell::count(p.retransmitted),
            Cell::of(p.goodput_bps, bps),
            Cell::of(p.queue_max_bytes, |bytes| format!("{} kB", bytes / 1_000)),
        ]
    };
    let header = [
        "control, recovery",
        "N",
        "queue limit",
        "windows are larger",
        "lost",
        "loss",
        "after 1 RTT",
        "resent",
        "goodput",
        "queue",
    ];
    let caption = format!(
        "N senders with {} credits each, {} of virtual time after a warm-up of {}, {}; loss \
         after the first round trip includes the warm-up; the longest queue",
        settings.credits,
        ns(settings.time_ns),
        ns(settings.warm_up_ns),
        runs.caption(),
    );
    runs.table(&caption, &header, row)
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
    let caption = format!(
        "{} with a round trip of {}: BDP {} B, packets of {} B, so {} credits fill the line",
        bps(settings.rate_bps),
        ns(settings.rtt_ns),
        seen.bdp_bytes,
        seen.packet_bytes,
        seen.full_credits,
    );
    table(&caption, &["credits", "goodput", "of the line", "calculated"], rows)
}

pub(super) fn bandwidth(settings: &bandwidth::Settings, runs: &Runs<bandwidth::Row>) -> String {
    let row = |row: &bandwidth::Row| {
        vec![
            show_bytes(row.request_bytes as u64).into(),
            Cell::of(row.goodput_bps, bps),
            bps(row.write_bps).into(),
            Cell::of((row.write_fraction * 100.0).round() as u64, |share| format!("{share} %")),
        ]
    };
    let caption = format!(
        "One request in flight over {}, {} credits, {} CPUs, {}",
        bps(settings.rate_bps),
        settings.credits,
        settings.cpu.name(),
        runs.caption(),
    );
    runs.table(&caption, &["request", "goodput", "write", "of the write"], row)
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
    let caption = format!(
        "{} cables, {}, {} CPUs: a call of 32 B takes {}, one with a response of a full packet {} \
         (1 RTT)",
        bps(settings.rate_bps),
        if settings.two_racks { "two racks" } else { "one rack" },
        settings.cpu.name(),
        ns(seen.small_ns),
        ns(seen.rtt_ns),
    );
    table(&caption, &header, rows)
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
    let header = ["load", "per CPU second", "range", "per second", "virtual s per s"];
    table("deliveries between two hosts", &header, rows)
}
