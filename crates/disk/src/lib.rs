//! Files of write-ahead logs and snapshots, behind two traits.
//!
//! * [`Storage`] is a flat directory of files, [`File`] an open file. Programs hold an
//!   `Arc<dyn Storage>`, so that the same code runs in production and in the simulator.
//! * [`Directory`] is the implementation of production. `courser_sim::SimDisk` is that of the
//!   simulated datacenter.
//! * [`Pending`] is the future of an operation that takes long.
//!
//! # Blocking and queued operations
//! Reads and writes of a few pages are served by the page cache, in microseconds; a sync takes the
//! device's time, up to a second. So there are two kinds of operations:
//!
//! | kind | operations | for |
//! | --- | --- | --- |
//! | at once, on the caller's thread | all that return a value | set-up, recovery, worker handlers, own threads; small reads and writes anywhere |
//! | queued to a thread of the storage | those that return [`Pending`] | tasks and async handlers of an endpoint |
//!
//! Queued operations of a storage are carried out one after the other, in the order of the calls.
//! There is no order between them and operations at once.
//!
//! # Durability
//! 1. After a successful sync of a file its contents and length, as of the call of the sync, survive
//!    a crash of the machine.
//! 2. After a successful [`Storage::sync_dir`] the names, as of its call, survive. The sync of a file
//!    does not make the file's name durable, and the sync of the directory makes no contents durable.
//! 3. A renamed file has its old name or its new one after a crash. If the new name existed, it names
//!    one of the two files.
//! 4. Nothing else is promised. Of unsynced data each sector of 512 bytes may have been written or not,
//!    in any order; a file may have been extended, with zeros in place of data; a name may be there or
//!    not. So a log has a checksum for each record, and a snapshot is written under another name, synced,
//!    renamed, and the directory synced.
//! 5. Data that was synced may still be damaged later: flipped bits are found by checksums only.
//! 6. After a failed sync, it is undefined which unsynced data of the file is durable, and the kernel may
//!    count it as written. All later syncs by the same [`File`] fail, too. The program stops, or continues
//!    with a new file from what it has in memory.
//! 7. A program that starts again reads that data from the kernel's cache, although no sync will write
//!    it any more. So at its start it writes once more what it relies on and may not have been synced,
//!    such as the last segment of a log, and syncs it.
//!
//! ```
//! use std::io;
//! use courser_disk::{Directory, Storage};
//!
//! /// Replaces a snapshot: a crash leaves the earlier one or this one.
//! async fn save(disk: &dyn Storage, snapshot: Vec<u8>) -> io::Result<()> {
//!     let file = disk.create("snapshot.new")?;
//!     file.write_and_sync(0, snapshot).await?;
//!     disk.rename("snapshot.new", "snapshot")?;
//!     disk.sync_dir().await
//! }
//! # fn main() -> io::Result<()> {
//! # let folder = tempfile::tempdir()?;
//! # let disk = Directory::open(folder.path())?;
//! # let mut task = std::pin::pin!(save(&disk, b"state".to_vec()));
//! # let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
//! # while task.as_mut().poll(&mut cx)?.is_pending() {
//! #     std::thread::yield_now();
//! # }
//! # assert_eq!(disk.list()?, ["snapshot"]);
//! # Ok(()) }
//! ```

#![forbid(unsafe_code)]

pub mod conformance;
mod directory;
mod name;
mod pending;
mod queue;

use std::fmt;
use std::io;

pub use directory::Directory;
pub use name::{LONGEST_NAME, check_name};
pub use pending::{Completion, Pending};
pub use queue::{QUEUE_BYTES, QUEUE_OPERATIONS};

/// A flat directory of files; see [Durability](crate#durability).
///
/// A name has 1 to [`LONGEST_NAME`] bytes, no `/` and no NUL, and is not `.`, `..` or `LOCK`; other
/// names are refused with [`io::ErrorKind::InvalidInput`].
pub trait Storage: Send + Sync + fmt::Debug {
    /// Opens an existing file for reading and writing.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`], or the error of the system.
    fn open(&self, name: &str) -> io::Result<Box<dyn File>>;

    /// Creates a file for reading and writing. An existing one is emptied.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`], or the error of the system.
    fn create(&self, name: &str) -> io::Result<Box<dyn File>>;

    /// The names of all files, sorted.
    ///
    /// # Errors
    /// The error of the system.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Gives a file another name. A file that has this name already is removed in the same step.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`], or the error of the system.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file. Those who have it open can use it until they drop it.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`], or the error of the system.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes the names durable: all creations, renames and removals before this call.
    fn sync_dir(&self) -> Pending<()>;

    /// [`Storage::sync_dir`] on this thread, for set-up, worker handlers and own threads.
    ///
    /// # Errors
    /// The error of the device.
    fn sync_dir_blocking(&self) -> io::Result<()>;
}

/// An open file; see [Durability](crate#durability).
pub trait File: Send + Sync + fmt::Debug {
    /// Length, bytes.
    ///
    /// # Errors
    /// The error of the system.
    fn len(&self) -> io::Result<u64>;

    /// Returns whether it has no bytes.
    ///
    /// # Errors
    /// The error of the system.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads bytes from a place on. Returns their number, which is less than that of `into` at the end
    /// of the file only.
    ///
    /// # Errors
    /// The error of the device.
    fn read_at(&self, offset: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Writes all bytes at a place. A gap after the former end reads as zeros.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`], or the error of the device. A part may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Cuts the file, or extends it by zeros.
    ///
    /// # Errors
    /// The error of the system.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// [`File::sync`] on this thread, for set-up, worker handlers and own threads.
    ///
    /// # Errors
    /// The error of the device; all later syncs of this file fail, too.
    fn sync_blocking(&self) -> io::Result<()>;

    /// Makes contents and length durable: all changes before this call.
    fn sync(&self) -> Pending<()>;

    /// Writes bytes at a place and makes the file durable. Until it has ended, reads return the bytes
    /// before it, the bytes after it, or a mixture.
    fn write_and_sync(&self, offset: u64, bytes: Vec<u8>) -> Pending<()>;

    /// Reads at most `len` bytes from a place on, fewer at the end of the file only.
    fn read(&self, offset: u64, len: usize) -> Pending<Vec<u8>>;
}
