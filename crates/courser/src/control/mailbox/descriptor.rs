//! The descriptor on which an endpoint's thread sleeps: an eventfd, or one of a model.

#[cfg(not(all(loom, test)))]
pub(super) use eventfd::Descriptor;

#[cfg(all(loom, test))]
pub(super) use super::model::Descriptor;

#[cfg(not(all(loom, test)))]
mod eventfd {
    use std::io;
    use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

    use rustix::event::{EventfdFlags, eventfd};

    pub(in crate::control::mailbox) struct Descriptor(OwnedFd);

    impl Descriptor {
        pub(in crate::control::mailbox) fn new() -> io::Result<Self> {
            let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
            Ok(Descriptor(fd))
        }

        /// Makes it readable. It was not.
        pub(in crate::control::mailbox) fn raise(&self) {
            // Cannot fail, as the counter is 0.
            let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
        }

        /// Ends that.
        pub(in crate::control::mailbox) fn lower(&self) {
            // Cannot fail, as the descriptor is readable.
            let _ = rustix::io::read(&self.0, &mut [0; 8]);
        }

        pub(in crate::control::mailbox) fn fd(&self) -> BorrowedFd<'_> {
            self.0.as_fd()
        }
    }
}
