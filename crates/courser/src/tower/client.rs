//! Layers around the calls of a client.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::num::NonZeroU16;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use courser_buf::{AllocError, MsgBuf};
use courser_proto::{Body, CallError};
use tower_layer::Layer;

use super::call::{
    AnswerFuture, BoxError, CallService, Next, Parts, Passage, Request, Response, executed,
    failure, pass,
};
use crate::channel::greeting::Greeting;
use crate::channel::method::{MARKED, MethodInfo, ServiceInfo};
use crate::channel::{CallClock, PAUSED};
use crate::client::{Client, ClientCall, ClientSend};
use crate::counts::ServiceCells;
use crate::error::failure::CallFailure;
use crate::service::trailer::{self, Arrived};
use crate::service::{BlockingChannel, CallOptions, Channel, MethodId, MethodKind};

/// A [`Client`] whose typed unary calls pass layers, as the connection of typed clients:
/// `KvClient::new(LayeredClient::new(client, layer))`. See [the module](crate::tower). Streams and one-way
/// messages pass without them.
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use courser::tower::LayeredClient;
/// use tower::ServiceBuilder;
///
/// let layers = ServiceBuilder::new().concurrency_limit(8);
/// let client = courser::Client::connect(&uri).await?;
/// let store = StoreClient::new(LayeredClient::new(client, layers)).await?;
/// assert_eq!(store.get("apple".to_owned()).await?, "about apple");
/// # Ok(()) }) }
/// ```
#[derive(Clone)]
pub struct LayeredClient<S> {
    client: Client,
    service: S,
    /// The services of the typed clients, by their numbers.
    services: Arc<Mutex<BTreeMap<NonZeroU16, &'static ServiceInfo>>>,
}

impl<S> fmt::Debug for LayeredClient<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayeredClient").field("client", &self.client).finish_non_exhaustive()
    }
}

impl<S: CallService> LayeredClient<S> {
    /// Puts a layer, or a stack of them (`tower::ServiceBuilder`), around the calls of a client.
    pub fn new(client: Client, layer: impl Layer<Next, Service = S>) -> Self {
        let services = Arc::new(Mutex::new(BTreeMap::new()));
        LayeredClient { client, service: layer.layer(Next), services }
    }

    /// The client, whose own calls have no layers.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The unary method of a call. `None`: it has no layers.
    fn method(&self, method: MethodId) -> Option<(&'static ServiceInfo, &'static MethodInfo)> {
        let services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        let info = *services.get(&method.service?)?;
        let at = usize::from(method.number & !MARKED);
        let is_unary = info.shapes().get(at)?.kind() == MethodKind::Unary;
        is_unary.then_some((info, info.methods.get(at)?))
    }

    fn start(&self, method: MethodId, request: MsgBuf, options: CallOptions) -> LayeredCall {
        let plain =
            |request| LayeredCall(State::Plain(self.client.call_method(method, request, options)));
        let Some((info, called)) = self.method(method) else { return plain(request) };
        let (arrived, body) = match method.number & MARKED {
            0 => (Arrived::default(), request),
            _ => match trailer::split(Body::Owned(request)) {
                Ok((arrived, Body::Owned(body))) => (arrived, body),
                // The trailer was written by this client.
                _ => return LayeredCall(State::Failed(Some(CallFailure::Stopped))),
            },
        };
        let Arrived { metadata, answers } = arrived;
        let (client, service) = (self.client.clone(), self.service.clone());
        LayeredCall(State::Layered(Box::pin(async move {
            let limit = Limit::begin(&client, options.deadline);
            let (own, ends) = (client.clone(), limit.ends);
            let run = Box::new(move |parts: Parts| {
                let left = ends.map(|ends| left(&own, ends));
                let deadline = [parts.deadline, left].into_iter().flatten().min();
                let call = call(own, method, Parts { deadline, ..parts }, answers, options);
                Box::pin(async move { Ok(Response(call?.await?)) }) as AnswerFuture
            });
            let (parts, passage) =
                (Parts { metadata, body, deadline: limit.after }, Arc::default());
            let way = Arc::clone(&passage);
            let (of, method, peer) = (info.name, called.name, None);
            let kind = MethodKind::Unary;
            let request = Request { service: of, method, kind, peer, parts, passage, run };
            limit.of(&client, pass(service, request), &way).await
        })))
    }
}

/// The deadline of a call, in which its layers wait too.
struct Limit {
    /// From its begin.
    after: Option<Duration>,
    ends: Option<Instant>,
}

impl Limit {
    /// The call is polled for the first time.
    fn begin(client: &Client, own: Option<Duration>) -> Self {
        let after = [own, client.time_left()].into_iter().flatten().min();
        let ends = after.and_then(|after| client.clock().0.now().checked_add(after));
        Limit { after, ends }
    }

