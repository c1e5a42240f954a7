//! Results as tables of at most 80 columns.

use courser_sim::scenario::{
    Hosts, background, first_burst, join_leave, operating_range, reroute, slow_handler,
    uncongested, uplink,
};

use super::super::tables::{bps, ns, table};
use super::Row;
use courser_bench::program::units::{show_bytes, show_per_second};

/// Control and recovery of a run.
pub(super) fn names(hosts: &Hosts) -> String {
    format!("{}, {}", hosts.control.name(), hosts.recovery)
}

/// A share with two digits, one near 1 with three.
fn share(share: f64) -> String {
    format!("{share:.3}")
}

/// Switch buffer of a port; 0 is the shared buffer.
pub(super) fn buffer(bytes: u64) -> String {
    if bytes == 0 { "12 MB".to_owned() } else { format!("{} kB", bytes / 1_000) }
}

/// The queue from which on a switch marks.
pub(super) fn marks(bytes: u64) -> String {
    if bytes == 0 { "no".to_owned() } else { format!("{} kB", bytes / 1_000) }
}

/// Credits, frames and seed of the runs.
fn common(hosts: &Hosts) -> String {
    let frame = show_bytes(hosts.max_frame as u64);
    format!(
        "{} credits, frames of {frame}, {} CPUs, seed {}",
        hosts.credits,
        hosts.cpu.name(),
        hosts.seed
    )
}

pub(super) fn background(rows: &[Row<background::Settings, background::Outcome>]) -> String {
    let lines = rows.iter().flat_map(|(s, o)| {
        let line = |incast: &str, calls: &background::Calls, ratios: [String; 2]| {
            let [background, to_victim] = ratios;
            vec![
                names(&s.hosts),
                incast.to_owned(),
                ns(calls.background.p50_ns),
                ns(calls.background.p99_ns),
                background,
                ns(calls.to_victim.p50_ns),
                ns(calls.to_victim.p99_ns),
                to_victim,
                bps(calls.goodput_bps),
                calls.overflows.to_string(),
            ]
        };
        let ratios = [o.background_ratio(), o.to_victim_ratio()].map(|r| format!("{r:.2}"));
        [line("yes", &o.incast, ratios), line("no", &o.quiet, Default::default())]
    });
    let Some((s, _)) = rows.first() else { return String::new() };
    let caption = format!(
        "{}-way incast beside background calls of {} each way, and calls of 32 B to the victim; \
         {}; the paper's background p99 is 274 µs",
        s.senders,
        show_bytes(s.background_bytes as u64),
        common(&s.hosts),
    );
    let head = [
        "control, recovery",
        "incast",
        "p50",
        "p99",
        "ratio",
        "32 B p50",
        "32 B p99",
        "ratio ",
        "goodput",
        "drops",
    ];
    table(&caption, &head, lines)
}

/// A row for each rate and round trip; each frame size and jitter has a column with the lowest share
/// of all numbers of senders.
pub(super) fn operating_range(
    rows: &[Row<operating_range::Settings, operating_range::Outcome>],
) -> String {
    type Settings = operating_range::Settings;
    let mut columns: Vec<(usize, u64)> = Vec::new();
    let mut lines: Vec<(Hosts, u64, u64)> = Vec::new();
    let line_of = |s: &Settings| {
        // Columns differ in the frame.
        (Hosts { max_frame: 0, ..s.hosts }, s.rate_bps, s.base_rtt_ns)
    };
    for (s, _) in rows {
        let (column, line) = ((s.hosts.max_frame, s.jitter_ns), line_of(s));
        if !columns.contains(&column) {
            columns.push(column);
        }
        if !lines.contains(&line) {
            lines.push(line);
        }
    }
    let least = |line: &(Hosts, u64, u64), column: &(usize, u64)| {
        let of = rows.iter().filter(|(s, _)| line_of(s) == *line);
        let of = of.filter(|(s, _)| (s.hosts.max_frame, s.jitter_ns) == *column);
        of.map(|(_, o)| o.goodput_share).fold(f64::MAX, f64::min)
    };
    let cells = lines.iter().map(|line| {
        let (hosts, rate_bps, base_rtt_ns) = line;
        let mut cells = vec![names(hosts), bps(*rate_bps), ns(*base_rtt_ns)];
        cells.extend(columns.iter().map(|column| share(least(line, column))));
        cells
    });
    let titles: Vec<String> = columns
        .iter()
        .map(|&(frame, jitter_ns)| {
            format!("{}, jitter {}", show_bytes(frame as u64), ns(jitter_ns))
        })
        .collect();
    let mut head = vec!["control, recovery", "rate", "base RTT"];
    head.extend(titles.iter().map(String::as_str));
    let mut senders: Vec<u32> = rows.iter().map(|(s, _)| s.senders).collect();
    senders.sort_unstable();
    senders.dedup();
    let Some((s, _)) = rows.first() else { return String::new() };
    let caption = format!(
        "Lowest goodput with {senders:?} senders as a share of the link's, by frame size and \
         jitter; two BDPs of credits; hosts {} the rate of their link; seed {}",
        if s.rate_known { "know" } else { "do not know" },
        s.hosts.seed,
    );
    table(&caption, &head, cells)
}

