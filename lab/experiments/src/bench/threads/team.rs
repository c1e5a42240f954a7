//! Teams of threads that call each other during their windows and sleep otherwise.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use courser::{Nexus, Rpc};

use courser_bench::clock::Clock;
use courser_bench::rpc::caller::{Caller, Loaded};
use courser_bench::rpc::error::BenchError;
use courser_bench::rpc::figures;
use courser_bench::rpc::load::Load;
use courser_bench::rpc::raw::Other;
use courser_bench::rpc::service;
use courser_bench::rpc::side::{Over, Variant, open_on};
use courser_bench::window::{Sample, WorkloadError};
use courser_kit::affinity;

/// Time limit for the start of a team, and for the end of a window beyond its length.
const LIMIT: Duration = Duration::from_secs(30);

/// Memory of one thread of a team.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cost {
    /// Increase of the process's resident memory, bytes.
    pub(super) resident: f64,
    /// Message memory that its endpoint has mapped, bytes.
    pub(super) arena: u64,
}

/// State that the threads of a team share.
struct Shared {
    threads: usize,
    /// By thread: the number of the endpoint that others call.
    endpoints: Vec<AtomicU16>,
    /// Arrivals at the barrier [`Shared::meet`], counted over all rounds.
    arrived: AtomicUsize,
    /// Calls and time of the last window, by thread.
    calls: Vec<AtomicU64>,
    elapsed_ns: Vec<AtomicU64>,
    arena: AtomicU64,
    ends: AtomicBool,
    order: Mutex<Order>,
    changed: Condvar,
}

/// The current window of a team.
#[derive(Default)]
struct Order {
    /// Number and length of the last requested window.
    window: u64,
    duration_ns: u64,
    /// Threads that have ended the window, or are ready for the first one.
    done: usize,
    failed: Option<String>,
}

impl Shared {
    fn order(&self) -> MutexGuard<'_, Order> {
        // The state is consistent wherever a holder of the lock could panic.
        self.order.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Barrier: polls until all threads have arrived; false if the team ends.
    fn meet(&self, caller: &mut Caller) -> bool {
        let before = self.arrived.fetch_add(1, Ordering::AcqRel);
        let all = (before / self.threads + 1) * self.threads;
        while self.arrived.load(Ordering::Acquire) < all {
            if self.ends.load(Ordering::Relaxed) {
                return false;
            }
            caller.pass();
        }
        true
    }

    /// Reports that this thread is done and sleeps until the next window. Returns its length, or `None`
    /// if the team ends.
    fn next(&self, last: u64) -> Option<u64> {
        let mut order = self.order();
        order.done += 1;
        self.changed.notify_all();
        while order.window == last && !self.ends.load(Ordering::Relaxed) {
            order = self.changed.wait(order).unwrap_or_else(PoisonError::into_inner);
        }
        (!self.ends.load(Ordering::Relaxed)).then_some(order.duration_ns)
    }

    /// Ends the team because of an error.
    fn fail(&self, error: &BenchError) {
        self.order().failed.get_or_insert_with(|| error.to_string());
        self.end();
    }

    fn end(&self) {
        self.ends.store(true, Ordering::Relaxed);
        // A thread between its check and its wait holds the lock, so it gets the notification.
        drop(self.order());
        self.changed.notify_all();
    }

