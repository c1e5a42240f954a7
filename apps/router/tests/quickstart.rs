//! `router quickstart` as a user starts it.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use courser_router::netns::{Cluster, Shape};
use serde_json::Value;

const ROUTER: &str = env!("CARGO_BIN_EXE_router");

/// One demonstration at a time: they measure times.
static MACHINE: std::sync::Mutex<()> = std::sync::Mutex::new(());

/// False, with the reason printed: this machine or user cannot have namespaces.
fn has_namespaces() -> bool {
    match Cluster::build(Shape::Mesh, 1) {
        Ok(_) => true,
        Err(error) => {
            println!("SKIPPED: {error}");
            false
        }
    }
}

fn quickstart(arguments: &[&str]) -> Command {
    let mut command = Command::new(ROUTER);
    command.arg("quickstart").args(arguments).stdin(Stdio::null());
    command
}

/// Processes whose command line has this text.
fn processes_with(text: &str) -> usize {
    let list = std::fs::read_dir("/proc").expect("/proc").flatten();
    let lines = list.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(text)).count()
}

#[test]
fn results_are_those_of_a_router_that_keeps_order_and_withdraws_routes_of_dead_nodes() {
    let _machine = MACHINE.lock();
    if !has_namespaces() {
        return;
    }
    let output = quickstart(&["--quick", "--topology", "switch", "--json", "-"]).output();
    let output = output.expect("starts");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    let report: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(
        (&report["bench"], &report["transport"]),
        (&"router-quickstart".into(), &"udp".into())
    );
    assert_eq!(report["config"]["topology"], "switch");
    assert!(report["environment"]["kernel"].is_string());
    let results = &report["results"];
    let number =
        |of: &Value, key: &str| of[key].as_u64().unwrap_or_else(|| panic!("{key}: {report:#}"));
    assert_eq!(number(results, "packets_reordered"), 0, "{report:#}");
    assert!(results["rate_pps"].as_f64() > Some(1_000.0), "{report:#}");
    assert!(number(results, "recovered_after_ns") > 0);
    let timeout_ns = number(&report["config"], "failure_timeout_ns");
    assert_eq!(timeout_ns, 800_000_000);
    let deaths = results["deaths"].as_array().expect("a list");
    assert_eq!(deaths.len(), 2);
    for death in deaths {
        let withdrawn_ns = number(death, "withdrawn_after_ns");
        assert!((1..timeout_ns).contains(&withdrawn_ns), "{report:#}");
        assert_eq!(number(death, "others_packets_lost"), 0, "{report:#}");
        assert!(number(death, "others_packets_sent") > 100, "{report:#}");
        assert!(number(death, "recovered_after_ns") > 0);
        // The dead node's host is cut off, or nothing died.
        let pairs = death["pairs"].as_array().expect("pairs");
        let lost = |pair: &&Value| pair["to"] == "c" && pair["packets_lost"].as_u64() > Some(0);
        assert_eq!((pairs.len(), pairs.iter().filter(lost).count()), (6, 2), "{report:#}");
    }
    assert!(number(&deaths[0], "traffic_recovered_after_ns") > 0);
    for key in ["unreachable_ipv4", "unreachable_ipv6"] {
        match deaths[0][key].as_bool() {
            None => println!("SKIPPED: ping is not installed"),
            Some(is_reported) => assert!(is_reported, "{key}: {report:#}"),
        }
    }
}

#[test]
fn text_shows_each_part_and_has_no_control_sequences() {
    let _machine = MACHINE.lock();
    if !has_namespaces() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let begin = Instant::now();
    let output = quickstart(&["--quick"]).env("TMPDIR", directory.path()).output();
    let output = output.expect("starts");
    let (text, error) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}{error}");
    for part in ["fd00:3::2", "between all pairs", "SIGKILL", "SIGSTOP", "Try next"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains('\x1b'), "{text}");
    assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 0);
    println!("{:?}\n{text}", begin.elapsed());
}

/// Waits until a file with this name is below a directory.
fn wait_for(directory: &Path, name: &str) {
    let begin = Instant::now();
    let exists = || {
        let list = std::fs::read_dir(directory).expect("a directory").flatten();
        list.into_iter().any(|entry| entry.path().join(name).exists())
    };
    while !exists() {
        assert!(begin.elapsed() < Duration::from_secs(20), "no {name}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn ctrl_c_ends_everything_and_leaves_nothing() {
    let _machine = MACHINE.lock();
    if !has_namespaces() {
        return;
    }
    let directory = tempfile::tempdir().expect("a directory");
    let mut command = quickstart(&["--quick"]);
    command.env("TMPDIR", directory.path()).stdout(Stdio::null());
    let mut child: Child = command.spawn().expect("starts");
    wait_for(directory.path(), "c.sock");
    let path = directory.path().display().to_string();
    assert_eq!(processes_with(&path), 3);
    let process = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(process, rustix::process::Signal::INT).expect("running");
    let status = child.wait().expect("ended");
    assert_eq!(status.signal(), Some(2), "{status:?}");
    assert_eq!(std::fs::read_dir(directory.path()).expect("a directory").count(), 0);
    let begin = Instant::now();
    while processes_with(&path) > 0 {
        assert!(begin.elapsed() < Duration::from_secs(5), "a node still runs");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn users_without_privileges_get_one_line_and_status_2() {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", ROUTER, "quickstart"]);
    let output = match command.output() {
        Ok(output) if output.status.code() != Some(127) && output.status.code() != Some(126) => {
            output
        }
        other => {
            println!("SKIPPED: setpriv cannot start the program: {other:?}");
            return;
        }
    };
    let error = String::from_utf8_lossy(&output.stderr);
    if error.starts_with("setpriv:") {
        println!("SKIPPED: {error}");
        return;
    }
    assert_eq!(output.status.code(), Some(2), "{error}");
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.contains("as root"), "{error}");
}
