//! The program over real sockets and shared memory.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

const PROGRAM: &str = env!("CARGO_BIN_EXE_ordered-index");

/// Held by tests that use the processors for long, and by the benchmark, whose windows they empty.
static BUSY: Mutex<()> = Mutex::new(());

fn busy() -> MutexGuard<'static, ()> {
    BUSY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A server, killed at the end.
struct Server {
    child: Child,
    uri: String,
}

impl Server {
    fn start(scheme: &str, more: &[&str]) -> Server {
        let mut child = Command::new(PROGRAM)
            .args(["serve", "--bind", &format!("{scheme}://127.0.0.1:0")])
            .args(more)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let uri = lines.by_ref().map(Result::unwrap).find(|line| line.contains("://")).unwrap();
        let uri = uri.split(';').next().unwrap().to_owned();
        // The rest is read, so that the server can write it.
        std::thread::spawn(move || lines.count());
        Server { child, uri }
    }

    fn client(&self, operation: &str, args: &[&str]) -> Output {
        Command::new(PROGRAM).args(["client", operation, &self.uri]).args(args).output().unwrap()
    }

    /// The line that a successful operation prints.
    fn line(&self, operation: &str, args: &[&str]) -> String {
        let output = self.client(operation, args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{operation} {args:?}: {error}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn operations(server: &Server) {
    assert_eq!(server.line("put", &["7", "42"]), "stored");
    assert_eq!(server.line("put", &["7", "43"]), "replaced");
    assert_eq!(server.line("put", &["9", "5"]), "stored");
    assert_eq!(server.line("get", &["7"]), "43");
    assert_eq!(server.line("scan", &["7", "--count", "2"]), "48 of 2 values");
    assert_eq!(server.line("delete", &["7"]), "removed");
    assert_eq!(server.line("delete", &["7"]), "there was none");
    let missing = server.client("get", &["7"]);
    let text = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(missing.status.code() == Some(1) && text.contains("no key 7"), "{text}");
}

#[test]
fn operations_over_udp() {
    operations(&Server::start("udp", &[]));
}

#[test]
fn operations_over_shared_memory_with_scans_in_dispatch_handlers() {
    operations(&Server::start("shm", &["--scans", "dispatch", "--threads", "2"]));
}

#[test]
fn a_full_index_refuses_keys_with_what_to_do() {
    let server = Server::start("udp", &["--keys", "2", "--max-keys", "3"]);
    assert_eq!(server.line("put", &["7", "42"]), "stored");
    for (operation, args) in [("put", &["8", "1"][..]), ("load", &["--keys", "10"])] {
        let refused = server.client(operation, args);
        let text = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(1), "{text}");
        assert!(text.contains("the index is full; remove keys"), "{text}");
    }
    assert_eq!(server.line("put", &["7", "43"]), "replaced");
    assert_eq!(server.line("delete", &["7"]), "removed");
    assert_eq!(server.line("put", &["8", "1"]), "stored");
    let args = ["serve", "--bind", "udp://127.0.0.1:0", "--keys", "2", "--max-keys", "1"];
    let refused = Command::new(PROGRAM).args(args).output().unwrap();
    assert_eq!(refused.status.code(), Some(2), "{refused:?}");
}

#[test]
fn keys_are_loaded_over_the_network_and_at_the_start() {
    let loaded = Server::start("udp", &[]);
    assert_eq!(loaded.line("load", &["--keys", "20000"]), "loaded 20000 keys");
    let filled = Server::start("udp", &["--keys", "20000"]);
    let sum = loaded.line("scan", &["0", "--count", "16384"]);
    assert!(sum.ends_with("of 16384 values"), "{sum}");
    assert_eq!(filled.line("scan", &["0", "--count", "16384"]), sum);
}

#[test]
fn a_server_that_has_loaded_keys_ends_at_a_signal_and_reports_its_requests() {
    let mut child = Command::new(PROGRAM)
        .args(["serve", "--bind", "udp://127.0.0.1:0", "--keys", "100"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    lines.by_ref().find(|line| line.contains("client load")).unwrap();
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status();
    assert!(killed.unwrap().success());
    let last = lines.last().unwrap();
    assert_eq!(last, "served 0 requests; 100 keys at the end");
    assert!(child.wait().unwrap().success());
}

#[test]
fn a_load_whose_server_is_killed_states_how_far_it_came() {
    let _busy = busy();
    for scheme in ["udp", "shm"] {
        let mut server = Server::start(scheme, &[]);
        let mut load = Command::new(PROGRAM)
            .args(["client", "load", &server.uri, "--keys", "100000000", "--deadline", "60s"])
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        while server.line("scan", &["0", "--count", "1000"]).ends_with(" of 0 values") {
            assert!(load.try_wait().unwrap().is_none(), "the load has ended");
        }
        server.child.kill().unwrap();
        let output = load.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{text}");
        let loaded =
            text.strip_prefix("error: a put failed after ").unwrap_or_else(|| panic!("{text}"));
        assert!(loaded.split(' ').next().unwrap().parse::<u64>().unwrap() > 0, "{text}");
        assert!(text.ends_with("; see that the server runs, and load again\n"), "{text}");
    }
}

#[test]
fn keys_at_both_ends_are_stored_and_scanned() {
    let server = Server::start("udp", &["--threads", "5", "--workers", "4"]);
    let last = u64::MAX.to_string();
    assert_eq!(server.line("scan", &["0"]), "0 of 0 values");
    assert_eq!(server.line("put", &["0", &last]), "stored");
    assert_eq!(server.line("put", &[&last, "7"]), "stored");
    assert_eq!(server.line("scan", &[&last, "--count", "16384"]), "7 of 1 values");
    // A sum is modulo 2^64.
    assert_eq!(server.line("scan", &["0"]), "6 of 2 values");
    assert_eq!(server.line("delete", &[&last]), "removed");
    assert_eq!(server.line("scan", &["1"]), "0 of 0 values");
}

#[test]
fn many_clients_load_a_server_with_more_threads_than_cores() {
    let _busy = busy();
    for scheme in ["udp", "shm"] {
        let server =
            Server::start(scheme, &["--threads", "8", "--workers", "8", "--max-keys", "1000"]);
        let loads: Vec<_> = (0..64)
            .map(|_| {
                let mut load = Command::new(PROGRAM);
                load.args(["client", "load", &server.uri, "--keys", "2000", "--deadline", "60s"]);
                load.stderr(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        for load in loads {
            let output = load.wait_with_output().unwrap();
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(
                output.status.code() == Some(1) && text.contains("the index is full"),
                "{text}"
            );
        }
        let sum = server.line("scan", &["0", "--count", "16384"]);
        assert!(sum.ends_with(" of 1000 values"), "{sum}");
    }
}

#[test]
fn a_second_server_on_a_port_is_refused() {
    for scheme in ["udp", "shm"] {
        let server = Server::start(scheme, &[]);
        let second = Command::new(PROGRAM).args(["serve", "--bind", &server.uri]).output().unwrap();
        let text = String::from_utf8_lossy(&second.stderr).into_owned();
        assert!(second.status.code() == Some(2) && text.contains("port 0"), "{text}");
        assert_eq!(server.line("put", &["7", "42"]), "stored");
    }
}

#[test]
fn mistakes_are_explained() {
    let run = |args: &[&str]| Command::new(PROGRAM).args(args).output().unwrap();
    for (args, hint) in [
        (&["bench", "--mix", "get=90"][..], "100 per cent"),
        (&["serve", "--bind", "nothing"], "://"),
        (&["client", "get", "udp://127.0.0.1:31860", "x"], "invalid"),
    ] {
        let output = run(args);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(2) && text.contains(hint), "{args:?}: {text}");
    }
}

#[test]
fn the_benchmark_reports_its_quantities() {
    let _busy = busy();
    for transport in ["udp", "shm"] {
        let output = Command::new(PROGRAM)
            .args(["bench", "--transport", transport, "--keys", "20000", "--time", "1s"])
            .args(["--window", "100ms", "--mix", "get=40,scan=20,put=20,delete=20", "--anyway"])
            .args(["--json", "-"])
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            (report["bench"].as_str(), report["transport"].as_str()),
            (Some("ordered-index"), Some(transport),)
        );
        let result = &report["results"];
        for workload in ["workers", "dispatch", "plain"] {
            for kind in ["get", "scan", "put", "delete"] {
                for quantity in ["rate_rps", "latency_p50_ns", "latency_p99_ns"] {
                    let value = &result[workload][format!("{kind}_{quantity}")];
                    assert!(
                        value.as_f64().is_some_and(|v| v > 0.0),
                        "{workload} {kind}_{quantity}"
                    );
                }
            }
        }
        for key in ["get_p99_workers_over_dispatch", "get_rate_workers_over_plain", "index_scan_ns"]
        {
            assert!(result[key].as_f64().is_some_and(|value| value > 0.0), "{key}: {result}");
        }
        assert!(report["environment"]["cpu_model"].is_string());
    }
}

#[test]
fn the_simulation_reports_both_placements() {
    let output = Command::new(PROGRAM)
        .args(["sim", "--keys", "10000", "--time", "200us", "--seeds", "1", "--json", "-"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let results = report["results"].as_array().unwrap();
    let places: Vec<_> = results.iter().map(|result| result["scans"].as_str().unwrap()).collect();
    assert_eq!(places, ["workers", "dispatch"]);
    assert!(results.iter().all(|result| result["get_latency_p99_ns"].as_u64().unwrap() > 0));
}
