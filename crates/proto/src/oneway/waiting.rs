//! One-way messages of a client session that wait: for the connect, or for their end with the session.

use super::outgoing::Freed;
use super::{Outgoing, Unacknowledged};
use crate::endpoint::copy_of;
use crate::error::CallError;
use crate::event::{Body, Completion};
use crate::flow::ClientFlow;

use crate::session::{QueuedCall, SessionState};
use crate::tx::TxItem;

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
            self.io.release_room(self.peer, freed.units);
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
