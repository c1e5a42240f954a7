//! Notices the end of a routing daemon by a connection to a socket that it has.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType};

/// Time between two attempts to connect.
const RETRY_NS: u64 = 100_000_000;

/// A change of a daemon's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// The daemon is there.
    Began,
    /// The connection has ended, and with it the daemon.
    Ended,
    /// The daemon has not come back within the grace time.
    Expired,
}

#[derive(Debug)]
enum State {
    Connected(OwnedFd),
    /// It has ended at this time.
    Grace(u64),
    Dead,
}

/// A daemon, known by the path of its socket.
#[derive(Debug)]
pub(super) struct Daemon {
    pub(super) path: PathBuf,
    grace_ns: u64,
    state: State,
    /// The next attempt to connect.
    retry_ns: u64,
    /// Why the last attempt failed.
    refusal: Option<Errno>,
}

impl Daemon {
    pub(super) fn new(path: PathBuf, grace_ns: u64) -> Self {
        Daemon { path, grace_ns, state: State::Dead, retry_ns: 0, refusal: None }
    }

    /// Returns true while its routes are used.
    pub(super) fn is_usable(&self) -> bool {
        !matches!(self.state, State::Dead)
    }

    /// A word for the state.
    pub(super) fn state(&self) -> &'static str {
        match self.state {
            State::Connected(_) => "running",
            State::Grace(_) => "ended",
            State::Dead => "absent",
        }
    }

    /// The system's reason why there is no connection.
    pub(super) fn refusal(&self) -> String {
        self.refusal.map(|errno| io::Error::from(errno).to_string()).unwrap_or_default()
    }

    /// Looks at the connection, or connects again, without waiting.
    pub(super) fn poll(&mut self, now_ns: u64) -> Option<Event> {
        if let State::Connected(socket) = &self.state {
            if is_open(socket) {
                return None;
            }
            self.state = State::Grace(now_ns);
            self.retry_ns = 0;
            return Some(Event::Ended);
        }
        if now_ns >= self.retry_ns {
            self.retry_ns = now_ns.saturating_add(RETRY_NS);
            let connected = self.connect();
            self.refusal = connected.as_ref().err().copied();
            match connected {
                Ok(socket) => {
                    self.state = State::Connected(socket);
                    return Some(Event::Began);
                }
                // Its queue is full: a process has it, but is slow.
                Err(Errno::AGAIN) if self.is_usable() => self.state = State::Grace(now_ns),
                Err(_) => {}
            }
        }
        match self.state {
            State::Grace(since) if now_ns.saturating_sub(since) >= self.grace_ns => {
                self.state = State::Dead;
                Some(Event::Expired)
            }
            _ => None,
        }
    }

    fn connect(&self) -> rustix::io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        rustix::net::connect(&socket, &SocketAddrUnix::new(&self.path)?)?;
        Ok(socket)
    }

    /// Readable when the connection ends.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.state {
            State::Connected(socket) => Some(socket.as_fd()),
            _ => None,
        }
    }
}

/// Reads and forgets some of what the daemon says, as its greeting. Returns whether the connection
/// is open.
fn is_open(socket: &OwnedFd) -> bool {
    let mut bytes = [0_u8; 1_024];
    match rustix::net::recv(socket, &mut bytes, RecvFlags::DONTWAIT) {
        Ok((0, _)) => false,
        Ok(_) => true,
        Err(error) => {
            let kind = io::Error::from(error).kind();
            matches!(kind, io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
        }
    }
}
