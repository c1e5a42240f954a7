//! Cancellations at the server (F15): the client wants to hear that the request is over, so that
//! it may use the slot again.
//!
//! A request that no handler has is answered with [`Status::Cancelled`] and never executed, also
//! when none of it has arrived: a packet of it that comes later finds its number taken. With a
//! handler it is "in progress", and the handler may look ([`Endpoint::is_cancelled`]); the client
//! asks again, and has its answer when the handler has given one.

use crate::endpoint::Endpoint;
use crate::error::Status;
use crate::event::RequestId;
use crate::session::{Session, SessionId};
use crate::slot::{Position, ServerPhase, ServerSlot};
use crate::stats::Drop;
use crate::tx::TxItem;

impl<C> Endpoint<C> {
    pub(crate) fn rx_cancel(&mut self, peer: u32, session: u32, req_num: u32) -> Result<(), Drop> {
        if self.sessions.server_of(peer, session)?.slots.are_asleep() {
            self.sessions.wake_server(session, req_num)?;
        }
        let s = self.sessions.server_of(peer, session)?;
        let (step, tenant) = (s.slots.count(), s.tenant);
        let slot_no = (req_num & (step - 1)) as u8;
        let session_id = SessionId { index: session, generation: s.generation };
        let slot = &mut s.slots[usize::from(slot_no)];
        match slot.position(req_num, step) {
            Position::Current => {}
            // None of it was seen. The client has heard of the one before, so that has an answer.
            Position::Next if slot.phase == ServerPhase::Executing => return Err(Drop::Future),
            Position::Next => {
                let freed = slot.begin(req_num, 0, 0, 1, u64::MAX);
                self.shares.unhold(tenant, freed);
            }
            Position::Past => return Err(Drop::Stale),
            Position::Future => return Err(Drop::Future),
        }
        let item = match slot.phase {
            ServerPhase::Receiving => {
                slot.req = None;
                self.shares.unhold(tenant, std::mem::take(&mut slot.held));
                slot.cancelled = true;
                // As `reply_status` wants it; nobody sees the request in this phase.
                slot.phase = ServerPhase::Executing;
                let id = RequestId::new(session_id, slot_no, req_num);
                self.reply_status(id, Status::Cancelled);
                return Ok(());
            }
            ServerPhase::Executing => {
                self.outbox.given_up += u64::from(!std::mem::replace(&mut slot.cancelled, true));
                slot.cr_in_progress = true;
                if std::mem::replace(&mut slot.cr_queued, true) {
                    return Ok(());
                }
                TxItem::CreditReturn { session, slot: slot_no, req_num }
            }
            ServerPhase::Responded => {
                if !slot.resend_first(self.tx.number()) {
                    return Ok(());
                }
                s.resent += 1;
                self.stats.responses_resent += 1;
                TxItem::Response { session, slot: slot_no, req_num }
            }
            ServerPhase::Idle | ServerPhase::Acked => return Err(Drop::Stale),
        };
        self.tx.push(item);
        Ok(())
    }

    /// Whether nobody waits for the answer of a request any more: its client has cancelled it, or
    /// gave up waiting for it when its deadline had passed, or the request is gone. A handler that
    /// takes long may look now and then, and answer early; it has to answer in any case.
    pub fn is_cancelled(&self, id: RequestId) -> bool {
        self.server_slot(id).is_none_or(|slot| slot.cancelled)
    }

    /// How many requests were given up by their clients while handlers had them: when this grows,
    /// [`Endpoint::is_cancelled`] has changed for some.
    #[inline]
    pub fn given_up(&self) -> u64 {
        self.outbox.given_up
    }

    fn server_slot(&self, id: RequestId) -> Option<&ServerSlot> {
        match self.sessions.get(id.session().index as usize)? {
            Session::Server(s) if s.generation == id.session().generation => {
                s.slots.get(usize::from(id.slot())).filter(|slot| slot.req_num == id.req_num())
            }
            _ => None,
        }
    }
}
