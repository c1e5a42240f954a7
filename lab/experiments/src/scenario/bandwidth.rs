//! Goodput of large requests by their size `[eRPC §6.4, Figure 6]` (E77).
//!
//! One client thread keeps one request in flight to a server at the same switch and receives 32
//! bytes. The base of comparison is an RDMA write over the same network, as arithmetic: the packets
//! of the message follow each other at line rate, and the next write starts one round trip of the
//! idle network after the last packet.

use std::rc::Rc;
use std::time::Duration;

use serde::Serialize;

use super::app::{self, SharedTally};
use super::uncontrolled;
use super::{
    Cpu, ScenarioError, check, check_time, check_warm_up, data_per_packet, per_second, wire_bytes,
    wire_ns,
};
use courser_sim::fabric::{CableSpec, Topology};
use courser_sim::{HostId, NicConfig, World};

/// Settings of the experiment. The defaults are those of `[eRPC §6.4]`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Settings {
    /// Decides all random choices.
    pub seed: u64,
    /// Sizes of requests, bytes: 1 or more, each 1 to 8 MiB. Default 512 B to 8 MiB.
    pub request_bytes: Vec<usize>,
    /// Rate of the cables, bit/s. Default 100 Gbit/s.
    pub rate_bps: u64,
    /// Largest datagram payload, bytes: 304 to 9,000. Default 4,140: 4 KiB of data.
    pub max_frame: usize,
    /// Credits of the session, C. Default 32.
    pub credits: u32,
    /// The CPUs. Default: as calibrated on a machine.
    pub cpu: Cpu,
    /// Warm-up, ns. Default 1 ms.
    pub warm_up_ns: u64,
    /// Measured time of each size, ns. Default 20 ms.
    pub time_ns: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            seed: 1,
            request_bytes: (9..=23).map(|power| 1 << power).collect(),
            rate_bps: 100_000_000_000,
            max_frame: 4_140,
            credits: 32,
            cpu: Cpu::Measured,
            warm_up_ns: 1_000_000,
            time_ns: 20_000_000,
        }
    }
}

impl Settings {
    fn check(&self) -> Result<(), ScenarioError> {
        check(!self.request_bytes.is_empty(), "request_bytes", 0_u64, "one or more")?;
        for &bytes in &self.request_bytes {
            check((1..=8 << 20).contains(&bytes), "request_bytes", bytes as u64, "1 to 8 MiB")?;
        }
        let (rate, frame) = (self.rate_bps, self.max_frame);
        let range = "1 Gbit/s to 1 Tbit/s";
        check((1_000_000_000..=1_000_000_000_000).contains(&rate), "rate_bps", rate, range)?;
        check((304..=9_000).contains(&frame), "max_frame", frame as u64, "304 to 9,000")?;
        check((1..=65_535).contains(&self.credits), "credits", self.credits, "1 to 65,535")?;
        check_warm_up(self.warm_up_ns)?;
        check_time(self.time_ns)
    }

    /// The network of the experiment.
    pub fn topology(&self) -> Topology {
        let rate_bps = self.rate_bps;
        Topology::one_switch(2).each_cable(|cable| {
            cable.spec = CableSpec { rate_bps, ..cable.spec };
        })
    }

    /// Time of a write of `bytes` bytes over this network, ns.
    pub fn write_ns(&self, bytes: usize) -> u64 {
        let data = data_per_packet(self.max_frame);
        let wire = (bytes / data) as u64 * wire_bytes(data)
            + if bytes.is_multiple_of(data) { 0 } else { wire_bytes(bytes % data) };
        let topology = self.topology();
        let cables: u64 = topology.cables().iter().map(|c| c.spec.delay_ns).sum();
        let switch = topology.switches().first().map_or(0, |s| s.latency_ns);
        let nic = NicConfig::default();
        let one_way_ns = nic.tx_latency_ns + nic.rx_latency_ns + cables + switch;
        wire_ns(wire, self.rate_bps) + wire_ns(wire_bytes(0), self.rate_bps) + 2 * one_way_ns
    }
}

