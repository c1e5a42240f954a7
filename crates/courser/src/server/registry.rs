//! Typed services on a server whose handlers run on any thread.

use std::future::Future;
use std::sync::Arc;

use super::counted::Handling;
use crate::core::message::Reply;
use crate::core::shares::{ByControl, Client, FindClient};
use crate::counts::{CallOutcome, MethodCells, MethodStats};
use crate::run::worker::Work;
use crate::server::Server;
use crate::server::control::Control;
use crate::service::{
    Authorize, Caller, Charge, LARGE, Received, RegisterError, Registry, ServerMiddleware, Service,
    ServiceStats, Services, SessionKey, Source, Turn, missing,
};

impl Server {
    /// Adds a typed service ([`crate::service`](mod@crate::service)), beside other services and handlers.
    ///
    /// # Errors
    /// The server has a service of this name, or a handler without a service has one of the request
    /// types of methods.
    pub fn add_service(mut self, service: impl Service) -> Result<Self, RegisterError> {
        service.register(&mut self)?;
        Ok(self)
    }

    /// Decides which clients may make which requests, in place of an earlier decision: see
    /// [`Authorize`]. It is asked about every request, one-way message and stream, before anything of
    /// it is decoded. Clients that are not allowed get the text
    /// ([`crate::service::RpcError::Denied`]), from handlers without a service
    /// [`crate::Status::Denied`]. By default all are allowed, which costs nothing.
    ///
    /// ```no_run
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use courser::Server;
    /// use courser::service::{Denied, Peer, Target};
    ///
    /// let server = Server::bind("udp://0.0.0.0:31850")?;
    /// let server = server.authorize(|peer: &Peer, target: &Target<'_>| {
    ///     let is_local = peer.addr().to_socket().is_some_and(|socket| socket.ip().is_loopback());
    ///     match target.method {
    ///         Some(("Kv", "get" | "scan")) => Ok(()),
    ///         _ if is_local => Ok(()),
    ///         _ => Err(Denied::new("only this machine may do that")),
    ///     }
    /// });
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn authorize(self, access: impl Authorize) -> Self {
        self.services.set_access(Arc::new(access));
        self
    }

    /// Adds middleware: it sees each call of a method of a typed service before the arguments are decoded,
    /// may refuse it or add to its metadata, and sees its end. The first one that is added is the
    /// outermost. See [`ServerMiddleware`]. Without any it costs nothing.
    #[must_use]
    pub fn middleware(self, middleware: impl ServerMiddleware) -> Self {
        self.services.add_middleware(Arc::new(middleware));
        self
    }

    fn shared<H>(&self, number: u16, is_message: bool, handler: H) -> Arc<Shared<H>> {
        let limit = self.nexus.config().max_msg_size as usize;
        let (services, control) = (self.services.clone(), self.control.clone());
        let cells = services.cells(number);
        Arc::new(Shared { handler, services, limit, control, cells, is_message })
    }

    /// Counters of each method of the typed services: see [`MethodStats`]. While the server runs,
    /// [`crate::Serving`] and [`crate::ServerHandle`] have them.
    pub fn method_stats(&self) -> Vec<MethodStats> {
        self.services.method_stats()
    }

    /// Reads the counters of the typed services, also while the server runs.
    pub fn service_stats(&self) -> impl Fn() -> ServiceStats + Send + Sync + use<> {
        let services = self.services.clone();
        move || services.stats()
    }
}

/// A handler of a service, with what its requests share.
struct Shared<H> {
    handler: H,
    services: Services,
    /// The largest message.
    limit: usize,
    control: Arc<Control>,
    /// The counters of the method.
    cells: Option<Arc<MethodCells>>,
    is_message: bool,
}

impl<H> Shared<H> {
    /// Waits until a request may be decoded, if it is large.
    async fn turn(&self, work: &Work) -> Option<Turn<'_>> {
        if work.len() < LARGE {
            return None;
        }
        Some(self.services.load().turn(work.client().unwrap_or_default()).await)
    }

    /// The client of a request.
    fn client(&self, work: &Work) -> ByControl<'_> {
        ByControl { control: work.client(), places: &self.control.published.places }
    }

    /// The account of the heap of a request.
    fn charge(&self, work: &Work) -> Charge<'_> {
        let limit = work.arena().config().limit_bytes;
        Charge::new(self.services.load(), limit).of(self.client(work))
    }

    /// Passes a request or message to the handler, which decodes it.
    fn receive<F>(&self, work: &mut Work, charge: &Charge<'_>) -> Option<F>
    where
        H: Fn(Received<'_>) -> F,
    {
        let message = work.take()?;
        let received = Received::owned(message, session(work), work.arena(), self.limit);
        let client = Sender { work, client: self.client(work) };
        let (received, cells) = (received.charged_to(charge).of(&client), self.cells.as_ref());
        let received = match self.is_message {
            true => received.counted_message(cells),
            false => received.counted(cells),
        };
        if !work.is_observed() {
            return Some((self.handler)(received));
        }
        let (future, missed) = missing(|| (self.handler)(received));
        if let Some(outcome) = missed {
            work.end_observed(outcome);
        }
        Some(future)
    }

    /// Runs the handler of a request or message, and passes its result to `end`. It is the future that
    /// the spawner polls, so that arguments are decoded where the handler runs.
    async fn run<F: Future>(
        self: Arc<Self>,
        mut work: Work,
        outcome: fn(&F::Output) -> CallOutcome,
        end: impl FnOnce(Work, F::Output),
    ) where
        H: Fn(Received<'_>) -> F,
    {
        let mut handling =
            self.cells.as_deref().map(|cells| Handling::begin(cells, work.expires()));
        let turn = self.turn(&work).await;
        let charge = self.charge(&work);
        let future = self.receive(&mut work, &charge);
        drop(turn);
        if let Some(future) = future {
            let output = future.await;
            if let Some(handling) = &mut handling {
                handling.end(outcome(&output));
            }
            end(work, output);
        }
    }
}

/// The client of a request, which describes its origin.
#[derive(Debug)]
struct Sender<'a> {
    work: &'a Work,
    client: ByControl<'a>,
}

impl FindClient for Sender<'_> {
    fn find(&self) -> Option<Arc<Client>> {
        self.client.find()
    }
}

impl Source for Sender<'_> {
    fn caller(&self) -> Caller {
        self.work.caller()
    }
}

fn session(work: &Work) -> SessionKey {
    SessionKey::of(work.endpoint(), work.session())
}

impl Registry for Server {
    fn services(&self) -> &Services {
        &self.services
    }

    fn is_taken(&self, number: u16) -> bool {
        let has = |of: &[(u16, super::Handler)]| of.iter().any(|(known, _)| *known == number);
        has(&self.requests) || has(&self.messages)
    }

    fn on_request<H, F>(&mut self, number: u16, handler: H)
    where
        H: Fn(Received<'_>) -> F + Send + Sync + 'static,
        F: Future + Send + 'static,
        F::Output: Reply + Send,
    {
        self.services.set_reads_metadata();
        let shared = self.shared(number, false, handler);
        self.on(number, move |work| {
            shared.clone().run(work, F::Output::outcome, |work, reply| work.reply(reply))
        });
    }

    fn on_message<H, F>(&mut self, number: u16, handler: H)
    where
        H: Fn(Received<'_>) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let shared = self.shared(number, true, handler);
        // A message counts as unfinished until it is dropped.
        self.on_message(number, move |work| {
            shared.clone().run(work, |()| CallOutcome::Ok, |work, ()| drop(work))
        });
    }
}
