//! Description of a network: hosts, switches and the cables between them.

use super::policy::{Buffer, Marking, Pfc};
use super::presets;
use crate::{HostId, LinkId};

/// Most hosts, most switches and most cables of a topology. The tables of the fabric take 8 bytes
/// for every pair of a switch and a host, and about 500 bytes for every cable.
pub const MAX_NODES: u32 = 1 << 16;

/// Longest delay of a cable or a switch, ns: one second.
pub const MAX_DELAY_NS: u64 = 1_000_000_000;

/// An end of a cable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Node {
    /// A host.
    Host(HostId),
    /// A switch, by its number.
    Switch(u32),
}

/// Rate and delay of a cable; equal in both directions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CableSpec {
    /// Bits per second in each direction.
    pub rate_bps: u64,
    /// Propagation delay, ns.
    pub delay_ns: u64,
}

/// A cable and its ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cable {
    /// The end that sends on the even link of the pair.
    pub a: Node,
    /// The end that sends on the odd one.
    pub b: Node,
    /// Rate and delay.
    pub spec: CableSpec,
}

/// Parameters of a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwitchSpec {
    /// Time from the last bit in (cut-through: the first bit in) until a packet is in its output
    /// queue, ns. With cut-through it includes the reception of the headers.
    pub latency_ns: u64,
    /// Begins to send a packet before all of it has arrived, where possible: the input link must be
    /// at least as fast as the output, or the output would underrun. Other packets are stored
    /// first, also in a cut-through switch.
    pub cut_through: bool,
    /// How the buffer is divided among the output queues.
    pub buffer: Buffer,
    /// When packets are marked (ECN).
    pub marking: Marking,
    /// Packets are marked when they leave the queue, by the bytes behind them, instead of when they
    /// join it, by those before them: a mark then does not wait in the queue. Switches with shared
    /// buffers mark so ("ECN or Delay", CoNEXT '16, section 5.2). Default false.
    pub marks_departures: bool,
    /// Priority flow control, if it is on.
    pub pfc: Option<Pfc>,
}

/// A network to be built, see [`Fabric::new`](super::Fabric::new). Hosts are called `n0`, `n1`, …
/// in the order of their numbers, and each has one cable or several.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Topology {
    hosts: u32,
    switches: Vec<SwitchSpec>,
    cables: Vec<Cable>,
}

/// Why a topology cannot be built.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// More parts than the simulator supports.
    #[error("{what}: {count} is above the limit of {}; use fewer", MAX_NODES)]
    TooMany {
        /// Kind of part.
        what: &'static str,
        /// Their number.
        count: u64,
    },
    /// A cable has an end that does not exist.
    #[error("cable {cable} ends at {end:?}, which does not exist; add it, or correct the end")]
    NoSuchNode {
        /// Number of the cable.
        cable: u32,
        /// Its end.
        end: Node,
    },
    /// Both ends of a cable are the same node.
    #[error("cable {0} has both ends at one node; connect two")]
    Loop(u32),
    /// A host has no cable.
    #[error("host n{} has no cable; add one", .0.0)]
    NoCable(HostId),
    /// A host cannot be reached, not even over hosts whose applications forward.
    #[error("no path leads from {from:?} to host n{}; add a cable", to.0)]
    Unreachable {
        /// From here.
        from: Node,
        /// To this host.
        to: HostId,
    },
    /// A cable's rate is 0 or above a petabit per second.
    #[error("cable {cable}: a rate of {rate_bps} bit/s is out of range; set 1 to 10^15")]
    Rate {
        /// Number of the cable.
        cable: u32,
        /// Its rate.
        rate_bps: u64,
    },
    /// A delay is above the limit.
    #[error(
        "{what} {number}: a delay of {delay_ns} ns is above the limit of {}; set a shorter one",
        MAX_DELAY_NS
    )]
    Delay {
        /// `cable` or `switch`.
        what: &'static str,
        /// Its number.
        number: u32,
        /// Its delay.
        delay_ns: u64,
    },
    /// A policy of a switch is invalid.
    #[error("switch {switch}: {why}")]
    Policy {
        /// Number of the switch.
        switch: u32,
        /// The reason.
        why: PolicyError,
    },
}

/// Why a policy of a switch is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The buffer is empty, or its alpha is 0 or has a denominator of 0.
    #[error("a buffer without bytes or with an alpha of 0; set both above 0")]
    Buffer,
    /// The marking range is reversed, or a probability is above one.
    #[error("marking from min to max in the wrong order, or above a million; set min < max")]
    Marking,
    /// XON is above XOFF.
    #[error("priority flow control with XON above XOFF; lower XON")]
    PfcThresholds,
    /// Thresholds and headroom of all ports do not fit into the buffer.
    #[error("{ports} ports of {each} bytes (XOFF and headroom) exceed {buffer} bytes; lower XOFF")]
    PfcRoom {
        /// Ports of the switch.
        ports: u64,
        /// XOFF plus headroom.
        each: u64,
        /// Bytes of the buffer.
        buffer: u64,
    },
}

