//! Shapes of the preset networks, and rejected topologies.

use std::collections::BTreeSet;

use super::lab::{GBPS, Lab, PAYLOAD, packet};
use crate::fabric::{
    Buffer, Cable, CableSpec, Fabric, LeafSpine, MAX_NODES, Marking, Node, Pfc, PolicyError,
    SwitchSpec, Topology, TopologyError,
};
use crate::{DropReason, HostId, LinkId};

/// Base RTT of packets so small that their time on the links hardly counts, ns.
fn rtt_ns(t: &Topology, a: u32, b: u32) -> u64 {
    let mut lab = Lab::new(t, 1);
    lab.offer(packet(0, a, b, 18));
    lab.run_with(u64::MAX, |lab, arrival| {
        if arrival.host == HostId(b) {
            lab.offer(packet(1, b, a, 18));
        }
    });
    assert_eq!(lab.fabric.totals().delivered, 2);
    lab.now_ns
}

fn rate(cables: &[Cable], end: Node) -> (u64, u64) {
    let of = |h: bool| {
        let at = |c: &&Cable| (c.a == end || c.b == end) && matches!(c.a, Node::Host(_)) == h;
        cables.iter().filter(at).map(|c| c.spec.rate_bps).sum::<u64>() / GBPS
    };
    (of(true), of(false))
}

#[test]
fn cx4_is_the_cluster_of_the_paper() {
    let t = Topology::cx4(200);
    assert_eq!((t.hosts(), t.switches().len(), t.cables().len()), (200, 6, 200 + 25));
    for leaf in 0..5 {
        // 40 hosts at 25 GbE, five cables of 100 GbE: 2:1.
        assert_eq!(rate(t.cables(), Node::Switch(leaf)), (1000, 500));
    }
    assert!(t.switches().iter().all(|s| s.cut_through && s.latency_ns < 500));
    let t = Topology::cx4(100);
    assert_eq!(rate(t.cables(), Node::Switch(4)), (500, 500));
    let t = Topology::cx4(7);
    assert_eq!((t.hosts(), rate(t.cables(), Node::Switch(3)).0), (7, 25));
    // The paper's 6 us between racks include NICs and software of both ends, ours do not.
    let fabric = Topology::cx4(100);
    assert!((2_000..4_000).contains(&rtt_ns(&fabric, 0, 99)), "{}", rtt_ns(&fabric, 0, 99));
    assert!(rtt_ns(&fabric, 0, 1) < rtt_ns(&fabric, 0, 99));
}

#[test]
fn melo_is_the_network_of_the_paper() {
    let t = Topology::melo();
    assert_eq!((t.hosts(), t.switches().len(), t.cables().len()), (320, 36, 320 + 128));
    for leaf in 0..32 {
        assert_eq!(rate(t.cables(), Node::Switch(leaf)), (400, 400), "full bisection");
    }
    // 16 us, and the eight times that 84 bytes take: 4 x 16.8 and 4 x 6.72 ns.
    assert!((16_000..16_100).contains(&rtt_ns(&t, 0, 319)), "{}", rtt_ns(&t, 0, 319));
}

#[test]
fn every_host_reaches_every_other_and_all_spines_are_used() {
    for (leaves, spines, cables_per_spine) in [(2, 1, 1), (3, 2, 1), (5, 4, 2)] {
        let spec = LeafSpine {
            leaves,
            spines,
            cables_per_spine,
            hosts_per_leaf: 3,
            ..LeafSpine::default()
        };
        let t = Topology::leaf_spine(spec);
        let mut lab = Lab::new(&t, 1);
        for src in 0..t.hosts() {
            for dst in 0..t.hosts() {
                lab.offer(packet(0, src, dst, 100));
            }
        }
        let pairs: BTreeSet<_> =
            lab.run_out().iter().map(|a| (a.packet.src, a.packet.dst, a.host)).collect();
        assert_eq!(pairs.len() as u32, t.hosts() * t.hosts());
        assert!(pairs.iter().all(|(_, dst, host)| dst == host));
        let unused = (0..lab.fabric.links()).map(LinkId);
        let unused = unused.filter(|&l| lab.fabric.link_counters(l).packets == 0);
        assert_eq!(unused.count(), 0);
    }
}

