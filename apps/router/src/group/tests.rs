use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;
use crate::route::Exit;

fn hop(node: u8) -> NextHop {
    NextHop { node, exit: Exit::Connected(0) }
}

fn gateway(node: u8, last: u8) -> NextHop {
    NextHop { node, exit: Exit::Gateway(0, Ipv4Addr::new(10, 0, 0, last).into()) }
}

fn weighted(weights: &[u16]) -> Vec<(NextHop, u16)> {
    weights.iter().enumerate().map(|(node, weight)| (hop(node as u8), *weight)).collect()
}

/// One flow of each bucket, with its next hop.
fn owners(groups: &Groups, id: GroupId) -> Vec<Option<NextHop>> {
    // The multiplication by an odd number permutes the upper bytes.
    (0..256u32).map(|b| groups.pick(id, b << 24)).collect()
}

fn counts(owners: &[Option<NextHop>]) -> BTreeMap<u8, usize> {
    let mut counts = BTreeMap::new();
    for owner in owners.iter().flatten() {
        *counts.entry(owner.node).or_default() += 1;
    }
    counts
}

/// Whether each living member has its share, rounded up or down.
fn is_fair(counts: &BTreeMap<u8, usize>, weights: &[u16], dead: u64) -> bool {
    let is_dead = |node: usize| dead >> node & 1 == 1;
    let all: u64 = (0..weights.len()).filter(|n| !is_dead(*n)).map(|n| weights[n] as u64).sum();
    (0..weights.len()).all(|node| {
        let count = *counts.get(&(node as u8)).unwrap_or(&0) as u64;
        let scaled = if is_dead(node) { 0 } else { u64::from(weights[node]) * 256 };
        count * all < scaled + all && scaled < count * all + all
    })
}

/// The buckets that must move when members return: what the living ones have above their share,
/// and, if more is needed for the shares of the others, a bucket of as many as it takes.
fn fewest_moves(before: &BTreeMap<u8, usize>, weights: &[u16], dead: u64) -> usize {
    let alive: Vec<usize> = (0..weights.len()).filter(|n| dead >> n & 1 == 0).collect();
    let all: usize = alive.iter().map(|n| usize::from(weights[*n])).sum();
    let (mut kept_at_most, mut floors) = (0, 0);
    for node in alive {
        let scaled = usize::from(weights[node]) * 256;
        let had = *before.get(&(node as u8)).unwrap_or(&0);
        kept_at_most += had.min(scaled.div_ceil(all));
        floors += (scaled / all).saturating_sub(had);
    }
    (256 - kept_at_most).max(floors)
}

#[test]
fn equal_lists_are_one_group_until_its_last_release() {
    let mut groups = Groups::new();
    let a = groups.intern(&[(hop(1), 1), (hop(2), 3)]).unwrap();
    assert_eq!(groups.intern(&[(hop(2), 3), (hop(1), 1)]), Ok(a));
    let b = groups.intern(&[(hop(1), 1), (hop(2), 2)]).unwrap();
    assert_ne!(a, b);
    assert_eq!((groups.len(), groups.members(a)), (2, &[(hop(1), 1), (hop(2), 3)][..]));

    assert!(groups.release(a));
    assert!(groups.pick(a, 0).is_some());
    assert!(groups.release(a));
    assert_eq!((groups.pick(a, 0), groups.members(a), groups.len()), (None, &[][..], 1));
    assert!(!groups.release(a), "it is gone");
    assert_eq!(groups.intern(&[(hop(3), 1)]), Ok(a), "its number is used again");
    assert!(!groups.release(GroupId::MAX));
}

