//! Retries by verdict, default deadlines, and layers of tower, over real sockets.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use courser::service::{
    BlockingChannel, CallOptions, Channel, Denied, IncomingCall, MidStreamError, NoError, Retries,
    RetryPolicy, RpcError, ServerMiddleware, Stream,
};
use courser::{
    AllocError, CallError, CallFailure, Client, ClientCall, ClientSend, Executed, MsgBuf, Server,
};

const MS: Duration = Duration::from_millis(1);

#[courser::service]
trait Desk {
    #[idempotent]
    async fn read(&self) -> u64;
    async fn write(&self) -> u64;
    #[deadline("30 ms")]
    async fn slow(&self);
    async fn hold(&self);
    fn items(&self) -> impl Stream<Item = u64>;
}

/// Counts the handlers that began.
#[derive(Clone, Default)]
struct Begun(Arc<AtomicU64>);

impl Desk for Begun {
    async fn read(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
    async fn write(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
    async fn slow(&self) {
        std::future::pending::<()>().await;
    }
    async fn hold(&self) {
        std::future::pending::<()>().await;
    }
    fn items(&self) -> impl Stream<Item = u64> {
        futures::stream::pending()
    }
}

/// Refuses the first calls.
struct Refuses {
    left: AtomicU64,
    after: Duration,
}

impl Refuses {
    fn first(calls: u64, after: Duration) -> Self {
        Refuses { left: AtomicU64::new(calls), after }
    }
}

impl ServerMiddleware for Refuses {
    fn before(&self, _: &mut IncomingCall<'_>) -> Result<(), Denied> {
        let less = |left: u64| left.checked_sub(1);
        match self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
            Ok(_) => Err(Denied::too_many("a test", self.after)),
            Err(_) => Ok(()),
        }
    }
}

fn serve(middleware: Refuses, begun: &Begun, test: impl FnOnce(Client)) {
    let server = Server::bind("udp://127.0.0.1:0").unwrap().middleware(middleware);
    let server = server.add_service(DeskServer::new(begun.clone())).unwrap();
    let (uri, _serving) = (server.local_uri(), server.serve().unwrap());
    test(Client::connect(&uri).wait().unwrap());
}

fn desk(client: &Client) -> DeskClient {
    client.wait(DeskClient::new(client.clone())).unwrap()
}

#[test]
fn a_refused_call_is_repeated_after_the_time_that_the_server_asks_for() {
    let begun = Begun::default();
    serve(Refuses::first(2, MS * 40), &begun, |client| {
        let retries = Retries::new(RetryPolicy::default().pauses(MS, MS));
        let (desk, since) = (desk(&client).with_retries(retries.clone()), Instant::now());
        assert_eq!(desk.write().wait(), Ok(0));
        assert!(since.elapsed() >= MS * 80, "{:?}", since.elapsed());
        let stats = retries.stats();
        assert_eq!((stats.calls, stats.retries, stats.over_budget), (1, 2, 0));
    });
}

#[test]
fn attempts_end_and_no_pause_goes_beyond_the_deadline_or_the_longest_wait() {
    let begun = Begun::default();
    serve(Refuses::first(u64::MAX, Duration::from_secs(3)), &begun, |client| {
        let policy = RetryPolicy::default().pauses(MS, MS);
        let since = Instant::now();
        let refused = |result: Result<u64, RpcError<NoError>>| {
            assert!(matches!(result, Err(RpcError::TooMany { .. })), "{result:?}");
        };
        let retries = Retries::new(policy);
        refused(desk(&client).with_retries(retries.clone()).read().deadline(MS * 500).wait());
        let short = policy.longest_wait(Duration::from_secs(1));
        refused(desk(&client).with_retries(short).read().wait());
        assert!(since.elapsed() < Duration::from_secs(3));
        assert_eq!(retries.stats().retries, 0);
    });
    serve(Refuses::first(u64::MAX, Duration::ZERO), &begun, |client| {
        let retries = Retries::new(RetryPolicy::default().attempts(3).pauses(MS, MS));
        let desk = desk(&client).with_retries(retries.clone());
        assert!(desk.read().wait().is_err());
        assert_eq!(retries.stats().retries, 2);
        // The budget has one more.
        assert!(desk.read().wait().is_err());
        assert_eq!((retries.stats().retries, retries.stats().over_budget), (3, 1));
    });
    assert_eq!(begun.0.load(Ordering::Relaxed), 0);
}

#[test]
fn a_method_has_its_default_deadline_unless_the_call_has_one() {
    serve(Refuses::first(0, MS), &Begun::default(), |client| {
        let late = |result: Result<(), RpcError<NoError>>| {
            let error = result.unwrap_err();
            let late = CallFailure::Failed(CallError::DeadlineExceeded(Executed::Maybe));
            assert!(matches!(&error, RpcError::Call(e) if *e == late), "{error}");
        };
        let (desk, since) = (desk(&client), Instant::now());
        late(desk.slow().wait());
        // The server ends it up to a round trip before the client would.
        assert!(since.elapsed() >= MS * 15);
        late(desk.slow().deadline(MS).wait());
        let since = Instant::now();
        late(desk.slow().deadline(MS * 100).wait());
        assert!(since.elapsed() >= MS * 60);
        let methods = DeskClient::SERVICE.methods;
        let idempotent: Vec<_> = methods.iter().filter(|m| m.is_idempotent).collect();
        assert_eq!((idempotent.len(), idempotent[0].name), (1, "read"));
    });
}

#[test]
fn the_deadline_of_a_client_is_for_calls_that_have_none_and_whose_method_has_none() {
    let begun = Begun::default();
    serve(Refuses::first(0, MS), &begun, |client| {
        let long = Duration::from_secs(600);
        let is_late = |result: Result<(), RpcError<NoError>>| {
            let failure = match result {
                Err(RpcError::Call(failure)) => failure,
                Err(RpcError::MidStream(MidStreamError::Call(failure))) => failure,
                other => panic!("{other:?}"),
            };
            let is_late = matches!(failure, CallFailure::Failed(CallError::DeadlineExceeded(_)));
            assert!(is_late, "{failure}");
        };
        let plain = desk(&client);
        let of_client = plain.with_deadline(MS * 20);
        is_late(of_client.hold().wait());
        is_late(of_client.clone().hold().metadata("tenant", "blue").wait());
        // Settings are kept by later ones, and replaced by their own kind.
        let retrying = of_client.with_retries(RetryPolicy::default());
        is_late(retrying.hold().wait());
        is_late(plain.with_deadline(long).with_deadline(MS * 20).hold().wait());
        // The deadlines of the method and of the call are nearer, earlier and later ones alike.
        is_late(plain.with_deadline(long).slow().wait());
        is_late(plain.with_deadline(long).hold().deadline(MS * 20).wait());
        let short = plain.with_deadline(Duration::from_nanos(1));
        is_late(short.hold().wait());
        is_late(short.slow().deadline(None).wait());
        assert!(short.read().deadline(long).wait().is_ok());
        let since = Instant::now();
        is_late(short.slow().wait());
        assert!(since.elapsed() >= MS * 15, "that of the method");
        // Streams as a whole, and their opening.
        let opened = client.wait(async { of_client.items().await });
        is_late(opened.and_then(|mut items| client.wait(items.next()).unwrap().map(drop)));
        is_late(client.wait(async { short.items().await }).map(drop));
        assert!(short.with_deadline(None).read().wait().is_ok());
    });
}

/// A client whose pauses fail, or that has none.
#[derive(Clone)]
struct Hurried {
    client: Client,
    pauses: bool,
}

impl Channel for Hurried {
    type Call<'a> = ClientCall;
    type Sent<'a> = ClientSend;
    type Another<'a> = std::future::Ready<Result<Self, CallFailure>>;
    type OwnedCall = Pin<Box<dyn Future<Output = Result<MsgBuf, CallFailure>> + Send>>;

    fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        Channel::alloc(&self.client, len)
    }
    fn call(&self, number: u16, request: MsgBuf, options: CallOptions) -> ClientCall {
        Channel::call(&self.client, number, request, options)
    }
    fn call_owned(&self, number: u16, request: MsgBuf, options: CallOptions) -> Self::OwnedCall {
        Box::pin(Channel::call(&self.client, number, request, options))
    }
    fn send(&self, number: u16, message: MsgBuf, options: CallOptions) -> ClientSend {
        Channel::send(&self.client, number, message, options)
    }
    fn another(&self, _: CallOptions) -> Self::Another<'_> {
        std::future::ready(Ok(self.clone()))
    }
    fn pause(&self, _: Duration) -> Option<Self::OwnedCall> {
        let failed = || Box::pin(std::future::ready(Err(CallFailure::Stopped))) as _;
        self.pauses.then(failed)
    }
}

#[test]
fn a_call_whose_pause_fails_ends_with_its_last_error_and_no_retry_is_counted() {
    let begun = Begun::default();
    serve(Refuses::first(u64::MAX, Duration::ZERO), &begun, |client| {
        for pauses in [true, false] {
            let hurried = Hurried { client: client.clone(), pauses };
            let retries = Retries::new(RetryPolicy::default());
            let desk = client.wait(DeskClient::new(hurried)).unwrap();
            let desk = desk.with_retries(retries.clone());
            // The budget of three is not used up.
            for _ in 0..20 {
                let error = client.wait(desk.read().into_future()).unwrap_err();
                assert!(matches!(error, RpcError::TooMany { .. }), "{error}");
            }
            let stats = retries.stats();
            assert_eq!((stats.calls, stats.retries, stats.over_budget), (20, 0, 0));
        }
    });
}

