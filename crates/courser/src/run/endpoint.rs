//! The state of an endpoint, and its handlers. Its methods are in the other files of this folder and of
//! [`crate::rpc`].

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;

use courser_buf::{Arena, ArenaConfig, Heap, HugePages, TxBurst};
use courser_net::{AnyTransport, Caps, Transport};
use courser_proto::wire::{FRAME_HEADER, PACKET_HEADER};
use courser_proto::{Endpoint, Framing};

use crate::config::Config;
use crate::control::mailbox::Mailbox;
use crate::control::{Command, Control};
use crate::core::context::Context;
use crate::core::handler::{Conclude, Handler, OnNotice, OnRoom};
use crate::core::{Core, Local};
use crate::error::BindError;
use crate::platform::Platform;
use crate::run::connections::Connections;
use crate::run::event_loop::Loop;
use crate::run::flood::Flood;
use crate::run::worker::{Pool, Workers};
use crate::service::{Services, guarded};

/// The functions that the application registered.
#[derive(Default)]
pub(crate) struct Handlers {
    pub(crate) by_type: Vec<Option<Handler>>,
    pub(crate) messages: Vec<Option<Handler>>,
    pub(crate) services: Services,
    pub(crate) on_room: Option<OnRoom>,
    pub(crate) on_notice: Option<OnNotice>,
    pub(crate) on_completion: Option<Box<dyn Conclude>>,
    /// There are handlers for clients, so that sessions are accepted.
    accepts: bool,
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
    pub(super) burst: TxBurst,
    pub(crate) mailbox: Mailbox,
    pub(super) workers: Workers,
    pub(super) control_plane: Control,
    pub(crate) connections: Connections,
    pub(crate) index: u16,
    pub(crate) event_loop: Loop,
    pub(super) flood: Flood,
    _not_send: PhantomData<*const ()>,
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

/// The parts that all endpoints of a nexus share.
pub(crate) struct Shared<'a> {
    pub(crate) config: &'a Config,
    pub(crate) platform: &'a Platform,
    pub(crate) control: &'a Control,
    pub(crate) workers: &'a Pool,
}

impl<T: Transport> Rpc<T> {
    /// Makes the endpoint of this thread.
    ///
    /// # Errors
    /// A setting is out of range, or the system refuses a descriptor.
    pub(crate) fn new(transport: T, index: u16, of: &Shared<'_>) -> Result<Self, BindError> {
        let Shared { config, platform, control, workers } = *of;
        let caps = transport.caps();
        let proto_config = config.for_transport(caps);
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
        let proto = Endpoint::new(proto_config, arena, id, framing)?;
        let mailbox = Mailbox::new(platform, index)?;
        let event_loop = Loop::new(config, platform, &transport, &mailbox)?;
        let max_streams = config.max_streams_per_peer;
        let local = Local {
            scheme: caps.scheme,
            port: transport.local_addr().port,
            max_frame: caps.max_frame,
        };
        control.send(Command::Register { index, id, mailbox: mailbox.clone(), accepts: false });
        Ok(Rpc {
            core: Core::new(proto, platform.clone(), index, local, mailbox.clone(), max_streams),
            transport,
            handlers: Handlers::default(),
            burst: VecDeque::new(),
            mailbox,
            workers: Workers::new(workers.clone()),
            control_plane: control.clone(),
            connections: Connections::new(config, platform),
            index,
            event_loop,
            flood: Flood::default(),
            _not_send: PhantomData,
        })
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
        if !std::mem::replace(&mut self.handlers.accepts, true) {
            self.control_plane.send(Command::SetAccepts { index: self.index, accepts: true });
        }
    }

    /// Refuses new sessions of clients.
    pub(crate) fn refuse_sessions(&self) {
        self.control_plane.send(Command::SetAccepts { index: self.index, accepts: false });
    }

    /// Returns whether the transport has taken all frames.
    pub(crate) fn is_flushed(&self) -> bool {
        self.burst.is_empty()
    }

    /// The endpoint as handlers use it, for code outside of handlers.
    #[inline]
    pub fn context(&mut self) -> Context<'_> {
        Context { core: &mut self.core, request: None }
    }
}

impl<T: Transport> Drop for Rpc<T> {
    fn drop(&mut self) {
        if self.core.process.was_forked() {
            return; // the control thread and the workers are those of the other process
        }
        self.control_plane.send(Command::Unregister { index: self.index });
        // Futures that are dropped queue nothing any more.
        self.core.queue.close();
        self.core.lender.close();
        drop(self.core.tasks.take_futures());
        self.detach_workers();
        self.handlers.services.drain_token().set();
    }
}
