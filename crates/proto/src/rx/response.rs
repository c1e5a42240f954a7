//! Responses at the client: order, reassembly, completion (E2, E28, E42, E43).

use crate::endpoint::Endpoint;
use crate::error::{CallError, Executed, Status};
use crate::event::{Body, Event};
use crate::loss::{Recovery, Seen};
use crate::rx::Content;
use crate::stats::Drop;
use crate::wire::packets_of;

impl<C> Endpoint<C> {
    #[inline]
    pub(crate) fn rx_response<'f>(
        &mut self,
        peer: u32,
        session: u32,
        req_num: u32,
        msg_size: u32,
        index: u32,
        data: impl Content<'f>,
    ) -> Result<Option<Event<'f, C>>, Drop> {
        let (limit, heard) = (self.cfg.max_msg_size, self.heard_of(peer));
        let mut seen = Seen::default();
        let (s, slot_no) = match self.client_slot(peer, session, req_num) {
            Ok(found) => found,
            Err(reason) => {
                return self.rx_quarantined(session, req_num, true, reason).map(|()| None);
            }
        };
        let dpp = s.data_per_packet;
        let slot = &mut s.slots[usize::from(slot_no)];
        let packets = packets_of(msg_size, dpp);
        let whole = if packets == 1 { Some(data.whole().ok_or(Drop::Length)?) } else { None };
        let is_melo = s.recovery == Recovery::Melo;
        let front = slot.resp_rcvd;
        let credits = match slot.on_response(index, msg_size, packets, heard, &mut seen) {
            Ok(credits) => credits,
            Err(reason) => {
                self.note_pool(is_melo);
                return Err(reason);
            }
        };
        let asked_twice = slot.retries > 0 && packets == 1 && slot.heard_ns < slot.started_ns;
        let age_ns = (heard.now_ns as u32).wrapping_sub(slot.again_at);
        let moved = !is_melo || slot.resp_rcvd > front;
        s.credits += credits;
        self.learn(peer, seen);
        if asked_twice {
            self.asked_twice(peer, age_ns, heard);
        }
        self.note_pool(is_melo);
        self.credits_home(peer, credits);
        let Some(s) = self.client_session_at(session) else { return Ok(None) };
        let slot = &mut s.slots[usize::from(slot_no)];
        let result = if msg_size > limit {
            slot.ack_owed = true; // it is of no use here: the server need not keep it
            Err(CallError::ResponseTooLarge { response_bytes: msg_size, limit })
        } else if let Some(data) = whole {
            slot.ack_owed = true;
            Ok(Body::Borrowed(data))
        } else {
            match self.rx_response_part(session, slot_no, index, msg_size, data, moved) {
                Ok(None) => return Ok(None),
                Ok(Some(body)) => Ok(body),
                Err(e) => Err(e),
            }
        };
        Ok(self.complete(session, slot_no, result).map(Event::Completion))
    }

    /// Takes the use of MELO's bits.
    #[inline]
    pub(super) fn note_pool(&mut self, is_melo: bool) {
        if is_melo {
            (self.stats.melo_bits_peak, self.stats.melo_refused) = self.pools.rx_use();
        }
    }

    /// A packet that is new, of a response of several; gives the response when it is whole. `moved`:
    /// the time for what is missing begins again.
    fn rx_response_part<'f>(
        &mut self,
        session: u32,
        slot_no: u8,
        index: u32,
        msg_size: u32,
        data: impl Content<'f>,
        moved: bool,
    ) -> Result<Option<Body<'f>>, CallError> {
        let now_ns = self.now_ns;
        let Some(s) = self.client_session_at(session) else { return Ok(None) };
        let offset = index as usize * usize::from(s.data_per_packet);
        if index == 0 {
            let buffer = self.arena.alloc(msg_size as usize);
            let no_memory = |_| CallError::NoMemory { response_bytes: msg_size };
            let Some(s) = self.client_session_at(session) else { return Ok(None) };
            let slot = &mut s.slots[usize::from(slot_no)];
            slot.ack_owed = buffer.is_err();
            slot.resp = Some(buffer.map_err(no_memory)?);
        }
        let Some(s) = self.client_session_at(session) else { return Ok(None) };
        let slot = &mut s.slots[usize::from(slot_no)];
        if let Some(resp) = slot.resp.as_mut() {
            data.copy_into(resp, offset);
        }
        if slot.resp_rcvd == slot.resp_packets {
            slot.ack_owed = true;
            return Ok(slot.resp.take().map(Body::Owned));
        }
        slot.heard_ns = now_ns;
        if moved {
            slot.retries = 0;
            self.extend_deadline(session, slot_no, now_ns);
        }
        self.wake_in_turn(session, slot_no);
        Ok(None)
    }

    pub(crate) fn rx_error_response<'f>(
        &mut self,
        peer: u32,
        session: u32,
        req_num: u32,
        status: u16,
    ) -> Result<Option<Event<'f, C>>, Drop> {
        let (s, slot_no) = match self.client_slot(peer, session, req_num) {
            Ok(found) => found,
            Err(reason) => {
                return self.rx_quarantined(session, req_num, true, reason).map(|()| None);
            }
        };
        let slot = &mut s.slots[usize::from(slot_no)];
        // A server may refuse a request from its first packet on, so it need not be sent whole.
        if slot.req_high == 0 || slot.resp_rcvd > 0 {
            return Err(Drop::Inconsistent);
        }
        slot.ack_owed = true;
        let error = match Status::from_code(status) {
            Status::DeadlineExceeded => CallError::DeadlineExceeded(Executed::Never),
            Status::Cancelled => CallError::Cancelled(Executed::Never),
            status => CallError::Server(status),
        };
        self.count_ending(&error);
        Ok(self.complete(session, slot_no, Err(error)).map(Event::Completion))
    }
}
