//! The shared bits pool (M5-M7, `[MELO §3.2.3]`, Fig. 3a and 3b), and its size (M34).

use std::fmt::Debug;

/// Packets of a byte of a block.
pub(crate) const BYTE_BITS: u32 = 8;

/// Bytes of a block: the paper's balance between internal fragmentation and management overhead
/// (M6). Experiment M35 compares larger ones.
pub(crate) const BLOCK_BYTES: u32 = 1;

/// Largest block in bytes.
pub(crate) const MAX_BLOCK_BYTES: u32 = 128;

/// Bits of the paper's pool, which cover 1 MB in flight with packets of 1 KB.
pub(crate) const PAPER_BITS: u32 = 1_024;

/// Most bits of a pool: the start of a tracked hole is stored modulo 2^16, relative to RCV.NXT, so
/// no bitmap may be longer.
pub(crate) const MAX_BITS: u32 = u16::MAX as u32 / BYTE_BITS * BYTE_BITS;

/// A pointer to a block: one byte in the paper, which reaches 255 blocks, or two.
#[allow(unreachable_pub)] // an example includes the module without its exports
pub trait BlockPtr: Copy + Eq + Debug {
    /// No block: the `next_ptr` of a chain's last block, and both pointers of an empty chain. It is
    /// the largest value, and so also the most blocks of a pool.
    const NIL: Self;

    /// Pointer to a block; `index` is below [`BlockPtr::NIL`].
    fn to(index: u32) -> Self;

    /// Index of the block.
    fn index(self) -> usize;
}

impl BlockPtr for u8 {
    const NIL: u8 = u8::MAX;

    #[inline]
    fn to(index: u32) -> u8 {
        index as u8
    }

    #[inline]
    fn index(self) -> usize {
        usize::from(self)
    }
}

impl BlockPtr for u16 {
    const NIL: u16 = u16::MAX;

    #[inline]
    fn to(index: u32) -> u16 {
        index as u16
    }

    #[inline]
    fn index(self) -> usize {
        usize::from(self)
    }
}

/// The pool of tests that need no kind of pointer.
#[cfg(test)]
pub(crate) type MeloPool = BitsPool<u16>;

/// Bits of memory of a pool with its management: bits, next_ptr and available array (M18).
pub(crate) const fn memory_bits(blocks: u32, block_bytes: u32, ptr_bytes: u32) -> u32 {
    blocks * (block_bytes + 2 * ptr_bytes) * 8
}

// M18: 1,024 b of bits, 1,024 b of next_ptr and 1,024 b of available are 3 Kb a side, 6 Kb both.
const _: () = assert!(memory_bits(128, BLOCK_BYTES, size_of::<u8>() as u32) == 3 * 1024);
const _: () = assert!(2 * memory_bits(128, BLOCK_BYTES, size_of::<u8>() as u32) == 6 * 1024);

/// Packets in flight to a host, which a pool covers `[MELO §3.2.3]`: link rate in bit/s times round
/// trip in ns over the bytes of a packet on the wire, rounded up (M34). No more than 65,528, which
/// is the largest pool.
pub(crate) const fn packets_in_flight(rate_bps: u64, rtt_ns: u64, packet_bytes: u64) -> u32 {
    let bits = rate_bps as u128 * rtt_ns as u128;
    let packet = packet_bytes as u128 * 8 * 1_000_000_000;
    let packets = bits.div_ceil(if packet == 0 { 1 } else { packet });
    if packets < MAX_BITS as u128 { packets as u32 } else { MAX_BITS }
}

// M34: 2,500 packets of 1,000 bytes are in flight with 100 Gbit/s and 200 us `[MELO fn. 1, 3]`.
const _: () = assert!(packets_in_flight(100_000_000_000, 200_000, 1_000) == 2_500);

