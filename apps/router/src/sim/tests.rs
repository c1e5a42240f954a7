use courser_sim::Rng;
use courser_sim::fabric::LinkFaults;

use super::*;
use crate::counters::PacketDrop;
use crate::node::NodeState;

/// No packet may be lost, change, be reordered, leave twice or elsewhere.
fn all_arrive(settings: &Settings) -> Outcome {
    let outcome = run(settings).expect("a result");
    assert_eq!(outcome.faults, Faults::default(), "{outcome:#?}");
    assert_eq!(outcome.packets_offered, outcome.packets_forwarded, "{outcome:#?}");
    assert!(outcome.packets_offered > 100, "{outcome:#?}");
    outcome
}

#[test]
fn every_packet_passes_in_each_topology_with_and_without_batches() {
    for topology in Shape::ALL {
        for batch in [1, 32] {
            let settings = Settings { topology, batch, load_ppm: 100_000, ..Settings::default() };
            let outcome = all_arrive(&settings);
            let links = if topology == Shape::Mesh { 1.4..1.6 } else { 0.7..1.01 };
            assert!(links.contains(&outcome.links_mean), "{topology:?} {}", outcome.links_mean);
        }
    }
}

#[test]
fn the_times_of_all_hops_add_up_to_the_latency() {
    // In the mixed topology a packet may leave at its first node, and has no hops then.
    for topology in [Shape::Mesh, Shape::Switch] {
        for batch in [1, 32] {
            let settings = Settings { topology, batch, load_ppm: 100_000, ..Settings::default() };
            let outcome = all_arrive(&settings);
            assert_eq!(outcome.hops[0].packets, outcome.packets_offered);
            // Means are rounded down.
            let sum: u64 = outcome.hops.iter().map(|hop| hop.mean_ns * hop.packets).sum();
            let total = outcome.end_to_end_mean_ns * outcome.packets_forwarded;
            let rounding = 5 * outcome.packets_forwarded;
            assert!(sum.abs_diff(total) <= rounding, "{topology:?}: {sum} of {total}");
        }
    }
}

#[test]
fn packets_take_as_many_hops_as_the_topology_has() {
    let of =
        |topology| all_arrive(&Settings { topology, load_ppm: 100_000, ..Settings::default() });
    let names = |seen: &Outcome| seen.hops.iter().map(|hop| hop.hop).collect::<Vec<_>>();
    let mesh = of(Shape::Mesh);
    assert_eq!(names(&mesh), ["line_in", "first_link", "node", "second_link", "line_out"]);
    let switch = of(Shape::Switch);
    assert_eq!(names(&switch), ["line_in", "first_link", "line_out"]);
    assert_eq!(switch.links_mean, 1.0);
    // One of four nodes that the switch takes is the last one.
    let mixed = of(Shape::Mixed);
    assert!((mixed.links_mean - 0.75).abs() < 0.05, "{mixed:?}");
    assert!(mesh.end_to_end_mean_ns > switch.end_to_end_mean_ns);
}

#[test]
fn flows_of_real_sizes_pass_in_order() {
    for topology in Shape::ALL {
        let settings = Settings {
            topology,
            sizes: Sizes::WebSearch,
            load_ppm: 300_000,
            time_ns: 2_000_000,
            ..Settings::default()
        };
        all_arrive(&settings);
    }
}

