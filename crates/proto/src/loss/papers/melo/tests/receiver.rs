//! Tests of the receiver against the model.

use proptest::prelude::*;

use super::super::pool::{BitsPool, MeloPool, PAPER_BITS};
use super::super::{Arrival, Hole, MAX_PSN, Reorder};
use super::model::Model;

const IN_ORDER: Arrival = Arrival::InOrder;
const NEW_HOLE: Arrival = Arrival::OutOfOrder { new_hole: true };
const BEYOND: Arrival = Arrival::OutOfOrder { new_hole: false };

fn holes(reorder: &Reorder<u16>) -> Vec<(u32, u32)> {
    reorder.holes().map(|Hole { first, len }| (first, len)).collect()
}

/// Delivers the packets to `reorder`, and checks the result and the state after each.
#[track_caller]
fn arrive(reorder: &mut Reorder<u16>, pool: &mut MeloPool, packets: &[(u32, Arrival)]) {
    for &(psn, arrival) in packets {
        assert_eq!(reorder.on_packet(pool, psn), arrival, "packet {psn}");
        reorder.check(pool);
        pool.check(reorder.blocks(pool));
    }
}

/// `[MELO §3.2.3]`, Fig. 3c: no bits without loss; a hole takes blocks; filling it advances RCV.NXT
/// over the whole run and returns the blocks (M4).
#[test]
fn a_hole_takes_blocks_until_it_is_filled() {
    let (mut pool, mut reorder) = (MeloPool::new(PAPER_BITS, 1), Reorder::new());
    arrive(&mut reorder, &mut pool, &[(0, IN_ORDER), (1, IN_ORDER), (2, IN_ORDER)]);
    assert_eq!((pool.usage().most, reorder.rcv_nxt(), reorder.rcv_high()), (0, 3, 3));
    arrive(&mut reorder, &mut pool, &[(4, NEW_HOLE), (5, BEYOND), (6, BEYOND), (7, BEYOND)]);
    assert_eq!((holes(&reorder), pool.usage().in_use), (vec![(3, 1)], 1));
    arrive(&mut reorder, &mut pool, &[(8, BEYOND), (9, BEYOND), (20, NEW_HOLE)]);
    assert_eq!((holes(&reorder), pool.usage().in_use), (vec![(10, 10), (3, 1)], 3));
    arrive(&mut reorder, &mut pool, &[(3, IN_ORDER)]);
    assert_eq!((reorder.rcv_nxt(), reorder.rcv_high(), pool.usage().in_use), (10, 21, 2));
    for psn in 10..19 {
        arrive(&mut reorder, &mut pool, &[(psn, IN_ORDER)]);
    }
    arrive(&mut reorder, &mut pool, &[(19, IN_ORDER), (19, Arrival::Duplicate), (21, IN_ORDER)]);
    assert_eq!((reorder.rcv_nxt(), reorder.rcv_high(), pool.usage().in_use), (22, 22, 0));
}

/// `[MELO §3.2.3]`: a packet that needs a block in the middle is dropped without access (M10).
#[test]
fn the_middle_is_not_accessed() {
    let (mut pool, mut reorder) = (MeloPool::new(PAPER_BITS, 1), Reorder::new());
    arrive(&mut reorder, &mut pool, &[(1, NEW_HOLE), (10, NEW_HOLE), (30, NEW_HOLE)]);
    arrive(
        &mut reorder,
        &mut pool,
        &[
            (10, Arrival::Middle), // although it is a duplicate
            (9, Arrival::Middle),
            (23, Arrival::Middle),
            (7, BEYOND),
            (24, BEYOND),
            (1, Arrival::Duplicate),
            (30, Arrival::Duplicate),
        ],
    );
    assert_eq!(holes(&reorder), [(25, 5), (11, 13), (8, 2)]);
    assert_eq!(reorder.rcv_nxt(), 0);
}

/// `[MELO §3.2.4]`: the three most recent holes; a hole that is split counts as two (M12).
#[test]
fn three_most_recent_holes_are_tracked() {
    let (mut pool, mut reorder) = (MeloPool::new(PAPER_BITS, 1), Reorder::new());
    for psn in [1, 3, 5, 7] {
        arrive(&mut reorder, &mut pool, &[(psn, NEW_HOLE)]);
    }
    assert_eq!(holes(&reorder), [(6, 1), (4, 1), (2, 1)]);
    // The displaced hole is not tracked again; RCV.NXT shows that it is missing.
    arrive(&mut reorder, &mut pool, &[(4, BEYOND)]);
    assert_eq!((holes(&reorder), reorder.rcv_nxt()), (vec![(6, 1), (2, 1)], 0));
    arrive(&mut reorder, &mut pool, &[(47, NEW_HOLE), (43, BEYOND), (41, BEYOND)]);
    assert_eq!(holes(&reorder), [(44, 3), (42, 1), (8, 33)]);
    arrive(&mut reorder, &mut pool, &[(42, BEYOND), (44, BEYOND), (46, BEYOND), (45, BEYOND)]);
    assert_eq!(holes(&reorder), [(8, 33)]);
    arrive(&mut reorder, &mut pool, &[(0, IN_ORDER), (2, IN_ORDER), (6, IN_ORDER)]);
    assert_eq!((holes(&reorder), reorder.rcv_nxt()), (vec![(8, 33)], 8));
}

