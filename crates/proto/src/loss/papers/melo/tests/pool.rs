//! Tests of the pool alone.

use proptest::prelude::*;

use super::super::chain::Chain;
use super::super::pool::{
    BLOCK_BYTES, BitsPool, MAX_BITS, PAPER_BITS, PoolUse, memory_bits, packets_in_flight,
};

#[test]
fn the_pool_of_the_paper_has_1024_bits_and_3_kb_of_memory() {
    let mut pool = BitsPool::<u8>::new(PAPER_BITS, BLOCK_BYTES);
    let mut chain = Chain::EMPTY;
    assert_eq!((pool.blocks() * pool.block_bits(), pool.heap_bytes()), (1_024, 0));
    assert!(chain.extend(&mut pool, 128));
    assert_eq!(pool.heap_bytes() * 8, memory_bits(128, BLOCK_BYTES, 1) as usize);
    assert!(!chain.extend(&mut pool, 1), "one more than there are");
    assert_eq!(pool.usage(), PoolUse { in_use: 128, most: 128, refusals: 1 });
    pool.check(chain.blocks(&pool));
    chain.release(&mut pool);
    assert_eq!(pool.usage(), PoolUse { in_use: 0, most: 128, refusals: 1 });
    pool.check([]);
}

#[test]
fn the_largest_pool_and_the_smallest() {
    let (mut large, mut small) = (BitsPool::<u16>::new(u32::MAX, 1), BitsPool::<u8>::new(0, 1));
    assert_eq!((large.blocks(), small.blocks()), (MAX_BITS / 8, 1));
    assert_eq!(BitsPool::<u8>::new(u32::MAX, 1).blocks(), 255, "as many as pointers reach");
    let (mut many, mut one) = (Chain::EMPTY, Chain::EMPTY);
    assert!(many.extend(&mut large, MAX_BITS / 8) && one.extend(&mut small, 1));
    large.check(many.blocks(&large));
    small.check(one.blocks(&small));
    many.release(&mut large);
    one.release(&mut small);
    large.check([]);
    small.check([]);
}

/// M35: larger blocks need fewer pointers, and pointers of a byte then reach a fast link's packets.
#[test]
fn blocks_have_the_bytes_that_were_asked_for() {
    for bytes in [1, 2, 4, 16, 128] {
        let pool = BitsPool::<u16>::new(2_500, bytes);
        assert_eq!((pool.block_bytes(), pool.block_bits()), (bytes, 8 * bytes));
        assert_eq!(pool.blocks(), 2_500_u32.div_ceil(8 * bytes));
    }
    assert!(BitsPool::<u8>::new(2_500, 1).blocks() * 8 < 2_500);
    assert!(BitsPool::<u8>::new(2_500, 2).blocks() * 16 >= 2_500);
}

/// M34: `[MELO §3.2.3]`, footnotes 1 and 3.
#[test]
fn the_bits_follow_from_bandwidth_and_round_trip() {
    let packets = packets_in_flight;
    assert_eq!(packets(100_000_000_000, 200_000, 1_000), 2_500, "2.5 MB of 1 KB packets");
    assert_eq!(packets(40_000_000_000, 16_000, 1_000), 80);
    assert_eq!(packets(40_000_000_000, 16_000, 1_001), 80, "rounded up");
    assert_eq!(packets(u64::MAX, u64::MAX, 1), MAX_BITS);
    assert_eq!((packets(0, 200_000, 1_000), packets(1, 1, 0)), (0, 1));
}

proptest! {
    /// Chains that grow and shrink in any order have disjoint blocks, and every free block can be
    /// allocated: no fragmentation (M7).
    #[test]
    fn chains_share_the_pool_without_loss(
        steps in prop::collection::vec((0..4usize, 0..3u8, 0..9u32), 1..200)
    ) {
        let mut pool = BitsPool::<u8>::new(16 * 8, 1);
        let mut chains = [const { Chain::EMPTY }; 4];
        let mut lens = [0; 4];
        let mut refusals = 0;
        for (at, what, count) in steps {
            match what {
                0 if lens[at] > 0 => {
                    chains[at].pop_front(&mut pool);
                    lens[at] -= 1;
                }
                1 => {
                    chains[at].release(&mut pool);
                    lens[at] = 0;
                }
                _ => {
                    let fits = lens.iter().sum::<u32>() + count <= 16;
                    prop_assert_eq!(chains[at].extend(&mut pool, count), fits);
                    lens[at] += if fits { count } else { 0 };
                    refusals += u64::from(!fits);
                }
            }
            for (chain, &len) in chains.iter().zip(&lens) {
                prop_assert_eq!(chain.blocks(&pool).count(), len as usize);
            }
            pool.check(chains.iter().flat_map(|chain| chain.blocks(&pool)));
            let usage = pool.usage();
            prop_assert_eq!((usage.in_use, usage.refusals), (lens.iter().sum(), refusals));
            prop_assert!(usage.in_use <= usage.most);
        }
    }
}
