//! Lines without a network, for benchmarks: packets from memory, and a count of those that leave.

use std::net::IpAddr;

use courser_link::socket::AHEAD;

use super::{BURST, Intake, Outlet, Sent};
use crate::counters::PacketDrop;
use crate::route::PortId;

/// Packets in one piece of memory.
#[derive(Clone, Default, Debug)]
pub(super) struct Packets {
    bytes: Vec<u8>,
    /// Port, start and length of each.
    places: Vec<(PortId, usize, usize)>,
}

impl Packets {
    pub(super) fn push(&mut self, port: PortId, packet: &[u8]) {
        self.places.push((port, self.bytes.len(), packet.len()));
        self.bytes.extend_from_slice(packet);
    }

    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes.len()
    }
}

/// An intake of prepared packets. They are copied for each burst, as a ring of frames has new bytes.
#[derive(Clone, Debug)]
pub struct MemoryIntake {
    packets: Packets,
    next: usize,
    /// Rounds that are left; `None` is no end.
    rounds: Option<u64>,
    buffer: Vec<u8>,
}

impl MemoryIntake {
    /// Passes packets of ports in their order, that often; without an end for `None`.
    pub fn new<'a>(
        packets: impl IntoIterator<Item = (PortId, &'a [u8])>,
        rounds: Option<u64>,
    ) -> Self {
        let mut all = Packets::default();
        packets.into_iter().for_each(|(port, packet)| all.push(port, packet));
        Self::of(all, rounds)
    }

    pub(super) fn of(packets: Packets, rounds: Option<u64>) -> Self {
        let longest = packets.places.iter().map(|(_, _, len)| *len).max().unwrap_or_default();
        Self { packets, next: 0, rounds, buffer: vec![0; longest] }
    }

    /// Whether all packets have been passed.
    pub fn is_done(&self) -> bool {
        self.rounds == Some(0) || self.packets.places.is_empty()
    }

    pub(super) fn packets(&self) -> &Packets {
        &self.packets
    }
}

impl Intake for MemoryIntake {
    fn burst_ahead(
        &mut self,
        ahead: &mut dyn FnMut(&[u8]),
        each: &mut dyn FnMut(PortId, &mut [u8]),
    ) -> usize {
        for passed in 0..BURST {
            if self.is_done() {
                return passed;
            }
            if let Some((_, start, len)) = self.packets.places.get(self.next + AHEAD) {
                ahead(&self.packets.bytes[*start..*start + *len]);
            }
            let (port, start, len) = self.packets.places[self.next];
            let copy = &mut self.buffer[..len];
            copy.copy_from_slice(&self.packets.bytes[start..start + len]);
            each(port, copy);
            self.next += 1;
            if self.next == self.packets.places.len() {
                self.next = 0;
                self.rounds = self.rounds.map(|rounds| rounds - 1);
            }
        }
        BURST
    }
}

/// An outlet that counts, and sends nothing.
#[derive(Clone, Debug)]
pub struct CountingOutlet {
    ports: Vec<(Sent, bool)>,
}

impl CountingOutlet {
    /// An outlet with ports that are up.
    pub fn new(ports: usize) -> Self {
        Self { ports: vec![(Sent::default(), true); ports] }
    }

    /// The count of a port.
    pub fn sent(&self, port: PortId) -> Sent {
        self.ports.get(usize::from(port)).map(|(sent, _)| *sent).unwrap_or_default()
    }

    /// Sets a port up or down.
    pub fn set_up(&mut self, port: PortId, up: bool) {
        if let Some((_, is_up)) = self.ports.get_mut(usize::from(port)) {
            *is_up = up;
        }
    }
}

impl Outlet for CountingOutlet {
    fn send(&mut self, port: PortId, _: IpAddr, packet: &[u8]) -> Result<(), PacketDrop> {
        let Some((sent, true)) = self.ports.get_mut(usize::from(port)) else {
            return Err(PacketDrop::PortDown);
        };
        sent.packets += 1;
        sent.bytes += packet.len() as u64;
        Ok(())
    }

    fn flush(&mut self) {}

    fn is_up(&self, port: PortId) -> bool {
        matches!(self.ports.get(usize::from(port)), Some((_, true)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_repeat_unchanged_although_they_are_written_to() {
        let packets: Vec<Vec<u8>> = (0..100u8).map(|i| vec![i; 1 + usize::from(i)]).collect();
        let of_ports = packets.iter().map(|packet| (packet[0] % 3, packet.as_slice()));
        let mut intake = MemoryIntake::new(of_ports, Some(3));
        let mut seen = 0;
        let mut bursts = Vec::new();
        while !intake.is_done() {
            bursts.push(intake.burst(&mut |port, packet| {
                let expected = &packets[seen % 100];
                assert_eq!((port, &packet[..]), (expected[0] % 3, expected.as_slice()));
                packet.fill(0xff);
                seen += 1;
            }));
        }
        assert_eq!((seen, bursts), (300, vec![64, 64, 64, 64, 44]));
        assert_eq!(intake.burst(&mut |_, _| unreachable!()), 0);
        assert_eq!(MemoryIntake::new([], None).burst(&mut |_, _| unreachable!()), 0);
    }

    #[test]
    fn packets_are_shown_before_they_are_passed() {
        let packets: Vec<[u8; 1]> = (0..10).map(|i| [i]).collect();
        let mut intake = MemoryIntake::new(packets.iter().map(|packet| (0, &packet[..])), Some(1));
        let (shown, mut passed) = (std::cell::RefCell::new(Vec::new()), 0);
        intake.burst_ahead(&mut |packet| shown.borrow_mut().push(packet[0]), &mut |_, packet| {
            let last = shown.borrow().last().copied();
            assert_eq!(last, Some((packet[0] + AHEAD as u8).min(9)));
            passed += 1;
        });
        assert_eq!((passed, shown.into_inner().len()), (10, 10 - AHEAD));
    }

    #[test]
    fn packets_are_counted_by_port() {
        let mut outlet = CountingOutlet::new(2);
        let to = IpAddr::from([10, 0, 0, 1]);
        assert_eq!(outlet.send(1, to, &[0; 100]), Ok(()));
        assert_eq!(outlet.send(1, to, &[0; 28]), Ok(()));
        assert_eq!(outlet.send(2, to, &[0; 28]), Err(PacketDrop::PortDown));
        assert_eq!(outlet.sent(1), Sent { packets: 2, bytes: 128 });
        assert_eq!(outlet.sent(0), Sent::default());
        outlet.set_up(1, false);
        assert_eq!(outlet.send(1, to, &[0; 28]), Err(PacketDrop::PortDown));
        assert_eq!((outlet.is_up(0), outlet.is_up(1), outlet.is_up(2)), (true, false, false));
    }
}
