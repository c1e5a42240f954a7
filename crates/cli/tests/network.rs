//! Processes that talk to each other: serve, ping, bench, quickstart.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::Stdio;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::common::{
    Server, children, courser, error_line, json_of, lives, refused, run, signal, stderr, stdout,
};
use serde_json::Value;

/// Benchmarks poll on two cores: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asserts the five keys of a report and returns its results, each with its placement.
fn results(report: &Value) -> &Vec<Value> {
    let object = report.as_object().expect("an object");
    for key in ["bench", "transport", "config", "results", "environment"] {
        assert!(object.contains_key(key), "{key}: {report}");
    }
    assert_eq!(object.len(), 5, "{report}");
    let results = report["results"].as_array().expect("a list");
    assert!(!results.is_empty(), "{report}");
    for result in results {
        let placement = result["placement"].as_str().expect("a placement");
        assert!(["near", "far", "untagged"].contains(&placement), "{result}");
        assert!(result["windows"].as_u64() > Some(0), "{result}");
    }
    results
}

fn positive(result: &Value, key: &str) {
    assert!(result[key].as_f64() > Some(0.0), "{key}: {result}");
}

#[test]
fn a_server_that_others_reach_names_its_ports() {
    let server = Server::start("serve --bind udp://0.0.0.0:0");
    let port = server.uri.rsplit_once(':').expect("a port").1.to_owned();
    assert!(server.said.contains("ports to open"), "{}", server.said);
    assert!(server.said.contains(&format!("TCP {port}")), "{}", server.said);
    assert!(server.said.contains("UDP "), "{}", server.said);
}

#[test]
fn the_ping_command_that_a_server_prints_works() {
    let mut server = Server::local();
    let port = server.uri.rsplit_once(':').expect("a port").1.to_owned();
    assert_ne!(port, "0");
    assert!(server.uri.starts_with("udp://127.0.0.1:"), "{}", server.said);
    assert!(!server.said.contains("ports to open"), "closed to others: {}", server.said);

    let output = run(&format!("ping {} --count 3 --interval 5ms --timeout 20s", server.uri));
    let text = stdout(&output);
    assert!(output.status.success(), "{text}{}", stderr(&output));
    assert_eq!(text.lines().filter(|line| line.contains("seq=")).count(), 3, "{text}");
    assert!(text.contains("3 answered, 0 % lost"), "{text}");
    for word in ["min", "p50", "p99", "max"] {
        assert!(text.contains(word), "{word}: {text}");
    }
    assert!(!text.contains('\x1b'));

    signal(server.child.id(), "INT");
    let mut rest = String::new();
    server.out.read_to_string(&mut rest).expect("reads");
    assert!(rest.contains("served 3 requests"), "{rest}");
    assert!(server.child.wait().expect("ends").success());
}

#[test]
fn every_thread_echoes_messages_of_every_size() {
    let server = Server::start("serve --bind udp://127.0.0.1:0 --threads 2");
    assert!(server.said.contains("2 endpoints"), "{}", server.said);
    for size in ["1", "1500", "64KiB", "8MiB"] {
        let options = "--count 2 --interval 0ms --timeout 20s --quiet";
        let output = run(&format!("ping {} {options} --size {size}", server.uri));
        assert!(output.status.success(), "{size}: {}", stderr(&output));
        assert_eq!(stdout(&output).lines().count(), 2, "a summary only: {}", stdout(&output));
    }
}

#[test]
fn a_ping_writes_json() {
    let server = Server::local();
    let options = "--count 4 --interval 1ms --timeout 20s --json -";
    let report = json_of(&format!("ping {} {options}", server.uri));
    let result = &results(&report)[0];
    assert_eq!(report["bench"], "ping");
    assert_eq!((&result["sent"], &result["answered"]), (&4.into(), &4.into()));
    let times = ["min", "p50", "p99", "max"].map(|at| result[format!("latency_{at}_ns")].as_u64());
    assert!(times[0] > Some(0) && times.is_sorted(), "{result}");
}

#[test]
fn a_port_without_a_server_is_an_error() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = free.local_addr().expect("its number").port();
    drop(free);
    refused(
        &format!("ping udp://127.0.0.1:{port}"),
        "start the server there, or check the address",
    );
    let line = format!("bench latency --quick --connect udp://127.0.0.1:{port}");
    refused(&line, "start the server there, or check the address");
}

#[test]
fn a_port_in_use_is_an_error() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("its number").port();
    refused(&format!("serve --bind udp://127.0.0.1:{port}"), "another process has the port");
}

#[test]
fn a_server_that_dies_ends_a_ping_with_status_1() {
    let mut server = Server::local();
    let mut ping = courser(&format!("ping {} --count 0 --interval 5ms", server.uri));
    let mut ping = ping.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let mut out = BufReader::new(ping.stdout.take().expect("a pipe"));
    out.read_line(&mut String::new()).expect("an answer");
    server.child.kill().expect("killed");
    let mut rest = String::new();
    out.read_to_string(&mut rest).expect("ends by itself");
    let output = ping.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(1), "{rest}");
    assert!(error_line(&output).contains("is gone"), "{}", stderr(&output));
    assert!(rest.contains("answered"), "a summary all the same: {rest}");
}