/// `[MELO §3.2.5]`: an exhausted pool changes no state and blocks no progress (M16).
#[test]
fn an_exhausted_pool_rejects_and_keeps_working() {
    let mut pool = BitsPool::<u8>::new(2 * 8, 1);
    let (mut a, mut b) = (Reorder::new(), Reorder::new());
    assert_eq!(a.on_packet(&mut pool, 16), Arrival::NoBits, "three blocks of two");
    assert_eq!((a.rcv_high(), pool.usage().in_use, pool.usage().refusals), (0, 0, 1));
    assert_eq!(a.on_packet(&mut pool, 15), NEW_HOLE);
    assert_eq!(b.on_packet(&mut pool, 1), Arrival::NoBits);
    assert_eq!(a.on_packet(&mut pool, 16), Arrival::NoBits);
    assert_eq!(b.on_packet(&mut pool, 0), IN_ORDER, "packets in order need no bits");
    for psn in 0..15 {
        assert_eq!(a.on_packet(&mut pool, psn), IN_ORDER);
    }
    assert_eq!(b.on_packet(&mut pool, 2), NEW_HOLE);
    assert_eq!(pool.usage().most, 2);
    pool.check(b.blocks(&pool));
    b.release(&mut pool);
    pool.check([]);
}

#[test]
fn psns_end_at_the_largest_that_fits() {
    let (mut pool, mut reorder) = (MeloPool::new(PAPER_BITS, 1), Reorder::new());
    for psn in 0..=MAX_PSN {
        assert_eq!(reorder.on_packet(&mut pool, psn), IN_ORDER);
    }
    arrive(
        &mut reorder,
        &mut pool,
        &[
            (MAX_PSN + 1, Arrival::NoBits),
            (MAX_PSN + 2, Arrival::NoBits),
            (u32::MAX, Arrival::NoBits),
            (MAX_PSN, Arrival::Duplicate),
        ],
    );
    let mut fresh = Reorder::new();
    arrive(&mut fresh, &mut pool, &[(u32::MAX, Arrival::NoBits), (65_536, Arrival::NoBits)]);
    assert_eq!(fresh, Reorder::new());
}

/// Holes across a multiple of 2^16, where their starts wrap.
#[test]
fn holes_across_the_wrap_of_their_starts() {
    let (mut pool, mut reorder) = (MeloPool::new(PAPER_BITS, 1), Reorder::new());
    for psn in 0..65_530 {
        reorder.on_packet(&mut pool, psn);
    }
    arrive(&mut reorder, &mut pool, &[(65_532, NEW_HOLE), (65_540, NEW_HOLE)]);
    assert_eq!(holes(&reorder), [(65_533, 7), (65_530, 2)]);
    arrive(&mut reorder, &mut pool, &[(65_537, BEYOND), (65_536, BEYOND)]);
    assert_eq!(holes(&reorder), [(65_538, 2), (65_533, 3), (65_530, 2)]);
    arrive(&mut reorder, &mut pool, &[(65_530, IN_ORDER), (65_531, IN_ORDER)]);
    assert_eq!(holes(&reorder), [(65_538, 2), (65_533, 3)]);
    reorder.release(&mut pool);
}

/// Several connections with one pool: each step delivers a packet, or releases a connection, or
/// swaps one out and in.
struct World {
    pool: MeloPool,
    connections: Vec<(Reorder<u16>, Model)>,
}

impl World {
    fn new(blocks: u32, block_bytes: u32, connections: usize, packets: u32) -> Self {
        let pool = MeloPool::new(blocks * block_bytes * 8, block_bytes);
        let one = || (Reorder::new(), Model::new(packets, pool.block_bits()));
        let connections = std::iter::repeat_with(one).take(connections).collect();
        World { pool, connections }
    }

    fn free(&self) -> u32 {
        self.pool.blocks() - self.pool.usage().in_use
    }

    fn packet(&mut self, at: usize, psn: u32) -> Arrival {
        let free = self.free();
        let (reorder, model) = &mut self.connections[at];
        let arrival = reorder.on_packet(&mut self.pool, psn);
        assert_eq!(arrival, model.on_packet(psn, free), "packet {psn}");
        self.check();
        arrival
    }

