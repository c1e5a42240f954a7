//! `courser ping`: calls a server repeatedly, one call at a time.

use std::cell::RefCell;
use std::io::Write;
use std::rc::Rc;
use std::time::{Duration, Instant};

use courser::{
    CallError, Completion, Config, Context, MsgBuf, Nexus, Rpc, SessionId, SessionState, Uri,
};
use hdrhistogram::Histogram;
use serde_json::{Value, json};

use crate::args::PingArgs;
use courser_bench::clock::Clock;
use courser_bench::rpc::service::ECHO;
use courser_kit::Failure;
use courser_kit::interrupt::Interrupt;
use courser_kit::json;
use courser_kit::out::{self, BOLD, Out};
use courser_kit::units::{show_bytes, show_ns};

/// Longest recorded round trip: an hour.
const MAX_NS: u64 = 3_600_000_000_000;

/// Default time for which an endpoint spins after its last packet.
const SPIN: Duration = Duration::from_micros(100);

/// Error of a call whose response is not an echo.
const WRONG: &str = "the response differs from the request: the server is another program";

/// Outcome of the current call.
type Answer = Result<Duration, String>;

/// State that the continuations share.
struct Shared {
    /// The bytes of every request and of every correct response.
    pattern: Vec<u8>,
    /// Number of the current call, and its outcome.
    waiting_for: u64,
    answer: Option<Answer>,
    /// Responses after their timeout.
    late: u64,
    /// The buffer of the last request.
    spare: Option<MsgBuf>,
}

/// Counters for the summary; the size does not depend on the number of calls.
struct Tally {
    sent: u64,
    answered: u64,
    round_trips: Histogram<u64>,
}

struct Pinger {
    rpc: Rpc,
    session: SessionId,
    shared: Rc<RefCell<Shared>>,
    tally: Tally,
}

/// Makes calls until the count is reached or a signal arrives.
///
/// # Errors
/// The server cannot be reached, or no call at all was answered.
pub(crate) fn run(args: &PingArgs) -> Result<(), Failure> {
    json::check_target(args.json.as_deref())?;
    let clock = Clock::new();
    let mut pinger = Pinger::connect(args)?;
    let interrupt = Interrupt::stop(vec![pinger.rpc.handle()])?;
    let mut out = out::stdout();
    let to_stdout = args.json.as_deref().is_some_and(json::is_stdout);
    let lines = !args.quiet && !to_stdout;
    let lost_peer = pinger.calls(args, &interrupt, lines.then_some(&mut out))?;
    if !to_stdout {
        pinger.summary(args, &mut out)?;
    }
    if let Some(target) = &args.json {
        json::write(target, &pinger.report(args, &clock))?;
    }
    match (lost_peer, pinger.tally.answered, pinger.tally.sent) {
        (Some(why), ..) => Err(Failure::Runtime(why)),
        (None, 0, 1..) => Err(Failure::Runtime(format!(
            "no call was answered; do firewalls let UDP to and from {} through?",
            args.uri
        ))),
        _ => Ok(()),
    }
}

impl Pinger {
    fn connect(args: &PingArgs) -> Result<Self, Failure> {
        let uri: Uri = args.uri.parse().map_err(|e| Failure::Usage(format!("{e}")))?;
        let config = Config {
            control: args.control,
            recovery: args.recovery,
            packing: args.packing,
            ..Config::default()
        };
        let bind = args.bind.clone().unwrap_or_else(|| uri.bind_for_client().to_string());
        let mut rpc = Nexus::bind_with(&bind, config)?.endpoint()?;
        rpc.warnings().iter().for_each(|warning| out::warn(warning));
        let session = rpc.connect(&args.uri)?;
        rpc.wait_connected(session)?;
        let shared = Shared {
            pattern: (0..args.size).map(|at| (at % 251) as u8).collect(),
            waiting_for: 0,
            answer: None,
            late: 0,
            spare: None,
        };
        let round_trips = Histogram::new_with_bounds(1, MAX_NS, 3)
            .map_err(|error| Failure::Runtime(error.to_string()))?;
        let tally = Tally { sent: 0, answered: 0, round_trips };
        Ok(Self { rpc, session, shared: Rc::new(RefCell::new(shared)), tally })
    }

