//! The table of messages.

use std::collections::VecDeque;

use super::*;

fn owner(session: u32) -> Owner {
    Owner { session, generation: 1, slot: 0, req_num: 16, is_response: false }
}

fn link() -> Arc<ReceiveLink> {
    ReceiveLink::new(25_000_000_000)
}

fn budget_of(link: &Arc<ReceiveLink>) -> Budget {
    Budget::new(true, link.clone(), (1_138, 1_000))
}

fn budget() -> Budget {
    budget_of(&link())
}

#[test]
fn a_grant_comes_back_from_its_field() {
    assert_eq!((Grant::default().packets(), Grant::default().bits()), (None, 0));
    for (packets, unscheduled) in [(1, 1), (1 << 20, 63), (77, 4)] {
        let grant = Grant::from_bits(Grant::new(packets, unscheduled).bits());
        assert_eq!((grant.packets(), grant.unscheduled()), (Some(packets), unscheduled));
        assert!(grant.bits() < 1 << 28);
    }
}

#[test]
fn it_is_in_force_while_several_peers_send() {
    let mut b = budget();
    let first = b.begin(owner(1), 7, 100, (1, 4), 0);
    let second = b.begin(owner(2), 7, 100, (1, 4), 0);
    assert!(!b.is_due(), "one peer");
    let third = b.begin(owner(3), 8, 100, (1, 4), 0);
    assert!(b.is_due() && b.may_limit() && !b.is_in_force());
    b.set_in_force(true);
    assert!(!b.is_due() && !b.is_over(1) && b.is_in_force());
    b.end(first, &owner(1));
    b.end(first, &owner(1));
    b.end(third, &owner(1));
    b.check();
    assert!(!b.is_over(2));
    b.end(third, &owner(3));
    assert!(!b.is_over(3) && !b.is_over(2 + LINGERS_NS), "another may come back soon");
    assert!(b.is_over(3 + LINGERS_NS));
    b.end(second, &owner(2));
    assert_eq!(b.usage().1, 0);
    b.check();
}

#[test]
fn what_is_granted_never_exceeds_the_budget_and_returns_with_arrivals() {
    let mut b = budget();
    let messages: Vec<u32> = (0..50).map(|n| b.begin(owner(n), n, 1_000, (1, 1), 0)).collect();
    for (n, &at) in (0..).zip(&messages) {
        b.enqueue(at, &owner(n));
    }
    let mut granted = vec![0; 50];
    let mut pump = |b: &mut Budget| {
        while let Some((at, owner)) = b.next() {
            assert!(b.grant(at, &owner, u32::MAX, 1).is_some());
            granted[owner.session as usize] += 1;
        }
        b.check();
        assert_eq!(b.usage().0, b.usage().1);
        granted.clone()
    };
    let first = pump(&mut b);
    assert_eq!(first.iter().sum::<u32>(), 32);
    b.on_arrival(messages[3], &owner(3), 1);
    b.on_arrival(messages[3], &owner(3), 1); // it had one only: sent without a grant
    let second = pump(&mut b);
    assert_eq!(second.iter().sum::<u32>(), 33);
    assert_eq!(second[32], 1, "in turn");
}

#[test]
fn a_request_that_is_begun_again_has_its_grant_in_flight() {
    let mut b = budget();
    let at = b.begin(owner(1), 1, 100, (1, 4), 0);
    b.begin(owner(2), 2, 100, (1, 1), 0);
    b.reserve(at, &owner(1), Reserved { kept: 5, promised: 7, ..Reserved::default() });
    b.set_in_force(true);
    b.limit(at, &owner(1), 30);
    (0..10).for_each(|_| b.on_arrival(at, &owner(1), 1));
    assert_eq!((b.progress(at, &owner(1)), b.usage().1), (Some((100, 11, 30)), 19));
    assert_eq!(b.begin_again(at, &owner(1), 40), Some((0, 5)));
    assert_eq!((b.progress(at, &owner(1)), b.usage().1), (Some((100, 0, 30)), 30));
    assert_eq!(b.reserved(at, &owner(1)).map(|r| (r.kept, r.promised)), Some((0, 12)));
    b.check();
    assert!(b.begin_again(at, &owner(1), 8).is_some());
    assert_eq!(b.usage().1, 8, "no more than its credits");
    b.check();
    b.set_in_force(false);
    b.grant_all(at, &owner(1));
    assert!(b.begin_again(at, &owner(1), 8).is_some());
    assert_eq!(b.usage().1, 0, "it is not limited");
    b.check();
    assert_eq!(b.begin_again(at, &owner(3), 8), None, "another's");
}

