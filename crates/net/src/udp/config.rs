//! Settings, options and errors of UDP.

use std::io;
use std::net::{Ipv6Addr, SocketAddr};

use crate::OpenError;
use crate::options::{CommonOptions, Expected, NamedOption, OptionValue, TransportOptions, set};

/// The scheme of UDP addresses.
pub(super) const SCHEME: &str = "udp";
/// Bytes of an IPv4 and a UDP header.
pub(super) const HEADERS_V4: usize = 28;
/// Bytes of an IPv6 and a UDP header.
pub(super) const HEADERS_V6: usize = 48;
/// Most bytes of one UDP datagram over IPv4, and of one train.
pub const MAX_DATAGRAM: usize = 65_507;
/// The MTU that every path of a datacenter supports.
pub(super) const ETHERNET_MTU: usize = 1500;
/// Smallest frame limit: the datagram that every IPv4 host must accept (RFC 791), less headers. A
/// smaller one would leave no room for protocol headers.
pub(super) const MIN_FRAME: usize = 576 - HEADERS_V4;
/// Index bits of path numbers; the other bits distinguish successive uses of a slot.
pub(super) const PATH_INDEX_BITS: u32 = 20;

/// The use of an offload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Offload {
    /// When the system supports it, until it fails.
    #[default]
    Auto,
    /// Never.
    Off,
}

/// Settings of a [`super::UdpTransport`].
#[derive(Clone, Debug)]
pub struct UdpConfig {
    /// Address to bind. Port 0: the system chooses. `[::]` is dual-stack, IPv6 and IPv4; on a
    /// system without IPv6 it becomes `0.0.0.0`. Default: `[::]:0`.
    pub bind: SocketAddr,
    /// Largest frame in bytes, 548 to 65,507. `None` (default): the payload of a 1500-byte packet,
    /// 1472 over IPv4 and 1452 over IPv6, also on paths with a larger MTU such as the loopback.
    /// Larger values are capped by each path's MTU. Receive buffers hold fewer large frames.
    pub max_frame: Option<usize>,
    /// Requested receive buffer (`SO_RCVBUF`; the kernel doubles it and charges whole packet
    /// buffers, not bytes). Default: 8 MiB.
    pub rcvbuf_bytes: usize,
    /// Requested send buffer (`SO_SNDBUF`). Default: 8 MiB.
    pub sndbuf_bytes: usize,
    /// Sending trains (`UDP_SEGMENT`, Linux 4.18): a train of 64 frames costs little more than one
    /// frame.
    pub gso: Offload,
    /// Receiving trains (`UDP_GRO`, Linux 5.0).
    pub gro: Offload,
    /// Most destinations at a time, at most 1,048,576. 64 bytes each, when used.
    /// Default: 65,536.
    pub max_paths: usize,
}

impl Default for UdpConfig {
    fn default() -> Self {
        UdpConfig {
            bind: SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
            max_frame: None,
            rcvbuf_bytes: 8 << 20,
            sndbuf_bytes: 8 << 20,
            gso: Offload::Auto,
            gro: Offload::Auto,
            max_paths: 65_536,
        }
    }
}

impl UdpConfig {
    /// The defaults, bound to `bind`.
    pub fn new(bind: SocketAddr) -> Self {
        UdpConfig { bind, ..UdpConfig::default() }
    }

    pub(super) fn check(&self) -> Result<(), UdpError> {
        if let Some(n) = self.max_frame
            && !(MIN_FRAME..=MAX_DATAGRAM).contains(&n)
        {
            return Err(UdpError::MaxFrame(n));
        }
        if self.max_paths == 0 || self.max_paths > 1 << PATH_INDEX_BITS {
            return Err(UdpError::MaxPaths(self.max_paths));
        }
        Ok(())
    }
}

impl OptionValue for Offload {
    fn read(text: &str) -> Result<Self, Expected> {
        match text {
            "auto" => Ok(Offload::Auto),
            "off" => Ok(Offload::Off),
            _ => Err(Expected("auto or off")),
        }
    }
}

