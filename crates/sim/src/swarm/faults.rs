//! Faults of a seed and their times.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::time::Duration;

use courser_proto::wire::{FrameHeader, PacketKind, parse_packet};

use super::coverage::Harvest;
use super::workload::Shared;
use crate::fabric::{Burst, Fate, FaultRule, Flap, LinkFaults};
use crate::host::port::lock;
use crate::{HostId, LinkId, Packet, World};

/// Names each kind once, so that the enumeration, its list and its names stay consistent.
macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Kinds of faults, as the coverage table counts them.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(usize)]
        pub enum FaultKind {
            $($(#[$doc])* $variant,)*
        }

        impl FaultKind {
            /// All kinds.
            pub const ALL: [FaultKind; [$($name),*].len()] = [$(FaultKind::$variant),*];
            /// Number of kinds.
            pub const COUNT: usize = Self::ALL.len();

            /// Its name in reports.
            pub const fn name(self) -> &'static str {
                match self {
                    $(FaultKind::$variant => $name,)*
                }
            }
        }
    };
}

kinds! {
    /// Each packet of every link is lost with the same probability.
    Loss = "loss",
    /// Both directions of one cable lose packets.
    LinkLoss = "link-loss",
    /// One direction of one cable loses packets.
    OneWayLoss = "one-way-loss",
    /// Losses in bursts (Gilbert-Elliott).
    Burst = "burst-loss",
    /// Each k-th frame with a packet of a kind is lost.
    Predicate = "predicate",
    /// Packets are duplicated.
    Duplicate = "duplicate",
    /// Packets are delayed, so that others overtake them.
    Reorder = "reorder",
    /// One cable is longer than the others.
    UnequalPaths = "unequal-paths",
    /// Bits flip.
    Corrupt = "corrupt",
    /// Hosts are partitioned, and connected again.
    Partition = "partition",
    /// A link goes down and up repeatedly.
    Flap = "link-flap",
    /// One direction of a cable is down for a while.
    LinkDown = "link-down",
    /// A host is paused.
    Pause = "pause",
    /// A process is killed and started again.
    Kill = "kill",
    /// A machine crashes and restarts.
    Crash = "crash",
    /// A clock runs fast or slow.
    Drift = "clock-drift",
    /// Handlers of a host are slow.
    SlowHandler = "slow-handler",
    /// A host has few receive descriptors (E60).
    Starvation = "descriptor-starvation",
    /// A client closes a session with calls under way, and connects again.
    Close = "session-close",
}

/// A fault with its parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Fault {
    /// Faults of some links; they replace those of the same kind and end together.
    Links {
        kind: FaultKind,
        links: Vec<LinkId>,
        faults: LinkFaults,
    },
    Predicate {
        link: LinkId,
        packets: PacketKind,
        every: u64,
    },
    Partition {
        groups: Vec<Vec<HostId>>,
    },
    LinkDown {
        link: LinkId,
    },
    Pause {
        host: HostId,
    },
    Kill {
        host: HostId,
    },
    Crash {
        host: HostId,
    },
    Drift {
        host: HostId,
        ppm: i32,
    },
    SlowHandler {
        host: HostId,
        ns: u64,
    },
    Starvation {
        host: HostId,
        descriptors: usize,
    },
    Close {
        host: u32,
        endpoint: usize,
        lane: usize,
    },
}

impl Fault {
    pub(super) fn kind(&self) -> FaultKind {
        match self {
            Fault::Links { kind, .. } => *kind,
            Fault::Predicate { .. } => FaultKind::Predicate,
            Fault::Partition { .. } => FaultKind::Partition,
            Fault::LinkDown { .. } => FaultKind::LinkDown,
            Fault::Pause { .. } => FaultKind::Pause,
            Fault::Kill { .. } => FaultKind::Kill,
            Fault::Crash { .. } => FaultKind::Crash,
            Fault::Drift { .. } => FaultKind::Drift,
            Fault::SlowHandler { .. } => FaultKind::SlowHandler,
            Fault::Starvation { .. } => FaultKind::Starvation,
            Fault::Close { .. } => FaultKind::Close,
        }
    }

    /// Returns whether peers may be given up because of it.
    pub(super) fn loses_peers(&self) -> bool {
        use FaultKind::{Crash, Kill, Partition, Pause};
        matches!(self.kind(), Crash | Kill | Partition | Pause)
    }

    /// Returns whether the datapath may be silent for as long as its timeout because of it. Losses
    /// of some percent are not enough: every probe would have to be lost.
    pub(super) fn silences(&self) -> bool {
        use FaultKind::{Burst, Flap, LinkDown, Starvation};
        let loss = match self {
            Fault::Links { faults, .. } => faults.loss_ppm.max(faults.corrupt_ppm),
            Fault::Predicate { every, .. } if *every < 4 => 1_000_000,
            _ => 0,
        };
        let kind = matches!(self.kind(), Burst | Flap | LinkDown | Starvation);
        kind || self.loses_peers() || loss > 30_000
    }
}