/// The same service without attributes.
mod plain {
    use courser::service::Stream;

    #[courser::service]
    pub(super) trait Desk {
        async fn read(&self) -> u64;
        async fn write(&self) -> u64;
        async fn slow(&self);
        async fn hold(&self);
        fn items(&self) -> impl Stream<Item = u64>;
    }
}

#[test]
fn attributes_of_methods_are_no_part_of_the_version() {
    assert_eq!(DeskClient::SERVICE.fingerprint(), plain::DeskClient::SERVICE.fingerprint());
}

#[cfg(feature = "tokio")]
mod layers {
    use std::sync::atomic::AtomicUsize;

    use courser::service::{CallContext, CallOutcome};
    use courser::tower::{BoxError, LayeredClient, Next, Request, Response, layered};
    use tower::limit::ConcurrencyLimitLayer;
    use tower::timeout::TimeoutLayer;
    use tower::{Layer, Service};

    use super::*;

    #[courser::service]
    trait Hall {
        async fn enter(&self, cx: CallContext, ms: u64) -> Result<String, String>;
    }

    /// Counts the visitors that are there at a time.
    #[derive(Clone, Default)]
    struct Visitors {
        now: Arc<AtomicUsize>,
        most: Arc<AtomicUsize>,
    }

    impl Hall for Visitors {
        async fn enter(&self, cx: CallContext, ms: u64) -> Result<String, String> {
            let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
            self.most.fetch_max(now, Ordering::Relaxed);
            tokio::time::sleep(MS * ms as u32).await;
            self.now.fetch_sub(1, Ordering::Relaxed);
            cx.respond_with("left", "yes").unwrap();
            match cx.metadata().text("name") {
                Some(name) => Ok(name.to_owned()),
                None => Err("no name".to_owned()),
            }
        }
    }

    /// A layer that names visitors, and keeps the outcomes of their calls.
    #[derive(Clone, Default)]
    struct Names(Arc<std::sync::Mutex<Vec<CallOutcome>>>);

    /// The service of [`Names`].
    #[derive(Clone)]
    struct Named<S>(Names, S);

