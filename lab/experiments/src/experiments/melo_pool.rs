//! MELO's pool of bits beyond the paper's setting: its size from bandwidth and round trip (M34),
//! exhausted by pauses (M31), the size of its blocks (M35), and states that are swapped (M17, M32)
//! `[MELO §2.3, §3.2.3, §3.2.5]`.
//!
//! Hosts under one leaf send to a host under another, whose leaf loses packets. Each connection is a
//! client endpoint with a session, and sends one large message after the other; the connections of
//! a sender share its credits. A connection sends at most its credits from the first missing packet
//! on, as in `bits-pool`. Congestion control is off: credits bound what is in flight.
//!
//! **Pauses.** With several senders the receiver's link is too slow for them. Switches with
//! priority flow control store 100 kB of a link and then pause its sender, so that nothing is
//! dropped, and the round trip grows with what the senders have in flight. While a hole waits for
//! its packet for that long, more packets arrive out of order than on the idle network.
//!
//! **Cost of swaps.** The endpoint counts states that are swapped out and in, and their bytes, but a
//! swap takes no time in the simulation. The model of a NIC: an access to the memory of the host
//! stalls it for a microsecond, "at least" in `[MELO §3.2.1]` ([`FETCH_NS`]); out is one write and
//! in is a read request and its answer over PCIe, each with [`TLP_BYTES`] of framing and header.

mod net;
mod recorded;
#[cfg(test)]
mod tests;

use std::rc::Rc;
use std::time::Duration;

use courser::{Nexus, Recovery, Rpc};
use courser_bench::report::Unit;
use courser_proto::RxDrop;
use courser_sim::fabric::LinkFaults;
use courser_sim::observe::DropReason;
use courser_sim::{HostId, SetupError, World, WorldConfig};
use serde::Serialize;

use self::net::{Net, SERVER};
use crate::declare::column::Column;
use crate::declare::parameter::{chance, count, flag, parameters, rate, time, written};
use crate::declare::points::{Better, Figure, Tolerance};
use crate::declare::seeds::Row;
use crate::declare::special::{Results, Special};
use crate::declare::text::{ns, percent};
use crate::declare::{Experiment, Simulation, Step, Table};
use crate::picture::{Axis, Chart, Style};
use crate::scenario::app::{self, SharedTally};
use crate::scenario::path::{DATA, MAX_FRAME};
use crate::scenario::{
    Cpu, MAX_TIME_NS, ScenarioError, Traffic, check, per_second, share, uncontrolled,
};

pub(crate) const EXPERIMENT: Experiment<MeloPool, PoolRun> = Experiment {
    name: "melo-pool",
    aliases: &[],
    about: "MELO's pool by size, pauses, blocks and swaps [MELO §3.2.3, §3.2.5]",
    run: Simulation::Several(simulate),
    network: None,
    columns: COLUMNS,
    caption: |s, _| {
        let [rtt, time] = [s.rtt_ns, s.time_ns].map(ns);
        let packets = s.net(1).bdp_packets();
        format!("{packets} packets fill a round trip of {rtt}, {time} of virtual time")
    },
    table: Table::Columns,
    picture,
    recorded: recorded::ALL,
    special: Special { after_help: AFTER_HELP, results: Results::Unseeded, ..Special::NONE },
};

const AFTER_HELP: &str = "\
Hosts under one leaf send to a host under another with MELO; the receiver's leaf drops \
packets. The receiver records packets that arrive out of order in a pool of bits for all \
connections. --bits 0 is what the endpoint derives from the rate of its link and the round \
trip of --covers. With --pfc and several senders, switches pause them instead of dropping. \
--resident limits the connections that hold bits at once; the states of others are swapped \
out, which costs a NIC a microsecond each time (a model).

Examples:
  courser-lab sim melo-pool --rate 100 --rtt 200us --bits 1024,0
  courser-lab sim melo-pool --pfc --senders 1,8 --window 3 --covers 400us
  courser-lab sim melo-pool --connections 20 --block 1,2,4,8,16 --bits 64512
  courser-lab sim melo-pool --connections 20 --resident 1,5,10,0 --json -";

type Col = Column<MeloPool, PoolRun>;

