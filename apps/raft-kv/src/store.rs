//! The state machine: keys with their values, sessions of clients, members. Applying the same commands
//! makes the same state on every node.
//!
//! Invariants:
//! 1. A write of a session is applied at most once: its result is kept until the client has it
//!    ([`crate::command::Ticket::first`]), and a session that was forgotten is never revived, because
//!    its number is an index of the log.
//! 2. The cluster's time moves with the commands only and never backwards.

mod changes;
mod image;
mod making;
mod sessions;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::command::{Applied, Command, Op, Written};
use crate::planted::{Bug, Planted};
pub use changes::{Change, Changes, Kind};
pub use image::{Decoder, Image, ImageError};
use making::Making;
use sessions::Sessions;
pub use sessions::{MAX_SESSIONS, SESSION_WINDOW};

/// Voters and learners.
#[derive(Clone, Default, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Membership {
    /// Members that vote.
    pub voters: Vec<u64>,
    /// Members that only receive the log.
    pub learners: Vec<u64>,
}

/// A cluster, apart from others with the same name. A number is 0 while it is not known.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Identity {
    /// Checksum of the first members with their addresses.
    pub founders: u64,
    /// A random number of the first leader.
    pub cluster: u64,
}

impl Identity {
    /// Makes the identity of a new cluster, which has no leader yet.
    pub fn of_founders(members: &BTreeMap<u64, String>) -> Identity {
        let mut digest = crc_fast::Digest::new(crc_fast::CrcAlgorithm::Crc64Nvme);
        for (id, uri) in members {
            digest.update(&id.to_le_bytes());
            digest.update(&(uri.len() as u64).to_le_bytes());
            digest.update(uri.as_bytes());
        }
        Identity { founders: digest.finalize().max(1), cluster: 0 }
    }

    /// Returns whether both may be of one cluster.
    pub fn fits(self, other: Identity) -> bool {
        let fits = |one, other| one == 0 || other == 0 || one == other;
        fits(self.founders, other.founders) && fits(self.cluster, other.cluster)
    }
}

/// Position in the log and members of an image.
type About = ((u64, u64), Membership);

/// The state machine.
#[derive(Clone, Debug, Default)]
pub struct Store {
    entries: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Bytes of keys and values.
    bytes: u64,
    sessions: Sessions,
    /// The cluster's time, ms.
    now_ms: u64,
    applied: (u64, u64),
    identity: Identity,
    membership: Membership,
    addresses: BTreeMap<u64, String>,
    changes: Changes,
    /// The image that is being made.
    making: Option<Box<Making<About>>>,
}

impl Store {
    /// The state of a new cluster, the same on each of its first members: as if the log had one entry,
    /// so that members that join later have to get it as a snapshot.
    pub fn founded(members: &BTreeMap<u64, String>) -> Store {
        let membership =
            Membership { voters: members.keys().copied().collect(), learners: Vec::new() };
        let identity = Identity::of_founders(members);
        let addresses = members.clone();
        Store { applied: (1, 1), identity, membership, addresses, ..Store::default() }
    }

    /// Index and term of the last entry that was applied.
    pub fn applied(&self) -> (u64, u64) {
        self.applied
    }

    /// The cluster.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// The cluster's time, ms: that of the last command.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Number of keys, and the bytes of keys and values.
    pub fn size(&self) -> (usize, u64) {
        (self.entries.len(), self.bytes)
    }

    /// Number of sessions.
    pub fn sessions(&self) -> usize {
        self.sessions.len()
    }

    /// Voters and learners.
    pub fn membership(&self) -> &Membership {
        &self.membership
    }

    /// Addresses of the members, as the log has them.
    pub fn addresses(&self) -> &BTreeMap<u64, String> {
        &self.addresses
    }

