//! The receiver's state of a connection (M8-M12, `[MELO §3.2.3, §3.2.4]`, Fig. 3c).

use super::chain::{Chain, bit_of, mask_of};
use super::pool::{BYTE_BITS, BitsPool, BlockPtr};
use super::{HOLES, Hole, MAX_PSN};

/// RCV.NXT and RCV.HIGH in three bytes each, stored as low halves and top bytes: each field is read
/// with the width of its write, which avoids a store-forwarding stall between packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Marks {
    nxt_low: u16,
    high_low: u16,
    nxt_top: u8,
    high_top: u8,
}

impl Marks {
    const ZERO: Marks = Marks { nxt_low: 0, high_low: 0, nxt_top: 0, high_top: 0 };

    #[inline]
    fn nxt(self) -> u32 {
        u32::from(self.nxt_top) << 16 | u32::from(self.nxt_low)
    }

    #[inline]
    fn high(self) -> u32 {
        u32::from(self.high_top) << 16 | u32::from(self.high_low)
    }

    #[inline]
    fn set_nxt(&mut self, psn: u32) {
        debug_assert!(psn <= MAX_PSN + 1);
        (self.nxt_low, self.nxt_top) = (psn as u16, (psn >> 16) as u8);
    }

    #[inline]
    fn set_high(&mut self, psn: u32) {
        debug_assert!(psn <= MAX_PSN + 1);
        (self.high_low, self.high_top) = (psn as u16, (psn >> 16) as u8);
    }
}

/// A tracked hole: its first PSN modulo 2^16, and its length, 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Tracked {
    start: u16,
    len: u16,
}

impl Tracked {
    const NONE: Tracked = Tracked { start: 0, len: 0 };

    /// Offset of `psn` in the hole, if it is inside.
    #[inline]
    fn offset(self, psn: u32) -> Option<u16> {
        let offset = (psn as u16).wrapping_sub(self.start);
        (offset < self.len).then_some(offset)
    }
}

/// Result of an arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// It was RCV.NXT: RCV.NXT has moved past it and the run of packets that follows (M4).
    InOrder,
    /// It is beyond RCV.NXT and is now recorded.
    OutOfOrder {
        /// It left a gap above RCV.HIGH: the receiver sends a NACK immediately (M11).
        new_hole: bool,
    },
    /// A duplicate. Nothing has changed.
    Duplicate,
    /// Its bit is in neither the front nor the end block, so it is not accessed: the packet must be
    /// dropped, whether it is a duplicate or not. The sender's timeout resends it from the front
    /// (M10, M15). Nothing has changed.
    Middle,
    /// The pool has too few blocks, or the PSN is above [`MAX_PSN`]: the packet must be dropped,
    /// and go-back-N recovers it (M16). Nothing has changed.
    NoBits,
}

/// The receiver's state of one connection; here, of one message in flight, whose packet indices are
/// the PSNs. 20 bytes, plus blocks of the pool while packets are missing.
///
/// It has two states. *In order*: RCV.NXT = RCV.HIGH, no blocks, and a packet in order accesses
/// only these 20 bytes. *Out of order*: packets beyond RCV.NXT have arrived, and the blocks from
/// that of RCV.NXT to that of RCV.HIGH - 1 hold one bit for each. Each packet accesses the front or
/// the end block (and, when it completes a run, the blocks that become the front and are released),
/// so the time per packet is constant, amortised.
///
/// Invariants, besides those of the pool:
/// - (R1) RCV.NXT <= RCV.HIGH; they are equal exactly when there are no blocks.
/// - (R2) The chain has exactly the blocks from that of RCV.NXT to that of RCV.HIGH - 1.
/// - (R3) The bit of RCV.NXT is 0 and that of RCV.HIGH - 1 is 1; bits from RCV.HIGH on are 0, and
///   bits below RCV.NXT in its byte are 1, so that the ones at the bottom of the byte are the run to
///   release.
/// - (R4) The tracked holes are whole holes, disjoint, the most recent (closest to RCV.HIGH) first,
///   and no hole above the lowest of them is left out.
///
/// A hole is no longer tracked once three newer ones exist, and is not tracked again when those are
/// filled, since finding it would need a search. So fewer than three tracked holes do *not* mean
/// that nothing else is missing. Nothing else is missing exactly when the lowest tracked hole
/// starts at RCV.NXT, which is always missing while there are blocks.
///
/// The state owns its blocks: [`Reorder::release`] or [`Reorder::swap_out`] precedes its drop, and
/// it is always used with the same pool.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reorder<P> {
    /// Most recent first; unused entries at the end.
    holes: [Tracked; HOLES],
    marks: Marks,
    chain: Chain<P>,
}

