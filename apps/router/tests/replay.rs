//! `router replay`, as a program.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use courser_router::line::{CaptureIntake, Intake};
use courser_router::packet::parse;
use serde_json::Value;

const CAPTURE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/malformed.pcap");

const CONFIG: &str = "
[cluster]
name = 'demo'
topology = 'mesh'
failure_timeout = '4s'
[[node]]
name = 'a'
address = 'udp://10.9.0.1:31850'
[[node.port]]
interface = 'lan0'
addresses = ['10.2.0.1/24', '2001:db8:2::1/64']
[[node]]
name = 'b'
address = 'udp://10.9.0.2:31850'
[[node.port]]
interface = 'lan0'
addresses = ['10.0.2.1/24']
[[node.port]]
interface = 'lan1'
addresses = ['10.1.0.1/24', '2001:db8:1::1/64']
";

fn replay(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_router"));
    command.arg("replay").args(arguments).output().expect("the program starts")
}

fn succeeds(arguments: &[&str]) -> String {
    let output = replay(arguments);
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

/// The error of a command that cannot run as given.
fn fails(arguments: &[&str]) -> String {
    let output = replay(arguments);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    let text = String::from_utf8(output.stderr).expect("text");
    assert_eq!(text.lines().count(), 1, "{text}");
    text
}

fn path(path: &Path) -> &str {
    path.to_str().expect("a path of text")
}

/// A file in a directory.
fn file(directory: &tempfile::TempDir, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
    let path = directory.path().join(name);
    std::fs::write(&path, content).expect("writable");
    path
}

fn packets(path: &Path) -> Vec<Vec<u8>> {
    let mut intake = CaptureIntake::open(path, 0, Some(1)).expect("a capture");
    let mut all = Vec::new();
    while !intake.is_done() {
        intake.burst(&mut |_, packet| all.push(packet.to_vec()));
    }
    all
}

/// The good packets of the capture that are forwarded.
fn good() -> Vec<Vec<u8>> {
    let forwarded = |packet: &Vec<u8>| parse(packet).is_ok_and(|header| header.ttl > 1);
    packets(Path::new(CAPTURE)).into_iter().filter(forwarded).collect()
}

fn numbers<const N: usize>(result: &Value, keys: [&str; N]) -> [u64; N] {
    keys.map(|key| result[key].as_u64().unwrap_or_else(|| panic!("{key} of {result:#}")))
}

/// Asserts that every packet ended in one way.
fn check_sum(result: &Value) {
    let [received, icmp, fragments] = numbers(result, ["received", "icmp_sent", "fragments"]);
    let [sent, dropped] = numbers(result, ["sent", "dropped"]);
    let [to_system, fragmented] = numbers(result, ["to_system", "fragmented"]);
    assert_eq!(received + icmp + fragments, sent + dropped + to_system + fragmented, "{result:#}");
    let [to_nodes, from_nodes] = numbers(result, ["to_nodes", "from_nodes"]);
    assert_eq!(to_nodes, from_nodes, "{result:#}");
}

#[test]
fn a_capture_goes_through_the_built_in_cluster_and_all_packets_are_counted() {
    let directory = tempfile::tempdir().expect("a directory");
    let (out, result) = (directory.path().join("left"), directory.path().join("result.json"));
    let text = succeeds(&[CAPTURE, "--repeat", "3", "--out", path(&out), "--json", path(&result)]);
    let result: Value =
        serde_json::from_slice(&std::fs::read(result).expect("written")).expect("JSON");
    check_sum(&result);
    let all = packets(Path::new(CAPTURE)).len() as u64;
    assert_eq!(numbers(&result, ["packets", "repeat", "received"]), [all, 3, 3 * all]);
    assert!(text.contains("checksum") && text.contains("time_exceeded"), "{text}");
    let drops: u64 =
        result["drops"].as_object().expect("drops").values().flat_map(Value::as_u64).sum();
    assert_eq!([drops], numbers(&result, ["dropped"]));
    // All good packets leave at b, in their order, and ICMP messages, which have other sources.
    let left = packets(&out.join("b@lan0.pcap"));
    assert_eq!(result["ports"][1]["node"], "b");
    assert_eq!(result["ports"][1]["packets"].as_u64(), Some(left.len() as u64));
    let source = |packet: &Vec<u8>| parse(packet).expect("good").src;
    let sources: Vec<_> = good().iter().map(source).collect();
    let left: Vec<_> = left.iter().map(source).filter(|s| sources.contains(s)).collect();
    assert_eq!(left, sources.repeat(3));
    assert!(packets(&out.join("a@lan0.pcap")).is_empty());
}

#[test]
fn packets_arrive_at_the_port_of_a_cluster_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = file(&directory, "cluster.toml", CONFIG);
    let arguments =
        [CAPTURE, "--config", path(&config), "--node", "b", "--port", "lan1", "--json", "-"];
    let result: Value = serde_json::from_str(&succeeds(&arguments)).expect("JSON only");
    check_sum(&result);
    assert_eq!((&result["node"], &result["port"]), (&"b".into(), &"lan1".into()));
    let ports = result["ports"].as_array().expect("ports");
    let left: Vec<_> = ports.iter().map(|port| port["packets"].as_u64()).collect();
    // Errors go back to where the packets came from.
    let [icmp] = numbers(&result, ["icmp_sent"]);
    assert_eq!(
        left,
        [Some(good().iter().filter(|p| p.len() <= 1_500).count() as u64), Some(0), Some(icmp)]
    );
}

