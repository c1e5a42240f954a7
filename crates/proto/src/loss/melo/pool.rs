//! The shared bits pool (M5-M7, `[MELO §3.2.3]`, Fig. 3a and 3b).

/// No block: what `next_ptr` of a chain's last block says, and both pointers of an empty chain.
pub(super) const NIL: u8 = u8::MAX;

/// Bits in a block: one byte, which the paper weighs as the balance between bits lost to internal
/// fragmentation and bytes spent on management (M6).
pub(crate) const BLOCK_BITS: u32 = 8;

/// The paper's pool: 1,024 bits, which cover 1 MB in flight at 1 KB a packet.
pub(crate) type MeloPool = BitsPool<128>;

/// What a side pays for, whatever the number of its connections (M18).
#[derive(Debug)]
struct Arrays<const BLOCKS: usize> {
    /// The blocks themselves.
    bits: [u8; BLOCKS],
    /// Beside each block the next one of the same bitmap, or [`NIL`].
    next_ptr: [u8; BLOCKS],
    /// The free slots array: a stack of the blocks that are free.
    available: [u8; BLOCKS],
}

// M18: 1,024 b of bits, 1,024 b of next_ptr and 1,024 b of available are 3 Kb a side, 6 Kb both.
const _: () = assert!(size_of::<Arrays<128>>() * 8 == 3 * 1024);
const _: () = assert!(2 * size_of::<Arrays<128>>() * 8 == 6 * 1024);

/// Bits for the bitmaps of all connections of one side, in blocks of eight.
///
/// A connection's bitmap is a chain of blocks from anywhere in the pool, so there is no external
/// fragmentation and nothing to compact: as long as a block is free, it can be had. Taking one and
/// giving one back are O(1) (M7). The pool needs as many bits as packets are in flight to this side
/// together, bandwidth x RTT / packet size, which does not depend on how many connections share it
/// (M5).
///
/// Memory: three bytes a block, and the counters. `BLOCKS` is 1 to 255: a pointer is one byte.
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

/// How a pool has been used. Counts of blocks, of [`BitsPool::BLOCKS`] that there are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PoolUse {
    /// Blocks in chains now.
    pub(crate) in_use: u32,
    /// Most blocks ever in chains at once.
    pub(crate) most: u32,
    /// Requests for blocks, each of them one packet or one NACK, that could not be met (M16).
    pub(crate) refusals: u64,
}

impl<const BLOCKS: usize> BitsPool<BLOCKS> {
    /// How many blocks there are.
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

    /// How the pool has been used.
    pub(crate) fn usage(&self) -> PoolUse {
        PoolUse {
            in_use: u32::from(self.avail_ptr),
            most: u32::from(self.most),
            refusals: self.refusals,
        }
    }

    /// Whether `count` blocks are free; notes that they were wanted when they are not.
    #[inline]
    pub(super) fn has(&mut self, count: u32) -> bool {
        let enough = count <= Self::BLOCKS - u32::from(self.avail_ptr);
        self.refusals += u64::from(!enough);
        enough
    }

    /// Takes a block from the top of the stack, all zeros, last in its chain. [`BitsPool::has`]
    /// has said that there is one.
    #[inline]
    pub(super) fn alloc(&mut self) -> u8 {
        let block = self.arrays.available[usize::from(self.avail_ptr)];
        self.avail_ptr += 1;
        self.most = self.most.max(self.avail_ptr);
        self.arrays.bits[usize::from(block)] = 0;
        self.arrays.next_ptr[usize::from(block)] = NIL;
        block
    }

    /// Gives a block back to the top of the stack.
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

    /// The same, to write.
    #[inline]
    pub(super) fn bits_mut(&mut self, block: u8) -> &mut u8 {
        &mut self.arrays.bits[usize::from(block)]
    }

    /// The block after `block` in its chain.
    #[inline]
    pub(super) fn next(&self, block: u8) -> u8 {
        self.arrays.next_ptr[usize::from(block)]
    }

    /// Puts `next` after `block`.
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
