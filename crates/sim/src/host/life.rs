//! The processes of a host, one after the other.

use crate::packet::HostId;

/// One incarnation of a host's process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Life {
    pub(crate) host: HostId,
    /// 1 for the first process of a host.
    pub(crate) number: u32,
}
