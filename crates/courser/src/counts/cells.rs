//! The cells of the counters, which are added to while calls run.
//!
//! Invariants:
//! 1. A call that has ended is in a bucket of the histogram, or in `unrun`. One that did not end well is
//!    in `errors` before.
//! 2. So readers that read `errors` last find no more calls without an error than there are, but perhaps
//!    fewer. What they report is the most that was found, so that it never falls. The same holds for calls
//!    that have begun.
//! 3. With `ALONE`, one thread writes; others read. A store in place of an atomic addition saves its 20
//!    cycles.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use super::latency::Buckets;
use super::{CallOutcome, MethodStats};

/// Adds a number. Readers that find it find what was added before, too.
#[inline]
fn add<const ALONE: bool>(counter: &AtomicU64, number: u64) {
    match ALONE {
        true => {
            let sum = counter.load(Ordering::Relaxed).wrapping_add(number);
            counter.store(sum, Ordering::Release);
        }
        false => _ = counter.fetch_add(number, Ordering::Release),
    }
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Acquire)
}

/// The most that was found of a number, with what is found now.
fn most(reported: &AtomicU64, found: u64) -> u64 {
    reported.fetch_max(found, Ordering::AcqRel).max(found)
}

const OUTCOMES: usize = CallOutcome::ALL.len();

/// The counters of a method.
#[derive(Debug, Default)]
pub(crate) struct MethodCells {
    /// Calls that have begun. At an endpoint's own server only those that did not end in their first
    /// poll, so that others take fewer instructions.
    begun: AtomicU64,
    /// Calls among `begun` that have ended, at an endpoint's own server.
    waited: AtomicU64,
    is_local_server: bool,
    /// From the first call on that has ended.
    latency: OnceLock<Buckets>,
    errors: [AtomicU64; OUTCOMES],
    /// Calls that ended before their handler began.
    unrun: AtomicU64,
    items: AtomicU64,
    /// Calls without an error that were reported.
    reported_ok: AtomicU64,
    /// Calls that have begun, as reported.
    reported_started: AtomicU64,
}

impl MethodCells {
    /// A call has begun.
    #[inline]
    pub(crate) fn begin<const ALONE: bool>(&self) {
        add::<ALONE>(&self.begun, 1);
    }

    /// A call has ended, after this time.
    #[inline]
    pub(crate) fn end<const ALONE: bool>(&self, took_ns: u64, outcome: CallOutcome) {
        if outcome != CallOutcome::Ok {
            self.error(outcome);
        }
        let latency = match self.latency.get() {
            Some(latency) => latency,
            None => self.first(),
        };
        add::<ALONE>(latency.of(took_ns), 1);
    }

    #[cold]
    fn first(&self) -> &Buckets {
        self.latency.get_or_init(Buckets::new)
    }

    /// Handlers of an endpoint's own server have ended. Errors among them were counted.
    #[inline]
    pub(crate) fn end_many(&self, took_ns: u64, handlers: u64) {
        let latency = match self.latency.get() {
            Some(latency) => latency,
            None => self.first(),
        };
        add::<true>(latency.of(took_ns), handlers);
    }

    /// Counts the outcome of a call that is counted otherwise, afterwards.
    #[cold]
    pub(crate) fn error(&self, outcome: CallOutcome) {
        add::<false>(&self.errors[outcome as usize], 1);
    }

    /// A handler of an endpoint's own server, which waited, has ended.
    pub(crate) fn end_waited(&self, took_ns: u64, outcome: CallOutcome) {
        add::<true>(&self.waited, 1);
        self.end::<true>(took_ns, outcome);
    }

    /// A call ended before its handler began.
    #[cold]
    pub(crate) fn refuse(&self, outcome: CallOutcome) {
        if !self.is_local_server {
            add::<false>(&self.begun, 1);
        }
        self.error(outcome);
        add::<false>(&self.unrun, 1);
    }

    /// Items of a stream.
    #[inline]
    pub(crate) fn add_items(&self, items: u64) {
        add::<false>(&self.items, items);
    }

    /// The counters at this moment.
    fn read(&self, service: &'static str, method: &'static str) -> MethodStats {
        // First, so that no more are in progress than there were.
        let begun = load(&self.begun);
        let (latency, unrun) = (self.latency.get().map(Buckets::read), load(&self.unrun));
        let latency = latency.unwrap_or_default();
        let mut outcomes = self.errors.each_ref().map(load);
        let errors: u64 = outcomes.iter().sum();
        let ok = most(&self.reported_ok, (latency.count() + unrun).saturating_sub(errors));
        outcomes[CallOutcome::Ok as usize] = ok;
        let ended = ok + errors;
        let started = match self.is_local_server {
            true => ended + begun.saturating_sub(load(&self.waited)),
            false => begun.max(ended),
        };
        let started = most(&self.reported_started, started);
        let in_progress = started - ended;
        MethodStats {
            service,
            method,
            started,
            in_progress,
            outcomes,
            items: load(&self.items),
            latency,
        }
    }
}

