//! The log and the snapshots on disk.
//!
//! ```text
//! log-N, log-N+1, ...     segments: frames, each written and synced before the next one
//! frame                   magic, length, number, checksum | records: term and vote, entries, resets
//! snapshot-I              length, checksum | image of the store with all entries up to I
//! snapshot.new            a snapshot that is being written
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
//! A bit that flips in the last frame looks like a torn tail. The other members have its entries.

mod frame;
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
use crate::store::{Image, Store};
pub use recover::Recovered;
pub use snapshot::save as save_snapshot;

/// Bytes of a segment after which another one begins.
const SEGMENT: u64 = 32 << 20;

/// Why a directory cannot be used, or the disk failed.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// The system's error.
    #[error("{file}: {error}; see that the disk has space and works, and start the node again")]
    Disk {
        /// The file.
        file: String,
        /// The system's error.
        error: io::Error,
    },
    /// A file was damaged after it was written.
    #[error(
        "{file} is damaged at byte {at} ({detail}); remove this node from the cluster, and add it again \
         under another number with an empty directory"
    )]
    Corrupt {
        /// The file.
        file: String,
        /// The place.
        at: u64,
        /// The part that is wrong.
        detail: &'static str,
    },
    /// There is nothing to start from.
    #[error(
        "the directory has no cluster; start the first members with --peers, further ones with --join"
    )]
    Empty,
    /// There is a cluster already, of another node.
    #[error("{0}")]
    Other(String),
}

fn disk(file: &str) -> impl FnOnce(io::Error) -> JournalError + '_ {
    move |error| JournalError::Disk { file: file.to_owned(), error }
}

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
    bugs: Planted,
}

fn segment_name(number: u64) -> String {
    format!("log-{number:016x}")
}

fn snapshot_name(index: u64) -> String {
    format!("snapshot-{index:016x}")
}

/// The number in the name of a file.
fn number(name: &str, prefix: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?;
    (digits.len() == 16).then(|| u64::from_str_radix(digits, 16).ok())?
}

/// The indexes of a log all of whose frames and snapshots are durable. The log itself may be ahead: a
/// snapshot that the Raft library has accepted begins the log before it is on disk.
#[derive(Clone, Copy, Debug)]
pub struct Durable {
    /// The last entry before the log.
    base: u64,
    /// The last entry of the last snapshot.
    snapshot: u64,
}

impl Durable {
    /// The indexes of this log, which has nothing for the disk.
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
    pub fn found(storage: Arc<dyn Storage>, store: Option<&Store>) -> Result<(), JournalError> {
        if let Some(store) = store {
            let image = store.image();
            snapshot::save_blocking(&*storage, &image)?;
        }
        let name = segment_name(1);
        let file = storage.create(&name).map_err(disk(&name))?;
        file.sync_blocking().map_err(disk(&name))?;
        storage.sync_dir_blocking().map_err(disk("the directory"))
    }

    /// Writes a frame. Its entries are durable when the future ends. The previous one has ended.
    pub fn write(&mut self, frame: &Frame) -> Pending<()> {
        self.write_records(&frame.records)
    }

    fn write_records(&mut self, records: &[Record]) -> Pending<()> {
        let bytes = frame::encode(self.next, records);
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
        let file =
            self.segments.back().map_or_else(String::new, |segment| segment_name(segment.number));
        JournalError::Disk { file, error }
    }

    /// Returns whether the segment is full.
    pub fn is_full(&self) -> bool {
        self.offset >= SEGMENT
    }

    /// Begins another segment.
    ///
    /// # Errors
    /// The disk's.
    pub async fn rotate(&mut self, hard: HardState) -> Result<(), JournalError> {
        let number = self.segments.back().map_or(1, |segment| segment.number + 1);
        let name = segment_name(number);
        let file = self.storage.create(&name).map_err(disk(&name))?;
        self.storage.sync_dir().await.map_err(disk("the directory"))?;
        (self.file, self.offset) = (file, 0);
        self.segments.push_back(Segment { number, last: 0 });
        // Older segments, with the last term and vote, will be removed.
        self.write_records(&[Record::Hard(hard)]).await.map_err(disk(&name))
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
