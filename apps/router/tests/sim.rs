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

/// The recorded figures of the three topologies (S1): a line for each run, so that changes are seen.
const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/topologies.tsv");

/// Throughput as a share of the ports, latency, and that of each link between nodes, p50 and p99.
fn figures_of(topology: &str, batch: u32, load: u32) -> Vec<f64> {
    let report =
        json(&format!("sim --topology {topology} --batch {batch} --load {load} --ms 0.2 --json -"));
    let results = &report["results"];
    let number = |value: &Value| value.as_f64().expect("a number");
    let line_pps = 10e9 / 8.0 / 84.0;
    let share = number(&results["throughput_pps"]) / (4.0 * line_pps);
    let dropped = number(&results["packets_offered"]) - number(&results["packets_forwarded"]);
    let mut figures = vec![share, dropped];
    let times = |of: &Value| [number(&of["latency_p50_ns"]), number(&of["latency_p99_ns"])];
    figures.extend(times(&results["end_to_end"]));
    let hops = results["hops"].as_array().expect("a list");
    let links = hops.iter().filter(|hop| hop["hop"] == "first_link" || hop["hop"] == "second_link");
    figures.extend(links.flat_map(times));
    figures
}

#[test]
fn the_topologies_have_the_figures_that_are_recorded() {
    let mut now = String::from(
        "topology\tbatch\tload %\tthroughput, share of the ports\tdropped\tp50, ns\tp99\t\
         first link p50\tp99\tsecond link p50\tp99\n",
    );
    let recorded = std::fs::read_to_string(RECORDED).unwrap_or_default();
    let mut lines = recorded.lines().skip(1);
    for topology in ["mesh", "switch", "mixed"] {
        for batch in [32, 1] {
            for load in [10, 50, 90] {
                let name = format!("{topology}\t{batch}\t{load}");
                let figures = figures_of(topology, batch, load);
                let texts: Vec<_> = figures.iter().map(|f| format!("{:.3}", f)).collect();
                now += &format!("{name}\t{}\n", texts.join("\t").replace(".000", ""));
                if std::env::var_os("COURSER_RECORD").is_some() {
                    continue;
                }
                let values = lines.next().and_then(|line| line.strip_prefix(&name));
                let values = values.unwrap_or_else(|| panic!("{name} is not recorded"));
                let values = values.split_whitespace().map(|v| v.parse::<f64>().expect("a number"));
                for (at, (is, was)) in figures.iter().zip(values).enumerate() {
                    // Latencies grow without limit at the load that a router carries.
                    let tolerance = if at == 0 { 0.02 } else { 0.25 * was + 200.0 };
                    assert!((is - was).abs() <= tolerance, "{name}: {is} at {at}, recorded {was}");
                }
            }
        }
    }
    // `COURSER_RECORD=1` records anew.
    if std::env::var_os("COURSER_RECORD").is_some() {
        std::fs::write(RECORDED, now).expect("writes");
    }
}
