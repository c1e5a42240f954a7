//! The simulated thread that runs now: its clock, and what the time is for it.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

use courser::parts::machine::VirtualClock;

use super::nanos;

/// A thread, and how its clock stands to the world's time.
struct Running {
    clock: Arc<VirtualClock>,
    /// What its clock shows ...
    local_ns: u64,
    /// ... at this time of the world.
    world_ns: u64,
}

impl Running {
    fn world_now_ns(&self) -> u64 {
        self.world_ns.saturating_add(self.clock.now_ns().saturating_sub(self.local_ns))
    }
}

thread_local! {
    static CURRENT: RefCell<Option<Running>> = const { RefCell::new(None) };
    /// When the handler that runs now, or ran last, has begun, in the world's time.
    static BEGAN_NS: Cell<u64> = const { Cell::new(0) };
}

/// Lets time pass for the simulated thread that runs now: called in a handler, a continuation or
/// a timer, it is busy for so much longer. In a worker's handler likewise, and its answer wakes the
/// endpoint as much later; one that is awake for another reason may find it before, which a cost in
/// [`crate::CpuCosts::handlers`] does not have. Does nothing outside a simulation, so that a handler
/// may say what it costs and run anywhere.
pub fn spend(time: Duration) {
    let ns = nanos(time);
    CURRENT.with_borrow(|running| {
        if let Some(running) = running {
            running.clock.spend(ns);
        }
    });
}

/// The world's time for the simulated thread that runs now; `None`: none does.
pub(crate) fn thread_now_ns() -> Option<u64> {
    CURRENT.with_borrow(|running| running.as_ref().map(Running::world_now_ns))
}

/// When the handler that runs now has begun, in the world's time.
pub(crate) fn handler_began_ns() -> u64 {
    BEGAN_NS.get()
}

/// A handler begins now, or has begun at a time of the world.
pub(crate) fn handler_begins(at_ns: Option<u64>) {
    BEGAN_NS.set(at_ns.or_else(thread_now_ns).unwrap_or(0));
}

/// Runs something as a simulated thread whose clock shows `local_ns` at a time of the world.
pub(super) fn on_clock<R>(
    clock: &Arc<VirtualClock>,
    local_ns: u64,
    world_ns: u64,
    f: impl FnOnce() -> R,
) -> R {
    /// Also when `f` panics, the next one is not charged.
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