/// Options of UDP in code and in addresses (`udp://[::]:0?gso=off`): the settings of
/// [`UdpConfig`], each in place of its default.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UdpOptions {
    /// [`UdpConfig::max_frame`]
    pub max_frame: Option<usize>,
    /// [`UdpConfig::rcvbuf_bytes`]
    pub rcvbuf: Option<usize>,
    /// [`UdpConfig::sndbuf_bytes`]
    pub sndbuf: Option<usize>,
    /// [`UdpConfig::max_paths`]
    pub max_paths: Option<usize>,
    /// [`UdpConfig::gso`]
    pub gso: Option<Offload>,
    /// [`UdpConfig::gro`]
    pub gro: Option<Offload>,
}

impl TransportOptions for UdpOptions {
    const SCHEME: &'static str = SCHEME;
    const NAMED: &'static [NamedOption<Self>] = &[
        ("max_frame", |o, text| set(&mut o.max_frame, text)),
        ("rcvbuf", |o, text| set(&mut o.rcvbuf, text)),
        ("sndbuf", |o, text| set(&mut o.sndbuf, text)),
        ("max_paths", |o, text| set(&mut o.max_paths, text)),
        ("gso", |o, text| set(&mut o.gso, text)),
        ("gro", |o, text| set(&mut o.gro, text)),
    ];
}

impl UdpOptions {
    /// All settings of an endpoint at an address.
    pub fn config(&self, bind: SocketAddr, common: &CommonOptions) -> UdpConfig {
        let defaults = UdpConfig::new(bind);
        let queue_bytes = common.queue_bytes;
        UdpConfig {
            bind,
            max_frame: self.max_frame.or(common.max_frame),
            rcvbuf_bytes: self.rcvbuf.or(queue_bytes).unwrap_or(defaults.rcvbuf_bytes),
            sndbuf_bytes: self.sndbuf.or(queue_bytes).unwrap_or(defaults.sndbuf_bytes),
            gso: self.gso.unwrap_or(defaults.gso),
            gro: self.gro.unwrap_or(defaults.gro),
            max_paths: self.max_paths.unwrap_or(defaults.max_paths),
        }
    }
}

/// Why a UDP endpoint could not be made, with the next step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UdpError {
    /// Another socket has the port.
    #[error("UDP port {} of {} is in use; stop its owner (`ss -ulpn` shows it), or bind another port, or port 0 for any", .0.port(), .0.ip())]
    InUse(SocketAddr),
    /// The host does not have the address.
    #[error("this host has no address {}; use one that `ip addr` lists, or 0.0.0.0 or [::] for all", .0.ip())]
    NoSuchAddress(SocketAddr),
    /// The system forbids it.
    #[error(
        "binding {0} is not permitted, ports below {min} need CAP_NET_BIND_SERVICE; use a higher one",
        min = 1024
    )]
    NotPermitted(SocketAddr),
    /// The system lacks the address family.
    #[error(
        "this system has no support for the family of {0}; bind 0.0.0.0 (or an IPv4 address) instead"
    )]
    NoFamily(SocketAddr),
    /// `max_frame` is out of range.
    #[error("max_frame is {0}; set it from {MIN_FRAME} to {MAX_DATAGRAM} bytes")]
    MaxFrame(usize),
    /// `max_paths` is out of range.
    #[error("max_paths is {0}; set it from 1 to {max}", max = 1usize << PATH_INDEX_BITS)]
    MaxPaths(usize),
    /// Another error of the system.
    #[error(
        "the UDP socket at {0} failed: {1}; check the address and the limit of open files (`ulimit -n`)"
    )]
    Io(SocketAddr, #[source] io::Error),
}

impl UdpError {
    pub(super) fn from_io(addr: SocketAddr, e: io::Error) -> Self {
        match e.raw_os_error() {
            Some(libc::EADDRINUSE) => UdpError::InUse(addr),
            Some(libc::EADDRNOTAVAIL) => UdpError::NoSuchAddress(addr),
            Some(libc::EACCES | libc::EPERM) => UdpError::NotPermitted(addr),
            Some(libc::EAFNOSUPPORT) => UdpError::NoFamily(addr),
            _ => UdpError::Io(addr, e),
        }
    }
}

impl From<UdpError> for OpenError {
    fn from(e: UdpError) -> Self {
        match e {
            UdpError::InUse(..) => OpenError::in_use(e),
            _ => OpenError::transport(e),
        }
    }
}
