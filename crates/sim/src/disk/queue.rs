//! Queued operations of a disk.

use std::sync::{Arc, Mutex};

use courser_disk::Completion;

use super::contents::Snapshot;
use super::names::Inode;
use crate::packet::HostId;

/// An operation that has begun and that the world has not scheduled yet.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Begin {
    pub(crate) host: HostId,
    pub(crate) number: u64,
    /// The time of the thread that began it; `None` outside of one.
    pub(crate) at_ns: Option<u64>,
}

/// Operations that have begun on all disks of a world, in order.
pub(crate) type Begun = Arc<Mutex<Vec<Begin>>>;

/// A file by a handle: its number, and its failed syncs when it was opened. After a further one every
/// sync by this handle fails, as each descriptor is told of the error in Linux.
#[derive(Clone, Copy, Debug)]
pub(super) struct Opened {
    pub(super) inode: Inode,
    pub(super) failures: u64,
}

#[derive(Debug)]
pub(super) struct Operation {
    pub(super) number: u64,
    pub(super) takes_ns: u64,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    Sync(Opened, Snapshot, Completion<()>),
    WriteAndSync(Opened, u64, Vec<u8>, Completion<()>),
    SyncDir(u64, Completion<()>),
    Read(Inode, u64, usize, Completion<Vec<u8>>),
}
