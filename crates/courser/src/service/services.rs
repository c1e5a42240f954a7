//! The state that the services of a server share: their names, their streams, counters.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::access::{Authorize, Denied, Peer};
use super::answer::Refusal;
use super::load::Load;
use super::middleware::{ServerChain, ServerMiddleware, Subject};
use super::stream::Streams;
use crate::channel::method::{ACCEPT, HELLO, METADATA, MISSING, PULL, PUSH, ServiceInfo};
use crate::core::drain::DrainToken;
use crate::counters::{count, shared_stats};
use crate::counts::{CallOutcome, MethodCells, MethodStats, ServiceCells};
use crate::error::register::RegisterError;
use crate::error::service::{DecodeError, StreamError};
use crate::shape::method::MethodKind;

/// Request types that servers assign to the methods of their services. Earlier versions hashed names to
/// types below, so a call of such a client does not reach another method.
const ASSIGNED: std::ops::Range<u16> = 0x4000..0xFFFF;

/// A service of a server: its methods have consecutive request types.
#[derive(Clone, Debug)]
pub(super) struct Assigned {
    pub(super) info: ServiceInfo,
    first: u16,
    /// The counters of the methods.
    cells: Option<ServiceCells>,
    /// Its requests are accepted while the server drains.
    pub(super) in_drain: bool,
}

impl Assigned {
    /// The request type of the method at this place of [`ServiceInfo::methods`].
    pub(super) fn number(&self, index: usize) -> u16 {
        self.first + index as u16
    }

    /// The first type behind the methods.
    fn end(&self) -> u16 {
        self.number(self.info.methods.len())
    }

    /// The types of the methods.
    pub(super) fn numbers(&self) -> Range<u16> {
        self.first..self.end()
    }
}

shared_stats! {
    /// Counters of the services of a server.
    ///
    /// ```
    /// # use courser_example_store::*;
    /// # fn main() -> Done { run_served(async |uri, serving| {
    /// let store = StoreClient::connect(&uri).await?;
    /// let mut keys = store.list("a".to_owned()).await?;
    /// assert!(keys.next().await.is_some());
    /// let stats = serving.service_stats();
    /// assert_eq!((stats.streams_opened, stats.decode_errors, stats.denied), (1, 0, 0));
    /// # Ok(()) }) }
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
    #[non_exhaustive]
    pub struct ServiceStats: "services" {
        /// Requests, one-way messages and items of streams that could not be decoded.
        pub decode_errors: u64 = counter(messages),
        /// Clients that have a method which the server does not have, or has in another shape, and
        /// clients that want another service.
        pub mismatches: u64 = counter(clients),
        /// Pulls and pushes that broke the rules of streams.
        pub stream_errors: u64 = counter(calls),
        /// Pulls and pushes of streams that the server does not have, which are refused at once. Some are
        /// late: they arrive after the end of their stream.
        pub unknown_streams: u64 = counter(calls),
        /// Requests, messages and clients that the server's [`Authorize`] or middleware has refused.
        pub denied: u64 = counter(requests),
        /// Streams that were opened.
        pub streams_opened: u64 = counter(streams),
        /// Streams that were refused because their client had [`crate::Config::max_streams_per_peer`].
        pub streams_refused: u64 = counter(streams),
        /// Streams that are open, and calls that wait for one to be opened.
        pub streams: u64 = gauge(streams),
        /// Bytes of the buffers with items that the streams of the server hold and clients did not pull.
        pub stream_bytes: u64 = gauge(bytes),
    }

    /// The counters that the services increment; `streams` and `stream_bytes` stay 0 in it.
    pub(super) shared Counters;
}

/// Decides about the requests of a server; `None`: all are allowed.
#[derive(Default)]
struct Access(Mutex<Option<Arc<dyn Authorize>>>);

impl Access {
    fn lock(&self) -> MutexGuard<'_, Option<Arc<dyn Authorize>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Access").field(&self.lock().is_some()).finish()
    }
}

/// The middleware of a server; `None`: there is none.
#[derive(Default)]
struct Chain(Mutex<Option<ServerChain>>);

impl Chain {
    fn lock(&self) -> MutexGuard<'_, Option<ServerChain>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Chain").field(&self.lock().is_some()).finish()
    }
}

/// The names and the kind of a method.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MethodOf {
    pub(crate) service: &'static str,
    pub(crate) method: &'static str,
    pub(crate) kind: MethodKind,
}

impl MethodOf {
    /// A call of the method by this client.
    pub(super) fn subject(self, peer: Peer) -> Subject {
        let MethodOf { service, method, kind } = self;
        Subject { service, method, kind, peer }
    }
}