#[test]
fn equal_seeds_have_equal_runs() {
    let run = |seed| all_arrive(&Settings { seed, time_ns: 100_000, ..Settings::default() }).digest;
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

/// Matrices whose rows and columns add up to at most what a port carries: those that direct ways
/// serve worst, those in which one host receives all, and mixtures.
fn adversarial(n: u32) -> Vec<Matrix> {
    let mut all: Vec<Matrix> = (1..n).map(Matrix::Shift).collect();
    let zero = || vec![vec![0_u32; n as usize]; n as usize];
    let mut swap = zero();
    let mut to_one = zero();
    for from in 0..n as usize {
        swap[from][from ^ 1] = 1_000_000;
        if from > 0 {
            to_one[from][0] = 1_000_000 / (n - 1);
        }
    }
    all.push(Matrix::Shares(swap));
    all.push(Matrix::Shares(to_one));
    let mut rng = Rng::stream(7, 1);
    while all.len() < 10 {
        // A mixture of permutations is doubly stochastic.
        let mut mixed = zero();
        let mut left = 1_000_000;
        while left > 0 {
            let share = left.min(100_000 + rng.below(400_000) as u32);
            left -= share;
            let by = 1 + rng.below(u64::from(n - 1)) as usize;
            for (from, row) in mixed.iter_mut().enumerate() {
                row[(from + by) % n as usize] += share;
            }
        }
        all.push(Matrix::Shares(mixed));
    }
    all
}

#[test]
fn valiant_keeps_every_cable_below_its_bound_for_ten_adversarial_matrices() {
    let nodes = 6;
    let matrices = adversarial(nodes);
    assert_eq!(matrices.len(), 10);
    for matrix in matrices {
        let settings = Settings {
            nodes,
            matrix: matrix.clone(),
            load_ppm: 300_000,
            time_ns: 400_000,
            ..Settings::default()
        };
        let outcome = all_arrive(&settings);
        let bound = 2.0 / f64::from(nodes);
        // A flow counts as a whole, and has a share of random size: 3 % above the bound at most.
        let share = outcome.busiest_pair_share;
        assert!(share < bound * 1.03, "{matrix:?}: {share} of {bound}");
    }
    let (topology, matrix) = (Shape::Switch, Matrix::Shift(1));
    let direct = Settings { topology, nodes, matrix, load_ppm: 100_000, ..Settings::default() };
    let share = all_arrive(&direct).busiest_pair_share;
    assert!(share > 0.9, "without it all packets of a port go one way: {share}");
}

/// Links of a node towards others.
fn cables(cluster: &Cluster, from: u32) -> Vec<courser_sim::LinkId> {
    let fabric = cluster.world.fabric();
    let others = (0..cluster.settings.nodes).filter(|to| *to != from);
    others.filter_map(|to| fabric.link_to(HostId(from), HostId(to), 0)).collect()
}

#[test]
fn losses_between_nodes_delay_packets_and_keep_their_order() {
    for topology in [Shape::Mesh, Shape::Switch] {
        let settings = Settings { topology, time_ns: 3_000_000, ..Settings::default() };
        let mut cluster = Cluster::new(&settings).expect("a cluster");
        for node in 0..settings.nodes {
            for link in cables(&cluster, node) {
                let faults = LinkFaults { loss_ppm: 10_000, ..LinkFaults::default() };
                cluster.world.set_link_faults(link, faults);
            }
        }
        let begin_ns = cluster.world.now_ns();
        cluster.send(begin_ns, begin_ns + settings.time_ns);
        cluster.world.run_for(Duration::from_millis(40));
        let outcome = cluster.outcome();
        assert_eq!(outcome.faults, Faults::default(), "{topology:?}: {outcome:#?}");
        assert_eq!(outcome.packets_offered, outcome.packets_forwarded, "{topology:?} {outcome:#?}");
        assert!(cluster.counters().reordered > 10, "packets waited: {:?}", cluster.counters());
    }
}

/// A cluster with 100 ms of traffic, of which 5 ms are over when `fault` happens. The rest is the
/// test's to run.
fn with_fault(settings: &Settings, fault: impl FnOnce(&mut Cluster)) -> Cluster {
    let mut cluster = Cluster::new(settings).expect("a cluster");
    let begin_ns = cluster.world.now_ns();
    cluster.send(begin_ns, begin_ns + 100_000_000);
    cluster.world.run_for(Duration::from_millis(5));
    fault(&mut cluster);
    cluster
}

fn light(topology: Shape, nodes: u32) -> Settings {
    Settings { topology, nodes, load_ppm: 2_000, ..Settings::default() }
}

#[test]
fn the_death_of_a_node_touches_only_its_own_flows() {
    for topology in [Shape::Switch, Shape::Mesh] {
        for crash in [true, false] {
            let settings = light(topology, 3);
            let mut cluster = with_fault(&settings, |c| match crash {
                true => c.world.crash(HostId(2)),
                false => c.world.kill(HostId(2)),
            });
            let limit = settings.failure_timeout;
            let survivors = [cluster.node(0).clone(), cluster.node(1).clone()];
            let withdrawn = cluster.world.run_until(limit, move |_| {
                survivors.iter().all(|n| n.borrow().state(2) == NodeState::Dead)
            });
            assert!(withdrawn, "{topology:?}: within the failure timeout");
            cluster.world.run_for(Duration::from_millis(130));
            let outcome = cluster.outcome();
            assert_eq!(outcome.faults, Faults::default(), "{topology:?}: {outcome:#?}");
            for (from, to) in [(0, 1), (1, 0)] {
                let (sent, received) = cluster.flows_between(from, to);
                assert!(sent > 500);
                // A machine that falls silent takes with it what is on its way through it, until the
                // others notice: in a mesh, a third of each flow's bursts.
                let lost = if topology == Shape::Mesh && crash { sent / 10 } else { 0 };
                assert!(
                    received + lost >= sent,
                    "{topology:?} {from} to {to}: {received} of {sent}"
                );
            }
            let counters = cluster.counters();
            assert!(counters.dropped(PacketDrop::Unreachable) > 100, "{counters:?}");
            assert!(counters.icmp_sent > 0, "{counters:?}");
        }
    }
}

#[test]
fn a_node_that_starts_again_gets_its_packets() {
    let settings = light(Shape::Switch, 3);
    let mut cluster = with_fault(&settings, |c| c.world.kill(HostId(2)));
    cluster.world.run_for(Duration::from_millis(30));
    assert_eq!(cluster.node(0).borrow().state(2), NodeState::Dead);
    cluster.restart(2).expect("starts");
    let (first, third) = (cluster.node(0).clone(), cluster.node(2).clone());
    let back = cluster.world.run_until(settings.failure_timeout, move |_| {
        first.borrow().state(2) == NodeState::Direct && third.borrow().connected() == 2
    });
    assert!(back);
    let before = cluster.flows_between(0, 2).1;
    cluster.world.run_for(Duration::from_millis(30));
    assert!(cluster.flows_between(0, 2).1 > before + 100);
    assert_eq!(cluster.faults(), Faults::default());
}

#[test]
fn a_cable_of_a_mesh_that_fails_is_passed_by_another_node() {
    let settings = light(Shape::Mesh, 3);
    let mut cluster = with_fault(&settings, |c| {
        let fabric = c.world.fabric();
        let link = |a, b| fabric.link_to(HostId(a), HostId(b), 0).expect("a cable");
        let both = [link(0, 1), link(1, 0)];
        both.iter().for_each(|link| c.world.set_link_up(*link, false));
    });
    cluster.world.run_for(settings.failure_timeout);
    assert_eq!(cluster.node(0).borrow().state(1), NodeState::ThroughAnother);
    let before = cluster.flows_between(0, 1);
    cluster.world.run_for(Duration::from_millis(40));
    let after = cluster.flows_between(0, 1);
    assert!(after.1 - before.1 > 200, "{before:?} {after:?}");
    cluster.world.run_for(Duration::from_millis(100));
    assert_eq!(cluster.faults(), Faults::default());
}

#[test]
fn batches_raise_the_throughput_of_small_packets() {
    // At 10 Gbit/s the port carries 3.3 times the packets that the cable between nodes carries one
    // by one; over sockets the CPU is the limit.
    for (cpu, least) in [(Cpu::Measured, 2.7), (Cpu::Sockets, 3.7)] {
        let sweep = figures::Sweep {
            cpu,
            sizes: vec![64],
            batches: vec![1, 32],
            links: vec![1, 2],
            time_ns: 200_000,
            ..figures::Sweep::default()
        };
        let points = sweep.run_all(|_, _| {}).expect("points");
        for pair in points.chunks(2) {
            assert!(pair[1].of_batch_1 > least, "{cpu:?}: {pair:#?}");
            assert!(pair[1].messages_per_frame > 4.0 * pair[0].messages_per_frame, "{pair:#?}");
            assert!(pair[1].wire_bytes_per_byte < pair[0].wire_bytes_per_byte / 2.0, "{pair:#?}");
        }
        let latency = |links: usize| points[2 * links].latency.latency_p50_ns;
        assert!(latency(1) > latency(0), "a second link takes time");
    }
}

/// A router of two nodes whose time goes into system calls.
fn overloaded(load_ppm: u32, time_ns: u64) -> Settings {
    Settings {
        topology: Shape::Switch,
        nodes: 2,
        cpu: Cpu::Sockets,
        load_ppm,
        time_ns,
        ..Settings::default()
    }
}

#[test]
fn a_flood_is_forwarded_at_the_best_rate_and_half_of_the_capacity_without_loss() {
    let rate = |load_ppm| {
        let outcome = run(&overloaded(load_ppm, 3_000_000)).expect("a result");
        assert_eq!(outcome.faults, Faults::default(), "{outcome:#?}");
        (outcome.throughput_pps, outcome.packets_offered - outcome.packets_forwarded)
    };
    let line_pps = overloaded(1, 1).line_pps() * 2;
    let rates = [125_000, 250_000, 500_000, 1_000_000].map(|load| (load, rate(load)));
    let best = rates.iter().map(|(_, (pps, _))| *pps).max().unwrap_or_default();
    let (most, (pps, _)) = rates[rates.len() - 1];
    assert!(line_pps * u64::from(most) / 1_000_000 > 2 * best, "no flood: {rates:?}");
    assert!(pps * 10 >= best * 9, "{rates:?}");
    let half = (u128::from(best) * 500_000 / u128::from(line_pps)) as u32;
    assert_eq!(rate(half).1, 0, "lost at half of {best} packets/s");
}

#[test]
fn nodes_that_run_half_of_the_time_forward_what_fits_their_links() {
    // As programs do on a machine that is busy: one node waits while the other runs. A few hundred
    // packets arrive in each turn.
    const TURN: Duration = Duration::from_micros(500);
    let settings = overloaded(20_000, 10_000_000);
    let rate = |late: bool| {
        let mut cluster = Cluster::new(&settings).expect("a cluster");
        let begin_ns = cluster.world.now_ns();
        cluster.send(begin_ns, begin_ns + settings.time_ns);
        for turn in 0..settings.time_ns / TURN.as_nanos() as u64 {
            if late {
                cluster.world.pause(HostId((turn % 2) as u32), TURN);
            }
            cluster.world.run_for(TURN);
        }
        let outcome = cluster.outcome();
        assert_eq!(outcome.faults, Faults::default(), "{outcome:#?}");
        outcome.throughput_pps
    };
    let (prompt, late) = (rate(false), rate(true));
    assert!(late * 10 >= prompt * 9, "{late} packets/s of {prompt}");
}
