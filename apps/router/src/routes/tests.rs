use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn hop(node: NodeId) -> NextHop {
    NextHop { node, exit: Exit::Connected(0) }
}

fn via(node: NodeId) -> Lookup {
    Lookup::Via(hop(node))
}

#[test]
fn the_lowest_origin_is_used_and_the_next_one_takes_its_place() {
    let origins = [Origin::File, Origin::Node(7), Origin::Node(2), Origin::Connected];
    let (prefix, inside) = (net("10.0.0.0/8"), ip("10.1.1.1"));
    let mut routes = Routes::new();
    for (node, origin) in (1..).zip(origins) {
        routes.announce(origin, prefix, &[(hop(node), 1)]).unwrap();
        assert_eq!(routes.lookup(inside, 0), via(node), "{origin} is lower than those before");
    }
    for (node, origin) in (1..=4).zip(origins).rev() {
        assert_eq!(routes.lookup(inside, 0), via(node));
        assert_eq!(routes.find(inside).unwrap().origin, origin);
        assert!(routes.withdraw(origin, &prefix));
        assert!(!routes.withdraw(origin, &prefix));
    }
    assert_eq!(routes.lookup(inside, 0), Lookup::NoRoute);
    assert!(routes.groups().is_empty() && routes.fib().is_empty());

    for (node, origin) in (1..=4).zip(origins).rev() {
        routes.announce(origin, prefix, &[(hop(node), 1)]).unwrap();
        assert_eq!(routes.lookup(inside, 0), via(4), "{origin} is higher");
    }
    assert!(routes.withdraw(Origin::File, &prefix));
    assert_eq!(routes.lookup(inside, 0), via(4), "a hidden route is withdrawn");
    let used: Vec<_> = routes.routes().map(|route| (route.origin, route.is_used)).collect();
    let expected = [(Origin::Connected, true), (Origin::Node(2), false), (Origin::Node(7), false)];
    assert_eq!(used, expected);
}

#[test]
fn a_replaced_route_is_found_before_and_after() {
    let prefix = net("10.1.0.0/16");
    let mut routes = Routes::new();
    routes.announce(Origin::File, net("10.0.0.0/8"), &[(hop(0), 1)]).unwrap();
    routes.announce(Origin::File, net("10.1.2.3/32"), &[(hop(9), 1)]).unwrap();
    let blocks = routes.fib().blocks();
    for node in (1..8).cycle().take(100) {
        routes.announce(Origin::Node(1), prefix, &[(hop(node), 1)]).unwrap();
        for address in ["10.1.0.0", "10.1.2.2", "10.1.2.4", "10.1.255.255"] {
            assert_eq!(routes.lookup(ip(address), 0), via(node), "{address}");
        }
        assert_eq!(routes.lookup(ip("10.1.2.3"), 0), via(9));
        assert_eq!(routes.lookup(ip("10.2.0.0"), 0), via(0));
    }
    assert_eq!((routes.len(), routes.groups().len()), (3, 3));
    assert_eq!(routes.fib().blocks(), blocks, "nothing was removed and inserted again");
}

#[test]
fn a_refused_update_leaves_the_old_route() {
    let mut routes = Routes::with_limits(2, Fib::with_blocks(1), Groups::with_limit(2));
    let (a, b) = (net("10.0.0.0/24"), net("10.0.1.0/24"));
    routes.announce(Origin::File, a, &[(hop(1), 1)]).unwrap();
    let zero = routes.announce(Origin::File, a, &[(hop(2), 0)]);
    assert_eq!(zero, Err(GroupError::Weight { hop: hop(2) }.into()));
    let wide = routes.announce(Origin::File, net("2001:db8::/32"), &[(hop(2), 1)]);
    assert_eq!(wide, Err(FibError::Blocks { limit: 1 }.into()));
    assert_eq!((routes.len(), routes.groups().len(), routes.fib().len()), (1, 1, 1));

    routes.announce(Origin::File, b, &[(hop(2), 1)]).unwrap();
    let third = routes.announce(Origin::Node(1), b, &[(hop(2), 1)]);
    assert_eq!(third, Err(RouteError::Routes { limit: 2 }));
    let group = routes.announce(Origin::File, b, &[(hop(3), 1)]);
    assert_eq!(group, Err(GroupError::Groups { limit: 2 }.into()));
    routes.announce(Origin::File, b, &[(hop(1), 1)]).unwrap();
    assert_eq!(routes.lookup(ip("10.0.0.1"), 0), via(1));
    assert_eq!(routes.lookup(ip("10.0.1.1"), 0), via(1));
}

