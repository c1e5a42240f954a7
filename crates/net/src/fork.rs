//! Detection of `fork()`: a process and its copy must not send with the same cookies and frame
//! numbers.

use std::ptr::{NonNull, null_mut};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags};

/// Bytes of the page; the kernel rounds up.
const PAGE: usize = 4096;

/// The number of this process, in memory that the kernel clears in a forked child. `None`: the kernel
/// has no such memory (before Linux 4.14).
static OWNER: LazyLock<Option<&'static AtomicU32>> = LazyLock::new(|| {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a private mapping at an address of the kernel's choice cannot touch memory that exists.
    // It is never unmapped, is aligned to a page and contains zeros, which are a valid `AtomicU32`;
    // only that word is accessed. Test: `a_forked_process_may_not_use_its_parents_endpoints`.
    unsafe {
        let page = rustix::mm::mmap_anonymous(null_mut(), PAGE, access, MapFlags::PRIVATE).ok()?;
        rustix::mm::madvise(page, PAGE, Advice::LinuxWipeOnFork).ok()?;
        Some(AtomicU32::from_ptr(NonNull::new(page.cast::<u32>())?.as_ptr()))
    }
});

/// A process, as seen from inside: tells it from its forked children.
#[derive(Clone, Copy, Debug)]
pub struct ThisProcess {
    pid: u32,
    owner: Option<&'static AtomicU32>,
}

impl ThisProcess {
    /// The calling process.
    pub fn new() -> Self {
        let (pid, owner) = (std::process::id(), *OWNER);
        if let Some(owner) = owner {
            owner.store(pid, Ordering::Relaxed);
        }
        ThisProcess { pid, owner }
    }

    /// Returns whether the calling process is another one: it was forked. Costs a load.
    #[inline]
    pub fn was_forked(&self) -> bool {
        match self.owner {
            Some(owner) => owner.load(Ordering::Relaxed) != self.pid,
            None => std::process::id() != self.pid,
        }
    }
}

impl Default for ThisProcess {
    fn default() -> Self {
        ThisProcess::new()
    }
}
