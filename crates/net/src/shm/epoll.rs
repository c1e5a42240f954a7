//! One epoll descriptor for all sockets of an endpoint, with a token for each socket.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::io::Errno;

/// Events processed in one round of upkeep; the others are processed in the next.
pub(super) const EVENTS: usize = 32;

/// The owner of a ready socket. A hint: the number may have a new owner by now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Listener,
    Pending,
    Inbound(u32),
    Outbound(u32),
}

impl Token {
    fn data(self) -> EventData {
        EventData::new_u64(match self {
            Token::Listener => 0,
            Token::Pending => 1 << 32,
            Token::Inbound(n) => 2 << 32 | u64::from(n),
            Token::Outbound(n) => 3 << 32 | u64::from(n),
        })
    }

    fn from_data(data: u64) -> Token {
        match data >> 32 {
            0 => Token::Listener,
            1 => Token::Pending,
            2 => Token::Inbound(data as u32),
            _ => Token::Outbound(data as u32),
        }
    }
}

#[derive(Debug)]
pub(super) struct Epoll(OwnedFd);

impl Epoll {
    pub(super) fn new() -> Result<Self, Errno> {
        epoll::create(CreateFlags::CLOEXEC).map(Epoll)
    }

    /// False: the system refuses. Closing a socket removes it.
    pub(super) fn add(&self, socket: &OwnedFd, token: Token) -> bool {
        epoll::add(&self.0, socket, token.data(), EventFlags::IN).is_ok()
    }

    pub(super) fn remove(&self, socket: &OwnedFd) {
        let _ = epoll::delete(&self.0, socket);
    }

    /// The tokens of ready sockets; does not block.
    pub(super) fn ready(&self) -> arrayvec::ArrayVec<Token, EVENTS> {
        let none = epoll::Event { flags: EventFlags::empty(), data: EventData::new_u64(0) };
        let mut events = [none; EVENTS];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let count = epoll::wait(&self.0, &mut events, Some(&now)).unwrap_or(0);
        events.iter().take(count).map(|e| Token::from_data(e.data.u64())).collect()
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
