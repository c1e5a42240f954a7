//! The paper's figures for the router: throughput and latency by batch and by size of packets, through
//! one link between nodes and through two.
//!
//! Two hosts send to each other through the router. With one link their nodes are connected; with two
//! a third node passes the packets on. Packets arrive from each host in bursts of one batch, at a load
//! of what its port carries: the full load for throughput, a small one for latency.

use std::time::Duration;

use serde::Serialize;

use super::{Cluster, Cpu, Latency, Matrix, Settings, Shape, SimError, Sizes};

/// The paper's sizes of packets; the last is the largest that Ethernet carries.
pub const SIZES: [u32; 6] = [64, 128, 256, 512, 1024, 1518];
/// The paper's batches.
pub const BATCHES: [usize; 6] = [1, 2, 4, 8, 16, 32];

/// Packets that each host sends at least at full load, so that bursts even out.
const MIN_PACKETS: u64 = 2_000;

/// One point.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Point {
    /// Links between nodes that each packet passes.
    pub links: u32,
    /// Bytes of a packet, with Ethernet header and check sequence.
    pub packet_bytes: u32,
    /// Packets that arrive together, and that a node processes together.
    pub batch: usize,
    /// Packets that left the router per second, both directions together, at full load.
    pub throughput_pps: u64,
    /// The same as bits of Ethernet frames.
    pub throughput_bps: u64,
    /// Times the throughput of batch 1.
    pub of_batch_1: f64,
    /// Messages in each frame at full load, frames of acknowledgements included.
    pub messages_per_frame: f64,
    /// Bytes on the wire between nodes for each byte of IP packets, at full load.
    pub wire_bytes_per_byte: f64,
    /// From the first bit of a packet to its last bit at the receiver, at a tenth of that throughput.
    #[serde(flatten)]
    pub latency: Latency,
}

/// Settings.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Sweep {
    /// Decides all random choices.
    pub seed: u64,
    /// Rate of ports and cables, bit/s.
    pub line_rate_bps: u64,
    /// CPU time of frames and packets.
    pub cpu: Cpu,
    /// With batches of more than one, a packet waits at most this long for others that share its
    /// frame. Default 2 us: frames fill although the NIC's queue takes them at once.
    pub batch_budget: Duration,
    /// Sizes of packets.
    pub sizes: Vec<u32>,
    /// Batches; the first is the scale of [`Point::of_batch_1`].
    pub batches: Vec<usize>,
    /// Links: 1, 2.
    pub links: Vec<u32>,
    /// Measured time of each point, ns.
    pub time_ns: u64,
}

impl Default for Sweep {
    fn default() -> Self {
        Sweep {
            seed: 1,
            line_rate_bps: 10_000_000_000,
            cpu: Cpu::Measured,
            batch_budget: Duration::from_micros(2),
            sizes: SIZES.to_vec(),
            batches: BATCHES.to_vec(),
            links: vec![1, 2],
            time_ns: 500_000,
        }
    }
}

impl Sweep {
    fn settings(&self, links: u32, packet_bytes: u32, batch: usize) -> Settings {
        let (nodes, topology) = if links == 1 { (2, Shape::Switch) } else { (3, Shape::Mesh) };
        let wire_ns = u64::from(packet_bytes) * 8_000_000_000 / self.line_rate_bps.max(1);
        let mut pairs = vec![vec![0; nodes as usize]; nodes as usize];
        (pairs[0][1], pairs[1][0]) = (1_000_000, 1_000_000);
        Settings {
            seed: self.seed,
            topology,
            nodes,
            batch,
            burst: batch as u32,
            batch_budget: if batch > 1 { self.batch_budget } else { Duration::ZERO },
            line_rate_bps: self.line_rate_bps,
            sizes: Sizes::Fixed { packet_bytes },
            load_ppm: 1_000_000,
            matrix: Matrix::Shares(pairs),
            cpu: self.cpu,
            time_ns: self.time_ns.max(MIN_PACKETS * wire_ns),
            ..Settings::default()
        }
    }

    fn run(&self, settings: &Settings, links: u32) -> Result<super::Outcome, SimError> {
        let mut cluster = Cluster::new(settings)?;
        if links == 2 {
            cluster.cut(0, 1);
            cluster.world.run_for(2 * settings.failure_timeout);
        }
        let begin_ns = cluster.world.now_ns() + settings.warm_up_ns;
        cluster.send(begin_ns, begin_ns + settings.time_ns);
        cluster.world.run_to(begin_ns + settings.time_ns);
        let tally = cluster.tally.clone();
        let limit = Duration::from_millis(10);
        cluster.world.run_until(limit, move |_| tally.borrow().is_complete());
        Ok(cluster.outcome())
    }

    fn point(&self, links: u32, packet_bytes: u32, batch: usize) -> Result<Point, SimError> {
        let full = self.settings(links, packet_bytes, batch);
        let busy = self.run(&full, links)?;
        let lines = 2 * full.line_pps();
        let tenth = (u128::from(busy.throughput_pps) * 100_000 / u128::from(lines.max(1))) as u32;
        let light = Settings { load_ppm: tenth.clamp(1, 1_000_000), ..full };
        let quiet = self.run(&light, links)?;
        Ok(Point {
            links,
            packet_bytes,
            batch,
            throughput_pps: busy.throughput_pps,
            throughput_bps: busy.throughput_pps * u64::from(packet_bytes) * 8,
            of_batch_1: 1.0,
            messages_per_frame: busy.messages_per_frame,
            wire_bytes_per_byte: busy.wire_bytes_per_byte,
            latency: quiet.end_to_end,
        })
    }

    /// Runs all points. `progress` is called with the number of finished ones and their total.
    ///
    /// # Errors
    /// A setting is out of range, or nodes were not connected.
    pub fn run_all(&self, mut progress: impl FnMut(usize, usize)) -> Result<Vec<Point>, SimError> {
        let all = self.links.len() * self.sizes.len() * self.batches.len();
        let mut points: Vec<Point> = Vec::with_capacity(all);
        for &links in &self.links {
            for &size in &self.sizes {
                let first = points.len();
                for &batch in &self.batches {
                    progress(points.len(), all);
                    let point = self.point(links, size, batch)?;
                    points.push(point);
                }
                let scale = points.get(first).map_or(1, |p| p.throughput_pps).max(1) as f64;
                for point in &mut points[first..] {
                    point.of_batch_1 = point.throughput_pps as f64 / scale;
                }
            }
        }
        progress(all, all);
        Ok(points)
    }
}
