//! Tests of the pool alone.

use proptest::prelude::*;

use super::super::chain::Chain;
use super::super::pool::{BitsPool, MeloPool, PoolUse};

#[test]
fn the_pool_of_the_paper_has_1024_bits() {
    let mut pool = MeloPool::new();
    let mut chain = Chain::EMPTY;
    assert_eq!(MeloPool::BLOCKS * 8, 1024);
    assert!(chain.extend(&mut pool, 128));
    assert!(!chain.extend(&mut pool, 1), "one more than there are");
    assert_eq!(pool.usage(), PoolUse { in_use: 128, most: 128, refusals: 1 });
    pool.check(chain.blocks(&pool));
    chain.release(&mut pool);
    assert_eq!(pool.usage(), PoolUse { in_use: 0, most: 128, refusals: 1 });
    pool.check([]);
}

#[test]
fn the_largest_pool_and_the_smallest() {
    let (mut large, mut small) = (BitsPool::<255>::new(), BitsPool::<1>::new());
    let (mut many, mut one) = (Chain::EMPTY, Chain::EMPTY);
    assert!(many.extend(&mut large, 255) && one.extend(&mut small, 1));
    large.check(many.blocks(&large));
    small.check(one.blocks(&small));
    assert_eq!(many.blocks(&large).count(), 255);
    many.release(&mut large);
    one.release(&mut small);
    large.check([]);
    small.check([]);
}

proptest! {
    /// Chains that grow and shrink in any order have disjoint blocks, and every free block can be
    /// allocated: no fragmentation (M7).
    #[test]
    fn chains_share_the_pool_without_loss(
        steps in prop::collection::vec((0..4usize, 0..3u8, 0..9u32), 1..200)
    ) {
        let mut pool = BitsPool::<16>::new();
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
