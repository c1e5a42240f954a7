//! Counters of a server, which its endpoints publish.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use courser_buf::stats;
use courser_buf::stats::Stats;
use courser_proto::EndpointStats;
use slab::Slab;

use crate::core::handled::HandlerStats;
use crate::core::shares::Shares;
use crate::panics::wake_all;
use crate::rpc::Rpc;

stats! {
    /// Counters of a running server, over all its endpoints, read with [`super::ServerHandle::stats`]. Each
    /// endpoint publishes its own when it has no work, and once in a millisecond under load.
    ///
    /// ```
    /// # use courser_example_store::*;
    /// # fn main() -> Done { run_served(async |uri, serving| {
    /// let store = StoreClient::connect(&uri).await?;
    /// store.len("apple".to_owned()).await?;
    /// let stats = serving.stats();
    /// assert_eq!((stats.handlers.panics, stats.handlers.workers_busy), (0, 0));
    /// # Ok(()) }) }
    /// ```
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

/// Time between two publications under load, ns.
const PUBLISH_NS: u64 = 1_000_000;

/// The counters that an endpoint has published last.
#[derive(Debug)]
pub(super) struct Publication {
    /// The number of the endpoint.
    number: usize,
    last: ServerStats,
    /// When the next one is due under load, in the endpoint's time.
    due_ns: u64,
    /// The request for counters of the protocol that was answered last.
    answered: u64,
    /// When readers no longer wait for other endpoints, in the endpoint's time, which have not answered the
    /// next field's request.
    late_ns: u64,
    late_for: u64,
}

impl Publication {
    /// The endpoint with this number has counted nothing yet.
    pub(super) fn new(number: usize) -> Self {
        Publication {
            number,
            last: ServerStats::default(),
            due_ns: 0,
            answered: 0,
            late_ns: u64::MAX,
            late_for: 0,
        }
    }

    /// The number of the endpoint.
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// When readers no longer wait for other endpoints, in the endpoint's time.
    #[inline]
    pub(super) fn late_ns(&self) -> Option<u64> {
        (self.late_ns != u64::MAX).then_some(self.late_ns)
    }

    /// Returns whether an endpoint that has work is to publish its counters.
    #[inline]
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        now_ns >= self.due_ns
    }
}

/// The counters that the endpoints of a server have published.
#[derive(Debug, Default)]
pub(super) struct Published {
    /// Places of handlers in progress, once the server runs.
    pub(super) places: OnceLock<Arc<Shares>>,
    endpoints: Mutex<Vec<ServerStats>>,
    /// Requests for the counters of the protocol so far.
    wanted: AtomicU64,
    protocol: Mutex<Protocols>,
    changed: Condvar,
}

/// The counters of the protocol, and their readers.
#[derive(Debug, Default)]
struct Protocols {
    endpoints: Vec<Protocol>,
    /// Requests up to this one no longer wait for the endpoints that have not answered.
    given_up: u64,
    /// The wakers of tasks that wait for counters. Each reader removes its own.
    waiting: Slab<Waker>,
}

impl Protocols {
    fn is_missing(&self, wanted: u64) -> bool {
        self.given_up < wanted && self.endpoints.iter().any(|own| own.answered < wanted)
    }

    fn read(&self) -> Vec<EndpointStats> {
        self.endpoints.iter().map(|own| own.stats.clone()).collect()
    }

    /// The wakers of all readers, which look again.
    fn wakers(&self) -> Vec<Waker> {
        self.waiting.iter().map(|(_, waker)| waker.clone()).collect()
    }
}

/// The counters of an endpoint's protocol, which it publishes when they are wanted.
#[derive(Debug, Default)]
struct Protocol {
    /// The request that was answered last; [`ENDED`]: the endpoint has ended.
    answered: u64,
    stats: EndpointStats,
}

const ENDED: u64 = u64::MAX;

/// Longest time for which a reader waits for an endpoint that does not run its event loop.
const ANSWER_LIMIT: Duration = Duration::from_millis(20);

