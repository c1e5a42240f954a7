//! The commands `router sim` and `router figures`.

use std::process::{Command, Output};

use serde_json::Value;

fn router(arguments: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_router"));
    command.args(arguments.split_whitespace()).output().expect("the program starts")
}

fn json(arguments: &str) -> Value {
    let output = router(arguments);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn sim_reports_each_packet_and_hop() {
    for topology in ["mesh", "switch", "mixed"] {
        let report =
            json(&format!("sim --topology {topology} --nodes 3 --ms 0.2 --load 10 --json -"));
        let results = &report["results"];
        assert_eq!(report["bench"], "router-sim");
        assert_eq!(report["config"]["topology"], topology);
        assert_eq!(results["packets_offered"], results["packets_forwarded"], "{results}");
        assert!(results["packets_offered"].as_u64() > Some(100), "{results}");
        assert!(results["end_to_end"]["latency_p50_ns"].as_u64() > Some(500), "{results}");
        assert_eq!(results["faults"]["reordered"], 0, "{results}");
        let hops = results["hops"].as_array().expect("a list");
        assert!(hops.iter().any(|hop| hop["hop"] == "first_link"), "{results}");
    }
    let text = router("sim --nodes 2 --flows --ms 0.2");
    assert!(String::from_utf8_lossy(&text.stdout).contains("packets forwarded"), "{text:?}");
}

#[test]
fn figures_have_a_point_for_each_size_and_batch() {
    let report =
        json("figures --bytes 64,1518 --batch 1,32 --links 1 --us 50 --cpu sockets --json -");
    let points = report["results"].as_array().expect("a list");
    assert_eq!(points.len(), 4);
    assert!(points[1]["of_batch_1"].as_f64() > Some(3.7), "{report}");
    assert!(points.iter().all(|p| p["latency_p50_ns"].as_u64() > Some(0)), "{report}");
}

#[test]
fn errors_of_options_name_the_option_with_its_range_and_unit() {
    for (arguments, text) in [
        ("sim --nodes 1", "'1' for '--nodes <NODES>': write 2 to 32 nodes"),
        ("sim --nodes 33", "'33' for '--nodes <NODES>': write 2 to 32 nodes"),
        ("sim --bytes 63", "'63' for '--bytes <BYTES>': write 64 to 1518 bytes"),
        ("sim --load 0", "'0' for '--load <LOAD>': write 0.0001 to 100 per cent"),
        ("sim --load 150", "'150' for '--load <LOAD>': write 0.0001 to 100 per cent"),
        ("sim --load nan", "'nan' for '--load <LOAD>': write 0.0001 to 100 per cent"),
        ("sim --load inf", "'inf' for '--load <LOAD>': write 0.0001 to 100 per cent"),
        ("sim --ms 0", "'0' for '--ms <MS>': write 0.000001 to 10000 ms"),
        ("sim --ms inf", "'inf' for '--ms <MS>': write 0.000001 to 10000 ms"),
        ("sim --batch 0", "'0' for '--batch <BATCH>': write 1 to 64 packets"),
        ("sim --gbps 0", "'0' for '--gbps <GBPS>': write 1 to 1000 Gbit/s"),
        ("sim --gbps 1001", "'1001' for '--gbps <GBPS>': write 1 to 1000 Gbit/s"),
        ("figures --batch 1,65", "'65' for '--batch <BATCH>': write 1 to 64 packets"),
        ("figures --bytes 1519", "'1519' for '--bytes <BYTES>': write 64 to 1518 bytes"),
        ("figures --gbps 0", "'0' for '--gbps <GBPS>': write 1 to 1000 Gbit/s"),
    ] {
        let output = router(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(error.contains(text), "{arguments}: {error}");
        assert_eq!(output.status.code(), Some(2), "{arguments}: {error}");
    }
}
