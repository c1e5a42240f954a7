//! Cost of a lost packet for a small call.
//!
//! Two hosts at one switch. One or more echoes of 32 bytes are always in flight; the switch loses
//! each datagram that crosses it with a given probability, and records the loss for each call whose
//! request or response was in it. Calls are classified by their number of losses: none, one, or
//! more. Each scheme also runs without loss, for comparison; both with the library's own bounds of
//! the retransmission timeout.
//! the library's own bounds of the retransmission timeout.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use courser::{Nexus, Recovery, Rpc};
use serde::Serialize;

use super::loss;
use crate::scenario::app;
use crate::scenario::path::{self, CLIENT, SERVER};
use crate::scenario::uncontrolled;
use crate::scenario::{Cpu, Latency, ScenarioError};
use crate::scenario::{check, check_loss, observed, share};
use courser_sim::SetupError;
use courser_sim::fabric::{Fate, Topology};
use courser_sim::observe::{Tap, Times, decode};
use courser_sim::{Rng, World};

/// Bytes of a request, and of its response.
const BYTES: usize = 32;

/// A run that takes longer has failed, ns of virtual time.
const LIMIT_NS: u64 = 600_000_000_000;

/// Settings of the experiment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Settings {
    /// Decides all random choices.
    pub seed: u64,
    /// Schemes of recovery: 1 or more. Default all.
    pub schemes: Vec<Recovery>,
    /// Probability that the switch loses a datagram, per million: at most 500,000. Default 1e-3.
    pub loss_ppm: u32,
    /// Calls that are counted in each run: 100 to 10,000,000. Default 100,000.
    pub calls: u64,
    /// Calls in flight: 1 to 32. Default 1: no other call reveals a loss.
    pub in_flight: u32,
    /// The CPUs. Default: eRPC's.
    pub cpu: Cpu,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            seed: 1,
            schemes: vec![Recovery::GoBackN, Recovery::Melo, Recovery::Selective],
            loss_ppm: 1_000,
            calls: 100_000,
            in_flight: 1,
            cpu: Cpu::Erpc,
        }
    }
}

impl Settings {
    fn check(&self) -> Result<(), ScenarioError> {
        check(!self.schemes.is_empty(), "schemes", 0_u64, "one or more")?;
        check_loss(self.loss_ppm)?;
        let calls = self.calls;
        check((100..=10_000_000).contains(&calls), "calls", calls, "100 to 10,000,000")?;
        check((1..=32).contains(&self.in_flight), "in_flight", self.in_flight, "1 to 32")
    }

    /// The network.
    pub fn topology(&self) -> Topology {
        Topology::one_switch(2)
    }
}

/// Results of one scheme.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Point {
    /// The scheme.
    #[serde(serialize_with = "loss::name")]
    pub scheme: Recovery,
    /// Probability that the switch loses a datagram.
    pub loss: f64,
    /// Calls of the run without loss.
    pub lossless: Latency,
    /// Calls that lost nothing, in the run with loss.
    pub unharmed: Latency,
    /// Calls that lost exactly one packet.
    pub lost_one: Latency,
    /// Calls that lost several.
    pub lost_more: Latency,
    /// Smoothed round trip at the end of the run without loss, ns.
    pub rtt_ns: u64,
    /// Three round trips above the 99th percentile without loss, ns. The limit for a call that has
    /// lost one packet, apart from the reordering window.
    pub bound_ns: u64,
    /// By how many round trips the slowest call that has lost one packet is above the 99th
    /// percentile without loss.
    pub worst_rtts: f64,
    /// Lost datagrams without a call's request or response.
    pub lost_others: u64,
    /// A hash over all events; 16 hexadecimal digits in JSON.
    #[serde(serialize_with = "crate::scenario::hex")]
    pub digest: u64,
}

/// Runs it. `progress` is called with the number of finished runs and their total.
///
/// # Errors
/// A setting is out of range, the session was not connected, or a call has failed.
pub fn run(
    settings: &Settings,
    mut progress: impl FnMut(usize, usize),
) -> Result<Vec<Point>, ScenarioError> {
    settings.check()?;
    let all = 2 * settings.schemes.len();
    let mut points = Vec::with_capacity(settings.schemes.len());
    for &scheme in &settings.schemes {
        progress(2 * points.len(), all);
        let clean = measure(settings, scheme, 0, None)?;
        progress(2 * points.len() + 1, all);
        let lossy = measure(settings, scheme, settings.loss_ppm, None)?;
        points.push(point(settings, scheme, &clean, &lossy));
    }
    progress(all, all);
    Ok(points)
}

