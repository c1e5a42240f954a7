//! Small runs of `courser-lab sim loss`, `fct`, `bits-pool` and `lost-call`.

use crate::common::{json_of, refused, run, stderr, stdout};
use serde_json::Value;

fn results<'a>(report: &'a Value, bench: &str) -> &'a Vec<Value> {
    assert_eq!((&report["bench"], &report["transport"]), (&bench.into(), &"sim".into()));
    report["results"].as_array().expect("a list")
}

fn numbers(result: &Value, keys: &[&str]) {
    for key in keys {
        assert!(result[key].is_number(), "{key}: {result}");
    }
}

#[test]
fn each_scheme_has_a_row_for_each_loss() {
    let line = "sim loss --loss 0,1e-2 --warm-up 1ms --time 3ms --request 2MiB --json -";
    let report = json_of(line);
    let rows = results(&report, "loss");
    let named: Vec<_> =
        rows.iter().map(|r| (r["scheme"].as_str().unwrap(), r["loss"].as_f64().unwrap())).collect();
    let expected =
        ["go-back-n", "go-back-n-nack", "melo", "default"].map(|s| [(s, 0.0), (s, 0.01)]);
    assert_eq!(named, expected.concat());
    for row in rows {
        numbers(row, &["goodput_bps", "link_bps", "goodput_fraction", "retransmitted"]);
        numbers(row, &["spurious_fraction", "timeouts", "packets", "lost"]);
        assert_eq!(row["link_bps"], 40_000_000_000_u64);
    }
    assert_eq!((&rows[0]["goodput_fraction"], &rows[0]["control"]), (&1.0.into(), &"dcqcn".into()));
    assert_eq!(report["config"]["controls"], serde_json::json!(["dcqcn"]));
    assert!(rows[1]["goodput_fraction"].as_f64() < Some(0.5), "{}", rows[1]);
    assert_eq!(json_of(line)["results"], report["results"], "the same seed, the same run");
}

#[test]
fn several_seeds_have_a_median_and_a_range() {
    let small = "--warm-up 1ms --time 1ms --request 1MiB";
    let line = format!("sim loss --scheme go-back-n-nack --loss 1e-2 {small}");
    let of = |args: &str| json_of(&format!("{line} {args} --json -"))["results"][0].clone();
    let alone: Vec<f64> = (4..7)
        .map(|seed| of(&format!("--seed {seed}"))["goodput_fraction"].as_f64().unwrap())
        .collect();
    let all = of("--seed 4 --seeds 3");
    let mut sorted = alone.clone();
    sorted.sort_by(f64::total_cmp);
    assert_eq!(all["seeds"], 3);
    for (key, value) in [("", sorted[1]), ("_min", sorted[0]), ("_max", sorted[2])] {
        assert_eq!(all[format!("goodput_fraction{key}")], value, "{key}");
    }
    let table = stdout(&run(&format!("{line} --seeds 2 --control none,dcqcn")));
    let words = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("range") && words.contains("seeds 1 to 2"), "{table}");
    assert!(words.contains("figure 1") && table.contains("\ndcqcn\nmin "), "{table}");
    let line = "sim fct --hosts 20 --flows 12 --lanes 2 --load 0.3 --seeds 2 --json -";
    let report = json_of(line);
    let melo = &results(&report, "fct")[2];
    assert!(melo["better_than_go_back_n_nack"]["min"].is_number(), "{melo}");
    assert!(melo["fct_p99_min_ns"].as_u64() <= melo["fct_p99_max_ns"].as_u64());
}

#[test]
fn a_picture_has_every_scheme_and_the_paper_s_points() {
    let path = std::env::temp_dir().join(format!("courser-loss-{}.svg", std::process::id()));
    let line = "sim loss --loss 1e-3,1e-2 --warm-up 1ms --time 1ms --request 1MiB";
    let output = run(&format!("{line} --svg {}", path.display()));
    assert!(output.status.success(), "{}", stderr(&output));
    let table = stdout(&output);
    assert!(table.contains("lossless") && table.contains("45.6 %"), "{table}");
    let picture = std::fs::read_to_string(&path).expect("a picture");
    std::fs::remove_file(&path).expect("clean up");
    assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
    for text in
        ["go-back-n", "melo", "default", "go-back-n in the paper", "chance that a packet is lost"]
    {
        assert!(picture.contains(text), "{text}");
    }
}