impl Published {
    fn protocol(&self) -> MutexGuard<'_, Protocols> {
        self.protocol.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request for the counters of the protocol that an endpoint has not answered.
    #[inline]
    pub(super) fn is_wanted(&self, publication: &Publication) -> bool {
        self.wanted.load(Ordering::Relaxed) != publication.answered
    }

    /// Publishes the counters of an endpoint's protocol; for the last time if it `ends`.
    #[cold]
    pub(super) fn answer(
        &self,
        publication: &mut Publication,
        stats: &EndpointStats,
        now_ns: u64,
        ends: bool,
    ) {
        publication.answered = self.wanted.load(Ordering::Relaxed);
        let answered = if ends { ENDED } else { publication.answered };
        self.change(|all| {
            if let Some(own) = all.endpoints.get_mut(publication.number) {
                *own = Protocol { answered, stats: stats.clone() };
            }
            // The first request that waits for another endpoint counts: later ones do not make it late.
            if !all.is_missing(publication.late_for) {
                publication.late_for = publication.answered;
                publication.late_ns = match all.is_missing(publication.answered) {
                    true => now_ns.saturating_add(ANSWER_LIMIT.as_nanos() as u64),
                    false => u64::MAX,
                };
            }
        });
    }

    /// Readers no longer wait for the other endpoints, one of which does not run its event loop.
    #[cold]
    pub(super) fn give_up(&self, publication: &mut Publication) {
        publication.late_ns = u64::MAX;
        self.change(|all| all.given_up = all.given_up.max(publication.answered));
    }

    /// The endpoint with this number has ended, perhaps without its last counters: readers do not wait for
    /// it.
    pub(super) fn end(&self, number: usize) {
        self.change(|all| {
            if let Some(own) = all.endpoints.get_mut(number) {
                own.answered = ENDED;
            }
        });
    }

    /// Changes the counters, and wakes their readers.
    fn change(&self, change: impl FnOnce(&mut Protocols)) {
        let mut all = self.protocol();
        change(&mut all);
        let wakers = all.wakers();
        drop(all); // a waker may run code of the application
        self.changed.notify_all();
        wake_all(wakers);
    }

    /// Asks the endpoints for the counters of their protocol. `wake` wakes them. Returns the number of the
    /// request.
    pub(super) fn ask(&self, wake: impl FnOnce()) -> u64 {
        let wanted = self.wanted.fetch_add(1, Ordering::Relaxed) + 1;
        wake();
        wanted
    }

    /// The counters of the protocol of each endpoint. `wake` wakes the endpoints. A thread of an endpoint
    /// does not wait, and gets the last ones.
    pub(super) fn protocols(&self, wake: impl FnOnce(), waits: bool) -> Vec<EndpointStats> {
        let wanted = self.ask(wake);
        let mut all = self.protocol();
        if waits {
            let missing = |all: &mut Protocols| all.is_missing(wanted);
            let waited = self.changed.wait_timeout_while(all, ANSWER_LIMIT, missing);
            all = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        all.read()
    }

    /// The counters of the protocol after the request with this number, when the endpoints have published
    /// them. `key` is that of the reader's waker.
    pub(super) fn poll_protocols(
        &self,
        wanted: u64,
        key: &mut Option<usize>,
        waker: &Waker,
    ) -> Poll<Vec<EndpointStats>> {
        let mut all = self.protocol();
        let old = key.take().and_then(|key| all.waiting.try_remove(key));
        let read = match all.is_missing(wanted) {
            false => Poll::Ready(all.read()),
            true => {
                *key = Some(all.waiting.insert(waker.clone()));
                Poll::Pending
            }
        };
        drop(all);
        drop(old); // may run code of the application
        read
    }

    /// Forgets a reader that waits no longer.
    pub(super) fn forget(&self, key: Option<usize>) {
        let old = key.and_then(|key| self.protocol().waiting.try_remove(key));
        drop(old); // behind the lock
    }
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
        self.protocol().endpoints.push(Protocol::default());
        endpoints.len() - 1
    }