#[test]
fn lists_that_are_no_groups_are_refused() {
    let mut groups = Groups::with_limit(2);
    let weight = GroupError::Weight { hop: hop(2) };
    assert_eq!(groups.intern(&[(hop(1), 1), (hop(2), 0)]), Err(weight));
    let twice = GroupError::Twice { hop: hop(1) };
    assert_eq!(groups.intern(&[(hop(1), 1), (hop(2), 1), (hop(1), 2)]), Err(twice));
    let unknown = GroupError::Unknown { hop: hop(64) };
    assert_eq!(groups.intern(&[(hop(64), 1)]), Err(unknown));
    let port = NextHop { node: 0, exit: Exit::Connected(32) };
    assert_eq!(groups.intern(&[(port, 1)]), Err(GroupError::Unknown { hop: port }));
    let many: Vec<_> = (0..65).map(|last| (gateway(0, last), 1)).collect();
    assert_eq!(groups.intern(&many), Err(GroupError::Members { members: 65 }));
    assert!(groups.is_empty());

    groups.intern(&many[..64]).unwrap();
    let id = groups.intern(&[(hop(1), 1)]).unwrap();
    assert_eq!(groups.intern(&[(hop(2), 1)]), Err(GroupError::Groups { limit: 2 }));
    assert_eq!(groups.intern(&[(hop(1), 1)]), Ok(id), "no new group");
}

#[test]
fn the_death_of_a_member_moves_its_flows_only() {
    for n in 2..=64usize {
        let mut groups = Groups::new();
        let id = groups.intern(&weighted(&vec![1; n])).unwrap();
        let before = owners(&groups, id);
        assert!(is_fair(&counts(&before), &vec![1; n], 0), "{n}");
        let dead = n / 2;
        groups.set_alive(|hop| usize::from(hop.node) != dead);
        let after = owners(&groups, id);
        for (before, after) in before.iter().zip(&after) {
            assert!(after.is_some());
            assert!(before == after || before.unwrap() == hop(dead as u8), "{n}");
        }
        assert!(is_fair(&counts(&after), &vec![1; n], 1 << dead), "{n}");
    }
}

#[test]
fn a_death_moves_no_flow_of_others_even_where_their_shares_then_demand_it() {
    // Shares of 0.9, 28.9 and 3.3 buckets. After the death of the last one, six of the large ones
    // lack a bucket, and it leaves three.
    let weights: Vec<u16> = [vec![9; 56], vec![289; 7], vec![33]].concat();
    let mut groups = Groups::new();
    let id = groups.intern(&weighted(&weights)).unwrap();
    let before = owners(&groups, id);
    assert!(is_fair(&counts(&before), &weights, 0));
    groups.set_alive(|hop| hop.node != 63);
    let after = owners(&groups, id);
    let moved = before.iter().zip(&after).filter(|(before, after)| before != after);
    assert!(moved.clone().all(|(before, _)| *before == Some(hop(63))));
    assert_eq!(moved.count(), 3);
    assert!(!is_fair(&counts(&after), &weights, 1 << 63));
    groups.set_alive(|_| true);
    assert!(is_fair(&counts(&owners(&groups, id)), &weights, 0));
}

#[test]
fn a_group_of_dead_members_selects_none_and_keeps_its_flows() {
    let mut groups = Groups::new();
    let pair = groups.intern(&weighted(&[1, 1])).unwrap();
    let one = groups.intern(&[(hop(0), 7)]).unwrap();
    let none = groups.intern(&[]).unwrap();
    let before = owners(&groups, pair);
    assert_eq!((groups.pick(one, 1), groups.pick(none, 1)), (Some(hop(0)), None));
    groups.set_alive(|_| false);
    assert!(owners(&groups, pair).iter().chain(&owners(&groups, one)).all(Option::is_none));
    groups.set_alive(|hop| hop.node == 1);
    assert!(owners(&groups, pair).iter().all(|owner| *owner == Some(hop(1))));
    assert_eq!(groups.pick(one, 1), None);
    groups.set_alive(|_| true);
    assert_eq!(counts(&owners(&groups, pair)), counts(&before));
    assert_eq!(groups.pick(one, 1), Some(hop(0)));
}

