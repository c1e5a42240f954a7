//! Declared statistics as JSON, for reports.

use courser::stats::{Sample, Stats};
use serde_json::{Map, Value};

/// The numbers of a struct by name. A number that does not exist yet is `null`; an array is an object
/// of the elements that are not 0, by name.
pub fn object(stats: &impl Stats) -> Map<String, Value> {
    let mut all = Map::new();
    stats.visit(&mut |Sample { field, label, value }| {
        let entry = all.entry(field.name);
        let Some(label) = label else {
            entry.or_insert(value.into());
            return;
        };
        if let Value::Object(elements) = entry.or_insert_with(|| Map::new().into())
            && value != Some(0)
        {
            elements.insert(label.name.to_owned(), value.into());
        }
    });
    all
}

/// The numbers of a struct that are not 0, by name.
pub fn nonzero(stats: &impl Stats) -> Map<String, Value> {
    let mut all = object(stats);
    all.retain(|_, value| value.as_u64() != Some(0));
    all
}

/// The number of that name; 0 if there is none, as in the report of an older program.
pub fn number(all: &Map<String, Value>, name: &str) -> u64 {
    all.get(name).and_then(Value::as_u64).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use courser::{EndpointStats, HandlerStats, SessionStats, TransportStats};
    use serde_json::json;

    use super::*;

    #[test]
    fn each_number_of_a_struct_is_in_its_object() {
        let mut stats = EndpointStats { calls: 7, ..EndpointStats::default() };
        stats.drops[1] = 3;
        let all = object(&stats);
        let names: Vec<_> = EndpointStats::GROUP.fields.iter().map(|field| field.name).collect();
        assert!(names.iter().all(|&name| all.contains_key(name)) && names.len() == all.len());
        assert_eq!((number(&all, "calls"), number(&all, "errors")), (7, 0));
        assert_eq!(number(&all, "a counter of another version"), 0);
        assert_eq!(all["drops"], json!({ "version": 3 }));
        assert_eq!(all["rx_kinds"], json!({}));
    }

    #[test]
    fn numbers_that_do_not_exist_yet_are_null() {
        let all = object(&SessionStats::default());
        assert_eq!((&all["rtt_ns"], &all["window_packets"]), (&Value::Null, &Value::Null));
        assert!(!all.contains_key("peer"), "it is not a number: {all:?}");
    }

    #[test]
    fn zeros_can_be_left_out() {
        let stats = TransportStats { tx_full: 2, ..TransportStats::default() };
        assert_eq!(Value::from(nonzero(&stats)), json!({ "tx_full": 2 }));
        assert_eq!(nonzero(&HandlerStats::default()), Map::new());
    }
}
