//! The contexts of handlers: on workers, on tokio, and on the thread of an endpoint.

use std::future::pending;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;

use courser::service::{
    BlockingChannel, CallContext, Incoming, NoError, Registry, RpcError, Service, Stream,
};
use courser::{Client, Config, Nexus, Server, Serving};
use futures::executor::block_on;
use futures::{FutureExt, StreamExt, future, stream};

use crate::world::{World, until};

/// A deadline that no test waits for.
const LONG: Duration = Duration::from_secs(100);

/// Each method with a context, at different places among the parameters.
#[courser::service]
trait Facts {
    async fn ask(&self, cx: CallContext, key: u8) -> Result<String, String>;
    async fn ask_later(&self, key: u8, cx: CallContext) -> String;
    async fn ask_alone(&self, cx: CallContext) -> String;
    #[oneway]
    async fn tell(&self, cx: CallContext, key: u8);
    fn watch(&self, cx: CallContext, items: u8) -> impl Stream<Item = Result<String, u8>>;
    async fn load(&self, items: Incoming<u8>, cx: CallContext) -> Result<String, u8>;
    async fn hang(&self, cx: CallContext);
    async fn panics(&self, cx: CallContext) -> u8;
    async fn compute(&self, cx: CallContext) -> bool;
    async fn wait(&self, cx: CallContext) -> String;
}

/// The service as a client without contexts has it.
mod plain {
    use super::{Incoming, Stream};

    #[courser::service(name = "Facts")]
    pub trait Plain {
        async fn ask(&self, key: u8) -> Result<String, String>;
        async fn ask_later(&self, key: u8) -> String;
        async fn ask_alone(&self) -> String;
        #[oneway]
        async fn tell(&self, key: u8);
        fn watch(&self, items: u8) -> impl Stream<Item = Result<String, u8>>;
        async fn load(&self, items: Incoming<u8>) -> Result<String, u8>;
        async fn hang(&self);
        async fn panics(&self) -> u8;
        async fn compute(&self) -> bool;
        async fn wait(&self) -> String;
    }
}

use plain::PlainClient;

/// Sends the texts of messages, and the contexts of handlers that hang.
struct Teller {
    told: Mutex<Sender<String>>,
    contexts: Mutex<Sender<CallContext>>,
    begun: Arc<AtomicU64>,
    saw_cancel: Arc<AtomicBool>,
}

fn facts(cx: &CallContext) -> String {
    let addr = cx.peer().map(|peer| peer.addr().to_socket().expect("a socket of UDP"));
    let is_local = addr.is_some_and(|addr| addr.ip().is_loopback() && addr.port() > 0);
    let left = cx.time_left().map(|left| left > LONG / 2 && left <= LONG);
    assert!(!cx.is_cancelled());
    let drains = cx.drain_token().is_draining();
    format!("{}.{} {is_local} {left:?} {drains}", cx.service(), cx.method())
}

impl Teller {
    fn keep(&self, cx: &CallContext) {
        self.begun.fetch_add(1, SeqCst);
        self.contexts.lock().unwrap().send(cx.clone()).unwrap();
    }
}

impl Facts for Teller {
    async fn ask(&self, cx: CallContext, key: u8) -> Result<String, String> {
        match key {
            0 => Err(facts(&cx)),
            key => Ok(format!("{} {key}", facts(&cx))),
        }
    }
    async fn ask_later(&self, key: u8, cx: CallContext) -> String {
        tick().await;
        format!("{} {key}", facts(&cx))
    }
    async fn ask_alone(&self, cx: CallContext) -> String {
        self.contexts.lock().unwrap().send(cx.clone()).unwrap();
        facts(&cx)
    }
    async fn tell(&self, cx: CallContext, key: u8) {
        self.told.lock().unwrap().send(format!("{} {key}", facts(&cx))).unwrap();
    }
    fn watch(&self, cx: CallContext, items: u8) -> impl Stream<Item = Result<String, u8>> {
        stream::iter(0..items).map(move |_| Ok(facts(&cx))).chain(stream::iter([Err(9)]))
    }
    async fn load(&self, mut items: Incoming<u8>, cx: CallContext) -> Result<String, u8> {
        while let Some(Ok(item)) = items.next().await {
            if item == 9 {
                return Err(item);
            }
        }
        Ok(facts(&cx))
    }
    async fn hang(&self, cx: CallContext) {
        self.keep(&cx);
        pending().await
    }
    async fn panics(&self, cx: CallContext) -> u8 {
        self.keep(&cx);
        panic!("a fault of the application")
    }
    async fn compute(&self, cx: CallContext) -> bool {
        self.begun.fetch_add(1, SeqCst);
        // The handler is not dropped while it computes.
        while !cx.is_cancelled() {
            thread::yield_now();
        }
        self.saw_cancel.store(true, SeqCst);
        // It is dropped now. An answer could arrive before the deadline of the client.
        pending().await
    }
    async fn wait(&self, cx: CallContext) -> String {
        self.begun.fetch_add(1, SeqCst);
        cx.drain_token().draining().await;
        facts(&cx)
    }
}