/// A fault and its time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Planned {
    pub(super) at_ns: u64,
    pub(super) until_ns: u64,
    pub(super) fault: Fault,
}

impl fmt::Display for Planned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (at, until) = (self.at_ns / 1_000, self.until_ns / 1_000);
        let name = self.fault.kind().name();
        write!(f, "{at:>8} us to {until:>8} us  {name:<22} ")?;
        match &self.fault {
            Fault::Links { links, faults, .. } => {
                let most: Vec<String> = links.iter().take(6).map(|l| l.0.to_string()).collect();
                let more = if links.len() > 6 { " ..." } else { "" };
                write!(f, "links {}{more}: ", most.join(" "))?;
                let text = format!("{faults:?}");
                f.write_str(text.trim_start_matches("LinkFaults "))
            }
            Fault::Predicate { link, packets, every } => {
                write!(f, "link {}: one {packets:?} of {every}", link.0)
            }
            Fault::Partition { groups } => {
                let name = |g: &Vec<HostId>| {
                    let hosts: Vec<String> = g.iter().map(|h| format!("n{}", h.0)).collect();
                    hosts.join(" ")
                };
                let groups: Vec<String> = groups.iter().map(name).collect();
                write!(f, "{} | the others", groups.join(" | "))
            }
            Fault::LinkDown { link } => write!(f, "link {}", link.0),
            Fault::Pause { host } | Fault::Kill { host } | Fault::Crash { host } => {
                write!(f, "n{}", host.0)
            }
            Fault::Drift { host, ppm } => write!(f, "n{}: {ppm:+} ppm", host.0),
            Fault::SlowHandler { host, ns } => write!(f, "n{}: {ns} ns more", host.0),
            Fault::Starvation { host, descriptors } => {
                write!(f, "n{}: {descriptors} descriptors", host.0)
            }
            Fault::Close { host, endpoint, lane } => {
                write!(f, "n{host}, endpoint {endpoint}, session {lane}")
            }
        }
    }
}

/// The current faults of a world.
pub(super) struct Weather {
    links: RefCell<Vec<LinkFaults>>,
    descriptors: usize,
    pub(super) harvest: Rc<RefCell<Harvest>>,
    shared: Rc<Shared>,
}

impl Weather {
    pub(super) fn new(
        world: &mut World,
        shared: Rc<Shared>,
        harvest: Rc<RefCell<Harvest>>,
    ) -> Rc<Self> {
        let links = vec![LinkFaults::default(); world.fabric().links() as usize];
        let descriptors = world.config().nic.rx_queue;
        Rc::new(Weather { links: RefCell::new(links), descriptors, harvest, shared })
    }

    /// Schedules a fault.
    pub(super) fn plan(self: &Rc<Self>, world: &mut World, planned: Planned) {
        let Planned { at_ns, until_ns, fault } = planned;
        let (begin, end) = (self.clone(), self.clone());
        let same = fault.clone();
        world.at(at_ns, move |world| begin.begin(world, &fault, until_ns));
        world.at(until_ns, move |world| end.end(world, &same));
    }

    fn begin(&self, world: &mut World, fault: &Fault, until_ns: u64) {
        self.harvest.borrow_mut().faults[fault.kind() as usize] += 1;
        match fault {
            Fault::Links { kind, links, faults } => {
                links.iter().for_each(|&link| self.change(world, link, *kind, faults));
            }
            Fault::Predicate { link, packets, every } => {
                world.set_link_rule(*link, Some(each(*packets, *every)));
            }
            Fault::Partition { groups } => {
                let groups: Vec<&[HostId]> = groups.iter().map(Vec::as_slice).collect();
                world.partition(&groups);
            }
            Fault::LinkDown { link } => world.set_link_up(*link, false),
            Fault::Pause { host } => {
                let time_ns = until_ns.saturating_sub(world.now_ns());
                let at = host.0 as usize;
                self.shared.paused_until_ns[at].set(until_ns);
                lock(&self.shared.oracle).paused_ns[at] += time_ns;
                world.pause(*host, Duration::from_nanos(time_ns));
            }
            Fault::Kill { host } => {
                self.ends(world, *host);
                world.kill(*host);
            }
            Fault::Crash { host } => {
                self.ends(world, *host);
                world.crash(*host);
            }
            Fault::Drift { host, ppm } => world.set_drift(*host, *ppm),
            Fault::SlowHandler { host, ns } => self.shared.slow_ns[host.0 as usize].set(*ns),
            Fault::Starvation { host, descriptors } => world.set_rx_queue(*host, *descriptors),
            Fault::Close { host, endpoint, lane } => self.close(world, *host, *endpoint, *lane),
        }
    }

    fn end(&self, world: &mut World, fault: &Fault) {
        match fault {
            Fault::Links { kind, links, .. } => {
                let none = LinkFaults::default();
                links.iter().for_each(|&link| self.change(world, link, *kind, &none));
            }
            Fault::Predicate { link, .. } => world.set_link_rule(*link, None),
            Fault::Partition { .. } => world.heal(),
            Fault::LinkDown { link } => world.set_link_up(*link, true),
            Fault::Kill { host } | Fault::Crash { host } => self.restart(world, *host),
            Fault::Drift { host, .. } => world.set_drift(*host, 0),
            Fault::SlowHandler { host, .. } => self.shared.slow_ns[host.0 as usize].set(0),
            Fault::Starvation { host, .. } => world.set_rx_queue(*host, self.descriptors),
            Fault::Pause { .. } | Fault::Close { .. } => {}
        }
    }

