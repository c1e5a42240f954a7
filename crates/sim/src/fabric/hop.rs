//! Forwarding of a packet from port to port.

use courser_buf::Ecn;

use super::faults::{Copy, Crossing, Verdict};
use super::policy::Marking;
use super::port::{Queued, Sending};
use super::topology::SwitchSpec;
use super::{Fabric, FabricEvent, Kind, NEVER, Node, Outcome, Schedule, Switch};
use crate::observe::Place;
use crate::{DropReason, HostId, LinkId, Packet};

/// In place of a link: no route.
const NOWHERE: u32 = u32::MAX;

impl Fabric {
    /// Begins to send the packet on the link, whose port is idle, and draws its faults.
    pub(super) fn send(&mut self, link: u32, now_ns: u64, queued: Queued, s: &mut impl Schedule) {
        let Queued { packet, stored, from } = queued;
        let wire_bytes = packet.wire_bytes();
        let port = &mut self.ports[link as usize];
        let number = port.counters.packets;
        port.counters.packets += 1;
        port.counters.bytes += u64::from(wire_bytes);
        port.sending = Sending::Packet { stored, from };
        let gone_ns = port.serialize(now_ns, wire_bytes);
        s.at(gone_ns, FabricEvent(Kind::Sent { link }));
        if let Some(tap) = &mut self.tap {
            tap.sent(now_ns, LinkId(link), &packet);
        }
        let (down, falls) = port.down(now_ns);
        if down {
            return self.lose(
                now_ns,
                link,
                Place::Link(LinkId(link)),
                DropReason::LinkDown,
                &packet,
            );
        }
        let (out, arrive_ns) = self.arrival(link, now_ns, gone_ns, &packet);
        let flight = Flight { link, out, falls, arrive_ns };
        let Some(faults) = &mut self.ports[link as usize].faults else {
            return flight.land(packet, s);
        };
        match faults.judge(&packet, &Crossing { link: LinkId(link), now_ns, number }) {
            Verdict::Lost(why) => self.lose(now_ns, link, Place::Link(LinkId(link)), why, &packet),
            Verdict::Arrives(first, second) => {
                let copy = second.map(|second| (second, packet.clone()));
                self.fly(&flight, first, packet, s);
                if let Some((second, copy)) = copy {
                    self.ports[link as usize].counters.duplicated += 1;
                    self.totals.duplicated += 1;
                    self.totals.in_flight += 1;
                    self.fly(&flight, second, copy, s);
                }
            }
        }
    }

    /// Schedules the arrival of a packet or its copy.
    fn fly(&mut self, flight: &Flight, how: Copy, mut packet: Box<Packet>, s: &mut impl Schedule) {
        let port = &mut self.ports[flight.link as usize];
        if let Some(faults) = &mut port.faults {
            port.counters.delayed += u64::from(how.delay_ns > faults.faults.extra_delay_ns);
            port.counters.corrupted += u64::from(how.corrupt);
            packet.host_delay_ns =
                if matches!(port.to, Node::Host(_)) { how.in_host_ns } else { 0 };
            if how.corrupt {
                faults.corrupt(&mut packet);
            }
        }
        let arrive_ns = flight.arrive_ns.saturating_add(how.delay_ns).min(NEVER);
        Flight { arrive_ns, ..*flight }.land(packet, s);
    }

    /// The next link of a packet that is sent, and its arrival time there.
    fn arrival(&self, link: u32, now_ns: u64, gone_ns: u64, packet: &Packet) -> (u32, u64) {
        let port = &self.ports[link as usize];
        let Node::Switch(switch) = port.to else {
            return (NOWHERE, gone_ns + port.spec.delay_ns);
        };
        let spec = &self.switches[switch as usize].spec;
        let out = self.routes.next(switch, packet.dst, packet.flow);
        let through = spec.cut_through
            && out.is_some_and(|out| port.spec.rate_bps >= self.ports[out as usize].spec.rate_bps);
        let bit_ns = if through { now_ns } else { gone_ns };
        (out.unwrap_or(NOWHERE), bit_ns + port.spec.delay_ns + spec.latency_ns)
    }

    pub(super) fn on_arrival(
        &mut self,
        now_ns: u64,
        link: u32,
        out: u32,
        falls: u32,
        packet: Box<Packet>,
        s: &mut impl Schedule,
    ) -> Outcome {
        let port = &mut self.ports[link as usize];
        let (from, to) = (port.from, port.to);
        let at = match to {
            Node::Host(h) => Place::Host(h),
            Node::Switch(n) => Place::Switch(n),
        };
        let why = if port.down(now_ns).1 != falls {
            Some((Place::Link(LinkId(link)), DropReason::LinkDown))
        } else if matches!(from, Node::Host(_)) && self.parted(&packet) {
            Some((at, DropReason::Partition))
        } else {
            None
        };
        if let Some((at, why)) = why {
            self.lose(now_ns, link, at, why, &packet);
            return Outcome::None;
        }
        match to {
            Node::Host(host) if packet.dst == host => {
                self.totals.delivered += 1;
                self.totals.in_flight -= 1;
                Outcome::Deliver(host, packet)
            }
            Node::Switch(switch) if out != NOWHERE => {
                self.enqueue(now_ns, switch, link, out, packet, s);
                Outcome::None
            }
            _ => {
                self.lose(now_ns, link, at, DropReason::NoRoute, &packet);
                Outcome::None
            }
        }
    }

