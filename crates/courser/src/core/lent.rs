//! The endpoint, lent to the futures that it polls.

use crate::core::{Core, Lender};

/// Lends the endpoint to the futures that `poll` polls. `lender` is that of the endpoint.
#[inline]
pub(crate) fn lend<R>(lender: &Lender, core: &mut Core, poll: impl FnOnce() -> R) -> R {
    lender.endpoint().lend(core, poll)
}

/// The endpoint of `lender`, which polls this future.
///
/// # Panics
/// Something else polls it.
#[inline]
pub(crate) fn with<R>(lender: &Lender, f: impl FnOnce(&mut Core) -> R) -> R {
    match lender.endpoint().with(f) {
        Some(result) => result,
        None => polled_outside(),
    }
}

/// The endpoint of `lender`, if it polls this future.
pub(crate) fn try_with<R>(lender: &Lender, f: impl FnOnce(&mut Core) -> R) -> Option<R> {
    lender.endpoint().with(f)
}

fn polled_outside() -> ! {
    panic!(
        "a future of an endpoint was polled outside of that endpoint; poll it in Rpc::block_on, in \
         Local::spawn or in a handler of Rpc::on_async"
    );
}
