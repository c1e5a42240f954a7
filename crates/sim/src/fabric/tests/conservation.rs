//! Every packet is accounted for, over random networks, faults and traffic; and equal seeds result
//! in equal runs.

use super::lab::{Lab, Told, packet};
use crate::fabric::{
    Buffer, Burst, CableSpec, Flap, LeafSpine, LinkFaults, Marking, Pfc, SwitchSpec, Topology,
};
use crate::{DropReason, HostId, LinkId, Rng};

fn one_in(rng: &mut Rng, n: u64) -> bool {
    rng.below(n) == 0
}

fn random_switch(rng: &mut Rng) -> SwitchSpec {
    let bytes = rng.between(20_000, 400_000);
    let (alpha_num, alpha_den) = (rng.between(1, 8) as u32, rng.between(1, 4) as u32);
    let pfc = Pfc { xoff_bytes: 9_000, xon_bytes: 4_000, headroom_bytes: rng.below(12_000) };
    SwitchSpec {
        latency_ns: rng.below(1_000),
        cut_through: one_in(rng, 2),
        buffer: match rng.below(2) {
            0 => Buffer::Shared { bytes, alpha_num, alpha_den },
            _ => Buffer::PerPort { bytes: bytes / 4 + 16_000 },
        },
        marking: match rng.below(3) {
            0 => Marking::Off,
            1 => Marking::Step { k_bytes: rng.below(20_000) },
            _ => Marking::Red { min_bytes: 2_000, max_bytes: 9_000, pmax_ppm: 300_000 },
        },
        marks_departures: one_in(rng, 2),
        pfc: one_in(rng, 3).then_some(pfc),
    }
}

fn random_topology(rng: &mut Rng) -> Topology {
    let rates = [1, 10, 25, 40, 100];
    let mut t = match rng.below(4) {
        0 => Topology::two_hosts(),
        1 => Topology::one_switch(rng.between(2, 12) as u32),
        _ => Topology::leaf_spine(LeafSpine {
            leaves: rng.between(1, 4) as u32,
            hosts_per_leaf: rng.between(1, 5) as u32,
            spines: rng.between(1, 3) as u32,
            cables_per_spine: rng.between(1, 2) as u32,
            ..LeafSpine::default()
        }),
    };
    t = t.each_cable(|c| {
        let rate_bps = rates[rng.below(5) as usize] * 1_000_000_000 + rng.below(7);
        c.spec = CableSpec { rate_bps, delay_ns: rng.below(3_000) };
    });
    t.each_switch(|_, spec| {
        *spec = random_switch(rng);
        if let (Some(_), Buffer::Shared { bytes, .. }) = (spec.pfc, &mut spec.buffer) {
            *bytes = 1_000_000; // room for the thresholds of all ports
        }
        if let (Some(pfc), Buffer::PerPort { bytes }) = (spec.pfc, &mut spec.buffer) {
            *bytes = (*bytes).max(pfc.xoff_bytes + pfc.headroom_bytes);
        }
    })
}

fn random_faults(rng: &mut Rng) -> LinkFaults {
    let mut ppm = |n: u64| if one_in(rng, 2) { rng.below(n) as u32 } else { 0 };
    let mut faults = LinkFaults {
        loss_ppm: ppm(50_000),
        duplicate_ppm: ppm(50_000),
        corrupt_ppm: ppm(50_000),
        reorder_ppm: ppm(100_000),
        ..LinkFaults::default()
    };
    faults.reorder_max_ns = rng.below(20_000);
    faults.extra_delay_ns = rng.below(500);
    let burst = Burst { enter_ppm: 10_000, leave_ppm: 200_000, loss_ppm: 700_000 };
    faults.burst = one_in(rng, 4).then_some(burst);
    faults.flap = one_in(rng, 6).then_some(Flap { up_ns: 50_000, down_ns: 5_000 });
    faults
}

fn check(lab: &Lab) {
    let t = lab.fabric.totals();
    assert_eq!(t.sent + t.duplicated, t.delivered + t.dropped + t.in_flight, "{t:?}");
    assert_eq!(t.in_flight, lab.in_flight(), "{t:?}");
    assert_eq!(t.dropped, lab.fabric.drops().iter().sum::<u64>(), "{t:?}");
}