#[test]
fn prefixes_with_host_bits_and_ipv4_gateways_of_ipv6_routes_are_refused() {
    let mut routes = Routes::new();
    let error = routes.announce(Origin::File, net("10.0.0.1/8"), &[]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "10.0.0.1/8 has bits beyond its length: its network is 10.0.0.0/8"
    );
    let gateway = |text| NextHop { node: 0, exit: Exit::Gateway(0, ip(text)) };
    let v4 = [(gateway("10.0.0.9"), 1)];
    let error = routes.announce(Origin::File, net("2001:db8::/32"), &v4).unwrap_err();
    assert_eq!(error.to_string(), "10.0.0.9 is no gateway of 2001:db8::/32: give an IPv6 one");
    assert!(routes.is_empty());
    let v6 = [(gateway("fe80::1"), 1)];
    routes.announce(Origin::File, net("10.0.0.0/8"), &v6).expect("by RFC 8950");
}

#[test]
fn routes_without_living_next_hops_are_unreachable() {
    let mut routes = Routes::new();
    routes.announce(Origin::File, net("::/0"), &[]).unwrap();
    routes.announce(Origin::File, net("2001:db8::/32"), &[(hop(1), 1)]).unwrap();
    assert_eq!(routes.lookup(ip("2001::1"), 0), Lookup::Unreachable);
    assert_eq!(routes.lookup(ip("10.0.0.1"), 0), Lookup::NoRoute);
    assert_eq!(routes.lookup(ip("2001:db8::1"), 0), via(1));
    routes.set_alive(|hop| hop.node != 1);
    assert_eq!(routes.lookup(ip("2001:db8::1"), 0), Lookup::Unreachable);
    routes.set_alive(|_| true);
    assert_eq!(routes.lookup(ip("2001:db8::1"), 0), via(1));
}

#[test]
fn the_routes_of_an_origin_are_listed_in_pieces_and_withdrawn() {
    let mut routes = Routes::new();
    let prefixes = ["10.0.0.0/8", "10.0.0.0/16", "10.1.0.0/16", "2001:db8::/32"].map(net);
    for prefix in prefixes {
        routes.announce(Origin::Node(3), prefix, &[(hop(3), 1)]).unwrap();
    }
    routes.announce(Origin::File, prefixes[0], &[(hop(1), 1)]).unwrap();
    let listed: Vec<IpNet> = routes.announced(Origin::Node(3), None).map(|r| r.prefix).collect();
    assert_eq!(listed, prefixes);
    for (at, prefix) in prefixes.into_iter().enumerate() {
        let rest: Vec<IpNet> =
            routes.announced(Origin::Node(3), Some(prefix)).map(|r| r.prefix).collect();
        assert_eq!(rest, prefixes[at + 1..]);
    }
    assert!(!routes.get(Origin::File, prefixes[0]).unwrap().is_used);
    assert!(routes.get(Origin::File, prefixes[1]).is_none());

    assert_eq!(routes.withdraw_all(Origin::Node(3)), 4);
    assert_eq!((routes.len(), routes.fib().len(), routes.groups().len()), (1, 1, 1));
    assert_eq!(routes.lookup(ip("10.1.1.1"), 0), via(1));
}

#[test]
fn a_snapshot_is_read_plain_and_packed() {
    let text = "; comment\n10.0.0.0/8\t7\n\n2001:db8::/32\t8 # x\n10.1.0.0/16\t8";
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    packed.write_all(text.as_bytes()).unwrap();
    let packed = packed.finish().unwrap();
    for file in [text.as_bytes(), &packed] {
        let mut routes = Routes::new();
        let hops = [hop(0), hop(1)];
        assert_eq!(routes.announce_snapshot(Origin::File, file, &hops, &hops).unwrap(), 3);
        assert_eq!(routes.lookup(ip("10.0.0.1"), 0), via(1));
        assert_eq!(routes.lookup(ip("10.1.0.1"), 0), via(0));
        let mut routes = Routes::new();
        assert_eq!(routes.announce_snapshot(Origin::File, file, &[], &hops).unwrap(), 1);
    }
    let cut = &packed[..packed.len() - 10];
    let error = Routes::new().announce_snapshot(Origin::File, cut, &[hop(0)], &[]).unwrap_err();
    assert!(matches!(error, SnapshotError::Read { .. }), "{error}");
}

