//! The endpoint: one thread's handlers, sessions, calls and packets (`[eRPC §3.1]`).

pub(crate) mod call;
pub(crate) mod call_wait;
pub(crate) mod nexus;
pub(crate) mod send;
pub(crate) mod shutdown;

use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use courser_buf::{AllocError, ArenaStats, MsgBuf, TxBurst};
use courser_net::{AnyTransport, Transport, TransportStats};
use courser_proto::{
    Body, CallError, CallId, EndpointStats, MemoryUse, ReplyError, SessionBytes, SessionId,
    SessionState, SessionStats,
};

use crate::control::{Command, Control, Mail, Mailbox};
use crate::core::Core;
use crate::core::context::Context;
use crate::core::message::{Completion, Reply, ReplyHandle, Request, Response, zeroed};
use crate::error::{CallRejected, SessionError};
use crate::rpc::call::CallBuilder;
use crate::rpc::send::OnRoom;
use crate::run::connections::Connections;
use crate::run::flood::Flood;
use crate::run::spin::{Crowd, Spin};
use crate::run::worker::{Answer, Workers};
use crate::service::{Services, guarded};

/// A handler. Not `dyn FnMut`, which passes its arguments in a tuple: one more copy of the request.
pub(crate) trait Handle {
    fn handle(&mut self, cx: &mut Context<'_>, request: Request<'_>);

    /// The same for a request of one packet. Its parts are passed in registers.
    fn handle_bytes(
        &mut self,
        cx: &mut Context<'_>,
        body: &[u8],
        req_type: u16,
        session: SessionId,
        expires_ns: u64,
    );
}

impl<F: FnMut(&mut Context<'_>, Request<'_>)> Handle for F {
    #[inline]
    fn handle(&mut self, cx: &mut Context<'_>, request: Request<'_>) {
        self(cx, request);
    }

    #[inline]
    fn handle_bytes(
        &mut self,
        cx: &mut Context<'_>,
        body: &[u8],
        req_type: u16,
        session: SessionId,
        expires_ns: u64,
    ) {
        self(cx, Request { body: Body::Borrowed(body), req_type, session, expires_ns });
    }
}

/// The completion function. One method that calls the closure in one place, so that the closure is
/// inlined and the parts of a single-packet response stay in registers.
pub(crate) trait Conclude {
    /// Runs the function for a single-packet response, `body`, or for any other `ending`.
    fn conclude(
        &mut self,
        cx: &mut Context<'_>,
        tag: u64,
        request: MsgBuf,
        body: &[u8],
        ending: Option<Ending>,
        session: SessionId,
    );
}

/// The end of a call without a single-packet response.
pub(crate) type Ending = Result<MsgBuf, CallError>;

impl<F: FnMut(&mut Context<'_>, u64, Completion<'_>)> Conclude for F {
    #[inline]
    fn conclude(
        &mut self,
        cx: &mut Context<'_>,
        tag: u64,
        request: MsgBuf,
        body: &[u8],
        ending: Option<Ending>,
        session: SessionId,
    ) {
        let result = match ending {
            None => Ok(Response(Body::Borrowed(body))),
            Some(ending) => ending.map(|large| Response(Body::Owned(large))),
        };
        self(cx, tag, Completion { request, result, session });
    }
}

pub(crate) type Handler = Box<dyn Handle>;

/// The functions that the application registered.
#[derive(Default)]
pub(crate) struct Handlers {
    pub(crate) by_type: Vec<Option<Handler>>,
    pub(crate) messages: Vec<Option<Handler>>,
    pub(crate) services: Services,
    pub(crate) on_room: Option<OnRoom>,
    pub(crate) on_completion: Option<Box<dyn Conclude>>,
}

impl Handlers {
    /// A new handler, with a gate if requests are authorized.
    pub(crate) fn gated(&self, handler: Handler, is_message: bool) -> Handler {
        match self.services.has_access() {
            true => guarded(handler, &self.services, is_message),
            false => handler,
        }
    }

    /// A handler of a service is not replaced.
    #[track_caller]
    pub(crate) fn assert_free(&self, handlers: &[Option<Handler>], number: u16) {
        let is_set = handlers.get(usize::from(number)).is_some_and(Option::is_some);
        assert!(
            !self.services.keeps(number, is_set),
            "request type {number:#06x} is that of a service; set one below 0x4000, except 0x03f0 to \
             0x03ff"
        );
    }
}

