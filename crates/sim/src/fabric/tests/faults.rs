//! Each fault occurs at its rate, is reproducible, and stays on its own link.

use std::collections::BTreeMap;

use super::lab::{Arrival, GBPS, Lab, packet};
use crate::fabric::{Burst, Fate, Flap, LeafSpine, LinkFaults, Topology};
use crate::{DropReason, HostId, LinkId, Packet};

const COUNT: u64 = 200_000;
const UP: LinkId = LinkId(0);

/// Sends `packets` over a cable with faults; returns the lab at the end and the arrivals.
fn over(faults: LinkFaults, seed: u64, count: u64) -> (Lab, Vec<Arrival>) {
    let mut lab = Lab::new(&Topology::two_hosts(), seed);
    lab.faults(UP, faults);
    lab.offer_many(0, 1, 100, count);
    let arrivals = lab.run_out();
    (lab, arrivals)
}

fn lost(lab: &Lab, why: DropReason) -> u64 {
    lab.fabric.drops()[why as usize]
}

/// Within five standard deviations of the expected count.
fn near(seen: u64, of: u64, ppm: u64) -> bool {
    let mean = of * ppm / 1_000_000;
    seen.abs_diff(mean) <= 5 * mean.isqrt() + 1
}

fn ids(arrivals: &[Arrival]) -> Vec<u64> {
    arrivals.iter().map(|a| a.packet.id).collect()
}

#[test]
fn loss_has_its_rate_and_repeats_with_its_seed() {
    for loss_ppm in [0, 10, 1000, 20_000, 500_000, 1_000_000] {
        let faults = LinkFaults { loss_ppm, ..LinkFaults::default() };
        let (lab, arrivals) = over(faults, 1, COUNT);
        let seen = lost(&lab, DropReason::Loss);
        assert!(near(seen, COUNT, loss_ppm.into()), "{loss_ppm}: {seen}");
        assert_eq!(arrivals.len() as u64 + seen, COUNT);
        if loss_ppm == 20_000 {
            assert_eq!(ids(&over(faults, 1, COUNT).1), ids(&arrivals));
            assert_ne!(ids(&over(faults, 2, COUNT).1), ids(&arrivals));
        }
    }
}

#[test]
fn bursts_have_their_share_and_their_length() {
    let burst = Burst { enter_ppm: 2_000, leave_ppm: 100_000, loss_ppm: 1_000_000 };
    let (lab, arrivals) = over(LinkFaults { burst: Some(burst), ..Default::default() }, 1, COUNT);
    let seen = lost(&lab, DropReason::Burst);
    let share = COUNT * 2_000 / 102_000;
    assert!(seen.abs_diff(share) < share / 5, "{seen} of {share}");
    let gaps = ids(&arrivals).windows(2).filter(|w| w[1] != w[0] + 1).count() as u64;
    let mean = seen / gaps;
    assert!((8..=12).contains(&mean), "bursts of {mean} instead of 10");
    // A bad state that loses half of its packets loses half of that.
    let half =
        LinkFaults { burst: Some(Burst { loss_ppm: 500_000, ..burst }), ..Default::default() };
    let seen = lost(&over(half, 1, COUNT).0, DropReason::Burst);
    assert!(seen.abs_diff(share / 2) < share / 8, "{seen}");
}

#[test]
fn duplicates_arrive_twice_in_a_row() {
    let faults = LinkFaults { duplicate_ppm: 30_000, ..LinkFaults::default() };
    let (lab, arrivals) = over(faults, 1, COUNT);
    let twice = ids(&arrivals).windows(2).filter(|w| w[0] == w[1]).count() as u64;
    assert!(near(twice, COUNT, 30_000), "{twice}");
    assert_eq!(lab.fabric.link_counters(UP).duplicated, twice);
    assert_eq!(arrivals.len() as u64, COUNT + twice);
}

#[test]
fn corruption_flips_one_bit_and_sets_the_flag() {
    let faults = LinkFaults { corrupt_ppm: 30_000, ..LinkFaults::default() };
    let (lab, arrivals) = over(faults, 1, COUNT);
    let ones = |p: &Packet| p.bytes.iter().map(|b| b.count_ones()).sum::<u32>();
    let mut by_byte = vec![0; 100];
    for a in &arrivals {
        assert_eq!(ones(&a.packet), u32::from(a.packet.corrupt));
        if let Some(at) = a.packet.bytes.iter().position(|&b| b != 0) {
            by_byte[at] += 1;
        }
    }
    let seen: u64 = by_byte.iter().sum();
    assert!(near(seen, COUNT, 30_000) && by_byte.iter().all(|&n| n > 20), "{by_byte:?}");
    assert_eq!(lab.fabric.link_counters(UP).corrupted, seen);
}

