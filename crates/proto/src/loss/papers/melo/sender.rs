//! The sender's state of a connection: the receiver's bitmap, rebuilt from NACKs (M13-M15, `[MELO
//! §3.1, §3.2.4]`).

use super::chain::{Chain, Walk, mask_at, mask_of, next_byte};
use super::pool::{BYTE_BITS, BitsPool, BlockPtr};
use super::{HOLES, Hole, MAX_PSN};

/// Result of an acknowledgement or a NACK. Each packet is counted once, in either field, until
/// [`SenderMap::on_timeout`] discards it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Learned {
    /// Packets below the acknowledgement that were not known as received before.
    pub(crate) acked: u32,
    /// Packets beyond it that are newly known as received.
    pub(crate) received: u32,
}

/// A NACK that no receiver sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum BadNack {
    /// RCV.NXT is above RCV.HIGH, or RCV.HIGH is above one past [`MAX_PSN`].
    #[error("RCV.NXT above RCV.HIGH, or RCV.HIGH out of range")]
    Range,
    /// More than [`HOLES`] holes.
    #[error("more than three holes")]
    TooMany,
    /// A hole that is empty, outside RCV.NXT..RCV.HIGH, or not below the previous one with a packet
    /// between them; or no hole although RCV.HIGH is above RCV.NXT, which is then missing.
    #[error("holes that are empty, out of order, or out of range")]
    Holes,
}

/// The sender's state of one connection; here, of one message in flight.
///
/// A set bit marks a packet as received. A packet from `una` to `high` without a bit is either
/// lost, that is, in a hole that a NACK has reported, or unknown: NACKs were lost, and later ones
/// do not cover it. Lost packets are returned for retransmission once. Unknown packets count as
/// neither received nor lost; further acknowledgements or the timeout resolve them.
///
/// Guarantees, whatever NACKs and acknowledgements are lost, repeated, or reordered, if they come
/// from a receiver that keeps its state ([`super::Reorder`] between calls of `release`):
/// - A packet that is known as received has been received.
/// - A packet returned for retransmission was in a hole of a NACK, so it was missing when the NACK
///   was sent.
/// - Between two timeouts packets are returned in order and none twice.
/// - `una + known_received()` is the sum of everything that [`SenderMap::on_ack`] and
///   [`SenderMap::on_nack`] have returned, minus what [`SenderMap::on_timeout`] has returned.
///
/// The last three hold for any NACKs at all, and so do the invariants, besides those of the pool:
/// - (S1) `una <= high`; they are equal exactly when there are no blocks.
/// - (S2) The chain has exactly the blocks from that of `una` to that of `high - 1`.
/// - (S3) `known` bits are set from `una` to `high`, and none from `high` on.
/// - (S4) `una <= next <= high`.
/// - (S5) `cursor` is at a block of the chain, not after that of `next`; at none when the chain is
///   empty.
/// - (S6) From the lowest of `told` to `high`, all packets but `told`'s holes are known as
///   received.
///
/// When the pool has too few blocks for a NACK, the packets that they would hold stay unknown, and
/// nothing else changes (M16); a later NACK may report them again.
///
/// The state owns its blocks: [`SenderMap::release`] precedes its drop, and it is always used with
/// the same pool.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SenderMap<P> {
    /// Cumulative acknowledgement: the highest RCV.NXT received.
    una: u32,
    /// One past the highest packet that is known as received, or `una`.
    high: u32,
    /// Start of the search for the next retransmission: packets below were returned or are not to
    /// be.
    next: u32,
    /// Packets from `next` on that no NACK has covered; empty when both are equal.
    unknown_from: u32,
    unknown_to: u32,
    /// The block of `next`, or one before it.
    cursor: Walk<P>,
    /// The holes of the newest NACK. The next one usually repeats them, and then only the part
    /// above them is new, so the bitmap is accessed at its end.
    told: [Hole; HOLES],
    /// Packets beyond `una` that are known as received.
    known: u16,
    chain: Chain<P>,
}

const _: () = assert!(size_of::<SenderMap<u16>>() <= 64);

const NO_HOLE: Hole = Hole { first: 0, len: 0 };

