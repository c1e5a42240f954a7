//! Priority flow control: nothing is dropped, and senders above their share are paused.

use super::lab::{GBPS, Lab, PAYLOAD, packet, star};
use crate::fabric::{Buffer, CableSpec, LeafSpine, Pfc, SwitchSpec, Topology};
use crate::{HostId, LinkId};

const CABLE: CableSpec = CableSpec { rate_bps: 25 * GBPS, delay_ns: 70 };
const STORED: u32 = 1230;

fn pfc(headroom_bytes: u64) -> Pfc {
    Pfc { xoff_bytes: 10_000, xon_bytes: 6_000, headroom_bytes }
}

fn incast(t: &Topology, senders: std::ops::Range<u32>, packets: u64) -> Lab {
    let mut lab = Lab::new(t, 1);
    for sender in senders {
        lab.offer_many(sender, 0, PAYLOAD, packets);
    }
    lab
}

fn pauses(lab: &Lab, links: impl Iterator<Item = LinkId>) -> u64 {
    links.map(|l| lab.fabric.link_counters(l).pauses).sum()
}

#[test]
fn an_incast_loses_nothing_and_pauses_the_hosts() {
    let headroom = Pfc::headroom_for(CABLE.rate_bps, CABLE.delay_ns, 300, STORED);
    for cut_through in [false, true] {
        let t = star(11, CABLE, |s| {
            s.cut_through = cut_through;
            s.pfc = Some(pfc(headroom));
            s.buffer = Buffer::PerPort { bytes: 10_000 + headroom };
        });
        let mut lab = incast(&t, 1..11, 1000);
        let mut arrived = 0;
        lab.run_with(u64::MAX, |_, _| arrived += 1);
        assert_eq!((arrived, lab.fabric.totals().dropped), (10_000, 0));
        let uplinks: Vec<_> = (1..11).map(|h| lab.fabric.uplink(HostId(h))).collect();
        for &up in &uplinks {
            let c = lab.fabric.link_counters(up);
            // Each host gets a tenth of the port: it is paused nine tenths of the time.
            let part = c.paused_ns * 100 / lab.now_ns;
            assert!(c.pauses > 10 && (80..95).contains(&part), "{c:?}");
            let frames = lab.fabric.link_counters(up.reverse()).pause_frames;
            assert!(frames >= 2 * c.pauses && frames <= 2 * c.pauses + 1, "{frames} {c:?}");
        }
        // The port is always busy: pauses cost no throughput.
        let down = lab.fabric.link_counters(lab.fabric.uplink(HostId(0)).reverse());
        assert!(lab.now_ns - down.busy_ns < 2_000, "{} {down:?}", lab.now_ns);
        // The headroom is used, and is not much too large.
        assert!(lab.fabric.switch_bytes(0) == 0);
    }
}

#[test]
fn without_headroom_or_without_flow_control_the_same_incast_drops() {
    let small = |s: &mut SwitchSpec| s.buffer = Buffer::PerPort { bytes: 10_000 };
    let with = star(11, CABLE, |s| {
        small(s);
        s.pfc = Some(pfc(0));
    });
    for t in [with, star(11, CABLE, small)] {
        let mut lab = incast(&t, 1..11, 1000);
        lab.run_out();
        assert!(lab.fabric.totals().dropped > 0);
    }
}

#[test]
fn pauses_spread_from_tier_to_tier() {
    let room = Pfc::headroom_for(100 * GBPS, 100, 300, STORED);
    let switch = SwitchSpec { pfc: Some(pfc(room)), ..SwitchSpec::default() };
    let spec = LeafSpine { spines: 1, hosts_per_leaf: 8, switch, ..LeafSpine::default() };
    // All hosts of the second leaf send to one of the first.
    let mut lab = incast(&Topology::leaf_spine(spec), 8..16, 2000);
    let arrived = lab.run_out().len();
    assert_eq!((arrived, lab.fabric.totals().dropped), (16_000, 0));
    let from_hosts = pauses(&lab, (8..16).map(|h| lab.fabric.uplink(HostId(h))));
    // Cables 16 and 17 are those of the two leaves to the spine.
    let spine_to_leaf = pauses(&lab, [LinkId(33)].into_iter());
    let leaf_to_spine = pauses(&lab, [LinkId(34)].into_iter());
    assert!(from_hosts > 8 && spine_to_leaf > 8 && leaf_to_spine > 8);
    assert_eq!(pauses(&lab, (0..8).map(|h| lab.fabric.uplink(HostId(h)))), 0);
}