#[test]
fn any_tree_works() {
    // A host on a spine, and a switch with one host behind another.
    let mut t = Topology::new(3);
    let s: Vec<_> = (0..3).map(|_| Node::Switch(t.add_switch(SwitchSpec::default()))).collect();
    for (h, s) in (0..).zip([s[0], s[1], s[1]]) {
        t.add_cable(Node::Host(HostId(h)), s, CableSpec::default());
    }
    t.add_cable(s[0], s[2], CableSpec::uplink());
    t.add_cable(s[2], s[1], CableSpec::uplink());
    assert!(rtt_ns(&t, 0, 2) > 2 * 3 * 300);
}

#[test]
fn hosts_without_a_network_are_no_error_when_there_are_none() {
    assert_eq!(Fabric::new(&Topology::one_switch(0), 1).unwrap().links(), 0);
    assert_eq!(Fabric::new(&Topology::cx4(0), 1).unwrap().links(), 50);
}

#[test]
fn hosts_of_a_mesh_send_on_all_their_cables_at_once() {
    let cable = CableSpec::default();
    let mut lab = Lab::new(&Topology::full_mesh(4, cable), 1);
    assert_eq!(lab.fabric.links(), 12);
    for (id, to) in [(0, 1), (1, 1), (2, 2), (3, 3)] {
        lab.offer(packet(id, 0, to, PAYLOAD));
    }
    // 400 ns for each packet; only the second one to n1 waits for another.
    let arrivals: Vec<_> = lab.run_out().iter().map(|a| (a.packet.id, a.at_ns)).collect();
    assert_eq!(arrivals, [(0, 415), (2, 415), (3, 415), (1, 815)]);
}

#[test]
fn a_host_takes_its_own_cable_and_otherwise_a_shortest_path() {
    // n0 and n1 have a cable of their own, and like n2 one to the switch.
    let mut t = Topology::one_switch(3);
    let own = t.add_cable(Node::Host(HostId(0)), Node::Host(HostId(1)), CableSpec::default());
    // n3 has a cable to n2 only, whose application would have to forward.
    let mut with_leaf = Topology::new(4);
    with_leaf.add_switch(SwitchSpec::default());
    for cable in t.cables() {
        with_leaf.add_cable(cable.a, cable.b, cable.spec);
    }
    let leaf =
        with_leaf.add_cable(Node::Host(HostId(2)), Node::Host(HostId(3)), CableSpec::default());
    let mut lab = Lab::new(&with_leaf, 1);
    let link = |from, to| lab.fabric.link_to(HostId(from), HostId(to), 7);
    assert_eq!((link(0, 1), link(1, 0)), (Some(own), Some(own.reverse())));
    assert_eq!((link(0, 2), link(1, 2)), (Some(LinkId(0)), Some(LinkId(2))));
    assert_eq!((link(2, 3), link(3, 2)), (Some(leaf), Some(leaf.reverse())));
    assert_eq!(link(0, 3), None, "hosts do not forward");
    assert_eq!(lab.fabric.uplinks(HostId(0)).collect::<Vec<_>>(), [LinkId(0), own]);
    // The only cable of n3 leads to n2, which is not the receiver.
    lab.offer(packet(0, 3, 0, 100));
    assert_eq!(lab.run_out(), []);
    assert_eq!(lab.fabric.drops()[DropReason::NoRoute as usize], 1);
}

#[test]
fn several_cables_to_one_switch_share_the_flows() {
    let mut t = Topology::one_switch(2);
    let second = t.add_cable(Node::Host(HostId(0)), Node::Switch(0), CableSpec::default());
    let lab = Lab::new(&t, 1);
    let on_second = |flow: &u32| lab.fabric.link_to(HostId(0), HostId(1), *flow) == Some(second);
    let share = (0..1000).filter(on_second).count();
    assert!((400..600).contains(&share), "{share}");
}

fn refused(t: &Topology) -> TopologyError {
    Fabric::new(t, 1).unwrap_err()
}

