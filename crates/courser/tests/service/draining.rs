//! A server that shuts down while streams are open and calls are long.

use std::future::pending;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use courser::service::{Incoming, MidStreamError, RpcError, Stream};
use courser::{
    CallError, CallFailure, Client, Config, DrainToken, Executed, Server, Serving, Status,
};
use futures::executor::block_on;
use futures::{FutureExt, StreamExt, future, stream};

use crate::world::until;

/// A grace that no test waits for.
const GRACE: Duration = Duration::from_secs(60);
/// Much longer than a stream without items needs to end, and much shorter than the grace.
const SOON: Duration = Duration::from_secs(20);

#[courser::service]
trait Feed {
    /// Items, and then none for ever.
    fn watch(&self, items: u64) -> impl Stream<Item = u64>;
    /// Items of 20,000 bytes.
    fn flow(&self, items: u64) -> impl Stream<Item = Vec<u8>>;
    /// The number of items.
    async fn load(&self, items: Incoming<Vec<u8>>) -> u64;
    /// Waits until the server shuts down.
    async fn wait(&self) -> String;
    async fn hang(&self);
}

struct Feeder {
    drain: DrainToken,
    /// Streams and uploads whose handlers were dropped.
    dropped: Arc<AtomicU64>,
    /// Calls that have begun to wait.
    waits: Arc<AtomicU64>,
}

struct Guard(Arc<AtomicU64>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_add(1, SeqCst);
    }
}

impl Feed for Feeder {
    fn watch(&self, items: u64) -> impl Stream<Item = u64> {
        let guard = Guard(self.dropped.clone());
        stream::iter(0..items).chain(stream::pending()).map(move |n| {
            let _ = &guard;
            n
        })
    }
    fn flow(&self, items: u64) -> impl Stream<Item = Vec<u8>> {
        stream::iter(0..items).map(|n| vec![n as u8; 20_000])
    }
    async fn load(&self, mut items: Incoming<Vec<u8>>) -> u64 {
        let _guard = Guard(self.dropped.clone());
        let mut taken = 0;
        while let Some(Ok(_)) = items.next().await {
            taken += 1;
        }
        taken
    }
    async fn wait(&self) -> String {
        self.waits.fetch_add(1, SeqCst);
        self.drain.draining().await;
        assert!(self.drain.is_draining());
        "ended early".to_owned()
    }
    async fn hang(&self) {
        self.waits.fetch_add(1, SeqCst);
        pending().await
    }
}

/// A client, its server, streams whose handlers were dropped, and calls that have begun to wait.
type Feeding = (FeedClient<Client>, Serving, Arc<AtomicU64>, Arc<AtomicU64>);

fn serve(change: impl FnOnce(Server) -> Server) -> Feeding {
    let config = Config { workers: 2, slots: 32, ..Config::default() };
    let server = change(Server::bind_with("udp://127.0.0.1:0", config).unwrap());
    let (dropped, waits) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let drain = server.drain_token();
    let feeder = Feeder { drain, dropped: dropped.clone(), waits: waits.clone() };
    let server = server.add_service(FeedServer::new(feeder)).unwrap();
    let uri = server.local_uri();
    let serving = server.serve().unwrap();
    let client = FeedClient::unchecked(Client::connect(&uri).wait().unwrap());
    (client, serving, dropped, waits)
}

