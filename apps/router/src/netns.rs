//! A cluster of nodes with hosts on one machine, in network namespaces, for tests and demonstrations.
//!
//! Node number N (from 1) has a port `lan0` to a network with one host, whose device is `eth0`:
//!
//! | | IPv4 | IPv6 |
//! | --- | --- | --- |
//! | network | 10.0.N.0/24 | fd00:N::/64 |
//! | node | 10.0.N.1 | fd00:N::1 |
//! | host, with the default route to the node | 10.0.N.2 | fd00:N::2 |
//!
//! Nodes reach each other at 10.9.0.N. A [`Shape`] selects the interconnect.
//!
//! The kernel of a node does not forward. It answers for the node's own addresses, and is silent about
//! packets for others. Packets on the networks of hosts have their real size, because hosts and
//! ports neither aggregate nor segment packets.
//!
//! Namespaces belong to the program and need no clean-up: they vanish with its last descriptor.
//! Needs root and the program `ip`.

mod namespace;
mod offload;

pub use namespace::{Inside, Namespace, Process, Unavailable};
pub use offload::Offloads;

use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::Path;
use std::time::{Duration, Instant};

/// MTU of the interconnect.
pub const INTERCONNECT_MTU: usize = 9000;
/// MTU of the networks of hosts.
pub const LAN_MTU: usize = 1500;
/// UDP port of the nodes.
pub const UDP_PORT: u16 = 31850;
/// Nodes of a cluster.
pub const NODES: std::ops::RangeInclusive<usize> = 1..=16;

/// A limit for the kernel, which delays reports of links by up to a second.
const LINKS_READY: Duration = Duration::from_secs(10);

/// The first index of a device whose peer has an index of the kernel's, from 2. While the indexes of
/// both ends are equal, the kernel delays its reports of the link by up to a second.
const INDEX: usize = 1000;

/// How nodes are connected to each other, and to hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shape {
    /// A link between each two nodes: device `to_x` leads to node `x`. The nodes' addresses are on
    /// `lo`, and reached by the link to the node.
    Mesh,
    /// All nodes at a switch, with the device `core0`.
    Switch,
    /// All nodes and hosts at one switch: `core0` and `lan0` of nodes, `eth0` of hosts.
    Mixed,
}

impl Shape {
    /// The name in the cluster's file.
    pub const fn name(self) -> &'static str {
        match self {
            Shape::Mesh => "mesh",
            Shape::Switch => "switch",
            Shape::Mixed => "mixed",
        }
    }
}

/// Nodes and hosts.
#[derive(Debug)]
pub struct Cluster {
    shape: Shape,
    nodes: Vec<Namespace>,
    hosts: Vec<Namespace>,
    switch: Option<Namespace>,
}

