//! The cluster of these tests: nodes `a`, `b` and `c`. Node `n` has port `lan0` with the networks
//! 10.n.0.0/24 and 2001:db8:n::/64, and `lan1` with 10.n.1.0/24 and a smaller MTU.

use std::cell::RefCell;
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use courser_router::config::Config;
use courser_router::counters::{Counters, PacketDrop};
use courser_router::line::Outlet;
use courser_router::local::Local;
use courser_router::route::{Exit, Members, NextHop, NodeId, PortId};
use courser_router::routes::Change;

/// A packet that left the cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Left {
    pub(crate) node: NodeId,
    pub(crate) port: PortId,
    pub(crate) neighbour: IpAddr,
    pub(crate) packet: Vec<u8>,
}

/// What left, in order.
pub(crate) type Log = Rc<RefCell<Vec<Left>>>;

/// Keeps the packets that leave.
pub(crate) struct Collector {
    node: NodeId,
    log: Log,
}

impl Outlet for Collector {
    fn send(&mut self, port: PortId, neighbour: IpAddr, packet: &[u8]) -> Result<(), PacketDrop> {
        if port >= PORTS {
            return Err(PacketDrop::PortDown);
        }
        let packet = packet.to_vec();
        self.log.borrow_mut().push(Left { node: self.node, port, neighbour, packet });
        Ok(())
    }

    fn flush(&mut self) {}

    fn is_up(&self, port: PortId) -> bool {
        port < PORTS
    }
}

/// A limit for what should take milliseconds, on a machine with other work.
pub(crate) const LONG: Duration = Duration::from_secs(60);

/// Longer than tests of a busy machine stop for. Heartbeats follow each other after an eighth.
pub(crate) const PATIENT: &str = "8s";

/// Ports of each node.
const PORTS: PortId = 2;

/// MTU of the ports `lan1`.
pub(crate) const NARROW: usize = 600;

/// The cluster's file.
pub(crate) fn text(topology: &str, failure_timeout: &str, icmp: u32) -> String {
    let mut text = format!(
        "[cluster]\nname = \"local\"\ntopology = \"{topology}\"\n\
         failure_timeout = \"{failure_timeout}\"\nseed = 7\n\
         [interconnect]\nmtu = 9000\n\
         [icmp]\nper_second = {icmp}\nburst = {icmp}\n"
    );
    for (n, name) in (1..).zip(["a", "b", "c"]) {
        text += &format!(
            "[[node]]\nname = \"{name}\"\naddress = \"udp://127.0.0.1:3190{n}\"\n\
             [[node.port]]\ninterface = \"lan0\"\n\
             addresses = [\"10.{n}.0.1/24\", \"2001:db8:{n}::1/64\"]\nmtu = 1500\n\
             [[node.port]]\ninterface = \"lan1\"\naddresses = [\"10.{n}.1.1/24\"]\nmtu = {NARROW}\n"
        );
    }
    text
}

/// A cluster with all that has left it.
pub(crate) struct Cluster {
    pub(crate) local: Local<Collector>,
    log: Log,
}

impl Cluster {
    pub(crate) fn start(text: &str) -> Cluster {
        let config = Config::parse(text, "").expect("a valid configuration");
        let log = Log::default();
        let outlet = |node| Collector { node, log: Rc::clone(&log) };
        let mut local = Local::new(&config, outlet).expect("starts");
        assert!(local.connect(LONG), "{:?}", local.counters());
        Cluster { local, log }
    }

    /// Starts a stopped node again.
    pub(crate) fn restart(&mut self, node: NodeId) {
        let outlet = Collector { node, log: Rc::clone(&self.log) };
        self.local.start(node, outlet).expect("starts");
    }

    /// Takes what has left so far.
    pub(crate) fn take(&mut self) -> Vec<Left> {
        self.log.take()
    }

    /// A packet arrives at a node's `lan0`.
    pub(crate) fn inject(&mut self, node: NodeId, packet: &[u8]) {
        while self.local.backlog() > 900 {
            self.local.pass();
        }
        self.local.inject(node, 0, &mut packet.to_vec());
    }

    /// A packet arrives, and all that follows from it happens. Returns what left.
    pub(crate) fn forward(&mut self, node: NodeId, packet: &[u8]) -> Vec<Left> {
        self.inject(node, packet);
        assert!(self.local.settle(LONG));
        self.take()
    }

    /// Asserts that no packet is lost, also not by the counters.
    pub(crate) fn check_totals(&mut self) -> Counters {
        assert!(self.local.settle(LONG), "{:?}", self.local.counters());
        for node in self.local.nodes() {
            let counters = node.counters();
            assert_eq!(counters.unaccounted(), 0, "{} {counters:?}", node.settings().node);
        }
        let counters = self.local.counters();
        assert_eq!(counters.to_nodes, counters.from_nodes, "{counters:?}");
        counters
    }

    /// Changes routes at a node.
    pub(crate) fn change(&mut self, node: NodeId, changes: &[Change]) {
        self.local.change(node, changes).expect("it runs").expect("possible");
    }

    /// Replaces a route at a node.
    pub(crate) fn replace(&mut self, node: NodeId, prefix: &str, members: Members) {
        self.change(node, &[Change::Replace(prefix.parse().expect("a prefix"), members)]);
    }

    /// Passes until a condition holds.
    pub(crate) fn wait(&mut self, what: &str, done: impl FnMut(&mut Local<Collector>) -> bool) {
        assert!(self.local.run_until(LONG, done), "{what}: {:?}", self.local.counters());
    }

    /// Passes until a packet as wanted has left.
    pub(crate) fn wait_left(&mut self, wanted: impl Fn(&Left) -> bool) {
        let log = Rc::clone(&self.log);
        self.wait("a packet leaves", |_| log.borrow().iter().any(&wanted));
    }

    /// Passes until the lookups of these nodes for an address have a route with these next hops.
    pub(crate) fn wait_route(&mut self, nodes: &[NodeId], address: IpAddr, members: &Members) {
        self.wait("the route reaches all nodes", |local| {
            nodes.iter().all(|node| {
                let node = local.node(*node).expect("it runs");
                let found = node.routes().find(address);
                found.is_some_and(|route| route.members == &members[..])
            })
        });
    }
}

/// A next hop: the router `host` on the network of a port.
pub(crate) fn gateway(node: NodeId, port: PortId, host: u8) -> NextHop {
    let address = [10, node + 1, port, host];
    NextHop { node, exit: Exit::Gateway(port, address.into()) }
}

/// A route by one router.
pub(crate) fn by(node: NodeId, port: PortId, host: u8) -> Members {
    vec![(gateway(node, port, host), 1)]
}
