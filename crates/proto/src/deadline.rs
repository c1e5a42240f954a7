//! Deadlines: when loss is suspected, and what follows (`[eRPC §5.3]`, E57, E59).
//!
//! Client slots with a request are in one list. A small RPC costs it nothing: the slot enters the
//! list once and stays while it is used. A scan runs at the earliest time at which any slot can
//! be due, never more often than that, and sweeps slots that were idle since the last one; for
//! those it tells the server that their response has arrived (F6).

use crate::endpoint::{Completion, Endpoint};
use crate::error::{CallError, Executed};
use crate::mutant::{self, Mutant};
use crate::session::{ClientSession, QueuedCall, Session, SessionId, SessionState};
use crate::tx::TxItem;

/// The slot number of a timer list's entry that stands for the calls that wait for a slot.
pub(crate) const QUEUE: u8 = u8::MAX;

/// Time between two scans for each timer and each waiting call that the first looked at, ns: about
/// three times what that look takes, so that no number of deadlines makes an endpoint do nothing
/// else. 1,000 sessions with 8 slots in use are scanned every 128 us at most.
const SCAN_GAP_NS: u64 = 16;

/// In place of a slot's number: the session as a whole may be idle.
const IDLE: u8 = u8::MAX - 1;

/// An entry of the timer list. The generation tells a session from its successor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed {
    pub(crate) session: u32,
    pub(crate) generation: u32,
    pub(crate) slot: u8,
}

enum Verdict {
    Keep(u64),
    Sweep,
    Shrink,
    Acknowledge,
    TimedOut,
    Expired,
    CancelAgain,
    QueueExpired,
    Silent,
}

impl<C> Endpoint<C> {
    /// When [`Endpoint::on_deadline`] is next due; `None` when no time-out is pending. Frames that
    /// wait to be transmitted are due at once: 0. When there was no memory to make them, the next
    /// attempt is due after `Config::rto_min_ns`, so that an exhausted arena is no busy loop.
    #[inline]
    pub fn next_deadline(&self) -> Option<u64> {
        if !self.done.is_empty() || (!self.tx.is_empty() && self.retry_tx_ns == 0) {
            return Some(0);
        }
        let mut due_ns = self.scan_due_ns();
        if !self.tx.is_empty() {
            due_ns = due_ns.min(self.retry_tx_ns);
        }
        (due_ns != u64::MAX).then_some(due_ns)
    }

    /// Suspects loss where it is due. Call it only after everything received was handled: a
    /// response that waits in the receive queue is no loss.
    #[inline]
    pub fn on_deadline(&mut self, now_ns: u64) {
        self.now_ns = now_ns;
        if now_ns >= self.retry_tx_ns {
            self.retry_tx_ns = 0;
        }
        if now_ns >= self.scan_due_ns() {
            self.scan(now_ns);
        }
    }

    #[inline]
    fn scan_due_ns(&self) -> u64 {
        self.next_scan_ns.max(self.scan_floor_ns)
    }

    #[cold]
    fn scan(&mut self, now_ns: u64) {
        self.next_scan_ns = u64::MAX;
        let mut looks = self.timed.len();
        let mut i = 0;
        while i < self.timed.len() {
            let entry = self.timed[i];
            let Timed { session, slot, .. } = entry;
            let keep = match self.judge(entry, now_ns) {
                Verdict::Keep(due_ns) => {
                    self.next_scan_ns = self.next_scan_ns.min(due_ns);
                    true
                }
                Verdict::Sweep => false,
                Verdict::Shrink => {
                    self.shrink(session);
                    false
                }
                Verdict::Acknowledge => {
                    self.acknowledge(session, slot);
                    false
                }
                Verdict::TimedOut => {
                    self.on_timeout(session, slot, now_ns);
                    true
                }
                Verdict::Expired => {
                    self.end_early(session, slot, CallError::DeadlineExceeded);
                    continue; // the slot may have a new call
                }
                Verdict::CancelAgain => {
                    self.cancel_again(session, slot, now_ns);
                    true
                }
                Verdict::QueueExpired => {
                    looks += self.client_session_at(session).map_or(0, |s| s.queue.len());
                    self.expire_queue(session, now_ns);
                    continue; // it may have nothing more to wait for
                }
                Verdict::Silent => {
                    self.give_up_peer(session);
                    false
                }
            };
            if keep {
                i += 1;
            } else {
                self.untrack(entry);
                self.timed.swap_remove(i);
            }
        }
        self.scan_floor_ns = now_ns + SCAN_GAP_NS * looks as u64;
    }

