//! Snapshots as tables, with rates since the last refresh and lines for errors.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::time::Duration;

use courser::stats::{Kind, Stats};
use courser::{EndpointStats, TransportStats};
use serde::Serialize;
use serde_json::Value;

use super::client::clean;
use super::snapshot::{Numbers, SessionRow, Snapshot};
use courser_kit::counters::number;
use courser_kit::table::Table;
use courser_kit::text::{WIDTH, wrap};
use courser_kit::units::show_ns;

/// [`SessionRow::requests()`] is modulo this; a difference above half of it is that of two
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

impl RatedSession {
    /// A number of the session; `None` if there is none.
    fn known(&self, name: &str) -> Option<u64> {
        self.row.numbers.get(name)?.as_u64()
    }
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
    endpoints: BTreeMap<u16, (u64, Numbers)>,
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
                let done =
                    done.map(|before| row.requests().wrapping_sub(*before) % REQUESTS_MODULO);
                let done = done.filter(|&done| done < REQUESTS_MODULO / 2);
                now.sessions.insert(key, row.requests());
                RatedSession { requests_per_s: done.map(|d| f64::from(d) / seconds), row }
            })
            .collect();
        busiest.sort_by(|a, b| {
            let busy = |s: &RatedSession| s.requests_per_s.unwrap_or(0.0);
            busy(b).total_cmp(&busy(a)).then(b.row.requests().cmp(&a.row.requests()))
        });
        busiest.truncate(top);
        Rated { rates, busiest, snapshot }
    }
}

fn rates(before: &Numbers, now: &Numbers, seconds: f64) -> Rates {
    let per_s = |name| number(now, name).saturating_sub(number(before, name)) as f64 / seconds;
    Rates {
        requests_per_s: per_s("requests"),
        calls_per_s: per_s("calls"),
        rx_frames_per_s: per_s("rx_frames"),
        tx_frames_per_s: per_s("tx_frames"),
        rx_bytes_per_s: per_s("rx_bytes"),
        tx_bytes_per_s: per_s("tx_bytes"),
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
        let handlers = list(&one.snapshot.handlers);
        note(format!("endpoint {} handlers: {handlers}", one.snapshot.endpoint));
    }
    if let Some(first) = rated.first() {
        let process = &first.snapshot.process;
        for (what, counters) in
            [("workers", &process.workers), ("control plane turned away", &process.control)]
        {
            if !counters.is_empty() {
                note(format!("{what}: {}", list(counters)));
            }
        }
    }
    let others = others(rated);
    if !others.is_empty() {
        note(format!("counted: {}", list(&others)));
    }
    if !notes.is_empty() {
        let _ = write!(text, "\n{notes}");
    }
    if rated.iter().any(|one| !one.busiest.is_empty()) {
        for table in sessions(rated) {
            let _ = writeln!(text, "\n{table}");
        }
    }
    text
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
fn list(counters: &Numbers) -> String {
    let counts = counters.iter().filter_map(|(name, count)| Some((name, count.as_u64()?)));
    let texts: Vec<_> = counts.map(|(name, count)| format!("{} {count}", clean(name))).collect();
    texts.join(", ")
}

/// Counters of discarded frames that the transport has, and their names.
const DISCARDED: [(&str, &str); 3] = [
    ("rx_overflow", "receive queue full"),
    ("tx_dropped", "refused by the system"),
    ("rx_dropped", "unreadable datagrams"),
];

/// Frames and packets that an endpoint and its transport discarded, by reason.
fn discarded(snapshot: &Snapshot) -> String {
    let transport = DISCARDED.iter().map(|(key, name)| (*name, number(&snapshot.counters, key)));
    let transport = transport.filter(|&(_, count)| count > 0);
    let mut parts: Vec<_> = transport.map(|(name, count)| format!("{name} {count}")).collect();
    if !snapshot.drops.is_empty() {
        parts.push(list(&snapshot.drops));
    }
    parts.join(", ")
}

/// Counters that no table shows, without zeros, of all endpoints together.
fn others(rated: &[Rated]) -> Numbers {
    let mut all = BTreeMap::new();
    for counters in rated.iter().map(|one| &one.snapshot.counters) {
        for (name, value) in counters {
            add(&mut all, name, name, value);
            let elements = value.as_object().into_iter().flatten();
            elements.for_each(|(label, n)| add(&mut all, name, &format!("{name} {label}"), n));
        }
    }
    let is_shown = |name: &str| {
        let columns = ENDPOINTS.iter().flat_map(|table| table.iter());
        let shown = columns.flat_map(|(_, cell)| match cell {
            Cell::Sum(names) => *names,
            Cell::Text(_) => &[],
        });
        shown.chain(DISCARDED.iter().map(|(key, _)| key)).any(|shown| *shown == name)
    };
    all.retain(|name, count| *count > 0 && !is_shown(name));
    all.into_iter().map(|(name, count)| (name.replace('_', " "), count.into())).collect()
}

/// Adds a counter of another endpoint: most are summed, also those that this version does not have.
fn add(all: &mut BTreeMap<String, u64>, declared: &str, name: &str, value: &Value) {
    let Some(value) = value.as_u64() else { return };
    let sum = all.entry(name.to_owned()).or_default();
    let field = [EndpointStats::GROUP, TransportStats::GROUP].map(|group| group.field(declared));
    *sum = match field.into_iter().flatten().next().map(|field| field.kind) {
        Some(Kind::Peak) => value.max(*sum),
        _ => value.saturating_add(*sum),
    };
}

/// A column of the tables of endpoints.
enum Cell {
    /// The sum of these counters.
    Sum(&'static [&'static str]),
    Text(fn(&Rated) -> String),
}

