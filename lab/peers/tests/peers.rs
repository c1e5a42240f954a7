//! The program from without: every contestant answers every byte rightly, reports are written,
//! wrong input is refused with a reason, and no process is left behind.

use std::process::{Command, Output};

fn peers(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_peers")).args(args).output().expect("the program starts")
}

fn out(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn err(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Requests of 1 B to 1 MiB, alone and eight at a time, of both kinds.
fn check(name: &str) {
    let output = peers(&["--check", "--only", name]);
    assert!(output.status.success(), "{}{}", out(&output), err(&output));
    assert!(out(&output).starts_with(&format!("{name}: ")), "{}", out(&output));
    assert!(out(&output).contains("every byte right"), "{}", out(&output));
}

#[test]
fn courser_udp() {
    check("courser-udp");
}

#[test]
fn courser_shm() {
    check("courser-shm");
}

#[test]
fn tonic() {
    check("tonic");
}

#[test]
fn tarpc() {
    check("tarpc");
}

#[test]
fn capnp() {
    check("capnp");
}

#[test]
fn quinn() {
    check("quinn");
}

#[test]
fn raw_udp() {
    check("raw-udp");
}

#[test]
fn raw_tcp() {
    check("raw-tcp");
}

/// Methods, errors, values of all sizes, scans, and then `get` by eight tasks.
fn check_kv(name: &str) {
    for pinned in [&[][..], &["--unpinned"]] {
        let output = peers(&[&["kv", "--check", "--only", name], pinned].concat());
        let said = format!("{}{}", out(&output), err(&output));
        assert!(output.status.success(), "{said}");
        assert_eq!(out(&output), format!("{name}: 2 loads, every byte right\n"), "{said}");
    }
}

#[test]
fn kv_of_courser_udp() {
    check_kv("courser-udp");
}

#[test]
fn kv_of_courser_shm() {
    check_kv("courser-shm");
}

#[test]
fn kv_of_tonic() {
    check_kv("tonic");
}

#[test]
fn kv_of_tarpc() {
    check_kv("tarpc");
}

#[test]
fn programs_of_all_libraries_do_the_same() {
    let list = out(&peers(&["kv", "--list"]));
    let names: Vec<_> = list.lines().filter_map(|line| line.split(' ').next()).collect();
    assert!(names.len() >= 4, "{list}");
    for name in names {
        let output = peers(&["kv", "--program", name]);
        assert!(output.status.success(), "{name}: {}", err(&output));
        let expected = "banana is yellow\nthere is no durian\na melon is too large\n\
            scan: banana is yellow\nscan: cherry is red\n";
        assert_eq!(out(&output), expected, "{name}");
    }
}

/// A right and a wrong token, two refusals that are repeated, a call that hangs, a server that is
/// replaced; then the log of the handlers: methods, peers, traces, and times that were left.
#[test]
fn programs_for_production_do_the_same_with_all_libraries() {
    for name in ["courser-production", "tonic-production", "tarpc-production"] {
        let deadline = ["--deadline-ms", "3000"];
        let output = peers(&[&["kv", "--program", name][..], &deadline].concat());
        assert!(output.status.success(), "{name}: {}{}", out(&output), err(&output));
        let said = "banana is yellow\nthere is no durian\na melon is too large\n\
            scan: banana is yellow\nscan: cherry is red\na slow get ends by its deadline\n\
            a wrong token is refused\nbanana is yellow after a restart\n\
            2 attempts were refused as the store was busy\n";
        let log = ["put", "get", "put", "scan", "get"].map(|method| {
            format!("log: {method} of 127.0.0.1 in trace 4bf92f3577b34da6a3ce929d0e0e4736\n")
        });
        assert_eq!(out(&output), said.to_owned() + &log.concat(), "{name}: {}", err(&output));
    }
}

#[test]
fn a_quick_run_of_kv_gives_a_report_with_stable_keys() {
    let output = peers(&["kv", "--quick", "--unpinned", "--json", "-"]);
    assert!(output.status.success(), "{}", err(&output));
    let report: serde_json::Value = serde_json::from_str(&out(&output)).expect("JSON");
    assert_eq!(
        (&report["bench"], &report["config"]["pinned"]),
        (&"peers_kv".into(), &false.into())
    );
    let results = report["results"].as_array().expect("results");
    let expected = [
        ("courser-udp", "get_32b_1"),
        ("courser-shm", "get_32b_64"),
        ("tonic", "get_32b_1"),
        ("tonic", "get_32b_64"),
        ("tarpc", "get_32b_64"),
        ("courser-udp", "get_32b_1000"),
        ("tarpc", "get_32b_1000"),
    ];
    for (contestant, case) in expected {
        let found = results.iter().find(|r| r["contestant"] == contestant && r["case"] == case);
        let found = found.unwrap_or_else(|| panic!("no {contestant} {case} in {report:#}"));
        for key in ["rate_rps", "latency_p50_ns", "latency_p99_ns", "cpu_per_call_ns"] {
            assert!(found[key].as_f64() > Some(0.0), "{contestant} {case} {key}: {found:#}");
        }
    }
}

#[test]
fn a_quick_run_gives_a_table_a_report_and_a_picture() {
    let dir = std::env::temp_dir().join(format!("peers-test-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory");
    let (json, svg) = (dir.join("peers.json"), dir.join("peers.svg"));
    let (json_arg, svg_arg) = (json.display().to_string(), svg.display().to_string());
    // One core for both: there are no probes then, and so no windows that are left out.
    let only = ["--quick", "--server-cpu=0", "--only", "courser-udp,tarpc,raw-tcp"];
    let output = peers(&[&only[..], &["--json", &json_arg, "--svg", &svg_arg]].concat());
    let (report, picture) = (std::fs::read(&json), std::fs::read_to_string(&svg));
    std::fs::remove_dir_all(&dir).expect("clean up");
    assert!(output.status.success(), "{}", err(&output));
    let report: serde_json::Value =
        serde_json::from_slice(&report.expect("a report")).expect("JSON");
    let keys: Vec<_> = report.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["bench", "config", "environment", "results", "transport"]);
    assert_eq!(report["results"].as_array().map(Vec::len), Some(3 * 6), "{report:#}");
    assert_eq!(report["results"][0]["placement"], "unprobed");
    assert!(picture.expect("a picture").contains("</svg>"));
    assert!(out(&output).contains("| Courser over UDP | udp |"), "{}", out(&output));
}

#[test]
fn wrong_input_is_refused_with_a_reason() {
    for (args, reason) in [
        (&["--only", "grpc"][..], "no contestant is called `grpc`; there are courser-shm,"),
        (&["--server-cpu", "99999"], "core 99999 is not to be had"),
        (&["--quick", "--json", "/nonexistent/report"], "cannot write /nonexistent/report"),
        (&["--rounds", "0"], "0 is not in 1..=1000"),
        (&["--quick", "--rounds", "3"], "cannot be used with"),
        (&["kv", "--only", "quinn"], "no contestant is called `quinn`; there are"),
        (&["kv", "--program", "grpc"], "no program is called `grpc`; there are courser-shm, "),
        (&["kv", "--program", "tonic", "--deadline-ms", "9"], "calls of `tonic` have no deadline"),
        (&["kv", "--program", "tarpc-production", "--deadline-ms", "0"], "0 is not in 1..=60000"),
        (&["kv", "--tasks", "0"], "0 is not in 1..=1024"),
    ] {
        let output = peers(args);
        assert!(!output.status.success(), "{args:?}");
        assert!(err(&output).contains(reason), "{args:?}: {}", err(&output));
        assert_eq!(out(&output), "", "{args:?}");
    }
}

#[test]
fn help_teaches() {
    let help = out(&peers(&["--help"]));
    for word in ["32 B", "peers --quick", "limits, not peers", "(near, far)"] {
        assert!(help.contains(word), "{word} is not in: {help}");
    }
    assert!(!help.contains("serve ") && help.contains("  kv "), "the commands: {help}");
    let list = out(&peers(&["--list"]));
    assert_eq!(list.lines().count(), 8, "{list}");
}

/// A server whose parent is gone before it begins, or is another process, does not start.
#[test]
fn a_side_without_its_parent_ends() {
    let output = peers(&["serve", "peers/raw-tcp", "--cpu=0", "--limit=60", "--parent=1"]);
    assert!(out(&output).contains("failed the process that started this one is gone"));
}

/// Killing the program in the middle of a window leaves none of its processes.
#[test]
fn children_do_not_outlive_the_program() {
    use std::io::{BufRead, BufReader};
    let mut program = Command::new(env!("CARGO_BIN_EXE_peers"))
        .args(["--only", "raw-udp,tarpc", "--rounds", "100", "--window-ms", "2000"])
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut line = String::new();
    let said = program.stderr.take().expect("piped");
    BufReader::new(said).read_line(&mut line).expect("a line of progress");
    assert!(line.contains("round 1 of 100"), "{line}");
    let of_program = format!("--parent={}", program.id());
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(60);
    let wait = |wanted: fn(usize) -> bool| {
        while !wanted(processes_with(&of_program)) {
            assert!(std::time::Instant::now() < limit, "its processes do not come or do not go");
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    };
    wait(|count| count >= 4);
    program.kill().expect("it runs");
    program.wait().expect("it ends");
    wait(|count| count == 0);
}

/// Processes that have `argument` in their command line and are not yet dead.
fn processes_with(argument: &str) -> usize {
    let processes = std::fs::read_dir("/proc").expect("/proc").flatten();
    let has = |path: std::path::PathBuf| {
        std::fs::read(path.join("cmdline"))
            .is_ok_and(|line| line.split(|byte| *byte == 0).any(|arg| arg == argument.as_bytes()))
    };
    processes.filter(|process| has(process.path())).count()
}
