//! State of the tail-loss timer: one for all single-packet calls, which no later packet
//! acknowledges.

use super::Recovery;

/// When a frame should have arrived from every peer with calls in flight.
#[derive(Debug)]
pub(crate) struct TailLoss {
    /// `u64::MAX`: the timer is not set.
    pub(crate) due_ns: u64,
    /// No round trip was known when the timer was set.
    pub(crate) guessed: bool,
    /// At least one client session uses [`Recovery::Selective`].
    enabled: bool,
}

impl TailLoss {
    pub(crate) fn new() -> Self {
        TailLoss { due_ns: u64::MAX, guessed: false, enabled: false }
    }

    /// Enables the timer if a client session uses selective recovery.
    pub(crate) fn enable(&mut self, recovery: Recovery) {
        self.enabled |= recovery == Recovery::Selective;
    }

    /// Returns whether sending a call has to set the timer.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.due_ns == u64::MAX && self.enabled
    }
}
