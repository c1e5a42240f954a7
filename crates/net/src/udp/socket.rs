//! Creates the socket of an endpoint (ADR 14): family, buffers, offloads, path MTU discovery.

use std::io;
use std::mem::size_of;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd};

use libc::c_int;
use socket2::{Domain, Socket, Type};

use super::config::{Offload, UdpConfig, UdpError};

/// Traffic class of sent packets: ECN-capable, ECT(0).
const ECT0: c_int = 2;

/// A bound socket with the settings that the system granted.
pub(super) struct Bound {
    pub(super) socket: Socket,
    pub(super) local: SocketAddr,
    /// Receive buffer as the kernel accounts for it.
    pub(super) rcvbuf: usize,
    pub(super) gso: bool,
    pub(super) gro: bool,
    pub(super) warnings: Vec<String>,
}

pub(super) fn bind(cfg: &UdpConfig) -> Result<Bound, UdpError> {
    let (socket, asked) = open(cfg.bind)?;
    let fail = |e| UdpError::from_io(asked, e);
    let local = socket.local_addr().map_err(fail)?.as_socket();
    let local = local.ok_or(UdpError::NoFamily(asked))?;
    let mut warnings = Vec::new();
    let rcvbuf = receive_buffer(&socket, cfg.rcvbuf_bytes, &mut warnings).map_err(fail)?;
    send_buffer(&socket, cfg.sndbuf_bytes, &mut warnings).map_err(fail)?;
    ip_options(&socket, local.is_ipv6());
    let gso = cfg.gso == Offload::Auto && probe(&socket, libc::UDP_SEGMENT, 0);
    let gro = cfg.gro == Offload::Auto && probe(&socket, libc::UDP_GRO, 1);
    if cfg.gso == Offload::Auto && !gso {
        warnings
            .push("no UDP_SEGMENT: each frame is sent alone; Linux 4.18 or later has it".into());
    }
    if cfg.gro == Offload::Auto && !gro {
        warnings.push("no UDP_GRO: each frame is received alone; Linux 5.0 or later has it".into());
    }
    Ok(Bound { socket, local, rcvbuf, gso, gro, warnings })
}

/// A bound, nonblocking socket, and the bind address: the IPv4 wildcard instead of the IPv6 one on
/// a system without IPv6.
fn open(bind: SocketAddr) -> Result<(Socket, SocketAddr), UdpError> {
    let bind = match bind.ip().to_canonical() {
        ip @ IpAddr::V4(_) => SocketAddr::new(ip, bind.port()),
        IpAddr::V6(_) => bind, // with the zone of a link-local address
    };
    match open_one(bind) {
        Ok(socket) => Ok((socket, bind)),
        Err(e) if bind.is_ipv6() && bind.ip().is_unspecified() && no_ipv6(&e) => {
            let v4 = SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), bind.port());
            let socket = open_one(v4).map_err(|e| UdpError::from_io(v4, e))?;
            Ok((socket, v4))
        }
        Err(e) => Err(UdpError::from_io(bind, e)),
    }
}

fn no_ipv6(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EAFNOSUPPORT | libc::EADDRNOTAVAIL))
}

fn open_one(bind: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(bind), Type::DGRAM, None)?;
    socket.set_nonblocking(true)?;
    if bind.is_ipv6() {
        socket.set_only_v6(!bind.ip().is_unspecified())?;
    }
    socket.bind(&bind.into())?;
    Ok(socket)
}

/// Requests a receive buffer and returns the kernel's accounted size (twice the request).
fn receive_buffer(socket: &Socket, want: usize, warnings: &mut Vec<String>) -> io::Result<usize> {
    let want = want.clamp(1, (c_int::MAX / 2) as usize);
    socket.set_recv_buffer_size(want)?;
    let mut granted = socket.recv_buffer_size()?;
    if granted < 2 * want {
        // Exceeds the limit with CAP_NET_ADMIN only.
        let _ = set(socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, want as c_int);
        granted = socket.recv_buffer_size()?;
    }
    if granted < 2 * want {
        warnings.push(format!(
            "receive buffer capped at {} of {want} bytes, bursts may be lost; \
             `sysctl -w net.core.rmem_max={want}` raises the limit",
            granted / 2
        ));
    }
    Ok(granted)
}

