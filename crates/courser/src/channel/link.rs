//! The sessions of one client, and the calls that wait for them, at the thread of its endpoint.

use std::collections::VecDeque;
use std::num::NonZeroU16;
use std::sync::Arc;

use courser_proto::SessionId;

use super::call::Call;
use super::greeting::{Greetings, Services};
use crate::channel::opening::Opening;
use crate::error::ClientError;
use crate::error::SessionError;
use crate::error::failure::CallFailure;

/// Time after the last call without a session for which connects go on, ns.
const WANTED_NS: u64 = 30_000_000_000;

/// Time until a lost server is connected again, ns: at first, and at most. Doubled each time. The first
/// half of it passes in any case; the rest is drawn, so that the clients of a server that comes back do
/// not come all at once.
const BACKOFF_NS: (u64, u64) = (5_000_000, 500_000_000);

/// After a session beside others could not be connected, ns.
const GROW_AGAIN_NS: u64 = 1_000_000_000;

/// Limits of one client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Limits {
    pub(crate) sessions: usize,
    pub(crate) in_flight: usize,
    /// Default for calls without a setting of their own.
    pub(crate) wait_for_ready: bool,
}

/// A session to be connected.
pub(crate) struct Open {
    pub(crate) uri: Arc<str>,
    pub(crate) limits: Limits,
    pub(crate) greetings: Greetings,
    /// A connect that fails is repeated until its time is over.
    pub(crate) wait_for_ready: bool,
    pub(crate) opening: Arc<Opening>,
}

/// A connected session.
pub(crate) struct Session {
    pub(crate) id: SessionId,
    /// Calls that have not ended.
    pub(crate) calls: usize,
    /// Calls that it has room for at its server; further ones wait at this side.
    pub(crate) slots: usize,
    pub(crate) services: Services,
}

/// A call or message that has not started.
pub(crate) struct Waiting {
    pub(crate) call: Arc<Call>,
    /// By its deadline; `u64::MAX`: never.
    pub(crate) expires_ns: u64,
    /// It fails then if there is no session; `u64::MAX`: there was one when it came.
    pub(crate) give_up_ns: u64,
}

impl Waiting {
    pub(crate) fn due_ns(&self) -> u64 {
        self.expires_ns.min(self.give_up_ns)
    }

    /// There is no session: a call that waits for one and has no deadline waits until then. Other
    /// calls end with the connect that is under way, or by their deadline.
    fn give_up_by(&mut self, give_up_ns: u64) {
        if self.call.wait_for_ready && self.expires_ns == u64::MAX {
            self.give_up_ns = self.give_up_ns.min(give_up_ns);
        }
    }
}

/// The connect of a client that has not had a session.
pub(crate) struct FirstConnect {
    pub(crate) opening: Arc<Opening>,
    /// Until when failed connects are repeated, ns; 0: they are not.
    pub(crate) until_ns: u64,
    /// The error of the last of them.
    pub(crate) error: Option<ClientError>,
}

/// See the module.
pub(crate) struct Link {
    pub(crate) uri: Arc<str>,
    pub(crate) limits: Limits,
    pub(crate) sessions: Vec<Session>,
    /// Calls on these sessions that have not ended.
    pub(crate) calls: usize,
    pub(crate) connecting: Option<SessionId>,
    /// A connected session whose server is being checked.
    pub(crate) greeting: Option<SessionId>,
    /// Its services.
    pub(crate) greeted: Services,
    pub(crate) greetings: Greetings,
    /// Until its first session is connected.
    pub(crate) first: Option<FirstConnect>,
    /// Calls beyond the limit, and calls without a session; in order.
    pub(crate) waiting: VecDeque<Waiting>,
    /// Messages for which there is no room; in order.
    pub(crate) messages: VecDeque<Waiting>,
    /// When the first of the two is due; `u64::MAX`: never.
    pub(crate) due_ns: u64,
    /// When to connect again; `u64::MAX`: it is connected, or connecting.
    pub(crate) retry_ns: u64,
    /// The last wait before that.
    backoff_ns: u64,
    /// It connects again in the background until then, although no call waits.
    wanted_ns: u64,
    /// Not to connect further sessions before.
    pub(crate) grow_ns: u64,
    /// The text of the last error of a session.
    pub(crate) reason: Option<Arc<str>>,
}

