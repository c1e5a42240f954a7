//! Counters of callers that poll for their answers.

use std::sync::atomic::Ordering;

use crate::counters::shared_stats;

shared_stats! {
    /// Counters of callers that poll for their answers on the endpoint of a [`crate::Client`]: read with
    /// [`crate::Client::polling`].
    ///
    /// ```
    /// # use courser_example_store::*;
    /// # fn main() -> Done { run(async |uri| {
    /// let store = StoreClient::connect(&uri).await?;
    /// assert_eq!(store.len("apple".to_owned()).await?, 5);
    /// let polling = store.channel().polling();
    /// println!("{} answers were polled for, {} polls were in vain", polling.answered, polling.missed);
    /// # Ok(()) }) }
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    #[non_exhaustive]
    pub struct PollingStats: "polling" {
        /// Calls whose callers polled until the answer was there.
        pub answered: u64 = counter(calls),
        /// Times that callers polled in vain, and left the answer to the endpoint's thread.
        pub missed: u64 = counter(polls),
        /// Time of polling, ns.
        pub time_ns: u64 = counter(ns),
        /// Times that the endpoint's thread was woken, or looked whether callers drive: few, for timers,
        /// while there are no calls and no frames.
        pub looks: u64 = counter(looks),
    }

    /// The counters, which the thread that drives adds to.
    pub(super) shared Counters;
}

impl Counters {
    /// An answer came after this time.
    #[inline]
    pub(super) fn answered(&self, ns: u64) {
        self.answered.fetch_add(1, Ordering::Relaxed);
        self.time_ns.fetch_add(ns, Ordering::Relaxed);
    }

    /// The endpoint's thread runs.
    pub(super) fn looked(&self) {
        self.looks.fetch_add(1, Ordering::Relaxed);
    }

    /// No answer came for this time.
    pub(super) fn missed(&self, ns: u64) {
        self.missed.fetch_add(1, Ordering::Relaxed);
        self.time_ns.fetch_add(ns, Ordering::Relaxed);
    }
}
