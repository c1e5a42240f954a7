use std::collections::BTreeSet;

use super::super::placement::Tag;
use super::*;

use super::example::*;

#[test]
fn keys_are_stable() {
    let json = serde_json::to_value(example()).expect("serializes");
    let keys = |value: &serde_json::Value| -> BTreeSet<String> {
        value.as_object().expect("object").keys().cloned().collect()
    };
    let set = |names: &[&str]| -> BTreeSet<String> { names.iter().map(|&n| n.into()).collect() };
    assert_eq!(keys(&json), set(&["bench", "config", "environment", "results", "transport"]));
    assert_eq!(
        keys(&json["environment"]),
        set(&[
            "client_cpu",
            "clock_error_ppm",
            "courser_version",
            "cpu_generation",
            "cpu_model",
            "cpu_quota",
            "cpus_online",
            "cpus_usable",
            "governor",
            "hypervisor",
            "kernel",
            "memory_bytes",
            "rmem_max",
            "server_cpu",
            "time_utc_s",
        ])
    );
    let mut expected =
        set(&["placement", "windows", "windows_dropped", "ratio_of", "pairs", "ratio_of_medians"]);
    for quantity in [
        "probe_ns",
        "latency_p50_ns",
        "latency_p99_ns",
        "raw_p50_ns",
        "raw_p99_ns",
        "rate_rps",
        "raw_rate_pps",
        "goodput_bps",
        "raw_goodput_bps",
        "ratio",
    ] {
        for suffix in ["", "_min", "_max", "_ci_low", "_ci_high"] {
            expected.insert(format!("{quantity}{suffix}"));
        }
    }
    assert_eq!(keys(&json["results"][0]), expected);
}

#[test]
fn a_report_reads_back_as_it_was_written() {
    let report = example();
    let text = serde_json::to_string(&report).expect("serializes");
    assert_eq!(serde_json::from_str::<Report>(&text).expect("parses"), report);
}

#[test]
fn placements_are_never_averaged() {
    let pairs = [
        pair(NEAR, 80, 100),
        pair(FAR, 10, 20),
        pair(Tag::Mixed, 1, 1),
        pair(NEAR, 82, 100),
        pair(Tag::Unprobed, 1, 1),
    ];
    let results = results(&outcome(pairs), Metric::Rate);
    assert_eq!(results.len(), 2);
    let (near, far) = (&results[0], &results[1]);
    assert_eq!((near.placement.as_str(), near.windows), ("near", 2));
    assert_eq!((far.placement.as_str(), far.windows), ("far", 1));
    assert_eq!((near.windows_dropped, near.pairs), (2, Some(2)));
    let rate = near.rate.expect("measured");
    assert_eq!(rate.rate_rps, 81_000.0);
    assert_eq!((rate.rate_rps_min, rate.rate_rps_max), (80_000.0, 82_000.0));
    assert_eq!(rate.rate_rps_ci_low, None, "two windows have no interval");
    assert!((near.ratio.expect("baseline").ratio - 0.81).abs() < 1e-9);
    assert_eq!(far.ratio.expect("baseline").ratio, 0.5);
    let probe = near.probe.expect("probed");
    assert_eq!((probe.probe_ns_min, probe.probe_ns_max), (100.0, 120.0));
    assert_eq!(near.raw_p99.expect("measured").raw_p99_ns, 320.0);
}

#[test]
fn the_ratio_is_of_the_metric_and_other_metrics_are_absent() {
    let results = results(&outcome([pair(NEAR, 1, 2)]), Metric::Latency);
    assert_eq!(results[0].ratio_of.as_deref(), Some("latency_p50_ns"));
    assert_eq!(results[0].ratio.expect("baseline").ratio, 1.25);
    let json = serde_json::to_value(&results[0]).expect("serializes");
    assert!(json.get("rate_rps").is_none() && json.get("goodput_bps").is_none());
}

#[test]
fn untagged_only_when_no_window_qualifies() {
    let pairs = [pair(Tag::Mixed, 10, 20), pair(Tag::Unprobed, 30, 60)];
    let results = results(&outcome(pairs), Metric::Rate);
    assert_eq!(results.len(), 1);
    assert_eq!(results[0].placement, "untagged");
    assert_eq!((results[0].windows, results[0].windows_dropped), (2, 0));
    assert!(super::results(&Outcome::default(), Metric::Rate).is_empty());
}

#[test]
fn without_a_baseline_there_is_no_ratio() {
    let mut alone = pair(NEAR, 10, 1);
    alone.raw = None;
    let results = results(&outcome([alone]), Metric::Rate);
    let json = serde_json::to_value(&results[0]).expect("serializes");
    for key in ["ratio", "ratio_of", "ratio_of_medians", "pairs", "raw_rate_pps"] {
        assert!(json.get(key).is_none(), "{key}");
    }
    assert_eq!(json["rate_rps"], 10_000.0);
}

#[test]
fn a_missing_window_is_counted_by_no_figure_and_no_ratio() {
    use super::super::window::{Compared, Seen};
    let sample = |operations| Sample { operations, elapsed_ns: 1_000, ..Sample::default() };
    let seen = |operations| Seen { tag: Tag::Unprobed, probes: None, sample: sample(operations) };
    let rounds = [vec![seen(10), seen(30)], vec![seen(10), Seen::MISSING], vec![Seen::MISSING; 2]];
    let outcome = Compared { measured: 1, baseline: Some(0) }.outcome(&rounds);
    let value = |pair: &Pair| Metric::Rate.value(&pair.measured);
    assert_eq!(over_pairs(&outcome, None, value).map(|rate| rate.count), Some(1));
    let ratio = ratio(&outcome, Metric::Rate, None).expect("one pair");
    assert_eq!((ratio.count, ratio.median), (1, 3.0));
}
