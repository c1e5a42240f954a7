//! Nodes as processes.

use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_raft-kv");
/// Only a defect takes longer.
const LIMIT: Duration = Duration::from_secs(120);

/// A node process; killed when dropped.
pub(crate) struct Process {
    child: Child,
    /// Lines of its output, which a thread reads.
    lines: Receiver<String>,
    stderr: ChildStderr,
}

impl Process {
    pub(crate) fn start(args: &[&str]) -> Process {
        let mut command = Command::new(PROGRAM);
        command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let stdout = BufReader::new(child.stdout.take().expect("piped"));
        let stderr = child.stderr.take().expect("piped");
        let (sender, lines) = channel();
        // It ends with the process.
        thread::spawn(move || {
            let lines = stdout.lines().map_while(Result::ok);
            lines.map_while(|line| sender.send(line).ok()).for_each(drop);
        });
        Process { child, lines, stderr }
    }

    /// The next line with a text.
    pub(crate) fn line_with(&mut self, text: &str) -> String {
        self.line_within(text, LIMIT)
    }

    /// The next line with a text, which has to come in a time.
    pub(crate) fn line_within(&mut self, text: &str, limit: Duration) -> String {
        let end = Instant::now() + limit;
        let mut others = Vec::new();
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match self.lines.recv_timeout(left) {
                Ok(line) if line.contains(text) => return line.trim().to_owned(),
                Ok(line) => others.push(line),
                Err(RecvTimeoutError::Timeout) => {
                    panic!("the process printed no line with {text:?} in {limit:?}, but {others:?}")
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("the process ended before {text:?}: {}", self.end().1)
                }
            }
        }
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    pub(crate) fn interrupt(&mut self) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill runs").success());
    }

    /// Its exit status and its errors, when it has ended.
    pub(crate) fn end(&mut self) -> (Option<i32>, String) {
        let code = self.child.wait().expect("it ends").code();
        let mut errors = String::new();
        let _ = self.stderr.read_to_string(&mut errors);
        (code, errors)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// An address that nothing uses.
pub(crate) fn free_uri() -> String {
    loop {
        let tcp = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = tcp.local_addr().expect("bound").port();
        if UdpSocket::bind(("127.0.0.1", port)).is_ok() {
            return format!("udp://127.0.0.1:{port}");
        }
    }
}

/// A cluster of three.
pub(crate) struct Cluster {
    pub(crate) folder: TempDir,
    pub(crate) uris: Vec<String>,
    pub(crate) nodes: Vec<Option<Process>>,
    peers: String,
}

impl Cluster {
    pub(crate) fn start() -> Cluster {
        let uris: Vec<String> = (0..3).map(|_| free_uri()).collect();
        let peers: Vec<_> = (1..).zip(&uris).map(|(id, uri)| format!("{id}={uri}")).collect();
        let folder = tempfile::tempdir().expect("a folder");
        let mut cluster = Cluster { folder, uris, nodes: Vec::new(), peers: peers.join(",") };
        for id in 1..=3 {
            cluster.nodes.push(None);
            cluster.run(id, &[]);
        }
        cluster
    }

    pub(crate) fn data(&self, id: usize) -> PathBuf {
        self.folder.path().join(id.to_string())
    }

    /// Starts a node without waiting for it.
    pub(crate) fn launch(&self, id: usize, uri: &str, more: &[&str]) -> Process {
        let data = self.data(id).display().to_string();
        let id = id.to_string();
        let mut args = vec!["node", "--id", &id, "--listen", uri, "--peers", &self.peers];
        if !more.contains(&"--data") {
            args.extend(["--data", &data]);
        }
        if !more.contains(&"--join") && !more.contains(&"--old") {
            args.push("--new");
        }
        let more = more.iter().filter(|arg| **arg != "--old");
        args.extend(more.copied());
        Process::start(&args)
    }

    /// Starts a node, and waits until it is ready.
    pub(crate) fn run(&mut self, id: usize, more: &[&str]) {
        let uri = self.uris[id - 1].clone();
        let mut node = self.launch(id, &uri, more);
        node.line_with(" is ready at ");
        self.nodes[id - 1] = Some(node);
    }

    pub(crate) fn kill(&mut self, id: usize) {
        self.nodes[id - 1] = None;
    }

    pub(crate) fn output(&self, args: &[&str]) -> Output {
        let nodes = self.uris.join(",");
        let mut command = Command::new(PROGRAM);
        command.args(args).args(["--timeout", "60s"]).env("RAFT_KV_NODES", nodes);
        command.output().expect("it starts")
    }

    /// Runs a client, and returns what it prints.
    pub(crate) fn call(&self, args: &[&str]) -> String {
        let output = self.output(args);
        assert!(output.status.success(), "{args:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// States of the nodes, by number.
    pub(crate) fn states(&self) -> Vec<Value> {
        let text = self.output(&["status", "--json"]).stdout;
        let all: Value = serde_json::from_slice(&text).unwrap_or_default();
        let nodes = all["nodes"].as_array().cloned().unwrap_or_default();
        nodes.into_iter().map(|node| node["status"].clone()).filter(|s| !s.is_null()).collect()
    }

    /// Waits until the states fulfil a condition.
    pub(crate) fn wait(&self, what: &str, is_so: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let begin = Instant::now();
        loop {
            let states = self.states();
            if is_so(&states) {
                return states;
            }
            assert!(begin.elapsed() < LIMIT, "{what}: {states:#?}");
        }
    }

    pub(crate) fn leader(&self) -> usize {
        let leads = |states: &[Value]| {
            let leader = states.iter().find(|state| state["role"] == "leader");
            leader.and_then(|state| state["id"].as_u64())
        };
        let states = self.wait("no leader", |states| leads(states).is_some());
        leads(&states).expect("a leader") as usize
    }
}
