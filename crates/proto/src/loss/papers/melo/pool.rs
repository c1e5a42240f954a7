//! The shared bits pool (M5-M7, `[MELO §3.2.3]`, Fig. 3a and 3b).

/// No block: the `next_ptr` of a chain's last block, and both pointers of an empty chain.
pub(super) const NIL: u8 = u8::MAX;

/// Bits in a block: one byte, the paper's balance between internal fragmentation and management
/// overhead (M6).
pub(crate) const BLOCK_BITS: u32 = 8;

/// The paper's pool: 1,024 bits, which cover 1 MB in flight with packets of 1 KB.
pub(crate) type MeloPool = BitsPool<128>;

/// Memory of one side, whatever the number of its connections (M18).
#[derive(Debug)]
struct Arrays<const BLOCKS: usize> {
    /// The blocks themselves.
    bits: [u8; BLOCKS],
    /// For each block the next block of the same bitmap, or [`NIL`].
    next_ptr: [u8; BLOCKS],
    /// Stack of the free blocks.
    available: [u8; BLOCKS],
}

// M18: 1,024 b of bits, 1,024 b of next_ptr and 1,024 b of available are 3 Kb a side, 6 Kb both.
const _: () = assert!(size_of::<Arrays<128>>() * 8 == 3 * 1024);
const _: () = assert!(2 * size_of::<Arrays<128>>() * 8 == 6 * 1024);

/// Bits for the bitmaps of all connections of one side, in blocks of eight.
///
/// A connection's bitmap is a chain of arbitrary blocks, so there is no external fragmentation and
/// no compaction. Taking and returning a block are O(1) (M7). The pool needs one bit per packet in
/// flight to this side, bandwidth x RTT / packet size, independent of the number of connections
/// (M5).
///
/// Memory: three bytes per block, plus counters. `BLOCKS` is 1 to 255: a pointer is one byte.
///
/// Invariant (P1): every block is either free, and then exactly once at or above `avail_ptr`, or in
/// exactly one chain.
#[derive(Debug)]
pub(crate) struct BitsPool<const BLOCKS: usize> {
    arrays: Arrays<BLOCKS>,
    /// Top of the stack: "any entry with index larger than or equal to the pointer is available".
    /// It is also the number of blocks in use.
    avail_ptr: u8,
    most: u8,
    refusals: u64,
}

/// Use of a pool, in blocks, of [`BitsPool::BLOCKS`] in total.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PoolUse {
    /// Blocks in chains now.
    pub(crate) in_use: u32,
    /// Most blocks in chains at any time.
    pub(crate) most: u32,
    /// Failed allocations, each for one packet or one NACK (M16).
    pub(crate) refusals: u64,
}

impl<const BLOCKS: usize> BitsPool<BLOCKS> {
    /// Number of blocks.
    pub(crate) const BLOCKS: u32 = BLOCKS as u32;

    /// A pool with all blocks free.
    pub(crate) fn new() -> Self {
        const { assert!(BLOCKS >= 1 && BLOCKS <= NIL as usize, "a pointer is a byte, one is NIL") };
        BitsPool {
            arrays: Arrays {
                bits: [0; BLOCKS],
                next_ptr: [NIL; BLOCKS],
                available: std::array::from_fn(|block| block as u8),
            },
            avail_ptr: 0,
            most: 0,
            refusals: 0,
        }
    }

    /// Use of the pool.
    pub(crate) fn usage(&self) -> PoolUse {
        PoolUse {
            in_use: u32::from(self.avail_ptr),
            most: u32::from(self.most),
            refusals: self.refusals,
        }
    }

    /// Returns whether `count` blocks are free; counts a failed allocation otherwise.
    #[inline]
    pub(super) fn has(&mut self, count: u32) -> bool {
        let enough = count <= Self::BLOCKS - u32::from(self.avail_ptr);
        self.refusals += u64::from(!enough);
        enough
    }

    /// Takes a zeroed block from the top of the stack, as the last in its chain. The caller has
    /// checked [`BitsPool::has`].
    #[inline]
    pub(super) fn alloc(&mut self) -> u8 {
        let block = self.arrays.available[usize::from(self.avail_ptr)];
        self.avail_ptr += 1;
        self.most = self.most.max(self.avail_ptr);
        self.arrays.bits[usize::from(block)] = 0;
        self.arrays.next_ptr[usize::from(block)] = NIL;
        block
    }

    /// Returns a block to the top of the stack.
    #[inline]
    pub(super) fn free(&mut self, block: u8) {
        self.avail_ptr -= 1;
        self.arrays.available[usize::from(self.avail_ptr)] = block;
    }

    /// The bits of a block; bit `i` is that of its packet `i`.
    #[inline]
    pub(super) fn bits(&self, block: u8) -> u8 {
        self.arrays.bits[usize::from(block)]
    }

    /// Mutable access to the bits of a block.
    #[inline]
    pub(super) fn bits_mut(&mut self, block: u8) -> &mut u8 {
        &mut self.arrays.bits[usize::from(block)]
    }

    /// The block after `block` in its chain.
    #[inline]
    pub(super) fn next(&self, block: u8) -> u8 {
        self.arrays.next_ptr[usize::from(block)]
    }

    /// Links `next` after `block`.
    #[inline]
    pub(super) fn link(&mut self, block: u8, next: u8) {
        self.arrays.next_ptr[usize::from(block)] = next;
    }

    /// Checks P1, given the blocks of all chains. Costs a walk over the pool; for tests and
    /// simulations.
    pub(crate) fn check(&self, owned: impl IntoIterator<Item = u8>) {
        let mut seen = [false; BLOCKS];
        let free = self.arrays.available[usize::from(self.avail_ptr)..].iter().copied();
        for block in free.chain(owned) {
            let before = std::mem::replace(&mut seen[usize::from(block)], true);
            assert!(!before, "P1: block {block} twice");
        }
        assert!(!seen.contains(&false), "P1: a block lost");
        assert!(self.avail_ptr <= self.most);
    }
}
