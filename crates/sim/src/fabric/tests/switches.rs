//! Buffers, marks and paths through switches.

use std::collections::{BTreeMap, BTreeSet};

use courser_buf::Ecn;

use super::lab::{Arrival, GBPS, Lab, PAYLOAD, Told, packet, star};
use crate::fabric::{Buffer, CableSpec, LeafSpine, Marking, Node, Topology};
use crate::{DropReason, HostId, LinkId, Packet};

const CABLE: CableSpec = CableSpec { rate_bps: 25 * GBPS, delay_ns: 70 };
const STORED: u64 = 1230;

/// The queues of `n` ports that each receive twice their rate for a long time.
fn full_queues(n: u32, buffer: Buffer) -> (Vec<u64>, u64) {
    let mut lab = Lab::new(&star(3 * n, CABLE, |s| s.buffer = buffer), 1);
    for sender in n..3 * n {
        lab.offer_many(sender, sender % n, PAYLOAD, 20_000);
    }
    lab.run(8_000_000);
    let queue = |h| lab.fabric.uplink(HostId(h)).reverse();
    let bytes = (0..n).map(|h| lab.fabric.queue_counters(queue(h), lab.now_ns).bytes);
    (bytes.collect(), lab.fabric.switch_bytes(0))
}

#[test]
fn dynamic_thresholds_give_each_full_queue_its_share_within_a_packet() {
    for (n, num, den) in [(1, 1, 1), (3, 1, 1), (4, 1, 2), (1, 8, 1), (2, 2, 1), (8, 1, 4)] {
        let bytes = 2_000_000;
        let buffer = Buffer::Shared { bytes, alpha_num: num, alpha_den: den };
        let (queues, used) = full_queues(n, buffer);
        let share = bytes * u64::from(num) / u64::from(den + n * num);
        for queue in &queues {
            assert!(queue.abs_diff(share) <= STORED, "{n} {num}/{den}: {queues:?} of {share}");
        }
        assert_eq!(used, queues.iter().sum::<u64>());
    }
}

#[test]
fn a_pool_is_never_exceeded_however_large_its_alpha() {
    let bytes = 20_000;
    let (_, used) = full_queues(2, Buffer::Shared { bytes, alpha_num: 1000, alpha_den: 1 });
    assert!((bytes - STORED..=bytes).contains(&used), "{used}");
}

#[test]
fn static_buffers_give_each_queue_its_own() {
    let (queues, used) = full_queues(3, Buffer::PerPort { bytes: 480_000 });
    assert!(queues.iter().all(|&q| q <= 480_000 && q > 480_000 - 2 * STORED), "{queues:?}");
    assert_eq!(used, queues.iter().sum::<u64>());
}

#[test]
fn an_idle_buffer_is_empty_and_its_mean_is_what_it_held() {
    let mut lab = Lab::new(&star(3, CABLE, |s| s.cut_through = false), 1);
    lab.offer_many(1, 0, PAYLOAD, 1);
    lab.offer_many(2, 0, PAYLOAD, 1);
    lab.run(500_000);
    // And one alone, later.
    lab.offer_many(2, 0, PAYLOAD, 1);
    lab.run(1_000_000);
    let queue = lab.fabric.queue_counters(lab.fabric.uplink(HostId(0)).reverse(), lab.now_ns);
    // Two packets at once: two for 400 ns, then one for 400 ns; then one again.
    assert_eq!((queue.bytes, queue.packets, queue.max_bytes), (0, 0, 2 * STORED));
    assert_eq!(queue.byte_ns, u128::from(4 * STORED * 400));
    assert_eq!(lab.fabric.switch_bytes(0), 0);
}

/// Three senders into one port: the taps' records, the arrivals, the port and the number of marks.
fn marked(marking: Marking, ecn: Ecn) -> (Vec<Told>, Vec<Arrival>, LinkId, u64) {
    let mut lab = Lab::new(&star(4, CABLE, |s| s.marking = marking), 1);
    let record = lab.record();
    for id in 0..3000 {
        lab.offer(Packet { ecn, ..packet(id, 1 + id as u32 % 3, 0, PAYLOAD) });
    }
    let arrivals = lab.run_out();
    assert_eq!(arrivals.len(), 3000);
    let down = lab.fabric.uplink(HostId(0)).reverse();
    (record.take(), arrivals, down, lab.fabric.link_counters(down).marked)
}

#[test]
fn a_step_marks_exactly_the_packets_that_find_more_than_k() {
    let k_bytes = 100 * STORED;
    for ecn in [Ecn::Ect0, Ecn::Ect1] {
        let (told, arrivals, down, count) = marked(Marking::Step { k_bytes }, ecn);
        // Follow the queue by the tap; a packet's mark is reported before the queue with it.
        let (mut queue, mut mark, mut marks) = (0, false, BTreeSet::new());
        for t in told {
            match t {
                Told::Marked(_, link, id) if link == down => {
                    mark = true;
                    marks.insert(id);
                }
                Told::Queue(_, link, bytes) if link == down => {
                    let joined = bytes > queue;
                    assert!(!joined || mark == (queue > k_bytes), "{queue}");
                    (queue, mark) = (bytes, false);
                }
                _ => {}
            }
        }
        let ce = arrivals.iter().filter(|a| a.packet.ecn == Ecn::Ce).map(|a| a.packet.id);
        assert_eq!((marks.len() as u64, ce.collect()), (count, marks));
        assert!((2000..2900).contains(&count), "{count}");
    }
}

