//! Small runs of each experiment of `courser-lab sim run`.

use crate::common::{json_of, refused, run, stderr, stdout};
use serde_json::Value;

fn results<'a>(report: &'a Value, bench: &str) -> &'a Vec<Value> {
    let object = report.as_object().expect("an object");
    for key in ["bench", "transport", "config", "results", "environment"] {
        assert!(object.contains_key(key), "{key}: {report}");
    }
    assert_eq!((report["bench"].as_str(), object.len()), (Some(bench), 5), "{report}");
    assert_eq!(report["transport"], "sim");
    report["results"].as_array().expect("a list")
}

#[test]
fn e76_has_all_keys_and_the_seed_determines_its_digest() {
    let line = "sim run e76 --nodes 5 --warm-up 50us --time 100us --json -";
    let report = json_of(line);
    let result = &results(&report, "e76")[0];
    for key in [
        "rate_per_node_rps",
        "wire_per_node_bps",
        "retransmitted_per_node_per_s",
        "sessions_per_node",
        "connect_ns",
        "wall_s",
        "deliveries_per_wall_s",
        "deliveries_per_cpu_s",
        "cpu_s",
        "prepare_wall_s",
    ] {
        assert!(result[key].is_number(), "{key}: {result}");
    }
    for key in ["count", "p50_ns", "p99_ns", "p99_9_ns", "p99_99_ns", "max_ns"] {
        assert!(result["latency"][key].as_u64() > Some(0), "{key}: {result}");
    }
    assert_eq!(report["config"]["nodes"], 5);
    assert_eq!(result["digest"].as_str().expect("a digest").len(), 16);
    let again = json_of(line);
    assert_eq!(results(&again, "e76")[0]["digest"], result["digest"]);
    let other = json_of(&format!("{line} --seed 2"));
    assert_ne!(results(&other, "e76")[0]["digest"], result["digest"]);
}

#[test]
fn smaller_experiments_have_a_result_for_each_point() {
    let report = json_of("sim run credits --max-credits 3 --json -");
    let points = results(&report, "credits")[0]["points"].as_array().expect("points").clone();
    let credits: Vec<_> = points.iter().map(|p| p["credits"].as_u64()).collect();
    assert_eq!(credits, [Some(1), Some(2), Some(3)]);
    let report = json_of("sim run response-rtt --max-packets 2 --json -");
    let result = &results(&report, "response-rtt")[0];
    assert_eq!(result["points"][0]["extra_ns"], 0);
    assert!(result["points"][1]["extra_rtt_ppm"].as_u64() < Some(1_000_000));
    let line = "sim run buffers --senders 4 --static-bytes 20000 --time 1ms --json -";
    let points = json_of(&format!("{line} --control none --recovery go-back-n"));
    let points = results(&points, "buffers");
    assert_eq!((points.len(), &points[0]["is_static"]), (2, &false.into()));
    assert!(points[1]["overflows"].as_u64() > points[0]["overflows"].as_u64(), "{points:?}");
    let report = json_of("sim run speed --rounds 1 --window 10ms --json -");
    assert_eq!(results(&report, "speed").len(), 3);
}

#[test]
fn an_incast_is_compared_with_calculated_values_and_can_be_traced() {
    let directory = std::env::temp_dir().join(format!("courser-sim-{}", std::process::id()));
    std::fs::create_dir_all(&directory).expect("directory");
    let (trace, capture) = (directory.join("trace.txt"), directory.join("all.pcapng"));
    let output = run(&format!(
        "sim run incast --senders 2 --warm-up 1us --time 20us --trace {} --pcapng {}",
        trace.display(),
        capture.display()
    ));
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    assert!(text.contains("calculated") && text.contains("goodput"), "{text}");
    let lines = std::fs::read_to_string(&trace).expect("a trace");
    assert!(lines.lines().any(|line| line.contains("n1")), "{lines}");
    let bytes = std::fs::read(&capture).expect("a capture");
    assert_eq!(bytes.get(..4), Some(&[0x0a, 0x0d, 0x0d, 0x0a][..]), "a section header");
    std::fs::remove_dir_all(&directory).expect("clean up");
}

/// A network of four billion hosts would not fit in memory.
#[test]
fn settings_are_checked_before_networks_are_built_and_files_are_opened() {
    let out_of_range = "senders = 4294967295 is out of range; use 1 to 999";
    refused("sim run incast --senders 4294967295", out_of_range);
    refused("sim run incast --senders 1,4294967295 --time 10s", out_of_range);
    let name = format!("courser-sim-{}-refused.txt", std::process::id());
    let trace = std::env::temp_dir().join(name);
    refused(&format!("sim run incast --senders 1000 --trace {}", trace.display()), "senders");
    assert!(!trace.exists());
}

