//! The log in memory, as the Raft library reads it: the entries since the last truncation.
//! [`crate::journal`] has them on disk.
//!
//! Invariant: entries are contiguous from `base.0 + 1` on, and the snapshot is not before the base, so a
//! follower that lacks entries before the base can always be sent a snapshot.

use std::cell::Cell;
use std::collections::VecDeque;

use protobuf::Message as _;
use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{Error, GetEntriesContext, RaftState, Storage, StorageError};

use crate::store::Membership;

/// The log in memory.
#[derive(Clone, Debug, Default)]
pub struct Log {
    entries: VecDeque<Entry>,
    bytes: usize,
    /// Index and term of the entry before the first one.
    base: (u64, u64),
    hard: HardState,
    /// Index and term of the last durable snapshot, with its members.
    snapshot: ((u64, u64), Membership),
    /// A member that the snapshot does not have needs one.
    wanted: Cell<bool>,
}

pub(crate) fn conf_state(membership: &Membership) -> ConfState {
    let mut conf = ConfState::default();
    conf.voters.clone_from(&membership.voters);
    conf.learners.clone_from(&membership.learners);
    conf
}

/// The membership of a configuration of the Raft library, in the order of the numbers.
pub(crate) fn membership(conf: &ConfState) -> Membership {
    let sorted = |ids: &[u64]| {
        let mut ids = ids.to_vec();
        ids.sort_unstable();
        ids
    };
    Membership { voters: sorted(&conf.voters), learners: sorted(&conf.learners) }
}

/// Memory of an entry besides its bytes.
const ENTRY: usize = size_of::<Entry>();

/// Memory of an entry.
pub(crate) fn size(entry: &Entry) -> usize {
    ENTRY + entry.data.len() + entry.context.len()
}

impl Log {
    /// A log that begins behind a snapshot, which may be at 0: an empty one.
    pub fn new(snapshot: (u64, u64), membership: Membership) -> Log {
        let mut hard = HardState::default();
        (hard.term, hard.commit) = (snapshot.1, snapshot.0);
        let snapshot = (snapshot, membership);
        Log { base: snapshot.0, hard, snapshot, ..Log::default() }
    }

    /// Index of the last entry.
    pub fn last(&self) -> u64 {
        self.base.0 + self.entries.len() as u64
    }

    /// Index before the first entry.
    pub fn base(&self) -> (u64, u64) {
        self.base
    }

    /// Bytes of the entries in memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Index and term of the last snapshot.
    pub fn snapshot_at(&self) -> (u64, u64) {
        self.snapshot.0
    }

    /// Returns whether a follower waits for a newer snapshot.
    pub fn wants_snapshot(&self) -> bool {
        self.wanted.get()
    }

    /// The durable part of the state besides the entries.
    pub fn hard(&self) -> &HardState {
        &self.hard
    }

    /// Sets the durable state.
    pub fn set_hard(&mut self, hard: HardState) {
        self.hard = hard;
    }

    /// Appends entries, which replace those of their indexes and all behind. False: there would be a gap,
    /// or entries of a snapshot would be replaced.
    pub fn append(&mut self, entries: impl IntoIterator<Item = Entry>) -> bool {
        for entry in entries {
            if entry.index <= self.base.0 || entry.index > self.last() + 1 {
                return false;
            }
            let keep = (entry.index - self.base.0 - 1) as usize;
            for dropped in self.entries.drain(keep..) {
                self.bytes -= size(&dropped);
            }
            self.bytes += size(&entry);
            self.entries.push_back(entry);
        }
        true
    }

    /// Takes over a snapshot in place of all entries.
    pub fn reset(&mut self, at: (u64, u64), membership: Membership) {
        let hard = std::mem::take(&mut self.hard);
        *self = Log::new(at, membership);
        let commit = hard.commit.max(at.0);
        self.hard = hard;
        self.hard.commit = commit;
    }

    /// A snapshot of what was applied is durable.
    pub fn set_snapshot(&mut self, at: (u64, u64), membership: Membership) {
        if at.0 > self.snapshot.0.0 {
            self.snapshot = (at, membership);
            self.wanted.set(false);
        }
    }

    /// Removes entries up to an index, which is not behind the snapshot.
    pub fn truncate(&mut self, to: u64) {
        let to = to.min(self.snapshot.0.0).min(self.last());
        while self.base.0 < to {
            let Some(entry) = self.entries.pop_front() else { return };
            self.bytes -= size(&entry);
            self.base = (entry.index, entry.term);
        }
    }

    /// Bytes of the entries behind an index, up to another one.
    pub fn bytes_between(&self, after: u64, to: u64) -> usize {
        self.from(after + 1).take_while(|entry| entry.index <= to).map(size).sum()
    }

    /// Removes entries up to an index, but for at most this many, and this many bytes, of the last of
    /// them.
    pub fn truncate_but(&mut self, to: u64, (most, most_bytes): (u64, usize)) {
        let behind = (to.min(self.last()) - self.base.0.min(to)) as usize;
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            bytes += size(entry);
            bytes <= most_bytes
        };
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        let kept = self.entries.range(..behind).rev().take(most).take_while(fits).count();
        self.truncate(to - kept as u64);
    }

    /// The term of an entry; `None`: it is not here.
    pub fn term_at(&self, index: u64) -> Option<u64> {
        if index == self.base.0 {
            return Some(self.base.1);
        }
        let at = index.checked_sub(self.base.0 + 1)?;
        self.entries.get(usize::try_from(at).ok()?).map(|entry| entry.term)
    }

    /// The entries from an index on.
    pub fn from(&self, index: u64) -> impl Iterator<Item = &Entry> {
        let at = index.saturating_sub(self.base.0 + 1) as usize;
        self.entries.range(at.min(self.entries.len())..)
    }
}

