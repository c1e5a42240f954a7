//! Recorder of the traffic to one host: round trips of its peers, the queue of its link, and the
//! bytes of each sender. It wraps the observer of a world and records every sample.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use courser_sim::observe::{DropReason, LinkId, Place, Tap, Times, ended_round_trip_ns};
use courser_sim::{HostId, Packet};

/// Bytes of a step of the queue's distribution.
const STEP_BYTES: u64 = 256;

/// The records since the last [`Flows::restart`].
#[derive(Debug, Default)]
pub(crate) struct Flows {
    host: u32,
    link: Option<LinkId>,
    /// Round trips that arrived in frames of the host: one for each frame with an echo.
    pub(crate) rtts: Times,
    /// Bytes that arrived at the host, by sender.
    pub(crate) bytes: BTreeMap<u32, u64>,
    /// Packets dropped anywhere.
    pub(crate) drops: u64,
    /// Time for which the queue had a length, ns, by its length in steps.
    queue_ns: BTreeMap<u64, u64>,
    queue: (u64, u64),
}

/// The recorder and the handle by which it is read.
pub(crate) type Recorded = Rc<RefCell<Flows>>;

impl Flows {
    /// A recorder of the traffic to and from `host`, whose switch sends to it by `link`.
    pub(crate) fn new(host: HostId, link: LinkId) -> Recorded {
        Rc::new(RefCell::new(Flows { host: host.0, link: Some(link), ..Flows::default() }))
    }

    /// Forgets what was recorded.
    pub(crate) fn restart(&mut self, now_ns: u64) {
        *self = Flows {
            host: self.host,
            link: self.link,
            queue: (now_ns, self.queue.1),
            ..Flows::default()
        };
    }

    /// The number of bytes that the queue exceeded for a part of the time; `share` in 1,000ths is
    /// the part in which it did not.
    pub(crate) fn queue_quantile_bytes(&mut self, share: u64, now_ns: u64) -> u64 {
        self.note_queue(now_ns, self.queue.1);
        let all_ns: u64 = self.queue_ns.values().sum();
        let mut seen_ns = 0;
        for (step, ns) in &self.queue_ns {
            seen_ns += ns;
            if seen_ns * 1_000 >= all_ns * share {
                return step * STEP_BYTES;
            }
        }
        0
    }

    /// Jain's index of the senders' bytes, and the smallest share in the mean; `senders` of them.
    pub(crate) fn fairness(&self, senders: u32) -> (f64, f64) {
        let n = f64::from(senders);
        let bytes = |sender: &u64| *sender as f64;
        let sum: f64 = self.bytes.values().map(bytes).sum();
        let squares: f64 = self.bytes.values().map(|b| bytes(b) * bytes(b)).sum();
        if sum == 0.0 {
            return (0.0, 0.0);
        }
        let all = self.bytes.len() >= senders as usize;
        let least = if all { self.bytes.values().min().map_or(0.0, bytes) } else { 0.0 };
        (sum * sum / (n * squares), least * n / sum)
    }

    fn note_queue(&mut self, now_ns: u64, bytes: u64) {
        let (since_ns, before) = self.queue;
        *self.queue_ns.entry(before.div_ceil(STEP_BYTES)).or_default() += now_ns - since_ns;
        self.queue = (now_ns, bytes);
    }
}

/// The tap: records, and passes everything on.
pub(crate) struct Recorder {
    pub(crate) flows: Recorded,
    pub(crate) inner: Option<Box<dyn Tap>>,
}

impl Tap for Recorder {
    fn sent(&mut self, now_ns: u64, link: LinkId, packet: &Packet) {
        self.inner.sent(now_ns, link, packet);
    }

    fn dropped(&mut self, now_ns: u64, at: &Place, why: DropReason, packet: &Packet) {
        self.flows.borrow_mut().drops += 1;
        self.inner.dropped(now_ns, at, why, packet);
    }

    fn delivered(&mut self, now_ns: u64, host: HostId, packet: &Packet) {
        let mut flows = self.flows.borrow_mut();
        if host.0 == flows.host {
            *flows.bytes.entry(packet.src.0).or_default() += packet.bytes.len() as u64;
        } else if packet.src.0 == flows.host
            && let Some(rtt_ns) = ended_round_trip_ns(now_ns, packet)
        {
            flows.rtts.record(rtt_ns);
        }
        drop(flows);
        self.inner.delivered(now_ns, host, packet);
    }

    fn queue(&mut self, now_ns: u64, link: LinkId, bytes: u64) {
        let mut flows = self.flows.borrow_mut();
        if flows.link == Some(link) {
            flows.note_queue(now_ns, bytes);
        }
        drop(flows);
        self.inner.queue(now_ns, link, bytes);
    }

    fn marked(&mut self, now_ns: u64, link: LinkId, packet: &Packet) {
        self.inner.marked(now_ns, link, packet);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fairness_and_the_queue_s_quantiles() {
        let recorded = Flows::new(HostId(0), LinkId(1));
        let mut flows = recorded.borrow_mut();
        flows.bytes = BTreeMap::from([(1, 100), (2, 100), (3, 100), (4, 100)]);
        assert_eq!(flows.fairness(4), (1.0, 1.0));
        assert_eq!(flows.fairness(5), (0.8, 0.0), "a sender of nothing");
        flows.bytes.insert(4, 50);
        let (jain, least) = flows.fairness(4);
        assert!(jain > 0.9 && jain < 1.0 && (least - 4.0 / 7.0).abs() < 1e-9);
        for (at, bytes) in [(0, 0), (980, 51_200), (990, 102_400)] {
            flows.note_queue(at, bytes);
        }
        assert_eq!(flows.queue_quantile_bytes(500, 1_000), 0);
        assert_eq!(flows.queue_quantile_bytes(985, 1_000), 51_200);
        assert_eq!(flows.queue_quantile_bytes(1_000, 1_000), 102_400);
    }
}
