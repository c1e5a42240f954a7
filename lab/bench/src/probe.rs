//! Measures the round trip of one cache line between two cores.
//!
//! The measuring side owns a [`Prober`], the other side a [`Responder`] that it polls in
//! its event loop; both share a [`Line`], within a process or across two. A probe:
//!
//! 1. The prober writes a fresh number to `request`.
//! 2. The responder, between two polls of its loop, reads a number that it has not
//!    served, copies it to `ready` and from then on only answers the balls.
//! 3. The prober writes odd values to a ball, the responder answers each with its
//!    successor. After `GROUP` round trips both continue with the next of the [`BALLS`]
//!    lines, each on its own page, cyclically. The prober times each group; the result is
//!    the median, which is robust against an interrupt or an outlier among the pages.
//! 4. The prober writes 0 to `request`; the responder returns to its loop.
//!
//! Every wait has a limit: `ANSWER_LIMIT_NS` for a peer that does not answer, `SERVE_LIMIT_NS` for a
//! responder whose prober has died. Invalid values from a peer make a probe fail or its result wrong;
//! neither side hangs or panics.

use std::sync::atomic::Ordering::{Acquire, Release};
use std::thread::{Scope, ScopedJoinHandle};
use std::time::Duration;

use super::clock::Clock;
use super::line::{BALLS, Line, LineError};
use super::stats;
use courser_kit::affinity::{self, AffinityError};

/// Round trips in a group: enough that two clock reads are about 1 % of its time, and few enough for
/// dozens of groups in a probe of far cores.
const GROUP: u64 = 16;

/// Most groups of a probe.
const MAX_GROUPS: usize = 256;

/// Fewest groups of a valid probe: each line is measured at least once.
const MIN_GROUPS: usize = BALLS;

/// Length of a probe: 1-3 % of a window of 10-40 ms.
const PROBE_NS: u64 = 300_000;

/// Time limit for the other side to join: longer than the 0.3-2 ms for which a host may preempt a
/// core.
const ANSWER_LIMIT_NS: u64 = 5_000_000;

/// Time limit for one answer of a peer that has joined.
const RETURN_LIMIT_NS: u64 = 3_000_000;

/// Longest time of a responder in one probe: longer than a probe with one preemption, and short enough
/// that a dead prober does not delay the event loop noticeably.
const SERVE_LIMIT_NS: u64 = 4_000_000;

const _: () = assert!(SERVE_LIMIT_NS > PROBE_NS + RETURN_LIMIT_NS);

/// Spins between two clock reads.
const SPINS: u32 = 256;

/// Reason why a probe has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// Both sides run on one core.
    #[error("none: only one core")]
    OneCpu,
    /// The other side did not join: it is busy, blocked or has ended.
    #[error("none: the other side did not answer in time")]
    NotAnswered,
    /// The other side joined and then stopped answering.
    #[error("none: the other side stopped answering")]
    Stopped,
}

