//! The calls and sessions of clients, at the thread of their endpoint.

use std::num::NonZeroU16;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use courser_buf::MsgBuf;
use courser_proto::{CallError, Executed, RejectReason, SessionId, SessionState};
use slab::Slab;

use super::inbox::{DROPPED_KEPT, Submitted};
use super::pauses::Pauses;
use crate::channel::PAUSED;
use crate::channel::call::{Call, Started};
use crate::channel::greeting::{Service, Services, place};
use crate::channel::link::{FirstConnect, Link, Open, Session, Waiting};
use crate::channel::method::{HELLO, MethodId, Numbers};
use crate::channel::opening::Opened;
use crate::core::app::App;
use crate::core::context::Context;
use crate::core::message::Completion;
use crate::error::ClientError;
use crate::error::SessionError;
use crate::error::failure::CallFailure;
use crate::error::hello::HelloError;
use crate::platform::Clock;
use crate::service::trailer;
use crate::submit::Waiters;

/// Pause between two searches for expired calls that have not started, ns, and for each of them, so
/// that they take a small part of the time.
const SWEEP_NS: u64 = 200_000;
const SWEEP_CALL_NS: u64 = 50;

/// Calls that are looked at for one whose task drives the endpoint.
const SUCCESSORS: usize = 64;

/// In place of the client of a call: it is a pause.
pub(super) const PAUSES: usize = usize::MAX;

/// A call that has started. Its place is the tag of its completion.
enum Pending {
    Call {
        call: Arc<Call>,
        /// Where its session was in [`Link::sessions`].
        at: usize,
        /// When it started, ns.
        since_ns: u64,
    },
    /// The server of a session is asked for a service of a link.
    Asked { key: usize, service: NonZeroU16 },
}

/// The request type of a call of a service.
enum Numbered {
    As(u16),
    /// The server is being asked for it.
    Waits,
    /// The call has ended with an error.
    Ended,
    /// The session has ended.
    Lost,
}

/// See the module.
pub(super) struct Clients {
    links: Slab<Link>,
    pending: Slab<Pending>,
    pauses: Pauses,
    /// Tasks to be woken.
    pub(super) wakers: Vec<Waker>,
    /// Links that are connecting.
    connecting: usize,
    /// When a link is due; `u64::MAX`: never.
    due_ns: u64,
    /// Futures that were dropped since the queues were searched for them.
    dropped: usize,
    clock: Clock,
    connect_timeout_ns: u64,
    /// The links that wait for room, by session.
    waiters: Waiters<usize>,
    /// The number of times that calls and messages which waited were tried.
    #[cfg(test)]
    pub(super) tries: usize,
}