impl Cluster {
    /// Builds a cluster.
    ///
    /// # Errors
    /// [`Unavailable`]: what is missing.
    pub fn build(shape: Shape, nodes: usize) -> Result<Self, Unavailable> {
        if !NODES.contains(&nodes) {
            return Err(Unavailable::Nodes(nodes));
        }
        let new = |_| Namespace::new();
        let cluster = Self {
            shape,
            nodes: (0..nodes).map(new).collect::<Result<_, _>>()?,
            hosts: (0..nodes).map(new).collect::<Result<_, _>>()?,
            switch: if shape == Shape::Mesh { None } else { Some(Namespace::new()?) },
        };
        cluster.set_kernel()?;
        cluster.add_switch()?;
        for node in 0..nodes {
            cluster.add_lan(node)?;
            cluster.add_core(node)?;
        }
        for node in 0..nodes {
            cluster.set_addresses(node)?;
        }
        cluster.wait_for_links()?;
        Ok(cluster)
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Never: a cluster has nodes.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The namespace of a node, from 0.
    ///
    /// # Panics
    /// There is no such node.
    pub fn node(&self, node: usize) -> &Namespace {
        &self.nodes[node]
    }

    /// The namespace of the host at a node's port.
    ///
    /// # Panics
    /// There is no such node.
    pub fn host(&self, node: usize) -> &Namespace {
        &self.hosts[node]
    }

    /// The namespace of the switch, whose device is `br0`.
    pub fn switch(&self) -> Option<&Namespace> {
        self.switch.as_ref()
    }

    /// Sets a link of the interconnect up or down. With a switch, that is the first node's.
    ///
    /// # Errors
    /// The system refused.
    pub fn set_link(&self, from: usize, to: usize, is_up: bool) -> Result<(), Unavailable> {
        let state = if is_up { "up" } else { "down" };
        if self.shape != Shape::Mesh {
            return self.node(from).run(&format!("ip link set core0 {state}")).map(drop);
        }
        self.node(from).run(&format!("ip link set to_{} {state}", name(to)))?;
        if !is_up {
            return Ok(());
        }
        // The kernel removed the route with the link.
        self.node(from).batch(&mesh_route(from, to))?;
        self.wait_for_links()
    }

    /// Makes the port of a node again, after it was deleted, with its host's end and all addresses.
    ///
    /// # Errors
    /// The system refused.
    ///
    /// # Panics
    /// Hosts are at the switch ([`Shape::Mixed`]).
    pub fn renew_lan(&self, node: usize, index: usize, mtu: usize) -> Result<(), Unavailable> {
        assert!(self.shape != Shape::Mixed, "the host is at the switch");
        self.add_veth(node, index, mtu)?;
        self.node(node).batch(&lan_addresses(node))?;
        self.host(node).batch(&host_addresses(node))?;
        self.wait_for_links()
    }

    /// The cluster's file, with the sockets for control in a directory.
    pub fn config(&self, directory: &Path, routes: &[&str]) -> String {
        let mut text = format!(
            "[cluster]\nname = \"netns\"\ntopology = \"{}\"\nfailure_timeout = \"800ms\"\n\n\
             [interconnect]\nmtu = {INTERCONNECT_MTU}\nbatching = true\n",
            self.shape.name()
        );
        for node in 0..self.len() {
            let (name, n) = (name(node), node + 1);
            let control = directory.join(format!("{name}.sock"));
            // Into a string, which does not fail.
            let _ = write!(
                text,
                "\n[[node]]\nname = \"{name}\"\naddress = \"udp://{}:{UDP_PORT}\"\n\
                 control = {control:?}\n\n\
                 [[node.port]]\ninterface = \"lan0\"\n\
                 addresses = [\"10.0.{n}.1/24\", \"fd00:{n}::1/64\"]\nmtu = {LAN_MTU}\n",
                core_v4(node),
            );
        }
        let _ = write!(text, "\n[routes]\nfiles = {routes:?}\n");
        text
    }

    fn namespaces(&self) -> impl Iterator<Item = &Namespace> {
        self.nodes.iter().chain(&self.hosts).chain(&self.switch)
    }

    /// Waits until the kernel reports all links as ready, which it does some time after they are.
    fn wait_for_links(&self) -> Result<(), Unavailable> {
        const LINKS: &str = "ip -o link show up type veth";
        for namespace in self.namespaces() {
            let start = Instant::now();
            loop {
                let text = namespace.run(LINKS)?;
                if text.lines().all(|link| link.contains(" state UP ")) {
                    break;
                }
                if start.elapsed() > LINKS_READY {
                    return Err(Unavailable::Refused { command: LINKS.to_owned(), text });
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(())
    }

    fn set_kernel(&self) -> Result<(), Unavailable> {
        for namespace in self.namespaces() {
            for (name, value) in KERNEL {
                namespace.set_kernel(name, value)?;
            }
            namespace.batch("link set lo up")?;
        }
        for node in &self.nodes {
            // Without a route, IPv6 reports packets for others as unreachable although it does not
            // forward them.
            node.batch("route add blackhole ::/0 metric 9999")?;
        }
        Ok(())
    }

    fn add_switch(&self) -> Result<(), Unavailable> {
        let Some(switch) = &self.switch else { return Ok(()) };
        switch.batch("link add br0 type bridge mcast_snooping 0\nlink set br0 up")
    }

    /// Adds a device to a namespace, with its peer at the switch.
    fn plug(
        &self,
        at: &Namespace,
        device: &str,
        port: &str,
        mtu: usize,
    ) -> Result<(), Unavailable> {
        let Some(switch) = &self.switch else { return Ok(()) };
        let peer = format!("peer name {port} mtu {mtu} netns {}", switch.path());
        let index = if device == "core0" { INDEX + 1 } else { INDEX };
        at.batch(&format!("link add {device} index {index} mtu {mtu} type veth {peer}"))?;
        switch.batch(&format!("link set {port} master br0\nlink set {port} up"))?;
        Offloads::OFF.set(switch, port)
    }

    fn add_lan(&self, node: usize) -> Result<(), Unavailable> {
        let (at, host, name) = (self.node(node), self.host(node), name(node));
        if self.shape == Shape::Mixed {
            self.plug(at, "lan0", &format!("lan_{name}"), LAN_MTU)?;
            self.plug(host, "eth0", &format!("host_{name}"), LAN_MTU)?;
            Offloads::OFF.set(at, "lan0")?;
            return Offloads::OFF.set(host, "eth0");
        }
        self.add_veth(node, INDEX, LAN_MTU)
    }

    /// Adds a port of a node whose other end is its host's.
    fn add_veth(&self, node: usize, index: usize, mtu: usize) -> Result<(), Unavailable> {
        let (at, host) = (self.node(node), self.host(node));
        let peer = format!("peer name eth0 mtu {mtu} netns {}", host.path());
        at.batch(&format!("link add lan0 index {index} mtu {mtu} type veth {peer}"))?;
        Offloads::OFF.set(at, "lan0")?;
        Offloads::OFF.set(host, "eth0")
    }

    /// Adds the node's devices of the interconnect, in a mesh those to earlier nodes.
    fn add_core(&self, node: usize) -> Result<(), Unavailable> {
        let at = self.node(node);
        if self.shape != Shape::Mesh {
            return self.plug(at, "core0", &format!("core_{}", name(node)), INTERCONNECT_MTU);
        }
        for other in 0..node {
            let (to, from) = (name(other), name(node));
            let peer = format!("peer name to_{from} mtu {INTERCONNECT_MTU}");
            let peer = format!("{peer} netns {}", self.node(other).path());
            let (index, mtu) = (INDEX + 1 + other, INTERCONNECT_MTU);
            at.batch(&format!("link add to_{to} index {index} mtu {mtu} type veth {peer}"))?;
        }
        Ok(())
    }

    fn set_addresses(&self, node: usize) -> Result<(), Unavailable> {
        let mut script = lan_addresses(node);
        match self.shape {
            Shape::Mesh => {
                let _ = writeln!(script, "address add {}/32 dev lo", core_v4(node));
                for other in (0..self.len()).filter(|other| *other != node) {
                    let (address, to) = (link_v4(node, other), name(other));
                    let _ = writeln!(script, "address add {address}/24 dev to_{to}");
                    let _ = writeln!(script, "link set to_{to} up");
                    script += &mesh_route(node, other);
                }
            }
            Shape::Switch | Shape::Mixed => {
                let _ = writeln!(script, "address add {}/24 dev core0", core_v4(node));
                script += "link set core0 up\n";
            }
        }
        self.node(node).batch(&script)?;
        self.host(node).batch(&host_addresses(node))
    }
}

/// Sets the addresses of a node's port, and the port up.
fn lan_addresses(node: usize) -> String {
    let n = node + 1;
    format!(
        "address add 10.0.{n}.1/24 dev lan0\naddress add fd00:{n}::1/64 dev lan0 nodad\n\
         link set lan0 up\n"
    )
}

/// Sets a host's addresses and its routes, and its device up.
fn host_addresses(node: usize) -> String {
    let n = node + 1;
    format!(
        "address add 10.0.{n}.2/24 dev eth0\naddress add fd00:{n}::2/64 dev eth0 nodad\n\
         link set eth0 up\nroute add default via 10.0.{n}.1\nroute add ::/0 via fd00:{n}::1\n"
    )
}

/// Settings of the kernel in all namespaces, before devices are added.
const KERNEL: [(&str, &str); 13] = [
    // The program forwards.
    ("ipv4/ip_forward", "0"),
    ("ipv6/conf/all/forwarding", "0"),
    // Addresses are usable at once.
    ("ipv6/conf/all/disable_ipv6", "0"),
    ("ipv6/conf/default/disable_ipv6", "0"),
    ("ipv6/conf/all/accept_dad", "0"),
    ("ipv6/conf/default/accept_dad", "0"),
    ("ipv6/conf/default/dad_transmits", "0"),
    ("ipv6/conf/default/accept_ra", "0"),
    // Answers leave by another device than packets come from, when several are at one switch.
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "0"),
    // A device answers for its own addresses only.
    ("ipv4/conf/all/arp_ignore", "1"),
    ("ipv4/conf/all/arp_announce", "2"),
    // Tests send many errors.
    ("ipv4/icmp_ratelimit", "0"),
];

/// The name of a node: `a` and so on.
pub fn name(node: usize) -> char {
    char::from(b'a' + node as u8)
}

/// The address of a node for other nodes.
pub fn core_v4(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 9, 0, node as u8 + 1)
}

/// The address of a node in a mesh on its link to another: 10.9.P.N, with a P for each two nodes.
pub fn link_v4(node: usize, other: usize) -> Ipv4Addr {
    let (low, high) = (node.min(other), node.max(other));
    Ipv4Addr::new(10, 9, (1 + high * (high - 1) / 2 + low) as u8, node as u8 + 1)
}

/// The address of a node on the network of its host.
pub fn lan_v4(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, node as u8 + 1, 1)
}

/// The address of a host.
pub fn host_v4(node: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, node as u8 + 1, 2)
}

/// The address of a node on the network of its host.
pub fn lan_v6(node: usize) -> Ipv6Addr {
    host_network(node, 1)
}

/// The address of a host.
pub fn host_v6(node: usize) -> Ipv6Addr {
    host_network(node, 2)
}

fn host_network(node: usize, last: u16) -> Ipv6Addr {
    // The number's decimal digits, as in the text of the address.
    let n = node as u16 + 1;
    Ipv6Addr::new(0xfd00, n / 10 * 16 + n % 10, 0, 0, 0, 0, 0, last)
}

fn mesh_route(from: usize, to: usize) -> String {
    format!(
        "route replace {}/32 via {} dev to_{} src {}\n",
        core_v4(to),
        link_v4(to, from),
        name(to),
        core_v4(from)
    )
}

#[cfg(test)]
mod tests;