/// One thread's endpoint, made by [`crate::Nexus::endpoint`]. Not `Send`: the endpoint, its
/// handlers and its continuations stay on the thread that made it.
///
/// # Order of calls
/// Register handlers ([`Rpc::on`]), connect sessions ([`Rpc::connect`]), then drive the event
/// loop: [`Rpc::run`], [`Rpc::run_until`], or [`Rpc::poll`] from your own loop, which may sleep on
/// [`Rpc::event_fd`].
pub struct Rpc<T: Transport = AnyTransport> {
    pub(crate) transport: T,
    pub(crate) core: Core,
    pub(crate) handlers: Handlers,
    pub(crate) burst: TxBurst,
    pub(crate) mailbox: Mailbox,
    pub(crate) mail: Vec<Mail>,
    pub(crate) workers: Workers,
    pub(crate) answers: Vec<Answer>,
    pub(crate) control: Control,
    pub(crate) connections: Connections,
    pub(crate) index: u16,
    /// The limit of open files is too low for the settings of the nexus.
    pub(crate) open_files_warning: Option<String>,
    pub(crate) accepts: bool,
    pub(crate) spin: Spin,
    /// See [`crate::Tuning::batched_timestamps`].
    pub(crate) batched_timestamps: bool,
    /// Passes that may handle frames and mail only.
    pub(crate) spin_polls: u32,
    /// Whether other threads compete for the CPU.
    pub(crate) crowd: Crowd,
    pub(crate) flood: Flood,
    /// The clock was read in the previous pass, and nothing else ran since: frames without a time
    /// count as received at that reading.
    pub(crate) clock_is_fresh: bool,
    /// Polls of the receive queue in a pass before it counts as empty.
    pub(crate) rx_polls: u32,
    /// Copy of [`courser_net::Caps::holds_frames`].
    pub(crate) holds_frames: bool,
    /// The time of the last whole pass, ns.
    pub(crate) pass_ns: u64,
    /// There was work since the loop was last idle.
    pub(crate) was_busy: bool,
    /// Time of the next check for idle message memory, ns; `u64::MAX`: none is mapped.
    pub(crate) next_trim_ns: u64,
    pub(crate) quiet_since_ns: u64,
    pub(crate) last_scan_ns: u64,
    pub(crate) poller: Option<OwnedFd>,
    pub(crate) stop: Arc<AtomicBool>,
    pub(crate) _not_send: PhantomData<*const ()>,
}

impl<T: Transport> std::fmt::Debug for Rpc<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rpc")
            .field("index", &self.index)
            .field("local_addr", &self.transport.local_addr())
            .field("sessions", &self.core.proto.live_sessions())
            .finish_non_exhaustive()
    }
}

impl<T: Transport> Rpc<T> {
    // ---- setting up ---------------------------------------------------------------------------

    /// Registers the handler of a request type, in place of an earlier one. It runs on this thread,
    /// inside the event loop, and should take at most a few hundred nanoseconds `[eRPC §3.2]`;
    /// longer work belongs to [`Rpc::on_worker`]. It answers with [`Context::reply`], or later
    /// through [`Context::defer`]. An endpoint with a handler accepts sessions from clients.
    ///
    /// A panic of the handler is caught and logged: the request is answered with
    /// [`crate::Status::Panicked`] unless it was answered before, and the handler runs again for
    /// the next request. Panics of continuations and timers are not caught.
    ///
    /// # Panics
    /// The request type is that of a method of a service of this endpoint.
    #[doc(alias = "register_handler")]
    #[doc(alias = "register_req_func")]
    #[track_caller]
    pub fn on(
        &mut self,
        req_type: u16,
        mut handler: impl FnMut(&mut Context<'_>, Request<'_>) + 'static,
    ) {
        let Some(machine) = self.core.platform.machine().cloned() else {
            return self.register(req_type, Box::new(handler));
        };
        // Notifies the simulator here, so that the path of packets has no branch for it.
        let endpoint = self.index;
        let observed = move |cx: &mut Context<'_>, request: Request<'_>| {
            if let Some(id) = cx.request {
                machine.handler_runs(endpoint, req_type, id);
            }
            handler(cx, request);
        };
        self.register(req_type, Box::new(observed));
    }

