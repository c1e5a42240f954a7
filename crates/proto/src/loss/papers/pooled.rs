//! MELO's sender and receiver states together with their pool, to which they return their blocks on
//! drop. A pool whose blocks a byte reaches has the paper's layout, with pointers of a byte (M18, M19);
//! a larger one has pointers of two.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::melo::pool::{
    BYTE_BITS, BitsPool, BlockPtr, MAX_BITS, PAPER_BITS, blocks_of, packets_in_flight,
};
use super::melo::{Arrival, Hole, SenderMap};
use super::resident::{Residents, RxUse};
use crate::stats::RxDrop;

/// Size of an endpoint's pools of bits, each (M34), and the messages that hold blocks (M17).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PoolSize {
    /// One bit for each packet in flight; 0: [`PoolSize::derived`].
    pub(crate) bits: u32,
    /// Bytes of a block, a power of two (M35).
    pub(crate) block_bytes: u32,
    /// Most receivers that hold blocks; 0: no limit.
    pub(crate) connections: u32,
}

impl PoolSize {
    /// At least `bits` bits, or, if that is 0, those for the packets of `packet_bytes` on the wire that
    /// are in flight at a rate, bit/s, in a round trip, ns. A derived pool has at least the paper's
    /// 1,024 bits, and blocks for a bitmap of these packets wherever it begins in its first block.
    pub(crate) fn derived(self, rate_bps: u64, rtt_ns: u64, packet_bytes: u64) -> PoolSize {
        if self.bits > 0 {
            return self;
        }
        let in_flight = packets_in_flight(rate_bps, rtt_ns, packet_bytes);
        let block_bits = BYTE_BITS * self.block_bytes;
        let blocks = 1 + in_flight.saturating_sub(1).div_ceil(block_bits);
        PoolSize { bits: (blocks * block_bits).clamp(PAPER_BITS, MAX_BITS), ..self }
    }

    /// Returns whether pointers of a byte reach all blocks.
    fn is_byte(self) -> bool {
        blocks_of(self.bits, self.block_bytes) <= u8::NIL.index() as u32
    }

    fn pool<P: BlockPtr>(self) -> BitsPool<P> {
        BitsPool::new(self.bits, self.block_bytes)
    }
}

/// A structure with pointers of a byte, or of two.
#[derive(Clone, Debug)]
enum ByPointer<A, B> {
    Byte(A),
    Word(B),
}

/// Evaluates an expression with the structure of either kind.
macro_rules! with {
    ($of:expr, $name:ident => $value:expr) => {
        match $of {
            ByPointer::Byte($name) => $value,
            ByPointer::Word($name) => $value,
        }
    };
}

type Shared<T> = Arc<Mutex<T>>;

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The pool of sent messages, shared by all of an endpoint (M5).
#[derive(Clone, Debug)]
pub(crate) struct SharedPool(ByPointer<Shared<BitsPool<u8>>, Shared<BitsPool<u16>>>);

impl SharedPool {
    fn new(size: PoolSize) -> Self {
        SharedPool(if size.is_byte() {
            ByPointer::Byte(Arc::new(Mutex::new(size.pool())))
        } else {
            ByPointer::Word(Arc::new(Mutex::new(size.pool())))
        })
    }

    fn heap_bytes(&self) -> usize {
        with!(&self.0, pool => lock(pool).heap_bytes())
    }

    /// Blocks in chains now.
    #[cfg(test)]
    pub(crate) fn blocks_in_use(&self) -> u32 {
        with!(&self.0, pool => lock(pool).usage().in_use)
    }
}

/// The pool of arriving messages with their states.
#[derive(Clone, Debug)]
pub(crate) struct SharedResidents(ByPointer<Shared<Residents<u8>>, Shared<Residents<u16>>>);

impl SharedResidents {
    fn new(size: PoolSize) -> Self {
        let most = size.connections;
        SharedResidents(if size.is_byte() {
            ByPointer::Byte(Arc::new(Mutex::new(Residents::new(size.pool(), most))))
        } else {
            ByPointer::Word(Arc::new(Mutex::new(Residents::new(size.pool(), most))))
        })
    }

    fn heap_bytes(&self) -> usize {
        with!(&self.0, states => lock(states).heap_bytes())
    }

