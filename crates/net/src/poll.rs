//! Sleeping on descriptors with nanosecond limits.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Sleeps until `fd` or `wake` is readable or `timeout_ns` has passed. A negative `wake` means
/// that there is none. An interrupted call is a spurious return, not an error. For transports whose
/// [`Transport::wait`](crate::Transport::wait) sleeps on a descriptor.
///
/// # Errors
/// Those of `poll`.
pub fn wait_readable(fd: BorrowedFd<'_>, wake: RawFd, timeout_ns: Option<u64>) -> io::Result<()> {
    let timeout = timeout_ns.map(|ns| Timespec {
        tv_sec: (ns / 1_000_000_000) as _,
        tv_nsec: (ns % 1_000_000_000) as _,
    });
    // SAFETY: the caller of `Transport::wait` keeps `wake` open for the length of the call; a
    // number that is no descriptor makes poll report POLLNVAL and is otherwise harmless, and -1,
    // which `BorrowedFd` excludes, is not passed. Test: `a_negative_wake_is_ignored`.
    let wake = (wake >= 0).then(|| unsafe { BorrowedFd::borrow_raw(wake) });
    let mut fds = [
        PollFd::from_borrowed_fd(fd, PollFlags::IN),
        PollFd::from_borrowed_fd(wake.unwrap_or(fd), PollFlags::IN),
    ];
    let count = if wake.is_some() { 2 } else { 1 };
    match poll(&mut fds[..count], timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;

    #[test]
    fn a_negative_wake_is_ignored() {
        let fd = eventfd(1, EventfdFlags::NONBLOCK).unwrap();
        wait_readable(fd.as_fd(), -1, None).unwrap();
    }

    #[test]
    fn either_descriptor_ends_the_wait() {
        let (idle, ready) =
            (eventfd(0, EventfdFlags::NONBLOCK), eventfd(1, EventfdFlags::NONBLOCK));
        let (idle, ready) = (idle.unwrap(), ready.unwrap());
        use std::os::fd::AsRawFd;
        wait_readable(idle.as_fd(), ready.as_raw_fd(), None).unwrap();
        wait_readable(ready.as_fd(), idle.as_raw_fd(), None).unwrap();
        wait_readable(idle.as_fd(), idle.as_raw_fd(), Some(1)).unwrap();
    }
}
