//! Events that the application waits for: room in the queues of a session, and cancelled requests.

use crate::endpoint::Endpoint;
use crate::error::RejectReason;
use crate::event::Notice;
use crate::session::{Session, SessionId};

impl<C> Endpoint<C> {
    /// Asks for an event when a call or message that was refused for this reason can be submitted
    /// again: [`Notice::Freed`], once. Other reasons, and sessions that
    /// are gone, are ignored.
    pub fn await_room(&mut self, session: SessionId, refused: &RejectReason) {
        let Some(Session::Client(s)) = self.sessions.get_mut(session.index as usize) else {
            return;
        };
        if s.generation != session.generation || s.has_failed() {
            return;
        }
        match refused {
            RejectReason::QueueFull { .. } => s.await_calls(),
            RejectReason::MessagesFull { .. } => s.await_messages(),
            _ => {}
        }
    }

    /// The next event that the application waits for. They must be taken, as they are kept until then:
    /// one for each session for which room is awaited, and one for each request that is cancelled.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.outbox.notices.pop_front()
    }

    /// Returns whether [`Endpoint::poll_notice`] has something.
    #[inline]
    pub fn has_notices(&self) -> bool {
        !self.outbox.notices.is_empty()
    }

    /// Reports room that is awaited, if there is some or the session has ended.
    #[cold]
    pub(crate) fn note_awaited(&mut self, session: u32) {
        let (limit, most) = (self.cfg.call_queue, self.cfg.message_queue);
        let Some(s) = self.sessions.client_mut(session) else { return };
        // With a queue of no calls there is room when a slot is free.
        let has_room = s.queue.len() < limit || limit == 0 && s.free != 0;
        let is_half_empty = s.outgoing.as_ref().is_none_or(|o| o.len() <= most / 2);
        let calls = s.awaited().has_calls() && has_room;
        let messages = s.awaited().has_messages() && is_half_empty;
        if s.has_failed() || calls || messages {
            let id = SessionId { index: session, generation: s.generation };
            s.end_await();
            self.outbox.notices.push_back(Notice::Freed(id));
        }
    }
}
