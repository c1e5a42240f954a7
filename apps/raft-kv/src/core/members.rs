//! Changes of the members, one at a time [Raft dissertation, section 4.1].

use raft::eraftpb::{ConfChange, ConfChangeType};
use serde::{Deserialize, Serialize};

use super::{Core, MAX_WRITES, Refused, Writer, refuse};
use crate::command::{Command, MAX_URI};
use crate::wire::MAX_MEMBERS;

/// Entries that a learner may lack when it becomes a voter.
const CLOSE: u64 = 1_000;

/// A change of the members.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum MemberChange {
    /// Adds a member that receives the log and does not vote yet.
    Add {
        /// Its number, which no node had before.
        id: u64,
        /// Its address.
        uri: String,
    },
    /// Makes a member that has caught up a voter.
    Promote {
        /// Its number.
        id: u64,
    },
    /// Removes a member.
    Remove {
        /// Its number.
        id: u64,
        /// Also if the other voters that answer are no majority: the cluster stops then until more of
        /// them run.
        force: bool,
    },
}

/// Why the members are not changed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum MemberError {
    /// It is no number of a node.
    #[error("the number of a node is from 1 on; choose another one")]
    Number,
    /// There is a member with this number at another address.
    #[error(
        "node {0} is a member at another address; add a node with a number that was never used"
    )]
    Member(u64),
    /// There is none.
    #[error("node {0} is no member that this change applies to; see `raft-kv status`")]
    NoMember(u64),
    /// The member lacks too many entries.
    #[error("node {id} lacks {entries} entries; repeat this when it has caught up")]
    Behind {
        /// The member.
        id: u64,
        /// Entries that it lacks.
        entries: u64,
    },
    /// The leader cannot be removed.
    #[error("node {0} leads; stop it first, so that another node leads, and remove it then")]
    Leader(u64),
    /// The voters that answer would be no majority.
    #[error(
        "the cluster would stop: of its voters after this change {} answer, and {} do not; start those, \
         or remove them first, or remove with --force", numbers(.reachable), numbers(.silent)
    )]
    Quorum {
        /// Voters that the leader has received a message from within an election timeout, with itself.
        reachable: Vec<u64>,
        /// The other voters.
        silent: Vec<u64>,
    },
    /// No voter would be left.
    #[error("node {0} is the only voter; add and promote another one first")]
    Last(u64),
    /// Other nodes cannot connect to the address.
    #[error("{0}")]
    Address(String),
    /// A limit.
    #[error(
        "a cluster has at most {MAX_MEMBERS} members, with addresses of at most {MAX_URI} bytes"
    )]
    Limit,
    /// Another change is in progress.
    #[error("another change of the members is in progress; repeat this in a second")]
    Pending,
}

/// Numbers of nodes as text.
fn numbers(ids: &[u64]) -> String {
    let texts: Vec<_> = ids.iter().map(u64::to_string).collect();
    if texts.is_empty() { "none".to_owned() } else { texts.join(", ") }
}

impl Core {
    /// Proposes a change. The writer has its result. Returns false, and drops the writer, if the members
    /// are so already, as they are when a change is repeated whose answer was lost.
    ///
    /// # Errors
    /// The change is refused; the writer is dropped.
    pub fn change_members(
        &mut self,
        change: &MemberChange,
        writer: Writer,
    ) -> Result<bool, MemberError> {
        let refusal = self.why_not(self.writes.len() >= MAX_WRITES);
        if let Some(refusal) = refusal {
            refuse(Some(writer), refusal);
            return Ok(true);
        }
        let Some(proposal) = self.proposal(change)? else { return Ok(false) };
        if self.raw.raft.has_pending_conf() {
            return Err(MemberError::Pending);
        }
        let proposed =
            self.guarded(|core| core.raw.propose_conf_change(Vec::new(), proposal).is_ok());
        if proposed == Some(true) {
            let (index, term) = (self.raw.raft.raft_log.last_index(), self.raw.raft.term);
            self.writes.insert((index, term), None, writer);
        } else {
            refuse(Some(writer), Refused::Busy);
        }
        Ok(true)
    }

    /// Checks that a majority of the voters after a change answers.
    fn check_quorum(&self, voters: impl Iterator<Item = u64>) -> Result<(), MemberError> {
        let patience = self.settings.election();
        let (reachable, silent): (Vec<u64>, Vec<u64>) = voters.partition(|id| {
            let since = self.heard.get(id).map(|at_ns| self.now_ns.saturating_sub(*at_ns));
            *id == self.settings.id || since.is_some_and(|ns| u128::from(ns) <= patience.as_nanos())
        });
        if reachable.len() > silent.len() {
            return Ok(());
        }
        Err(MemberError::Quorum { reachable, silent })
    }

    /// The entry of a change; `None`: there is nothing to change.
    fn proposal(&self, change: &MemberChange) -> Result<Option<ConfChange>, MemberError> {
        let members = self.store.membership();
        let (is_voter, is_learner) =
            (|id| members.voters.contains(id), |id| members.learners.contains(id));
        let mut proposal = ConfChange::default();
        match change {
            MemberChange::Add { id, uri } => {
                if *id == 0 {
                    return Err(MemberError::Number);
                }
                if is_voter(id) || is_learner(id) {
                    let is_same = self.store.addresses().get(id) == Some(uri);
                    return if is_same { Ok(None) } else { Err(MemberError::Member(*id)) };
                }
                let count = members.voters.len() + members.learners.len();
                if count >= MAX_MEMBERS || !(1..=MAX_URI).contains(&uri.len()) {
                    return Err(MemberError::Limit);
                }
                proposal.set_change_type(ConfChangeType::AddLearnerNode);
                proposal.node_id = *id;
                proposal.context = uri.clone().into_bytes().into();
            }
            MemberChange::Promote { id } => {
                if is_voter(id) {
                    return Ok(None);
                }
                let progress = self.raw.raft.prs().get(*id).filter(|_| is_learner(id));
                let matched = progress.ok_or(MemberError::NoMember(*id))?.matched;
                let entries = self.raw.raft.raft_log.committed.saturating_sub(matched);
                if entries > CLOSE || matched == 0 {
                    return Err(MemberError::Behind { id: *id, entries });
                }
                self.check_quorum(members.voters.iter().copied().chain([*id]))?;
                proposal.set_change_type(ConfChangeType::AddNode);
                proposal.node_id = *id;
            }
            MemberChange::Remove { id, force } => {
                if *id == self.settings.id {
                    return Err(MemberError::Leader(*id));
                }
                if !is_voter(id) && !is_learner(id) {
                    return Ok(None);
                }
                if members.voters == [*id] {
                    return Err(MemberError::Last(*id));
                }
                if is_voter(id) && !force {
                    self.check_quorum(members.voters.iter().copied().filter(|other| other != id))?;
                }
                proposal.set_change_type(ConfChangeType::RemoveNode);
                proposal.node_id = *id;
            }
        }
        Ok(Some(proposal))
    }

    /// A member has announced an address: a leader puts it in the log.
    pub fn announce(&mut self, id: u64, uri: &str) {
        let known = self.store.addresses().get(&id);
        let is_new = known.is_some_and(|known| known != uri) && uri.len() <= MAX_URI;
        if self.is_leader() && is_new {
            self.propose(&Command::Address { id, uri: uri.to_owned() }, None);
        }
    }
}