    /// The last changes, for watches.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Option<&Vec<u8>> {
        self.entries.get(key)
    }

    /// Entries from a key on, up to and without `end`, in order.
    pub fn range(
        &self,
        from: &[u8],
        end: Option<&[u8]>,
    ) -> impl Iterator<Item = (&Vec<u8>, &Vec<u8>)> {
        // The map panics for a range whose end is before its begin.
        let is_empty = end.is_some_and(|end| end <= from);
        let end = match end {
            Some(end) if !is_empty => Bound::Excluded(end),
            _ => Bound::Unbounded,
        };
        let range = self.entries.range::<[u8], _>((Bound::Included(from), end));
        range.take_while(move |_| !is_empty)
    }

    /// Applies an entry. `None` is one without a command, or with a malformed one.
    pub fn apply(&mut self, at: (u64, u64), command: Option<Command>, bugs: Planted) -> Applied {
        self.applied = at;
        match command {
            None => Applied::Done,
            Some(Command::Open { now_ms, ttl_ms }) => {
                self.pass(now_ms);
                match self.sessions.open(at.0, self.now_ms, ttl_ms) {
                    Ok(()) => Applied::Opened(at.0),
                    Err(refused) => Applied::Refused(refused),
                }
            }
            Some(Command::Write { now_ms, ticket, op }) => {
                self.pass(now_ms);
                match self.sessions.find(ticket, self.now_ms) {
                    Ok(Some(written)) if !bugs.has(Bug::ApplyTwice) => Applied::Written(written),
                    Ok(_) => {
                        let written = Written { index: at.0, changed: self.write(at.0, op) };
                        self.sessions.keep(ticket, written);
                        Applied::Written(written)
                    }
                    Err(refused) => Applied::Refused(refused),
                }
            }
            Some(Command::Close { session }) => {
                self.sessions.close(session);
                Applied::Done
            }
            Some(Command::Found { cluster }) => {
                if self.identity.cluster == 0 {
                    self.identity.cluster = cluster;
                }
                Applied::Done
            }
            Some(Command::Address { id, uri }) => {
                if let Some(known) = self.addresses.get_mut(&id) {
                    *known = uri;
                }
                Applied::Done
            }
        }
    }

    /// Applies a change of members: the new membership, and the address of a member that was added.
    pub fn apply_members(&mut self, at: (u64, u64), now: Membership, added: Option<(u64, String)>) {
        self.applied = at;
        self.addresses.extend(added);
        self.addresses.retain(|id, _| now.voters.contains(id) || now.learners.contains(id));
        self.membership = now;
    }

    /// Advances the cluster's time, which ends sessions.
    fn pass(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
        self.sessions.expire(self.now_ms);
    }

    /// Returns whether something was changed.
    fn write(&mut self, index: u64, op: Op) -> bool {
        match op {
            Op::Put { key, value } => self.set(index, key.into_vec(), Some(value.into_vec())),
            Op::Delete { key } => self.set(index, key.into_vec(), None),
            Op::Cas { key, expected, value } => {
                let present = self.entries.get(&key[..]).map(|value| &value[..]);
                present == expected.as_ref().map(|value| &value[..]) && {
                    self.set(index, key.into_vec(), value.map(serde_bytes::ByteBuf::into_vec));
                    true
                }
            }
        }
    }

    fn set(&mut self, index: u64, key: Vec<u8>, value: Option<Vec<u8>>) -> bool {
        let size = |key: &[u8], value: &[u8]| (key.len() + value.len()) as u64;
        let is_put = value.is_some();
        let kind = if is_put { Kind::Put } else { Kind::Deleted };
        let change =
            Change { index, kind, key: key.clone().into(), value: value.clone().map(Into::into) };
        let old = match value {
            Some(value) => {
                self.bytes += size(&key, &value);
                self.entries.insert(key.clone(), value)
            }
            None => self.entries.remove(&key),
        };
        if let Some(old) = &old {
            self.bytes -= size(&key, old);
        }
        if let Some(making) = &mut self.making {
            making.keep(&key, old.as_ref());
        }
        let changed = is_put || old.is_some();
        if changed {
            self.changes.push(change);
        }
        changed
    }
}