fn send_buffer(socket: &Socket, want: usize, warnings: &mut Vec<String>) -> io::Result<()> {
    let want = want.clamp(1, (c_int::MAX / 2) as usize);
    socket.set_send_buffer_size(want)?;
    if socket.send_buffer_size()? < 2 * want {
        let _ = set(socket, libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, want as c_int);
    }
    let granted = socket.send_buffer_size()?;
    // A short send buffer causes waiting, not loss, so warn only below half of the request.
    if granted < want {
        warnings.push(format!(
            "send buffer capped at {} of {want} bytes; \
             `sysctl -w net.core.wmem_max={want}` raises the limit",
            granted / 2
        ));
    }
    Ok(())
}

/// ECN both ways, no fragmentation, drop counts, times of arrival. Correctness does not depend on them, so
/// missing options are ignored. A dual-stack socket has both families' options.
fn ip_options(socket: &Socket, v6: bool) {
    let mut options = vec![
        (libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1),
        (libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1),
        (libc::IPPROTO_IP, libc::IP_TOS, ECT0),
        (libc::IPPROTO_IP, libc::IP_RECVTOS, 1),
        (libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_DO),
    ];
    if v6 {
        options.extend([
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS, ECT0),
            (libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1),
            (libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_DO),
        ]);
    }
    for (level, name, value) in options {
        if let Err(e) = set(socket, level, name, value) {
            tracing::debug!(level, name, error = %e, "socket option not available");
        }
    }
}

fn probe(socket: &Socket, name: c_int, value: c_int) -> bool {
    set(socket, libc::SOL_UDP, name, value).is_ok()
}

pub(super) fn set(socket: &Socket, level: c_int, name: c_int, value: c_int) -> io::Result<()> {
    // SAFETY: pointer and length are those of `value`, which lives through the call.
    // Test: `conformance` over UDP fails without the options set here.
    let rc = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            level,
            name,
            (&raw const value).cast(),
            size_of::<c_int>() as libc::socklen_t,
        )
    };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Reads an `int` option.
