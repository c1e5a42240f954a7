//! Which of many waiting calls is served next, when not all can be served in time (F15).

/// Whether to serve the newest of the waiting calls, not the oldest: the oldest has waited for
/// `waited_ns` of the `budget_ns` that there were between its arrival and its deadline.
///
/// First come, first served is fair, and right as long as queues are short. Under lasting overload
/// it is the worst order of all: the queue grows until each call is served at the very end of its
/// time, and every one of them misses its deadline by a little, so that all work is for nothing.
/// Newest first then gives calls that have all their time left; those that wait expire, at no
/// cost. The oldest having used up more than half of its time is the sign of overload: what is
/// served later than that has too little left for its way, its handler and its answer. The order
/// turns back by itself as soon as the old calls are gone.
///
/// Used for the calls that wait for a slot, and made for any other queue of calls with deadlines.
#[inline]
#[must_use]
pub fn serve_newest(waited_ns: u64, budget_ns: u64) -> bool {
    waited_ns > budget_ns / 2
}

#[cfg(test)]
mod tests {
    use super::serve_newest;

    #[test]
    fn the_order_turns_at_half_the_budget() {
        assert!(!serve_newest(0, 0) && !serve_newest(500, 1_000) && serve_newest(501, 1_000));
        assert!(serve_newest(1, 0), "expired on arrival");
        assert!(!serve_newest(u64::MAX / 2, u64::MAX));
    }
}