fn point(settings: &Settings, scheme: Recovery, clean: &Seen, lossy: &Seen) -> Point {
    let [lossless, ..] = clean.by_losses;
    let [unharmed, lost_one, lost_more] = lossy.by_losses;
    let above_ns = lost_one.max_ns.saturating_sub(lossless.p99_ns);
    Point {
        scheme,
        loss: share(settings.loss_ppm),
        lossless,
        unharmed,
        lost_one,
        lost_more,
        rtt_ns: clean.rtt_ns,
        bound_ns: lossless.p99_ns + 3 * clean.rtt_ns,
        worst_rtts: above_ns as f64 / clean.rtt_ns.max(1) as f64,
        lost_others: lossy.lost_others,
        digest: lossy.digest,
    }
}

/// Result of a run.
struct Seen {
    /// Calls by losses: none, one, or more.
    by_losses: [Latency; 3],
    rtt_ns: u64,
    lost_others: u64,
    digest: u64,
}

/// A call in flight.
#[derive(Clone, Copy, Debug, Default)]
struct Call {
    /// Its number among all calls.
    number: u64,
    start_ns: u64,
    losses: usize,
}

/// State shared by client and switch.
#[derive(Debug, Default)]
struct Book {
    calls: Vec<Call>,
    begun: u64,
    ended: u64,
    by_losses: [Times; 3],
    lost_others: u64,
    first_error: Option<String>,
}

type SharedBook = Rc<RefCell<Book>>;

impl Book {
    /// The next call of a lane; returns the start of its request.
    fn begin(&mut self, place: usize, now_ns: u64) -> [u8; 16] {
        self.begun += 1;
        let number = self.begun;
        if let Some(call) = self.calls.get_mut(place) {
            *call = Call { number, start_ns: now_ns, losses: 0 };
        }
        let mut mark = [0; 16];
        mark[..8].copy_from_slice(&number.to_le_bytes());
        mark[8..].copy_from_slice(&(place as u64).to_le_bytes());
        mark
    }

    fn end(&mut self, place: usize, now_ns: u64) {
        let Some(call) = self.calls.get(place) else { return };
        self.by_losses[call.losses.min(2)].record(now_ns - call.start_ns);
        self.ended += 1;
    }

    /// Records a lost datagram for its calls.
    fn lost(&mut self, frame: &[u8]) {
        let before: usize = self.calls.iter().map(|c| c.losses).sum();
        for data in decode::payloads(frame) {
            let word = |at| Some(u64::from_le_bytes(data.get(at..at + 8)?.try_into().ok()?));
            let (Some(number), Some(place)) = (word(0), word(8)) else { continue };
            // A late copy of an earlier call is ignored.
            if let Some(call) = self.calls.get_mut(place as usize).filter(|c| c.number == number) {
                call.losses += 1;
            }
        }
        let after: usize = self.calls.iter().map(|c| c.losses).sum();
        self.lost_others += u64::from(before == after);
    }
}

fn measure(
    settings: &Settings,
    scheme: Recovery,
    loss_ppm: u32,
    tap: Option<Box<dyn Tap>>,
) -> Result<Seen, ScenarioError> {
    let mut config = uncontrolled(settings.seed, settings.topology());
    config.costs = settings.cpu.costs();
    config.nexus.recovery = scheme;
    config.nexus.slots = 32;
    let mut world = observed(World::new(config)?, tap);
    world.start(SERVER, app::server)?;
    let book = SharedBook::default();
    let (uri, to, in_flight) = (world.uri(SERVER), Rc::clone(&book), settings.in_flight);
    world.start(CLIENT, move |nexus| client(nexus, &uri, in_flight, &to))?;
    app::connect_all(&mut world)?;
    // Round trips are known, and calls made before the session was connected have ended.
    world.run_for(Duration::from_millis(1));
    {
        let mut book = book.borrow_mut();
        (book.by_losses, book.ended) = (Default::default(), 0);
    }
    if loss_ppm > 0 {
        lose(&mut world, settings.seed, loss_ppm, &book);
    }
    let limit = Duration::from_nanos(LIMIT_NS);
    let done = |_: &mut World| {
        let book = book.borrow();
        book.ended >= settings.calls || book.first_error.is_some()
    };
    let over = world.run_until(limit, done);
    let book = book.borrow();
    let silent = (!over).then(|| "not all within ten minutes".to_owned());
    if let Some(first) = book.first_error.clone().or(silent) {
        return Err(ScenarioError::Calls { count: 1, first });
    }
    let session = world.peek(CLIENT, 0).and_then(|rpc| {
        let session = rpc.sessions_from(0).next()?;
        rpc.session_stats(session)?.srtt_ns
    });
    Ok(Seen {
        by_losses: book.by_losses.each_ref().map(Latency::from),
        rtt_ns: session.unwrap_or(0),
        lost_others: book.lost_others,
        digest: world.digest(),
    })
}

