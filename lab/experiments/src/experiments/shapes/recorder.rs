//! Records of the frames between senders and receivers, and of the switches' queues.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use courser_sim::observe::{DropReason, LinkId, Place, Tap, Times, ended_round_trip_ns};
use courser_sim::{HostId, Packet};

/// The records since the last restart.
#[derive(Debug)]
pub(super) struct Flows {
    senders: Range<u32>,
    receivers: Range<u32>,
    /// Bytes of datagrams of each pair of a sender and a receiver.
    bytes: Vec<u64>,
    /// Bytes on the wire of other hosts' frames to receivers.
    pub(super) others_wire_bytes: u64,
    /// Round trips of the running slice, which arrived at senders: one for each frame with an echo.
    slice: Times,
    /// Round trips of all slices that have ended.
    pub(super) rtts: Times,
    /// Datagrams that a switch had no room for.
    pub(super) overflows: u64,
    /// The longest queue of a switch's port, bytes.
    pub(super) queue_max_bytes: u64,
}

pub(super) type SharedFlows = Rc<RefCell<Flows>>;

impl Flows {
    pub(super) fn new(senders: Range<u32>, receivers: Range<u32>) -> SharedFlows {
        let bytes = vec![0; senders.len() * receivers.len()];
        Rc::new(RefCell::new(Flows {
            senders,
            receivers,
            bytes,
            others_wire_bytes: 0,
            slice: Times::default(),
            rtts: Times::default(),
            overflows: 0,
            queue_max_bytes: 0,
        }))
    }

    /// Forgets bytes and round trips.
    pub(super) fn restart(&mut self) {
        self.bytes.fill(0);
        self.others_wire_bytes = 0;
        self.rtts = Times::default();
    }

    /// Forgets drops and queues.
    pub(super) fn restart_queues(&mut self) {
        (self.overflows, self.queue_max_bytes) = (0, 0);
    }

    /// Ends a slice; returns the 99th percentile of its round trips, ns, or 0 if there were none.
    pub(super) fn end_slice(&mut self) -> u64 {
        let slice = std::mem::take(&mut self.slice);
        self.rtts.merge(&slice);
        slice.quantile_ns(0.99).unwrap_or(0)
    }

    /// Jain's index of this number of flows, and the smallest share in the mean.
    pub(super) fn fairness(&self, flows: usize) -> (f64, f64) {
        let sent: Vec<f64> = self.bytes.iter().filter(|&&b| b > 0).map(|&b| b as f64).collect();
        let (sum, squares): (f64, f64) = (sent.iter().sum(), sent.iter().map(|b| b * b).sum());
        if sum == 0.0 {
            return (0.0, 0.0);
        }
        let all = sent.len() >= flows;
        let least = if all { sent.iter().copied().fold(f64::MAX, f64::min) } else { 0.0 };
        (sum * sum / (flows as f64 * squares), least * flows as f64 / sum)
    }
}

/// The tap.
pub(super) struct Recorder(pub(super) SharedFlows);

impl Tap for Recorder {
    fn dropped(&mut self, _: u64, _: &Place, why: DropReason, _: &Packet) {
        self.0.borrow_mut().overflows += u64::from(why == DropReason::BufferFull);
    }

    fn delivered(&mut self, now_ns: u64, host: HostId, packet: &Packet) {
        let mut flows = self.0.borrow_mut();
        let (from, to) = (packet.src.0, host.0);
        if flows.receivers.contains(&to) {
            if !flows.senders.contains(&from) {
                flows.others_wire_bytes += u64::from(packet.wire_bytes());
                return;
            }
            let (row, column) = (from - flows.senders.start, to - flows.receivers.start);
            let at = row as usize * flows.receivers.len() + column as usize;
            flows.bytes[at] += packet.bytes.len() as u64;
        } else if flows.senders.contains(&to)
            && flows.receivers.contains(&from)
            && let Some(rtt_ns) = ended_round_trip_ns(now_ns, packet)
        {
            flows.slice.record(rtt_ns);
        }
    }

    fn queue(&mut self, _: u64, _: LinkId, bytes: u64) {
        let mut flows = self.0.borrow_mut();
        flows.queue_max_bytes = flows.queue_max_bytes.max(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flow_without_bytes_has_a_share_of_zero() {
        let flows = Flows::new(0..4, 4..5);
        let mut flows = flows.borrow_mut();
        flows.bytes = vec![100, 100, 100, 50];
        let (jain, least) = flows.fairness(4);
        assert!(jain > 0.9 && jain < 1.0 && (least - 4.0 / 7.0).abs() < 1e-9);
        flows.bytes[3] = 0;
        assert_eq!(flows.fairness(4), (0.75, 0.0));
        assert_eq!(flows.fairness(3), (1.0, 1.0));
    }
}
