//! Typed services on an endpoint's own thread.

use std::future::Future;
use std::sync::Arc;

use courser_net::Transport;
use courser_proto::SessionId;

use crate::core::context::Context;
use crate::core::handler::Handler;
use crate::core::lenders;
use crate::core::message::Reply;
use crate::core::shares::{Client, FindClient};
use crate::counts::MethodStats;
use crate::run::endpoint::Rpc;
use crate::service::{
    Authorize, Caller, LocalRegistry, LocalService, Peer, Received, RegisterError,
    ServerMiddleware, ServiceStats, Services, SessionKey, Source, current,
};

/// The client of a request of an endpoint, and the deadline of the request, ns.
#[derive(Debug)]
struct OfSession<'a>(&'a Context<'a>, SessionId, u64);

impl FindClient for OfSession<'_> {
    fn find(&self) -> Option<Arc<Client>> {
        let core = &self.0.core;
        core.tasks.messages.find(&core.proto, self.1)
    }
}

impl Source for OfSession<'_> {
    fn caller(&self) -> Caller {
        let OfSession(cx, session, expires_ns) = *self;
        let core = &*cx.core;
        let expires = (expires_ns != u64::MAX).then(|| core.deadline(expires_ns)).flatten();
        Caller {
            peer: core.proto.session_peer(session).map(Peer::new),
            expires: expires.map(|deadline| deadline.expires),
            clock: core.clock().clone(),
            watched: None,
            endpoint: Some((lenders::number_of(&core.lender), expires_ns)),
            limit: core.proto.max_msg_size(session).map_or(usize::MAX, |most| most as usize),
            arrived: current::arrived(),
        }
    }
}

fn is_set(handlers: &[Option<Handler>], number: u16) -> bool {
    handlers.get(usize::from(number)).is_some_and(Option::is_some)
}

impl<T: Transport> Rpc<T> {
    /// Adds a typed service ([`crate::service`](mod@crate::service)) on this thread, beside other
    /// services and handlers. Its methods are polled at once, and become tasks when they wait: see
    /// [`Rpc::on_async`].
    ///
    /// # Errors
    /// The endpoint has a service of this name, or a handler without a service has one of the request
    /// types of methods.
    pub fn add_service(&mut self, service: impl LocalService) -> Result<(), RegisterError> {
        service.register_local(self)
    }

    /// Decides which clients may make which requests to this endpoint, also to the handlers and
    /// services that it has already: see [`crate::Server::authorize`]. It replaces an earlier decision.
    pub fn authorize(&mut self, access: impl Authorize) {
        self.handlers.services.set_access(Arc::new(access));
        self.handlers.gate_all();
    }

    /// Adds middleware to this endpoint, also before the services that it has already: see
    /// [`crate::Server::middleware`].
    pub fn middleware(&mut self, middleware: impl ServerMiddleware) {
        self.handlers.services.add_middleware(Arc::new(middleware));
        self.handlers.gate_all();
    }

    /// Counters of the typed services.
    pub fn service_stats(&self) -> ServiceStats {
        self.handlers.services.stats()
    }

    /// Counters of each method of the typed services: see [`MethodStats`].
    pub fn method_stats(&self) -> Vec<MethodStats> {
        self.handlers.services.method_stats()
    }
}

impl<T: Transport> LocalRegistry for Rpc<T> {
    fn services(&self) -> &Services {
        &self.handlers.services
    }

    fn is_taken(&self, number: u16) -> bool {
        is_set(&self.handlers.by_type, number) || is_set(&self.handlers.messages, number)
    }

    fn on_request<H, F>(&mut self, number: u16, mut handler: H)
    where
        H: FnMut(Received<'_>) -> F + 'static,
        F: Future + 'static,
        F::Output: Reply,
    {
        let (endpoint, limit) = (self.index, self.core.proto.config().max_msg_size as usize);
        let arena = self.core.proto.arena().clone();
        self.handlers.services.set_reads_metadata();
        let cells = self.handlers.services.cells(number);
        let method = cells.clone().map(|cells| self.core.tasks.counting.method(cells));
        self.on_async_in(number, method, move |cx, request| {
            let session = SessionKey::of(endpoint, request.session);
            let client = OfSession(cx, request.session, request.expires_ns);
            let received = Received::new(request.body, session, &arena, limit).of(&client);
            handler(received.counted(cells.as_ref()))
        });
    }

    fn on_message<H, F>(&mut self, number: u16, mut handler: H)
    where
        H: FnMut(Received<'_>) -> F + 'static,
        F: Future<Output = ()> + 'static,
    {
        let (endpoint, limit) = (self.index, self.core.proto.config().max_msg_size as usize);
        let arena = self.core.proto.arena().clone();
        let cells = self.handlers.services.cells(number);
        let method = cells.clone().map(|cells| self.core.tasks.counting.method(cells));
        self.on_message_async_in(number, method, move |cx, message| {
            let session = SessionKey::of(endpoint, message.session);
            let client = OfSession(cx, message.session, message.expires_ns);
            let received = Received::new(message.body, session, &arena, limit).of(&client);
            handler(received.counted_message(cells.as_ref()))
        });
    }
}