    impl<S> Layer<S> for Names {
        type Service = Named<S>;
        fn layer(&self, inner: S) -> Named<S> {
            Named(self.clone(), inner)
        }
    }

    impl<S> Service<Request> for Named<S>
    where
        S: Service<Request, Response = Response, Error = BoxError, Future: Send + 'static>,
    {
        type Response = Response;
        type Error = BoxError;
        type Future = courser::tower::AnswerFuture;
        fn poll_ready(
            &mut self,
            cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), BoxError>> {
            self.1.poll_ready(cx)
        }
        fn call(&mut self, mut request: Request) -> Self::Future {
            assert_eq!((request.service(), request.method()), ("Hall", "enter"));
            assert_eq!(request.body().len(), 1, "one number");
            if request.metadata().get("refuse").is_some() {
                let denied = Denied::too_many("full", MS);
                return Box::pin(async move { Err(denied.into()) });
            }
            if request.metadata().get("name").is_none() && request.peer().is_some() {
                request.metadata_mut().insert("name", "of the layer").unwrap();
            }
            let denies = request.metadata().get("deny-late").is_some();
            let (outcomes, answer) = (self.0.0.clone(), self.1.call(request));
            Box::pin(async move {
                let answer = answer.await?;
                outcomes.lock().unwrap().push(answer.outcome());
                if denies {
                    return Err(Denied::too_many("late", MS).into());
                }
                assert_eq!(answer.metadata().get("left").is_some(), answer.body().len() > 20);
                Ok(answer)
            })
        }
    }

