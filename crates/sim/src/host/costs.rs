//! CPU costs of simulated work. Work without a cost here takes no virtual time.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::port::lock;

/// CPU time of a host's thread by kind of work. In nanoseconds, unless stated otherwise.
///
/// The model: a pass of the event loop that finds work costs `pass_ns`; each frame and each packet
/// in it has a cost when received and when handed to the NIC; a handler costs its entry in the
/// table plus the time that it reports with [`crate::spend`]. A busy thread polls its queues again
/// when it has finished, which is the source of queueing at hosts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CpuCosts {
    /// A pass of the event loop, at least 1.
    pub pass_ns: u64,
    /// Receiving a frame.
    pub rx_frame_ns: u64,
    /// Processing one packet of it.
    pub rx_packet_ns: u64,
    /// Handing a frame to the NIC.
    pub tx_frame_ns: u64,
    /// Building one packet of it.
    pub tx_packet_ns: u64,
    /// Copying received bytes, picoseconds per byte.
    pub rx_byte_ps: u64,
    /// A dispatch or worker handler whose type is not in `handlers`.
    pub handler_ns: u64,
    /// Handlers by the type of their requests or one-way messages.
    pub handlers: BTreeMap<u16, u64>,
    /// Flushing the transmit queue, 2 us on the paper's NICs `[eRPC §4.2.2]`.
    pub flush_ns: u64,
    /// Receiving or sending a plain packet ([`crate::World::plain_queue`]). `None`: as a frame with
    /// one packet.
    pub plain_ns: Option<u64>,
    /// From a packet's arrival to the first poll of an idle thread. 0: it polls.
    pub wakeup_ns: u64,
}

impl CpuCosts {
    /// A CPU of (almost) no cost, to measure the network.
    pub fn none() -> Self {
        CpuCosts {
            pass_ns: 1,
            rx_frame_ns: 0,
            rx_packet_ns: 0,
            tx_frame_ns: 0,
            tx_packet_ns: 0,
            rx_byte_ps: 0,
            handler_ns: 0,
            handlers: BTreeMap::new(),
            flush_ns: 0,
            plain_ns: None,
            wakeup_ns: 0,
        }
    }

    /// eRPC's CPU without congestion control: a core that issues 5.44 M small requests per second
    /// handles 5.44 M of others at the same time, which is two packets received and two sent in 184
    /// ns `[eRPC §6.2]`. The paper does not divide them further; here each packet, alone in its
    /// frame, costs 44, the handler 5, and the pass, which a busy thread makes for many packets at
    /// a time, the rest.
    pub fn erpc() -> Self {
        CpuCosts {
            pass_ns: 30,
            rx_frame_ns: 14,
            rx_packet_ns: 27,
            tx_frame_ns: 17,
            tx_packet_ns: 27,
            rx_byte_ps: 50,
            handler_ns: 5,
            flush_ns: 2_000,
            ..CpuCosts::none()
        }
    }

    /// Courser's CPU cost, calibrated on an AMD EPYC (Zen 5) over shared memory, with one core for
    /// each endpoint. Instructions (`scripts/instructions.sh`) at one and at 60 calls in flight and
    /// in an empty pass separate passes, frames and packets: 404 for a pass, 726 for receiving and
    /// sending a frame, 607 for the two packets of a call at its client and 469 at its server. The
    /// measured rate of both sides calling, 14.5 M/s, is 16.1 instructions per ns. A byte takes the
    /// time of `memcpy` of 8 MiB, 410 Gbit/s. Without the cost of a NIC's driver.
    pub fn measured() -> Self {
        CpuCosts {
            pass_ns: 25,
            rx_frame_ns: 22,
            rx_packet_ns: 17,
            tx_frame_ns: 23,
            tx_packet_ns: 16,
            rx_byte_ps: 20,
            handler_ns: 1,
            flush_ns: 2_000,
            ..CpuCosts::none()
        }
    }

    /// Courser's CPU cost over memory: 1,050 instructions per small RPC at the client and 748 at
    /// the server (`scripts/instructions.sh`), at 3 instructions per nanosecond, without any cost
    /// of the kernel's sockets.
    pub fn courser() -> Self {
        CpuCosts {
            pass_ns: 40,
            rx_frame_ns: 30,
            rx_packet_ns: 100,
            tx_frame_ns: 40,
            tx_packet_ns: 100,
            rx_byte_ps: 50,
            handler_ns: 10,
            flush_ns: 2_000,
            ..CpuCosts::none()
        }
    }

    /// CPU time of a handler.
    pub fn handler(&self, req_type: u16) -> u64 {
        self.handlers.get(&req_type).copied().unwrap_or(self.handler_ns)
    }

    pub(crate) fn rx_ns(&self, packets: u64, bytes: u64) -> u64 {
        self.rx_frame_ns + packets * self.rx_packet_ns + bytes * self.rx_byte_ps / 1000
    }

    pub(crate) fn tx_ns(&self, packets: u64) -> u64 {
        self.tx_frame_ns + packets * self.tx_packet_ns
    }

    pub(crate) fn rx_plain_ns(&self, bytes: u64) -> u64 {
        self.plain_ns.unwrap_or_else(|| self.rx_ns(1, bytes))
    }

    pub(crate) fn tx_plain_ns(&self) -> u64 {
        self.plain_ns.unwrap_or_else(|| self.tx_ns(1))
    }
}

/// The costs of one host, which may change during a run.
#[derive(Clone, Debug)]
pub(crate) struct Costs(Arc<Mutex<Arc<CpuCosts>>>);

impl Costs {
    pub(crate) fn new(costs: CpuCosts) -> Self {
        Costs(Arc::new(Mutex::new(Arc::new(costs))))
    }

    pub(crate) fn get(&self) -> Arc<CpuCosts> {
        lock(&self.0).clone()
    }

    pub(crate) fn set(&self, costs: CpuCosts) {
        *lock(&self.0) = Arc::new(costs);
    }
}

impl Default for CpuCosts {
    fn default() -> Self {
        CpuCosts::courser()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame of a small RPC: headers of frame and packet, 32 bytes.
    const FRAME: u64 = 24 + 16 + 32;

    #[test]
    fn a_busy_core_reaches_the_papers_rate() {
        let costs = CpuCosts::erpc();
        // A call of its own and one of another; sixty requests under way fill passes.
        let call_ns = 2 * (costs.rx_ns(1, FRAME) + costs.tx_ns(1)) + costs.handler(0);
        let busy_ns = call_ns + costs.pass_ns / 10;
        let rate = 1_000_000_000 / busy_ns;
        assert!((5_400_000..5_500_000).contains(&rate), "{rate}");
    }

    #[test]
    fn the_measured_table_has_the_counted_instructions() {
        let costs = CpuCosts::measured();
        let ns = |instructions: u64| instructions * 10 / 161;
        let near = |ns: u64, of: u64| assert!(ns.abs_diff(of) <= 2, "{ns} ns, {of} counted");
        near(costs.pass_ns, ns(404));
        near(costs.rx_frame_ns + costs.tx_frame_ns, ns(726));
        near(2 * (costs.rx_packet_ns + costs.tx_packet_ns) + costs.handler(0), ns(607 + 469));
    }
}
