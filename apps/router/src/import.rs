//! Routes that a routing daemon, as BIRD or FRR, puts into a table of the node's kernel.
//!
//! The daemon exports to a kernel table that nothing else uses, so that the kernel does not forward
//! by it. The node reads the table by netlink and announces its routes in the cluster, as if they
//! had been added by the control socket:
//!
//! ```toml
//! [node.import]
//! table = 100
//! daemon = "/run/bird/bird.ctl"
//! grace = "5s"
//! ```
//!
//! # Routes
//!
//! * Next hops belong to the port of their interface. Next hops by other interfaces are left out,
//!   and so are routes that have no further one.
//! * Several next hops are a group, with their weights.
//! * Of several routes for a prefix, that of the lowest metric is used. Changes replace a route in
//!   place. A route that is removed stays for another 10 ms, since some daemons remove a route to
//!   replace it.
//! * `blackhole`, `unreachable` and `prohibit` reject packets by ICMP.
//! * Routes with a tunnel (`encap`) and `throw` are not used, and so are those of a source or a
//!   type of service only.
//! * A route of the control socket has precedence: `route replace` takes the place of an imported
//!   one until `route del`.
//!
//! # Changes that are lost
//!
//! The kernel reports changes, and removes some routes silently: those of an interface that goes
//! down, of an address, or of a next hop object. After those, after an overflow of the socket, and
//! after a reading that a change has interrupted or in which an IPv6 route was removed (the kernel
//! leaves out others then), the node reads the table again and takes over what differs. Routes that
//! are the same are not touched. Readings begin at most every 100 ms.
//!
//! # The end of the daemon
//!
//! A daemon that is killed leaves its routes in the kernel, for ever if it does not come back. The
//! node keeps a connection to a Unix stream socket of the daemon (`daemon`), and does not use it:
//! when the daemon ends, the kernel closes the connection at once. This works across containers and
//! does not confuse processes, as files with their numbers do. The sockets that Debian's daemons
//! have:
//!
//! | daemon | `daemon` | how it exports to table 100 |
//! | --- | --- | --- |
//! | BIRD | `/run/bird/bird.ctl` | `kernel table 100;` and `export all;` in protocols `kernel` |
//! | FRR | `/run/frr/zebra.vty` | `set table 100` in the route map `in` of each neighbour of BGP |
//!
//! After `grace` (5 s unless stated otherwise), the routes are withdrawn in less than 0.3 s, and a
//! millisecond more for 400 routes. They are used again when the daemon is back: it removes what it
//! no longer has from the kernel. A daemon that comes back within the grace time disturbs nothing
//! (graceful restart). A daemon that hangs is not dead: as in a kernel, its routes stay until it
//! ends, so let a watchdog end it (watchfrr, systemd). At the start of the node, routes are used
//! when the daemon is there. Without `daemon`, routes are used as long as the kernel has them.
//!
//! # Limits
//!
//! The node's thread imports between packets: at most 16 messages in a pass, and fewer with short
//! prefixes. A route takes some 300 bytes. With more than `limit` routes, others are left out and
//! reported.

mod daemon;
mod follow;
mod table;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use courser::Context;
use courser_buf::stats;
use courser_kit::counters;
use courser_link::routes::message::{self, Content, KernelHop, Message};
use courser_link::routes::{Kernel, NetlinkSocket, Part};
use ipnet::IpNet;
use serde_json::Value;

use crate::config::{self, Config, MTU_V6};
use crate::fib::Fib;
use crate::group::Groups;
use crate::line::Outlet;
use crate::node::{Node, Probe};
use crate::route::{Exit, Members, NextHop, NodeId, PortId};
use crate::routes::{Change, ChangeError, Origin, Refusal, Routes};
use daemon::{Daemon, Event};
use table::{Effect, Key, Shared, Table};

