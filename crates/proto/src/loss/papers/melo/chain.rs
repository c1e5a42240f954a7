//! A connection's bitmap: a linked list of blocks of the pool (M8, `[MELO §3.2.3]`, Fig. 3a and
//! 3c).

use super::pool::{BYTE_BITS, BitsPool, BlockPtr};

/// The first packet of the byte after that of `psn`.
#[inline]
pub(super) fn next_byte(psn: u32) -> u32 {
    (psn / BYTE_BITS + 1) * BYTE_BITS
}

/// The bit of packet `psn` in its byte.
#[inline]
pub(super) fn bit_of(psn: u32) -> u8 {
    1 << (psn % BYTE_BITS)
}

/// The bits of packets `from..to` in the byte of `from`; `from` is below `to`.
#[inline]
pub(super) fn mask_at(from: u32, to: u32) -> u8 {
    let low = from % BYTE_BITS;
    let len = (to - from).min(BYTE_BITS - low);
    (((1u16 << len) - 1) << low) as u8
}

/// The bits of packets `from..to` in byte `number` of a bitmap; for checks.
pub(super) fn mask_of(number: u32, from: u32, to: u32) -> u8 {
    let base = number * BYTE_BITS;
    let low = from.max(base) - base;
    let high = to.min(base + BYTE_BITS).max(base) - base;
    if low >= high {
        return 0;
    }
    ((1u16 << high) - (1u16 << low)) as u8
}

/// Both ends of a chain of blocks. It owns its blocks: it is not cloned, not dropped before
/// [`Chain::release`], and always used with the same pool.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chain<P> {
    start_ptr: P,
    end_ptr: P,
}

impl<P: BlockPtr> Chain<P> {
    pub(super) const EMPTY: Chain<P> = Chain { start_ptr: P::NIL, end_ptr: P::NIL };

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.start_ptr == P::NIL
    }

    /// The first block, which holds the bit of RCV.NXT.
    #[inline]
    pub(super) fn start(&self) -> P {
        self.start_ptr
    }

    /// The last block, which holds the bit below RCV.HIGH.
    #[inline]
    pub(super) fn end(&self) -> P {
        self.end_ptr
    }

    /// Appends `count` zeroed blocks, or none if the pool has too few; returns whether it did.
    /// O(`count`).
    #[inline]
    pub(super) fn extend(&mut self, pool: &mut BitsPool<P>, count: u32) -> bool {
        if count == 0 {
            return true;
        }
        if !pool.has(count) {
            return false;
        }
        for _ in 0..count {
            let block = pool.alloc();
            if self.is_empty() {
                self.start_ptr = block;
            } else {
                pool.link(self.end_ptr, block);
            }
            self.end_ptr = block;
        }
        true
    }

    /// Extends a bitmap of packets `from..to` (none when equal) to packet `last`, like
    /// [`Chain::extend`].
    #[inline]
    pub(super) fn cover(&mut self, pool: &mut BitsPool<P>, from: u32, to: u32, last: u32) -> bool {
        let first = if from == to { pool.block_of(from) } else { pool.block_of(to - 1) + 1 };
        self.extend(pool, pool.block_of(last) + 1 - first)
    }

    /// Returns the first block to the pool. The chain must not be empty.
    #[inline]
    pub(super) fn pop_front(&mut self, pool: &mut BitsPool<P>) {
        let block = self.start_ptr;
        if block == self.end_ptr {
            *self = Chain::EMPTY;
        } else {
            self.start_ptr = pool.next(block);
        }
        pool.free(block);
    }

    /// Returns all blocks to the pool. O(blocks).
    pub(super) fn release(&mut self, pool: &mut BitsPool<P>) {
        while !self.is_empty() {
            self.pop_front(pool);
        }
    }

    /// The blocks from front to end.
    pub(super) fn blocks<'a>(&self, pool: &'a BitsPool<P>) -> impl Iterator<Item = P> + use<'a, P> {
        let first = Some(self.start_ptr).filter(|&block| block != P::NIL);
        std::iter::successors(first, |&block| Some(pool.next(block)).filter(|&next| next != P::NIL))
    }

    /// The bytes of its blocks, with their numbers in the bitmap, which begins with packet `from`; for
    /// checks and for states that leave the pool.
    pub(super) fn bytes<'a>(
        &self,
        pool: &'a BitsPool<P>,
        from: u32,
    ) -> impl Iterator<Item = (u32, u8)> + use<'a, P> {
        let bytes = self.blocks(pool).flat_map(|block| pool.bytes(block).iter().copied());
        (pool.block_of(from) * pool.block_bytes()..).zip(bytes)
    }

    /// Checks that the chain has exactly the blocks of packets `from..to` and ends correctly.
    pub(super) fn check(&self, pool: &BitsPool<P>, from: u32, to: u32) {
        let wanted = if from == to { 0 } else { pool.block_of(to - 1) + 1 - pool.block_of(from) };
        let blocks = self.blocks(pool).take(pool.blocks() as usize + 1).count();
        assert_eq!(blocks as u32, wanted, "the blocks of {from}..{to}");
        assert_eq!(self.blocks(pool).last().unwrap_or(P::NIL), self.end_ptr);
    }
}

/// A position in a chain: a block and its number in the bitmap. Moves only forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Walk<P> {
    number: u32,
    block: P,
}

impl<P: BlockPtr> Walk<P> {
    /// The position while there is no chain.
    pub(super) const NOWHERE: Walk<P> = Walk { number: 0, block: P::NIL };

    /// At the first block of `chain`, which holds the bit of packet `psn`; also for an empty chain.
    #[inline]
    pub(super) fn from_front(pool: &BitsPool<P>, chain: &Chain<P>, psn: u32) -> Walk<P> {
        Walk { number: pool.block_of(psn), block: chain.start() }
    }

    /// At the last block of `chain`, which is not empty and ends with packet `last`.
    #[inline]
    pub(super) fn from_end(pool: &BitsPool<P>, chain: &Chain<P>, last: u32) -> Walk<P> {
        Walk { number: pool.block_of(last), block: chain.end() }
    }

    /// Number of its block in the bitmap.
    #[inline]
    pub(super) fn number(self) -> u32 {
        self.number
    }

    /// Moves to the block `number`, which is in the chain and not behind; returns it.
    #[inline]
    pub(super) fn seek(&mut self, pool: &BitsPool<P>, number: u32) -> P {
        while self.number < number {
            self.block = pool.next(self.block);
            self.number += 1;
        }
        self.block
    }

    /// Checks that it is at a block of the chain, which begins with packet `from`.
    pub(super) fn check(self, pool: &BitsPool<P>, chain: &Chain<P>, from: u32) {
        let mut numbered = (pool.block_of(from)..).zip(chain.blocks(pool));
        let there = numbered.any(|place| place == (self.number, self.block));
        assert!(
            there || (chain.is_empty() && self.block == P::NIL),
            "the position is outside its chain"
        );
    }
}
