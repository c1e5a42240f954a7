//! Receivers with a limit behave as receivers without one.

use proptest::prelude::*;

use super::*;

fn residents(bits: u32, block_bytes: u32, limit: u32) -> Residents<u8> {
    Residents::new(BitsPool::new(bits, block_bytes), limit)
}

#[test]
fn a_state_beyond_the_limit_displaces_the_one_used_longest_ago() {
    let mut r = residents(1_024, 1, 2);
    let [a, b, c] = [(); 3].map(|()| r.add(0));
    assert_eq!(r.on_packet(a, 0), Arrival::InOrder, "no bits, not counted");
    for id in [a, b] {
        assert_eq!(r.on_packet(id, 9), Arrival::OutOfOrder { new_hole: true });
    }
    assert_eq!((r.blocks_in_use(), r.rx_use().swapped_out), (4, 0));
    r.on_packet(a, 10);
    r.on_packet(c, 2);
    let used = r.rx_use();
    assert_eq!((r.blocks_in_use(), used.swapped_out, used.swapped_in), (3, 1, 0), "b has none");
    assert_eq!(used.swapped_bytes, STATE_BYTES + 2);
    // Its marks and holes are still known, and a packet brings it back.
    assert_eq!((r.rcv_nxt(b), r.rcv_high(b)), (0, 10));
    assert_eq!(r.holes(b), [Some(Hole { first: 0, len: 9 }), None, None]);
    r.check();
    assert_eq!(r.on_packet(b, 9), Arrival::Duplicate);
    let used = r.rx_use();
    assert_eq!((used.swapped_out, used.swapped_in), (2, 1), "a was used longest ago");
    assert_eq!(r.all_missing(a).len(), 8, "swaps it in");
    for id in [a, b, c] {
        r.remove(id);
    }
    r.check();
    assert_eq!(r.blocks_in_use(), 0);
    assert_eq!(r.add(7), c, "numbers are used again");
    assert_eq!(r.rcv_nxt(c), 7);
}

/// M19: beside the 20 bytes of a receiver's state, an endpoint keeps room for one that is swapped out,
/// with a pointer to its bitmap, and when it was used.
#[test]
fn an_endpoint_keeps_64_bytes_for_a_state() {
    assert_eq!((size_of::<State<u8>>(), size_of::<State<u16>>()), (64, 64));
    let mut r = residents(1_024, 1, 0);
    for _ in 0..16 {
        r.add(0);
    }
    assert_eq!(r.heap_bytes(), 16 * 64);
}

#[test]
fn bitmaps_that_are_swapped_out_count_as_memory() {
    let mut r = residents(1_024, 1, 1);
    let (a, b) = (r.add(0), r.add(0));
    r.on_packet(a, 799);
    let before = r.heap_bytes();
    r.on_packet(b, 1);
    assert_eq!(r.rx_use().swapped_out, 1);
    assert_eq!(r.heap_bytes(), before + 100);
    r.remove(a);
    assert!(r.heap_bytes() < before + 100);
}

#[test]
fn the_states_of_many_messages_are_freed_with_the_last_one() {
    let mut r = residents(1_024, 1, 0);
    let ids: Vec<u32> = (0..1_000).map(|_| r.add(0)).collect();
    for &id in &ids[1..] {
        r.remove(id);
    }
    r.trim();
    assert!(r.heap_bytes() >= 64_000, "one is left");
    assert_eq!(r.on_packet(ids[0], 0), Arrival::InOrder);
    r.remove(ids[0]);
    r.trim();
    assert_eq!(r.heap_bytes(), 0);
    assert_eq!(r.add(7), 0);
    r.check();
}

#[test]
fn a_state_that_is_in_order_again_is_not_resident() {
    let mut r = residents(1_024, 1, 1);
    let (a, b) = (r.add(0), r.add(0));
    r.on_packet(a, 1);
    r.on_packet(a, 0);
    r.on_packet(b, 1);
    r.check();
    assert_eq!(r.rx_use().swapped_out, 0, "a holds no bits");
}

proptest! {
    /// Whatever the limit, packets and their results are those without it, as long as the pool
    /// suffices for all.
    #[test]
    fn a_limit_changes_no_result(
        limit in 1..4_u32, shift in 0..3_u32,
        steps in prop::collection::vec((0..6_u32, 0..12_u8, 0..60_u32), 1..300),
    ) {
        let (mut free, mut limited) = (residents(1_024, 1 << shift, 0), residents(1_024, 1 << shift, limit));
        let mut ids: Vec<u32> = (0..6).map(|_| free.add(0)).collect();
        prop_assert_eq!(&ids, &(0..6).map(|_| limited.add(0)).collect::<Vec<_>>());
        for (at, what, psn) in steps {
            let id = ids[at as usize];
            match what {
                0 => {
                    free.remove(id);
                    limited.remove(id);
                    ids[at as usize] = free.add(psn);
                    prop_assert_eq!(limited.add(psn), ids[at as usize]);
                }
                1 => prop_assert_eq!(limited.all_missing(id), free.all_missing(id)),
                2..6 => {
                    let next = free.rcv_nxt(id);
                    prop_assert_eq!(limited.on_packet(id, next), free.on_packet(id, next));
                }
                _ => prop_assert_eq!(limited.on_packet(id, psn), free.on_packet(id, psn)),
            }
            limited.check();
            let id = ids[at as usize];
            prop_assert_eq!(limited.rcv_nxt(id), free.rcv_nxt(id));
            prop_assert_eq!(limited.rcv_high(id), free.rcv_high(id));
            prop_assert_eq!(limited.holes(id), free.holes(id));
        }
    }
}
