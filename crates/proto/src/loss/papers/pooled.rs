//! MELO's sender and receiver states together with their pool, to which they return their blocks on
//! drop.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::melo::pool::BLOCK_BITS;
use super::melo::{Arrival, Hole, MeloPool, Reorder, SenderMap};
use crate::stats::RxDrop;

/// A bits pool, shared by all messages of one direction of an endpoint (M5).
#[derive(Clone, Debug)]
pub(crate) struct SharedPool(Arc<Mutex<MeloPool>>);

impl SharedPool {
    fn new() -> Self {
        SharedPool(Arc::new(Mutex::new(MeloPool::new())))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, MeloPool> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Both pools of an endpoint: for received and for sent messages (M13).
#[derive(Clone, Debug)]
pub(crate) struct Pools {
    pub(crate) rx: SharedPool,
    pub(crate) tx: SharedPool,
}

impl Pools {
    pub(crate) fn new() -> Self {
        Pools { rx: SharedPool::new(), tx: SharedPool::new() }
    }

    /// Most bits of the receive pool in use at once, and its number of failed allocations.
    pub(crate) fn rx_use(&self) -> (u32, u64) {
        let used = self.rx.lock().usage();
        (used.most * BLOCK_BITS, used.refusals)
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
    state: Reorder,
    pool: SharedPool,
}

impl Receiver {
    /// All packets before `count` have arrived, and no other.
    pub(crate) fn new(count: u32, pool: &SharedPool) -> Self {
        Receiver { state: Reorder::at(count), pool: pool.clone() }
    }

    pub(crate) fn on_packet(&mut self, index: u32) -> Arrival {
        self.state.on_packet(&mut self.pool.lock(), index)
    }

    pub(crate) fn rcv_nxt(&self) -> u32 {
        self.state.rcv_nxt()
    }

    pub(crate) fn rcv_high(&self) -> u32 {
        self.state.rcv_high()
    }

    pub(crate) fn holes(&self) -> impl Iterator<Item = Hole> + '_ {
        self.state.holes()
    }

    /// All packets that are missing before the newest one.
    pub(crate) fn all_missing(&self) -> Vec<u32> {
        self.state.all_missing(&*self.pool.lock()).collect()
    }

    /// Discards the record of packets that arrived out of order.
    pub(crate) fn release(&mut self) {
        self.state.release(&mut self.pool.lock());
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.release();
    }
}

/// A sender's state of one message.
#[derive(Debug)]
pub(crate) struct Sender {
    state: SenderMap,
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
        self.state.restart();
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
