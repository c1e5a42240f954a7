//! Benchmarks under faults, and the choice of loss recovery.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::common::{Server, json_of, refused, run, stderr, stdout};
use serde_json::Value;

const SCHEMES: [&str; 3] = ["go-back-n", "melo", "default"];

/// Counters of loss recovery.
const COUNTERS: [&str; 6] =
    ["tx_packets", "retransmitted", "rollbacks", "lost", "probes", "spurious"];

/// Benchmarks poll on two cores: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn results(line: &str) -> Vec<Value> {
    let report = json_of(&format!("bench {line} --quick --json -"));
    assert_eq!(report["config"]["faults_of"], "frames that either side sends", "{report}");
    report["results"].as_array().expect("a list").clone()
}

/// The results of a scheme under a loss: one for each placement that occurred.
fn of<'a>(results: &'a [Value], scheme: &str, loss: f64) -> Vec<&'a Value> {
    let found = results.iter().filter(|r| r["scheme"] == scheme && r["loss"] == loss);
    let found: Vec<_> = found.collect();
    assert!(!found.is_empty(), "{scheme} {loss}: {results:?}");
    found
}

/// The report of a benchmark, repeated until its results have a comparison. A comparison needs windows of both
/// sides in one round, and windows that other programs disturb are dropped: a run on a busy machine may
/// have no such round.
fn report_with(line: &str, compared: impl Fn(&[Value]) -> bool) -> Value {
    let mut last = Value::Null;
    for _ in 0..10 {
        last = json_of(&format!("bench {line} --quick --json -"));
        if compared(list(&last)) {
            return last;
        }
    }
    panic!("no run has a comparison: {last}")
}

fn list(report: &Value) -> &[Value] {
    report["results"].as_array().expect("a list")
}

/// True if each result of a scheme under a loss has a positive value at each key.
fn have(results: &[Value], scheme: &str, loss: f64, keys: &[&str]) -> bool {
    let positive = |result: &&Value| keys.iter().all(|&key| result[key].as_f64() > Some(0.0));
    of(results, scheme, loss).iter().all(positive)
}

#[test]
fn every_scheme_gets_large_requests_through_losses_on_every_transport() {
    let _alone = alone();
    // Schemes that were compared with the same without faults, and with go-back-n. A comparison needs
    // windows of both in one round, and windows that other programs disturb are dropped.
    let (mut with_sound, mut with_go_back_n) = (BTreeSet::new(), BTreeSet::new());
    for transport in ["mem", "shm --frame-size 1072", "udp"] {
        let line = format!(
            "bandwidth --transport {transport} --size 512KiB --pairs 3 --fault loss=0.02 \
             --recovery go-back-n,melo,default"
        );
        let results = results(&line);
        for scheme in SCHEMES {
            for result in of(&results, scheme, 0.0) {
                assert_eq!(
                    (&result["fault"], &result["goodput_fraction"]),
                    (&"none".into(), &1.0.into())
                );
            }
            for result in of(&results, scheme, 0.02) {
                assert_eq!(result["fault"], "loss=0.02");
                assert!(result["goodput_bps"].as_f64() > Some(0.0), "{result}");
                assert!(result["retransmitted"].as_u64() > Some(0), "{result}");
                assert!(COUNTERS.iter().all(|key| result[key].is_u64()), "{result}");
                let compared =
                    [("goodput_fraction", &mut with_sound), ("of_go_back_n", &mut with_go_back_n)];
                for (key, schemes) in compared {
                    if let Some(share) = result[key].as_f64() {
                        assert!(share > 0.0, "{key}: {result}");
                        schemes.insert(scheme);
                    }
                }
            }
        }
        // Go-back-N only rolls back; the other schemes detect lost packets.
        assert!(of(&results, "go-back-n", 0.02).iter().all(|r| r["lost"] == 0), "{results:?}");
        for scheme in ["melo", "default"] {
            let lost = |r: &&Value| r["lost"].as_u64() > Some(0);
            assert!(of(&results, scheme, 0.02).iter().all(lost), "{scheme}: {results:?}");
        }
    }
    assert_eq!(with_sound, BTreeSet::from(SCHEMES));
    assert_eq!(with_go_back_n, BTreeSet::from(["melo", "default"]), "go-back-n is the measure");
}

