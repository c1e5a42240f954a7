//! What a client sends: request packets, then requests-for-response; each costs credits
//! `[eRPC §4.3.1, §5.1]` (E33, E43, F4).

use courser_buf::TxBurst;

use super::{Sent, TxItem, live_peer};
use crate::endpoint::Endpoint;
use crate::session::{Session, SessionState};
use crate::wire::{Packet, data_len};

/// What one step of a client slot came to.
enum Step {
    Sent,
    /// Nothing more to send until something arrives.
    Done,
    NoCredit,
    NoRoom,
}

impl<C> Endpoint<C> {
    pub(crate) fn tx_client(
        &mut self,
        session: u32,
        slot_no: u8,
        req_num: u32,
        out: &mut TxBurst,
    ) -> Sent {
        let now_ns = self.now_ns;
        let mut any = false;
        let sent = loop {
            match self.tx_client_step(session, slot_no, req_num, out) {
                Step::Sent => any = true,
                Step::Done => break Sent::All,
                Step::NoCredit => {
                    if let Some(Session::Client(s)) = self.sessions.get_mut(session as usize) {
                        s.stalled |= 1 << slot_no;
                    }
                    break Sent::All;
                }
                Step::NoRoom => {
                    break Sent::Rest(TxItem::Client { session, slot: slot_no, req_num });
                }
            }
        };
        if any {
            self.extend_deadline(session, slot_no, now_ns);
        }
        if matches!(sent, Sent::All)
            && let Some(s) = self.client_session_at(session)
            && let Some(slot) = s.slots.get_mut(usize::from(slot_no))
            && slot.req_num == req_num
        {
            slot.queued = false;
        }
        sent
    }

    #[inline]
    fn tx_client_step(
        &mut self,
        session: u32,
        slot_no: u8,
        req_num: u32,
        out: &mut TxBurst,
    ) -> Step {
        let Some(Session::Client(s)) = self.sessions.get_mut(session as usize) else {
            return Step::Done;
        };
        let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return Step::Done };
        if !slot.active || slot.req_num != req_num || s.state != SessionState::Connected {
            return Step::Done;
        }
        let sendable = slot.sendable();
        if sendable == 0 {
            return Step::Done;
        }
        // A large message leaves in steps of a train: fewer packets wait until more credits are
        // back, as long as something is on its way that brings them.
        let short = s.credits < s.quantum.min(sendable);
        if s.credits == 0 || (short && slot.in_flight() >= s.quantum) {
            return Step::NoCredit;
        }
        let Some(peer) = live_peer(&mut self.peers, s.peer) else { return Step::Done };
        let index = slot.req_sent;
        if index == slot.req_packets {
            let count = s.credits.min(slot.resp_packets - slot.resp_asked);
            let first = slot.resp_asked;
            let rfr = Packet::Rfr { session: s.remote, req_num, first, count };
            if !self.tx.append(s.peer, peer, &self.arena, &rfr, &[]) {
                return Step::NoRoom;
            }
            self.stats.retransmitted += u64::from(first < slot.resp_high);
            slot.resp_asked += count;
            slot.resp_high = slot.resp_high.max(slot.resp_asked);
            s.credits -= count;
            self.stats.tx_packets += 1;
            self.stats.tx_kinds[2] += 1;
            return Step::Sent;
        }
        let Some(req) = slot.req.as_mut() else { return Step::Done };
        let (size, dpp) = (req.len() as u32, s.data_per_packet);
        let len = data_len(size, index, dpp);
        let at = index as usize * usize::from(dpp);
        let packet = Packet::Request {
            session: s.remote,
            req_num,
            req_type: slot.req_type,
            msg_size: size,
            index,
            data: &[],
        };
        let (sent, copied) = if len <= self.cfg.inline_max {
            (self.tx.append(s.peer, peer, &self.arena, &packet, &req[at..at + len]), false)
        } else {
            let (tx, now_ns) = (&mut self.tx, self.now_ns);
            tx.direct(s.peer, peer, &self.arena, &packet, req, index, at..at + len, now_ns, out)
        };
        if !sent {
            return Step::NoRoom;
        }
        self.stats.tx_copied += u64::from(copied);
        self.stats.retransmitted += u64::from(index < slot.req_high);
        slot.req_sent += 1;
        slot.req_high = slot.req_high.max(slot.req_sent);
        s.credits -= 1;
        let in_flight = s.credit_limit - s.credits;
        self.stats.max_in_flight = self.stats.max_in_flight.max(in_flight);
        self.stats.tx_packets += 1;
        self.stats.tx_kinds[0] += 1;
        Step::Sent
    }
}