/// The state that the services of a server share. Clones share it.
///
/// ```
/// # use courser_example_store::*;
/// use courser::Server;
/// use courser::service::{Registry, Services};
///
/// # fn main() -> Done {
/// let server = Server::bind("udp://127.0.0.1:0")?.add_service(StoreServer::new(Texts))?;
/// let services: &Services = server.services();
/// assert_eq!(services.list()[0].name, "Store");
/// assert!(services.request_type("Store", "get").is_some());
/// # Ok(()) }
/// ```
#[derive(Clone, Default, Debug)]
pub struct Services(Arc<Shared>);

#[derive(Default, Debug)]
struct Shared {
    list: Mutex<Vec<Assigned>>,
    access: Access,
    middleware: Chain,
    counters: Counters,
    streams: Streams,
    load: Load,
    drain: DrainToken,
    /// The request types of methods whose handlers have a context.
    asking: Mutex<BTreeSet<u16>>,
    /// The first request type behind those of methods, which follow each other; 0: there are none. Requests
    /// with metadata read it.
    end: AtomicU16,
    /// The server below reads requests with metadata.
    reads_metadata: AtomicBool,
    /// [`crate::Config::count_methods`].
    counting: AtomicBool,
}

impl Services {
    /// The counters.
    pub fn stats(&self) -> ServiceStats {
        ServiceStats {
            streams: self.0.streams.len() as u64,
            stream_bytes: self.0.streams.held() as u64,
            ..self.0.counters.read()
        }
    }

    /// States whether the server shuts down.
    pub fn drain_token(&self) -> &DrainToken {
        &self.0.drain
    }

    /// Ends the streams of an endpoint that made no progress since the last call, as the server shuts
    /// down.
    pub(crate) fn end_stalled_streams(&self, endpoint: u16) {
        self.0.streams.shut_down(endpoint, false);
    }

    /// Ends all streams of an endpoint, as the server shuts down.
    pub(crate) fn end_streams(&self, endpoint: u16) {
        self.0.streams.shut_down(endpoint, true);
    }

    /// The services.
    pub fn list(&self) -> Vec<ServiceInfo> {
        self.lock().iter().map(|service| service.info).collect()
    }

    /// The request type that a method has at this server. It is another one at other servers.
    pub fn request_type(&self, service: &str, method: &str) -> Option<u16> {
        let list = self.lock();
        let service = list.iter().find(|s| s.info.name == service)?;
        let index = service.info.methods.iter().position(|m| m.name == method)?;
        Some(service.number(index))
    }

    /// Returns whether a request type is that of a method, which the server may not have, or of the
    /// library's own methods.
    pub(crate) fn has(&self, req_type: u16) -> bool {
        let list = self.lock();
        match req_type {
            HELLO | PULL | PUSH | ACCEPT | METADATA | MISSING => !list.is_empty(),
            _ => list.iter().any(|service| (service.first..service.end()).contains(&req_type)),
        }
    }

