//! Plain packets: the traffic of a network outside of the cluster, whose hosts run no process.
//!
//! A host outside sends packets when the experiment says so, and passes those that arrive to a sink.
//! A host of the cluster receives them in a queue of its own for each endpoint, beside that of
//! Courser's frames, and its thread polls both: [`PlainQueue`]. They share the NIC's transmit queue
//! and its cables with Courser's frames, and cost CPU time as a frame with one packet does, or
//! [`CpuCosts::plain_ns`](crate::CpuCosts::plain_ns).

use std::net::SocketAddr;
use std::sync::Arc;

use courser::Rpc;
use courser::parts::machine::VirtualClock;
use courser_buf::{Addr, Ecn};

use super::World;
use crate::host::costs::Costs;
use crate::host::ip_of;
use crate::host::port::{SharedPort, lock};
use crate::observe::{DropReason, Place};
use crate::packet::{HostId, Packet};

/// Datapath port of the first queue; the others follow. Above all ports of endpoints.
const FIRST_QUEUE: u32 = 1 << 16;

/// Called with the time and the bytes of each packet that reaches a host outside.
pub type Sink = Box<dyn FnMut(u64, &[u8])>;

/// The queues of plain packets of an endpoint's thread ([`World::plain_queue`]).
#[derive(Clone)]
pub struct PlainQueue {
    port: SharedPort,
    clock: Arc<VirtualClock>,
    costs: Costs,
    tx_latency_ns: u64,
}

impl PlainQueue {
    /// The next packet that was received.
    pub fn receive(&self) -> Option<Vec<u8>> {
        let bytes = lock(&self.port).plain.pop_front()?;
        self.clock.spend(self.costs.get().rx_plain_ns(bytes.len() as u64));
        Some(bytes)
    }

    /// Hands a packet to the NIC. False: the transmit queue is full, and the packet dropped.
    pub fn send(&self, to: HostId, bytes: &[u8]) -> bool {
        self.clock.spend(self.costs.get().tx_plain_ns());
        let mut port = lock(&self.port);
        if !port.has_room() {
            return false;
        }
        let mut copy = port.spare();
        copy.clear();
        copy.extend_from_slice(bytes);
        let dst = Addr::from_socket(SocketAddr::new(ip_of(to).into(), 1));
        let queued_ns = self.clock.now_ns();
        port.send_plain(copy, dst, queued_ns, queued_ns + self.tx_latency_ns);
        true
    }

    /// Frees the memory of a received packet.
    pub fn give_back(&self, bytes: Vec<u8>) {
        lock(&self.port).give_back(bytes);
    }
}

impl std::fmt::Debug for PlainQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlainQueue").finish_non_exhaustive()
    }
}

impl World {
    /// Makes a host without a process one outside, whose packets are passed to `sink` at their last
    /// bit.
    pub fn set_sink(&mut self, host: HostId, sink: Sink) {
        let h = self.host(host);
        h.sink = Some(sink);
        h.nic.rx_latency_ns = 0;
    }

    /// Sends a packet of a host outside to a queue of an endpoint of the cluster, in this moment.
    ///
    /// # Errors
    /// Its cable is not free, or there is none; returns the packet.
    pub fn send_plain(
        &mut self,
        from: HostId,
        to: HostId,
        endpoint: u32,
        bytes: Vec<u8>,
    ) -> Result<(), Vec<u8>> {
        let flow = from.0 << 16 | to.0;
        let link = self.fabric.link_to(from, to, flow);
        if !link.is_some_and(|link| self.fabric.link_is_free(link)) {
            return Err(bytes);
        }
        let id = self.next_packet;
        self.next_packet += 1;
        let hash = crate::host::hash::payload_hash(std::iter::once(&bytes[..]));
        self.checker.sent(self.now_ns, from, id, hash);
        let packet = Packet {
            id,
            src: from,
            dst: to,
            src_addr: Addr::from_socket(SocketAddr::new(ip_of(from).into(), 1)),
            dst_port: FIRST_QUEUE + endpoint,
            flow,
            bytes,
            ecn: Ecn::NotEct,
            corrupt: false,
            sent_ns: self.now_ns,
            queued_ns: self.now_ns,
            host_delay_ns: 0,
        };
        self.fabric.transmit(from, self.now_ns, Box::new(packet), &mut self.events);
        Ok(())
    }

    /// The queues of an endpoint; `None` when there is no such endpoint.
    pub fn plain_queue(&self, host: HostId, endpoint: usize) -> Option<PlainQueue> {
        let h = self.hosts.get(host.0 as usize)?;
        let e = h.process.as_ref()?.endpoints.get(endpoint)?;
        Some(PlainQueue {
            port: e.port.clone(),
            clock: e.clock.clone(),
            costs: h.costs.clone(),
            tx_latency_ns: h.nic.tx_latency_ns,
        })
    }

    /// Sets the work of an endpoint's thread besides the event loop, before each of its passes.
    /// Returns whether there was any, after which the next pass follows.
    pub fn set_beside(
        &mut self,
        host: HostId,
        endpoint: usize,
        work: impl FnMut(&mut Rpc) -> bool + 'static,
    ) {
        let Some(p) = &mut self.host(host).process else { return };
        if let Some(e) = p.endpoints.get_mut(endpoint) {
            e.beside = Some(Box::new(work));
        }
    }

    /// A packet reaches a host at a port that no endpoint has.
    pub(super) fn arrive_plain(&mut self, host: HostId, mut packet: Box<Packet>) {
        let (at, now_ns) = (Place::Host(host), self.now_ns);
        let h = &mut self.hosts[host.0 as usize];
        let wakeup_ns = h.costs.get().wakeup_ns;
        if let (None, Some(sink)) = (&h.process, &mut h.sink) {
            sink(now_ns, &packet.bytes);
            self.checker.delivered(now_ns, host, &packet);
            return self.recycle(packet);
        }
        let endpoint = packet.dst_port.checked_sub(FIRST_QUEUE).map(|queue| queue as usize);
        let process = h.process.as_mut();
        let found = process.zip(endpoint).and_then(|(p, n)| {
            let life = p.life;
            p.endpoints.get_mut(n).filter(|e| e.beside.is_some()).map(|e| (life, n, e))
        });
        let Some((life, endpoint, e)) = found else {
            return self.drop_packet(at, DropReason::NoListener, packet);
        };
        let mut port = lock(&e.port);
        if port.plain.len() >= port.descriptors() {
            drop(port);
            return self.drop_packet(at, DropReason::NoDescriptor, packet);
        }
        let idle = port.plain.is_empty();
        let bytes = std::mem::replace(&mut packet.bytes, port.spare());
        port.plain.push_back(bytes);
        drop(port);
        self.checker.delivered(now_ns, host, &packet);
        self.recycle(packet);
        if idle {
            self.wake_endpoint(life, endpoint, wakeup_ns);
        }
    }
}
