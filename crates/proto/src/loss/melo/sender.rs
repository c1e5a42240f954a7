//! What a sender keeps of each connection: the receiver's bitmap, rebuilt from NACKs (M13-M15,
//! `[MELO §3.1, §3.2.4]`).

use super::chain::{Chain, Walk, block_of, mask_at, mask_of, next_block};
use super::pool::{BLOCK_BITS, BitsPool};
use super::{HOLES, Hole, MAX_PSN};

/// What an acknowledgement or a NACK has taught. Each packet is counted once, here or there, until
/// [`SenderMap::on_timeout`] forgets it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Learned {
    /// Packets below the acknowledgement that were not known as received until now.
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
    /// A hole that is empty, outside of RCV.NXT..RCV.HIGH, or not below the one before it with a
    /// packet between them; or no hole where there must be one: RCV.NXT itself is missing when
    /// RCV.HIGH is above it.
    #[error("holes that are empty, out of order, or out of range")]
    Holes,
}

/// The sender's state of one connection; here, of one message in flight.
///
/// A bit says that a packet is known as received. A packet from `una` to `high` without one is
/// either lost, which is to say in a hole that a NACK has reported, or unknown: NACKs were lost, and
/// later ones do not reach back to it. What is lost is handed out for retransmission, once; what is
/// unknown is neither claimed as received nor as lost, and left to further acknowledgements or to
/// the timeout.
///
/// What can be relied on, whatever NACKs and acknowledgements are lost, repeated, or overtake each
/// other, if they come from a receiver that has not forgotten anything ([`super::Reorder`] between
/// calls of `release`):
/// - A packet that is known as received has been received.
/// - A packet that is handed out was in a hole of a NACK, so it was missing when that was sent.
/// - Between two timeouts packets are handed out in order and none twice.
/// - `una + known_received()` is the sum of everything that [`SenderMap::on_ack`] and
///   [`SenderMap::on_nack`] have returned, less what [`SenderMap::on_timeout`] has.
///
/// The last three hold for any NACKs at all, and so do the invariants, besides those of the pool:
/// - (S1) `una <= high`; they are equal exactly when there are no blocks.
/// - (S2) The chain has exactly the blocks from that of `una` to that of `high - 1`.
/// - (S3) There are `known` ones from `una` to `high`, and none from `high` on.
/// - (S4) `una <= next <= high`.
/// - (S5) `cursor` is at a block of the chain, not after that of `next`; at none when there is none.
/// - (S6) From the lowest of `told` to `high`, what is known as received is all but `told`'s holes,
///   or more.
///
/// When the pool has too few blocks for what a NACK says, what they would hold stays unknown, and
/// nothing else changes (M16); a later NACK may say it again.
///
/// The state owns its blocks: [`SenderMap::release`] comes before it is dropped, and it is always
/// used with the same pool.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SenderMap {
    /// Cumulative acknowledgement: the highest RCV.NXT seen.
    una: u32,
    /// One past the highest packet that is known as received, or `una`.
    high: u32,
    /// Where the search for holes to retransmit goes on: all below are handed out or not to be.
    next: u32,
    /// Packets that no NACK has told about, among those from `next` on; empty when they are equal.
    unknown_from: u32,
    unknown_to: u32,
    /// Where the block of `next` is, or one before it.
    cursor: Walk,
    /// The holes of the newest NACK, as it gave them. The next one repeats them, and then only what
    /// is above them is news: so the bitmap is touched at its end.
    told: [Hole; HOLES],
    /// Packets beyond `una` that are known as received.
    known: u16,
    chain: Chain,
}

const _: () = assert!(size_of::<SenderMap>() <= 64);

const NO_HOLE: Hole = Hole { first: 0, len: 0 };

