//! Shared memory by which the two sides of a benchmark communicate.
//!
//! The sides are threads of one process or two processes. The memory is a sealed memfd; the other
//! process opens it by [`Line::path`], which it gets as an argument. Each word has its own cache line:
//!
//! - the **probe** words `request`, `ready`, `balls`, used by [`probe`](super::probe);
//! - the **role** words, by which the measuring side selects the program that the other side runs
//!   next (raw baseline, RPC, stop). Each benchmark defines its roles; the initial role is 0;
//! - the **report** words, by which the other side reports the operations of a role in which it makes
//!   calls itself.
//!
//! Values from the memory are not trusted: they are compared, but never used as a size, an index or a
//! pointer, and every wait has a time limit.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, OFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

/// Identifies the memory and the version of its layout.
const MAGIC: u64 = 0x4352_534c_494e_0002;

/// Bytes mapped, and the exact length of the file.
const LENGTH: usize = size_of::<Words>();

/// The file can neither shrink (which would turn a later access into a fatal signal)
/// nor grow.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);

/// Cache lines that a probe uses in turn, each on its own page. On a machine with several NUMA nodes,
/// the node of the page influences the round trip as much as the cores do: eight pages of one idle
/// machine had stable round trips from 121 to 263 ns. A probe of a single page would measure that
/// page.
pub const BALLS: usize = 16;

/// Alignment to the smallest page size. Larger pages contain several balls.
#[repr(align(4096))]
#[derive(Default)]
struct OwnPage<T>(T);

/// Alignment to 128 bytes, because processors prefetch 64-byte lines in pairs.
#[repr(align(128))]
#[derive(Default)]
struct Alone<T>(T);

#[repr(C)]
#[derive(Default)]
struct Words {
    magic: Alone<AtomicU64>,
    request: Alone<AtomicU64>,
    ready: Alone<AtomicU64>,
    role: Alone<AtomicU32>,
    role_taken: Alone<AtomicU32>,
    done: Alone<AtomicU64>,
    done_ns: Alone<AtomicU64>,
    balls: [OwnPage<AtomicU64>; BALLS],
}

/// Error of the shared memory or of a change of roles.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// A system call failed.
    #[error("cannot {step} the shared page: {source}; check the limits of memory and files")]
    System {
        /// The step that failed.
        step: &'static str,
        /// The error of the kernel.
        source: io::Error,
    },
    /// The path is not of memory that [`Line::create`] created.
    #[error("{} is not a shared page of this program; start the peer by `courser bench`", .0.display())]
    Foreign(PathBuf),
    /// The other side did not change its role in time.
    #[error(
        "the other side did not change to role {role} within {waited:?}; end other programs, repeat"
    )]
    RoleNotTaken {
        /// The requested role.
        role: u32,
        /// The time limit.
        waited: Duration,
    },
}

fn system<E: Into<io::Error>>(step: &'static str) -> impl FnOnce(E) -> LineError {
    move |source| LineError::System { step, source: source.into() }
}

/// The mapped shared memory. Clones share the mapping.
#[derive(Clone, Debug)]
pub struct Line(Arc<Mapping>);

#[derive(Debug)]
struct Mapping {
    words: NonNull<Words>,
    file: File,
}

// SAFETY: the mapping is owned by this value alone, lives until its drop, and everything
// in it is atomic, so any thread may read and write it. `a_probe_between_two_threads`
// in probe/tests.rs uses it from two threads.
unsafe impl Send for Mapping {}
// SAFETY: as for Send: all access is through atomics.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: File) -> Result<Self, LineError> {
        // SAFETY: a fresh mapping at an address of the kernel's choice aliases nothing.
        // The callers made sure that the file is LENGTH bytes long and sealed against
        // shrinking (`foreign_files_are_refused`), so every byte stays accessible.
        let address = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                LENGTH,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
        }
        .map_err(system("map"))?;
        let words = NonNull::new(address.cast::<Words>())
            .ok_or_else(|| system("map")(io::Error::from(io::ErrorKind::OutOfMemory)))?;
        Ok(Self { words, file })
    }

    #[inline]
    fn words(&self) -> &Words {
        // SAFETY: the mapping is page-aligned (4096 or a multiple), `LENGTH` bytes
        // long, lives as long as self, and every bit pattern is a valid `Words`;
        // the other process may write at any time, which atomics allow
        // (`garbage_in_the_page_neither_hangs_nor_panics` in
        // probe/tests.rs).
        unsafe { self.words.as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: address and length are those of the mapping made in `new`, and the
        // last reference is going away. Failure would leave the page mapped: harmless.
        let _ = unsafe { rustix::mm::munmap(self.words.as_ptr().cast(), LENGTH) };
    }
}

