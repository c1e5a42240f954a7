//! The cluster's file: one TOML file, the same for all nodes.
//!
//! ```toml
//! [cluster]
//! name = "demo"
//! topology = "mesh"             # or "switch", "mixed"
//! failure_timeout = "800ms"     # a node is dead after this silence; 10ms to 60s
//! seed = 1                      # of the hash of flows
//!
//! [interconnect]
//! mtu = 9000                    # of the links between nodes; 1280 to 9216, 1500 if absent
//! batching = true               # packets share frames
//! batch_budget = "0us"          # a packet waits at most this for others; 0us to 250us
//! queue = 1024                  # messages that wait for a link; 1 to 65536
//!
//! [icmp]
//! per_second = 1000             # messages that a node makes; 0 for none
//! burst = 100
//!
//! [[node]]
//! name = "a"
//! address = "udp://10.9.0.1:31850"             # its Courser address
//! peers = { b = "udp://10.9.1.2:31850" }       # addresses of others as this node sees them
//! control = "/run/courser-router/a.sock"       # see `control`
//!
//! [node.import]                                # see `import`
//! table = 100                                  # the kernel's table of a routing daemon
//! daemon = "/run/bird/bird.ctl"                # a socket that the daemon has as long as it lives
//! grace = "5s"                                 # a dead daemon's routes stay for this time; 0s to 1h
//! limit = 2097152                              # routes at most; 1 to 2097152
//!
//! [[node.port]]
//! interface = "lan0"
//! addresses = ["10.0.1.1/24", "fd00:1::1/64"]
//! mtu = 1500                                   # 68, with IPv6 1280, to 9000
//!
//! [routes]
//! files = ["routes.txt"]        # relative to this file
//! ```
//!
//! `[interconnect]`, `[icmp]`, `[routes]`, `[node.import]`, and in the other tables all but `name`,
//! `topology`, `address`, `interface`, `addresses` and `table` may be absent.
//!
//! Networks and addresses of ports are routes without further lines. A file of routes has one
//! route a line, and comments after `#`:
//!
//! ```text
//! 192.0.2.0/24     via a:lan0@10.0.1.254             # by a router on the network of a port
//! 198.51.100.0/24  via a:lan0@10.0.1.254*2 b:lan0@10.0.2.254     # by weights 2 and 1
//! 203.0.113.0/24   via b:lan0                        # the hosts answer on that network
//! 192.0.3.0/24     via a:lan0@fe80::9                # by an IPv6 router (RFC 8950), link-local
//! 192.0.4.0/24     via a:lan0@172.16.0.1,onlink      # outside of the port's networks
//! 2001:db8::/32    unreachable                       # rejected by ICMP
//! ```
//!
//! Octets of addresses have no leading zeros.

mod check;
mod import;
mod raw;
mod route;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use courser::Uri;
use ipnet::IpNet;
use serde::Deserialize;
use thiserror::Error;
use xxhash_rust::xxh3::xxh3_64;

pub use self::import::Import;
pub use self::route::RouteTextError;
pub(crate) use self::route::parse_prefix;
use crate::route::{Exit, Members, NextHop, NodeId, PortId};
use crate::routes::{Origin, RouteError, Routes};
pub(crate) use check::FAILURE_TIMEOUT;
pub(crate) use route::MTU_V6;

/// Why a configuration is not used.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// A file cannot be read.
    #[error("{file}: {source}", file = file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The error.
        source: std::io::Error,
    },
    /// A line is wrong.
    #[error("{file}:{line}: {what}", file = file.display())]
    Line {
        /// The file.
        file: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The key, its value, and what is allowed.
        what: String,
    },
    /// The tables have no room for the networks of ports.
    #[error("a network of a port: {0}")]
    Connected(#[from] RouteError),
}

