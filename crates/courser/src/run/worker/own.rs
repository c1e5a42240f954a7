//! Requests that leave the dispatch: each becomes a [`Work`] with memory of its own, or is refused.

use std::sync::Arc;

use courser_buf::MsgBuf;
use courser_proto::{Body, RequestId, Status};

use crate::core::context::Context;
use crate::core::message::Request;
use crate::core::shares::{Entrance, Full, Place};
use crate::run::worker::origin::Origin;
use crate::run::worker::work::{Incoming, Work};

/// Why a request or message is not handed to its handler.
pub(super) enum Refused {
    Busy(Full),
    NoMemory,
}

impl Refused {
    /// Counts and answers a request.
    #[cold]
    pub(super) fn answer(self, cx: &mut Context<'_>, id: RequestId) {
        let handled = &mut cx.core.handled;
        let status = match self {
            Refused::Busy(full) => {
                handled.refused(full);
                Status::WorkersBusy
            }
            Refused::NoMemory => {
                handled.no_memory += 1;
                Status::NoMemory
            }
        };
        cx.core.proto.reply_status(id, status);
    }

    /// Counts a message, which is dropped.
    #[cold]
    pub(super) fn drop_message(self, cx: &mut Context<'_>) {
        let handled = &mut cx.core.handled;
        match self {
            Refused::Busy(full) => handled.message_refused(full),
            Refused::NoMemory => handled.messages_no_memory += 1,
        }
    }
}

/// A place for a message. The memory of one of several packets counts too: the quota of its client is
/// for requests without an answer, which it is no longer.
pub(super) fn place_for_message(
    cx: &Context<'_>,
    message: &Request<'_>,
    entrance: &Entrance,
) -> Result<Place, Full> {
    entrance.take_with_memory(&cx.core.proto, message.session, message.held())
}

/// A request with its memory, and its deadline.
pub(super) fn own(
    cx: &Context<'_>,
    incoming: Incoming,
    request: Request<'_>,
    origin: &Arc<Origin>,
) -> Result<(Work, u64), Refused> {
    let deadline = request.deadline_ns().and_then(|ns| cx.core.deadline(ns));
    let Request { body, req_type, expires_ns, .. } = request;
    let body = owned(body, cx).ok_or(Refused::NoMemory)?;
    Ok((Work::new(incoming, req_type, body, deadline, origin.clone()), expires_ns))
}

fn owned(body: Body<'_>, cx: &Context<'_>) -> Option<MsgBuf> {
    match body {
        Body::Owned(m) => Some(m),
        Body::Borrowed(bytes) => {
            let mut m = cx.alloc_recycled(bytes.len()).ok()?;
            m.copy_from_slice(bytes);
            Some(m)
        }
    }
}