pub(super) fn join_leave(rows: &[Row<join_leave::Settings, join_leave::Outcome>]) -> String {
    let Some((s, _)) = rows.first() else { return String::new() };
    let caption = format!(
        "{} senders join, one every {}, and leave; requests of {}; {}",
        s.senders,
        ns(s.every_ns),
        show_bytes(s.request_bytes as u64),
        common(&s.hosts),
    );
    let lines = rows.iter().map(|(s, o)| {
        let late = |w: &&join_leave::Window| w.joined;
        let fair = o.windows.iter().filter(late).map(|w| w.fair_after_ns);
        let fair = fair.map(|after| after.unwrap_or(u64::MAX)).max();
        let drops: u64 = o.windows.iter().map(|w| w.drops).sum();
        vec![
            names(&s.hosts),
            share(o.jain_after_join),
            share(o.jain_after_leave),
            fair.filter(|&ns| ns < u64::MAX).map_or_else(|| "not".to_owned(), ns),
            share(o.goodput_share),
            ns(o.rtt.p50_ns),
            ns(o.rtt.p99_ns),
            drops.to_string(),
        ]
    });
    let head = [
        "control, recovery",
        "least Jain, joins",
        "leaves",
        "fair within",
        "goodput",
        "RTT p50",
        "RTT p99",
        "drops",
    ];
    let mut text = table(&caption, &head, lines);
    for (s, o) in rows {
        text.push('\n');
        text.push_str(&changes(s, o));
    }
    text
}

/// A row for each change of a run.
fn changes(s: &join_leave::Settings, o: &join_leave::Outcome) -> String {
    let lines = o.windows.iter().map(|w| {
        vec![
            if w.joined { "join" } else { "leave" }.to_owned(),
            w.senders.to_string(),
            share(w.jain),
            share(w.slowest_share),
            w.fair_after_ns.map_or_else(|| "not".to_owned(), ns),
            share(w.goodput_share),
            ns(w.rtt.p99_ns),
            w.drops.to_string(),
        ]
    });
    let head =
        ["", "senders", "Jain", "slowest / mean", "fair after", "goodput", "RTT p99", "drops"];
    table(&names(&s.hosts), &head, lines)
}

pub(super) fn first_burst(rows: &[Row<first_burst::Settings, first_burst::Outcome>]) -> String {
    let Some((s, _)) = rows.first() else { return String::new() };
    let caption = format!(
        "First bursts of {} idle senders, {} of them with {} between; {}; goodput is that of \
         the link in the ideal time",
        s.senders,
        s.rounds,
        ns(s.idle_ns),
        common(&s.hosts),
    );
    let lines = rows.iter().map(|(s, o)| {
        vec![
            names(&s.hosts),
            show_bytes(s.request_bytes as u64),
            format!("{} kB", s.buffer_bytes / 1_000),
            ns(o.round.p50_ns),
            ns(o.round.max_ns),
            ns(o.ideal_ns),
            format!("{:.2}", o.ratio),
            show_bytes(o.queue_max_bytes),
            o.overflows.to_string(),
        ]
    });
    let head = [
        "control, recovery",
        "request",
        "buffer",
        "p50",
        "longest",
        "ideal",
        "ratio",
        "queue",
        "drops",
    ];
    table(&caption, &head, lines)
}

