//! Clients with many streams, beside clients that lose nothing; and many streams of one client.

use std::future::{Future, IntoFuture};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use courser::service::{
    DecodeError, Incoming, RpcError, ServiceStats, Stream, StreamError, Streaming,
};
use courser::{Client, ClientStats, Config, Endpoints, Executed, Server, ServerHandle, Serving};
use futures::executor::block_on;
use futures::future::try_join_all;
use futures::stream;

const LOOPBACK: &str = "udp://127.0.0.1:0";
/// Time after which a test fails.
const PATIENCE: Duration = Duration::from_secs(60);
const ITEM: usize = 8_000;
/// Items of a batch.
const OF_BATCH: u64 = 8;

/// Endless streams.
#[courser::service]
trait Feed {
    fn feed(&self, owner: u8) -> impl Stream<Item = Vec<u8>>;
    async fn echo(&self, bytes: Vec<u8>) -> Vec<u8>;
    /// Ends only if it does not hold the lists.
    async fn lists(&self, lists: Vec<Vec<u8>>, hold: bool) -> u64;
    /// The number of elements, or why an item is not decoded.
    async fn upload(&self, lists: Incoming<Vec<Vec<u8>>>) -> Result<u64, String>;
}

/// Counts the items that were taken, by the owner of the stream.
#[derive(Clone, Default)]
struct Items(Arc<[AtomicU64; 3]>);

impl Items {
    fn taken(&self, owner: u8) -> u64 {
        self.0[usize::from(owner)].load(Ordering::Relaxed)
    }
}

impl Feed for Items {
    fn feed(&self, owner: u8) -> impl Stream<Item = Vec<u8>> {
        let counts = self.0.clone();
        stream::repeat_with(move || {
            counts[usize::from(owner)].fetch_add(1, Ordering::Relaxed);
            vec![owner; ITEM]
        })
    }
    async fn echo(&self, bytes: Vec<u8>) -> Vec<u8> {
        bytes
    }
    async fn lists(&self, lists: Vec<Vec<u8>>, hold: bool) -> u64 {
        self.0[2].fetch_add(1, Ordering::Relaxed);
        if hold {
            std::future::pending::<()>().await;
        }
        lists.len() as u64
    }
    async fn upload(&self, mut lists: Incoming<Vec<Vec<u8>>>) -> Result<u64, String> {
        let mut elements = 0;
        while let Some(list) = lists.next().await {
            elements += list.map_err(|e| e.to_string())?.len() as u64;
        }
        Ok(elements)
    }
}

struct Running {
    uri: String,
    items: Items,
    stats: Box<dyn Fn() -> ServiceStats>,
    handle: ServerHandle,
    _serving: Serving,
}

impl Running {
    fn start(config: Config, settings: impl FnOnce(Server) -> Server) -> Running {
        Running::start_with(config, |server, feed| settings(server).add_service(feed).unwrap())
    }

    fn start_with(
        config: Config,
        add: impl FnOnce(Server, FeedServer<Arc<Items>>) -> Server,
    ) -> Running {
        let items = Items::default();
        let server = Server::bind_with("udp://0.0.0.0:0", config).unwrap();
        let server = add(server, FeedServer::new(items.clone()));
        let (uri, stats) = (server.local_uri(), Box::new(server.service_stats()));
        let serving = server.serve().unwrap();
        Running { uri, items, stats, handle: serving.handle(), _serving: serving }
    }

    /// A client with a control connection of its own.
    fn client(&self, config: Config) -> FeedClient {
        let endpoints = Endpoints::bind(LOOPBACK, 1, config).unwrap();
        let channel = Client::connect_on(&endpoints, &self.uri).wait().unwrap();
        block_on(FeedClient::new(channel)).unwrap()
    }