/// Blocks of `block_bytes` bytes for at least `bits` bits: at least one, and no more than
/// [`MAX_BITS`] bits hold. The bytes are a power of two, at most [`MAX_BLOCK_BYTES`], since the block of
/// a packet follows from a shift.
pub(crate) const fn blocks_of(bits: u32, block_bytes: u32) -> u32 {
    assert!(block_bytes.is_power_of_two() && block_bytes <= MAX_BLOCK_BYTES);
    let block_bits = BYTE_BITS * block_bytes;
    let (blocks, most) = (bits.div_ceil(block_bits), MAX_BITS / block_bits);
    if blocks > most {
        most
    } else if blocks == 0 {
        1
    } else {
        blocks
    }
}

/// Bits for the bitmaps of all connections of one side, in blocks of equal size.
///
/// A connection's bitmap is a chain of arbitrary blocks, so there is no external fragmentation and
/// no compaction. Taking and returning a block are O(1) (M7). The pool needs one bit per packet in
/// flight to this side, bandwidth x RTT / packet size ([`packets_in_flight`]), independent of the
/// number of connections (M5).
///
/// Memory: for each block its bytes and two pointers. It is allocated when the first block is
/// taken, which is at the first packet that arrives out of order.
///
/// Invariant (P1): every block is either free, and then exactly once at or above `avail_ptr`, or in
/// exactly one chain.
#[derive(Debug)]
pub(crate) struct BitsPool<P> {
    /// The blocks themselves.
    bits: Box<[u8]>,
    /// For each block the next block of the same bitmap, or [`BlockPtr::NIL`].
    next_ptr: Box<[P]>,
    /// Stack of the free blocks.
    available: Box<[P]>,
    /// Number of blocks.
    blocks: u32,
    /// Bytes of a block are two to the power of this.
    block_shift: u32,
    /// Top of the stack: "any entry with index larger than or equal to the pointer is available".
    /// It is also the number of blocks in use.
    avail_ptr: u32,
    most: u32,
    refusals: u64,
}

/// Use of a pool, in blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PoolUse {
    /// Blocks in chains now.
    pub(crate) in_use: u32,
    /// Most blocks in chains at any time.
    pub(crate) most: u32,
    /// Failed allocations, each for one packet or one NACK (M16).
    pub(crate) refusals: u64,
}

impl<P: BlockPtr> BitsPool<P> {
    /// A pool with all blocks free, of [`blocks_of`] `bits` bits in blocks of `block_bytes` bytes, but no
    /// more than pointers reach.
    pub(crate) fn new(bits: u32, block_bytes: u32) -> Self {
        BitsPool {
            bits: Box::default(),
            next_ptr: Box::default(),
            available: Box::default(),
            blocks: blocks_of(bits, block_bytes).min(P::NIL.index() as u32),
            block_shift: block_bytes.trailing_zeros(),
            avail_ptr: 0,
            most: 0,
            refusals: 0,
        }
    }

    /// Number of blocks.
    pub(crate) fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Packets of a block.
    #[inline]
    pub(crate) fn block_bits(&self) -> u32 {
        BYTE_BITS << self.block_shift
    }

    /// Bytes of a block.
    pub(crate) fn block_bytes(&self) -> u32 {
        1 << self.block_shift
    }

    /// Number of the block of a bitmap that holds the bit of packet `psn`. Blocks are aligned, so
    /// the position of a bit follows from the PSN and no offset is stored.
    #[inline]
    pub(super) fn block_of(&self, psn: u32) -> u32 {
        (psn / BYTE_BITS) >> self.block_shift
    }

    /// Returns whether the bit of packet `psn` is the first of its block.
    #[inline]
    pub(super) fn begins_block(&self, psn: u32) -> bool {
        psn & (self.block_bits() - 1) == 0
    }

    /// Use of the pool.
    pub(crate) fn usage(&self) -> PoolUse {
        PoolUse { in_use: self.avail_ptr, most: self.most, refusals: self.refusals }
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        self.bits.len() + size_of_val(&*self.next_ptr) + size_of_val(&*self.available)
    }