    fn judge(&self, entry: Timed, now_ns: u64) -> Verdict {
        let Some(Session::Client(s)) = self.sessions.get(entry.session as usize) else {
            return Verdict::Sweep;
        };
        if s.generation != entry.generation || s.has_failed() {
            return Verdict::Sweep;
        }
        if entry.slot == QUEUE {
            return match s.queue_expires_ns {
                u64::MAX => Verdict::Sweep,
                due_ns if now_ns < due_ns => Verdict::Keep(due_ns),
                _ => Verdict::QueueExpired,
            };
        }
        if s.state != SessionState::Connected {
            return Verdict::Sweep;
        }
        if entry.slot == IDLE {
            return match self.idle_due_ns(entry.session, entry.generation) {
                Some(due_ns) if due_ns <= now_ns => Verdict::Shrink,
                Some(due_ns) => Verdict::Keep(due_ns),
                None => Verdict::Sweep,
            };
        }
        let Some(slot) = s.slots.get(usize::from(entry.slot)) else { return Verdict::Sweep };
        if !slot.active && !slot.quarantined {
            // Idle for at least one scan: say so to the server. A slot that is merely between
            // two calls of a busy session waits one timeout.
            let idle_ns = now_ns.saturating_sub(slot.deadline_ns);
            let wait_ns = self.cfg.rto_min_ns;
            return match (slot.ack_owed, idle_ns >= wait_ns) {
                (false, _) => Verdict::Sweep,
                (true, true) => Verdict::Acknowledge,
                (true, false) => Verdict::Keep(slot.deadline_ns + wait_ns),
            };
        }
        if now_ns >= slot.expires_ns {
            return Verdict::Expired;
        }
        if now_ns < slot.deadline_ns {
            return Verdict::Keep(slot.deadline_ns.min(slot.expires_ns));
        }
        let Some(Some(peer)) = self.peers.get(s.peer as usize) else { return Verdict::Silent };
        if slot.retries > 0 && (slot.in_flight() > 0 || slot.quarantined) {
            let timeout_ns = self.cfg.datapath_timeout_ns;
            let silent_ns = now_ns.saturating_sub(peer.last_heard_ns.max(slot.started_ns));
            // Other packets of the peer arrive and none for this slot: it may be that large
            // packets do not pass any more.
            let stuck_ns = now_ns.saturating_sub(slot.heard_ns.max(slot.started_ns));
            if silent_ns >= timeout_ns || stuck_ns / 2 >= timeout_ns {
                return Verdict::Silent;
            }
        }
        if slot.quarantined { Verdict::CancelAgain } else { Verdict::TimedOut }
    }

    /// The datapath to a session's peer is dead (F13): ends every client session with that peer,
    /// because they all share it.
    fn give_up_peer(&mut self, session: u32) {
        let Some(peer) = self.client_session_at(session).map(|s| s.peer) else { return };
        for index in 0..self.sessions.len() as u32 {
            let Some(s) = self.client_session_at(index) else { continue };
            if s.peer == peer && s.state == SessionState::Connected {
                let id = SessionId { index, generation: s.generation };
                self.fail_session(index, CallError::DatapathSilent);
                self.failed.push_back(id);
            }
        }
    }

    /// The next client session that failed because its peer's datapath is silent. Its calls have
    /// ended; what is left of it is freed by [`Endpoint::close`], which also says what to tell the
    /// server.
    #[inline]
    pub fn poll_failed(&mut self) -> Option<SessionId> {
        while let Some(id) = self.failed.pop_front() {
            if self.is_live_entry(id) {
                return Some(id);
            }
        }
        None
    }

    fn is_live_entry(&self, id: SessionId) -> bool {
        let entry = self.sessions.get(id.index as usize);
        matches!(entry, Some(Session::Client(s)) if s.generation == id.generation)
    }

    fn untrack(&mut self, entry: Timed) {
        let Timed { session, generation, slot } = entry;
        let Some(s) = self.client_session_at(session) else { return };
        if s.generation != generation {
            return;
        }
        if slot == QUEUE {
            s.queue_timed = false;
        } else if slot == IDLE {
            s.idle_timed = false;
        } else if let Some(slot) = s.slots.get_mut(usize::from(slot)) {
            slot.tracked = false;
        }
        self.watch_idle(session, generation);
    }

    /// Sees that a session whose last slot has gone quiet is looked at when it may shrink (F6).
    fn watch_idle(&mut self, session: u32, generation: u32) {
        let Some(due_ns) = self.idle_due_ns(session, generation) else { return };
        let Some(s) = self.client_session_at(session) else { return };
        if !s.idle_timed {
            s.idle_timed = true;
            self.timed.push(Timed { session, generation, slot: IDLE });
            self.next_scan_ns = self.next_scan_ns.min(due_ns);
        }
    }

