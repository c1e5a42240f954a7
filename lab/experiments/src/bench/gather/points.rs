//! The windows of the benchmark, and their results.

use std::rc::Rc;
use std::time::Duration;

use courser_bench::report::{self, Metric, PlacementResult, Unit};
use courser_bench::rpc::calls::{Calls, SharedCaller};
use courser_bench::rpc::series::Series;
use courser_bench::window::{Compared, Sample, Workload, WorkloadError};

use super::{SMALL, Way, small_by};

/// Windows of messages. The bytes of a window are those that this side sends, headers included.
pub(super) struct Messages {
    calls: Calls,
    caller: SharedCaller,
    size: u64,
    /// Bytes of headers around a frame.
    headers: u64,
    /// Of all windows.
    all: Counted,
}

/// Counters of this side's endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counted {
    pub(super) messages: u64,
    pub(super) frames: u64,
    /// With headers.
    pub(super) bytes: u64,
    /// Packets that acknowledge the other side's messages.
    pub(super) acks: u64,
}

impl Messages {
    pub(super) fn new(calls: Calls, caller: &SharedCaller, size: usize, headers: u64) -> Self {
        let caller = Rc::clone(caller);
        Self { calls, caller, size: size as u64, headers, all: Counted::default() }
    }

    /// Counters since the endpoint was opened.
    fn counted(&self) -> Counted {
        let caller = self.caller.borrow();
        let (stats, transport) = (caller.rpc().stats(), caller.rpc().transport_stats());
        Counted {
            messages: stats.messages_acknowledged,
            frames: transport.tx_frames,
            bytes: transport.tx_bytes + transport.tx_frames * self.headers,
            acks: stats.tx_acknowledging(),
        }
    }
}

impl Counted {
    /// Adds the counters of a window.
    pub(super) fn add(&mut self, window: Self) {
        self.messages += window.messages;
        self.frames += window.frames;
        self.bytes += window.bytes;
        self.acks += window.acks;
    }

    fn since(self, before: Self) -> Self {
        Self {
            messages: self.messages - before.messages,
            frames: self.frames - before.frames,
            bytes: self.bytes - before.bytes,
            acks: self.acks - before.acks,
        }
    }

    /// Bytes of as many messages as an operation count states: the mean of both sides' messages.
    pub(super) fn bytes_of(self, messages: u64) -> u64 {
        let bytes = u128::from(self.bytes) * u128::from(messages);
        u64::try_from(bytes / u128::from(self.messages.max(1))).unwrap_or(u64::MAX)
    }

    fn per_frame(self) -> f64 {
        self.messages as f64 / self.frames.max(1) as f64
    }

    /// The part of all bytes that is not content of messages.
    fn header_fraction(self, size: u64) -> f64 {
        1.0 - (self.messages * size) as f64 / self.bytes.max(1) as f64
    }

    /// Adds what the frames of messages of a size have, to a result.
    pub(super) fn describe(self, size: u64, result: &mut PlacementResult) {
        let values = [
            ("messages_per_frame", self.per_frame()),
            ("header_fraction", self.header_fraction(size)),
            ("ack_packets_per_message", self.acks as f64 / self.messages.max(1) as f64),
        ];
        for (key, value) in values {
            result.extra.insert(key.to_owned(), value.into());
        }
    }
}

impl Workload for Messages {
    fn name(&self) -> &str {
        "messages"
    }

    fn prepare(&mut self) -> Result<(), WorkloadError> {
        self.calls.prepare()
    }

    fn run(&mut self, duration: Duration) -> Result<Sample, WorkloadError> {
        let before = self.counted();
        let sample = self.calls.run(duration)?;
        let window = self.counted().since(before);
        self.all.add(window);
        Ok(Sample { bytes: window.bytes_of(sample.operations), ..sample })
    }

    fn add_counters(&self, result: &mut PlacementResult) {
        self.all.describe(self.size, result);
    }
}

/// The windows of a size, a batch and a way of packing.
struct Point {
    size: usize,
    batch: u32,
    way: usize,
    throughput: Compared,
    latency: Compared,
}

/// All points.
pub(super) struct Points<'p> {
    transport: &'static str,
    ways: &'p [Way],
    grid: &'p [(usize, u32)],
    points: Vec<Point>,
    /// The messages that are compared with calls.
    small: Option<Compared>,
}

impl<'p> Points<'p> {
    pub(super) fn new(transport: &'static str, ways: &'p [Way], grid: &'p [(usize, u32)]) -> Self {
        Self { transport, ways, grid, points: Vec::new(), small: None }
    }