// M19: 12 B of holes, 6 B of RCV.NXT and RCV.HIGH, 2 B of start_ptr and end_ptr.
const _: () = assert!(size_of::<[Tracked; HOLES]>() == 12);
const _: () = assert!(size_of::<Marks>() == 6 && size_of::<Chain<u8>>() == 2);
const _: () = assert!(size_of::<Reorder<u8>>() == 20);
// With pointers that reach the pool of a fast link, two bytes more.
const _: () = assert!(size_of::<Reorder<u16>>() == 22);
// M19: with 6 Kb of pools (768 B) for 300 connections, 20 + 2.56 B, which rounds up to 23 B a
// connection: in tenths of a percent, 91 of RoCEv2's 248 B.
const _: () = {
    const CONNECTIONS: usize = 300;
    let bytes_of_all = CONNECTIONS * size_of::<Reorder<u8>>() + 6 * 1024 / 8;
    assert!(bytes_of_all * 100 / CONNECTIONS == 2256);
    assert!(bytes_of_all.div_ceil(CONNECTIONS) == 23);
    assert!((bytes_of_all * 1000).div_ceil(CONNECTIONS * 248) == 91);
};

impl<P: BlockPtr> Reorder<P> {
    /// Nothing received: RCV.NXT and RCV.HIGH are 0.
    pub(crate) const fn new() -> Reorder<P> {
        Reorder { holes: [Tracked::NONE; HOLES], marks: Marks::ZERO, chain: Chain::EMPTY }
    }

    /// All packets below `psn` received, and no other.
    pub(crate) fn at(psn: u32) -> Reorder<P> {
        let mut state = Reorder::new();
        state.marks.set_nxt(psn.min(MAX_PSN + 1));
        state.marks.set_high(psn.min(MAX_PSN + 1));
        state
    }

    /// RCV.NXT: the first missing packet; all below it have been received.
    #[inline]
    pub(crate) fn rcv_nxt(&self) -> u32 {
        self.marks.nxt()
    }

    /// RCV.HIGH: one past the highest packet received.
    #[inline]
    pub(crate) fn rcv_high(&self) -> u32 {
        self.marks.high()
    }