impl Line {
    /// Creates the memory with all words 0. It exists until the last process unmaps it.
    ///
    /// # Errors
    /// [`LineError::System`].
    pub fn create() -> Result<Self, LineError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file =
            File::from(rustix::fs::memfd_create("courser-line", flags).map_err(system("create"))?);
        file.set_len(LENGTH as u64).map_err(system("size"))?;
        rustix::fs::fcntl_add_seals(&file, SEALS).map_err(system("seal"))?;
        let mapping = Mapping::new(file)?;
        mapping.words().magic.0.store(MAGIC, Release);
        Ok(Self(Arc::new(mapping)))
    }

    /// Opens the memory of another process by its [`Line::path`].
    ///
    /// # Errors
    /// [`LineError::System`] if it cannot be opened, [`LineError::Foreign`] if it is not memory of
    /// this layout.
    pub fn open(path: &Path) -> Result<Self, LineError> {
        let foreign = || LineError::Foreign(path.to_path_buf());
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            // Opening a pipe or a device by mistake must not block.
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open(path)
            .map_err(system("open"))?;
        let length = file.metadata().map_err(system("inspect"))?.len();
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|_| foreign())?;
        if length != LENGTH as u64 || !seals.contains(SEALS) {
            return Err(foreign());
        }
        let mapping = Mapping::new(file)?;
        if mapping.words().magic.0.load(Acquire) != MAGIC {
            return Err(foreign());
        }
        Ok(Self(Arc::new(mapping)))
    }

    /// The path by which processes of the same user can open the memory while this process lives.
    pub fn path(&self) -> PathBuf {
        let fd = self.0.file.as_raw_fd();
        PathBuf::from(format!("/proc/{}/fd/{fd}", std::process::id()))
    }

    /// Measuring side: requests `role` without waiting.
    pub fn give_role(&self, role: u32) {
        self.0.words().role.0.store(role, Release);
    }

    /// Measuring side: requests `role` and waits until the other side has changed to it.
    ///
    /// # Errors
    /// [`LineError::RoleNotTaken`] after `limit`.
    pub fn ask_role(&self, role: u32, limit: Duration) -> Result<(), LineError> {
        self.give_role(role);
        let start = Instant::now();
        while self.0.words().role_taken.0.load(Acquire) != role {
            if start.elapsed() >= limit {
                return Err(LineError::RoleNotTaken { role, waited: limit });
            }
            // The wait is not timed, and the other side may need this core.
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Measuring side: whether the other side runs `role`.
    #[inline]
    pub fn has_role(&self, role: u32) -> bool {
        self.0.words().role_taken.0.load(Acquire) == role
    }

    /// Other side: reports operations and their duration, ns, before [`Line::take_role`] of the next
    /// role.
    pub fn report(&self, operations: u64, elapsed_ns: u64) {
        self.0.words().done.0.store(operations, Release);
        self.0.words().done_ns.0.store(elapsed_ns, Release);
    }

    /// Measuring side: the last report, operations and ns.
    pub fn reported(&self) -> (u64, u64) {
        (self.0.words().done.0.load(Acquire), self.0.words().done_ns.0.load(Acquire))
    }

    /// Other side: the requested role. Costs one load.
    #[inline]
    pub fn role(&self) -> u32 {
        self.0.words().role.0.load(Acquire)
    }

    /// Other side: confirms that it runs `role`.
    pub fn take_role(&self, role: u32) {
        self.0.words().role_taken.0.store(role, Release);
    }

    /// Probe word: number of the current probe, 0 without one; written by the measuring side.
    #[inline]
    pub fn request(&self) -> &AtomicU64 {
        &self.0.words().request.0
    }

    /// Probe word: number of the last probe that the other side joined.
    #[inline]
    pub fn ready(&self) -> &AtomicU64 {
        &self.0.words().ready.0
    }

    /// Probe word: the cache line of the given group of round trips.
    #[inline]
    pub fn ball(&self, group: usize) -> &AtomicU64 {
        &self.0.words().balls[group % BALLS].0
    }

    /// Number of the requested probe; the only word that an idle responder reads.
    #[inline]
    pub fn requested(&self) -> u64 {
        // Acquire: the balls were written before the number.
        self.request().load(Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opened_path_is_the_same_memory() {
        let here = Line::create().expect("create");
        let there = Line::open(&here.path()).expect("open");
        here.ball(3).store(7, Release);
        assert_eq!(there.ball(3).load(Acquire), 7);
    }

    #[test]
    fn the_memory_outlives_its_creator() {
        let here = Line::create().expect("create");
        let there = Line::open(&here.path()).expect("open");
        drop(here);
        there.take_role(3);
        assert_eq!(there.role(), 0);
    }

    #[test]
    fn foreign_files_are_refused() {
        let unsealed = File::from(
            rustix::fs::memfd_create("t", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
                .expect("memfd"),
        );
        let path = PathBuf::from(format!("/proc/self/fd/{}", unsealed.as_raw_fd()));
        let refused = |path: &Path| matches!(Line::open(path), Err(LineError::Foreign(_)));
        assert!(refused(&path), "empty");
        unsealed.set_len(LENGTH as u64).expect("size");
        assert!(refused(&path), "not sealed");
        rustix::fs::fcntl_add_seals(&unsealed, SEALS).expect("seal");
        assert!(refused(&path), "no magic");
        assert!(refused(Path::new("/dev/null")), "a device");
        assert!(matches!(
            Line::open(Path::new("/proc/self/fd/none")),
            Err(LineError::System { .. })
        ));
    }

    #[test]
    fn sealed_memory_cannot_shrink() {
        let line = Line::create().expect("create");
        assert!(line.0.file.set_len(0).is_err());
    }

    #[test]
    fn a_requested_role_is_confirmed() {
        let here = Line::create().expect("create");
        let there = here.clone();
        let other = std::thread::spawn(move || {
            while there.role() != 2 {
                std::thread::yield_now();
            }
            there.take_role(2);
        });
        here.ask_role(2, Duration::from_secs(60)).expect("taken");
        other.join().expect("no panic");
    }

    #[test]
    fn a_role_that_is_not_confirmed_is_an_error() {
        let line = Line::create().expect("create");
        assert!(matches!(
            line.ask_role(9, Duration::from_millis(1)),
            Err(LineError::RoleNotTaken { role: 9, .. })
        ));
    }
}
