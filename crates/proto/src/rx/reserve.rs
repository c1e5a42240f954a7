//! Memory for requests of several packets (ADR 36).
//!
//! The first packet of a request states its size, and nothing shows that the rest will follow. So the
//! whole is reserved only when it is the client's turn ([`crate::session::Quotas`]): the request then
//! arrives to its end. Until then the request has memory in proportion to what has arrived, and waits:
//! the credit return for its first packet is withheld, and others state that nothing further is
//! granted. A client that has too few credits for that sends on, and the memory grows with its data.
//!
//! A request of which no packet arrives for `Config::datapath_timeout_ns`, or that has waited for as
//! long, is dropped.

use courser_buf::{AllocError, MsgBuf};

use super::request_owner;
use crate::budget::{NO_MESSAGE, Owner, Reserved, UNSCHEDULED};
use crate::endpoint::Endpoint;
use crate::error::Status;
use crate::event::RequestId;
use crate::session::{Memory, SessionId};
use crate::slot::ServerPhase;
use crate::stats::RxDrop;
use crate::timers::{SWEEP, TimerEntry};

/// A request of at most this size is reserved as a whole at its first packet, or refused; a larger one
/// that waits has at least these bytes.
const FIRST_BYTES: u32 = 16 << 10;

/// Bytes of a request that are stored whatever its client's share is: packets that were on the way
/// before the client knew that the request waits.
const WINDOW_BYTES: u32 = 256 << 10;

/// Clients whose requests are tried at once.
const CLIENTS_AT_ONCE: usize = 16;

/// Interval of the tries while requests wait, ns: buffers return without notice.
const TRY_EVERY_NS: u64 = 1_000_000;

/// Memory for a packet of a request.
enum Room {
    /// A buffer for the whole request. Of it so much is promised.
    Whole(MsgBuf, u32),
    /// A buffer that ends behind the packet.
    Part(MsgBuf),
    /// Not now.
    Lacks,
    /// Never.
    Refused(Status),
}

impl<C> Endpoint<C> {
    /// Reserves memory for packet `index` of a request, which ends at byte `end` of it. `false`: the
    /// request was rejected.
    /// # Errors
    /// There is no room for the packet now.
    #[inline(never)] // outlined to keep registers free on the path of small requests
    pub(super) fn reserve_part(
        &mut self,
        id: RequestId,
        peer: u32,
        (index, end): (u32, u32),
    ) -> Result<bool, RxDrop> {
        let now_ns = self.io.now_ns;
        let Some(slot) = self.server_slot_mut(id) else { return Err(RxDrop::Stale) };
        let (is_first, expired) = (slot.message() == NO_MESSAGE, slot.expires_ns <= now_ns);
        if is_first && index == 0 && expired {
            self.reject(id, Status::DeadlineExceeded);
            return Ok(false);
        }
        let (buffer, promised) = match self.room(id, peer, end) {
            Room::Whole(buffer, promised) => (buffer, Some(promised)),
            Room::Part(buffer) => (buffer, None),
            Room::Lacks => {
                self.touch_request(id);
                return Err(RxDrop::OutOfOrder);
            }
            Room::Refused(status) => {
                self.io.stats.requests_refused += 1;
                self.reject(id, status);
                return Ok(false);
            }
        };
        self.place(id, buffer);
        if is_first {
            self.begin_request(id, peer, promised);
        } else {
            self.promise(id, promised.unwrap_or(0));
        }
        Ok(true)
    }

    /// A buffer for a request up to byte `end`, or for all of it if it is the client's turn.
    fn room(&mut self, id: RequestId, peer: u32, end: u32) -> Room {
        let owner = request_owner(id);
        let Some(s) = self.sessions.server_mut(id.session().index) else {
            return Room::Refused(Status::NoMemory);
        };
        let (quota, dpp, credits) = (s.quota, u32::from(s.data_per_packet), s.credit_limit);
        let Some(slot) = s.slots.get(usize::from(id.slot())) else {
            return Room::Refused(Status::NoMemory);
        };
        let (size, at, had, charged) = (slot.req_size, slot.message(), slot.room(), slot.charged);
        let req_type = slot.req_type;
        let is_first = at == NO_MESSAGE;
        let left = self.admission.quotas.room_of(quota).saturating_add(charged.into());
        if is_first && let Some(status) = self.rejection(quota, req_type, size) {
            return Room::Refused(status);
        }
        if is_first && u64::from(size) > left {
            return Room::Refused(Status::NoMemory);
        }
        let (is_small, memory) = (size <= FIRST_BYTES, self.memory_left());
        let waits = self.admission.budget.reserved(at, &owner).is_some_and(|r| r.waits());
        let is_behind =
            self.admission.budget.lacks_memory() && self.admission.budget.waits_of(quota);
        let more = u64::from(size.saturating_sub(charged));
        let is_turn = (is_small || !is_behind && !waits)
            && self.admission.quotas.may_promise(quota, more, memory);
        if is_turn && u64::from(size) <= left {
            match self.io.arena.alloc(size as usize) {
                Ok(buffer) => return Room::Whole(buffer, size),
                Err(AllocError::Exhausted { .. }) if !is_small => {}
                Err(_) => return Room::Refused(Status::NoMemory),
            }
        }
        if is_small {
            return Room::Refused(Status::NoMemory);
        }
        if is_first && size > WINDOW_BYTES && !self.may_wait(peer, credits) {
            // A request that would find no memory later is refused before its data is sent.
            if !self.admission.quotas.may_grow(quota, size.into(), memory) {
                return Room::Refused(Status::NoMemory);
            }
        }
        // In proportion to what has arrived.
        let arrived = (u64::from(self.admission.budget.arrived(at, &owner)) + 1) * u64::from(dpp);
        if u64::from(end) > u64::from(FIRST_BYTES) + 2 * arrived {
            return Room::Lacks;
        }
        let len = size.min(end.max(2 * had).max(FIRST_BYTES));
        let more = u64::from(len.saturating_sub(charged));
        let may = len <= WINDOW_BYTES || self.admission.quotas.may_charge(quota, more, memory);
        let may = may && u64::from(len) <= left;
        match may.then(|| self.io.arena.alloc(len as usize)) {
            Some(Ok(buffer)) => Room::Part(buffer),
            _ if waits => Room::Lacks,
            _ => Room::Refused(Status::NoMemory),
        }
    }