impl Link {
    /// `until_ns`: the end of the time for its first session.
    pub(crate) fn new(open: Open, until_ns: u64) -> Self {
        let Open { uri, limits, greetings, wait_for_ready, opening } = open;
        let until_ns = if wait_for_ready { until_ns } else { 0 };
        Link {
            uri,
            limits,
            sessions: Vec::new(),
            calls: 0,
            connecting: None,
            greeting: None,
            greeted: Services::default(),
            greetings,
            first: Some(FirstConnect { opening, until_ns, error: None }),
            waiting: VecDeque::new(),
            messages: VecDeque::new(),
            due_ns: u64::MAX,
            retry_ns: u64::MAX,
            backoff_ns: 0,
            wanted_ns: 0,
            grow_ns: 0,
            reason: None,
        }
    }

    /// The place of the first session with a free slot, so that few sessions are in use. A call that
    /// finds none waits here rather than behind the calls of one session, which may take long.
    #[inline]
    pub(crate) fn pick(&self) -> Option<usize> {
        self.sessions.iter().position(|s| s.calls < s.slots)
    }

    /// The place of the session of all messages, which keeps their order.
    pub(crate) fn first(&self) -> Option<usize> {
        (!self.sessions.is_empty()).then_some(0)
    }

    /// Calls and messages that wait.
    pub(crate) fn waiting_calls(&self) -> usize {
        self.waiting.len() + self.messages.len()
    }

    /// A call of a session has ended. `at` is where the session was when the call started.
    #[inline]
    pub(crate) fn ended(&mut self, session: SessionId, at: usize) {
        let here = self.sessions.get_mut(at).filter(|s| s.id == session);
        let found = match here {
            Some(found) => Some(found),
            None => self.sessions.iter_mut().find(|s| s.id == session),
        };
        if let Some(found) = found {
            found.calls -= 1;
            self.calls -= 1;
        }
    }

    /// The session at this place has ended.
    pub(crate) fn lose(&mut self, at: usize) {
        let lost = self.sessions.swap_remove(at);
        self.calls -= lost.calls;
    }

    /// Removes the calls of a service that wait.
    pub(crate) fn take_service(&mut self, service: NonZeroU16) -> Vec<Waiting> {
        let mut taken = Vec::new();
        for queue in [&mut self.waiting, &mut self.messages] {
            let all = std::mem::take(queue);
            let (of_service, others): (Vec<_>, Vec<_>) =
                all.into_iter().partition(|w| w.call.method.service == Some(service));
            taken.extend(of_service);
            queue.extend(others);
        }
        taken
    }

    /// Returns whether a session is being connected or checked.
    pub(crate) fn is_connecting(&self) -> bool {
        self.connecting.is_some() || self.greeting.is_some()
    }

    /// Returns whether another session should be connected, as calls wait for a slot.
    pub(crate) fn may_grow(&self, now_ns: u64) -> bool {
        !self.is_connecting()
            && self.pick().is_none()
            && self.sessions.len() < self.limits.sessions
            && self.calls < self.limits.in_flight
            && now_ns >= self.grow_ns
    }

    pub(crate) fn connected(&mut self, session: Session) {
        self.sessions.push(session);
        (self.retry_ns, self.backoff_ns) = (u64::MAX, 0);
        for waiting in self.waiting.iter_mut().chain(&mut self.messages) {
            waiting.give_up_ns = u64::MAX;
        }
    }

    /// A connect failed: the next one is made later. `random` are random bits.
    pub(crate) fn back_off(&mut self, now_ns: u64, random: u64) {
        self.grow_ns = now_ns.saturating_add(GROW_AGAIN_NS);
        if self.sessions.is_empty() {
            self.backoff_ns = (2 * self.backoff_ns).clamp(BACKOFF_NS.0, BACKOFF_NS.1);
            let half_ns = self.backoff_ns / 2;
            self.retry_ns = now_ns.saturating_add(half_ns + random % (half_ns + 1));
        }
    }

    /// Returns whether a call without a session fails at once: a connect has failed, and it is too
    /// early for the next one.
    pub(crate) fn is_backing_off(&self) -> bool {
        self.sessions.is_empty() && !self.is_connecting() && self.retry_ns != u64::MAX
    }

    /// Returns whether to connect now, if the time for it has come.
    pub(crate) fn is_wanted(&self, now_ns: u64) -> bool {
        self.sessions.is_empty()
            && !self.is_connecting()
            && (self.is_waiting() || self.first.is_some() || now_ns < self.wanted_ns)
    }