impl Clients {
    /// `timeout` is [`crate::Config::connect_timeout`].
    pub(super) fn new(clock: Clock, timeout: Duration) -> Self {
        Clients {
            links: Slab::new(),
            pending: Slab::new(),
            pauses: Pauses::default(),
            waiters: Waiters::default(),
            wakers: Vec::new(),
            connecting: 0,
            due_ns: u64::MAX,
            dropped: 0,
            clock,
            connect_timeout_ns: u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX),
            #[cfg(test)]
            tries: 0,
        }
    }

    // ---- submissions --------------------------------------------------------------------------

    /// Handles what clients have submitted, and empties the lists.
    pub(super) fn accept(&mut self, cx: &mut Context<'_, impl App>, submitted: &mut Submitted) {
        for open in submitted.opens.drain(..) {
            let until_ns = cx.now_ns().saturating_add(self.connect_timeout_ns);
            let key = self.links.insert(Link::new(open, until_ns));
            self.connect(cx, key);
        }
        for call in submitted.calls.drain(..) {
            self.submit(cx, call);
        }
        for call in submitted.cancels.drain(..) {
            if let Some(id) = call.running() {
                cx.cancel(id);
            }
        }
        for key in submitted.closes.drain(..) {
            self.close(cx, key);
        }
        self.dropped += submitted.take_dropped();
        if self.dropped >= DROPPED_KEPT {
            self.search_dropped();
        }
    }

    /// Removes calls that wait and whose futures were dropped, if they may be the most.
    fn search_dropped(&mut self) {
        let waiting: usize = self.links.iter().map(|(_, link)| link.waiting_calls()).sum();
        self.pauses.drop_over();
        if self.dropped >= waiting / 2 {
            self.links.iter_mut().for_each(|(_, link)| link.drop_over());
            self.dropped = 0;
        }
    }

    pub(super) fn submit(&mut self, cx: &mut Context<'_, impl App>, call: Arc<Call>) {
        let Some(link) = self.links.get(call.link) else { return self.unlinked(cx, call) };
        let waits = match call.one_way {
            true => !link.messages.is_empty(),
            false => !link.waiting.is_empty() || link.calls >= link.limits.in_flight,
        };
        if waits || !self.start(cx, &call) {
            self.wait(cx, call);
        }
    }

    /// Begins a pause; ends a call whose client is gone.
    #[cold]
    fn unlinked(&mut self, cx: &Context<'_, impl App>, call: Arc<Call>) {
        if call.link != PAUSES {
            return self.finish(&call, Err(CallFailure::Stopped));
        }
        let due_ns = cx.now_ns().saturating_add(call.method.pause_ns());
        self.due_ns = self.due_ns.min(due_ns);
        self.pauses.push(due_ns, call);
    }

    /// Starts a call or sends a message. Returns false if it has to wait.
    fn start(&mut self, cx: &mut Context<'_, impl App>, call: &Arc<Call>) -> bool {
        loop {
            let Some(link) = self.links.get(call.link) else { return true };
            let picked = if call.one_way { link.first() } else { link.pick() };
            let Some(at) = picked else { return false };
            let req_type = match self.number(cx, call, at) {
                Numbered::As(req_type) => req_type,
                Numbered::Waits => return false,
                Numbered::Ended => return true,
                Numbered::Lost => {
                    self.lose(cx, call.link, at);
                    continue;
                }
            };
            let Some(link) = self.links.get_mut(call.link) else { return true };
            let session = link.sessions[at].id;
            let left = call.expires.map(|at| at.saturating_duration_since(self.clock.now()));
            let entry = self.pending.vacant_entry();
            let tag = entry.key() as u64;
            let started = call.start(|request| match call.one_way {
                true => {
                    let message = cx.message(session, req_type, request);
                    message.deadline(left).send().map(|()| None)
                }
                false => {
                    let request = cx.request(session, req_type, request);
                    request.deadline(left).tag(tag).send().map(Some)
                }
            });
            match started {
                Started::Over => {}
                Started::Running => {
                    let since_ns = cx.core.proto.now_ns();
                    entry.insert(Pending::Call { call: call.clone(), at, since_ns });
                    link.sessions[at].calls += 1;
                    link.calls += 1;
                }
                Started::Sent(waker) => self.wakers.extend(waker),
                Started::Refused(RejectReason::NoSession(_)) => {
                    self.lose(cx, call.link, at);
                    continue;
                }
                Started::Refused(
                    reason @ (RejectReason::QueueFull { .. } | RejectReason::MessagesFull { .. }),
                ) => {
                    self.await_room(cx, session, call.link, &reason);
                    return false;
                }
                Started::Refused(reason) => self.finish(call, Err(CallFailure::Rejected(reason))),
            }
            return true;
        }
    }

    /// Finds the request type of a call on a session.
    #[inline]
    fn number(&mut self, cx: &mut Context<'_, impl App>, call: &Call, at: usize) -> Numbered {
        let MethodId { service: Some(service), number: index } = call.method else {
            return Numbered::As(call.method.number);
        };
        let Some(link) = self.links.get(call.link) else { return Numbered::Ended };
        let session = &link.sessions[at];
        match session.services.get(service) {
            _ if index == MethodId::ASKS => Numbered::As(HELLO),
            Service::Known(numbers) => match numbers.get(index) {
                Some(number) => Numbered::As(number),
                // Calls with metadata have larger places.
                None => {
                    let (id, numbers) = (session.id, numbers.clone());
                    self.address(cx, call, id, &numbers)
                }
            },
            Service::Asked => Numbered::Waits,
            Service::Unknown => self.ask_first(cx, call, (at, session.id), service),
            Service::Refused(_) if cx.session_state(session.id) != SessionState::Connected => {
                Numbered::Lost
            }
            Service::Refused(reason) => {
                let (server, reason) = (link.uri.clone(), reason.clone());
                self.finish(call, Err(CallFailure::NotConnected { server, reason }));
                Numbered::Ended
            }
        }
    }

    /// Finds the request type of a call with metadata, and of a method that its server does not have as the
    /// client has it.
    #[cold]
    fn address(
        &mut self,
        cx: &Context<'_, impl App>,
        call: &Call,
        session: SessionId,
        numbers: &Numbers,
    ) -> Numbered {
        match call.address(numbers, trailer::address) {
            Ok(number) => Numbered::As(number),
            // A session that has ended states nothing about the next server.
            Err(_) if cx.session_state(session) != SessionState::Connected => Numbered::Lost,
            Err(mismatch) => {
                self.finish(call, Err(CallFailure::Method(mismatch)));
                Numbered::Ended
            }
        }
    }

    /// Asks the server of a session for the service of its first call.
    fn ask_first(
        &mut self,
        cx: &mut Context<'_, impl App>,
        call: &Call,
        (at, id): (usize, SessionId),
        service: NonZeroU16,
    ) -> Numbered {
        match self.ask(cx, call.link, id, service) {
            Ok(()) => {
                if let Some(link) = self.links.get_mut(call.link) {
                    link.sessions[at].services.set(service, Service::Asked);
                }
                Numbered::Waits
            }
            Err(CallFailure::Rejected(RejectReason::NoSession(_))) => Numbered::Lost,
            Err(CallFailure::Rejected(reason @ RejectReason::QueueFull { .. })) => {
                self.await_room(cx, id, call.link, &reason);
                Numbered::Waits
            }
            Err(failure) => {
                self.finish(call, Err(failure.before_the_call()));
                Numbered::Ended
            }
        }
    }

    /// Tries the calls and messages of a link again when a session has room, or has ended.
    fn await_room(
        &mut self,
        cx: &mut Context<'_, impl App>,
        session: SessionId,
        key: usize,
        refused: &RejectReason,
    ) {
        cx.core.proto.await_room(session, refused);
        if !self.waiters.has(session) {
            self.waiters.push(session, key);
        }
    }

    /// Adds a call to those that wait. Connects if there is no session.
    fn wait(&mut self, cx: &mut Context<'_, impl App>, call: Arc<Call>) {
        let key = call.link;
        let Some(link) = self.links.get_mut(key) else { return };
        let now_ns = cx.now_ns();
        let expires_ns = match call.expires {
            None => u64::MAX,
            Some(at) => now_ns.saturating_add(left_ns(at, &self.clock)),
        };
        let waiting = Waiting { call, expires_ns, give_up_ns: u64::MAX };
        link.wait(waiting, now_ns, now_ns.saturating_add(self.connect_timeout_ns));
        self.due_ns = self.due_ns.min(link.due_ns);
        self.connect_for_waiting(cx, key, now_ns);
        self.fail_fast(key);
    }

    /// Connects a session for calls that wait, if there is none, or if all slots are in use.
    fn connect_for_waiting(&mut self, cx: &mut Context<'_, impl App>, key: usize, now_ns: u64) {
        let Some(link) = self.links.get(key) else { return };
        let wanted = match link.sessions.is_empty() {
            true => !link.is_connecting() && (link.retry_ns == u64::MAX || link.retry_ns <= now_ns),
            false => !link.waiting.is_empty() && link.may_grow(now_ns),
        };
        if wanted {
            self.connect(cx, key);
        }
    }

    /// Ends the calls that do not wait for a session if the last connect has failed.
    fn fail_fast(&mut self, key: usize) {
        let Some(link) = self.links.get_mut(key).filter(|link| link.is_backing_off()) else {
            return;
        };
        let failure = link.not_connected();
        for Waiting { call, .. } in link.take_fail_fast() {
            self.finish(&call, Err(failure.clone()));
        }
    }

    /// Starts calls and messages that wait, as far as there is room.
    fn start_waiting(&mut self, cx: &mut Context<'_, impl App>, key: usize) {
        while let Some(link) = self.links.get_mut(key)
            && let Some(waiting) = link.messages.pop_front()
            && self.start_again(cx, key, waiting)
        {}
        self.start_waiting_calls(cx, key);
    }

    /// Starts calls that wait, as far as there is room.
    fn start_waiting_calls(&mut self, cx: &mut Context<'_, impl App>, key: usize) {
        while let Some(link) = self.links.get_mut(key)
            && link.calls < link.limits.in_flight
            && let Some(waiting) = link.waiting.pop_front()
            && self.start_again(cx, key, waiting)
        {}
    }

    /// Starts a call or message that has waited, or puts it back. Returns whether there was room.
    fn start_again(
        &mut self,
        cx: &mut Context<'_, impl App>,
        key: usize,
        waiting: Waiting,
    ) -> bool {
        #[cfg(test)]
        {
            self.tries += 1;
        }
        let started = self.start(cx, &waiting.call);
        if !started && let Some(link) = self.links.get_mut(key) {
            let queue = if waiting.call.one_way { &mut link.messages } else { &mut link.waiting };
            queue.push_front(waiting);
            self.fail_fast(key);
        }
        started
    }

    fn finish(&mut self, call: &Call, outcome: Result<Option<MsgBuf>, CallFailure>) {
        self.wakers.extend(call.finish(outcome));
    }

    // ---- events of the endpoint ---------------------------------------------------------------

    /// A call has ended.
    #[inline]
    pub(super) fn completed(
        &mut self,
        cx: &mut Context<'_, impl App>,
        tag: u64,
        done: Completion<'_>,
    ) {
        let (call, at) = match self.pending.try_remove(tag as usize) {
            Some(Pending::Call { call, at, .. }) => (call, at),
            Some(Pending::Asked { key, service }) => return self.answered(cx, key, service, done),
            None => return,
        };
        let outcome = match done.result {
            Ok(response) => cx.core.response(done.request, response.0).map(Some),
            Err(e) => Err(e),
        };
        let outcome = outcome.map_err(|e| self.failure(cx, &call, done.session, e));
        if call.method.number == MethodId::ASKS {
            self.asked(&call, done.session, &outcome);
        }
        self.finish(&call, outcome);
        if let Some(link) = self.links.get_mut(call.link) {
            link.ended(done.session, at);
            // Messages wait for a notice of the protocol, which a call that ends does not replace.
            if !link.waiting.is_empty() {
                self.start_waiting_calls(cx, call.link);
            }
        }
    }

    /// The error of a call that has ended. A session that was lost is removed.
    fn failure(
        &mut self,
        cx: &mut Context<'_, impl App>,
        call: &Call,
        session: SessionId,
        error: CallError,
    ) -> CallFailure {
        let lost = cx.session_error(session).filter(|_| is_loss(error));
        let (Some(why), Some(link)) = (lost, self.links.get(call.link)) else {
            return CallFailure::Failed(error);
        };
        let server = link.uri.clone();
        if let Some(at) = link.sessions.iter().position(|s| s.id == session) {
            self.lose(cx, call.link, at);
        }
        let reason = why.to_string().into();
        CallFailure::Lost { server, reason, executed: error.executed() }
    }

    /// A session has room, or has ended.
    pub(super) fn on_room(&mut self, cx: &mut Context<'_, impl App>, session: SessionId) {
        if let Some(key) = self.waiters.pop(session, false) {
            self.start_waiting(cx, key);
        }
    }

    // ---- sessions -----------------------------------------------------------------------------

    /// Begins to connect a session.
    fn connect(&mut self, cx: &mut Context<'_, impl App>, key: usize) {
        let Some(link) = self.links.get_mut(key) else { return };
        link.retry_ns = u64::MAX;
        match cx.connect(&link.uri) {
            Ok(session) => {
                link.connecting = Some(session);
                self.connecting += 1;
            }
            Err(e) => self.not_connected(cx, key, e.into()),
        }
    }

    /// Asks the server of a new session for the services from this place on; after the last one calls
    /// use the session.
    fn greet(&mut self, cx: &mut Context<'_, impl App>, key: usize, id: SessionId, from: usize) {
        let Some(link) = self.links.get_mut(key) else { return };
        let Some(service) = link.greetings.next(from) else {
            link.greeting = None;
            return self.connected(cx, key, id);
        };
        link.greeting = Some(id);
        if let Err(e) = self.ask(cx, key, id, service) {
            self.not_greeted(cx, key, ClientError::Service(e.to_string()));
        }
    }

    /// Asks the server of a session for a service.
    ///
    /// # Errors
    /// The call did not start.
    fn ask(
        &mut self,
        cx: &mut Context<'_, impl App>,
        key: usize,
        id: SessionId,
        service: NonZeroU16,
    ) -> Result<(), CallFailure> {
        let greeting = self.links.get(key).and_then(|link| link.greetings.get(service));
        let Some(greeting) = greeting else { return Err(CallFailure::Stopped) };
        let bytes = greeting.request();
        let mut request = cx.alloc_recycled(bytes.len())?;
        request.copy_from_slice(&bytes);
        let entry = self.pending.vacant_entry();
        let call = cx.request(id, HELLO, request).tag(entry.key() as u64);
        let call = call.deadline(Duration::from_nanos(self.connect_timeout_ns));
        call.send().map_err(|e| e.reason)?;
        entry.insert(Pending::Asked { key, service });
        Ok(())
    }

    /// The server of a session has answered for a service, or the call has failed.
    fn answered(
        &mut self,
        cx: &mut Context<'_, impl App>,
        key: usize,
        service: NonZeroU16,
        done: Completion<'_>,
    ) {
        let id = done.session;
        let answer = match done.result {
            Ok(response) => cx.core.response(done.request, response.0),
            Err(e) => Err(e),
        };
        let failed = answer.is_err();
        let lost = answer.as_ref().err().filter(|e| is_loss(**e)).and(cx.session_error(id));
        let Some(link) = self.links.get_mut(key) else { return };
        let Some(greeting) = link.greetings.get(service) else { return };
        let numbers = greeting.read(answer.map_err(CallFailure::Failed));
        if link.greeting == Some(id) {
            if let Some(why) = lost {
                return self.not_greeted(cx, key, why.into());
            }
            let greeted = match numbers {
                Ok(numbers) => Service::Known(numbers),
                // The server's answer concerns this service only. Rights may be given later.
                Err(HelloError::Denied { .. }) => Service::Unknown,
                Err(e) if !failed => Service::Refused(e.to_string().into()),
                Err(e) => {
                    return self.not_greeted(cx, key, ClientError::Service(e.to_string()));
                }
            };
            link.greeted.set(service, greeted);
            return self.greet(cx, key, id, place(service) + 1);
        }
        let Some(session) = link.sessions.iter_mut().find(|s| s.id == id) else { return };
        let is_lost = cx.session_state(id) != SessionState::Connected;
        match numbers {
            Ok(numbers) => session.services.set(service, Service::Known(numbers)),
            // Calls that wait find out that the session has ended, and connect.
            Err(_) if is_lost => session.services.set(service, Service::Unknown),
            Err(e) => {
                let reason: Arc<str> = e.to_string().into();
                // After a failed call, and one that was not allowed, the next call asks again.
                let to = match failed || matches!(e, HelloError::Denied { .. }) {
                    true => Service::Unknown,
                    false => Service::Refused(reason.clone()),
                };
                session.services.set(service, to);
                let server = link.uri.clone();
                for Waiting { call, .. } in link.take_service(service) {
                    let (server, reason) = (server.clone(), reason.clone());
                    self.finish(&call, Err(CallFailure::NotConnected { server, reason }));
                }
            }
        }
        self.start_waiting(cx, key);
    }

    /// A typed client has asked the server of a session for its service.
    fn asked(&mut self, call: &Call, id: SessionId, answer: &Result<Option<MsgBuf>, CallFailure>) {
        let Some(service) = call.method.service else { return };
        let Some(link) = self.links.get_mut(call.link) else { return };
        let Some(greeting) = link.greetings.get(service) else { return };
        let Ok(Some(answer)) = answer else { return };
        let Ok(numbers) = greeting.read_bytes(answer) else { return };
        link.greetings.confirm(service);
        if let Some(session) = link.sessions.iter_mut().find(|s| s.id == id) {
            session.services.set(service, Service::Known(numbers));
        }
    }

    /// The server of a new session did not answer, or was lost again.
    fn not_greeted(&mut self, cx: &mut Context<'_, impl App>, key: usize, error: ClientError) {
        let Some(link) = self.links.get_mut(key) else { return };
        link.greeted = Services::default();
        let greeting = link.greeting.take();
        if let Some(id) = greeting {
            cx.close(id);
        }
        self.not_connected(cx, key, error);
    }

    fn connected(&mut self, cx: &mut Context<'_, impl App>, key: usize, id: SessionId) {
        let Some(link) = self.links.get_mut(key) else { return };
        let slots = cx.session_stats(id).map_or(1, |stats| stats.slots);
        let services = std::mem::take(&mut link.greeted);
        link.connected(Session { id, calls: 0, slots: slots as usize, services });
        if let Some(first) = link.first.take() {
            match first.opening.finish(Ok(Opened { link: key, slots })) {
                Ok(waker) => self.wakers.extend(waker),
                Err(()) => return self.close(cx, key),
            }
        }
        self.start_waiting(cx, key);
        self.connect_for_waiting(cx, key, cx.now_ns());
    }

    fn not_connected(&mut self, cx: &mut Context<'_, impl App>, key: usize, error: ClientError) {
        let Some(link) = self.links.get_mut(key) else { return };
        let now_ns = cx.now_ns();
        if let Some(first) = &mut link.first {
            let again = error.may_pass() && now_ns < first.until_ns;
            first.error = Some(error);
            if !again || first.opening.is_abandoned() {
                return self.give_up(cx, key);
            }
            link.due_ns = first.until_ns;
        } else {
            link.reason = Some(error.to_string().into());
        }
        link.back_off(now_ns, cx.core.random());
        self.due_ns = self.due_ns.min(link.retry_ns).min(link.due_ns);
        self.fail_fast(key);
    }

    /// A client was not connected in its time.
    fn give_up(&mut self, cx: &mut Context<'_, impl App>, key: usize) {
        let Some(link) = self.links.get_mut(key) else { return };
        let Some(FirstConnect { opening, error, .. }) = link.first.take() else { return };
        self.close(cx, key);
        let waker = opening.finish(Err(error.unwrap_or(SessionError::Gone.into())));
        self.wakers.extend(waker.ok().flatten());
    }

    /// A session has ended. If it was the last one, another is connected.
    fn lose(&mut self, cx: &mut Context<'_, impl App>, key: usize, at: usize) {
        let Some(link) = self.links.get_mut(key) else { return };
        let lost = link.sessions[at].id;
        link.reason = cx.session_error(lost).map(|e| e.to_string().into());
        link.lose(at);
        if link.sessions.is_empty() {
            let now_ns = cx.now_ns();
            link.give_up_by(now_ns, now_ns.saturating_add(self.connect_timeout_ns));
            self.due_ns = self.due_ns.min(link.due_ns);
            self.connect_for_waiting(cx, key, now_ns);
        }
    }

    /// A client was dropped: nothing waits for its calls.
    fn close(&mut self, cx: &mut Context<'_, impl App>, key: usize) {
        let Some(link) = self.links.try_remove(key) else { return };
        self.connecting -= usize::from(link.connecting.is_some());
        let new = link.connecting.into_iter().chain(link.greeting);
        for id in link.sessions.iter().map(|s| s.id).chain(new) {
            cx.close(id);
        }
    }

    // ---- time ---------------------------------------------------------------------------------

    /// Calls in progress.
    #[inline]
    pub(super) fn in_progress(&self) -> usize {
        self.pending.len()
    }

    /// Returns whether frames or times are waited for.
    pub(super) fn is_busy(&self) -> bool {
        !self.pending.is_empty() || self.connecting > 0 || self.due_ns != u64::MAX
    }

    /// The task of a call that started after `since_ns`, to drive the endpoint.
    pub(super) fn successor(&self, since_ns: u64) -> Option<(Arc<Call>, Waker)> {
        self.pending.iter().take(SUCCESSORS).find_map(|(_, pending)| match pending {
            Pending::Call { call, since_ns: since, .. } if *since >= since_ns => {
                call.waker().map(|waker| (call.clone(), waker))
            }
            _ => None,
        })
    }

    /// Returns whether [`Clients::tend`] may find something at this time.
    #[inline]
    pub(super) fn has_due(&self, now_ns: u64) -> bool {
        self.connecting > 0 || self.due_ns <= now_ns
    }

    /// When it is to be called next.
    #[inline]
    pub(super) fn due_ns(&self) -> Option<u64> {
        (self.due_ns != u64::MAX).then_some(self.due_ns)
    }

    /// Sessions that are connecting, connects that are due, and calls that waited too long.
    #[cold]
    pub(super) fn tend(&mut self, cx: &mut Context<'_, impl App>) {
        let now_ns = cx.now_ns();
        let was_due = self.due_ns <= now_ns;
        for key in 0..self.links.capacity() {
            let Some(link) = self.links.get_mut(key) else { continue };
            if let Some(session) = link.connecting
                && cx.session_state(session) != SessionState::Connecting
            {
                link.connecting = None;
                self.connecting -= 1;
                match cx.session_error(session) {
                    None => self.greet(cx, key, session, 0),
                    Some(e) => self.not_connected(cx, key, e.into()),
                }
            }
            if was_due {
                self.tend_waiting(cx, key, now_ns);
            }
        }
        if was_due {
            let due = |link: &Link| link.due_ns.min(link.retry_ns);
            for call in self.pauses.take_due(now_ns) {
                self.finish(&call, Err(PAUSED));
            }
            let of_links = self.links.iter().map(|(_, link)| due(link));
            let next_ns = of_links.chain(self.pauses.due_ns()).min();
            // Not more often: each time visits all that wait.
            let waiting = self.links.iter().map(|(_, link)| link.waiting_calls() as u64);
            let pause_ns = SWEEP_NS + SWEEP_CALL_NS * waiting.sum::<u64>();
            self.due_ns = next_ns.map_or(u64::MAX, |ns| ns.max(now_ns + pause_ns));
        }
    }

    fn tend_waiting(&mut self, cx: &mut Context<'_, impl App>, key: usize, now_ns: u64) {
        let Some(link) = self.links.get_mut(key) else { return };
        if link.retry_ns <= now_ns {
            link.retry_ns = u64::MAX;
            if link.is_wanted(now_ns) {
                self.connect(cx, key);
            }
        }
        let Some(link) = self.links.get_mut(key) else { return };
        if link.due_ns > now_ns {
            return;
        }
        if link.first.as_ref().is_some_and(|first| first.until_ns <= now_ns) {
            return self.give_up(cx, key);
        }
        let failure = match link.sessions.is_empty() {
            true => link.not_connected(),
            false => CallFailure::Failed(CallError::DeadlineExceeded(Executed::Never)),
        };
        for Waiting { call, .. } in link.take_due(now_ns) {
            self.finish(&call, Err(failure.clone()));
        }
    }

    /// The thread ends: so does everything that waits for it.
    pub(super) fn stop(&mut self, last: Submitted) {
        let links = std::mem::take(&mut self.links);
        let waiting = links.into_iter().flat_map(|(_, link)| {
            let opening = link.first.map(|first| first.opening);
            self.wakers
                .extend(opening.and_then(|o| o.finish(Err(ClientError::Stopped)).ok().flatten()));
            link.waiting.into_iter().chain(link.messages).map(|w| w.call)
        });
        let mut calls: Vec<_> = waiting.collect();
        calls.extend(last.calls);
        calls.extend(self.pauses.take_due(u64::MAX));
        let pending = std::mem::take(&mut self.pending).into_iter();
        calls.extend(pending.filter_map(|(_, pending)| match pending {
            Pending::Call { call, .. } => Some(call),
            Pending::Asked { .. } => None,
        }));
        for call in calls {
            self.finish(&call, Err(CallFailure::Stopped));
        }
        for Open { opening, .. } in last.opens {
            let waker = opening.finish(Err(ClientError::Stopped));
            self.wakers.extend(waker.ok().flatten());
        }
    }
}

/// Returns whether a call ended because its session did.
fn is_loss(error: CallError) -> bool {
    use CallError as E;
    matches!(error, E::PeerFailed(_) | E::DatapathSilent(_) | E::NotConnected(_) | E::Closed(_))
}

fn left_ns(at: Instant, clock: &Clock) -> u64 {
    u64::try_from(at.saturating_duration_since(clock.now()).as_nanos()).unwrap_or(u64::MAX)
}