    /// Returns whether a credit return of a peer may be withheld for a request that waits.
    fn may_wait(&self, peer: u32, credits: u32) -> bool {
        let pool = self.io.peers.at(peer).map_or(0, |p| p.credits.granted());
        self.admission.budget.may_withhold(peer, credits.min(pool))
    }

    /// The memory of this endpoint.
    fn memory_left(&self) -> Memory {
        let limit = self.io.arena.config().limit_bytes as u64;
        Memory { limit, free: limit.saturating_sub(self.io.arena.in_use_bytes() as u64) }
    }

    /// Moves a request to a larger buffer.
    fn place(&mut self, id: RequestId, mut buffer: MsgBuf) {
        let Some(s) = self.sessions.server_mut(id.session().index) else { return };
        let quota = s.quota;
        let Some(slot) = s.slots.get_mut(usize::from(id.slot())) else { return };
        if let Some(before) = slot.req.take() {
            buffer[..before.len()].copy_from_slice(&before);
        }
        let charged = buffer.capacity() as u32;
        let before = std::mem::replace(&mut slot.charged, charged);
        slot.req = Some(buffer);
        self.admission.quotas.release(quota, before);
        self.admission.quotas.charge(quota, charged);
    }

    /// The first packet of a request has arrived: `promised` bytes are reserved for the rest, or it
    /// does not have its memory yet.
    fn begin_request(&mut self, id: RequestId, peer: u32, promised: Option<u32>) {
        let (now_ns, owner) = (self.io.now_ns, request_owner(id));
        let Some(s) = self.sessions.server_mut(id.session().index) else { return };
        let (quota, credits) = (s.quota, s.credit_limit);
        let Some(slot) = s.slots.get_mut(usize::from(id.slot())) else { return };
        let (packets, size) = (slot.req_packets, slot.req_size);
        let limited = self.admission.budget.is_in_force();
        let few = limited || promised.is_none();
        let sent = if few { self.admission.budget.unscheduled().max(UNSCHEDULED) } else { packets };
        let at = self.admission.budget.begin(owner, peer, packets, (1, sent), now_ns);
        slot.set_message(at);
        let promised_bytes = promised.unwrap_or(0);
        self.admission.quotas.promise(quota, promised_bytes);
        let mut reserved = Reserved::new(quota, promised_bytes, now_ns);
        let waits = promised.is_none() && self.may_wait(peer, credits);
        if promised.is_none() && !waits {
            reserved.growing = size;
            self.admission.quotas.grow(quota, size);
        }
        self.admission.budget.reserve(at, &owner, reserved);
        if waits {
            self.admission.budget.wait_for_memory(at, &owner, u32::MAX);
            self.io.stats.requests_waited += 1;
        }
        if !limited {
            self.admission.budget.grant_all(at, &owner);
        }
        if !limited && self.admission.budget.is_in_force() {
            self.budget_may_begin();
        }
        self.watch_requests();
    }

    /// A request has all of its memory, of which `promised` bytes were reserved just now.
    fn promise(&mut self, id: RequestId, promised: u32) {
        if promised == 0 {
            return;
        }
        let owner = request_owner(id);
        let Some(at) = self.server_slot_mut(id).map(|slot| slot.message()) else { return };
        let Some(reserved) = self.admission.budget.reserved(at, &owner) else { return };
        self.admission.quotas.promise(reserved.quota, promised);
        self.admission.quotas.end_growth(reserved.quota, reserved.growing);
        self.admission.budget.end_wait(at, &owner, promised);
    }

