//! Coverage of the seeds: faults, packets, drops and ends. A kind that never occurs was not tested.

use courser::{DROP_NAMES, Rpc};
use courser_proto::{CountedKind, DROP_REASONS, PACKET_KINDS, RxDrop};

use super::faults::FaultKind;
use super::kinds::ENDS;
use super::message_ledger::{MESSAGE_ENDS, MessageEnd};
use super::oracle::Oracle;
use super::workload::Shared;
use crate::{DropReason, HostId, Invariant, World};

/// Packet kinds, in the order of [`courser::EndpointStats::tx_kinds`].
pub const PACKETS: [&str; PACKET_KINDS] = CountedKind::NAMES;

/// Reasons of drops in the network and at hosts that do not occur in correct operation under these
/// faults: every called host exists, and is connected.
const NETWORK_UNREACHED: [DropReason; 1] = [DropReason::NoRoute];

/// Reasons for which an endpoint discards frames and packets whatever the faults of its peers, as
/// long as all follow the protocol: packets of earlier lives (`unknown_peer`, `cookie`,
/// `unknown_session`), and packets that were lost, delayed or duplicated. All others mean that an
/// endpoint has sent an invalid packet.
const PROTOCOL_REACHED: [RxDrop; 7] = [
    RxDrop::UnknownPeer,
    RxDrop::Checksum,
    RxDrop::Cookie,
    RxDrop::UnknownSession,
    RxDrop::Stale,
    RxDrop::Duplicate,
    RxDrop::OutOfOrder,
];

/// Counts by kind, of one seed or of many.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Coverage {
    /// Faults that started.
    pub faults: [u64; FaultKind::COUNT],
    /// Packets sent by endpoints.
    pub packets: [u64; PACKETS.len()],
    /// Packets dropped in the network and at hosts.
    pub network_drops: [u64; DropReason::COUNT],
    /// Frames and packets discarded by endpoints.
    pub protocol_drops: [u64; DROP_REASONS],
    /// Ends of calls.
    pub ends: [u64; ENDS.len()],
    /// Ends of one-way messages.
    pub messages: [u64; MESSAGE_ENDS.len()],
}

impl Default for Coverage {
    fn default() -> Self {
        Coverage {
            faults: [0; FaultKind::COUNT],
            packets: [0; PACKETS.len()],
            network_drops: [0; DropReason::COUNT],
            protocol_drops: [0; DROP_REASONS],
            ends: [0; ENDS.len()],
            messages: [0; MESSAGE_ENDS.len()],
        }
    }
}

/// A line of the table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Covered {
    /// The table.
    pub table: &'static str,
    /// The kind.
    pub kind: &'static str,
    /// The count.
    pub count: u64,
    /// True if a run of many seeds must contain it.
    pub expected: bool,
}

impl Coverage {
    /// Adds the counts of another seed.
    pub fn add(&mut self, other: &Coverage) {
        fn sum(to: &mut [u64], from: &[u64]) {
            to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        }
        sum(&mut self.faults, &other.faults);
        sum(&mut self.packets, &other.packets);
        sum(&mut self.network_drops, &other.network_drops);
        sum(&mut self.protocol_drops, &other.protocol_drops);
        sum(&mut self.ends, &other.ends);
        sum(&mut self.messages, &other.messages);
    }

    /// The whole table.
    pub fn table(&self) -> Vec<Covered> {
        let mut lines = Vec::new();
        let mut line = |table, kind, count, expected| {
            lines.push(Covered { table, kind, count, expected });
        };
        for kind in FaultKind::ALL {
            line("fault", kind.name(), self.faults[kind as usize], true);
        }
        for (kind, &count) in PACKETS.iter().zip(&self.packets) {
            // No address is translated in the swarm's networks.
            line("packet", kind, count, *kind != "proof");
        }
        for why in DropReason::ALL {
            let expected = !NETWORK_UNREACHED.contains(&why);
            line("network-drop", why.name(), self.network_drops[why as usize], expected);
        }
        for (at, &name) in DROP_NAMES.iter().enumerate() {
            let expected = PROTOCOL_REACHED.iter().any(|&d| d as usize == at);
            line("endpoint-drop", name, self.protocol_drops[at], expected);
        }
        for (name, &count) in ENDS.iter().zip(&self.ends) {
            line("end", name, count, ENDS_EXPECTED.contains(name));
        }
        for (name, &count) in MESSAGE_ENDS.iter().zip(&self.messages) {
            line("message", name, count, *name != "refused");
        }
        lines
    }

    /// Kinds that many seeds must contain, and none does.
    pub fn missing(&self) -> Vec<Covered> {
        self.table().into_iter().filter(|line| line.expected && line.count == 0).collect()
    }
}

/// Ends of calls that many seeds must contain.
const ENDS_EXPECTED: [&str; 13] = [
    "response",
    "not-connected",
    "peer-failed",
    "datapath-silent",
    "closed",
    "deadline-exceeded",
    "cancelled",
    "unknown-type",
    "no-reply",
    "refused",
    "workers-busy",
    "panicked",
    "server-no-memory",
];

