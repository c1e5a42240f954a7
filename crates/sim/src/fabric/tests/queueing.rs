//! Queues under random arrivals against closed forms.

use super::lab::{GBPS, Lab, packet};
use crate::fabric::{CableSpec, SwitchSpec, Topology};
use crate::{HostId, Rng};

/// Service time: 1,250 bytes at 1 Gbit/s.
const SERVICE_NS: f64 = 10_000.0;

/// The mean wait, ns, of packets that arrive at a port at random times (Poisson), with a load of
/// `rho`. The sender's cable is so fast that it adds no time.
fn mean_wait_ns(rho: f64, packets: u64) -> (f64, f64) {
    let mut t = Topology::one_switch(2).each_switch(|_, s| {
        *s = SwitchSpec { latency_ns: 0, cut_through: false, ..SwitchSpec::default() };
    });
    t = t.each_cable(|c| {
        let to_receiver = c.a == crate::fabric::Node::Host(HostId(1));
        let rate_bps = if to_receiver { GBPS } else { 1_000_000 * GBPS };
        c.spec = CableSpec { rate_bps, delay_ns: 0 };
    });
    let mut lab = Lab::new(&t, 1);
    let mut rng = Rng::new(5);
    let mut at = 0.0;
    let mut gap = || {
        // From 2^-53 to 1: its logarithm is finite.
        let uniform = ((rng.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64;
        at -= libm::log(uniform) * SERVICE_NS / rho;
        at as u64
    };
    let (mut wait_ns, mut arrived) = (0.0, 0);
    for id in 0..packets {
        let at_ns = gap();
        lab.run_with(at_ns, |_, a| {
            wait_ns += (a.at_ns - a.packet.sent_ns) as f64 - SERVICE_NS;
            arrived += 1;
        });
        lab.offer(packet(id, 0, 1, 1184));
    }
    let down = lab.fabric.uplink(HostId(1)).reverse();
    let queue = lab.fabric.queue_counters(down, lab.now_ns);
    assert!(arrived > packets * 99 / 100);
    // The time average of the queue, in packets of 1,230 bytes, and the mean wait of the packets.
    let mean_queue = queue.byte_ns as f64 / lab.now_ns as f64 / 1230.0;
    (wait_ns / arrived as f64, mean_queue)
}

/// M/D/1 (Pollaczek and Khinchine): the mean wait is rho S / (2 (1 - rho)), and by Little's law the
/// mean number in the system rho + rho^2 / (2 (1 - rho)).
#[test]
fn random_arrivals_wait_as_an_m_d_1_queue_says() {
    for rho in [0.5, 0.8] {
        let (wait, queue) = mean_wait_ns(rho, 400_000);
        let expected = rho * SERVICE_NS / (2.0 * (1.0 - rho));
        assert!((wait / expected - 1.0).abs() < 0.03, "{rho}: {wait} of {expected}");
        let expected = rho + rho * rho / (2.0 * (1.0 - rho));
        assert!((queue / expected - 1.0).abs() < 0.03, "{rho}: {queue} of {expected}");
    }
}
