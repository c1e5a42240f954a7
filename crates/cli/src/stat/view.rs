//! Snapshots as tables, with rates since the last refresh and lines for errors.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::time::Duration;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;

use super::client::clean;
use super::snapshot::{Counters, SessionRow, Snapshot};
use courser_kit::text::{WIDTH, wrap};
use courser_kit::units::show_ns;

/// [`SessionRow::requests`] is modulo this; a difference above half of it is that of two
/// sessions of which the second took the number of the first.
const REQUESTS_MODULO: u32 = 1 << 27;

/// Rates per second since the last refresh.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Rates {
    pub(super) requests_per_s: f64,
    pub(super) calls_per_s: f64,
    pub(super) rx_frames_per_s: f64,
    pub(super) tx_frames_per_s: f64,
    pub(super) rx_bytes_per_s: f64,
    pub(super) tx_bytes_per_s: f64,
}

/// A session with its rate.
#[derive(Debug, Serialize)]
pub(super) struct RatedSession {
    pub(super) requests_per_s: Option<f64>,
    #[serde(flatten)]
    pub(super) row: SessionRow,
}

/// An endpoint at one refresh.
#[derive(Debug, Serialize)]
pub(super) struct Rated {
    /// Rates; `null` at the first refresh.
    pub(super) rates: Option<Rates>,
    /// The shown sessions, busiest first, moved here from the snapshot.
    #[serde(rename = "sessions")]
    pub(super) busiest: Vec<RatedSession>,
    #[serde(flatten)]
    pub(super) snapshot: Snapshot,
}

/// State of the last refresh.
#[derive(Default)]
pub(super) struct Before {
    endpoints: BTreeMap<u16, (u64, Counters)>,
    sessions: HashMap<(u16, u32, Option<String>), u32>,
}

impl Before {
    /// Adds rates to new snapshots, and keeps their counters for the next refresh.
    pub(super) fn rate(&mut self, snapshots: Vec<Snapshot>, top: usize) -> Vec<Rated> {
        let mut now = Before::default();
        let rated = snapshots.into_iter().map(|s| self.rate_one(s, top, &mut now)).collect();
        *self = now;
        rated
    }

    fn rate_one(&self, mut snapshot: Snapshot, top: usize, now: &mut Before) -> Rated {
        let (at, before) = match self.endpoints.get(&snapshot.endpoint) {
            Some((at, before)) => (*at, Some(before)),
            None => (0, None),
        };
        let seconds = snapshot.now_ns.saturating_sub(at) as f64 / 1e9;
        let rates = before.filter(|_| seconds > 0.0).map(|b| rates(b, &snapshot.counters, seconds));
        now.endpoints.insert(snapshot.endpoint, (snapshot.now_ns, snapshot.counters.clone()));
        let rows = std::mem::take(&mut snapshot.sessions);
        let mut busiest: Vec<_> = rows
            .into_iter()
            .map(|row| {
                let key = (snapshot.endpoint, row.session, row.peer.clone());
                let done = self.sessions.get(&key).filter(|_| rates.is_some());
                let done = done.map(|before| row.requests.wrapping_sub(*before) % REQUESTS_MODULO);
                let done = done.filter(|&done| done < REQUESTS_MODULO / 2);
                now.sessions.insert(key, row.requests);
                RatedSession { requests_per_s: done.map(|d| f64::from(d) / seconds), row }
            })
            .collect();
        busiest.sort_by(|a, b| {
            let busy = |s: &RatedSession| s.requests_per_s.unwrap_or(0.0);
            busy(b).total_cmp(&busy(a)).then(b.row.requests.cmp(&a.row.requests))
        });
        busiest.truncate(top);
        Rated { rates, busiest, snapshot }
    }
}

fn rates(before: &Counters, now: &Counters, seconds: f64) -> Rates {
    let per_s = |of: fn(&Counters) -> u64| of(now).saturating_sub(of(before)) as f64 / seconds;
    Rates {
        requests_per_s: per_s(|c| c.requests),
        calls_per_s: per_s(|c| c.calls),
        rx_frames_per_s: per_s(|c| c.rx_frames),
        tx_frames_per_s: per_s(|c| c.tx_frames),
        rx_bytes_per_s: per_s(|c| c.rx_bytes),
        tx_bytes_per_s: per_s(|c| c.tx_bytes),
    }
}

