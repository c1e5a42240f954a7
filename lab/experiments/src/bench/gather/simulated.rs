//! The windows in the simulator: each is a world of its own, in virtual time.

use std::time::Duration;

use crate::scenario::batches::{self, Outcome, Sent, Settings, Traffic};
use crate::scenario::wire_ns;
use courser_bench::probe::Prober;
use courser_bench::report::PlacementResult;
use courser_bench::rpc::error::BenchError;
use courser_bench::rpc::load::Load;
use courser_bench::rpc::run::object;
use courser_bench::rpc::series::Series;
use courser_bench::rpc::spec::{BenchSpec, Kind};
use courser_bench::window::{Plan, Progress, Runner, Sample, Workload, WorkloadError};
use courser_kit::latency::Percentiles;
use courser_sim::WIRE_OVERHEAD;
use serde_json::json;

use super::points::{Counted, Points};
use super::{Gather, Results, UDP_HEADERS, Way, messages, small_by, small_messages, stamped, ways};

/// A window of each workload, of 1 or 2 ms.
pub(crate) fn virtual_plan(quick: bool) -> Plan {
    let window = Duration::from_millis(if quick { 1 } else { 2 });
    Plan { window, pairs: 1, max_time: Duration::ZERO, warmup: 0 }
}

/// Windows of one traffic.
struct Simulated {
    settings: Settings,
    all: Counted,
    /// Frames that acknowledge messages of one direction, and their bytes, for each message.
    acks: Option<(f64, f64)>,
}

impl Simulated {
    fn new(gather: &Gather, (_, packing, _): Way, load: &Load, traffic: Traffic) -> Self {
        let mut settings = Settings {
            traffic,
            link_bps: gather.link.gbps * 1_000_000_000,
            packing,
            bytes: load.size as u32,
            batch: load.batch,
            in_flight: load.in_flight,
            sessions: load.sessions as u32,
            ..Settings::default()
        };
        settings.hosts.seed = gather.link.seed;
        if let Some(bytes) = gather.frame() {
            settings.hosts.max_frame = bytes;
        }
        let mut simulated = Self { settings, all: Counted::default(), acks: None };
        // The queues have their length.
        simulated.settings.warm_up_ns += 2 * simulated.in_flight_ns();
        simulated
    }

    /// Time that the link takes for all that may be in flight.
    fn in_flight_ns(&self) -> u64 {
        let Settings { in_flight, bytes, link_bps, .. } = self.settings;
        wire_ns(u64::from(in_flight) * u64::from(bytes), link_bps)
    }

    /// A window of at least twenty times what is in flight, so that its begin and end do not matter.
    fn run_for(&self, traffic: Traffic, window: Duration) -> Result<Outcome, WorkloadError> {
        let time_ns = u64::try_from(window.as_nanos())?.max(20 * self.in_flight_ns());
        Ok(batches::run(&Settings { traffic, time_ns, ..self.settings })?)
    }
}

/// Counters of a host, with the headers that other transports count.
fn counted(sent: Sent) -> Counted {
    let uncounted = u64::from(WIRE_OVERHEAD) - UDP_HEADERS; // check sequence, preamble and gap
    Counted {
        messages: sent.messages,
        frames: sent.frames,
        bytes: sent.wire_bytes - sent.frames * uncounted,
        acks: sent.acks,
    }
}

impl Workload for Simulated {
    fn name(&self) -> &str {
        "simulated"
    }

    fn run(&mut self, window: Duration) -> Result<Sample, WorkloadError> {
        let seen = self.run_for(self.settings.traffic, window)?;
        let mut sent = counted(seen.first);
        if self.settings.traffic == Traffic::Both {
            sent.add(counted(seen.second));
        }
        self.all.add(sent);
        let one_way = seen.one_way;
        if self.settings.traffic != Traffic::Calls {
            let one = match self.settings.traffic {
                Traffic::One => seen,
                _ => self.run_for(Traffic::One, window)?,
            };
            let each = |count: u64| count as f64 / one.first.messages.max(1) as f64;
            let acks = counted(one.second);
            self.acks = Some((each(acks.frames), each(acks.bytes)));
        }
        Ok(Sample {
            operations: seen.operations,
            bytes: sent.bytes_of(seen.operations),
            elapsed_ns: seen.time_ns,
            latency: (one_way.count > 0).then_some(Percentiles {
                p50_ns: one_way.p50_ns,
                p99_ns: one_way.p99_ns,
                samples: one_way.count,
            }),
            cpu_ns: None,
        })
    }

    fn add_counters(&self, result: &mut PlacementResult) {
        let Some((frames, bytes)) = self.acks else { return };
        self.all.describe(self.settings.bytes.into(), result);
        result.extra.insert("ack_frames_per_message".to_owned(), frames.into());
        result.extra.insert("ack_bytes_per_message".to_owned(), bytes.into());
    }
}

/// Runs all windows.
///
/// # Errors
/// A message or a call has failed.
pub(super) fn run(
    gather: &Gather,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Results, BenchError> {
    let (grid, ways) = (gather.grid(), ways(None));
    let each = || grid.iter().flat_map(|&point| ways.iter().map(move |&way| (point, way)));
    let window = |load: &Load, way, traffic| Simulated::new(gather, way, load, traffic);
    let mut sent: Vec<_> =
        each().map(|((n, batch), way)| window(&messages(n, batch), way, Traffic::Both)).collect();
    let mut delays: Vec<_> =
        each().map(|((n, batch), way)| window(&stamped(n, batch), way, Traffic::Calls)).collect();
    let by = ways[small_by(&ways)];
    let rate = BenchSpec::new(Kind::Rate, gather.plan).loads().remove(0);
    let mut small =
        (window(&small_messages(), by, Traffic::One), window(&rate, by, Traffic::Calls));
    let mut config = gather.described(&ways);
    let Settings { hosts, link_bps, .. } = sent[0].settings;
    config.extend(object(json!({
        "link_bps": link_bps,
        "seed": hosts.seed,
        "cpu": hosts.cpu.name(),
        "control": hosts.control.name(),
        "credits": hosts.credits,
        "max_frame": hosts.max_frame,
    })));
    let mut points = Points::new(gather.between.name(), &ways, &grid);
    let mut series = Series::default();
    points.lay_out(&mut series, &mut sent, &mut delays, &mut small);
    series.run(&mut Runner::new(gather.plan, None::<Prober>)?, progress)?;
    Ok((config, points.results(&mut series)))
}