#[test]
fn a_near_miss_leaves_one_bit_of_the_check_value_wrong() {
    let always = 1_000_000;
    let faults = LinkFaults { corrupt_ppm: always, near_miss_ppm: always, ..LinkFaults::default() };
    let (_, arrivals) = over(faults, 1, 4_000);
    let mut by_bit = [0; 32];
    for a in &arrivals {
        let (head, body) = a.packet.bytes.split_at(8);
        // Packets are of zeros, so their CRC without its initial value is what the bit changes.
        let shift = |crc: u32, _| crc >> 1 ^ (0x82f6_3b78 * (crc & 1));
        let crc = body.iter().fold(0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), shift));
        let cookie = u32::from_le_bytes(*head.last_chunk().expect("a cookie"));
        assert_eq!(body.iter().map(|b| b.count_ones()).sum::<u32>(), 1);
        assert_eq!((crc ^ cookie).count_ones(), 1, "{crc:x} {cookie:x}");
        by_bit[(crc ^ cookie).trailing_zeros() as usize] += 1;
    }
    assert!(by_bit.iter().all(|&count| count > 20), "{by_bit:?}");
}

#[test]
fn an_empty_packet_can_be_corrupt() {
    let mut lab = Lab::new(&Topology::two_hosts(), 1);
    lab.faults(UP, LinkFaults { corrupt_ppm: 1_000_000, ..LinkFaults::default() });
    lab.offer_many(0, 1, 0, 1);
    assert!(lab.run_out()[0].packet.corrupt);
}

#[test]
fn reordering_delays_some_within_its_bound() {
    let faults = LinkFaults { reorder_ppm: 50_000, reorder_max_ns: 2_000, ..LinkFaults::default() };
    let (lab, arrivals) = over(faults, 1, COUNT);
    // 166 bytes at 25 Gbit/s are 53.12 ns, the cable is 15 ns.
    let extra = |a: &Arrival| a.at_ns - a.packet.sent_ns - 15 - 53;
    assert!(arrivals.iter().all(|a| extra(a) <= 2_001));
    let late: Vec<_> = arrivals.iter().map(extra).filter(|&e| e > 1).collect();
    assert!(near(lab.fabric.link_counters(UP).delayed, COUNT, 50_000));
    assert!(late.len() as u64 * 100 >= lab.fabric.link_counters(UP).delayed * 99);
    let mean = late.iter().sum::<u64>() / late.len() as u64;
    assert!((950..1050).contains(&mean), "{mean}");
    assert!(ids(&arrivals).windows(2).any(|w| w[1] < w[0]), "some are overtaken");
    let mut sorted = ids(&arrivals);
    sorted.sort_unstable();
    assert!(sorted.into_iter().eq(0..COUNT));
}

#[test]
fn extra_delay_makes_one_of_two_ways_longer() {
    let mut lab = Lab::new(&Topology::one_switch(3), 1);
    lab.offer(packet(0, 1, 0, 100));
    lab.run_out();
    let plain_ns = lab.now_ns;
    let mut lab = Lab::new(&Topology::one_switch(3), 1);
    let slow = lab.fabric.uplink(HostId(1));
    lab.faults(slow, LinkFaults { extra_delay_ns: 777, ..LinkFaults::default() });
    lab.offer(packet(1, 1, 0, 100));
    lab.offer(packet(2, 2, 0, 100));
    let arrivals = lab.run_out();
    let times: Vec<_> = arrivals.iter().map(|a| (a.packet.id, a.at_ns)).collect();
    assert_eq!(times, [(2, plain_ns), (1, plain_ns + 777)]);
    assert_eq!(lab.fabric.link_counters(slow).delayed, 0);
}

