//! Routes of the kernel become routes of the node.

use super::*;

#[test]
fn routes_of_the_table_are_imported_with_groups_weights_and_rejections() {
    let mut world = World::new(&[
        "20.1.0.0/16 lan0@10.0.1.9",
        "20.2.0.0/16 lan1",
        "20.3.0.0/16 lan0@10.0.1.9*2 lan1@10.0.3.9*3 x@10.7.7.7",
        "20.4.0.0/16",
        "20.5.0.0/16 x@10.7.7.7",
        "0.0.0.0/0 lan0@10.0.1.254",
        "2001:db8::/32 metric 1024 lan0@fd00:1::9",
        "2001:db9::/32 metric 1024 lan0@fd00:1::8 lan0@fd00:1::9",
        "2001:dba::/32 metric 1024 lan1",
    ]);
    world.settle();
    for (address, expected) in [
        ("20.1.0.1", "20.1.0.0/16 via a:lan0@10.0.1.9"),
        ("20.2.0.1", "20.2.0.0/16 via a:lan1"),
        ("20.3.0.1", "20.3.0.0/16 via a:lan0@10.0.1.9*2 a:lan1@10.0.3.9*3"),
        ("20.4.0.1", "20.4.0.0/16 unreachable"),
        ("20.5.0.1", "0.0.0.0/0 via a:lan0@10.0.1.254"),
        ("2001:db8::1", "2001:db8::/32 via a:lan0@fd00:1::9"),
        ("2001:db9::1", "2001:db9::/32 via a:lan0@fd00:1::8 a:lan0@fd00:1::9"),
        // The port's MTU is too small for IPv6.
        ("2001:dba::1", ""),
        // Networks of ports stay.
        ("10.0.1.7", "10.0.1.0/24 via a:lan0"),
    ] {
        assert_eq!(world.find(address), expected);
    }
    assert_eq!((world.import.counters().kernel, world.import.counters().imported), (9, 7));
    let warnings = world.import.take_warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("leaves by an interface that is no port"), "{warnings:?}");
}

#[test]
fn other_tables_sources_types_of_service_and_tunnels_are_no_routes_of_the_node() {
    let mut world = World::new(&[]);
    world.settle();
    let edits: [fn(&mut RouteMessage); 6] = [
        |route| route.attributes[0] = RouteAttribute::Table(254),
        |route| route.header.tos = 8,
        |route| route.header.source_prefix_length = 8,
        |route| route.header.kind = RouteType::Throw,
        |route| route.header.kind = RouteType::Local,
        |route| {
            route.attributes.push(RouteAttribute::EncapType(
                netlink_packet_route::route::RouteLwEnCapType::Mpls,
            ));
        },
    ];
    for edit in edits {
        let mut route = spec("20.1.0.0/16 lan0@10.0.1.9").message();
        edit(&mut route);
        world.report(bytes(RouteNetlinkMessage::NewRoute(route).into(), NLM_F_REPLACE, 0));
        assert_eq!(world.settle(), [""; 0]);
    }
    assert_eq!(world.import.counters().malformed, 0);
}

#[test]
fn changes_replace_a_route_in_place() {
    let mut world = World::new(&["20.1.0.0/16 lan0@10.0.1.9"]);
    assert_eq!(world.settle(), ["20.1.0.0/16 via a:lan0@10.0.1.9"]);
    world.report(added("20.1.0.0/16 lan0@10.0.1.8", NLM_F_REPLACE));
    assert_eq!(world.settle(), ["20.1.0.0/16 via a:lan0@10.0.1.8"]);
    world.report(added("20.2.0.0/16 lan1", NLM_F_CREATE));
    assert_eq!(world.settle(), ["20.2.0.0/16 via a:lan1"]);
    world.report(added("20.2.0.0/16", NLM_F_REPLACE));
    assert_eq!(world.settle(), ["20.2.0.0/16 unreachable"]);
    world.report(deleted("20.2.0.0/16"));
    assert_eq!(world.settle(), ["20.2.0.0/16 gone"]);
    assert_eq!(world.model.borrow().readings, 1);
}

#[test]
fn a_route_that_is_removed_and_added_again_at_once_stays() {
    let route = "2001:db8::/32 metric 32 lan0@fd00:1::9";
    let mut world = World::new(&[route]);
    world.settle();
    world.report(deleted(route));
    world.run(9);
    world.report(added(route, NLM_F_CREATE));
    assert_eq!(world.settle(), [""; 0]);
    world.report(deleted(route));
    world.run(9);
    world.report(added("2001:db8::/32 metric 32 lan0@fd00:1::8", NLM_F_CREATE));
    assert_eq!(world.settle(), ["2001:db8::/32 via a:lan0@fd00:1::8"]);
}