impl<P: BlockPtr> SenderMap<P> {
    /// Nothing acknowledged.
    pub(crate) const fn new() -> SenderMap<P> {
        SenderMap {
            una: 0,
            high: 0,
            next: 0,
            unknown_from: 0,
            unknown_to: 0,
            cursor: Walk::NOWHERE,
            told: [NO_HOLE; HOLES],
            known: 0,
            chain: Chain::EMPTY,
        }
    }

    /// The cumulative acknowledgement: all packets below have been received.
    #[inline]
    pub(crate) fn una(&self) -> u32 {
        self.una
    }

    /// One past the highest packet that is known as received, or [`SenderMap::una`].
    #[inline]
    pub(crate) fn high(&self) -> u32 {
        self.high
    }

    /// Number of packets beyond [`SenderMap::una`] that are known as received.
    #[inline]
    pub(crate) fn known_received(&self) -> u32 {
        u32::from(self.known)
    }

    /// Returns whether a packet is known as received. Cost: a step for each block before it.
    pub(crate) fn is_received(&self, pool: &BitsPool<P>, psn: u32) -> bool {
        if psn < self.una || psn >= self.high {
            return psn < self.una;
        }
        let number = pool.block_of(psn);
        let block = Walk::from_front(pool, &self.chain, self.una).seek(pool, number);
        pool.byte(block, psn) & mask_at(psn, psn + 1) != 0
    }

    /// Takes a cumulative acknowledgement; returns the number of packets below it that were not
    /// known as received before. An old one changes nothing. Cost: one step for eight packets of
    /// the bitmap; without loss the bitmap is empty.
    /// The caller has checked that `to` packets were sent.
    #[inline]
    pub(crate) fn on_ack(&mut self, pool: &mut BitsPool<P>, rcv_nxt: u32) -> u32 {
        if rcv_nxt <= self.una {
            return 0;
        }
        if self.chain.is_empty() {
            let acked = rcv_nxt - self.una;
            (self.una, self.high, self.next) = (rcv_nxt, rcv_nxt, rcv_nxt);
            return acked;
        }
        self.advance(pool, rcv_nxt)
    }

    /// Slow path of [`SenderMap::on_ack`]: there is a bitmap, and the acknowledgement is new.
    fn advance(&mut self, pool: &mut BitsPool<P>, to: u32) -> u32 {
        let covered = to.min(self.high);
        let (mut at, mut ones) = (self.una, 0);
        while at < covered {
            ones += (pool.byte(self.chain.start(), at) & mask_at(at, covered)).count_ones();
            at = covered.min(next_byte(at));
            if at == self.high || pool.begins_block(at) {
                self.chain.pop_front(pool);
            }
        }
        let acked = to - self.una - ones;
        self.known -= ones as u16;
        self.una = to;
        self.high = self.high.max(to);
        self.next = self.next.max(to);
        if self.chain.is_empty() {
            self.cursor = Walk::NOWHERE;
        } else if self.cursor.number() < pool.block_of(to) {
            self.cursor = Walk::from_front(pool, &self.chain, to);
        }
        acked
    }

    /// Takes a NACK: `rcv_nxt`, `rcv_high`, and `holes`, most recent first, as [`super::Reorder`]
    /// returns them. Everything from the lowest hole to `rcv_high` except the holes has been
    /// received; below the lowest hole, earlier NACKs apply. Without holes only `rcv_high - 1` is
    /// known as received.
    /// Cost: a step for each new block when it repeats the holes of the previous NACK, as it does
    /// when none is lost; otherwise one for each block from `una` on. No allocation. The caller has
    /// checked that `rcv_high` packets were sent.
    /// # Errors
    /// No receiver sends this content; nothing has changed.
    pub(crate) fn on_nack(
        &mut self,
        pool: &mut BitsPool<P>,
        rcv_nxt: u32,
        rcv_high: u32,
        holes: &[Hole],
    ) -> Result<Learned, BadNack> {
        validate(rcv_nxt, rcv_high, holes)?;
        let acked = self.on_ack(pool, rcv_nxt);
        if rcv_high <= self.una {
            return Ok(Learned { acked, received: 0 });
        }
        let lowest = holes.last().map_or(rcv_high - 1, |hole| hole.first);
        let repeats = rcv_high >= self.high && self.repeats(holes);
        let from = if repeats { lowest.max(self.high) } else { lowest };
        let at_end = !self.chain.is_empty() && pool.block_of(from) >= pool.block_of(self.high - 1);
        let end = at_end.then(|| Walk::from_end(pool, &self.chain, self.high - 1));
        self.extend(pool, rcv_high, lowest);
        let walk = end.unwrap_or_else(|| Walk::from_front(pool, &self.chain, self.una));
        let received = self.mark(pool, walk, (from, rcv_high), holes);
        if rcv_high == self.high {
            self.told = [NO_HOLE; HOLES];
            self.told[..holes.len()].copy_from_slice(holes);
        }
        Ok(Learned { acked, received })
    }

