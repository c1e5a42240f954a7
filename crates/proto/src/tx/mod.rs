//! The transmit stage (steps 4 and 7 of a packet's path): from queued work to frames.
//!
//! Everything that wants to leave is a [`TxItem`]; [`Endpoint::poll_transmit`] turns items into
//! frames. Small packets to one peer share frames, whatever their kind (F1); a packet of more
//! than `Config::inline_max` bytes leaves as a frame of its own, straight from its message buffer.
//! Frames of one peer stand together, so that the transport can send them as trains.

mod request;
mod response;
mod stage;

use courser_buf::TxBurst;

use crate::endpoint::Endpoint;
use crate::session::{Peer, Session};
use crate::slot::ServerPhase;
use crate::wire::Packet;

pub(crate) use stage::TxStage;

/// Something to send. Names a request by number: an item that its slot has outlived is ignored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TxItem {
    /// Whatever the client slot can send: request packets, then requests-for-response.
    Client { session: u32, slot: u8, req_num: u32 },
    /// A credit return with what has arrived by then.
    CreditReturn { session: u32, slot: u8, req_num: u32 },
    /// A part of a stored response.
    Response { session: u32, slot: u8, req_num: u32, first: u32, count: u32 },
    /// The response has arrived.
    Ack { session: u32, req_num: u32 },
}

/// What became of an item.
pub(crate) enum Sent {
    /// Done with it (for now).
    All,
    /// No room left in this stage; this is what remains.
    Rest(TxItem),
}

impl<C> Endpoint<C> {
    /// Makes frames of what waits to be sent, up to `Config::tx_frames` in `out`. Frames are
    /// complete: number, time and all. Call it after the received frames were handled, so that
    /// what they caused leaves together.
    #[inline]
    pub fn poll_transmit(&mut self, now_ns: u64, out: &mut TxBurst) {
        self.now_ns = now_ns;
        if self.tx.is_empty() {
            return;
        }
        let before = out.len();
        self.tx.begin(self.cfg.tx_frames.saturating_sub(before));
        while let Some(item) = self.tx.pop() {
            let sent = match item {
                TxItem::Client { session, slot, req_num } => {
                    self.tx_client(session, slot, req_num, out)
                }
                TxItem::CreditReturn { session, slot, req_num } => {
                    self.tx_credit_return(session, slot, req_num)
                }
                TxItem::Response { session, slot, req_num, first, count } => {
                    self.tx_response(session, slot, req_num, first, count, out)
                }
                TxItem::Ack { session, req_num } => self.tx_ack(session, req_num),
            };
            if let Sent::Rest(item) = sent {
                self.tx.push_front(item);
                break;
            }
        }
        self.tx.finish(&mut self.peers, now_ns, out);
        self.stats.tx_frames += (out.len() - before) as u64;
    }

    fn tx_credit_return(&mut self, session: u32, slot_no: u8, req_num: u32) -> Sent {
        let item = TxItem::CreditReturn { session, slot: slot_no, req_num };
        let Some(Session::Server(s)) = self.sessions.get_mut(session as usize) else {
            return Sent::All;
        };
        let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return Sent::All };
        if slot.req_num != req_num {
            return Sent::All; // its successor resets the flags when it queues its own
        }
        let (count, in_progress) = (slot.returnable(), slot.cr_in_progress);
        let in_progress = in_progress && slot.phase == ServerPhase::Executing;
        let useful = count > 0 || in_progress;
        if useful && slot.phase != ServerPhase::Acked {
            let Some(Some(peer)) = self.peers.get_mut(s.peer as usize) else { return Sent::All };
            let cr = Packet::CreditReturn { session: s.remote, req_num, count, in_progress };
            if !self.tx.append(s.peer, peer, &self.arena, &cr, &[]) {
                return Sent::Rest(item);
            }
            self.stats.tx_packets += 1;
            self.stats.tx_kinds[1] += 1;
            self.stats.in_progress_sent += u64::from(in_progress);
        }
        slot.cr_queued = false;
        slot.cr_in_progress = false;
        Sent::All
    }

    fn tx_ack(&mut self, session: u32, req_num: u32) -> Sent {
        let Some(Session::Client(s)) = self.sessions.get_mut(session as usize) else {
            return Sent::All;
        };
        let slot_no = req_num & (s.slots.len() as u32 - 1);
        let slot = &mut s.slots[slot_no as usize];
        if slot.active || slot.req_num != req_num {
            return Sent::All; // the next request says it
        }
        let Some(Some(peer)) = self.peers.get_mut(s.peer as usize) else { return Sent::All };
        let ack = Packet::Ack { session: s.remote, req_num };
        if !self.tx.append(s.peer, peer, &self.arena, &ack, &[]) {
            return Sent::Rest(TxItem::Ack { session, req_num });
        }
        self.stats.tx_packets += 1;
        self.stats.tx_kinds[4] += 1;
        Sent::All
    }
}

/// The peer of a session that may be spoken to.
pub(crate) fn live_peer(peers: &mut [Option<Peer>], index: u32) -> Option<&mut Peer> {
    peers.get_mut(index as usize).and_then(Option::as_mut)
}
