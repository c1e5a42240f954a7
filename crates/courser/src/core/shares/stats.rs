//! Counters of each client of a server: its shares, and its faults.

use std::sync::atomic::Ordering;

use courser_buf::stats;

use super::{Client, Shares};

stats! {
    /// Counters of one client of a server, of its shares and its faults: read with
    /// [`crate::ServerHandle::clients`]. A client is a process, by its control connection.
    ///
    /// ```
    /// # use courser_example_store::*;
    /// # fn main() -> Done { run_served(async |uri, serving| {
    /// let store = StoreClient::connect(&uri).await?;
    /// store.len("apple".to_owned()).await?;
    /// for client in serving.handle().clients() {
    ///     println!("{:x}: {} streams, {} handlers", client.host, client.streams, client.in_progress);
    /// }
    /// # Ok(()) }) }
    /// ```
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    #[non_exhaustive]
    pub struct ClientStats: "client of a server" {
        /// Its host: over UDP the IP address in its IPv6 form, as in [`crate::parts::transport::Addr`].
        pub host: u128 = state,
        /// Its handlers in progress.
        pub in_progress: usize = gauge(handlers),
        /// Its open streams.
        pub streams: usize = gauge(streams),
        /// Bytes of the buffers with items that its streams hold and it did not pull.
        pub stream_bytes: usize = gauge(bytes),
        /// Bytes of heap of its decoded requests in progress, without the first 64 KiB of each.
        pub heap_bytes: usize = gauge(bytes),
        /// Its pulls and pushes of streams that the server does not have, which were refused. Some are
        /// late: they arrive after the end of their stream. Of a client that has many and opens few streams
        /// it is an attack.
        pub unknown_streams: u64 = counter(calls),
    }
}

impl Client {
    /// Counts a call about a stream that the server does not have.
    pub(crate) fn count_unknown_stream(&self) {
        self.unknown_streams.fetch_add(1, Ordering::Relaxed);
    }
}

impl Shares {
    /// The clients that have a session or hold something, ordered by their connections.
    pub(crate) fn clients(&self) -> Vec<ClientStats> {
        let clients: Vec<_> = self.lock().clients.values().filter_map(|c| c.upgrade()).collect();
        let stats = |client: &std::sync::Arc<Client>| ClientStats {
            host: client.host,
            in_progress: client.places.load(Ordering::Relaxed),
            streams: client.streams.load(Ordering::Relaxed),
            stream_bytes: client.batches.load(Ordering::Relaxed),
            heap_bytes: client.heap.load(Ordering::Relaxed),
            unknown_streams: client.unknown_streams.load(Ordering::Relaxed),
        };
        clients.iter().map(stats).collect()
    }
}
