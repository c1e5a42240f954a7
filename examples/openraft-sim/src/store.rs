//! A log and a state machine. A [`Disk`] in memory is all that a node keeps over a restart: the log,
//! the vote and the last snapshot. It is one that has synced each write before it returns.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;
use std::rc::Rc;

use futures::{Stream, TryStreamExt};
use openraft::alias::{EntryOf, LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf, VoteOf};
use openraft::storage::{
    EntryResponder, IOFlushed, RaftLogStorage, RaftStateMachine, Snapshot, SnapshotMeta,
};
use openraft::{EntryPayload, LogState, OptionalSend, RaftLogReader, RaftSnapshotBuilder};
use serde::{Deserialize, Serialize};

use crate::{Command, Types};

type Result<T> = std::result::Result<T, io::Error>;

#[derive(Default)]
struct Kept {
    vote: Option<VoteOf<Types>>,
    purged: Option<LogIdOf<Types>>,
    entries: BTreeMap<u64, EntryOf<Types>>,
    snapshot: Option<(SnapshotMetaOf<Types>, Vec<u8>)>,
    /// Snapshots of the leader that were installed.
    installed: u64,
}

/// The disk of a node, which is also its log. Clones are the same disk.
#[derive(Clone, Default)]
pub struct Disk(Rc<RefCell<Kept>>);

impl RaftLogReader<Types> for Disk {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<EntryOf<Types>>> {
        Ok(self.0.borrow().entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }

    async fn read_vote(&mut self) -> Result<Option<VoteOf<Types>>> {
        Ok(self.0.borrow().vote)
    }
}

impl RaftLogStorage<Types> for Disk {
    type LogReader = Disk;

    async fn get_log_state(&mut self) -> Result<LogState<Types>> {
        let kept = self.0.borrow();
        let last = kept.entries.values().next_back().map(|entry| entry.log_id);
        Ok(LogState { last_purged_log_id: kept.purged, last_log_id: last.or(kept.purged) })
    }

    async fn get_log_reader(&mut self) -> Disk {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &VoteOf<Types>) -> Result<()> {
        self.0.borrow_mut().vote = Some(*vote);
        Ok(())
    }

    async fn append<I>(&mut self, entries: I, flushed: IOFlushed<Types>) -> Result<()>
    where
        I: IntoIterator<Item = EntryOf<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let numbered = entries.into_iter().map(|entry| (entry.log_id.index, entry));
        self.0.borrow_mut().entries.extend(numbered);
        flushed.io_completed(Ok(()));
        Ok(())
    }

    async fn truncate_after(&mut self, last: Option<LogIdOf<Types>>) -> Result<()> {
        self.0.borrow_mut().entries.split_off(&last.map_or(0, |id| id.index + 1));
        Ok(())
    }

    async fn purge(&mut self, last: LogIdOf<Types>) -> Result<()> {
        let mut kept = self.0.borrow_mut();
        kept.entries = kept.entries.split_off(&(last.index + 1));
        kept.purged = Some(last);
        Ok(())
    }
}

/// The contents of a snapshot.
#[derive(Clone, Default, Serialize, Deserialize)]
struct State {
    applied: Option<LogIdOf<Types>>,
    members: StoredMembershipOf<Types>,
    values: BTreeMap<String, String>,
}

impl State {
    fn apply(&mut self, entry: EntryOf<Types>) -> Option<String> {
        self.applied = Some(entry.log_id);
        match entry.payload {
            EntryPayload::Blank => None,
            EntryPayload::Normal(Command { key, value }) => self.values.insert(key, value),
            EntryPayload::Membership(members) => {
                self.members = StoredMembershipOf::<Types>::new(Some(entry.log_id), members);
                None
            }
        }
    }
}

/// The state machine: values in memory, and the snapshot on the disk. Clones share them.
#[derive(Clone)]
pub struct StateMachine {
    state: Rc<RefCell<State>>,
    disk: Disk,
}

impl StateMachine {
    /// Opens it when the node starts, with the values of the last snapshot.
    ///
    /// # Errors
    /// The snapshot is damaged.
    pub fn open(disk: Disk) -> Result<StateMachine> {
        let state = match &disk.0.borrow().snapshot {
            Some((_, bytes)) => read(bytes)?,
            None => State::default(),
        };
        Ok(StateMachine { state: Rc::new(RefCell::new(state)), disk })
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<String> {
        self.state.borrow().values.get(key).cloned()
    }

    /// How many snapshots of a leader this node has installed.
    pub fn installed(&self) -> u64 {
        self.disk.0.borrow().installed
    }

    /// All values.
    pub fn values(&self) -> BTreeMap<String, String> {
        self.state.borrow().values.clone()
    }
}

fn read(bytes: &[u8]) -> Result<State> {
    postcard::from_bytes(bytes).map_err(io::Error::other)
}

impl RaftSnapshotBuilder<Types> for StateMachine {
    type SnapshotData = Vec<u8>;

    async fn build_snapshot(&mut self) -> Result<SnapshotOf<Types, Vec<u8>>> {
        let state = self.state.borrow();
        let bytes = postcard::to_stdvec(&*state).map_err(io::Error::other)?;
        let meta =
            SnapshotMeta { last_log_id: state.applied, last_membership: state.members.clone() };
        self.disk.0.borrow_mut().snapshot = Some((meta.clone(), bytes.clone()));
        Ok(Snapshot { meta, snapshot: bytes })
    }
}

impl RaftStateMachine<Types> for StateMachine {
    type SnapshotData = Vec<u8>;
    type SnapshotBuilder = StateMachine;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogIdOf<Types>>, StoredMembershipOf<Types>)> {
        let state = self.state.borrow();
        Ok((state.applied, state.members.clone()))
    }

    async fn apply<S>(&mut self, entries: S) -> Result<()>
    where
        S: Stream<Item = Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        let apply = |(entry, responder): EntryResponder<Types>| {
            let before = self.state.borrow_mut().apply(entry);
            if let Some(responder) = responder {
                responder.send(before);
            }
            std::future::ready(Ok(()))
        };
        entries.try_for_each(apply).await
    }

    async fn get_snapshot_builder(&mut self) -> StateMachine {
        self.clone()
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf<Types>,
        bytes: Vec<u8>,
    ) -> Result<()> {
        *self.state.borrow_mut() = read(&bytes)?;
        let mut kept = self.disk.0.borrow_mut();
        kept.snapshot = Some((meta.clone(), bytes));
        kept.installed += 1;
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<SnapshotOf<Types, Vec<u8>>>> {
        let stored = self.disk.0.borrow().snapshot.clone();
        Ok(stored.map(|(meta, snapshot)| Snapshot { meta, snapshot }))
    }
}