    /// Adds a call or message to those that wait. Without a session it waits until `give_up_ns` at
    /// most.
    pub(crate) fn wait(&mut self, mut waiting: Waiting, now_ns: u64, give_up_ns: u64) {
        if self.sessions.is_empty() {
            waiting.give_up_by(give_up_ns);
            self.wanted_ns = now_ns.saturating_add(WANTED_NS);
        }
        self.due_ns = self.due_ns.min(waiting.due_ns());
        let queue = if waiting.call.one_way { &mut self.messages } else { &mut self.waiting };
        queue.push_back(waiting);
    }

    pub(crate) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.messages.is_empty()
    }

    /// The error of calls that get no session.
    pub(crate) fn not_connected(&self) -> CallFailure {
        let reason = self.reason.clone();
        let reason = reason.unwrap_or_else(|| SessionError::Gone.to_string().into());
        CallFailure::NotConnected { server: self.uri.clone(), reason }
    }

    /// The last session is lost: calls that wait do so for a limited time.
    pub(crate) fn give_up_by(&mut self, now_ns: u64, give_up_ns: u64) {
        self.wanted_ns = now_ns.saturating_add(WANTED_NS);
        for waiting in self.waiting.iter_mut().chain(&mut self.messages) {
            waiting.give_up_by(give_up_ns);
        }
        if self.is_waiting() {
            self.due_ns = self.due_ns.min(give_up_ns);
        }
    }

    /// Removes those that do not wait for a session.
    pub(crate) fn take_fail_fast(&mut self) -> Vec<Waiting> {
        let mut taken = Vec::new();
        for queue in [&mut self.waiting, &mut self.messages] {
            take_if(queue, |w| !w.call.wait_for_ready, &mut taken);
        }
        taken
    }

    /// Removes those that are due, and sets the time of the next.
    pub(crate) fn take_due(&mut self, now_ns: u64) -> Vec<Waiting> {
        let mut due = Vec::new();
        let mut next_ns = u64::MAX;
        let mut is_due = |waiting: &Waiting| {
            let at_ns = waiting.due_ns();
            if at_ns > now_ns {
                next_ns = next_ns.min(at_ns);
            }
            at_ns <= now_ns
        };
        for queue in [&mut self.waiting, &mut self.messages] {
            take_if(queue, &mut is_due, &mut due);
        }
        self.due_ns = next_ns;
        due
    }

    /// Removes those whose futures were dropped.
    pub(crate) fn drop_over(&mut self) {
        self.waiting.retain(|w| !w.call.is_over());
        self.messages.retain(|w| !w.call.is_over());
    }
}

/// Moves some of a queue to `to`, and keeps the others in their order.
fn take_if(
    queue: &mut VecDeque<Waiting>,
    mut is_taken: impl FnMut(&Waiting) -> bool,
    to: &mut Vec<Waiting>,
) {
    for _ in 0..queue.len() {
        let Some(waiting) = queue.pop_front() else { return };
        if is_taken(&waiting) {
            to.push(waiting);
        } else {
            queue.push_back(waiting);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link() -> Link {
        let limits = Limits { sessions: 1, in_flight: 1, wait_for_ready: false };
        let (uri, greetings, opening) =
            ("udp://[::1]:1".into(), Greetings::default(), Arc::default());
        Link::new(Open { uri, limits, greetings, wait_for_ready: false, opening }, 0)
    }

    #[test]
    fn connects_are_repeated_after_times_that_grow_and_differ() {
        let (mut first, mut last) = (link(), link());
        let mut most_ns = BACKOFF_NS.0;
        for round in 0..20 {
            first.back_off(1_000, 0);
            last.back_off(1_000, most_ns / 2);
            assert_eq!(first.retry_ns, 1_000 + most_ns / 2, "round {round}");
            assert_eq!(last.retry_ns, 1_000 + most_ns, "round {round}");
            most_ns = (2 * most_ns).min(BACKOFF_NS.1);
        }
        // The longest waits are spread over half of the largest.
        let mut random = 1_u64;
        let mut slots = [0; 10];
        for _ in 0..10_000 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            first.back_off(0, random >> 11);
            let after_ns = first.retry_ns - BACKOFF_NS.1 / 2;
            slots[(after_ns * 10 / (BACKOFF_NS.1 / 2 + 1)) as usize] += 1;
        }
        assert!(slots.iter().all(|n| (800..1_200).contains(n)), "{slots:?}");
    }
}