    fn swap(&mut self, at: usize) {
        let (reorder, _) = &mut self.connections[at];
        let before = holes(reorder);
        let out = std::mem::replace(reorder, Reorder::new()).swap_out(&mut self.pool);
        // Cannot be swapped in while another connection has the blocks, and can afterwards.
        let in_use = self.pool.usage().in_use;
        let mut other = super::super::chain::Chain::EMPTY;
        let blocks = out.bitmap_bytes() / self.pool.block_bytes();
        let short = self.pool.blocks() - in_use - blocks + 1;
        let out = if blocks > 0 && other.extend(&mut self.pool, short) {
            let out = Reorder::swap_in(out, &mut self.pool).expect_err("too few blocks");
            other.release(&mut self.pool);
            out
        } else {
            out
        };
        assert_eq!(self.pool.usage().in_use, in_use);
        *reorder = Reorder::swap_in(out, &mut self.pool).expect("its own blocks are free");
        assert_eq!(holes(reorder), before);
        self.check();
    }

    fn release(&mut self, at: usize) {
        let (reorder, model) = &mut self.connections[at];
        reorder.release(&mut self.pool);
        model.release();
        self.check();
    }

    fn check(&self) {
        let mut blocks = 0;
        for (reorder, model) in &self.connections {
            reorder.check(&self.pool);
            assert_eq!(reorder.rcv_nxt(), model.rcv_nxt());
            assert_eq!(reorder.rcv_high(), model.rcv_high());
            assert_eq!(reorder.holes().collect::<Vec<_>>(), model.holes());
            blocks += model.blocks();
        }
        assert_eq!(self.pool.usage().in_use, blocks);
        self.pool
            .check(self.connections.iter().flat_map(|(reorder, _)| reorder.blocks(&self.pool)));
    }

    /// All packets arrive in order: the pool is empty afterwards, whatever the state before.
    fn finish(mut self) {
        for (reorder, model) in &mut self.connections {
            for psn in 0..model.received.len() as u32 {
                reorder.on_packet(&mut self.pool, psn);
            }
            assert_eq!(reorder.rcv_nxt() as usize, model.received.len());
            reorder.check(&self.pool);
        }
        assert_eq!(self.pool.usage().in_use, 0);
        self.pool.check([]);
    }
}

/// An arrival near RCV.NXT, near RCV.HIGH, or anywhere.
fn step() -> impl Strategy<Value = (usize, u8, u32)> {
    (0..3usize, 0..40u8, 0..1000u32)
}

fn run(blocks: u32, block_bytes: u32, packets: u32, steps: Vec<(usize, u8, u32)>) {
    let mut world = World::new(blocks, block_bytes, 3, packets);
    for (at, what, number) in steps {
        let (nxt, high) = (world.connections[at].0.rcv_nxt(), world.connections[at].0.rcv_high());
        let psn = match what {
            0 => {
                world.release(at);
                continue;
            }
            1..=2 => {
                world.swap(at);
                continue;
            }
            3..=12 => nxt,
            13..=16 => nxt + number % 12,
            17..=24 => (high + number % 10).saturating_sub(9),
            25..=32 => high + number % 4,
            33..=36 => high + number % 40,
            _ => number,
        };
        world.packet(at, psn.min(packets - 1));
    }
    world.finish();
}

proptest! {
    #[test]
    fn receivers_that_share_a_pool_match_their_models(
        steps in prop::collection::vec(step(), 1..400)
    ) {
        run(16, 1, 300, steps);
    }

    #[test]
    fn receivers_that_share_a_tiny_pool_match_their_models(steps in prop::collection::vec(step(), 1..200)) {
        run(3, 1, 64, steps);
    }

    /// M35.
    #[test]
    fn receivers_match_their_models_with_blocks_of_any_size(
        shift in 1..5_u32, blocks in 3..12_u32, steps in prop::collection::vec(step(), 1..300)
    ) {
        run(blocks, 1 << shift, 500, steps);
    }

    #[test]
    fn a_large_pool_holds_any_order(
        order in Just((0..200u32).collect::<Vec<_>>()).prop_shuffle()
    ) {
        // A packet that needs a block in the middle is sent again, from the front, until all have
        // arrived.
        let mut world = World::new(128, 1, 1, 200);
        let mut waiting = order;
        while !waiting.is_empty() {
            let before = waiting.len();
            waiting.retain(|&psn| match world.packet(0, psn) {
                Arrival::InOrder | Arrival::OutOfOrder { .. } => false,
                Arrival::Middle => true,
                Arrival::Duplicate | Arrival::NoBits => unreachable!("each once, and bits enough"),
            });
            waiting.sort_unstable();
            prop_assert!(waiting.len() < before);
        }
        prop_assert_eq!(world.pool.usage().in_use, 0);
    }
}
