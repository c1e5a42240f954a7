//! An endpoint of clients, which the threads of the callers drive (ADR 54).
//!
//! ```text
//! a caller's thread                                        courser-client-N
//! submit: call, pass; the task yields       <-- doze -->   looks now and then whether callers drive
//! drive: pass, pass, ... answer: ready
//!        or no answer in time: leaves       -- kick --->   sleeps on the descriptor
//!                                           <-- waker ---  passes, answer
//! ```
//!
//! One thread at a time drives: the flag in the mailbox decides which ([`Mailbox::try_drive`]). A
//! thread that finds another one there submits to the inbox, and the other one takes that before it
//! leaves. Wakers run after that.
//!
//! A thread that leaves calls in flight behind has a successor: its own task, which is polled again,
//! another task with a call, or the endpoint's thread.
//!
//! [`Mailbox::try_drive`]: crate::control::mailbox::Mailbox::try_drive

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use courser_buf::Arena;
use rustix::event::{EventfdFlags, eventfd};

use super::engine::{Engine, Watch, wake};
use super::inbox::{Inbox, Submitted};
use super::polling::{Counters, PollingStats};
use crate::channel::call::Call;
use crate::channel::link::Open;
use crate::error::failure::CallFailure;
use crate::platform::{Clock, Durations};
use crate::run::event_loop::Turn;

thread_local! {
    /// Its address is the number of the thread.
    static THREAD: u8 = const { 0 };
}

/// A number that no other thread has.
fn this_thread() -> usize {
    THREAD.with(|at| std::ptr::from_ref(at).addr())
}

/// The state that callers and the thread of an endpoint share.
pub(super) struct Endpoint {
    pub(super) inbox: Inbox,
    /// Callers write their requests to it.
    pub(super) arena: Arena,
    /// [`crate::Config::max_msg_size`].
    pub(super) limit: usize,
    /// The clock for the latencies of typed methods; `None`: they are not counted.
    pub(super) counting: Option<Durations>,
    /// `None`: the clock and the random numbers of the system.
    pub(super) simulated: Option<Simulated>,
    /// `None`: a thread has it for itself, or it has ended; callers only submit.
    engine: Mutex<Option<Engine>>,
    /// Wakes the endpoint's thread. The mailbox's descriptor is read by all that drive.
    kick: Option<OwnedFd>,
    coming: Coming,
    pub(super) counters: Counters,
}

/// The clock and the random numbers of clients in virtual time.
pub(super) struct Simulated {
    pub(super) clock: Clock,
    drawn: AtomicU64,
}

impl Simulated {
    /// With numbers that follow from this one.
    pub(super) fn new(clock: Clock, seed: u64) -> Self {
        Simulated { clock, drawn: AtomicU64::new(seed) }
    }

    /// The next 64 bits (SplitMix64).
    pub(super) fn random(&self) -> u64 {
        const STEP: u64 = 0x9E37_79B9_7F4A_7C15;
        let state = self.drawn.fetch_add(STEP, Ordering::Relaxed).wrapping_add(STEP);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }
}

/// Tasks that will drive the endpoint when they are polled: it has no other successor.
#[derive(Default)]
struct Coming {
    tasks: AtomicUsize,
    /// The thread that is about to poll one of them; 0: not known.
    thread: AtomicUsize,
}

impl Coming {
    fn add(&self, call: &Call, thread: usize) {
        if !call.comes.swap(true, Ordering::AcqRel) {
            self.tasks.fetch_add(1, Ordering::AcqRel);
        }
        self.thread.store(thread, Ordering::Release);
    }

    /// The task of a call is polled, or will not be. Returns whether it was to come.
    fn remove(&self, call: &Call) -> bool {
        let comes = call.comes.load(Ordering::Relaxed) && call.comes.swap(false, Ordering::AcqRel);
        if comes {
            let less = |tasks: usize| Some(tasks.saturating_sub(1)); // see `reset`
            let _ = self.tasks.fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
            if self.thread.load(Ordering::Relaxed) == this_thread() {
                self.thread.store(0, Ordering::Release);
            }
        }
        comes
    }

    /// The tasks have not come in their time.
    fn reset(&self) {
        self.tasks.store(0, Ordering::Release);
    }