    fn failed(error: RpcError<String>) -> (Executed, String) {
        let text = error.to_string();
        match error {
            RpcError::Call(CallFailure::Middleware { executed, .. }) => (executed, text),
            other => panic!("{other}"),
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn layers_go_around_the_handlers_of_a_server() {
        let (visitors, names) = (Visitors::default(), Names::default());
        let stack = tower::layer::util::Stack::new(ConcurrencyLimitLayer::new(2), names.clone());
        let stack = tower::layer::util::Stack::new(stack, TimeoutLayer::new(MS * 5_000));
        let hall = layered(HallServer::new(visitors.clone()), stack);
        let server = Server::bind("udp://127.0.0.1:0").unwrap();
        let server = server.on_tokio(tokio::runtime::Handle::current()).add_service(hall).unwrap();
        let (uri, _serving) = (server.local_uri(), server.serve().unwrap());
        let hall = HallClient::connect(&uri).await.unwrap();
        let calls: Vec<_> = (0..8).map(|_| hall.enter(10).into_future()).collect();
        for answer in futures::future::join_all(calls).await {
            assert_eq!(answer.unwrap(), "of the layer");
        }
        assert_eq!(visitors.most.load(Ordering::Relaxed), 2);
        let refused = hall.enter(1).metadata("refuse", "1").await.unwrap_err();
        assert_eq!(refused, RpcError::TooMany { reason: "full".into(), retry_after: MS });
        assert_eq!(*names.0.lock().unwrap(), [CallOutcome::Ok; 8]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_layer_that_denies_after_the_handler_has_run_is_no_refusal() {
        let names = Names::default();
        let hall = layered(HallServer::new(Visitors::default()), names.clone());
        let server = Server::bind("udp://127.0.0.1:0").unwrap();
        let server = server.on_tokio(tokio::runtime::Handle::current()).add_service(hall).unwrap();
        let (uri, _serving) = (server.local_uri(), server.serve().unwrap());
        let hall = HallClient::connect(&uri).await.unwrap();
        let hall = hall.with_retries(RetryPolicy::default().pauses(MS, MS));
        let call = hall.enter(1).metadata("deny-late", "1");
        let (executed, text) = failed(call.await.unwrap_err());
        assert_eq!(executed, Executed::Maybe);
        assert!(text.contains("late"), "{text}");
        assert_eq!(*names.0.lock().unwrap(), [CallOutcome::Ok], "one handler");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_layer_of_a_server_ends_calls_with_a_verdict() {
        let visitors = Visitors::default();
        let hall = layered(HallServer::new(visitors.clone()), TimeoutLayer::new(MS * 30));
        let server = Server::bind("udp://127.0.0.1:0").unwrap();
        let server = server.on_tokio(tokio::runtime::Handle::current()).add_service(hall).unwrap();
        let (uri, _serving) = (server.local_uri(), server.serve().unwrap());
        let hall = HallClient::connect(&uri).await.unwrap();
        assert_eq!(hall.enter(1).await, Err(RpcError::Service("no name".to_owned())));
        let (executed, text) = failed(hall.enter(60_000).await.unwrap_err());
        assert_eq!(executed, Executed::Maybe);
        assert!(text.contains("timed out"), "{text}");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn layers_go_around_the_calls_of_a_client() {
        let visitors = Visitors::default();
        let server = Server::bind("udp://127.0.0.1:0").unwrap();
        let server = server.on_tokio(tokio::runtime::Handle::current());
        let server = server.add_service(HallServer::new(visitors.clone())).unwrap();
        let (uri, _serving) = (server.local_uri(), server.serve().unwrap());
        let client = || async { Client::connect(&uri).await.unwrap() };
        let limited = LayeredClient::new(client().await, ConcurrencyLimitLayer::new(2));
        let hall = HallClient::new(limited).await.unwrap();
        let calls: Vec<_> =
            (0..6).map(|_| hall.enter(10).metadata("name", "n").into_future()).collect();
        for answer in futures::future::join_all(calls).await {
            assert_eq!(answer.unwrap(), "n");
        }
        assert_eq!(visitors.most.load(Ordering::Relaxed), 2);
        let answered = hall.enter(1).metadata("name", "n").with_response_metadata().await;
        assert_eq!(answered.1.text("left"), Some("yes"));
        let hall = HallClient::new(LayeredClient::new(client().await, TimeoutLayer::new(MS * 30)));
        let hall = hall.await.unwrap();
        assert_eq!(hall.enter(1).await, Err(RpcError::Service("no name".to_owned())));
        let (executed, _) = failed(hall.enter(60_000).await.unwrap_err());
        assert_eq!(executed, Executed::Maybe);
    }

    /// Never ready.
    #[derive(Clone)]
    struct Never;

    impl Service<Request> for Never {
        type Response = Response;
        type Error = BoxError;
        type Future = courser::tower::AnswerFuture;
        fn poll_ready(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), BoxError>> {
            std::task::Poll::Ready(Err("closed".into()))
        }
        fn call(&mut self, _: Request) -> Self::Future {
            unreachable!("it is not ready")
        }
    }

    #[tokio::test]
    async fn a_call_that_a_layer_does_not_pass_on_was_never_executed() {
        let server = Server::bind("udp://127.0.0.1:0").unwrap();
        let server = server.add_service(HallServer::new(Visitors::default())).unwrap();
        let (uri, _serving) = (server.local_uri(), server.serve().unwrap());
        let client = Client::connect(&uri).await.unwrap();
        let layer = tower::layer::layer_fn(|_: Next| Never);
        let hall = HallClient::new(LayeredClient::new(client, layer)).await.unwrap();
        let (executed, text) = failed(hall.enter(1).await.unwrap_err());
        assert_eq!(executed, Executed::Never);
        assert!(text.contains("closed"), "{text}");
    }

    /// A layer that passes calls on after this time, in a task of its own if it is `detached`, whose error
    /// it returns at once.
    #[derive(Clone)]
    struct Delays {
        after: Duration,
        detached: bool,
    }

    #[derive(Clone)]
    struct Delayed<S>(Delays, S);

    impl<S> Layer<S> for Delays {
        type Service = Delayed<S>;
        fn layer(&self, inner: S) -> Delayed<S> {
            Delayed(self.clone(), inner)
        }
    }

    impl<S> Service<Request> for Delayed<S>
    where
        S: Service<Request, Response = Response, Error = BoxError, Future: Send + 'static>
            + Clone
            + Send
            + 'static,
    {
        type Response = Response;
        type Error = BoxError;
        type Future = courser::tower::AnswerFuture;
        fn poll_ready(
            &mut self,
            cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), BoxError>> {
            self.1.poll_ready(cx)
        }
        fn call(&mut self, request: Request) -> Self::Future {
            let (Delays { after, detached }, mut inner) = (self.0.clone(), self.1.clone());
            let late = async move {
                tokio::time::sleep(after).await;
                inner.call(request).await
            };
            if !detached {
                return Box::pin(late);
            }
            tokio::spawn(async move { late.await.map(drop) });
            Box::pin(async { Err("given up".into()) })
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_layer_does_not_pass_on_a_call_that_has_ended() {
        let (visitors, delays) = (Visitors::default(), Delays { after: MS * 20, detached: true });
        let hall = layered(HallServer::new(visitors.clone()), delays.clone());
        let server = Server::bind("udp://127.0.0.1:0").unwrap();
        let server = server.on_tokio(tokio::runtime::Handle::current()).add_service(hall).unwrap();
        let (uri, _serving) = (server.local_uri(), server.serve().unwrap());
        let client = Client::connect(&uri).await.unwrap();
        let of_client = LayeredClient::new(client.clone(), delays);
        let of_server = HallClient::new(client).await.unwrap();
        let of_client = HallClient::new(of_client).await.unwrap();
        for result in [of_server.enter(1).await, of_client.enter(1).await] {
            assert_eq!(failed(result.unwrap_err()).0, Executed::Never);
        }
        tokio::time::sleep(MS * 200).await;
        assert_eq!(visitors.most.load(Ordering::Relaxed), 0, "a handler ran");
    }

    /// The deadlines of the calls that arrive at a server.
    #[derive(Clone, Default)]
    struct Arriving(Arc<std::sync::Mutex<Vec<Duration>>>);

    impl ServerMiddleware for Arriving {
        fn before(&self, call: &mut IncomingCall<'_>) -> Result<(), Denied> {
            self.0.lock().unwrap().extend(call.time_left());
            Ok(())
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_client_keeps_the_deadline_of_a_call_while_its_layers_wait() {
        let late = |result: Result<String, RpcError<String>>| match result.unwrap_err() {
            RpcError::Call(CallFailure::Failed(CallError::DeadlineExceeded(executed))) => executed,
            other => panic!("{other}"),
        };
        let arriving = Arriving::default();
        let server = Server::bind("udp://127.0.0.1:0").unwrap().middleware(arriving.clone());
        let server = server.on_tokio(tokio::runtime::Handle::current());
        let server = server.add_service(HallServer::new(Visitors::default())).unwrap();
        let (uri, _serving) = (server.local_uri(), server.serve().unwrap());
        let client = Client::connect(&uri).await.unwrap();
        let limited = LayeredClient::new(client.clone(), ConcurrencyLimitLayer::new(1));
        let hall = HallClient::new(limited).await.unwrap();
        let first = hall.clone();
        let first = tokio::spawn(async move { first.enter(3_000).await });
        tokio::time::sleep(MS * 50).await;
        let since = Instant::now();
        assert_eq!(late(hall.enter(1).deadline(MS * 50).await), Executed::Never);
        assert!(since.elapsed() < MS * 1_500, "{:?}", since.elapsed());
        first.abort();
        // It has the rest of the time.
        let delays = Delays { after: MS * 200, detached: false };
        let hall = HallClient::new(LayeredClient::new(client, delays)).await.unwrap();
        assert_eq!(late(hall.enter(60_000).deadline(MS * 400).await), Executed::Maybe);
        let arrived = arriving.0.lock().unwrap().clone();
        assert!(arrived.len() == 1 && arrived[0] <= MS * 201, "{arrived:?}");
    }
}
