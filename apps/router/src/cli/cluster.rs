//! The cluster: namespaces, a directory with its file, and a process for each node.

use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use courser_kit::{Failure, interrupt};
use courser_router::config::Config;
use courser_router::control::Client;
use courser_router::netns::{Cluster, Namespace, Process, Shape, Unavailable, name};
use rustix::process::{Pid, Signal, kill_process};

/// Longest time in which a cluster on one machine gets ready.
const START_LIMIT: Duration = Duration::from_secs(10);

/// Time between two questions for states.
const POLL: Duration = Duration::from_millis(2);

/// A running cluster. Its processes end and its directory is removed when this is dropped.
pub(super) struct Demo {
    /// In the order of their ends: processes, then their files, then their networks.
    nodes: Vec<Option<Process>>,
    /// The process that was killed last.
    ending: Option<Process>,
    directory: Directory,
    cluster: Cluster,
    shape: Shape,
    program: PathBuf,
    config: Config,
}

impl Demo {
    /// Builds a cluster of as many nodes and hosts, and waits until its nodes see each other.
    pub(super) fn start(shape: Shape, nodes: usize) -> Result<Self, Failure> {
        let unavailable = |error: Unavailable| Failure::Usage(error.to_string());
        let cluster = Cluster::build(shape, nodes).map_err(unavailable)?;
        let directory = Directory::new().map_err(|error| {
            let place = std::env::temp_dir();
            Failure::Usage(format!("no directory in {}: {error}; set TMPDIR", place.display()))
        })?;
        let removed = directory.0.clone();
        interrupt::end_cleanly(move || remove(&removed))?;
        let path = directory.0.join("cluster.toml");
        let text = cluster.config(&directory.0, &[]);
        fs::write(&path, text).map_err(|error| Failure::writing(&path, &error))?;
        let config = Config::load(&path).map_err(|error| Failure::Runtime(error.to_string()))?;
        let program = std::env::current_exe().map_err(|error| {
            Failure::Runtime(format!("this program's file is not known: {error}; mount /proc"))
        })?;
        let (started, ending) = (Vec::new(), None);
        let mut demo = Self { nodes: started, ending, directory, cluster, shape, program, config };
        for node in 0..nodes {
            demo.nodes.push(None);
            demo.start_node(node)?;
        }
        demo.until(0..nodes, START_LIMIT, "see all nodes", |states| states.all_direct())?;
        Ok(demo)
    }

    pub(super) fn shape(&self) -> Shape {
        self.shape
    }

    pub(super) fn config(&self) -> &Config {
        &self.config
    }

    pub(super) fn host(&self, host: usize) -> &Namespace {
        self.cluster.host(host)
    }

    /// Starts a node's process, after the end of one that was killed.
    pub(super) fn start_node(&mut self, node: usize) -> Result<(), Failure> {
        self.ending = None;
        let log = self.log(node);
        let log = File::create(&log).map_err(|error| Failure::writing(&log, &error))?;
        let mut command = Command::new(&self.program);
        command.arg("run").arg(self.directory.0.join("cluster.toml"));
        command.arg("--node").arg(name(node).to_string());
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        // Ctrl-C on a terminal is for this process, which ends the others.
        command.process_group(0);
        let started = self.cluster.node(node).spawn(command);
        self.nodes[node] = Some(started.map_err(|error| Failure::Runtime(error.to_string()))?);
        Ok(())
    }

    /// Kills a node's process with SIGKILL, and does not wait for its end: the kernel may take long
    /// to close its sockets. Returns the time just before.
    pub(super) fn kill_node(&mut self, node: usize) -> Instant {
        let begin = Instant::now();
        self.ending = self.nodes[node].take();
        if let Some(process) = &mut self.ending {
            // It fails when the process has ended already.
            let _ = process.0.kill();
        }
        begin
    }

    /// Stops a node's process with SIGSTOP. Returns the time just before.
    pub(super) fn stop_node(&mut self, node: usize) -> Result<Instant, Failure> {
        self.signal(node, Signal::STOP)
    }

    /// Lets a stopped process continue. Returns the time just before.
    pub(super) fn continue_node(&mut self, node: usize) -> Result<Instant, Failure> {
        self.signal(node, Signal::CONT)
    }