    /// Waits until all threads have ended the window.
    fn wait(&self, limit: Duration) -> Result<(), BenchError> {
        let end = Instant::now() + limit;
        let mut order = self.order();
        loop {
            if let Some(failed) = &order.failed {
                return Err(BenchError::Raw(failed.clone()));
            }
            if order.done >= self.threads {
                return Ok(());
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(BenchError::Raw("the threads do not answer".to_owned()));
            }
            order =
                self.changed.wait_timeout(order, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The start parameters of a thread.
struct Member {
    number: usize,
    core: usize,
    yields: bool,
    over: Over,
    network: String,
    nexus: Arc<Nexus>,
    load: Load,
    clock: Clock,
    shared: Arc<Shared>,
}

/// The running threads; they end when this is dropped.
pub(super) struct Team {
    shared: Arc<Shared>,
    handles: Vec<JoinHandle<()>>,
    resident: f64,
}

impl Team {
    /// Starts a thread on each of `cores` and connects them.
    ///
    /// # Errors
    /// A thread cannot be started or connected.
    pub(super) fn start(
        over: Over,
        cores: &[usize],
        load: &Load,
        clock: &Clock,
    ) -> Result<Self, BenchError> {
        let threads = cores.len();
        let uri = format!("{}://127.0.0.1:0", over.name());
        let nexus = Arc::new(Nexus::bind_with(&uri, Variant::default().config())?);
        let shared = Arc::new(Shared {
            threads,
            endpoints: (0..threads).map(|_| AtomicU16::new(0)).collect(),
            arrived: AtomicUsize::new(0),
            calls: (0..threads).map(|_| AtomicU64::new(0)).collect(),
            elapsed_ns: (0..threads).map(|_| AtomicU64::new(0)).collect(),
            arena: AtomicU64::new(0),
            ends: AtomicBool::new(false),
            order: Mutex::default(),
            changed: Condvar::new(),
        });
        let before = figures::resident_bytes();
        let mut team = Self { shared, handles: Vec::new(), resident: 0.0 };
        for (number, &core) in cores.iter().enumerate() {
            let member = Member {
                number,
                core,
                // Threads that share a core must yield.
                yields: affinity::usable_cpus()?.len() < threads,
                over,
                network: format!("team-{}", nexus.port()),
                nexus: Arc::clone(&nexus),
                load: load.clone(),
                clock: clock.clone(),
                shared: Arc::clone(&team.shared),
            };
            let named = std::thread::Builder::new().name(format!("bench-{number}"));
            let body = move || {
                if let Err(error) = member.main() {
                    member.shared.fail(&error);
                }
            };
            team.handles.push(named.spawn(body).map_err(BenchError::Spawn)?);
        }
        team.shared.wait(LIMIT)?;
        let after = figures::resident_bytes();
        if let (Some(before), Some(after)) = (before, after) {
            team.resident = after.saturating_sub(before) as f64 / threads as f64;
        }
        Ok(team)
    }

    /// Number of threads.
    pub(super) fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Memory of each connected thread.
    pub(super) fn cost(&self) -> Cost {
        let arena = self.shared.arena.load(Ordering::Relaxed) / self.shared.threads as u64;
        Cost { resident: self.resident, arena }
    }

    /// Runs a window in which all threads call each other; returns the sum of their calls.
    ///
    /// # Errors
    /// A call failed.
    pub(super) fn window(&mut self, duration: Duration) -> Result<Sample, WorkloadError> {
        {
            let mut order = self.shared.order();
            order.window += 1;
            order.done = 0;
            order.duration_ns = u64::try_from(duration.as_nanos())?;
        }
        self.shared.changed.notify_all();
        self.shared.wait(duration + LIMIT)?;
        let of = |all: &[AtomicU64]| -> Vec<u64> {
            all.iter().map(|one| one.load(Ordering::Relaxed)).collect()
        };
        let (calls, elapsed) = (of(&self.shared.calls), of(&self.shared.elapsed_ns));
        let elapsed_ns = elapsed.iter().copied().max().unwrap_or(0);
        // Calls of each thread, scaled from its own time to the longest time.
        let scaled = calls
            .iter()
            .zip(&elapsed)
            .map(|(&calls, &own)| calls as f64 * elapsed_ns as f64 / own.max(1) as f64);
        let operations = scaled.sum::<f64>().round() as u64;
        Ok(Sample { operations, elapsed_ns, ..Sample::default() })
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.end();
        for handle in self.handles.drain(..) {
            // A panic has printed its message already.
            let _ = handle.join();
        }
    }
}

impl Member {
    fn endpoint(&self) -> Result<Rpc, BenchError> {
        let mut rpc = open_on(self.over, &self.network, &self.nexus, None)?;
        service::register(&mut rpc);
        Ok(rpc)
    }

    /// The thread: connects, then runs each requested window.
    fn main(&self) -> Result<(), BenchError> {
        affinity::pin_current_thread(self.core)?;
        let (shared, other) = (&self.shared, Other { line: None, yields: self.yields });
        let rpc = self.endpoint()?;
        shared.endpoints[self.number].store(rpc.index(), Ordering::Release);
        let mut caller = Caller::new(rpc, self.clock.clone(), other);
        if shared.threads == 1 {
            let server = self.endpoint()?;
            shared.endpoints[0].store(server.index(), Ordering::Release);
            caller.poll_besides(server);
        }
        if !shared.meet(&mut caller) {
            return Ok(());
        }
        self.connect(&mut caller)?;
        let mut loaded = Loaded::new(self.load.clone(), caller.rpc())?;
        if !shared.meet(&mut caller) {
            return Ok(());
        }
        let mapped = caller.rpc().memory().mapped_bytes as u64;
        shared.arena.fetch_add(mapped, Ordering::Relaxed);
        let mut window = 0;
        while let Some(duration_ns) = shared.next(window) {
            window += 1;
            if !shared.meet(&mut caller) {
                break;
            }
            let ran = caller.run(duration_ns, &mut loaded);
            let ran = ran.map_err(|error| BenchError::Raw(error.to_string()))?;
            shared.calls[self.number].store(ran.calls, Ordering::Relaxed);
            shared.elapsed_ns[self.number].store(ran.elapsed_ns, Ordering::Relaxed);
            // Other threads may still have open calls to this one.
            if !shared.meet(&mut caller) {
                break;
            }
        }
        Ok(())
    }

    /// Connects the sessions of the load to all other threads.
    fn connect(&self, caller: &mut Caller) -> Result<(), BenchError> {
        let shared = &self.shared;
        let alone = shared.threads == 1;
        let others = (0..shared.threads).filter(|&other| alone || other != self.number);
        let others: Vec<u16> =
            others.map(|other| shared.endpoints[other].load(Ordering::Acquire)).collect();
        for session in 0..self.load.sessions {
            let to = others[session % others.len()];
            caller.connect(&format!("{}/{to}", self.nexus.local_uri()), session + 1)?;
        }
        Ok(())
    }
}
