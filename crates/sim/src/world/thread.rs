//! The simulated thread that runs now, and its clock.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use courser::parts::machine::VirtualClock;

use crate::event::nanos;

/// A thread, and its clock relative to the world's time.
struct Running {
    clock: Arc<VirtualClock>,
    /// Time of its clock ...
    local_ns: u64,
    /// ... at this world time.
    world_ns: u64,
}

impl Running {
    fn world_now_ns(&self) -> u64 {
        self.world_ns.saturating_add(self.clock.now_ns().saturating_sub(self.local_ns))
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Running>> = const { RefCell::new(None) };
    /// Start of the handler that runs now, or ran last, in the world's time.
    static BEGAN_NS: Cell<u64> = const { Cell::new(0) };
}

/// Spends virtual time on the simulated thread that runs now: called in a handler, a continuation
/// or a timer, the thread is busy for `ns` longer. In a worker's handler its response also wakes
/// the endpoint later by as much; an endpoint that is awake for another reason may process it
/// earlier, which does not happen with a cost in [`crate::CpuCosts::handlers`]. No effect outside a
/// simulation, so that a handler can report its cost and run anywhere.
pub fn spend(time: Duration) {
    let ns = nanos(time);
    CURRENT.with_borrow(|running| {
        if let Some(running) = running {
            running.clock.spend(ns);
        }
    });
}

/// The world's time of the simulated thread that runs now; `None` outside of one.
pub fn thread_now_ns() -> Option<u64> {
    CURRENT.with_borrow(|running| running.as_ref().map(Running::world_now_ns))
}

/// Start of the handler that runs now, in the world's time.
pub(crate) fn handler_began_ns() -> u64 {
    BEGAN_NS.get()
}

/// A handler starts now, or has started at a world time.
pub(crate) fn handler_begins(at_ns: Option<u64>) {
    BEGAN_NS.set(at_ns.or_else(thread_now_ns).unwrap_or(0));
}

/// Runs `f` as a simulated thread whose clock shows `local_ns` at a world time.
pub(super) fn on_clock<R>(
    clock: &Arc<VirtualClock>,
    local_ns: u64,
    world_ns: u64,
    f: impl FnOnce() -> R,
) -> R {
    /// Also after a panic of `f`, so that its time is not charged to the next thread.
    struct Restore;
    impl Drop for Restore {
        fn drop(&mut self) {
            CURRENT.set(None);
        }
    }
    CURRENT.set(Some(Running { clock: clock.clone(), local_ns, world_ns }));
    let _restore = Restore;
    f()
}
