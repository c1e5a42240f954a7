//! The disk of a simulated host: an implementation of [`courser_disk::Storage`] with faults.
//!
//! Contents survive the end of the host's process. Its operations of the kind "at once" take no
//! virtual time, except that a blocking sync keeps the calling thread busy; queued ones are carried
//! out one after the other and end in virtual time.
//!
//! 1. What [the contract](courser_disk#durability) promises holds after every crash, and nothing else
//!    is done: of unsynced data any part survives.
//! 2. All choices follow from the world's seed; a disk has a generator of its own.

mod contents;
mod faults;
mod handle;
mod names;
mod queue;
mod store;

pub use faults::{DiskCounts, DiskFaults, Unsynced};
pub(crate) use handle::Caller;
pub use handle::SimDisk;
pub(crate) use queue::Begun;
