//! The interface by which the fabric and the world report packets to an observer.

use courser_proto::wire::FrameHeader;

use crate::{HostId, Packet};

/// Number of one direction of a cable, from 0 in the order of the topology; the two directions of a
/// cable are `2n` and `2n + 1`. A host's link to its switch is one too.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LinkId(pub u32);

impl LinkId {
    /// The other direction of the same cable.
    pub fn reverse(self) -> LinkId {
        LinkId(self.0 ^ 1)
    }
}

/// Place of an event.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// In a host: its NIC, or an endpoint's queue.
    Host(HostId),
    /// In the switch of this number, from 0 in the order of the topology.
    Switch(u32),
    /// On a link.
    Link(LinkId),
}

/// Names each variant once, so that the enum, its list and its names stay consistent.
macro_rules! reasons {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Reason of a drop.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        #[repr(u8)]
        pub enum DropReason {
            $($(#[$doc])* $variant,)*
        }

        impl DropReason {
            /// All reasons, in the order of their numbers.
            pub const ALL: [DropReason; [$($name),*].len()] = [$(DropReason::$variant),*];
            /// Number of reasons: the length of a table by reason.
            pub const COUNT: usize = Self::ALL.len();
            /// Their names, in the same order: short, lower case, the same in every release.
            pub const NAMES: [&'static str; Self::COUNT] = [$($name),*];
        }
    };
}

reasons! {
    /// Lost by a link that loses packets at a rate.
    Loss = "loss",
    /// Lost by a link in its bad state (Gilbert-Elliott).
    Burst = "burst",
    /// Chosen by a test's own rule.
    Predicate = "predicate",
    /// Sent from one side of a partition to the other.
    Partition = "partition",
    /// On or before a link that was down.
    LinkDown = "link-down",
    /// A switch's output queue had no room.
    BufferFull = "buffer-full",
    /// The receiving NIC had no descriptor (E60).
    NoDescriptor = "no-descriptor",
    /// The receiving NIC's frame check found flipped bits.
    Corrupt = "corrupt",
    /// The receiving host had crashed.
    HostDown = "host-down",
    /// No endpoint of the receiving host had the port.
    NoListener = "no-listener",
    /// No route to the host, or no such host.
    NoRoute = "no-route",
}

impl DropReason {
    /// Its name in reports and traces.
    pub const fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}

/// An observer. Every method does nothing by default; all must be fast, for each is called at least
/// once for every packet and hop.
pub trait Tap {
    /// The first bit of a packet leaves for `link`, at a host or at a switch.
    fn sent(&mut self, _now_ns: u64, _link: LinkId, _packet: &Packet) {}

    /// A packet was dropped.
    fn dropped(&mut self, _now_ns: u64, _at: &Place, _why: DropReason, _packet: &Packet) {}

    /// A packet reached the receive queue of an endpoint.
    fn delivered(&mut self, _now_ns: u64, _host: HostId, _packet: &Packet) {}

    /// The output queue of `link` has `bytes` after a change; a packet counts until its last bit
    /// was sent.
    fn queue(&mut self, _now_ns: u64, _link: LinkId, _bytes: u64) {}

    /// A switch marked a packet to `link` (ECN).
    fn marked(&mut self, _now_ns: u64, _link: LinkId, _packet: &Packet) {}
}

/// Reports to the tap, if there is one.
impl Tap for Option<Box<dyn Tap>> {
    fn sent(&mut self, now_ns: u64, link: LinkId, packet: &Packet) {
        if let Some(tap) = self {
            tap.sent(now_ns, link, packet);
        }
    }

    fn dropped(&mut self, now_ns: u64, at: &Place, why: DropReason, packet: &Packet) {
        if let Some(tap) = self {
            tap.dropped(now_ns, at, why, packet);
        }
    }

    fn delivered(&mut self, now_ns: u64, host: HostId, packet: &Packet) {
        if let Some(tap) = self {
            tap.delivered(now_ns, host, packet);
        }
    }

    fn queue(&mut self, now_ns: u64, link: LinkId, bytes: u64) {
        if let Some(tap) = self {
            tap.queue(now_ns, link, bytes);
        }
    }

    fn marked(&mut self, now_ns: u64, link: LinkId, packet: &Packet) {
        if let Some(tap) = self {
            tap.marked(now_ns, link, packet);
        }
    }
}

/// The round trip that a frame ends which arrives at `now_ns`, ns; `None`: it answers no timed frame. The
/// host's clock has to be the world's.
pub fn ended_round_trip_ns(now_ns: u64, packet: &Packet) -> Option<u64> {
    let (header, _) = FrameHeader::parse(&packet.bytes).ok()?;
    Some((now_ns as u32).wrapping_sub(header.echo_at?).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_reasons_are_distinct() {
        for (i, why) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!((why as usize, why.name()), (i, DropReason::NAMES[i]));
            assert_eq!(DropReason::NAMES.iter().filter(|n| **n == why.name()).count(), 1);
        }
        assert_eq!(DropReason::BufferFull.name(), "buffer-full");
    }

    #[test]
    fn a_cable_has_two_directions() {
        assert_eq!((LinkId(6).reverse(), LinkId(7).reverse()), (LinkId(7), LinkId(6)));
    }
}
