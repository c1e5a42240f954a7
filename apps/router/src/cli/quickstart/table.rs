//! The table of nodes: what each did between two readings of its counters.

use std::time::{Duration, Instant};

use courser_kit::Failure;
use courser_kit::table::Table;
use courser_kit::units::show_per_second;
use courser_router::netns::name;
use serde::Serialize;
use serde_json::Value;

use super::NODES;
use super::screen::{self, Screen};
use crate::cli::cluster::Demo;

/// Time between two drawings.
const REDRAW: Duration = Duration::from_secs(1);

/// The counters of all nodes at one time. `None`: the node has no process.
pub(super) struct Sample {
    at: Instant,
    nodes: Vec<Option<Value>>,
}

impl Sample {
    pub(super) fn take(demo: &Demo) -> Result<Self, Failure> {
        let nodes = (0..NODES).map(|node| {
            if !demo.has_process(node) {
                return Ok(None);
            }
            let text = demo.client(node)?.ask("stats");
            let text = text.map_err(|error| Failure::Runtime(error.to_string()))?;
            let stats = serde_json::from_str(&text);
            stats.map(Some).map_err(|error| Failure::Runtime(format!("counters: {error}")))
        });
        let nodes: Result<_, Failure> = nodes.collect();
        Ok(Self { at: Instant::now(), nodes: nodes? })
    }

    fn number(&self, node: usize, key: &str) -> u64 {
        self.nodes[node].as_ref().and_then(|stats| stats[key].as_u64()).unwrap_or_default()
    }

    /// The state of a node in the view of the first one.
    fn state(&self, node: usize) -> &str {
        let first = self.nodes[0].as_ref();
        first.and_then(|stats| stats["nodes"][name(node).to_string()].as_str()).unwrap_or("?")
    }
}

/// What a node did.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) node: String,
    /// In the view of node a.
    pub(super) state: String,
    /// Packets from and to the host.
    pub(super) rate_in_pps: f64,
    pub(super) rate_out_pps: f64,
    /// IP packets to the host.
    pub(super) throughput_bps: f64,
    /// Packets to other nodes.
    pub(super) rate_to_nodes_pps: f64,
    /// Messages in each frame to other nodes; absent without frames.
    pub(super) packets_per_frame: Option<f64>,
    /// Frames sent to other nodes again.
    pub(super) retransmitted: u64,
    /// Packets dropped, by reason.
    pub(super) drops: Vec<(String, u64)>,
}

/// What each node did between two samples.
pub(super) fn rows(from: &Sample, to: &Sample) -> Vec<Row> {
    (0..NODES).map(|node| row(from, to, node)).collect()
}

fn row(from: &Sample, to: &Sample, node: usize) -> Row {
    // The counters of a node that was started in the meantime begin at zero.
    let restarted = to.number(node, "uptime_ns") < from.number(node, "uptime_ns");
    let before = |key| if restarted { 0 } else { from.number(node, key) };
    let seconds = to.at.duration_since(from.at).as_secs_f64().max(1e-9);
    let delta = |key| to.number(node, key).saturating_sub(before(key)) as f64;
    let per_second = |key| delta(key) / seconds;
    let frames = delta("frames_sent");
    Row {
        node: name(node).to_string(),
        state: to.state(node).to_owned(),
        rate_in_pps: per_second("received"),
        rate_out_pps: per_second("sent"),
        throughput_bps: per_second("sent_bytes") * 8.0,
        rate_to_nodes_pps: per_second("to_nodes"),
        packets_per_frame: (frames > 0.0).then(|| delta("messages_sent") / frames),
        retransmitted: delta("packets_retransmitted") as u64,
        drops: drops(from.nodes[node].as_ref().filter(|_| !restarted), to.nodes[node].as_ref()),
    }
}

fn drops(from: Option<&Value>, to: Option<&Value>) -> Vec<(String, u64)> {
    let Some(to) = to.and_then(|stats| stats["drops"].as_object()) else { return Vec::new() };
    let count = |(reason, now): (&String, &Value)| {
        let before = from.and_then(|stats| stats["drops"][reason].as_u64()).unwrap_or_default();
        (reason.clone(), now.as_u64().unwrap_or_default().saturating_sub(before))
    };
    to.iter().map(count).filter(|(_, n)| *n > 0).collect()
}

