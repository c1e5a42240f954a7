//! `courser-lab bench gather`: one-way messages in batches, as in the evaluation of scatter-gather batching
//! `[SG sections III and IV]`, figures 8 to 10.
//!
//! A batch is what is sent together before the transmitter runs. For each size, batch and way of
//! packing two kinds of windows alternate:
//! * **throughput**: both sides send messages to each other, as many as may be in flight, a batch in
//!   each pass of the event loop. All bits are counted, headers included.
//! * **latency**: a batch of calls whose answers carry two stamps of the server; half of the round trip
//!   without the server's time is the latency of one way. The next batch follows when all have ended.
//!
//! Two more windows compare 32-byte messages with 32-byte calls, both in one direction.
//!
//! In the simulator each window is a world of its own in virtual time, and one window of each is
//! enough ([`simulated`]).

mod picture;
mod points;
mod simulated;
mod text;

use clap::ValueEnum;
use courser::Packing;
use serde_json::json;

use courser_bench::clock::Clock;
use courser_bench::netns::{self, DEVICE, Host, Unavailable};
use courser_bench::report::{self, PlacementResult, Report};
use courser_bench::rpc::calls::Calls;
use courser_bench::rpc::error::BenchError;
use courser_bench::rpc::ground::Ground;
use courser_bench::rpc::load::Load;
use courser_bench::rpc::run::{agreed, object};
use courser_bench::rpc::series::{Series, plan_for};
use courser_bench::rpc::service::{self, Stamps};
use courser_bench::rpc::side::{Back, Over, Variant};
use courser_bench::rpc::spec::{BenchSpec, Kind};
use courser_bench::rpc::switch::Switch;
use courser_bench::window::{Plan, Progress};
use courser_kit::affinity::{self, Cores};
use courser_kit::environment::Environment;

use self::points::{Messages, Points};

pub(crate) use picture::charts;
pub(crate) use simulated::virtual_plan;
pub(crate) use text::render;

/// The paper's sizes of packets, and its batches.
pub(crate) const SIZES: [u64; 6] = [64, 128, 256, 512, 1024, 1500];
pub(crate) const BATCHES: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Smallest and largest message, and largest batch.
const SIZE_LIMITS: (u64, u64) = (Stamps::LEN as u64, 65_536);
pub(crate) const MOST_BATCH: u32 = 256;
/// Most combinations of sizes and batches: each has windows for every way of packing.
const MOST_POINTS: usize = 64;

/// Messages of one direction that are not acknowledged, as many as calls of `courser bench rate`.
const IN_FLIGHT: u32 = courser_bench::rpc::RATE_IN_FLIGHT;
/// Sessions: slots for the calls of the largest batch, and credits for several batches of messages.
const SESSIONS: usize = 16;
/// Size and batch of the messages that are compared with calls. Either kind has in flight what its
/// sessions allow by default: 32 credits of messages, and 8 slots of calls ([`IN_FLIGHT`]).
const SMALL: (usize, u32) = (32, 128);
const SMALL_IN_FLIGHT: u32 = 32 * SESSIONS as u32;
/// How they are packed: as by default.
const SMALL_BY: &str = "copy";

/// MTU of the virtual and of the simulated link, and the largest datagram payload in it.
const MTU: usize = 9000;
const JUMBO_FRAME: usize = MTU - 20 - 8;
/// Smallest frame of a simulated host.
const LEAST_FRAME: usize = 304;
/// Headers of Ethernet, IPv4 and UDP around a datagram.
const UDP_HEADERS: u64 = 14 + 20 + 8;

/// What connects the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Between {
    /// UDP over the loopback, two processes
    Udp,
    /// Shared memory, two processes
    Shm,
    /// Queues in memory, two threads of one process
    Mem,
    /// UDP between two network namespaces over a virtual link with an MTU of 9000. Needs root
    Veth,
    /// Two simulated hosts at a switch, links with an MTU of 9000: in virtual time, repeatable
    Sim,
}