/// The counters of the methods of a service, in the order of its methods.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct ServiceCells {
    service: &'static str,
    methods: Arc<[(&'static str, Arc<MethodCells>)]>,
}

impl ServiceCells {
    /// `is_local_server`: of an endpoint's own server. Its calls that end in their first poll are not
    /// counted when they begin.
    pub(crate) fn new(
        service: &'static str,
        methods: impl Iterator<Item = &'static str>,
        is_local_server: bool,
    ) -> Self {
        let cells = || Arc::new(MethodCells { is_local_server, ..MethodCells::default() });
        let methods = methods.map(|name| (name, cells())).collect();
        ServiceCells { service, methods }
    }

    /// The counters of the method at a place.
    #[inline]
    pub(crate) fn method(&self, index: usize) -> Option<&Arc<MethodCells>> {
        self.methods.get(index).map(|(_, cells)| cells)
    }

    /// The counters of all methods.
    pub(crate) fn read(&self) -> impl Iterator<Item = MethodStats> {
        self.methods.iter().map(|(name, cells)| cells.read(self.service, name))
    }

    fn is_of(&self, service: &str, methods: impl Iterator<Item = &'static str>) -> bool {
        self.service == service && self.methods.iter().map(|(name, _)| *name).eq(methods)
    }
}

/// The counters of the services that a client calls, of all typed clients on a connection or an
/// endpoint. There is one for each service of the program, so that the memory is bounded.
#[derive(Clone, Debug, Default)]
pub(crate) struct Callers(Option<Arc<Mutex<Vec<ServiceCells>>>>);

impl Callers {
    /// `counts` is [`crate::Config::count_methods`].
    pub(crate) fn new(counts: bool) -> Self {
        Callers(counts.then(Arc::default))
    }

    fn lock(&self) -> Option<MutexGuard<'_, Vec<ServiceCells>>> {
        // Only a failed allocation panics under this lock, and it leaves the list intact.
        Some(self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The counters of a service with these methods, unless none are counted.
    pub(crate) fn of(
        &self,
        service: &'static str,
        methods: impl Iterator<Item = &'static str> + Clone,
    ) -> Option<ServiceCells> {
        let mut all = self.lock()?;
        if let Some(known) = all.iter().find(|cells| cells.is_of(service, methods.clone())) {
            return Some(known.clone());
        }
        all.push(ServiceCells::new(service, methods, false));
        all.last().cloned()
    }

    /// The counters of all methods.
    pub(crate) fn read(&self) -> Vec<MethodStats> {
        let all = self.lock();
        all.iter().flat_map(|all| all.iter()).flat_map(ServiceCells::read).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(cells: &MethodCells) -> MethodStats {
        cells.read("Service", "method")
    }

    #[test]
    fn calls_of_many_threads_are_counted_exactly_while_they_are_read() {
        let cells = MethodCells::default();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let cells = &cells;
                scope.spawn(move || {
                    for n in 0..20_000_u64 {
                        cells.begin::<false>();
                        let failed = n.is_multiple_of(4);
                        let outcome = if failed { CallOutcome::Failed } else { CallOutcome::Ok };
                        cells.end::<false>(n * (thread + 1), outcome);
                    }
                });
            }
            let mut last = read(&cells);
            for _ in 0..100 {
                let seen = read(&cells);
                let ended: u64 = seen.outcomes.iter().sum();
                assert!(seen.in_progress <= 4 && ended <= 80_000);
                assert_eq!(seen.started, ended + seen.in_progress);
                // Counters never fall, and no call is counted as another than it is.
                assert!(seen.started >= last.started, "{seen:?} after {last:?}");
                let both = seen.outcomes.iter().zip(last.outcomes);
                assert!(both.into_iter().all(|(now, before)| *now >= before), "{seen:?}");
                assert!(seen.ended(CallOutcome::Ok) <= 60_000);
                last = seen;
            }
        });
        let all = read(&cells);
        assert_eq!((all.started, all.in_progress, all.latency.count()), (80_000, 0, 80_000));
        assert_eq!((all.ended(CallOutcome::Ok), all.ended(CallOutcome::Failed)), (60_000, 20_000));
    }

    #[test]
    fn no_counter_falls_while_the_handlers_of_a_burst_are_counted() {
        let cells = MethodCells { is_local_server: true, ..MethodCells::default() };
        let seen = |ok: u64, failed: u64| {
            let all = read(&cells);
            assert_eq!((all.ended(CallOutcome::Ok), all.ended(CallOutcome::Failed)), (ok, failed));
            assert_eq!((all.started, all.in_progress), (ok + failed, 0));
        };
        cells.end_many(5, 3);
        seen(3, 0);
        // One of two has failed.
        cells.error(CallOutcome::Failed);
        seen(3, 1);
        cells.end_many(5, 2);
        seen(4, 1);
    }

    #[test]
    fn refused_requests_have_an_outcome_and_no_latency() {
        for is_local_server in [false, true] {
            let cells = MethodCells { is_local_server, ..MethodCells::default() };
            cells.refuse(CallOutcome::Overload);
            let all = read(&cells);
            assert_eq!((all.started, all.in_progress, all.latency.count()), (1, 0, 0));
            assert_eq!((all.ended(CallOutcome::Overload), all.ended(CallOutcome::Ok)), (1, 0));
        }
    }

    #[test]
    fn handlers_that_wait_are_in_progress_and_others_were_not() {
        let cells = MethodCells { is_local_server: true, ..MethodCells::default() };
        cells.end::<true>(5, CallOutcome::Ok);
        cells.begin::<true>();
        assert_eq!((read(&cells).started, read(&cells).in_progress), (2, 1));
        cells.end_waited(9, CallOutcome::Cancelled);
        let all = read(&cells);
        assert_eq!((all.started, all.in_progress, all.ended(CallOutcome::Cancelled)), (2, 0, 1));
    }
}
