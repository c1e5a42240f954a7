//! The counters of a node as tables, from its answer to `stats`.

use std::time::Duration;

use courser_kit::table::Table;
use serde_json::{Map, Value};

/// The first keys, in the order of a packet's path. Others follow.
const FIRST: [&str; 8] = [
    "received",
    "received_bytes",
    "sent",
    "sent_bytes",
    "to_nodes",
    "from_nodes",
    "passed_on",
    "to_system",
];

/// The tables. `None`: the text is no JSON object.
pub(super) fn text(answer: &str) -> Option<String> {
    let stats: Map<String, Value> = serde_json::from_str(answer).ok()?;
    let mut blocks = vec![title(&stats), counters(&stats)];
    let named = |key: &str| stats.get(key).and_then(Value::as_object);
    blocks
        .extend(named("drops").map(|drops| pairs(["dropped because of", "packets"], drops, true)));
    blocks.extend(named("nodes").map(|nodes| pairs(["node", "state"], nodes, false)));
    blocks.extend(named("ports").map(ports));
    // Counters of a part of the node, as of its import of routes.
    let parts = stats.iter().filter(|(key, _)| !["drops", "nodes", "ports"].contains(&&key[..]));
    let parts = parts.filter_map(|(key, value)| Some((key, value.as_object()?)));
    blocks.extend(parts.map(|(key, part)| pairs([&words(key), "number"], part, true)));
    blocks.retain(|block| !block.is_empty());
    Some(blocks.join("\n"))
}

/// The node, and the time since its start.
fn title(stats: &Map<String, Value>) -> String {
    let Some(name) = stats.get("node").and_then(Value::as_str) else { return String::new() };
    let uptime_ns = stats.get("uptime_ns").and_then(Value::as_u64).unwrap_or_default();
    let uptime = Duration::from_secs(uptime_ns / 1_000_000_000);
    format!("node {name}, for {}\n", humantime::format_duration(uptime))
}

/// All plain numbers.
fn counters(stats: &Map<String, Value>) -> String {
    let rank = |key: &str| FIRST.iter().position(|first| *first == key).unwrap_or(FIRST.len());
    let mut all: Vec<(&String, &Value)> =
        stats.iter().filter(|(key, value)| value.is_number() && *key != "uptime_ns").collect();
    all.sort_by_key(|(key, _)| (rank(key), key.as_str()));
    rows(["counter", "number"], all.into_iter(), true)
}

fn pairs(header: [&str; 2], all: &Map<String, Value>, are_numbers: bool) -> String {
    rows(header, all.iter(), are_numbers)
}

fn rows<'a>(
    header: [&str; 2],
    rows: impl Iterator<Item = (&'a String, &'a Value)>,
    are_numbers: bool,
) -> String {
    let mut rows = rows.peekable();
    if rows.peek().is_none() {
        return String::new();
    }
    let mut table = Table::ruled(header);
    for (key, value) in rows {
        table.add_row([words(key), shown(value)]);
    }
    if are_numbers {
        table.align_right([1]);
    }
    format!("{table}\n")
}

/// Counters of ports: a row for each port, a column for each counter.
fn ports(ports: &Map<String, Value>) -> String {
    let Some(first) = ports.values().find_map(Value::as_object) else { return String::new() };
    let keys: Vec<&String> = first.keys().collect();
    let header = std::iter::once("port".to_owned()).chain(keys.iter().map(|key| words(key)));
    let mut table = Table::ruled(header);
    for (name, counters) in ports {
        let numbers = keys.iter().map(|key| shown(&counters[*key]));
        table.add_row(std::iter::once(name.clone()).chain(numbers));
    }
    table.align_right(1..keys.len() + 1);
    format!("{table}\n")
}

fn words(key: &str) -> String {
    key.replace('_', " ")
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "none".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::assert_fits;

    #[test]
    fn each_counter_is_shown_and_wide_ones_fit_a_terminal() {
        let name = "n".repeat(32);
        let named = |n: usize| format!("{n:0>32}");
        let drops: Map<String, Value> = courser_router::counters::PacketDrop::ALL
            .iter()
            .map(|d| (d.name().into(), u64::MAX.into()))
            .collect();
        let nodes: Map<String, Value> =
            (0..64).map(|n| (named(n), Value::from("through another"))).collect();
        let ports: Map<String, Value> = (0..32)
            .map(|n| {
                let counters = json!({
                    "kernel_drops": u64::MAX, "too_long": u64::MAX, "ignored": u64::MAX,
                    "tagged": u64::MAX, "another_counter": u64::MAX,
                });
                (format!("{n:0>15}"), counters)
            })
            .collect();
        let stats = json!({
            "node": name, "uptime_ns": u64::MAX, "sent": u64::MAX, "received": 7,
            "refused_by_system": u64::MAX, "drops": drops, "nodes": nodes, "ports": ports,
            "import": { "overflows": u64::MAX, "daemon": "connected", "grace": null },
        });
        let text = text(&stats.to_string()).expect("an object");
        assert_fits(&text);
        for part in
            [&name[..], "refused by system", "time exceeded", &named(63), "received", "overflows"]
        {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(text.contains("none") && !text.contains("null"), "{text}");
        let line = |start: &str| text.lines().position(|line| line.starts_with(start));
        assert!(
            line("received") < line("sent") && line("sent") < line("refused by system"),
            "{text}"
        );
        // A number is not cut, whatever its column.
        assert_eq!(text.matches(&u64::MAX.to_string()).count(), 3 + drops_len(), "{text}");
    }

    fn drops_len() -> usize {
        courser_router::counters::PacketDrop::ALL.len()
    }

    #[test]
    fn answers_of_other_versions_are_shown_as_they_are() {
        assert_eq!(text("{}"), Some(String::new()));
        assert_eq!(text("no JSON"), None);
        assert_eq!(text("[1]"), None);
    }
}
