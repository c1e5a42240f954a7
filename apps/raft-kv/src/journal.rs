//! The log and the snapshots on disk.
//!
//! ```text
//! log-N, log-N+1, ...     segments: frames, each written and synced before the next one
//! frame                   magic, length, number, checksums | records: term and vote, entries, resets
//! snapshot-I              length, checksum | image of the store with all entries up to I
//! owner                   checksum | number of the node, name and identity of the cluster, nonce
//! snapshot.new, owner.new files that are being written
//! founding                is there until a new directory has its first files: they do not count
//! ```
//!
//! Invariants:
//! 1. A frame is written when the one before it is durable. So a damaged frame with an intact one behind
//!    it was durable, and its damage is corruption; a damaged frame at the end is the torn tail of a
//!    crash, and is cut off: nothing that was promised is in it.
//! 2. A snapshot is durable, with its name, before the frame that needs it and before the removal of the
//!    segments and snapshots that it replaces.
//! 3. Segments are removed from the oldest on. After a crash some removals may be undone: only the last
//!    run of consecutive frames counts.
//!
//! The bytes of a damaged frame are searched for a later one. The nonce, a random number of the directory, is
//! in the checksums of frames, so that no value of a client looks like a frame.
//!
//! A bit that flips in the last frame looks like a torn tail. The other members have its entries.

mod files;
mod frame;
mod owner;
mod recover;
mod snapshot;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use courser_disk::{File, Pending, Storage};
use raft::eraftpb::HardState;

use crate::core::{Frame, Record};
use crate::log::Log;
use crate::planted::{Bug, Planted};
use crate::store::{Identity, Image, Store};
pub use files::JournalError;
use files::{disk, number, patiently, segment_name};
pub use owner::Owner;
pub use recover::Recovered;
pub use snapshot::save as save_snapshot;

/// Bytes of a segment after which another one begins.
const SEGMENT: u64 = 32 << 20;

/// A closed segment, or the present one.
#[derive(Debug)]
struct Segment {
    number: u64,
    /// The largest index of its entries.
    last: u64,
}

/// The open log.
#[derive(Debug)]
pub struct Journal {
    storage: Arc<dyn Storage>,
    file: Box<dyn File>,
    /// End of the last frame in the file.
    offset: u64,
    /// Number of the next frame.
    next: u64,
    segments: VecDeque<Segment>,
    owner: Owner,
    bugs: Planted,
}

/// The indexes of a log whose snapshots are durable. The log itself may be ahead: a snapshot that the Raft
/// library has accepted begins the log before it is on disk.
#[derive(Clone, Copy, Debug)]
pub struct Durable {
    /// The last entry before the log.
    base: u64,
    /// The last entry of the last snapshot.
    snapshot: u64,
}

impl Durable {
    /// The indexes of this log, whose begin is durable.
    pub fn of(log: &Log) -> Durable {
        Durable { base: log.base().0, snapshot: log.snapshot_at().0 }
    }
}

impl Journal {
    /// Makes the directory of a new node: with the state of a new cluster, or empty for a node that joins
    /// one. Blocks.
    ///
    /// # Errors
    /// The disk's.
    pub fn found(
        storage: Arc<dyn Storage>,
        owner: &Owner,
        store: Option<&Store>,
    ) -> Result<(), JournalError> {
        Owner::mark(&*storage, true)?;
        if let Some(store) = store {
            snapshot::save_blocking(&*storage, &store.image())?;
        }
        let identity = store.map_or_else(Identity::default, Store::identity);
        let file = storage.create(owner::OWNER).map_err(disk(owner::OWNER))?;
        let bytes = Owner { identity, ..owner.clone() }.encode();
        file.write_at(0, &bytes).map_err(disk(owner::OWNER))?;
        file.sync_blocking().map_err(disk(owner::OWNER))?;
        let name = segment_name(1);
        let file = storage.create(&name).map_err(disk(&name))?;
        file.sync_blocking().map_err(disk(&name))?;
        storage.sync_dir_blocking().map_err(disk("the directory"))?;
        Owner::mark(&*storage, false)
    }