#[test]
fn small_calls_and_round_trips_are_compared_with_those_without_faults() {
    let _alone = alone();
    let losses = "--fault loss=0.01 --fault loss=0.02,reorder=0.01,span=4,loss=0.03 --pairs 1";
    let rates = report_with(&format!("rate --transport shm {losses}"), |results| {
        have(results, "default", 0.01, &["rate_rps", "rate_fraction"])
    });
    let faults: Vec<_> = list(&rates).iter().filter_map(|r| r["fault"].as_str()).collect();
    for fault in ["none", "loss=0.01", "loss=0.02,reorder=0.01,span=4", "loss=0.03"] {
        assert!(faults.contains(&fault), "{faults:?}");
    }
    report_with(&format!("latency --transport mem {losses}"), |results| {
        have(results, "default", 0.01, &["latency_p50_fraction", "latency_p999_ns"])
    });
}

#[test]
fn schemes_are_also_compared_without_faults() {
    let _alone = alone();
    let line = "bandwidth --transport mem --size 64KiB --pairs 1 --recovery";
    let both = report_with(&format!("{line} go-back-n,default"), |results| {
        have(results, "default", 0.0, &["of_go_back_n"])
    });
    assert_eq!(both["config"]["faults_of"], "none");
    let default = of(list(&both), "default", 0.0);
    assert!(default.iter().all(|r| r["goodput_fraction"].is_null()), "{both}");

    let one = json_of(&format!("bench {line} melo --quick --json -"));
    assert_eq!(one["config"]["recovery"], "melo");
    assert!(one["results"][0]["raw_goodput_bps"].is_f64(), "{one}");
}

#[test]
fn the_table_has_each_scheme_and_fault() {
    let _alone = alone();
    let output = run("bench bandwidth --quick --anyway --pairs 1 --transport mem --size 512KiB \
                      --fault loss=0.02 --recovery go-back-n,default");
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    for phrase in
        ["go-back-n none", "default loss=0.02", "of the same without faults", "of go-back-n"]
    {
        assert!(text.contains(phrase), "{phrase}: {text}");
    }
}

#[test]
fn invalid_faults_and_schemes_are_refused_with_a_remedy() {
    let bad = |line: &str, hint: &str| {
        let output = run(line);
        assert_eq!(output.status.code(), Some(2), "{line}");
        assert!(stderr(&output).contains(hint), "{line}: {}", stderr(&output));
    };
    bad("bench rate --fault 1e-3", "write loss=1e-3");
    bad("bench rate --fault loss=1e-9", "1e-6 to 1");
    bad("bench rate --recovery sack", "choose go-back-n, go-back-n-nack, melo or default");
    bad("serve --recovery sack", "choose go-back-n, go-back-n-nack, melo or default");
    bad("bench rate --fault loss=1e-3 --connect udp://127.0.0.1:1", "--connect");
    refused("bench rate --fault loss=1e-3 --symmetric", "--symmetric has no meaning");
    refused("bench rate --fault loss=1e-3 --batch 1,3", "--batch with several values");
    let many: Vec<_> = (1..9).map(|n| format!("loss=0.0{n}")).collect();
    let line = format!("bench rate --fault {} --recovery go-back-n,melo,default", many.join(","));
    refused(&line, "name fewer schemes or faults");
    refused("bench bandwidth --size 200MiB --fault loss=1e-3 --recovery go-back-n,melo", "smaller");
}

#[test]
fn a_server_with_go_back_n_overrides_clients_and_ping_and_stat_show_it() {
    let own = |server: &Server| {
        let report = json_of(&format!("stat {} --once --json -", server.uri));
        let result = &report["results"][0];
        for key in ["lost", "probes", "spurious", "gaps", "melo_refused"] {
            assert_eq!(result["counters"][key], 0, "{key}: {result}");
        }
        let sessions = result["sessions"].as_array().expect("sessions");
        let own = sessions.iter().find(|s| s["session"] == result["asked_by"]).expect("its own");
        own["recovery"].as_str().expect("a scheme").to_owned()
    };
    let pinged = |server: &Server, scheme: &str| {
        let line = format!("ping {} --count 1 --timeout 20s --recovery {scheme}", server.uri);
        json_of(&format!("{line} --json -"))["config"]["recovery"].clone()
    };
    let server = Server::local();
    assert_eq!(own(&server), "default");
    for scheme in SCHEMES {
        assert_eq!(pinged(&server, scheme), scheme);
    }
    let server = Server::start("serve --bind udp://127.0.0.1:0 --recovery go-back-n");
    assert_eq!(own(&server), "go-back-n");
    assert_eq!(pinged(&server, "melo"), "go-back-n");
    let text = stdout(&run(&format!("stat {} --once", server.uri)));
    for column in ["lost", "probes", "spurious", "recovery", "go-back-n"] {
        assert!(text.contains(column), "{column}: {text}");
    }
}
