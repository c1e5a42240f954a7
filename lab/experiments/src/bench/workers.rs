//! `courser-lab bench workers`: the effect of long worker handlers on dispatch handlers (E11, E12).
//!
//! One thread polls the client and the server endpoint; the worker thread has the other core. Windows
//! of 32-byte dispatch calls, one at a time, alternate: in the first window of a pair the worker is
//! idle (reported as raw), in the second it always executes a [`BURN`] call. Dispatch calls do not leave
//! their core, so the placement of the two cores has no influence and there are no probes.

use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::rc::Rc;
use std::time::{Duration, Instant};

use courser::{CallError, Config, Nexus, Rpc, SessionId, SessionState, Work};
use serde_json::json;

use courser_bench::clock::Clock;
use courser_bench::probe::Prober;
use courser_bench::report::{self, Metric, Report};
use courser_bench::rpc::error::BenchError;
use courser_bench::rpc::run::{Pinned, object};
use courser_bench::rpc::service::ECHO;
use courser_bench::window::{Plan, Progress, Runner, Sample, Workload, WorkloadError};
use courser_kit::affinity::{self, Cores};
use courser_kit::environment::Environment;
use courser_kit::latency::Latency;

/// Request type that keeps a worker busy for a number of microseconds, `u32`, little-endian. The
/// response is empty.
pub(super) const BURN: u16 = 3;

/// Duration of a worker handler.
const HANDLER: Duration = Duration::from_millis(4);

/// Bytes of a dispatch call, as in the latency benchmark.
const SIZE: usize = 32;

/// Both endpoints, on this thread.
pub(super) struct Both {
    pub(super) client: Rpc,
    pub(super) server: Rpc,
    pub(super) nexus: Nexus,
    pub(super) sessions: Vec<SessionId>,
}

impl Both {
    /// Opens a server with one worker on the other core, and a client with `sessions` sessions.
    /// `on_start` is called with each worker request before the handler begins.
    pub(super) fn new(
        cores: &Cores,
        sessions: usize,
        on_start: impl Fn(&Work) + Send + Sync + 'static,
    ) -> Result<Self, BenchError> {
        let config = Config { workers: 1, ..Config::default() };
        let nexus = Nexus::bind_with("udp://127.0.0.1:0", config)?;
        let mut server = nexus.endpoint()?;
        server.on(ECHO, |cx, request| cx.reply(request));
        let core = cores.server;
        server.on_worker(BURN, move |work: Work| {
            pin_once(core);
            on_start(&work);
            let us = work.first_chunk().map_or(0, |us| u32::from_le_bytes(*us));
            let end = Instant::now() + Duration::from_micros(us.into());
            while Instant::now() < end {
                std::hint::spin_loop();
            }
            work.reply("");
        })?;
        let client = Nexus::bind("udp://127.0.0.1:0")?.endpoint()?;
        let mut both = Both { client, server, nexus, sessions: Vec::new() };
        let uri = both.nexus.local_uri();
        let refused = |source| BenchError::Connect { uri: uri.clone(), source };
        for _ in 0..sessions {
            let session = both.client.connect(&uri).map_err(refused)?;
            while both.client.session_state(session) == SessionState::Connecting {
                both.poll();
                std::thread::yield_now();
            }
            if let Some(error) = both.client.session_error(session) {
                return Err(refused(error));
            }
            both.sessions.push(session);
        }
        Ok(both)
    }

    /// One pass of both endpoints.
    pub(super) fn poll(&mut self) {
        self.client.poll();
        self.server.poll();
    }
}

/// Pins the worker's thread to its core at its first call.
fn pin_once(core: usize) {
    thread_local!(static PINNED: Cell<bool> = const { Cell::new(false) });
    if !PINNED.replace(true) {
        // Without permission the thread stays unpinned.
        let _ = affinity::pin_current_thread(core);
    }
}

/// Workload of dispatch calls, with or without worker calls at the same time.
struct Beside {
    both: Rc<RefCell<Both>>,
    clock: Clock,
    with_work: bool,
    /// Worker calls in flight.
    burning: Rc<Cell<u32>>,
    /// Worker calls over all windows.
    burned: Rc<Cell<u64>>,
    failed: Rc<Cell<Option<CallError>>>,
    latency: Latency,
}