#[test]
fn sweeps_vary_recovery_time_or_reordering() {
    let small = "--warm-up 1ms --time 1ms --request 1MiB --json -";
    let report = json_of(&format!("sim loss --rto-sweep=100us,200us {small}"));
    let rows = results(&report, "loss");
    assert_eq!(
        (rows.len(), &rows[0]["scheme"], &rows[0]["loss"]),
        (2, &"melo".into(), &0.01.into())
    );
    assert_eq!((&rows[0]["rto_ns"], &rows[1]["rto_ns"]), (&100_000.into(), &200_000.into()));
    let report = json_of(&format!("sim loss --scheme default --reorder 1%:48us,5%:48us {small}"));
    let rows = results(&report, "loss");
    assert_eq!((rows.len(), &rows[1]["reorder"]), (2, &0.05.into()));
    assert_eq!((&rows[0]["loss"], &rows[0]["rto_ns"]), (&0.0.into(), &Value::Null));
}

#[test]
fn flows_have_a_row_for_each_scheme_and_load() {
    let path = std::env::temp_dir().join(format!("courser-fct-{}.svg", std::process::id()));
    let small = "--hosts 20 --flows 12 --lanes 2 --json -";
    let report = json_of(&format!("sim fct --load 0.2,50% {small} --svg {}", path.display()));
    let rows = results(&report, "fct");
    assert_eq!((rows.len(), &report["config"]["hosts"]), (8, &20.into()));
    for row in rows {
        numbers(row, &["load", "fct_p50_ns", "fct_p99_ns", "fct_mean_ns", "flows", "shared"]);
        assert_eq!(row["flows"], 12);
    }
    assert_eq!((&rows[1]["scheme"], &rows[1]["load"]), (&"go-back-n".into(), &0.5.into()));
    let picture = std::fs::read_to_string(&path).expect("a picture");
    std::fs::remove_file(&path).expect("clean up");
    assert!(picture.contains("load") && picture.contains("melo in the paper"));
}

#[test]
fn the_bits_pool_and_small_calls_have_all_keys() {
    let line = "sim bits-pool --connections 1,4 --loss 1% --rtt 50us --time 2ms --json -";
    let report = json_of(line);
    let rows = results(&report, "bits-pool");
    assert_eq!(rows.len(), 2);
    for row in rows {
        numbers(row, &["connections", "loss", "pool_fraction", "bits_peak", "refused"]);
    }
    let report = json_of("sim lost-call --calls 2000 --loss 1% --json -");
    let rows = results(&report, "lost-call");
    assert_eq!((rows.len(), &rows[2]["scheme"]), (3, &"default".into()));
    for row in rows {
        numbers(row, &["rtt_ns", "bound_ns", "worst_rtts"]);
        numbers(&row["lost_one"], &["count", "p50_ns", "p99_ns", "max_ns"]);
    }
    let text = stdout(&run("sim lost-call --calls 200 --scheme default"));
    assert!(text.contains("lost one packet") && text.contains("reordering"), "{text}");
    let text = stdout(&run("sim bits-pool --connections 1 --loss 1% --rtt 50us --time 1ms"));
    assert!(text.contains("pool") && text.contains("peak"), "{text}");
}

#[test]
fn help_has_examples_and_flags() {
    for (command, phrases) in [
        ("fct", &["--load", "--hosts", "--flows", "web search", "--svg", "spine"][..]),
        ("bits-pool", &["--connections", "1,024 bits", "65.6 %"]),
        ("lost-call", &["--in-flight", "reordering window", "--calls"]),
        (
            "loss",
            &[
                "go-back-n",
                "melo",
                "--rto-sweep",
                "--reorder",
                "5%:48us",
                "--fit",
                "--svg",
                "45.6 %",
            ],
        ),
    ] {
        // Lines break where the terminal ends.
        let text = stdout(&run(&format!("sim {command} --help"))).replace('\n', " ");
        for phrase in phrases.iter().chain(&["Examples:", "--json"]) {
            assert!(text.contains(phrase), "{command}: {phrase}: {text}");
        }
    }
    assert!(stdout(&run("sim --help")).contains("loss"));
}

#[test]
fn invalid_arguments_are_refused() {
    refused("sim loss --loss 1e-7", "in millionths");
    refused("sim loss --loss 0.6", "loss_ppm = 60% is out of range");
    refused("sim loss --scheme tcp", "choose go-back-n, go-back-n-nack, melo or default");
    refused("sim loss --rtt 2us", "rtt_ns = 2000ns is out of range; use at least 2");
    refused("sim loss --request 1k --outstanding 9", "outstanding");
    refused("sim loss --reorder 5%", "5%:48us");
    refused("sim loss --fit --rto 1ms", "--rto");
    refused("sim loss --svg /absent/loss.svg", "cannot write");
    refused("sim fct --hosts 50", "a multiple of 20");
    refused("sim fct --load 99%", "load_ppm");
    refused("sim fct --load much", "a share of a link");
    refused("sim bits-pool --connections 0", "connections");
    refused("sim lost-call --calls 1", "100 to 10000000");
    refused("sim loss --json /absent/loss.json", "cannot write");
}
