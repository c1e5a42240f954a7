//! Routes announced at nodes, and shares of flows, when nodes stop, start again, and are silent.

use std::net::IpAddr;
use std::time::Duration;

use courser_router::counters::PacketDrop;
use courser_router::node::NodeState;
use courser_router::route::{Members, NodeId};
use courser_router::routes::Origin;

use crate::build::V4;
use crate::cluster::{Cluster, PATIENT, by, gateway, text};

/// Short enough for deaths within a test.
const SHORT: &str = "1s";

/// Passes until nodes have this many routes of an origin.
fn wait_routes(cluster: &mut Cluster, nodes: &[NodeId], origin: NodeId, count: usize) {
    cluster.wait("the nodes have the routes", |local| {
        nodes.iter().all(|node| {
            let node = local.node(*node).expect("it runs");
            node.routes().announced(Origin::Node(origin), None).count() == count
        })
    });
}

fn wait_state(cluster: &mut Cluster, nodes: &[NodeId], of: NodeId, state: NodeState) {
    cluster.wait("the nodes see the state", |local| {
        nodes.iter().all(|node| local.node(*node).expect("it runs").state(of) == state)
    });
}

#[test]
fn routes_reach_all_nodes_also_those_that_start_later() {
    let mut cluster = Cluster::start(&text("switch", PATIENT, 100));
    let (b, c) = (by(1, 0, 9), by(2, 0, 9));
    cluster.replace(1, "20.0.0.0/8", b.clone());
    cluster.replace(2, "30.0.0.0/8", c.clone());
    cluster.wait_route(&[0, 1, 2], [20, 0, 0, 1].into(), &b);
    cluster.wait_route(&[0, 1, 2], [30, 0, 0, 1].into(), &c);
    // It has none at first, and gets those of the others.
    cluster.local.stop(2);
    wait_routes(&mut cluster, &[0, 1], 2, 0);
    cluster.restart(2);
    wait_routes(&mut cluster, &[2], 1, 1);
    wait_routes(&mut cluster, &[0, 1, 2], 2, 0);
    cluster.wait_route(&[0, 1, 2], [20, 0, 0, 1].into(), &b);
    // It announces others than before.
    cluster.replace(2, "40.0.0.0/8", c.clone());
    cluster.wait_route(&[0, 1, 2], [40, 0, 0, 1].into(), &c);
    wait_state(&mut cluster, &[0], 2, NodeState::Direct);
    let packet = V4 { dst: [40, 0, 0, 1], ..V4::default() };
    let left = cluster.forward(0, &packet.bytes());
    assert_eq!((left.len(), left[0].node), (1, 2));
}

#[test]
fn packets_of_ipv4_leave_by_ipv6_gateways_of_other_nodes_too() {
    let mut cluster = Cluster::start(&text("switch", PATIENT, 100));
    let config = cluster.local.config().clone();
    for (prefix, gateway) in [("20.0.0.0/8", "fe80::9"), ("30.0.0.0/8", "172.16.0.1,onlink")] {
        let line = format!("{prefix} via b:lan0@{gateway}");
        let (net, members) = config.parse_route(&line).expect("a route");
        cluster.replace(1, prefix, members.clone());
        cluster.wait_route(&[0, 1, 2], net.addr(), &members);
        let IpAddr::V4(address) = net.addr() else { panic!("{net}") };
        let dst = address.octets();
        for from in [0, 1] {
            let packet = V4 { dst: [dst[0], 0, 0, 1], ..V4::default() };
            let left = cluster.forward(from, &packet.bytes());
            let expected = gateway.split(',').next().and_then(|text| text.parse().ok());
            assert_eq!(left.len(), 1);
            assert_eq!((left[0].node, Some(left[0].neighbour)), (1, expected));
        }
    }
    cluster.check_totals();
}

#[test]
fn the_routes_of_a_silent_node_are_withdrawn_and_come_back_with_it() {
    let mut cluster = Cluster::start(&text("switch", SHORT, 100));
    // More than a call has, and a route of the silent node's that another one covers.
    for prefix in 0..400 {
        cluster.replace(2, &format!("30.{}.{}.0/24", prefix / 256, prefix % 256), by(2, 0, 9));
    }
    cluster.replace(1, "30.0.0.0/8", by(1, 0, 9));
    wait_routes(&mut cluster, &[0, 1], 2, 400);
    cluster.local.pause(2, true);
    wait_state(&mut cluster, &[0, 1], 2, NodeState::Dead);
    wait_routes(&mut cluster, &[0, 1], 2, 0);
    cluster.wait_route(&[0, 1], [30, 0, 7, 1].into(), &by(1, 0, 9));
    let left = cluster.forward(0, &V4 { dst: [30, 0, 7, 1], ..V4::default() }.bytes());
    assert_eq!((left.len(), left[0].node), (1, 1));
    cluster.local.pause(2, false);
    wait_state(&mut cluster, &[0, 1], 2, NodeState::Direct);
    wait_routes(&mut cluster, &[0, 1], 2, 400);
    cluster.wait_route(&[0, 1], [30, 0, 7, 1].into(), &by(2, 0, 9));
}

/// The silent node hears no heartbeat in which it counts as dead, or only one.
#[test]
fn a_node_that_was_silent_for_a_little_too_long_has_its_routes_again() {
    let mut cluster = Cluster::start(&text("switch", SHORT, 100));
    cluster.replace(2, "30.0.0.0/8", by(2, 0, 9));
    for _ in 0..4 {
        wait_routes(&mut cluster, &[0, 1], 2, 1);
        cluster.local.pause(2, true);
        wait_state(&mut cluster, &[0], 2, NodeState::Dead);
        cluster.local.pause(2, false);
        wait_state(&mut cluster, &[0, 1], 2, NodeState::Direct);
    }
    wait_routes(&mut cluster, &[0, 1], 2, 1);
}