    fn any(&self) -> bool {
        self.tasks.load(Ordering::Acquire) > 0
    }

    fn any_here(&self) -> bool {
        self.any() && self.thread.load(Ordering::Acquire) == this_thread()
    }
}

/// The next step of a task after its call was submitted, or after it has driven.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// It is woken when the call has ended.
    Wait,
    /// It is polled again after the other tasks of its thread.
    Yield,
}

/// The event that ends a sleep of the thread of an endpoint, apart from [`Endpoint::kick`].
pub(super) enum Until<'a> {
    /// A frame or mail: the descriptor of the endpoint.
    Readable(&'a OwnedFd),
    /// Mail.
    Mail,
    /// Nothing: a caller drives, who takes mail too. Its descriptor stays readable meanwhile.
    Kicked,
}

impl Endpoint {
    /// An endpoint that callers drive.
    ///
    /// # Errors
    /// There are no descriptors.
    pub(super) fn driven_by_callers(engine: Engine, limit: usize) -> io::Result<Endpoint> {
        let kick = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let inbox = Inbox::new(engine.rpc.mailbox.clone());
        let arena = engine.rpc.core.proto.arena().clone();
        let endpoint = Endpoint::driven_elsewhere(inbox, arena, limit);
        endpoint.inbox.leave();
        Ok(Endpoint { engine: Mutex::new(Some(engine)), kick: Some(kick), ..endpoint })
    }

    /// Its clients count the calls of typed methods, with the latencies of this clock.
    pub(super) fn counted_by(mut self, clock: Option<Clock>) -> Arc<Endpoint> {
        self.counting = clock.map(Durations::by);
        Arc::new(self)
    }

    /// An endpoint that one thread drives alone.
    pub(super) fn driven_elsewhere(inbox: Inbox, arena: Arena, limit: usize) -> Endpoint {
        inbox.try_drive();
        let (engine, coming) = (Mutex::new(None), Coming::default());
        let counters = Counters::default();
        let (counting, simulated, kick) = (None, None, None);
        Endpoint { inbox, arena, limit, counting, simulated, engine, kick, coming, counters }
    }

    /// The time of the deadlines of calls.
    pub(super) fn now(&self) -> Instant {
        self.simulated.as_ref().map_or_else(|| Clock::System.now(), |of| of.clock.now())
    }

    /// Counters of callers that polled.
    pub(super) fn polling(&self) -> PollingStats {
        self.counters.read()
    }

    // ---- callers ------------------------------------------------------------------------------

    /// Submits a call.
    ///
    /// # Errors
    /// The endpoint has ended.
    pub(super) fn submit(&self, call: &Arc<Call>) -> Result<Next, CallFailure> {
        let Some(mut visit) = self.visit() else {
            self.inbox.call(call)?;
            self.settle();
            return Ok(Next::Wait);
        };
        let engine = visit.engine();
        let spins = engine.patience.budget_ns() > 0;
        let another_comes = self.coming.any_here();
        // Beside others a call without a deadline can begin at the time of the last pass.
        if !another_comes || call.expires.is_some() || engine.watch != Watch::Dozes {
            engine.begin(spins, self);
        }
        engine.accept(&self.inbox); // it was first
        engine.submit(call.clone());
        // Its frame leaves with others, unless they would fill a batch, or have let calls wait for long.
        let others = another_comes || (spins && engine.batch.expects_more());
        // A message is done when it is queued, and no task drives for it.
        if call.is_done() || !(others && engine.batch.adds(engine.now_ns())) {
            engine.pass(&self.inbox);
        }
        let next = match spins && !another_comes && !call.is_done() {
            true => Next::Yield,
            false => Next::Wait,
        };
        if next == Next::Yield {
            self.coming.add(call, this_thread());
        }
        visit.leave();
        Ok(next)
    }

