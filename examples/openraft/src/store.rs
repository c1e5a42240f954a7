//! A log and a state machine in memory. A node whose process ends has lost both, and must not come back
//! under its number.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io::Cursor;
use std::ops::RangeBounds;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft::storage::{LogFlushed, RaftLogStorage, RaftStateMachine};
use openraft::{
    BasicNode, Entry, EntryPayload, LogId, LogState, OptionalSend, RaftLogReader,
    RaftSnapshotBuilder, Snapshot, SnapshotMeta, StorageError, StorageIOError, StoredMembership,
    Vote,
};
use serde::{Deserialize, Serialize};

use crate::{Command, Types};

type Result<T> = std::result::Result<T, StorageError<u64>>;

/// No code here panics between two changes that belong together.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug, Default)]
struct LogData {
    purged: Option<LogId<u64>>,
    entries: BTreeMap<u64, Entry<Types>>,
    vote: Option<Vote<u64>>,
}

/// The log. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<LogData>>);

impl RaftLogReader<Types> for Log {
    async fn try_get_log_entries<R: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: R,
    ) -> Result<Vec<Entry<Types>>> {
        Ok(lock(&self.0).entries.range(range).map(|(_, entry)| entry.clone()).collect())
    }
}

impl RaftLogStorage<Types> for Log {
    type LogReader = Log;

    async fn get_log_state(&mut self) -> Result<LogState<Types>> {
        let log = lock(&self.0);
        let last_log_id = log.entries.values().next_back().map(|entry| entry.log_id).or(log.purged);
        Ok(LogState { last_purged_log_id: log.purged, last_log_id })
    }

    async fn get_log_reader(&mut self) -> Log {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &Vote<u64>) -> Result<()> {
        lock(&self.0).vote = Some(*vote);
        Ok(())
    }

    async fn read_vote(&mut self) -> Result<Option<Vote<u64>>> {
        Ok(lock(&self.0).vote)
    }

    async fn append<I>(&mut self, entries: I, flushed: LogFlushed<Types>) -> Result<()>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        lock(&self.0).entries.extend(entries.into_iter().map(|entry| (entry.log_id.index, entry)));
        flushed.log_io_completed(Ok(()));
        Ok(())
    }

    async fn truncate(&mut self, first: LogId<u64>) -> Result<()> {
        lock(&self.0).entries.split_off(&first.index);
        Ok(())
    }

    async fn purge(&mut self, last: LogId<u64>) -> Result<()> {
        let mut log = lock(&self.0);
        log.entries = log.entries.split_off(&(last.index + 1));
        log.purged = Some(last);
        Ok(())
    }
}

/// The contents of a snapshot.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct State {
    applied: Option<LogId<u64>>,
    members: StoredMembership<u64, BasicNode>,
    values: BTreeMap<String, String>,
}

#[derive(Debug, Default)]
struct StateData {
    state: State,
    snapshot: Option<(SnapshotMeta<u64, BasicNode>, Vec<u8>)>,
    /// Snapshots that were made, for their names.
    made: u64,
}

/// The state machine. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct StateMachine(Arc<Mutex<StateData>>);

impl StateMachine {
    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<String> {
        lock(&self.0).state.values.get(key).cloned()
    }
}

impl State {
    fn apply(&mut self, entry: Entry<Types>) -> Option<String> {
        self.applied = Some(entry.log_id);
        match entry.payload {
            EntryPayload::Blank => None,
            EntryPayload::Normal(Command::Put { key, value }) => self.values.insert(key, value),
            EntryPayload::Normal(Command::Delete { key }) => self.values.remove(&key),
            EntryPayload::Membership(members) => {
                self.members = StoredMembership::new(Some(entry.log_id), members);
                None
            }
        }
    }
}

impl RaftSnapshotBuilder<Types> for StateMachine {
    async fn build_snapshot(&mut self) -> Result<Snapshot<Types>> {
        let mut data = lock(&self.0);
        data.made += 1;
        let State { applied, members, .. } = data.state.clone();
        let bytes = postcard::to_stdvec(&data.state)
            .map_err(|error| StorageIOError::read_state_machine(&error))?;
        let snapshot_id = format!("{}-{}", applied.map_or(0, |id| id.index), data.made);
        let meta = SnapshotMeta { last_log_id: applied, last_membership: members, snapshot_id };
        data.snapshot = Some((meta.clone(), bytes.clone()));
        Ok(Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) })
    }
}

impl RaftStateMachine<Types> for StateMachine {
    type SnapshotBuilder = StateMachine;

    async fn applied_state(
        &mut self,
    ) -> Result<(Option<LogId<u64>>, StoredMembership<u64, BasicNode>)> {
        let data = lock(&self.0);
        Ok((data.state.applied, data.state.members.clone()))
    }

    async fn apply<I>(&mut self, entries: I) -> Result<Vec<Option<String>>>
    where
        I: IntoIterator<Item = Entry<Types>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let mut data = lock(&self.0);
        Ok(entries.into_iter().map(|entry| data.state.apply(entry)).collect())
    }

    async fn get_snapshot_builder(&mut self) -> StateMachine {
        self.clone()
    }

    async fn begin_receiving_snapshot(&mut self) -> Result<Box<Cursor<Vec<u8>>>> {
        Ok(Box::default())
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMeta<u64, BasicNode>,
        snapshot: Box<Cursor<Vec<u8>>>,
    ) -> Result<()> {
        let bytes = snapshot.into_inner();
        let state = postcard::from_bytes(&bytes)
            .map_err(|error| StorageIOError::read_snapshot(Some(meta.signature()), &error))?;
        let mut data = lock(&self.0);
        data.state = state;
        data.snapshot = Some((meta.clone(), bytes));
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<Snapshot<Types>>> {
        let stored = lock(&self.0).snapshot.clone();
        let open = |(meta, bytes)| Snapshot { meta, snapshot: Box::new(Cursor::new(bytes)) };
        Ok(stored.map(open))
    }
}
