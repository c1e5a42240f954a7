//! The workload of RPCs.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use super::caller::{Caller, Loaded};
use super::error::BenchError;
use super::load::{CallsError, Load};
use super::raw::{Other, Silent};
use super::role;
use crate::clock::Clock;
use crate::latency::Pool;
use crate::placement::{Placement, Tag};
use crate::report::{PlacementResult, Unit};
use crate::window::{Sample, Workload, WorkloadError};
use courser_kit::latency::Tail;

/// Time limit for the other side to begin or end its own calls. The first time includes connecting its
/// sessions.
const TURN_LIMIT_NS: u64 = 30_000_000_000;

/// An endpoint that several workloads use alternately.
pub type SharedCaller = Rc<RefCell<Caller>>;

/// Calls of one load.
pub struct Calls {
    caller: SharedCaller,
    loaded: Loaded,
    clock: Clock,
    other: Other,
    /// The number of the other side's endpoint.
    variant: u16,
    /// The load of the other side, if it also makes calls.
    back: Option<u16>,
    pool: Option<Pool>,
    waits: Option<Waits>,
}

/// Number of times that sessions waited for shared credits.
#[derive(Default)]
struct Waits {
    /// In the last window.
    last: Counted,
    /// In the windows of each placement.
    near: Counted,
    far: Counted,
    untagged: Counted,
}

#[derive(Clone, Copy, Default)]
struct Counted {
    waits: u64,
    calls: u64,
}

impl Waits {
    /// Adds the last window to the counters of its placement.
    fn tagged(&mut self, tag: Tag) {
        let at = match tag {
            Tag::At(Placement::Near) => &mut self.near,
            Tag::At(Placement::Far) => &mut self.far,
            _ => &mut self.untagged,
        };
        at.waits += self.last.waits;
        at.calls += self.last.calls;
    }

    fn add_counters(&self, result: &mut PlacementResult) {
        let of = match result.placement() {
            Some(Placement::Near) => self.near,
            Some(Placement::Far) => self.far,
            None => self.untagged,
        };
        let note = "for credits that sessions share, in all windows";
        result.add_value("pool_waits", "pool waits", Unit::Count, of.waits as f64, note);
        result.extra.insert("pool_waits".to_owned(), of.waits.into()); // not as a fraction
        if of.calls > 0 {
            let (label, each) = ("pool waits a call", of.waits as f64 / of.calls as f64);
            result.add_value("pool_waits_per_call", label, Unit::Plain, each, "");
        }
    }
}

impl Calls {
    /// Makes the requests. The sessions must be connected.
    ///
    /// # Errors
    /// No memory.
    pub fn new(
        caller: &SharedCaller,
        load: Load,
        variant: u16,
        clock: &Clock,
        other: &Other,
    ) -> Result<Self, BenchError> {
        let pool = load.timed.then(Pool::new);
        let loaded = Loaded::new(load, caller.borrow().rpc())?;
        let (caller, clock, other) = (Rc::clone(caller), clock.clone(), other.clone());
        Ok(Self { caller, loaded, clock, other, variant, back: None, pool, waits: None })
    }

    /// Keeps no latencies beyond those of a window, which saves memory in long series.
    pub fn without_tail(self) -> Self {
        Self { pool: None, ..self }
    }

    /// Adds the number of waits for shared credits to the results.
    pub fn with_waits(mut self) -> Self {
        self.waits = Some(Waits::default());
        self
    }

    fn pool_waits(&self) -> u64 {
        self.caller.borrow().rpc().stats().pool_waits
    }

    /// Lets the other side make the calls of its load `back` at the same time. A window then counts the
    /// mean of both sides' rates.
    pub fn both_ways(mut self, back: u16) -> Self {
        self.back = Some(back);
        self
    }

    /// Changes the role of the other side, and serves its calls until it has changed.
    fn turn(&self, caller: &mut Caller, role: u32) -> Result<(), WorkloadError> {
        let Some(line) = &self.other.line else { return Ok(()) };
        line.give_role(role);
        let start_ns = self.clock.now_ns();
        while !line.has_role(role) {
            caller.pass();
            if self.clock.now_ns() - start_ns > TURN_LIMIT_NS {
                return Err(Silent.into());
            }
        }
        Ok(())
    }

    /// A window in which only this side makes calls.
    fn run_alone(&mut self, duration_ns: u64) -> Result<Sample, WorkloadError> {
        let mut caller = self.caller.borrow_mut();
        let ran = caller.run(duration_ns, &mut self.loaded)?;
        let latency = caller.with_latency(|latency| latency.take());
        let bytes = ran.calls * self.loaded.load.size as u64;
        let (operations, elapsed_ns) = (ran.calls, ran.elapsed_ns);
        Ok(Sample { operations, bytes, elapsed_ns, latency, ..Sample::default() })
    }

    /// A window in which both sides make calls.
    fn run_both(&mut self, duration_ns: u64, back: u16) -> Result<Sample, WorkloadError> {
        let caller = Rc::clone(&self.caller);
        let mut caller = caller.borrow_mut();
        self.turn(&mut caller, role::call(back))?;
        let ran = caller.run(duration_ns, &mut self.loaded)?;
        self.turn(&mut caller, role::serve(self.variant))?;
        let (calls, elapsed_ns) = self.other.line.as_ref().map_or((0, 0), |line| line.reported());
        if elapsed_ns == 0 || calls == 0 {
            return Err(CallsError::Stall(0).into());
        }
        // Calls of the other side, scaled to the time of this side.
        let theirs = u128::from(calls) * u128::from(ran.elapsed_ns) / u128::from(elapsed_ns);
        let operations = u64::midpoint(ran.calls, u64::try_from(theirs)?);
        let bytes = operations * self.loaded.load.size as u64;
        Ok(Sample { operations, bytes, elapsed_ns: ran.elapsed_ns, ..Sample::default() })
    }
}

impl Workload for Calls {
    fn name(&self) -> &str {
        "rpc"
    }

    fn prepare(&mut self) -> Result<(), WorkloadError> {
        self.other.request(role::serve(self.variant))
    }

    fn run(&mut self, duration: Duration) -> Result<Sample, WorkloadError> {
        let duration_ns = u64::try_from(duration.as_nanos())?;
        let before = self.pool_waits();
        let sample = match self.back {
            Some(back) => self.run_both(duration_ns, back)?,
            None => self.run_alone(duration_ns)?,
        };
        let waits = self.pool_waits() - before;
        if let Some(counted) = &mut self.waits {
            counted.last = Counted { waits, calls: sample.operations };
        }
        Ok(sample)
    }

    fn add_counters(&self, result: &mut PlacementResult) {
        if let Some(waits) = &self.waits {
            waits.add_counters(result);
        }
    }

    fn tagged(&mut self, tag: Tag) {
        if let Some(waits) = &mut self.waits {
            waits.tagged(tag);
        }
        if let Some(pool) = &mut self.pool {
            self.caller.borrow_mut().with_latency(|latency| pool.add(tag, latency));
        }
    }

    fn tail(&mut self, placement: Option<Placement>) -> Option<Tail> {
        self.pool.as_mut()?.tail(placement)
    }
}