    /// Drives the endpoint until the call ends, calls of others have ended, or the time for it is over.
    pub(super) fn drive(&self, call: &Arc<Call>) -> Next {
        let came = self.coming.remove(call);
        let Some(mut visit) = self.visit() else {
            if came {
                self.pass_on();
            }
            return Next::Wait;
        };
        let engine = visit.engine();
        let budget_ns = engine.patience.budget_ns();
        engine.begin(budget_ns > 0, self);
        engine.batch.begins();
        let start_ns = engine.now_ns();
        let mut next = Next::Wait;
        loop {
            let turn = engine.pass(&self.inbox);
            let took_ns = engine.now_ns().saturating_sub(start_ns);
            if engine.gathers(call) && took_ns < budget_ns {
                continue;
            }
            if call.is_done() {
                engine.patience.hit(took_ns);
                engine.batch.expect(1);
                self.counters.answered(took_ns);
                break;
            }
            if !engine.clients().wakers.is_empty() {
                next = Next::Yield; // their tasks run first
                self.coming.add(call, this_thread());
                break;
            }
            if took_ns >= budget_ns || turn == Turn::Tired {
                if budget_ns > 0 {
                    engine.patience.miss();
                    self.counters.missed(took_ns);
                }
                break;
            }
        }
        visit.leave();
        next
    }

    /// The task of a call has its result. If it was to drive, another one does.
    #[inline]
    pub(super) fn ended(&self, call: &Call) {
        if self.coming.remove(call) {
            self.pass_on();
        }
    }

    /// A task that was to drive does not: finds a successor.
    fn pass_on(&self) {
        match self.visit() {
            Some(visit) => visit.leave(),
            // The thread that drives may have relied on the task: it looks again before it leaves.
            None => {
                self.inbox.nudge();
                self.settle();
            }
        }
    }

    /// The thread of the endpoint drives, as the tasks that were to do so have not come.
    pub(super) fn rescue(&self) {
        self.coming.reset();
    }

    /// Begins a client.
    ///
    /// # Errors
    /// The endpoint has ended.
    pub(super) fn open(&self, open: Open) -> Result<(), CallFailure> {
        self.inbox.open(open)?;
        self.settle();
        Ok(())
    }

    /// Closes the sessions of a client.
    pub(super) fn close(&self, link: usize) {
        self.inbox.close(link);
        self.settle();
    }

    /// The future of a call was dropped.
    pub(super) fn drop_call(&self, call: &Arc<Call>) {
        if self.inbox.was_forked() {
            return;
        }
        let came = self.coming.remove(call);
        self.inbox.drop_call(call);
        if came {
            self.pass_on();
        }
        self.settle();
    }

    /// Drives the endpoint if something is submitted that no thread has taken.
    pub(super) fn settle(&self) {
        while self.inbox.has_submitted() {
            let Some(mut visit) = self.visit() else { return };
            let engine = visit.engine();
            engine.begin(true, self);
            engine.pass(&self.inbox);
            visit.leave();
        }
    }

    // ---- the thread of the endpoint -----------------------------------------------------------

    /// Begins to drive, unless another thread does or the endpoint has ended.
    pub(super) fn visit(&self) -> Option<Visit<'_>> {
        if self.inbox.was_forked() || !self.inbox.try_drive() {
            return None;
        }
        let engine = self.lock();
        // An endpoint that has ended is not left.
        engine.is_some().then(|| Visit { endpoint: self, engine: Some(engine) })
    }

    fn lock(&self) -> MutexGuard<'_, Option<Engine>> {
        self.engine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes the thread of the endpoint.
    pub(super) fn kick(&self) {
        match &self.kick {
            // Cannot fail: the counter does not overflow.
            Some(kick) => drop(rustix::io::write(kick, &1u64.to_ne_bytes())),
            None => self.inbox.wake(),
        }
    }

    /// Sleeps until [`Endpoint::kick`], until a descriptor is readable, or for this time. Returns whether
    /// it was kicked.
    pub(super) fn sleep(&self, until: Until<'_>, timeout_ns: Option<u64>) -> io::Result<bool> {
        let (Some(kick), Some(mail)) = (&self.kick, self.inbox.fd()) else { return Ok(false) };
        let fd = match until {
            Until::Readable(fd) => fd.as_fd(),
            Until::Mail => mail,
            Until::Kicked => kick.as_fd(),
        };
        courser_net::wait_readable(fd, kick.as_raw_fd(), timeout_ns)?;
        Ok(rustix::io::read(kick, &mut [0; 8]).is_ok()) // empty after most sleeps
    }

    /// [`Endpoint::end`] by the endpoint's thread.
    pub(super) fn end_when_free(&self) {
        if self.inbox.was_forked() {
            return;
        }
        let last = self.inbox.end(false);
        while !self.inbox.try_drive() {
            if self.lock().is_none() {
                return; // after a panic of a caller
            }
            std::thread::yield_now();
        }
        self.end(last);
    }

    /// Ends the endpoint with all its calls.
    pub(super) fn end(&self, last: Option<Submitted>) {
        let ended = self.lock().take();
        let Some(mut engine) = ended else { return };
        let last = last.or_else(|| self.inbox.end(false));
        let mut wakers = engine.stop(last.unwrap_or_default());
        drop(engine);
        wake(&mut wakers);
    }
}

