//! The last changes of the store, for watches that are a little behind.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// Changes that are kept, and their bytes.
const MOST: (usize, usize) = (4_096, 4 << 20);

/// The kind of a change.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Kind {
    /// A value was stored.
    Put,
    /// The key was removed.
    Deleted,
    /// Changes up to this index are lost for this watch, which was too slow: read the keys again.
    Missed,
    /// All changes of this watch up to this index were sent: from there a watch that is begun again goes
    /// on. The first item of a watch without an index, and an item after many changes of other keys.
    Reached,
}

/// A change of a key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Change {
    /// Index of the write in the log.
    pub index: u64,
    /// Its kind.
    pub kind: Kind,
    /// The key.
    pub key: ByteBuf,
    /// The new value.
    pub value: Option<ByteBuf>,
}

impl Change {
    /// A change of no key.
    pub fn mark(index: u64, kind: Kind) -> Change {
        Change { index, kind, key: ByteBuf::new(), value: None }
    }
}

/// The last changes, in order.
#[derive(Clone, Default, Debug)]
pub struct Changes {
    last: VecDeque<Change>,
    bytes: usize,
    /// All changes after this index are here.
    after: u64,
}

fn size(change: &Change) -> usize {
    change.key.len() + change.value.as_ref().map_or(0, |value| value.len())
}

impl Changes {
    /// Without changes, of a store that has applied the log up to an index.
    pub(super) fn after(index: u64) -> Changes {
        Changes { after: index, ..Changes::default() }
    }

    pub(super) fn push(&mut self, change: Change) {
        self.bytes += size(&change);
        self.last.push_back(change);
        while self.last.len() > MOST.0 || self.bytes > MOST.1 && self.last.len() > 1 {
            let Some(oldest) = self.last.pop_front() else { break };
            self.bytes -= size(&oldest);
            self.after = oldest.index;
        }
    }

    /// The first change after an index whose key has this prefix, and if there is none, the index up
    /// to which there is none.
    pub fn next(&self, index: u64, prefix: &[u8], applied: u64) -> Result<Change, u64> {
        if index < self.after {
            return Ok(Change::mark(self.after, Kind::Missed));
        }
        let from = self.last.partition_point(|change| change.index <= index);
        let found = self.last.range(from..).find(|change| change.key.starts_with(prefix));
        found.cloned().ok_or(applied.max(index))
    }
}
