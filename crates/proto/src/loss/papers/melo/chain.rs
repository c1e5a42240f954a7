//! A connection's bitmap: a linked list of blocks of the pool (M8, `[MELO §3.2.3]`, Fig. 3a and
//! 3c).

use super::pool::{BLOCK_BITS, BitsPool, NIL};

/// Number of the block of a bitmap that holds the bit of packet `psn`. Blocks are aligned, so the
/// position of a bit follows from the PSN and no offset is stored.
#[inline]
pub(super) fn block_of(psn: u32) -> u32 {
    psn / BLOCK_BITS
}

/// The first packet of the block after that of `psn`.
#[inline]
pub(super) fn next_block(psn: u32) -> u32 {
    (block_of(psn) + 1) * BLOCK_BITS
}

/// The bit of packet `psn` in its block.
#[inline]
pub(super) fn bit_of(psn: u32) -> u8 {
    1 << (psn % BLOCK_BITS)
}

/// The bits of packets `from..to` in the block of `from`; `from` is below `to`.
#[inline]
pub(super) fn mask_at(from: u32, to: u32) -> u8 {
    let low = from % BLOCK_BITS;
    let len = (to - from).min(BLOCK_BITS - low);
    (((1u16 << len) - 1) << low) as u8
}

/// The bits of packets `from..to` in block `number`; for checks.
pub(super) fn mask_of(number: u32, from: u32, to: u32) -> u8 {
    let base = number * BLOCK_BITS;
    let low = from.max(base) - base;
    let high = to.min(base + BLOCK_BITS).max(base) - base;
    if low >= high {
        return 0;
    }
    ((1u16 << high) - (1u16 << low)) as u8
}

/// Both ends of a chain of blocks. It owns its blocks: it is not cloned, not dropped before
/// [`Chain::release`], and always used with the same pool.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chain {
    start_ptr: u8,
    end_ptr: u8,
}

impl Chain {
    pub(super) const EMPTY: Chain = Chain { start_ptr: NIL, end_ptr: NIL };

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.start_ptr == NIL
    }

    /// The first block, which holds the bit of RCV.NXT.
    #[inline]
    pub(super) fn start(&self) -> u8 {
        self.start_ptr
    }

    /// The last block, which holds the bit below RCV.HIGH.
    #[inline]
    pub(super) fn end(&self) -> u8 {
        self.end_ptr
    }

    /// Appends `count` zeroed blocks, or none if the pool has too few; returns whether it did.
    /// O(`count`).
    #[inline]
    pub(super) fn extend<const BLOCKS: usize>(
        &mut self,
        pool: &mut BitsPool<BLOCKS>,
        count: u32,
    ) -> bool {
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
    pub(super) fn cover<const BLOCKS: usize>(
        &mut self,
        pool: &mut BitsPool<BLOCKS>,
        from: u32,
        to: u32,
        last: u32,
    ) -> bool {
        let first_missing = if from == to { block_of(from) } else { block_of(to - 1) + 1 };
        self.extend(pool, block_of(last) + 1 - first_missing)
    }

    /// Returns the first block to the pool. The chain must not be empty.
    #[inline]
    pub(super) fn pop_front<const BLOCKS: usize>(&mut self, pool: &mut BitsPool<BLOCKS>) {
        let block = self.start_ptr;
        if block == self.end_ptr {
            *self = Chain::EMPTY;
        } else {
            self.start_ptr = pool.next(block);
        }
        pool.free(block);
    }

    /// Returns all blocks to the pool. O(blocks).
    pub(super) fn release<const BLOCKS: usize>(&mut self, pool: &mut BitsPool<BLOCKS>) {
        while !self.is_empty() {
            self.pop_front(pool);
        }
    }

    /// The blocks from front to end.
    pub(super) fn blocks<'a, const BLOCKS: usize>(
        &self,
        pool: &'a BitsPool<BLOCKS>,
    ) -> impl Iterator<Item = u8> + use<'a, BLOCKS> {
        let first = Some(self.start_ptr).filter(|&block| block != NIL);
        std::iter::successors(first, |&block| Some(pool.next(block)).filter(|&next| next != NIL))
    }

    /// Checks that the chain has exactly the blocks of packets `from..to` and ends correctly.
    pub(super) fn check<const BLOCKS: usize>(&self, pool: &BitsPool<BLOCKS>, from: u32, to: u32) {
        let wanted = if from == to { 0 } else { block_of(to - 1) + 1 - block_of(from) };
        let blocks = self.blocks(pool).take(BLOCKS + 1).count();
        assert_eq!(blocks as u32, wanted, "the blocks of {from}..{to}");
        assert_eq!(self.blocks(pool).last().unwrap_or(NIL), self.end_ptr);
    }
}

/// A position in a chain: a block and its number in the bitmap. Moves only forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Walk {
    number: u32,
    block: u8,
}

impl Walk {
    /// The position while there is no chain.
    pub(super) const NOWHERE: Walk = Walk { number: 0, block: NIL };

    /// At the first block of `chain`, which holds the bit of packet `psn`; also for an empty chain.
    #[inline]
    pub(super) fn from_front(chain: &Chain, psn: u32) -> Walk {
        Walk { number: block_of(psn), block: chain.start() }
    }

    /// At the last block of `chain`, which is not empty and ends with packet `last`.
    #[inline]
    pub(super) fn from_end(chain: &Chain, last: u32) -> Walk {
        Walk { number: block_of(last), block: chain.end() }
    }

    /// Number of its block in the bitmap.
    #[inline]
    pub(super) fn number(self) -> u32 {
        self.number
    }

    /// Moves to the block `number`, which is in the chain and not behind; returns it.
    #[inline]
    pub(super) fn seek<const BLOCKS: usize>(&mut self, pool: &BitsPool<BLOCKS>, number: u32) -> u8 {
        while self.number < number {
            self.block = pool.next(self.block);
            self.number += 1;
        }
        self.block
    }

    /// Checks that it is at a block of the chain, which begins with packet `from`.
    pub(super) fn check<const BLOCKS: usize>(
        self,
        pool: &BitsPool<BLOCKS>,
        chain: &Chain,
        from: u32,
    ) {
        let mut numbered = (block_of(from)..).zip(chain.blocks(pool));
        let there = numbered.any(|place| place == (self.number, self.block));
        assert!(
            there || (chain.is_empty() && self.block == NIL),
            "the position is outside its chain"
        );
    }
}
