//! The state that the services of a server share: their names, their streams, counters.

use std::future::ready;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::answer::Refusal;
use super::codec::Decode;
use super::error::{DecodeError, StreamError};
use super::hello::{self, HelloReply};
use super::registry::{LocalRegistry, Received, RegisterError, Registry};
use super::stream::Streams;

/// Numbers of the library's own methods.
pub(crate) const HELLO: u16 = 0x03F0;
pub(crate) const PULL: u16 = 0x03F1;
pub(crate) const PUSH: u16 = 0x03F2;

/// What a service is called on the network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ServiceInfo {
    /// Its name.
    pub name: &'static str,
    /// The name of its codec.
    pub codec: &'static str,
    /// A hash of its name, its codec, and the names and types of its methods. It does not cover the
    /// fields of these types.
    pub fingerprint: u64,
    /// Its methods.
    pub methods: &'static [MethodInfo],
}

impl ServiceInfo {
    #[doc(hidden)]
    pub const fn new(
        name: &'static str,
        codec: &'static str,
        base: u64,
        methods: &'static [MethodInfo],
    ) -> Self {
        ServiceInfo { name, codec, fingerprint: fingerprint(base, codec), methods }
    }
}

/// A method of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MethodInfo {
    /// Its name.
    pub name: &'static str,
    /// Its request type, or message type.
    pub number: u16,
}

impl MethodInfo {
    #[doc(hidden)]
    pub const fn new(name: &'static str, number: u16) -> Self {
        MethodInfo { name, number }
    }
}

/// Continues a hash (FNV-1a) with the name of a codec.
const fn fingerprint(base: u64, codec: &str) -> u64 {
    let (mut hash, bytes, mut i) = (base, codec.as_bytes(), 0);
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0100_0000_01b3);
        i += 1;
    }
    hash
}

/// Counters of the services of a server.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[non_exhaustive]
pub struct ServiceStats {
    /// Requests, one-way messages and items of streams that could not be decoded.
    pub decode_errors: u64,
    /// Clients that have another version of a service, or want another service.
    pub mismatches: u64,
    /// Pulls and pushes that broke the rules of streams.
    pub stream_errors: u64,
    /// Pulls and pushes of streams that the server does not have. Some are late: they arrive after
    /// the end of their stream.
    pub unknown_streams: u64,
    /// Streams that were opened.
    pub streams_opened: u64,
    /// Streams that are open.
    pub streams: u64,
}

/// The state that the services of a server share. Clones share it.
#[derive(Clone, Default, Debug)]
pub struct Services(Arc<Shared>);

#[derive(Default, Debug)]
struct Shared {
    list: Mutex<Vec<ServiceInfo>>,
    counters: Counters,
    streams: Streams,
}

#[derive(Default, Debug)]
pub(super) struct Counters {
    decode_errors: AtomicU64,
    mismatches: AtomicU64,
    stream_errors: AtomicU64,
    unknown_streams: AtomicU64,
    pub(super) streams_opened: AtomicU64,
}

/// Adds one to a counter.
pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Services {
    /// The counters.
    pub fn stats(&self) -> ServiceStats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let c = &self.0.counters;
        ServiceStats {
            decode_errors: read(&c.decode_errors),
            mismatches: read(&c.mismatches),
            stream_errors: read(&c.stream_errors),
            unknown_streams: read(&c.unknown_streams),
            streams_opened: read(&c.streams_opened),
            streams: self.0.streams.len() as u64,
        }
    }

    /// The services.
    pub fn list(&self) -> Vec<ServiceInfo> {
        self.lock().clone()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<ServiceInfo>> {
        self.0.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.0.counters
    }

    pub(super) fn streams(&self) -> &Streams {
        &self.0.streams
    }

    #[cold]
    pub(super) fn undecoded(&self, error: DecodeError) -> Refusal {
        count(&self.0.counters.decode_errors);
        Refusal::Undecoded(error)
    }

    #[cold]
    pub(super) fn stream_error(&self, error: StreamError) -> Refusal {
        let counters = &self.0.counters;
        match error {
            StreamError::Unknown => count(&counters.unknown_streams),
            _ => count(&counters.stream_errors),
        }
        Refusal::Stream(error)
    }

    #[cold]
    pub(super) fn mismatch(&self) {
        count(&self.0.counters.mismatches);
    }

    /// Adds a service, whose handlers are registered next. Returns whether it is the first one.
    ///
    /// # Errors
    /// A name or a number is taken.
    fn add(
        &self,
        info: &ServiceInfo,
        is_taken: &dyn Fn(u16) -> bool,
    ) -> Result<bool, RegisterError> {
        let mut list = self.lock();
        if list.iter().any(|other| other.name == info.name) {
            return Err(RegisterError::Name { service: info.name });
        }
        let taken = |method: &'static str, number, other| {
            Err(RegisterError::Taken { service: info.name, method, number, other })
        };
        for method in info.methods {
            for other in list.iter() {
                if let Some(same) = other.methods.iter().find(|m| m.number == method.number) {
                    let other = format!("{}.{}", other.name, same.name);
                    return taken(method.name, method.number, other);
                }
            }
            if is_taken(method.number) {
                let other = "a handler without a service".to_owned();
                return taken(method.name, method.number, other);
            }
        }
        let first = list.is_empty();
        if first && let Some(number) = [HELLO, PULL, PUSH].into_iter().find(|n| is_taken(*n)) {
            return taken("(connect or stream)", number, "a handler without a service".to_owned());
        }
        list.push(*info);
        Ok(first)
    }

    /// Decodes the arguments of a request, or counts why it cannot be.
    #[doc(hidden)]
    #[inline]
    pub fn arguments<K: Decode<A>, A>(&self, received: Received<'_>) -> Result<A, Refusal> {
        received.decode::<K, A>().map_err(|e| self.undecoded(e))
    }

    fn hello(&self, received: &Received<'_>) -> HelloReply {
        hello::answer(self, received.bytes())
    }
}

/// Adds a service to a server, and the library's methods if it is the first one.
#[doc(hidden)]
pub fn begin<R: Registry>(registry: &mut R, info: &ServiceInfo) -> Result<Services, RegisterError> {
    let services = registry.services().clone();
    if services.add(info, &|number| registry.is_taken(number))? {
        let (hello, pull, push) = (services.clone(), services.clone(), services.clone());
        registry.on_request(HELLO, move |received: Received<'_>| ready(hello.hello(&received)));
        registry.on_request(PULL, move |received: Received<'_>| pull.pull(received));
        registry.on_request(PUSH, move |received: Received<'_>| push.push(received));
    }
    Ok(services)
}

/// [`begin`] on an endpoint's own thread.
#[doc(hidden)]
pub fn begin_local<R: LocalRegistry>(
    registry: &mut R,
    info: &ServiceInfo,
) -> Result<Services, RegisterError> {
    let services = registry.services().clone();
    if services.add(info, &|number| registry.is_taken(number))? {
        let (hello, pull, push) = (services.clone(), services.clone(), services.clone());
        registry.on_request(HELLO, move |received: Received<'_>| ready(hello.hello(&received)));
        registry.on_request(PULL, move |received: Received<'_>| pull.pull(received));
        registry.on_request(PUSH, move |received: Received<'_>| push.push(received));
    }
    Ok(services)
}