/// Messages of a pass.
const MESSAGES: usize = 16;
/// Routes that a pass compares with the table after a reading.
const COMPARED: usize = 64;
/// [Entries of the FIB](Fib::work) of the routes of a pass, but for the last one.
const WORK: usize = 1 << 15;
/// The socket is read that often while messages are rare, since reading is a system call.
const READ_EVERY_NS: u64 = 1_000_000;
/// A route that is removed stays for this time.
const HOLD_NS: u64 = 10_000_000;
/// Time between the beginnings of two readings, and at least that of the last one.
const PAUSE_NS: u64 = 100_000_000;
/// A reading without messages for this time is given up.
const SILENCE_NS: u64 = 5_000_000_000;
/// Routes that were refused or left out are tried again after this time.
const AGAIN_NS: u64 = 30_000_000_000;

stats! {
    /// Counters of an import.
    #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
    #[non_exhaustive]
    pub struct ImportCounters: "route import" {
        /// Routes of the kernel's table.
        pub kernel: usize = gauge(routes),
        /// Routes that this node announces because of them.
        pub imported: usize = gauge(routes),
        /// Routes that the node's tables have no room for, or refuse.
        pub refused: usize = gauge(routes),
        /// Readings of the table.
        pub readings: u64 = counter(readings),
        /// Times that the kernel had no room for changes.
        pub overflows: u64 = counter(times),
        /// Messages that could not be interpreted.
        pub malformed: u64 = counter(messages),
    }
}

/// A port of the node.
#[derive(Debug)]
struct Port {
    interface: String,
    takes_v6: bool,
}

/// A reading of the kernel's tables.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Reading {
    part: Part,
    number: u32,
    begin_ns: u64,
    /// The time of its last message.
    last_ns: u64,
    /// Entries may be missing.
    is_incomplete: bool,
}

/// A walk through the table, to take over what is new.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Walk {
    after: Option<Key>,
    /// Routes that did not occur in the last reading are gone.
    removes: bool,
}

/// The import of a node.
pub struct Import {
    origin: Origin,
    node: NodeId,
    number: u32,
    ports: Vec<Port>,
    kernel: Box<dyn Kernel>,
    /// Messages, of which those before `at` are done.
    buffer: Vec<u8>,
    at: usize,
    read_ns: u64,
    /// Ports by the index of their interface, and whether that is up.
    interfaces: BTreeMap<u32, (PortId, bool)>,
    table: Table,
    reading: Option<Reading>,
    /// A number for the next reading.
    next: u32,
    is_outdated: bool,
    /// The next reading begins at this time at the earliest.
    not_before_ns: u64,
    again_ns: Option<u64>,
    walk: Option<Walk>,
    /// Prefixes of routes that were removed, and when that counts.
    leaving: VecDeque<(u64, IpNet)>,
    /// Prefixes whose route is to be compared in this pass.
    changed: BTreeSet<IpNet>,
    work: usize,
    imported: BTreeSet<IpNet>,
    refused: BTreeSet<IpNet>,
    daemon: Option<Daemon>,
    is_active: bool,
    counters: ImportCounters,
    warnings: Vec<String>,
    /// Kinds of warnings that were given, until they no longer hold.
    warned: BTreeSet<&'static str>,
}

impl fmt::Debug for Import {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Import").field("table", &self.number).finish_non_exhaustive()
    }
}

impl Import {
    /// The import of a node, in the network namespace of the calling thread. `None`: it has none.
    ///
    /// # Errors
    /// The system has no netlink socket.
    pub fn open(config: &Config, node: NodeId) -> io::Result<Option<Self>> {
        let Some(own) = config.nodes.get(usize::from(node)) else { return Ok(None) };
        let Some(import) = &own.import else { return Ok(None) };
        let kernel = Box::new(NetlinkSocket::open()?);
        Ok(Some(Self::new(import, node, &own.ports, kernel)))
    }