#[test]
fn feigned_round_trips_do_not_keep_packets_that_never_arrive() {
    let mut b = budget();
    let at = b.begin(owner(1), 1, 100, (1, 33), 0);
    b.begin(owner(2), 2, 100, (1, 1), 0);
    b.expire(at, &owner(1), 2_000_000_000, STALE_MAX_NS);
    assert_eq!(b.usage().1, 32);
    b.expire(at, &owner(1), 2_000_000_000, STALE_MAX_NS + 1);
    assert_eq!(b.usage().1, 0);
    b.check();
}

#[test]
fn packets_that_never_arrive_are_written_off() {
    let mut b = budget();
    let at = b.begin(owner(1), 1, 100, (1, 33), 0);
    b.begin(owner(2), 2, 100, (1, 1), 0);
    assert_eq!(b.usage().1, 32);
    b.expire(at, &owner(1), 5_000, STALE_MIN_NS);
    assert_eq!(b.usage().1, 32);
    b.expire(at, &owner(1), 5_000, STALE_MIN_NS + 1);
    assert_eq!(b.usage().1, 0);
    for _ in 0..32 {
        b.on_arrival(at, &owner(1), STALE_MIN_NS + 2);
    }
    b.check();
    assert_eq!(b.usage().1, 0, "late arrivals return nothing twice");
}

#[test]
fn every_message_is_checked_in_turn() {
    let mut b = budget();
    (0..5).for_each(|n| {
        b.begin(owner(n), n, 10, (1, 1), 0);
    });
    let seen: Vec<u32> = (0..5).filter_map(|_| b.next_to_check()).map(|(at, _)| at).collect();
    assert_eq!(seen, [1, 2, 3, 4, 0]);
}

#[test]
fn messages_that_end_while_they_wait_leave_nothing_in_the_queue() {
    let mut b = budget();
    let held = b.begin(owner(0), 0, 1_000, (1, 100), 0);
    b.begin(owner(1), 1, 1_000, (1, 100), 0);
    for req_num in 0..10_000 {
        let owner = Owner { req_num, ..owner(2) };
        let at = b.begin(owner, 2, 1_000, (4, 4), 0);
        b.enqueue(at, &owner);
        b.end(at, &owner);
        b.check();
    }
    assert!(b.queue.counts().0 <= 1_000, "{:?}", b.queue.counts());
    b.end(held, &owner(0));
}

#[test]
fn a_budget_that_is_in_force_now_and_then_has_each_message_in_its_queue_once() {
    let mut b = budget();
    let messages: Vec<u32> = (0..20).map(|n| b.begin(owner(n), 0, 1_000, (1, 4), 0)).collect();
    for req_num in 0..1_000 {
        let short = Owner { req_num, ..owner(99) };
        let at = b.begin(short, 1, 2, (1, 2), 0);
        (0..).zip(&messages).for_each(|(n, &m)| b.limit(m, &owner(n), 4));
        while let Some((at, owner)) = b.next() {
            b.grant(at, &owner, u32::MAX, 1);
        }
        b.check();
        b.end(at, &short);
        (0..).zip(&messages).for_each(|(n, &m)| b.grant_all(m, &owner(n)));
        b.check();
    }
    assert!(b.queue.counts().0 <= 1_000, "{:?}", b.queue.counts());
}

