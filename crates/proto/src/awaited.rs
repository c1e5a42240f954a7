//! Events that the application waits for: room in the queues of a session, and cancelled requests.

use crate::endpoint::Endpoint;
use crate::error::RejectReason;
use crate::event::Notice;
use crate::session::room::AwaitedRoom;
use crate::session::{Session, SessionId};

impl<C> Endpoint<C> {
    /// Asks for [`Notice::Freed`] when a call that was refused for this reason
    /// ([`RejectReason::QueueFull`]) can be submitted again. Other reasons, and sessions that are gone,
    /// are ignored. The refusal of a message asks by itself.
    pub fn await_room(&mut self, session: SessionId, refused: &RejectReason) {
        let Some(Session::Client(s)) = self.sessions.get_mut(session.index as usize) else {
            return;
        };
        let is_open = s.generation == session.generation && !s.has_failed();
        if is_open && matches!(refused, RejectReason::QueueFull { .. }) {
            s.await_room(AwaitedRoom::CALLS);
        }
    }

    /// The next event that the application waits for. They must be taken, as they are kept until then:
    /// one for each session for which room is awaited, and one for each request that is cancelled.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        while let Some(notice) = self.outbox.notices.pop_front() {
            let Notice::Freed { session, .. } = notice else { return Some(notice) };
            let s = self.sessions.client_mut(session.index);
            let Some(s) = s.filter(|s| s.generation == session.generation) else {
                return Some(notice);
            };
            let ended = s.has_failed();
            if let Some(messages) = s.take_report() {
                return Some(Notice::Freed { session, messages: messages && !ended });
            }
        }
        None
    }

    /// Returns whether [`Endpoint::poll_notice`] may have something.
    #[inline]
    pub fn has_notices(&self) -> bool {
        !self.outbox.notices.is_empty()
    }
}
