//! Receiving one-way messages, and their acknowledgements.

use super::Incoming;
use super::outgoing::Freed;
use crate::admission::OneWay;
use crate::endpoint::Endpoint;
use crate::event::Event;
use crate::flow::{ClientFlow, ServerFlow};
use crate::mutant::{self, Mutant};
use crate::session::SessionId;
use crate::stats::RxDrop;
use crate::tx::TxItem;
use crate::wire::SinglePacket;

/// The header of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageHeader {
    pub(crate) session: u32,
    pub(crate) number: u32,
    pub(crate) msg_type: u16,
    pub(crate) remaining_us: Option<u32>,
}

impl<C> Endpoint<C> {
    /// Takes a message if it is the next one of its session, without any later one, has no deadline,
    /// and no limit has to be checked. Returns its session.
    #[inline(always)]
    pub(crate) fn take_next_message(
        &mut self,
        peer: u32,
        p: &SinglePacket<'_>,
    ) -> Option<SessionId> {
        let s = self.sessions.server_mut(p.session)?;
        if s.peer != peer || self.admission.quotas.needs_check {
            return None;
        }
        let incoming = s.incoming.as_mut()?;
        if !incoming.take_next(p.req_num) {
            return None;
        }
        if !std::mem::replace(&mut incoming.ack_queued, true) {
            self.io.tx.push(TxItem::MessageAck { session: p.session });
        }
        self.io.stats.received(8);
        self.io.stats.messages_received += 1;
        Some(SessionId { index: p.session, generation: s.generation })
    }

    /// A message of one packet: records its number, and returns it for its handler unless it is
    /// refused or its deadline has passed.
    pub(crate) fn rx_message<'f>(
        &mut self,
        peer: u32,
        h: MessageHeader,
        data: &'f [u8],
    ) -> Result<Option<Event<'f, C>>, RxDrop> {
        let ServerFlow { s, peer, io, admission, .. } = self.server_flow_of(peer, h.session)?;
        let id = SessionId { index: h.session, generation: s.generation };
        let first = s.first_req_num;
        let incoming = s.incoming.get_or_insert_with(|| Box::new(Incoming::new(first)));
        let taken = incoming.insert(h.number);
        if taken != Err(RxDrop::OutOfOrder) && !std::mem::replace(&mut incoming.ack_queued, true) {
            io.tx.push(TxItem::MessageAck { session: h.session });
        }
        taken?;
        let mut expires_ns = u64::MAX;
        if let Some(us) = h.remaining_us
            && !mutant::is_on(Mutant::StaleMessage)
        {
            expires_ns = peer.path.deadline_ns(us);
        }
        if expires_ns <= io.now_ns {
            io.stats.messages_expired += 1;
            return Ok(None);
        }
        let Some(body) = admission.ask(io, OneWay { data }).now() else {
            io.stats.messages_refused += 1;
            return Ok(None);
        };
        io.stats.messages_received += 1;
        let (session, msg_type) = (id, h.msg_type);
        Ok(Some(Event::Message { session, msg_type, body, expires_ns, request: None }))
    }
}

impl<C> ClientFlow<'_, C> {
    /// An acknowledgement of messages.
    pub(crate) fn rx_message_ack(&mut self, next: u32, later: u64) -> Result<(), RxDrop> {
        let now_ns = self.io.now_ns;
        let Some(outgoing) = &mut self.s.outgoing else { return Err(RxDrop::Inconsistent) };
        let mut freed = outgoing.on_ack(next, later, now_ns)?;
        let mut next_ns = u64::MAX;
        if later != 0 && !mutant::is_on(Mutant::LostMessageForgotten) {
            let window_ns = self.peer.path.window_ns(now_ns);
            next_ns = outgoing.find_lost(window_ns, now_ns, &mut freed);
        }
        if freed.arrived > 0 {
            (outgoing.retries, outgoing.waits_since_ns) = (0, now_ns);
        }
        let Freed { arrived, lost, .. } = freed;
        if arrived == 0 && lost == 0 {
            return Ok(()); // repeated: it must not delay the timeout
        }
        self.io.stats.messages_acknowledged += u64::from(arrived);
        self.after_messages(freed, lost, next_ns);
        self.note_room();
        Ok(())
    }
}
