//! What became of packets.

/// Why a packet was dropped. Each has a counter.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Drop {
    /// Shorter than its header, or than its length field.
    Truncated,
    /// Neither IPv4 nor IPv6.
    Version,
    /// A header length below 20 bytes.
    HeaderLength,
    /// A length field below the length of the header, and extension headers that are cut.
    TotalLength,
    /// A wrong IPv4 header checksum.
    Checksum,
    /// A source that no packet may have: multicast, loopback, link-local, unspecified, reserved,
    /// broadcast, also of the network of a port, and an address of a node.
    Source,
    /// A destination that routers do not forward: multicast, loopback, link-local, unspecified,
    /// broadcast, also of the network of a port.
    Destination,
    /// IPv4 options of an impossible length, and source routes.
    Options,
    /// An impossible fragment: beyond 65,535 bytes, or of a length that is no multiple of 8.
    Fragment,
    /// The time to live is used up.
    TimeExceeded,
    /// No route.
    NoRoute,
    /// A route of which no next hop is alive, or which rejects.
    Unreachable,
    /// Larger than the next link takes, and not to be fragmented.
    TooBig,
    /// The queue to the next node is full.
    LinkFull,
    /// No memory for a message.
    Memory,
    /// The next node is not connected.
    LinkDown,
    /// The queue of a line is full.
    LineFull,
    /// The link-layer address of the neighbour is not known, and too many packets wait for it.
    Neighbour,
    /// The neighbour does not answer.
    NeighbourFailed,
    /// The port does not exist, or is down, or went down while the packet waited.
    PortDown,
    /// The operating system refused it: the queue of the device is full.
    Refused,
    /// A message between nodes that is no packet, or that has passed too many nodes.
    BadMessage,
    /// For an address of this node that came from another one, and is no echo request, or one too
    /// many.
    NotForwarded,
}

impl Drop {
    /// All of them, in the order of their counters.
    pub const ALL: [Drop; 23] = [
        Drop::Truncated,
        Drop::Version,
        Drop::HeaderLength,
        Drop::TotalLength,
        Drop::Checksum,
        Drop::Source,
        Drop::Destination,
        Drop::Options,
        Drop::Fragment,
        Drop::TimeExceeded,
        Drop::NoRoute,
        Drop::Unreachable,
        Drop::TooBig,
        Drop::LinkFull,
        Drop::Memory,
        Drop::LinkDown,
        Drop::LineFull,
        Drop::Neighbour,
        Drop::NeighbourFailed,
        Drop::PortDown,
        Drop::Refused,
        Drop::BadMessage,
        Drop::NotForwarded,
    ];

    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Drop::Truncated => "truncated",
            Drop::Version => "version",
            Drop::HeaderLength => "header_length",
            Drop::TotalLength => "total_length",
            Drop::Checksum => "checksum",
            Drop::Source => "source",
            Drop::Destination => "destination",
            Drop::Options => "options",
            Drop::Fragment => "fragment",
            Drop::TimeExceeded => "time_exceeded",
            Drop::NoRoute => "no_route",
            Drop::Unreachable => "unreachable",
            Drop::TooBig => "too_big",
            Drop::LinkFull => "link_full",
            Drop::Memory => "memory",
            Drop::LinkDown => "link_down",
            Drop::LineFull => "line_full",
            Drop::Neighbour => "neighbour",
            Drop::NeighbourFailed => "neighbour_failed",
            Drop::PortDown => "port_down",
            Drop::Refused => "refused",
            Drop::BadMessage => "bad_message",
            Drop::NotForwarded => "not_forwarded",
        }
    }
}

/// Counters of a node since its start.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Packets from lines, those with an error included.
    pub received: u64,
    /// Their bytes, without link-layer headers.
    pub received_bytes: u64,
    /// Packets that lines have handed to the system, those that the node made itself included.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Packets for the operating system of this node, which has them already.
    pub to_system: u64,
    /// Packets sent to other nodes.
    pub to_nodes: u64,
    /// Packets received from other nodes.
    pub from_nodes: u64,
    /// Of these, those for a third node.
    pub passed_on: u64,
    /// Packets that arrived early and waited for an earlier one.
    pub reordered: u64,
    /// ICMP messages sent.
    pub icmp_sent: u64,
    /// ICMP messages not sent, because of the rate limit.
    pub icmp_limited: u64,
    /// Packets fragmented.
    pub fragmented: u64,
    /// Fragments made of them.
    pub fragments: u64,
    /// Echo requests answered.
    pub echoes: u64,
    /// Drops by reason, in the order of [`Drop::ALL`].
    pub drops: [u64; Drop::ALL.len()],
}

impl Counters {
    /// Counts a drop.
    #[inline]
    pub fn drop(&mut self, reason: Drop) {
        self.drops[reason as usize] += 1;
    }

    /// Packets dropped for a reason.
    pub fn dropped(&self, reason: Drop) -> u64 {
        self.drops[reason as usize]
    }

    /// Adds the counters of another node.
    pub fn add(&mut self, other: &Counters) {
        let Counters {
            received,
            received_bytes,
            sent,
            sent_bytes,
            to_system,
            to_nodes,
            from_nodes,
            passed_on,
            reordered,
            icmp_sent,
            icmp_limited,
            fragmented,
            fragments,
            echoes,
            drops,
        } = other;
        self.received += received;
        self.received_bytes += received_bytes;
        self.sent += sent;
        self.sent_bytes += sent_bytes;
        self.to_system += to_system;
        self.to_nodes += to_nodes;
        self.from_nodes += from_nodes;
        self.passed_on += passed_on;
        self.reordered += reordered;
        self.icmp_sent += icmp_sent;
        self.icmp_limited += icmp_limited;
        self.fragmented += fragmented;
        self.fragments += fragments;
        self.echoes += echoes;
        self.drops.iter_mut().zip(drops).for_each(|(all, n)| *all += n);
    }

    /// All packets dropped.
    pub fn all_dropped(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Packets of which no counter says what became of them: 0, as each packet that a node gets or
    /// makes is sent, dropped, or replaced by its fragments or by a reply. Packets that wait in a
    /// line make it larger until they are sent or dropped; a dropped message of another node that
    /// was no packet makes it smaller.
    pub fn unaccounted(&self) -> i64 {
        let made = self.received + self.from_nodes + self.icmp_sent + self.fragments;
        let ended = self.sent + self.to_nodes + self.to_system + self.fragmented;
        made as i64 - (ended + self.all_dropped()) as i64
    }

    /// Reasons for which packets were dropped, with their numbers.
    pub fn drops(&self) -> impl Iterator<Item = (Drop, u64)> + '_ {
        Drop::ALL.into_iter().zip(self.drops).filter(|(_, n)| *n > 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_counter_and_a_name_of_its_own() {
        let mut names = std::collections::BTreeSet::new();
        for (at, reason) in Drop::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at);
            assert!(names.insert(reason.name()), "{}", reason.name());
            let mut counters = Counters::default();
            counters.drop(reason);
            assert_eq!(counters.drops().collect::<Vec<_>>(), [(reason, 1)]);
        }
    }
}