#[test]
fn a_wrong_line_of_a_snapshot_is_named() {
    let long = format!("10.0.0.0/8\t1{}\n", " ".repeat(300));
    for (text, line) in [
        ("10.0.0.0/8 7", 1),
        ("10.0.0.0/8\t7\n10.0.0.0/33\t7", 2),
        ("10.0.0.0/8\tAS7", 1),
        ("10.0.0.1/8\t7", 1),
        (&long, 1),
        ("10.0.0.0/8\t7\n\u{fffd}", 2),
    ] {
        let mut routes = Routes::new();
        let error = routes.announce_snapshot(Origin::File, text.as_bytes(), &[hop(0)], &[]);
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with(&format!("line {line}: ")), "{error}");
    }
    let none = Routes::new().announce_snapshot(Origin::File, &b""[..], &[], &[]);
    assert!(matches!(none, Err(SnapshotError::NoHops)));
}

#[test]
fn routes_within_a_prefix_are_listed_in_pieces() {
    let mut routes = Routes::new();
    let inside = ["10.1.0.0/16", "10.1.0.0/24", "10.1.255.255/32"].map(net);
    let outside = ["10.0.0.0/8", "10.0.255.255/32", "10.1.0.0/15", "10.2.0.0/16", "a01::/16"];
    for prefix in inside.into_iter().chain(outside.map(|text| net(text).trunc())) {
        routes.announce(Origin::File, prefix, &[(hop(1), 1)]).unwrap();
        routes.announce(Origin::Node(1), prefix, &[(hop(1), 1)]).unwrap();
    }
    for (within, expected) in [(Some(inside[0]), 6), (Some(net("::/0")), 2), (None, 16)] {
        let all: Vec<_> = routes.within(within, None).collect();
        assert_eq!(all.len(), expected);
        let mut pieces = Vec::new();
        let mut after = None;
        while let Some(route) = routes.within(within, after).next() {
            after = Some((route.prefix, route.origin));
            pieces.push(route);
        }
        assert_eq!(pieces, all);
    }
    let before = Some((net("10.0.0.0/8"), Origin::File));
    assert_eq!(routes.within(Some(inside[0]), before).count(), 6);
}

#[test]
fn changes_are_made_all_or_none() {
    let via = |node| vec![(hop(node), 1)];
    let (a, b, c) = (net("10.0.0.0/24"), net("10.0.1.0/25"), net("10.0.2.0/25"));
    let node = Origin::Node(1);
    let mut routes = Routes::with_limits(4, Fib::with_blocks(1), Groups::with_limit(2));
    routes.announce(Origin::File, a, &via(9)).unwrap();
    routes.apply(node, &[Change::Add(a, via(1)), Change::Add(b, via(1))]).unwrap();
    let state = |routes: &Routes| -> Vec<_> {
        routes.routes().map(|r| (r.prefix, r.origin, r.members.to_vec(), r.is_used)).collect()
    };
    let before = state(&routes);
    for (refused, refusal) in [
        (Change::Add(c, via(2)), Refusal::Exists(c)),
        (Change::Delete(b), Refusal::Absent(b)),
        (Change::Add(b, via(2)), RouteError::from(FibError::Blocks { limit: 1 }).into()),
        (Change::Replace(c, via(3)), RouteError::from(GroupError::Groups { limit: 2 }).into()),
    ] {
        // Blocks and groups are at their limits before and after.
        let list = [
            Change::Delete(b),
            Change::Replace(a, via(9)),
            Change::Add(c, via(2)),
            refused.clone(),
        ];
        let error = routes.apply(node, &list).unwrap_err();
        assert_eq!((error.position, error.refusal), (3, refusal), "{refused:?}");
        assert_eq!(state(&routes), before);
        assert_eq!(routes.lookup(ip("10.0.0.1"), 0), Lookup::Via(hop(1)));
        assert_eq!(routes.lookup(ip("10.0.1.1"), 0), Lookup::Via(hop(1)));
        assert_eq!(routes.lookup(ip("10.0.2.1"), 0), Lookup::NoRoute);
    }
    let list = [Change::Delete(b), Change::Replace(a, via(9)), Change::Add(c, via(2))];
    routes.apply(node, &list).unwrap();
    assert_eq!(routes.lookup(ip("10.0.2.1"), 0), Lookup::Via(hop(2)));
    assert_eq!(routes.lookup(ip("10.0.0.1"), 0), Lookup::Via(hop(9)));
}
