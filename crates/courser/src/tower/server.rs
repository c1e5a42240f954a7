//! Layers around the handlers of a server.

use std::future::{Future, poll_fn, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use courser_buf::MsgBuf;
use tower_layer::Layer;

use super::arrived::Arrived;
use super::call::{AnswerFuture, BoxError, CallService, Next, Parts, Request, Response, pass};
use crate::core::message::{Reply, ReplySink, to_message};
use crate::service::{
    CallOutcome, Caller, Denied, MethodKind, MethodOf, Received, Refusal, RefusalReply,
    RegisterError, Registry, Service, Services, outcome_of, tag,
};

/// A typed service for [`crate::Server::add_service`], with a layer, or a stack of them
/// (`tower::ServiceBuilder`), around the handlers of its methods: whole calls and one-way messages, and the
/// openings of streams. See [the module](crate::tower).
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
        let Some(method) = services.method_info(number) else {
            return self.registry.on_request(number, handler);
        };
        // Layers read metadata, and the client.
        services.set_asking(number);
        let (handler, layers) = (Arc::new(handler), self.layers.clone());
        match method.kind {
            MethodKind::Unary => self.registry.on_request(number, move |received| {
                answer(received, method, handler.clone(), layers.clone(), services.clone())
            }),
            _ => self.registry.on_request(number, move |received| {
                open(received, method, handler.clone(), layers.clone(), services.clone())
            }),
        }
    }

    fn on_message<H, F>(&mut self, number: u16, handler: H)
    where
        H: Fn(Received<'_>) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
        let services = self.services().clone();
        let Some(method) = services.method_info(number) else {
            return self.registry.on_message(number, handler);
        };
        services.set_asking(number);
        let (handler, layers) = (Arc::new(handler), self.layers.clone());
        self.registry.on_message(number, move |received| {
            deliver(received, method, handler.clone(), layers.clone(), services.clone())
        });
    }
}

/// A request for the layers, behind which `run` is called.
fn request(
    (method, caller): (MethodOf, &Caller),
    body: MsgBuf,
    run: impl FnOnce(Parts) -> AnswerFuture + Send + 'static,
) -> Request {
    let metadata = caller.arrived.as_ref().map(|arrived| arrived.metadata.clone());
    let (peer, deadline) = (caller.peer, caller.time_left());
    let parts = Parts { metadata: metadata.unwrap_or_default(), body, deadline };
    let MethodOf { service, method, kind } = method;
    Request { service, method, kind, peer, parts, passage: Arc::default(), run: Box::new(run) }
}

