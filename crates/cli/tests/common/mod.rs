//! Runs the program. Every wait has a time limit; the system assigns every port.

#![allow(dead_code)] // Each test file uses some of it.

pub(crate) mod bench;
pub(crate) mod help;

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Time limit, far above the time on a loaded machine with two cores.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// The program of the package that includes this file.
const PROGRAM: &str =
    match (option_env!("CARGO_BIN_EXE_courser"), option_env!("CARGO_BIN_EXE_courser-lab")) {
        (Some(path), _) | (None, Some(path)) => path,
        (None, None) => panic!("a package without a program"),
    };

/// The program with arguments, separated by blanks.
pub(crate) fn courser(line: &str) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(line.split_whitespace()).stdin(Stdio::null());
    command.env_remove("NO_COLOR").env_remove("COLUMNS");
    command
}

/// Runs the program to its end.
pub(crate) fn run(line: &str) -> Output {
    let child = courser(line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    child.and_then(Child::wait_with_output).expect("runs")
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

/// Asserts that a command succeeds and that its lines fit; returns its output.
pub(crate) fn fits(line: &str) -> String {
    let output = run(line);
    let text = stdout(&output);
    assert!(output.status.success(), "{line}: {text}{}", stderr(&output));
    assert_narrow(line, &text);
    text
}

/// Asserts that lines have at most 80 characters.
pub(crate) fn assert_narrow(what: &str, text: &str) {
    for line in text.lines() {
        assert!(line.chars().count() <= 80, "{what}: {line}\n{text}");
    }
}

/// The only error line on standard error.
pub(crate) fn error_line(output: &Output) -> String {
    let text = stderr(output);
    let errors: Vec<_> = text.lines().filter(|line| line.starts_with("error: ")).collect();
    assert_eq!(errors.len(), 1, "{text}");
    errors[0].to_owned()
}

/// Asserts status 2 and one error line with `hint`.
pub(crate) fn refused(line: &str, hint: &str) {
    let output = run(line);
    assert_eq!(output.status.code(), Some(2), "{line}: {}", stderr(&output));
    assert_eq!(stdout(&output), "", "{line}");
    let error = error_line(&output);
    assert!(error.contains(hint), "{line}: {error}");
}

/// Runs the program and parses the JSON object that it prints.
pub(crate) fn json_of(line: &str) -> serde_json::Value {
    let output = run(line);
    assert!(output.status.success(), "{line}: {}", stderr(&output));
    serde_json::from_str(&stdout(&output)).expect("one JSON object and nothing else")
}

/// Sends a signal by its name.
pub(crate) fn signal(process: u32, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
    assert!(status.expect("kill runs").success());
}

/// Polls until `done`, at most [`LIMIT`].
pub(crate) fn wait_for(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !done() {
        assert!(Instant::now() < end, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The children of a process.
pub(crate) fn children(process: u32) -> Vec<u32> {
    let list = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
    list.unwrap_or_default().split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// True while there is such a process and it has not ended.
pub(crate) fn lives(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    !matches!(state, None | Some('Z' | 'X'))
}

/// A `courser serve` on a free port of the loopback, ended when dropped.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) out: BufReader<ChildStdout>,
    /// Its output up to the list of ports.
    pub(crate) said: String,
    pub(crate) uri: String,
}

impl Server {
    pub(crate) fn start(line: &str) -> Self {
        let mut command = courser(line);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
        let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
        let mut said = String::new();
        while !said.contains("trusted networks") {
            assert_ne!(out.read_line(&mut said).expect("reads"), 0, "ended early: {said}");
        }
        let ping = said.split("courser ping ").nth(1).expect("a ping line");
        let uri = ping.split_whitespace().next().expect("an address").to_owned();
        Self { child, out, said, uri }
    }

    pub(crate) fn local() -> Self {
        Self::start("serve --bind udp://127.0.0.1:0")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