    /// Returns whether the `holes` below `high` are the most recent of `told`, so that they add no
    /// information below `high`. The lowest may be shorter at its front, since a NACK covers
    /// nothing below its lowest hole.
    #[inline]
    fn repeats(&self, holes: &[Hole]) -> bool {
        let above = holes.iter().take_while(|hole| hole.first >= self.high).count();
        holes[above..].iter().zip(&self.told).enumerate().all(|(at, (hole, told))| {
            let front = hole.first == told.first
                || (hole.first > told.first && above + at + 1 == holes.len());
            front && hole.first + hole.len == told.first + told.len
        })
    }

    /// Extends the bitmap to `rcv_high`, if there are blocks for it. The packets between the old
    /// `high` and `lowest` are unknown.
    fn extend(&mut self, pool: &mut BitsPool<P>, rcv_high: u32, lowest: u32) {
        if rcv_high <= self.high || !self.chain.cover(pool, self.una, self.high, rcv_high - 1) {
            return;
        }
        if lowest > self.high {
            // Only one unknown range is kept. If an earlier one has not been passed, the holes
            // between the two are left to the timeout: this takes two lost NACKs in a row.
            if self.unknown_to <= self.next {
                self.unknown_from = self.high;
            }
            self.unknown_to = lowest;
        }
        if self.cursor == Walk::NOWHERE {
            self.cursor = Walk::from_front(pool, &self.chain, self.una);
        }
        self.high = rcv_high;
    }

    /// Sets the bits of the packets `from..rcv_high` that a NACK reports as received, as far as the
    /// bitmap reaches; returns how many were not set before. `walk` is not after the block of
    /// `from`.
    fn mark(
        &mut self,
        pool: &mut BitsPool<P>,
        mut walk: Walk<P>,
        (from, rcv_high): (u32, u32),
        holes: &[Hole],
    ) -> u32 {
        let mut news = 0;
        let mut from = from.max(self.una);
        // Up to each hole, starting at the lowest, and from the last one to `rcv_high`.
        let holes = holes.iter().rev().map(|hole| (hole.first, hole.first + hole.len));
        for (to, resume) in holes.chain([(rcv_high, rcv_high)]) {
            let to = to.min(self.high);
            while from < to {
                let block = walk.seek(pool, pool.block_of(from));
                let bits = pool.byte_mut(block, from);
                let mask = mask_at(from, to);
                news += (mask & !*bits).count_ones();
                *bits |= mask;
                from = to.min(next_byte(from));
            }
            from = from.max(resume);
        }
        self.known += news as u16;
        news
    }

    /// The next run of lost packets to retransmit, if any. Each packet is returned once, in order
    /// (M14); `len` is at least 1. Cost: a step for each block passed, and no block is passed
    /// twice.
    pub(crate) fn next_lost(&mut self, pool: &BitsPool<P>) -> Option<Hole> {
        let below = (self.next, self.high.min(self.unknown_from));
        let above = (self.next.max(self.unknown_to), self.high);
        for (from, to) in [below, above] {
            if from >= to {
                continue;
            }
            let first = find(pool, &mut self.cursor, from, to, false);
            if first < to {
                self.next = find(pool, &mut self.cursor, first, to, true);
                return Some(Hole { first, len: self.next - first });
            }
        }
        self.next = self.high;
        None
    }

    /// A timeout: discards everything known beyond `una`, so that it is sent again (M15), and
    /// returns the blocks. Returns the number of packets that had been known as received.
    pub(crate) fn on_timeout(&mut self, pool: &mut BitsPool<P>) -> u32 {
        self.chain.release(pool);
        let known = self.known_received();
        *self = SenderMap { una: self.una, high: self.una, next: self.una, ..SenderMap::new() };
        known
    }

