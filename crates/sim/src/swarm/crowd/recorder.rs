//! Records of the frames of a congested world.

use std::cell::RefCell;
use std::rc::Rc;

use super::draw::{Crowd, Pattern};
use crate::observe::{Times, ended_round_trip_ns};
use crate::{DropReason, HostId, LinkId, Packet, Place, Tap};

/// Figures since the last restart.
#[derive(Debug)]
pub(super) struct Seen {
    pattern: Pattern,
    /// Bytes of each host's share: those that it sent, or received if one host sends to all.
    pub(super) bytes: Vec<u64>,
    /// Round trips that arrived at senders: one for each frame with an echo.
    pub(super) rtts: Times,
}

pub(super) type SharedSeen = Rc<RefCell<Seen>>;

impl Seen {
    pub(super) fn new(crowd: &Crowd) -> Seen {
        let bytes = vec![0; crowd.hosts() as usize];
        Seen { pattern: crowd.pattern, bytes, rtts: Times::default() }
    }

    pub(super) fn restart(&mut self) {
        self.bytes.fill(0);
        self.rtts = Times::default();
    }

    fn delivered(&mut self, now_ns: u64, from: HostId, to: HostId, packet: &Packet) {
        let (counted, is_request, is_response) = match self.pattern {
            Pattern::Incast => (from, to.0 == 0, from.0 == 0),
            Pattern::OneToMany => (to, from.0 == 0, to.0 == 0),
            Pattern::AllToAll => (from, true, true),
        };
        if is_request {
            self.bytes[counted.0 as usize] += packet.bytes.len() as u64;
        }
        if is_response && let Some(rtt_ns) = ended_round_trip_ns(now_ns, packet) {
            self.rtts.record(rtt_ns);
        }
    }
}

/// The tap: it records, and reports to another one.
pub(super) struct Recorder {
    pub(super) seen: SharedSeen,
    pub(super) inner: Option<Box<dyn Tap>>,
}

impl Tap for Recorder {
    fn sent(&mut self, now_ns: u64, link: LinkId, packet: &Packet) {
        self.inner.sent(now_ns, link, packet);
    }

    fn dropped(&mut self, now_ns: u64, at: &Place, why: DropReason, packet: &Packet) {
        self.inner.dropped(now_ns, at, why, packet);
    }

    fn delivered(&mut self, now_ns: u64, host: HostId, packet: &Packet) {
        self.seen.borrow_mut().delivered(now_ns, packet.src, host, packet);
        self.inner.delivered(now_ns, host, packet);
    }

    fn queue(&mut self, now_ns: u64, link: LinkId, bytes: u64) {
        self.inner.queue(now_ns, link, bytes);
    }

    fn marked(&mut self, now_ns: u64, link: LinkId, packet: &Packet) {
        self.inner.marked(now_ns, link, packet);
    }
}