#[test]
fn a_group_made_after_a_death_does_not_use_the_dead() {
    let mut groups = Groups::new();
    let known = groups.intern(&[(gateway(1, 1), 1), (gateway(2, 2), 1)]).unwrap();
    groups.set_alive(|hop| hop.node != 3 && (hop.node, hop.port()) != (1, Some(0)));
    assert_eq!(groups.pick(known, 0), Some(gateway(2, 2)));
    for dead in
        [hop(3), gateway(3, 9), gateway(1, 1), hop(1), NextHop { node: 3, exit: Exit::Local }]
    {
        let id = groups.intern(&[(dead, 1), (hop(4), 1)]).unwrap();
        assert!(owners(&groups, id).iter().all(|owner| *owner == Some(hop(4))), "{dead}");
    }
    for alive in [Exit::Local, Exit::Connected(1)] {
        let alive = NextHop { node: 1, exit: alive };
        let id = groups.intern(&[(alive, 1)]).unwrap();
        assert_eq!(groups.pick(id, 0), Some(alive), "only a port of its node is dead");
    }
}

#[test]
fn all_bits_of_a_hash_select_the_bucket() {
    let mut groups = Groups::new();
    let id = groups.intern(&weighted(&[1; 16])).unwrap();
    for bit in 0..32 - 8 {
        let picked: Vec<_> = (0..256).map(|n| groups.pick(id, n << bit)).collect();
        assert!(counts(&picked).len() > 8, "bits from {bit} on");
    }
}

#[test]
fn only_groups_of_which_a_member_has_changed_are_rebuilt() {
    let mut groups = Groups::new();
    let port = |node, port| NextHop { node, exit: Exit::Connected(port) };
    let lists = [[hop(0), hop(1)], [hop(1), port(1, 1)], [port(1, 1), hop(2)], [hop(2), hop(3)]];
    for list in lists {
        groups.intern(&list.map(|hop| (hop, 1))).unwrap();
    }
    let mut rebuilt = |alive: &dyn Fn(&NextHop) -> bool| groups.set_alive(alive);
    assert_eq!(rebuilt(&|_| true), (0, 0));
    assert_eq!(rebuilt(&|hop| hop.node != 2), (2, 2));
    assert_eq!(rebuilt(&|hop| hop.node != 2), (0, 0));
    assert_eq!(rebuilt(&|hop| *hop != port(1, 0)), (4, 4), "two by each of the nodes 1 and 2");
    assert_eq!(rebuilt(&|hop| *hop != port(1, 0) && hop.node != 63), (0, 0));
    assert_eq!(rebuilt(&|hop| *hop != port(1, 1)), (3, 3));
    assert_eq!(rebuilt(&|_| true), (3, 2), "the first one has no member at that port");
    let removed = groups.intern(&[(hop(0), 1), (hop(1), 1)]).unwrap();
    assert!(groups.release(removed) && groups.release(removed));
    assert_eq!(groups.set_alive(|hop| hop.node != 0), (0, 0), "its only group is removed");
}

/// Any next hop at one of four nodes with two ports each.
fn any_hop() -> impl Strategy<Value = NextHop> {
    (0..4u8, 0..5u8).prop_map(|(node, exit)| match exit {
        0 => NextHop { node, exit: Exit::Local },
        1 | 2 => NextHop { node, exit: Exit::Connected(exit - 1) },
        _ => {
            let address = Ipv4Addr::new(10, 0, node, exit).into();
            NextHop { node, exit: Exit::Gateway(exit - 3, address) }
        }
    })
}

/// Whether neither the node nor the port of a next hop is dead.
fn is_alive(dead: &[NextHop], hop: &NextHop) -> bool {
    let kills = |dead: &NextHop| match dead.port() {
        None => true,
        port => port == hop.port(),
    };
    !dead.iter().any(|dead| dead.node == hop.node && kills(dead))
}

