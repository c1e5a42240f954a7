//! Tables of the Internet, as Debian's `python3-pyasn` has them.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use courser_router::fib::Fib;
use courser_router::group::GroupId;
use courser_router::route::{Exit, NextHop};
use courser_router::routes::{Lookup, Origin, Routes};
use flate2::read::GzDecoder;
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;

const DIRECTORY: &str = "/usr/lib/python3/dist-packages/data/";

/// A table; `None` if it is not installed.
fn open(name: &str) -> Option<File> {
    match File::open(format!("{DIRECTORY}{name}")) {
        Ok(file) => Some(file),
        Err(error) => {
            println!("SKIPPED: {DIRECTORY}{name}: {error} (apt-get install python3-pyasn)");
            None
        }
    }
}

/// The prefixes of a table and groups made of their AS numbers.
fn prefixes(file: File) -> Vec<(IpNet, GroupId)> {
    let lines = BufReader::new(GzDecoder::new(file)).lines().map(Result::unwrap);
    lines
        .filter(|line| !line.starts_with(';'))
        .map(|line| {
            let (prefix, number) = line.split_once('\t').unwrap();
            let number: u32 = number.parse().unwrap();
            (prefix.parse().unwrap(), GroupId::new(number % (1 << 24)).unwrap())
        })
        .collect()
}

/// Another implementation of the same lookups.
#[derive(Default)]
struct Oracle {
    v4: PrefixMap<Ipv4Net, GroupId>,
    v6: PrefixMap<Ipv6Net, GroupId>,
}

impl Oracle {
    fn insert(&mut self, prefix: IpNet, group: GroupId) {
        match prefix {
            IpNet::V4(prefix) => self.v4.insert(prefix, group),
            IpNet::V6(prefix) => self.v6.insert(prefix, group),
        };
    }

    fn remove(&mut self, prefix: IpNet) {
        match prefix {
            IpNet::V4(prefix) => self.v4.remove(&prefix),
            IpNet::V6(prefix) => self.v6.remove(&prefix),
        };
    }

    fn lookup(&self, address: IpAddr) -> Option<GroupId> {
        match address {
            IpAddr::V4(a) => self.v4.get_lpm(&a.into()).map(|(_, group)| *group),
            IpAddr::V6(a) => self.v6.get_lpm(&a.into()).map(|(_, group)| *group),
        }
    }
}

/// A fixed sequence of numbers (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn compare(fib: &Fib, oracle: &Oracle, prefixes: &[(IpNet, GroupId)], random: usize) {
    let check = |address: IpAddr| {
        assert_eq!(fib.lookup(address), oracle.lookup(address), "{address}");
    };
    let mut numbers = Numbers(1);
    for _ in 0..random {
        check(Ipv4Addr::from(numbers.next() as u32).into());
        // Half of the random IPv6 addresses are in a prefix of the table.
        let (prefix, _) = prefixes[numbers.next() as usize % prefixes.len()];
        let bits = u128::from(numbers.next()) << 64 | u128::from(numbers.next());
        match prefix {
            IpNet::V6(p) if bits & 1 == 0 => {
                let inside = u128::from(p.network()) | (bits & u128::from(p.hostmask()));
                check(Ipv6Addr::from(inside).into());
            }
            _ => check(Ipv6Addr::from(bits >> 3 | 1 << 125).into()),
        }
    }
    for (prefix, _) in prefixes {
        match prefix {
            IpNet::V4(p) => {
                let (first, last) = (u32::from(p.network()), u32::from(p.broadcast()));
                for edge in [first, last, first.wrapping_sub(1), last.wrapping_add(1)] {
                    check(Ipv4Addr::from(edge).into());
                }
            }
            IpNet::V6(p) => {
                let (first, last) = (u128::from(p.network()), u128::from(p.broadcast()));
                for edge in [first, last, first.wrapping_sub(1), last.wrapping_add(1)] {
                    check(Ipv6Addr::from(edge).into());
                }
            }
        }
    }
}

/// Loads a table, removes half of it, and inserts it again, with comparisons between.
fn load_and_change(name: &str, random: usize) {
    let Some(file) = open(name) else { return };
    let prefixes = prefixes(file);
    let (mut fib, mut oracle) = (Fib::new(), Oracle::default());
    for (prefix, group) in &prefixes {
        assert_eq!(fib.insert(*prefix, *group), Ok(None), "{prefix}");
        oracle.insert(*prefix, *group);
    }
    println!(
        "{name}: {} prefixes, {} blocks, {} MiB",
        fib.len(),
        fib.blocks(),
        fib.memory_bytes() >> 20
    );
    compare(&fib, &oracle, &prefixes, random);
    let half = prefixes.iter().step_by(2);
    for (prefix, group) in half.clone() {
        assert_eq!(fib.remove(prefix), Some(*group), "{prefix}");
        oracle.remove(*prefix);
    }
    compare(&fib, &oracle, &prefixes, random / 4);
    for (prefix, group) in half {
        fib.insert(*prefix, *group).unwrap();
        oracle.insert(*prefix, *group);
    }
    compare(&fib, &oracle, &prefixes, random / 4);
    for (prefix, _) in &prefixes {
        fib.remove(prefix);
    }
    assert_eq!((fib.len(), fib.blocks()), (0, 0));
}

#[test]
fn the_ipv4_table_of_2014_is_looked_up_as_by_a_trie() {
    load_and_change("ipasn_20140513.dat.gz", 1_000_000);
}

#[test]
fn the_table_of_2015_with_ipv6_is_looked_up_as_by_a_trie() {
    load_and_change("ipasn6_20151101.dat.gz", 1_000_000);
}

#[test]
fn a_table_is_spread_over_next_hops_and_survives_the_death_of_one() {
    let Some(file) = open("ipasn_20140513.dat.gz") else { return };
    let hops: Vec<NextHop> =
        (0..4).map(|node| NextHop { node, exit: Exit::Connected(0) }).collect();
    let mut routes = Routes::new();
    let announced = routes.announce_snapshot(Origin::File, file, &hops, &[]).unwrap();
    assert_eq!((announced, routes.len(), routes.groups().len()), (512_621, 512_621, 4));
    let all: Vec<_> = hops.iter().map(|hop| (*hop, 1)).collect();
    routes.announce(Origin::Node(0), "8.8.8.0/24".parse().unwrap(), &all).unwrap();
    routes.set_alive(|hop| hop.node != 2);
    let mut numbers = Numbers(2);
    let mut found = [0; 4];
    for _ in 0..100_000 {
        let number = numbers.next();
        if let Lookup::Via(hop) = routes.lookup(Ipv4Addr::from(number as u32).into(), 0) {
            found[usize::from(hop.node)] += 1;
        }
    }
    assert!(found[2] == 0 && [0, 1, 3].iter().all(|n| found[*n] > 5_000), "{found:?}");
    let google = "8.8.8.8".parse().unwrap();
    for flow in 0..1_000 {
        assert!(matches!(routes.lookup(google, flow << 20), Lookup::Via(hop) if hop.node != 2));
    }
    assert_eq!(routes.withdraw_all(Origin::File), 512_621);
    assert_eq!(routes.len(), 1);
}
