//! Destinations: socket addresses, route MTUs and source addresses, resolved once per path.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;

use courser_buf::{Addr, PathId, TxFrame};
use libc::socklen_t;
use socket2::{Domain, SockAddr, Socket, Type};

use super::config::{ETHERNET_MTU, HEADERS_V4, HEADERS_V6, MAX_DATAGRAM, PATH_INDEX_BITS};
use super::{cmsg, interface, mtu};
use crate::{Path, PathError};

const INDEX_MASK: u32 = (1 << PATH_INDEX_BITS) - 1;

/// Bytes of control data that a source address takes at most.
pub(super) const SOURCE_SPACE: usize = cmsg::space(size_of::<libc::in6_pktinfo>());

/// Settings that all paths of one socket share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Net {
    /// The bound address.
    pub(super) local: SocketAddr,
    /// The configured frame limit.
    pub(super) limit: Option<usize>,
}

impl Net {
    /// Largest frame of any path.
    pub(super) fn max_frame(&self) -> usize {
        match self.limit {
            Some(n) => n.min(MAX_DATAGRAM),
            None if self.local.is_ipv4() || self.local.ip().is_unspecified() => {
                ETHERNET_MTU - HEADERS_V4
            }
            None => ETHERNET_MTU - HEADERS_V6,
        }
    }

    fn reaches(&self, remote: SocketAddr) -> bool {
        // A wildcard IPv6 socket is dual-stack.
        self.local.is_ipv6() == remote.is_ipv6()
            || (self.local.is_ipv6() && self.local.ip().is_unspecified())
    }
}

/// A destination.
pub(super) struct Entry {
    remote: SocketAddr,
    /// In the form of the socket's family; `name_len` bytes are valid.
    name: libc::sockaddr_in6,
    pub(super) name_len: socklen_t,
    pub(super) max_frame: u32,
    /// The address that the peer has used, if that is known.
    local: Option<IpAddr>,
    /// The address to send from, when the system would choose another.
    pub(super) source: Option<IpAddr>,
    /// The interface of a link-local source; 0: that of the route.
    zone: u32,
}

impl Entry {
    pub(super) fn name_ptr(&self) -> *const libc::sockaddr_in6 {
        &raw const self.name
    }

    /// Writes the source address to `ctrl` at `at`, if there is one; returns the new end.
    pub(super) fn write_source(&self, ctrl: &mut [u8], at: usize) -> usize {
        match self.source {
            None => at,
            Some(IpAddr::V4(ip)) => {
                // struct in_pktinfo: interface (0: the route's), source, unused.
                let mut info = [0u8; size_of::<libc::in_pktinfo>()];
                info[4..8].copy_from_slice(&ip.octets());
                cmsg::write(ctrl, at, libc::IPPROTO_IP, libc::IP_PKTINFO, &info)
            }
            Some(IpAddr::V6(ip)) => {
                // struct in6_pktinfo: source, interface.
                let mut info = [0u8; size_of::<libc::in6_pktinfo>()];
                info[..16].copy_from_slice(&ip.octets());
                info[16..].copy_from_slice(&self.zone.to_ne_bytes());
                cmsg::write(ctrl, at, libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, &info)
            }
        }
    }
}

/// One slot of the table; `uses` distinguishes its successive paths.
struct Slot {
    uses: u32,
    entry: Option<Entry>,
}

/// All destinations of a socket.
pub(super) struct Table {
    net: Net,
    slots: Vec<Slot>,
    free: Vec<u32>,
    limit: usize,
    mtu: mtu::Sources,
    warning: Option<String>,
}

impl Table {
    pub(super) fn new(net: Net, limit: usize) -> Self {
        let (slots, free) = (Vec::new(), Vec::new());
        Table { net, slots, free, limit, mtu: mtu::Sources::default(), warning: None }
    }

    pub(super) fn open(&mut self, remote: Addr, local: Option<Addr>) -> Result<Path, PathError> {
        let to = self.reachable(remote)?;
        if self.free.is_empty() && self.slots.len() >= self.limit {
            return Err(PathError::TooMany(self.limit));
        }
        let local = local.and_then(|local| local.to_socket()).map(|local| local.ip());
        let entry = self.entry(remote, to, local)?;
        let max_frame = entry.max_frame as usize;
        Ok(Path { id: self.insert(entry), max_frame })
    }

