//! The thread of an endpoint of clients: it drives the endpoint alone, or when no caller does.

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};

use courser_proto::Notice;

use super::calls::Clients;
use super::endpoint::{Endpoint, Until, Visit};
use super::engine::{Engine, Watch, wake};
use super::inbox::Inbox;
use crate::error::RunError;
use crate::platform::few_cpus;
use crate::rpc::Rpc;
use crate::run::event_loop::Turn;

/// With this many calls in progress or fewer, a task or the server is likely to wait for this CPU. With
/// more there is seldom nothing to do.
const FEW_CALLS: usize = 8;

/// Pause between two looks whether callers still drive, ns: so long may an answer wait that their
/// tasks were to fetch and did not. It costs a percent of a CPU while there are calls.
const DOZE_NS: u64 = 500_000;

/// After this many pauses without callers the thread sleeps on the descriptor, until a frame.
const QUIET: u32 = 20;

/// The thread polls for this time after its last work while there are calls in flight, ns.
const LINGER_NS: u64 = 20_000;

/// First pause of the thread when it was called and another one drives, ns. It doubles up to [`DOZE_NS`].
const RETRY_NS: u64 = 20_000;

/// Passes the events of an endpoint in virtual time to its clients.
pub(super) fn register(rpc: &mut Rpc, state: &Rc<RefCell<Clients>>) {
    let of = state.clone();
    rpc.on_completion(move |cx, tag, done| of.borrow_mut().completed(cx, tag, done));
    let of = state.clone();
    rpc.handlers.on_notice = Some(Box::new(move |cx, notice| {
        if let Notice::Freed { session, .. } = notice {
            of.borrow_mut().on_room(cx, session);
        }
    }));
}

// ---- a thread of its own ----------------------------------------------------------------------

/// Runs the endpoint on this thread alone until `stop` is set and nothing is submitted.
pub(super) fn run(engine: Engine, inbox: &Inbox, stop: &AtomicBool) {
    let mut driver = Driver { inbox, engine };
    if let Err(e) = driver.drive(stop) {
        tracing::error!("the endpoint of a client has ended: {e}");
    }
}

/// Dropping it ends what is submitted and all calls, also after a panic of this thread.
struct Driver<'a> {
    inbox: &'a Inbox,
    engine: Engine,
}

impl Driver<'_> {
    fn drive(&mut self, stop: &AtomicBool) -> Result<(), RunError> {
        self.engine.rpc.may_block()?;
        loop {
            if !self.engine.accept(self.inbox)
                && stop.load(Ordering::Relaxed)
                && self.inbox.end(true).is_some()
            {
                self.engine.rpc.run_pending_commands();
                return Ok(());
            }
            let due_ns = self.engine.tend();
            self.yield_to_tasks();
            self.wake();
            self.engine.rpc.pass_until(due_ns)?;
            self.wake();
        }
    }

    /// Yields the CPU while it spins if the tasks of few calls may need it.
    #[inline]
    fn yield_to_tasks(&mut self) {
        let few = self.engine.clients().in_progress() <= FEW_CALLS;
        self.engine.rpc.event_loop.set_yields(few && few_cpus());
    }

    /// Wakes the tasks whose calls have ended.
    #[inline]
    fn wake(&mut self) {
        if !self.engine.clients().wakers.is_empty() {
            let mut wakers = self.engine.take_wakers();
            wake(&mut wakers);
            self.engine.clients().wakers = wakers;
        }
    }
}

impl Drop for Driver<'_> {
    fn drop(&mut self) {
        let last = self.inbox.end(false);
        wake(&mut self.engine.stop(last.unwrap_or_default()));
    }
}

// ---- callers drive ----------------------------------------------------------------------------

/// Drives an endpoint when its callers do not, until `stop` is set and nothing is submitted. `poller`
/// is the descriptor of the endpoint.
pub(super) fn watch(endpoint: &Endpoint, poller: &OwnedFd, stop: &AtomicBool) {
    let ended = Ended(endpoint);
    let mut watcher = Watcher { endpoint, poller, seen: 0, quiet: 0 };
    if let Err(e) = watcher.run(stop) {
        tracing::error!("the thread of a client's endpoint has ended: {e}");
    }
    drop(ended);
}

