//! Commands: the entries of the replicated log, and their results.
//!
//! Invariants:
//! 1. Every node applies the same commands in the same order, so a command contains everything that its
//!    result depends on, also the time (`now_ms`).
//! 2. Decoding takes memory in proportion to the bytes of the entry.

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Largest key, bytes.
pub const MAX_KEY: usize = 64 << 10;
/// Largest value, bytes. A `cas` has two of them, and a message of the peers has room for that.
pub const MAX_VALUE: usize = 2 << 20;
/// Largest address, bytes.
pub const MAX_URI: usize = 256;
/// Largest encoded command, bytes: a key, two values, and numbers.
pub const MAX_COMMAND: usize = MAX_KEY + 2 * MAX_VALUE + 256;

/// A change of one key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Op {
    /// Stores a value, in place of an earlier one.
    Put {
        /// The key.
        key: ByteBuf,
        /// The value.
        value: ByteBuf,
    },
    /// Removes a key.
    Delete {
        /// The key.
        key: ByteBuf,
    },
    /// Replaces a value if the present one is the expected one. `None` is an absent key.
    Cas {
        /// The key.
        key: ByteBuf,
        /// The value that the key must have.
        expected: Option<ByteBuf>,
        /// The value that it gets.
        value: Option<ByteBuf>,
    },
}

impl Op {
    /// The key.
    pub fn key(&self) -> &[u8] {
        match self {
            Op::Put { key, .. } | Op::Delete { key } | Op::Cas { key, .. } => key,
        }
    }

    /// Returns the size and the limit of a key or value that is too large.
    pub fn oversized(&self) -> Option<(usize, usize)> {
        let len = |value: &Option<ByteBuf>| value.as_ref().map_or(0, |value| value.len());
        let value = match self {
            Op::Put { value, .. } => value.len(),
            Op::Delete { .. } => 0,
            Op::Cas { expected, value, .. } => len(expected).max(len(value)),
        };
        let pairs = [(self.key().len(), MAX_KEY), (value, MAX_VALUE)];
        pairs.into_iter().find(|(size, limit)| size > limit)
    }
}

/// Number of a write within a client's session: writes with the same ticket are applied once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Ticket {
    /// Session, from [`Command::Open`].
    pub session: u64,
    /// Number of the write in the session, from 1.
    pub seq: u64,
    /// The client has the results of all writes below this one, which are forgotten.
    pub first: u64,
}

/// An entry of the log.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Command {
    /// Opens a session. Its number is the index of this entry.
    Open {
        /// The leader's reading of the cluster's time, ms.
        now_ms: u64,
        /// Time without a write after which the session ends, ms.
        ttl_ms: u64,
    },
    /// A write of a session.
    Write {
        /// The leader's reading of the cluster's time, ms.
        now_ms: u64,
        /// Session and number.
        ticket: Ticket,
        /// The change.
        op: Op,
    },
    /// Ends a session.
    Close {
        /// Its number.
        session: u64,
    },
    /// Gives a new cluster its number; a later one changes nothing.
    Found {
        /// A random number, not 0.
        cluster: u64,
    },
    /// A member has another address.
    Address {
        /// The member.
        id: u64,
        /// Its address.
        uri: String,
    },
}

impl Command {
    /// The encoding of an entry.
    pub fn encode(&self) -> Vec<u8> {
        // Only a failed allocation or a type that is no data has an error, and neither is possible here.
        postcard::to_stdvec(self).expect("commands are data")
    }

    /// Decodes an entry. `None`: it is no command, and is applied as none on every node.
    pub fn decode(bytes: &[u8]) -> Option<Command> {
        if bytes.len() > MAX_COMMAND {
            return None;
        }
        match postcard::take_from_bytes(bytes) {
            Ok((command, [])) => Some(command),
            _ => None,
        }
    }
}

/// Result of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Written {
    /// Index of the write in the log: the order of all writes.
    pub index: u64,
    /// False: a `delete` found no key, or a `cas` another value. Nothing was changed then.
    pub changed: bool,
}

/// Why a write was not applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum Unwritten {
    /// There is no such session.
    #[error("the session has expired; open another one")]
    Expired,
    /// The client has stated that it has the result.
    #[error("the write is older than the results that the client has; use a new number")]
    Stale,
    /// The session has too many writes whose results the client may ask for.
    #[error("the session has too many writes in progress; wait for results")]
    Window,
    /// There are too many sessions.
    #[error("the cluster has as many sessions as it keeps; close some, or wait until they expire")]
    Sessions,
}

/// Result of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Applied {
    /// A session was opened.
    Opened(u64),
    /// A write was applied, now or earlier.
    Written(Written),
    /// A command without a result.
    Done,
    /// The command changed nothing.
    Refused(Unwritten),
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn commands_are_read_back_and_trailing_bytes_are_refused() {
        let op =
            Op::Cas { key: ByteBuf::from("k"), expected: None, value: Some(ByteBuf::from("v")) };
        let ticket = Ticket { session: 3, seq: 2, first: 1 };
        let command = Command::Write { now_ms: 7, ticket, op };
        let mut bytes = command.encode();
        assert_eq!(Command::decode(&bytes), Some(command));
        bytes.push(0);
        assert_eq!(Command::decode(&bytes), None);
    }

    #[test]
    fn the_largest_command_has_room() {
        let value = ByteBuf::from(vec![1; MAX_VALUE]);
        let key = ByteBuf::from(vec![1; MAX_KEY]);
        let op = Op::Cas { key, expected: Some(value.clone()), value: Some(value) };
        assert_eq!(op.oversized(), None);
        let ticket = Ticket { session: u64::MAX, seq: u64::MAX, first: u64::MAX };
        let bytes = Command::Write { now_ms: u64::MAX, ticket, op }.encode();
        assert!(bytes.len() <= MAX_COMMAND && Command::decode(&bytes).is_some());
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_command_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Command::decode(&bytes);
        }
    }
}