impl Topology {
    /// A network of `hosts` hosts without switches and cables.
    pub fn new(hosts: u32) -> Topology {
        Topology { hosts, switches: Vec::new(), cables: Vec::new() }
    }

    /// Adds a switch; returns its number.
    pub fn add_switch(&mut self, spec: SwitchSpec) -> u32 {
        self.switches.push(spec);
        self.switches.len() as u32 - 1
    }

    /// Adds a cable; returns the link from `a` to `b`, whose reverse is the link from `b` to `a`.
    pub fn add_cable(&mut self, a: Node, b: Node, spec: CableSpec) -> LinkId {
        self.cables.push(Cable { a, b, spec });
        LinkId(2 * (self.cables.len() as u32 - 1))
    }

    /// The same network after a change of its switches, each passed with its number.
    pub fn each_switch(mut self, mut change: impl FnMut(u32, &mut SwitchSpec)) -> Topology {
        for (number, spec) in (0..).zip(&mut self.switches) {
            change(number, spec);
        }
        self
    }

    /// The same network after a change of its cables.
    pub fn each_cable(mut self, mut change: impl FnMut(&mut Cable)) -> Topology {
        self.cables.iter_mut().for_each(&mut change);
        self
    }

    /// Number of hosts.
    pub fn hosts(&self) -> u32 {
        self.hosts
    }

    /// Its switches, in the order of their numbers.
    pub fn switches(&self) -> &[SwitchSpec] {
        &self.switches
    }

    /// Its cables; the links of cable `i` are `2i` (from `a` to `b`) and `2i + 1`.
    pub fn cables(&self) -> &[Cable] {
        &self.cables
    }

    /// The rate of a host's cable, bit/s.
    pub(crate) fn rate_of_host(&self, host: u32) -> Option<u64> {
        let host = Node::Host(HostId(host));
        let cable = self.cables.iter().find(|cable| cable.a == host || cable.b == host);
        cable.map(|cable| cable.spec.rate_bps)
    }

    /// Checks that it can be built, except for missing paths, which [`Fabric::new`] finds.
    ///
    /// [`Fabric::new`]: super::Fabric::new
    pub(super) fn check(&self) -> Result<(), TopologyError> {
        self.check_counts()?;
        let mut cables_of = vec![0_u32; self.hosts as usize];
        let mut ports_of = vec![0_u32; self.switches.len()];
        for (number, cable) in (0..).zip(&self.cables) {
            check_cable(number, cable)?;
            for end in [cable.a, cable.b] {
                let count = match end {
                    Node::Host(h) => cables_of.get_mut(h.0 as usize),
                    Node::Switch(s) => ports_of.get_mut(s as usize),
                };
                *count.ok_or(TopologyError::NoSuchNode { cable: number, end })? += 1;
            }
        }
        if let Some(host) = cables_of.iter().position(|&cables| cables == 0) {
            return Err(TopologyError::NoCable(HostId(host as u32)));
        }
        for (switch, (spec, ports)) in (0..).zip(self.switches.iter().zip(ports_of)) {
            let policy = |why| TopologyError::Policy { switch, why };
            spec.buffer.check(spec.pfc, ports.into()).map_err(policy)?;
            spec.marking.check().map_err(policy)?;
            if spec.latency_ns > MAX_DELAY_NS {
                let delay_ns = spec.latency_ns;
                return Err(TopologyError::Delay { what: "switch", number: switch, delay_ns });
            }
        }
        Ok(())
    }

    fn check_counts(&self) -> Result<(), TopologyError> {
        let counts = [
            ("hosts", u64::from(self.hosts)),
            ("switches", self.switches.len() as u64),
            ("cables", self.cables.len() as u64),
        ];
        match counts.into_iter().find(|&(_, count)| count > u64::from(MAX_NODES)) {
            Some((what, count)) => Err(TopologyError::TooMany { what, count }),
            None => Ok(()),
        }
    }
}

fn check_cable(number: u32, cable: &Cable) -> Result<(), TopologyError> {
    let CableSpec { rate_bps, delay_ns } = cable.spec;
    if cable.a == cable.b {
        return Err(TopologyError::Loop(number));
    }
    if !(1..=presets::MAX_RATE_BPS).contains(&rate_bps) {
        return Err(TopologyError::Rate { cable: number, rate_bps });
    }
    if delay_ns > MAX_DELAY_NS {
        return Err(TopologyError::Delay { what: "cable", number, delay_ns });
    }
    Ok(())
}
