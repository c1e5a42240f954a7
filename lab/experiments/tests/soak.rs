//! Short runs of every experiment of `courser-lab soak`. A violation is a defect of the library; the seed
//! in the message repeats the run.

#[path = "../../../crates/cli/tests/common/mod.rs"]
mod common;

use common::{refused, run, stderr, stdout};
use serde_json::Value;

/// Runs an experiment without violations and returns its result.
fn soak(line: &str) -> Value {
    // A low load, so that other tests can run at the same time.
    let output = run(&format!("soak {line} --load 300 --json -"));
    assert!(output.status.success(), "{line}: {}{}", stdout(&output), stderr(&output));
    let report: Value = serde_json::from_str(&stdout(&output)).expect("one JSON object");
    assert_eq!(report["bench"], "soak");
    let result = report["results"][0].clone();
    assert_eq!(result["violations"], 0, "{result}");
    result
}

fn number(result: &Value, key: &str) -> u64 {
    result[key].as_u64().unwrap_or_else(|| panic!("{key}: {result}"))
}

#[test]
fn mixed_calls_are_executed_and_checked() {
    let result = soak("mixed --for 3s");
    let (calls, right) = (number(&result, "calls"), number(&result, "succeeded"));
    assert!(calls > 50, "{result}");
    assert!(right * 10 > calls * 9, "nothing died: {result}");
    assert!(number(&result, "executions") > right / 2, "{result}");
    assert!(number(&result, "bytes_checked") > 10_000, "{result}");
    assert_eq!(number(&result, "kills") + number(&result, "stops"), 0);
    assert_eq!(result["memory"].as_array().map(Vec::len), Some(4), "{result}");
}

#[test]
fn clients_reconnect_to_a_killed_server() {
    let result = soak("kill-server --times 3");
    assert_eq!(number(&result, "kills"), 3);
    assert!(number(&result, "succeeded") > 50, "{result}");
}

#[test]
fn servers_free_the_sessions_of_a_killed_client() {
    let result = soak("kill-client --times 2");
    assert_eq!(number(&result, "kills"), 2);
    assert_eq!(result["sessions_before"], result["sessions_after"], "{result}");
}

#[test]
fn calls_to_a_stopped_server_fail_until_it_continues() {
    let result = soak("stop-server --times 1");
    assert_eq!(number(&result, "stops"), 1);
    assert!(number(&result, "calls_hit") > 0, "{result}");
    assert!(result["errors"].as_object().is_some_and(|e| !e.is_empty()), "{result}");
}

#[test]
fn a_server_frees_sessions_that_clients_close() {
    let result = soak("connects --times 500");
    assert_eq!(number(&result, "succeeded"), 500);
    assert_eq!(result["sessions_before"], result["sessions_after"], "{result}");
}

#[test]
fn the_summary_has_calls_executions_memory_and_the_seed() {
    let output = run("soak mixed --for 1s --load 50 --seed 7 --max-size 1KiB");
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    for phrase in
        ["soak mixed", "seed 7", "each byte checked", "executions", "resident", "violations  0"]
    {
        assert!(stdout(&output).contains(phrase), "{phrase}: {}", stdout(&output));
    }
    refused("soak --json /nonexistent/place.json", "/nonexistent/place.json");
}
