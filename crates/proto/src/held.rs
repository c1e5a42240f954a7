//! The calls that are held back, by peer: who waits, since when, and when the next one is sent. The
//! rules are in `hold.rs`.

use std::collections::BTreeMap;

/// Bounds of the pause, ns.
const PAUSE_LEAST_NS: u64 = 1_000_000;
const PAUSE_MOST_NS: u64 = 64_000_000;

/// The slot of a call, and when the call was first refused; `None`: never.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Held {
    pub(crate) session: u32,
    pub(crate) slot: u8,
    pub(crate) since_ns: Option<u64>,
}

/// The calls to one peer, by sequence number: the oldest is the first.
#[derive(Debug)]
struct HeldOfPeer {
    waiting: BTreeMap<u64, Held>,
    /// Calls that were sent again: when they were first refused, ns.
    again: BTreeMap<u64, u64>,
    /// When the first of them was refused, or the last call of several packets to the peer was
    /// answered, ns.
    progress_ns: u64,
    /// The call that was sent at the end of the last pause.
    probed: u64,
    /// A request was refused since the last pause.
    refused: bool,
    pause_ns: u64,
    /// The end of the pause, ns.
    until_ns: u64,
}

impl HeldOfPeer {
    fn new(now_ns: u64) -> Self {
        HeldOfPeer {
            waiting: BTreeMap::new(),
            again: BTreeMap::new(),
            progress_ns: now_ns,
            probed: 0,
            refused: false,
            pause_ns: PAUSE_LEAST_NS,
            until_ns: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.again.is_empty()
    }
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct HeldCalls {
    peers: BTreeMap<u32, HeldOfPeer>,
    /// When their timer is due; `u64::MAX`: it is not set.
    pub(crate) due_ns: u64,
}

impl Default for HeldCalls {
    fn default() -> Self {
        HeldCalls { peers: BTreeMap::new(), due_ns: u64::MAX }
    }
}

impl HeldCalls {
    /// Returns whether no call waits, and none was sent again.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.peers.is_empty()
    }

    /// Returns whether calls to a peer wait.
    pub(crate) fn has_waiting(&self, peer: u32) -> bool {
        self.peers.get(&peer).is_some_and(|p| !p.waiting.is_empty())
    }

    /// When a call that is refused now was first refused, ns.
    pub(crate) fn refused_since(&self, peer: u32, seq: u64, now_ns: u64) -> u64 {
        let since_ns = self.peers.get(&peer).and_then(|p| p.again.get(&seq));
        since_ns.copied().unwrap_or(now_ns)
    }

    /// A call waits: it was refused, or is behind others.
    pub(crate) fn wait(&mut self, peer: u32, seq: u64, held: Held, now_ns: u64) {
        let p = self.peers.entry(peer).or_insert_with(|| HeldOfPeer::new(now_ns));
        if p.waiting.is_empty() {
            p.until_ns = now_ns + p.pause_ns;
        }
        p.refused |= held.since_ns.is_some();
        p.again.remove(&seq);
        p.waiting.insert(seq, held);
    }

    /// A call has ended.
    pub(crate) fn forget(&mut self, peer: u32, seq: u64) {
        let Some(p) = self.peers.get_mut(&peer) else { return };
        p.waiting.remove(&seq);
        p.again.remove(&seq);
        if p.is_empty() {
            self.peers.remove(&peer);
        }
    }

    /// A call of several packets to a peer was answered.
    pub(crate) fn on_answer(&mut self, peer: u32, now_ns: u64) {
        if let Some(p) = self.peers.get_mut(&peer) {
            p.progress_ns = now_ns;
        }
    }

    /// The oldest call to a peer that waits, if the peer has answered none since `since_ns`.
    pub(crate) fn stuck(&self, peer: u32, since_ns: u64) -> Option<(u64, Held)> {
        let p = self.peers.get(&peer).filter(|p| p.progress_ns <= since_ns)?;
        p.waiting.first_key_value().map(|(&seq, held)| (seq, *held))
    }

    /// Takes the oldest call to a peer that waits.
    pub(crate) fn next(&mut self, peer: u32) -> Option<Held> {
        let (&seq, _) = self.peers.get(&peer)?.waiting.first_key_value()?;
        self.take(peer, seq)
    }

    /// Takes the call that is sent at the end of a pause: each in turn, so that one which the peer
    /// never takes does not keep the others from being tried.
    pub(crate) fn next_probe(&mut self, peer: u32) -> Option<Held> {
        let p = self.peers.get_mut(&peer)?;
        let behind = p.waiting.range(p.probed + 1..).next();
        let (&seq, _) = behind.or(p.waiting.first_key_value())?;
        p.probed = seq;
        self.take(peer, seq)
    }

    fn take(&mut self, peer: u32, seq: u64) -> Option<Held> {
        let p = self.peers.get_mut(&peer)?;
        let held = p.waiting.remove(&seq)?;
        if let Some(since_ns) = held.since_ns {
            p.again.insert(seq, since_ns);
        } else if p.is_empty() {
            self.peers.remove(&peer);
        }
        Some(held)
    }

    /// A peer with calls that wait, whose pause has ended. Begins the next one.
    pub(crate) fn next_peer(&mut self, now_ns: u64) -> Option<u32> {
        let is_due = |p: &HeldOfPeer| p.until_ns <= now_ns && !p.waiting.is_empty();
        let (peer, p) = self.peers.iter_mut().find(|(_, p)| is_due(p))?;
        p.pause_ns = match std::mem::take(&mut p.refused) {
            true => (2 * p.pause_ns).min(PAUSE_MOST_NS),
            false => (p.pause_ns / 2).max(PAUSE_LEAST_NS),
        };
        p.until_ns = now_ns + p.pause_ns;
        Some(*peer)
    }

    /// The end of the first pause, ns; `u64::MAX`: no call waits.
    pub(crate) fn next_ns(&self) -> u64 {
        let waiting = self.peers.values().filter(|p| !p.waiting.is_empty());
        waiting.map(|p| p.until_ns).min().unwrap_or(u64::MAX)
    }

    /// The calls that wait: peer, sequence number and slot.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = (u32, u64, Held)> + '_ {
        self.peers.iter().flat_map(|(&peer, p)| p.waiting.iter().map(move |(&s, &h)| (peer, s, h)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_pause_doubles_while_calls_are_refused_and_halves_after() {
        let mut h = HeldCalls::default();
        let refuse = |h: &mut HeldCalls, now_ns| {
            let held = Held { session: 0, slot: 0, since_ns: Some(0) };
            h.wait(1, 7, held, now_ns);
            h.wait(1, 9, held, now_ns);
        };
        let (mut now_ns, mut pauses) = (0, Vec::new());
        refuse(&mut h, now_ns);
        for round in 0..20 {
            now_ns = h.next_ns();
            assert_eq!((h.next_peer(now_ns), h.next_peer(now_ns)), (Some(1), None));
            assert!(h.next(1).is_some());
            pauses.push((h.next_ns() - now_ns) / MS);
            if round < 10 {
                refuse(&mut h, now_ns);
            } else {
                h.wait(1, 100 + round, Held { session: 0, slot: 1, since_ns: None }, now_ns);
            }
        }
        assert_eq!(pauses[..8], [2, 4, 8, 16, 32, 64, 64, 64]);
        assert_eq!(pauses[11..], [32, 16, 8, 4, 2, 1, 1, 1, 1]);
    }

    #[test]
    fn each_call_is_probed_in_turn_and_all_are_stuck_without_an_answer() {
        let mut h = HeldCalls::default();
        let held = |slot| Held { session: 0, slot, since_ns: Some(5) };
        (1..4).for_each(|slot| h.wait(1, 10 * u64::from(slot), held(slot), 5));
        let mut probed = Vec::new();
        for _ in 0..5 {
            let next = h.next_probe(1).unwrap();
            probed.push(next.slot);
            h.wait(1, 10 * u64::from(next.slot), next, 9);
        }
        assert_eq!(probed, [1, 2, 3, 1, 2]);
        assert!(h.stuck(1, 4).is_none());
        assert_eq!(h.stuck(1, 5).map(|(seq, held)| (seq, held.slot)), Some((10, 1)));
        h.on_answer(1, 7);
        assert!(h.stuck(1, 6).is_none() && h.stuck(1, 7).is_some());
    }

    #[test]
    fn calls_leave_in_the_order_in_which_they_were_made() {
        let mut h = HeldCalls::default();
        let held = |slot, since_ns| Held { session: 0, slot, since_ns };
        h.wait(1, 30, held(3, None), 5);
        h.wait(1, 10, held(1, Some(5)), 5);
        h.wait(1, 20, held(2, Some(5)), 5);
        assert_eq!(h.next(1).map(|held| held.slot), Some(1));
        // It is refused again, and is still the first.
        assert_eq!(h.refused_since(1, 10, 99), 5);
        h.wait(1, 10, held(1, Some(5)), 99);
        let order: Vec<_> = std::iter::from_fn(|| h.next(1)).map(|held| held.slot).collect();
        assert_eq!((order, h.has_waiting(1), h.is_empty()), (vec![1, 2, 3], false, false));
        h.forget(1, 10);
        h.forget(1, 20);
        assert!(h.is_empty());
    }
}
