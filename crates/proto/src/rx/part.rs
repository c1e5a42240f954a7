//! The straight line of large messages: the next packet in order of a request or a response of several
//! packets, neither its first nor its last. Every other packet of such a message, and every packet
//! while messages are limited by grants or wait for memory, is for [`super::request`] and
//! [`super::response`].

use super::Content;
use crate::budget::Owner;
use crate::endpoint::Endpoint;
use crate::session::SessionState;
use crate::tx::TxItem;
use crate::wire::{ONE_WAY_REQUEST, PLAIN_REQUEST, PLAIN_RESPONSE, PartPacket};

/// Handles the next packet of a large message, with the given data. `false`: a condition of the
/// straight line does not hold, and nothing has changed.
#[inline(always)] // into the loop over packets of either form of a frame
pub(super) fn rx_part<'f, C>(
    endpoint: &mut Endpoint<C>,
    peer: u32,
    p: &PartPacket<'_>,
    data: impl Content<'f>,
) -> bool {
    match p.kind {
        PLAIN_REQUEST | ONE_WAY_REQUEST => endpoint.take_request_part(peer, p, data),
        PLAIN_RESPONSE => endpoint.take_response_part(peer, p, data),
        _ => false,
    }
}

impl<C> Endpoint<C> {
    #[inline(always)]
    fn take_request_part<'f>(
        &mut self,
        peer: u32,
        p: &PartPacket<'_>,
        data: impl Content<'f>,
    ) -> bool {
        let Endpoint { io, sessions, admission, .. } = self;
        let Some(s) = sessions.server_mut(p.session) else { return false };
        let slot_no = (p.req_num & (s.slots.count() - 1)) as u8;
        let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return false };
        let is_limited = admission.limits_requests();
        if s.peer != peer || is_limited || !slot.is_next_part(p, data.len()) {
            return false;
        }
        if let Some(request) = &mut slot.req {
            io.cfg.factors.copy_part(data, request, p.offset as usize);
        }
        slot.req_rcvd += 1;
        let owner = Owner {
            session: p.session,
            generation: s.generation,
            slot: slot_no,
            req_num: p.req_num,
            is_response: false,
        };
        let (at, dpp) = (slot.message(), u32::from(s.data_per_packet));
        if let Some((quota, kept)) = admission.budget.on_part(at, &owner, dpp, io.now_ns) {
            admission.quotas.keep_promise(quota, kept); // no request waits for this memory
        }
        if !std::mem::replace(&mut slot.cr_queued, true) {
            let (session, req_num) = (p.session, p.req_num);
            io.tx.push(TxItem::CreditReturn { session, slot: slot_no, req_num });
        }
        io.stats.received(0);
        true
    }

    #[inline(always)]
    fn take_response_part<'f>(
        &mut self,
        peer: u32,
        p: &PartPacket<'_>,
        data: impl Content<'f>,
    ) -> bool {
        let Some(mut flow) = self.client_flow(p.session) else { return false };
        let s = &mut *flow.s;
        let slot_no = (p.req_num & (s.slots.count() - 1)) as u8;
        let Some(slot) = s.slots.get_mut(usize::from(slot_no)) else { return false };
        let is_current = s.peer == peer && s.state == SessionState::Connected;
        if !is_current || flow.admission.limits_responses() {
            return false;
        }
        let Some(credits) = slot.take_response_part(p) else { return false };
        if let Some(response) = slot.response_buffer_mut() {
            data.copy_into(response, p.offset as usize);
        }
        (slot.last_rx_ns, slot.retries) = (flow.io.now_ns, 0);
        let units = slot.units();
        s.credits.release(credits);
        flow.io.release_room(flow.peer, credits * units);
        flow.io.stats.received(3);
        flow.grant_fetch(slot_no);
        flow.extend_deadline(slot_no);
        flow.wake_in_turn(slot_no);
        true
    }
}