#[test]
fn invalid_topologies_are_refused_with_the_reason() {
    use TopologyError::{Delay, Loop, NoCable, NoSuchNode, Rate, TooMany, Unreachable};
    let host = |h| Node::Host(HostId(h));
    let cable = CableSpec::default();
    assert_eq!(refused(&Topology::new(1)), NoCable(HostId(0)));
    let mut t = Topology::one_switch(2);
    t.add_cable(Node::Switch(0), Node::Switch(1), cable);
    assert_eq!(refused(&t), NoSuchNode { cable: 2, end: Node::Switch(1) });
    let mut t = Topology::one_switch(2);
    t.add_cable(Node::Switch(0), Node::Switch(0), cable);
    assert_eq!(refused(&t), Loop(2));
    let mut t = Topology::one_switch(2);
    t.add_switch(SwitchSpec::default());
    assert_eq!(refused(&t), Unreachable { from: Node::Switch(1), to: HostId(0) });
    let mut t = Topology::new(4);
    t.add_cable(host(0), host(1), cable);
    t.add_cable(host(2), host(3), cable);
    assert!(matches!(refused(&t), Unreachable { .. }));
    for rate_bps in [0, u64::MAX] {
        let t = Topology::two_hosts().each_cable(|c| c.spec.rate_bps = rate_bps);
        assert_eq!(refused(&t), Rate { cable: 0, rate_bps });
    }
    let t = Topology::two_hosts().each_cable(|c| c.spec.delay_ns = u64::MAX);
    assert_eq!(refused(&t), Delay { what: "cable", number: 0, delay_ns: u64::MAX });
    let t = Topology::one_switch(2).each_switch(|_, s| s.latency_ns = u64::MAX);
    assert_eq!(refused(&t), Delay { what: "switch", number: 0, delay_ns: u64::MAX });
    let count = u64::from(MAX_NODES) + 1;
    assert_eq!(refused(&Topology::one_switch(u32::MAX)), TooMany { what: "hosts", count });
    let vast = LeafSpine { leaves: u32::MAX, spines: u32::MAX, hosts_per_leaf: 2, ..vast_cables() };
    assert!(matches!(refused(&Topology::leaf_spine(vast)), TooMany { .. }));
    assert!(matches!(refused(&Topology::leaf_spine(vast_cables())), TooMany { .. }));
}

fn vast_cables() -> LeafSpine {
    LeafSpine { cables_per_spine: u32::MAX, ..LeafSpine::default() }
}

#[test]
fn invalid_policies_are_refused() {
    let with = |change: &dyn Fn(&mut SwitchSpec)| match refused(
        &Topology::one_switch(4).each_switch(|_, s| change(s)),
    ) {
        TopologyError::Policy { switch: 0, why } => why,
        other => panic!("{other}"),
    };
    let shared = |bytes, alpha_num, alpha_den| Buffer::Shared { bytes, alpha_num, alpha_den };
    for buffer in [shared(0, 1, 1), shared(9, 0, 1), shared(9, 1, 0), Buffer::PerPort { bytes: 0 }]
    {
        assert_eq!(with(&|s| s.buffer = buffer), PolicyError::Buffer);
    }
    for (min_bytes, max_bytes, pmax_ppm) in [(5, 5, 0), (6, 5, 0), (0, 5, 1_000_001)] {
        let red = Marking::Red { min_bytes, max_bytes, pmax_ppm };
        assert_eq!(with(&|s| s.marking = red), PolicyError::Marking);
    }
    let pfc = Pfc { xoff_bytes: 5, xon_bytes: 6, headroom_bytes: 0 };
    assert_eq!(with(&|s| s.pfc = Some(pfc)), PolicyError::PfcThresholds);
    let pfc = Pfc { xoff_bytes: 2_000_000, xon_bytes: 0, headroom_bytes: 1_000_001 };
    let room = PolicyError::PfcRoom { ports: 4, each: 3_000_001, buffer: 12_000_000 };
    assert_eq!(with(&|s| s.pfc = Some(pfc)), room);
}