const COLUMNS: &[Col] = &[
    Col::text("senders", |_, o| o.senders.to_string()),
    Col::text("connections", |_, o| o.connections.to_string()),
    Col::text("loss", |_, o| percent(o.loss)),
    Col::text("bits", |_, o| match o.bits {
        0 => "derived".to_owned(),
        bits => bits.to_string(),
    }),
    Col::text("block", |_, o| format!("{} B", o.block_bytes)),
    Col::text("resident", |_, o| match o.resident {
        0 => "all".to_owned(),
        most => most.to_string(),
    }),
    Col::figure("peak bits", Unit::Count, |_, o| Some(o.bits_peak.into()))
        .recorded("peak bits", Tolerance::relative(0.05))
        .better(Better::Lower)
        .drawn(Figure::Linear),
    Col::figure("memory for them", Unit::Bytes, |_, o| Some(o.memory_peak_bytes as f64))
        .recorded("memory of the peak", Tolerance::relative(0.05))
        .better(Better::Lower)
        .drawn(Figure::Linear),
    Col::figure("refused", Unit::Percent, |_, o| Some(o.refused_fraction))
        .recorded("refused packets", Tolerance::relative(0.2).or_absolute(0.002))
        .better(Better::Lower)
        .drawn(Figure::Linear),
    Col::figure("middle", Unit::Percent, |_, o| Some(o.middle_fraction))
        .recorded("dropped in the middle", Tolerance::relative(0.2).or_absolute(0.002))
        .better(Better::Lower),
    Col::figure("goodput", Unit::Bits, |_, o| Some(o.goodput_bps as f64))
        .recorded("goodput", Tolerance::relative(0.05))
        .better(Better::Higher)
        .drawn(Figure::Linear),
    Col::figure("paused", Unit::Percent, |_, o| Some(o.paused_fraction))
        .recorded("paused", Tolerance::relative(0.1).or_absolute(0.005)),
    Col::figure("timeouts", Unit::Count, |_, o| Some(o.losses.timeouts as f64)),
    Col::figure("swaps a packet", Unit::Plain, |_, o| Some(o.swaps.swaps_per_packet))
        .recorded("swaps a packet", Tolerance::relative(0.1).or_absolute(0.001))
        .better(Better::Lower)
        .drawn(Figure::Linear),
    Col::figure("bytes a swap", Unit::Bytes, |_, o| Some(o.swaps.bytes_per_swap))
        .recorded("bytes a swap", Tolerance::relative(0.1)),
    Col::figure("PCIe", Unit::Bits, |_, o| Some(o.swaps.pcie_bps as f64))
        .recorded("PCIe bandwidth", Tolerance::relative(0.1))
        .better(Better::Lower),
    Col::figure("stall", Unit::Percent, |_, o| Some(o.swaps.stall_fraction))
        .recorded("stall of the NIC", Tolerance::relative(0.1).or_absolute(0.001))
        .better(Better::Lower),
];

/// Goodput by connections and senders: a line for each pool.
fn picture(rows: &[Row<MeloPool, PoolRun>]) -> Chart {
    let mut chart = Chart::lines(
        "Goodput by MELO's pool of bits",
        Axis::linear("senders times connections", Unit::Count),
        Axis::linear("goodput", Unit::Bits),
    );
    for (_, o) in rows {
        let name =
            format!("{} bits, blocks of {} B, {} resident", o.bits, o.block_bytes, o.resident);
        let line = chart.line(Style::Main, name);
        line.points.push((f64::from(o.senders * o.connections), o.goodput_bps as f64));
    }
    chart
}

/// An access to the memory of the host stalls a NIC for this, ns: "at least" in `[MELO §3.2.1]`.
pub const FETCH_NS: u64 = 1_000;

/// Framing, sequence number, header and checksum of a PCIe 3.0 transaction with a 64-bit address.
pub const TLP_BYTES: u64 = 26;

/// Bytes of a message.
const MESSAGE: usize = 4 << 20;

parameters! {
    /// Settings of the experiment. The defaults are those of figure 6b.
    #[derive(Eq)]
    pub struct MeloPool {
        /// Decides all random choices.
        seed: u64 = 1, count(0..=u64::MAX);
        /// Numbers of sending hosts
        senders: Vec<u32> = vec![1], count(1..=32).option("senders");
        /// Connections of each sender, which share its credits
        connections: Vec<u32> = vec![1], count(1..=100).option("connections");
        /// Probability that the receiver's leaf drops a packet
        loss_ppm: u32 = 10_000, chance(0..=500_000).option("loss");
        /// Bits of the receiver's pool; 0: derived from the rate of the link and --covers
        bits: Vec<u32> = vec![0], count(0..=64_512).option("bits");
        /// Round trip for which a derived pool has bits
        covers_ns: u64 = 200_000, time(1..=1_000_000_000).option("covers");
        /// Bytes of a block of the pool, powers of two
        block_bytes: Vec<u32> = vec![1], count(1..=128).option("block");
        /// Connections that hold bits at once; 0: all
        resident: Vec<u32> = vec![0], count(0..=4_096).option("resident");
        /// Rate of a host's link; cables between switches have 2.5 times as much
        rate_bps: u64 = 40_000_000_000, rate(1_000_000_000..=400_000_000_000).option("rate");
        /// Round trip of the idle network
        rtt_ns: u64 = 200_000, time(1..=10_000_000).option("rtt");
        /// Credits of a sender in bandwidth-delay products
        window_permille: u32 = 1_000, written(&super::loss::WINDOW).within(100..=100_000).option("window");
        /// Switches pause their inputs instead of dropping
        pfc: bool = false, flag().option("pfc");
        /// Recovery time of packets that are lost twice
        rto_ns: u64 = 600_000, time(1_000..=1_000_000_000).option("rto");
        /// Virtual time of a run
        time_ns: u64 = 20_000_000, time(1..=MAX_TIME_NS).option("time");
    }
}

