//! Routes of a kernel table, put there by `ip`, BIRD and FRR, in network namespaces. Needs root.

#[path = "import/daemons.rs"]
mod daemons;
#[path = "import/datagrams.rs"]
mod datagrams;
#[path = "import/tables.rs"]
mod tables;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use courser_router::control::Client;
use courser_router::netns::{Cluster, Process, Shape, name};
use serde_json::Value;

/// Held by each test: they share two processors.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A limit that only a defect reaches.
const LIMIT: Duration = Duration::from_secs(120);

/// Prints why a test does nothing, past the harness, which hides what a passing test prints.
fn skip(reason: &str) {
    let text = format!("SKIPPED: {reason}\n");
    let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
}

/// A cluster whose first node imports table 100.
struct Running {
    cluster: Cluster,
    directory: tempfile::TempDir,
    nodes: Vec<Process>,
    _alone: MutexGuard<'static, ()>,
}

impl Running {
    /// `None`, with the reason printed: this machine or user cannot have namespaces. `daemon` is the
    /// socket of a routing daemon in the directory of the cluster.
    fn start(nodes: usize, daemon: Option<&str>) -> Option<Running> {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let cluster = Cluster::build(Shape::Switch, nodes);
        let cluster = cluster.inspect_err(|error| skip(&error.to_string())).ok()?;
        let directory = tempfile::tempdir().expect("a directory");
        let mut import = "[node.import]\ntable = 100\n".to_owned();
        if let Some(daemon) = daemon {
            let path = directory.path().join(daemon);
            import += &format!("daemon = {path:?}\ngrace = \"1s\"\n");
        }
        let config = cluster.config(directory.path(), &[]);
        // A node that a busy machine runs late is not dead: its packets would be lost.
        let config = config.replacen("failure_timeout = \"800ms\"", "failure_timeout = \"5s\"", 1);
        assert!(config.contains("\"5s\""), "{config}");
        let config = config.replacen("[[node.port]]", &format!("{import}\n[[node.port]]"), 1);
        std::fs::write(directory.path().join("cluster.toml"), config).expect("writable");
        let mut running = Running { cluster, directory, nodes: Vec::new(), _alone: alone };
        for node in 0..nodes {
            running.nodes.push(running.spawn(node));
        }
        for node in 0..nodes {
            running.until("the nodes are connected", || {
                let nodes = running.ask(node, "nodes").unwrap_or_default();
                nodes.lines().count() == nodes.matches("direct").count() + 1
            });
        }
        Some(running)
    }

    fn spawn(&self, node: usize) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_router"));
        command.arg("run").arg(self.path("cluster.toml")).arg("--node").arg(name(node).to_string());
        let log = std::fs::File::create(self.path(&format!("{}.log", name(node)))).expect("a file");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.cluster.node(node).spawn(command).expect("the node starts")
    }

    fn path(&self, file: &str) -> PathBuf {
        Path::join(self.directory.path(), file)
    }

    fn ask(&self, node: usize, request: &str) -> Result<String, String> {
        let socket = self.path(&format!("{}.sock", name(node)));
        let mut client = Client::connect(socket).map_err(|error| error.to_string())?;
        client.ask(request).map_err(|error| error.to_string())
    }

    fn stats(&self, node: usize) -> Value {
        let stats = self.ask(node, "stats").expect("counters");
        serde_json::from_str(&stats).expect("JSON")
    }

    /// Routes of the kernel's table that the first node announces.
    fn imported(&self) -> u64 {
        self.stats(0)["import"]["imported"].as_u64().expect("a number")
    }

    /// Routes that a node has.
    fn routes(&self, node: usize) -> u64 {
        self.stats(node)["routes"].as_u64().expect("a number")
    }

    /// The route for an address, without its origin.
    fn find(&self, node: usize, address: &str) -> String {
        let found = self.ask(node, &format!("route get {address}")).unwrap_or_else(|error| error);
        found.split(" #").next().unwrap_or_default().to_owned()
    }

    /// Waits until the first node has this route for an address.
    fn expect(&self, address: &str, route: &str) {
        let begin = Instant::now();
        while self.find(0, address) != route {
            let found = self.find(0, address);
            assert!(begin.elapsed() < LIMIT, "{address}: {found:?}, not {route:?}{}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until it is so. Returns how long that took.
    fn until(&self, text: &str, mut done: impl FnMut() -> bool) -> Duration {
        let begin = Instant::now();
        while !done() {
            assert!(begin.elapsed() < LIMIT, "not in time: {text}{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
        begin.elapsed()
    }

    /// The import's counters and the node's warnings, for a failure.
    fn log(&self) -> String {
        let stats = self.ask(0, "stats").unwrap_or_default();
        let log = std::fs::read_to_string(self.path("a.log")).unwrap_or_default();
        format!("\n{stats}\n{log}")
    }

    /// Commands of `ip` at the first node, one a line.
    fn ip(&self, script: &str) {
        self.cluster.node(0).batch(script).expect("ip does it");
    }
}