/// One size of request.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Row {
    /// Bytes of a request.
    pub request_bytes: usize,
    /// Goodput: data of answered requests, bit/s.
    pub goodput_bps: u64,
    /// Goodput of writes of this size, bit/s.
    pub write_bps: u64,
    /// The share of that.
    pub write_fraction: f64,
    /// Retransmitted packets.
    pub retransmitted: u64,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "super::hex")]
    pub digest: u64,
}

/// Runs all sizes. `progress` is called with the number of finished runs and their total.
///
/// # Errors
/// A setting is out of range, the session was not connected, or a call has failed.
pub fn run(
    settings: &Settings,
    mut progress: impl FnMut(usize, usize),
) -> Result<Vec<Row>, ScenarioError> {
    settings.check()?;
    let count = settings.request_bytes.len();
    let rows = settings.request_bytes.iter().enumerate().map(|(done, &bytes)| {
        progress(done, count);
        measure(settings, bytes)
    });
    let rows = rows.collect::<Result<Vec<_>, _>>()?;
    progress(count, count);
    Ok(rows)
}

fn measure(settings: &Settings, bytes: usize) -> Result<Row, ScenarioError> {
    let mut config = uncontrolled(settings.seed, settings.topology());
    config.costs = settings.cpu.costs();
    config.nic.max_frame = settings.max_frame;
    config.nexus.credits = Some(settings.credits);
    config.nexus.max_msg_size = 8 << 20;
    let (server, client) = (HostId(0), HostId(1));
    let mut world = World::new(config)?;
    let tally = SharedTally::default();
    world.start(server, app::server)?;
    let (uri, to) = (world.uri(server), Rc::clone(&tally));
    world.start(client, move |nexus| {
        app::closed_loop(nexus, &uri, app::SINK, bytes, 1, to.clone())
    })?;
    app::connect_all(&mut world)?;
    world.run_for(Duration::from_nanos(settings.warm_up_ns));
    let before = super::Traffic::of(&mut world);
    world.run_for(Duration::from_nanos(settings.time_ns));
    tally.borrow().check()?;
    let traffic = super::Traffic::of(&mut world).since(&before);
    let goodput_bps = per_second(traffic.responses * bytes as u64 * 8, settings.time_ns);
    let write_bps = bytes as u64 * 8_000_000_000 / settings.write_ns(bytes);
    Ok(Row {
        request_bytes: bytes,
        goodput_bps,
        write_bps,
        write_fraction: goodput_bps as f64 / write_bps as f64,
        retransmitted: traffic.retransmitted,
        digest: world.digest(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Spoilt, assert_refused};

    #[test]
    fn requests_of_32_kb_and_more_reach_the_papers_share_of_a_write() {
        let request_bytes = vec![1 << 10, 32 << 10, 128 << 10, 1 << 20];
        let settings = Settings { request_bytes, time_ns: 3_000_000, ..Settings::default() };
        let rows = run(&settings, |_, _| {}).expect("runs");
        let shares: Vec<f64> = rows.iter().map(|row| row.write_fraction).collect();
        // Whole requests are counted: 35 of the largest, one of which can begin before the measured time.
        assert!(shares[1..].iter().all(|share| (0.9..1.03).contains(share)), "{shares:?}");
        assert!(shares.is_sorted(), "{shares:?}");
        assert!(rows[3].goodput_bps > 75_000_000_000, "{rows:?}");
    }

    #[test]
    fn the_same_seed_is_the_same_run() {
        let of = |seed| {
            let (request_bytes, time_ns) = (vec![32 << 10], 200_000);
            run(&Settings { seed, request_bytes, time_ns, ..Settings::default() }, |_, _| {})
                .expect("runs")
        };
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let bad: &[Spoilt<Settings>] = &[
            ("request_bytes", |s| s.request_bytes.clear()),
            ("request_bytes", |s| s.request_bytes = vec![9 << 20]),
            ("rate_bps", |s| s.rate_bps = 1),
            ("max_frame", |s| s.max_frame = 100),
            ("credits", |s| s.credits = 0),
        ];
        assert_refused(bad, Settings::default, |settings| run(settings, |_, _| {}));
    }
}