const ENDPOINT: (&str, Cell) = ("endpoint", Cell::Text(|one| one.snapshot.endpoint.to_string()));

/// The tables of endpoints: requests, calls, congestion control, recovery, memory.
const ENDPOINTS: [&[(&str, Cell)]; 5] = [
    &[
        ENDPOINT,
        ("sessions", Cell::Text(|one| count(one.snapshot.session_count as u64))),
        ("credits", Cell::Text(|one| count(one.snapshot.credits_granted))),
        ("requests", Cell::Sum(&["requests"])),
        ("/s", Cell::Text(|one| rate(one.rates.map(|r| r.requests_per_s)))),
        ("replies", Cell::Sum(&["replies"])),
    ],
    &[
        ENDPOINT,
        ("calls", Cell::Sum(&["calls"])),
        ("/s", Cell::Text(|one| rate(one.rates.map(|r| r.calls_per_s)))),
        ("open", Cell::Text(|one| count(one.snapshot.outstanding_calls))),
        ("errors", Cell::Sum(&["errors"])),
    ],
    &[
        ENDPOINT,
        ("control", Cell::Text(|one| dash(&one.snapshot.control))),
        ("pool waits", Cell::Sum(&["pool_waits"])),
        ("paced", Cell::Sum(&["paced"])),
    ],
    &[
        ENDPOINT,
        ("resent", Cell::Sum(&["retransmitted", "responses_resent"])),
        ("lost", Cell::Sum(&["lost"])),
        ("probes", Cell::Sum(&["probes"])),
        ("spurious", Cell::Sum(&["spurious"])),
        ("rollbacks", Cell::Sum(&["rollbacks"])),
    ],
    &[
        ENDPOINT,
        ("sessions' memory", Cell::Text(|one| memory(one, "sessions_bytes"))),
        ("memory in use", Cell::Text(|one| memory(one, "in_use_bytes"))),
        ("mapped", Cell::Text(|one| memory(one, "mapped_bytes"))),
        ("limit", Cell::Text(|one| memory(one, "limit_bytes"))),
    ],
];

