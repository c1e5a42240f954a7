//! The form of a Raft message on the wire: its fields by serde, as calls of typed services encode theirs.

use std::fmt;

use protobuf::{ProtobufEnum, RepeatedField};
use raft::eraftpb::{Entry, EntryType, Message, MessageType, Snapshot};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Most members of a cluster.
pub const MAX_MEMBERS: usize = 64;
/// Most entries of a message.
pub const MAX_ENTRIES: usize = 4_096;
/// Largest context of a message, bytes. Heartbeats carry the number of a read there.
pub(super) const MAX_CONTEXT: usize = 64;
/// Most bytes of a message without its context, its entries and the members of its snapshot.
const MAX_HEAD: usize = 144;
/// Most bytes of an entry without its data.
const MAX_ENTRY_HEAD: usize = 32;
/// Most bytes of a number.
const MAX_NUMBER: usize = 10;

/// `entries` are [`Sent`] or [`Received`].
#[derive(Serialize, Deserialize)]
pub(super) struct Form<'a, E> {
    kind: u8,
    to: u64,
    from: u64,
    term: u64,
    log_term: u64,
    index: u64,
    commit: u64,
    commit_term: u64,
    request_snapshot: u64,
    reject: bool,
    reject_hint: u64,
    priority: i64,
    #[serde(with = "serde_bytes")]
    context: &'a [u8],
    entries: E,
    snapshot: Option<Head>,
}

/// A snapshot without its data, which is sent in chunks of its own.
#[derive(Serialize, Deserialize)]
struct Head {
    index: u64,
    term: u64,
    /// Voters, learners, those two of the configuration that is left.
    members: [Vec<u64>; 4],
    auto_leave: bool,
}

#[derive(Serialize, Deserialize)]
struct EntryForm<'a> {
    kind: u8,
    term: u64,
    index: u64,
    #[serde(with = "serde_bytes")]
    data: &'a [u8],
}

/// Entries of a message that is encoded.
pub(super) struct Sent<'a>(&'a [Entry]);

/// Entries of a message that is decoded, at most [`MAX_ENTRIES`].
pub(super) struct Received(Vec<Entry>);

impl<'a> Form<'a, Sent<'a>> {
    pub(super) fn of(message: &'a Message) -> Self {
        Form {
            kind: message.msg_type.value() as u8,
            to: message.to,
            from: message.from,
            term: message.term,
            log_term: message.log_term,
            index: message.index,
            commit: message.commit,
            commit_term: message.commit_term,
            request_snapshot: message.request_snapshot,
            reject: message.reject,
            reject_hint: message.reject_hint,
            priority: message.priority,
            context: &message.context,
            entries: Sent(&message.entries),
            snapshot: message.snapshot.as_ref().map(Head::of),
        }
    }
}

impl Form<'_, Received> {
    /// The message. `None`: its kind is not known, or it has too many members or a long context.
    pub(super) fn message(self) -> Option<Message> {
        if self.context.len() > MAX_CONTEXT {
            return None;
        }
        let snapshot = match self.snapshot {
            Some(head) => Some(head.snapshot()?),
            None => None,
        };
        Some(Message {
            msg_type: MessageType::from_i32(self.kind.into())?,
            to: self.to,
            from: self.from,
            term: self.term,
            log_term: self.log_term,
            index: self.index,
            entries: RepeatedField::from_vec(self.entries.0),
            commit: self.commit,
            commit_term: self.commit_term,
            snapshot: snapshot.into(),
            request_snapshot: self.request_snapshot,
            reject: self.reject,
            reject_hint: self.reject_hint,
            context: self.context.to_vec().into(),
            // The library reads this one only if `priority` is 0, and sends both alike.
            deprecated_priority: 0,
            priority: self.priority,
            ..Message::default()
        })
    }
}

impl Head {
    fn of(snapshot: &Snapshot) -> Self {
        let metadata = snapshot.get_metadata();
        let state = metadata.get_conf_state();
        let lists = [&state.voters, &state.learners, &state.voters_outgoing, &state.learners_next];
        Head {
            index: metadata.index,
            term: metadata.term,
            members: lists.map(Clone::clone),
            auto_leave: state.auto_leave,
        }
    }

    fn snapshot(self) -> Option<Snapshot> {
        if self.members.iter().any(|list| list.len() > MAX_MEMBERS) {
            return None;
        }
        let mut snapshot = Snapshot::default();
        let metadata = snapshot.mut_metadata();
        (metadata.index, metadata.term) = (self.index, self.term);
        let state = metadata.mut_conf_state();
        state.auto_leave = self.auto_leave;
        [state.voters, state.learners, state.voters_outgoing, state.learners_next] = self.members;
        Some(snapshot)
    }
}

impl Serialize for Sent<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.0.iter().map(|entry| EntryForm {
            kind: entry.entry_type.value() as u8,
            term: entry.term,
            index: entry.index,
            data: &entry.data,
        }))
    }
}

impl<'de> Deserialize<'de> for Received {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(Entries)
    }
}

struct Entries;

impl<'de> Visitor<'de> for Entries {
    type Value = Received;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {MAX_ENTRIES} entries")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Received, A::Error> {
        let mut entries = Vec::new();
        while let Some(form) = from.next_element::<EntryForm<'de>>()? {
            if entries.len() == MAX_ENTRIES {
                return Err(A::Error::invalid_length(MAX_ENTRIES + 1, &self));
            }
            entries.push(Entry {
                entry_type: EntryType::from_i32(form.kind.into())
                    .ok_or_else(|| A::Error::custom("a kind of entries that is not known"))?,
                term: form.term,
                index: form.index,
                data: form.data.to_vec().into(),
                ..Entry::default()
            });
        }
        Ok(Received(entries))
    }
}

/// Bytes that a message takes at most.
pub(super) fn bound(message: &Message) -> usize {
    let state = message.get_snapshot().get_metadata().get_conf_state();
    let members = [&state.voters, &state.learners, &state.voters_outgoing, &state.learners_next];
    let members: usize = members.iter().map(|list| list.len()).sum();
    let entries: usize = message.entries.iter().map(entry_bound).sum();
    MAX_HEAD + message.context.len() + MAX_NUMBER * members + entries
}

/// Bytes that an entry takes at most.
pub(super) fn entry_bound(entry: &Entry) -> usize {
    MAX_ENTRY_HEAD + entry.data.len()
}