/// Counts of a seed so far, including processes that have ended.
#[derive(Default, Debug)]
pub(super) struct Harvest {
    pub(super) faults: [u64; FaultKind::COUNT],
    packets: [u64; PACKETS.len()],
    drops: [u64; DROP_REASONS],
    pub(super) messages: MessageCounts,
    /// Transmit queues had no room for frames.
    pub(super) tx_full: u64,
}

/// Counters of messages, over all endpoints.
#[derive(Default, Debug)]
pub(super) struct MessageCounts {
    received: u64,
    unsent: u64,
    pub(super) failed: u64,
    /// After their deadlines, as endpoints found, and before handlers.
    expired: u64,
    late: u64,
    pub(super) refused: u64,
    unhandled: u64,
}

impl MessageCounts {
    /// Adds the counters of an endpoint.
    pub(super) fn add(&mut self, rpc: &Rpc) {
        let (stats, handled) = (rpc.stats(), rpc.handler_stats());
        self.received += stats.messages_received;
        self.unsent += stats.messages_unsent;
        self.failed += stats.messages_failed;
        self.expired += stats.messages_expired;
        self.late += handled.messages_expired;
        self.refused += stats.messages_refused;
        self.unhandled += handled.messages_unhandled;
    }

    /// Describes the difference if handlers were not given all messages that endpoints counted as
    /// received.
    pub(super) fn differ(&self, delivered: u64) -> Option<String> {
        let &MessageCounts { received, late, unhandled, .. } = self;
        (received != delivered + late + unhandled).then(|| {
            format!(
                "{received} messages were received, {delivered} delivered, {late} too late for that, \
                 and {unhandled} without a handler"
            )
        })
    }

    /// The outcomes of messages; `ends` has those that the application sees.
    fn ends(&self, mut ends: [u64; MESSAGE_ENDS.len()]) -> [u64; MESSAGE_ENDS.len()] {
        for (end, count) in [
            (MessageEnd::Unsent, self.unsent),
            (MessageEnd::Failed, self.failed),
            (MessageEnd::Expired, self.expired + self.late),
            (MessageEnd::Refused, self.refused),
            (MessageEnd::Unhandled, self.unhandled),
        ] {
            ends[end as usize] += count;
        }
        ends
    }
}

impl Harvest {
    /// Adds the counters of a host's endpoints.
    pub(super) fn take(&mut self, world: &mut World, host: HostId, shared: &Shared) {
        for endpoint in 0..shared.endpoints {
            let Some(rpc) = world.endpoint(host, endpoint) else { continue };
            let stats = rpc.stats();
            let kinds = stats.tx_kinds.iter();
            self.packets.iter_mut().zip(kinds).for_each(|(sum, n)| *sum += n);
            self.drops.iter_mut().zip(&stats.drops).for_each(|(sum, n)| *sum += n);
            self.messages.add(rpc);
            self.tx_full += rpc.transport_stats().tx_full;
            if let Some(detail) = forbidden(host, &stats.drops, shared) {
                world.violate(Invariant::Internal, detail);
            }
        }
    }

    /// The counts of a world at its end.
    pub(super) fn coverage(&self, world: &mut World, oracle: &Oracle) -> Coverage {
        let mut network_drops = world.fabric().drops();
        for (sum, n) in network_drops.iter_mut().zip(world.counts().dropped) {
            *sum += n;
        }
        Coverage {
            faults: self.faults,
            packets: self.packets,
            network_drops,
            protocol_drops: self.drops,
            ends: oracle.ends,
            messages: self.messages.ends(oracle.messages.ends),
        }
    }
}

/// A discarded packet that no peer may have sent. When a session has `ended`, closed or failed, a
/// late packet of it may reach the next session of the same number, whose request numbers may start
/// anywhere, and which may have the other direction: then it may seem to be of a future request, or
/// of the other role. A frame that was changed on the way may be of another version. Where frames have
/// a checksum, a late one of an earlier peer may seem to come from elsewhere, as that is checked
/// first.
pub(super) fn forbidden(
    host: HostId,
    drops: &[u64; DROP_REASONS],
    shared: &Shared,
) -> Option<String> {
    let reached = |at: usize| PROTOCOL_REACHED.iter().any(|&d| d as usize == at);
    let late = [RxDrop::Future as usize, RxDrop::WrongRole as usize];
    let changed = [RxDrop::Version as usize, RxDrop::Flags as usize];
    let before_checksum = [RxDrop::WrongSource as usize, RxDrop::PacketSize as usize];
    let ended = shared.ended.get();
    let allowed = |at: usize| {
        reached(at)
            || (ended && late.contains(&at))
            || (shared.changes_arrive && changed.contains(&at))
            || (shared.protected && before_checksum.contains(&at))
    };
    let at = (0..DROP_REASONS).find(|&at| drops[at] > 0 && !allowed(at))?;
    let (count, name) = (drops[at], DROP_NAMES[at]);
    Some(format!("n{}: {count} packets were discarded as {name}", host.0))
}