impl Storage for Log {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard.clone(), conf_state(&self.snapshot.1)))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.base.0 {
            return Err(Error::Store(StorageError::Compacted));
        }
        if high > self.last() + 1 || low > high {
            return Err(Error::Store(StorageError::Unavailable));
        }
        let limit = max_size.into().unwrap_or(u64::MAX);
        let mut bytes = 0;
        let fits = |entry: &&Entry| {
            let is_first = bytes == 0;
            bytes += u64::from(entry.compute_size());
            is_first || bytes <= limit
        };
        let count = (high - low) as usize;
        Ok(self.from(low).take(count).take_while(fits).cloned().collect())
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        self.term_at(index).ok_or(Error::Store(if index < self.base.0 {
            StorageError::Compacted
        } else {
            StorageError::Unavailable
        }))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.base.0 + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    /// The head of the snapshot. Its data is sent in chunks by [`crate::node`].
    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        let ((index, term), membership) = &self.snapshot;
        // A node does not install a snapshot in which it is no member.
        let has_member = membership.voters.contains(&to) || membership.learners.contains(&to);
        self.wanted.set(!has_member);
        if *index == 0 || *index < request_index || !has_member {
            return Err(Error::Store(StorageError::SnapshotTemporarilyUnavailable));
        }
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = (*index, *term);
        metadata.set_conf_state(conf_state(membership));
        Ok(snapshot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(index: u64, term: u64) -> Entry {
        let mut entry = Entry::default();
        (entry.index, entry.term) = (index, term);
        entry.data = vec![0; 100].into();
        entry
    }

    fn log(last: u64) -> Log {
        let mut log = Log::new((3, 1), Membership { voters: vec![1, 2], learners: vec![] });
        assert!(log.append((4..=last).map(|index| entry(index, 1))));
        log
    }

    #[test]
    fn entries_replace_those_behind_them_and_leave_no_gap() {
        let mut log = log(8);
        assert!(!log.append([entry(10, 2)]) && !log.append([entry(3, 2)]));
        assert!(log.append([entry(6, 2)]));
        assert_eq!(
            (log.last(), log.term_at(5), log.term_at(6), log.term_at(7)),
            (6, Some(1), Some(2), None)
        );
        assert_eq!(log.bytes(), 3 * size(&entry(1, 1)));
    }

    #[test]
    fn truncation_stops_at_the_snapshot_and_keeps_the_term_before() {
        let mut log = log(8);
        assert!(log.snapshot(0, 3).is_err() && log.wants_snapshot());
        log.set_snapshot((6, 1), Membership { voters: vec![1, 2], learners: vec![] });
        assert!(!log.wants_snapshot());
        log.truncate(8);
        assert_eq!((log.base(), log.last(), log.bytes()), ((6, 1), 8, 2 * size(&entry(1, 1))));
        let context = || GetEntriesContext::empty(false);
        assert!(matches!(
            log.entries(6, 8, None, context()),
            Err(Error::Store(StorageError::Compacted))
        ));
        assert_eq!(log.entries(7, 9, 1, context()).unwrap().len(), 1);
        assert_eq!(log.entries(7, 9, None, context()).unwrap().len(), 2);
        assert_eq!(log.term(6).unwrap(), 1);
        assert_eq!(log.snapshot(0, 2).unwrap().get_metadata().index, 6);
        assert!(log.snapshot(7, 2).is_err());
    }

    #[test]
    fn truncation_keeps_entries_up_to_a_count_and_bytes() {
        let one = size(&entry(1, 1));
        for (limit, base) in [
            ((3, usize::MAX), 4),
            ((u64::MAX, 2 * one), 5),
            ((u64::MAX, 2 * one - 1), 6),
            ((0, usize::MAX), 7),
            ((u64::MAX, usize::MAX), 3),
        ] {
            let mut log = log(9);
            log.set_snapshot((7, 1), Membership { voters: vec![1, 2], learners: vec![] });
            log.truncate_but(7, limit);
            assert_eq!((log.base().0, log.last()), (base, 9), "{limit:?}");
            assert_eq!(log.bytes_between(7, 8), one);
            // A second time there are fewer.
            log.truncate_but(7, limit);
            assert_eq!(log.base().0, base, "{limit:?}");
        }
        let mut log = Log::new((9, 1), Membership::default());
        log.truncate_but(7, (1, 1));
        assert_eq!(log.base().0, 9);
    }

    #[test]
    fn a_received_snapshot_replaces_all_entries() {
        let mut log = log(8);
        let mut hard = HardState::default();
        (hard.term, hard.vote, hard.commit) = (4, 2, 7);
        log.set_hard(hard);
        log.reset((20, 3), Membership { voters: vec![2], learners: vec![] });
        assert_eq!((log.last(), log.base(), log.bytes()), (20, (20, 3), 0));
        assert_eq!((log.hard().term, log.hard().vote, log.hard().commit), (4, 2, 20));
        assert_eq!(log.initial_state().unwrap().conf_state.voters, [2]);
    }
}