    fn signal(&self, node: usize, signal: Signal) -> Result<Instant, Failure> {
        let begin = Instant::now();
        if let Some(process) = &self.nodes[node] {
            kill_process(Pid::from_child(&process.0), signal).map_err(|error| {
                Failure::Runtime(format!("node {} takes no signal: {error}", name(node)))
            })?;
        }
        Ok(begin)
    }

    /// True if the node has a process.
    pub(super) fn has_process(&self, node: usize) -> bool {
        self.nodes[node].is_some()
    }

    /// Connects to a node's control socket.
    pub(super) fn client(&self, node: usize) -> Result<Client, Failure> {
        let path = self.directory.0.join(format!("{}.sock", name(node)));
        Client::connect(path).map_err(|error| Failure::Runtime(error.to_string()))
    }

    /// The states of nodes, as a node sees them.
    pub(super) fn states(&self, node: usize) -> Result<States, Failure> {
        let text = self.client(node)?.ask("nodes");
        Ok(States(text.map_err(|error| Failure::Runtime(error.to_string()))?))
    }

    /// Waits until each of `nodes` sees the states that are wanted. Returns the time of each.
    pub(super) fn until(
        &mut self,
        nodes: impl IntoIterator<Item = usize>,
        limit: Duration,
        goal: &str,
        wanted: impl Fn(&States) -> bool,
    ) -> Result<Vec<Instant>, Failure> {
        let nodes: Vec<usize> = nodes.into_iter().collect();
        let mut reached: Vec<Option<Instant>> = vec![None; nodes.len()];
        let begin = Instant::now();
        while reached.contains(&None) {
            for (node, reached) in nodes.iter().zip(&mut reached).filter(|(_, r)| r.is_none()) {
                // A node that starts has no socket yet.
                if self.states(*node).is_ok_and(|states| wanted(&states)) {
                    *reached = Some(Instant::now());
                }
            }
            self.check_processes()?;
            if begin.elapsed() > limit {
                let late = nodes.iter().zip(&reached).find(|(_, r)| r.is_none());
                let late = late.map_or('?', |(node, _)| name(*node));
                return Err(Failure::Runtime(format!(
                    "node {late} did not {goal} within {} s; end other programs and repeat",
                    limit.as_secs()
                )));
            }
            std::thread::sleep(POLL);
        }
        Ok(reached.into_iter().flatten().collect())
    }

    /// An error if a process has ended by itself.
    fn check_processes(&mut self) -> Result<(), Failure> {
        for node in 0..self.nodes.len() {
            let Some(process) = &mut self.nodes[node] else { continue };
            if let Ok(Some(status)) = process.0.try_wait() {
                let log = fs::read_to_string(self.log(node)).unwrap_or_default();
                let reason = log.lines().last().unwrap_or("no message");
                let reason = reason.trim_start_matches("error: ");
                let text = format!("node {} has ended ({status}): {reason}", name(node));
                return Err(Failure::Runtime(text));
            }
        }
        Ok(())
    }

    fn log(&self, node: usize) -> PathBuf {
        self.directory.0.join(format!("{}.log", name(node)))
    }
}

/// The states of all nodes, a line each: its name, a blank, its state.
pub(super) struct States(String);

impl States {
    /// The state of a node.
    pub(super) fn of(&self, node: usize) -> &str {
        let line = self.0.lines().nth(node).unwrap_or_default();
        line.split_once(' ').map_or("", |(_, state)| state)
    }

    /// True if all other nodes are reached directly.
    pub(super) fn all_direct(&self) -> bool {
        let mut states = self.0.lines().filter_map(|line| line.split_once(' '));
        !self.0.is_empty() && states.all(|(_, state)| matches!(state, "self" | "direct"))
    }
}

/// A directory for the user only, removed when this is dropped.
struct Directory(PathBuf);

impl Directory {
    fn new() -> io::Result<Self> {
        let process = std::process::id();
        let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
        for attempt in 0..100 {
            let path = std::env::temp_dir().join(format!("courser-router-{process}-{attempt}"));
            // Fails if there is something with this name, a link of another user included.
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// Removes a directory in which nodes may still create files.
fn remove(path: &Path) {
    for _ in 0..20 {
        match fs::remove_dir_all(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {}
            _ => return,
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}