    /// Ends all faults.
    pub(super) fn clear(&self, world: &mut World) {
        world.heal();
        let hosts: Vec<HostId> = world.hosts().collect();
        for link in (0..world.fabric().links()).map(LinkId) {
            world.set_link_up(link, true);
            world.set_link_faults(link, LinkFaults::default());
            world.set_link_rule(link, None);
        }
        for host in hosts {
            self.restart(world, host);
            world.set_drift(host, 0);
            world.set_rx_queue(host, self.descriptors);
            self.shared.slow_ns[host.0 as usize].set(0);
        }
    }

    /// Copies one kind of fault into a link's faults.
    fn change(&self, world: &mut World, link: LinkId, kind: FaultKind, to: &LinkFaults) {
        let mut links = self.links.borrow_mut();
        let Some(now) = links.get_mut(link.0 as usize) else { return };
        match kind {
            FaultKind::Burst => now.burst = to.burst,
            FaultKind::Duplicate => now.duplicate_ppm = to.duplicate_ppm,
            FaultKind::Corrupt => {
                (now.corrupt_ppm, now.near_miss_ppm) = (to.corrupt_ppm, to.near_miss_ppm);
            }
            FaultKind::UnequalPaths => now.extra_delay_ns = to.extra_delay_ns,
            FaultKind::Flap => now.flap = to.flap,
            FaultKind::Reorder => {
                (now.reorder_ppm, now.reorder_max_ns) = (to.reorder_ppm, to.reorder_max_ns);
            }
            _ => now.loss_ppm = to.loss_ppm,
        }
        world.set_link_faults(link, *now);
    }

    /// A process is about to end: keep its counters, remove its calls.
    pub(super) fn ends(&self, world: &mut World, host: HostId) {
        if !world.is_running(host) {
            return;
        }
        self.harvest.borrow_mut().take(world, host, &self.shared);
        lock(&self.shared.oracle).forget_calls_of(self.shared.who(host.0));
        self.shared.clients.borrow_mut()[host.0 as usize].clear();
    }

    fn restart(&self, world: &mut World, host: HostId) {
        if world.is_running(host) {
            return;
        }
        if let Err(e) = world.restart(host) {
            world.violate(crate::Invariant::Internal, e.to_string());
        }
    }

    fn close(&self, world: &mut World, host: u32, endpoint: usize, lane: usize) {
        let Some(client) = self.shared.client(host, endpoint) else { return };
        let mut lanes = client.lanes.borrow_mut();
        let Some(lane) = lanes.get_mut(lane) else { return };
        let Some(session) = lane.session.take() else { return };
        self.shared.ended.set(true);
        lane.retry_at_ns = world.now_ns() + lane.backoff_ns;
        drop(lanes);
        if let Some(rpc) = world.endpoint(HostId(host), endpoint) {
            rpc.close(session);
        }
    }
}

/// Drops each `every`-th frame that has a packet of a kind.
fn each(kind: PacketKind, every: u64) -> FaultRule {
    let mut seen = 0;
    Box::new(move |packet: &Packet, _| {
        if !holds(&packet.bytes, kind) {
            return None;
        }
        seen += 1;
        (seen % every == 0).then_some(Fate::Drop)
    })
}

fn holds(frame: &[u8], kind: PacketKind) -> bool {
    use courser_proto::wire::Packet as P;
    let Ok((header, mut rest)) = FrameHeader::parse(frame) else { return false };
    while let Ok(Some((packet, more))) = parse_packet(rest, header.data_per_packet) {
        let is = match packet {
            P::Request { .. } => PacketKind::Request,
            P::CreditReturn { .. } => PacketKind::CreditReturn,
            P::Rfr { .. } => PacketKind::Rfr,
            P::Response { .. } | P::ErrorResponse { .. } => PacketKind::Response,
            P::Ack { .. } => PacketKind::Ack,
            P::Cancel { .. } => PacketKind::Cancel,
            P::Nack { .. } => PacketKind::Nack,
            P::Gap => PacketKind::Gap,
            _ => PacketKind::Padding,
        };
        if is == kind {
            return true;
        }
        rest = more;
    }
    false
}

/// Loss in bursts, and a link that flaps: shapes that the draw uses.
pub(super) fn burst(enter_ppm: u32, leave_ppm: u32, loss_ppm: u32) -> LinkFaults {
    let burst = Some(Burst { enter_ppm, leave_ppm, loss_ppm });
    LinkFaults { burst, ..LinkFaults::default() }
}

pub(super) fn flap(up_ns: u64, down_ns: u64) -> LinkFaults {
    LinkFaults { flap: Some(Flap { up_ns, down_ns }), ..LinkFaults::default() }
}