impl Between {
    fn name(self) -> &'static str {
        match self {
            Self::Udp => "udp",
            Self::Shm => "shm",
            Self::Mem => "mem",
            Self::Veth => "veth",
            Self::Sim => "sim",
        }
    }

    /// The transport; `None` in the simulator.
    fn over(self) -> Option<Over> {
        match self {
            Self::Udp | Self::Veth => Some(Over::Udp),
            Self::Shm => Some(Over::Shm),
            Self::Mem => Some(Over::Mem),
            Self::Sim => None,
        }
    }

    /// Bytes of headers around a frame, beside those of Courser.
    fn frame_headers(self) -> u64 {
        match self {
            Self::Udp | Self::Veth | Self::Sim => UDP_HEADERS,
            Self::Shm | Self::Mem => 0,
        }
    }

    /// MTU of the link, if it is one of this benchmark.
    fn mtu(self) -> Option<usize> {
        [Self::Veth, Self::Sim].contains(&self).then_some(MTU)
    }

    /// Two hosts, if the transport needs them.
    fn hosts(self) -> Result<Option<[Host; 2]>, Unavailable> {
        if self != Self::Veth {
            return Ok(None);
        }
        let hosts = netns::pair()?;
        for host in &hosts {
            host.run(&format!("ip link set {DEVICE} mtu {MTU}"))?;
        }
        Ok(Some(hosts))
    }
}

/// The parameters of a report.
type Config = serde_json::Map<String, serde_json::Value>;

/// The parameters and the results of all windows.
type Results = (Config, Vec<PlacementResult>);

/// A way to send small packets to one peer: its name, packing, and whether trains are off.
type Way = (&'static str, Packing, bool);

/// The ways of a transport; messages and calls of 32 bytes are compared with `copy`.
fn ways(over: Option<Over>) -> Vec<Way> {
    // A datagram for each packet, without UDP_SEGMENT.
    let single = (over == Some(Over::Udp)).then_some(("single", Packing::Off, true));
    let ways = [
        ("off", Packing::Off, false),
        (SMALL_BY, Packing::Copy, false),
        ("gather", Packing::Gather, false),
    ];
    single.into_iter().chain(ways).collect()
}

/// The parameters of the benchmark.
#[derive(Clone, Debug)]
pub(crate) struct Gather {
    pub(crate) between: Between,
    pub(crate) plan: Plan,
    /// Bytes in a message.
    pub(crate) sizes: Vec<u64>,
    /// Messages in a batch.
    pub(crate) batches: Vec<u32>,
    /// Largest frame, bytes; `None`: the default of the transport.
    pub(crate) frame: Option<usize>,
    /// The simulated link.
    pub(crate) link: Link,
}

/// A simulated link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Link {
    /// Its rate, Gbit/s.
    pub(crate) gbps: u64,
    /// Decides the random choices of the simulator.
    pub(crate) seed: u64,
}

impl Default for Link {
    /// The rate of the paper's link.
    fn default() -> Self {
        Self { gbps: 40, seed: 1 }
    }
}

/// The loads of one point.
fn messages(size: usize, batch: u32) -> Load {
    Load {
        req_type: service::MESSAGE,
        size,
        sessions: SESSIONS,
        in_flight: IN_FLIGHT.max(batch),
        batch,
        random: false,
        timed: false,
    }
}

/// The messages that are compared with calls.
fn small_messages() -> Load {
    Load { in_flight: SMALL_IN_FLIGHT, ..messages(SMALL.0, SMALL.1) }
}

/// The number of their way.
fn small_by(ways: &[Way]) -> usize {
    ways.iter().position(|way| way.0 == SMALL_BY).unwrap_or(0)
}

fn stamped(size: usize, batch: u32) -> Load {
    let sessions = usize::try_from(batch).unwrap_or(SESSIONS).div_ceil(SESSIONS);
    Load {
        req_type: service::STAMP,
        sessions,
        in_flight: batch,
        timed: true,
        ..messages(size, batch)
    }
}