/// Ends the endpoint, also after a panic of its thread.
struct Ended<'a>(&'a Endpoint);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.end_when_free();
    }
}

/// The thread of an endpoint that callers drive.
struct Watcher<'a> {
    endpoint: &'a Endpoint,
    poller: &'a OwnedFd,
    /// [`Engine::passes`] at the last look.
    seen: u64,
    /// Looks without passes of callers between them.
    quiet: u32,
}

impl<'a> Watcher<'a> {
    fn run(&mut self, stop: &AtomicBool) -> io::Result<()> {
        let (mut called, mut retry_ns) = (true, RETRY_NS);
        loop {
            self.endpoint.counters.looked();
            let Some(mut visit) = self.endpoint.visit() else {
                if self.endpoint.inbox.is_closed() {
                    return Ok(()); // after a panic of a caller
                }
                // Its callers drive, and call this thread again if it is needed; a call that has
                // reached it stays.
                let timeout_ns = if called { retry_ns } else { DOZE_NS };
                retry_ns = (2 * retry_ns).min(DOZE_NS);
                called |= self.endpoint.sleep(Until::Kicked, Some(timeout_ns))?;
                continue;
            };
            retry_ns = RETRY_NS;
            if stop.load(Ordering::Relaxed) && self.stop(&mut visit) {
                visit.leave_for_now();
                return Ok(());
            }
            let timeout_ns = match self.is_needed(&mut visit, called) {
                true => self.work(visit),
                false => {
                    visit.leave_for_now();
                    None
                }
            };
            called = match timeout_ns {
                Some(timeout_ns) => {
                    self.endpoint.sleep(Until::Readable(self.poller), timeout_ns)?;
                    true
                }
                None => self.endpoint.sleep(Until::Mail, Some(DOZE_NS))?,
            };
        }
    }

    /// Takes what was submitted last. Returns whether nothing was.
    fn stop(&self, visit: &mut Visit<'_>) -> bool {
        let engine = visit.engine();
        let is_empty =
            !engine.accept(&self.endpoint.inbox) && self.endpoint.inbox.end(true).is_some();
        engine.rpc.run_pending_commands();
        is_empty
    }

    /// Returns whether this thread is to drive: callers do not, and there may be work.
    fn is_needed(&mut self, visit: &mut Visit<'_>, called: bool) -> bool {
        let mail = self.endpoint.inbox.has_mail();
        let engine = visit.engine();
        let visited = engine.passes != self.seen;
        self.seen = engine.passes;
        self.quiet = if visited { 0 } else { self.quiet + 1 };
        let called = called || engine.watch != Watch::Dozes;
        let is_stuck = !visited && engine.clients().is_busy();
        engine.take_over();
        if is_stuck {
            self.endpoint.rescue();
        }
        called || mail || self.quiet >= QUIET || is_stuck
    }

    /// Drives until there is no work. Returns how long to sleep on the descriptor, or `None` if callers
    /// drive.
    #[expect(clippy::option_option, reason = "a sleep without limit")]
    fn work(&mut self, mut visit: Visit<'a>) -> Option<Option<u64>> {
        let endpoint = self.endpoint;
        let mut worked_ns = visit.engine().now_ns();
        loop {
            let engine = visit.engine();
            let turn = engine.pass(&endpoint.inbox);
            let now_ns = engine.now_ns();
            if turn == Turn::Worked {
                worked_ns = now_ns;
            }
            if !engine.clients().wakers.is_empty() {
                if engine.patience.budget_ns() > 0 {
                    self.seen = engine.passes;
                    visit.leave(); // the tasks that it wakes drive
                    return None;
                }
                visit.leave_for_now();
                visit = endpoint.visit()?;
                continue;
            }
            let lingers = engine.clients().in_progress() > 0 && turn == Turn::Idle;
            if turn == Turn::Worked || (lingers && now_ns - worked_ns < LINGER_NS) {
                continue;
            }
            if let Some(until_ns) = engine.sleep() {
                self.seen = engine.passes;
                let timeout_ns = (until_ns != u64::MAX).then(|| until_ns.saturating_sub(now_ns));
                visit.leave_for_now();
                return Some(timeout_ns);
            }
        }
    }
}