/// A thread that drives the endpoint. Dropped without [`Visit::leave`], by a panic, it ends the
/// endpoint and all its calls.
pub(super) struct Visit<'a> {
    endpoint: &'a Endpoint,
    engine: Option<MutexGuard<'a, Option<Engine>>>,
}

impl Visit<'_> {
    pub(super) fn engine(&mut self) -> &mut Engine {
        let engine = self.engine.as_mut().and_then(|engine| engine.as_mut());
        engine.expect("a visit has the endpoint until it leaves")
    }

    /// Finds a successor if there are calls in flight, leaves, and wakes the tasks whose calls have
    /// ended.
    pub(super) fn leave(self) {
        self.end(true);
    }

    /// [`Visit::leave`] of the endpoint's thread, which comes back.
    pub(super) fn leave_for_now(self) {
        self.end(false);
    }

    fn end(mut self, for_good: bool) {
        let endpoint = self.endpoint;
        let mut wakers = Vec::new();
        loop {
            let engine = self.engine();
            if engine.accept(&endpoint.inbox) {
                engine.pass(&endpoint.inbox);
            }
            let kick = for_good && engine.succeed(&endpoint.coming);
            wakers.append(&mut engine.take_wakers());
            self.engine = None;
            let left = endpoint.inbox.leave();
            if kick {
                endpoint.kick();
            }
            if left {
                break;
            }
            self.engine = Some(endpoint.lock());
        }
        std::mem::forget(self);
        wake(&mut wakers);
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.engine = None;
        self.endpoint.end(None);
    }
}

impl Engine {
    /// A thread drives after another one. `spins`: for more than a pass, so that the endpoint's thread
    /// needs no signals.
    fn begin(&mut self, spins: bool, endpoint: &Endpoint) {
        self.rpc.begin_turn();
        if spins && let Watch::Sleeps(_) = self.watch {
            self.rpc.end_rest();
            self.watch = Watch::Dozes;
            endpoint.kick();
        }
    }

    /// Before a thread leaves: something else drives the endpoint while there are calls in flight.
    /// Returns whether the endpoint's thread is to be woken.
    fn succeed(&mut self, coming: &Coming) -> bool {
        if let Watch::Sleeps(until_ns) = self.watch {
            // It goes on to sleep, unless it would wake too late.
            let slept = self.sleep();
            if slept.is_none_or(|ns| ns < until_ns) {
                self.watch = Watch::Called;
                return true;
            }
            self.watch = Watch::Sleeps(until_ns);
            return false;
        }
        if coming.any() || !self.rpc.handlers.is_busy() || self.watch == Watch::Called {
            return false;
        }
        let recent_ns = self.now_ns().saturating_sub(self.patience.budget_ns());
        if self.patience.budget_ns() > 0
            && let Some((call, waker)) = self.rpc.handlers.successor(recent_ns)
        {
            coming.add(&call, 0);
            self.rpc.handlers.wakers.push(waker);
            return false;
        }
        self.watch = Watch::Called;
        true
    }
}

/// Wakes a task that is to drive the endpoint of its call.
pub(super) fn yield_task(waker: &Waker) {
    #[cfg(feature = "tokio")]
    {
        use std::future::Future;
        let mut cx = std::task::Context::from_waker(waker);
        // After the other tasks of a worker, and without a thread that is woken to take this one.
        if std::pin::pin!(tokio::task::yield_now()).poll(&mut cx).is_pending() {
            return;
        }
    }
    waker.wake_by_ref();
}