/// A group of which every change of liveness sets the state of all members.
struct Full {
    id: GroupId,
    members: Members,
    buckets: Buckets,
    alive: u64,
}

impl Full {
    fn set_alive(&mut self, is_alive: impl Fn(&NextHop) -> bool) {
        let alive = set_of(&self.members, is_alive);
        if alive != self.alive {
            self.buckets.set_alive(self.alive, alive);
            self.alive = alive;
        }
    }
}

proptest! {
    #[test]
    fn groups_that_are_not_rebuilt_are_as_after_a_rebuild_of_all(
        lists in prop::collection::vec(
            prop::collection::btree_map(any_hop(), 1..5u16, 1..8), 1..12),
        states in prop::collection::vec(prop::collection::vec(any_hop(), 0..4), 1..8),
        released in any::<u16>(),
    ) {
        let (mut groups, mut all) = (Groups::new(), Vec::<Full>::new());
        // Nodes and ports that are dead.
        let mut dead: Vec<NextHop> = Vec::new();
        let mut lists = lists.into_iter();
        for (step, state) in states.into_iter().enumerate() {
            for list in lists.by_ref().take(3) {
                let members: Members = list.into_iter().collect();
                let id = groups.intern(&members).unwrap();
                let weights = members.iter().map(|(_, weight)| *weight).collect();
                let alive = set_of(&members, |_| true);
                let mut full = Full { id, buckets: Buckets::new(weights), members, alive };
                full.set_alive(|hop| is_alive(&dead, hop));
                if all.iter().all(|other| other.id != id) {
                    all.push(full);
                }
            }
            if released >> step & 1 == 1 && !all.is_empty() {
                let full = all.remove(step % all.len());
                while groups.release(full.id) {}
            }
            let before = std::mem::replace(&mut dead, state);
            let differs = |full: &&Full| full.members.iter().any(|(hop, _)| {
                is_alive(&before, hop) != is_alive(&dead, hop)
            });
            let expected = all.iter().filter(differs).count();
            prop_assert_eq!(groups.set_alive(|hop| is_alive(&dead, hop)).1, expected);
            for full in &mut all {
                full.set_alive(|hop| is_alive(&dead, hop));
                for flow in (0..256u32).map(|bucket| bucket << 24) {
                    let expected = full.buckets.pick(flow).map(|at| full.members[at].0);
                    prop_assert_eq!(groups.pick(full.id, flow), expected);
                }
            }
        }
    }

    #[test]
    fn members_die_and_return_with_few_moves_and_fair_shares(
        weights in prop::collection::vec(prop_oneof![Just(1u16), 1..10u16, 1..=u16::MAX], 1..20),
        states in prop::collection::vec(any::<u32>(), 1..12),
    ) {
        let mut groups = Groups::new();
        let id = groups.intern(&weighted(&weights)).unwrap();
        let all = (1u64 << weights.len()) - 1;
        let mut before = owners(&groups, id);
        let mut dead_before = 0;
        prop_assert!(is_fair(&counts(&before), &weights, 0));
        for state in states {
            let dead = u64::from(state) & all;
            groups.set_alive(|hop| dead >> hop.node & 1 == 0);
            let after = owners(&groups, id);
            if dead == all {
                prop_assert!(after.iter().all(Option::is_none));
                return Ok(());
            }
            let moved = before.iter().zip(&after).filter(|(before, after)| before != after).count();
            prop_assert!(after.iter().all(|owner| dead >> owner.unwrap().node & 1 == 0));
            if dead_before & !dead == 0 {
                let orphans = before.iter().filter(|o| dead >> o.unwrap().node & 1 == 1).count();
                prop_assert_eq!(moved, orphans);
            } else {
                prop_assert!(is_fair(&counts(&after), &weights, dead));
                prop_assert_eq!(moved, fewest_moves(&counts(&before), &weights, dead));
            }
            (before, dead_before) = (after, dead);
        }
    }
}