    /// Makes the calls; returns the reason if the session has ended.
    fn calls(
        &mut self,
        args: &PingArgs,
        interrupt: &Interrupt,
        mut out: Option<&mut Out>,
    ) -> Result<Option<String>, Failure> {
        let mut due = Instant::now();
        while args.count == 0 || self.tally.sent < args.count {
            self.run_until(due, interrupt)?;
            if interrupt.is_set() {
                break;
            }
            if let Some(why) = self.gone(args) {
                return Ok(Some(why));
            }
            let number = self.tally.sent;
            due = Instant::now() + args.interval;
            self.send(number)?;
            let answer = self.wait(Instant::now() + args.timeout, interrupt)?;
            let text = match answer {
                Some(Ok(time)) => {
                    let ns = u64::try_from(time.as_nanos()).unwrap_or(MAX_NS).clamp(1, MAX_NS);
                    self.tally.answered += 1;
                    self.tally.round_trips.saturating_record(ns);
                    format!("time={}", show_ns(ns as f64))
                }
                Some(Err(why)) => format!("lost: {why}"),
                // An interrupted call is not counted.
                None if interrupt.is_set() => break,
                None => format!("no response within {}", show_ns(args.timeout.as_nanos() as f64)),
            };
            self.tally.sent += 1;
            if let Some(out) = &mut out {
                writeln!(out, "{} from {}: seq={number} {text}", size(args), args.uri)?;
            }
            if let Some(why) = self.gone(args) {
                return Ok(Some(why));
            }
        }
        Ok(None)
    }

    /// The reason if the session has ended, which can happen during a call and between calls.
    fn gone(&self, args: &PingArgs) -> Option<String> {
        if self.rpc.session_state(self.session) != SessionState::Gone {
            return None;
        }
        let why = self.rpc.session_error(self.session).map_or_else(String::new, |e| e.to_string());
        Some(format!("{} is gone: {why}", args.uri))
    }

    fn send(&mut self, number: u64) -> Result<(), Failure> {
        let refused = |why: String| Failure::Runtime(format!("the call was rejected: {why}"));
        let request = {
            let mut shared = self.shared.borrow_mut();
            shared.waiting_for = number;
            shared.answer = None;
            let mut request = match shared.spare.take() {
                Some(spare) => spare,
                None => self.rpc.alloc(shared.pattern.len()).map_err(|e| refused(e.to_string()))?,
            };
            request.copy_from_slice(&shared.pattern);
            request
        };
        let (shared, started) = (self.shared.clone(), Instant::now());
        let done = move |cx: &mut Context<'_>, done: Completion<'_>| {
            ended(&mut shared.borrow_mut(), number, started, done);
            cx.stop();
        };
        let call = self.rpc.call(self.session, ECHO, request, done);
        call.map(|_| ()).map_err(|error| refused(error.reason.to_string()))
    }

    /// Waits for the outcome of the call until `end`.
    fn wait(&mut self, end: Instant, interrupt: &Interrupt) -> Result<Option<Answer>, Failure> {
        loop {
            let answer = self.shared.borrow_mut().answer.take();
            let left = end.saturating_duration_since(Instant::now());
            if answer.is_some() || left.is_zero() || interrupt.is_set() {
                return Ok(answer);
            }
            self.rpc.run_for(left).map_err(|error| Failure::Runtime(error.to_string()))?;
        }
    }