#[test]
fn each_port_has_a_file_of_its_own() {
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().join("left");
    // Node a-b with port c, and node a with port b-c.
    let config = CONFIG.replace("name = 'a'", "name = 'a-b'").replace("name = 'b'", "name = 'a'");
    let config = config.replacen("'lan0'", "'c'", 1).replace("'lan0'", "'b-c'");
    let config = file(&directory, "cluster.toml", config);
    let arguments = ["--config", path(&config), "--node", "a", "--port", "lan1"];
    let text = succeeds(&[&[CAPTURE, "--out", path(&out)], &arguments[..]].concat());
    assert!(text.contains("a-b c"), "{text}");
    let mut names: Vec<_> = std::fs::read_dir(&out)
        .expect("a directory")
        .map(|entry| entry.expect("a file").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    assert_eq!(names, ["a-b@c.pcap", "a@b-c.pcap", "a@lan1.pcap"]);
    assert!(!packets(&out.join("a-b@c.pcap")).is_empty());
    assert!(packets(&out.join("a@b-c.pcap")).is_empty());
}

#[test]
fn no_file_is_overwritten_also_not_the_input() {
    let directory = tempfile::tempdir().expect("a directory");
    let content = std::fs::read(CAPTURE).expect("there");
    let input = file(&directory, "b@lan0.pcap", &content);
    let error = fails(&[path(&input), "--out", path(directory.path())]);
    assert!(
        error.contains("b@lan0.pcap exists: remove it, or choose another directory"),
        "{error}"
    );
    assert_eq!(std::fs::read(&input).expect("there"), content);
    assert_eq!(std::fs::read_dir(directory.path()).expect("there").count(), 1, "no other file");
    // A link to a file that is not there would be one to write to.
    let link = directory.path().join("a@lan0.pcap");
    std::os::unix::fs::symlink(directory.path().join("absent"), &link).expect("a link");
    std::fs::remove_file(&input).expect("there");
    let error = fails(&[CAPTURE, "--out", path(directory.path())]);
    assert!(error.contains("a@lan0.pcap exists"), "{error}");
    std::fs::remove_file(link).expect("there");
    succeeds(&[CAPTURE, "--out", path(directory.path())]);
}

#[test]
fn what_cannot_be_used_is_reported() {
    let directory = tempfile::tempdir().expect("a directory");
    let config = file(&directory, "cluster.toml", CONFIG);
    let (config, missing) = (path(&config), directory.path().join("missing.pcap"));
    assert!(fails(&[path(&missing)]).contains("missing.pcap"));
    assert!(fails(&[config]).contains("not valid"), "no capture");
    assert!(fails(&[CAPTURE, "--config", CAPTURE]).contains("malformed.pcap"));
    assert!(fails(&[CAPTURE, "--config", config, "--node", "x"]).contains("a, b"));
    let ports = fails(&[CAPTURE, "--config", config, "--node", "b", "--port", "lan9"]);
    assert!(ports.contains("lan0, lan1"), "{ports}");
    assert!(fails(&[CAPTURE, "--out", config]).contains("directory"));
    assert!(fails(&[CAPTURE, "--json", "/nowhere/x.json"]).contains("/nowhere"));
}

#[test]
fn a_capture_that_is_cut_at_the_end_is_forwarded_with_a_warning() {
    let directory = tempfile::tempdir().expect("a directory");
    let capture = std::fs::read(CAPTURE).expect("there");
    let cut = file(&directory, "cut.pcap", &capture[..capture.len() - 3]);
    let output = replay(&[path(&cut)]);
    assert!(output.status.success(), "{output:?}");
    let all = packets(Path::new(CAPTURE)).len();
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(text.contains(&format!("cut.pcap: {} packets; ", all - 1)), "{text}");
    let warning = String::from_utf8(output.stderr).expect("text");
    let expected = format!("cut.pcap: the file ends within record {all}, which is left out");
    assert!(warning.contains(&expected), "{warning}");
}
