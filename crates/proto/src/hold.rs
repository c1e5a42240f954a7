//! Calls that are held back at the client because their server is short of memory (ADR 36).
//!
//! A server that has no memory for a request of several packets refuses it at its first packet, without
//! executing it. So the call can be made again: it stays on its slot, with the next request number, and
//! waits ([`crate::held`]). While calls to a peer wait, its new calls of several packets wait too, behind
//! the others. The oldest one is sent when a request of several packets has been answered, and besides
//! one after a pause, each in turn; the pause doubles while requests are refused.
//!
//! A call that is refused [`crate::Config::datapath_timeout_ns`] after its first refusal, or later,
//! ends with the error. When the peer has answered no call of several packets for that time, all that
//! wait end: servers whose handlers call each other may each wait for memory that the other's calls
//! hold.

use crate::endpoint::Endpoint;
use crate::error::{CallError, Status};
use crate::flow::ClientFlow;
use crate::held::Held;
use crate::io::Io;
use crate::session::{Session, SessionState};
use crate::timers::{TimerEntry, TimerKind};
use crate::wire::packets_of;

impl<C> ClientFlow<'_, C> {
    /// The request of a slot was refused for lack of memory, without execution: the call waits for
    /// its next try. `false`: it is to end with the error, and nothing has changed.
    pub(crate) fn hold_back(&mut self, slot_no: u8) -> bool {
        let (s, now_ns) = (&*self.s, self.io.now_ns);
        let (peer, is_connected) = (s.peer, s.state == SessionState::Connected);
        let (step, dpp) = (s.slots.count(), s.agreed.data_per_packet);
        let Some(slot) = s.slots.get(usize::from(slot_no)) else { return false };
        let (seq, req_type, expires_ns) = (slot.seq, slot.req_type(), slot.expires_ns);
        if !slot.has_several_packets() || !is_connected || expires_ns <= now_ns {
            return false;
        }
        let since_ns = self.io.held.refused_since(peer, seq, now_ns);
        if now_ns - since_ns >= self.io.cfg.datapath_timeout_ns {
            return false;
        }
        let Some((req, cont)) = self.clear_slot(slot_no) else { return false };
        let packets = packets_of(req.len() as u32, dpp);
        let slot = &mut self.s.slots[usize::from(slot_no)];
        slot.start(step, req_type, req, packets, cont);
        (slot.expires_ns, slot.deadline_ns) = (expires_ns, u64::MAX);
        slot.hold();
        let held = Held { session: self.index, slot: slot_no, since_ns: Some(since_ns) };
        self.io.held.wait(peer, seq, held, now_ns);
        self.io.stats.held_back += 1;
        self.arm_slot(slot_no, expires_ns);
        self.wake_stalled(slot_no);
        self.io.time_held();
        true
    }
}

impl Io {
    /// Sets the timer for the end of the first pause.
    fn time_held(&mut self) {
        let due_ns = self.held.next_ns();
        if due_ns < self.held.due_ns {
            let entry = TimerEntry { due_ns, session: 0, generation: 0, kind: TimerKind::Held };
            self.held.due_ns = self.timers.arm_later(entry);
        }
    }
}

impl<C> Endpoint<C> {
    /// A peer has answered a call of several packets: sends the oldest one that waits.
    pub(crate) fn send_oldest_held(&mut self, peer: u32) {
        if let Some(oldest) = self.io.held.next(peer) {
            self.send_held(oldest);
        }
    }

    /// Sends a call that has waited.
    fn send_held(&mut self, held: Held) {
        let Held { session, slot, .. } = held;
        let Some(mut flow) = self.client_flow(session) else { return };
        if let Some(of) = flow.s.slots.get_mut(usize::from(slot)) {
            of.end_hold();
            flow.wake_slot(slot);
        }
    }

    /// The timer for the end of a pause has expired.
    pub(crate) fn on_pause_end(&mut self, due_ns: u64) {
        if self.io.held.due_ns != due_ns {
            return; // there is an earlier or later one
        }
        self.io.held.due_ns = u64::MAX;
        while let Some(peer) = self.io.held.next_peer(self.io.now_ns) {
            self.end_stuck(peer);
            if let Some(probe) = self.io.held.next_probe(peer) {
                self.send_held(probe);
            }
        }
        self.io.time_held();
    }

    /// Ends the calls to a peer that wait, if it has answered none for a long time.
    fn end_stuck(&mut self, peer: u32) {
        let since_ns = self.io.now_ns.saturating_sub(self.io.cfg.datapath_timeout_ns);
        let error = |_| CallError::Server(Status::NoMemory);
        while let Some((seq, Held { session, slot, .. })) = self.io.held.stuck(peer, since_ns) {
            if let Some(mut flow) = self.client_flow(session) {
                flow.end_early(slot, error);
            }
            self.io.held.forget(peer, seq); // it is, unless its session is gone
        }
    }

    /// Checks that exactly the slots that are held back wait, and that a timer is set for them.
    pub(crate) fn check_held(&self) {
        let mut waiting = 0;
        for (peer, seq, held) in self.io.held.waiting() {
            waiting += 1;
            let Some(Session::Client(s)) = self.sessions.get(held.session as usize) else {
                panic!("call {seq} waits without a session");
            };
            let slot = &s.slots[usize::from(held.slot)];
            assert!(s.peer == peer && slot.seq == seq && slot.is_held(), "call {seq} waits");
        }
        let clients = self.sessions.iter().filter_map(|s| match s {
            Session::Client(s) => Some(s),
            _ => None,
        });
        let held = clients.flat_map(|s| s.slots.iter()).filter(|slot| slot.is_held()).count();
        assert_eq!(held, waiting, "slots that are held back");
        assert!(self.io.held.due_ns <= self.io.held.next_ns(), "no timer ends the pause");
    }
}