    /// A packet of a request with promised memory has arrived.
    pub(super) fn keep_promise(&mut self, at: u32, owner: &Owner, bytes: u32) {
        if let Some((quota, kept)) = self.admission.budget.keep(at, owner, bytes)
            && self.admission.quotas.keep_promise(quota, kept)
        {
            self.memory_returns();
        }
    }

    /// Reserves memory for requests that wait for it. Clients take turns.
    pub(crate) fn admit_waiting(&mut self) {
        self.admission.budget.memory_watch().tried();
        for _ in 0..CLIENTS_AT_ONCE {
            let Some((at, owner)) = self.admission.budget.next_for_memory() else { break };
            self.admit(at, &owner);
        }
    }

    fn admit(&mut self, at: u32, owner: &Owner) {
        let (id, now_ns) = (request_of(owner), self.io.now_ns);
        let Some(slot) = self.server_slot_mut(id) else { return };
        if slot.expires_ns <= now_ns {
            return self.reject(id, Status::DeadlineExceeded);
        }
        let (size, charged) = (slot.req_size, slot.charged);
        let Some(Reserved { quota, .. }) = self.admission.budget.reserved(at, owner) else {
            return;
        };
        let more = u64::from(size.saturating_sub(charged));
        let has_room = more <= self.admission.quotas.room_of(quota);
        if !has_room || !self.admission.quotas.may_promise(quota, more, self.memory_left()) {
            return;
        }
        let Ok(buffer) = self.io.arena.alloc(size as usize) else { return };
        self.place(id, buffer);
        self.promise(id, size);
        if self.admission.budget.is_in_force() {
            let arrived = self.admission.budget.arrived(at, owner);
            self.admission.budget.limit(at, owner, arrived);
            self.share_out();
        } else {
            self.admission.budget.grant_all(at, owner);
            self.state_grant(at, owner, u32::MAX);
        }
    }

    /// A packet of a request has arrived that had arrived before, or that there is no room for.
    pub(super) fn touch_request(&mut self, id: RequestId) {
        let now_ns = self.io.now_ns;
        let Some(at) = self.server_slot_mut(id).map(|slot| slot.message()) else { return };
        self.admission.budget.touch(at, &request_owner(id), now_ns);
    }

    /// Sets the timer by which unfinished requests are checked.
    fn watch_requests(&mut self) {
        let every_ns = if self.admission.budget.lacks_memory() {
            TRY_EVERY_NS
        } else {
            (self.io.cfg.datapath_timeout_ns / 4).max(1)
        };
        let due_ns = self.io.now_ns.saturating_add(every_ns);
        if due_ns < self.admission.budget.memory_watch().due_ns {
            let entry = TimerEntry { due_ns, session: 0, generation: 0, slot: SWEEP };
            self.admission.budget.memory_watch().due_ns = self.io.timers.arm_later(entry);
        }
    }

    /// Drops requests that do not arrive any more, and tries those that wait for memory.
    pub(crate) fn sweep_requests(&mut self, due_ns: u64) {
        let (now_ns, timeout_ns) = (self.io.now_ns, self.io.cfg.datapath_timeout_ns);
        let watch = self.admission.budget.memory_watch();
        if watch.due_ns != due_ns {
            return; // there is an earlier or later one
        }
        watch.due_ns = u64::MAX;
        if watch.is_walk_due(now_ns, timeout_ns / 4)
            && let Some(before_ns) = now_ns.checked_sub(timeout_ns)
        {
            for owner in self.admission.budget.overdue(before_ns) {
                self.give_up_request(&owner);
            }
        }
        if self.admission.budget.lacks_memory() {
            self.admit_waiting();
        }
        if self.admission.budget.has_requests() {
            self.watch_requests();
        }
    }

    /// Drops a request and frees its memory. If the client still sends, the answer to its next packet
    /// is the error: it has had an answer to each packet, except for one that is withheld (E39).
    fn give_up_request(&mut self, owner: &Owner) {
        let id = request_of(owner);
        let Some(slot) = self.server_slot_mut(id) else { return };
        if slot.phase != ServerPhase::Receiving {
            return;
        }
        self.io.stats.requests_given_up += 1;
        self.end_arriving(id, Status::NoMemory);
    }

    /// Ends a request that is arriving. Its client is answered at once if it waits for its turn, else
    /// when it sends a packet: all that it has asked for may have been sent.
    pub(crate) fn end_arriving(&mut self, id: RequestId, status: Status) {
        let Some(slot) = self.server_slot_mut(id) else { return };
        let (at, owner) = (slot.message(), request_owner(id));
        if self.admission.budget.owes(at, &owner) {
            return self.reject(id, status);
        }
        self.close_request(id);
        self.store_status(id, status);
    }
}

/// The request of a message.
fn request_of(owner: &Owner) -> RequestId {
    let session = SessionId { index: owner.session, generation: owner.generation };
    RequestId::new(session, owner.slot, owner.req_num)
}
