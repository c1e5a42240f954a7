//! A cluster of node processes between hosts with unmodified programs, in network namespaces.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use courser_router::control::Client;
use courser_router::netns::{Cluster, Process, Shape, name};

/// A cluster with its node processes.
struct Running {
    cluster: Cluster,
    directory: tempfile::TempDir,
    nodes: Vec<Option<Process>>,
}

impl Running {
    /// `None`, with the reason printed: this machine or user cannot have namespaces.
    fn start(shape: Shape, nodes: usize) -> Option<Running> {
        let cluster = match Cluster::build(shape, nodes) {
            Ok(cluster) => cluster,
            Err(error) => {
                println!("SKIPPED: {error}");
                return None;
            }
        };
        let directory = tempfile::tempdir().expect("a directory");
        let config = cluster.config(directory.path(), &[]);
        std::fs::write(directory.path().join("cluster.toml"), config).expect("writable");
        let mut running = Running { cluster, directory, nodes: Vec::new() };
        for node in 0..nodes {
            let process = running.spawn(node);
            running.nodes.push(Some(process));
        }
        for node in 0..nodes {
            running
                .wait(node, |nodes| nodes.lines().count() == nodes.matches("direct").count() + 1);
        }
        Some(running)
    }

    fn spawn(&self, node: usize) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_router"));
        command.arg("run").arg(self.path("cluster.toml")).arg("--node").arg(name(node).to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null());
        self.cluster.node(node).spawn(command).expect("the node starts")
    }

    fn path(&self, file: &str) -> std::path::PathBuf {
        Path::join(self.directory.path(), file)
    }

    fn ask(&self, node: usize, request: &str) -> Result<String, String> {
        let socket = self.path(&format!("{}.sock", name(node)));
        let mut client = Client::connect(socket).map_err(|error| error.to_string())?;
        client.ask(request).map_err(|error| error.to_string())
    }

    /// Waits until the states of the nodes, as this node sees them, are as wanted.
    fn wait(&self, node: usize, wanted: impl Fn(&str) -> bool) {
        let begin = Instant::now();
        loop {
            let nodes = self.ask(node, "nodes");
            if nodes.as_deref().is_ok_and(&wanted) {
                return;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "node {node}: {nodes:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn on_host(&self, host: usize, command: &str) -> String {
        self.cluster.host(host).run(command).unwrap_or_else(|error| {
            let stats: Vec<_> = (0..self.nodes.len()).map(|n| self.ask(n, "stats")).collect();
            panic!("{error}\n{stats:#?}")
        })
    }
}

#[test]
fn ping_passes_in_each_topology() {
    for shape in [Shape::Switch, Shape::Mesh, Shape::Mixed] {
        let Some(running) = Running::start(shape, 3) else { return };
        println!("{}", running.on_host(0, "ping -c 3 -i 0.05 -W 2 10.0.2.2"));
        println!("{}", running.on_host(0, "ping -c 3 -i 0.05 -W 2 fd00:3::2"));
        println!("{}", running.on_host(0, "ping -c 3 -i 0.05 -W 2 10.0.2.1"));
        println!("{}", running.on_host(2, "traceroute -n -q 1 -w 1 10.0.2.2"));
        println!("{:?}", running.ask(0, "stats"));
    }
}