    /// Publishes the counters of an endpoint, if they have changed.
    pub(super) fn publish(&self, publication: &mut Publication, stats: ServerStats, now_ns: u64) {
        publication.due_ns = now_ns.saturating_add(PUBLISH_NS);
        if stats == publication.last {
            return;
        }
        publication.last = stats;
        if let Some(last) = self.lock().get_mut(publication.number) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_do_not_wait_for_an_endpoint_that_has_ended_without_its_last_counters() {
        let published = Published::default();
        let number = published.add();
        published.protocol().endpoints[number].stats.requests = 7;
        published.end(number);
        assert_eq!(published.protocol().endpoints[number].answered, ENDED);
        assert_eq!(published.protocols(|| {}, true)[number].requests, 7);
    }

    #[test]
    fn tasks_get_the_counters_when_all_endpoints_have_answered_or_one_is_late() {
        let published = Published::default();
        let [mut first, mut second] = [(); 2].map(|()| Publication::new(published.add()));
        let stats = |requests| EndpointStats { requests, ..EndpointStats::default() };
        let poll = |wanted, key: &mut Option<usize>| {
            let read = published.poll_protocols(wanted, key, Waker::noop());
            read.map(|all| all.iter().map(|stats| stats.requests).collect::<Vec<_>>())
        };
        let mut key = None;
        let wanted = published.ask(|| {});
        assert_eq!(poll(wanted, &mut key), Poll::Pending);
        published.answer(&mut first, &stats(1), 5, false);
        assert_eq!((poll(wanted, &mut key), first.late_ns()), (Poll::Pending, Some(20_000_005)));
        published.answer(&mut second, &stats(2), 6, false);
        assert_eq!((poll(wanted, &mut key), second.late_ns()), (Poll::Ready(vec![1, 2]), None));
        assert!(published.protocol().waiting.is_empty() && key.is_none());
        // The second endpoint does not run.
        let wanted = published.ask(|| {});
        published.answer(&mut first, &stats(3), 7, false);
        assert_eq!(poll(wanted, &mut key), Poll::Pending);
        let mut dropped = None;
        assert_eq!(poll(wanted, &mut dropped), Poll::Pending);
        published.forget(dropped);
        published.give_up(&mut first);
        assert_eq!((poll(wanted, &mut key), first.late_ns()), (Poll::Ready(vec![3, 2]), None));
        assert!(published.protocol().waiting.is_empty());
        assert_eq!(poll(published.ask(|| {}), &mut key), Poll::Pending, "a later one waits");
    }

    #[test]
    fn readers_that_come_one_after_another_wait_for_an_endpoint_no_longer_than_the_first() {
        let published = Published::default();
        let [mut first, mut second] = [(); 2].map(|()| Publication::new(published.add()));
        let stats = EndpointStats::default();
        let poll = |wanted| published.poll_protocols(wanted, &mut None, Waker::noop()).is_ready();
        for now_ms in 0..20 {
            let wanted = published.ask(|| {});
            published.answer(&mut first, &stats, now_ms * 1_000_000, false);
            assert!(!poll(wanted));
            assert_eq!(first.late_ns(), Some(20_000_000), "at {now_ms} ms");
        }
        published.give_up(&mut first);
        assert!(poll(20));
        // An endpoint that answers each of them is not late.
        for now_ms in 20..60 {
            let wanted = published.ask(|| {});
            published.answer(&mut first, &stats, now_ms * 1_000_000, false);
            assert_eq!(first.late_ns(), Some((now_ms + 20) * 1_000_000));
            published.answer(&mut second, &stats, now_ms * 1_000_000, false);
            assert!(poll(wanted));
        }
    }

    #[test]
    fn an_endpoint_under_load_publishes_its_counters_once_in_a_millisecond() {
        let published = Published::default();
        let [_, second] = [published.add(), published.add()];
        let mut publication = Publication::new(second);
        let mut publications = 0;
        for pass in 1..=10_000 {
            let now_ns = pass * 1_000;
            if publication.is_due(now_ns) {
                publications += 1;
                let stats = ServerStats { in_place: pass, ..ServerStats::default() };
                published.publish(&mut publication, stats, now_ns);
                assert_eq!(published.sum().in_place, pass);
            }
        }
        assert_eq!(publications, 10);
    }
}
