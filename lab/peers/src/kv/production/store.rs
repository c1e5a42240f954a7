//! The store behind the service, the same for all libraries: entries, faults, and the log.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The most lines of the log.
const LINES: usize = 1_000;

/// Entries in memory. The value of `slow` is never read to its end.
pub(super) struct Store {
    entries: Mutex<BTreeMap<String, Vec<u8>>>,
    /// Calls to refuse.
    refusals: AtomicU32,
    refused: AtomicU32,
    log: Mutex<Vec<Call>>,
}

/// A line of the log: a call that a handler has.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) method: String,
    pub(super) trace: Option<String>,
    pub(super) peer: Option<SocketAddr>,
    /// Time until its deadline.
    pub(super) left: Option<Duration>,
}

impl Store {
    /// An empty store that refuses this number of calls at first.
    pub(super) fn refusing(refusals: u32) -> Self {
        let [refusals, refused] = [refusals, 0].map(AtomicU32::new);
        Store { entries: Mutex::default(), refusals, refused, log: Mutex::default() }
    }

    /// Returns whether it has too much to do for another call.
    pub(super) fn is_busy(&self) -> bool {
        let less = |refusals: u32| refusals.checked_sub(1);
        let is_busy =
            self.refusals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        self.refused.fetch_add(is_busy.into(), Ordering::Relaxed);
        is_busy
    }

    /// The number of calls for which it had too much to do.
    pub(super) fn refused(&self) -> u32 {
        self.refused.load(Ordering::Relaxed)
    }

    /// The value of a key.
    pub(super) async fn get(&self, key: &str) -> Option<Vec<u8>> {
        if key == "slow" {
            std::future::pending::<()>().await;
        }
        self.entries().get(key).cloned()
    }

    /// Sets the value of a key.
    pub(super) fn put(&self, key: String, value: Vec<u8>) {
        self.entries().insert(key, value);
    }

    /// The entries from a key on.
    pub(super) fn scan(&self, from: String, most: usize) -> Vec<(String, Vec<u8>)> {
        let entries = self.entries();
        let entries = entries.range(from..).take(most);
        entries.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Writes a line to the log.
    pub(super) fn log(
        &self,
        method: &str,
        trace: Option<&str>,
        peer: Option<SocketAddr>,
        left: Option<Duration>,
    ) {
        let mut log = self.lines();
        if log.len() < LINES {
            log.push(Call { method: method.into(), trace: trace.map(Into::into), peer, left });
        }
    }

    /// The log. Several calls of one method after another are one: a scan may have pages.
    pub(super) fn calls(&self) -> Vec<Call> {
        let mut calls = self.lines().clone();
        calls.dedup_by(|one, before| (&one.method, &one.trace) == (&before.method, &before.trace));
        calls
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<String, Vec<u8>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lines(&self) -> MutexGuard<'_, Vec<Call>> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
