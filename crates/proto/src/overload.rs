//! Order of waiting calls under overload (ADR 15).

/// Returns whether the newest waiting call is to be served instead of the oldest, which has waited
/// for `waited_ns` of the `budget_ns` between its arrival and its deadline.
///
/// First come, first served is fair, and right for short queues. Under lasting overload it is the
/// worst order: the queue grows until every call is served just after its deadline, and all work is
/// wasted. Newest first serves calls that have all their time left; the waiting ones expire at no
/// cost. Overload is assumed when the oldest call has used half of its time: the rest would not
/// suffice for transit, handler and answer. The order switches back when the old calls are gone.
///
/// Used for calls that wait for a slot, and by other queues of calls with deadlines.
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
