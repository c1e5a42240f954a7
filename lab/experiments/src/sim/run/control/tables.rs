//! Results as tables of at most 80 columns.

use crate::experiments::{background, join_leave, operating_range};
use crate::scenario::Hosts;

use crate::declare::seeds::Row;
use crate::declare::seeds::{Cell, Runs};
use crate::declare::text::{bps, ns};
use courser_kit::units::show_bytes;

/// Control and recovery of a run.
pub(super) fn names(hosts: &Hosts) -> String {
    format!("{}, {}", hosts.control.name(), hosts.recovery)
}

/// A share with three digits.
fn share(share: f64) -> Cell {
    Cell::decimal(share, 3)
}

/// Credits, frames, CPUs and seeds of the runs.
fn common<R>(hosts: &Hosts, runs: &Runs<R>) -> String {
    let frame = show_bytes(hosts.max_frame as u64);
    format!(
        "{} credits, frames of {frame}, {} CPUs, {}",
        hosts.credits,
        hosts.cpu.name(),
        runs.caption()
    )
}

pub(super) fn background(runs: &Runs<Row<background::Settings, background::Outcome>>) -> String {
    let lines = |(s, o): &Row<background::Settings, background::Outcome>| {
        let line = |incast: &str, calls: &background::Calls, ratios: [Cell; 2]| {
            let [background, to_victim] = ratios;
            vec![
                names(&s.hosts).into(),
                incast.into(),
                Cell::of(calls.background.p50_ns, ns),
                Cell::of(calls.background.p99_ns, ns),
                background,
                Cell::of(calls.to_victim.p50_ns, ns),
                Cell::of(calls.to_victim.p99_ns, ns),
                to_victim,
                Cell::of(calls.goodput_bps, bps),
                Cell::count(calls.overflows),
            ]
        };
        let ratios = [o.background_ratio(), o.to_victim_ratio()].map(|r| Cell::decimal(r, 2));
        [line("yes", &o.incast, ratios), line("no", &o.quiet, ["".into(), "".into()])]
    };
    let Some((s, _)) = runs.cases().first() else { return String::new() };
    let caption = format!(
        "{}-way incast beside background calls of {} each way, and calls of 32 B to the victim; \
         {}; the paper's background p99 is 274 µs",
        s.senders,
        show_bytes(s.background_bytes as u64),
        common(&s.hosts, runs),
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
    runs.table_of(&caption, &head, |rows| rows.iter().flat_map(lines).collect())
}

/// A row for each rate and round trip; each frame size and jitter has a column with the lowest share
/// of all numbers of senders.
pub(super) fn operating_range(
    runs: &Runs<Row<operating_range::Settings, operating_range::Outcome>>,
) -> String {
    let cases = runs.cases();
    let Some((s, _)) = cases.first() else { return String::new() };
    let titles: Vec<String> = distinct(cases.iter().map(|(s, _)| column_of(s)))
        .map(|(frame, jitter_ns)| format!("{}, jitter {}", show_bytes(frame as u64), ns(jitter_ns)))
        .collect();
    let mut head = vec!["control, recovery", "rate", "base RTT"];
    head.extend(titles.iter().map(String::as_str));
    let mut senders: Vec<u32> = cases.iter().map(|(s, _)| s.senders).collect();
    senders.sort_unstable();
    senders.dedup();
    let caption = format!(
        "Lowest goodput with {senders:?} senders as a share of the link's, by frame size and \
         jitter; two BDPs of credits; hosts {} the rate of their link; {}",
        if s.rate_known { "know" } else { "do not know" },
        runs.caption(),
    );
    runs.table_of(&caption, &head, lowest_goodput)
}

/// Frame size and jitter.
fn column_of(s: &operating_range::Settings) -> (usize, u64) {
    (s.hosts.max_frame, s.jitter_ns)
}

/// Control and recovery, rate and base round trip.
fn line_of(s: &operating_range::Settings) -> (String, u64, u64) {
    (names(&s.hosts), s.rate_bps, s.base_rtt_ns)
}

fn lowest_goodput(
    rows: &[Row<operating_range::Settings, operating_range::Outcome>],
) -> Vec<Vec<Cell>> {
    let columns: Vec<_> = distinct(rows.iter().map(|(s, _)| column_of(s))).collect();
    let lines = distinct(rows.iter().map(|(s, _)| line_of(s)));
    let cells = lines.map(|line| {
        let least = |column: &(usize, u64)| {
            let same = |s: &operating_range::Settings| (line_of(s), column_of(s));
            let of = rows.iter().filter(|(s, _)| same(s) == (line.clone(), *column));
            of.map(|(_, o)| o.goodput_share).fold(f64::MAX, f64::min)
        };
        let (names, rate_bps, base_rtt_ns) = &line;
        let mut cells = vec![names.as_str().into(), bps(*rate_bps).into(), ns(*base_rtt_ns).into()];
        cells.extend(columns.iter().map(|column| share(least(column))));
        cells
    });
    cells.collect()
}

/// Each value once, in the order of its first place.
fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
    let mut all = Vec::new();
    for value in values {
        if !all.contains(&value) {
            all.push(value);
        }
    }
    all.into_iter()
}

pub(super) fn join_leave(runs: &Runs<Row<join_leave::Settings, join_leave::Outcome>>) -> String {
    let Some((s, _)) = runs.cases().first() else { return String::new() };
    let caption = format!(
        "{} senders join, one every {}, and leave; requests of {}; {}",
        s.senders,
        ns(s.every_ns),
        show_bytes(s.request_bytes as u64),
        common(&s.hosts, runs),
    );
    let row = |(s, o): &Row<join_leave::Settings, join_leave::Outcome>| {
        let late = |w: &&join_leave::Window| w.joined;
        let fair = o.windows.iter().filter(late).map(|w| w.fair_after_ns);
        let fair = fair.map(|after| after.unwrap_or(u64::MAX)).max();
        let drops: u64 = o.windows.iter().map(|w| w.drops).sum();
        vec![
            names(&s.hosts).into(),
            share(o.jain_after_join),
            share(o.jain_after_leave),
            Cell::or(fair.filter(|&ns| ns < u64::MAX), ns, "not"),
            share(o.goodput_share),
            Cell::of(o.rtt.p50_ns, ns),
            Cell::of(o.rtt.p99_ns, ns),
            Cell::count(drops),
        ]
    };
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
    let mut text = runs.table(&caption, &head, row);
    for (case, (s, _)) in runs.cases().iter().enumerate() {
        text.push('\n');
        let head =
            ["", "senders", "Jain", "slowest / mean", "fair after", "goodput", "RTT p99", "drops"];
        text.push_str(&runs.table_of(&names(&s.hosts), &head, |rows| changes(&rows[case].1)));
    }
    text
}

/// A row for each change of a run.
fn changes(o: &join_leave::Outcome) -> Vec<Vec<Cell>> {
    let line = |w: &join_leave::Window| {
        vec![
            if w.joined { "join" } else { "leave" }.into(),
            w.senders.to_string().into(),
            share(w.jain),
            share(w.slowest_share),
            Cell::or(w.fair_after_ns, ns, "not"),
            share(w.goodput_share),
            Cell::of(w.rtt.p99_ns, ns),
            Cell::count(w.drops),
        ]
    };
    o.windows.iter().map(line).collect()
}