    /// Blocks in chains now.
    #[cfg(test)]
    pub(crate) fn blocks_in_use(&self) -> u32 {
        with!(&self.0, states => lock(states).blocks_in_use())
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
        Pools { rx: SharedResidents::new(size), tx: SharedPool::new(size) }
    }

    /// Use of the receive pool.
    pub(crate) fn rx_use(&self) -> RxUse {
        with!(&self.rx.0, states => lock(states).rx_use())
    }

    /// Frees the states of messages when none is left.
    pub(crate) fn trim(&self) {
        with!(&self.rx.0, states => lock(states).trim());
    }

    /// Bytes on the heap: none before the first message of several packets.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.rx.heap_bytes() + self.tx.heap_bytes()
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
        let id = with!(&states.0, states => lock(states).add(count));
        Receiver { id, states: states.clone() }
    }

    pub(crate) fn on_packet(&mut self, index: u32) -> Arrival {
        with!(&self.states.0, states => lock(states).on_packet(self.id, index))
    }

    pub(crate) fn rcv_nxt(&self) -> u32 {
        with!(&self.states.0, states => lock(states).rcv_nxt(self.id))
    }

    pub(crate) fn rcv_high(&self) -> u32 {
        with!(&self.states.0, states => lock(states).rcv_high(self.id))
    }

    pub(crate) fn holes(&self) -> impl Iterator<Item = Hole> + use<> {
        with!(&self.states.0, states => lock(states).holes(self.id)).into_iter().flatten()
    }

    /// All packets that are missing before the newest one.
    pub(crate) fn all_missing(&self) -> Vec<u32> {
        with!(&self.states.0, states => lock(states).all_missing(self.id))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        with!(&self.states.0, states => lock(states).remove(self.id));
    }
}

/// A state with its pool.
#[derive(Debug)]
struct Sending<P: BlockPtr> {
    state: SenderMap<P>,
    pool: Shared<BitsPool<P>>,
}

impl<P: BlockPtr> Sending<P> {
    fn new(pool: &Shared<BitsPool<P>>) -> Self {
        Sending { state: SenderMap::new(), pool: Arc::clone(pool) }
    }
}

impl<P: BlockPtr> Drop for Sending<P> {
    fn drop(&mut self) {
        self.state.release(&mut lock(&self.pool));
    }
}

/// A sender's state of one message.
#[derive(Debug)]
pub(crate) struct Sender(ByPointer<Sending<u8>, Sending<u16>>);

impl Sender {
    pub(crate) fn new(pool: &SharedPool) -> Self {
        Sender(match &pool.0 {
            ByPointer::Byte(pool) => ByPointer::Byte(Sending::new(pool)),
            ByPointer::Word(pool) => ByPointer::Word(Sending::new(pool)),
        })
    }

    pub(crate) fn on_ack(&mut self, rcv_nxt: u32) {
        with!(&mut self.0, s => s.state.on_ack(&mut lock(&s.pool), rcv_nxt));
    }

    /// Takes a NACK; `false`: no receiver sends this content.
    pub(crate) fn on_nack(&mut self, rcv_nxt: u32, rcv_high: u32, holes: &[Hole]) -> bool {
        with!(&mut self.0, s => {
            s.state.on_nack(&mut lock(&s.pool), rcv_nxt, rcv_high, holes).is_ok()
        })
    }

    pub(crate) fn is_received(&self, index: u32) -> bool {
        with!(&self.0, s => s.state.is_received(&lock(&s.pool), index))
    }

    pub(crate) fn next_lost(&mut self) -> Option<Hole> {
        with!(&mut self.0, s => s.state.next_lost(&lock(&s.pool)))
    }

    /// Packets beyond the acknowledged ones that are known to have arrived, without `last`.
    pub(crate) fn known_before(&self, last: u32) -> u32 {
        with!(&self.0, s => s.state.known_received() - u32::from(s.state.high() > last))
    }

    /// Marks as lost everything that is not known to have arrived; returns the end of the known
    /// range.
    pub(crate) fn restart(&mut self) -> u32 {
        with!(&mut self.0, s => {
            s.state.restart(&lock(&s.pool));
            s.state.high()
        })
    }