fn endpoints(rated: &[Rated]) -> [Table; 5] {
    ENDPOINTS.map(|columns| {
        let mut table = Table::plain(columns.iter().map(|(head, _)| *head));
        for one in rated {
            table.add_row(columns.iter().map(|(_, cell)| match cell {
                Cell::Sum(names) => {
                    let counters = names.iter().map(|name| number(&one.snapshot.counters, name));
                    count(counters.fold(0, u64::saturating_add))
                }
                Cell::Text(text) => text(one),
            }));
        }
        table.align_right(0..columns.len());
        table
    })
}

/// A column of the tables of sessions.
type SessionCell = fn(&Rated, &RatedSession) -> String;

const SESSION: (&str, SessionCell) = ("session", |one, session| {
    let row = &session.row;
    let ours = row.session == one.snapshot.asked_by && row.role == "server";
    format!("{}{}/{}", if ours { "*" } else { "" }, one.snapshot.endpoint, row.session)
});

/// The tables of sessions: peer, round trips and queues, congestion control, packets; and the first
/// column of each that has numbers.
const SESSIONS: [(usize, &[(&str, SessionCell)]); 4] = [
    (
        3,
        &[
            SESSION,
            ("role", |_, s| {
                clean(if s.row.state == "connected" { &s.row.role } else { &s.row.state })
            }),
            ("peer", |_, s| s.row.peer.as_deref().map_or_else(|| "-".to_owned(), clean)),
            ("requests/s", |_, s| rate(s.requests_per_s)),
            ("recovery", |_, s| clean(&s.row.recovery)),
        ],
    ),
    (
        1,
        &[
            SESSION,
            ("RTT", |_, s| time(s, "rtt_ns")),
            ("smoothed", |_, s| time(s, "srtt_ns")),
            ("min", |_, s| time(s, "rtt_min_ns")),
            ("RTO", |_, s| time(s, "rto_ns")),
            ("credits", |_, s| {
                let limit = plain(s, "credit_limit");
                s.known("credits").map_or(limit.clone(), |left| format!("{left}/{limit}"))
            }),
            ("in flight", |_, s| format!("{}/{}", plain(s, "in_flight"), plain(s, "slots"))),
            ("queued", |_, s| plain(s, "queued")),
        ],
    ),
    (
        1,
        &[
            SESSION,
            ("window", |_, s| s.known("window_packets").map_or("-".to_owned(), |n| n.to_string())),
            ("pacing gap", |_, s| time(s, "pacing_gap_ns")),
            ("decreases", |_, s| count(number(&s.row.numbers, "window_decreases"))),
            ("marked", |_, s| count(number(&s.row.numbers, "ecn_marked"))),
        ],
    ),
    (
        1,
        &[
            SESSION,
            ("frames out", |_, s| count(number(&s.row.numbers, "tx_frames"))),
            ("in", |_, s| count(number(&s.row.numbers, "rx_frames"))),
            ("resent", |_, s| count(number(&s.row.numbers, "retransmitted"))),
            ("rollbacks", |_, s| count(number(&s.row.numbers, "rollbacks"))),
        ],
    ),
];

fn sessions(rated: &[Rated]) -> [Table; 4] {
    SESSIONS.map(|(numbers, columns)| {
        let mut table = Table::plain(columns.iter().map(|(head, _)| *head));
        for one in rated {
            for session in &one.busiest {
                table.add_row(columns.iter().map(|(_, cell)| cell(one, session)));
            }
        }
        table.align_right(numbers..columns.len());
        table
    })
}

/// A counter in at most ten characters; from 10^10 on with an exponent.
fn count(value: u64) -> String {
    if value < 10_000_000_000 { value.to_string() } else { format!("{:.4e}", value as f64) }
}

fn rate(per_s: Option<f64>) -> String {
    per_s.map_or_else(|| "-".to_owned(), |rate| count(rate.round() as u64))
}