/// One refresh as text.
pub(super) fn render(uri: &str, rated: &[Rated]) -> String {
    let mut text = heading(uri, rated);
    for table in endpoints(rated) {
        let _ = writeln!(text, "\n{table}");
    }
    let mut notes = String::new();
    let mut note = |line: String| {
        for line in wrap(&line, WIDTH) {
            let _ = writeln!(notes, "{line}");
        }
    };
    for one in rated {
        let lost = discarded(&one.snapshot);
        if !lost.is_empty() {
            note(format!("endpoint {} discarded: {lost}", one.snapshot.endpoint));
        }
    }
    for one in rated.iter().filter(|one| !one.snapshot.handlers.is_empty()) {
        let handlers = list(one.snapshot.handlers.iter());
        note(format!("endpoint {} handlers: {handlers}", one.snapshot.endpoint));
    }
    if let Some(first) = rated.first() {
        let process = &first.snapshot.process;
        for (what, counters) in
            [("workers", &process.workers), ("control plane turned away", &process.control)]
        {
            if !counters.is_empty() {
                note(format!("{what}: {}", list(counters.iter())));
            }
        }
    }
    if !notes.is_empty() {
        let _ = write!(text, "\n{notes}");
    }
    if rated.iter().any(|one| !one.busiest.is_empty()) {
        for table in sessions(rated) {
            let _ = writeln!(text, "\n{table}");
        }
    }
    // Tables pad their last column with blanks.
    text.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn heading(uri: &str, rated: &[Rated]) -> String {
    let Some(first) = rated.first() else { return String::new() };
    let up = Duration::from_secs(first.snapshot.now_ns / 1_000_000_000);
    let counts = rated.iter().map(|one| one.snapshot.session_count);
    let sessions = counts.fold(0, usize::saturating_add);
    let text = format!(
        "{uri}: courser {}, up {}, {}, {} (* is this program's)",
        clean(&first.snapshot.process.version),
        humantime::format_duration(up),
        plural(first.snapshot.process.endpoints.into(), "endpoint"),
        plural(sessions, "session"),
    );
    wrap(&text, WIDTH).join("\n") + "\n"
}

fn plural(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// `stale 12, cookie 3`.
fn list<'a>(counters: impl Iterator<Item = (&'a String, &'a u64)>) -> String {
    let texts: Vec<_> = counters.map(|(name, count)| format!("{} {count}", clean(name))).collect();
    texts.join(", ")
}

/// Frames and packets that an endpoint and its transport discarded, by reason.
fn discarded(snapshot: &Snapshot) -> String {
    let c = &snapshot.counters;
    let transport = [
        ("receive queue full", c.rx_overflow),
        ("refused by the system", c.tx_dropped),
        ("unreadable datagrams", c.rx_dropped),
    ];
    let transport = transport.into_iter().filter(|&(_, count)| count > 0);
    let mut parts: Vec<_> = transport.map(|(name, count)| format!("{name} {count}")).collect();
    if !snapshot.drops.is_empty() {
        parts.push(list(snapshot.drops.iter()));
    }
    parts.join(", ")
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH as u16);
    table.set_header(header);
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table
}

/// The counters of all endpoints: requests, calls, congestion control, recovery, memory.
fn endpoints(rated: &[Rated]) -> [Table; 5] {
    let mut tables = [
        table(&["endpoint", "sessions", "credits", "requests", "/s", "replies"]),
        table(&["endpoint", "calls", "/s", "open", "errors"]),
        table(&["endpoint", "control", "pool waits", "paced"]),
        table(&["endpoint", "resent", "lost", "probes", "spurious", "rollbacks"]),
        table(&["endpoint", "sessions' memory", "memory in use", "mapped", "limit"]),
    ];
    for one in rated {
        let (s, c) = (&one.snapshot, &one.snapshot.counters);
        tables[0].add_row([
            s.endpoint.to_string(),
            count(s.session_count as u64),
            count(s.credits_granted),
            count(c.requests),
            rate(one.rates.map(|r| r.requests_per_s)),
            count(c.replies),
        ]);
        tables[1].add_row([
            s.endpoint.to_string(),
            count(c.calls),
            rate(one.rates.map(|r| r.calls_per_s)),
            count(s.outstanding_calls),
            count(c.errors),
        ]);
        let control = if s.control.is_empty() { "-".to_owned() } else { clean(&s.control) };
        tables[2].add_row([s.endpoint.to_string(), control, count(c.pool_waits), count(c.paced)]);
        tables[3].add_row([
            s.endpoint.to_string(),
            count(c.retransmitted.saturating_add(c.responses_resent)),
            count(c.lost),
            count(c.probes),
            count(c.spurious),
            count(c.rollbacks),
        ]);
        tables[4].add_row([
            s.endpoint.to_string(),
            memory(s.memory.sessions_bytes),
            memory(s.memory.in_use_bytes),
            memory(s.memory.mapped_bytes),
            memory(s.memory.limit_bytes),
        ]);
    }
    tables.iter_mut().for_each(|table| right(table, 0));
    tables
}