#[test]
fn a_rule_chooses_packets_by_number_content_and_time() {
    let mut lab = Lab::new(&Topology::two_hosts(), 1);
    // The rates would lose everything; the rule decides about some packets first.
    lab.faults(UP, LinkFaults { loss_ppm: 1_000_000, ..LinkFaults::default() });
    lab.fabric.set_fault_rule(
        UP,
        Some(Box::new(|p, c| {
            assert_eq!((c.link, p.id), (UP, c.number));
            match c.number {
                0 => Some(Fate::Pass),
                1 => Some(Fate::Drop),
                2 => Some(Fate::Duplicate),
                3 => Some(Fate::Delay(10_000)),
                4 => Some(Fate::Corrupt),
                _ if c.now_ns >= 100_000 => Some(Fate::Pass),
                _ => None,
            }
        })),
    );
    lab.offer_many(0, 1, 100, 6);
    lab.offer_at(100_000, packet(6, 0, 1, 100));
    let arrivals = lab.run_out();
    assert_eq!(ids(&arrivals), [0, 2, 2, 4, 3, 6]);
    let corrupt: Vec<_> = arrivals.iter().map(|a| a.packet.corrupt).collect();
    assert_eq!(corrupt, [false, false, false, true, false, false]);
    assert_eq!(arrivals[4].at_ns, 53 * 4 + 15 + 10_000, "the fourth packet of 53.12 ns");
    assert_eq!((lost(&lab, DropReason::Predicate), lost(&lab, DropReason::Loss)), (1, 1));
    // Without the rule the rates are back.
    lab.fabric.set_fault_rule(UP, None);
    lab.offer_many(0, 1, 100, 1);
    assert_eq!(lab.run_out(), []);
}

#[test]
fn one_links_faults_do_not_move_anothers() {
    let heavy = LinkFaults {
        loss_ppm: 100_000,
        duplicate_ppm: 100_000,
        reorder_ppm: 100_000,
        reorder_max_ns: 5_000,
        ..LinkFaults::default()
    };
    let arrivals_of_1 = |other: LinkFaults| {
        let mut lab = Lab::new(&Topology::one_switch(4), 9);
        let (a, b) = (lab.fabric.uplink(HostId(1)), lab.fabric.uplink(HostId(2)));
        lab.faults(a, LinkFaults { loss_ppm: 50_000, ..LinkFaults::default() });
        lab.faults(b, other);
        lab.offer_many(1, 0, 100, 5_000);
        lab.offer_many(2, 3, 100, 5_000);
        let mut by_sender = BTreeMap::<_, Vec<_>>::new();
        for a in lab.run_out() {
            by_sender.entry(a.packet.src.0).or_default().push((a.at_ns, a.packet.id));
        }
        by_sender
    };
    let (without, with) = (arrivals_of_1(LinkFaults::default()), arrivals_of_1(heavy));
    assert_eq!(without[&1], with[&1]);
    // With the same faults, two links lose different packets.
    let alike = arrivals_of_1(LinkFaults { loss_ppm: 50_000, ..LinkFaults::default() });
    let ids = |sender| alike[&sender].iter().map(|&(_, id)| id).collect::<Vec<_>>();
    assert_ne!(ids(1), ids(2));
    assert_ne!(without[&2], with[&2]);
}

#[test]
fn a_link_that_goes_down_loses_what_is_on_it_until_it_is_up() {
    let t = Topology::two_hosts().each_cable(|c| c.spec.delay_ns = 1_000);
    let mut lab = Lab::new(&t, 1);
    // One packet every 53 ns: at 2,000 ns about 20 are on the cable.
    lab.offer_many(0, 1, 100, 100);
    let before = lab.run(2_000).len();
    let on_it = lab.fabric.totals().in_flight;
    assert!(on_it >= 18);
    lab.fabric.set_link_up(UP, false);
    lab.fabric.set_link_up(UP, true);
    assert_eq!(lab.run(3_060).len(), 0, "a short break takes all that was on the way");
    assert_eq!(lost(&lab, DropReason::LinkDown), on_it);
    lab.fabric.set_link_up(UP, false);
    let sent = lab.fabric.totals().sent;
    lab.run(4_200);
    let down = lab.fabric.totals().sent - sent;
    assert!(down >= 15 && lab.fabric.totals().in_flight == 0);
    lab.fabric.set_link_up(UP, true);
    let after = lab.run_out().len();
    assert_eq!(before + after, 100 - lost(&lab, DropReason::LinkDown) as usize);
    assert!(after >= 20);
    // The other direction was not affected.
    lab.offer(packet(0, 1, 0, 100));
    lab.fabric.set_link_up(UP, false);
    assert_eq!(lab.run_out().len(), 1);
}

