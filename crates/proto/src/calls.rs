//! Calls of the application: submission, and completions that wait (E2, E8, E30). A call that finds no
//! free slot waits in its session's queue.

use courser_buf::MsgBuf;

use crate::admission::{Answer, Line};
use crate::endpoint::Endpoint;
use crate::error::{RejectReason, SessionEnd};
use crate::event::Completion;
use crate::options::{CallId, CallOptions};
use crate::session::room::AwaitedRoom;
use crate::session::{ClientSession, QueuedCall, Session, SessionId};

impl<C> ClientSession<C> {
    /// Admission of a call for this generation of the session: it gets a slot, or waits behind less than
    /// `limit` others.
    fn admits(&self, generation: u32, bytes: usize, limit: usize) -> Answer<(), RejectReason> {
        let most = self.agreed.max_msg_size;
        if self.generation != generation || self.has_failed() {
            Answer::Refuse(RejectReason::NoSession(SessionEnd::Unknown))
        } else if bytes > most as usize {
            Answer::Refuse(RejectReason::TooLarge { bytes, limit: most })
        } else if !self.has_to_wait() {
            Answer::Now(())
        } else if self.queue.len() >= limit {
            Answer::Refuse(RejectReason::QueueFull { limit })
        } else {
            Answer::Wait(Line::Calls)
        }
    }
}

impl<C> Endpoint<C> {
    /// [`Endpoint::call_with`] without options.
    /// # Errors
    /// The reason, with the buffer and the continuation.
    #[inline]
    pub fn call(
        &mut self,
        session: SessionId,
        req_type: u16,
        req: MsgBuf,
        cont: C,
    ) -> Result<CallId, (RejectReason, MsgBuf, C)> {
        self.call_with(session, req_type, req, cont, CallOptions::new())
    }

    /// Queues a call (E2, E8); nothing is sent before [`Endpoint::poll_transmit`]. When all slots
    /// are in use, or the session is still connecting, the call waits in the session's queue. With
    /// many sessions in use (`Config::prefetch_min_sessions`) a small call may be deferred: it is put on
    /// its slot up to eight calls later, at the latest before the next batch. The returned number can
    /// be passed to [`Endpoint::cancel`].
    /// # Errors
    /// The reason, with the buffer and the continuation.
    #[inline(always)] // only the branch is inlined: each case is a function of its own
    pub fn call_with(
        &mut self,
        session: SessionId,
        req_type: u16,
        req: MsgBuf,
        cont: C,
        options: CallOptions,
    ) -> Result<CallId, (RejectReason, MsgBuf, C)> {
        let expires_ns = options.deadline_ns.unwrap_or(u64::MAX);
        if self.deferred.takes(session) && req.len() <= self.most_deferred() {
            return Ok(self.defer(session, req_type, req, cont, expires_ns));
        }
        self.call_now(session, req_type, req, cont, expires_ns)
    }

    /// [`Endpoint::call_with`] for a call that is not deferred.
    fn call_now(
        &mut self,
        session: SessionId,
        req_type: u16,
        req: MsgBuf,
        cont: C,
        expires_ns: u64,
    ) -> Result<CallId, (RejectReason, MsgBuf, C)> {
        self.make_deferred_of(session);
        let (seq, queued_ns) = (self.io.stats.calls, self.io.now_ns);
        let call = QueuedCall { req_type, req, cont, seq, queued_ns, expires_ns, one_way: false };
        if let Err(call) = self.start_single(session, call) {
            return self.call_rare(session, call);
        }
        self.io.stats.calls += 1;
        self.may_defer_next(session);
        Ok(CallId { session, seq })
    }