#[test]
fn a_pause_takes_its_time_on_the_way() {
    // One sender that is twice as fast as the receiver.
    let t = star(2, CABLE, |s| {
        s.cut_through = false;
        s.pfc = Some(Pfc { xoff_bytes: 5 * 1230, xon_bytes: 2 * 1230, headroom_bytes: 50_000 });
    });
    let t = t.each_cable(|c| {
        let sender = c.a == crate::fabric::Node::Host(HostId(1));
        c.spec.rate_bps = if sender { 50 * GBPS } else { 25 * GBPS };
    });
    let mut lab = incast(&t, 1..2, 100);
    let up = lab.fabric.uplink(HostId(1));
    // Packet r comes to the queue at 200 (r + 1) + 70 + 300 ns, and leaves it 400 ns after the one
    // before; so it finds floor(r / 2) gone (the one that leaves at that instant is still there),
    // and with the eleventh (r = 10) there are six, more than XOFF. The frame takes 84 bytes at 50
    // Gbit/s, 13 ns, and 70 ns on the cable.
    let crossed_ns = 200 * (first_above(5) + 1) + 70 + 300;
    lab.run(crossed_ns + 13 + 70 - 1);
    assert_eq!(lab.fabric.link_counters(up).pauses, 0);
    lab.run(crossed_ns + 13 + 70);
    assert_eq!(lab.fabric.link_counters(up).pauses, 1);
    // It finishes the current packet, then stops.
    let sent = lab.fabric.link_counters(up).packets;
    assert!(!lab.fabric.host_port_is_free(HostId(1)));
    lab.run(lab.now_ns + 400);
    assert_eq!(lab.fabric.link_counters(up).packets, sent);
    assert!(!lab.fabric.host_port_is_free(HostId(1)));
    // It resumes at XON: two packets are left, and the frame takes less time than one.
    while lab.fabric.link_counters(up).paused_ns == 0 {
        lab.run(lab.now_ns + 1);
    }
    let queue = lab.fabric.queue_counters(lab.fabric.uplink(HostId(0)).reverse(), lab.now_ns);
    assert_eq!(queue.packets, 2);
    lab.run_out();
    assert_eq!(lab.fabric.totals().delivered, 100);
    assert!(lab.fabric.host_port_is_free(HostId(1)));
}

/// The first packet that finds more than `packets` in a queue that is filled twice as fast as it
/// empties: with packet `r` there are `r + 1` less those that have left.
fn first_above(packets: u64) -> u64 {
    (0_u64..).find(|r| r + 1 - r.saturating_sub(1) / 2 > packets).unwrap_or(0)
}

/// Ten hosts send to another, which sends to them: pause frames follow its packets. Returns the
/// drops over many relative phases of the two directions.
fn drops_with(headroom_bytes: u64) -> u64 {
    let mut drops = 0;
    for shift in 0..40 {
        let t = star(11, CABLE, |s| {
            s.pfc = Some(pfc(headroom_bytes));
            s.buffer = Buffer::PerPort { bytes: 10_000 + headroom_bytes };
        });
        let mut lab = incast(&t, 1..11, 100);
        lab.run(10 * shift);
        for id in 0..1000 {
            lab.offer(packet(id, 0, 1 + id as u32 % 2, PAYLOAD));
        }
        lab.run_out();
        drops += lab.fabric.totals().dropped;
    }
    drops
}

#[test]
fn the_recommended_headroom_suffices_and_is_not_excessive() {
    let advised = Pfc::headroom_for(CABLE.rate_bps, CABLE.delay_ns, 300, STORED);
    assert_eq!(drops_with(advised), 0);
    assert!(drops_with(advised - 2 * u64::from(STORED)) > 0);
}
