//! The state of a node for operators, and its counters.

use serde::{Deserialize, Serialize};

use super::Core;

/// Counters since the start of the node.
#[derive(Clone, Default, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Counters {
    /// Commands that this node proposed.
    pub writes: u64,
    /// Writes that were refused because too many bytes are not committed.
    pub writes_refused: u64,
    /// Entries that were applied.
    pub applied: u64,
    /// Reads that were accepted.
    pub reads: u64,
    /// Rounds of messages for reads.
    pub read_rounds: u64,
    /// Reads without a round.
    pub reads_by_lease: u64,
    /// Elections that this node won.
    pub elections_won: u64,
    /// Snapshots of this node's own state.
    pub snapshots_made: u64,
    /// Snapshots that were received and installed.
    pub snapshots_installed: u64,
    /// Snapshots of peers that this node refused.
    pub snapshots_refused: u64,
    /// Candidates that were ignored because of the leader.
    pub votes_ignored: u64,
    /// Messages that were dropped because the disk is too far behind.
    pub messages_dropped: u64,
    /// Messages that contradict the state of this node.
    pub messages_refused: u64,
    /// Batches of messages, and parts of snapshots, that could not be decoded.
    pub messages_malformed: u64,
    /// The reason of the last one.
    #[serde(skip)]
    pub last_refusal: Option<&'static str>,
}

/// A member, as the leader sees it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Member {
    /// Its number.
    pub id: u64,
    /// Its address.
    pub uri: String,
    /// It votes.
    pub votes: bool,
    /// Index of the last entry that it has; `None` where this node does not lead.
    pub matched: Option<u64>,
}

/// The state of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Status {
    /// Its number.
    pub id: u64,
    /// `leader`, `follower`, `candidate`, `learner`, `stalled` (too much waits for its disk, so it takes no
    /// part), or `stopped`.
    pub role: String,
    /// The leader that it follows.
    pub leader: Option<u64>,
    /// Its term.
    pub term: u64,
    /// Index of the last entry that is known to be committed.
    pub committed: u64,
    /// Index of the last entry that was applied.
    pub applied: u64,
    /// Indexes of the first and the last entry in the log.
    pub log: (u64, u64),
    /// Bytes of these entries in memory.
    pub log_bytes: u64,
    /// Index of the last snapshot.
    pub snapshot: u64,
    /// Keys.
    pub keys: u64,
    /// Bytes of keys and values.
    pub bytes: u64,
    /// Sessions of clients.
    pub sessions: u64,
    disk_wait_ms: u64,
    stalls: u64,
    /// Members.
    pub members: Vec<Member>,
    /// Counters.
    pub counters: Counters,
    /// Why it has stopped, the state of a disk that is late, or the reason for which the last
    /// message was dropped.
    pub note: Option<String>,
}

impl Status {
    /// Time for which data has waited since the disk took a frame, ms. 0: none waits.
    pub fn disk_wait_ms(&self) -> u64 {
        self.disk_wait_ms
    }

    /// Times since the start at which the node took no part in the cluster, as too much waited for its
    /// disk.
    pub fn stalls(&self) -> u64 {
        self.stalls
    }
}

impl Core {
    /// The state now.
    pub fn status(&self) -> Status {
        let raft = &self.raw.raft;
        let members = self.store.membership();
        let member = |(id, votes): (&u64, bool)| Member {
            id: *id,
            uri: self.store.addresses().get(id).cloned().unwrap_or_default(),
            votes,
            matched: raft
                .prs()
                .get(*id)
                .filter(|_| self.is_leader())
                .map(|progress| progress.matched),
        };
        let ids = members.voters.iter().map(|id| (id, true));
        let is_learner = members.learners.contains(&self.settings.id);
        let role = match raft.state {
            _ if self.failed.is_some() => "stopped",
            _ if self.is_stalled() => "stalled",
            raft::StateRole::Leader => "leader",
            raft::StateRole::Follower if is_learner => "learner",
            raft::StateRole::Follower => "follower",
            _ => "candidate",
        };
        let (keys, bytes) = self.store.size();
        let refusal = self.counters.last_refusal.map(str::to_owned);
        Status {
            id: self.settings.id,
            role: role.to_owned(),
            leader: self.leader(),
            term: raft.term,
            committed: raft.raft_log.committed,
            applied: self.store.applied().0,
            log: (self.log().base().0 + 1, self.log().last()),
            log_bytes: self.log().bytes() as u64,
            snapshot: self.log().snapshot_at().0,
            keys: keys as u64,
            bytes,
            sessions: self.store.sessions() as u64,
            disk_wait_ms: self.late.wait_ns(self.now_ns) / 1_000_000,
            stalls: self.late.stalls(),
            members: ids.chain(members.learners.iter().map(|id| (id, false))).map(member).collect(),
            counters: self.counters.clone(),
            note: self.failed.clone().or_else(|| self.late.note(self.now_ns)).or(refusal),
        }
    }

    /// The term.
    pub fn term(&self) -> u64 {
        self.raw.raft.term
    }

    /// Counts a batch or a part of a snapshot that could not be decoded.
    pub fn malformed(&mut self) {
        self.counters.messages_malformed += 1;
    }

    /// Counters.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }
}