    /// Makes a path lead to another address. Frames leave from the same one as before.
    pub(super) fn relocate(&mut self, id: PathId, remote: Addr) -> Result<Path, PathError> {
        let to = self.reachable(remote)?;
        let gone = || PathError::Io(remote, io::ErrorKind::NotFound.into());
        let local = self.get(id).ok_or_else(gone)?.local;
        let entry = self.entry(remote, to, local)?;
        let max_frame = entry.max_frame as usize;
        self.slots[(id.0 & INDEX_MASK) as usize].entry = Some(entry);
        Ok(Path { id, max_frame })
    }

    /// The socket address, if this socket reaches it.
    fn reachable(&self, remote: Addr) -> Result<SocketAddr, PathError> {
        let to = remote.to_socket().filter(|to| self.net.reaches(*to) && to.port() != 0);
        to.ok_or_else(|| {
            PathError::Unsupported(remote, super::SCHEME, Addr::from_socket(self.net.local))
        })
    }

    /// The route to a destination, from `local` if that is known.
    fn entry(
        &mut self,
        remote: Addr,
        to: SocketAddr,
        local: Option<IpAddr>,
    ) -> Result<Entry, PathError> {
        let route = Route::find(self.net.local, to, self.mtu);
        let mut route = route.map_err(|e| PathError::Io(remote, e))?;
        if let Some(warning) = route.warning.take() {
            self.warn(remote, warning);
        }
        let headers = if to.is_ipv4() { HEADERS_V4 } else { HEADERS_V6 };
        let limit = self.net.limit.unwrap_or(ETHERNET_MTU - headers).min(MAX_DATAGRAM);
        let max_frame = limit.min(route.mtu.saturating_sub(headers)) as u32;
        let (name, name_len) = self.name(to);
        let source = self.source(&route, to, local);
        let zone = source.map_or(0, |source| zone(source, to));
        Ok(Entry { remote: to, name, name_len, max_frame, local, source, zone })
    }

    /// Keeps and logs the first warning; the others would have the same text.
    fn warn(&mut self, remote: Addr, warning: String) {
        if self.warning.is_none() {
            tracing::warn!(local = %self.net.local, %remote, "{warning}");
            self.warning = Some(warning);
        }
    }

    /// A warning about the paths for the user.
    pub(super) fn warning(&self) -> Option<&String> {
        self.warning.as_ref()
    }

