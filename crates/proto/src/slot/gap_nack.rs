//! The NACK of a request that is received in order only
//! ([`Recovery::GoBackNNack`](crate::Recovery::GoBackNNack),
//! [`Recovery::GoBackZero`](crate::Recovery::GoBackZero)): one for each gap, and with the latter again
//! when the first packet has arrived again.

/// Set while the NACK is due.
const DUE: u32 = 1 << 31;

/// One above the missing packet that the last NACK of a request names, with [`DUE`]; 0: none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct GapNack(u32);

impl GapNack {
    /// A packet behind the missing packet has arrived. Returns whether it is the first one: then a
    /// NACK is due.
    pub(super) fn on_gap(&mut self, missing: u32) -> bool {
        let is_new = self.0 & !DUE != missing + 1;
        if is_new {
            self.0 = (missing + 1) | DUE;
        }
        is_new
    }

    /// Returns whether a NACK for this missing packet is due.
    #[inline]
    pub(super) fn is_due(self, missing: u32) -> bool {
        self.0 == (missing + 1) | DUE
    }

    /// The NACK was sent.
    pub(super) fn sent(&mut self) {
        self.0 &= !DUE;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_nack_is_due_for_each_gap() {
        let mut nack = GapNack::default();
        assert!(!nack.is_due(0));
        assert!(nack.on_gap(0) && !nack.on_gap(0));
        assert!(nack.is_due(0) && !nack.is_due(1));
        nack.sent();
        assert!(!nack.is_due(0) && !nack.on_gap(0), "once");
        assert!(nack.on_gap(7) && nack.is_due(7), "the next gap");
    }
}