    fn new(
        import: &config::Import,
        node: NodeId,
        ports: &[config::Port],
        kernel: Box<dyn Kernel>,
    ) -> Self {
        let port = |port: &config::Port| Port {
            interface: port.interface.clone(),
            takes_v6: port.mtu >= MTU_V6,
        };
        let grace_ns = import.grace.as_nanos().try_into().unwrap_or(u64::MAX);
        let daemon = import.daemon.as_ref().map(|path| Daemon::new(path.clone(), grace_ns));
        Import {
            origin: Origin::Node(node),
            node,
            number: import.table,
            ports: ports.iter().map(port).collect(),
            kernel,
            buffer: Vec::new(),
            at: 0,
            read_ns: 0,
            interfaces: BTreeMap::new(),
            table: Table::new(import.limit),
            reading: None,
            next: 1,
            is_outdated: true,
            not_before_ns: 0,
            again_ns: None,
            walk: None,
            leaving: VecDeque::new(),
            changed: BTreeSet::new(),
            work: 0,
            imported: BTreeSet::new(),
            refused: BTreeSet::new(),
            is_active: daemon.is_none(),
            daemon,
            counters: ImportCounters::default(),
            warnings: Vec::new(),
            warned: BTreeSet::new(),
        }
    }

    /// Takes over some of the kernel's changes. Called once for each pass of the node's loop. Returns
    /// whether there is more to do at once.
    pub fn pass<O: Outlet + 'static, P: Probe + 'static>(
        &mut self,
        node: &mut Node<O, P>,
        cx: &mut Context<'_>,
    ) -> bool {
        let changes = self.next_changes(cx.now_ns(), node.routes());
        if !changes.is_empty() && node.change(cx, &changes).is_err() {
            for change in &changes {
                if let Err(error) = node.change(cx, std::slice::from_ref(change)) {
                    let prefix = change.prefix();
                    self.refuse(prefix, &error);
                    // The one before, which the kernel no longer has. It need not be there.
                    let _ = node.change(cx, &[Change::Delete(prefix)]);
                }
            }
        }
        self.is_busy()
    }

    /// Returns true if there is more to do without a message of the kernel.
    fn is_busy(&self) -> bool {
        self.at < self.buffer.len() || self.walk.is_some()
    }

    /// The time until the next pass has something to do although no descriptor is readable.
    pub fn timeout(&self, now_ns: u64) -> Option<Duration> {
        if self.is_busy() {
            return Some(Duration::ZERO);
        }
        let (due, _) = self.leaving.front()?;
        Some(Duration::from_nanos(due.saturating_sub(now_ns)))
    }

