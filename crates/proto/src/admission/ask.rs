//! The one question of admission: something is needed now, and is there, is waited for, or is refused.
//! Each [`Need`] states in one place which limits decide.
//!
//! | need | limits, in this order | waits for |
//! | --- | --- | --- |
//! | [`Handler`] | shutdown, size, quota of the client and its address, deadline, memory for a copy | |
//! | [`OneWay`] | shutdown, size, memory for a copy | |
//! | `RequestMemory` | shutdown, size, quota, shares of clients and addresses, memory | memory |
//! | `WholeRequest` | quota, shares of clients and addresses, memory | memory |
//! | [`NextPackets`] | memory of the request, the receiver's budget | memory, grants |
//! | `NewSession`, `Place` | shutdown, sessions and paths of the client, of its address, of all | |
//! | `PoolGrowth` | credits of the receive queue | |
//! | a call, of its session | size, slots, the queue of calls | a slot |
//!
//! The straight lines of packets test one flag instead, which is set while the answer may not be `Now`:
//! `Quotas::needs_check` for small requests and messages, [`Admission::limits_requests`] and
//! [`Admission::limits_responses`] for the parts of large ones.
//! Packets that this endpoint sends are not asked for here: they pass the gate of credits and pacing
//! (`tx/gate.rs`), which knows how many may leave and when the next one may.

use courser_buf::AllocError;

use super::Admission;
use crate::budget::{Grant, Owner, UNSCHEDULED};
use crate::error::Status;
use crate::event::Body;
use crate::io::Io;

/// The answer to a need.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer<T, R> {
    /// It has what it needs.
    Now(T),
    /// It waits there.
    Wait(Line),
    /// It is refused for this reason.
    Refuse(R),
}

/// Where a need waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Line {
    /// Requests of several packets without their memory.
    Memory,
    /// Messages that wait for grants of the receiver's budget.
    Grants,
    /// Calls of a session without a free slot.
    Calls,
}

impl<T, R> Answer<T, R> {
    /// The thing that was needed, if it is there now.
    pub(crate) fn now(self) -> Option<T> {
        match self {
            Answer::Now(gets) => Some(gets),
            Answer::Wait(_) | Answer::Refuse(_) => None,
        }
    }
}

/// Something that is limited.
pub(crate) trait Need {
    /// The thing that is needed.
    type Gets;
    /// Why it is refused.
    type Refusal;

    /// The answer. Nothing is counted yet: the caller takes what it gets, or drops it.
    fn decide(self, admission: &Admission, io: &Io) -> Answer<Self::Gets, Self::Refusal>;
}

impl Admission {
    /// See the module's documentation.
    #[inline]
    pub(crate) fn ask<N: Need>(&self, io: &Io, need: N) -> Answer<N::Gets, N::Refusal> {
        need.decide(self, io)
    }

    /// Returns whether [`NextPackets`] of a request may have to wait.
    #[inline]
    pub(crate) fn limits_requests(&self) -> bool {
        self.budget.may_limit() || self.budget.lacks_memory()
    }

    /// Returns whether [`NextPackets`] of a response have to wait.
    #[inline]
    pub(crate) fn limits_responses(&self) -> bool {
        self.budget.may_limit()
    }

    /// Why a new request of a client process is refused whatever memory is free, if it is.
    pub(super) fn rejection(
        &self,
        io: &Io,
        client: u32,
        req_type: u16,
        bytes: u32,
    ) -> Option<Status> {
        if self.quotas.refuses(req_type) {
            Some(Status::ShuttingDown)
        } else if bytes > io.cfg.max_msg_size {
            Some(Status::TooLarge)
        } else {
            self.quotas.is_full(client).then_some(Status::NoMemory)
        }
    }
}

/// A handler for a request of one packet, which has arrived. Gets the body that is passed to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handler<'f> {
    pub(crate) client: u32,
    pub(crate) req_type: u16,
    pub(crate) data: &'f [u8],
    /// Its deadline, ns; `u64::MAX`: none.
    pub(crate) expires_ns: u64,
}

impl<'f> Need for Handler<'f> {
    type Gets = Body<'f>;
    type Refusal = Status;

    fn decide(self, admission: &Admission, io: &Io) -> Answer<Body<'f>, Status> {
        let Handler { client, req_type, data, expires_ns } = self;
        if let Some(status) = admission.rejection(io, client, req_type, data.len() as u32) {
            Answer::Refuse(status)
        } else if expires_ns <= io.now_ns {
            Answer::Refuse(Status::DeadlineExceeded)
        } else {
            let body = io.request_body(data);
            body.map_or(Answer::Refuse(Status::NoMemory), Answer::Now)
        }
    }
}

/// A handler for a one-way message of one packet. The quota of its client is for memory, of which it
/// needs none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OneWay<'f> {
    pub(crate) data: &'f [u8],
}

impl<'f> Need for OneWay<'f> {
    type Gets = Body<'f>;
    type Refusal = ();

    fn decide(self, admission: &Admission, io: &Io) -> Answer<Body<'f>, ()> {
        if admission.quotas.is_closing() || self.data.len() > io.cfg.max_msg_size as usize {
            return Answer::Refuse(());
        }
        io.request_body(self.data).map_or(Answer::Refuse(()), Answer::Now)
    }
}

impl Io {
    /// The body of a request of one packet, as passed to its handler.
    fn request_body<'f>(&self, data: &'f [u8]) -> Result<Body<'f>, AllocError> {
        if self.cfg.factors.zero_copy_rx {
            Ok(Body::Borrowed(data))
        } else {
            self.copied_body(data)
        }
    }
}

/// The next packets of a message of several packets that arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextPackets<'o> {
    /// The number of the message, and its identity.
    pub(crate) at: u32,
    pub(crate) owner: &'o Owner,
}

impl Need for NextPackets<'_> {
    type Gets = ();
    type Refusal = std::convert::Infallible;

    #[inline]
    fn decide(self, admission: &Admission, _: &Io) -> Answer<(), Self::Refusal> {
        let budget = &admission.budget;
        if budget.lacks_memory() && budget.waits(self.at, self.owner) {
            Answer::Wait(Line::Memory)
        } else if budget.is_in_force() {
            Answer::Wait(Line::Grants)
        } else {
            Answer::Now(())
        }
    }
}

impl Admission {
    /// The grant that a credit return for this message states.
    pub(crate) fn stated_grant(&self, io: &Io, at: u32, owner: &Owner) -> Grant {
        let budget = &self.budget;
        let Some((packets, arrived, granted)) = budget.progress(at, owner) else {
            return Grant::default();
        };
        match self.ask(io, NextPackets { at, owner }) {
            Answer::Wait(Line::Memory) => Grant::new(arrived.max(1), UNSCHEDULED),
            Answer::Wait(_) => Grant::new(granted.max(1), budget.unscheduled()),
            // Other requests wait for memory: later ones may send few packets.
            Answer::Now(()) if budget.lacks_memory() => Grant::new(packets, UNSCHEDULED),
            Answer::Now(()) | Answer::Refuse(_) => Grant::default(),
        }
    }
}