    fn wait(&self, what: &str, until: impl Fn(&Running) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !until(self) {
            assert!(Instant::now() < end, "{what}: {:?}", (self.stats)());
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

type Feeding = Streaming<
    courser::service::DefaultChannel,
    courser::service::Named,
    Vec<u8>,
    courser::service::NoError,
>;

/// Opens streams at the same time, and reads an item of each of the first ones.
fn open(client: &FeedClient, owner: u8, streams: usize, read: usize) -> Vec<Feeding> {
    open_for(4 * PATIENCE, client, owner, (streams, read))
}

/// [`open`] of streams that end with an error after `life`.
fn open_for(
    life: Duration,
    client: &FeedClient,
    owner: u8,
    (streams, read): (usize, usize),
) -> Vec<Feeding> {
    let open = |n: usize| async move {
        let mut items = client.feed(owner).deadline(life).await?;
        if n < read {
            assert_eq!(items.next().await.unwrap()?.len(), ITEM);
        }
        Ok::<_, RpcError<_>>(items)
    };
    let mut all = Vec::new();
    for begin in (0..streams).step_by(500) {
        let some = (begin..streams.min(begin + 500)).map(open);
        all.extend(block_on(try_join_all(some)).unwrap());
    }
    all
}

#[test]
fn a_client_that_does_not_read_its_streams_costs_another_no_reading_ahead() {
    const MEMORY: usize = 256 << 20;
    let server = Running::start(Config { memory_limit: MEMORY, ..Config::default() }, |s| s);
    let greedy = server.client(Config::default());
    let unread = open(&greedy, 0, 200, 200);
    // Two batches of each are with the client.
    server.wait("batches", |server| server.items.taken(0) >= 200 * 2 * OF_BATCH);
    let held = (server.stats)().stream_bytes as usize;
    // A sixth of an eighth of the memory, and a batch of each of few handlers that run.
    assert!(held <= MEMORY / 8 / 6 + (512 << 10), "{held} bytes");
    let honest = server.client(Config::default());
    let mut own = open(&honest, 1, 4, 4);
    // Two batches of each are with the client, two wait at the server, and one is being filled.
    server.wait("reading ahead", |server| server.items.taken(1) >= 4 * (4 * OF_BATCH + 1));
    let left = server.items.taken(0);
    block_on(async {
        for items in &mut own {
            for _ in 0..10 * OF_BATCH {
                assert_eq!(items.next().await.unwrap().unwrap(), [1; ITEM]);
            }
        }
    });
    assert_eq!(server.items.taken(0), left, "nothing more is taken of streams that are not read");
    drop((unread, own));
    server.wait("the end of all streams", |server| {
        let stats = (server.stats)();
        (stats.streams, stats.stream_bytes) == (0, 0)
    });
}

#[test]
fn a_client_with_as_many_streams_as_it_may_have_gets_a_typed_error() {
    let config = Config { max_streams_per_peer: 3, ..Config::default() };
    let server = Running::start(config, |s| s);
    let (one, other) = (server.client(Config::default()), server.client(Config::default()));
    let mut streams = open(&one, 0, 3, 1);
    let error = block_on(async { one.feed(0).await }).unwrap_err();
    assert_eq!(error, RpcError::Stream(StreamError::Limit));
    assert_eq!(error.executed(), Executed::Never);
    assert_eq!((server.stats)().streams_refused, 1);
    assert_eq!(open(&other, 1, 3, 3).len(), 3, "the limit is for each client");
    streams.pop();
    server.wait("room for another stream", |_| block_on(async { one.feed(0).await }).is_ok());
}

#[test]
fn thousands_of_unread_streams_of_one_client_leave_memory_for_large_calls_of_others() {
    let config = Config {
        memory_limit: 256 << 20,
        max_streams_per_peer: 8_192,
        slots: 32,
        ..Config::default()
    };
    let server = Running::start(config, |s| s);
    let greedy = server.client(Config::default());
    let unread = open(&greedy, 0, 5_000, 1_000);
    assert_eq!((server.stats)().streams_opened, 5_000);
    let honest = server.client(Config::default());
    let bytes = vec![7; (8 << 20) - 64];
    for _ in 0..4 {
        let echoed = block_on(async { honest.echo(bytes.clone()).deadline(PATIENCE).await });
        assert!(echoed.unwrap() == bytes, "other bytes");
    }
    assert_eq!(open(&honest, 1, 8, 8).len(), 8);
    drop(unread);
}

/// Opens 60 streams at the same time, and reads an item of each.
fn sixty_first_items(settings: impl FnOnce(Server) -> Server) {
    // A retransmission would take longer than the test may.
    let seconds = Duration::from_secs;
    let config = || Config {
        rto: (seconds(30), seconds(60)),
        idle_after: seconds(60),
        datapath_timeout: seconds(300),
        ..Config::default()
    };
    let server = Running::start(config(), settings);
    let client = server.client(config());
    let streams = open_for(seconds(25), &client, 0, (60, 60));
    drop(streams);
}

#[test]
fn first_items_of_60_streams_do_not_wait_for_retransmissions() {
    sixty_first_items(|server| server);
    sixty_first_items(|server| server.in_place(true));
    #[cfg(feature = "tokio")]
    {
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(2).build().unwrap();
        sixty_first_items(|server| server.on_tokio(runtime.handle().clone()));
        sixty_first_items(|server| server.on_tokio(runtime.handle().clone()).in_place(true));
    }
}

#[test]
fn calls_about_streams_that_are_not_open_are_counted_for_each_client() {
    const PULL: u16 = 0x03F1;
    const PUSH: u16 = 0x03F2;
    let server = Running::start(Config::default(), |server| server);
    let (greedy, honest) = (server.client(Config::default()), server.client(Config::default()));
    let pull = |number: u16, len: usize| {
        let call = greedy.channel().call(number, greedy.channel().alloc(len).unwrap());
        assert_eq!(call.wait().unwrap()[..], [1, 5]);
    };
    for _ in 0..50 {
        pull(PULL, 8);
        pull(PUSH, 9);
    }
    let streams = open(&honest, 0, 3, 3);
    let clients = || server.handle.clients();
    let is_known = |client: &ClientStats| client.unknown_streams == 100 && client.streams == 0;
    let is_honest = |client: &ClientStats| client.unknown_streams == 0 && client.streams == 3;
    assert!(clients().len() == 2 && clients().iter().any(is_known), "{:?}", clients());
    assert!(clients().iter().any(is_honest), "{:?}", clients());
    let loopback = u128::from("127.0.0.1".parse::<std::net::Ipv4Addr>().unwrap().to_ipv6_mapped());
    assert!(clients().iter().all(|client| client.host == loopback), "{:?}", clients());
    assert_eq!((server.stats)().unknown_streams, 100);
    drop((streams, greedy));
    server.wait("the end of a client", |server| server.handle.clients().len() == 1);
}

#[test]
fn decoded_requests_of_a_client_leave_heap_for_those_of_another() {
    heap_is_left(|server, feed| server.add_service(feed).unwrap());
}

#[test]
fn decoded_requests_behind_layers_hold_heap_until_their_handlers_have_ended() {
    let layer = tower::layer::util::Identity::new();
    heap_is_left(|server, feed| server.add_service(courser::tower::layered(feed, layer)).unwrap());
}

/// Holds as many requests of one client as it may have.
fn heap_is_left(add: impl FnOnce(Server, FeedServer<Arc<Items>>) -> Server) {
    const MEMORY: usize = 64 << 20;
    const GREEDY: usize = 40;
    let config = Config { memory_limit: MEMORY, ..Config::default() };
    let server = Running::start_with(config, add);
    let (greedy, honest) = (server.client(Config::default()), server.client(Config::default()));
    let (stats, begun) = (&server.stats, || server.items.taken(2) as usize);
    // Each byte is a list of 24 bytes.
    let lists = vec![Vec::new(); 100_000];
    let held = (0..GREEDY).map(|_| greedy.lists(lists.clone(), true).into_future());
    let mut held: Vec<_> = held.map(Box::pin).collect();
    let mut refused = 0;
    let end = Instant::now() + PATIENCE;
    while begun() + refused < GREEDY {
        assert!(Instant::now() < end, "{} began, {refused} are refused", begun());
        held.retain_mut(|call| {
            let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
            let std::task::Poll::Ready(ended) = call.as_mut().poll(&mut cx) else { return true };
            let error = ended.unwrap_err();
            assert!(
                matches!(&error, RpcError::Decode(DecodeError::RemoteFull(text))
                if text.contains("their share")),
                "{error}"
            );
            assert_eq!(error.executed(), Executed::Never);
            assert_eq!(
                courser::grpc::Status::from(error).code(),
                courser::grpc::Code::ResourceExhausted
            );
            refused += 1;
            false
        });
        std::thread::sleep(Duration::from_millis(1));
    }
    let heap = |greedy: bool| -> usize {
        let clients = server.handle.clients();
        clients.iter().filter(|c| (c.heap_bytes > 0) == greedy).map(|c| c.heap_bytes).sum()
    };
    assert!((MEMORY / 4..=MEMORY / 2).contains(&heap(true)), "{} bytes", heap(true));
    for _ in 0..20 {
        let call = honest.lists(lists.clone(), false).deadline(PATIENCE).into_future();
        assert_eq!(block_on(call), Ok(100_000));
    }
    assert_eq!(stats().decode_errors as usize, refused);
    drop(held);
    server.wait("the end of all requests", |server| {
        server.handle.clients().iter().all(|client| client.heap_bytes == 0)
    });
}

#[test]
fn items_of_an_upload_need_no_more_heap_than_the_requests_of_a_client() {
    let config = Config { memory_limit: 64 << 20, ..Config::default() };
    let server = Running::start(config, |server| server);
    let client = server.client(Config::default());
    let upload = |elements: usize| {
        let lists = vec![Vec::new(); elements];
        block_on(async {
            let mut upload = client.upload().deadline(PATIENCE).await?;
            upload.send(&lists).await?;
            upload.send(&lists).await?;
            upload.finish().await
        })
    };
    // Each byte is a list of 24 bytes: 12 MB, and 72 MB.
    assert_eq!(upload(500_000), Ok(1_000_000));
    let refused = upload(3_000_000).unwrap_err();
    assert!(refused.to_string().contains("their share"), "{refused}");
    assert_eq!(upload(500_000), Ok(1_000_000), "what was counted is free again");
}
