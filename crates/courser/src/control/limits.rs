//! Limits of the control plane, and its counters.

use std::time::Duration;

use crate::counters::shared_stats;

/// `Config::failure_timeout` by default: detection in less than a second.
pub(crate) const DEFAULT_FAILURE_TIMEOUT: Duration = Duration::from_millis(800);

/// Limits of a nexus's control plane.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    /// Connections from other nexuses. Each takes one descriptor and about 1 KiB of memory, or 2
    /// KiB while a message is incomplete.
    pub(crate) inbound: usize,
    /// Inbound connections from one remote address, so that one host cannot use up `inbound`.
    pub(crate) inbound_per_host: usize,
    /// Connections to other nexuses, including dials.
    pub(crate) outbound: usize,
    /// Time from the TCP connection to the end of the greeting, inbound.
    pub(crate) greeting: Duration,
    /// Time without received bytes after which an open connection has failed:
    /// `Config::failure_timeout`.
    pub(crate) failure_timeout: Duration,
    /// Time that an outbound connection is kept after its last session has ended. The check may
    /// come up to a quarter of the failure timeout later.
    pub(crate) unused: Duration,
    /// Time without a session after which an inbound connection may be closed for another one, when
    /// connections are scarce. Also the least time from one [`super::mail::Mail::Scarce`] to the next.
    pub(crate) idle: Duration,
    /// Time of a dial: name resolution, all addresses, greeting.
    pub(crate) dial: Duration,
    /// Unsent bytes of one connection: enough for answers to thousands of connects at once.
    pub(crate) pending_write: usize,
    /// Unsent bytes of all connections. Above it, a connection with more than a few kilobytes of
    /// unsent bytes is closed when another message is sent on it.
    pub(crate) pending_total: usize,
    /// Concurrent name resolutions, each in a thread.
    pub(crate) resolvers: usize,
}

/// `Config::max_connections` by default.
pub(crate) const DEFAULT_CONNECTIONS: usize = 4096;

impl Default for Limits {
    fn default() -> Self {
        Limits {
            inbound: DEFAULT_CONNECTIONS,
            inbound_per_host: DEFAULT_CONNECTIONS / 2,
            outbound: 4096,
            greeting: Duration::from_secs(2),
            failure_timeout: DEFAULT_FAILURE_TIMEOUT,
            unused: Duration::from_secs(30),
            idle: Duration::from_millis(500),
            dial: Duration::from_secs(5),
            pending_write: 1 << 20,
            pending_total: 64 << 20,
            resolvers: 16,
        }
    }
}

shared_stats! {
    /// Counters of connections and messages that a nexus's control plane rejected since it was bound.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let nexus = courser::Nexus::bind("udp://127.0.0.1:0")?;
    /// let stats = nexus.control_stats();
    /// assert_eq!((stats.refused, stats.protocol_errors), (0, 0));
    /// # Ok(()) }
    /// ```
    #[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
    #[non_exhaustive]
    pub struct ControlStats: "control plane" {
        /// Connections closed because there were too many, in total or from their host.
        pub excess_connections: u64 = counter(connections),
        /// Connections that ended before a valid greeting.
        pub failed_greetings: u64 = counter(connections),
        /// Connections closed because the other side sent invalid bytes.
        pub protocol_errors: u64 = counter(connections),
        /// Connections closed because nothing was received for `Config::failure_timeout`.
        pub silent_peers: u64 = counter(connections),
        /// Messages for endpoints that do not exist.
        pub misdirected: u64 = counter(messages),
        /// Sessions refused by the control thread, without an endpoint.
        pub refused: u64 = counter(sessions),
        /// Failed accepts because descriptors or memory had run out.
        pub exhausted: u64 = counter(accepts),
        /// Connections without a session that were closed for others, as there were too many in total or
        /// from their host.
        pub evicted_connections: u64 = counter(connections),
    }

    /// The counters of the control thread.
    pub(crate) shared Counters;
}
