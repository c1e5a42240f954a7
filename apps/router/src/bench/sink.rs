//! The counter at the last node, and what the two threads share.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use super::table::gateway;
use crate::counters::PacketDrop;
use crate::line::Outlet;
use crate::route::PortId;

/// Ports of the last node.
pub(super) const PORTS: u8 = 4;

/// Where the packets have their number and port, behind IPv4 and UDP headers.
const MARK: usize = 20 + 8;
/// Bytes of number and port.
pub(super) const MARK_BYTES: usize = 5;

/// Writes a packet's number and port to the beginning of its data.
pub(super) fn mark(payload: &mut [u8], number: u32, port: u8) {
    payload[..4].copy_from_slice(&number.to_le_bytes());
    payload[4] = port;
}

/// The number and the port of a packet.
#[inline]
pub(super) fn marks(packet: &[u8]) -> Option<(u32, u8)> {
    let mark = packet.get(MARK..)?.first_chunk::<MARK_BYTES>()?;
    Some((u32::from_le_bytes([mark[0], mark[1], mark[2], mark[3]]), mark[4]))
}

/// Counts of one workload, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(super) struct Lane {
    packets: AtomicU64,
    disordered: AtomicU64,
    misrouted: AtomicU64,
}

impl Lane {
    pub(super) fn packets(&self) -> u64 {
        self.packets.load(Ordering::Acquire)
    }

    /// Packets out of order, and by wrong ports.
    pub(super) fn faults(&self) -> (u64, u64) {
        (self.disordered.load(Ordering::Acquire), self.misrouted.load(Ordering::Acquire))
    }
}

/// No workload: both threads serve all nodes.
pub(super) const IDLE: usize = usize::MAX;

/// What the two threads share.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) lanes: [Lane; 4],
    /// The workload, and that to which the last node's thread has changed.
    wanted: AtomicUsize,
    current: AtomicUsize,
    /// Number of the first packet of the workload.
    first: AtomicU32,
    stop: AtomicBool,
}

impl Line {
    pub(super) fn new() -> Arc<Line> {
        Arc::new(Line {
            lanes: Default::default(),
            wanted: AtomicUsize::new(IDLE),
            current: AtomicUsize::new(IDLE),
            first: AtomicU32::new(0),
            stop: AtomicBool::new(false),
        })
    }

    /// Asks for a workload. `serve` is called until the other thread has changed to it.
    pub(super) fn change(&self, workload: usize, first: u32, mut serve: impl FnMut()) {
        self.first.store(first, Ordering::Relaxed);
        self.wanted.store(workload, Ordering::Release);
        while self.current.load(Ordering::Acquire) != workload && !self.is_stopped() {
            serve();
        }
    }

    pub(super) fn wanted(&self) -> usize {
        self.wanted.load(Ordering::Acquire)
    }

    pub(super) fn first(&self) -> u32 {
        self.first.load(Ordering::Relaxed)
    }

    pub(super) fn changed(&self, workload: usize) {
        self.current.store(workload, Ordering::Release);
    }

    pub(super) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }
}

/// Counts packets that leave, and checks their order and ports.
#[derive(Debug)]
pub(super) struct Sink {
    line: Arc<Line>,
    lane: usize,
    /// Number of the next packet, of this many.
    next: u32,
    count: u32,
    packets: u64,
    disordered: u64,
    misrouted: u64,
    gateways: [IpAddr; PORTS as usize],
}

impl Sink {
    pub(super) fn new(line: &Arc<Line>, lane: usize, count: usize) -> Sink {
        Sink {
            line: Arc::clone(line),
            lane,
            next: 0,
            count: count as u32,
            packets: 0,
            disordered: 0,
            misrouted: 0,
            gateways: std::array::from_fn(|port| gateway(port as u8)),
        }
    }

    /// The number of the next packet.
    pub(super) fn begin(&mut self, first: u32) {
        self.next = first;
    }

    /// A packet; `None`: it has no port.
    #[inline]
    pub(super) fn take(&mut self, way: Option<(PortId, IpAddr)>, packet: &[u8]) {
        self.packets += 1;
        let (number, port) = marks(packet).unwrap_or((u32::MAX, u8::MAX));
        if number != self.next {
            self.disordered += 1;
        }
        self.next = number.checked_add(1).filter(|next| *next < self.count).unwrap_or(0);
        let right = |(at, to): (PortId, IpAddr)| {
            at == port && self.gateways.get(usize::from(at)) == Some(&to)
        };
        if !way.is_none_or(right) {
            self.misrouted += 1;
        }
    }
}

impl Outlet for Sink {
    fn send(&mut self, port: PortId, neighbour: IpAddr, packet: &[u8]) -> Result<(), PacketDrop> {
        self.take(Some((port, neighbour)), packet);
        Ok(())
    }

    fn flush(&mut self) {
        let lane = &self.line.lanes[self.lane];
        lane.disordered.store(self.disordered, Ordering::Relaxed);
        lane.misrouted.store(self.misrouted, Ordering::Relaxed);
        lane.packets.store(self.packets, Ordering::Release);
    }

    fn is_up(&self, port: PortId) -> bool {
        port < PORTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_out_of_order_and_at_wrong_ports_are_counted() {
        let line = Line::new();
        let mut sink = Sink::new(&line, 1, 4);
        let packet = |number, port| {
            let mut packet = vec![0; MARK + MARK_BYTES];
            mark(&mut packet[MARK..], number, port);
            packet
        };
        sink.begin(2);
        for number in [2, 3, 0, 1, 2] {
            assert_eq!(sink.send(3, gateway(3), &packet(number, 3)), Ok(()));
        }
        sink.flush();
        assert_eq!((line.lanes[1].packets(), line.lanes[1].faults()), (5, (0, 0)));
        for number in [0, 3, 0] {
            sink.take(None, &packet(number, 3)); // one is missing, one is late
        }
        sink.take(Some((2, gateway(2))), &packet(1, 3));
        sink.take(Some((3, gateway(2))), &packet(2, 3));
        sink.take(Some((3, gateway(3))), b"short");
        sink.flush();
        assert_eq!((line.lanes[1].packets(), line.lanes[1].faults()), (11, (3, 3)));
    }
}