#[test]
fn packets_without_ecn_support_pass_unmarked() {
    let all = Marking::Step { k_bytes: 0 };
    for (ecn, count) in [(Ecn::NotEct, 0), (Ecn::Ce, 0), (Ecn::Ect0, 2999)] {
        let (_, arrivals, _, marks) = marked(all, ecn);
        assert_eq!(marks, count, "the first finds an empty queue");
        assert_eq!(arrivals.iter().filter(|a| a.packet.ecn != ecn).count() as u64, count);
    }
}

#[test]
fn red_marks_with_the_probability_of_its_queue() {
    // A standing queue of 100 packets less those outside it; the probability at it is known.
    let (min_bytes, max_bytes, pmax_ppm) = (20 * STORED, 220 * STORED, 400_000);
    let marking = Marking::Red { min_bytes, max_bytes, pmax_ppm };
    let t = star(11, CABLE, |s| (s.marking, s.latency_ns) = (marking, 0));
    let mut lab = Lab::new(&t, 1);
    for sender in 1..=10 {
        lab.offer_many(sender, 0, PAYLOAD, 10);
    }
    let (mut arrived, mut marks) = (0_u32, 0_u32);
    lab.run_with(100_000 * 400, |lab, a| {
        arrived += 1;
        marks += u32::from(a.packet.ecn == Ecn::Ce);
        lab.offer(packet(0, a.packet.src.0, 0, PAYLOAD));
    });
    let down = lab.fabric.uplink(HostId(0)).reverse();
    let queue = lab.fabric.queue_counters(down, lab.now_ns);
    let mean = queue.byte_ns as f64 / lab.now_ns as f64 - STORED as f64; // without itself
    let chance = 0.4 * (mean - min_bytes as f64) / (max_bytes - min_bytes) as f64;
    let rate = f64::from(marks) / f64::from(arrived);
    assert!(
        (0.12..0.18).contains(&chance) && (rate / chance - 1.0).abs() < 0.05,
        "{rate} {chance}"
    );
}

#[test]
fn red_marks_nothing_below_and_everything_above() {
    let all = Marking::Red { min_bytes: 0, max_bytes: 1, pmax_ppm: 0 };
    let none = Marking::Red { min_bytes: 1 << 30, max_bytes: 1 << 31, pmax_ppm: 1_000_000 };
    assert_eq!(marked(none, Ecn::Ect0).3, 0);
    assert!(marked(all, Ecn::Ect0).3 >= 2999, "all but the first, which finds an empty queue");
    assert_eq!(marked(Marking::Off, Ecn::Ect0).3, 0);
}

/// The links on which each flow's packets were sent, out of many flows from leaf to leaf.
fn ways(spec: LeafSpine, seed: u64, flows: u32) -> BTreeMap<u32, BTreeSet<LinkId>> {
    let mut lab = Lab::new(&Topology::leaf_spine(spec), seed);
    let record = lab.record();
    for id in 0..2 * flows {
        let mut p = packet(u64::from(id), 0, spec.hosts_per_leaf, 100);
        p.flow = id % flows;
        lab.offer(p);
    }
    assert_eq!(lab.run_out().len() as u32, 2 * flows);
    let mut ways = BTreeMap::<_, BTreeSet<_>>::new();
    for t in record.take() {
        if let Told::Sent(_, link, id) = t {
            ways.entry(id as u32 % flows).or_default().insert(link);
        }
    }
    ways
}

#[test]
fn a_flow_keeps_its_path_and_many_flows_spread() {
    let spec = LeafSpine { spines: 4, cables_per_spine: 2, ..LeafSpine::default() };
    let ways_1 = ways(spec, 1, 4000);
    // Two packets each, four links: host, leaf, spine, leaf.
    assert!(ways_1.values().all(|links| links.len() == 4));
    let mut load = BTreeMap::new();
    for link in ways_1.values().flatten() {
        *load.entry(*link).or_insert(0) += 1;
    }
    // 2 links of the hosts, 8 up, 8 down.
    assert_eq!(load.len(), 18);
    let near = |n: &&i32| (400..600).contains(*n);
    assert_eq!(load.values().filter(near).count(), 16, "{load:?}");
    // The choices up and down are independent: all 16 paths are used.
    let distinct: BTreeSet<_> = ways_1.values().collect();
    assert_eq!(distinct.len(), 4 * 2 * 2);
    assert_eq!(ways_1, ways(spec, 1, 4000));
    assert_ne!(ways_1, ways(spec, 2, 4000));
}

#[test]
fn packets_to_unknown_hosts_are_dropped_and_counted() {
    let mut lab = Lab::new(&Topology::one_switch(2), 1);
    lab.offer(packet(0, 0, 7, 100));
    let mut direct = Lab::new(&Topology::two_hosts(), 1);
    direct.offer(packet(0, 0, 9, 100));
    for lab in [&mut lab, &mut direct] {
        assert_eq!(lab.run_out(), []);
        assert_eq!(lab.fabric.drops()[DropReason::NoRoute as usize], 1);
        assert_eq!(lab.fabric.totals().dropped, 1);
    }
}

#[test]
fn a_packet_to_its_own_host_comes_back_from_the_switch() {
    let mut lab = Lab::new(&Topology::one_switch(2), 1);
    lab.offer(packet(0, 0, 0, 100));
    assert_eq!(lab.run_out()[0].host, HostId(0));
    assert_eq!(lab.fabric.ends(LinkId(0)), (Node::Host(HostId(0)), Node::Switch(0)));
}