impl Gather {
    fn check(&self) -> Result<(), BenchError> {
        let check = |ok: bool, what, limits: String| {
            if ok { Ok(()) } else { Err(BenchError::Spec { what, limits }) }
        };
        let (least, most) = SIZE_LIMITS;
        let sizes = !self.sizes.is_empty() && self.sizes.iter().all(|n| (least..=most).contains(n));
        check(sizes, "each size", format!("{least} to {most} bytes"))?;
        let batches =
            !self.batches.is_empty() && self.batches.iter().all(|n| (1..=MOST_BATCH).contains(n));
        check(batches, "each batch", format!("1 to {MOST_BATCH} messages"))?;
        let points = self.sizes.len() * self.batches.len();
        let limits = format!("at most {MOST_POINTS}: give fewer of either");
        check(points <= MOST_POINTS, "sizes times batches", limits)?;
        let fits = self.frame.is_none_or(|bytes| (LEAST_FRAME..=JUMBO_FRAME).contains(&bytes));
        let limits = format!("{LEAST_FRAME} to {JUMBO_FRAME} bytes in the simulator");
        check(self.between != Between::Sim || fits, "the frame size", limits)
    }

    /// Largest frame; `None`: the default of the transport.
    fn frame(&self) -> Option<usize> {
        self.frame.or(self.between.mtu().map(|_| JUMBO_FRAME))
    }

    fn variant(&self, (_, packing, alone): Way) -> Variant {
        Variant {
            frame: self.frame(),
            packing: Some(packing),
            off: if alone { vec![Switch::Trains] } else { Vec::new() },
            ..Variant::default()
        }
    }

    /// Size and batch of each point, in the order of the windows.
    fn grid(&self) -> Vec<(usize, u32)> {
        let (mut sizes, mut batches) = (self.sizes.clone(), self.batches.clone());
        sizes.sort_unstable();
        sizes.dedup();
        batches.sort_unstable();
        batches.dedup();
        let of = |&size: &u64| batches.iter().map(move |&batch| (size as usize, batch));
        sizes.iter().flat_map(|size| of(size).collect::<Vec<_>>()).collect()
    }

    /// Runs all windows; the calling thread is pinned meanwhile.
    ///
    /// # Errors
    /// [`BenchError`], in one line each; [`BenchError::Host`] where this user cannot have hosts.
    pub(crate) fn run(&self, progress: &mut dyn FnMut(&Progress)) -> Result<Report, BenchError> {
        self.check()?;
        let (clock, cores) = (Clock::new(), affinity::choose()?);
        let (config, results) = match self.between.over() {
            Some(over) => self.measured(over, (&clock, &cores), progress)?,
            None => simulated::run(self, progress)?,
        };
        Ok(Report {
            bench: "gather".to_owned(),
            transport: self.between.name().to_owned(),
            config,
            results,
            environment: Environment::collect(clock.error_ppm(), &cores),
        })
    }

    /// The windows over a transport of this machine.
    fn measured(
        &self,
        over: Over,
        (clock, cores): (&Clock, &Cores),
        progress: &mut dyn FnMut(&Progress),
    ) -> Result<Results, BenchError> {
        let hosts = self.between.hosts()?;
        let grid = self.grid();
        let ways = ways(Some(over));
        let variants: Vec<Variant> = ways.iter().map(|&way| self.variant(way)).collect();
        let each = || grid.iter().flat_map(|&point| (0..ways.len()).map(move |way| (point, way)));
        let back = |uris: &[String]| -> Vec<Back> {
            let back = |((size, batch), way): ((usize, u32), usize)| Back {
                variant: way,
                uri: uris[way].clone(),
                load: messages(size, batch),
            };
            each().map(back).collect()
        };
        let mut ground = Ground::open_on(hosts.as_ref(), over, &variants, &back, clock, cores)?;
        for way in 0..ways.len() as u16 {
            ground.connect(way, SESSIONS)?;
        }
        let calls = |load: Load, way: usize| {
            let calls = Calls::new(&ground.callers[way], load, way as u16, clock, &ground.other);
            calls.map(Calls::without_tail)
        };
        let counted = |calls: Calls, size: usize, way: usize| {
            Messages::new(calls, &ground.callers[way], size, self.between.frame_headers())
        };
        let (mut sent, mut delays) = (Vec::new(), Vec::new());
        for (at, ((size, batch), way)) in each().enumerate() {
            let both = calls(messages(size, batch), way)?.both_ways(at as u16);
            sent.push(counted(both, size, way));
            delays.push(calls(stamped(size, batch), way)?);
        }
        let by = small_by(&ways);
        let small = counted(calls(small_messages(), by)?, SMALL.0, by);
        let rate = BenchSpec::new(Kind::Rate, self.plan).loads().remove(0);
        let small = (small, calls(rate, by)?);
        let mut config = agreed(&ground.callers[0]);
        config.extend(self.described(&ways));
        config.insert("pairs_wanted".to_owned(), self.plan.pairs.into());
        config.insert("max_time_s".to_owned(), self.plan.max_time.as_secs_f64().into());
        config.insert("cores_warning".to_owned(), cores.warning.clone().into());

        let mut points = Points::new(self.between.name(), &ways, &grid);
        let mut runner = ground.runner(plan_for(self.plan, 2 * sent.len() + 2))?;
        let mut series = Series::default();
        let (mut sent, mut delays, mut small) = (sent, delays, small);
        points.lay_out(&mut series, &mut sent, &mut delays, &mut small);
        let ran = series.run(&mut runner, progress);
        ran.map_err(|error| ground.child.explain(error.into()))?;
        config.insert(report::CPU_WAIT.to_owned(), runner.cpu_wait().into());
        let results = report::by_placement(points.results(&mut series));
        drop(series);
        drop((sent, delays, small));
        config.insert("diagnostics".to_owned(), ground.diagnostics());
        Ok((config, results))
    }

