//! Handlers and clients on several threads.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use courser::service::{
    CallOptions, Channel, Received, Registry, Service, Services, SessionKey, Streaming, Upload,
    to_message,
};
use courser::{AllocError, CallError, CallFailure, MsgBuf, Reply, Status};
use courser_buf::Arena;
use futures::channel::oneshot;
use futures::executor::{ThreadPool, block_on};
use futures::future::{AbortHandle, abortable};
use futures::task::SpawnExt;

use crate::kv::{KvClient, KvError, KvServer, Store, filled};

type Answering = Pin<Box<dyn Future<Output = MsgBuf> + Send>>;
type Handler = Box<dyn Fn(Received<'_>) -> Answering + Send + Sync>;

/// A server whose handlers run on a pool of threads.
struct Server {
    pool: ThreadPool,
    handlers: BTreeMap<u16, Handler>,
    services: Services,
    arena: Arena,
    sessions: AtomicU64,
}

impl Registry for Server {
    fn services(&self) -> &Services {
        &self.services
    }
    fn is_taken(&self, number: u16) -> bool {
        self.handlers.contains_key(&number)
    }
    fn on_request<H, F>(&mut self, number: u16, handler: H)
    where
        H: Fn(Received<'_>) -> F + Send + Sync + 'static,
        F: Future + Send + 'static,
        F::Output: Reply + Send,
    {
        let arena = self.arena.clone();
        let boxed: Handler = Box::new(move |received| {
            let (future, arena) = (handler(received), arena.clone());
            Box::pin(async move { to_message(future.await, &arena).unwrap() })
        });
        self.handlers.insert(number, boxed);
    }
    fn on_message<H, F>(&mut self, _: u16, _: H)
    where
        H: Fn(Received<'_>) -> F + Send + Sync + 'static,
        F: Future<Output = ()> + Send + 'static,
    {
    }
}

/// A session with it.
#[derive(Clone)]
struct Session {
    server: Arc<Server>,
    number: u64,
}

/// A call, which ends the handler's future when it is dropped.
struct Running(oneshot::Receiver<MsgBuf>, AbortHandle);

impl Future for Running {
    type Output = Result<MsgBuf, CallFailure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.0)
            .poll(cx)
            .map(|answer| answer.map_err(|_| CallError::Server(Status::NoReply).into()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.1.abort();
    }
}

impl Channel for Session {
    type Call<'a> = Running;
    type Sent<'a> = std::future::Ready<Result<(), CallFailure>>;
    type Another<'a> = std::future::Ready<Result<Self, CallFailure>>;
    type OwnedCall = Running;

    fn alloc(&self, len: usize) -> Result<MsgBuf, AllocError> {
        self.server.arena.alloc(len)
    }
    fn call(&self, number: u16, request: MsgBuf, _: CallOptions) -> Running {
        let (answer, answered) = oneshot::channel();
        let (server, key) = (self.server.clone(), SessionKey::new(0, self.number));
        let (future, abort) = abortable(async move {
            let received = Received::owned(request, key, &server.arena, 8 << 20);
            let future = server.handlers[&number](received);
            drop(server);
            let _ = answer.send(future.await);
        });
        let ended = async {
            let _ = future.await;
        };
        self.server.pool.spawn(ended).unwrap();
        Running(answered, abort)
    }
    fn call_owned(&self, number: u16, request: MsgBuf, options: CallOptions) -> Running {
        self.call(number, request, options)
    }
    fn send(&self, _: u16, _: MsgBuf, _: CallOptions) -> Self::Sent<'_> {
        std::future::ready(Ok(()))
    }
    fn another(&self, _: CallOptions) -> Self::Another<'_> {
        let number = self.server.sessions.fetch_add(1, Ordering::Relaxed);
        std::future::ready(Ok(Session { server: self.server.clone(), number }))
    }
}

/// Clients of a connection that is `Send` are it too, with all that they return.
#[allow(dead_code)]
fn clients_are_send(kv: &KvClient<Session>) {
    fn send<T: Send>(_: T) {}
    fn shared<T: Send + Sync + Clone + 'static>() {}
    fn stream<T: Send + Unpin + 'static>() {}
    shared::<KvClient<Session>>();
    stream::<Streaming<Session, courser::service::Named, u8, KvError>>();
    stream::<Upload<Session, courser::service::Named, u8, u8, KvError>>();
    send(kv.get(String::new()));
    send(async { kv.get(String::new()).await });
    send(async { kv.scan(String::new()).await });
    send(async { kv.upload(String::new()).await?.finish().await });
    send(KvClient::new(kv.channel().clone()));
}

#[test]
fn streams_work_whatever_threads_run_their_ends() {
    let pool = ThreadPool::builder().pool_size(4).create().unwrap();
    let mut server = Server {
        pool: pool.clone(),
        handlers: BTreeMap::new(),
        services: Services::default(),
        arena: Arena::heap(),
        sessions: AtomicU64::new(1),
    };
    let store = Arc::new(Store::default());
    KvServer::shared(store.clone()).register(&mut server).unwrap();
    let server = Arc::new(server);
    let session = Session { server: server.clone(), number: 0 };
    let kv = block_on(KvClient::new(session)).unwrap();
    let failures = Arc::new(Mutex::new(Vec::new()));
    let clients: Vec<_> = (0..8_u64)
        .map(|client| {
            let (kv, failures) = (kv.clone(), failures.clone());
            let work = async move {
                for round in 0..40 {
                    if let Err(e) = use_streams(&kv, client * 100 + round).await {
                        failures.lock().unwrap().push(e);
                    }
                }
            };
            pool.spawn_with_handle(work).unwrap()
        })
        .collect();
    clients.into_iter().for_each(block_on);
    assert_eq!(*failures.lock().unwrap(), Vec::<String>::new());
    drop(kv);
    // Cancelled handlers end on the pool's threads.
    while server.services.stats().streams > 0 || store.live.load(Ordering::Relaxed) > 0 {
        std::thread::yield_now();
    }
    let stats = server.services.stats();
    assert_eq!((stats.decode_errors, stats.stream_errors), (0, 0), "{stats:?}");
}

async fn use_streams(kv: &KvClient<Session>, round: u64) -> Result<(), String> {
    let text = |e: &dyn std::fmt::Display| e.to_string();
    let items = round % 7 * 300;
    let mut numbers = kv.count(items, 500).await.map_err(|e| text(&e))?;
    let mut next = 0;
    while let Some(item) = numbers.next().await {
        assert_eq!(item.map_err(|e| text(&e))?.0, next);
        next += 1;
    }
    assert_eq!(next, items);
    let mut upload = kv.upload("n".into()).await.map_err(|e| text(&e))?;
    for _ in 0..items {
        upload.send(&filled(1, 400)).await.map_err(|e| text(&e))?;
    }
    assert_eq!(upload.finish().await.map_err(|e| text(&e))?, items * 400);
    // Cancelled in the middle.
    let mut endless = kv.count(u64::MAX, 2_000).await.map_err(|e| text(&e))?;
    for i in 0..items / 10 {
        assert_eq!(endless.next().await.map(|item| item.map(|(n, _)| n)), Some(Ok(i)));
    }
    Ok(())
}
