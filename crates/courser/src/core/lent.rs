//! The endpoint, lent to the futures that it polls.

use super::queue::LocalQueue;
use crate::core::Core;

/// Lends the endpoint to the futures that `poll` polls.
#[inline]
pub(crate) fn lend<R>(core: &mut Core, poll: impl FnOnce() -> R) -> R {
    let queue = core.queue.clone();
    queue.endpoint().lend(core, poll)
}

/// The endpoint of `queue`, which polls this future.
///
/// # Panics
/// Something else polls it.
#[inline]
pub(crate) fn with<R>(queue: &LocalQueue, f: impl FnOnce(&mut Core) -> R) -> R {
    match queue.endpoint().with(f) {
        Some(result) => result,
        None => polled_outside(),
    }
}

/// The endpoint of `queue`, if it polls this future.
pub(crate) fn try_with<R>(queue: &LocalQueue, f: impl FnOnce(&mut Core) -> R) -> Option<R> {
    queue.endpoint().with(f)
}

#[cold]
#[inline(never)]
fn polled_outside() -> ! {
    panic!(
        "a future of an endpoint was polled outside of that endpoint; poll it in Rpc::block_on, in \
         Local::spawn or in a handler of Rpc::on_async"
    );
}
