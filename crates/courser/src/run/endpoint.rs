//! The state of an endpoint, and its handlers. Its methods are in the other files of this folder and of
//! [`crate::rpc`].

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use courser_buf::{Arena, ArenaConfig, Heap, HugePages, MsgBuf, TxBurst};
use courser_net::{AnyTransport, Caps, Transport};
use courser_proto::Completion as Ended;
use courser_proto::wire::{FRAME_HEADER, PACKET_HEADER};
use courser_proto::{Body, CallError, Endpoint, Framing, Notice, RequestId, SessionId};

use crate::config::Config;
use crate::control::mailbox::Mailbox;
use crate::control::{Command, Control, Mail};
use crate::core::app::{App, OnThread};
use crate::core::context::Context;
use crate::core::continuations::Cont;
use crate::core::handler::{Conclude, Handler, OnNotice, OnRoom};
use crate::core::{Core, Local};
use crate::error::BindError;
use crate::platform::Platform;
use crate::run::connections::Connections;
use crate::run::event_loop::Loop;
use crate::run::flood::Flood;
use crate::run::links::Links;
use crate::run::worker::Pool;
use crate::service::{Services, guarded};

/// The functions that the application registered.
#[derive(Default)]
pub(crate) struct Handlers {
    pub(crate) by_type: Vec<Option<Handler>>,
    pub(crate) messages: Vec<Option<Handler>>,
    pub(crate) services: Services,
    /// The handlers of a server for requests with metadata, and for messages, by the types of their
    /// methods.
    pub(crate) marked: BTreeMap<u16, Handler>,
    pub(crate) marked_messages: BTreeMap<u16, Handler>,
    /// The request types of methods whose handlers have a context.
    pub(crate) asking: BTreeSet<u16>,
    pub(crate) on_room: Option<OnRoom>,
    pub(crate) on_notice: Option<OnNotice>,
    pub(crate) on_completion: Option<Box<dyn Conclude>>,
    /// There are handlers for clients, so that sessions are accepted.
    accepts: bool,
}

impl Handlers {
    /// Puts gates before the handlers that are there, and renews those of handlers that have one. Requests are authorized, or seen by middleware, from
    /// now on.
    pub(crate) fn gate_all(&mut self) {
        let Handlers { services, by_type, messages, marked, marked_messages, .. } = self;
        // An endpoint has no second handlers for requests with metadata, which had to get gates too.
        debug_assert!(marked.is_empty() && marked_messages.is_empty());
        for (handlers, is_message) in [(by_type, false), (messages, true)] {
            for (number, slot) in (0..=u16::MAX).zip(handlers.iter_mut()) {
                if slot.as_mut().is_some_and(|handler| !handler.renew()) {
                    *slot = slot.take().map(|inner| guarded(inner, services, number, is_message));
                }
            }
        }
    }

