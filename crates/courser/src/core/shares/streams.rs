//! Finds the clients of requests; the open streams of clients, and the memory that their batches hold.
//!
//! Memory that streams hold is free again only when their clients read. So, as with places, a part is
//! kept for others: each further client of an address can have half of what the one before it has, and
//! all clients of an address have at most a third of what other addresses leave.

use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use courser_proto::{Endpoint, SessionId};

use super::{Client, Entrance, Shares};
use crate::core::continuations::Cont;

/// Finds the client of a request. Only rare cases do that: the opening of a stream, a call about a
/// stream that is not open, and arguments that need much heap.
pub(crate) trait FindClient: Debug {
    fn find(&self) -> Option<Arc<Client>>;
}

/// A client by its control connection, if it is known.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByControl<'a> {
    pub(crate) control: Option<u64>,
    /// The places of the server, once it runs.
    pub(crate) places: &'a OnceLock<Arc<Shares>>,
}

impl FindClient for ByControl<'_> {
    fn find(&self) -> Option<Arc<Client>> {
        self.places.get()?.known(self.control?)
    }
}

/// An open stream of a client, until it is dropped.
#[derive(Debug)]
pub(crate) struct StreamShare {
    client: Arc<Client>,
    /// Bytes of its batches.
    bytes: usize,
}

impl Shares {
    /// A client that holds a place, by its control connection.
    fn known(&self, control: u64) -> Option<Arc<Client>> {
        self.lock().clients.get(&control)?.upgrade()
    }
}

impl Entrance {
    /// The client of a session.
    pub(crate) fn find(&self, proto: &Endpoint<Cont>, session: SessionId) -> Option<Arc<Client>> {
        let (number, control) = proto.client_of(session)?;
        Some(self.add(proto, number, control))
    }
}

impl Client {
    /// Counts another stream; `None`: the client has all that it may have.
    pub(crate) fn open_stream(self: &Arc<Self>) -> Option<StreamShare> {
        let most = self.shares.max_streams;
        let more = |open: usize| Some(open + 1).filter(|open| *open <= most);
        self.streams.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(StreamShare { client: self.clone(), bytes: 0 })
    }
}

impl StreamShare {
    /// Sets the bytes that the batches of the stream hold.
    pub(crate) fn hold(&mut self, bytes: usize) {
        let more = bytes.wrapping_sub(self.bytes);
        for count in [&self.client.batches, &self.client.address.batches] {
            count.fetch_add(more, Ordering::Relaxed);
        }
        self.bytes = bytes;
    }

    /// Returns whether the stream may hold batches that its client does not wait for, when streams
    /// may hold
    /// `left` more bytes.
    pub(crate) fn may_read_ahead(&self, left: usize) -> bool {
        let held = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let Client { batches, address, .. } = &*self.client;
        3 * held(batches) + 2 * held(&address.batches) < left
    }
}

impl Drop for StreamShare {
    fn drop(&mut self) {
        self.hold(0);
        self.client.streams.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Holds as much as it can of `limit` bytes, of which others hold some.
    fn fill(client: &Arc<Client>, limit: usize, held: &mut usize) -> (usize, StreamShare) {
        let mut stream = client.open_stream().expect("few are open");
        let mut bytes = 0;
        while stream.may_read_ahead(limit - *held) {
            bytes += 1;
            *held += 1;
            stream.hold(bytes);
        }
        (bytes, stream)
    }

    #[test]
    fn streams_of_a_client_hold_a_sixth_and_leave_some_to_each_other_one() {
        let shares = Shares::with_streams(64, 10);
        let mut held = 0;
        let of = |control, host, held: &mut usize| fill(&shares.client(control, host), 9_600, held);
        let same: Vec<_> = (1..5).map(|n| of(n, 1, &mut held)).collect();
        assert_eq!(same.iter().map(|(n, _)| *n).collect::<Vec<_>>(), [1_600, 800, 400, 200]);
        let other = of(100, 2, &mut held);
        assert_eq!(other.0, 1_100, "of another address");
        drop((same, other));
        assert_eq!(of(7, 1, &mut 0).0, 1_600, "when the others are gone");
    }

    #[test]
    fn open_streams_are_limited_for_each_client() {
        let shares = Shares::with_streams(64, 2);
        let (one, other) = (shares.client(1, 1), shares.client(2, 1));
        let (first, _second) = (one.open_stream(), one.open_stream());
        assert!(first.is_some() && one.open_stream().is_none());
        assert!(other.open_stream().is_some());
        drop(first);
        assert!(one.open_stream().is_some());
    }
}