fn dash(text: &str) -> String {
    if text.is_empty() { "-".to_owned() } else { clean(text) }
}

/// A number of a session.
fn plain(session: &RatedSession, name: &str) -> String {
    number(&session.row.numbers, name).to_string()
}

fn time(session: &RatedSession, name: &str) -> String {
    session.known(name).map_or_else(|| "-".to_owned(), |ns| show_ns(ns as f64))
}

/// Memory of an endpoint.
fn memory(one: &Rated, name: &str) -> String {
    bytes(number(&one.snapshot.memory, name))
}

/// `1.5 MiB`.
fn bytes(bytes: u64) -> String {
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
    use courser_kit::counters;
    use serde_json::json;

    use super::*;

    fn numbers(value: Value) -> Numbers {
        value.as_object().expect("an object").clone()
    }

    fn set(all: &mut Numbers, name: &str, value: u64) {
        all.insert(name.to_owned(), value.into());
    }

    fn snapshot(now_s: u64, requests: u64, sessions: &[(u32, u32)]) -> Snapshot {
        let row = |&(session, requests)| SessionRow {
            session,
            numbers: numbers(json!({ "requests": requests })),
            ..SessionRow::default()
        };
        Snapshot {
            now_ns: now_s * 1_000_000_000,
            counters: numbers(json!({ "requests": requests })),
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
        set(&mut s.memory, "limit_bytes", u64::MAX);
        for name in ["retransmitted", "responses_resent", "tx_copied", "one of another version"] {
            set(&mut s.counters, name, u64::MAX);
        }
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
            numbers: numbers(json!({
                "window_packets": 12, "pacing_gap_ns": 4_500, "window_decreases": 77,
                "ecn_marked": 88,
            })),
            ..SessionRow::default()
        };
        let mut s = snapshot(1, 0, &[(0, 0)]);
        s.control = "timely-patched".to_owned();
        set(&mut s.counters, "paced", 66);
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
            numbers: numbers(json!({
                "window_packets": u32::MAX, "pacing_gap_ns": u64::MAX,
                "window_decreases": u64::MAX, "ecn_marked": u32::MAX,
            })),
            ..limited
        };
        (s.endpoint, s.sessions) = (u16::MAX, vec![most]);
        set(&mut s.counters, "paced", u64::MAX);
        let text = render("udp://x:1", &Before::default().rate(vec![s], 10));
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
    }

    #[test]
    fn counters_of_zero_are_not_listed() {
        let mut s = snapshot(1, 0, &[]);
        assert_eq!(discarded(&s), "");
        set(&mut s.drops, "stale", 2);
        set(&mut s.counters, "rx_overflow", 7);
        assert_eq!(discarded(&s), "receive queue full 7, stale 2");
    }

    #[test]
    fn each_counter_that_is_not_zero_is_shown() {
        let declared = [EndpointStats::GROUP, TransportStats::GROUP];
        let fields = || declared.into_iter().flat_map(|group| group.fields);
        let shown_elsewhere = |name: &str| name == "drops";
        for field in fields().filter(|field| !shown_elsewhere(field.name)) {
            let mut s = snapshot(1, 0, &[]);
            let value = match field.labels.first() {
                Some(label) => json!({ label.name: 4_711 }),
                None => 4_711.into(),
            };
            s.counters.insert(field.name.to_owned(), value);
            let text = render("udp://x:1", &Before::default().rate(vec![s], 10));
            assert!(text.contains("4711"), "{}: {text}", field.name);
        }
        let is_declared = |name: &str| fields().any(|field| field.name == name);
        for (head, cell) in ENDPOINTS.iter().flat_map(|table| table.iter()) {
            let Cell::Sum(names) = cell else { continue };
            assert!(names.iter().all(|name| is_declared(name)), "{head} {names:?}");
        }
        assert!(DISCARDED.iter().all(|(name, _)| is_declared(name)));
    }

    #[test]
    fn counters_of_all_endpoints_are_added_and_peaks_are_not() {
        let with = |n: u64| {
            let mut s = snapshot(1, 0, &[]);
            s.counters = numbers(json!({
                "gaps": n, "max_in_flight": n, "of_another_version": n, "tx_kinds": { "gap": n },
            }));
            s
        };
        let rated = Before::default().rate(vec![with(3), with(5)], 10);
        let expected =
            json!({ "gaps": 8, "max in flight": 5, "of another version": 8, "tx kinds gap": 8 });
        assert_eq!(Value::from(others(&rated)), expected);
    }

    #[test]
    fn numbers_that_tables_show_of_sessions_are_declared() {
        let all = counters::object(&courser::SessionStats::default());
        let row = RatedSession {
            requests_per_s: None,
            row: SessionRow { numbers: all, ..SessionRow::default() },
        };
        let declared = row.row.numbers.clone();
        for name in [
            "rtt_ns",
            "srtt_ns",
            "rtt_min_ns",
            "rto_ns",
            "credits",
            "credit_limit",
            "in_flight",
            "slots",
            "queued",
            "window_packets",
            "pacing_gap_ns",
            "window_decreases",
            "ecn_marked",
            "tx_frames",
            "rx_frames",
            "retransmitted",
            "rollbacks",
            "requests",
        ] {
            assert!(declared.contains_key(name), "{name}");
        }
        assert_eq!((row.known("rtt_ns"), row.known("slots")), (None, Some(0)));
    }

    /// As a server of the first version of the format answered, without most of its numbers.
    const OLD: &str = r#"{"format":1,"process":{"version":"0.1.0","endpoints":1,
        "control":{"refused":2},"workers":{}},"endpoint":0,"port":31850,"now_ns":2000000000,
        "counters":{"calls":5,"requests":7,"lost":3,"max_in_flight":4,"rx_overflow":1},
        "drops":{"stale":6},"handlers":{"panics":8},"credits_granted":64,"outstanding_calls":0,
        "memory":{"in_use_bytes":1536,"limit_bytes":1073741824},"session_count":1,
        "sessions":[{"session":0,"role":"server","state":"connected","peer":"10.0.0.1:4",
        "recovery":"default","requests":7,"credits":null,"credit_limit":64,"in_flight":1,
        "slots":16,"rtt_ns":null,"srtt_ns":4500}],"next_session":null,"asked_by":0}"#;

    #[test]
    fn snapshots_of_older_and_newer_versions_are_shown() {
        let old: Snapshot = serde_json::from_str(OLD).expect("a snapshot");
        let mut new: Value = serde_json::from_str(OLD).expect("JSON");
        new["a_field"] = json!({ "of": ["another", "version"] });
        new["counters"]["a_counter"] = 4_711.into();
        new["counters"]["some_counters"] = json!({ "one": 4_712 });
        new["sessions"][0]["a_text"] = "of another version".into();
        new["memory"]["a_text"] = "of another version".into();
        let new: Snapshot = serde_json::from_value(new).expect("a snapshot");
        let shown = |s: &Snapshot| render("udp://x:1", &Before::default().rate(vec![s.clone()], 9));
        let (old, new) = (shown(&old), shown(&new));
        for part in ["receive queue full 1, stale 6", "panics 8", "refused 2", "1.5 KiB", "1/16"] {
            assert!(old.contains(part) && new.contains(part), "{part}: {old} {new}");
        }
        assert!(old.contains("max in flight 4\n"), "missing counters are 0: {old}");
        let others = "a counter 4711, max in flight 4, some counters one 4712\n";
        assert!(new.contains(others), "{new}");
    }

    #[test]
    fn memory_sizes_have_units() {
        for (size, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1536, "1.5 KiB"),
            (200 << 20, "200 MiB"),
            (1 << 30, "1.0 GiB"),
        ] {
            assert_eq!(bytes(size), text);
        }
    }
}
