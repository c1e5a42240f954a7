//! Sending one-way messages: from the application to the queue of the session.

use courser_buf::MsgBuf;

use super::outgoing::Freed;
use super::{Outgoing, Unacknowledged};
use crate::endpoint::{Endpoint, copy_of};
use crate::error::{CallError, RejectReason, SessionEnd};
use crate::event::{Body, Completion};
use crate::flow::ClientFlow;
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
            Err((reason, msg, _)) => {
                if let Some(s) = self.sessions.client_mut(session.index)
                    && let RejectReason::QueueFull { .. } = reason
                {
                    s.await_room(AwaitedRoom::LARGE);
                }
                Err((reason, msg))
            }
        }
    }

    /// Messages that were sent and neither acknowledged, nor expired, nor dropped with their session.
    #[inline]
    pub fn outstanding_messages(&self) -> u64 {
        let s = &self.io.stats;
        s.messages_sent - s.messages_acknowledged - s.messages_unsent - s.messages_failed
    }
}

impl<C> ClientFlow<'_, C> {
    /// A message that waited for the connect as a call turns out to fit a packet.
    #[cold]
    pub(crate) fn send_waiting(&mut self, call: QueuedCall<C>) {
        let QueuedCall { req_type, req, cont, expires_ns, .. } = call;
        let (first, credits) = (self.s.agreed.first_req_num, self.s.credits.limit());
        let result = match copy_of(&self.io.arena, &req) {
            Ok(copy) => {
                let outgoing = &mut self.s.outgoing;
                let outgoing = outgoing.get_or_insert_with(|| Outgoing::begun(first, credits));
                outgoing.push(Unacknowledged::new(copy, req_type, expires_ns));
                self.io.stats.responses += 1;
                Ok(Body::Borrowed(&[][..]))
            }
            Err(_) => {
                self.io.stats.errors += 1;
                self.io.stats.messages_failed += 1;
                Err(CallError::NoMemory { response_bytes: 0 })
            }
        };
        let session = self.id();
        self.out.done.push_back(Completion { cont, session, request: req, result });
        self.queue_messages();
    }

    /// Queues the messages of the session for transmission.
    fn queue_messages(&mut self) {
        if self.s.state == SessionState::Connected
            && let Some(outgoing) = &mut self.s.outgoing
            && !outgoing.queued
            && !outgoing.stalled
        {
            outgoing.queued = true;
            self.io.tx.push(TxItem::Messages { session: self.index });
        }
    }

    /// The session is connected: its waiting messages can be sent.
    pub(crate) fn begin_messages(&mut self) {
        let (first, credits) = (self.s.agreed.first_req_num, self.s.credits.limit());
        if let Some(outgoing) = &mut self.s.outgoing {
            outgoing.begin(first, credits);
        }
        self.queue_messages();
    }

    /// The session has ended: its messages are dropped. Those that were sent may have been delivered.
    pub(crate) fn fail_messages(&mut self) {
        let Some(mut outgoing) = self.s.outgoing.take() else { return };
        self.io.stats.messages_failed += outgoing.not_arrived();
        let mut freed = Freed::default();
        outgoing.time_out(true, &mut freed);
        if freed.units > 0 {
            self.io.release_room(self.s.peer, freed.units);
        }
    }

    /// A message of several packets has been delivered, or its call has failed.
    #[cold]
    pub(crate) fn end_large_message(&mut self, delivered: bool) {
        let stats = &mut self.io.stats;
        *if delivered { &mut stats.messages_acknowledged } else { &mut stats.messages_failed } += 1;
        self.note_room();
    }
}

/// Any packet has room for these bytes.
const SURELY_ONE_PACKET: usize = crate::wire::MIN_DATA_PER_PACKET as usize;