/// Pending once.
async fn tick() {
    let mut polled = false;
    future::poll_fn(|cx| {
        if std::mem::replace(&mut polled, true) {
            return std::task::Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

/// A server's side, as a test sees it.
struct Seen {
    told: Receiver<String>,
    contexts: Receiver<CallContext>,
    begun: Arc<AtomicU64>,
    saw_cancel: Arc<AtomicBool>,
}

fn teller() -> (Teller, Seen) {
    let ((told, is_told), (contexts, kept)) = (channel(), channel());
    let (begun, saw_cancel) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
    let teller = Teller {
        told: Mutex::new(told),
        contexts: Mutex::new(contexts),
        begun: begun.clone(),
        saw_cancel: saw_cancel.clone(),
    };
    (teller, Seen { told: is_told, contexts: kept, begun, saw_cancel })
}

fn serve(change: impl FnOnce(Server) -> Server) -> (Client, Serving, Seen) {
    let config = Config { workers: 2, ..Config::default() };
    let server = change(Server::bind_with("udp://127.0.0.1:0", config).unwrap());
    let (teller, seen) = teller();
    let server = server.add_service(FactsServer::new(teller)).unwrap();
    let (uri, serving) = (server.local_uri(), server.serve().unwrap());
    (Client::connect(&uri).wait().unwrap(), serving, seen)
}

/// Runs a test against a server of each kind.
fn on_each_server(test: impl Fn(&Client, &Seen)) {
    let (client, _serving, seen) = serve(|server| server);
    test(&client, &seen);
    let (client, _serving, seen) = serve(|server| server.in_place(true));
    test(&client, &seen);
    #[cfg(feature = "tokio")]
    {
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(2).build().unwrap();
        let (client, _serving, seen) = serve(|server| server.on_tokio(runtime.handle().clone()));
        test(&client, &seen);
    }
    on_an_endpoint(test);
}

/// Runs a test against an endpoint's own thread.
fn on_an_endpoint(test: impl Fn(&Client, &Seen)) {
    let (teller, seen) = teller();
    let (sent, received) = channel();
    let thread = thread::spawn(move || {
        let nexus = Nexus::bind("udp://127.0.0.1:0").unwrap();
        let mut rpc = nexus.endpoint().unwrap();
        rpc.add_service(FactsServer::local(teller)).unwrap();
        sent.send((nexus.local_uri(), rpc.handle())).unwrap();
        rpc.run().unwrap();
    });
    let (uri, handle) = received.recv().unwrap();
    let client = Client::connect(&uri).wait().unwrap();
    test(&client, &seen);
    handle.stop();
    thread.join().unwrap();
}

#[test]
fn handlers_of_each_kind_have_the_context_of_their_call() {
    on_each_server(|client, seen| {
        let facts = block_on(PlainClient::new(client.clone())).unwrap();
        let of = |method: &str| format!("Facts.{method} true None false");
        let asked = |call: Result<String, RpcError<NoError>>| call.unwrap();
        assert_eq!(facts.ask(3).wait().unwrap(), format!("{} 3", of("ask")));
        assert_eq!(facts.ask(0).wait(), Err(RpcError::Service(of("ask"))));
        assert_eq!(asked(facts.ask_later(4).wait()), format!("{} 4", of("ask_later")));
        assert_eq!(asked(facts.ask_alone().wait()), of("ask_alone"));
        let limited = asked(facts.ask_alone().deadline(LONG).wait());
        assert_eq!(limited, "Facts.ask_alone true Some(true) false");
        facts.tell(5).wait().unwrap();
        assert_eq!(seen.told.recv().unwrap(), format!("{} 5", of("tell")));
        block_on(async {
            let items: Vec<_> = facts.watch(2).await.unwrap().collect().await;
            let item = Ok(of("watch"));
            assert_eq!(items, [item.clone(), item, Err(RpcError::Service(9))]);
            let items = facts.watch(1).deadline(LONG).await.unwrap().next().await.unwrap();
            assert_eq!(items.unwrap(), "Facts.watch true Some(true) false");
            let mut upload = facts.load().await.unwrap();
            upload.send(&1).await.unwrap();
            assert_eq!(upload.finish().await, Ok(of("load")));
            let mut upload = facts.load().await.unwrap();
            // The handler may have ended before the client goes on.
            let ended = match upload.send(&9).await {
                Ok(()) => upload.finish().await.map(drop),
                Err(error) => Err(error),
            };
            assert_eq!(ended, Err(RpcError::Service(9)));
        });
    });
}

/// Calls with deadlines that grow until a handler has begun, which a busy machine may delay. Returns its
/// context.
fn begun_late(seen: &Seen, call: impl Fn(Duration)) -> CallContext {
    for round in 0..8 {
        call(Duration::from_millis(50 << round));
        if let Ok(context) = seen.contexts.recv_timeout(Duration::from_millis(50 << round)) {
            return context;
        }
    }
    panic!("no handler has begun");
}

/// [`begun_late`] for the handler that computes.
fn computes_late(seen: &Seen, call: impl Fn(Duration)) {
    let before = seen.begun.load(SeqCst);
    let begun = (0..8).any(|round| {
        call(Duration::from_millis(50 << round));
        seen.begun.load(SeqCst) > before
    });
    assert!(begun, "no handler has begun");
}

#[test]
fn a_context_is_cancelled_with_its_handler_and_not_by_its_end() {
    on_each_server(|client, seen| {
        let facts = block_on(PlainClient::new(client.clone())).unwrap();
        // Dropped, and after its deadline.
        let mut call = Box::pin(async { facts.hang().await });
        let dropped = loop {
            assert!((&mut call).now_or_never().is_none());
            if let Ok(context) = seen.contexts.try_recv() {
                break context;
            }
        };
        assert!(!dropped.is_cancelled());
        assert!(dropped.cancelled().now_or_never().is_none());
        drop(call);
        block_on(dropped.cancelled());
        assert!(dropped.is_cancelled());
        let late = begun_late(seen, |deadline| {
            facts.hang().deadline(deadline).wait().unwrap_err();
        });
        block_on(late.cancelled());
        assert!(late.is_cancelled() && late.time_left() == Some(Duration::ZERO));
        facts.panics().wait().unwrap_err();
        block_on(seen.contexts.recv().unwrap().cancelled());
        // A handler that has returned, whose place others use later.
        facts.ask_alone().wait().unwrap();
        let ended = seen.contexts.recv().unwrap();
        let late = begun_late(seen, |deadline| {
            facts.hang().deadline(deadline).wait().unwrap_err();
        });
        block_on(late.cancelled());
        assert!(!ended.is_cancelled() && ended.cancelled().now_or_never().is_none());
    });
}

/// Streams that do not end by themselves.
#[courser::service]
trait Held {
    /// Sends an item of this number of bytes, unless it is 0, and waits.
    fn hold(&self, cx: CallContext, len: u32) -> impl Stream<Item = Vec<u8>>;
    async fn take(&self, cx: CallContext, items: Incoming<u8>) -> u64;
}

struct Holding(Mutex<Sender<CallContext>>);

impl Held for Holding {
    fn hold(&self, cx: CallContext, len: u32) -> impl Stream<Item = Vec<u8>> {
        self.0.lock().unwrap().send(cx).unwrap();
        stream::iter((len > 0).then(|| vec![7; len as usize])).chain(stream::pending())
    }
    async fn take(&self, cx: CallContext, items: Incoming<u8>) -> u64 {
        self.0.lock().unwrap().send(cx).unwrap();
        let _items = items;
        pending().await
    }
}

#[test]
fn contexts_of_streams_that_the_library_ends_are_cancelled() {
    for in_place in [false, true] {
        let (sent, contexts) = channel();
        let config = Config { workers: 2, ..Config::default() };
        let limit = config.max_msg_size;
        let server = Server::bind_with("udp://127.0.0.1:0", config).unwrap().in_place(in_place);
        let server = server.add_service(HeldServer::new(Holding(Mutex::new(sent)))).unwrap();
        let (uri, serving) = (server.local_uri(), server.serve().unwrap());
        let client = Client::connect(&uri).wait().unwrap();
        let held = block_on(HeldClient::new(client)).unwrap();
        block_on(async {
            // An item that cannot be sent.
            let item = held.hold(limit + 1).await.unwrap().next().await.unwrap();
            assert!(matches!(item, Err(RpcError::MidStream(_) | RpcError::Encode(_))), "{item:?}");
            contexts.recv().unwrap().cancelled().await;
            // The shutdown of the server.
            let mut items = held.hold(0).await.unwrap();
            assert!(items.next().now_or_never().is_none());
            let upload = held.take().await.unwrap();
            let kept = [contexts.recv().unwrap(), contexts.recv().unwrap()];
            assert!(kept.iter().all(|context| !context.is_cancelled()));
            serving.handle().shutdown(Duration::from_millis(20));
            for context in kept {
                context.cancelled().await;
                assert!(context.is_cancelled());
            }
            drop((items, upload));
        });
        serving.wait().unwrap();
    }
}

#[test]
fn a_handler_that_computes_on_a_worker_sees_that_its_call_is_cancelled() {
    let (client, _serving, seen) = serve(|server| server);
    let facts = block_on(PlainClient::new(client.clone())).unwrap();
    computes_late(&seen, |deadline| {
        facts.compute().deadline(deadline).wait().unwrap_err();
    });
    until(|| seen.saw_cancel.swap(false, SeqCst));
    let before = seen.begun.load(SeqCst);
    let mut call = Box::pin(async { facts.compute().await });
    until(|| {
        assert!((&mut call).now_or_never().is_none());
        seen.begun.load(SeqCst) > before
    });
    drop(call);
    until(|| seen.saw_cancel.load(SeqCst));
}

#[test]
fn a_handler_that_computes_sees_its_deadline_on_any_thread() {
    on_each_server(|client, seen| {
        let facts = block_on(PlainClient::new(client.clone())).unwrap();
        computes_late(seen, |deadline| {
            facts.compute().deadline(deadline).wait().unwrap_err();
        });
        until(|| seen.saw_cancel.load(SeqCst));
    });
}

#[test]
fn a_handler_waits_for_the_shutdown_of_its_server() {
    let (client, serving, seen) = serve(|server| server);
    let facts = PlainClient::unchecked(client);
    let waits = thread::spawn(move || facts.wait().wait().unwrap());
    while seen.begun.load(SeqCst) == 0 {
        thread::yield_now();
    }
    serving.handle().shutdown(Duration::from_secs(60));
    assert_eq!(waits.join().unwrap(), "Facts.wait true None true");
    serving.wait().unwrap();
}

#[test]
fn a_context_without_a_server_of_the_library_has_no_peer() {
    let mut world = World::new(1);
    let (teller, _seen) = teller();
    FactsServer::new(teller).register(&mut world).unwrap();
    assert!(Registry::is_taken(&world, 0x4000));
    let facts = world.run(PlainClient::new(world.session())).unwrap();
    let answer = world.run(async { facts.ask_later(1).await });
    assert_eq!(answer.unwrap(), "Facts.ask_later false None false 1");
}

/// A service that calls another one.
#[courser::service]
trait Front {
    async fn pass(&self, cx: CallContext, spawns: u8) -> String;
}

struct Passing {
    back: PlainClient<Client>,
    runs: Box<dyn Fn(future::BoxFuture<'static, ()>) + Send + Sync>,
}

impl Front for Passing {
    async fn pass(&self, cx: CallContext, spawns: u8) -> String {
        let (sent, received) = futures::channel::oneshot::channel();
        let back = self.back.clone();
        let call = async move {
            let _ = sent.send(back.ask_alone().await.unwrap());
        };
        match spawns {
            0 => call.await,
            1 => (self.runs)(Box::pin(call)),
            _ => (self.runs)(Box::pin(cx.scope(call))),
        }
        received.await.unwrap()
    }
}

#[test]
fn calls_of_a_task_that_was_spawned_in_the_scope_of_a_call_have_its_deadline() {
    let (back, _serving, _seen) = serve(|server| server);
    let runs = |task: future::BoxFuture<'static, ()>| {
        thread::spawn(|| block_on(task));
    };
    let passing = Passing { back: PlainClient::unchecked(back), runs: Box::new(runs) };
    let server = Server::bind("udp://127.0.0.1:0").unwrap();
    let server = server.add_service(FrontServer::new(passing)).unwrap();
    let (uri, _front) = (server.local_uri(), server.serve().unwrap());
    let client = Client::connect(&uri).wait().unwrap();
    let front = client.wait(FrontClient::new(client.clone())).unwrap();
    let passed = |spawns| front.pass(spawns).deadline(LONG).wait().unwrap();
    assert_eq!(passed(0), "Facts.ask_alone true Some(true) false", "in the handler");
    assert_eq!(passed(1), "Facts.ask_alone true None false", "in a task without the scope");
    assert_eq!(passed(2), "Facts.ask_alone true Some(true) false", "in a task of the scope");
    let without = front.pass(2).wait().unwrap();
    assert_eq!(without, "Facts.ask_alone true None false", "of a call without a deadline");
}