    fn parted(&self, packet: &Packet) -> bool {
        let side = |h: HostId| self.hosts.get(h.0 as usize).map(|h| h.side);
        // A host that does not exist is in no group; its packets have no route anyway.
        side(packet.src).zip(side(packet.dst)).is_some_and(|(a, b)| a != b)
    }

    /// Puts a packet into the output queue, if there is room.
    fn enqueue(
        &mut self,
        now_ns: u64,
        switch: u32,
        from: u32,
        out: u32,
        mut packet: Box<Packet>,
        s: &mut impl Schedule,
    ) {
        let stored = packet.stored_bytes();
        let Switch { spec, used } = &mut self.switches[switch as usize];
        let queue = self.ports[out as usize].queue_bytes();
        let admitted = match spec.pfc {
            Some(pfc) => self.ports[from as usize].held + u64::from(stored) <= pfc.room(),
            None => spec.buffer.admits(queue, *used, stored),
        };
        if !admitted {
            return self.lose(now_ns, out, Place::Switch(switch), DropReason::BufferFull, &packet);
        }
        *used += u64::from(stored);
        let (marking, pfc) = (spec.marking, spec.pfc);
        if !spec.marks_departures {
            self.mark(now_ns, out, marking, queue, &mut packet);
        }
        let port = &mut self.ports[out as usize];
        let bytes = port.grow(now_ns, stored);
        if let Some(tap) = &mut self.tap {
            tap.queue(now_ns, LinkId(out), bytes);
        }
        let idle = port.is_idle() && !port.paused;
        let queued = Queued { packet, stored, from };
        if idle {
            self.send(out, now_ns, queued, s);
        } else {
            port.queue.push_back(queued);
        }
        if let Some(pfc) = pfc {
            self.hold(now_ns, from, stored, pfc, s);
        }
    }

    /// Marks a packet to a link whose queue has `queue` bytes, if it is its turn.
    fn mark(&mut self, now_ns: u64, link: u32, marking: Marking, queue: u64, packet: &mut Packet) {
        let port = &mut self.ports[link as usize];
        if matches!(packet.ecn, Ecn::Ect0 | Ecn::Ect1) && marking.marks(queue, &mut port.rng) {
            packet.ecn = Ecn::Ce;
            port.counters.marked += 1;
            if let Some(tap) = &mut self.tap {
                tap.marked(now_ns, LinkId(link), packet);
            }
        }
    }

    /// A port has finished a packet: remove it from the buffer and send the next.
    pub(super) fn on_sent(&mut self, now_ns: u64, link: u32, s: &mut impl Schedule) -> Outcome {
        let port = &mut self.ports[link as usize];
        let sent = std::mem::replace(&mut port.sending, Sending::Nothing);
        if let Sending::Packet { stored, from } = sent {
            let bytes = port.shrink(now_ns, stored);
            if let Node::Switch(switch) = port.from {
                let Switch { spec, used } = &mut self.switches[switch as usize];
                *used -= u64::from(stored);
                let pfc = spec.pfc;
                if let Some(tap) = &mut self.tap {
                    tap.queue(now_ns, LinkId(link), bytes);
                }
                if let Some(pfc) = pfc {
                    self.release(now_ns, from, stored, pfc, s);
                }
            }
        }
        self.next(now_ns, link, s)
    }

    /// Starts the next transmission of an idle port.
    pub(super) fn next(&mut self, now_ns: u64, link: u32, s: &mut impl Schedule) -> Outcome {
        if self.send_control(now_ns, link, s) {
            return Outcome::None;
        }
        let port = &mut self.ports[link as usize];
        if port.paused || !port.is_idle() {
            return Outcome::None;
        }
        if let Node::Host(host) = port.from {
            return Outcome::HostPortFree(host);
        }
        let from = port.from;
        if let Some(mut queued) = port.queue.pop_front() {
            let behind = port.queue_bytes() - u64::from(queued.stored);
            if let Node::Switch(switch) = from
                && let SwitchSpec { marks_departures: true, marking, .. } =
                    self.switches[switch as usize].spec
            {
                self.mark(now_ns, link, marking, behind, &mut queued.packet);
            }
            self.send(link, now_ns, queued, s);
        }
        Outcome::None
    }

    /// Drops a packet and counts it at a link.
    fn lose(&mut self, now_ns: u64, link: u32, at: Place, why: DropReason, packet: &Packet) {
        self.totals.dropped += 1;
        self.totals.in_flight -= 1;
        self.ports[link as usize].counters.drops[why as usize] += 1;
        if let Some(tap) = &mut self.tap {
            tap.dropped(now_ns, &at, why, packet);
        }
    }
}

/// A packet on a link.
#[derive(Clone, Copy)]
struct Flight {
    link: u32,
    out: u32,
    falls: u32,
    arrive_ns: u64,
}

impl Flight {
    fn land(self, packet: Box<Packet>, s: &mut impl Schedule) {
        let Flight { link, out, falls, arrive_ns } = self;
        s.at(arrive_ns, FabricEvent(Kind::Arrive { link, out, falls, packet }));
    }
}