    /// Returns whether `count` blocks are free; counts a failed allocation otherwise.
    #[inline]
    pub(super) fn has(&mut self, count: u32) -> bool {
        if self.available.is_empty() {
            self.allocate();
        }
        let enough = count <= self.blocks - self.avail_ptr;
        self.refusals += u64::from(!enough);
        enough
    }

    /// Returns whether blocks for a bitmap of this many bytes are free.
    pub(crate) fn can_hold(&self, bytes: u32) -> bool {
        bytes >> self.block_shift <= self.blocks - self.avail_ptr
    }

    /// Allocates the memory of all blocks.
    #[cold]
    fn allocate(&mut self) {
        let blocks = self.blocks as usize;
        self.bits = vec![0; blocks << self.block_shift].into_boxed_slice();
        self.next_ptr = vec![P::NIL; blocks].into_boxed_slice();
        self.available = (0..self.blocks).map(P::to).collect();
    }

    /// Takes a zeroed block from the top of the stack, as the last in its chain. The caller has
    /// checked [`BitsPool::has`].
    #[inline]
    pub(super) fn alloc(&mut self) -> P {
        let block = self.available[self.avail_ptr as usize];
        self.avail_ptr += 1;
        self.most = self.most.max(self.avail_ptr);
        let first = block.index() << self.block_shift;
        if self.block_shift == 0 {
            self.bits[first] = 0;
        } else {
            self.bits[first..first + (1 << self.block_shift)].fill(0);
        }
        self.next_ptr[block.index()] = P::NIL;
        block
    }

    /// Returns a block to the top of the stack.
    #[inline]
    pub(super) fn free(&mut self, block: P) {
        self.avail_ptr -= 1;
        self.available[self.avail_ptr as usize] = block;
    }

    /// Index of the byte that holds the bit of packet `psn` in its block.
    #[inline]
    fn at(&self, block: P, psn: u32) -> usize {
        let inside = (psn / BYTE_BITS) & ((1 << self.block_shift) - 1);
        (block.index() << self.block_shift) + inside as usize
    }

    /// The byte with the bit of packet `psn`, which `block` holds; bit `i` is that of its packet `i`.
    #[inline]
    pub(super) fn byte(&self, block: P, psn: u32) -> u8 {
        self.bits[self.at(block, psn)]
    }

    /// Mutable access to [`BitsPool::byte`].
    #[inline]
    pub(super) fn byte_mut(&mut self, block: P, psn: u32) -> &mut u8 {
        let at = self.at(block, psn);
        &mut self.bits[at]
    }

    /// All bytes of a block.
    pub(super) fn bytes(&self, block: P) -> &[u8] {
        let first = block.index() << self.block_shift;
        &self.bits[first..first + (1 << self.block_shift)]
    }

    /// Mutable access to [`BitsPool::bytes`].
    pub(super) fn bytes_mut(&mut self, block: P) -> &mut [u8] {
        let first = block.index() << self.block_shift;
        &mut self.bits[first..first + (1 << self.block_shift)]
    }

    /// The block after `block` in its chain.
    #[inline]
    pub(super) fn next(&self, block: P) -> P {
        self.next_ptr[block.index()]
    }

    /// Links `next` after `block`.
    #[inline]
    pub(super) fn link(&mut self, block: P, next: P) {
        self.next_ptr[block.index()] = next;
    }

    /// Checks P1, given the blocks of all chains. Costs a walk over the pool; for tests and
    /// simulations.
    pub(crate) fn check(&self, owned: impl IntoIterator<Item = P>) {
        let mut seen = vec![false; self.available.len()];
        let free = self.available.get(self.avail_ptr as usize..).unwrap_or_default();
        for block in free.iter().copied().chain(owned) {
            let before = std::mem::replace(&mut seen[block.index()], true);
            assert!(!before, "P1: block {block:?} twice");
        }
        assert!(!seen.contains(&false), "P1: a block lost");
        assert!(self.avail_ptr <= self.most);
    }
}
