//! Forwards the packets of a capture through all nodes of a cluster in memory.

use std::fs::File;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Local;
use crate::config::{Config, Node, Port};
use crate::counters::{Counters, PacketDrop};
use crate::line::{
    CaptureError, CaptureIntake, CaptureOutlet, CountingOutlet, Intake, Outlet, Sent,
};
use crate::route::{NodeId, PortId};
use crate::routes::{Change, RouteError};
use crate::run::NodeError;

/// Time in which nodes connect, and in which packets under way leave.
const PATIENCE: Duration = Duration::from_secs(30);

/// Messages that wait for a link before the next packets arrive: as many as Courser has in flight.
const BACKLOG: u64 = 1_024;

/// Messages that may wait for a link: a burst may be cut into many fragments.
const QUEUE: usize = 65_536;

/// A cluster for captures of any addresses: nodes `a`, `b`, `c`, each with a port `lan0`.
const CLUSTER: &str = "\
[cluster]
name = \"replay\"
topology = \"switch\"
failure_timeout = \"4s\"
[interconnect]
mtu = 9000
[icmp]
per_second = 1000000
burst = 1000000
[[node]]
name = \"a\"
address = \"udp://127.0.0.1:31850\"
[[node.port]]
interface = \"lan0\"
addresses = [\"10.0.1.1/24\", \"fd00:1::1/64\"]
mtu = 9000
[[node]]
name = \"b\"
address = \"udp://127.0.0.1:31851\"
[[node.port]]
interface = \"lan0\"
addresses = [\"10.0.2.1/24\", \"fd00:2::1/64\"]
mtu = 9000
[[node]]
name = \"c\"
address = \"udp://127.0.0.1:31852\"
[[node.port]]
interface = \"lan0\"
addresses = [\"10.0.3.1/24\", \"fd00:3::1/64\"]
mtu = 9000
";

/// The default routes of [`CLUSTER`].
const ROUTES: [&str; 2] = ["0.0.0.0/0 via b:lan0@10.0.2.2", "::/0 via b:lan0@fd00:2::2"];

/// The cluster that is used without a configuration, and the routes announced at its node `b`.
///
/// # Panics
/// Never: a test parses them.
pub fn builtin() -> (Config, Vec<Change>) {
    let config = Config::parse(CLUSTER, "").expect("a test parses it");
    let routes = ROUTES.iter().map(|line| config.parse_route(line).expect("a test parses it"));
    let changes = routes.map(|(prefix, members)| Change::Add(prefix, members)).collect();
    (config, changes)
}

/// Why a capture is not forwarded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReplayError {
    /// The capture cannot be read, or a file not be written.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The cluster does not start.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// A directory cannot be made.
    #[error("{path}: {error}; choose a directory that can be written", path = path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// A file of packets that leave would replace another one.
    #[error("{path} exists: remove it, or choose another directory", path = .0.display())]
    Exists(PathBuf),
    /// Nodes did not connect to each other.
    #[error(
        "the nodes are not connected after {0:?}; raise failure_timeout, or end other programs"
    )]
    NotConnected(Duration),
}

impl From<RouteError> for ReplayError {
    fn from(error: RouteError) -> Self {
        ReplayError::Node(error.into())
    }
}

/// Counts the packets that leave by each port, and writes them to files.
#[derive(Debug)]
pub struct ReplayOutlet {
    count: CountingOutlet,
    files: Option<CaptureOutlet>,
}

impl Outlet for ReplayOutlet {
    fn send(&mut self, port: PortId, neighbour: IpAddr, packet: &[u8]) -> Result<(), PacketDrop> {
        if let Some(files) = &mut self.files {
            files.send(port, neighbour, packet)?;
        }
        self.count.send(port, neighbour, packet)
    }

    fn flush(&mut self) {
        if let Some(files) = &mut self.files {
            files.flush();
        }
    }

    fn is_up(&self, port: PortId) -> bool {
        self.count.is_up(port)
    }
}

/// A capture to be forwarded.
#[derive(Debug)]
pub struct Replay {
    /// The cluster.
    pub config: Config,
    /// Routes announced at nodes.
    pub announced: Vec<(NodeId, Vec<Change>)>,
    /// Where the packets arrive.
    pub arrival: (NodeId, PortId),
    /// The directory for what leaves: a new file `NODE@PORT.pcap` for each port.
    pub out: Option<PathBuf>,
}

