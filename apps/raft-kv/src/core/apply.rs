//! Committed entries, in order.

use raft::eraftpb::{ConfChangeType, Entry, EntryType};

use super::{Core, Refused};
use crate::command::{Applied, Command, MAX_URI};
use crate::log::membership;
use crate::planted::Bug;
use crate::wire::conf_change;

impl Core {
    pub(super) fn apply(&mut self, entries: Vec<Entry>) {
        let Some(last) = entries.last().map(|entry| entry.index) else { return };
        for entry in entries {
            let (index, term) = (entry.index, entry.term);
            let result = self.apply_entry(&entry);
            self.counters.applied += 1;
            self.unsaved_bytes += crate::log::size(&entry);
            let Some((proposed, writer)) = self.writes.take(index) else { continue };
            // Another leader's entry took the place of the one that was proposed.
            let other = || Err(Refused::NotLeader { leader: self.leader() });
            let _ = writer.send(if proposed == term { Ok(result) } else { other() });
        }
        self.raw.advance_apply_to(last);
    }

    fn apply_entry(&mut self, entry: &Entry) -> Applied {
        let at = (entry.index, entry.term);
        if self.settings.bugs.has(Bug::ShortSnapshot) {
            self.before = Some(self.store.clone());
        }
        match entry.get_entry_type() {
            EntryType::EntryNormal => {
                let command = Some(&entry.data[..]).filter(|data| !data.is_empty());
                self.store.apply(at, command.and_then(Command::decode), self.settings.bugs)
            }
            EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => {
                self.apply_members(at, entry);
                Applied::Done
            }
        }
    }

    /// A change that is malformed, or that the Raft library refuses, changes nothing on any node.
    fn apply_members(&mut self, at: (u64, u64), entry: &Entry) {
        let change = match entry.get_entry_type() {
            EntryType::EntryConfChange => conf_change(&entry.data),
            _ => None,
        };
        let applied = change.as_ref().and_then(|change| self.raw.apply_conf_change(change).ok());
        let (Some(change), Some(conf)) = (change, applied) else {
            self.store.apply(at, None, self.settings.bugs);
            return;
        };
        let uri = std::str::from_utf8(&change.context).ok().filter(|uri| {
            (1..=MAX_URI).contains(&uri.len())
                && change.get_change_type() == ConfChangeType::AddLearnerNode
        });
        let added = uri.map(|uri| (change.node_id, uri.to_owned()));
        self.store.apply_members(at, membership(&conf), added);
        let addresses = self.store.addresses();
        self.heard.retain(|id, _| addresses.contains_key(id));
    }
}