    /// The parameters that all transports have.
    fn described(&self, ways: &[Way]) -> Config {
        object(json!({
            "sizes": self.sizes,
            "batches": self.batches,
            "packings": ways.iter().map(|way| way.0).collect::<Vec<_>>(),
            "messages_in_flight": IN_FLIGHT,
            "small_messages_in_flight": SMALL_IN_FLIGHT,
            "frame_header_bytes": self.between.frame_headers(),
            "link_mtu": self.between.mtu(),
            "window_ms": self.plan.window.as_secs_f64() * 1e3,
        }))
    }
}

/// The rate of the simulated links.
fn link_bps(report: &Report) -> Option<u64> {
    report.config.get("link_bps").and_then(serde_json::Value::as_u64)
}

fn is_simulated(report: &Report) -> bool {
    link_bps(report).is_some()
}

/// What connected the two sides of a report, and where they ran: `veth, far`.
fn place(report: &Report, placement: &str) -> String {
    let transport = &report.transport;
    match link_bps(report) {
        Some(bps) => format!("{transport}, {} Gbit/s", bps / 1_000_000_000),
        None => format!("{transport}, {placement}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gather(sizes: &[u64], batches: &[u32]) -> Gather {
        let (sizes, batches) = (sizes.to_vec(), batches.to_vec());
        let (between, link) = (Between::Shm, Link::default());
        Gather { between, plan: Plan::quick(), sizes, batches, frame: None, link }
    }

    #[test]
    fn sizes_and_batches_have_limits_and_an_order() {
        assert!(gather(&SIZES, &BATCHES).check().is_ok());
        let many: Vec<u32> = (1..=65).collect();
        for (sizes, batches) in [
            (&[][..], &[1][..]),
            (&[64], &[]),
            (&[15], &[1]),
            (&[65_537], &[1]),
            (&[64], &[0]),
            (&[64], &[257]),
            (&[64], &many),
        ] {
            assert!(gather(sizes, batches).check().is_err(), "{sizes:?} {batches:?}");
        }
        let mut simulated = gather(&[64], &[1]);
        (simulated.between, simulated.frame) = (Between::Sim, Some(JUMBO_FRAME + 1));
        assert!(simulated.check().is_err(), "the link's MTU");
        let grid = gather(&[512, 64, 64], &[4, 1]).grid();
        assert_eq!(grid, [(64, 1), (64, 4), (512, 1), (512, 4)]);
    }

    #[test]
    fn calls_of_a_batch_have_a_slot_each() {
        let slots = usize::from(courser::Config::default().slots);
        for batch in [1, 16, 17, 32, MOST_BATCH] {
            let load = stamped(64, batch);
            assert!(
                load.sessions * slots >= batch as usize && load.sessions <= SESSIONS,
                "{batch}"
            );
            assert_eq!(load.chains(), (1, batch as usize));
            assert_eq!(messages(64, batch).chains().1 as u32 % batch, 0);
        }
    }
}
