//! The endpoint, lent to the futures that it polls.

use scoped_tls_hkt::scoped_thread_local;

use super::queue::LocalQueue;
use crate::core::Core;

scoped_thread_local!(static mut LENT: Core);

/// Lends the endpoint to the futures that `poll` polls.
#[inline]
pub(crate) fn lend<R>(core: &mut Core, poll: impl FnOnce() -> R) -> R {
    core.queue.set_polling(true);
    let result = LENT.set(core, poll);
    core.queue.set_polling(false);
    result
}

/// The endpoint of `queue`, which polls this future.
///
/// # Panics
/// Something else polls it.
#[inline]
pub(crate) fn with<R>(queue: &LocalQueue, f: impl FnOnce(&mut Core) -> R) -> R {
    // Not `is_set`, which takes several times as long.
    if !queue.is_polling() {
        polled_outside();
    }
    LENT.with(|core| {
        if !core.queue.is(queue) {
            polled_outside();
        }
        f(core)
    })
}

/// The endpoint of `queue`, if it polls this future.
pub(crate) fn try_with<R>(queue: &LocalQueue, f: impl FnOnce(&mut Core) -> R) -> Option<R> {
    queue.is_polling().then(|| with(queue, f))
}

#[cold]
#[inline(never)]
fn polled_outside() -> ! {
    panic!(
        "a future of an endpoint was polled outside of that endpoint; poll it in Rpc::block_on, in \
         Local::spawn or in a handler of Rpc::on_async"
    );
}
