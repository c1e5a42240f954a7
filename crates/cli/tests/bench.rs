//! The benchmarks, with windows as few as possible: that they run, and what their results hold.

mod common;

use std::sync::{Mutex, MutexGuard, PoisonError};

use common::{json_of, refused, run, stderr, stdout};
use serde_json::Value;

/// Benchmarks poll on two cores: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a benchmark and returns its results.
fn results(line: &str) -> Vec<Value> {
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
fn positive(result: &Value, keys: &[&str]) {
    for key in keys {
        assert!(result[key].as_f64() > Some(0.0), "{key}: {result}");
    }
}

/// What a key is in the results, each value once.
fn points(results: &[Value], key: &str) -> Vec<u64> {
    let mut points: Vec<_> = results.iter().filter_map(|result| result[key].as_u64()).collect();
    points.sort_unstable();
    points.dedup();
    points
}

#[test]
fn latency_has_rare_percentiles_and_the_difference_to_raw() {
    let _alone = alone();
    for transport in ["mem", "shm", "shm --raw-copy", "udp"] {
        for result in results(&format!("latency --pairs 2 --transport {transport}")) {
            let keys = ["latency_p50_ns", "latency_p99_ns", "raw_p50_ns", "ratio"];
            positive(&result, &keys);
            for side in ["latency", "raw"] {
                let tail =
                    ["p90", "p999", "p9999"].map(|p| result[format!("{side}_{p}_ns")].as_f64());
                assert!(tail[0] > Some(0.0) && tail.is_sorted(), "{result}");
            }
            assert!(result["difference_ns"].is_f64(), "{result}");
        }
    }
}

#[test]
fn rates_have_a_result_for_each_batch() {
    let _alone = alone();
    for transport in ["mem", "shm"] {
        let results = results(&format!("rate --pairs 1 --transport {transport} --batch 1,3,11"));
        assert_eq!(points(&results, "batch"), [1, 3, 11]);
        results.iter().for_each(|r| positive(r, &["rate_rps", "raw_rate_pps", "ratio"]));
        let counted = |r: &Value| r["pool_waits"].is_u64() && r["pool_waits_per_call"].is_f64();
        assert!(results.iter().all(counted), "{results:?}");
    }
}

#[test]
fn both_sides_can_call_each_other() {
    let _alone = alone();
    for transport in ["mem", "shm", "udp"] {
        let line = format!("rate --pairs 2 --batch 3 --symmetric --transport {transport}");
        results(&line).iter().for_each(|result| positive(result, &["rate_rps", "raw_rate_pps"]));
    }
}

#[test]
fn bandwidth_stands_beside_copies_for_each_size() {
    let _alone = alone();
    for flags in ["mem", "shm", "shm --frame-size 1072"] {
        let line = format!("bandwidth --pairs 1 --size 1KiB,300KiB --transport {flags}");
        let results = results(&line);
        assert_eq!(points(&results, "request_bytes"), [1 << 10, 300 << 10]);
        let keys = ["goodput_bps", "raw_goodput_bps", "memcpy_bps", "share_of_memcpy"];
        results.iter().for_each(|result| positive(result, &keys));
    }
}

#[test]
fn bandwidth_without_the_servers_copy_says_so() {
    let _alone = alone();
    for (flag, copies) in [("", true), (" --no-copy", false)] {
        let line = format!("bench bandwidth --quick --pairs 1 --size 300KiB --transport shm{flag}");
        let report = json_of(&format!("{line} --json -"));
        assert_eq!(report["config"]["server_copies"], copies, "{line}");
        report["results"].as_array().expect("a list").iter().for_each(|result| {
            positive(result, &["goodput_bps", "raw_goodput_bps"]);
        });
        let table = stdout(&run(&line));
        assert_eq!(table.contains("no copy"), !copies, "{table}");
    }
}

#[test]
fn many_sessions_stand_beside_eight_and_their_memory_is_counted() {
    let _alone = alone();
    let results = results("sessions --pairs 1 --transport shm --sessions 2,40");
    assert_eq!(points(&results, "sessions"), [2, 40]);
    for result in &results {
        positive(result, &["rate_rps", "of_8_sessions", "connects_per_s"]);
        for side in ["client", "server"] {
            let memory = &result[format!("{side}_memory")];
            assert_eq!(memory["sessions"], result["sessions"], "{side}: {result}");
            // Idle sessions hold no responses.
            assert_eq!(memory["prealloc_bytes"], 0, "{side}: {result}");
            positive(result, &[&format!("{side}_bytes_per_session")]);
        }
    }
}

#[test]
fn every_number_of_credits_has_latency_rate_and_bandwidth() {
    let _alone = alone();
    let results = results("credits --pairs 1 --transport shm --size 64KiB");
    assert_eq!(points(&results, "credits"), [1, 2, 4, 8, 16, 32, 64]);
    let complete = |r: &&Value| r["rate_rps"].is_f64() && r["goodput_bps"].is_f64();
    assert!(results.iter().any(|r| complete(&r)), "{results:?}");
}

#[test]
fn factors_begin_with_everything_on() {
    let _alone = alone();
    for transport in ["mem", "shm", "udp"] {
        let results = results(&format!("factors --pairs 2 --transport {transport}"));
        let of = |name: &str| {
            let found = results.iter().find(|result| result["switched_off"] == name);
            found.unwrap_or_else(|| panic!("{transport}: {name}: {results:?}"))
        };
        positive(of("nothing"), &["rate_rps", "paper_rate_rps"]);
        for name in ["batched_timestamps", "preallocated_responses", "zero_copy_requests"] {
            let keys = ["rate_rps", "paper_rate_rps", "paper_of_step_before"];
            positive(of(name), &keys);
        }
        for name in ["prefetch", "packing"] {
            positive(of(name), &["rate_rps"]);
        }
        let trains = results.iter().any(|result| result["switched_off"] == "trains");
        assert_eq!(trains, transport == "udp", "{transport}");
    }
}

#[test]
fn transmit_bursts_of_every_bound_work() {
    let _alone = alone();
    let results = results("txqueue --pairs 1 --transport shm");
    assert_eq!(points(&results, "tx_burst"), [1, 2, 4, 8, 16, 32, 64, 128, 256]);
    results.iter().for_each(|result| positive(result, &["rate_rps"]));
}

#[test]
fn a_sweep_compares_each_point_with_the_best_before_it() {
    let _alone = alone();
    for transport in ["mem", "shm", "udp"] {
        let flags = "--pairs 3 --in-flight 1,4,130 --frame-size 1KiB,64KiB";
        let results = results(&format!("sweep {flags} --transport {transport}"));
        let most = if transport == "udp" { 65_507 } else { 65_536 };
        assert_eq!(points(&results, "frame_bytes"), [1024, most]);
        assert_eq!(points(&results, "in_flight"), [1, 4, 130]);
        assert_eq!(points(&results, "sessions"), [8, 9]);
        for result in &results {
            positive(result, &["rate_rps"]);
            assert!(result["pool_waits"].is_u64(), "{result}");
            let first = result["in_flight"] == 1;
            assert!(!first || result["of_best_fewer"].is_null(), "{result}");
        }
        let compared = |r: &&Value| r["worst_of_frame"] == true;
        let worst: Vec<_> = results.iter().filter(compared).collect();
        assert!(!worst.is_empty(), "{results:?}");
        let keys = ["of_best_fewer", "best_fewer_in_flight"];
        worst.iter().for_each(|result| positive(result, &keys));
    }
}

#[test]
fn a_sweep_is_a_table_and_a_picture() {
    let _alone = alone();
    let path = std::env::temp_dir().join(format!("courser-sweep-{}.svg", std::process::id()));
    let flags = "--pairs 2 --in-flight 1,8 --frame-size 1KiB,2KiB --transport mem";
    let output = run(&format!("bench sweep --quick {flags} --svg {}", path.display()));
    let picture = std::fs::read_to_string(&path);
    let _ = std::fs::remove_file(&path);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    for phrase in ["32 B calls over mem", "in flight", "1 KiB", "2 KiB", "at worst"] {
        assert!(text.contains(phrase), "{phrase}: {text}");
    }
    let picture = picture.expect("a picture");
    assert!(picture.starts_with("<svg") && picture.contains("calls in flight"), "{picture}");
}

#[test]
fn threads_call_each_other_and_their_memory_is_stated() {
    let _alone = alone();
    for transport in ["mem", "shm", "udp"] {
        let line = format!("bench threads --quick --pairs 1 --transport {transport} --json -");
        let report = json_of(&line);
        let results = report["results"].as_array().expect("a list");
        assert_eq!(points(results, "threads")[0], 1);
        for result in results {
            let keys = ["rate_rps", "rate_per_thread_rps", "resident_bytes_per_thread"];
            positive(result, &keys);
        }
    }
}

#[test]
fn a_series_is_a_table_with_its_points() {
    let _alone = alone();
    let output = run("bench bandwidth --quick --pairs 1 --transport mem --size 1KiB,2KiB");
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    for phrase in ["bandwidth over mem", "point", "1 KiB", "2 KiB", "memcpy"] {
        assert!(text.contains(phrase), "{phrase}: {text}");
    }
}

#[test]
fn what_has_no_meaning_is_refused() {
    refused("bench latency --batch 3", "--batch has no meaning");
    refused("bench rate --size 32,64", "--size with several values");
    refused("bench sessions --sessions 9,1", "rise");
    refused("bench factors --credits 3", "--credits has no meaning");
    refused("bench rate --transport mem --connect mem://127.0.0.1:1", "threads of this process");
    refused("bench rate --batch 61", "the batch");
    refused("bench sweep --in-flight 8,4", "rise");
    refused("bench sweep --batch 3", "--batch has no meaning");
    refused("bench rate --frame-size 1KiB,2KiB", "--frame-size with several values");
    refused("bench rate --svg a.svg", "--svg has no meaning");
}
