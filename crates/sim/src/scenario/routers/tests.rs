//! The three topologies: hops, times, and how Valiant load balancing divides packets.

use super::*;
use crate::fabric::Fabric;
use crate::scenario::{Spoilt, assert_refused};

fn short(topology: Shape) -> Settings {
    let (warm_up_ns, time_ns) = (10_000, 50_000);
    Settings { topology, cores: 1, load_ppm: 200_000, warm_up_ns, time_ns, ..Settings::default() }
}

#[test]
fn shapes_have_the_cables_of_the_figure() {
    for (topology, cables, switches) in
        [(Shape::Mesh, 6 + 4, 0), (Shape::Switch, 4 + 4, 1), (Shape::Mixed, 4 + 4, 1)]
    {
        let t = short(topology).topology();
        assert_eq!((t.hosts(), t.cables().len(), t.switches().len()), (8, cables, switches));
        let at_switch =
            |c: &&crate::fabric::Cable| [c.a, c.b].iter().any(|end| matches!(end, Node::Switch(_)));
        let of_switch = t.cables().iter().filter(at_switch).count();
        let expected = [0, 4, 8][topology as usize];
        assert_eq!(of_switch, expected, "{topology:?}");
        let fabric = Fabric::new(&t, 1).expect("builds");
        let per_node = [4, 2, 1][topology as usize];
        assert_eq!(fabric.uplinks(HostId(0)).count(), per_node, "{topology:?}");
    }
}

#[test]
fn all_packets_pass_and_the_times_of_their_hops_add_up() {
    for topology in Shape::ALL {
        for batching in [false, true] {
            let seen = run(&Settings { batching, ..short(topology) }).expect("runs");
            assert!(seen.packets_offered > 100, "{seen:?}");
            assert_eq!(seen.packets_dropped, 0, "{seen:?}");
            assert_eq!(seen.hops[0].latency.count, seen.packets_offered);
            // Means are rounded down.
            let sum: u64 = seen.hops.iter().map(|h| h.mean_ns * h.latency.count).sum();
            let total = seen.end_to_end_mean_ns * seen.packets_forwarded;
            let rounding = 4 * seen.packets_forwarded;
            assert!(sum.abs_diff(total) <= rounding, "{topology:?}: {sum} of {total}");
        }
    }
}

#[test]
fn packets_take_as_many_hops_as_the_topology_has() {
    let of = |topology| run(&Settings { time_ns: 200_000, ..short(topology) }).expect("runs");
    let names = |seen: &Outcome| seen.hops.iter().map(|h| h.hop).collect::<Vec<_>>();
    let mesh = of(Shape::Mesh);
    assert_eq!(names(&mesh), ["line_in", "first", "second", "line_out"]);
    // Half of the four nodes that can be drawn are the first or the last.
    assert!((mesh.node_hops_mean - 1.5).abs() < 0.05, "{mesh:?}");
    let switch = of(Shape::Switch);
    assert_eq!(names(&switch), ["line_in", "first", "line_out"]);
    assert_eq!(switch.node_hops_mean, 1.0);
    // One of four nodes that the switch takes is the last one.
    let mixed = of(Shape::Mixed);
    assert!((mixed.node_hops_mean - 0.75).abs() < 0.05, "{mixed:?}");
    assert!(mesh.end_to_end_mean_ns > switch.end_to_end_mean_ns);
}

#[test]
fn valiant_load_balancing_bounds_each_pair_whatever_the_destinations() {
    for matrix in [Matrix::Uniform, Matrix::Neighbour] {
        let settings = Settings { matrix, time_ns: 2_000_000, ..short(Shape::Mesh) };
        let seen = run(&settings).expect("runs");
        let bound = 2.0 / f64::from(settings.nodes);
        // A few per cent beyond: draws differ from their mean.
        assert!(seen.busiest_pair_share < bound * 1.1, "{matrix:?}: {seen:?}");
    }
    let direct = Settings { matrix: Matrix::Neighbour, ..short(Shape::Switch) };
    assert!(run(&direct).expect("runs").busiest_pair_share > 0.9, "without it all go one way");
}

#[test]
fn batching_packs_messages_and_carries_more_small_packets() {
    let full = |batching| {
        let settings =
            Settings { batching, load_ppm: 900_000, time_ns: 100_000, ..short(Shape::Switch) };
        run(&settings).expect("runs")
    };
    let (off, on) = (full(false), full(true));
    assert!(off.messages_per_frame <= 1.0, "{off:?}");
    assert!(on.messages_per_frame > 2.0, "{on:?}");
    assert!(on.throughput_pps > off.throughput_pps, "{on:?}, without {off:?}");
    assert!(off.packets_dropped > 0 || off.end_to_end.p99_ns > on.end_to_end.p99_ns);
}

#[test]
fn equal_seeds_have_equal_results() {
    let settings = short(Shape::Mesh);
    let seen = run(&settings).expect("runs");
    assert_eq!(run(&settings).expect("runs"), seen);
    let hosts = Hosts { seed: 2, ..settings.hosts };
    assert_ne!(run(&Settings { hosts, ..settings }).expect("runs").digest, seen.digest);
}

#[test]
fn settings_out_of_range_are_named() {
    let bad: &[Spoilt<Settings>] = &[
        ("nodes", |s| s.nodes = 1),
        ("cores", |s| s.cores = 0),
        ("line_rate_bps", |s| s.line_rate_bps = 0),
        ("packet_bytes", |s| s.packet_bytes = 63),
        ("max_frame", |s| (s.hosts.max_frame, s.packet_bytes) = (1_472, 1_500)),
        ("load_ppm", |s| s.load_ppm = 0),
        ("time_ns", |s| s.time_ns = 0),
        ("warm_up_ns", |s| s.warm_up_ns = u64::MAX),
    ];
    assert_refused(bad, Settings::default, run);
}