#[test]
fn of_several_metrics_the_lowest_is_used() {
    let mut world = World::new(&["20.1.0.0/16 metric 20 lan0@10.0.1.20"]);
    world.settle();
    world.report(added("20.1.0.0/16 metric 30 lan0@10.0.1.30", NLM_F_CREATE));
    assert_eq!(world.settle(), [""; 0]);
    world.report(added("20.1.0.0/16 metric 10 lan0@10.0.1.10", NLM_F_CREATE));
    assert_eq!(world.settle(), ["20.1.0.0/16 via a:lan0@10.0.1.10"]);
    world.report(deleted("20.1.0.0/16 metric 20 lan0@10.0.1.20"));
    assert_eq!(world.settle(), [""; 0]);
    world.report(deleted("20.1.0.0/16 metric 10 lan0@10.0.1.10"));
    assert_eq!(world.settle(), ["20.1.0.0/16 via a:lan0@10.0.1.30"]);
}

#[test]
fn next_hops_of_ipv6_come_and_go_one_by_one() {
    let one = "2001:db8::/32 metric 1 lan0@fd00:1::8";
    let two = "2001:db8::/32 metric 1 lan0@fd00:1::8 lan0@fd00:1::9";
    let mut world = World::new(&[one]);
    world.settle();
    // The kernel reports all of them with each addition, and the one that is removed.
    world.report(added(two, NLM_F_APPEND));
    assert_eq!(world.settle(), ["2001:db8::/32 via a:lan0@fd00:1::8 a:lan0@fd00:1::9"]);
    world.report(deleted("2001:db8::/32 metric 1 lan0@fd00:1::8"));
    assert_eq!(world.settle(), ["2001:db8::/32 via a:lan0@fd00:1::9"]);
    world.report(deleted("2001:db8::/32 metric 1 lan0@fd00:1::9"));
    assert_eq!(world.settle(), ["2001:db8::/32 gone"]);
    assert_eq!(world.model.borrow().readings, 1);
}

#[test]
fn a_second_route_of_the_same_metric_takes_over_when_the_first_is_removed() {
    let (first, second) = ("20.1.0.0/16 lan0@10.0.1.8", "20.1.0.0/16 lan0@10.0.1.9");
    let mut world = World::new(&[first]);
    world.settle();
    world.model.borrow_mut().routes.push(spec(second));
    world.report(added(second, NLM_F_CREATE | NLM_F_APPEND));
    assert_eq!(world.settle(), [""; 0]);
    world.model.borrow_mut().routes.remove(0);
    world.report(deleted(first));
    assert_eq!(world.settle(), ["20.1.0.0/16 via a:lan0@10.0.1.9"], "read again");
}

#[test]
fn a_route_of_the_control_socket_has_precedence_until_it_is_removed() {
    let mut world = World::new(&["20.1.0.0/16 lan0@10.0.1.9"]);
    world.settle();
    let prefix = spec("20.1.0.0/16").prefix;
    let refused = world.import.check(&[Change::Delete(prefix)]).expect_err("refused");
    assert_eq!((refused.position, refused.refusal), (0, Refusal::Imported(prefix)));
    let operator = |world: &mut World, change: Change| {
        world.import.check(std::slice::from_ref(&change)).expect("allowed");
        world.routes.apply(Origin::Node(1), std::slice::from_ref(&change)).expect("done");
        world.import.overridden(&[change]);
    };
    operator(&mut world, Change::Replace(prefix, Members::new()));
    world.report(added("20.1.0.0/16 lan0@10.0.1.8", NLM_F_REPLACE));
    assert_eq!(world.settle(), [""; 0]);
    assert_eq!(world.find("20.1.0.1"), "20.1.0.0/16 unreachable");
    operator(&mut world, Change::Delete(prefix));
    assert_eq!(world.settle(), ["20.1.0.0/16 via a:lan0@10.0.1.8"]);
}

#[test]
fn routes_that_the_node_refuses_are_reported_and_tried_again() {
    let mut world = World::new(&["20.1.0.0/16 lan0@10.0.1.9"]);
    let room = world.routes.len() + 1;
    let mut routes = Routes::with_limits(room, Fib::new(), Groups::new());
    for (prefix, members) in world.routes.routes().map(|r| (r.prefix, r.members)) {
        routes.announce(Origin::Connected, prefix, members).expect("has room");
    }
    world.routes = routes;
    world.settle();
    world.model.borrow_mut().routes.push(spec("20.2.0.0/16 lan0@10.0.1.9"));
    world.report(added("20.2.0.0/16 lan0@10.0.1.9", NLM_F_CREATE));
    world.settle();
    assert_eq!((world.import.counters().imported, world.import.counters().refused), (1, 1));
    let warnings = world.import.take_warnings();
    assert!(warnings[0].contains("20.2.0.0/16 of the kernel's table 1000"), "{warnings:?}");
    world.model.borrow_mut().routes.remove(0);
    world.report(deleted("20.1.0.0/16 lan0@10.0.1.9"));
    world.settle();
    world.now_ns += AGAIN_NS;
    assert_eq!(world.settle(), ["20.2.0.0/16 via a:lan0@10.0.1.9"]);
    assert_eq!(world.import.counters().refused, 0);
}