/// Error of [`between`].
#[derive(Debug, thiserror::Error)]
pub enum BetweenError {
    /// The probe itself failed.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// A thread could not be pinned.
    #[error(transparent)]
    Affinity(#[from] AffinityError),
    /// The shared memory could not be created.
    #[error(transparent)]
    Line(#[from] LineError),
    /// A thread could not be started.
    #[error("cannot start a thread for the probe: {0}; raise the limit (ulimit -u)")]
    Thread(#[source] std::io::Error),
}

/// Measures the current round trip between the two cores. Implemented by [`Prober`] and by test
/// doubles.
pub trait Probe {
    /// Measures the round trip, ns.
    ///
    /// # Errors
    /// [`ProbeError`] if the other side does not answer.
    fn measure(&mut self) -> Result<u64, ProbeError>;
}

/// The measuring side. One per [`Line`], on the thread that runs the windows.
#[derive(Debug)]
pub struct Prober {
    line: Line,
    clock: Clock,
    last_ask: u64,
    groups: Vec<f64>,
}

impl Prober {
    /// A prober on `line`, timed by `clock`.
    pub fn new(line: Line, clock: Clock) -> Self {
        // Numbers continue from the last one, so that a responder of an earlier prober recognises the
        // next probe as new.
        let last_ask = line.ready().load(Acquire);
        Self { line, clock, last_ask, groups: Vec::with_capacity(MAX_GROUPS) }
    }

    /// Spins until `done`, at most `limit_ns`.
    #[inline]
    fn wait(&self, limit_ns: u64, done: impl Fn(&Line) -> bool) -> bool {
        let mut start = None;
        loop {
            // No pause instruction: on some processors it takes as long as the measured round trip.
            for _ in 0..SPINS {
                if done(&self.line) {
                    return true;
                }
            }
            let now = self.clock.now_ns();
            if now.saturating_sub(*start.get_or_insert(now)) >= limit_ns {
                return false;
            }
        }
    }

    fn play(&mut self, request: u64) -> Result<u64, ProbeError> {
        self.groups.clear();
        for group in 0..BALLS {
            self.line.ball(group).store(0, Release);
        }
        self.line.request().store(request, Release);
        if !self.wait(ANSWER_LIMIT_NS, |line| line.ready().load(Acquire) == request) {
            return Err(ProbeError::NotAnswered);
        }
        let begin = self.clock.now_ns();
        let mut group_start = begin;
        let mut serve = 1_u64;
        while self.groups.len() < MAX_GROUPS && group_start.saturating_sub(begin) < PROBE_NS {
            let group = self.groups.len();
            for _ in 0..GROUP {
                self.line.ball(group).store(serve, Release);
                let answer = serve + 1;
                if !self.wait(RETURN_LIMIT_NS, |line| line.ball(group).load(Acquire) == answer) {
                    return Err(ProbeError::Stopped);
                }
                serve += 2;
            }
            let group_end = self.clock.now_ns();
            let elapsed = group_end.saturating_sub(group_start);
            self.groups.push(elapsed as f64 / GROUP as f64);
            group_start = group_end;
        }
        if self.groups.len() < MIN_GROUPS {
            return Err(ProbeError::Stopped);
        }
        let median = stats::median(&mut self.groups).ok_or(ProbeError::Stopped)?;
        Ok(median.round() as u64)
    }
}

impl Probe for Prober {
    fn measure(&mut self) -> Result<u64, ProbeError> {
        // 0 means "no probe" and is skipped.
        self.last_ask = self.last_ask.wrapping_add(1).max(1);
        let result = self.play(self.last_ask);
        self.line.request().store(0, Release);
        result
    }
}

/// The responding side, on the thread whose core is probed.
#[derive(Debug)]
pub struct Responder {
    line: Line,
    clock: Clock,
    served: u64,
}

impl Responder {
    /// A responder on `line`.
    pub fn new(line: Line, clock: Clock) -> Self {
        Self { line, clock, served: 0 }
    }

    /// Takes part in a requested probe; returns whether there was one. Called in the event loop between
    /// polls. Costs one load without a request, and at most 4 ms with one.
    #[inline]
    pub fn serve_if_asked(&mut self) -> bool {
        let request = self.line.requested();
        if request == self.served || request == 0 {
            return false;
        }
        self.serve(request);
        true
    }

    /// Answers the balls until the probe ends or the limit is reached.
    fn serve(&mut self, request: u64) {
        // Also recorded for an aborted probe, so that a dead prober is served only once.
        self.served = request;
        let (mut group, mut answered) = (0, 0);
        self.line.ready().store(request, Release);
        let start = self.clock.now_ns();
        loop {
            for _ in 0..SPINS {
                let ball = self.line.ball(group);
                let value = ball.load(Acquire);
                if value % 2 == 1 {
                    ball.store(value.wrapping_add(1), Release);
                    answered += 1;
                    if answered == GROUP {
                        (group, answered) = (group.wrapping_add(1), 0);
                    }
                }
            }
            let over = self.clock.now_ns().saturating_sub(start) >= SERVE_LIMIT_NS;
            if over || self.line.requested() != request {
                return;
            }
        }
    }
}

/// Round trip between two cores of this machine, ns, measured by two temporary threads.
///
/// # Errors
/// [`ProbeError::OneCpu`] if the cores are the same, or the step that failed.
pub fn between(client: usize, server: usize) -> Result<u64, BetweenError> {
    if client == server {
        return Err(ProbeError::OneCpu.into());
    }
    let line = Line::create()?;
    let clock = Clock::new();
    let mut prober = Prober::new(line.clone(), clock.clone());
    let responder = Responder::new(line.clone(), clock);
    let measure = || -> Result<u64, BetweenError> {
        affinity::pin_current_thread(client)?;
        line.ask_role(ROLE_POLL, START_LIMIT)?;
        Ok(prober.measure()?)
    };
    std::thread::scope(|scope| {
        let other = thread(scope, || respond(responder, &line, server))?;
        let measured = thread(scope, measure).map(|t| t.join());
        // The responder must end before the scope can, also after a failed measurement.
        line.give_role(ROLE_END);
        let responded = other.join();
        match (responded, measured?) {
            (Ok(responded), Ok(measured)) => responded.map_err(Into::into).and(measured),
            (Err(panic), _) | (_, Err(panic)) => std::panic::resume_unwind(panic),
        }
    })
}

/// A [`Probe`] by [`between`], for cores that are idle meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct Between {
    client: usize,
    server: usize,
}

impl Between {
    /// Probes once, so that a core that cannot be taken is an error here and not in each window.
    ///
    /// # Errors
    /// Those of [`between`], except [`ProbeError`]: the next probe may succeed.
    pub fn new(client: usize, server: usize) -> Result<Self, BetweenError> {
        match between(client, server) {
            Ok(_) | Err(BetweenError::Probe(_)) => Ok(Self { client, server }),
            Err(error) => Err(error),
        }
    }
}

impl Probe for Between {
    fn measure(&mut self) -> Result<u64, ProbeError> {
        between(self.client, self.server).map_err(|error| match error {
            BetweenError::Probe(error) => error,
            _ => ProbeError::NotAnswered,
        })
    }
}

/// Roles of the responder thread of [`between`].
const ROLE_POLL: u32 = 1;
const ROLE_END: u32 = 2;

/// Time limit for that thread to start on its core.
const START_LIMIT: Duration = Duration::from_secs(2);

fn thread<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    body: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, BetweenError> {
    std::thread::Builder::new()
        .name("probe".to_owned())
        .spawn_scoped(scope, body)
        .map_err(BetweenError::Thread)
}

fn respond(mut responder: Responder, line: &Line, cpu: usize) -> Result<(), AffinityError> {
    affinity::pin_current_thread(cpu)?;
    line.take_role(ROLE_POLL);
    while line.role() != ROLE_END {
        responder.serve_if_asked();
    }
    Ok(())
}

#[cfg(test)]
mod tests;
