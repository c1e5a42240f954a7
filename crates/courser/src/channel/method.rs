//! Services and methods as both ends of a connection name them.

use std::fmt;
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use crate::error::method::MethodMismatch;
use crate::shape::method::{MethodShape, Reads};
use crate::shape::{FNV_BASIS, fnv};

/// Request types of the library's own methods.
pub(crate) const HELLO: u16 = 0x03F0;
pub(crate) const PULL: u16 = 0x03F1;
pub(crate) const PUSH: u16 = 0x03F2;
pub(crate) const ACCEPT: u16 = 0x03F3;
/// The request type of calls with metadata, which name their method.
pub(crate) const METADATA: u16 = 0x03F4;
/// The request type of methods that a server does not have. It is never assigned.
pub(crate) const MISSING: u16 = 0xFFFF;

/// A service as one end has it.
///
/// ```
/// # use courser_example_store::*;
/// use courser::service::ServiceInfo;
///
/// # fn main() {
/// let info: &ServiceInfo = &StoreClient::<courser::Client>::SERVICE;
/// assert_eq!((info.name, info.methods[1].name), ("Store", "get"));
/// println!("{}", info.shapes()[1]);
/// # }
/// ```
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct ServiceInfo {
    /// Its name.
    pub name: &'static str,
    /// The name of its codec.
    pub codec: &'static str,
    /// Its methods, ordered by their names.
    pub methods: &'static [MethodInfo],
    /// The shapes of the methods, in the same order.
    shapes: fn() -> &'static [MethodShape],
    /// Returns whether the codec reads values of one shape as those of another one.
    reads: Reads,
}

impl ServiceInfo {
    #[doc(hidden)]
    pub const fn new(
        name: &'static str,
        (codec, reads): (&'static str, Reads),
        methods: &'static [MethodInfo],
        shapes: fn() -> &'static [MethodShape],
    ) -> Self {
        ServiceInfo { name, codec, methods, shapes, reads }
    }

    /// The place of a method among [`ServiceInfo::methods`].
    #[doc(hidden)]
    pub const fn index(&self, method: &str) -> u16 {
        let mut i = 0;
        while i < self.methods.len() {
            if is_same(self.methods[i].name.as_bytes(), method.as_bytes()) {
                return i as u16;
            }
            i += 1;
        }
        panic!("the service has no method of this name")
    }

    /// The shapes of its methods, in the order of [`ServiceInfo::methods`]. The first call looks at the
    /// types, which takes some microseconds for each.
    pub fn shapes(&self) -> &'static [MethodShape] {
        (self.shapes)()
    }

    /// The names of its methods.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> + Clone + use<> {
        self.methods.iter().map(|method| method.name)
    }

    /// A hash of its name, its codec, and the names and shapes of its methods. It is the same in each
    /// build of the same definition, on all machines.
    pub fn fingerprint(&self) -> u64 {
        let names = fnv(fnv(FNV_BASIS, self.name.as_bytes()), self.codec.as_bytes());
        self.methods.iter().zip(self.shapes()).fold(names, |hash, (method, shape)| {
            fnv(fnv(hash, method.name.as_bytes()), &shape.fingerprint().to_le_bytes())
        })
    }

    /// Returns why a client that has a method in this shape cannot call it at a server that has it in
    /// another one.
    pub(crate) fn compare(&self, client: &MethodShape, server: &MethodShape) -> Result<(), String> {
        client.calls(server, self.reads)
    }
}

impl PartialEq for ServiceInfo {
    fn eq(&self, other: &Self) -> bool {
        (self.name, self.codec, self.methods) == (other.name, other.codec, other.methods)
            && self.shapes() == other.shapes()
    }
}

impl Eq for ServiceInfo {}

impl fmt::Debug for ServiceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ServiceInfo { name, codec, .. } = self;
        let methods = self.methods.iter().map(|method| method.name).zip(self.shapes());
        f.debug_struct("ServiceInfo")
            .field("name", name)
            .field("codec", codec)
            .field("methods", &methods.collect::<Vec<_>>())
            .finish()
    }
}

/// A method of a service.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() {
/// let methods = StoreClient::<courser::Client>::SERVICE.methods;
/// let repeated = methods.iter().filter(|method| method.is_idempotent);
/// assert_eq!(repeated.map(|method| method.name).collect::<Vec<_>>(), ["get"]);
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MethodInfo {
    /// Its name.
    pub name: &'static str,
    /// It has `#[idempotent]`: running its handler twice has the effect of running it once.
    pub is_idempotent: bool,
}

