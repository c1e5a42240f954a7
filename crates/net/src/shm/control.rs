//! Unix sockets for the control connections of nexuses on this machine. Processes of other users
//! cannot connect: the directory is closed to them, and both sides check the user of the other one
//! (`SO_PEERCRED`).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::io::Errno;
use rustix::net::SocketFlags;

use super::config::{ShmError, directory};
use super::dir::{Kind, Listener, connect_to, has_socket, is_ours};

/// Connections that may wait to be accepted. The kernel's own limit is lower on most machines.
const BACKLOG: i32 = 4096;

/// Listens for the control connections of a nexus ([`crate::ControlSockets::Unix`]). Dropping it
/// frees the port.
#[derive(Debug)]
pub struct ControlListener {
    listener: Listener,
    host: IpAddr,
}

impl ControlListener {
    /// Listens in a directory, which is made if it is absent. The name of the socket is made from
    /// the address, of which port 0 selects a free one. A name that a killed process has left is
    /// replaced.
    ///
    /// # Errors
    /// [`ShmError`], with the remedy.
    pub fn bind(dir: &Path, at: SocketAddr) -> Result<Self, ShmError> {
        let kind = Kind::control(at.ip());
        let listener = Listener::bind_kind(dir, kind, at.port(), BACKLOG)?;
        Ok(ControlListener { listener, host: at.ip() })
    }

    /// The address, with the port that was bound.
    pub fn local_addr(&self) -> SocketAddr {
        SocketAddr::new(self.host, self.listener.port)
    }

    /// Accepts a connection that does not block.
    ///
    /// # Errors
    /// `WouldBlock`: none is ready. `PermissionDenied`: the process belongs to another user.
    pub fn accept(&self) -> io::Result<UnixStream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let stream = rustix::net::accept_with(&self.listener.socket, flags)?;
        if is_ours(&stream) { Ok(stream.into()) } else { Err(foreign("client")) }
    }

    /// Connects to the nexus of an address; the stream does not block.
    ///
    /// # Errors
    /// `ConnectionRefused`: nothing listens there. `PermissionDenied`: the process belongs to
    /// another user; the text has the remedy. `WouldBlock`: too many connections wait to be accepted.
    pub fn connect(dir: &Path, to: SocketAddr) -> io::Result<UnixStream> {
        match connect_to(dir, Kind::control(to.ip()), to.port()) {
            Ok(stream) => Ok(stream.into()),
            Err(Errno::NOENT) => Err(Errno::CONNREFUSED.into()),
            Err(Errno::PERM) => Err(foreign("server")),
            Err(e) => Err(e.into()),
        }
    }
}

/// Returns whether a nexus of this user may listen at an address of shared memory, in the directory
/// that is used where no other one is set. It may have been killed.
pub fn may_listen(at: SocketAddr) -> bool {
    has_socket(&directory(None), Kind::control(at.ip()), at.port())
}

impl AsFd for ControlListener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.socket.as_fd()
    }
}

fn foreign(whose: &str) -> io::Error {
    let text = format!("the {whose} belongs to another user; use udp:// between users");
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}
