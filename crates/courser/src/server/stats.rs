//! Counters of a server, which its endpoints publish.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use courser_buf::stats;
use courser_buf::stats::Stats;

use crate::core::handled::HandlerStats;
use crate::core::shares::Shares;
use crate::rpc::Rpc;

stats! {
    /// Counters of a running server, over all its endpoints, read with [`super::ServerHandle::stats`]. Each
    /// endpoint publishes its own after a pass of its event loop that has changed them.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    #[non_exhaustive]
    pub struct ServerStats: "server" {
        /// Handlers in progress.
        pub in_progress: usize = gauge(handlers),
        /// Handlers that ended in their first poll on the thread of their endpoint, without a change of
        /// threads.
        pub in_place: u64 = counter(handlers),
        /// Requests that were refused and one-way messages that were dropped, by reason, and panics.
        pub handlers: HandlerStats = part,
        /// One-way messages passed to handlers, or counted in `handlers` as dropped.
        pub messages_received: u64 = counter(messages),
        /// One-way messages of one packet that were dropped because they arrived after their deadline.
        pub messages_expired: u64 = counter(messages),
        /// One-way messages of one packet that were dropped before they reached a handler, because the
        /// server was shutting down, or because there was no memory.
        pub messages_refused: u64 = counter(messages),
    }
}

impl ServerStats {
    /// The counters of one endpoint.
    #[inline]
    pub(super) fn of(rpc: &Rpc, in_place: u64) -> Self {
        let proto = rpc.stats();
        ServerStats {
            in_progress: 0,
            in_place,
            handlers: rpc.handler_stats(),
            messages_received: proto.messages_received,
            messages_expired: proto.messages_expired,
            messages_refused: proto.messages_refused,
        }
    }
}

/// The counters that the endpoints of a server have published.
#[derive(Debug, Default)]
pub(super) struct Published {
    /// Places of handlers in progress, once the server runs.
    pub(super) places: OnceLock<Arc<Shares>>,
    endpoints: Mutex<Vec<ServerStats>>,
}

impl Published {
    fn lock(&self) -> MutexGuard<'_, Vec<ServerStats>> {
        // Only a failed allocation panics under this lock, and it leaves the list intact.
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of another endpoint.
    pub(super) fn add(&self) -> usize {
        let mut endpoints = self.lock();
        endpoints.push(ServerStats::default());
        endpoints.len() - 1
    }

    #[cold]
    pub(super) fn publish(&self, endpoint: usize, stats: ServerStats) {
        if let Some(last) = self.lock().get_mut(endpoint) {
            *last = stats;
        }
    }

    /// Adds them up.
    pub(super) fn sum(&self) -> ServerStats {
        let mut sum = ServerStats::default();
        self.lock().iter().for_each(|endpoint| sum.merge(endpoint));
        if let Some(places) = self.places.get() {
            sum.in_progress = places.held();
            sum.handlers.panics += places.panics();
        }
        sum
    }
}
