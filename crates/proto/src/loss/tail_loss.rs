//! The tail-loss timer: one for all calls of one packet, which no later packet acknowledges.

use super::Recovery;

/// When something should have arrived from every peer with calls in flight.
#[derive(Debug)]
pub(crate) struct TailLoss {
    /// `u64::MAX`: no call waits.
    pub(crate) due_ns: u64,
    /// No round trip was known when the timer was set.
    pub(crate) guessed: bool,
    /// A client session has [`Recovery::Selective`].
    enabled: bool,
}

impl TailLoss {
    pub(crate) fn new() -> Self {
        TailLoss { due_ns: u64::MAX, guessed: false, enabled: false }
    }

    /// A client session recovers losses by this scheme.
    pub(crate) fn enable(&mut self, recovery: Recovery) {
        self.enabled |= recovery == Recovery::Selective;
    }

    /// Whether the timer is to be set when a call is sent.
    #[inline(always)]
    pub(crate) fn is_idle(&self) -> bool {
        self.due_ns == u64::MAX && self.enabled
    }
}
