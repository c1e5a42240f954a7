//! Output without use of the network: help, version, completions, errors of arguments.

use std::process::Stdio;

use crate::common::{courser, error_line, refused, run, stdout};

#[test]
fn help_has_examples_and_flags() {
    let top = stdout(&run("--help"));
    for phrase in [
        "quickstart",
        "serve",
        "ping",
        "stat",
        "bench",
        "completions",
        "Examples:",
        "courser ping udp://",
        "neither encrypted nor authenticated",
        "Exit status",
    ] {
        assert!(top.contains(phrase), "{phrase}: {top}");
    }
    assert!(!top.contains("bench-peer"), "hidden: {top}");
    assert!(!top.contains('\x1b'), "no colour in a pipe");
    for (command, phrases) in [
        ("quickstart", &["--quick", "--json", "ratio"][..]),
        ("serve", &["--bind", "--threads", "31850"]),
        ("ping", &["--count", "--interval", "--size", "--timeout", "until Ctrl-C"]),
        ("stat", &["--interval", "--once", "--sessions", "--json", "rollbacks", "queued"]),
        ("bench", &["latency", "rate", "bandwidth", "--connect"]),
        ("bench rate", &["--connect", "--pairs", "--outstanding", "--batch", "--fault"]),
        ("completions", &["bash", "zsh", "fish"]),
    ] {
        let output = run(&format!("{command} --help"));
        assert!(output.status.success());
        let text = stdout(&output);
        for phrase in phrases.iter().chain(&["Examples:"]) {
            assert!(text.contains(phrase), "{command}: {phrase}: {text}");
        }
    }
}

#[test]
fn the_version_has_the_commit() {
    let text = stdout(&run("--version"));
    let expected = concat!("courser ", env!("CARGO_PKG_VERSION"), " (commit ");
    let commit = text.strip_prefix(expected).and_then(|rest| rest.strip_suffix(")\n"));
    let commit = commit.unwrap_or_else(|| panic!("{text}"));
    let hex = commit.len() >= 12 && commit.bytes().all(|b| b.is_ascii_hexdigit());
    assert!(hex || commit == "unknown", "{text}");
}

#[test]
fn every_shell_has_completions() {
    for (shell, phrase) in [("bash", "complete -F"), ("zsh", "#compdef"), ("fish", "complete -c")] {
        let output = run(&format!("completions {shell}"));
        assert!(output.status.success());
        let text = stdout(&output);
        assert!(text.contains(phrase) && text.contains("quickstart"), "{shell}");
    }
}

#[test]
fn a_closed_output_is_no_error() {
    // The completions are larger than the pipe, and written after the reader has closed it.
    for line in ["completions bash", "--help"] {
        let mut child =
            courser(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("ends");
        assert_eq!(output.status.code(), Some(0), "{line}");
        assert_eq!(output.stderr, b"", "{line}");
    }
}

#[test]
fn no_command_is_help_and_status_2() {
    let output = run("");
    assert_eq!(output.status.code(), Some(2));
    assert!(crate::common::stderr(&output).contains("quickstart"));
}

#[test]
fn invalid_addresses_are_refused_in_one_line() {
    refused("ping db1", "the port is missing");
    refused("ping udp://127.0.0.1:99999", "0 to 65535");
    refused("ping carrier://127.0.0.1:1", "use one of mem, shm, udp");
    refused("stat udp://127.0.0.1", "the port is missing");
    refused("serve --bind carrier://127.0.0.1:0", "use one of mem, shm, udp");
    refused("serve --bind udp://db1.invalid:0", "use an IP address of this machine");
    refused("bench latency --connect udp://db1", "the port is missing");
}

#[test]
fn values_out_of_range_are_refused_with_the_limit() {
    refused("ping udp://127.0.0.1:1 --size 9MiB", "at most 8 MiB");
    refused("ping udp://127.0.0.1:1 --size 99999999999GiB", "--size");
    refused("ping udp://127.0.0.1:1 --timeout 100", "unit");
    refused("bench rate --size 1GiB", "1 to 268435455 bytes");
    refused("bench rate --size 0", "1 to 268435455 bytes");
    refused("bench rate --sessions 1000000", "sessions must be 1 to");
    refused("serve --threads 5000", "1..=1024");
    refused("quickstart --json /nonexistent/place.json", "/nonexistent/place.json");
}

#[test]
fn pipes_get_no_colours() {
    let output = courser("ping db1").env("NO_COLOR", "1").output().expect("runs");
    assert!(error_line(&output).starts_with("error: "));
    assert!(!output.stderr.contains(&0x1b));
}