    /// The most recent holes, at most three, as a NACK carries them (M12): most recent first.
    pub(crate) fn holes(&self) -> impl Iterator<Item = Hole> + '_ {
        told(&self.holes, self.rcv_nxt())
    }

    /// Returns whether it holds blocks of the pool: packets beyond RCV.NXT have arrived.
    #[inline]
    pub(crate) fn has_blocks(&self) -> bool {
        !self.chain.is_empty()
    }

    /// Records packet `psn` and returns what is to be done with it.
    /// Cost: constant, amortised; no allocation. The loop that releases a run is paid for by the
    /// packets that took the blocks.
    #[inline]
    pub(crate) fn on_packet(&mut self, pool: &mut BitsPool<P>, psn: u32) -> Arrival {
        let nxt = self.rcv_nxt();
        if psn == nxt && self.chain.is_empty() && psn <= MAX_PSN {
            self.marks.set_nxt(psn + 1);
            self.marks.set_high(psn + 1);
            return Arrival::InOrder;
        }
        self.on_packet_out_of_order(pool, psn)
    }

    // Neither this nor its callees are inlined: inlining would make every path of the caller,
    // including that of packets in order, save registers.
    #[inline(never)]
    fn on_packet_out_of_order(&mut self, pool: &mut BitsPool<P>, psn: u32) -> Arrival {
        let (nxt, high) = (self.rcv_nxt(), self.rcv_high());
        if psn < nxt {
            Arrival::Duplicate
        } else if psn == high && !pool.begins_block(psn) && psn <= MAX_PSN {
            // Continues a run after a hole, and is not the first in its block.
            *pool.byte_mut(self.chain.end(), psn) |= bit_of(psn);
            self.marks.set_high(psn + 1);
            Arrival::OutOfOrder { new_hole: false }
        } else if psn >= high {
            self.append(pool, psn)
        } else if psn == nxt {
            self.fill_front(pool);
            Arrival::InOrder
        } else {
            self.fill_beyond(pool, psn)
        }
    }

    /// Fills the front and releases the following run with its blocks (M4).
    #[inline(never)]
    fn fill_front(&mut self, pool: &mut BitsPool<P>) {
        let mut nxt = self.rcv_nxt();
        let high = self.rcv_high();
        self.fill_hole(nxt);
        *pool.byte_mut(self.chain.start(), nxt) |= bit_of(nxt);
        loop {
            let run = pool.byte(self.chain.start(), nxt).trailing_ones();
            nxt = nxt / BYTE_BITS * BYTE_BITS + run;
            if nxt == high || run == BYTE_BITS && pool.begins_block(nxt) {
                self.chain.pop_front(pool);
            }
            if nxt == high || run < BYTE_BITS {
                break;
            }
        }
        self.marks.set_nxt(nxt);
    }

    /// A packet at or above RCV.HIGH: accessed from the end, with new blocks as needed.
    #[inline(never)]
    fn append(&mut self, pool: &mut BitsPool<P>, psn: u32) -> Arrival {
        let (nxt, high) = (self.rcv_nxt(), self.rcv_high());
        if psn > MAX_PSN || !self.chain.cover(pool, nxt, high, psn) {
            return Arrival::NoBits;
        }
        if nxt == high {
            *pool.byte_mut(self.chain.start(), nxt) = bit_of(nxt) - 1;
        }
        *pool.byte_mut(self.chain.end(), psn) |= bit_of(psn);
        self.marks.set_high(psn + 1);
        let new_hole = psn > high;
        if new_hole {
            self.holes.copy_within(..HOLES - 1, 1);
            self.holes[0] = Tracked { start: high as u16, len: (psn - high) as u16 };
        }
        Arrival::OutOfOrder { new_hole }
    }

    /// A packet between RCV.NXT and RCV.HIGH: only the front and the end block are accessed.
    #[inline(never)]
    fn fill_beyond(&mut self, pool: &mut BitsPool<P>, psn: u32) -> Arrival {
        let number = pool.block_of(psn);
        let block = if number == pool.block_of(self.rcv_nxt()) {
            self.chain.start()
        } else if number == pool.block_of(self.rcv_high() - 1) {
            self.chain.end()
        } else {
            return Arrival::Middle;
        };
        let bits = pool.byte_mut(block, psn);
        if *bits & bit_of(psn) != 0 {
            return Arrival::Duplicate;
        }
        *bits |= bit_of(psn);
        self.fill_hole(psn);
        Arrival::OutOfOrder { new_hole: false }
    }

    /// Removes `psn` from the tracked hole that contains it, if any. At an end the hole shrinks or
    /// disappears; inside, it splits, and the oldest of four is no longer tracked.
    fn fill_hole(&mut self, psn: u32) {
        for at in 0..HOLES {
            let hole = self.holes[at];
            let Some(offset) = hole.offset(psn) else { continue };
            let above = Tracked { start: (psn as u16).wrapping_add(1), len: hole.len - offset - 1 };
            let below = Tracked { start: hole.start, len: offset };
            match (above.len > 0, below.len > 0) {
                (true, true) => {
                    self.holes.copy_within(at..HOLES - 1, at + 1);
                    self.holes[at] = above;
                    if let Some(next) = self.holes.get_mut(at + 1) {
                        *next = below;
                    }
                }
                (true, false) => self.holes[at] = above,
                (false, true) => self.holes[at] = below,
                (false, false) => {
                    self.holes.copy_within(at + 1.., at);
                    self.holes[HOLES - 1] = Tracked::NONE;
                }
            }
            return;
        }
    }

    /// Returns all blocks and discards packets beyond RCV.NXT, as if they had not arrived. For a
    /// connection that ends. The timeout corrects a sender that holds earlier NACKs.
    pub(crate) fn release(&mut self, pool: &mut BitsPool<P>) {
        self.chain.release(pool);
        self.holes = [Tracked::NONE; HOLES];
        self.marks.set_high(self.rcv_nxt());
    }

    /// Moves the state out of the pool and returns all blocks (M17). Allocates the bitmap on the heap:
    /// with a limit of states that hold blocks, a packet of another message does that. Without one, the
    /// default, none is swapped.
    pub(crate) fn swap_out(mut self, pool: &mut BitsPool<P>) -> SwappedOut {
        let blocks = self.chain.blocks(pool);
        let bits = blocks.flat_map(|block| pool.bytes(block).iter().copied()).collect();
        self.chain.release(pool);
        SwappedOut { holes: self.holes, marks: self.marks, bits }
    }

    /// Moves a state back into the pool, which may be another one with blocks of the same size (M17).
    /// # Errors
    /// The unchanged state, when the pool has too few blocks.
    pub(crate) fn swap_in(
        out: SwappedOut,
        pool: &mut BitsPool<P>,
    ) -> Result<Reorder<P>, SwappedOut> {
        let mut chain = Chain::EMPTY;
        let block_bytes = pool.block_bytes();
        if !chain.extend(pool, out.bits.len() as u32 / block_bytes) {
            return Err(out);
        }
        let mut block = chain.start();
        for bytes in out.bits.chunks_exact(block_bytes as usize) {
            pool.bytes_mut(block).copy_from_slice(bytes);
            block = pool.next(block);
        }
        Ok(Reorder { holes: out.holes, marks: out.marks, chain })
    }

    /// Its blocks, for [`BitsPool::check`].
    pub(crate) fn blocks<'a>(&self, pool: &'a BitsPool<P>) -> impl Iterator<Item = P> + use<'a, P> {
        self.chain.blocks(pool)
    }

    /// Checks R1 to R4. Costs a walk over the chain; for tests and simulations.
    pub(crate) fn check(&self, pool: &BitsPool<P>) {
        let (nxt, high) = (self.rcv_nxt(), self.rcv_high());
        assert!(nxt <= high && (nxt == high) == self.chain.is_empty(), "R1: {nxt}, {high}");
        self.chain.check(pool, nxt, high); // R2
        if nxt == high {
            assert!(self.holes.iter().all(|hole| hole.len == 0), "R4: nothing is missing");
            return;
        }
        let front = pool.byte(self.chain.start(), nxt);
        let end = pool.byte(self.chain.end(), high - 1);
        assert_eq!(front & (bit_of(nxt) | (bit_of(nxt) - 1)), bit_of(nxt) - 1, "R3: front");
        assert_eq!(end & !(bit_of(high - 1) - 1), bit_of(high - 1), "R3: end");
        let mut top = high;
        for hole in self.holes() {
            let to = hole.first + hole.len;
            assert!(nxt <= hole.first && to < top, "R4: {hole:?} below {top}");
            assert_eq!(self.missing(pool, hole.first, to), hole.len, "R4: part of {hole:?}");
            assert_eq!(self.missing(pool, to, top), 0, "R4: left out above {hole:?}");
            let whole = hole.first == nxt || self.missing(pool, hole.first - 1, hole.first) == 0;
            assert!(whole, "R4: more of {hole:?}");
            top = hole.first;
        }
    }

    /// All missing packets from RCV.NXT on. Costs a walk over the chain: not for the packet path,
    /// which needs at most three holes.
    pub(crate) fn all_missing<'a>(
        &self,
        pool: &'a BitsPool<P>,
    ) -> impl Iterator<Item = u32> + use<'a, P> {
        let (nxt, high) = (self.rcv_nxt(), self.rcv_high());
        self.chain.bytes(pool, nxt).flat_map(move |(number, byte)| {
            let missing = mask_of(number, nxt, high) & !byte;
            let bits = (0..BYTE_BITS).filter(move |bit| missing & 1 << bit != 0);
            bits.map(move |bit| number * BYTE_BITS + bit)
        })
    }

    /// Number of missing packets in `from..to`. Costs a walk over the chain.
    fn missing(&self, pool: &BitsPool<P>, from: u32, to: u32) -> u32 {
        let bytes = self.chain.bytes(pool, self.rcv_nxt());
        bytes.map(|(number, byte)| (mask_of(number, from, to) & !byte).count_ones()).sum()
    }
}

