//! `router bench`, as a program. Rates are not checked: they depend on the machine.

use std::process::Command;

use serde_json::Value;

fn bench(arguments: &[&str]) -> std::process::Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_router"));
    command.arg("bench").args(arguments).output().expect("the program starts")
}

fn run(transport: &str, bytes: &str) -> Value {
    let common = ["--time", "1s", "--random", "20000", "--json", "-"];
    let arguments = [&["--transport", transport, "--bytes", bytes], &common[..]].concat();
    let output = bench(&arguments);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON only")
}

/// Asserts that packets arrived, all of them, in order, and where they should.
fn check(result: &Value) {
    for key in ["lost", "out_of_order", "misrouted"] {
        assert_eq!(result[key].as_u64(), Some(0), "{key}: {result:#}");
    }
    assert_eq!(result["drops"], serde_json::json!({}), "{result:#}");
    for workload in ["baseline", "batching", "no_batching", "one_by_one"] {
        let of = &result[workload];
        for key in ["rate_pps", "rate_pps_min", "packets_per_frame", "header_bytes_per_packet"] {
            assert!(of[key].as_f64() > Some(0.0), "{workload} {key}: {result:#}");
        }
        assert!(of["packets"].as_u64() > Some(100), "{result:#}");
    }
    for key in [
        "look_up_and_rewrite_ns",
        "ratio_to_baseline",
        "batching_over_none",
        "batching_over_one_by_one",
    ] {
        for end in ["", "_min", "_max"] {
            assert!(result[format!("{key}{end}")].as_f64() > Some(0.0), "{key}: {result:#}");
        }
    }
}

#[test]
fn packets_arrive_in_order_at_their_ports_over_udp() {
    let report = run("udp", "64,1500");
    assert_eq!((&report["bench"], &report["transport"]), (&"router".into(), &"udp".into()));
    assert!(report["environment"]["kernel"].is_string() && report["config"]["table"].is_string());
    let results = report["results"].as_array().expect("a result for each size");
    let sizes: Vec<_> = results.iter().map(|result| result["packet_bytes"].as_u64()).collect();
    assert_eq!(sizes, [Some(64), Some(1_500)]);
    results.iter().for_each(check);
    let small = &results[0];
    let per_frame = |workload: &str| small[workload]["packets_per_frame"].as_f64().expect("there");
    assert!(per_frame("batching") > 2.0 && per_frame("no_batching") <= 1.0, "{small:#}");
    assert_eq!(small["routes"].as_u64(), Some(20_000 + 10), "and those of the ports");
}

#[test]
fn packets_arrive_over_memory() {
    for transport in ["shm", "mem"] {
        let report = run(transport, "64");
        check(&report["results"][0]);
    }
}

#[test]
fn a_size_that_no_packet_has_is_refused() {
    for bytes in ["39", "1501", "x"] {
        let output = bench(&["--bytes", bytes]);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
    }
}
