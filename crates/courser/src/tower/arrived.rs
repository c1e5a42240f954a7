//! Requests that layers have, on their way to the handler.

use std::future::Future;
use std::sync::Arc;

use courser_buf::{Arena, MsgBuf};

use super::call::Parts;
use crate::core::shares::{Client, FindClient};
use crate::counts::MethodCells;
use crate::service::trailer;
use crate::service::{
    Caller, Charge, LARGE, Received, Refusal, Services, SessionKey, Source, current,
};

/// A request, a message, or the opening of a stream.
#[derive(Clone)]
pub(super) struct Arrived {
    session: SessionKey,
    pub(super) arena: Arena,
    limit: usize,
    pub(super) caller: Caller,
    client: Option<Arc<Client>>,
    services: Services,
    /// The counters of the method.
    cells: Option<Arc<MethodCells>>,
    is_message: bool,
}

impl Arrived {
    /// Takes the body of what was received.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(super) fn new(
        received: Received<'_>,
        services: &Services,
        is_message: bool,
    ) -> Result<(Self, MsgBuf), Refusal> {
        let arrived = Arrived {
            session: received.session(),
            arena: received.arena().clone(),
            limit: received.limit(),
            caller: received.caller(),
            client: received.client(),
            services: services.clone(),
            cells: received.cells(),
            is_message,
        };
        let body = received.take().map_err(|e| services.undecoded(e.into()))?;
        Ok((arrived, body))
    }

    /// The control connection of the client, by which clients take turns; 0: it has ended.
    fn control(&self) -> u64 {
        self.client.as_ref().map_or(0, |client| client.control())
    }

    /// Passes it to the handler, which decodes it. Returns the handler's future.
    pub(super) async fn begin<H, F>(
        mut self,
        parts: Parts,
        handler: &H,
    ) -> impl Future<Output = F::Output> + use<H, F>
    where
        H: Fn(Received<'_>) -> F,
        F: Future,
    {
        let Parts { metadata, body, .. } = parts;
        let answers = self.caller.arrived.as_ref().is_some_and(|arrived| arrived.answers);
        let arrived = Arc::new(trailer::Arrived { metadata, answers });
        let passed = arrived.passed();
        self.caller.arrived = Some(arrived);
        let turn = match body.len() < LARGE {
            true => None,
            false => Some(self.services.load().turn(self.control()).await),
        };
        let limit = self.arena.config().limit_bytes;
        let charge = Charge::new(self.services.load(), limit).of_client(self.client.as_ref());
        let future = {
            let received = Received::owned(body, self.session, &self.arena, self.limit);
            let (received, cells) = (received.charged_to(&charge).of(&self), self.cells.as_ref());
            let received = match self.is_message {
                true => received.counted_message(cells),
                false => received.counted(cells),
            };
            current::with(passed.clone(), || handler(received))
        };
        drop(turn);
        let (bytes, client) = charge.keep();
        let kept = (bytes > 0).then(|| Kept { services: self.services.clone(), client, bytes });
        async move {
            let _kept = kept;
            match passed {
                Some(passed) => current::Passing::new(passed, future).await,
                None => future.await,
            }
        }
    }
}

/// The heap of the arguments of a request, until its handler has ended.
struct Kept {
    services: Services,
    client: Option<Arc<Client>>,
    bytes: usize,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.services.load().free(self.bytes, self.client.as_deref());
    }
}

impl std::fmt::Debug for Arrived {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arrived").field("caller", &self.caller).finish_non_exhaustive()
    }
}

impl FindClient for Arrived {
    fn find(&self) -> Option<Arc<Client>> {
        self.client.clone()
    }
}

impl Source for Arrived {
    fn caller(&self) -> Caller {
        self.caller.clone()
    }
}
