use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;

fn group(number: u32) -> GroupId {
    GroupId::new(number).unwrap()
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// The slowest way to find the longest prefix.
fn longest(prefixes: &[(IpNet, GroupId)], address: IpAddr) -> Option<GroupId> {
    prefixes
        .iter()
        .filter(|(prefix, _)| prefix.contains(&address))
        .max_by_key(|(prefix, _)| prefix.prefix_len())
        .map(|(_, group)| *group)
}

/// The slowest way to find the longest prefix that contains another one.
fn longest_around(prefixes: &[(IpNet, GroupId)], within: &IpNet) -> Option<(IpNet, GroupId)> {
    let around = prefixes.iter().filter(|(prefix, _)| prefix.contains(within));
    around.max_by_key(|(prefix, _)| prefix.prefix_len()).copied()
}

/// Addresses at and beside both ends of a prefix.
fn edges(prefix: &IpNet) -> [IpAddr; 4] {
    match prefix {
        IpNet::V4(p) => {
            let (first, last) = (u32::from(p.network()), u32::from(p.broadcast()));
            [first, last, first.wrapping_sub(1), last.wrapping_add(1)]
                .map(|a| Ipv4Addr::from(a).into())
        }
        IpNet::V6(p) => {
            let (first, last) = (u128::from(p.network()), u128::from(p.broadcast()));
            [first, last, first.wrapping_sub(1), last.wrapping_add(1)]
                .map(|a| Ipv6Addr::from(a).into())
        }
    }
}

/// Prefixes that overlap: few bits vary, at the beginning, at the end and at bounds of blocks.
fn overlapping() -> impl Strategy<Value = IpNet> {
    // A prefix below /8 changes up to 2^24 entries: few of them, so that the test is short.
    let length = prop_oneof![1 => 0..8u8, 15 => 8..=32u8];
    let v4 = (prop::sample::select(vec![0u32, 1, 3, 0xff, 0x100, 0x1ff, 0x8000]), length).prop_map(
        |(bits, length)| {
            let address = Ipv4Addr::from(bits << 24 | bits << 8 | bits >> 1);
            IpNet::V4(Ipv4Net::new(address, length).unwrap().trunc())
        },
    );
    let v6 = (prop::collection::vec(0..3u8, 16), 0..=128u8).prop_map(|(bytes, length)| {
        // Three in four bytes are zero, so that some prefixes are the same at length 100.
        let bytes: Vec<u8> =
            bytes.iter().enumerate().map(|(i, b)| b * u8::from(i % 5 == 1)).collect();
        let address = Ipv6Addr::from(<[u8; 16]>::try_from(bytes).unwrap());
        IpNet::V6(Ipv6Net::new(address, length).unwrap().trunc())
    });
    prop_oneof![v4, v6]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn lookups_find_the_longest_prefix_after_any_changes(
        changes in prop::collection::vec((overlapping(), prop::option::weighted(0.6, 0..5u32)), 1..60),
    ) {
        let mut fib = Fib::with_blocks(4_096);
        let mut oracle: Vec<(IpNet, GroupId)> = Vec::new();
        let addresses: Vec<IpAddr> = changes.iter().flat_map(|(prefix, _)| edges(prefix)).collect();
        for (prefix, change) in &changes {
            let at = oracle.iter().position(|(p, _)| p == prefix);
            let old = at.map(|at| oracle.swap_remove(at).1);
            match change {
                Some(number) => {
                    oracle.push((*prefix, group(*number)));
                    prop_assert_eq!(fib.insert(*prefix, group(*number)), Ok(old));
                }
                None => prop_assert_eq!(fib.remove(prefix), old),
            }
            prop_assert_eq!(fib.len(), oracle.len());
            for address in &addresses {
                prop_assert_eq!(fib.lookup(*address), longest(&oracle, *address), "{}", address);
            }
            for (prefix, _) in &changes {
                let expected = longest_around(&oracle, prefix);
                prop_assert_eq!(fib.covering(prefix), expected, "{}", prefix);
            }
        }
        for (prefix, group) in oracle {
            prop_assert_eq!(fib.remove(&prefix), Some(group));
        }
        prop_assert_eq!(fib.blocks(), 0);
        for address in addresses {
            prop_assert_eq!(fib.lookup(address), None);
        }
    }
}

#[test]
fn every_length_is_found_and_falls_back_to_the_next_shorter_one() {
    let mut fib = Fib::new();
    for (address, longest) in [("203.0.113.77", 32), ("2001:db8:1:203:405:607:809:a0b", 128)] {
        let address = ip(address);
        for length in 0..=longest {
            let prefix = IpNet::new(address, length).unwrap();
            assert_eq!(fib.insert(prefix, group(length.into())), Ok(None));
            assert_eq!(fib.lookup(address), Some(group(length.into())));
        }
        for length in (0..=longest).rev() {
            assert_eq!(fib.lookup(address), Some(group(length.into())));
            assert_eq!(
                fib.remove(&IpNet::new(address, length).unwrap()),
                Some(group(length.into()))
            );
        }
        assert_eq!(fib.lookup(address), None);
    }
    assert_eq!((fib.len(), fib.blocks()), (0, 0));
}

#[test]
fn the_largest_group_fits_with_every_length() {
    let mut fib = Fib::new();
    for prefix in ["0.0.0.0/0", "10.0.0.0/8", "10.1.1.1/32", "::/0", "2001::/16", "2001::1/128"] {
        let prefix = net(prefix);
        fib.insert(prefix, GroupId::MAX).unwrap();
        assert_eq!(fib.lookup(prefix.addr()), Some(GroupId::MAX), "{prefix}");
    }
    assert_eq!(GroupId::new(GroupId::MAX.get() + 1), None);
}

#[test]
fn a_prefix_with_host_bits_is_the_network() {
    let mut fib = Fib::new();
    fib.insert(net("10.1.2.3/16"), group(1)).unwrap();
    assert_eq!(fib.get(&net("10.1.0.0/16")), Some(group(1)));
    assert_eq!(fib.covering(&net("10.1.2.0/24")), Some((net("10.1.0.0/16"), group(1))));
    assert_eq!(fib.covering(&net("10.0.0.0/8")), None);
    assert_eq!(fib.lookup(ip("10.1.0.0")), Some(group(1)));
    assert_eq!(fib.remove(&net("10.1.255.255/16")), Some(group(1)));
    assert_eq!(fib.lookup(ip("10.1.0.0")), None);
}

#[test]
fn an_insertion_beyond_the_limit_of_blocks_changes_nothing() {
    let mut fib = Fib::with_blocks(3);
    fib.insert(net("10.0.0.0/25"), group(1)).unwrap();
    // One block for the bits to 24, one to 32, one to 40: two are left.
    let error = fib.insert(net("2001:db8::/40"), group(2)).unwrap_err();
    assert_eq!(error, FibError::Blocks { limit: 3 });
    assert_eq!((fib.len(), fib.blocks()), (1, 1));
    assert_eq!(fib.lookup(ip("2001:db8::1")), None);

    fib.insert(net("2001:db8::/32"), group(2)).unwrap();
    assert_eq!(fib.blocks(), 3);
    assert!(fib.insert(net("10.0.1.0/25"), group(3)).is_err());
    // The same block takes more prefixes, and prefixes of the array need none.
    fib.insert(net("10.0.0.128/32"), group(4)).unwrap();
    fib.insert(net("10.0.1.0/24"), group(5)).unwrap();
    fib.remove(&net("2001:db8::/32"));
    assert_eq!(fib.blocks(), 1);
    fib.insert(net("10.0.1.0/25"), group(6)).unwrap();
    assert_eq!(fib.lookup(ip("10.0.1.1")), Some(group(6)));
    assert_eq!(fib.lookup(ip("10.0.1.128")), Some(group(5)));
}

#[test]
fn the_work_of_a_change_is_the_number_of_its_entries() {
    for (prefix, work) in [
        ("0.0.0.0/0", 1),
        ("0.0.0.0/1", 1 << 23),
        ("10.0.0.0/24", 1),
        ("10.0.0.0/25", 128),
        ("10.0.0.0/32", 1),
        ("::/1", 1 << 15),
        ("2001::/16", 1),
        ("2001::/17", 128),
        ("2001::/128", 1),
    ] {
        assert_eq!(Fib::work(&net(prefix)), work, "{prefix}");
    }
}

#[test]
fn an_empty_fib_maps_little_memory() {
    let resident = || {
        let text = std::fs::read_to_string("/proc/self/statm").ok()?;
        text.split(' ').nth(1)?.parse::<usize>().ok().map(|pages| pages * 4_096)
    };
    let Some(before) = resident() else {
        println!("SKIPPED: no /proc/self/statm");
        return;
    };
    let fibs: Vec<Fib> = (0..16).map(|_| Fib::new()).collect();
    // 16 arrays of 64 MiB, written, would be 1 GiB. Other tests run meanwhile.
    assert!(resident().unwrap_or(0).saturating_sub(before) < 512 << 20);
    assert!(fibs.iter().all(|fib| fib.memory_bytes() > 64 << 20));
}
