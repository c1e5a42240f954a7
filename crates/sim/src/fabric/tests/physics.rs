//! Times of single packets and flows against arithmetic, to the nanosecond.

use super::lab::{GBPS, Lab, PAYLOAD, packet, star};
use crate::fabric::{CableSpec, Node, SwitchSpec, Topology};
use crate::{HostId, WIRE_OVERHEAD};

/// Two hosts at the ends of a row of switches, with these cables between them.
fn row(cables: &[CableSpec], switch: SwitchSpec) -> Topology {
    let mut t = Topology::new(2);
    let switches: Vec<_> = (1..cables.len()).map(|_| Node::Switch(t.add_switch(switch))).collect();
    let ends = |h| Node::Host(HostId(h));
    let nodes: Vec<_> = [ends(0)].into_iter().chain(switches).chain([ends(1)]).collect();
    for (pair, cable) in nodes.windows(2).zip(cables) {
        t.add_cable(pair[0], pair[1], *cable);
    }
    t
}

fn one_way_ns(t: &Topology, src: u32, payload: usize) -> u64 {
    let mut lab = Lab::new(t, 1);
    lab.offer(packet(0, src, 1 - src, payload));
    let arrivals = lab.run_out();
    assert_eq!(arrivals.len(), 1);
    arrivals[0].at_ns
}

#[test]
fn a_single_flow_reaches_line_rate_minus_headers_exactly() {
    // 1,066 bytes on the wire are 341.12 ns: no packet ends on a whole nanosecond, all of them do.
    let count = 50_000;
    for t in [Topology::two_hosts(), Topology::one_switch(2)] {
        let mut lab = Lab::new(&t, 1);
        lab.offer_many(0, 1, 1000, count);
        let mut first_ns = None;
        let mut last_ns = 0;
        lab.run_with(u64::MAX, |_, a| {
            first_ns.get_or_insert(a.at_ns);
            last_ns = a.at_ns;
        });
        let first_ns = first_ns.unwrap();
        let expected_ns = (count - 1) * 1066 * 8 / 25;
        assert!((last_ns - first_ns).abs_diff(expected_ns) <= 1, "{first_ns} to {last_ns}");
        let goodput_bps = (count - 1) * 8000 * GBPS / (last_ns - first_ns);
        let line_bps = 25 * GBPS * 1000 / u64::from(1000 + WIRE_OVERHEAD);
        assert!(goodput_bps.abs_diff(line_bps) < line_bps / 1_000_000, "{goodput_bps}");
        let uplink = lab.fabric.link_counters(lab.fabric.uplink(HostId(0)));
        assert_eq!((uplink.packets, uplink.bytes), (count, count * 1066));
        assert_eq!(uplink.busy_ns, count * 1066 * 8 / 25);
    }
}

#[test]
fn a_gap_starts_the_next_packet_on_a_whole_nanosecond() {
    let mut lab = Lab::new(&Topology::two_hosts(), 1);
    for i in 0..10 {
        lab.offer_at(1000 * i, packet(i, 0, 1, 1000));
    }
    for (i, arrival) in (0..).zip(lab.run_out()) {
        assert_eq!(arrival.at_ns, 1000 * i + 341 + 15);
        assert_eq!(arrival.packet.sent_ns, 1000 * i);
    }
}

#[test]
fn store_and_forward_switches_add_exactly_one_packet_time_each() {
    let cable = CableSpec { rate_bps: 25 * GBPS, delay_ns: 70 };
    for k in 0..8 {
        let switch = SwitchSpec { cut_through: false, latency_ns: 300, ..SwitchSpec::default() };
        let t = row(&vec![cable; k + 1], switch);
        let k = k as u64;
        let one_way = (k + 1) * (400 + 70) + k * 300;
        assert_eq!((one_way_ns(&t, 0, PAYLOAD), one_way_ns(&t, 1, PAYLOAD)), (one_way, one_way));

        // There and back: the response leaves when the request has arrived.
        let mut lab = Lab::new(&t, 1);
        lab.offer(packet(0, 0, 1, PAYLOAD));
        let mut rtt_ns = 0;
        lab.run_with(u64::MAX, |lab, a| match a.host {
            HostId(1) => lab.offer(packet(1, 1, 0, PAYLOAD)),
            _ => rtt_ns = a.at_ns,
        });
        assert_eq!(rtt_ns, 2 * one_way);
    }
}

#[test]
fn cut_through_switches_add_only_their_latency() {
    let cable = CableSpec { rate_bps: 25 * GBPS, delay_ns: 70 };
    for k in 0..8 {
        let t = row(&vec![cable; k + 1], SwitchSpec { latency_ns: 300, ..SwitchSpec::default() });
        let k = k as u64;
        assert_eq!(one_way_ns(&t, 0, PAYLOAD), 400 + (k + 1) * 70 + k * 300);
    }
}