    /// A timeout with a receiver that has kept its state: every packet that is not known as
    /// received is returned for retransmission again, from the front (M15), whether a NACK has
    /// named it or not, up to [`SenderMap::high`]. Packets beyond are to be sent again, too.
    pub(crate) fn restart(&mut self, pool: &BitsPool<P>) {
        self.next = self.una;
        (self.unknown_from, self.unknown_to) = (0, 0);
        if !self.chain.is_empty() {
            self.cursor = Walk::from_front(pool, &self.chain, self.una);
        }
    }

    /// Returns all blocks, for a connection that ends.
    pub(crate) fn release(&mut self, pool: &mut BitsPool<P>) {
        self.on_timeout(pool);
    }

    /// Its blocks, for [`BitsPool::check`].
    pub(crate) fn blocks<'a>(&self, pool: &'a BitsPool<P>) -> impl Iterator<Item = P> + use<'a, P> {
        self.chain.blocks(pool)
    }

    /// Checks S1 to S4. Costs a walk over the chain; for tests and simulations.
    pub(crate) fn check(&self, pool: &BitsPool<P>) {
        assert!(self.una <= self.high, "S1: {} above {}", self.una, self.high);
        assert_eq!(self.una == self.high, self.chain.is_empty(), "S1");
        self.chain.check(pool, self.una, self.high); // S2
        let ones = |from, to| -> u32 {
            self.chain
                .bytes(pool, self.una)
                .map(|(number, byte)| (byte & mask_of(number, from, to)).count_ones())
                .sum()
        };
        assert_eq!(ones(self.una, self.high), self.known_received(), "S3");
        assert_eq!(ones(self.high, self.high + BYTE_BITS), 0, "S3: ones above {}", self.high);
        assert!(self.una <= self.next && self.next <= self.high, "S4: {}", self.next);
        self.cursor.check(pool, &self.chain, self.una); // S5
        assert!(self.chain.is_empty() || self.cursor.number() <= pool.block_of(self.next), "S5");
        self.check_told(ones);
    }

    /// S6; `ones` counts the packets that are known as received.
    fn check_told(&self, ones: impl Fn(u32, u32) -> u32) {
        let mut top = self.high;
        for hole in self.told.iter().take_while(|hole| hole.len > 0) {
            let from = (hole.first + hole.len).max(self.una);
            assert!(from >= top || ones(from, top) == top - from, "S6: {from}..{top}");
            top = hole.first;
        }
    }
}

/// Checks that a receiver can send this NACK: see [`BadNack`].
fn validate(rcv_nxt: u32, rcv_high: u32, holes: &[Hole]) -> Result<(), BadNack> {
    if rcv_nxt > rcv_high || rcv_high > MAX_PSN + 1 {
        return Err(BadNack::Range);
    }
    if holes.len() > HOLES {
        return Err(BadNack::TooMany);
    }
    if rcv_nxt == rcv_high {
        return if holes.is_empty() { Ok(()) } else { Err(BadNack::Holes) };
    }
    // The packet above a hole is received: RCV.HIGH - 1 is, and so is the one between two holes.
    let mut top = rcv_high - 1;
    for hole in holes {
        let end = hole.first.checked_add(hole.len).ok_or(BadNack::Holes)?;
        if hole.len == 0 || hole.first < rcv_nxt || end > top {
            return Err(BadNack::Holes);
        }
        top = hole.first.saturating_sub(1);
    }
    // RCV.NXT is missing: in the lowest hole, or in an older one that ends below a received packet.
    let valid = match holes.last() {
        None => top > rcv_nxt,
        Some(lowest) => lowest.first != rcv_nxt + 1,
    };
    if valid { Ok(()) } else { Err(BadNack::Holes) }
}

/// The first of the packets `from..to`, all of them in the bitmap, that is known as received, or
/// that is not, according to `received`; or `to`.
fn find<P: BlockPtr>(
    pool: &BitsPool<P>,
    walk: &mut Walk<P>,
    from: u32,
    to: u32,
    received: bool,
) -> u32 {
    let flip = if received { 0 } else { u8::MAX };
    let mut at = from;
    while at < to {
        let block = walk.seek(pool, pool.block_of(at));
        let hits = (pool.byte(block, at) ^ flip) & mask_at(at, to);
        if hits != 0 {
            return at / BYTE_BITS * BYTE_BITS + hits.trailing_zeros();
        }
        at = next_byte(at);
    }
    to
}
