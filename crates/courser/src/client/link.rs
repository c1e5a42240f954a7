//! The sessions of one client, and the calls that wait for them, at the thread of its endpoint.

use std::collections::VecDeque;
use std::sync::Arc;

use courser_proto::SessionId;

use super::Limits;
use super::call::Call;
use super::greeting::Greetings;
use super::inbox::Open;
use super::opening::Opening;

/// Time until a lost server is connected again, ns: at first, and at most. Doubled each time.
const BACKOFF_NS: (u64, u64) = (5_000_000, 500_000_000);

/// After a session beside others could not be connected, ns.
const GROW_AGAIN_NS: u64 = 1_000_000_000;

/// A connected session.
pub(super) struct Session {
    pub(super) id: SessionId,
    /// Calls that have not ended.
    pub(super) calls: usize,
    /// Calls that it has room for at its server; further ones wait at this side.
    pub(super) slots: usize,
}

/// A call or message that has not started.
pub(super) struct Waiting {
    pub(super) call: Arc<Call>,
    /// By its deadline; `u64::MAX`: never.
    pub(super) expires_ns: u64,
    /// It fails then if there is no session; `u64::MAX`: there was one when it came.
    pub(super) give_up_ns: u64,
}

impl Waiting {
    pub(super) fn due_ns(&self) -> u64 {
        self.expires_ns.min(self.give_up_ns)
    }
}

/// See the module.
pub(super) struct Link {
    pub(super) uri: Arc<str>,
    pub(super) limits: Limits,
    pub(super) sessions: Vec<Session>,
    /// Calls on these sessions that have not ended.
    pub(super) calls: usize,
    pub(super) connecting: Option<SessionId>,
    /// A connected session whose server is being checked.
    pub(super) greeting: Option<SessionId>,
    pub(super) greetings: Greetings,
    /// The client, until its first session is connected.
    pub(super) opening: Option<Arc<Opening>>,
    /// Calls beyond the limit, and calls without a session; in order.
    pub(super) waiting: VecDeque<Waiting>,
    /// Messages for which there is no room; in order.
    pub(super) messages: VecDeque<Waiting>,
    /// When the first of the two is due; `u64::MAX`: never.
    pub(super) due_ns: u64,
    /// When to connect again; `u64::MAX`: it is connected, or connecting.
    pub(super) retry_ns: u64,
    /// The last wait before that.
    backoff_ns: u64,
    /// Not to connect further sessions before.
    pub(super) grow_ns: u64,
    /// The text of the last error of a session.
    pub(super) reason: Option<Arc<str>>,
}

impl Link {
    pub(super) fn new(open: Open) -> Self {
        let Open { uri, limits, greetings, opening } = open;
        Link {
            uri,
            limits,
            sessions: Vec::new(),
            calls: 0,
            connecting: None,
            greeting: None,
            greetings,
            opening: Some(opening),
            waiting: VecDeque::new(),
            messages: VecDeque::new(),
            due_ns: u64::MAX,
            retry_ns: u64::MAX,
            backoff_ns: 0,
            grow_ns: 0,
            reason: None,
        }
    }

    /// The place of the first session with a free slot, so that few sessions are in use. A call that
    /// finds none waits here rather than behind the calls of one session, which may take long.
    #[inline]
    pub(super) fn pick(&self) -> Option<usize> {
        self.sessions.iter().position(|s| s.calls < s.slots)
    }

    /// The place of the session of all messages, which keeps their order.
    pub(super) fn first(&self) -> Option<usize> {
        (!self.sessions.is_empty()).then_some(0)
    }

    /// Calls and messages that wait.
    pub(super) fn waiting_calls(&self) -> usize {
        self.waiting.len() + self.messages.len()
    }

    /// A call of a session has ended. `at` is where the session was when the call started.
    #[inline]
    pub(super) fn ended(&mut self, session: SessionId, at: usize) {
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
    pub(super) fn lose(&mut self, at: usize) {
        let lost = self.sessions.swap_remove(at);
        self.calls -= lost.calls;
    }

    /// Whether a session is being connected or checked.
    pub(super) fn is_connecting(&self) -> bool {
        self.connecting.is_some() || self.greeting.is_some()
    }

    /// Whether another session should be connected, as calls wait for a slot.
    pub(super) fn may_grow(&self, now_ns: u64) -> bool {
        !self.is_connecting()
            && self.sessions.len() < self.limits.sessions
            && self.calls < self.limits.in_flight
            && now_ns >= self.grow_ns
    }

    pub(super) fn connected(&mut self, session: Session) {
        self.sessions.push(session);
        (self.retry_ns, self.backoff_ns) = (u64::MAX, 0);
        for waiting in self.waiting.iter_mut().chain(&mut self.messages) {
            waiting.give_up_ns = u64::MAX;
        }
    }

    /// A connect failed: the next one is made later.
    pub(super) fn back_off(&mut self, now_ns: u64) {
        self.grow_ns = now_ns.saturating_add(GROW_AGAIN_NS);
        if self.sessions.is_empty() {
            self.backoff_ns = (2 * self.backoff_ns).clamp(BACKOFF_NS.0, BACKOFF_NS.1);
            self.retry_ns = now_ns.saturating_add(self.backoff_ns);
        }
    }

    /// Adds a call or message to those that wait.
    pub(super) fn wait(&mut self, waiting: Waiting) {
        self.due_ns = self.due_ns.min(waiting.due_ns());
        let queue = if waiting.call.one_way { &mut self.messages } else { &mut self.waiting };
        queue.push_back(waiting);
    }

    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.messages.is_empty()
    }

    /// There is no session: those that wait do so for a limited time.
    pub(super) fn give_up_by(&mut self, give_up_ns: u64) {
        for waiting in self.waiting.iter_mut().chain(&mut self.messages) {
            waiting.give_up_ns = waiting.give_up_ns.min(give_up_ns);
        }
        if self.is_waiting() {
            self.due_ns = self.due_ns.min(give_up_ns);
        }
    }

    /// Removes those that are due, and sets the time of the next.
    pub(super) fn take_due(&mut self, now_ns: u64) -> Vec<Waiting> {
        let mut due = Vec::new();
        let mut next_ns = u64::MAX;
        for queue in [&mut self.waiting, &mut self.messages] {
            for _ in 0..queue.len() {
                let Some(waiting) = queue.pop_front() else { break };
                if waiting.due_ns() <= now_ns {
                    due.push(waiting);
                } else {
                    next_ns = next_ns.min(waiting.due_ns());
                    queue.push_back(waiting);
                }
            }
        }
        self.due_ns = next_ns;
        due
    }

    /// Removes those whose futures were dropped.
    pub(super) fn drop_over(&mut self) {
        self.waiting.retain(|w| !w.call.is_over());
        self.messages.retain(|w| !w.call.is_over());
    }
}
