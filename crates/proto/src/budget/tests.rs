//! The table of messages.

use super::*;

fn owner(session: u32) -> Owner {
    Owner { session, generation: 1, slot: 0, req_num: 16, is_response: false }
}

fn budget() -> Budget {
    Budget::new(true, Size::new(1_000, 364))
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
    assert!(!b.is_in_force(), "one peer");
    let third = b.begin(owner(3), 8, 100, (1, 4), 0);
    assert!(b.is_in_force());
    b.end(first, &owner(1));
    b.end(first, &owner(1));
    b.end(third, &owner(1));
    b.check();
    assert!(b.is_in_force());
    b.end(third, &owner(3));
    assert!(!b.is_in_force());
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
