//! Cancellation of calls by the application. How a call ends early is in `flow/ending`.

use crate::deferred::DeferredCall;
use crate::endpoint::Endpoint;
use crate::error::{CallError, Executed};
use crate::options::CallId;
use crate::slot::ClientSlot;

impl<C> Endpoint<C> {
    /// Cancels a call: it ends with [`CallError::Cancelled`], which states whether its handler ran,
    /// and which [`Endpoint::poll_completion`] returns. The server is informed if it may have
    /// received the request. `false`: the call has ended already.
    /// Cost: a search of the deferred calls, eight at most, and of the slots of the session, or a
    /// binary search in its queue.
    pub fn cancel(&mut self, call: CallId) -> bool {
        let is_it = |c: &DeferredCall<C>| c.session == call.session && c.seq == call.seq;
        let never = CallError::Cancelled(Executed::Never);
        let deferred = self.deferred.take(is_it);
        let Some(mut flow) = self.client_flow(call.session.index) else { return false };
        if let Some(deferred) = deferred {
            let (_, waiting) = deferred.made(flow.io.now_ns);
            flow.end_waiting(waiting, never);
            return true;
        }
        if flow.id() != call.session {
            return false;
        }
        let on_slot = |slot: &ClientSlot<C>| slot.active && slot.seq == call.seq;
        if let Some(slot_no) = flow.s.slots.iter().position(on_slot) {
            flow.end_early(slot_no as u8, CallError::Cancelled);
            self.apply_effects();
        } else if let Ok(at) = flow.s.queue.binary_search_by_key(&call.seq, |c| c.seq)
            && let Some(waiting) = flow.s.with_queue(|queue| queue.remove(at))
        {
            flow.end_waiting(waiting, never);
        } else {
            return false;
        }
        true
    }
}