/// How nodes are connected to each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Topology {
    /// A cable between each two nodes.
    Mesh,
    /// A switch that connects all nodes, apart from the ports.
    Switch,
    /// One switch connects the nodes and the networks of ports. Each node has an interface of its own
    /// for other nodes.
    Mixed,
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Topology::Mesh => "mesh",
            Topology::Switch => "switch",
            Topology::Mixed => "mixed",
        })
    }
}

/// The links between nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Interconnect {
    /// Bytes of an IP packet at most.
    pub mtu: u16,
    /// Whether packets share frames.
    pub batching: bool,
    /// A packet waits at most this long for others that share its frame.
    pub batch_budget: Duration,
    /// Messages that wait for a link at most.
    pub queue: usize,
}

/// The rate of ICMP messages that a node makes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IcmpRate {
    /// Messages per second; 0 for none.
    pub per_second: u32,
    /// Messages at once.
    pub burst: u32,
}

/// A port of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Port {
    /// The network interface of the operating system.
    pub interface: String,
    /// Addresses of the node, each with the length of its network.
    pub addresses: Vec<IpNet>,
    /// Bytes of an IP packet at most.
    pub mtu: u16,
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Where it listens for other nodes.
    pub address: Uri,
    /// Addresses of other nodes that are different for this one.
    pub peers: BTreeMap<NodeId, Uri>,
    /// The control socket.
    pub control: Option<PathBuf>,
    /// The routes that it takes over from its kernel.
    pub import: Option<Import>,
    /// Its ports; the position is the number.
    pub ports: Vec<Port>,
}

/// A checked configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The name of the cluster.
    pub name: String,
    /// How nodes are connected.
    pub topology: Topology,
    /// A node is dead after this silence.
    pub failure_timeout: Duration,
    /// Seed of the hash of flows.
    pub seed: u64,
    /// The links between nodes.
    pub interconnect: Interconnect,
    /// The rate of ICMP messages.
    pub icmp: IcmpRate,
    /// The nodes; the position is the number.
    pub nodes: Vec<Node>,
    /// Files of routes.
    route_files: Vec<PathBuf>,
    /// Their routes.
    routes: Vec<FileRoute>,
}

/// A route of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
struct FileRoute {
    prefix: IpNet,
    members: Members,
    /// Position of its file, and its line there.
    file: usize,
    line: usize,
}

impl Config {
    /// Reads a file and the files of routes that it names.
    pub fn load(path: impl AsRef<Path>) -> Result<Config, ConfigError> {
        let file = path.as_ref();
        let text = read(file)?;
        check::config(file, &text, file.parent().unwrap_or(Path::new("")))
    }

    /// Reads a text. Files of routes are relative to `base`.
    pub fn parse(text: &str, base: impl AsRef<Path>) -> Result<Config, ConfigError> {
        check::config(Path::new("configuration"), text, base.as_ref())
    }

    /// The routes of a node that has just started: networks and addresses of all ports, and those
    /// of the files.
    ///
    /// # Errors
    /// The tables have no room for one.
    pub fn routes(&self) -> Result<Routes, ConfigError> {
        self.fill(Routes::new())
    }

    fn fill(&self, mut routes: Routes) -> Result<Routes, ConfigError> {
        for (prefix, hop) in self.connected() {
            routes.announce(Origin::Connected, prefix, &[(hop, 1)])?;
        }
        for route in &self.routes {
            routes.announce(Origin::File, route.prefix, &route.members).map_err(|error| {
                let file = self.route_files[route.file].clone();
                ConfigError::Line { file, line: route.line, what: error.to_string() }
            })?;
        }
        Ok(routes)
    }

    /// The networks of all ports, then the addresses of all nodes, which take the place of networks
    /// of one address.
    fn connected(&self) -> impl Iterator<Item = (IpNet, NextHop)> {
        let hop = |node, exit| NextHop { node, exit };
        let networks = self
            .addresses()
            .map(move |(node, port, address)| (address.trunc(), hop(node, Exit::Connected(port))));
        let own =
            self.addresses().map(move |(node, _, a)| (a.addr().into(), hop(node, Exit::Local)));
        networks.chain(own)
    }

