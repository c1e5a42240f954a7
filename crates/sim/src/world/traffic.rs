//! Packets and segments in flight: from transmit queues into the network, and from there to receive
//! queues.

use courser_buf::Addr;
use courser_buf::Ecn;

use super::{Event, Invariant, World};
use crate::fabric::{FabricEvent, Outcome};
use crate::host::host_of;
use crate::host::port::{Queued, Received, Taken, lock};
use crate::observe::{DropReason, Place};
use crate::packet::{HostId, Packet};
use crate::streams::{Segment, Sent};

impl World {
    pub(super) fn on_fabric(&mut self, event: FabricEvent) {
        match self.fabric.on_event(self.now_ns, event, &mut self.events) {
            Outcome::None => {}
            Outcome::HostPortFree(host) => self.kick(host),
            Outcome::Deliver(host, packet) => {
                let latency_ns = self.hosts[host.0 as usize].nic.rx_latency_ns;
                if latency_ns == 0 {
                    self.arrive(host, packet);
                } else {
                    let at_ns = self.now_ns + latency_ns;
                    self.events.push(at_ns, Event::Arrive(host, packet));
                }
            }
        }
    }

    /// Sends the next frame of a NIC, if a cable is free and a frame for it is ready: round robin
    /// over the endpoints' queues. Behind a frame whose cable is busy, those of other cables leave.
    pub(super) fn kick(&mut self, host: HostId) {
        while self.fabric.host_port_is_free(host) && self.send_next(host) {}
    }

    /// Returns whether a frame was sent.
    fn send_next(&mut self, host: HostId) -> bool {
        let now_ns = self.now_ns;
        let hosts = self.hosts.len();
        let cables = self.fabric.uplinks(host).count();
        let h = &mut self.hosts[host.0 as usize];
        let Some(p) = &mut h.process else { return false };
        let count = p.endpoints.len();
        let mut soonest_ns = u64::MAX;
        // Without a path the frame is dropped when it is sent.
        let may_leave = |frame: &Queued| {
            let to = frame.dst.to_socket().and_then(|a| host_of(a.ip(), hosts));
            let link = to.and_then(|to| self.fabric.link_to(host, to, frame.flow));
            link.is_none_or(|link| self.fabric.link_is_free(link))
        };
        for turn in 0..count {
            let at = (h.next_tx + turn) % count;
            let e = &mut p.endpoints[at];
            let mut port = lock(&e.port);
            let first = if cables == 1 { Some(0) } else { port.tx.iter().position(may_leave) };
            let Some(frame) = first.and_then(|first| port.tx.get(first)) else { continue };
            let ready_ns = h.oscillator.when(frame.ready_ns);
            if ready_ns > now_ns {
                soonest_ns = soonest_ns.min(ready_ns);
                continue;
            }
            let Some(taken) = first.and_then(|first| port.take(first, h.oscillator.shows(now_ns)))
            else {
                continue;
            };
            let changed = std::mem::take(&mut port.changed) > 0;
            drop(port);
            h.next_tx = at + 1;
            let queued_ns = h.oscillator.when(taken.queued_ns);
            let src_addr = e.addr;
            let starved = std::mem::take(&mut e.starved);
            let life = p.life;
            if starved {
                self.wake_endpoint(life, at, 0);
            }
            if changed {
                let detail = format!("n{}: a frame changed while the NIC held it", host.0);
                self.violate(Invariant::Ownership, detail);
            }
            self.transmit(host, src_addr, taken, queued_ns);
            return true;
        }
        if soonest_ns < u64::MAX && h.kick_at_ns.is_none_or(|at_ns| soonest_ns < at_ns) {
            h.kick_at_ns = Some(soonest_ns);
            self.events.push(soonest_ns, Event::Kick(host));
        }
        false
    }

    fn transmit(&mut self, src: HostId, src_addr: Addr, taken: Taken, queued_ns: u64) {
        let Taken { bytes, dst, flow, hash, .. } = taken;
        let to = dst.to_socket().and_then(|a| host_of(a.ip(), self.hosts.len()));
        let id = self.next_packet;
        self.next_packet += 1;
        self.checker.sent(self.now_ns, src, id, hash);
        let new = Packet {
            id,
            src,
            dst: to.unwrap_or(HostId(u32::MAX)),
            src_addr,
            dst_port: dst.port,
            flow,
            bytes,
            ecn: Ecn::Ect0,
            corrupt: false,
            sent_ns: self.now_ns,
            queued_ns,
            host_delay_ns: 0,
        };
        let packet = match self.spare.pop() {
            Some(mut packet) => {
                *packet = new;
                packet
            }
            None => Box::new(new),
        };
        if to.is_none_or(|to| to != src && self.fabric.link_to(src, to, flow).is_none()) {
            return self.drop_packet(Place::Host(src), DropReason::NoRoute, packet);
        }
        if to == Some(src) {
            // To itself: looped back in the NIC, not over the cable.
            let at_ns = self.now_ns + self.hosts[src.0 as usize].nic.rx_latency_ns;
            return self.events.push(at_ns, Event::Arrive(src, packet));
        }
        self.fabric.transmit(src, self.now_ns, packet, &mut self.events);
    }

