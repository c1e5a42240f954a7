//! Reading a directory at the start of a node.

use std::collections::VecDeque;
use std::sync::Arc;

use courser_disk::Storage;
use raft::eraftpb::HardState;

use super::{
    Journal, JournalError, Owner, Segment, State, disk, frame, number, segment_name, snapshot,
};
use crate::core::Record;
use crate::log::Log;
use crate::planted::Planted;
use crate::store::Store;

/// A directory that was read.
#[derive(Debug)]
pub struct Recovered {
    /// The log, for further frames.
    pub journal: Journal,
    /// The state of the node.
    pub state: State,
    /// Bytes of a torn tail that were cut off.
    pub cut: u64,
}

/// Records from the frames of a segment.
struct Read {
    number: u64,
    /// Numbers of the first and the last frame.
    frames: Option<(u64, u64)>,
    records: Vec<Record>,
    /// End of the last intact frame, and of the file.
    end: (u64, u64),
    /// The last intact frame.
    tail: Vec<u8>,
}

impl Journal {
    /// Reads the directory of this node in this cluster, whose identity does not matter. `None`: it is
    /// empty. Blocks.
    ///
    /// # Errors
    /// The disk's, or a file is damaged or missing, or the directory is that of another node.
    pub fn open(
        storage: Arc<dyn Storage>,
        owner: &Owner,
        bugs: Planted,
    ) -> Result<Option<Recovered>, JournalError> {
        let names = storage.list().map_err(disk("the directory"))?;
        let Some(owner) = owner.load(&*storage, &names)? else { return Ok(None) };
        let mut numbers: Vec<u64> = names.iter().filter_map(|name| number(name, "log-")).collect();
        numbers.sort_unstable();
        let Some(&last) = numbers.last() else { return Err(JournalError::Missing("log")) };
        let snapshot = snapshot::load(&*storage, &names)?;
        if snapshot.as_ref().is_some_and(|(store, _)| !store.identity().fits(owner.identity)) {
            return Err(JournalError::Mixed);
        }
        let mut segments: VecDeque<Read> = VecDeque::new();
        for number in numbers {
            let segment = read(&*storage, owner.nonce, number, number == last)?;
            // Segments whose removal was undone by a crash.
            if !segments.back().is_none_or(|before| follows(before, &segment)) {
                segments.clear();
            }
            segments.push_back(segment);
        }
        let name = segment_name(last);
        let file = storage.open(&name).map_err(disk(&name))?;
        let (offset, len) = segments.back().map_or((0, 0), |segment| segment.end);
        // The last frame may be in the cache of the system only: the process was killed before the sync,
        // or the sync failed.
        let tail = segments.back().map_or(&[][..], |segment| &segment.tail);
        file.write_at(offset - tail.len() as u64, tail).map_err(disk(&name))?;
        file.set_len(offset).map_err(disk(&name))?;
        file.sync_blocking().map_err(disk(&name))?;
        storage.sync_dir_blocking().map_err(disk("the directory"))?;
        let next = segments.iter().filter_map(|segment| segment.frames).next_back();
        let next = next.map_or(1, |(_, last)| last + 1);
        let (closed, records): (VecDeque<_>, Vec<_>) = segments.into_iter().map(split).unzip();
        let image = snapshot.as_ref().map(|(_, image)| image.clone());
        let store = snapshot.map_or_else(Store::default, |(store, _)| store);
        let log = replay(&store, records.into_iter().flatten(), &name)?;
        let journal = Journal { storage, file, offset, next, segments: closed, owner, bugs };
        Ok(Some(Recovered { journal, state: (store, image, log), cut: len - offset }))
    }
}

fn split(read: Read) -> (Segment, Vec<Record>) {
    let indexes = read.records.iter().map(|record| match record {
        Record::Entry(entry) => entry.index,
        _ => 0,
    });
    (Segment { number: read.number, last: indexes.max().unwrap_or(0) }, read.records)
}

fn follows(before: &Read, after: &Read) -> bool {
    let (Some((_, last)), true) = (before.frames, after.number == before.number + 1) else {
        return after.number == before.number + 1 && before.frames.is_none();
    };
    after.frames.is_none_or(|(first, _)| first == last + 1)
}

fn read(
    storage: &dyn Storage,
    nonce: u64,
    number: u64,
    is_last: bool,
) -> Result<Read, JournalError> {
    let name = segment_name(number);
    let bytes = snapshot::contents(storage, &name)?;
    let corrupt = |at: usize, detail: &'static str| JournalError::Corrupt {
        file: name.clone(),
        at: at as u64,
        detail: detail.into(),
    };
    let (mut at, mut frames, mut records) = (0, None, Vec::new());
    let mut tail = 0..0;
    while at < bytes.len() {
        let expected = frames.map(|(_, last): (u64, u64)| last + 1);
        let intact = frame::read(nonce, &bytes[at..]);
        let found = intact.filter(|(number, ..)| expected.is_none_or(|next| next == *number));
        let Some((number, part, len)) = found else {
            if !is_last || frame::has_later(nonce, &bytes[at..], expected) {
                return Err(corrupt(at, "the checksum of a frame"));
            }
            break;
        };
        records.extend(frame::records(part).ok_or_else(|| corrupt(at, "the records of a frame"))?);
        frames = Some((frames.map_or(number, |(first, _)| first), number));
        tail = at..at + len;
        at += len;
    }
    let (end, tail) = ((at as u64, bytes.len() as u64), bytes[tail].to_vec());
    Ok(Read { number, frames, records, end, tail })
}

/// Makes the log from records, on top of a snapshot.
fn replay(
    store: &Store,
    records: impl Iterator<Item = Record>,
    file: &str,
) -> Result<Log, JournalError> {
    let (snapshot, membership) = (store.applied(), store.membership());
    let corrupt = |detail: &'static str| JournalError::Corrupt {
        file: file.to_owned(),
        at: 0,
        detail: detail.into(),
    };
    let mut log = Log::new(snapshot, membership.clone());
    let mut hard = HardState::default();
    // The term that the log has for the last entry of the snapshot.
    let mut term = None;
    for record in records {
        match record {
            Record::Hard(state) => hard = state,
            Record::Reset(index, _) if index > snapshot.0 => {
                return Err(corrupt("the snapshot that the log continues is missing"));
            }
            Record::Reset(index, of) => {
                log = Log::new(snapshot, membership.clone());
                term = (index == snapshot.0).then_some(of);
            }
            Record::Entry(entry) if entry.index <= snapshot.0 => {
                log = Log::new(snapshot, membership.clone());
                term = (entry.index == snapshot.0).then_some(entry.term);
            }
            Record::Entry(entry) => {
                if !log.append([entry]) {
                    return Err(corrupt("entries between the snapshot and the log are missing"));
                }
            }
        }
    }
    // A snapshot was received in place of entries that another leader had sent.
    if term.is_some_and(|term| term != snapshot.1) {
        log = Log::new(snapshot, membership.clone());
    }
    if log.hard().term > hard.term {
        hard = log.hard().clone();
    }
    hard.commit = hard.commit.clamp(snapshot.0, log.last());
    log.set_hard(hard);
    Ok(log)
}
