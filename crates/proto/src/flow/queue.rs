//! Calls that wait for a slot of their session.

use std::collections::VecDeque;

use super::ClientFlow;
use crate::endpoint::Outbox;
use crate::error::{CallError, Executed};
use crate::event::Completion;
use crate::io::Io;
use crate::overload::serve_newest;
use crate::session::{QueuedCall, SessionId};
use crate::timers::{TimerEntry, TimerKind};

/// Number of newest waiting calls that are searched for one with a deadline.
const NEWEST_SEARCHED: usize = 8;

/// Ends a call that has no slot.
pub(crate) fn end_without_slot<C>(
    (io, out): (&mut Io, &mut Outbox<C>),
    session: SessionId,
    call: QueuedCall<C>,
    error: CallError,
) {
    let QueuedCall { req, cont, one_way, .. } = call;
    io.stats.errors += 1;
    io.stats.messages_failed += u64::from(one_way);
    io.count_ending(&error);
    out.done.push_back(Completion { cont, session, request: req, result: Err(error) });
}

impl<C> ClientFlow<'_, C> {
    /// Ends a call that has left the queue.
    pub(crate) fn end_waiting(&mut self, call: QueuedCall<C>, error: CallError) {
        let session = self.id();
        end_without_slot((self.io, self.out), session, call, error);
        self.note_room();
    }

    /// Ensures a timer for the queue by the time at which a waiting call expires.
    pub(crate) fn time_queue(&mut self, expires_ns: u64) {
        let generation = self.s.generation;
        let times = &mut self.s.queue_times;
        times.expires_ns = times.expires_ns.min(expires_ns);
        if times.expires_ns < times.timer_ns {
            let due_ns = times.expires_ns;
            let entry =
                TimerEntry { due_ns, session: self.index, generation, kind: TimerKind::Queue };
            times.timer_ns = self.io.timers.arm_later(entry);
        }
    }

    /// Ends the expired calls of the queue, in one walk. Afterwards `QueueTimes::expires_ns` is the
    /// earliest deadline of the others.
    pub(crate) fn expire_queue(&mut self) {
        let now_ns = self.io.now_ns;
        let waiting = self.s.queue.len();
        self.s.queue_times.expires_ns = u64::MAX;
        for _ in 0..waiting {
            let Some(call) = self.s.with_queue(VecDeque::pop_front) else { return };
            if call.expires_ns <= now_ns {
                self.end_waiting(call, CallError::DeadlineExceeded(Executed::Never));
            } else {
                let earliest_ns = &mut self.s.queue_times.expires_ns;
                *earliest_ns = call.expires_ns.min(*earliest_ns);
                self.s.with_queue(|queue| queue.push_back(call));
            }
        }
    }

    /// Queues a call that has to wait, or ends it if it had expired when it was made.
    pub(crate) fn call_later(&mut self, call: QueuedCall<C>) {
        let expires_ns = call.expires_ns;
        if expires_ns <= self.io.now_ns {
            return self.end_waiting(call, CallError::DeadlineExceeded(Executed::Never));
        }
        self.s.with_queue(|queue| queue.push_back(call));
        if expires_ns != u64::MAX {
            self.time_queue(expires_ns);
        }
    }

    /// The next waiting call to serve: the oldest, or under overload the newest with a deadline
    /// ([`serve_newest`]). Expired calls found on the way end here.
    #[inline]
    pub(crate) fn next_waiting(&mut self) -> Option<QueuedCall<C>> {
        if self.s.queue.front()?.expires_ns == u64::MAX {
            return self.s.with_queue(VecDeque::pop_front);
        }
        self.next_by_deadline()
    }

    fn next_by_deadline(&mut self) -> Option<QueuedCall<C>> {
        let now_ns = self.io.now_ns;
        loop {
            let queue = &self.s.queue;
            let oldest = queue.front()?;
            let budget_ns = oldest.expires_ns.saturating_sub(oldest.queued_ns);
            let waited_ns = now_ns.saturating_sub(oldest.queued_ns);
            let timed = |c: &QueuedCall<C>| c.expires_ns != u64::MAX;
            let at = if timed(oldest) && serve_newest(waited_ns, budget_ns) {
                let newest = queue.iter().rev().take(NEWEST_SEARCHED).position(timed);
                newest.map_or(0, |back| queue.len() - 1 - back)
            } else {
                0
            };
            let call = self.s.with_queue(|queue| queue.remove(at))?;
            if call.expires_ns > now_ns {
                return Some(call);
            }
            self.end_waiting(call, CallError::DeadlineExceeded(Executed::Never));
        }
    }
}
