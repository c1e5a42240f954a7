//! Whole frames of an interface, with their link-layer headers.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::sys;
use crate::netlink::Link;

/// A packet socket for whole frames. It needs `CAP_NET_RAW`, and does not wait.
#[derive(Debug)]
pub struct FrameSocket(OwnedFd);

impl FrameSocket {
    /// Opens an interface. The socket receives frames of an Ethernet type (`ETH_P_IP`, or `ETH_P_ALL` for
    /// all), none with 0.
    ///
    /// # Errors
    /// The system refused; `PermissionDenied` without the capability.
    pub fn open(link: &Link, protocol: i32) -> io::Result<Self> {
        let socket = sys::packet_socket()?;
        sys::bind(socket.as_fd(), link.index, protocol)?;
        Ok(Self(socket))
    }

    /// Sends frames, at most 64 of them, by one system call, and returns their number.
    ///
    /// # Errors
    /// The error of the first frame.
    pub fn send<'a>(&self, frames: impl Iterator<Item = &'a [u8]>) -> io::Result<usize> {
        sys::send(self.0.as_fd(), frames)
    }
}

impl AsFd for FrameSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