    /// The addresses of all ports.
    pub fn addresses(&self) -> impl Iterator<Item = (NodeId, PortId, IpNet)> {
        self.ports().flat_map(|(node, number, port)| {
            port.addresses.iter().map(move |address| (node, number, *address))
        })
    }

    /// All ports.
    pub fn ports(&self) -> impl Iterator<Item = (NodeId, PortId, &Port)> {
        (0..).zip(&self.nodes).flat_map(|(id, node)| {
            (0..).zip(&node.ports).map(move |(number, port)| (id, number, port))
        })
    }

    /// The number of a node.
    pub fn node(&self, name: &str) -> Option<NodeId> {
        (0..).zip(&self.nodes).find(|(_, node)| node.name == name).map(|(id, _)| id)
    }

    /// The address by which one node reaches another, without the options with which that one
    /// listens; `None` if either does not exist.
    pub fn peer(&self, from: NodeId, to: NodeId) -> Option<Uri> {
        let other = self.nodes.get(usize::from(to))?;
        let seen = self.nodes.get(usize::from(from))?.peers.get(&to);
        Some(Uri { options: Vec::new(), ..seen.unwrap_or(&other.address).clone() })
    }

    /// The addresses of IP that the file has for a node, for itself and for others. Names of hosts
    /// are left out.
    pub fn origins(&self, node: NodeId) -> Vec<IpAddr> {
        let own = self.nodes.get(usize::from(node)).map(|node| &node.address);
        let seen = self.nodes.iter().filter_map(|other| other.peers.get(&node));
        own.into_iter().chain(seen).filter_map(Uri::ip).collect()
    }

    /// A hash of what all nodes must agree on: the cluster's name, topology and seed, the names of
    /// the nodes in their order, and their ports. It is the same on every machine. Addresses of
    /// nodes, routes and limits may differ while a cluster is changed.
    pub fn fingerprint(&self) -> u64 {
        // No element contains a line feed, so that different lists are different texts.
        let mut text = format!("{}\n{}\n{}\n", self.name, self.topology, self.seed);
        for node in &self.nodes {
            text += &format!("node {}\n", node.name);
            for port in &node.ports {
                text += &format!("port {} {}\n", port.interface, port.mtu);
                text.extend(port.addresses.iter().map(|address| format!("{address}\n")));
            }
        }
        xxh3_64(text.as_bytes())
    }

    /// The next hops of a line of a file of routes. Used for the control socket too.
    pub fn parse_route(&self, line: &str) -> Result<(IpNet, Members), RouteTextError> {
        route::parse(&self.nodes, line)
    }

    /// A route as a line that [`Config::parse_route`] reads. Addresses of nodes themselves, which no
    /// line can have, are `local NODE`.
    pub fn route_text(&self, prefix: IpNet, members: &[(NextHop, u16)]) -> String {
        route::text(&self.nodes, prefix, members)
    }

    /// A next hop as in a line of a file of routes.
    pub fn hop_text(&self, hop: &NextHop) -> String {
        route::hop_text(&self.nodes, hop)
    }

    /// The port on whose network an address is.
    pub fn port_of(&self, address: IpAddr) -> Option<(NodeId, PortId)> {
        let mut all = self.addresses();
        all.find(|(_, _, net)| net.contains(&address)).map(|(node, port, _)| (node, port))
    }
}

fn read(file: &Path) -> Result<String, ConfigError> {
    std::fs::read_to_string(file)
        .map_err(|source| ConfigError::Read { file: file.to_owned(), source })
}

fn read_bytes(file: &Path) -> Result<Vec<u8>, ConfigError> {
    std::fs::read(file).map_err(|source| ConfigError::Read { file: file.to_owned(), source })
}
