//! Counters of handlers.

use courser_buf::stats;
#[cfg(doc)]
use courser_proto::Status;

use crate::core::shares::Full;

stats! {
    /// Counters of an endpoint's handlers: panics, refused requests, dropped answers.
    ///
    /// ```
    /// # use courser_example_store::*;
    /// # fn main() -> Done { run_served(async |uri, serving| {
    /// # let _ = uri;
    /// let refused = serving.stats().handlers.workers_busy;
    /// assert_eq!(refused, 0);
    /// # Ok(()) }) }
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    #[non_exhaustive]
    pub struct HandlerStats: "handlers" {
        /// Handlers that panicked.
        pub panics: u64 = counter(panics),
        /// Requests refused with [`Status::WorkersBusy`]: the workers' queue was full, or as many handlers
        /// of a server were in progress as may be, or the next counter has them too.
        pub workers_busy: u64 = counter(requests),
        /// Requests among them for which there was room, but none for their client or its address, which
        /// held its share.
        pub over_share: u64 = counter(requests),
        /// Requests refused with [`Status::NoMemory`] because there was no memory for the copy.
        pub no_memory: u64 = counter(requests),
        /// Worker answers whose session had ended.
        pub gone: u64 = counter(answers),
        /// One-way messages of a type without a handler.
        pub messages_unhandled: u64 = counter(messages),
        /// One-way messages whose deadline passed while other handlers of their burst ran.
        pub messages_expired: u64 = counter(messages),
        /// One-way messages dropped because the workers' queue was full, as many handlers were in progress
        /// as may be, or the next counter has them too.
        pub messages_busy: u64 = counter(messages),
        /// One-way messages among them for which there was room, but none for their client or its address,
        /// which held its share of the places or of the memory.
        pub messages_over_share: u64 = counter(messages),
        /// One-way messages dropped because there was no memory for the copy for a worker.
        pub messages_no_memory: u64 = counter(messages),
    }
}

impl HandlerStats {
    /// Counts a request for which there is no place.
    pub(crate) fn refused(&mut self, full: Full) {
        self.workers_busy += 1;
        self.over_share += u64::from(full == Full::Share);
    }

    /// One-way messages that handlers have not got, for want of a place or memory.
    pub(crate) fn messages_dropped(&self) -> u64 {
        self.messages_busy + self.messages_no_memory
    }

    /// Counts a one-way message for which there is no place.
    pub(crate) fn message_refused(&mut self, full: Full) {
        self.messages_busy += 1;
        self.messages_over_share += u64::from(full == Full::Share);
    }
}