#[test]
fn a_node_that_starts_again_before_its_death_is_noticed_has_no_old_routes() {
    let mut cluster = Cluster::start(&text("switch", PATIENT, 100));
    cluster.replace(1, "20.0.0.0/8", by(1, 0, 9));
    wait_routes(&mut cluster, &[0, 2], 1, 1);
    cluster.restart(1);
    wait_routes(&mut cluster, &[0, 1, 2], 1, 0);
    assert!(cluster.local.connect(crate::cluster::LONG));
    cluster.replace(1, "21.0.0.0/8", by(1, 0, 9));
    wait_routes(&mut cluster, &[0, 1, 2], 1, 1);
}

#[test]
fn a_node_that_starts_is_reached_directly_at_first() {
    // Packets by another node would be overtaken by those that go directly soon after.
    let mut cluster = Cluster::start(&text("switch", PATIENT, 100));
    for _ in 0..2 {
        cluster.local.stop(2);
        wait_state(&mut cluster, &[0, 1], 2, NodeState::Dead);
        cluster.restart(2);
        cluster.wait("all nodes are connected", |local| {
            [(0, 2), (1, 2), (2, 0), (2, 1)].into_iter().all(|(at, of)| {
                let state = local.node(at).expect("it runs").state(of);
                assert_ne!(state, NodeState::ThroughAnother, "{of} at {at}");
                state == NodeState::Direct
            })
        });
    }
}

#[test]
fn a_packet_for_a_node_that_has_just_died_is_not_sent_back() {
    let mut cluster = Cluster::start(&text("mesh", "4s", 100));
    let packet = V4 { dst: [10, 3, 0, 9], ..V4::default() }.bytes();
    let state = |cluster: &Cluster, node| cluster.local.node(node).expect("it runs").state(2);
    // Both others notice it by their packets, and each believes that the other one is connected with
    // it, unless a heartbeat is sent in this moment.
    loop {
        cluster.local.run_for(Duration::from_millis(1_100)); // two heartbeats
        cluster.local.stop(2);
        while [0, 1].iter().any(|node| state(&cluster, *node) == NodeState::Direct) {
            cluster.inject(0, &packet);
            cluster.inject(1, &packet);
            cluster.local.pass();
        }
        if [0, 1].iter().all(|node| state(&cluster, *node) == NodeState::ThroughAnother) {
            break;
        }
        cluster.restart(2);
        assert!(cluster.local.connect(crate::cluster::LONG));
    }
    let passes = |cluster: &mut Cluster| {
        (0..1_000).for_each(|_| {
            cluster.local.pass();
        });
    };
    passes(&mut cluster);
    let counters = |cluster: &Cluster, node| {
        let node = cluster.local.node(node).expect("it runs");
        let counters = node.counters();
        (counters.from_nodes, counters.passed_on, counters.dropped(PacketDrop::LinkDown))
    };
    let before = [0, 1].map(|node| counters(&cluster, node));
    cluster.inject(0, &packet);
    passes(&mut cluster);
    let after = [0, 1].map(|node| counters(&cluster, node));
    assert_eq!(after[0], before[0], "nothing comes back");
    assert_eq!(after[1], (before[1].0 + 1, before[1].1, before[1].2 + 1));
}

/// The exits of flows, in the order of their ports.
fn exits(cluster: &mut Cluster, flows: u16) -> Vec<(NodeId, IpAddr)> {
    let mut exits = Vec::new();
    for flow in 0..flows {
        let [high, low] = flow.to_be_bytes();
        let data = vec![high, low, 0, 53, 0, 8, 0, 0];
        let packet = V4 { dst: [20, 0, 0, 1], data, ..V4::default() };
        let left = cluster.forward(0, &packet.bytes());
        assert_eq!(left.len(), 1, "flow {flow}");
        exits.push((left[0].node, left[0].neighbour));
    }
    exits
}

#[test]
fn only_flows_of_a_dead_node_move_and_its_share_returns_with_it() {
    let mut cluster = Cluster::start(&text("switch", SHORT, 100));
    let members: Members = vec![
        (gateway(0, 0, 9), 1),
        (gateway(1, 0, 9), 1),
        (gateway(1, 1, 8), 1),
        (gateway(2, 0, 9), 2),
    ];
    cluster.replace(0, "20.0.0.0/8", members.clone());
    cluster.wait_route(&[0, 1, 2], [20, 0, 0, 1].into(), &members);
    let count = 1_000;
    let before = exits(&mut cluster, count);
    let share = |node| before.iter().filter(|(at, _)| *at == node).count();
    let shares = [share(0), share(1), share(2)];
    for (share, wanted) in shares.into_iter().zip([200, 400, 400]) {
        assert!(share.abs_diff(wanted) < 80, "{shares:?}");
    }
    cluster.local.stop(2);
    wait_state(&mut cluster, &[0, 1], 2, NodeState::Dead);
    let during = exits(&mut cluster, count);
    for (before, during) in before.iter().zip(&during) {
        assert!(during.0 != 2 && (before.0 == 2 || before == during), "{before:?} {during:?}");
    }
    cluster.restart(2);
    wait_state(&mut cluster, &[0, 1], 2, NodeState::Direct);
    // As many as its share return, and the others stay but for the rounding of shares.
    let after = exits(&mut cluster, count);
    let returned = after.iter().filter(|(at, _)| *at == 2).count();
    assert!(returned.abs_diff(400) < 80, "{returned}");
    let moved = |(during, after): &(&_, &(NodeId, IpAddr))| after.0 != 2 && *during != *after;
    let moved = during.iter().zip(&after).filter(moved).count();
    assert!(moved < 20, "{moved}");
}