    /// The cluster, as far as the directory names it.
    pub fn identity(&self) -> Identity {
        self.owner.identity
    }

    /// Writes down the cluster.
    ///
    /// # Errors
    /// The disk's.
    pub async fn identify(
        &mut self,
        identity: Identity,
        pause: &impl AsyncFn(),
    ) -> Result<(), JournalError> {
        self.owner.identity = identity;
        self.owner.save(&*self.storage, pause).await
    }

    /// Writes a frame. Its entries are durable when the future ends. The previous one has ended. While the
    /// queue of the disk is full, the write is repeated after pauses.
    ///
    /// # Errors
    /// The disk's.
    pub async fn write(&mut self, frame: &Frame, pause: &impl AsyncFn()) -> io::Result<()> {
        let begin = (self.next, self.offset);
        patiently(pause, || {
            (self.next, self.offset) = begin;
            self.write_records(&frame.records)
        })
        .await
    }

    fn write_records(&mut self, records: &[Record]) -> Pending<()> {
        let bytes = match frame::encode(self.owner.nonce, self.next, records, frame::MAX_LEN) {
            Ok(bytes) => bytes,
            Err(error) => {
                return Pending::ended(Err(io::Error::new(io::ErrorKind::InvalidInput, error)));
            }
        };
        let indexes = records.iter().filter_map(|record| match record {
            Record::Entry(entry) => Some(entry.index),
            _ => None,
        });
        if let (Some(index), Some(segment)) = (indexes.max(), self.segments.back_mut()) {
            segment.last = segment.last.max(index);
        }
        self.next += 1;
        let at = self.offset;
        self.offset += bytes.len() as u64;
        if self.bugs.has(Bug::SkipSync) {
            return Pending::ended(self.file.write_at(at, &bytes));
        }
        self.file.write_and_sync(at, bytes)
    }

    /// The error of a write, with what to do.
    pub fn failed(&self, error: io::Error) -> JournalError {
        if error.kind() == io::ErrorKind::InvalidInput {
            return JournalError::Frame(error.to_string());
        }
        let file =
            self.segments.back().map_or_else(String::new, |segment| segment_name(segment.number));
        JournalError::Disk { file, error }
    }

    /// Returns whether the segment is full.
    pub fn is_full(&self) -> bool {
        self.offset >= SEGMENT
    }

    /// Begins another segment with this term and vote. The commit index is not written: the entries up to
    /// it may be in a later frame, and others with their indexes on disk.
    ///
    /// # Errors
    /// The disk's.
    pub async fn rotate(
        &mut self,
        mut hard: HardState,
        pause: &impl AsyncFn(),
    ) -> Result<(), JournalError> {
        let number = self.segments.back().map_or(1, |segment| segment.number + 1);
        let name = segment_name(number);
        let file = self.storage.create(&name).map_err(disk(&name))?;
        let synced = patiently(pause, || self.storage.sync_dir()).await;
        synced.map_err(disk("the directory"))?;
        (self.file, self.offset) = (file, 0);
        self.segments.push_back(Segment { number, last: 0 });
        // Older segments, with the last term and vote, will be removed.
        hard.commit = 0;
        let frame = Frame::of(vec![Record::Hard(hard)]);
        self.write(&frame, pause).await.map_err(disk(&name))
    }

    /// Removes segments whose entries are before the begin of the log, and snapshots before the last one.
    ///
    /// # Errors
    /// The disk's.
    pub fn clean(&mut self, durable: Durable) -> Result<(), JournalError> {
        while self.segments.len() > 1 && self.segments[0].last <= durable.base {
            let name = segment_name(self.segments[0].number);
            self.storage.remove(&name).map_err(disk(&name))?;
            self.segments.pop_front();
        }
        for name in self.storage.list().map_err(disk("the directory"))? {
            if number(&name, "snapshot-").is_some_and(|index| index < durable.snapshot) {
                self.storage.remove(&name).map_err(disk(&name))?;
            }
        }
        Ok(())
    }

    /// The storage, for snapshots.
    pub fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }
}

/// The state that a node starts from: the store of the last snapshot, and the log.
pub type State = (Store, Option<Image>, Log);