#[test]
fn short_messages_that_need_no_grant_do_not_starve_a_long_one() {
    let mut b = budget();
    let long = b.begin(owner(0), 0, 100_000, (4, 4), 0);
    b.enqueue(long, &owner(0));
    // The queue in front of this endpoint. Of forty peers each sends message after message of four
    // packets, the first one alone, as advised. Peer 0 sends what is granted.
    let mut link = VecDeque::new();
    let mut short = vec![None; 41];
    for peer in (1..=40).step_by(2) {
        let at = b.begin(owner(peer), peer, 4, (1, 4), 0);
        short[peer as usize] = Some((at, owner(peer), 3));
        link.extend([peer, peer, peer, peer + 1]);
    }
    let mut long_packets = 0;
    for arrival in 0..20_000 {
        let peer = link.pop_front().unwrap();
        if peer == 0 {
            long_packets += u32::from(arrival >= 10_000);
            b.on_arrival(long, &owner(0), 0);
            b.enqueue(long, &owner(0));
        } else {
            let arriving = &mut short[peer as usize];
            let (at, owner, left) = arriving.take().unwrap_or_else(|| {
                let owner = Owner { req_num: arrival, ..owner(peer) };
                (b.begin(owner, peer, 4, (1, 4), 0), owner, 4)
            });
            match left {
                4 => link.extend([peer; 3]),
                1 => {
                    b.end(at, &owner);
                }
                _ => b.on_arrival(at, &owner, 0),
            }
            if left > 1 {
                *arriving = Some((at, owner, left - 1));
            } else {
                link.push_back(peer);
            }
        }
        while let Some((at, owner)) = b.next() {
            assert_eq!(owner.session, 0);
            assert!(b.grant(at, &owner, u32::MAX, 1).is_some());
            link.push_back(0);
        }
        b.check();
    }
    assert!((100..=700).contains(&long_packets), "{long_packets} of 10,000 packets");
}

#[test]
fn the_memory_of_many_messages_is_freed_with_the_last_one() {
    let mut b = budget();
    let many: Vec<_> = (0..100_000).map(|n| b.begin(owner(n), 0, 9, (1, 4), 0)).collect();
    assert!(b.heap_bytes() > 10 << 20, "{} bytes", b.heap_bytes());
    for (n, &at) in (0..).zip(&many) {
        b.end(at, &owner(n));
    }
    b.check();
    assert!(b.heap_bytes() < 1 << 20, "{} bytes", b.heap_bytes());
    let at = b.begin(owner(7), 0, 9, (1, 4), 0);
    b.end(many[7], &owner(8));
    assert_eq!(b.arrived(at, &owner(7)), 1);
    b.check();
}

/// Begins messages of many packets at an endpoint, each from a peer of its own, and enqueues them.
fn begin_many(b: &mut Budget, count: u32) -> Vec<u32> {
    let begin = |n: u32| {
        let at = b.begin(owner(n), n, 10_000, (1, 1), 0);
        b.enqueue(at, &owner(n));
        at
    };
    (0..count).map(begin).collect()
}

/// Grants what can be granted.
fn share_out(b: &mut Budget) {
    while let Some((at, owner)) = b.next() {
        assert!(b.grant(at, &owner, u32::MAX, 1).is_some());
    }
    b.check();
}

#[test]
fn endpoints_of_a_link_share_one_budget_by_their_messages() {
    let link = link();
    let (mut few, mut many) = (budget_of(&link), budget_of(&link));
    let at_few = begin_many(&mut few, 4);
    share_out(&mut few);
    assert_eq!(few.usage(), (32, 32), "alone it has the whole");
    begin_many(&mut many, 12);
    share_out(&mut many);
    assert_eq!(few.usage().0, 8, "a quarter of the messages");
    assert_eq!(many.usage(), (24, 12), "nothing is free, but for half of its part");
    // Packets arrive at the first endpoint, which has more than its part.
    for n in 0..24 {
        few.on_arrival(at_few[n % 4], &owner(n as u32 % 4), 1);
        share_out(&mut few);
        share_out(&mut many);
    }
    assert_eq!((few.usage().1, many.usage().1), (8, 24));
}

#[test]
fn every_endpoint_of_a_link_has_a_packet_in_flight() {
    let link = link();
    let mut all: Vec<Budget> = (0..64).map(|_| budget_of(&link)).collect();
    for b in &mut all {
        begin_many(b, 1);
        share_out(b);
        assert!(b.usage().1 >= 1);
    }
}

