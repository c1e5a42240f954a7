//! The service: what the client, the server and the tests share.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};

use courser::DrainToken;
use courser::service::Stream;
use futures::future::{Either, select};
use futures::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast::{self, error::RecvError};

/// Largest value, bytes.
pub const MAX_VALUE: usize = 1 << 20;

/// Bytes of keys and values that a scan copies while it holds the lock, and keeps for its client; an
/// entry that is larger is a page alone. A bound of entries would be none of memory: 64 values of 1 MiB
/// are 64 MiB for each reader.
const PAGE: usize = 64 << 10;

/// Bytes of an entry besides its key and its value.
const ENTRY: usize = size_of::<(String, Vec<u8>)>();

/// Changes that are kept for readers that are slower.
const CHANGES: usize = 256;

/// Why a method has no result. It travels as it is: the client matches on it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, thiserror::Error)]
pub enum KvError {
    /// There is no such key.
    #[error("there is no such key")]
    NotFound,
    /// The value is larger than the store takes.
    #[error("the value has {size} bytes, and at most {limit} are stored; split it")]
    TooLarge {
        /// Bytes of the value.
        size: u64,
        /// Most bytes of a value.
        limit: u64,
    },
    /// The server shuts down, and the call waited for longer.
    #[error("the server is shutting down; wait at another one")]
    ShuttingDown,
}

/// A change of the store.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Change {
    /// A value was stored.
    Put(String, Vec<u8>),
    /// A key was removed.
    Deleted(String),
    /// The reader was too slow for this number of changes, which are lost: it scans again.
    Missed(u64),
}

/// A key-value store.
#[courser::service]
pub trait Kv {
    /// The value of a key.
    async fn get(&self, key: String) -> Result<Vec<u8>, KvError>;
    /// Stores a value, in place of an earlier one. Repeating it changes nothing.
    ///
    /// A `Vec<u8>` that is a parameter or a result is copied at once. In a field of a type, or an item
    /// with other values as below, large ones should be a `serde_bytes::ByteBuf`, which has the same
    /// encoding: a `Vec<u8>` is read byte by byte there.
    async fn put(&self, key: String, value: Vec<u8>) -> Result<(), KvError>;
    /// Removes a key.
    async fn delete(&self, key: String) -> Result<(), KvError>;
    /// All entries from a key on, in the order of the keys. Entries that are written meanwhile may
    /// be missing.
    fn scan(&self, from: String) -> impl Stream<Item = (String, Vec<u8>)>;
    /// All changes from now on. It has no end of its own: when the server shuts down, it ends with
    /// [`courser::service::MidStreamError::ShuttingDown`].
    fn watch(&self) -> impl Stream<Item = Change>;
    /// The value of a key, when there is one.
    async fn wait_for(&self, key: String) -> Result<Vec<u8>, KvError>;
}

/// A store in memory.
#[derive(Debug)]
pub struct Store {
    entries: Mutex<BTreeMap<String, Vec<u8>>>,
    changes: broadcast::Sender<Change>,
    /// Token of the server that serves it now.
    drain: Mutex<DrainToken>,
}

impl Default for Store {
    fn default() -> Self {
        let (changes, _) = broadcast::channel(CHANGES);
        Store { entries: Mutex::default(), changes, drain: Mutex::default() }
    }
}

impl Store {
    /// Ends calls that wait when the server of this token shuts down.
    pub fn drain_with(&self, token: DrainToken) {
        *self.drain.lock().unwrap_or_else(PoisonError::into_inner) = token;
    }

    /// Tells those that watch. There may be none.
    fn changed(&self, change: Change) {
        let _ = self.changes.send(change);
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        // No code panics between two changes that belong together.
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn page(&self, from: String) -> Vec<(String, Vec<u8>)> {
        let entries = self.entries();
        let mut bytes = 0;
        let fits = |(key, value): &(&String, &Vec<u8>)| {
            let is_first = bytes == 0;
            bytes += key.len() + value.len() + ENTRY;
            is_first || bytes <= PAGE
        };
        entries.range(from..).take_while(fits).map(|(k, v)| (k.clone(), v.clone())).collect()
    }
}

impl Kv for Store {
    async fn get(&self, key: String) -> Result<Vec<u8>, KvError> {
        self.entries().get(&key).cloned().ok_or(KvError::NotFound)
    }

    async fn put(&self, key: String, value: Vec<u8>) -> Result<(), KvError> {
        if value.len() > MAX_VALUE {
            let (size, limit) = (value.len() as u64, MAX_VALUE as u64);
            return Err(KvError::TooLarge { size, limit });
        }
        self.entries().insert(key.clone(), value.clone());
        self.changed(Change::Put(key, value));
        Ok(())
    }

    async fn delete(&self, key: String) -> Result<(), KvError> {
        self.entries().remove(&key).ok_or(KvError::NotFound)?;
        self.changed(Change::Deleted(key));
        Ok(())
    }

    fn scan(&self, from: String) -> impl Stream<Item = (String, Vec<u8>)> {
        // Page by page, as fast as the client reads: the memory of a scan is that of one page.
        let pages = stream::unfold(Some(from), move |from| async move {
            let page = self.page(from?);
            let next = page.last().map(|(key, _)| format!("{key}\0"));
            Some((stream::iter(page), next))
        });
        pages.flatten()
    }

    fn watch(&self) -> impl Stream<Item = Change> {
        let changes = self.changes.subscribe();
        stream::unfold(changes, |mut changes| async move {
            match changes.recv().await {
                Ok(change) => Some((change, changes)),
                Err(RecvError::Lagged(missed)) => Some((Change::Missed(missed), changes)),
                Err(RecvError::Closed) => None,
            }
        })
    }

    async fn wait_for(&self, key: String) -> Result<Vec<u8>, KvError> {
        let token = self.drain.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let mut draining = pin!(token.draining());
        let mut changes = self.changes.subscribe();
        loop {
            let value = self.entries().get(&key).cloned();
            if let Some(value) = value {
                return Ok(value);
            }
            // Without the token the call would delay the end of the server until the end of its
            // grace.
            let changed = pin!(changes.recv());
            if let Either::Right(_) = select(changed, draining.as_mut()).await {
                return Err(KvError::ShuttingDown);
            }
        }
    }
}