/// The table of sessions: peer, round trips and queues, congestion control, packets.
fn sessions(rated: &[Rated]) -> [Table; 4] {
    let mut tables = [
        table(&["session", "role", "peer", "requests/s", "recovery"]),
        table(&["session", "RTT", "smoothed", "min", "RTO", "credits", "in flight", "queued"]),
        table(&["session", "window", "pacing gap", "decreases", "marked"]),
        table(&["session", "frames out", "in", "resent", "rollbacks"]),
    ];
    for (one, session) in rated.iter().flat_map(|one| one.busiest.iter().map(move |s| (one, s))) {
        let row = &session.row;
        let ours = row.session == one.snapshot.asked_by && row.role == "server";
        let name =
            format!("{}{}/{}", if ours { "*" } else { "" }, one.snapshot.endpoint, row.session);
        let credits = match row.credits {
            Some(left) => format!("{left}/{}", row.credit_limit),
            None => row.credit_limit.to_string(),
        };
        let state = if row.state == "connected" { &row.role } else { &row.state };
        tables[0].add_row([
            name.clone(),
            clean(state),
            row.peer.as_deref().map_or_else(|| "-".to_owned(), clean),
            rate(session.requests_per_s),
            clean(&row.recovery),
        ]);
        tables[1].add_row([
            name.clone(),
            time(row.rtt_ns),
            time(row.srtt_ns),
            time(row.rtt_min_ns),
            time(row.rto_ns),
            credits,
            format!("{}/{}", row.in_flight, row.slots),
            row.queued.to_string(),
        ]);
        tables[2].add_row([
            name.clone(),
            row.window_packets.map_or_else(|| "-".to_owned(), |packets| packets.to_string()),
            time(row.pacing_gap_ns),
            count(row.window_decreases),
            count(row.ecn_marked.into()),
        ]);
        tables[3].add_row([
            name,
            count(row.tx_frames),
            count(row.rx_frames.into()),
            count(row.retransmitted),
            count(row.rollbacks),
        ]);
    }
    right(&mut tables[0], 3);
    right(&mut tables[1], 1);
    right(&mut tables[2], 1);
    right(&mut tables[3], 1);
    tables
}

fn right(table: &mut Table, first: usize) {
    for column in table.column_iter_mut().skip(first) {
        column.set_cell_alignment(CellAlignment::Right);
    }
}

/// A counter in at most ten characters; from 10^10 on with an exponent.
fn count(value: u64) -> String {
    if value < 10_000_000_000 { value.to_string() } else { format!("{:.4e}", value as f64) }
}

fn rate(per_s: Option<f64>) -> String {
    per_s.map_or_else(|| "-".to_owned(), |rate| count(rate.round() as u64))
}

fn time(ns: Option<u64>) -> String {
    ns.map_or_else(|| "-".to_owned(), |ns| show_ns(ns as f64))
}