    fn insert(&mut self, entry: Entry) -> PathId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { uses: 0, entry: None });
            self.slots.len() as u32 - 1
        });
        let slot = &mut self.slots[index as usize];
        slot.entry = Some(entry);
        PathId(slot.uses << PATH_INDEX_BITS | index)
    }

    pub(super) fn close(&mut self, id: PathId) {
        if self.get(id).is_none() {
            return;
        }
        let slot = &mut self.slots[(id.0 & INDEX_MASK) as usize];
        slot.entry = None;
        slot.uses = slot.uses.wrapping_add(1) & (u32::MAX >> PATH_INDEX_BITS);
        self.free.push(id.0 & INDEX_MASK);
    }

    /// The remote addresses of all paths; one may be there several times.
    pub(super) fn remotes(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.slots.iter().filter_map(|slot| slot.entry.as_ref()).map(|entry| entry.remote)
    }

    #[inline]
    pub(super) fn get(&self, id: PathId) -> Option<&Entry> {
        let slot = self.slots.get((id.0 & INDEX_MASK) as usize)?;
        if slot.uses != id.0 >> PATH_INDEX_BITS {
            return None;
        }
        slot.entry.as_ref()
    }

    /// The destination of a frame that may be sent: the path is open and the frame fits it.
    #[inline]
    pub(super) fn accept(&self, frame: &TxFrame) -> Option<&Entry> {
        self.get(frame.path).filter(|e| frame.len() <= e.max_frame)
    }

    fn name(&self, to: SocketAddr) -> (libc::sockaddr_in6, socklen_t) {
        let to = match (self.net.local.is_ipv6(), to.ip()) {
            (true, IpAddr::V4(ip)) => SocketAddr::new(ip.to_ipv6_mapped().into(), to.port()),
            _ => to,
        };
        let addr = SockAddr::from(to);
        // SAFETY: all-zero bytes are a valid `sockaddr_in6`, which is plain integers.
        // Test: `conformance` over both families.
        let mut name: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
        let len = (addr.len() as usize).min(size_of_val(&name));
        // SAFETY: source and target have at least `len` bytes and do not overlap.
        // Test: `conformance` over both families.
        unsafe {
            let (from, to) = (addr.as_ptr().cast::<u8>(), (&raw mut name).cast::<u8>());
            std::ptr::copy_nonoverlapping(from, to, len);
        }
        (name, len as socklen_t)
    }

    /// The source address to set explicitly: for a wildcard socket whose peer used another address
    /// than the one that the system would reply from. Over IPv6 the system's choice changes with time: an
    /// address is chosen only once no duplicate of it was found [RFC 4862 section 5.4], and temporary ones
    /// are replaced [RFC 8981]. So it is always set, except on the loopback.
    fn source(&self, route: &Route, to: SocketAddr, local: Option<IpAddr>) -> Option<IpAddr> {
        let local = local?;
        let may_change = to.is_ipv6() && !to.ip().is_loopback();
        let named = self.net.local.ip().is_unspecified()
            && !local.is_unspecified()
            && (local != route.source || may_change)
            && local.is_ipv4() == to.is_ipv4();
        named.then_some(local)
    }
}

/// The interface of a link-local source, without which the system refuses it; 0 for other addresses. It is
/// that of a link-local destination; a peer with another address may have dialled the link-local one too.
fn zone(source: IpAddr, to: SocketAddr) -> u32 {
    match (source, to) {
        (IpAddr::V6(source), SocketAddr::V6(to)) if source.is_unicast_link_local() => {
            let of_source = || interface::number(source.into()).unwrap_or(0);
            if to.scope_id() != 0 { to.scope_id() } else { of_source() }
        }
        _ => 0,
    }
}

/// The system's route to a destination.
struct Route {
    mtu: usize,
    source: IpAddr,
    /// Where the MTU is a guess.
    warning: Option<String>,
}