#[test]
fn peers_of_different_endpoints_limit_each_other() {
    let link = link();
    let (mut a, mut b) = (budget_of(&link), budget_of(&link));
    begin_many(&mut a, 1);
    assert!(!a.may_limit() && !b.may_limit());
    begin_many(&mut b, 1);
    assert!(a.is_due() && a.may_limit() && b.is_due());
    a.set_in_force(true);
    drop(b);
    assert!(!a.is_over(1) && a.is_over(1 + LINGERS_NS));
}

#[test]
fn an_endpoint_whose_senders_have_stopped_leaves_half_of_their_parts_to_others() {
    let link = link();
    let (mut stopped, mut other) = (budget_of(&link), budget_of(&link));
    stopped.begin(owner(0), 0, 10_000, (1, 1_001), 0);
    let at = begin_many(&mut other, 3);
    share_out(&mut other);
    assert_eq!(other.usage(), (24, 12));
    for n in 0..100 {
        other.on_arrival(at[n % 3], &owner(n as u32 % 3), 1);
        share_out(&mut other);
    }
    assert_eq!(other.usage().1, 12, "it goes on");
}

#[test]
fn requests_that_wait_for_memory_take_no_part() {
    let link = link();
    let (mut waits, mut other) = (budget_of(&link), budget_of(&link));
    let all: Vec<u32> = (0..30).map(|n| waits.begin(owner(n), n, 100, (1, 1), 0)).collect();
    for (n, &at) in (0..).zip(&all) {
        assert!(waits.wait_for_memory(at, &owner(n), u32::MAX));
    }
    begin_many(&mut other, 2);
    assert_eq!(other.usage().0, 32);
    waits.end_wait(all[0], &owner(0), 0);
    waits.end_wait(all[1], &owner(1), 0);
    assert_eq!(other.usage().0, 16);
    for (n, &at) in (0..).zip(&all) {
        waits.end(at, &owner(n));
    }
    assert_eq!(other.usage().0, 32);
}

#[test]
fn packets_without_a_grant_at_other_endpoints_starve_no_long_message() {
    let link = link();
    let (mut a, mut b) = (budget_of(&link), budget_of(&link));
    // Short messages of forty peers use up the budget at each of two endpoints.
    for n in 1..=40 {
        a.begin(owner(n), n, 4, (1, 4), 0);
        b.begin(owner(n), n, 4, (1, 4), 0);
    }
    let long = a.begin(owner(0), 0, 10_000, (1, 1), 0);
    a.enqueue(long, &owner(0));
    let mut granted = 0;
    for arrival in 0..1_000 {
        // A packet of a short message arrives, and another one is sent.
        let at = a.begin(Owner { req_num: arrival, ..owner(50) }, 50, 4, (3, 4), 0);
        a.end(at, &Owner { req_num: arrival, ..owner(50) });
        while let Some((at, owner)) = a.next() {
            a.grant(at, &owner, u32::MAX, 1);
            granted += 1;
            a.on_arrival(at, &owner, 0);
            a.enqueue(at, &owner);
            if granted % 8 == 0 {
                break;
            }
        }
    }
    assert!(granted > 0, "the long message waits for ever");
}

#[test]
fn an_endpoint_that_ends_leaves_nothing_on_its_link() {
    let link = link();
    let mut stays = budget_of(&link);
    let mut ends = budget_of(&link);
    begin_many(&mut stays, 2);
    begin_many(&mut ends, 30);
    share_out(&mut ends);
    drop(ends);
    share_out(&mut stays);
    assert_eq!(stays.usage(), (32, 32));
}

#[test]
fn an_endpoint_moves_to_the_link_that_it_shares() {
    let (own, shared) = (link(), link());
    let mut moved = budget_of(&own);
    moved.share_link(shared.clone(), 7);
    let mut other = budget_of(&shared);
    begin_many(&mut moved, 1);
    begin_many(&mut other, 1);
    assert!(moved.is_due() && other.is_due());
}