    /// A new handler, with a gate if its requests are authorized, or seen by middleware.
    pub(crate) fn gated(&mut self, number: u16, handler: Handler, is_message: bool) -> Handler {
        if self.services.is_asking(number) {
            self.asking.insert(number);
        }
        guarded(handler, &self.services, number, is_message)
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

/// The steps of an event loop that belong to the application. [`OnThread`] has handlers, tasks,
/// timers and workers; the clients of a process (`client/app.rs`) have completions and notices only.
pub(crate) trait Events: App {
    /// The functions that are called.
    type Handlers;
    /// The endpoint's side of the worker threads.
    type Workers;

    fn workers(pool: &Pool) -> Self::Workers;

    // ---- packets ------------------------------------------------------------------------------

    /// A request. `expires_ns`: its deadline; `u64::MAX`: none.
    fn on_request(
        core: &mut Core<Self>,
        handlers: &mut Self::Handlers,
        id: RequestId,
        req_type: u16,
        body: Body<'_>,
        expires_ns: u64,
    );

    fn on_message(
        core: &mut Core<Self>,
        handlers: &mut Self::Handlers,
        session: SessionId,
        msg_type: u16,
        body: Body<'_>,
        expires_ns: u64,
    );

    /// A call ended while a frame is received.
    fn on_completion(
        core: &mut Core<Self>,
        handlers: &mut Self::Handlers,
        cont: Cont,
        session: SessionId,
        request: MsgBuf,
        result: Result<Body<'_>, CallError>,
    );

    /// A call ended otherwise.
    fn complete(core: &mut Core<Self>, handlers: &mut Self::Handlers, done: Ended<'_, Cont>);

    // ---- a pass -------------------------------------------------------------------------------

    /// After a burst, before its packets are sent.
    fn after_burst(core: &mut Core<Self>);

    /// Returns whether [`Events::run_timers`] or [`Events::upkeep`] has something to do at this time.
    fn has_upkeep<T: Transport>(rpc: &Rpc<T, Self>, now_ns: u64) -> bool;

    /// Timers of the application. Returns whether one was due.
    fn run_timers(core: &mut Core<Self>, now_ns: u64) -> bool;

    /// Tasks, and requests of workers. Returns whether there was something to do.
    fn upkeep<T: Transport>(rpc: &mut Rpc<T, Self>, now_ns: u64) -> bool;

    /// A notice of the protocol. Returns whether it led to work.
    fn on_notice<T: Transport>(rpc: &mut Rpc<T, Self>, notice: Notice) -> bool;

    /// Takes the mail of an endpoint, and sends the answers of its workers.
    fn take_mail<T: Transport>(rpc: &mut Rpc<T, Self>, mail: &mut Vec<Mail>);

    // ---- waiting and ending -------------------------------------------------------------------

    /// When the application has work without a packet; 0: at once.
    fn next_deadline_ns<T: Transport>(rpc: &Rpc<T, Self>) -> Option<u64>;

    /// The endpoint is dropped.
    fn end<T: Transport>(rpc: &mut Rpc<T, Self>);
}

/// One thread's endpoint, made by [`crate::Nexus::endpoint`]. Not `Send`: the endpoint, its
/// handlers and its continuations stay on the thread that made it. (`A` is the kind of application;
/// [`crate::Client`] has another one, without closures, whose endpoint can change threads.)
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run_rpc(|mut rpc, uri| {
/// let session = rpc.connect(&uri)?;
/// let mut request = rpc.alloc(3)?;
/// request.copy_from_slice(b"key");
/// rpc.call(session, ECHO, request, |cx, done| {
///     assert_eq!(&done.result.expect("the server is there")[..], b"key");
///     cx.stop();
/// })?;
/// rpc.run()?;
/// # Ok(()) }) }
/// ```
///
/// # Order of calls
/// Register handlers ([`Rpc::on`]), connect sessions ([`Rpc::connect`]), then drive the event
/// loop: [`Rpc::run`], [`Rpc::run_until`], or [`Rpc::poll`] from your own loop, which may sleep on
/// [`Rpc::event_fd`].
pub struct Rpc<T: Transport = AnyTransport, A: Events = OnThread> {
    pub(crate) transport: T,
    pub(crate) core: Core<A>,
    pub(crate) handlers: A::Handlers,
    pub(super) burst: TxBurst,
    pub(crate) mailbox: Mailbox,
    pub(super) workers: A::Workers,
    pub(super) control_plane: Control,
    pub(crate) connections: Connections,
    pub(crate) index: u16,
    pub(crate) event_loop: Loop,
    pub(super) flood: Flood,
}

impl<T: Transport, A: Events> std::fmt::Debug for Rpc<T, A> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rpc")
            .field("index", &self.index)
            .field("local_addr", &self.transport.local_addr())
            .field("sessions", &self.core.proto.live_sessions())
            .finish_non_exhaustive()
    }
}

/// The parts that all endpoints of a nexus share.
pub(crate) struct Shared<'a> {
    pub(crate) config: &'a Config,
    pub(crate) platform: &'a Platform,
    pub(crate) control: &'a Control,
    pub(crate) workers: &'a Pool,
    pub(crate) links: &'a Links,
}

impl<T: Transport, A: Events> Rpc<T, A> {
    /// Makes an endpoint.
    ///
    /// # Errors
    /// A setting is out of range, or the system refuses a descriptor.
    pub(crate) fn new(
        transport: T,
        index: u16,
        of: &Shared<'_>,
        handlers: A::Handlers,
    ) -> Result<Self, BindError> {
        let Shared { config, platform, control, workers, links } = *of;
        let caps = transport.caps();
        let proto_config = config.for_transport(caps);
        let line_rate_bps = proto_config.line_rate_bps;
        let arena_config = ArenaConfig {
            limit_bytes: config.memory_limit,
            data_per_packet: caps.max_frame.saturating_sub(FRAME_HEADER + PACKET_HEADER).max(256),
            headroom: caps.headroom,
        };
        // Many machines of one simulation share this computer's memory.
        let small = platform.is_virtual();
        let huge = if small { HugePages::Never } else { HugePages::Auto };
        let source = transport.memory().unwrap_or_else(|| Arc::new(Heap { huge }));
        let arena = Arena::new(source, arena_config);
        let arena = arena.map_err(|e| BindError::Memory(e.to_string()))?;
        let id = platform.random_u64();
        let Caps { max_frame, gather, tailroom, .. } = *caps;
        let framing = Framing { max_frame, gather, tailroom };
        let mut proto = Endpoint::new(proto_config, arena, id, framing)?;
        proto.set_backlog(transport.tx_backlog());
        let mailbox = Mailbox::new(platform, index)?;
        let event_loop = Loop::new(config, platform, &transport, &mailbox)?;
        let max_streams = config.max_streams_per_peer;
        let local = Local {
            scheme: caps.scheme,
            port: transport.local_addr().port,
            max_frame: caps.max_frame,
        };
        control.send(Command::Register { index, id, mailbox: mailbox.clone(), accepts: false });
        let link = links.of(transport.local_addr(), line_rate_bps);
        let mut core =
            Core::new(proto, platform.clone(), index, local, mailbox.clone(), max_streams);
        core.share_link(link);
        Ok(Rpc {
            core,
            transport,
            handlers,
            burst: VecDeque::new(),
            mailbox,
            workers: A::workers(workers),
            control_plane: control.clone(),
            connections: Connections::new(config, platform),
            index,
            event_loop,
            flood: Flood::default(),
        })
    }

    /// Returns whether the transport has taken all frames.
    pub(crate) fn is_flushed(&self) -> bool {
        self.burst.is_empty()
    }

    /// The endpoint as handlers use it, for code outside of handlers.
    #[inline]
    pub fn context(&mut self) -> Context<'_, A> {
        Context { core: &mut self.core, request: None }
    }
}

impl<T: Transport> Rpc<T> {
    #[track_caller]
    pub(crate) fn register(&mut self, req_type: u16, handler: Handler) {
        let at = usize::from(req_type);
        self.handlers.assert_free(&self.handlers.by_type, req_type);
        if self.handlers.by_type.len() <= at {
            self.handlers.by_type.resize_with(at + 1, || None);
        }
        self.handlers.by_type[at] = Some(self.handlers.gated(req_type, handler, false));
        self.accept_sessions();
    }

