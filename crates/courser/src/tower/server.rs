//! Layers around the handlers of a server.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use courser_buf::{Arena, MsgBuf};
use tower_layer::Layer;

use super::call::{AnswerFuture, BoxError, CallService, Next, Parts, Request, Response, pass};
use crate::core::message::{Reply, ReplySink, to_message};
use crate::core::shares::{Client, FindClient};
use crate::service::trailer;
use crate::service::{
    CallOutcome, Caller, Charge, Denied, LARGE, MethodKind, MethodOf, Received, Refusal,
    RefusalReply, RegisterError, Registry, Service, Services, SessionKey, Source, current,
    outcome_of,
};

/// A typed service for [`crate::Server::add_service`], with a layer, or a stack of them
/// (`tower::ServiceBuilder`), around the handlers of its unary methods. See [the module](crate::tower).
///
/// ```
/// # use courser_example_store::*;
/// use courser::Server;
/// use courser::tower::layered;
/// use tower::limit::ConcurrencyLimitLayer;
///
/// # fn main() -> Done {
/// let store = layered(StoreServer::new(Texts), ConcurrencyLimitLayer::new(16));
/// let server = Server::bind("udp://127.0.0.1:0")?.add_service(store)?;
/// # let (uri, _serving) = (server.local_uri(), server.serve()?);
/// # futures::executor::block_on(async {
/// assert_eq!(StoreClient::connect(&uri).await?.len("apple".to_owned()).await?, 5);
/// # Ok(()) }) }
/// ```
pub fn layered<V, L>(service: V, layer: L) -> Layered<V, L> {
    Layered { service, layer }
}

/// A service with layers: [`layered`].
///
/// ```
/// # use courser_example_store::*;
/// use courser::Server;
/// use std::sync::Arc;
///
/// use courser::tower::{Layered, layered};
/// use tower::limit::ConcurrencyLimitLayer;
///
/// /// A function that makes a service with its layers.
/// fn store(most: usize) -> Layered<StoreServer<Arc<Texts>>, ConcurrencyLimitLayer> {
///     layered(StoreServer::new(Texts), ConcurrencyLimitLayer::new(most))
/// }
///
/// # fn main() -> Done {
/// let server = Server::bind("udp://127.0.0.1:0")?.add_service(store(16))?;
/// assert!(server.local_uri().starts_with("udp://"));
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Layered<V, L> {
    service: V,
    layer: L,
}

impl<V: Service, L: Layer<Next, Service: CallService>> Service for Layered<V, L> {
    fn register<R: Registry>(self, registry: &mut R) -> Result<(), RegisterError> {
        let layers = self.layer.layer(Next);
        self.service.register(&mut Layers { registry, layers })
    }
}

/// A server that puts layers around the handlers that are registered.
struct Layers<'a, R, S> {
    registry: &'a mut R,
    layers: S,
}

impl<R: Registry, S: CallService> Registry for Layers<'_, R, S> {
    fn services(&self) -> &Services {
        self.registry.services()
    }

    fn is_taken(&self, number: u16) -> bool {
        self.registry.is_taken(number)
    }

    fn on_request<H, F>(&mut self, number: u16, handler: H)
    where
        H: Fn(Received<'_>) -> F + Send + Sync + 'static,
        F: Future + Send + 'static,
        F::Output: Reply + Send,
    {
        let services = self.services().clone();
        let method = services.method_info(number).filter(|m| m.kind == MethodKind::Unary);
        let Some(method) = method else { return self.registry.on_request(number, handler) };
        // Layers read metadata, and the client.
        services.set_asking(number);
        let (handler, layers) = (Arc::new(handler), self.layers.clone());
        self.registry.on_request(number, move |received| {
            let (handler, services) = (handler.clone(), services.clone());
            answer(received, method, handler, layers.clone(), services)
        });
    }

    fn on_message<H, F>(&mut self, number: u16, handler: H)
    where
        H: Fn(Received<'_>) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        self.registry.on_message(number, handler);
    }
}

