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

use crate::admission::Admission;
use crate::budget::{NO_MESSAGE, Owner, Reserved, UNSCHEDULED};
use crate::endpoint::Endpoint;
use crate::error::Status;
use crate::event::RequestId;
use crate::flow::ServerFlow;
use crate::io::Io;
use crate::session::{Memory, SessionId};
use crate::slot::ServerPhase;
use crate::stats::RxDrop;
use crate::timers::{TimerEntry, TimerKind};

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

impl<C> ServerFlow<'_, C> {
    /// Reserves memory for packet `index` of a request, which ends at byte `end` of it. `false`: the
    /// request was rejected.
    /// # Errors
    /// There is no room for the packet now.
    #[inline(never)] // outlined to keep registers free on the path of small requests
    pub(super) fn reserve_part(
        &mut self,
        slot_no: u8,
        (index, end): (u32, u32),
    ) -> Result<bool, RxDrop> {
        let now_ns = self.io.now_ns;
        let slot = &self.s.slots[usize::from(slot_no)];
        let (at, expired) = (slot.message(), slot.expires_ns <= now_ns);
        let is_first = at == NO_MESSAGE;
        if is_first && index == 0 && expired {
            self.reject(slot_no, Status::DeadlineExceeded);
            return Ok(false);
        }
        let (buffer, promised) = match self.room(slot_no, end) {
            Room::Whole(buffer, promised) => (buffer, Some(promised)),
            Room::Part(buffer) => (buffer, None),
            Room::Lacks => {
                let owner = self.owner(slot_no);
                self.admission.budget.touch(at, &owner, now_ns);
                return Err(RxDrop::OutOfOrder);
            }
            Room::Refused(status) => {
                self.io.stats.requests_refused += 1;
                self.reject(slot_no, status);
                return Ok(false);
            }
        };
        self.place(slot_no, buffer);
        if is_first {
            self.begin_request(slot_no, promised);
        } else {
            self.promise(slot_no, promised.unwrap_or(0));
        }
        Ok(true)
    }

    /// A buffer for a request up to byte `end`, or for all of it if it is the client's turn.
    fn room(&self, slot_no: u8, end: u32) -> Room {
        let (owner, io) = (self.owner(slot_no), &*self.io);
        let Admission { quotas, budget, .. } = &*self.admission;
        let (quota, dpp) = (self.s.quota, u32::from(self.s.data_per_packet));
        let slot = &self.s.slots[usize::from(slot_no)];
        let (size, at, had, charged) = (slot.req_size, slot.message(), slot.room(), slot.charged);
        let is_first = at == NO_MESSAGE;
        let left = quotas.room_of(quota).saturating_add(charged.into());
        let rejection = self.admission.rejection(&io.cfg, quota, slot.req_type, size);
        if is_first && let Some(status) = rejection {
            return Room::Refused(status);
        }
        if is_first && u64::from(size) > left {
            return Room::Refused(Status::NoMemory);
        }
        let (is_small, memory) = (size <= FIRST_BYTES, io.memory_left());
        let waits = budget.reserved(at, &owner).is_some_and(|r| r.waits());
        let is_behind = budget.lacks_memory() && budget.waits_of(quota);
        let more = u64::from(size.saturating_sub(charged));
        let is_turn = (is_small || !is_behind && !waits) && quotas.may_promise(quota, more, memory);
        if is_turn && u64::from(size) <= left {
            match io.arena.alloc(size as usize) {
                Ok(buffer) => return Room::Whole(buffer, size),
                Err(AllocError::Exhausted { .. }) if !is_small => {}
                Err(_) => return Room::Refused(Status::NoMemory),
            }
        }
        if is_small {
            return Room::Refused(Status::NoMemory);
        }
        if is_first && size > WINDOW_BYTES && !self.may_wait() {
            // A request that would find no memory later is refused before its data is sent.
            if !quotas.may_grow(quota, size.into(), memory) {
                return Room::Refused(Status::NoMemory);
            }
        }
        // In proportion to what has arrived.
        let arrived = (u64::from(budget.arrived(at, &owner)) + 1) * u64::from(dpp);
        if u64::from(end) > u64::from(FIRST_BYTES) + 2 * arrived {
            return Room::Lacks;
        }
        let len = size.min(end.max(2 * had).max(FIRST_BYTES));
        let more = u64::from(len.saturating_sub(charged));
        let may = len <= WINDOW_BYTES || quotas.may_charge(quota, more, memory);
        let may = may && u64::from(len) <= left;
        match may.then(|| io.arena.alloc(len as usize)) {
            Some(Ok(buffer)) => Room::Part(buffer),
            _ if waits => Room::Lacks,
            _ => Room::Refused(Status::NoMemory),
        }
    }

    /// Returns whether a credit return of the peer may be withheld for a request that waits.
    fn may_wait(&self) -> bool {
        let pool = self.peer.credits.granted();
        self.admission.budget.may_withhold(self.s.peer, self.s.credit_limit.min(pool))
    }

    /// Moves a request to a larger buffer.
    fn place(&mut self, slot_no: u8, mut buffer: MsgBuf) {
        let slot = &mut self.s.slots[usize::from(slot_no)];
        if let Some(before) = slot.req.take() {
            buffer[..before.len()].copy_from_slice(&before);
        }
        let charged = buffer.capacity() as u32;
        let before = std::mem::replace(&mut slot.charged, charged);
        slot.req = Some(buffer);
        self.admission.quotas.release(self.s.quota, before);
        self.admission.quotas.charge(self.s.quota, charged);
    }

    /// The first packet of a request has arrived: `promised` bytes are reserved for the rest, or it
    /// does not have its memory yet.
    fn begin_request(&mut self, slot_no: u8, promised: Option<u32>) {
        let (now_ns, owner, may_wait) = (self.io.now_ns, self.owner(slot_no), self.may_wait());
        let (peer, quota) = (self.s.peer, self.s.quota);
        let Admission { quotas, budget, effects, .. } = &mut *self.admission;
        let slot = &mut self.s.slots[usize::from(slot_no)];
        let (packets, size) = (slot.req_packets, slot.req_size);
        let limited = budget.is_in_force();
        let few = limited || promised.is_none();
        let sent = if few { budget.unscheduled().max(UNSCHEDULED) } else { packets };
        let at = budget.begin(owner, peer, packets, (1, sent), now_ns);
        slot.set_message(at);
        let promised_bytes = promised.unwrap_or(0);
        quotas.promise(quota, promised_bytes);
        let mut reserved = Reserved::new(quota, promised_bytes, now_ns);
        let waits = promised.is_none() && may_wait;
        if promised.is_none() && !waits {
            reserved.growing = size;
            quotas.grow(quota, size);
        }
        budget.reserve(at, &owner, reserved);
        if waits {
            budget.wait_for_memory(at, &owner, u32::MAX);
            self.io.stats.requests_waited += 1;
        }
        if !limited {
            budget.grant_all(at, &owner);
        }
        effects.limits |= !limited && budget.is_in_force();
        self.admission.watch_requests(self.io);
    }

    /// A request has all of its memory, of which `promised` bytes were reserved just now.
    fn promise(&mut self, slot_no: u8, promised: u32) {
        if promised == 0 {
            return;
        }
        let (at, owner) = (self.s.slots[usize::from(slot_no)].message(), self.owner(slot_no));
        let Admission { quotas, budget, .. } = &mut *self.admission;
        let Some(reserved) = budget.reserved(at, &owner) else { return };
        quotas.promise(reserved.quota, promised);
        quotas.end_growth(reserved.quota, reserved.growing);
        budget.end_wait(at, &owner, promised);
    }

    /// Reserves the memory of a request that waits for it, if there is enough.
    fn admit(&mut self, at: u32, owner: &Owner) {
        let slot_no = owner.slot;
        let slot = &self.s.slots[usize::from(slot_no)];
        if slot.expires_ns <= self.io.now_ns {
            return self.reject(slot_no, Status::DeadlineExceeded);
        }
        let (size, charged) = (slot.req_size, slot.charged);
        let Admission { quotas, budget, .. } = &*self.admission;
        let Some(Reserved { quota, .. }) = budget.reserved(at, owner) else { return };
        let more = u64::from(size.saturating_sub(charged));
        let has_room = more <= quotas.room_of(quota);
        if !has_room || !quotas.may_promise(quota, more, self.io.memory_left()) {
            return;
        }
        let Ok(buffer) = self.io.arena.alloc(size as usize) else { return };
        self.place(slot_no, buffer);
        self.promise(slot_no, size);
        let Admission { budget, effects, .. } = &mut *self.admission;
        if budget.is_in_force() {
            let arrived = budget.arrived(at, owner);
            budget.limit(at, owner, arrived);
            effects.shares = true;
        } else {
            budget.grant_all(at, owner);
            self.state_grant(at, owner);
        }
    }

    /// Drops a request and frees its memory. If the client still sends, the answer to its next packet
    /// is the error: it has had an answer to each packet, except for one that is withheld (E39).
    fn give_up_request(&mut self, slot_no: u8) {
        if self.s.slots[usize::from(slot_no)].phase == ServerPhase::Receiving {
            self.io.stats.requests_given_up += 1;
            self.end_arriving(slot_no, Status::NoMemory);
        }
    }
}