impl SenderMap {
    /// Nothing acknowledged.
    pub(crate) const fn new() -> SenderMap {
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

    /// The cumulative acknowledgement: all below it have been received.
    #[inline]
    pub(crate) fn una(&self) -> u32 {
        self.una
    }

    /// One past the highest packet that is known as received, or [`SenderMap::una`].
    #[inline]
    pub(crate) fn high(&self) -> u32 {
        self.high
    }

    /// How many packets beyond [`SenderMap::una`] are known as received.
    #[inline]
    pub(crate) fn known_received(&self) -> u32 {
        u32::from(self.known)
    }

    /// Whether a packet is known as received. Cost: a step for each block before it.
    pub(crate) fn is_received<const BLOCKS: usize>(
        &self,
        pool: &BitsPool<BLOCKS>,
        psn: u32,
    ) -> bool {
        if psn < self.una || psn >= self.high {
            return psn < self.una;
        }
        let number = block_of(psn);
        let block = Walk::from_front(&self.chain, self.una).seek(pool, number);
        pool.bits(block) & mask_of(number, psn, psn + 1) != 0
    }

    /// Takes a cumulative acknowledgement; gives how many packets below it were not known as
    /// received until now. An old one changes nothing. Cost: one step for eight packets that the
    /// bitmap covers; without loss it covers none.
    ///
    /// The caller has checked that so many packets were sent.
    #[inline]
    pub(crate) fn on_ack<const BLOCKS: usize>(
        &mut self,
        pool: &mut BitsPool<BLOCKS>,
        rcv_nxt: u32,
    ) -> u32 {
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

    /// The rest of [`SenderMap::on_ack`]: there is a bitmap, and the acknowledgement is new.
    fn advance<const BLOCKS: usize>(&mut self, pool: &mut BitsPool<BLOCKS>, to: u32) -> u32 {
        let covered = to.min(self.high);
        let (mut at, mut ones) = (self.una, 0);
        while at < covered {
            ones += (pool.bits(self.chain.start()) & mask_at(at, covered)).count_ones();
            at = covered.min(next_block(at));
            if at == self.high || at.is_multiple_of(BLOCK_BITS) {
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
        } else if self.cursor.number() < block_of(to) {
            self.cursor = Walk::from_front(&self.chain, to);
        }
        acked
    }

    /// Takes a NACK: `rcv_nxt`, `rcv_high`, and `holes` with the most recent one first, as
    /// [`super::Reorder`] gives them. It says that everything from the lowest hole to `rcv_high` but
    /// the holes has been received, and nothing of what is below that hole, which is as earlier
    /// NACKs have said. Without holes only `rcv_high - 1` is known as received.
    ///
    /// Cost: a step for each new block when it repeats the holes of the one before, as it does when
    /// none is lost; else one for each block from `una` on, at most those of the pool. No
    /// allocation. The caller has checked that `rcv_high` packets were sent.
    ///
    /// # Errors
    /// When no receiver sends that; nothing has changed then.
    pub(crate) fn on_nack<const BLOCKS: usize>(
        &mut self,
        pool: &mut BitsPool<BLOCKS>,
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
        let at_end = !self.chain.is_empty() && block_of(from) >= block_of(self.high - 1);
        let end = at_end.then(|| Walk::from_end(&self.chain, self.high - 1));
        self.extend(pool, rcv_high, lowest);
        let walk = end.unwrap_or_else(|| Walk::from_front(&self.chain, self.una));
        let received = self.mark(pool, walk, (from, rcv_high), holes);
        if rcv_high == self.high {
            self.told = [NO_HOLE; HOLES];
            self.told[..holes.len()].copy_from_slice(holes);
        }
        Ok(Learned { acked, received })
    }

    /// Whether of `holes` those below `high` are the most recent of `told`, so that they tell
    /// nothing new of what is below `high`. The lowest may have lost packets from its front: a NACK
    /// does not tell of what is below its lowest hole.
    #[inline]
    fn repeats(&self, holes: &[Hole]) -> bool {
        let above = holes.iter().take_while(|hole| hole.first >= self.high).count();
        holes[above..].iter().zip(&self.told).enumerate().all(|(at, (hole, told))| {
            let front = hole.first == told.first
                || (hole.first > told.first && above + at + 1 == holes.len());
            front && hole.first + hole.len == told.first + told.len
        })
    }

    /// Makes the bitmap reach `rcv_high`, if there are blocks for it. What lies between the old
    /// `high` and `lowest` is unknown.
    fn extend<const BLOCKS: usize>(
        &mut self,
        pool: &mut BitsPool<BLOCKS>,
        rcv_high: u32,
        lowest: u32,
    ) {
        if rcv_high <= self.high || !self.chain.cover(pool, self.una, self.high, rcv_high - 1) {
            return;
        }
        if lowest > self.high {
            // One range is kept. When there is one before that is not passed yet, the holes between
            // the two go with them, to the timeout: it takes two losses of NACKs in a row.
            if self.unknown_to <= self.next {
                self.unknown_from = self.high;
            }
            self.unknown_to = lowest;
        }
        if self.cursor == Walk::NOWHERE {
            self.cursor = Walk::from_front(&self.chain, self.una);
        }
        self.high = rcv_high;
    }

    /// Sets the bits of what a NACK says is received of the packets `from..rcv_high`, as far as the
    /// bitmap reaches; gives how many were not set before. `walk` is not after the block of `from`.
    fn mark<const BLOCKS: usize>(
        &mut self,
        pool: &mut BitsPool<BLOCKS>,
        mut walk: Walk,
        (from, rcv_high): (u32, u32),
        holes: &[Hole],
    ) -> u32 {
        let mut news = 0;
        let mut from = from.max(self.una);
        // Up to each hole, from the lowest on, and from the last one to `rcv_high`.
        let holes = holes.iter().rev().map(|hole| (hole.first, hole.first + hole.len));
        for (to, resume) in holes.chain([(rcv_high, rcv_high)]) {
            let to = to.min(self.high);
            while from < to {
                let bits = pool.bits_mut(walk.seek(pool, block_of(from)));
                let mask = mask_at(from, to);
                news += (mask & !*bits).count_ones();
                *bits |= mask;
                from = to.min(next_block(from));
            }
            from = from.max(resume);
        }
        self.known += news as u16;
        news
    }

    /// The next packets to retransmit, if there are any: lost ones, one after the other. Each is
    /// handed out once, in order (M14); `len` is at least 1. Cost: a step for each block that it
    /// passes, and none is passed twice.
    pub(crate) fn next_lost<const BLOCKS: usize>(
        &mut self,
        pool: &BitsPool<BLOCKS>,
    ) -> Option<Hole> {
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

    /// A timeout: forgets what is known beyond `una`, so that everything from there on is sent again
    /// (M15), and gives the blocks back. Gives how many packets had been known as received.
    pub(crate) fn on_timeout<const BLOCKS: usize>(&mut self, pool: &mut BitsPool<BLOCKS>) -> u32 {
        self.chain.release(pool);
        let known = self.known_received();
        *self = SenderMap { una: self.una, high: self.una, next: self.una, ..SenderMap::new() };
        known
    }

    /// Gives all blocks back, for a connection that ends.
    pub(crate) fn release<const BLOCKS: usize>(&mut self, pool: &mut BitsPool<BLOCKS>) {
        self.on_timeout(pool);
    }

    /// The blocks it has, for [`BitsPool::check`].
    pub(crate) fn blocks<'a, const BLOCKS: usize>(
        &self,
        pool: &'a BitsPool<BLOCKS>,
    ) -> impl Iterator<Item = u8> + use<'a, BLOCKS> {
        self.chain.blocks(pool)
    }

    /// Checks S1 to S4. Costs a walk over the chain; for tests and simulations.
    pub(crate) fn check<const BLOCKS: usize>(&self, pool: &BitsPool<BLOCKS>) {
        assert!(self.una <= self.high, "S1: {} above {}", self.una, self.high);
        assert_eq!(self.una == self.high, self.chain.is_empty(), "S1");
        self.chain.check(pool, self.una, self.high); // S2
        let ones = |from, to| -> u32 {
            (block_of(self.una)..)
                .zip(self.chain.blocks(pool))
                .map(|(number, block)| (pool.bits(block) & mask_of(number, from, to)).count_ones())
                .sum()
        };
        assert_eq!(ones(self.una, self.high), self.known_received(), "S3");
        assert_eq!(ones(self.high, self.high + BLOCK_BITS), 0, "S3: ones above {}", self.high);
        assert!(self.una <= self.next && self.next <= self.high, "S4: {}", self.next);
        self.cursor.check(pool, &self.chain, self.una); // S5
        assert!(self.chain.is_empty() || self.cursor.number() <= block_of(self.next), "S5");
        self.check_told(ones);
    }

    /// S6; `ones` counts what is known as received.
    fn check_told(&self, ones: impl Fn(u32, u32) -> u32) {
        let mut top = self.high;
        for hole in self.told.iter().take_while(|hole| hole.len > 0) {
            let from = (hole.first + hole.len).max(self.una);
            assert!(from >= top || ones(from, top) == top - from, "S6: {from}..{top}");
            top = hole.first;
        }
    }
}

/// Whether a receiver can send that: see [`BadNack`].
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
    // The packet above a hole is received: RCV.HIGH - 1 is, and the one between two holes.
    let mut top = rcv_high - 1;
    for hole in holes {
        let end = hole.first.checked_add(hole.len).ok_or(BadNack::Holes)?;
        if hole.len == 0 || hole.first < rcv_nxt || end > top {
            return Err(BadNack::Holes);
        }
        top = hole.first.saturating_sub(1);
    }
    // RCV.NXT is missing: in the lowest hole, or in one below, and a packet between them is not.
    let valid = match holes.last() {
        None => top > rcv_nxt,
        Some(lowest) => lowest.first != rcv_nxt + 1,
    };
    if valid { Ok(()) } else { Err(BadNack::Holes) }
}

/// The first of the packets `from..to`, all of them in the bitmap, that is known as received, or
/// that is not, as `received` says; or `to`.
fn find<const BLOCKS: usize>(
    pool: &BitsPool<BLOCKS>,
    walk: &mut Walk,
    from: u32,
    to: u32,
    received: bool,
) -> u32 {
    let flip = if received { 0 } else { u8::MAX };
    let mut at = from;
    while at < to {
        let number = block_of(at);
        let hits = (pool.bits(walk.seek(pool, number)) ^ flip) & mask_at(at, to);
        if hits != 0 {
            return number * BLOCK_BITS + hits.trailing_zeros();
        }
        at = next_block(at);
    }
    to
}
