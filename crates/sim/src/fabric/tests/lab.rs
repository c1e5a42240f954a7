//! A loop that drives a fabric: hosts with unlimited queues that send when they may.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use courser_buf::Addr;
use courser_buf::Ecn;

use crate::event::EventQueue;
use crate::fabric::{CableSpec, Fabric, FabricEvent, Kind, Outcome, Schedule, Topology};
use crate::observe::Tap;
use crate::{DropReason, HostId, LinkId, Packet, Place};

/// Payload of a packet of 1,250 bytes on the wire: 10,000 bits, 400 ns at 25 Gbit/s.
pub(super) const PAYLOAD: usize = 1184;
pub(super) const GBPS: u64 = 1_000_000_000;

enum LabEvent {
    Fabric(FabricEvent),
    Offer(Box<Packet>),
}

#[derive(Default)]
struct Events {
    queue: EventQueue<LabEvent>,
    /// Packets on links: counted apart from the fabric's own counts.
    flying: u64,
}

impl Schedule for Events {
    fn at(&mut self, at_ns: u64, event: FabricEvent) {
        self.flying += u64::from(matches!(event.0, Kind::Arrive { .. }));
        self.queue.push(at_ns, LabEvent::Fabric(event));
    }
}

/// A packet that has arrived.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(super) struct Arrival {
    pub(super) at_ns: u64,
    pub(super) host: HostId,
    pub(super) packet: Packet,
}

pub(super) struct Lab {
    pub(super) fabric: Fabric,
    pub(super) now_ns: u64,
    pub(super) offered: u64,
    events: Events,
    backlog: Vec<VecDeque<Box<Packet>>>,
}

pub(super) fn packet(id: u64, src: u32, dst: u32, payload: usize) -> Packet {
    Packet {
        id,
        src: HostId(src),
        dst: HostId(dst),
        src_addr: Addr { host: u128::from(src), port: 1 },
        dst_port: 1,
        flow: src * 1000 + dst,
        bytes: vec![0; payload],
        ecn: Ecn::Ect0,
        corrupt: false,
        sent_ns: 0,
        queued_ns: 0,
        host_delay_ns: 0,
    }
}

impl Lab {
    pub(super) fn new(topology: &Topology, seed: u64) -> Lab {
        let fabric = Fabric::new(topology, seed).unwrap();
        let backlog = (0..topology.hosts()).map(|_| VecDeque::new()).collect();
        Lab { fabric, now_ns: 0, offered: 0, events: Events::default(), backlog }
    }

    /// Queues a packet at its sender's NIC at a future time.
    pub(super) fn offer_at(&mut self, at_ns: u64, packet: Packet) {
        self.events.queue.push(at_ns, LabEvent::Offer(Box::new(packet)));
    }

    /// Queues a packet at its sender's NIC now.
    pub(super) fn offer(&mut self, packet: Packet) {
        self.offered += 1;
        let host = packet.src;
        self.backlog[host.0 as usize].push_back(Box::new(packet));
        self.serve(host);
    }

    /// Queues packets of one size at a host's NIC, all at once.
    pub(super) fn offer_many(&mut self, src: u32, dst: u32, payload: usize, count: u64) {
        for id in 0..count {
            self.offer(packet(id, src, dst, payload));
        }
    }

    fn serve(&mut self, host: HostId) {
        // No packet of a long backlog has to be asked then.
        if !self.fabric.host_port_is_free(host) {
            return;
        }
        let free = |packet: &Packet| {
            let link = self.fabric.link_to(host, packet.dst, packet.flow);
            link.is_some_and(|link| self.fabric.link_is_free(link))
        };
        let backlog = &mut self.backlog[host.0 as usize];
        if let Some(at) = backlog.iter().position(|packet| free(packet))
            && let Some(packet) = backlog.remove(at)
        {
            self.fabric.transmit(host, self.now_ns, packet, &mut self.events);
        }
    }

    /// Processes all events up to then; calls `on_arrival` for each arrival.
    pub(super) fn run_with(&mut self, end_ns: u64, mut on_arrival: impl FnMut(&mut Lab, Arrival)) {
        while let Some((at_ns, event)) = self.events.queue.pop_until(end_ns) {
            assert!(at_ns >= self.now_ns, "an event of the past");
            self.now_ns = at_ns;
            let event = match event {
                LabEvent::Offer(packet) => {
                    self.offer(*packet);
                    continue;
                }
                LabEvent::Fabric(event) => event,
            };
            self.events.flying -= u64::from(matches!(event.0, Kind::Arrive { .. }));
            match self.fabric.on_event(at_ns, event, &mut self.events) {
                Outcome::None => {}
                Outcome::HostPortFree(host) => self.serve(host),
                Outcome::Deliver(host, packet) => {
                    on_arrival(self, Arrival { at_ns, host, packet: *packet });
                }
            }
        }
        // A run without end has no last event that sets the time.
        self.now_ns = if end_ns == u64::MAX { self.now_ns } else { end_ns };
    }

    /// The same; returns the arrivals.
    pub(super) fn run(&mut self, end_ns: u64) -> Vec<Arrival> {
        let mut arrivals = Vec::new();
        self.run_with(end_ns, |_, arrival| arrivals.push(arrival));
        arrivals
    }

    /// The same, until no event is left.
    pub(super) fn run_out(&mut self) -> Vec<Arrival> {
        self.run(u64::MAX)
    }

    /// Packets on links and in the queues of switches, counted one by one.
    pub(super) fn in_flight(&self) -> u64 {
        let queued: usize = self.fabric.ports.iter().map(|p| p.queue.len()).sum();
        self.events.flying + queued as u64
    }

    /// Sets the faults of one link.
    pub(super) fn faults(&mut self, link: LinkId, faults: crate::fabric::LinkFaults) {
        self.fabric.set_faults(self.now_ns, link, faults);
    }

    /// Records the taps.
    pub(super) fn record(&mut self) -> Record {
        let record = Record::default();
        self.fabric.tap = Some(Box::new(record.clone()));
        record
    }
}

/// Record of a tap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Told {
    Sent(u64, LinkId, u64),
    Dropped(u64, Place, DropReason, u64),
    Queue(u64, LinkId, u64),
    Marked(u64, LinkId, u64),
}

#[derive(Clone, Default)]
pub(super) struct Record(Rc<RefCell<Vec<Told>>>);

impl Record {
    pub(super) fn take(&self) -> Vec<Told> {
        self.0.take()
    }
}

impl Tap for Record {
    fn sent(&mut self, now_ns: u64, link: LinkId, packet: &Packet) {
        self.0.borrow_mut().push(Told::Sent(now_ns, link, packet.id));
    }

    fn dropped(&mut self, now_ns: u64, at: &Place, why: DropReason, packet: &Packet) {
        self.0.borrow_mut().push(Told::Dropped(now_ns, *at, why, packet.id));
    }

    fn queue(&mut self, now_ns: u64, link: LinkId, bytes: u64) {
        self.0.borrow_mut().push(Told::Queue(now_ns, link, bytes));
    }

    fn marked(&mut self, now_ns: u64, link: LinkId, packet: &Packet) {
        self.0.borrow_mut().push(Told::Marked(now_ns, link, packet.id));
    }
}

/// One switch and its hosts, with equal cables, after a change.
pub(super) fn star(
    hosts: u32,
    cable: CableSpec,
    change: impl Fn(&mut crate::fabric::SwitchSpec),
) -> Topology {
    Topology::one_switch(hosts).each_cable(|c| c.spec = cable).each_switch(|_, spec| change(spec))
}