impl Io {
    /// The memory of this endpoint.
    fn memory_left(&self) -> Memory {
        let limit = self.arena.config().limit_bytes as u64;
        Memory { limit, free: limit.saturating_sub(self.arena.in_use_bytes() as u64) }
    }
}

impl Admission {
    /// Sets the timer by which unfinished requests are checked.
    fn watch_requests(&mut self, io: &mut Io) {
        let every_ns = if self.budget.lacks_memory() {
            TRY_EVERY_NS
        } else {
            (io.cfg.datapath_timeout_ns / 4).max(1)
        };
        let due_ns = io.now_ns.saturating_add(every_ns);
        if due_ns < self.budget.memory_watch().due_ns {
            let entry = TimerEntry { due_ns, session: 0, generation: 0, kind: TimerKind::Sweep };
            self.budget.memory_watch().due_ns = io.timers.arm_later(entry);
        }
    }
}

impl<C> Endpoint<C> {
    /// Reserves memory for requests that wait for it. Clients take turns.
    pub(crate) fn admit_waiting(&mut self) {
        self.admission.budget.memory_watch().tried();
        for _ in 0..CLIENTS_AT_ONCE {
            let Some((at, owner)) = self.admission.budget.next_for_memory() else { break };
            self.with_request(request_of(&owner), |flow| flow.admit(at, &owner));
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
                self.with_request(request_of(&owner), |flow| flow.give_up_request(owner.slot));
            }
        }
        if self.admission.budget.lacks_memory() {
            self.admit_waiting();
        }
        if self.admission.budget.has_requests() {
            self.admission.watch_requests(&mut self.io);
        }
    }

    /// Ends a request that is arriving.
    pub(crate) fn end_arriving(&mut self, id: RequestId, status: Status) {
        self.with_request(id, |flow| flow.end_arriving(id.slot(), status));
    }

    /// Changes a request that is its slot's current one, and applies what that means for others.
    fn with_request(&mut self, id: RequestId, change: impl FnOnce(&mut ServerFlow<'_, C>)) {
        if let Some(mut flow) = self.request_flow(id) {
            change(&mut flow);
            self.apply_effects();
        }
    }
}

/// The request of a message.
fn request_of(owner: &Owner) -> RequestId {
    let session = SessionId { index: owner.session, generation: owner.generation };
    RequestId::new(session, owner.slot, owner.req_num)
}