impl MethodInfo {
    #[doc(hidden)]
    pub const fn new(name: &'static str) -> Self {
        MethodInfo { name, is_idempotent: false }
    }

    #[doc(hidden)]
    pub const fn idempotent(self) -> Self {
        MethodInfo { is_idempotent: true, ..self }
    }
}

const fn is_same(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

/// The precision of pauses, ns.
const PAUSE_UNIT_NS: u64 = 10_000;

/// The handler that a call is for: a request type, or a method of a service whose request type the
/// connection finds out when it sends the call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[doc(hidden)]
pub struct MethodId {
    /// A service of [`Channel::adopt`](super::Channel::adopt).
    pub(crate) service: Option<NonZeroU16>,
    /// The place of the method in the service, [`MethodId::ASKS`], or the request type.
    pub(crate) number: u16,
}

impl MethodId {
    /// The place of the call that asks for the service. Methods have smaller ones.
    pub(crate) const ASKS: u16 = u16::MAX;

    /// Names a pause in place of a method, rounded up to 10 us: see [`Channel::pause`](super::Channel::pause).
    pub(crate) fn of_pause(after: Duration) -> Self {
        let units = after.as_nanos().div_ceil(PAUSE_UNIT_NS.into());
        let units = u32::try_from(units).unwrap_or(u32::MAX).min(0xFFFE_FFFF);
        MethodId { service: NonZeroU16::new((units >> 16) as u16 + 1), number: units as u16 }
    }

    /// The time of a pause, ns.
    pub(crate) fn pause_ns(self) -> u64 {
        let high = self.service.map_or(0, |service| u64::from(service.get()) - 1);
        (high << 16 | u64::from(self.number)) * PAUSE_UNIT_NS
    }

    /// The request type, on connections that adopt no services.
    #[inline]
    pub fn req_type(self) -> u16 {
        self.number
    }
}

impl From<u16> for MethodId {
    #[inline]
    fn from(req_type: u16) -> Self {
        MethodId { service: None, number: req_type }
    }
}

/// In the place of a method: its call has metadata. Services have fewer methods.
pub(crate) const MARKED: u16 = 0x4000;

/// An extension of servers: they read requests with metadata.
pub(crate) const READS_METADATA: u8 = 1;

/// The methods of a service at its server, ordered as [`ServiceInfo::methods`].
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    /// Their request types, or [`MISSING`].
    types: Arc<[u16]>,
    /// Why the missing ones are, by their places. `None`: all methods are there.
    mismatches: Option<Arc<[(u16, MethodMismatch)]>>,
    /// The extensions of the server.
    extensions: u8,
}

impl Numbers {
    /// From the request type of each method, or the reason that it cannot be called.
    pub(crate) fn new(
        methods: impl Iterator<Item = Result<u16, MethodMismatch>>,
        extensions: u8,
    ) -> Self {
        let mut mismatches = Vec::new();
        let types = methods.zip(0..).map(|(method, index)| match method {
            Ok(number) => number,
            Err(mismatch) => {
                mismatches.push((index, mismatch));
                MISSING
            }
        });
        let types = types.collect();
        let mismatches = (!mismatches.is_empty()).then(|| mismatches.into());
        Numbers { types, mismatches, extensions }
    }

    /// The request type of the method at this place; `None`: it cannot be called, or its call is
    /// [`MARKED`].
    #[inline]
    pub(crate) fn get(&self, index: u16) -> Option<u16> {
        self.types.get(usize::from(index)).copied().filter(|number| *number != MISSING)
    }

    /// Why the method at this place cannot be called.
    pub(crate) fn mismatch(&self, index: u16) -> Option<MethodMismatch> {
        let all = self.mismatches.as_ref()?;
        let found = all.binary_search_by_key(&(index & !MARKED), |(at, _)| *at).ok()?;
        Some(all[found].1.clone())
    }

    /// The request type of the method at this place, or the reason that it cannot be called.
    pub(crate) fn number(&self, index: u16) -> Result<u16, MethodMismatch> {
        match self.get(index & !MARKED) {
            Some(number) => Ok(number),
            None => self.mismatch(index).map_or(Ok(MISSING), Err),
        }
    }

    /// Returns whether the server reads requests with metadata.
    pub(crate) fn reads_metadata(&self) -> bool {
        self.extensions & READS_METADATA != 0
    }
}