pub(super) fn get(fd: BorrowedFd<'_>, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut len = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: pointer and length are those of `value`; the kernel writes at most `len` bytes.
    // Test: `a_path_has_the_mtu_of_its_route`.
    let rc = unsafe {
        libc::getsockopt(fd.as_raw_fd(), level, name, (&raw mut value).cast(), &raw mut len)
    };
    if rc == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// Bytes of the send buffer in use: of datagrams that the kernel has queued or passed to the device, and
/// that the device has not reported as sent, with the kernel's overhead. 0 where packets leave the
/// socket at once, as over the loopback. `None`: the system does not say.
pub(super) fn unsent_bytes(fd: BorrowedFd<'_>) -> Option<u64> {
    let mut bytes: c_int = 0;
    // SAFETY: the request writes an `int` to the pointer, which is that of `bytes`.
    // Test: `datagrams_are_unsent_until_they_have_left_the_socket`.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if rc == 0 { u64::try_from(bytes).ok() } else { None }
}

/// Datagrams of at most this many bytes fit the smallest data area of an skb, so the kernel charges
/// them like the smallest ones ([`truesize`]).
pub(super) const SMALL_FRAME: usize = 448;

/// Upper bound of the kernel's charge to a receive buffer for one datagram of `frame` bytes (an
/// skb's `truesize`).
///
/// An skb is a `struct sk_buff` (256 bytes with alignment) and a data area for all headers, the
/// datagram and a `skb_shared_info` (320), rounded up to a power of two. A 1500-byte packet takes
/// 2048 + 256 = 2304, on the loopback as from drivers. For datagrams that were sent as a train and
/// received without `UDP_GRO` the headers have a small area, and the datagram is in pages, charged
/// by its bytes. Above 16 KiB the data is in pages, at least one page more than needed.
pub(super) fn truesize(frame: usize) -> usize {
    /// IP, UDP and link headers with the kernel's reserve.
    const HEADERS: usize = 128;
    const SHARED_INFO: usize = 320;
    const SK_BUFF: usize = 256;
    const PAGE: usize = 4096;
    /// Data area of a small packet, from its own slab cache (about 700 bytes).
    const SMALL: usize = 1024;
    /// Data area for headers alone.
    const HEAD: usize = 576;
    let linear = frame + HEADERS + SHARED_INFO;
    if linear <= 4 * PAGE {
        SK_BUFF + linear.next_power_of_two().max(SMALL).max(HEAD + frame)
    } else {
        SK_BUFF + linear.next_multiple_of(PAGE) + PAGE
    }
}

/// Datagrams of `frame` bytes that certainly fit a receive buffer of `rcvbuf` accounted bytes.
///
/// While datagrams wait, Linux releases the charge of those that were read in steps of a quarter of
/// the buffer (`udp_rmem_release`), so a quarter may be charged without use.
pub(super) fn queue_frames(rcvbuf: usize, frame: usize) -> usize {
    (rcvbuf / 4 * 3 / truesize(frame)).max(1)
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn the_common_limit_gives_known_numbers() {
        assert_eq!(truesize(1472), 2304);
        assert_eq!(truesize(SMALL_FRAME), truesize(1));
        assert!(truesize(SMALL_FRAME + 1) > truesize(1));
        assert_eq!(queue_frames(212_992, 1472), 69);
        assert_eq!(queue_frames(1, 65_507), 1);
    }

    /// SK_MEMINFO_RMEM_ALLOC: the socket's current charge.
    fn charged(socket: &UdpSocket) -> usize {
        let mut info = [0u32; 16];
        let mut len = size_of_val(&info) as libc::socklen_t;
        // SAFETY: pointer and length are those of `info`.
        let rc = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_MEMINFO,
                info.as_mut_ptr().cast(),
                &raw mut len,
            )
        };
        assert_eq!(rc, 0);
        info[0] as usize
    }

    #[test]
    fn the_kernel_charges_at_most_the_assumed_size() {
        let sizes = [
            1, 48, 300, 448, 576, 700, 1472, 1600, 1973, 3648, 4000, 8192, 8972, 15_000, 16_400,
            40_000, 65_507,
        ];
        for size in sizes {
            let rx = UdpSocket::bind("127.0.0.1:0").unwrap();
            let tx = UdpSocket::bind("127.0.0.1:0").unwrap();
            tx.send_to(&vec![0; size], rx.local_addr().unwrap()).unwrap();
            // Loopback delivery happens within the send call.
            let cost = charged(&rx);
            println!("{size}: charged {cost}, assumed {}", truesize(size));
            assert!(cost > 0, "{size} bytes were not delivered");
            assert!(cost <= truesize(size), "{size} bytes are charged {cost}");
        }
    }

    #[test]
    fn datagrams_are_unsent_until_they_have_left_the_socket() {
        // Datagrams of a Unix socket stay in the count of their sender until they are read.
        let (tx, rx) = UnixDatagram::pair().unwrap();
        assert_eq!(unsent_bytes(tx.as_fd()), Some(0));
        for datagrams in 1..=3 {
            tx.send(&[0; 1_000]).unwrap();
            let unsent = unsent_bytes(tx.as_fd()).unwrap();
            assert!((datagrams * 1_000..datagrams * 4_096).contains(&unsent), "{unsent} bytes");
        }
        (0..3).for_each(|_| assert_eq!(rx.recv(&mut [0; 1_000]).unwrap(), 1_000));
        assert_eq!(unsent_bytes(tx.as_fd()), Some(0));
    }

    #[test]
    fn options_are_set() {
        let cfg = UdpConfig::new("127.0.0.1:0".parse().unwrap());
        let bound = bind(&cfg).unwrap();
        let fd = bound.socket.as_fd();
        assert_eq!(get(fd, libc::IPPROTO_IP, libc::IP_TOS).unwrap(), ECT0);
        let discover = get(fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER).unwrap();
        assert_eq!(discover, libc::IP_PMTUDISC_DO);
    }
}