#[test]
fn an_interrupted_ping_prints_its_summary() {
    let server = Server::local();
    let mut ping = courser(&format!("ping {} --count 0 --interval 1s", server.uri));
    let mut ping = ping.stdout(Stdio::piped()).spawn().expect("starts");
    let mut out = BufReader::new(ping.stdout.take().expect("a pipe"));
    out.read_line(&mut String::new()).expect("an answer");
    signal(ping.id(), "INT");
    let mut rest = String::new();
    out.read_to_string(&mut rest).expect("ends by itself");
    assert!(rest.contains("1 call of 32 B, 1 answered"), "{rest}");
    assert!(ping.wait().expect("ends").success());
}

#[test]
fn a_ping_with_a_closed_output_ends_without_an_error() {
    let server = Server::local();
    let mut ping = courser(&format!("ping {} --count 0 --interval 1ms", server.uri));
    let mut ping = ping.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
    let mut out = BufReader::new(ping.stdout.take().expect("a pipe"));
    out.read_line(&mut String::new()).expect("a line, as `head -1` takes");
    drop(out);
    let output = ping.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(0));
    assert!(!stderr(&output).contains("error"), "{}", stderr(&output));
}

#[test]
fn each_benchmark_reports_its_quantities() {
    let _alone = alone();
    for (bench, keys) in [
        ("latency", &["latency_p50_ns", "latency_p99_ns", "raw_p50_ns"][..]),
        ("rate", &["rate_rps", "raw_rate_pps"]),
        ("bandwidth --size 256KiB", &["goodput_bps", "raw_goodput_bps"]),
    ] {
        let report = json_of(&format!("bench {bench} --quick --pairs 2 --json -"));
        assert_eq!(report["bench"], bench.split(' ').next().expect("a name"));
        for result in results(&report) {
            keys.iter().for_each(|key| positive(result, key));
            positive(result, "ratio");
        }
    }
}

#[test]
fn a_benchmark_can_use_a_running_server() {
    let _alone = alone();
    let server = Server::local();
    let output = run(&format!("bench latency --quick --anyway --pairs 2 --connect {}", server.uri));
    let text = stdout(&output);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(text.contains("untagged") && text.contains("latency p50"), "{text}");
    assert!(!text.contains("raw p50"), "{text}");
}

#[test]
fn quickstart_writes_a_table_and_a_file() {
    let _alone = alone();
    let dir = std::env::temp_dir().join(format!("courser-quickstart-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("temporary directory");
    let path = dir.join("out.json");
    let output = run(&format!("quickstart --quick --anyway --json {}", path.display()));
    let written = std::fs::read_to_string(&path);
    let left = std::fs::read_dir(&dir).expect("list").count();
    std::fs::remove_dir_all(&dir).expect("clean up");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(left, 1, "no temporary file is left");

    let text = stdout(&output);
    for phrase in ["32 B round trip", "32 B calls", "8 MiB requests", "bare UDP", "Try next"] {
        assert!(text.contains(phrase), "{phrase}: {text}");
    }
    assert!(!text.contains('\x1b') && !text.contains('\r'), "plain in a pipe: {text}");
    assert!(!stderr(&output).contains('\r'), "no progress without a terminal");

    let report: Value = serde_json::from_str(&written.expect("written")).expect("JSON");
    assert_eq!(report["bench"], "quickstart");
    for bench in ["latency", "rate", "bandwidth"] {
        for transport in ["udp", "shm"] {
            let these = |r: &&Value| r["bench"] == bench && r["transport"] == transport;
            let these: Vec<_> = results(&report).iter().filter(these).collect();
            assert!(!these.is_empty(), "{bench} {transport}");
            these.iter().for_each(|result| positive(result, "ratio"));
            let counted = these.iter().all(|result| result["pool_waits"].is_u64());
            assert_eq!(counted, bench == "rate", "{bench} {transport}");
        }
        assert!(report["config"][bench].is_object(), "{bench}");
        assert!(report["config"]["shm"][bench].is_object(), "{bench}");
    }
    let calls: Vec<_> = text.lines().filter(|line| line.contains("32 B calls")).collect();
    assert!(calls.iter().any(|row| row.contains(" udp ")), "{text}");
    assert!(calls.iter().any(|row| row.contains(" shm ")), "{text}");
    assert!(text.contains("pool waits/call"), "{text}");
}

#[test]
fn quickstart_without_shared_memory_states_the_reason() {
    let _alone = alone();
    let mut quickstart = courser("quickstart --quick --anyway");
    let output = quickstart.env("COURSER_SHM_DIR", "/proc/no-such-place").output().expect("runs");
    let text = stdout(&output);
    assert!(output.status.success(), "{text}{}", stderr(&output));
    // A sentence may continue in the next line.
    let words = text.replace('\n', " ");
    assert!(words.contains("Shared memory is left out"), "{text}");
    assert!(words.contains("cannot make the directory /proc/no-such-place"), "{text}");
    assert!(words.contains("name another directory in COURSER_SHM_DIR"), "{text}");
    for line in text.lines() {
        assert!(!line.contains(" shm "), "{text}");
    }
    assert!(text.contains("32 B round trip"), "{text}");
}

#[test]
fn an_interrupted_quickstart_leaves_no_process_behind() {
    let _alone = alone();
    let quickstart = courser("quickstart").stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let mut quickstart = quickstart.expect("starts");
    let mut server = None;
    crate::common::wait_for("the server process", || {
        server = children(quickstart.id()).first().copied();
        server.is_some()
    });
    let server = server.expect("seen");
    signal(quickstart.id(), "INT");
    let status = quickstart.wait().expect("ends");
    assert_eq!(status.signal(), Some(2), "a shell sees that it was interrupted");
    crate::common::wait_for("the end of the server process", || !lives(server));
}