impl Route {
    /// Connects a temporary socket to read its route: nothing is sent, and the endpoint's socket
    /// stays unconnected (ADR 14).
    fn find(local: SocketAddr, to: SocketAddr, mtu: mtu::Sources) -> io::Result<Route> {
        let socket = Socket::new(Domain::for_address(to), Type::DGRAM, None)?;
        if !local.ip().is_unspecified() {
            let mut any_port = local; // with the zone of a link-local address
            any_port.set_port(0);
            socket.bind(&any_port.into())?;
        }
        socket.connect(&to.into())?;
        let source = socket.local_addr()?.as_socket().map_or(local.ip(), |a| a.ip());
        let (mtu, warning) = mtu.find(socket.as_fd(), to, source);
        Ok(Route { mtu, source, warning })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;

    use super::*;

    fn table(bind: &str, limit: Option<usize>, paths: usize) -> Table {
        Table::new(Net { local: bind.parse().unwrap(), limit }, paths)
    }

    fn addr(s: &str) -> Addr {
        Addr::from_socket(s.parse().unwrap())
    }

    #[test]
    fn a_path_has_the_mtu_of_its_route() {
        let path = table("127.0.0.1:1", None, 8).open(addr("127.0.0.1:9"), None).unwrap();
        assert_eq!(path.max_frame, 1472);
        let path = table("0.0.0.0:1", Some(MAX_DATAGRAM), 8).open(addr("127.0.0.1:9"), None);
        // The loopback's MTU is 65,536 by default.
        assert!(path.unwrap().max_frame > 1472);
    }

    #[test]
    fn a_path_opens_with_a_warning_where_the_system_reports_no_mtu() {
        let mut t = table("127.0.0.1:1", Some(MAX_DATAGRAM), 8);
        assert!(t.open(addr("127.0.0.1:9"), None).is_ok() && t.warning().is_none());
        let path = |_: BorrowedFd<'_>, _: SocketAddr| Err(io::ErrorKind::Unsupported.into());
        t.mtu = mtu::Sources { path, interface: |_, _| None };
        let opened = t.open(addr("127.0.0.1:9"), None).unwrap();
        assert_eq!(opened.max_frame, 1280 - HEADERS_V4);
        assert!(t.warning().is_some_and(|w| w.contains("1280")), "{:?}", t.warning());
    }

    #[test]
    fn families_do_not_mix() {
        let err = table("127.0.0.1:1", None, 8).open(addr("[::1]:9"), None).unwrap_err();
        assert!(matches!(err, PathError::Unsupported(..)), "{err}");
        let err = table("[::1]:1", None, 8).open(addr("127.0.0.1:9"), None).unwrap_err();
        assert!(matches!(err, PathError::Unsupported(..)), "{err}");
        let mut dual = table("[::]:1", None, 8);
        assert!(dual.open(addr("127.0.0.1:9"), None).is_ok());
    }

    #[test]
    fn port_zero_and_endless_ports_are_refused() {
        let mut t = table("127.0.0.1:1", None, 8);
        for port in [0, 65_536] {
            let to = Addr { port, ..addr("127.0.0.1:9") };
            assert!(matches!(t.open(to, None), Err(PathError::Unsupported(..))));
        }
    }

    #[test]
    fn slots_are_bounded_reused_and_distinguished() {
        let mut t = table("127.0.0.1:1", None, 2);
        let a = t.open(addr("127.0.0.1:9"), None).unwrap().id;
        let b = t.open(addr("127.0.0.1:9"), None).unwrap().id;
        assert!(matches!(t.open(addr("127.0.0.1:9"), None), Err(PathError::TooMany(2))));
        t.close(a);
        t.close(a);
        let c = t.open(addr("127.0.0.1:9"), None).unwrap().id;
        assert!(c != a && c != b);
        assert!(t.get(a).is_none() && t.get(b).is_some() && t.get(c).is_some());
        assert!(matches!(t.open(addr("127.0.0.1:9"), None), Err(PathError::TooMany(2))));
        assert!(t.get(PathId(u32::MAX)).is_none());
    }

    #[test]
    fn a_path_that_moves_keeps_its_number_and_source() {
        let mut t = table("0.0.0.0:1", None, 8);
        let path = t.open(addr("127.0.0.1:9"), Some(addr("127.0.0.7:5"))).unwrap();
        let moved = t.relocate(path.id, addr("127.0.0.2:10")).unwrap();
        assert_eq!(moved, path);
        let entry = t.get(path.id).unwrap();
        assert_eq!(entry.remote, "127.0.0.2:10".parse().unwrap());
        assert_eq!(entry.source, Some("127.0.0.7".parse().unwrap()));
        assert!(t.relocate(path.id, addr("[::1]:9")).is_err());
        t.close(path.id);
        assert!(t.relocate(path.id, addr("127.0.0.1:9")).is_err());
    }

    #[test]
    fn only_an_unexpected_source_is_named() {
        let mut t = table("0.0.0.0:1", None, 8);
        let to = addr("127.0.0.1:9");
        for (local, want) in [("127.0.0.1:5", false), ("127.0.0.7:5", true), ("0.0.0.0:5", false)] {
            let id = t.open(to, Some(addr(local))).unwrap().id;
            assert_eq!(t.get(id).unwrap().source.is_some(), want, "{local}");
        }
        let mut dual = table("[::]:1", None, 8);
        let id = dual.open(addr("[::1]:9"), Some(addr("[::1]:5"))).unwrap().id;
        assert!(dual.get(id).unwrap().source.is_none(), "the loopback has one address");
        let mut bound = table("127.0.0.1:1", None, 8);
        let id = bound.open(to, Some(addr("127.0.0.7:5"))).unwrap().id;
        assert!(bound.get(id).unwrap().source.is_none());
    }
}