/// What became of the packets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exits {
    /// Sum of the counters of all nodes.
    pub counters: Counters,
    /// Packets that left, by port.
    pub ports: Vec<(NodeId, PortId, Sent)>,
    /// Time from the first packet to the last, ns.
    pub elapsed_ns: u64,
}

impl Replay {
    /// Forwards the packets.
    ///
    /// # Errors
    /// [`ReplayError`].
    pub fn run(mut self, mut capture: CaptureIntake) -> Result<Exits, ReplayError> {
        self.config.interconnect.queue = QUEUE;
        let mut outlets = self.outlets()?;
        outlets.reverse();
        let none = || ReplayOutlet { count: CountingOutlet::new(0), files: None };
        let mut local = Local::new(&self.config, |_| outlets.pop().unwrap_or_else(none))?;
        if !(local.connect(PATIENCE) && self.announce(&mut local)) {
            return Err(ReplayError::NotConnected(PATIENCE));
        }
        let begin_ns = local.now_ns();
        let (node, port) = self.arrival;
        while !capture.is_done() {
            while local.backlog() > BACKLOG {
                local.pass();
            }
            capture.burst(&mut |_, packet| local.inject(node, port, packet));
            local.pass();
        }
        local.settle(PATIENCE);
        let elapsed_ns = local.now_ns() - begin_ns;
        let ports = (self.config.ports())
            .map(|(node, port, _)| {
                let sent = local.node(node).map(|n| n.outlet().count.sent(port));
                (node, port, sent.unwrap_or_default())
            })
            .collect();
        for (node, _) in (0..).zip(&self.config.nodes) {
            let files = local.node_mut(node).and_then(|mut n| n.outlet_mut().files.take());
            files.map_or(Ok(()), CaptureOutlet::finish)?;
        }
        Ok(Exits { counters: local.counters(), ports, elapsed_ns })
    }

    fn outlets(&self) -> Result<Vec<ReplayOutlet>, ReplayError> {
        let files = self.out.as_ref().map(|out| self.files(out)).transpose()?;
        let mut files = files.into_iter().flatten();
        let outlet = |node: &Node| {
            let count = CountingOutlet::new(node.ports.len());
            let paths = files.next().map(|paths| {
                CaptureOutlet::create(&paths.iter().map(|path| path.as_path()).collect::<Vec<_>>())
            });
            Ok(ReplayOutlet { count, files: paths.transpose()? })
        };
        self.config.nodes.iter().map(outlet).collect()
    }

    /// Creates a file for each port, by node. None of them, if one exists.
    fn files(&self, out: &Path) -> Result<Vec<Vec<PathBuf>>, ReplayError> {
        let failed = |error| ReplayError::Directory { path: out.to_owned(), error };
        std::fs::create_dir_all(out).map_err(failed)?;
        // No name of a node or an interface has an @, so that all files differ.
        let paths = |node: &Node| {
            let port = |port: &Port| out.join(format!("{}@{}.pcap", node.name, port.interface));
            node.ports.iter().map(port).collect()
        };
        let paths: Vec<Vec<PathBuf>> = self.config.nodes.iter().map(paths).collect();
        if let Some(path) = paths.iter().flatten().find(|path| path.symlink_metadata().is_ok()) {
            return Err(ReplayError::Exists(path.clone()));
        }
        for path in paths.iter().flatten() {
            // Fails if another program has made it meanwhile.
            File::create_new(path).map_err(|error| match error.kind() {
                ErrorKind::AlreadyExists => ReplayError::Exists(path.clone()),
                _ => CaptureError::File { path: path.clone(), error }.into(),
            })?;
        }
        Ok(paths)
    }

    /// Announces the routes, and waits until all nodes have them.
    fn announce(&self, local: &mut Local<ReplayOutlet>) -> bool {
        let before = local.nodes().map(|node| node.routes().len()).max().unwrap_or_default();
        let mut announced = 0;
        for (node, changes) in &self.announced {
            announced += changes.len();
            // Nodes refuse no routes of a cluster that has no others.
            let _ = local.change(*node, changes);
        }
        local.run_until(PATIENCE, |local| {
            local.nodes().all(|node| node.routes().len() == before + announced)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_built_in_cluster_is_valid() {
        let (config, changes) = builtin();
        assert_eq!((config.nodes.len(), changes.len()), (3, 2));
    }
}