/// The tracked holes, as a NACK carries them.
fn told(holes: &[Tracked; HOLES], nxt: u32) -> impl Iterator<Item = Hole> + '_ {
    holes.iter().take_while(|hole| hole.len > 0).map(move |hole| Hole {
        first: nxt + u32::from(hole.start.wrapping_sub(nxt as u16)),
        len: u32::from(hole.len),
    })
}

/// A receiver's state that holds no blocks ([`Reorder::swap_out`]).
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SwappedOut {
    holes: [Tracked; HOLES],
    marks: Marks,
    /// The blocks' bits from front to end.
    bits: Box<[u8]>,
}

impl SwappedOut {
    /// RCV.NXT.
    pub(crate) fn rcv_nxt(&self) -> u32 {
        self.marks.nxt()
    }

    /// RCV.HIGH.
    pub(crate) fn rcv_high(&self) -> u32 {
        self.marks.high()
    }

    /// The most recent holes, as [`Reorder::holes`] has them.
    pub(crate) fn holes(&self) -> impl Iterator<Item = Hole> + '_ {
        told(&self.holes, self.rcv_nxt())
    }

    /// Bytes of its bitmap, in whole blocks.
    pub(crate) fn bitmap_bytes(&self) -> u32 {
        self.bits.len() as u32
    }
}
