//! Typed services on a server whose handlers run on any thread.

use std::future::Future;
use std::sync::Arc;

use crate::message::Reply;
use crate::server::Server;
use crate::service::{
    Received, RegisterError, Registry, Service, ServiceStats, Services, SessionKey,
};
use crate::worker::Work;

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

    /// Reads the counters of the typed services, also while the server runs.
    pub fn service_stats(&self) -> impl Fn() -> ServiceStats + Send + Sync + use<> {
        let services = self.services.clone();
        move || services.stats()
    }

    /// Passes a request or message to the handler of a service.
    fn receive<R>(
        limit: usize,
        work: &mut Work,
        handler: impl FnOnce(Received<'_>) -> R,
    ) -> Option<R> {
        let message = work.take()?;
        let session = SessionKey::of(work.endpoint(), work.session());
        Some(handler(Received::owned(message, session, work.arena(), limit)))
    }
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
        let limit = self.nexus.config().max_msg_size as usize;
        let handler = Arc::new(handler);
        self.on(number, move |mut work| {
            let handler = handler.clone();
            // Within the future, so that arguments are decoded where the handler runs.
            async move {
                if let Some(future) = Server::receive(limit, &mut work, &*handler) {
                    let reply = future.await;
                    work.reply(reply);
                }
            }
        });
    }

    fn on_message<H, F>(&mut self, number: u16, handler: H)
    where
        H: Fn(Received<'_>) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let limit = self.nexus.config().max_msg_size as usize;
        let handler = Arc::new(handler);
        self.on_message(number, move |mut work: Work| {
            let handler = handler.clone();
            async move {
                if let Some(future) = Server::receive(limit, &mut work, &*handler) {
                    future.await;
                }
                drop(work); // counts as unfinished until here
            }
        });
    }
}