    fn acknowledge(&mut self, session: u32, slot_no: u8) {
        let Some(s) = self.client_session_at(session) else { return };
        let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return };
        slot.ack_owed = false;
        let req_num = slot.req_num;
        self.tx.push(TxItem::Ack { session, req_num });
    }

    /// Go-back-N: reclaim the credits, send again from where the server is known to be.
    fn on_timeout(&mut self, session: u32, slot_no: u8, now_ns: u64) {
        let Some(Session::Client(s)) = self.sessions.get_mut(session as usize) else { return };
        let slot = &mut s.slots[usize::from(slot_no)];
        if slot.in_flight() == 0 || slot.resp_rcvd > 0 && mutant::is_on(Mutant::RfrNotRepeated) {
            // Nothing can be lost: the slot waits for credits that other slots hold.
            return self.extend_deadline(session, slot_no, now_ns);
        }
        let credits = slot.roll_back();
        slot.retries = slot.retries.saturating_add(1);
        if !mutant::is_on(Mutant::CreditsLostInRollback) {
            s.credits += credits;
        }
        s.rollbacks += 1;
        self.stats.rollbacks += 1;
        self.extend_deadline(session, slot_no, now_ns);
        self.wake_in_turn(session, slot_no);
    }

    /// Puts a slot's deadline one timeout ahead, and sees that a scan happens by then.
    #[inline]
    pub(crate) fn extend_deadline(&mut self, session: u32, slot_no: u8, now_ns: u64) {
        let Some(Session::Client(s)) = self.sessions.get_mut(session as usize) else { return };
        let Some(Some(peer)) = self.peers.get(s.peer as usize) else { return };
        let slot = &mut s.slots[usize::from(slot_no)];
        slot.deadline_ns = now_ns + peer.rtt.rto_ns(slot.retries, &self.cfg);
        self.next_scan_ns = self.next_scan_ns.min(slot.deadline_ns.min(slot.expires_ns));
    }

    /// Queues a slot for transmission if it has something to send and is not queued yet.
    #[inline]
    pub(crate) fn wake_slot(&mut self, session: u32, slot_no: u8) {
        let Some(Session::Client(s)) = self.sessions.get_mut(session as usize) else { return };
        let slot = &mut s.slots[usize::from(slot_no)];
        if slot.active && !slot.queued && slot.sendable() > 0 {
            slot.queued = true;
            s.stalled &= !(1 << slot_no);
            let req_num = slot.req_num;
            self.tx.push(TxItem::Client { session, slot: slot_no, req_num });
        }
    }

    /// Queues the slots that waited for credits, when there are some again; the one behind
    /// `after` first, and so in turn.
    #[inline]
    pub(crate) fn wake_stalled(&mut self, session: u32, after: u8) {
        let Some(Session::Client(s)) = self.sessions.get(session as usize) else { return };
        if s.stalled == 0 || s.credits == 0 {
            return;
        }
        self.wake_each(session, after);
    }

    #[inline(never)] // small RPCs rarely wait for credits
    fn wake_each(&mut self, session: u32, after: u8) {
        let Some(Session::Client(s)) = self.sessions.get(session as usize) else { return };
        let first = (u32::from(after) + 1) % 32;
        let mut stalled = s.stalled.rotate_right(first);
        while stalled != 0 {
            let slot_no = (stalled.trailing_zeros() + first) % 32;
            stalled &= stalled - 1;
            self.wake_slot(session, slot_no as u8);
        }
    }

    /// A slot got credits back: the slots that waited for some come first, then the slot itself.
    /// Else a large message would keep all credits of its session to itself until its end (E31).
    #[inline]
    pub(crate) fn wake_in_turn(&mut self, session: u32, slot_no: u8) {
        self.wake_stalled(session, slot_no);
        self.wake_slot(session, slot_no);
    }

    /// Ends all calls of a client session with an error that says what is known of each, and the
    /// session with them.
    pub(crate) fn fail_session(&mut self, session: u32, error: fn(Executed) -> CallError) {
        let Some(s) = self.client_session_at(session) else { return };
        s.state = SessionState::Gone;
        let id = SessionId { index: session, generation: s.generation };
        for QueuedCall { req, cont, .. } in std::mem::take(&mut s.queue) {
            if mutant::is_on(Mutant::WaitingCallsForgotten) {
                continue;
            }
            let result = Err(error(Executed::Never));
            self.stats.errors += 1;
            self.done.push_back(Completion { cont, session: id, request: req, result });
        }
        self.fail_slots(session, error);
    }

    fn fail_slots(&mut self, session: u32, error: fn(Executed) -> CallError) {
        let Some(s) = self.client_session_at(session) else { return };
        for slot_no in 0..s.slots.len() as u8 {
            let Some(s) = self.client_session_at(session) else { return };
            let slot = &mut s.slots[usize::from(slot_no)];
            if slot.quarantined {
                slot.release();
                s.free |= 1 << slot_no;
            }
            if !slot.active {
                continue;
            }
            let executed = slot.executed();
            if let Some(c) = self.complete(session, slot_no, Err(error(executed))) {
                let Completion { cont, session, request, .. } = c;
                let result = Err(error(executed));
                self.done.push_back(Completion { cont, session, request, result });
            }
        }
    }

    #[inline]
    pub(crate) fn client_session_at(&mut self, session: u32) -> Option<&mut ClientSession<C>> {
        match self.sessions.get_mut(session as usize)? {
            Session::Client(s) => Some(s),
            _ => None,
        }
    }
}