    #[track_caller]
    pub(crate) fn register(&mut self, req_type: u16, handler: Handler) {
        let at = usize::from(req_type);
        self.handlers.assert_free(&self.handlers.by_type, req_type);
        if self.handlers.by_type.len() <= at {
            self.handlers.by_type.resize_with(at + 1, || None);
        }
        self.handlers.by_type[at] = Some(self.handlers.gated(handler, false));
        self.accept_sessions();
    }

    /// Accepts sessions of clients from now on.
    pub(crate) fn accept_sessions(&mut self) {
        if !self.accepts {
            self.accepts = true;
            self.control.send(Command::SetAccepts { index: self.index, accepts: true });
        }
    }

    /// Registers the function that gets the completions of calls started by
    /// [`CallBuilder::send`], with their tags. Replaces an earlier one.
    pub fn on_completion(
        &mut self,
        f: impl FnMut(&mut Context<'_>, u64, Completion<'_>) + 'static,
    ) {
        self.handlers.on_completion = Some(Box::new(f));
    }

    /// A handle by which other threads wake or stop this endpoint's event loop.
    pub fn handle(&self) -> EndpointHandle {
        EndpointHandle { mailbox: self.mailbox.clone(), stop: self.stop.clone() }
    }

    // ---- calls --------------------------------------------------------------------------------

    /// See [`Context::call`].
    ///
    /// # Errors
    /// The call did not start; the error returns the buffer.
    #[doc(alias = "enqueue_request")]
    #[inline]
    pub fn call(
        &mut self,
        session: SessionId,
        req_type: u16,
        request: MsgBuf,
        done: impl FnOnce(&mut Context<'_>, Completion<'_>) + 'static,
    ) -> Result<CallId, CallRejected> {
        self.request(session, req_type, request).then(done)
    }