/// The refusal of a request whose layers have returned an error.
fn refusal(services: &Services, (error, has_passed): (BoxError, bool)) -> Refusal {
    match error.downcast::<Denied>() {
        Ok(denied) if !has_passed => services.denied(*denied),
        // The handler may have run, so it is no refusal.
        Ok(denied) => Refusal::Layer(denied.to_string().into(), true),
        Err(error) => Refusal::Layer(error.to_string().into(), has_passed),
    }
}

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Passes a request to the layers, behind which its handler runs.
fn answer<H, F>(
    received: Received<'_>,
    method: MethodOf,
    handler: Arc<H>,
    layers: impl CallService,
    services: Services,
) -> Boxed<Answered>
where
    H: Fn(Received<'_>) -> F + Send + Sync + 'static,
    F: Future + Send + 'static,
    F::Output: Reply + Send,
{
    let (arrived, body) = match Arrived::new(received, &services, false) {
        Ok(arrived) => arrived,
        Err(refusal) => return Box::pin(ready(Answered::Refused(refusal))),
    };
    let (caller, arena) = (arrived.caller.clone(), arrived.arena.clone());
    let request = request((method, &caller), body, move |parts| {
        Box::pin(async move {
            let reply = arrived.begin(parts, &*handler).await.await;
            Ok(Response(to_message(reply, &arena)?))
        })
    });
    let answered = pass(layers, request);
    Box::pin(async move {
        match answered.await {
            Ok(Response(answer)) => Answered::Response(answer),
            Err(e) => Answered::Refused(refusal(&services, e)),
        }
    })
}

/// Passes the opening of a stream to the layers, behind which its handler begins. Their answer is that the
/// stream is open, or its end if it has ended at once; the stream goes on without them.
fn open<H, F>(
    received: Received<'_>,
    method: MethodOf,
    handler: Arc<H>,
    layers: impl CallService,
    services: Services,
) -> Boxed<Opened<F::Output>>
where
    H: Fn(Received<'_>) -> F + Send + Sync + 'static,
    F: Future + Send + 'static,
    F::Output: Reply + Send,
{
    let (arrived, body) = match Arrived::new(received, &services, false) {
        Ok(arrived) => arrived,
        Err(refusal) => return Box::pin(ready(Opened::Ended(Answered::Refused(refusal)))),
    };
    let opened: Arc<Mutex<Option<Boxed<F::Output>>>> = Arc::default();
    let place = opened.clone();
    let (caller, arena) = (arrived.caller.clone(), arrived.arena.clone());
    let request = request((method, &caller), body, move |parts| {
        Box::pin(async move {
            let mut stream: Boxed<F::Output> = Box::pin(arrived.begin(parts, &*handler).await);
            // The handler accepts its stream when it is polled first, or ends.
            let polled = poll_fn(|cx| Poll::Ready(stream.as_mut().poll(cx))).await;
            let answer = match polled {
                Poll::Ready(reply) => to_message(reply, &arena)?,
                Poll::Pending => {
                    *lock(&place) = Some(stream);
                    to_message([tag::OK], &arena)?
                }
            };
            Ok(Response(answer))
        })
    });
    let answered = pass(layers, request);
    Box::pin(async move {
        let answered = answered.await;
        let stream = lock(&opened).take();
        match (answered, stream) {
            (Ok(_), Some(stream)) => Opened::Stream(stream.await),
            (Ok(Response(answer)), None) => Opened::Ended(Answered::Response(answer)),
            // It drops a stream that was open.
            (Err(e), _) => Opened::Ended(Answered::Refused(refusal(&services, e))),
        }
    })
}

fn lock<T>(place: &Mutex<T>) -> MutexGuard<'_, T> {
    place.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes a one-way message to the layers, behind which its handler runs.
fn deliver<H, F>(
    received: Received<'_>,
    method: MethodOf,
    handler: Arc<H>,
    layers: impl CallService,
    services: Services,
) -> Boxed<()>
where
    H: Fn(Received<'_>) -> F + Send + Sync + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    let cells = received.cells();
    // Its handler ends well.
    let count = move |refusal: Refusal| {
        cells.iter().for_each(|cells| cells.error(refusal.outcome()));
    };
    let (arrived, body) = match Arrived::new(received, &services, true) {
        Ok(arrived) => arrived,
        Err(refusal) => {
            count(refusal);
            return Box::pin(ready(()));
        }
    };
    let (caller, arena) = (arrived.caller.clone(), arrived.arena.clone());
    let request = request((method, &caller), body, move |parts| {
        Box::pin(async move {
            arrived.begin(parts, &*handler).await.await;
            Ok(Response(to_message([tag::OK], &arena)?))
        })
    });
    let delivered = pass(layers, request);
    Box::pin(async move {
        if let Err(e) = delivered.await {
            count(refusal(&services, e));
        }
    })
}

/// The end of a stream whose opening has passed the layers.
enum Opened<R> {
    Stream(R),
    Ended(Answered),
}

impl<R: Reply> Reply for Opened<R> {
    fn outcome(&self) -> CallOutcome {
        match self {
            Opened::Stream(reply) => reply.outcome(),
            Opened::Ended(answered) => answered.outcome(),
        }
    }

    fn send_to<A: ReplySink>(self, to: A) -> A::Output {
        match self {
            Opened::Stream(reply) => reply.send_to(to),
            Opened::Ended(answered) => answered.send_to(to),
        }
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