#[test]
fn a_flapping_link_is_down_for_its_share_of_the_time() {
    let flap = Flap { up_ns: 30_000, down_ns: 10_000 };
    let (lab, _) = over(LinkFaults { flap: Some(flap), ..LinkFaults::default() }, 1, COUNT);
    let part = lost(&lab, DropReason::LinkDown) * 1000 / COUNT;
    assert!((230..270).contains(&part), "{part}");
    // However short the periods, their evaluation ends.
    let flap = Flap { up_ns: 0, down_ns: 0 };
    let (lab, _) = over(LinkFaults { flap: Some(flap), ..LinkFaults::default() }, 1, COUNT);
    let part = lost(&lab, DropReason::LinkDown) * 1000 / COUNT;
    assert!((470..560).contains(&part), "{part}");
}

#[test]
fn packets_on_a_flapping_link_are_lost_when_it_goes_down() {
    let t = Topology::two_hosts().each_cable(|c| c.spec.delay_ns = 100_000);
    let mut lab = Lab::new(&t, 1);
    let flap = Flap { up_ns: 20_000, down_ns: 1_000 };
    lab.faults(UP, LinkFaults { flap: Some(flap), ..LinkFaults::default() });
    lab.offer_many(0, 1, 100, 1000);
    assert_eq!(lab.run_out().len(), 0, "in 100 us it falls at least three times");
    assert_eq!(lost(&lab, DropReason::LinkDown), 1000);
}

#[test]
fn a_partition_drops_packets_only_where_they_enter_the_network() {
    let mut lab = Lab::new(&Topology::leaf_spine(LeafSpine::default()), 1);
    let sides: [&[HostId]; 2] = [&[HostId(0)], &[HostId(7)]];
    lab.offer(packet(0, 0, 7, 1000));
    // Past the first link and its switch: 341 + 15 + 300 ns.
    lab.run(657);
    lab.fabric.partition(&sides);
    assert_eq!(lab.run_out().len(), 1);
    lab.offer(packet(1, 0, 7, 1000));
    assert_eq!(lab.run_out().len(), 0);
}

#[test]
fn faults_can_change_while_packets_are_in_flight() {
    let mut lab = Lab::new(&Topology::two_hosts(), 1);
    lab.offer_many(0, 1, 100, 300);
    let first = lab.run(5_000).len();
    lab.faults(UP, LinkFaults { loss_ppm: 1_000_000, ..LinkFaults::default() });
    let flying = lab.run(10_000).len();
    lab.faults(UP, LinkFaults::default());
    let last = lab.run_out().len();
    let losses = lost(&lab, DropReason::Loss) as usize;
    assert!((93..=95).contains(&losses), "5,000 ns of 53.12 ns each: {losses}");
    assert_eq!(first + flying + losses + last, 300);
    assert!(flying <= 2, "packets in flight keep their faults");
}

#[test]
fn partitions_drop_packets_that_cross_them_and_heal() {
    let mut lab = Lab::new(&Topology::one_switch(6), 1);
    let h = |n: &[u32]| n.iter().map(|&n| HostId(n)).collect::<Vec<_>>();
    // n4 and n5 are in no group: they reach each other.
    lab.fabric.partition(&[&h(&[0, 1]), &h(&[2, 3])]);
    let pairs = |lab: &mut Lab| {
        for src in 0..6 {
            for dst in 0..6 {
                lab.offer(packet(u64::from(src * 6 + dst), src, dst, 100));
            }
        }
        lab.run_out()
    };
    let arrivals = pairs(&mut lab);
    assert_eq!(arrivals.len(), 3 * 4);
    assert!(arrivals.iter().all(|a| a.packet.src.0 / 2 == a.packet.dst.0 / 2));
    assert_eq!(lost(&lab, DropReason::Partition), 24);
    // Another partition replaces it.
    lab.fabric.partition(&[&h(&[0])]);
    assert_eq!(pairs(&mut lab).len(), 1 + 25);
    lab.fabric.heal();
    assert_eq!(pairs(&mut lab).len(), 36);
}

#[test]
fn a_partition_also_cuts_a_cable_without_a_switch() {
    let mut lab = Lab::new(&Topology::two_hosts(), 1);
    lab.fabric.partition(&[&[HostId(0)], &[HostId(1)]]);
    lab.offer(packet(0, 0, 1, 100));
    assert_eq!(lab.run_out(), []);
    assert_eq!((lost(&lab, DropReason::Partition), lab.fabric.cable(UP).rate_bps), (1, 25 * GBPS));
}