pub(super) fn uplink(rows: &[Row<uplink::Settings, uplink::Outcome>]) -> String {
    let Some((s, _)) = rows.first() else { return String::new() };
    let caption = format!(
        "{} flows over an uplink of {}, each between hosts of its own at 25 Gbit/s, and an \
         innocent flow at the senders' switch; requests of {}; {}",
        s.flows,
        bps(s.uplink_bps()),
        show_bytes(s.request_bytes as u64),
        common(&s.hosts),
    );
    let lines = rows.iter().map(|(s, o)| {
        vec![
            names(&s.hosts),
            buffer(s.buffer_bytes),
            marks(s.mark_bytes),
            share(o.goodput_share),
            share(o.jain),
            share(o.slowest_share),
            share(o.innocent_share()),
            ns(o.rtt.p99_ns),
            show_bytes(o.queue_p99_bytes),
            o.overflows.to_string(),
        ]
    });
    let head = [
        "control, recovery",
        "buffer",
        "marks",
        "goodput",
        "Jain",
        "slowest",
        "innocent",
        "RTT p99",
        "queue",
        "drops",
    ];
    table(&caption, &head, lines)
}

pub(super) fn reroute(rows: &[Row<reroute::Settings, reroute::Outcome>]) -> String {
    let Some((s, _)) = rows.first() else { return String::new() };
    let caption = format!(
        "Packets to the server take {} longer from one moment on; goodput in slices of {} \
         after it; {}",
        ns(s.longer_ns),
        ns(s.slice_ns),
        common(&s.hosts),
    );
    let lines = rows.iter().map(|(s, o)| {
        vec![
            names(&s.hosts),
            s.senders.to_string(),
            bps(o.before_bps),
            share(o.before_share),
            share(o.lowest_share),
            o.recovered_after_ns.map_or_else(|| "not".to_owned(), ns),
        ]
    });
    let head = [
        "control, recovery",
        "senders",
        "before",
        "of the link",
        "lowest / before",
        "at 0.95 after",
    ];
    table(&caption, &head, lines)
}

pub(super) fn slow_handler(rows: &[Row<slow_handler::Settings, slow_handler::Outcome>]) -> String {
    let Some((s, _)) = rows.first() else { return String::new() };
    let caption = format!(
        "A call to a handler of {} between large calls of 1 MiB; window in packets; {}",
        ns(s.handler_ns),
        common(&s.hosts),
    );
    let window =
        |packets: Option<u32>| packets.map_or_else(|| "none".to_owned(), |n| n.to_string());
    let lines = rows.iter().map(|(s, o)| {
        vec![
            names(&s.hosts),
            s.handler.name().to_owned(),
            show_bytes(s.request_bytes as u64),
            window(o.window_before),
            window(o.window_after),
            ns(o.large_before_ns),
            ns(o.large_after_ns),
            ns(o.slow_ns),
            o.retransmitted.to_string(),
        ]
    });
    let head = [
        "control, recovery",
        "handler",
        "request",
        "window before",
        "after",
        "1 MiB before",
        "after ",
        "slow call",
        "resent",
    ];
    table(&caption, &head, lines)
}

pub(super) fn uncongested(rows: &[Row<uncongested::Settings, uncongested::Outcome>]) -> String {
    let Some((s, o)) = rows.first() else { return String::new() };
    let caption = format!(
        "{} hosts that call random others at random times, {:.1} % of the calls with {}, the \
         others with 32 B; links {:.1} % loaded; {}",
        s.nodes,
        f64::from(s.large_ppm) / 1e4,
        show_bytes(s.large_bytes as u64),
        o.load * 100.0,
        common(&s.hosts),
    );
    let lines = rows.iter().map(|(s, o)| {
        vec![
            names(&s.hosts),
            ns(o.small.p50_ns),
            ns(o.small.p99_ns),
            ns(o.large.p50_ns),
            ns(o.large.p99_ns),
            show_per_second(o.calls_rps as f64, "/s"),
            show_per_second(o.packets_per_s as f64, "/s"),
            o.paced.to_string(),
            o.retransmitted.to_string(),
        ]
    });
    let head = [
        "control, recovery",
        "32 B p50",
        "p99",
        "large p50",
        "p99 ",
        "calls",
        "packets",
        "paced",
        "resent",
    ];
    table(&caption, &head, lines)
}