impl MeloPool {
    fn net(&self, senders: u32) -> Net {
        let (rate_bps, rtt_ns, pfc) = (self.rate_bps, self.rtt_ns, self.pfc);
        Net { senders, rate_bps, rtt_ns, pfc }
    }

    /// Credits of each of the connections of a sender.
    fn credits(&self, connections: u32) -> u32 {
        let packets = u64::from(self.net(1).bdp_packets()) * u64::from(self.window_permille);
        let each = packets.div_ceil(1_000 * u64::from(connections.max(1)));
        u32::try_from(each).unwrap_or(u32::MAX).max(1)
    }

    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for &bits in &self.bits {
            for &block_bytes in &self.block_bytes {
                for &resident in &self.resident {
                    for &senders in &self.senders {
                        let of = |&connections| Case {
                            senders,
                            connections,
                            bits,
                            block_bytes,
                            resident,
                        };
                        cases.extend(self.connections.iter().map(of));
                    }
                }
            }
        }
        cases
    }
}

/// One run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Case {
    senders: u32,
    connections: u32,
    bits: u32,
    block_bytes: u32,
    resident: u32,
}

/// Losses of a run.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Losses {
    /// Datagrams lost by the leaf.
    pub lost: u64,
    /// Datagrams dropped by switches for lack of buffer.
    pub overflows: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
}

/// Cost of the swaps of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Swaps {
    /// States swapped in, for each packet accepted.
    pub swaps_per_packet: f64,
    /// State and bitmap, bytes.
    pub bytes_per_swap: f64,
    /// Both directions of PCIe, with the headers of transactions, bit/s: a model.
    pub pcie_bps: u64,
    /// Time in which a NIC waits for a state, as a share of the run: a model.
    pub stall_fraction: f64,
}

/// Result of a run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PoolRun {
    /// Sending hosts.
    pub senders: u32,
    /// Connections of each.
    pub connections: u32,
    /// Probability that the receiver's leaf loses a packet.
    pub loss: f64,
    /// Bits of the pool; 0: derived.
    pub bits: u32,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Connections that may hold bits at once; 0: all.
    pub resident: u32,
    /// Most bits of the receiver's pool in use, in whole blocks.
    pub bits_peak: u32,
    /// Memory of a pool of just these bits, bytes: blocks, next_ptr and available array, with pointers
    /// of one byte if they reach, or two.
    pub memory_peak_bytes: u64,
    /// Packets for which the pool had no bits (M16), as a share of those accepted.
    pub refused_fraction: f64,
    /// Packets that needed a block in the middle (M10), as such a share.
    pub middle_fraction: f64,
    /// Goodput: data that the server has accepted, bit/s.
    pub goodput_bps: u64,
    /// Share of the time for which the senders were paused.
    pub paused_fraction: f64,
    /// Datagrams that were lost.
    #[serde(flatten)]
    pub losses: Losses,
    /// Cost of swaps.
    #[serde(flatten)]
    pub swaps: Swaps,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "crate::scenario::hex")]
    pub digest: u64,
}

/// Runs it.
///
/// # Errors
/// A setting is out of range, sessions were not connected, or a call has failed.
pub fn run(settings: &MeloPool) -> Result<Vec<PoolRun>, ScenarioError> {
    EXPERIMENT.all(settings, &mut |_, _| {})
}

fn simulate(settings: &MeloPool, step: Step<'_>) -> Result<Vec<PoolRun>, ScenarioError> {
    settings.net(1).check()?;
    for &bytes in &settings.block_bytes {
        check(bytes.is_power_of_two(), "block_bytes", bytes, "a power of two, 1 to 128")?;
    }
    let credits = settings.credits(1);
    check(credits <= 65_535, "credits", credits, "at most 65,535: shorten window or round trip")?;
    let cases = settings.cases();
    let mut points = Vec::with_capacity(cases.len());
    for case in &cases {
        step(points.len(), cases.len());
        points.push(point(settings, case)?);
    }
    Ok(points)
}