    /// Discards all state.
    pub(crate) fn release(&mut self) {
        with!(&mut self.0, s => s.state.release(&mut lock(&s.pool)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size(bits: u32, block_bytes: u32) -> PoolSize {
        PoolSize { bits, block_bytes, connections: 0 }
    }

    /// M34: the bits follow from the settings of the link.
    #[test]
    fn a_pool_covers_the_packets_in_flight_of_its_link() {
        let bits = |gbps: u64, rtt_ns, bits| {
            size(bits, 1).derived(gbps * 1_000_000_000, rtt_ns, 1_000).bits
        };
        assert_eq!(bits(100, 200_000, 0), 2_512, "2,500 packets of 1,000 bytes");
        assert_eq!(bits(400, 200_000, 0), 10_008);
        assert_eq!(bits(25, 16_000, 0), 1_024, "no less than the paper's");
        assert_eq!(bits(100, 200_000, 96), 96, "a set number");
        let most = size(0, 1).derived(1_600_000_000_000, 1 << 29, 1_538);
        assert_eq!(most.pool::<u16>().blocks() * 8, 65_528);
    }

    /// M34, M35: the bitmap of the packets in flight fits wherever it begins, and not with a block
    /// less.
    #[test]
    fn a_derived_pool_has_just_the_blocks_of_the_packets_in_flight() {
        for block_bytes in [1, 2, 4, 8, 16, 32, 64, 128] {
            let block_bits = 8 * block_bytes;
            for packets in [1_100, 2_048, 2_049, 2_056, 2_500, 4_097_u32] {
                let size = size(0, block_bytes).derived(8_000_000_000, packets.into(), 1);
                let most = (0..block_bits).map(|at| (at + packets - 1) / block_bits + 1).max();
                let blocks = most.unwrap_or_default().max(1_024 / block_bits);
                assert_eq!(size.bits, blocks * block_bits, "{packets} of {block_bytes}");
                assert_eq!(size.pool::<u16>().blocks(), blocks);
            }
        }
    }

    /// M18, M19: the layout of the paper, where pointers of a byte reach all blocks.
    #[test]
    fn a_pool_of_up_to_255_blocks_has_pointers_of_a_byte() {
        for (bits, block_bytes, bytes) in [
            (1_024, 1, 3 * 128), // 3 Kb
            (2_040, 1, 3 * 255),
            (2_041, 1, 5 * 256),
            (2_500, 2, 4 * 157),
        ] {
            let pools = Pools::new(size(bits, block_bytes));
            let mut receiver = Receiver::new(0, &pools.rx);
            receiver.on_packet(0);
            let state_bytes = pools.heap_bytes();
            receiver.on_packet(2);
            assert_eq!(pools.heap_bytes() - state_bytes, bytes, "{bits} of {block_bytes}");
            let mut sender = Sender::new(&pools.tx);
            assert!(sender.on_nack(0, 3, &[Hole { first: 0, len: 2 }]));
            assert_eq!(pools.heap_bytes() - state_bytes, 2 * bytes, "{bits} of {block_bytes}");
        }
        assert_eq!(size(0, 1).derived(25_000_000_000, 200_000, 1_538).bits, 1_024, "by default");
    }

    #[test]
    fn a_quiet_endpoint_frees_the_states_of_its_messages() {
        let mut boards = crate::loss::Boards::new(size(1_024, 1));
        let receivers: Vec<_> = (0..100).map(|_| Receiver::new(0, &boards.pools.rx)).collect();
        boards.trim();
        assert!(boards.heap_bytes() > 6_000, "the messages arrive");
        drop(receivers);
        boards.trim();
        assert_eq!(boards.heap_bytes(), 0);
    }

    #[test]
    fn pools_take_no_memory_before_the_first_loss() {
        let pools = Pools::new(size(1_024, 1));
        assert_eq!(pools.heap_bytes(), 0);
        let mut receiver = Receiver::new(0, &pools.rx);
        receiver.on_packet(0);
        assert!(pools.heap_bytes() < 300, "{}: the state alone", pools.heap_bytes());
        receiver.on_packet(2);
        assert!(pools.heap_bytes() >= 3 * 128);
    }
}