/// Makes the switch lose datagrams and record them.
fn lose(world: &mut World, seed: u64, loss_ppm: u32, book: &SharedBook) {
    for link in path::links_of(world, 0) {
        let (book, mut rng) = (Rc::clone(book), Rng::stream(seed, 1_000_000 + u64::from(link.0)));
        world.set_link_rule(
            link,
            Some(Box::new(move |packet, _| {
                if !rng.chance_ppm(loss_ppm) {
                    return None;
                }
                book.borrow_mut().lost(&packet.bytes);
                Some(Fate::Drop)
            })),
        );
    }
}

/// A closed-loop client with a constant number of calls in flight.
fn client(
    nexus: &Nexus,
    server: &str,
    in_flight: u32,
    book: &SharedBook,
) -> Result<Rpc, SetupError> {
    let mut rpc = nexus.endpoint()?;
    let session = rpc.connect(server)?;
    book.borrow_mut().calls = vec![Call::default(); in_flight as usize];
    let to = Rc::clone(book);
    rpc.on_completion(move |cx, tag, done| {
        let (now_ns, mut book, mut request) = (cx.now_ns(), to.borrow_mut(), done.request);
        match done.result {
            Ok(_) => book.end(tag as usize, now_ns),
            Err(error) => {
                book.first_error.get_or_insert_with(|| error.to_string());
                return;
            }
        }
        request[..16].copy_from_slice(&book.begin(tag as usize, now_ns));
        if let Err(rejected) = cx.request(session, app::ECHO, request).tag(tag).send() {
            book.first_error.get_or_insert_with(|| rejected.reason.to_string());
        }
    });
    for tag in 0..u64::from(in_flight) {
        let mut request = app::message(&rpc, BYTES)?;
        let now_ns = rpc.context().now_ns();
        request[..16].copy_from_slice(&book.borrow_mut().begin(tag as usize, now_ns));
        let call = rpc.request(session, app::ECHO, request).tag(tag).send();
        call.map_err(|rejected| rejected.reason.to_string())?;
    }
    Ok(rpc)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::{Spoilt, assert_refused};

    fn small(scheme: Recovery, in_flight: u32) -> Settings {
        let (schemes, loss_ppm) = (vec![scheme], 10_000);
        Settings { schemes, loss_ppm, calls: 2_000, in_flight, ..Settings::default() }
    }

    fn one(settings: &Settings) -> Point {
        run(settings, |_, _| {}).expect("runs").pop().expect("a point")
    }

    #[test]
    fn calls_are_classified_by_their_losses() {
        let p = one(&small(Recovery::GoBackN, 1));
        assert_eq!(p.lossless.count, 2_000);
        assert_eq!(p.unharmed.count + p.lost_one.count + p.lost_more.count, 2_000);
        // Two datagrams a call, each lost with 1 %.
        assert!((20..70).contains(&p.lost_one.count), "{p:?}");
        assert!(p.unharmed.max_ns < 2 * p.lossless.p99_ns, "{p:?}");
        assert!(p.lost_one.min_ns >= 1_000_000, "go-back-N needs its timeout: {p:?}");
    }

    #[test]
    fn by_default_a_lost_packet_costs_a_small_call_three_round_trips() {
        for in_flight in [1, 8] {
            let p = one(&small(Recovery::Selective, in_flight));
            assert!(p.lost_one.count > 20, "{p:?}");
            let window_ns = p.rtt_ns / 4;
            assert!(p.lost_one.max_ns <= p.bound_ns + window_ns, "{p:?}");
        }
    }

    #[test]
    fn the_same_seed_is_the_same_run() {
        let digest = |seed| one(&Settings { seed, ..small(Recovery::GoBackN, 4) }).digest;
        assert_eq!(digest(1), digest(1));
        assert_ne!(digest(1), digest(2));
    }

    #[test]
    fn settings_out_of_range_are_named() {
        let bad: &[Spoilt<Settings>] = &[
            ("loss_ppm", |s| s.loss_ppm = 500_001),
            ("calls", |s| s.calls = 99),
            ("in_flight", |s| s.in_flight = 33),
        ];
        assert_refused(bad, || small(Recovery::GoBackN, 1), |settings| run(settings, |_, _| {}));
    }
}