fn shutting_down<T: std::fmt::Debug, E: std::fmt::Debug>(result: Result<T, RpcError<E>>) -> u64 {
    match result {
        Err(e @ RpcError::MidStream(_)) => {
            assert_eq!(e.executed(), Executed::Maybe);
            match e {
                RpcError::MidStream(MidStreamError::ShuttingDown { items }) => items,
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    }
}

/// Opens streams without further items, an upload whose client sends nothing more, and a long call,
/// and shuts the server down.
fn shut_down_idle_streams((client, serving, dropped, waiting): Feeding) {
    block_on(async {
        let mut watches = Vec::new();
        for n in 0..30 {
            let mut watch = client.watch(n).await.unwrap();
            if n > 0 {
                assert_eq!(watch.next().await.unwrap().unwrap(), 0);
            } else {
                assert!(watch.next().now_or_never().is_none());
            }
            watches.push(watch);
        }
        let mut upload = client.load().await.unwrap();
        for _ in 0..7 {
            upload.send(&vec![1; 10]).await.unwrap();
        }
        upload.flush().await.unwrap();
        let waits = std::thread::spawn({
            let client = client.clone();
            move || client.wait().wait()
        });
        while waiting.load(SeqCst) < 1 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let begin = Instant::now();
        serving.handle().shutdown(GRACE);
        // At once: a stream with more items than its window ends if its client does not take any.
        future::join_all(watches.iter_mut().enumerate().map(|(n, watch)| async move {
            for next in 1..n as u64 {
                assert_eq!(watch.next().await.unwrap().unwrap(), next);
            }
            assert_eq!(shutting_down(watch.next().await.unwrap()), n as u64);
            assert!(watch.next().await.is_none());
        }))
        .await;
        assert_eq!(shutting_down(upload.finish().await), 7);
        assert_eq!(waits.join().unwrap().unwrap(), "ended early");
        assert!(begin.elapsed() < SOON);
        let report = serving.wait().unwrap();
        assert!(begin.elapsed() < SOON && report.executing == 0, "{report:?}");
        assert_eq!(dropped.load(SeqCst), 31);
    });
}

#[test]
fn streams_without_items_end_soon_after_the_token_and_name_the_items_delivered() {
    shut_down_idle_streams(serve(Server::on_workers));
    shut_down_idle_streams(serve(|server| server.in_place(true).endpoints(2)));
}

#[cfg(feature = "tokio")]
#[test]
fn streams_without_items_end_soon_after_the_token_on_tokio() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    shut_down_idle_streams(serve(|server| server.on_tokio(runtime.handle().clone())));
}

/// In virtual time they go on to their end: `crates/sim/tests/worlds/services.rs`. Here a busy machine
/// may stop their items for longer than a stream is waited for.
#[test]
fn streams_that_flow_go_on_or_end_with_the_number_of_their_items() {
    const ITEMS: u64 = 600;
    let (client, serving, ..) = serve(Server::on_workers);
    block_on(async {
        let mut flow = client.flow(ITEMS).await.unwrap();
        let mut upload = client.load().await.unwrap();
        let item = vec![3; 20_000];
        flow.next().await.unwrap().unwrap();
        upload.send(&item).await.unwrap();
        upload.flush().await.unwrap();
        serving.handle().shutdown(GRACE);
        let mut received = 1;
        let mut ends = None;
        for n in 1..ITEMS {
            match flow.next().await {
                Some(Ok(_)) => received += 1,
                Some(failed) => assert_eq!(shutting_down(failed), received),
                None => assert!(received < ITEMS, "it ends early without an error"),
            }
            if ends.is_none() {
                ends = upload.send(&item).await.err();
            }
            if n % 100 == 0 {
                let later = match client.watch(0).await {
                    Ok(mut watch) => watch.next().await.unwrap().unwrap_err(),
                    Err(e) => e,
                };
                // Before the endpoint has learned of the shutdown, it opens streams, which end.
                let opened = matches!(later, RpcError::MidStream(_));
                assert!(opened || later.executed() == Executed::Never, "{later:?}");
            }
        }
        assert!(flow.next().await.is_none());
        match ends {
            None => match upload.finish().await {
                Ok(taken) => assert_eq!(taken, ITEMS),
                failed => assert!(shutting_down(failed) <= ITEMS),
            },
            Some(e) => assert!(shutting_down::<(), _>(Err(e)) < ITEMS),
        }
        assert!(serving.wait().unwrap().executing == 0);
    });
}

#[test]
fn streams_end_at_the_end_of_the_grace_at_the_latest() {
    let (client, serving, dropped, _) = serve(Server::on_workers);
    block_on(async {
        let mut flow = client.flow(u64::MAX).await.unwrap();
        let mut stalls = client.flow(u64::MAX).await.unwrap();
        let mut upload = client.load().await.unwrap();
        let item = vec![3; 20_000];
        upload.send(&item).await.unwrap();
        upload.flush().await.unwrap();
        stalls.next().await.unwrap().unwrap();
        flow.next().await.unwrap().unwrap();
        serving.handle().shutdown(Duration::from_secs(2));
        let (mut received, mut sent) = (1, 1);
        let reads = async {
            loop {
                match flow.next().await.unwrap() {
                    Ok(_) => received += 1,
                    failed => return shutting_down(failed),
                }
            }
        };
        let writes = async {
            loop {
                match upload.send(&item).await {
                    Ok(()) => sent += 1,
                    failed => return shutting_down(failed),
                }
            }
        };
        let (delivered, taken) = future::join(reads, writes).await;
        assert_eq!(delivered, received);
        assert!(taken <= sent, "{taken} of {sent}");
        // The reader that stalled has what was on the way, and the error.
        let mut items = 1;
        let named = loop {
            match stalls.next().await.unwrap() {
                Ok(_) => items += 1,
                failed => break shutting_down(failed),
            }
        };
        assert_eq!(named, items);
        assert!(items < 20, "{items}");
        serving.wait().unwrap();
        assert_eq!(dropped.load(SeqCst), 1);
    });
}

#[test]
fn later_streams_and_calls_are_refused_and_a_call_that_ignores_the_token_ends_with_the_grace() {
    let (client, serving, _, waiting) = serve(Server::on_workers);
    let hangs = std::thread::spawn({
        let client = client.clone();
        move || client.hang().wait().unwrap_err()
    });
    while waiting.load(SeqCst) < 1 {
        std::thread::sleep(Duration::from_millis(1));
    }
    serving.handle().shutdown(Duration::from_millis(300));
    let shutting_down = CallFailure::from(CallError::Server(Status::ShuttingDown));
    let refused = loop {
        // The token of the handler may be set before the endpoint refuses.
        if let Err(e) = client.wait().wait() {
            break e;
        }
    };
    assert!(matches!(&refused, RpcError::Call(e) if *e == shutting_down), "{refused:?}");
    assert_eq!(refused.executed(), Executed::Never);
    let ended = hangs.join().unwrap();
    let grace_ended = CallFailure::from(CallError::Server(Status::GraceEnded));
    assert!(matches!(&ended, RpcError::Call(e) if *e == grace_ended), "{ended:?}");
    assert_eq!(ended.executed(), Executed::Maybe);
    assert_eq!(serving.wait().unwrap().executing, 1);
}

/// A stream that is dropped slowly.
#[courser::service]
trait Slow {
    /// Items that fill a batch each, endlessly.
    fn flow(&self) -> impl Stream<Item = Vec<u8>>;
}

struct Slowly {
    /// Items that were made.
    made: AtomicU64,
    dropping: Sender<()>,
    release: Mutex<Receiver<()>>,
}

struct DropsSlowly(Arc<Slowly>);

impl Drop for DropsSlowly {
    fn drop(&mut self) {
        self.0.dropping.send(()).unwrap();
        self.0.release.lock().unwrap().recv_timeout(SOON).unwrap();
    }
}

impl Slow for Arc<Slowly> {
    fn flow(&self) -> impl Stream<Item = Vec<u8>> {
        let dropped = DropsSlowly(self.clone());
        stream::iter(0..).map(move |n: u64| {
            dropped.0.made.store(n + 1, SeqCst);
            vec![n as u8; 80_000]
        })
    }
}

#[test]
fn no_batch_is_pulled_after_a_stream_has_ended_that_is_still_dropped() {
    let ((dropping, begun), (go_on, release)) = (channel(), channel());
    let slowly = Arc::new(Slowly { made: AtomicU64::new(0), dropping, release: release.into() });
    let config = Config { workers: 2, ..Config::default() };
    let server = Server::bind_with("udp://127.0.0.1:0", config).unwrap();
    let server = server.add_service(SlowServer::new(slowly.clone())).unwrap();
    let (uri, serving) = (server.local_uri(), server.serve().unwrap());
    let client = SlowClient::unchecked(Client::connect(&uri).wait().unwrap());
    block_on(async {
        let mut flow = client.flow().await.unwrap();
        assert_eq!(flow.next().await.unwrap().unwrap()[0], 0);
        // The second one is on its way, and two wait for pulls.
        until(|| slowly.made.load(SeqCst) >= 4);
        serving.handle().shutdown(GRACE);
        begun.recv_timeout(SOON).unwrap();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(500));
            go_on.send(()).unwrap();
        });
        let mut items = 1;
        let named = loop {
            match flow.next().await.unwrap() {
                Ok(_) => items += 1,
                failed => break shutting_down(failed),
            }
        };
        assert_eq!((named, items), (2, 2));
    });
    serving.wait().unwrap();
}
