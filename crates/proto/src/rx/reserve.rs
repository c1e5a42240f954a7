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

use courser_buf::MsgBuf;

use crate::admission::{Admission, Answer, RequestMemory, Room, WholeRequest};
use crate::budget::{NO_MESSAGE, Owner, Reserved, UNSCHEDULED};
use crate::endpoint::Endpoint;
use crate::error::Status;
use crate::event::RequestId;
use crate::flow::ServerFlow;
use crate::io::Io;
use crate::session::SessionId;
use crate::slot::{ServerPhase, ServerSlot};
use crate::stats::RxDrop;
use crate::timers::{TimerEntry, TimerKind};

/// Clients whose requests are tried at once.
const CLIENTS_AT_ONCE: usize = 16;

/// Interval of the tries while requests wait, ns: buffers return without notice.
const TRY_EVERY_NS: u64 = 1_000_000;

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
        let size = slot.req_size;
        let (buffer, promised) = match self.room(slot_no, end) {
            Answer::Now(Room::Whole(buffer)) => (buffer, Some(size)),
            Answer::Now(Room::Part(buffer)) => (buffer, None),
            Answer::Wait(_) => {
                let owner = self.owner(slot_no);
                self.admission.budget.touch(at, &owner, now_ns);
                return Err(RxDrop::OutOfOrder);
            }
            Answer::Refuse(status) => {
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
    fn room(&self, slot_no: u8, end: u32) -> Answer<Room, Status> {
        let (owner, slot) = (self.owner(slot_no), &self.s.slots[usize::from(slot_no)]);
        let need = RequestMemory {
            whole: self.whole(slot),
            req_type: slot.req_type,
            end,
            data_per_packet: self.s.data_per_packet,
            had: slot.room(),
            at: slot.message(),
            owner: &owner,
            sender: self.sender(),
        };
        self.admission.ask(self.io, need)
    }

    fn whole(&self, slot: &ServerSlot) -> WholeRequest {
        WholeRequest { client: self.s.quota, size: slot.req_size, charged: slot.charged }
    }

    /// The peer, and its credits for requests of this session.
    fn sender(&self) -> (u32, u32) {
        (self.s.peer, self.s.credit_limit.min(self.peer.credits.granted()))
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
        let (now_ns, owner, (sender, credits)) =
            (self.io.now_ns, self.owner(slot_no), self.sender());
        let may_wait = self.admission.budget.may_withhold(sender, credits);
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
        effects.limits |= budget.is_due();
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
        let whole = self.whole(slot);
        let Some(buffer) = self.admission.ask(self.io, whole).now() else { return };
        let size = whole.size;
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
