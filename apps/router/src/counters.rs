//! Counters of packets, by what became of them.

use courser_buf::{labels, stats};

labels! {
    /// Why a packet was dropped. Each has a counter.
    #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
    #[repr(u8)]
    pub enum PacketDrop {
        /// Shorter than its header, or than its length field.
        Truncated = "truncated",
        /// Neither IPv4 nor IPv6.
        Version = "version",
        /// A header length below 20 bytes.
        HeaderLength = "header_length",
        /// A length field below the length of the header, and extension headers that are cut.
        TotalLength = "total_length",
        /// A wrong IPv4 header checksum.
        Checksum = "checksum",
        /// A source that no packet may have: multicast, loopback, link-local, unspecified, reserved,
        /// broadcast, also of the network of a port, and an address of a node.
        Source = "source",
        /// A destination that routers do not forward: multicast, loopback, link-local, unspecified,
        /// broadcast, also of the network of a port.
        Destination = "destination",
        /// IPv4 options of an impossible length, and source routes.
        Options = "options",
        /// An impossible fragment: beyond 65,535 bytes, or of a length that is no multiple of 8.
        Fragment = "fragment",
        /// The time to live is used up.
        TimeExceeded = "time_exceeded",
        /// No route.
        NoRoute = "no_route",
        /// A route of which no next hop is alive, or which rejects.
        Unreachable = "unreachable",
        /// Larger than the next link takes, and not to be fragmented.
        TooBig = "too_big",
        /// The queue to the next node is full.
        LinkFull = "link_full",
        /// No memory for a message.
        Memory = "memory",
        /// The next node is not connected.
        LinkDown = "link_down",
        /// The queue of a line is full.
        LineFull = "line_full",
        /// The link-layer address of the neighbour is not known, and too many packets wait for it.
        Neighbour = "neighbour",
        /// The neighbour does not answer.
        NeighbourFailed = "neighbour_failed",
        /// The port does not exist, or is down, or went down while the packet waited.
        PortDown = "port_down",
        /// The operating system refused it: the queue of the device is full.
        Refused = "refused",
        /// A message between nodes that is no packet, or that has passed too many nodes.
        BadMessage = "bad_message",
        /// For an address of this node that came from another one, and is no echo request, or one too
        /// many.
        NotForwarded = "not_forwarded",
    }
}

stats! {
    /// Counters of a node since its start.
    #[derive(Clone, PartialEq, Eq, Default, Debug)]
    pub struct Counters: "node" {
        /// Packets from lines, those with an error included.
        pub received: u64 = counter(packets),
        /// Bytes of received packets, without link-layer headers.
        pub received_bytes: u64 = counter(bytes),
        /// Packets that lines have handed to the system, those that the node made itself included.
        pub sent: u64 = counter(packets),
        /// Bytes of sent packets.
        pub sent_bytes: u64 = counter(bytes),
        /// Packets for the operating system of this node, which has them already.
        pub to_system: u64 = counter(packets),
        /// Packets sent to other nodes.
        pub to_nodes: u64 = counter(packets),
        /// Packets received from other nodes.
        pub from_nodes: u64 = counter(packets),
        /// Packets received from other nodes for a third node.
        pub passed_on: u64 = counter(packets),
        /// Packets that arrived early and waited for an earlier one.
        pub reordered: u64 = counter(packets),
        /// ICMP messages sent.
        pub icmp_sent: u64 = counter(messages),
        /// ICMP messages not sent, because of the rate limit.
        pub icmp_limited: u64 = counter(messages),
        /// Packets fragmented.
        pub fragmented: u64 = counter(packets),
        /// Fragments made of packets.
        pub fragments: u64 = counter(fragments),
        /// Echo requests answered.
        pub echoes: u64 = counter(requests),
        /// Drops by reason, in the order of [`PacketDrop::ALL`].
        pub drops: [u64; PacketDrop::ALL.len()] = counter(packets, PacketDrop::LABELS),
    }
}

impl Counters {
    /// Counts a drop.
    #[inline]
    pub fn drop(&mut self, reason: PacketDrop) {
        self.drops[reason as usize] += 1;
    }

    /// Packets dropped for a reason.
    pub fn dropped(&self, reason: PacketDrop) -> u64 {
        self.drops[reason as usize]
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
    pub fn drops(&self) -> impl Iterator<Item = (PacketDrop, u64)> + '_ {
        PacketDrop::ALL.into_iter().zip(self.drops).filter(|(_, n)| *n > 0)
    }
}

#[cfg(test)]
mod tests {
    use courser_buf::stats::Stats;

    use super::*;
    use crate::import::ImportCounters;
    use crate::line::PortCounters;

    const HEAD: &str = "# Counters of the router

Numbers that a node counts, as its structs declare them: `router ctl SOCKET stats --json`. A counter
only grows, a gauge is an amount at the moment.

This file is generated: `COURSER_WRITE_DOCS=1 cargo test -p courser-router --lib counters`.
";

    #[test]
    fn the_documentation_of_counters_lists_each_declared_number() {
        let groups = [Counters::GROUP, PortCounters::GROUP, ImportCounters::GROUP];
        let tables = groups.map(|group| format!("\n{}", group.markdown()));
        let text = format!("{HEAD}{}", tables.concat());
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/COUNTERS.md");
        if std::env::var_os("COURSER_WRITE_DOCS").is_some() {
            std::fs::write(path, &text).expect("it can be written");
        }
        let written = std::fs::read_to_string(path).expect("it can be read");
        assert!(written == text, "COUNTERS.md is old; COURSER_WRITE_DOCS=1 writes it");
    }

    #[test]
    fn each_reason_has_a_counter_and_a_name_of_its_own() {
        let mut names = std::collections::BTreeSet::new();
        for (at, reason) in PacketDrop::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, at);
            assert!(names.insert(reason.name()), "{}", reason.name());
            let mut counters = Counters::default();
            counters.drop(reason);
            assert_eq!(counters.drops().collect::<Vec<_>>(), [(reason, 1)]);
        }
    }
}