    /// Runs a call, and ends it if its layers have not done so by then.
    async fn of(
        self,
        client: &Client,
        call: impl Future<Output = Result<Response, (BoxError, bool)>>,
        passage: &Passage,
    ) -> Result<MsgBuf, CallFailure> {
        let mut call = pin!(call);
        let mut timer = self.after.and_then(|after| client.pause(after));
        poll_fn(|cx| {
            if let Poll::Ready(answered) = call.as_mut().poll(cx) {
                return Poll::Ready(answered.map(|answer| answer.0).map_err(failure));
            }
            if let Some(pause) = &mut timer {
                let over = ready!(Pin::new(pause).poll(cx));
                timer = None;
                if over.is_err_and(|e| e == PAUSED) {
                    let executed = executed(passage.end());
                    return Poll::Ready(Err(CallError::DeadlineExceeded(executed).into()));
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// The time until the end of a call.
fn left(client: &Client, ends: Instant) -> Duration {
    ends.saturating_duration_since(client.clock().0.now())
}

/// The call behind the layers.
fn call(
    client: Client,
    method: MethodId,
    parts: Parts,
    answers: bool,
    options: CallOptions,
) -> Result<ClientCall, BoxError> {
    let Parts { metadata, mut body, deadline } = parts;
    let options = CallOptions { deadline, ..options };
    let mut number = method.number & !MARKED;
    if answers || !metadata.is_empty() {
        let trailer = trailer::of_request(&metadata, if answers { trailer::ANSWERS } else { 0 });
        let alloc = |len| client.alloc_recycled(len);
        body =
            trailer::append(body, &trailer, Channel::limit(&client), alloc).map_err(|(_, e)| e)?;
        number |= MARKED;
    }
    Ok(client.call_method(MethodId { number, ..method }, body, options))
}

/// A call of a [`LayeredClient`].
///
/// ```
/// # use courser_example_store::*;
/// # fn main() -> Done { run(async |uri| {
/// use courser::service::{CallOptions, Channel};
/// use courser::tower::{LayeredCall, LayeredClient};
/// use tower::layer::util::Identity;
///
/// let client = LayeredClient::new(courser::Client::connect(&uri).await?, Identity::new());
/// // A call without a service passes no layers.
/// let call: LayeredCall = client.call(ECHO, client.alloc(8)?, CallOptions::default());
/// assert_eq!(call.await?.len(), 8);
/// # Ok(()) }) }
/// ```
#[must_use = "futures do nothing unless they are polled"]
pub struct LayeredCall(State);

enum State {
    Plain(ClientCall),
    Layered(Pin<Box<dyn Future<Output = Result<MsgBuf, CallFailure>> + Send>>),
    Failed(Option<CallFailure>),
}

impl fmt::Debug for LayeredCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LayeredCall").finish_non_exhaustive()
    }
}

impl Future for LayeredCall {
    type Output = Result<MsgBuf, CallFailure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            State::Plain(call) => Pin::new(call).poll(cx),
            State::Layered(call) => call.as_mut().poll(cx),
            State::Failed(failure) => failure.take().map_or(Poll::Pending, |e| Poll::Ready(Err(e))),
        }
    }
}

impl<S: CallService> Channel for LayeredClient<S> {
    type Call<'a> = LayeredCall;
    type Sent<'a> = ClientSend;
    type Another<'a> = Pin<Box<dyn Future<Output = Result<Self, CallFailure>> + Send>>;
    type OwnedCall = LayeredCall;

    fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        self.client.alloc_recycled(len)
    }

    fn limit(&self) -> usize {
        Channel::limit(&self.client)
    }

    fn call(&self, req_type: u16, request: MsgBuf, options: CallOptions) -> LayeredCall {
        LayeredCall(State::Plain(Channel::call(&self.client, req_type, request, options)))
    }

    fn call_owned(&self, req_type: u16, request: MsgBuf, options: CallOptions) -> LayeredCall {
        Channel::call(self, req_type, request, options)
    }

    fn send(&self, msg_type: u16, message: MsgBuf, options: CallOptions) -> ClientSend {
        Channel::send(&self.client, msg_type, message, options)
    }

    fn another(&self, options: CallOptions) -> Self::Another<'_> {
        let (another, of) = (Channel::another(&self.client, options), self.clone());
        Box::pin(async move { Ok(LayeredClient { client: another.await?, ..of }) })
    }

    fn adopt(&self, greeting: Greeting) -> Option<NonZeroU16> {
        let info = greeting.info;
        let number = self.client.adopt(greeting)?;
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        services.insert(number, info);
        Some(number)
    }

    fn call_method(&self, method: MethodId, request: MsgBuf, options: CallOptions) -> LayeredCall {
        self.start(method, request, options)
    }

    fn open_method(&self, method: MethodId, request: MsgBuf, options: CallOptions) -> LayeredCall {
        self.start(method, request, options)
    }

    fn send_method(&self, method: MethodId, message: MsgBuf, options: CallOptions) -> ClientSend {
        self.client.send_method(method, message, options)
    }

    fn clock(&self) -> CallClock {
        self.client.clock()
    }

    fn slots(&self) -> Option<u32> {
        Channel::slots(&self.client)
    }

    fn time_left(&self) -> Option<Duration> {
        self.client.time_left()
    }

    fn pause(&self, after: Duration) -> Option<LayeredCall> {
        self.client.pause(after).map(|pause| LayeredCall(State::Plain(pause)))
    }

    fn random(&self) -> u64 {
        self.client.random()
    }

    fn is_usable(&self) -> bool {
        self.client.is_usable()
    }

    const COUNTS: bool = <Client as Channel>::COUNTS;

    fn counts(&self, info: &ServiceInfo) -> Option<ServiceCells> {
        self.client.counts(info)
    }

    fn reading(&self) -> u64 {
        self.client.reading()
    }

    fn since_ns(&self, begun: u64) -> u64 {
        self.client.since_ns(begun)
    }
}

impl<S: CallService> BlockingChannel for LayeredClient<S> {
    fn wait<F: Future>(&self, future: F) -> F::Output {
        self.client.wait(future)
    }
}
