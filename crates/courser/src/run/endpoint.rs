//! The state of an endpoint, and its handlers. Its methods are in the other files of this folder and of
//! [`crate::rpc`].

use std::marker::PhantomData;

use courser_buf::TxBurst;
use courser_net::{AnyTransport, Transport};

use crate::control::mailbox::{Answer, Mailbox};
use crate::control::{Command, Control, Mail};
use crate::core::Core;
use crate::core::context::Context;
use crate::core::handler::{Conclude, Handler, OnNotice, OnRoom};
use crate::run::connections::Connections;
use crate::run::event_loop::Loop;
use crate::run::flood::Flood;
use crate::run::worker::Workers;
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
    pub(crate) control_plane: Control,
    pub(crate) connections: Connections,
    pub(crate) index: u16,
    /// The limit of open files is too low for the settings of the nexus.
    pub(crate) open_files_warning: Option<String>,
    pub(crate) accepts: bool,
    pub(crate) event_loop: Loop,
    pub(crate) flood: Flood,
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
            self.control_plane.send(Command::SetAccepts { index: self.index, accepts: true });
        }
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
        drop(self.core.tasks.take_futures());
        self.detach_workers();
        self.handlers.services.drain_token().set();
    }
}