#[test]
fn cut_through_stores_where_the_next_link_is_faster() {
    let slow = CableSpec { rate_bps: 25 * GBPS, delay_ns: 10 };
    let fast = CableSpec { rate_bps: 100 * GBPS, delay_ns: 20 };
    let t = row(&[slow, fast, fast, slow], SwitchSpec { latency_ns: 300, ..Default::default() });
    // Stored at the first switch (25 to 100); then passed on, bit by bit, to the slow end.
    assert_eq!(one_way_ns(&t, 0, PAYLOAD), (400 + 10 + 300) + (20 + 300) + (20 + 300) + (400 + 10));
    // A switch that always stores pays every link's time.
    let stores = t.each_switch(|_, s| s.cut_through = false);
    let all = (400 + 10 + 300) + 2 * (100 + 20 + 300) + (400 + 10);
    assert_eq!(one_way_ns(&stores, 0, PAYLOAD), all);
}

#[test]
fn short_packets_are_padded_to_the_smallest_frame() {
    // 84 bytes on the wire at 25 Gbit/s: 26.88 ns.
    for payload in [0, 1, 18] {
        assert_eq!(one_way_ns(&Topology::two_hosts(), 0, payload), 26 + 15);
    }
    assert_eq!(one_way_ns(&Topology::two_hosts(), 0, 43), 34 + 15);
}

/// N senders keep C packets each in flight: the bottleneck is always busy, so that by Little's law
/// each packet takes N C packet times, whatever the cables add.
#[test]
fn the_standing_queue_of_n_windows_of_c_packets_has_their_delay() {
    for (n, c) in [(2, 32), (4, 8), (10, 16), (50, 8)] {
        let cable = CableSpec { rate_bps: 25 * GBPS, delay_ns: 70 };
        let mut lab = Lab::new(&star(n + 1, cable, |s| s.cut_through = false), 1);
        for sender in 1..=n {
            lab.offer_many(sender, 0, PAYLOAD, u64::from(c));
        }
        let window = u64::from(n * c);
        let mut delays = Vec::new();
        lab.run_with(20 * window * 400, |lab, a| {
            delays.push(a.at_ns - a.packet.sent_ns);
            lab.offer(packet(0, a.packet.src.0, 0, PAYLOAD));
        });
        let steady = &delays[4 * window as usize..];
        assert!(steady.iter().all(|&d| d == window * 400), "{n} x {c}: {:?}", &steady[..9]);
        // All of the window is in the queue except what the two cables, the switch and the sender's
        // port contain: 400 + 70 + 300 + 70 ns of it.
        let queue = lab.fabric.queue_counters(lab.fabric.uplink(HostId(0)).reverse(), lab.now_ns);
        let outside = (400_u64 + 70 + 300 + 70).div_ceil(400);
        assert!(window - queue.packets <= outside, "{queue:?} of {window}");
    }
}

/// N senders at line rate into one port: its queue grows by N - 1 packets in a packet's time, until
/// the buffer is full, and from then on N - 1 of N are lost.
#[test]
fn incast_fills_a_buffer_at_the_rate_of_the_arithmetic() {
    let buffer = 60_000; // the smallest of E84
    for n in [2, 3, 5, 20, 40] {
        let cable = CableSpec { rate_bps: 25 * GBPS, delay_ns: 70 };
        let t = star(n + 1, cable, |s| {
            s.cut_through = false;
            s.buffer = crate::fabric::Buffer::PerPort { bytes: buffer };
        });
        let mut lab = Lab::new(&t, 1);
        let record = lab.record();
        for sender in 1..=n {
            lab.offer_many(sender, 0, PAYLOAD, 2000);
        }
        lab.run(1000 * 400);
        let drops: Vec<u64> = record.take().into_iter().filter_map(drop_ns).collect();
        // In the queue a packet has 1,230 bytes (no preamble, no gap), on the wire 1,250.
        let room = buffer / 1230;
        // N come at a time and one leaves before the next N, but none before the first: after r
        // packet times and before the last of N the queue has (N - 1) r + N packets.
        let rounds = (room - u64::from(n)).div_ceil(u64::from(n - 1));
        let begin_ns = 400 + 70 + 300; // when the first packets come to the queue
        assert_eq!(drops[0], begin_ns + rounds * 400, "{n}");
        let down = lab.fabric.uplink(HostId(0)).reverse();
        assert_eq!(lab.fabric.queue_counters(down, lab.now_ns).max_bytes, room * 1230);
        // From then on N - 1 of each N, in each packet time.
        let last = drops[drops.len() - 1];
        let steady = drops.iter().filter(|&&at| at > drops[0]).count() as u64;
        assert_eq!(steady, u64::from(n - 1) * (last - drops[0]) / 400);
        assert_eq!(lab.fabric.link_counters(down).drops.iter().sum::<u64>(), drops.len() as u64);
    }
}

fn drop_ns(told: super::lab::Told) -> Option<u64> {
    use super::lab::Told;
    match told {
        Told::Dropped(at_ns, _, why, _) => {
            assert_eq!(why, crate::DropReason::BufferFull);
            Some(at_ns)
        }
        _ => None,
    }
}