    /// A packet leaves the NIC of the receiving host.
    pub(super) fn arrive(&mut self, host: HostId, mut packet: Box<Packet>) {
        let at = Place::Host(host);
        let h = &mut self.hosts[host.0 as usize];
        if !h.up {
            return self.drop_packet(at, DropReason::HostDown, packet);
        }
        if packet.corrupt && h.nic.finds_changes {
            return self.drop_packet(at, DropReason::Corrupt, packet);
        }
        let wakeup_ns = h.costs.get().wakeup_ns;
        let Some(p) = &mut h.process else { return self.arrive_plain(host, packet) };
        let Some(endpoint) = p.at_port(packet.dst_port) else {
            return self.arrive_plain(host, packet);
        };
        let (life, stale) = (p.life, packet.queued_ns < p.started_ns);
        let e = &mut p.endpoints[endpoint];
        let mut port = lock(&e.port);
        if !port.has_room_for(packet.bytes.len()) {
            drop(port);
            return self.drop_packet(at, DropReason::NoDescriptor, packet);
        }
        let idle = port.rx.is_empty();
        self.checker.delivered(self.now_ns, host, &packet);
        if let Some(tap) = &mut self.fabric.tap {
            tap.delivered(self.now_ns, host, &packet);
        }
        let bytes = std::mem::replace(&mut packet.bytes, port.spare());
        let arrived_ns = h.oscillator.shows(self.now_ns.saturating_sub(packet.host_delay_ns));
        port.receive(Received { src: packet.src_addr, ecn: packet.ecn, bytes, arrived_ns, stale });
        drop(port);
        self.recycle(packet);
        if idle {
            self.wake_endpoint(life, endpoint, wakeup_ns);
        }
    }

    // ---- control connections ------------------------------------------------------------------

    /// A segment leaves: it arrives some time later.
    pub(super) fn send_segment(&mut self, sent: Sent) {
        let at_ns = self.now_ns + self.cfg.control_latency_ns;
        self.events.push(at_ns, Event::Segment(sent));
    }

    /// A segment arrives, unless a partition delays it.
    pub(super) fn segment(&mut self, sent: Sent) {
        if self.are_apart(sent.from, sent.to) {
            self.held.push(sent);
            return;
        }
        let Some(h) = self.hosts.get(sent.to.0 as usize) else { return };
        if !h.up {
            // No answer. A dialer repeats its request, as kernels do.
            if matches!(sent.segment, Segment::Syn { .. })
                && lock(&self.streams).is_wanted(sent.conn)
            {
                let at_ns = self.now_ns + self.cfg.connect_retry_ns.max(1);
                self.events.push(at_ns, Event::Segment(sent));
            } else if matches!(sent.segment, Segment::Data(_)) {
                // Its sender's kernel repeats it when the machine runs again.
                let known = |s: &Sent| (s.conn, s.side) == (sent.conn, sent.side);
                if !self.unanswered.iter().any(known) {
                    self.unanswered.push(sent);
                }
            }
            return;
        }
        let life = h.process.as_ref().map(|p| p.life);
        if let Segment::Data(bytes) = &sent.segment {
            self.checker.control(self.now_ns, &sent, bytes);
        }
        lock(&self.streams).arrive(sent, life);
    }

    /// Returns whether a partition separates two hosts.
    fn are_apart(&self, a: HostId, b: HostId) -> bool {
        let Some(groups) = &self.groups else { return false };
        groups.get(a.0 as usize) != groups.get(b.0 as usize)
    }

    /// A machine runs again: segments that were sent to it meanwhile find no connection.
    pub(super) fn answer_unanswered(&mut self, host: HostId) {
        let here: Vec<Sent> = self.unanswered.extract_if(.., |sent| sent.to == host).collect();
        for sent in here {
            self.segment(sent);
        }
    }

    /// Segments that a partition has delayed arrive before those in flight: streams keep their
    /// order.
    pub(super) fn release_held(&mut self) {
        for sent in std::mem::take(&mut self.held) {
            self.segment(sent);
        }
    }
}
