//! The order in which a flow's packets arrive under loss, with their times: the packet trace of a
//! simulated run, from which the CPU time of reorder copies is measured `[MELO §4.2.1]` (M25). The
//! program that measures is the example `reorder_cpu`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use courser::{Control, Recovery};
use courser_proto::wire::Packet as WirePacket;

use super::{Case, DATA, Loss, RATE_BPS, Reorder, SERVER, measure, wire_bytes};
use crate::declare::parameter;
use crate::scenario::{ScenarioError, check};
use courser_sim::observe::{Tap, decode};
use courser_sim::{HostId, Packet};

/// Loss of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceSettings {
    /// Decides all random choices.
    pub seed: u64,
    /// Scheme of recovery. Default MELO.
    pub scheme: Recovery,
    /// Probability that the switch loses a packet, per million: at most 500,000. Default 2e-3.
    pub loss_ppm: u32,
    /// The bandwidth-delay product in full packets of 1 KiB, 80 to 4,096: the window of the flow.
    /// Default 512, the paper's 512 KB.
    pub bdp_packets: u32,
    /// Length of the trace, ns of virtual time. Default 50 ms.
    pub time_ns: u64,
}

impl Default for TraceSettings {
    fn default() -> Self {
        let (loss_ppm, bdp_packets, time_ns) = (2_000, 512, 50_000_000);
        TraceSettings { seed: 1, scheme: Recovery::Melo, loss_ppm, bdp_packets, time_ns }
    }
}

impl TraceSettings {
    fn of_the_flow(&self) -> Loss {
        let bits = u128::from(self.bdp_packets) * u128::from(wire_bytes(DATA)) * 8;
        Loss {
            seed: self.seed,
            rtt_ns: (bits * 1_000_000_000 / u128::from(RATE_BPS)) as u64,
            window_permille: 1_000,
            warm_up_ns: Some(0),
            time_ns: self.time_ns,
            ..Loss::default()
        }
    }
}

/// The packets of a flow in the order of their arrival.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Sequence number of each packet that arrived for the first time, and its time, ns.
    pub order: Vec<(u32, u64)>,
    /// One above the highest sequence number.
    pub packets: u32,
    /// Packets that arrived again.
    pub duplicates: u64,
}

/// Records the requests that reach the server.
#[derive(Default)]
struct Recorder {
    trace: Trace,
    seen: Vec<bool>,
    /// Sequence number of the first packet of each request, by request number.
    first: BTreeMap<(u32, u32), u32>,
}

impl Tap for Recorder {
    fn delivered(&mut self, now_ns: u64, host: HostId, packet: &Packet) {
        let Some((_, packets)) = decode::frame(&packet.bytes).ok().filter(|_| host == SERVER)
        else {
            return;
        };
        for packet in packets {
            if let Ok(WirePacket::Request { session, req_num, msg_size, index, .. }) = packet {
                let packets = (msg_size as usize / DATA) as u32;
                self.arrived((session, req_num), index, packets, now_ns);
            }
        }
    }
}

impl Recorder {
    fn arrived(&mut self, request: (u32, u32), index: u32, packets: u32, now_ns: u64) {
        // One request follows the other, so that the next one starts where all before end.
        let next = self.seen.len() as u32;
        let first = *self.first.entry(request).or_insert(next);
        if first == next {
            self.seen.resize((next + packets) as usize, false);
        }
        let psn = first + index;
        if std::mem::replace(&mut self.seen[psn as usize], true) {
            self.trace.duplicates += 1;
            return;
        }
        self.trace.packets = self.trace.packets.max(psn + 1);
        self.trace.order.push((psn, now_ns));
    }
}

/// Records the trace of a run.
///
/// # Errors
/// A setting is out of range, the session was not connected, or a call has failed.
pub fn arrivals(settings: &TraceSettings) -> Result<Trace, ScenarioError> {
    let bdp = settings.bdp_packets;
    check((80..=4_096).contains(&bdp), "bdp_packets", bdp, "80 to 4,096")?;
    let flow = settings.of_the_flow();
    check(settings.loss_ppm <= 500_000, "loss_ppm", settings.loss_ppm, "at most 50 %")?;
    parameter::check(&flow)?;
    let case = Case {
        scheme: settings.scheme,
        control: Control::None,
        rto_ns: None,
        reorder: Reorder { ppm: 0, max_ns: 0 },
        loss_ppm: settings.loss_ppm,
    };
    let recorder = Rc::new(RefCell::new(Recorder::default()));
    measure(&flow, &case, Some(Box::new(Rc::clone(&recorder))))?;
    let trace = std::mem::take(&mut recorder.borrow_mut().trace);
    Ok(trace)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(loss_ppm: u32, seed: u64) -> Trace {
        arrivals(&TraceSettings { seed, loss_ppm, time_ns: 5_000_000, ..TraceSettings::default() })
            .expect("runs")
    }

    #[test]
    fn without_loss_packets_arrive_in_order_at_line_rate() {
        let trace = trace(0, 1);
        assert!(trace.order.iter().enumerate().all(|(at, &(psn, _))| at as u32 == psn));
        assert_eq!((trace.order.len() as u32, trace.duplicates), (trace.packets, 0));
        // 5 ms at 226.8 ns a packet are 22,045 packets; the first round trip is empty.
        assert!((20_500..22_100).contains(&trace.packets), "{}", trace.packets);
    }

    #[test]
    fn a_lost_packet_arrives_a_round_trip_later() {
        let trace = trace(1_000, 1);
        let mut times = vec![0; trace.packets as usize];
        trace.order.iter().for_each(|&(psn, at_ns)| times[psn as usize] = at_ns);
        let round_trip_ns = 116_000;
        let late: Vec<_> = (1..times.len())
            .filter(|&psn| times[psn] > times[psn - 1] + round_trip_ns / 2)
            .map(|psn| times[psn] - times[psn - 1])
            .collect();
        assert!(late.len() > 5, "{late:?}");
        let soon = late.iter().filter(|&&by| by < 2 * round_trip_ns).count();
        assert!(soon * 10 >= late.len() * 7, "{late:?}");
    }

    #[test]
    fn the_same_seed_is_the_same_trace() {
        assert_eq!(trace(10_000, 3), trace(10_000, 3));
        assert_ne!(trace(10_000, 3).order, trace(10_000, 4).order);
    }

    #[test]
    fn a_trace_out_of_range_is_refused() {
        let settings = TraceSettings { bdp_packets: 8, ..TraceSettings::default() };
        assert!(arrivals(&settings).is_err_and(|e| e.to_string().contains("bdp_packets")));
        let settings = TraceSettings { loss_ppm: 600_000, ..TraceSettings::default() };
        assert!(arrivals(&settings).is_err_and(|e| e.to_string().contains("loss")));
    }
}
