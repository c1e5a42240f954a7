//! Messages that contradict the state of this node. The Raft library panics on most of them; they come
//! from a peer that is broken, or from a node that lost what it had stored.

use std::sync::Arc;

use raft::eraftpb::{EntryType, Message, MessageType};

use super::Core;
use crate::log::membership;
use crate::store::{Image, Store};

/// Largest index and term: additions do not overflow.
const MOST: u64 = 1 << 62;

/// A message that is dropped, with the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Suspect(pub &'static str);

const LOST: &str = "a message states that this node stored entries that it does not have: was its \
                    directory replaced? remove the node, and add it again under another number";

impl Core {
    /// Checks a message of a peer.
    pub(super) fn examine(&self, message: &Message) -> Result<(), Suspect> {
        let kind = message.get_msg_type();
        let numbers = [message.term, message.log_term, message.index, message.commit];
        if message.to != self.settings.id || message.from == 0 || message.from == self.settings.id {
            return Err(Suspect("a message for another node; check the numbers of the nodes"));
        }
        if numbers.into_iter().chain([message.reject_hint, message.commit_term]).any(|n| n > MOST)
            || message.term == 0
            || message.request_snapshot != 0
        {
            return Err(Suspect("a message with a number out of range"));
        }
        let takes_entries = kind == MessageType::MsgAppend;
        if message.has_snapshot() != (kind == MessageType::MsgSnapshot)
            || !takes_entries && !message.entries.is_empty()
        {
            return Err(Suspect("a message with parts of another kind"));
        }
        match kind {
            MessageType::MsgAppend => self.examine_append(message),
            MessageType::MsgHeartbeat => {
                let is_behind = message.term >= self.raw.raft.term
                    && message.commit > self.raw.raft.raft_log.last_index();
                if is_behind { Err(Suspect(LOST)) } else { Ok(()) }
            }
            MessageType::MsgAppendResponse | MessageType::MsgHeartbeatResponse => {
                let last = self.raw.raft.raft_log.last_index();
                let is_beyond = message.index > last || message.reject_hint > last;
                if message.term == self.raw.raft.term && self.is_leader() && is_beyond {
                    return Err(Suspect("an answer for entries that this node did not send"));
                }
                Ok(())
            }
            MessageType::MsgRequestVote | MessageType::MsgRequestPreVote
                if !message.context.is_empty() =>
            {
                // A transfer of leadership, which ignores leases.
                Err(Suspect("a candidate that claims to be appointed"))
            }
            MessageType::MsgRequestVote
            | MessageType::MsgRequestVoteResponse
            | MessageType::MsgRequestPreVote
            | MessageType::MsgRequestPreVoteResponse
            | MessageType::MsgSnapshot => Ok(()),
            _ => Err(Suspect("a message of a kind that nodes do not send")),
        }
    }

    /// Entries follow each other, and those that are committed here are the same.
    fn examine_append(&self, message: &Message) -> Result<(), Suspect> {
        // The library takes term 0 for that of an entry behind the end of the log.
        if (message.index == 0) != (message.log_term == 0) {
            return Err(Suspect("entries out of order"));
        }
        let mut last = (message.index, message.log_term.max(1));
        let log = &self.raw.raft.raft_log;
        for entry in &message.entries {
            let follows = entry.index == last.0 + 1 && entry.term >= last.1;
            if !follows || entry.term > message.term || entry.index > MOST {
                return Err(Suspect("entries out of order"));
            }
            if entry.get_entry_type() == EntryType::EntryConfChangeV2 {
                return Err(Suspect("an entry of a kind that nodes do not propose"));
            }
            let is_kept = entry.index <= log.committed && entry.index >= log.first_index();
            if message.term >= self.raw.raft.term
                && is_kept
                && log.term(entry.index) != Ok(entry.term)
            {
                return Err(Suspect(
                    "entries that contradict committed ones: was the directory of a node replaced? \
                     compare the numbers and directories of all nodes",
                ));
            }
            last = (entry.index, entry.term);
        }
        Ok(())
    }

    /// Checks a snapshot with its store.
    pub(super) fn examine_snapshot(
        &self,
        message: &Message,
        store: Store,
        bytes: Arc<Vec<u8>>,
    ) -> Result<(Store, Image), Suspect> {
        let metadata = message.get_snapshot().get_metadata();
        let conf = metadata.get_conf_state();
        let is_joint =
            !conf.voters_outgoing.is_empty() || !conf.learners_next.is_empty() || conf.auto_leave;
        if is_joint || metadata.index > MOST || metadata.term > message.term {
            return Err(Suspect("a snapshot with a head that nodes do not send"));
        }
        let is_same = store.applied() == (metadata.index, metadata.term)
            && *store.membership() == membership(conf);
        if !store.identity().fits(self.store.identity()) {
            return Err(Suspect(
                "a snapshot of another cluster; compare the addresses and directories of all nodes",
            ));
        }
        if !is_same {
            return Err(Suspect("a snapshot that does not have what its head states"));
        }
        let image = Image { at: store.applied(), membership: store.membership().clone(), bytes };
        Ok((store, image))
    }
}
