//! Memory for a request of several packets: for all of it, if that is its client's turn, or in
//! proportion to what has arrived ([`crate::rx`], ADR 36).

use courser_buf::{AllocError, MsgBuf};

use super::Admission;
use super::ask::{Answer, Line, Need};
use crate::budget::{NO_MESSAGE, Owner};
use crate::error::Status;
use crate::io::Io;
use crate::session::Memory;

/// A request of at most this size is reserved as a whole at its first packet, or refused; a larger one
/// that waits has at least these bytes.
const FIRST_BYTES: u32 = 16 << 10;

/// Bytes of a request that are stored whatever its client's share is: packets that were on the way
/// before the client knew that the request waits.
const WINDOW_BYTES: u32 = 256 << 10;

/// All of the memory of a request that arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WholeRequest {
    pub(crate) client: u32,
    /// Its size.
    pub(crate) size: u32,
    /// Bytes that its client is charged for it.
    pub(crate) charged: u32,
}

impl Need for WholeRequest {
    type Gets = MsgBuf;
    type Refusal = Status;

    fn decide(self, admission: &Admission, io: &Io) -> Answer<MsgBuf, Status> {
        let WholeRequest { client, size, charged } = self;
        let (quotas, more) = (&admission.quotas, u64::from(size.saturating_sub(charged)));
        if more > quotas.room_of(client) || !quotas.may_promise(client, more, io.memory_left()) {
            return Answer::Wait(Line::Memory);
        }
        match io.arena.alloc(size as usize) {
            Ok(buffer) => Answer::Now(buffer),
            Err(AllocError::Exhausted { .. }) => Answer::Wait(Line::Memory),
            Err(_) => Answer::Refuse(Status::NoMemory),
        }
    }
}

/// Memory for a packet of a request that arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestMemory<'o> {
    pub(crate) whole: WholeRequest,
    pub(crate) req_type: u16,
    /// The end of the packet in the request.
    pub(crate) end: u32,
    /// The size of a packet.
    pub(crate) data_per_packet: u16,
    /// Bytes that it has a buffer for.
    pub(crate) had: u32,
    /// Its number as a message, and its identity.
    pub(crate) at: u32,
    pub(crate) owner: &'o Owner,
    /// Its peer, and the credits of that: the request can wait if a credit return may be withheld.
    pub(crate) sender: (u32, u32),
}

/// Memory for a packet.
#[derive(Debug)]
pub(crate) enum Room {
    /// A buffer for the whole request, all of which is reserved.
    Whole(MsgBuf),
    /// A buffer that ends behind the packet.
    Part(MsgBuf),
}

impl Need for RequestMemory<'_> {
    type Gets = Room;
    type Refusal = Status;

    fn decide(self, admission: &Admission, io: &Io) -> Answer<Room, Status> {
        const NO_MEMORY: Answer<Room, Status> = Answer::Refuse(Status::NoMemory);
        let RequestMemory { whole, req_type, at, owner, .. } = self;
        let WholeRequest { client, size, charged } = whole;
        let (quotas, budget) = (&admission.quotas, &admission.budget);
        let left = quotas.room_of(client).saturating_add(charged.into());
        let (is_first, is_small) = (at == NO_MESSAGE, size <= FIRST_BYTES);
        if is_first && let Some(status) = admission.rejection(io, client, req_type, size) {
            return Answer::Refuse(status);
        }
        if is_first && u64::from(size) > left {
            return NO_MEMORY;
        }
        let waits = budget.reserved(at, owner).is_some_and(|r| r.waits());
        let is_behind = budget.lacks_memory() && budget.waits_of(client);
        if is_small || !is_behind && !waits {
            match admission.ask(io, whole) {
                Answer::Now(buffer) => return Answer::Now(Room::Whole(buffer)),
                Answer::Wait(_) if !is_small => {}
                Answer::Wait(_) | Answer::Refuse(_) => return NO_MEMORY,
            }
        }
        // A request that would find no memory later is refused before its data is sent.
        if is_first
            && size > WINDOW_BYTES
            && !budget.may_withhold(self.sender.0, self.sender.1)
            && !quotas.may_grow(client, size.into(), io.memory_left())
        {
            return NO_MEMORY;
        }
        // In proportion to what has arrived.
        let packets = u64::from(budget.arrived(at, owner)) + 1;
        let most = u64::from(FIRST_BYTES) + 2 * packets * u64::from(self.data_per_packet);
        if u64::from(self.end) > most {
            return Answer::Wait(Line::Memory);
        }
        let len = size.min(self.end.max(2 * self.had).max(FIRST_BYTES));
        let more = u64::from(len.saturating_sub(charged));
        let may = len <= WINDOW_BYTES || quotas.may_charge(client, more, io.memory_left());
        let may = may && u64::from(len) <= left;
        match may.then(|| io.arena.alloc(len as usize)) {
            Some(Ok(buffer)) => Answer::Now(Room::Part(buffer)),
            _ if waits => Answer::Wait(Line::Memory),
            _ => NO_MEMORY,
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