/// `1.5 MiB`.
fn memory(bytes: usize) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB"] {
        if value < 1024.0 {
            let digits = usize::from(unit != "B" && value < 100.0);
            return format!("{value:.digits$} {unit}");
        }
        value /= 1024.0;
    }
    format!("{value:.1} GiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(now_s: u64, requests: u64, sessions: &[(u32, u32)]) -> Snapshot {
        let row = |&(session, requests)| SessionRow { session, requests, ..SessionRow::default() };
        Snapshot {
            now_ns: now_s * 1_000_000_000,
            counters: Counters { requests, ..Counters::default() },
            sessions: sessions.iter().map(row).collect(),
            ..Snapshot::default()
        }
    }

    #[test]
    fn rates_are_since_the_last_refresh_and_the_busiest_sessions_are_first() {
        let mut before = Before::default();
        let first = before.rate(vec![snapshot(1, 10, &[(0, 5), (1, 9)])], 10);
        assert_eq!(first[0].rates, None);
        assert_eq!(first[0].busiest[0].row.session, 1, "most requests so far");

        let last = REQUESTS_MODULO - 1;
        let second = before.rate(vec![snapshot(3, 110, &[(0, 45), (1, last), (2, 3)])], 2);
        assert_eq!(second[0].rates.map(|r| r.requests_per_s), Some(50.0));
        let rates: Vec<_> =
            second[0].busiest.iter().map(|s| (s.row.session, s.requests_per_s)).collect();
        // The counter of session 1 has decreased, so it is another session.
        assert_eq!(rates, [(0, Some(20.0)), (1, None)]);

        let third = before.rate(vec![snapshot(4, 110, &[(1, 2)])], 2);
        assert_eq!(third[0].busiest[0].requests_per_s, Some(3.0), "across the wrap");
    }

    #[test]
    fn extreme_values_of_a_server_can_be_shown() {
        let mut s = snapshot(1, u64::MAX, &[(u32::MAX, u32::MAX)]);
        s.now_ns = u64::MAX;
        s.session_count = usize::MAX;
        s.memory.limit_bytes = usize::MAX;
        (s.counters.retransmitted, s.counters.responses_resent) = (u64::MAX, u64::MAX);
        let mut before = Before::default();
        for _ in 0..2 {
            let rated = before.rate(vec![s.clone(), s.clone()], 1);
            let text = render("udp://x:1", &rated);
            assert!(text.contains("1.8447e19"), "{text}");
            assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        }
    }

    #[test]
    fn congestion_control_is_shown_for_endpoints_and_sessions() {
        let limited = SessionRow {
            session: 1,
            window_packets: Some(12),
            pacing_gap_ns: Some(4_500),
            window_decreases: 77,
            ecn_marked: 88,
            ..SessionRow::default()
        };
        let mut s = snapshot(1, 0, &[(0, 0)]);
        s.control = "timely-patched".to_owned();
        s.counters.paced = 66;
        s.sessions.push(limited.clone());
        let text = render("udp://x:1", &Before::default().rate(vec![s.clone()], 10));
        let row = |head: &str, name: &str| {
            let mut lines = text.lines().skip_while(|line| !line.contains(head));
            let line = lines.find(|line| line.trim_start().starts_with(name));
            line.unwrap_or_default().split_whitespace().collect::<Vec<_>>()
        };
        assert_eq!(row("paced", "0 "), ["0", "timely-patched", "0", "66"], "{text}");
        assert_eq!(row("pacing gap", "0/1"), ["0/1", "12", "4.50", "µs", "77", "88"], "{text}");
        assert_eq!(row("pacing gap", "0/0"), ["0/0", "-", "-", "0", "0"], "{text}");

        let most = SessionRow {
            session: u32::MAX,
            window_packets: Some(u32::MAX),
            pacing_gap_ns: Some(u64::MAX),
            window_decreases: u64::MAX,
            ecn_marked: u32::MAX,
            ..limited
        };
        (s.endpoint, s.sessions, s.counters.paced) = (u16::MAX, vec![most], u64::MAX);
        let text = render("udp://x:1", &Before::default().rate(vec![s], 10));
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }

    #[test]
    fn counters_of_zero_are_not_listed() {
        let mut s = snapshot(1, 0, &[]);
        assert_eq!(discarded(&s), "");
        s.drops.insert("stale".to_owned(), 2);
        s.counters.rx_overflow = 7;
        assert_eq!(discarded(&s), "receive queue full 7, stale 2");
    }

    #[test]
    fn memory_sizes_have_units() {
        for (bytes, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (200 << 20, "200 MiB"),
            (1 << 30, "1.0 GiB"),
        ] {
            assert_eq!(memory(bytes), text);
        }
    }
}