    /// Runs the event loop until `end`. Late responses and signals end a run early.
    fn run_until(&mut self, end: Instant, interrupt: &Interrupt) -> Result<(), Failure> {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() || interrupt.is_set() {
                return Ok(());
            }
            self.rpc.run_for(left).map_err(|error| Failure::Runtime(error.to_string()))?;
        }
    }

    fn summary(&self, args: &PingArgs, out: &mut Out) -> Result<(), Failure> {
        let Tally { sent, answered, .. } = self.tally;
        if !args.quiet {
            writeln!(out)?;
        }
        let late = match self.shared.borrow().late {
            0 => String::new(),
            late => format!(", {late} responses too late"),
        };
        let calls = if sent == 1 { "call" } else { "calls" };
        writeln!(
            out,
            "{BOLD}{}{BOLD:#}: {sent} {calls} of {}, {answered} answered, {:.3$} % lost{late}",
            args.uri,
            size(args),
            self.loss() * 100.0,
            usize::from(answered != sent),
        )?;
        if answered > 0 {
            let times = &self.tally.round_trips;
            let shown = |ns: u64| show_ns(ns as f64);
            writeln!(
                out,
                "round trip: min {}, p50 {}, p99 {}, max {}",
                shown(times.min()),
                shown(times.value_at_quantile(0.5)),
                shown(times.value_at_quantile(0.99)),
                shown(times.max()),
            )?;
            if sleeps(args) {
                writeln!(
                    out,
                    "Both sides sleep between calls: waking them is part of each round trip.\n\
                     Without it: courser bench latency --connect {}",
                    args.uri
                )?;
            }
        }
        Ok(out.flush()?)
    }

    fn loss(&self) -> f64 {
        let Tally { sent, answered, .. } = self.tally;
        if sent == 0 { 0.0 } else { (sent - answered) as f64 / sent as f64 }
    }

    /// The result in the format of benchmark reports. Threads are not pinned and there are no probes,
    /// so there is one untagged result.
    fn report(&self, args: &PingArgs, clock: &Clock) -> Value {
        let Tally { sent, answered, round_trips: times } = &self.tally;
        let at = |ns: u64| (*answered > 0).then_some(ns);
        json!({
            "bench": "ping",
            "transport": args.uri.parse().map_or_else(|_| "udp".to_owned(), |uri: Uri| uri.scheme),
            "config": {
                "uri": args.uri,
                "count": args.count,
                "interval_ns": args.interval.as_nanos() as u64,
                "size": args.size,
                "timeout_ns": args.timeout.as_nanos() as u64,
                "control": self.rpc.control().name(),
                // The negotiated scheme, not the requested one.
                "recovery": self.rpc.session_stats(self.session).map(|s| s.recovery.name()),
            },
            "results": [{
                "placement": "untagged",
                "windows": 1,
                "sent": sent,
                "answered": answered,
                "late": self.shared.borrow().late,
                "loss": self.loss(),
                "latency_min_ns": at(times.min()),
                "latency_p50_ns": at(times.value_at_quantile(0.5)),
                "latency_p99_ns": at(times.value_at_quantile(0.99)),
                "latency_max_ns": at(times.max()),
                "wake_up_included": sleeps(args),
            }],
            "environment": json::environment(clock.error_ppm()),
        })
    }
}

/// Records the outcome of a call.
fn ended(shared: &mut Shared, number: u64, started: Instant, done: Completion<'_>) {
    let time = started.elapsed();
    let answer = match done.result {
        Ok(response) if *response == *shared.pattern => Ok(time),
        Ok(_) => Err(WRONG.to_owned()),
        Err(error) => Err(CallError::to_string(&error)),
    };
    shared.spare = Some(done.request);
    if number == shared.waiting_for {
        shared.answer = Some(answer);
    } else {
        shared.late += u64::from(answer.is_ok());
    }
}

/// Returns whether the endpoints sleep between two calls instead of spinning.
fn sleeps(args: &PingArgs) -> bool {
    args.interval > SPIN
}

fn size(args: &PingArgs) -> String {
    show_bytes(args.size as u64)
}
