//! Identifiers of sessions.

/// A session of this endpoint. Becomes stale when the session ends: never valid for a later one.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SessionId {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl SessionId {
    /// The session's number at this endpoint; another session may have it later.
    pub fn index(self) -> u32 {
        self.index
    }

    /// A number that no other session of this endpoint has or had.
    pub fn key(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }
}

/// A client session that has become idle; to be reported to its server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IdleSession {
    /// The session at this endpoint.
    pub session: SessionId,
    /// The server's number for it.
    pub remote: u32,
    /// For each slot the number of its last request, whose response has arrived.
    pub done: Vec<u32>,
}