    /// Registers the handler for requests of a method that have metadata. Without one they are passed
    /// to the handler of others, as futures of this thread need it.
    pub(crate) fn register_marked(&mut self, req_type: u16, handler: Handler) {
        let handler = self.handlers.gated(req_type, handler, false);
        self.handlers.marked.insert(req_type, handler);
    }

    /// The same for one-way messages.
    pub(crate) fn register_marked_message(&mut self, msg_type: u16, handler: Handler) {
        let handler = self.handlers.gated(msg_type, handler, true);
        self.handlers.marked_messages.insert(msg_type, handler);
    }

    /// Accepts sessions of clients from now on.
    pub(crate) fn accept_sessions(&mut self) {
        if !std::mem::replace(&mut self.handlers.accepts, true) {
            self.control_plane.send(Command::SetAccepts { index: self.index, accepts: true });
        }
    }

    /// Refuses new sessions of clients.
    pub(crate) fn refuse_sessions(&self) {
        self.control_plane.send(Command::SetAccepts { index: self.index, accepts: false });
    }
}

impl<T: Transport, A: Events> Drop for Rpc<T, A> {
    fn drop(&mut self) {
        if self.core.process.was_forked() {
            return; // the control thread and the workers are those of the other process
        }
        self.control_plane.send(Command::Unregister { index: self.index });
        A::end(self);
    }
}