    /// Adds the windows to a series: the ways of a size and batch are adjacent. The workloads are in
    /// the order of the grid, then of the ways.
    pub(super) fn lay_out<'a, M: Workload, D: Workload>(
        &mut self,
        series: &mut Series<'a>,
        messages: &'a mut [M],
        delays: &'a mut [D],
        (small, calls): &'a mut (M, D),
    ) {
        let count = self.ways.len();
        let each = messages.chunks_mut(count).zip(delays.chunks_mut(count)).zip(self.grid);
        for ((messages, delays), &(size, batch)) in each {
            let mut throughput = Vec::with_capacity(count);
            for messages in messages {
                let messages = series.workload(messages);
                throughput.push(series.point(messages, None));
            }
            for ((way, delays), throughput) in delays.iter_mut().enumerate().zip(throughput) {
                let delays = series.workload(delays);
                let latency = series.point(delays, None);
                self.points.push(Point { size, batch, way, throughput, latency });
            }
        }
        let (small, calls) = (series.workload(small), series.workload(calls));
        self.small = Some(series.point(small, Some(calls)));
    }

    /// The results of all points and of the comparison.
    pub(super) fn results(&self, series: &mut Series<'_>) -> Vec<PlacementResult> {
        let mut all: Vec<_> =
            self.points.iter().flat_map(|point| self.of_point(series, point)).collect();
        all.extend(self.small.into_iter().flat_map(|small| self.of_small(series, small)));
        all
    }

    fn of_point(&self, series: &mut Series<'_>, point: &Point) -> Vec<PlacementResult> {
        let mut results = series.results(point.throughput, Metric::Latency);
        for other in series.results(point.latency, Metric::Latency) {
            match results.iter_mut().find(|result| result.placement == other.placement) {
                Some(result) => {
                    result.latency_p50 = other.latency_p50;
                    result.latency_p99 = other.latency_p99;
                    result.windows = result.windows.min(other.windows);
                    result.windows_dropped = result.windows_dropped.max(other.windows_dropped);
                }
                None => results.push(other),
            }
        }
        for result in &mut results {
            self.describe(result, point.way, (point.size, point.batch), "both");
            add_rates(series, point.throughput, result);
            self.compare(series, point, result);
        }
        results
    }

    fn describe(
        &self,
        result: &mut PlacementResult,
        way: usize,
        (size, batch): (usize, u32),
        directions: &str,
    ) {
        let name = self.ways[way].0;
        result.at_point("packing", name, format!("{size} B by {batch}, {name}"));
        result.extra.insert("transport".to_owned(), self.transport.into());
        result.extra.insert("size".to_owned(), size.into());
        result.extra.insert("batch".to_owned(), batch.into());
        result.extra.insert("directions".to_owned(), directions.into());
    }

    /// Adds the ratios to other points of the same size within each round.
    fn compare(&self, series: &Series<'_>, point: &Point, result: &mut PlacementResult) {
        let way = |name: &str| self.ways.iter().position(|way| way.0 == name);
        let bases = [
            ("off", way("off"), point.batch),
            ("single", way("single"), point.batch),
            ("batch_1", Some(point.way), 1),
        ];
        for (name, way, batch) in bases {
            let same = |p: &&Point| (p.size, p.batch, Some(p.way)) == (point.size, batch, way);
            let Some(base) = self.points.iter().find(same) else { continue };
            if (base.way, base.batch) == (point.way, point.batch) {
                continue;
            }
            let between = |a: Compared, b: Compared| Compared {
                measured: a.measured,
                baseline: Some(b.measured),
            };
            let rates = between(point.throughput, base.throughput);
            if let Some(times) = series.ratio(rates, Metric::Rate, result) {
                result.add(&format!("messages_of_{name}"), name, Unit::Plain, times);
            }
            let delays = between(point.latency, base.latency);
            if let Some(times) = series.ratio(delays, Metric::Latency, result) {
                result.add(&format!("latency_of_{name}"), name, Unit::Plain, times);
            }
        }
    }

    /// The messages that are compared with calls.
    fn of_small(&self, series: &mut Series<'_>, small: Compared) -> Vec<PlacementResult> {
        let mut results = series.results(small, Metric::LatencyP99);
        for result in &mut results {
            self.describe(result, small_by(self.ways), SMALL, "one");
            add_rates(series, small, result);
            let outcome = series.outcome(small);
            let calls = report::over_pairs(&outcome, result.placement(), |pair| {
                Some(pair.raw.as_ref()?.rate())
            });
            if let Some(calls) = calls {
                result.add("calls_ps", "calls", Unit::PerSecond, calls);
            }
            if let Some(times) = report::ratio(&outcome, Metric::Rate, result.placement()) {
                result.add("messages_of_calls", "times calls", Unit::Plain, times);
            }
        }
        results
    }
}

/// Adds messages and bits per second in one direction.
fn add_rates(series: &Series<'_>, point: Compared, result: &mut PlacementResult) {
    let (outcome, placement) = (series.outcome(point), result.placement());
    let over = |value: fn(&Sample) -> f64| {
        report::over_pairs(&outcome, placement, |pair| Some(value(&pair.measured)))
    };
    let values = [
        ("messages_ps", Unit::PerSecond, over(Sample::rate)),
        ("throughput_bps", Unit::Bits, over(Sample::goodput_bps)),
    ];
    for (key, unit, value) in values {
        if let Some(value) = value {
            result.add(key, key, unit, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_all_bytes_but_the_content() {
        let before = Counted { messages: 10, frames: 10, bytes: 1_000, acks: 5 };
        let after = Counted { messages: 110, frames: 60, bytes: 11_000, acks: 30 };
        let window = after.since(before);
        assert_eq!(window, Counted { messages: 100, frames: 50, bytes: 10_000, acks: 25 });
        assert_eq!(window.per_frame(), 2.0);
        assert!((window.header_fraction(64) - 0.36).abs() < 1e-9);
        // The other side has sent twice as many.
        assert_eq!(window.bytes_of(150), 15_000);
        assert_eq!(Counted::default().bytes_of(5), 0);
    }
}
