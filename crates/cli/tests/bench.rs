//! Short runs of the benchmarks: they succeed, and their results have all keys.

use crate::common::bench::{alone, points, positive, results};
use crate::common::{json_of, refused, run, stderr, stdout};
use serde_json::Value;

#[test]
fn latency_has_high_percentiles_and_the_difference_to_raw() {
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
fn bandwidth_is_compared_with_copies_for_each_size() {
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
fn bandwidth_without_the_servers_copy_is_marked() {
    let _alone = alone();
    for (flag, copies) in [("", true), (" --no-copy", false)] {
        let line = format!("bench bandwidth --quick --pairs 1 --size 300KiB --transport shm{flag}");
        let report = json_of(&format!("{line} --json -"));
        assert_eq!(report["config"]["server_copies"], copies, "{line}");
        report["results"].as_array().expect("a list").iter().for_each(|result| {
            positive(result, &["goodput_bps", "raw_goodput_bps"]);
        });
        let table = stdout(&run(&format!("{line} --anyway")));
        assert_eq!(table.contains("no copy"), !copies, "{table}");
    }
}

#[test]
fn a_series_is_a_table_with_its_points() {
    let _alone = alone();
    let output = run("bench bandwidth --quick --anyway --pairs 1 --transport mem --size 1KiB,2KiB");
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    for phrase in ["bandwidth over mem", ", 1 KiB", ", 2 KiB", "memcpy"] {
        assert!(text.contains(phrase), "{phrase}: {text}");
    }
}

#[test]
fn flags_without_meaning_are_refused() {
    refused("bench latency --batch 3", "unexpected argument '--batch'");
    refused("bench rate --size 32,64", "--size with several values");
    refused("bench rate --transport mem --connect mem://127.0.0.1:1", "threads of this process");
    refused("bench rate --batch 61", "the batch");
    refused("bench rate --frame-size 1KiB,2KiB", "--frame-size");
    refused("bench rate --svg a.svg", "unexpected argument '--svg'");
}
