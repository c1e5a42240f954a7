//! `courser-lab sim swarm` and `courser-lab sim replay`.

use crate::common::{json_of, refused, run, stderr, stdout};

#[test]
fn a_swarm_has_the_same_result_on_any_number_of_threads() {
    let first = json_of("sim swarm --seeds 6 --threads 1 --json -");
    let again = json_of("sim swarm --seeds 6 --threads 3 --json -");
    let keys: Vec<&str> =
        first.as_object().expect("an object").keys().map(String::as_str).collect();
    assert_eq!(keys, ["bench", "config", "environment", "results", "transport"]);
    assert_eq!((&first["bench"], &first["config"]["seeds"]), (&"swarm".into(), &6.into()));
    assert_eq!(first["results"], again["results"]);
    let [result] = first["results"].as_array().expect("a list").as_slice() else {
        panic!("one result: {first}")
    };
    let number = |key: &str| result[key].as_u64().unwrap_or_else(|| panic!("{key}: {result}"));
    assert_eq!((number("seeds"), number("violations")), (6, 0));
    assert!(number("rpcs") > 6_000 && number("packets") > number("rpcs"), "{result}");
    assert_eq!(result["digest"].as_str().map(str::len), Some(16));
    assert!(result["coverage"]["packet"]["request"]["count"].as_u64() > Some(6_000), "{result}");
    let other = json_of("sim swarm --seeds 6 --from 1 --json -");
    assert_ne!(first["results"][0]["digest"], other["results"][0]["digest"]);
}

#[test]
fn the_output_has_rates_and_coverage() {
    let output = run("sim swarm --seeds 3");
    assert!(output.status.success(), "{}", stderr(&output));
    for phrase in ["seeds 0 to 2", "a second", "violations 0, digest", "packets", "request"] {
        assert!(stdout(&output).contains(phrase), "{phrase}: {}", stdout(&output));
    }
}

#[test]
fn a_seed_is_replayed_with_its_faults_and_packets() {
    let output = run("sim replay --seed 3 --trace --last 7");
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(text.starts_with("seed 3: ") && text.contains("burst-loss"), "{text}");
    assert_eq!(text.lines().filter(|l| l.contains(" cookie ")).count(), 7, "{text}");
    let swarm = json_of("sim swarm --seeds 1 --from 3 --json -");
    let packets = format!("{} packets", swarm["results"][0]["packets"]);
    assert!(text.contains(&packets), "{packets}: {text}");
}

#[test]
fn all_lines_and_a_capture_are_written() {
    let path = std::env::temp_dir().join(format!("courser-replay-{}", std::process::id()));
    let output = run(&format!("sim replay --seed 3 --trace --all --pcapng {}", path.display()));
    let capture = std::fs::read(&path).expect("written");
    std::fs::remove_file(&path).expect("removed");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).lines().count() > 5_000);
    assert!(capture.len() > 100_000 && capture.starts_with(&0x0a0d_0d0a_u32.to_le_bytes()));
}

#[test]
fn invalid_arguments_are_refused() {
    refused("sim swarm --seeds 3 --json /nonexistent/place.json", "/nonexistent/place.json");
    refused("sim replay --seed 3 --pcapng /nonexistent/x.pcapng", "/nonexistent/x.pcapng");
    for line in ["sim swarm --seeds 0", "sim swarm --threads 0", "sim replay", "sim replay --all"] {
        assert_eq!(run(line).status.code(), Some(2), "{line}");
    }
}

/// In builds with planted bugs: the report of a violation.
#[cfg(feature = "mutants")]
#[test]
fn a_violation_has_its_seed_and_the_replay_command() {
    let output = run("sim swarm --seeds 50 --mutant answered-runs-again --json -");
    let error = crate::common::error_line(&output);
    assert_eq!(output.status.code(), Some(1), "{error}");
    assert!(error.contains("at-most-once violated at"), "{error}");
    let text = stderr(&output);
    let replay = text.split("\n  courser-lab ").nth(1).expect("a command").trim();
    assert!(replay.starts_with("sim replay --seed ") && replay.contains(" --trace"), "{replay}");
    let result: serde_json::Value =
        serde_json::from_str(&stdout(&output)).expect("one JSON object");
    assert_eq!(result["results"][0]["violations"], 1);
    assert_eq!(result["results"][0]["failed"][0]["invariant"], "at-most-once");
    let output = run(replay);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(stdout(&output).lines().filter(|l| l.contains(" cookie ")).count(), 200);
    assert!(crate::common::error_line(&output).contains("at-most-once violated at"));
    let all = run("sim swarm --seeds 8 --mutant 1 --keep-going --json -");
    let all: serde_json::Value = serde_json::from_str(&stdout(&all)).expect("one JSON object");
    assert!(all["results"][0]["violations"].as_u64() > Some(1), "{all}");
    assert_eq!(all["results"][0]["seeds"], 8);
}