    /// Returns whether no handler without a service may be set for a request type. `is_set`: it has
    /// a handler.
    pub(crate) fn keeps(&self, req_type: u16, is_set: bool) -> bool {
        (is_set || matches!(req_type, METADATA | MISSING)) && self.has(req_type)
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Assigned>> {
        self.0.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks everything that requests must not wait for.
    #[cfg(test)]
    pub(super) fn lock_all(&self) -> impl Sized + '_ {
        let Shared { access, middleware, .. } = &*self.0;
        (self.lock(), access.lock(), middleware.lock(), self.asking())
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.0.counters
    }

    pub(super) fn streams(&self) -> &Streams {
        &self.0.streams
    }

    /// The load that decoding is.
    pub(crate) fn load(&self) -> &Load {
        &self.0.load
    }

    pub(crate) fn undecoded(&self, error: DecodeError) -> Refusal {
        count(&self.0.counters.decode_errors);
        Refusal::Undecoded(error)
    }

    pub(super) fn stream_error(&self, error: StreamError) -> Refusal {
        let counters = &self.0.counters;
        match error {
            StreamError::Unknown => count(&counters.unknown_streams),
            StreamError::Limit => count(&counters.streams_refused),
            _ => count(&counters.stream_errors),
        }
        Refusal::Stream(error)
    }

    /// Sets what decides about requests, in place of an earlier one. Gates that are there keep it until they
    /// are renewed.
    pub(crate) fn set_access(&self, new: Arc<dyn Authorize>) {
        *self.0.access.lock() = Some(new);
    }

    /// The decision about requests, if there is one.
    pub(super) fn access(&self) -> Option<Arc<dyn Authorize>> {
        self.0.access.lock().clone()
    }

    /// Adds middleware behind that which is there. Gates that are there do not have it until they are renewed.
    pub(crate) fn add_middleware(&self, new: Arc<dyn ServerMiddleware>) {
        let mut chain = self.0.middleware.lock();
        *chain = Some(chain.take().unwrap_or_default().with(new));
    }

    /// The middleware, if there is some: a list of its own, so that threads share no count of references.
    pub(super) fn middleware(&self) -> Option<ServerChain> {
        self.0.middleware.lock().as_ref().map(ServerChain::copied)
    }

    /// Returns whether middleware sees the calls of a request type.
    pub(crate) fn is_observed(&self, number: u16) -> bool {
        self.is_method(number) && self.0.middleware.lock().is_some()
    }

    /// The names of a service and its method.
    pub(super) fn method(&self, number: u16) -> Option<(&'static str, &'static str)> {
        let list = self.lock();
        let service = list.iter().find(|s| (s.first..s.end()).contains(&number))?;
        let method = service.info.methods.get(usize::from(number - service.first))?;
        Some((service.info.name, method.name))
    }

    /// The names and the kind of a method.
    pub(crate) fn method_info(&self, number: u16) -> Option<MethodOf> {
        let list = self.lock();
        let service = list.iter().find(|s| (s.first..s.end()).contains(&number))?;
        let at = usize::from(number - service.first);
        let (method, shape) = (service.info.methods.get(at)?, service.info.shapes().get(at)?);
        Some(MethodOf { service: service.info.name, method: method.name, kind: shape.kind() })
    }

    /// The server below passes requests with metadata to the handlers of their methods.
    pub(crate) fn set_reads_metadata(&self) {
        self.0.reads_metadata.store(true, Ordering::Relaxed);
    }

    pub(crate) fn reads_metadata(&self) -> bool {
        self.0.reads_metadata.load(Ordering::Relaxed)
    }

    /// Returns whether a request type is that of a method.
    pub(crate) fn is_method(&self, number: u16) -> bool {
        let end = self.0.end.load(Ordering::Relaxed);
        (ASSIGNED.start..end).contains(&number)
    }

    /// Methods of services that are added later are counted, or not.
    pub(crate) fn set_counting(&self, counts: bool) {
        self.0.counting.store(counts, Ordering::Relaxed);
    }

    pub(crate) fn is_counting(&self) -> bool {
        self.0.counting.load(Ordering::Relaxed)
    }

    /// The counters of the method with this request type, if it is counted.
    pub(crate) fn cells(&self, number: u16) -> Option<Arc<MethodCells>> {
        let list = self.lock();
        let service = list.iter().find(|s| (s.first..s.end()).contains(&number))?;
        service.cells.as_ref()?.method(usize::from(number - service.first)).cloned()
    }

    /// Counts a request or message that does not reach its handler.
    #[cold]
    pub(crate) fn count_refused(&self, number: u16, outcome: CallOutcome) {
        if let Some(cells) = self.cells(number) {
            cells.refuse(outcome);
        }
    }

    /// The counters of each method of the services, in the order of their registration.
    pub fn method_stats(&self) -> Vec<MethodStats> {
        self.lock().iter().filter_map(|s| s.cells.as_ref()).flat_map(ServiceCells::read).collect()
    }

    fn asking(&self) -> MutexGuard<'_, BTreeSet<u16>> {
        self.0.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The handler of a method has a context.
    pub(crate) fn set_asking(&self, number: u16) {
        self.asking().insert(number);
    }

    /// Returns whether the handler of a method has a context.
    pub(crate) fn is_asking(&self, number: u16) -> bool {
        self.asking().contains(&number)
    }

    pub(crate) fn denied(&self, denied: Denied) -> Refusal {
        count(&self.0.counters.denied);
        Refusal::Denied(denied)
    }

    pub(super) fn mismatch(&self) {
        count(&self.0.counters.mismatches);
    }

    /// Adds a service, whose handlers are registered next: with the request type of its first method,
    /// and whether it is the first service. `is_local`: they run on the endpoint's own thread.
    ///
    /// # Errors
    /// The name is taken, no types are left, or a handler without a service has one of them.
    pub(super) fn add(
        &self,
        info: &ServiceInfo,
        is_local: bool,
        is_taken: &dyn Fn(u16) -> bool,
    ) -> Result<(u16, bool), RegisterError> {
        let service = info.name;
        // Looked at now, so that the first client does not wait for it.
        let _ = info.shapes();
        let mut list = self.lock();
        if list.iter().any(|other| other.info.name == service) {
            return Err(RegisterError::Name { service });
        }
        let is_first = list.is_empty();
        let first = list.last().map_or(ASSIGNED.start, Assigned::end);
        let (methods, left) = (info.methods.len(), usize::from(ASSIGNED.end - first));
        if methods > left {
            return Err(RegisterError::Full { service, methods, left });
        }
        let own = [HELLO, PULL, PUSH, ACCEPT, METADATA, MISSING].into_iter().filter(|_| is_first);
        if let Some(number) = own.chain(first..first + methods as u16).find(|n| is_taken(*n)) {
            return Err(RegisterError::Taken { service, number });
        }
        let cells = self.is_counting().then(|| ServiceCells::new(service, info.names(), is_local));
        let added = Assigned { info: *info, first, cells, in_drain: false };
        self.0.end.store(added.end(), Ordering::Relaxed);
        list.push(added);
        Ok((first, is_first))
    }
}
