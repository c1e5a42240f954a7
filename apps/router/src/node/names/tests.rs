use std::time::Duration;

use super::*;
use crate::node::Spread;

fn settings(addresses: &[&str], origins: &[&[&str]]) -> Settings {
    let ip = |text: &&str| text.parse().expect("an address");
    Settings {
        node: 0,
        ports: addresses.iter().map(|_| Vec::new()).collect(),
        addresses: addresses.iter().map(|text| (*text).to_owned()).collect(),
        origins: origins.iter().map(|all| all.iter().map(ip).collect()).collect(),
        spread: Spread::Direct,
        failure_timeout: Duration::from_secs(1),
        seed: 1,
        fingerprint: 1,
        icmp: (1, 1),
    }
}

fn addr(text: &str) -> Addr {
    Addr::from_socket(text.parse().expect("a socket"))
}

#[test]
fn a_name_belongs_to_the_addresses_of_the_file_whatever_the_port() {
    let addresses =
        ["udp://10.9.0.1:31850", "udp://10.9.1.2:31850", "udp://[fd09::3]:1", "udp://d.example:1"];
    let names = Names::new(&settings(&addresses, &[&[], &["10.9.0.2", "0.0.0.0"], &[], &[]]));
    for (node, from, expected) in [
        (1, "10.9.1.2:31850", true),
        (1, "10.9.1.2:40000", true),
        (1, "10.9.0.2:31850", true),
        (1, "[::ffff:10.9.0.2]:7", true),
        (1, "10.9.0.3:31850", false),
        (1, "10.9.0.1:31850", false),
        (1, "0.0.0.0:31850", false),
        (2, "[fd09::3]:9", true),
        (2, "[fd09::4]:1", false),
    ] {
        assert_eq!(names.has(node, addr(from), None), Some(expected), "{node} {from}");
    }
    // A name of a host: the address is that at which this node has reached it. Before, no claim to it
    // is wrong.
    assert_eq!(names.has(3, addr("10.9.0.4:1"), None), None);
    let reached = Some(addr("10.9.0.4:31850"));
    assert_eq!(names.has(3, addr("10.9.0.4:1"), reached), Some(true));
    assert_eq!(names.has(3, addr("10.9.0.5:31850"), reached), Some(false));
}

#[test]
fn transports_without_addresses_of_hosts_have_names_for_all() {
    let names = Names::new(&settings(&["mem://127.0.0.1:1", "sim://n1:7"], &[]));
    assert_eq!(names.has(0, addr("10.0.0.1:1"), None), Some(true));
    assert_eq!(names.has(1, addr("10.0.0.1:1"), None), Some(true));
}

#[test]
fn claims_are_counted_and_reported_once_a_minute() {
    let mut names = Names::new(&settings(&["udp://10.9.0.1:1", "udp://10.9.0.2:1"], &[]));
    let claim = |node, reason| Claim { node, from: addr("10.9.0.7:1"), reason };
    for at in 0..10 {
        names.refuse(claim(1, Reason::Address), at * 10_000_000_000);
        names.refuse(claim(0, Reason::Life), 5);
    }
    assert_eq!((names.addresses, names.lives), (10, 10));
    let expected = [(1, Reason::Address), (0, Reason::Life), (1, Reason::Address)];
    assert_eq!(names.claims, expected.map(|(node, reason)| claim(node, reason)));
}