impl Beside {
    fn burn(&self, both: &mut Both) -> Result<(), WorkloadError> {
        let mut request = both.client.alloc(4)?;
        request.copy_from_slice(&(HANDLER.as_micros() as u32).to_le_bytes());
        let (burning, burned) = (self.burning.clone(), self.burned.clone());
        let failed = self.failed.clone();
        burning.set(burning.get() + 1);
        let session = both.sessions[1];
        both.client.call(session, BURN, request, move |_, done| {
            burning.set(burning.get() - 1);
            match done.result {
                Ok(_) => burned.set(burned.get() + 1),
                Err(error) => failed.set(Some(error)),
            }
        })?;
        Ok(())
    }

    fn dispatch(&self, both: &mut Both) -> Result<(), WorkloadError> {
        let ended = Rc::new(Cell::new(None));
        let seen = ended.clone();
        let request = both.client.alloc(SIZE)?;
        let session = both.sessions[0];
        both.client.call(session, ECHO, request, move |_, done| {
            seen.set(Some(done.result.map(|answer| answer.len() == SIZE)));
        })?;
        loop {
            both.poll();
            match ended.get() {
                None => {}
                Some(Ok(true)) => return Ok(()),
                Some(Ok(false)) => return Err("a wrong response".into()),
                Some(Err(error)) => return Err(error.into()),
            }
        }
    }
}

impl Workload for Beside {
    fn name(&self) -> &str {
        if self.with_work { "with workers" } else { "without workers" }
    }

    fn run(&mut self, duration: Duration) -> Result<Sample, WorkloadError> {
        let both = Rc::clone(&self.both);
        let mut both = both.borrow_mut();
        let start_ns = self.clock.now_ns();
        let end_ns = start_ns + u64::try_from(duration.as_nanos())?;
        let mut operations = 0;
        loop {
            // Two, so that the next call is queued when the worker ends the first.
            while self.with_work && self.burning.get() < 2 {
                self.burn(&mut both)?;
            }
            let before_ns = self.clock.now_ns();
            if before_ns >= end_ns {
                break;
            }
            self.dispatch(&mut both)?;
            self.latency.record(self.clock.now_ns() - before_ns);
            operations += 1;
        }
        let elapsed_ns = self.clock.now_ns() - start_ns;
        while self.burning.get() > 0 {
            both.poll();
        }
        if let Some(error) = self.failed.take() {
            return Err(error.into());
        }
        let latency = self.latency.take();
        Ok(Sample {
            operations,
            bytes: operations * SIZE as u64,
            elapsed_ns,
            latency,
            ..Sample::default()
        })
    }
}

/// Runs the benchmark; the calling thread is pinned meanwhile.
///
/// # Errors
/// [`BenchError`], in one line each.
pub(crate) fn run(plan: Plan, progress: &mut dyn FnMut(&Progress)) -> Result<Report, BenchError> {
    let clock = Clock::new();
    let cores = affinity::choose()?;
    let both = Rc::new(RefCell::new(Both::new(&cores, 2, |_| {})?));
    let _pinned = Pinned::to(cores.client)?;
    let (burning, burned) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let window = |with_work| Beside {
        both: both.clone(),
        clock: clock.clone(),
        with_work,
        burning: burning.clone(),
        burned: burned.clone(),
        failed: Rc::default(),
        latency: Latency::new(),
    };
    let (mut without, mut with) = (window(false), window(true));
    let outcome =
        Runner::<Prober>::new(plan, None)?.run(&mut with, Some(&mut without), &mut |now| {
            progress(now);
            ControlFlow::Continue(())
        })?;
    let config = object(json!({
        "size": SIZE,
        "handler_us": HANDLER.as_micros() as u64,
        "workers": 1,
        "worker_calls_in_flight": 2,
        "worker_calls": burned.get(),
        "raw": "the same dispatch calls while the worker is idle",
        "window_ms": plan.window.as_secs_f64() * 1e3,
        "pairs_wanted": plan.pairs,
        "max_time_s": plan.max_time.as_secs_f64(),
        "cores_warning": cores.warning,
    }));
    Ok(Report {
        bench: "workers".to_owned(),
        transport: "udp".to_owned(),
        config,
        results: report::results(&outcome, Metric::Latency),
        environment: Environment::collect(clock.error_ppm(), &cores),
    })
}
