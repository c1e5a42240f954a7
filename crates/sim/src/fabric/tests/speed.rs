//! Speed of the fabric itself. Measurements, not tests: run them by hand, with
//! `cargo test --release -p courser-sim speed -- --ignored --nocapture --test-threads 1`.

use std::time::Instant;

use super::lab::{Lab, packet};
use crate::fabric::{LinkFaults, Topology};
use crate::{HostId, LinkId};

/// Every host has 60 small packets in flight, each forwarded to another host on arrival, until
/// `deliveries` have arrived.
fn measure(name: &str, t: &Topology, deliveries: u64, faults: Option<LinkFaults>) {
    let mut lab = Lab::new(t, 1);
    let hosts = t.hosts();
    for link in 0..lab.fabric.links() {
        if let Some(faults) = faults {
            lab.faults(LinkId(link), faults);
        }
    }
    for i in 0..60 * hosts {
        let (src, dst) = (i % hosts, (i % hosts + 1 + i / hosts % (hosts - 1)) % hosts);
        lab.offer(packet(u64::from(i), src, dst, 92));
    }
    let begin = Instant::now();
    let (mut arrived, mut end_ns) = (0, 0);
    while arrived < deliveries {
        end_ns += 10_000;
        lab.run_with(end_ns, |lab, a| {
            arrived += 1;
            let mut p = a.packet;
            let hop = 1 + (p.flow.wrapping_mul(0x9e37_79b9) >> 16) % (hosts - 1);
            (p.src, p.dst) = (p.dst, HostId((p.dst.0 + hop) % hosts));
            p.flow = p.flow.wrapping_add(p.dst.0);
            lab.offer(p);
        });
    }
    let seconds = begin.elapsed().as_secs_f64();
    let hops: u64 =
        (0..lab.fabric.links()).map(|l| lab.fabric.link_counters(LinkId(l)).packets).sum();
    println!(
        "{name}: {:.2} M deliveries/s, {:.2} M hops/s ({hops} hops, {:.2} ms simulated, {seconds:.2} s)",
        arrived as f64 / seconds / 1e6,
        hops as f64 / seconds / 1e6,
        end_ns as f64 / 1e6,
    );
}

#[test]
#[ignore = "a measurement"]
fn speed() {
    measure("two hosts", &Topology::two_hosts(), 5_000_000, None);
    let faults = LinkFaults { duplicate_ppm: 1, reorder_ppm: 1000, ..LinkFaults::default() };
    measure("two hosts, faults", &Topology::two_hosts(), 5_000_000, Some(faults));
    measure("one switch of 10", &Topology::one_switch(10), 5_000_000, None);
    measure("CX4 of 100", &Topology::cx4(100), 10_000_000, None);
}