    /// See [`Context::request`].
    #[inline]
    pub fn request(
        &mut self,
        session: SessionId,
        req_type: u16,
        request: MsgBuf,
    ) -> CallBuilder<'_> {
        CallBuilder::new(&mut self.core, session, req_type, request)
    }

    /// See [`Context::cancel`].
    pub fn cancel(&mut self, call: CallId) -> bool {
        self.context().cancel(call)
    }

    /// See [`Context::reply_to`].
    ///
    /// # Errors
    /// The session is gone, or the response cannot be held.
    pub fn reply_to(&mut self, handle: ReplyHandle, reply: impl Reply) -> Result<(), ReplyError> {
        self.context().reply_to(handle, reply)
    }

    /// Allocates a message buffer of `len` bytes, all 0. [`Self::alloc_recycled`] saves the time of
    /// clearing large ones.
    ///
    /// # Errors
    /// The endpoint's memory limit is reached.
    #[doc(alias = "alloc_msg_buffer")]
    #[inline]
    pub fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        zeroed(self.core.proto.alloc(len))
    }

    /// A message buffer of `len` bytes that have the contents of earlier messages of this endpoint:
    /// for messages that are overwritten in full. A byte that is not **reveals another message**.
    ///
    /// # Errors
    /// The endpoint's memory limit is reached.
    #[inline]
    pub fn alloc_recycled(&self, len: usize) -> Result<MsgBuf, AllocError> {
        self.core.proto.alloc(len)
    }

    /// The endpoint as handlers use it, for code outside of handlers.
    #[inline]
    pub fn context(&mut self) -> Context<'_> {
        Context { core: &mut self.core, request: None }
    }

    // ---- state and counters -------------------------------------------------------------------

    /// The state of a session.
    pub fn session_state(&self, session: SessionId) -> SessionState {
        self.core.proto.session_state(session)
    }

    /// Why a session is not connected; `None` while it is connecting or connected.
    pub fn session_error(&self, session: SessionId) -> Option<SessionError> {
        self.core.session_error(session)
    }

    /// Counters of a session: credits, queue, round trips.
    pub fn session_stats(&self, session: SessionId) -> Option<SessionStats> {
        self.core.proto.session_stats(session)
    }

    /// The congestion control in use: [`crate::Config::control`], or none on transports with a
    /// receive queue for each peer.
    pub fn control(&self) -> courser_proto::Control {
        self.core.proto.config().applied_control()
    }

    /// Counters of the protocol.
    pub fn stats(&self) -> &EndpointStats {
        self.core.proto.stats()
    }

    /// Memory in use for sessions, by component. Walks all sessions.
    pub fn session_memory(&self) -> MemoryUse {
        self.core.proto.memory()
    }

    /// Bytes of one session with this number of slots, without message buffers: idle, in use as
    /// client, in use as server; and of the peer, which all sessions between the same two endpoints
    /// share.
    pub const fn session_bytes(slots: usize) -> SessionBytes {
        courser_proto::Endpoint::<crate::core::continuations::Cont>::session_bytes(slots)
    }

    /// Counters of the transport. Handlers cannot read them, since they borrow the transport's
    /// receive memory. To answer with them, a handler defers ([`Context::defer`]) and the program
    /// replies between two passes of the event loop ([`Rpc::run_until`], [`Rpc::reply_to`]).
    pub fn transport_stats(&self) -> TransportStats {
        self.transport.stats()
    }

    /// Message memory by size class.
    pub fn memory(&self) -> ArenaStats {
        self.core.proto.arena().stats()
    }

    /// The transport itself.
    pub fn transport(&self) -> &T {
        &self.transport
    }

    /// Warnings about the set-up of this machine, and settings that do not hold, each with what
    /// corrects it.
    pub fn warnings(&self) -> Vec<String> {
        let mut all = self.transport.warnings();
        all.extend(self.connections.warning());
        all.extend(self.open_files_warning.clone());
        all
    }

    /// The endpoint's number in its nexus: `N` in `udp://host:port/N`.
    pub fn index(&self) -> u16 {
        self.index
    }

    /// The datapath's port, which firewalls must pass.
    pub fn port(&self) -> u32 {
        self.transport.local_addr().port
    }

    /// Sessions in any state, both roles.
    pub fn sessions(&self) -> usize {
        self.core.proto.live_sessions()
    }

    /// See [`Context::sessions_from`].
    pub fn sessions_from(&self, first: u32) -> impl Iterator<Item = SessionId> + '_ {
        self.core.proto.sessions_from(first)
    }

    /// Sum of the credit limits of all sessions, both roles (ADR 7).
    pub fn credits_granted(&self) -> u64 {
        self.core.proto.credits_granted()
    }

    /// Calls that have started and not ended, over all sessions.
    pub fn outstanding_calls(&self) -> u64 {
        self.core.proto.outstanding_calls()
    }

    /// Checks the invariants of the protocol, for tests; panics when one does not hold.
    #[doc(hidden)]
    pub fn check(&self) {
        self.core.proto.check();
    }

    /// Checks that packets which were lost leave the receiver's budget, for tests; panics if some that
    /// were `seen` by the call before are still in it.
    #[doc(hidden)]
    pub fn check_overdue(&self, seen: &mut courser_proto::OverduePackets) {
        self.core.proto.check_overdue(seen);
    }
}

impl<T: Transport> Drop for Rpc<T> {
    fn drop(&mut self) {
        if self.core.process.was_forked() {
            return; // the control thread and the workers are those of the other process
        }
        self.control.send(Command::Unregister { index: self.index });
        // Futures that are dropped queue nothing any more.
        self.core.queue.close();
        drop(self.core.tasks.take_futures());
        self.detach_workers();
        self.handlers.services.drain_token().set();
    }
}

/// Wakes or stops an endpoint's event loop from any thread. Made by [`Rpc::handle`].
#[derive(Clone)]
pub struct EndpointHandle {
    mailbox: Mailbox,
    stop: Arc<AtomicBool>,
}

impl std::fmt::Debug for EndpointHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EndpointHandle").finish_non_exhaustive()
    }
}

impl EndpointHandle {
    /// Wakes the endpoint: its event loop runs a pass at once.
    pub fn wake(&self) {
        self.mailbox.wake();
    }

    /// Ends [`Rpc::run`] and its like, now or the next time it is called.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.mailbox.wake();
    }
}
