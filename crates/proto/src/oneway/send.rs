//! Sending one-way messages: from the application to the queue of the session.

use courser_buf::MsgBuf;

use super::{Outgoing, Unacknowledged};
use crate::endpoint::Endpoint;
use crate::error::{RejectReason, SessionEnd};
use crate::options::CallOptions;
use crate::session::room::AwaitedRoom;
use crate::session::{QueuedCall, Session, SessionId, SessionState};
use crate::tx::TxItem;

impl<C> Endpoint<C> {
    /// Queues a one-way message. One that does not fit a packet is a call with the continuation
    /// `cont`, which completes with an empty response when the message has been delivered.
    /// # Errors
    /// The reason, with the buffer.
    #[inline(always)]
    pub fn send(
        &mut self,
        session: SessionId,
        msg_type: u16,
        msg: MsgBuf,
        options: CallOptions,
        cont: impl FnOnce() -> C,
    ) -> Result<(), (RejectReason, MsgBuf)> {
        self.send_by(session, msg_type, msg, options.deadline_ns.unwrap_or(u64::MAX), cont)
    }

    /// [`Endpoint::send`] with a deadline, ns; `u64::MAX`: none.
    #[inline(never)] // its arguments fit registers
    fn send_by(
        &mut self,
        session: SessionId,
        msg_type: u16,
        msg: MsgBuf,
        expires_ns: u64,
        cont: impl FnOnce() -> C,
    ) -> Result<(), (RejectReason, MsgBuf)> {
        let limit = self.io.cfg.message_queue;
        let s = match self.sessions.get_mut(session.index as usize) {
            Some(Session::Client(s)) if s.generation == session.generation && !s.has_failed() => s,
            Some(Session::Server(s)) if s.generation == session.generation => {
                return Err((RejectReason::NotClient, msg));
            }
            _ => return Err((RejectReason::NoSession(SessionEnd::Unknown), msg)),
        };
        let connected = s.state == SessionState::Connected;
        // Before the answer of the server the size of a packet is not known.
        if msg.len() > if connected { s.most_in_a_packet() } else { SURELY_ONE_PACKET } {
            return self.send_large(session, msg_type, msg, expires_ns, cont());
        }
        let (first, credits) = (s.agreed.first_req_num, s.credits.limit());
        let outgoing = s.outgoing.get_or_insert_with(|| Outgoing::begun(first, credits));
        if outgoing.len() >= limit {
            s.await_room(AwaitedRoom::SMALL);
            return Err((RejectReason::MessagesFull { limit }, msg));
        }
        outgoing.push(Unacknowledged::new(msg, msg_type, expires_ns));
        if connected && !outgoing.queued && !outgoing.stalled {
            outgoing.queued = true;
            self.io.tx.push(TxItem::Messages { session: session.index });
        }
        self.io.stats.messages_sent += 1;
        Ok(())
    }

    /// A message that may need several packets.
    #[cold]
    fn send_large(
        &mut self,
        session: SessionId,
        msg_type: u16,
        msg: MsgBuf,
        expires_ns: u64,
        cont: C,
    ) -> Result<(), (RejectReason, MsgBuf)> {
        self.make_deferred_of(session);
        let (seq, queued_ns) = (self.io.stats.calls, self.io.now_ns);
        let call = QueuedCall {
            req_type: msg_type,
            req: msg,
            cont,
            seq,
            queued_ns,
            expires_ns,
            one_way: true,
        };
        match self.call_rare(session, call) {
            Ok(_) => {
                self.io.stats.messages_sent += 1;
                Ok(())
            }
            Err((reason, msg, _)) => Err((reason, msg)),
        }
    }

    /// Messages that were sent and neither acknowledged, nor expired, nor dropped with their session.
    #[inline]
    pub fn outstanding_messages(&self) -> u64 {
        let s = &self.io.stats;
        s.messages_sent - s.messages_acknowledged - s.messages_unsent - s.messages_failed
    }
}

/// Any packet has room for these bytes.
const SURELY_ONE_PACKET: usize = crate::wire::MIN_DATA_PER_PACKET as usize;