    /// Descriptors that are readable when there is something to do.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let daemon = self.daemon.as_ref().and_then(Daemon::descriptor);
        self.kernel.descriptor().into_iter().chain(daemon)
    }

    /// Counters since the start.
    pub fn counters(&self) -> ImportCounters {
        ImportCounters {
            kernel: self.table.len(),
            imported: self.imported.len(),
            refused: self.refused.len(),
            ..self.counters
        }
    }

    /// The counters, and the state of the daemon (`running`, `ended` within its grace time, `absent`)
    /// if it has a socket, as JSON. Keys are stable.
    pub fn stats(&self) -> Value {
        let mut all = counters::object(&self.counters());
        all.insert("table".to_owned(), self.number.into());
        all.insert("daemon".to_owned(), self.daemon.as_ref().map(Daemon::state).into());
        all.into()
    }

    /// Takes what the operator should know.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// Checks changes of the control socket, which must not remove imported routes.
    ///
    /// # Errors
    /// The first such change.
    pub fn check(&self, changes: &[Change]) -> Result<(), ChangeError> {
        let is_refused = |change: &Change| match change {
            Change::Delete(prefix) => self.imported.contains(prefix),
            Change::Add(..) | Change::Replace(..) => false,
        };
        match changes.iter().position(is_refused) {
            None => Ok(()),
            Some(position) => {
                let refusal = Refusal::Imported(changes[position].prefix());
                Err(ChangeError { position, refusal })
            }
        }
    }

    /// The control socket has made these changes: its routes take the place of imported ones, which
    /// come back after them.
    pub fn overridden(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Delete(prefix) => self.leaving.push_front((0, *prefix)),
                Change::Add(prefix, _) | Change::Replace(prefix, _) => {
                    self.imported.remove(prefix);
                    self.refused.remove(prefix);
                }
            }
        }
    }

    /// The changes of a pass.
    fn next_changes(&mut self, now_ns: u64, routes: &Routes) -> Vec<Change> {
        self.work = 0;
        let is_due = now_ns.saturating_sub(self.read_ns) >= READ_EVERY_NS;
        if is_due {
            self.follow_daemon(now_ns);
            self.begin_reading(now_ns);
        }
        while let Some((due, prefix)) = self.leaving.front().copied()
            && due <= now_ns
            && self.changed.len() < COMPARED
            && self.work < WORK
        {
            self.leaving.pop_front();
            self.compare(prefix);
        }
        if is_due || self.at < self.buffer.len() {
            self.take_messages(now_ns);
        }
        self.walk();
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().filter_map(|prefix| self.change(routes, prefix)).collect()
    }

    /// A prefix is to be compared at the end of the pass.
    fn compare(&mut self, prefix: IpNet) {
        self.work += Fib::work(&prefix);
        self.changed.insert(prefix);
    }

    /// The change that leads from the route that this node announces for a prefix to that of the
    /// kernel.
    fn change(&mut self, routes: &Routes, prefix: IpNet) -> Option<Change> {
        let wanted = if self.is_active { self.wanted(prefix) } else { None };
        let route = routes.get(self.origin, prefix);
        if route.is_some() && !self.imported.contains(&prefix) {
            return None; // a route of the control socket
        }
        match (wanted, route) {
            (Some(wanted), Some(route)) if wanted == route.members => None,
            (Some(wanted), _) => {
                self.imported.insert(prefix);
                self.refused.remove(&prefix);
                Some(Change::Replace(prefix, wanted))
            }
            (None, route) => {
                self.refused.remove(&prefix);
                self.imported.remove(&prefix);
                route.map(|_| Change::Delete(prefix))
            }
        }
    }

    /// The route of the kernel for a prefix, as this node announces it.
    fn wanted(&mut self, prefix: IpNet) -> Option<Members> {
        match self.table.used(prefix)? {
            Shared::Reject => Some(Members::new()),
            Shared::Unsupported => None,
            Shared::Hops(hops) => {
                let members = self.members(prefix, hops);
                if members.is_none() {
                    self.warn("interface", |own| {
                        format!(
                            "{prefix} of the kernel's table {} leaves by an interface that is no \
                             port of this node: such routes are not used",
                            own.number
                        )
                    });
                }
                members
            }
        }
    }

    /// Next hops at ports, sorted; `None` if there is none.
    fn members(&self, prefix: IpNet, hops: &[KernelHop]) -> Option<Members> {
        let mut members = Members::new();
        for hop in hops {
            let Some((port, _)) = self.interfaces.get(&hop.interface) else { continue };
            let port_takes_it = prefix.addr().is_ipv4() || self.ports[usize::from(*port)].takes_v6;
            if !port_takes_it {
                continue;
            }
            let exit = match hop.gateway {
                None => Exit::Connected(*port),
                Some(gateway) => Exit::Gateway(*port, gateway),
            };
            let member = NextHop { node: self.node, exit };
            if let Some((_, weight)) = members.iter_mut().find(|(other, _)| *other == member) {
                *weight = weight.saturating_add(hop.weight);
            } else if members.len() < Groups::MEMBERS {
                members.push((member, hop.weight));
            }
        }
        members.sort_unstable();
        (!members.is_empty()).then_some(members)
    }

    /// The node has refused a change.
    fn refuse(&mut self, prefix: IpNet, error: &ChangeError) {
        self.imported.remove(&prefix);
        self.refused.insert(prefix);
        self.again_ns.get_or_insert(self.read_ns.saturating_add(AGAIN_NS));
        self.warn("refused", |own| {
            format!("{prefix} of the kernel's table {} is not used: {error}", own.number)
        });
    }

    /// A warning, once until its kind no longer holds.
    fn warn(&mut self, kind: &'static str, text: impl FnOnce(&Self) -> String) {
        if self.warned.insert(kind) {
            let text = text(self);
            self.warnings.push(text);
        }
    }
}