/// Passes a request to the layers, behind which its handler runs.
fn answer<H, F>(
    received: Received<'_>,
    method: MethodOf,
    handler: Arc<H>,
    layers: impl CallService,
    services: Services,
) -> Pin<Box<dyn Future<Output = Answered> + Send>>
where
    H: Fn(Received<'_>) -> F + Send + Sync + 'static,
    F: Future + Send + 'static,
    F::Output: Reply + Send,
{
    let (caller, client) = (received.caller(), received.client());
    let (session, arena, limit) = (received.session(), received.arena().clone(), received.limit());
    let metadata = caller.arrived.as_ref().map(|arrived| arrived.metadata.clone());
    let (peer, deadline) = (caller.peer, caller.time_left());
    let body = match received.take() {
        Ok(body) => body,
        Err(e) => {
            return Box::pin(std::future::ready(Answered::Refused(services.undecoded(e.into()))));
        }
    };
    let arrived = Arrived { session, arena, limit, caller, client, services: services.clone() };
    let run = Box::new(move |parts: Parts| {
        Box::pin(async move { Ok(Response(arrived.run(parts, &*handler).await?)) }) as AnswerFuture
    });
    let parts = Parts { metadata: metadata.unwrap_or_default(), body, deadline };
    let passage = Arc::default();
    let MethodOf { service, method, .. } = method;
    let request = Request { service, method, peer, parts, passage, run };
    let answered = pass(layers, request);
    Box::pin(async move {
        match answered.await {
            Ok(Response(answer)) => Answered::Response(answer),
            Err((error, has_passed)) => Answered::Refused(match error.downcast::<Denied>() {
                Ok(denied) if !has_passed => services.denied(*denied),
                // The handler may have run, so it is no refusal.
                Ok(denied) => Refusal::Layer(denied.to_string().into(), true),
                Err(error) => Refusal::Layer(error.to_string().into(), has_passed),
            }),
        }
    })
}

/// A request that layers have.
struct Arrived {
    session: SessionKey,
    arena: Arena,
    limit: usize,
    caller: Caller,
    client: Option<Arc<Client>>,
    services: Services,
}

impl Arrived {
    /// Runs the handler. Returns its answer.
    async fn run<H, F>(mut self, parts: Parts, handler: &H) -> Result<MsgBuf, BoxError>
    where
        H: Fn(Received<'_>) -> F,
        F: Future,
        F::Output: Reply,
    {
        let Parts { metadata, body, .. } = parts;
        let answers = self.caller.arrived.as_ref().is_some_and(|arrived| arrived.answers);
        let arrived = Arc::new(trailer::Arrived { metadata, answers });
        let passed = arrived.passed();
        self.caller.arrived = Some(arrived);
        let turn = match body.len() < LARGE {
            true => None,
            false => Some(self.services.load().turn(0).await),
        };
        let limit = self.arena.config().limit_bytes;
        let charge = Charge::new(self.services.load(), limit).of_client(self.client.as_ref());
        let future = {
            let received = Received::owned(body, self.session, &self.arena, self.limit);
            current::with(passed.clone(), || handler(received.charged_to(&charge).of(&self)))
        };
        drop(turn);
        let reply = match passed {
            Some(passed) => current::Passing::new(passed, future).await,
            None => future.await,
        };
        Ok(to_message(reply, &self.arena)?)
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

/// The answer of layers.
enum Answered {
    Response(MsgBuf),
    Refused(Refusal),
}

impl Reply for Answered {
    fn outcome(&self) -> CallOutcome {
        match self {
            Answered::Response(response) => outcome_of(Ok(response)),
            Answered::Refused(refusal) => refusal.outcome(),
        }
    }

    fn send_to<A: ReplySink>(self, to: A) -> A::Output {
        match self {
            Answered::Response(response) => to.msg(response),
            Answered::Refused(refusal) => RefusalReply(refusal).send_to(to),
        }
    }
}
