//! Results as tables of at most 80 columns: simulated and expected values.

use courser_sim::scenario::{bandwidth, buffers, credits, fan_in, incast, response_rtt, sessions};

use super::figures::Speed;
use super::seeds::{Cell, Runs};
use super::{Row, Timed};
use courser_kit::text::{WIDTH, pieces, wrap};
use courser_kit::units::{show_bytes, show_ns, show_per_second};

/// A caption and a table of at most [`WIDTH`] columns. Columns without values are omitted.
pub(in crate::sim) fn table(
    caption: &str,
    header: &[&str],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let rows: Vec<Vec<String>> = rows.into_iter().collect();
    let columns: Vec<Column<'_>> = (0..header.len())
        .map(|at| Column::new(header[at], rows.iter().map(|row| row[at].as_str())))
        .filter(|column| column.cells.iter().any(|cell| !cell.is_empty()))
        .collect();
    let caption: Vec<String> = caption.lines().flat_map(|line| wrap(line, WIDTH)).collect();
    format!("{}\n{}", caption.join("\n"), layout(columns).join("\n") + "\n")
}

/// A column of a table.
struct Column<'a> {
    header: &'a str,
    cells: Vec<&'a str>,
    width: usize,
    /// Width of the longest word or number with its unit.
    least: usize,
}

impl<'a> Column<'a> {
    fn new(header: &'a str, cells: impl Iterator<Item = &'a str>) -> Self {
        let cells: Vec<&str> = cells.collect();
        let texts = || std::iter::once(&header).chain(&cells);
        let width = texts().map(|text| text.chars().count()).max().unwrap_or(0);
        let longest = |text: &&str| pieces(text).iter().map(|p| p.chars().count()).max();
        let least = texts().filter_map(longest).max().unwrap_or(0);
        Self { header, cells, width, least }
    }
}

/// The lines of a table. If it is too wide, the widest cells are wrapped; then the gaps between columns
/// shrink from two blanks to one.
fn layout(mut columns: Vec<Column<'_>>) -> Vec<String> {
    let total = |columns: &[Column<'_>], gap: usize| {
        let width: usize = columns.iter().map(|column| column.width).sum();
        width + gap * columns.len().saturating_sub(1)
    };
    let mut gap = 2;
    while total(&columns, gap) > WIDTH {
        let wide = columns.iter_mut().filter(|column| column.width > column.least);
        match wide.max_by_key(|column| column.width) {
            Some(column) => column.width -= 1,
            None if gap > 1 => gap -= 1,
            None => break,
        }
    }
    let rows = columns.first().map_or(0, |column| column.cells.len());
    let line = |cell: &dyn Fn(&Column<'_>) -> String| {
        let cells: Vec<String> = columns.iter().map(cell).collect();
        cells.join(&" ".repeat(gap)).trim_end().to_owned()
    };
    let row = |text: &dyn Fn(&Column<'_>) -> String| -> Vec<String> {
        let wrapped = |column: &Column<'_>| wrap(&text(column), column.width);
        let height = columns.iter().map(|column| wrapped(column).len()).max().unwrap_or(0);
        let part = |column: &Column<'_>, at: usize| wrapped(column).get(at).cloned();
        let first = columns.first().map_or("", |column| column.header);
        let padded = |column: &Column<'_>, at: usize| {
            let (text, width) = (part(column, at).unwrap_or_default(), column.width);
            // The first column and texts are aligned left, numbers right.
            let left = column.header == first || column.header.is_empty();
            if left { format!("{text:width$}") } else { format!("{text:>width$}") }
        };
        (0..height).map(|at| line(&|column| padded(column, at))).collect()
    };
    let mut lines = row(&|column| column.header.to_owned());
    lines.push("─".repeat(total(&columns, gap)));
    lines.extend((0..rows).flat_map(|at| row(&|column| column.cells[at].to_owned())));
    lines
}

pub(in crate::sim) fn ns(ns: u64) -> String {
    show_ns(ns as f64)
}

pub(in crate::sim) fn bps(bps: u64) -> String {
    show_per_second(bps as f64, "bit/s")
}

/// A count with its noun: `1 sender`, `20 senders`.
pub(super) fn counted(n: u32, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

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

pub(super) fn fan_in(runs: &Runs<Row<fan_in::Settings, fan_in::Outcome>>) -> String {
    let row = |(settings, seen): &Row<fan_in::Settings, fan_in::Outcome>| {
        let ratio = seen.completion.max_ns as f64 / seen.expected_ns as f64;
        vec![
            settings.control.name().into(),
            settings.servers.to_string().into(),
            Cell::of(seen.completion.p50_ns, ns),
            Cell::of(seen.completion.max_ns, ns),
            ns(seen.expected_ns).into(),
            Cell::decimal(ratio, 2),
            Cell::of(seen.queue_max_bytes, show_bytes),
            Cell::count(seen.drops),
        ]
    };
    let head = ["control", "servers", "p50", "longest", "calculated", "ratio", "queue", "drops"];
    let Some((settings, _)) = runs.cases().first() else { return String::new() };
    let caption = format!(
        "responses of {} to one client, {} rounds, {}, 480 kB of switch buffer, {}",
        show_bytes(settings.response_bytes as u64),
        settings.rounds,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wide_table_is_wrapped_between_words_and_keeps_units() {
        let header = ["name", "", "a long header of many words", "empty", "time"];
        let note = "a note that is longer than all other cells together and ends here, at last";
        let row =
            ["x".repeat(20), note.to_owned(), "1".to_owned(), String::new(), "12.3 µs".to_owned()];
        let text = table("a caption", &header, [row.to_vec()]);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.starts_with("a caption\n") && text.contains("12.3 µs"), "{text}");
        assert!(!text.contains("empty") && text.contains(&"x".repeat(20)), "{text}");
        let narrow = table("", &["a", "b"], [vec!["1".to_owned(), "22".to_owned()]]);
        assert_eq!(narrow, "\na   b\n─────\n1  22\n");
    }
}
