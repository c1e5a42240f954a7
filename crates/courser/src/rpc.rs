//! The endpoint: one thread's handlers, sessions, calls and packets (`[eRPC §3.1]`).

pub(crate) mod call;
pub(crate) mod call_wait;
pub(crate) mod nexus;
pub(crate) mod send;
pub(crate) mod shutdown;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use courser_buf::{AllocError, ArenaStats, MsgBuf};
use courser_net::{Transport, TransportStats};
use courser_proto::{
    CallId, EndpointStats, MemoryUse, ReplyError, SessionBytes, SessionId, SessionState,
    SessionStats,
};

use crate::control::mailbox::Mailbox;
use crate::core::context::Context;
use crate::core::handler::{Handler, parts};
use crate::core::message::{Completion, Reply, ReplyHandle, Request, zeroed};
use crate::error::{CallRejected, SessionError};
use crate::rpc::call::CallBuilder;

pub use crate::run::endpoint::Rpc;

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
        handler: impl FnMut(&mut Context<'_>, Request<'_>) + 'static,
    ) {
        let observed = self.observed(Box::new(handler));
        self.register(req_type, observed);
    }

    /// Notifies the simulator, if there is one, when the handler runs: here, so that the path of packets
    /// has no branch for it.
    fn observed(&self, mut handler: Handler) -> Handler {
        let Some(machine) = self.core.platform.machine().cloned() else { return handler };
        let endpoint = self.index;
        Box::new(move |cx: &mut Context<'_>, request: Request<'_>| {
            let Request { body, req_type, session, expires_ns } = request;
            machine.handler_runs(endpoint, req_type, cx.request);
            let (body, owned) = parts(body);
            handler.handle(cx, body, owned, req_type, session, expires_ns);
        })
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
        EndpointHandle { mailbox: self.mailbox.clone(), stop: self.event_loop.stop_flag() }
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
        all.extend(self.connections.warnings());
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

/// Wakes or stops an endpoint's event loop from any thread. Made by [`Rpc::handle`].
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run_rpc(|mut rpc, uri| {
/// # let _ = uri;
/// let handle = rpc.handle();
/// std::thread::spawn(move || handle.stop());
/// // It returns when another thread says so.
/// rpc.run()?;
/// # Ok(()) }) }
/// ```
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