/// The rows as text.
pub(super) fn text(rows: &[Row]) -> Table {
    let header = ["node", "state", "pkt/s in", "out", "Mbit/s", "to nodes", "per frame", "drops"];
    let mut table = screen::table(header);
    for row in rows {
        let drops: Vec<_> = row.drops.iter().map(|(why, n)| format!("{why} {n}")).collect();
        table.add_row([
            row.node.clone(),
            row.state.clone(),
            show_per_second(row.rate_in_pps, ""),
            show_per_second(row.rate_out_pps, ""),
            format!("{:.1}", row.throughput_bps / 1e6),
            show_per_second(row.rate_to_nodes_pps, ""),
            row.packets_per_frame.map_or("-".to_owned(), |n| format!("{n:.1}")),
            if drops.is_empty() { "-".to_owned() } else { drops.join("\n") },
        ]);
    }
    table.align_right(2..7);
    table
}

/// Shows the table for some time: on a terminal once a second, and at the end that of the whole time
/// since `first`.
pub(super) fn watch(
    screen: &mut Screen,
    demo: &Demo,
    first: &Sample,
    time: Duration,
) -> Result<Sample, Failure> {
    let end = Instant::now() + time;
    let mut last = Sample::take(demo)?;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        std::thread::sleep(left.min(REDRAW));
        if screen.is_live() {
            let now = Sample::take(demo)?;
            screen.draw(&text(&rows(&last, &now)))?;
            last = now;
        }
    }
    let last = Sample::take(demo)?;
    screen.table(&text(&rows(first, &last)))?;
    Ok(last)
}

#[cfg(test)]
mod tests {
    use courser_router::counters::PacketDrop;
    use serde_json::json;

    use super::*;
    use crate::cli::assert_fits;

    fn sample(at: Instant, uptime_ns: u64, n: u64) -> Sample {
        let stats = json!({
            "uptime_ns": uptime_ns, "received": n, "sent": 2 * n, "sent_bytes": 100 * n,
            "to_nodes": n, "messages_sent": 12 * n, "frames_sent": 3 * n,
            "drops": { "link_full": n }, "nodes": { "a": "self", "b": "dead" },
        });
        Sample { at, nodes: vec![Some(stats), None, None] }
    }

    #[test]
    fn rows_are_differences_and_a_restart_begins_at_zero() {
        let begin = Instant::now();
        let first = sample(begin, 5, 1_000);
        let second = sample(begin + Duration::from_secs(2), 7, 3_000);
        let rows = rows(&first, &second);
        let [a, b, c] = &rows[..] else { panic!("{rows:?}") };
        assert_eq!((a.rate_in_pps, a.rate_out_pps, a.throughput_bps), (1e3, 2e3, 8e5));
        assert_eq!((a.packets_per_frame, &a.state[..]), (Some(4.0), "self"));
        assert_eq!(a.drops, [("link_full".to_owned(), 2_000)]);
        assert_eq!((b.packets_per_frame, &b.state[..], &b.drops[..]), (None, "dead", &[][..]));
        assert_eq!(c.state, "?");
        let restarted = row(&first, &sample(begin + Duration::from_secs(1), 1, 500), 0);
        assert_eq!((restarted.rate_in_pps, restarted.drops[0].1), (500.0, 500));
    }

    #[test]
    fn the_table_fits_a_terminal() {
        let begin = Instant::now();
        let rows = rows(&sample(begin, 5, 0), &sample(begin + Duration::from_secs(1), 7, 123_456));
        assert_fits(&screen::text(&text(&rows)));
        // Rates that no machine has, and all reasons for drops.
        let drops = PacketDrop::ALL.map(|reason| (reason.name().to_owned(), u64::MAX)).to_vec();
        let wide = Row {
            node: "c".to_owned(),
            state: "through another".to_owned(),
            rate_in_pps: 999.9e6,
            rate_out_pps: 999.9e6,
            throughput_bps: 999_999.9e6,
            rate_to_nodes_pps: 999.9e6,
            packets_per_frame: Some(100.0),
            retransmitted: u64::MAX,
            drops,
        };
        assert_fits(&screen::text(&text(&[wide])));
    }
}
