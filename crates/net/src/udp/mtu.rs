//! The MTU of a path: the system's path MTU, or else that of the interface, or else the smallest.
//!
//! Some sandboxes and old kernels have no `IP_MTU`. A path there uses the MTU of the interface that
//! has the source address, or 1,280 bytes, which every IPv6 link carries [RFC 8200 section 5].

use std::ffi::CStr;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::c_int;

use super::{interface, socket};

/// Bytes of a packet that every IPv6 link carries [RFC 8200 section 5].
const SMALLEST: usize = 1280;

/// The two sources of an MTU; tests replace them.
#[derive(Clone, Copy)]
pub(super) struct Sources {
    /// Reads the MTU of the path of a connected socket.
    pub(super) path: fn(BorrowedFd<'_>, SocketAddr) -> io::Result<usize>,
    /// Reads the MTU of the interface that has an address; any socket can query it.
    pub(super) interface: fn(BorrowedFd<'_>, IpAddr) -> Option<usize>,
}

impl Default for Sources {
    fn default() -> Self {
        Sources { path: of_path, interface: of_interface }
    }
}

impl Sources {
    /// The MTU of a path from `source`, and a warning where it is a guess.
    pub(super) fn find(
        self,
        fd: BorrowedFd<'_>,
        to: SocketAddr,
        source: IpAddr,
    ) -> (usize, Option<String>) {
        let e = match (self.path)(fd, to) {
            Ok(mtu) => return (mtu, None),
            Err(e) => e,
        };
        let (mtu, origin) = match (self.interface)(fd, source) {
            Some(mtu) => (mtu, "the MTU of the interface"),
            None => (SMALLEST, "the smallest MTU"),
        };
        let warning = format!(
            "the system does not report path MTUs (IP_MTU: {e}), {origin}, {mtu} bytes, is used; \
             if large messages fail, lower `max_frame`"
        );
        (mtu, Some(warning))
    }
}

fn of_path(fd: BorrowedFd<'_>, to: SocketAddr) -> io::Result<usize> {
    let (level, name): (c_int, c_int) = match to {
        SocketAddr::V4(_) => (libc::IPPROTO_IP, libc::IP_MTU),
        SocketAddr::V6(_) => (libc::IPPROTO_IPV6, libc::IPV6_MTU),
    };
    Ok(usize::try_from(socket::get(fd, level, name)?).unwrap_or(0))
}

fn of_interface(fd: BorrowedFd<'_>, address: IpAddr) -> Option<usize> {
    mtu_of(fd, &interface::of_address(address, 0)?)
}

fn mtu_of(fd: BorrowedFd<'_>, interface: &CStr) -> Option<usize> {
    // SAFETY: all-zero bytes are a valid `ifreq`, which is plain data. Test: `interfaces_have_mtus`.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    let name = interface.to_bytes();
    if name.len() >= request.ifr_name.len() {
        return None;
    }
    for (to, from) in request.ifr_name.iter_mut().zip(name) {
        *to = *from as libc::c_char;
    }
    // SAFETY: SIOCGIFMTU reads the name from an `ifreq` and writes its MTU.
    // Test: `interfaces_have_mtus`.
    let mtu = unsafe {
        if libc::ioctl(fd.as_raw_fd(), libc::SIOCGIFMTU as _, &raw mut request) != 0 {
            return None;
        }
        request.ifr_ifru.ifru_mtu
    };
    usize::try_from(mtu).ok().filter(|mtu| *mtu > 0)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn interfaces_have_mtus() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let loopback = of_interface(socket.as_fd(), [127, 0, 0, 1].into()).unwrap();
        assert!(loopback >= SMALLEST, "{loopback}");
        // Documentation addresses belong to no interface [RFC 5737].
        assert_eq!(of_interface(socket.as_fd(), [192, 0, 2, 1].into()), None);
    }

    #[test]
    fn a_system_without_path_mtus_uses_the_interface_or_the_smallest_and_warns() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = "127.0.0.1:9".parse().unwrap();
        let path = |_: BorrowedFd<'_>, _: SocketAddr| Err(io::ErrorKind::Unsupported.into());
        let find =
            |interface| Sources { path, interface }.find(socket.as_fd(), to, [127, 0, 0, 1].into());
        let (mtu, warning) = find(|_, _| Some(9000));
        assert_eq!(mtu, 9000);
        assert!(warning.unwrap().contains("the MTU of the interface, 9000 bytes"));
        let (mtu, warning) = find(|_, _| None);
        assert_eq!(mtu, 1280);
        assert!(warning.unwrap().contains("lower `max_frame`"));
    }
}
