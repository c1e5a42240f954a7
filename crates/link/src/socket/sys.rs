//! System calls of packet sockets that have no safe wrapper elsewhere. All `unsafe` of
//! the crate except the access to the ring is here.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;

use libc::c_int;

/// Frames that one system call sends.
pub(super) const SEND_BURST: usize = 64;

/// A packet socket that receives nothing until [`bind`].
pub(super) fn packet_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: the call takes no pointer. Without a valid descriptor every test of lines fails.
    let fd = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Binds a packet socket to an interface. It receives frames of a protocol, none with 0.
pub(super) fn bind(fd: BorrowedFd<'_>, interface: u32, protocol: c_int) -> io::Result<()> {
    // SAFETY: all-zero is a valid address, and its fields are integers.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = (protocol as u16).to_be();
    address.sll_ifindex = interface as c_int;
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address lives during the call and has the length given.
    checked(unsafe { libc::bind(fd.as_raw_fd(), (&raw const address).cast(), len) })
}

/// The interface to which a packet socket is bound; `u32::MAX` after the interface was deleted.
pub(super) fn bound(fd: BorrowedFd<'_>) -> io::Result<u32> {
    // SAFETY: all-zero is a valid address, and its fields are integers.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of `address`.
    checked(unsafe { libc::getsockname(fd.as_raw_fd(), (&raw mut address).cast(), &mut len) })?;
    Ok(address.sll_ifindex as u32)
}

/// Sets an option of a socket. `T` is the type that the kernel documents for the option.
pub(super) fn set<T: Copy>(
    fd: BorrowedFd<'_>,
    level: c_int,
    name: c_int,
    value: &T,
) -> io::Result<()> {
    let len = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads at most `len` bytes of the value, which lives during the call.
    checked(unsafe {
        libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const *value).cast(), len)
    })
}

/// Sets the bytes that the kernel keeps for a socket. Without the privilege the system's limit applies.
pub(crate) fn set_receive_buffer(fd: BorrowedFd<'_>, bytes: usize) -> io::Result<()> {
    if rustix::net::sockopt::set_socket_recv_buffer_size_force(fd, bytes).is_err() {
        rustix::net::sockopt::set_socket_recv_buffer_size(fd, bytes)?;
    }
    Ok(())
}

/// Attaches a filter of classic BPF, which decides about frames before the kernel copies them.
pub(super) fn attach_filter(fd: BorrowedFd<'_>, code: &mut [libc::sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
    set(fd, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
}

/// Frames that a packet socket had no room for since the last call.
pub(super) fn take_drops(fd: BorrowedFd<'_>) -> io::Result<u32> {
    let mut stats = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut len = size_of::<libc::tpacket_stats>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes, the size of `stats`.
    checked(unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut stats).cast(),
            &mut len,
        )
    })?;
    Ok(stats.tp_drops)
}

/// Takes the pending error of a socket, without which `poll` reports it for ever.
pub(super) fn take_error(fd: BorrowedFd<'_>) -> Option<io::Error> {
    rustix::net::sockopt::socket_error(fd).ok()?.err().map(io::Error::from)
}

/// Sends frames, whose socket is bound to an interface. At most [`SEND_BURST`] are sent.
///
/// # Errors
/// The error of the first frame.
pub(super) fn send<'a>(
    fd: BorrowedFd<'_>,
    frames: impl Iterator<Item = &'a [u8]>,
) -> io::Result<usize> {
    let none = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
    let mut parts = [none; SEND_BURST];
    let mut count = 0;
    for (part, frame) in parts.iter_mut().zip(frames) {
        *part = libc::iovec { iov_base: frame.as_ptr().cast_mut().cast(), iov_len: frame.len() };
        count += 1;
    }
    // SAFETY: all-zero is a valid message without address, data and control messages.
    let mut messages: [libc::mmsghdr; SEND_BURST] = unsafe { std::mem::zeroed() };
    for (message, part) in messages.iter_mut().zip(&mut parts[..count]) {
        message.msg_hdr.msg_iov = part;
        message.msg_hdr.msg_iovlen = 1;
    }
    // SAFETY: `count` messages point to parts, and these to frames, which all live during the call.
    // The kernel only reads frames that it sends. Tests that compare packets byte for byte would
    // catch a wrong pointer.
    let sent = unsafe {
        libc::sendmmsg(
            fd.as_raw_fd(),
            messages.as_mut_ptr(),
            count as libc::c_uint,
            libc::MSG_DONTWAIT as _,
        )
    };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
}

/// Memory that a packet socket shares with the kernel.
#[derive(Debug)]
pub(super) struct Shared {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and has one owner.
unsafe impl Send for Shared {}

impl Shared {
    /// Maps the ring of a socket.
    pub(super) fn map(socket: &OwnedFd, len: usize) -> io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a mapping at an address that the kernel selects changes no memory in use.
        let start = unsafe {
            mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, socket.as_fd(), 0)?
        };
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at 0"))?;
        Ok(Self { start, len })
    }

    /// The memory from an offset.
    ///
    /// # Panics
    /// Less than `len` bytes are left.
    pub(super) fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        assert!(offset <= self.len && len <= self.len - offset);
        // SAFETY: the assertion keeps it within the mapping.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's own, and references into it do not outlive it.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

fn checked(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
