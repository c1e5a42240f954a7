//! Runs benchmarks and checks their results.

use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::json_of;

/// Benchmarks poll on two cores, so only one runs at a time.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a benchmark and returns its results.
pub(crate) fn results(line: &str) -> Vec<Value> {
    let report = json_of(&format!("bench {line} --quick --json -"));
    let object = report.as_object().expect("an object");
    let keys: Vec<_> = object.keys().map(String::as_str).collect();
    assert_eq!(keys, ["bench", "config", "environment", "results", "transport"], "{line}");
    let diagnostics = &report["config"]["diagnostics"];
    for side in ["client", "server"] {
        assert!(diagnostics[side]["rpc"].is_object(), "{line}: {side}: {diagnostics}");
    }
    let results = report["results"].as_array().expect("a list").clone();
    assert!(!results.is_empty(), "{line}: {report}");
    for result in &results {
        assert!(
            result["placement"].is_string() && result["windows"].as_u64() > Some(0),
            "{result}"
        );
    }
    results
}

/// Asserts quantities above zero.
pub(crate) fn positive(result: &Value, keys: &[&str]) {
    for key in keys {
        assert!(result[key].as_f64() > Some(0.0), "{key}: {result}");
    }
}

/// The values of a key in the results in ascending order, each once.
pub(crate) fn points(results: &[Value], key: &str) -> Vec<u64> {
    let mut points: Vec<_> = results.iter().filter_map(|result| result[key].as_u64()).collect();
    points.sort_unstable();
    points.dedup();
    points
}
