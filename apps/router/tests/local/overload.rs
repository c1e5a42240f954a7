//! More packets than a link takes.

use courser_router::counters::PacketDrop;
use courser_router::line::BURST;
use courser_router::node::PAUSE;
use courser_router::route::NodeId;

use crate::build::{UDP, V4, udp};
use crate::cluster::{Cluster, PATIENT, text};

/// Nodes: the one at which packets arrive, one that does not run, and another.
const FIRST: NodeId = 0;
const SILENT: NodeId = 1;
const OTHER: NodeId = 2;

fn packet(to: NodeId) -> Vec<u8> {
    let network = to + 1;
    V4 { dst: [10, network, 0, 2], protocol: UDP, data: udp(b"data"), ..V4::default() }.bytes()
}

/// A packet arrives, whatever waits.
fn inject(cluster: &mut Cluster, to: NodeId) {
    cluster.local.inject(FIRST, 0, &mut packet(to));
}

fn takes_packets(cluster: &mut Cluster, now_ns: u64) -> bool {
    cluster.local.node_mut(FIRST).expect("it runs").takes_packets(now_ns)
}

fn dropped(cluster: &Cluster) -> u64 {
    cluster.local.node(FIRST).expect("it runs").counters().dropped(PacketDrop::LinkFull)
}

/// A cluster whose first node has a full link to one that does not run.
fn with_a_full_link() -> Cluster {
    let mut cluster = Cluster::start(&text("switch", PATIENT, 1_000));
    cluster.local.pause(SILENT, true);
    for _ in 0..10_000 {
        inject(&mut cluster, SILENT);
        if dropped(&cluster) > 0 {
            return cluster;
        }
    }
    panic!("a link takes 10,000 packets that nothing acknowledges");
}

#[test]
fn packets_wait_at_the_ports_while_all_of_them_are_for_a_full_link() {
    let mut cluster = with_a_full_link();
    let now_ns = cluster.local.now_ns();
    assert!(takes_packets(&mut cluster, now_ns), "a single packet was refused");
    (0..BURST).for_each(|_| inject(&mut cluster, SILENT));
    // One more burst is taken, and then one after each pause.
    assert!(takes_packets(&mut cluster, now_ns));
    let resumed_ns = now_ns + PAUSE.as_nanos() as u64;
    assert!(!takes_packets(&mut cluster, now_ns + 1));
    assert!(!takes_packets(&mut cluster, resumed_ns - 1));
    assert!(takes_packets(&mut cluster, resumed_ns));
    assert!(!takes_packets(&mut cluster, resumed_ns + 1));
    let until_ns = cluster.local.node(FIRST).expect("it runs").paused_until_ns();
    assert_eq!(until_ns, Some(resumed_ns + PAUSE.as_nanos() as u64));

    cluster.local.pause(SILENT, false);
    cluster.wait("room on the link", move |local| {
        local.node_mut(FIRST).is_some_and(|mut node| node.takes_packets(resumed_ns + 1))
    });
    cluster.check_totals();
    cluster.take();
    let before = dropped(&cluster);
    assert_eq!(cluster.forward(FIRST, &packet(SILENT)).len(), 1, "the link has room");
    assert_eq!(dropped(&cluster), before);
    cluster.check_totals();
}

#[test]
fn packets_for_other_nodes_pass_a_full_link() {
    let mut cluster = with_a_full_link();
    let now_ns = cluster.local.now_ns();
    for _ in 0..BURST {
        (0..BURST - 1).for_each(|_| inject(&mut cluster, SILENT));
        inject(&mut cluster, OTHER);
        assert!(takes_packets(&mut cluster, now_ns), "packets for {OTHER} have a way");
    }
    cluster.local.run_until(std::time::Duration::from_secs(5), |local| {
        local.node(OTHER).is_some_and(|node| node.counters().sent == BURST as u64)
    });
    let left = cluster.take();
    assert_eq!(left.iter().filter(|left| left.node == OTHER).count(), BURST);
}

#[test]
fn packets_that_leave_at_their_first_node_pass_a_full_link() {
    let mut cluster = with_a_full_link();
    let now_ns = cluster.local.now_ns();
    (0..BURST).for_each(|_| inject(&mut cluster, SILENT));
    inject(&mut cluster, FIRST);
    assert!(takes_packets(&mut cluster, now_ns) && takes_packets(&mut cluster, now_ns));
}