fn config(settings: &MeloPool, case: &Case) -> WorldConfig {
    let mut config = uncontrolled(settings.seed, settings.net(case.senders).topology());
    config.costs = Cpu::None.costs();
    config.nic.max_frame = MAX_FRAME;
    // Descriptors for all packets that can be in flight: losses occur only in switches.
    let in_flight = settings.credits(1) as usize * case.senders as usize;
    config.nic.rx_queue = config.nic.rx_queue.max(4 * in_flight);
    let rto = Duration::from_nanos(settings.rto_ns);
    let nexus = &mut config.nexus;
    nexus.line_rate_bps = Some(settings.rate_bps);
    nexus.credits = Some(settings.credits(case.connections).clamp(1, 65_535));
    nexus.memory_limit = 4 << 30;
    nexus.recovery = Recovery::Melo;
    nexus.rto = (rto, rto);
    nexus.tuning.reorder_span = 1;
    nexus.tuning.melo_bits = case.bits;
    nexus.tuning.melo_rtt = Duration::from_nanos(settings.covers_ns);
    nexus.tuning.melo_block_bytes = case.block_bytes;
    nexus.tuning.melo_connections = case.resident;
    config
}

/// Runs one case.
fn point(settings: &MeloPool, case: &Case) -> Result<PoolRun, ScenarioError> {
    let mut world = World::new(config(settings, case))?;
    let tally = SharedTally::default();
    world.start(SERVER, app::server)?;
    let bytes = MESSAGE / DATA * DATA;
    for sender in 1..=case.senders {
        let (uri, to, connections) = (world.uri(SERVER), Rc::clone(&tally), case.connections);
        world.start(HostId(sender), move |nexus: &Nexus| -> Result<Vec<Rpc>, SetupError> {
            let one = |_| app::closed_loop(nexus, &uri, app::SINK, bytes, 1, to.clone());
            (0..connections).map(one).collect()
        })?;
    }
    app::connect_all(&mut world)?;
    let loss_ppm = settings.loss_ppm;
    for link in net::lossy_links(&world) {
        world.set_link_faults(link, LinkFaults { loss_ppm, ..LinkFaults::default() });
    }
    world.run_for(Duration::from_nanos(settings.time_ns));
    tally.borrow().check()?;
    Ok(summary(settings, case, &mut world))
}

fn summary(settings: &MeloPool, case: &Case, world: &mut World) -> PoolRun {
    let traffic = Traffic::of(world);
    let stats = world.peek(SERVER, 0).map(|rpc| rpc.stats().clone()).unwrap_or_default();
    let time_ns = settings.time_ns;
    let of = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
    let (swapped_in, swapped_out) = (stats.melo_swapped_in, stats.melo_swapped_out);
    let swaps = swapped_in + swapped_out;
    // A write out; a read request and its answer in.
    let pcie_bytes = stats.melo_swapped_bytes + TLP_BYTES * (swapped_out + 2 * swapped_in);
    let blocks = u64::from(stats.melo_bits_peak.div_ceil(8 * case.block_bytes));
    let pointer = if blocks <= 255 { 1 } else { 2 };
    let out_of_order = stats.dropped(RxDrop::OutOfOrder);
    PoolRun {
        senders: case.senders,
        connections: case.connections,
        loss: share(settings.loss_ppm),
        bits: case.bits,
        block_bytes: case.block_bytes,
        resident: case.resident,
        bits_peak: stats.melo_bits_peak,
        memory_peak_bytes: blocks * (u64::from(case.block_bytes) + 2 * pointer),
        refused_fraction: of(stats.melo_refused, traffic.request_packets),
        middle_fraction: of(
            out_of_order.saturating_sub(stats.melo_refused),
            traffic.request_packets,
        ),
        goodput_bps: per_second(traffic.request_packets * DATA as u64 * 8, time_ns),
        paused_fraction: net::paused_fraction(world, case.senders, time_ns),
        losses: Losses {
            lost: traffic.dropped(DropReason::Loss),
            overflows: traffic.dropped(DropReason::BufferFull),
            timeouts: traffic.rollbacks,
        },
        swaps: Swaps {
            swaps_per_packet: of(swapped_in, traffic.request_packets),
            bytes_per_swap: of(stats.melo_swapped_bytes, swaps),
            pcie_bps: per_second(pcie_bytes * 8, time_ns),
            stall_fraction: of(swapped_in * FETCH_NS, time_ns),
        },
        digest: world.digest(),
    }
}
