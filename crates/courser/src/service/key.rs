//! The number of a session at a server.

use courser_proto::SessionId;

/// A session of a server: its endpoint, and the session's number there, with its generation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SessionKey {
    endpoint: u16,
    number: u64,
}

impl SessionKey {
    /// A number that no other session of this endpoint has or had.
    pub fn new(endpoint: u16, number: u64) -> Self {
        SessionKey { endpoint, number }
    }

    /// A session of an endpoint, by the endpoint's number in its nexus.
    pub fn of(endpoint: u16, session: SessionId) -> Self {
        SessionKey { endpoint, number: session.key() }
    }

    /// Returns whether it is a session of an endpoint.
    pub(super) fn is_of(&self, endpoint: u16) -> bool {
        self.endpoint == endpoint
    }
}