    /// A call that is rejected, waits, has expired, or whose request has several packets.
    #[inline(never)] // outlined to keep registers free for other calls
    pub(crate) fn call_rare(
        &mut self,
        session: SessionId,
        call: QueuedCall<C>,
    ) -> Result<CallId, (RejectReason, MsgBuf, C)> {
        let (limit, bytes, seq) = (self.io.cfg.call_queue, call.req.len(), call.seq);
        let is_late = call.expires_ns <= call.queued_ns;
        let mut answer = None;
        let flow = self.awake_flow(session.index, |s| {
            let admitted = s.admits(session.generation, bytes, limit);
            *answer.insert(admitted) == Answer::Now(()) && !is_late
        });
        let Some((mut flow, answer)) = flow.zip(answer) else {
            return Err((self.no_client(session), call.req, call.cont));
        };
        if let Answer::Refuse(reason) = answer {
            if call.one_way && matches!(reason, RejectReason::QueueFull { .. }) {
                flow.s.await_room(AwaitedRoom::LARGE);
            }
            return Err((reason, call.req, call.cont));
        }
        let waits = answer != Answer::Now(());
        flow.io.stats.calls += 1;
        if waits || is_late {
            flow.call_later(call);
        } else {
            flow.start_call(call);
        }
        if waits {
            self.deferred.take_no_more(session.index);
        }
        Ok(CallId { session, seq })
    }

    /// Why a session takes no calls that is not a client's.
    fn no_client(&self, session: SessionId) -> RejectReason {
        match self.sessions.get(session.index as usize) {
            Some(Session::Server(s)) if s.generation == session.generation => {
                RejectReason::NotClient
            }
            _ => RejectReason::NoSession(SessionEnd::Unknown),
        }
    }

    /// Returns whether a completed call waits for the transport to release its request buffer:
    /// flush the transport, then call [`Endpoint::poll_completion`] (E24, E25).
    #[inline]
    pub fn needs_flush(&self) -> bool {
        self.outbox.done.front().is_some_and(|c| c.request.is_shared())
    }

    /// Calls that ended without a packet (timeouts, failures) or whose buffer the transport held.
    /// `None` when there is none, or [`Endpoint::needs_flush`].
    #[inline]
    pub fn poll_completion(&mut self) -> Option<Completion<'static, C>> {
        if self.outbox.done.is_empty() {
            return None;
        }
        if self.needs_flush() {
            // An incomplete frame may be what references it, and no flush would end that.
            self.io.tx.copy_references();
            if self.needs_flush() {
                return None;
            }
        }
        self.outbox.done.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use courser_buf::Arena;

    use super::*;
    use crate::config::Config;
    use crate::session::SessionState;

    #[test]
    fn a_call_starts_waits_or_is_refused_by_its_session_its_size_or_a_full_queue() {
        let cfg = Config { max_msg_size: 64, ..Config::default() };
        let mut ep = Endpoint::<u64>::new(cfg, Arena::heap(), 1, 1_472).unwrap();
        let session = ep.dial(7, 1, 5, 1_472).unwrap().session;
        let flow = ep.client_flow(session.index).unwrap();
        let s = &mut *flow.s;
        assert_eq!(s.admits(0, 64, 1), Answer::Wait(Line::Calls), "it is connecting");
        let full = RejectReason::QueueFull { limit: 0 };
        assert_eq!(s.admits(0, 64, 0), Answer::Refuse(full));
        let large = RejectReason::TooLarge { bytes: 65, limit: 64 };
        assert_eq!(s.admits(0, 65, 1), Answer::Refuse(large));
        s.state = SessionState::Connected;
        assert_eq!(s.admits(0, 64, 0), Answer::Now(()), "a slot is free");
        s.free = 0;
        assert_eq!(s.admits(0, 64, 1), Answer::Wait(Line::Calls), "no slot is free");
        let gone = Answer::Refuse(RejectReason::NoSession(SessionEnd::Unknown));
        assert_eq!(s.admits(1, 64, 1), gone);
        s.state = SessionState::Gone;
        assert_eq!(s.admits(0, 64, 1), gone);
    }
}
