//! Middleware that delays transmit completions, as a NIC's transmit ring does (ADR 8).
//!
//! Frames are transmitted at once, but their memory stays referenced until `tx_flush`, or until the
//! configured number of `tx_reclaim` calls. A NIC may read a held frame at any time, so its bytes
//! must not change (`[eRPC §4.2.2]`, E24-E27). A checksum verifies that when the frame is released.

use std::collections::VecDeque;

use courser_buf::{TxBurst, TxFrame};

use crate::{Caps, Transport, TransportStats};

/// Settings of a [`DelayedCompletion`].
#[derive(Clone, Copy, Debug)]
pub struct DelayedCompletionConfig {
    /// Calls of `tx_reclaim` after which a frame is released; `None` (default): only `tx_flush`
    /// releases frames.
    pub reclaims: Option<u32>,
    /// Most frames held; at this limit `tx_burst` leaves frames in the burst, as a NIC with a full
    /// ring. At least 1. Default: 4096.
    pub limit: usize,
}

impl Default for DelayedCompletionConfig {
    fn default() -> Self {
        DelayedCompletionConfig { reclaims: None, limit: 4096 }
    }
}

/// A frame whose completion is delayed.
struct Held {
    frame: TxFrame,
    sum: u64,
    /// Value of `DelayedCompletion::reclaims` at which it is released.
    due: u64,
}

/// Any transport with delayed transmit completions.
pub struct DelayedCompletion<T> {
    inner: T,
    cfg: DelayedCompletionConfig,
    caps: Caps,
    held: VecDeque<Held>,
    scratch: TxBurst,
    reclaims: u64,
    full: u64,
    violations: u64,
}

impl<T: Transport> DelayedCompletion<T> {
    /// Wraps `inner`.
    pub fn new(inner: T, cfg: DelayedCompletionConfig) -> Self {
        let caps = Caps { holds_frames: true, ..inner.caps().clone() };
        DelayedCompletion {
            inner,
            cfg: DelayedCompletionConfig { limit: cfg.limit.max(1), ..cfg },
            caps,
            held: VecDeque::new(),
            scratch: TxBurst::new(),
            reclaims: 0,
            full: 0,
            violations: 0,
        }
    }

    /// Number of held frames.
    pub fn held(&self) -> usize {
        self.held.len()
    }

    /// Frames whose bytes changed while they were held. Each is a bug of the writer.
    pub fn violations(&self) -> u64 {
        self.violations
    }

    /// The inner transport.
    pub fn inner(&self) -> &T {
        &self.inner
    }

    fn release(&mut self, count: usize) {
        for held in self.held.drain(..count) {
            if sum(&held.frame) != held.sum {
                self.violations += 1;
            }
        }
    }
}

/// FNV-1a over the frame's bytes.
fn sum(frame: &TxFrame) -> u64 {
    let bytes = frame.segs().iter().flat_map(|s| s.iter());
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// Another reference to the same bytes.
pub(crate) fn share(frame: &TxFrame) -> TxFrame {
    frame.clone()
}

impl<T: Transport> crate::Middleware for DelayedCompletion<T> {
    type Inner = T;

    fn inner(&self) -> &T {
        &self.inner
    }

    fn inner_mut(&mut self) -> &mut T {
        &mut self.inner
    }

    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn tx_burst(&mut self, burst: &mut TxBurst) {
        let room = self.cfg.limit - self.held.len();
        let offered = burst.len().min(room);
        self.scratch.extend(burst.iter().take(room).map(share));
        self.inner.tx_burst(&mut self.scratch);
        let sent = offered - self.scratch.len();
        self.scratch.clear();
        let due = self.cfg.reclaims.map_or(u64::MAX, |n| self.reclaims + u64::from(n));
        for frame in burst.drain(..sent) {
            self.held.push_back(Held { sum: sum(&frame), frame, due });
        }
        // The inner transport counts when its own queue is full.
        self.full += u64::from(sent == room && !burst.is_empty());
    }

    fn tx_reclaim(&mut self) -> usize {
        self.reclaims += 1;
        let ended = self.held.iter().take_while(|h| h.due <= self.reclaims).count();
        self.release(ended);
        self.held.len() + self.inner.tx_reclaim()
    }

    fn tx_flush(&mut self) {
        self.release(self.held.len());
        self.inner.tx_flush();
    }

    fn stats(&self) -> TransportStats {
        let stats = self.inner.stats();
        TransportStats { tx_full: stats.tx_full + self.full, ..stats }
    }
}

#[cfg(test)]
mod tests {
    use courser_buf::{Arena, MsgBuf, PacketAccess, PathId};

    use super::*;
    use crate::{MemConfig, MemNetwork, MemTransport};

    fn pair(cfg: DelayedCompletionConfig) -> (DelayedCompletion<MemTransport>, PathId, MsgBuf) {
        let net = MemNetwork::new();
        let mut t = DelayedCompletion::new(net.endpoint(MemConfig::default()).unwrap(), cfg);
        let path = t.path_open(t.local_addr(), None).unwrap().id;
        (t, path, Arena::heap().alloc(8).unwrap())
    }

    fn frames(buf: &MsgBuf, path: PathId, n: usize) -> TxBurst {
        (0..n).map(|_| TxFrame::one(path, buf.data_seg(0..8).unwrap())).collect()
    }

    #[test]
    fn frames_go_after_the_stated_reclaims() {
        let (mut t, path, buf) = pair(DelayedCompletionConfig {
            reclaims: Some(2),
            ..DelayedCompletionConfig::default()
        });
        t.tx_burst(&mut frames(&buf, path, 1));
        assert_eq!(t.tx_reclaim(), 1);
        t.tx_burst(&mut frames(&buf, path, 1));
        assert!(buf.is_shared());
        assert_eq!(t.tx_reclaim(), 1);
        assert_eq!(t.tx_reclaim(), 0);
        assert!(!buf.is_shared());
        assert_eq!(t.violations(), 0);
    }

    #[test]
    fn a_full_ring_leaves_the_rest() {
        let (mut t, path, buf) =
            pair(DelayedCompletionConfig { limit: 3, ..DelayedCompletionConfig::default() });
        let mut burst = frames(&buf, path, 5);
        t.tx_burst(&mut burst);
        assert_eq!((burst.len(), t.held(), t.stats().tx_full), (2, 3, 1));
        t.tx_burst(&mut burst);
        assert_eq!(burst.len(), 2);
        t.tx_flush();
        t.tx_burst(&mut burst);
        assert_eq!((burst.len(), t.held()), (0, 2));
    }
}