/// Changes something at random, as a run-time fault would.
fn disturb(lab: &mut Lab, rng: &mut Rng, hosts: u32) {
    let link = LinkId(rng.below(u64::from(lab.fabric.links())) as u32);
    match rng.below(5) {
        0 => lab.fabric.set_link_up(link, false),
        1 => (0..lab.fabric.links()).for_each(|l| lab.fabric.set_link_up(LinkId(l), true)),
        2 => {
            let group: Vec<_> = (0..hosts).filter(|_| one_in(rng, 2)).map(HostId).collect();
            lab.fabric.partition(&[&group]);
        }
        3 => lab.fabric.heal(),
        _ => {
            let faults = random_faults(rng);
            lab.faults(link, faults);
        }
    }
}

/// One random run: the taps' records, the arrivals and the drops.
fn run(seed: u64) -> (Vec<Told>, Vec<u64>, [u64; DropReason::COUNT]) {
    let rng = &mut Rng::new(seed);
    let topology = random_topology(rng);
    let hosts = topology.hosts();
    let mut lab = Lab::new(&topology, seed);
    let record = lab.record();
    for link in 0..lab.fabric.links() {
        if one_in(rng, 3) {
            let faults = random_faults(rng);
            lab.faults(LinkId(link), faults);
        }
    }
    let (target, span_ns) = (rng.below(hosts.into()) as u32, rng.between(20_000, 200_000));
    for id in 0..400 {
        let src = rng.below(hosts.into()) as u32;
        let incast = one_in(rng, 2);
        let dst = if incast { target } else { rng.below(hosts.into()) as u32 };
        let largest = if one_in(rng, 2) { 64 } else { 1500 };
        let payload = rng.below(largest) as usize;
        lab.offer_at(rng.below(span_ns), packet(id, src, dst, payload));
    }
    let mut arrived = Vec::new();
    for step in 0..60 {
        lab.run_with(step * 5_000, |_, a| arrived.push(a.packet.id));
        check(&lab);
        if one_in(rng, 4) {
            disturb(&mut lab, rng, hosts);
        }
    }
    lab.run_with(u64::MAX, |_, a| arrived.push(a.packet.id));
    check(&lab);
    let totals = lab.fabric.totals();
    assert_eq!((totals.sent, totals.in_flight), (400, 0), "seed {seed}: {totals:?}");
    assert_eq!(totals.delivered, arrived.len() as u64);
    for switch in 0..topology.switches().len() as u32 {
        assert_eq!(lab.fabric.switch_bytes(switch), 0, "seed {seed}");
    }
    for link in 0..lab.fabric.links() {
        let queue = lab.fabric.queue_counters(LinkId(link), lab.now_ns);
        assert_eq!((queue.bytes, queue.packets), (0, 0), "seed {seed}");
        assert_eq!(lab.fabric.ports[link as usize].held, 0, "seed {seed}");
        assert!(!lab.fabric.ports[link as usize].paused, "seed {seed}: paused for ever");
    }
    let told = record.take();
    let dropped = told.iter().filter(|t| matches!(t, Told::Dropped(..))).count() as u64;
    assert_eq!(dropped, totals.dropped, "seed {seed}");
    (told, arrived, lab.fabric.drops())
}

#[test]
fn no_packet_is_lost_without_being_counted() {
    let mut all = [0; DropReason::COUNT];
    for seed in 0..600 {
        let (_, _, drops) = run(seed);
        all.iter_mut().zip(drops).for_each(|(all, n)| *all += n);
    }
    use DropReason::{BufferFull, Burst, LinkDown, Loss, Partition};
    for why in [Loss, Burst, BufferFull, LinkDown, Partition] {
        assert!(all[why as usize] > 100, "{why:?} hardly occurred: {all:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run_to_the_last_event() {
    for seed in 0..40 {
        assert!(run(seed) == run(seed), "seed {seed}");
    }
    assert!(run(1) != run(2));
}
