//! MELO's sender and receiver states together with their pool, to which they return their blocks on
//! drop.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::melo::pool::{MAX_BLOCK_BYTES, MeloPool, PAPER_BITS, packets_in_flight};
use super::melo::{Arrival, Hole, SenderMap};
use super::resident::{Residents, RxUse};
use crate::stats::RxDrop;

/// Size of an endpoint's pools of bits, each (M34), and the messages that hold blocks (M17).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PoolSize {
    /// One bit for each packet in flight; 0: [`PoolSize::derived`].
    pub(crate) bits: u32,
    /// Bytes of a block (M35).
    pub(crate) block_bytes: u32,
    /// Most receivers that hold blocks; 0: no limit.
    pub(crate) connections: u32,
}

impl PoolSize {
    /// At least `bits` bits, or, if that is 0, those for the packets of `packet_bytes` on the wire that
    /// are in flight at a rate, bit/s, in a round trip, ns. A derived pool has at least the paper's
    /// 1,024 bits, and a block more than the packets fill, because a bitmap may begin within a block.
    pub(crate) fn derived(self, rate_bps: u64, rtt_ns: u64, packet_bytes: u64) -> PoolSize {
        if self.bits > 0 {
            return self;
        }
        let in_flight = packets_in_flight(rate_bps, rtt_ns, packet_bytes);
        let block_bits = 8 * self.block_bytes.min(MAX_BLOCK_BYTES);
        PoolSize { bits: in_flight.max(PAPER_BITS - 8) + block_bits, ..self }
    }

    fn pool(self) -> MeloPool {
        MeloPool::new(self.bits, self.block_bytes)
    }
}

/// The pool of sent messages, shared by all of an endpoint (M5).
#[derive(Clone, Debug)]
pub(crate) struct SharedPool(Arc<Mutex<MeloPool>>);

impl SharedPool {
    pub(crate) fn lock(&self) -> MutexGuard<'_, MeloPool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The pool of arriving messages with their states.
#[derive(Clone, Debug)]
pub(crate) struct SharedResidents(Arc<Mutex<Residents>>);

impl SharedResidents {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Residents> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Both pools of an endpoint: for received and for sent messages (M13).
#[derive(Clone, Debug)]
pub(crate) struct Pools {
    pub(crate) rx: SharedResidents,
    pub(crate) tx: SharedPool,
}

impl Pools {
    pub(crate) fn new(size: PoolSize) -> Self {
        let rx = Residents::new(size.pool(), size.connections);
        Pools {
            rx: SharedResidents(Arc::new(Mutex::new(rx))),
            tx: SharedPool(Arc::new(Mutex::new(size.pool()))),
        }
    }

    /// Use of the receive pool.
    pub(crate) fn rx_use(&self) -> RxUse {
        self.rx.lock().rx_use()
    }

    /// Bytes on the heap: none before the first loss.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.rx.lock().heap_bytes() + self.tx.lock().heap_bytes()
    }
}

/// Checks that a packet that has arrived is kept.
///
/// # Errors
/// It is a duplicate, or there is no bit to record it (M10, M16).
pub(crate) fn is_kept(arrival: Arrival) -> Result<(), RxDrop> {
    match arrival {
        Arrival::InOrder | Arrival::OutOfOrder { .. } => Ok(()),
        Arrival::Duplicate => Err(RxDrop::Duplicate),
        Arrival::Middle | Arrival::NoBits => Err(RxDrop::OutOfOrder),
    }
}

/// A receiver's state of one message.
#[derive(Debug)]
pub(crate) struct Receiver {
    /// Its number among the states.
    id: u32,
    states: SharedResidents,
}

impl Receiver {
    /// All packets before `count` have arrived, and no other.
    pub(crate) fn new(count: u32, states: &SharedResidents) -> Self {
        Receiver { id: states.lock().add(count), states: states.clone() }
    }

    pub(crate) fn on_packet(&mut self, index: u32) -> Arrival {
        self.states.lock().on_packet(self.id, index)
    }

    pub(crate) fn rcv_nxt(&self) -> u32 {
        self.states.lock().rcv_nxt(self.id)
    }

    pub(crate) fn rcv_high(&self) -> u32 {
        self.states.lock().rcv_high(self.id)
    }

    pub(crate) fn holes(&self) -> impl Iterator<Item = Hole> + use<> {
        self.states.lock().holes(self.id)
    }

    /// All packets that are missing before the newest one.
    pub(crate) fn all_missing(&self) -> Vec<u32> {
        self.states.lock().all_missing(self.id)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.states.lock().remove(self.id);
    }
}

/// A sender's state of one message.
#[derive(Debug)]
pub(crate) struct Sender {
    state: SenderMap<u16>,
    pool: SharedPool,
}

impl Sender {
    pub(crate) fn new(pool: &SharedPool) -> Self {
        Sender { state: SenderMap::new(), pool: pool.clone() }
    }

    pub(crate) fn on_ack(&mut self, rcv_nxt: u32) {
        self.state.on_ack(&mut self.pool.lock(), rcv_nxt);
    }

    /// Takes a NACK; `false`: no receiver sends this content.
    pub(crate) fn on_nack(&mut self, rcv_nxt: u32, rcv_high: u32, holes: &[Hole]) -> bool {
        self.state.on_nack(&mut self.pool.lock(), rcv_nxt, rcv_high, holes).is_ok()
    }

    pub(crate) fn is_received(&self, index: u32) -> bool {
        self.state.is_received(&self.pool.lock(), index)
    }

    pub(crate) fn next_lost(&mut self) -> Option<Hole> {
        self.state.next_lost(&self.pool.lock())
    }

    /// Packets beyond the acknowledged ones that are known to have arrived, without `last`.
    pub(crate) fn known_before(&self, last: u32) -> u32 {
        self.state.known_received() - u32::from(self.state.high() > last)
    }

    /// Marks as lost everything that is not known to have arrived; returns the end of the known
    /// range.
    pub(crate) fn restart(&mut self) -> u32 {
        self.state.restart(&self.pool.lock());
        self.state.high()
    }

    /// Discards all state.
    pub(crate) fn release(&mut self) {
        self.state.release(&mut self.pool.lock());
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// M34: the bits follow from the settings of the link, and a block more.
    #[test]
    fn a_pool_covers_the_packets_in_flight_of_its_link() {
        let size = |bits| PoolSize { bits, block_bytes: 1, connections: 0 };
        let bits =
            |gbps: u64, rtt_ns, bits| size(bits).derived(gbps * 1_000_000_000, rtt_ns, 1_000).bits;
        assert_eq!(bits(100, 200_000, 0), 2_508, "2,500 packets of 1,000 bytes");
        assert_eq!(bits(400, 200_000, 0), 10_008);
        assert_eq!(bits(25, 16_000, 0), 1_024, "no less than the paper's");
        assert_eq!(bits(100, 200_000, 96), 96, "a set number");
        let most = size(0).derived(1_600_000_000_000, 1 << 29, 1_538);
        assert_eq!(most.pool().blocks() * 8, 65_528);
    }

    #[test]
    fn pools_take_no_memory_before_the_first_loss() {
        let pools = Pools::new(PoolSize { bits: 1_024, block_bytes: 1, connections: 0 });
        assert_eq!(pools.heap_bytes(), 0);
        let mut receiver = Receiver::new(0, &pools.rx);
        receiver.on_packet(0);
        assert!(pools.heap_bytes() < 400, "{}: the state alone", pools.heap_bytes());
        receiver.on_packet(2);
        assert!(pools.heap_bytes() >= 5 * 128);
    }
}