#[test]
fn invalid_arguments_are_refused() {
    refused("sim run e76 --nodes 1", "nodes = 1 is out of range");
    refused("sim run e76 --in-flight 61", "multiple of the batch");
    refused("sim run incast --senders 900", "960 MiB");
    refused("sim run credits --rtt 1us", "rtt_ns");
    refused("sim run incast --json /absent/out.json", "cannot write");
    refused("sim run incast --trace /absent/trace.txt", "cannot write");
    refused("sim run incast --seeds 2 --trace target/trace.txt", "need a single run");
    refused("sim run incast --control none,default --pcapng target/all", "need a single run");
    refused("sim run uplink --seeds 0", "0 is not in 1..=1000");
    refused("sim run uplink --flows 3", "2 to 64, even");
    refused("sim run first-burst --buffer-bytes 0", "use at least 1");
    refused("sim run everything", "everything");
}

#[test]
fn experiments_of_congestion_control_have_a_result_for_each_control_and_recovery() {
    let schemes = "--control none,default --recovery go-back-n,default --json -";
    for (line, bench, each, keys) in [
        (
            "background --senders 3 --warm-up 100us --time 200us",
            "background",
            1,
            &["background_p99_ratio", "to_victim_p99_ratio"][..],
        ),
        ("join-leave --senders 2 --every 200us", "join-leave", 1, &["jain_after_join"]),
        ("first-burst --senders 2 --rounds 1", "first-burst", 3, &["ratio", "request_bytes"]),
        ("uplink --flows 2 --time 100us", "uplink", 4, &["innocent_share", "mark_bytes"]),
        ("reroute --senders 1", "reroute", 1, &["before_share", "senders"]),
        ("slow-handler --handler worker --size 32", "slow-handler", 1, &["slow_ns"]),
        ("uncongested --nodes 3 --time 100us", "uncongested", 1, &["calls_rps", "load"]),
        (
            "operating-range --gbps 10 --rtt 5us --frames 1072 --jitter 0us,20us --senders 2 --rtts 1",
            "operating-range",
            2,
            &["goodput_share", "rate_bps", "base_rtt_ns", "jitter_ns", "max_frame"],
        ),
    ] {
        let report = json_of(&format!("sim run {line} {schemes}"));
        let results = results(&report, bench);
        assert_eq!(results.len(), 4 * each, "{line}");
        for (at, result) in results.iter().enumerate() {
            let control = if at < 2 * each { "none" } else { "default" };
            let recovery = if at / each % 2 == 0 { "go-back-n" } else { "default" };
            assert_eq!(
                (&result["control"], &result["recovery"]),
                (&control.into(), &recovery.into())
            );
            assert_eq!(result["default"], control == "default", "{line}");
            assert!(keys.iter().all(|&key| result[key].is_number()), "{line}: {result}");
        }
    }
}

#[test]
fn an_incast_states_the_time_from_call_to_completion() {
    let line = "sim run incast --senders 2 --size 64KiB --warm-up 100us --time 1ms --json -";
    let report = json_of(line);
    let completion = &results(&report, "incast")[0]["completion"];
    for key in ["p50_ns", "p99_ns"] {
        assert!(completion[key].as_u64() > Some(20_000), "{key}: {completion}");
    }
}

#[test]
fn several_seeds_are_a_result_each_and_a_range_in_the_table() {
    for (line, bench) in [
        ("incast --senders 2,3 --control default --warm-up 100us --time 200us", "incast"),
        ("fan-in --servers 2,3 --control default --rounds 1", "fan-in"),
        ("buffers --senders 4 --static-bytes 20000 --time 100us --control none", "buffers"),
        ("bandwidth --sizes 512,1KiB --time 100us", "bandwidth"),
        ("uncongested --nodes 3 --time 200us", "uncongested"),
    ] {
        let one = json_of(&format!("sim run {line} --seed 8 --json -"));
        let line = format!("sim run {line} --seed 7 --seeds 3");
        let report = json_of(&format!("{line} --json -"));
        let (one, all) = (results(&one, bench), results(&report, bench));
        assert_eq!(all.len(), 3 * one.len(), "{line}");
        let seeds: Vec<_> = all.iter().map(|result| result["seed"].as_u64()).collect();
        assert_eq!(seeds, [Some(7), Some(8), Some(9)].repeat(one.len()), "{line}");
        for (runs, alone) in all.chunks(3).zip(one) {
            assert_eq!(&runs[1], alone, "{line}: the run of a seed is the same among others");
        }
        let text = stdout(&run(&line));
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("medians of seeds 7 to 9"), "{text}");
    }
    let text = stdout(&run("sim run uncongested --nodes 3 --time 200us --seeds 3"));
    assert!(text.contains("\nmin ") && text.contains("\nmax "), "{text}");
}
