//! A node as a process: ports of the operating system, the interconnect over UDP, a control socket.

mod kernel;
#[cfg(test)]
mod tests;

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use courser::{BindError, Nexus, Packing, Rpc, RunError, SessionError};
use courser_kit::counters;
use serde_json::{Map, Value, json};

use crate::config::{Config, ConfigError, Port, Topology};
use crate::control::{self, Request, Response, Server};
use crate::import::Import;
use crate::line::{self, Intake, LineError, SystemIntake, SystemPorts};
use crate::node::{self, Claim, HEADER_MAX, Node, Reason, Settings, Shared, Spread};
use crate::route::NodeId;
use crate::routes::RouteError;

/// A node spins for this long after its last packet before it sleeps.
const SPIN_NS: u64 = 100_000;

/// Longest sleep: in which a signal is noticed.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// Why a node does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The name is none of the cluster's.
    #[error("the cluster has no node {name:?}; use one of: {known}")]
    NoNode {
        /// The name.
        name: String,
        /// The names in the cluster's file.
        known: String,
    },
    /// A port cannot be opened.
    #[error(transparent)]
    Line(#[from] LineError),
    /// Packets that the file allows do not fit an interface.
    #[error(
        "port {interface} has an MTU of {file} bytes in the file, and its interface one of {link}: \
         write `mtu = {link}` for the port, in the files of all nodes, or run \
         `ip link set {interface} mtu {file}`"
    )]
    Mtu {
        /// The interface.
        interface: String,
        /// The MTU of the port in the file.
        file: u16,
        /// The MTU of the interface.
        link: usize,
    },
    /// The node's Courser address cannot be used.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The address of another node cannot be used.
    #[error(transparent)]
    Session(#[from] SessionError),
    /// The routes do not fit the tables.
    #[error(transparent)]
    Routes(#[from] RouteError),
    /// The routes of the cluster's file do not fit them.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The control socket cannot be opened.
    #[error(transparent)]
    Control(#[from] control::BindError),
    /// The kernel's routes cannot be read.
    #[error("routes of the kernel cannot be imported: {0}; check that netlink works")]
    Import(#[source] std::io::Error),
    /// The event loop failed.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The system refused something while the node ran.
    #[error("the node stopped: {0}; start it again")]
    System(#[from] std::io::Error),
}

/// The settings of a node of a cluster's file.
pub fn settings(config: &Config, node: NodeId) -> Settings {
    let ports = config.nodes.iter().map(|n| {
        let port = |p: &Port| node::Port { addresses: p.addresses.clone(), mtu: p.mtu };
        n.ports.iter().map(port).collect()
    });
    let nodes = 0..config.nodes.len() as NodeId;
    let address = |to| config.peer(node, to).map(|uri| uri.to_string()).unwrap_or_default();
    let spread = match config.topology {
        Topology::Mesh => Spread::Valiant,
        Topology::Switch | Topology::Mixed => Spread::Direct,
    };
    Settings {
        node,
        ports: ports.collect(),
        addresses: nodes.clone().map(address).collect(),
        origins: nodes.map(|node| config.origins(node)).collect(),
        spread,
        failure_timeout: config.failure_timeout,
        seed: config.seed,
        fingerprint: config.fingerprint(),
        icmp: (config.icmp.per_second, config.icmp.burst),
    }
}

/// Largest message of the interconnect, bytes: more than any packet has.
const MAX_MESSAGE: u32 = 1 << 16;

/// The Courser settings of a node of a cluster's file.
pub fn courser_settings(config: &Config, settings: &Settings) -> courser::Config {
    const IPV6_AND_UDP: usize = 40 + 8;
    let packing = if config.interconnect.batching { None } else { Some(Packing::Off) };
    settings.courser(courser::Config {
        max_frame: Some(usize::from(config.interconnect.mtu) - IPV6_AND_UDP),
        message_queue: config.interconnect.queue,
        max_msg_size: MAX_MESSAGE,
        // Packets of 1,500 bytes share frames, where two of them fit one.
        inline_max: 2_048,
        packing,
        batch_budget: config.interconnect.batch_budget,
        workers: 0,
        ..courser::Config::default()
    })
}

/// The node of a cluster with this name.
///
/// # Errors
/// There is none.
pub fn node_named(config: &Config, name: &str) -> Result<NodeId, NodeError> {
    config.node(name).ok_or_else(|| NodeError::NoNode {
        name: name.to_owned(),
        known: config.nodes.iter().map(|n| &n.name[..]).collect::<Vec<_>>().join(", "),
    })
}

/// A node that is ready to run.
pub struct Running {
    config: Config,
    node: Shared<SystemPorts>,
    rpc: Rpc,
    nexus: Nexus,
    intake: SystemIntake,
    control: Option<Server>,
    import: Option<Import>,
    warnings: Vec<String>,
    started_ns: u64,
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("cluster", &self.config.name).finish_non_exhaustive()
    }
}

impl Running {
    /// Opens the ports, the interconnect and the control socket of a node.
    ///
    /// # Errors
    /// What is missing, with what to do.
    pub fn start(config: Config, node: NodeId) -> Result<Self, NodeError> {
        let own = &config.nodes[usize::from(node)];
        let interfaces: Vec<&str> = own.ports.iter().map(|port| &port.interface[..]).collect();
        let (intake, ports) = line::open(&interfaces)?;
        kernel::check_mtus(&own.ports, &ports)?;
        let settings = settings(&config, node);
        let courser = courser_settings(&config, &settings);
        let nexus = Nexus::bind_with(&own.address.to_string(), courser)?;
        let mut rpc = nexus.endpoint()?;
        let control = own.control.as_ref().map(Server::bind).transpose()?;
        let import = Import::open(&config, node).map_err(NodeError::Import)?;
        let mut warnings = rpc.warnings();
        let frame = courser::Transport::caps(rpc.transport()).max_frame;
        warnings.extend(small_frames(&config, frame));
        warnings.extend(kernel::warnings(&own.ports, &ports));
        let routes = config.routes()?;
        let node = Node::start(&mut rpc, settings, routes, ports, ())?;
        follow_addresses(&node)?;
        let started_ns = rpc.context().now_ns();
        Ok(Running { config, node, rpc, nexus, intake, control, import, warnings, started_ns })
    }

    /// What the operator should know: settings that do not hold here, with what corrects them.
    pub fn take_warnings(&mut self) -> Vec<String> {
        self.warnings.extend(self.intake.take_warning());
        self.warnings.extend(self.import.iter_mut().flat_map(Import::take_warnings));
        self.warnings.extend(self.node.borrow_mut().outlet_mut().take_warnings());
        while let Some(claim) = self.node.borrow_mut().take_claim() {
            self.warnings.push(claim_text(&self.config, &claim));
        }
        std::mem::take(&mut self.warnings)
    }

    /// The Courser address.
    pub fn address(&self) -> String {
        self.nexus.local_uri()
    }

    /// Forwards packets until `stop` returns true, which is called at least ten times a second.
    /// `warn` gets what the operator should know.
    ///
    /// # Errors
    /// The system refused to wait for packets.
    pub fn run(
        &mut self,
        stop: &dyn Fn() -> bool,
        warn: &mut dyn FnMut(&str),
    ) -> Result<(), NodeError> {
        let mut busy_ns = self.rpc.context().now_ns();
        let mut checked_ns = busy_ns;
        loop {
            let worked = self.pass()?;
            let now_ns = self.rpc.context().now_ns();
            let paused_until_ns = self.node.borrow().paused_until_ns();
            if worked {
                busy_ns = now_ns;
            } else if paused_until_ns.is_some() || now_ns.saturating_sub(busy_ns) >= SPIN_NS {
                // Without room on a link there is nothing to spin for, and another node may need the
                // processor to make some.
                self.sleep(now_ns, paused_until_ns)?;
            }
            if now_ns.saturating_sub(checked_ns) >= LONGEST_SLEEP.as_nanos() as u64 / 2 {
                checked_ns = now_ns;
                self.take_warnings().iter().for_each(|text| warn(text));
                if let Err(error) = follow_addresses(&self.node) {
                    warn(&format!("an address of this machine has no route: {error}"));
                }
                if stop() {
                    return Ok(());
                }
            }
        }
    }

    /// One pass: packets of ports, messages of nodes, requests. True: there was something.
    fn pass(&mut self) -> Result<bool, NodeError> {
        let mut cx = self.rpc.context();
        let node = &self.node;
        node.borrow_mut().report_unanswered(&mut cx);
        let takes_packets = node.borrow_mut().takes_packets(cx.now_ns());
        let mut receive =
            |port, packet: &mut [u8]| node.borrow_mut().receive(&mut cx, port, packet);
        let mut ahead = |packet: &[u8]| node.borrow().prefetch(packet);
        let mut received = 0;
        if takes_packets {
            received = self.intake.burst_ahead(&mut ahead, &mut receive);
        }
        let polled = self.rpc.poll();
        node::end_of_pass(&self.node);
        let asked = self.answer_requests()?;
        let imports = self.import_routes();
        Ok(received > 0 || polled || asked || imports)
    }

    /// Takes over some changes of the kernel's routes. True: there are more.
    fn import_routes(&mut self) -> bool {
        let Some(import) = &mut self.import else { return false };
        import.pass(&mut self.node.borrow_mut(), &mut self.rpc.context())
    }

    fn answer_requests(&mut self) -> Result<bool, NodeError> {
        let Some(server) = &mut self.control else { return Ok(false) };
        let (node, rpc, intake) = (&self.node, &mut self.rpc, &mut self.intake);
        let (config, started_ns) = (&self.config, self.started_ns);
        let import = &mut self.import;
        Ok(server.poll(config, &mut |request| {
            answer(config, node, rpc, intake, import.as_mut(), started_ns, request)
        })?)
    }

    /// Sleeps until something arrives: no packets of ports while these wait.
    fn sleep(&mut self, now_ns: u64, paused_until_ns: Option<u64>) -> Result<(), NodeError> {
        let until = |at_ns: u64| Duration::from_nanos(at_ns.saturating_sub(now_ns));
        let (due, resumed) = (self.rpc.next_deadline_ns().map(until), paused_until_ns.map(until));
        let node = self.node.borrow();
        let import = self.import.as_ref().and_then(|import| import.timeout(now_ns));
        let limits = [due, resumed, node.outlet().timeout(), import, Some(LONGEST_SLEEP)];
        let limit = limits.into_iter().flatten().min();
        let mut fds: Vec<BorrowedFd<'_>> = vec![node.outlet().as_fd()];
        fds.extend(self.rpc.event_fd());
        fds.extend(self.control.as_ref().map(AsFd::as_fd));
        fds.extend(self.import.iter().flat_map(Import::descriptors));
        Ok(self.intake.wait(paused_until_ns.is_none(), &fds, limit)?)
    }
}

/// Takes over the kernel's addresses, if they have changed.
fn follow_addresses(node: &Shared<SystemPorts>) -> Result<(), RouteError> {
    let mut node = node.borrow_mut();
    let changed = node.outlet_mut().take_addresses();
    changed.map_or(Ok(()), |addresses| node.set_system_addresses(&addresses))
}

/// A warning when a packet does not fit a frame of this length.
fn small_frames(config: &Config, frame: usize) -> Option<String> {
    const HEADERS: usize = 44;
    let largest = config.ports().map(|(_, _, port)| usize::from(port.mtu)).max()?;
    let needed = largest + HEADER_MAX + HEADERS;
    (frame < needed).then(|| {
        format!(
            "a frame between nodes has at most {frame} bytes, and a packet of {largest} bytes needs \
             {needed}: such packets are sent in parts; raise `mtu` of [interconnect] and of its \
             interfaces, 9000 is common"
        )
    })
}

/// A warning about a process that may not speak for a node.
fn claim_text(config: &Config, claim: &Claim) -> String {
    let (from, name) = (claim.from, &config.nodes[usize::from(claim.node)].name);
    match claim.reason {
        Reason::Address => format!(
            "a process at {from} speaks for node {name} and is refused: the cluster's file has other \
             addresses for that node; end the process, or correct `address` or `peers` of the file"
        ),
        Reason::Life => format!(
            "a second process of node {name}, at {from}, is refused: the first one lives; end one of \
             them"
        ),
    }
}

fn answer(
    config: &Config,
    node: &Shared<SystemPorts>,
    rpc: &mut Rpc,
    intake: &mut SystemIntake,
    mut import: Option<&mut Import>,
    started_ns: u64,
    request: Request,
) -> Response {
    let mut node = node.borrow_mut();
    match request {
        Request::Change(changes) => {
            let allowed = import.as_ref().map_or(Ok(()), |import| import.check(&changes));
            let done = allowed.and_then(|()| node.change(&mut rpc.context(), &changes));
            if let (Ok(()), Some(import)) = (&done, &mut import) {
                import.overridden(&changes);
            }
            control::changed(done, changes.len())
        }
        Request::Find(address, flow) => control::find(config, node.routes(), address, flow),
        Request::Routes { within, after } => control::list(config, node.routes(), within, after),
        Request::Nodes => {
            let names = config.nodes.iter().map(|n| &n.name);
            let lines =
                (0..).zip(names).map(|(id, name)| format!("{name} {}\n", node.state(id).name()));
            Response::Done(lines.collect())
        }
        Request::Stats => {
            let mut stats = stats(config, &node, rpc, started_ns);
            let names = &config.nodes[usize::from(node.settings().node)].ports;
            let ports = (0..).zip(names).map(|(at, port)| {
                (port.interface.clone(), counters::object(&intake.counters(at)).into())
            });
            stats["ports"] = Value::Object(ports.collect());
            stats["import"] = import.map_or(Value::Null, |import| import.stats());
            Response::Done(format!("{stats}\n"))
        }
    }
}

/// The counters of a node as JSON. Keys are stable.
fn stats(config: &Config, node: &Node<SystemPorts>, rpc: &mut Rpc, started_ns: u64) -> Value {
    let nodes = (0..)
        .zip(&config.nodes)
        .map(|(id, n)| (n.name.clone(), Value::from(node.state(id).name())));
    let nodes: Map<String, Value> = nodes.collect();
    let now_ns = rpc.context().now_ns();
    let (courser, transport) = (rpc.stats(), rpc.transport_stats());
    let mut stats = json!({
        "node": config.nodes[usize::from(node.settings().node)].name,
        "uptime_ns": now_ns.saturating_sub(started_ns),
        "dropped": node.counters().all_dropped(),
        "routes": node.routes().len(), "nodes": nodes, "deaths": node.deaths(),
        "refused_heartbeats": node.refused_heartbeats(),
        "refused_addresses": node.refused_addresses(),
        "refused_lives": node.refused_lives(),
        "refused_announcements": node.refused_announcements(),
        "unresolved": node.outlet().unresolved(), "refused_by_system": node.outlet().refused(),
        "messages_sent": courser.messages_sent, "frames_sent": courser.tx_frames,
        "frames_received": courser.rx_frames,
        "packets_retransmitted": courser.retransmitted,
        "transport_drops": transport.rx_dropped,
    });
    for (name, value) in counters::object(node.counters()) {
        stats[name] = value;
    }
    stats
}
