//! Services and methods as both ends of a connection name them.

use std::num::NonZeroU16;
use std::sync::Arc;

/// Request types of the library's own methods.
pub(crate) const HELLO: u16 = 0x03F0;
pub(crate) const PULL: u16 = 0x03F1;
pub(crate) const PUSH: u16 = 0x03F2;
pub(crate) const ACCEPT: u16 = 0x03F3;
/// The request type of calls with metadata, which name their method.
pub(crate) const METADATA: u16 = 0x03F4;
/// The request type of methods that a server does not have. It is never assigned.
pub(crate) const MISSING: u16 = 0xFFFF;

/// The name of a service on the network.
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
    /// Its methods, ordered by their names.
    pub methods: &'static [MethodInfo],
}

impl ServiceInfo {
    #[doc(hidden)]
    pub const fn new(
        name: &'static str,
        codec: &'static str,
        methods: &'static [MethodInfo],
    ) -> Self {
        let mut hash = fnv(FNV_BASIS, name.as_bytes());
        let mut i = 0;
        while i < methods.len() {
            hash = fnv(hash, &methods[i].signature.to_le_bytes());
            i += 1;
        }
        ServiceInfo { name, codec, fingerprint: fnv(hash, codec.as_bytes()), methods }
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
}

/// A method of a service.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct MethodInfo {
    /// Its name.
    pub name: &'static str,
    /// A hash of its name, its kind and its types.
    signature: u64,
}

impl MethodInfo {
    #[doc(hidden)]
    pub const fn new(name: &'static str, signature: u64) -> Self {
        MethodInfo { name, signature }
    }
}

const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;

/// Continues a hash (FNV-1a).
const fn fnv(mut hash: u64, bytes: &[u8]) -> u64 {
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0100_0000_01b3);
        i += 1;
    }
    hash
}

const fn is_same(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

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

/// The request types of the methods of a service, ordered as [`ServiceInfo::methods`], and behind them the
/// features of the server: [`with_features`].
pub(crate) type Numbers = Arc<[u16]>;

/// In the place of a method: its call has metadata. Services have fewer methods.
pub(crate) const MARKED: u16 = 0x4000;

/// A feature of servers: they read requests with metadata.
pub(crate) const READS_METADATA: u8 = 1;

/// The request types of methods at a server with these features.
pub(crate) fn with_features(methods: impl Iterator<Item = u16>, features: u8) -> Numbers {
    methods.chain([features.into()]).collect()
}

/// Returns whether the server reads requests with metadata.
pub(crate) fn reads_metadata(numbers: &Numbers) -> bool {
    numbers.last().is_some_and(|features| features & u16::from(READS_METADATA) != 0)
}

/// The type of the method at this place.
#[inline]
pub(crate) fn number(numbers: &Numbers, index: u16) -> u16 {
    numbers.get(usize::from(index)).copied().unwrap_or(MISSING)
}
