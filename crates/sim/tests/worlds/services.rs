//! Typed services on simulated endpoints, under loss: calls, streams in both directions, ends from
//! both sides, and versions that do not match.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::pending;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use courser::service::{Incoming, MidStreamError, RpcError, Stream};
use courser::{DrainToken, Executed, Local, Nexus, TaskStats};
use courser_sim::fabric::{LinkFaults, Topology};
use courser_sim::{HostId, LinkId, World, WorldConfig};
use futures::{StreamExt, future, stream};

const SERVER: HostId = HostId(0);
const CLIENT: HostId = HostId(1);
const MS: Duration = Duration::from_millis(1);

/// A store with streams.
#[courser::service]
trait Store {
    /// Reads a key; the error is the key.
    async fn get(&self, key: u64) -> Result<Vec<u8>, u64>;
    /// Writes a key.
    async fn put(&self, key: u64, value: Vec<u8>);
    /// Values of this length, counted from 0.
    fn count(&self, to: u64, len: u32) -> impl Stream<Item = (u64, Vec<u8>)>;
    /// Fails after `ok` items.
    fn breaks(&self, ok: u64) -> impl Stream<Item = Result<u64, String>>;
    /// The sum of the lengths.
    async fn upload(&self, chunks: Incoming<Vec<u8>>) -> Result<u64, String>;
    /// Takes one chunk and answers.
    async fn first(&self, chunks: Incoming<Vec<u8>>) -> u64;
    /// Has no end.
    async fn hang(&self);
    /// Counts from 0, then has no further item.
    fn watch(&self, to: u64) -> impl Stream<Item = u64>;
    /// Waits until the server shuts down.
    async fn wait(&self) -> bool;
}

/// Another version of it.
mod newer {
    /// A store.
    #[courser::service]
    pub(super) trait Store {
        /// Reads a key.
        async fn get(&self, key: String) -> Vec<u8>;
    }
}

/// With state of one thread.
#[derive(Default)]
struct Shop {
    map: RefCell<BTreeMap<u64, Vec<u8>>>,
    /// Items that streams made, and handlers that are alive.
    made: Rc<Cell<u64>>,
    alive: Rc<()>,
    drain: RefCell<DrainToken>,
}

impl LocalStore for Shop {
    async fn get(&self, key: u64) -> Result<Vec<u8>, u64> {
        self.map.borrow().get(&key).cloned().ok_or(key)
    }
    async fn put(&self, key: u64, value: Vec<u8>) {
        self.map.borrow_mut().insert(key, value);
    }
    fn count(&self, to: u64, len: u32) -> impl Stream<Item = (u64, Vec<u8>)> {
        let (made, alive) = (self.made.clone(), self.alive.clone());
        stream::iter((0..to).map(move |n| {
            let _ = &alive;
            made.set(made.get() + 1);
            (n, vec![n as u8; len as usize])
        }))
    }
    fn breaks(&self, ok: u64) -> impl Stream<Item = Result<u64, String>> {
        stream::iter((0..=ok).map(move |n| if n < ok { Ok(n) } else { Err("broken".to_owned()) }))
    }
    async fn upload(&self, mut chunks: Incoming<Vec<u8>>) -> Result<u64, String> {
        let mut sum = 0;
        while let Some(chunk) = chunks.next().await {
            sum += chunk.map_err(|e| e.to_string())?.len() as u64;
        }
        Ok(sum)
    }
    async fn first(&self, mut chunks: Incoming<Vec<u8>>) -> u64 {
        chunks.next().await.map_or(0, |chunk| chunk.map_or(0, |chunk| chunk.len() as u64))
    }
    async fn hang(&self) {
        let _alive = self.alive.clone();
        pending::<()>().await;
    }
    fn watch(&self, to: u64) -> impl Stream<Item = u64> {
        let alive = self.alive.clone();
        stream::iter(0..to).chain(stream::pending()).inspect(move |_| {
            let _ = &alive;
        })
    }
    async fn wait(&self) -> bool {
        let drain = self.drain.borrow().clone();
        drain.draining().await;
        drain.is_draining()
    }
}

type Client = StoreClient<courser::Session>;

/// A world with loss, a server, and the endpoint of a client.
fn world(seed: u64, loss_ppm: u32) -> (World, Rc<Shop>) {
    let mut world = World::new(WorldConfig::new(seed, Topology::two_hosts())).unwrap();
    for link in 0..world.fabric().links() {
        let faults = LinkFaults { loss_ppm, duplicate_ppm: loss_ppm, ..LinkFaults::default() };
        world.set_link_faults(LinkId(link), faults);
    }
    let shop = Rc::new(Shop::default());
    let of_server = shop.clone();
    let start = move |nexus: &Nexus| -> Result<_, Box<dyn std::error::Error>> {
        let mut rpc = nexus.endpoint()?;
        of_server.drain.replace(rpc.drain_token());
        rpc.add_service(StoreServer::shared(of_server.clone()))?;
        Ok(rpc)
    };
    world.start(SERVER, move |nexus| start(nexus).map_err(|e| e.to_string())).unwrap();
    world.start(CLIENT, Nexus::endpoint).unwrap();
    (world, shop)
}

/// Runs a client's future in a world with loss, and checks that nothing is left.
fn run<F>(seed: u64, loss_ppm: u32, client: impl FnOnce(Local, String, Rc<Shop>) -> F) -> World
where
    F: Future<Output = ()> + 'static,
{
    let (mut world, shop) = world(seed, loss_ppm);
    let uri = world.uri(SERVER);
    let rpc = world.rpc(CLIENT);
    let (local, handle) = (rpc.local(), rpc.handle());
    let task = local.spawn(client(local.clone(), uri, shop.clone()));
    handle.wake();
    let ended = world.run_until(Duration::from_secs(100), |_| task.is_finished());
    assert!(ended, "seed {seed}: the client's task hangs");
    world.run_for(Duration::from_secs(2));
    for host in [SERVER, CLIENT] {
        assert_eq!(world.rpc(host).task_stats(), TaskStats::default(), "seed {seed}, {host:?}");
        world.rpc(host).check();
    }
    assert_eq!(Rc::strong_count(&shop.alive), 1, "seed {seed}: a handler is alive");
    assert_eq!(world.rpc(SERVER).service_stats().streams, 0, "seed {seed}");
    assert!(world.violations().is_empty(), "seed {seed}: {:?}", world.violations());
    world
}

async fn connect(local: &Local, uri: &str) -> Client {
    Client::new(local.connect(uri).await.unwrap()).await.unwrap()
}

#[test]
fn typed_calls_and_streams_work_under_loss() {
    for seed in 0..10 {
        run(seed, [0, 10_000][seed as usize % 2], |local, uri, _| async move {
            let store = connect(&local, &uri).await;
            assert_eq!(store.get(7).await, Err(RpcError::Service(7)));
            store.put(7, vec![1; 10_000]).await.unwrap();
            assert_eq!(store.get(7).await.unwrap(), vec![1; 10_000]);
            // About 2 MB in batches.
            let mut items = store.count(500, 4_000).await.unwrap();
            for n in 0..500 {
                let (number, value) = items.next().await.unwrap().unwrap();
                assert_eq!((number, value), (n, vec![n as u8; 4_000]));
            }
            assert!(items.next().await.is_none());
            let mut broken = store.breaks(3).await.unwrap();
            for n in 0..3 {
                assert_eq!(broken.next().await.unwrap().unwrap(), n);
            }
            let end = broken.next().await.unwrap().unwrap_err();
            assert_eq!(end, RpcError::Service("broken".to_owned()));
            let mut upload = store.upload().await.unwrap();
            for n in 0..300 {
                upload.send(&vec![n as u8; 5_000]).await.unwrap();
            }
            assert_eq!(upload.finish().await.unwrap(), 300 * 5_000);
            // The handler ends first: the client notices, and has its outcome.
            let mut upload = store.first().await.unwrap();
            let mut sent = 0;
            while !upload.has_ended() {
                upload.send(&vec![0; 50_000]).await.unwrap();
                sent += 1;
                assert!(sent < 1_000, "the client does not see the end");
            }
            assert_eq!(upload.finish().await.unwrap(), 50_000);
        });
    }
}

#[test]
fn a_stalled_reader_stops_the_writer_and_delays_no_other_call() {
    run(3, 0, |local, uri, shop| async move {
        let store = connect(&local, &uri).await;
        let mut items = store.count(1_000_000, 10_000).await.unwrap();
        items.next().await.unwrap().unwrap();
        local.sleep(MS * 10).await;
        let held = shop.made.get();
        // Two batches at the server, two at the client, each of at most 64 KiB and an item.
        assert!(held <= 4 * 8 + 2, "{held} items of 10 kB are held");
        let before_ns = local.now_ns();
        for key in 0..100 {
            store.put(key, vec![1; 100]).await.unwrap();
        }
        let each_ns = (local.now_ns() - before_ns) / 100;
        assert!(each_ns < 20_000, "{each_ns} ns a call");
        local.sleep(MS * 10).await;
        assert_eq!(shop.made.get(), held);
        drop(items);
        // The server's stream is dropped.
        local.sleep(MS * 10).await;
        assert_eq!(Rc::strong_count(&shop.alive), 1);
    });
}

#[test]
fn dropped_calls_and_uploads_drop_their_handlers() {
    for seed in 0..4 {
        run(seed, 5_000, |local, uri, shop| async move {
            let store = connect(&local, &uri).await;
            for _ in 0..10 {
                let hangs = async { store.hang().await };
                assert!(local.timeout(MS, hangs).await.is_err());
                let mut upload = store.upload().await.unwrap();
                let _ = local.timeout(MS, pin!(upload.send(&vec![1; 100_000]))).await;
            }
            local.sleep(MS * 100).await;
            assert_eq!(Rc::strong_count(&shop.alive), 1);
        });
    }
}

#[test]
fn a_method_of_another_version_is_refused_and_the_error_has_both_shapes() {
    run(1, 0, |local, uri, _| async move {
        let session = local.connect(&uri).await.unwrap();
        let newer = newer::StoreClient::new(session).await.unwrap();
        let error = newer.get("key".to_owned()).await.unwrap_err();
        assert_eq!(error.executed(), Executed::Never, "{error}");
        let RpcError::ShapeMismatch(mismatch) = error else { panic!("{error:?}") };
        assert!(mismatch.client.contains("String"), "{mismatch}");
        assert!(mismatch.server.contains("u64"), "{mismatch}");
    });
}

#[test]
fn worlds_with_services_are_the_same_for_the_same_seed() {
    let digest = |seed| {
        let world = run(seed, 10_000, |local, uri, _| async move {
            let store = connect(&local, &uri).await;
            let mut items = store.count(50, 4_000).await.unwrap();
            while let Some(item) = items.next().await {
                item.unwrap();
            }
        });
        world.digest()
    };
    assert_eq!(digest(4), digest(4));
    assert_ne!(digest(4), digest(5));
}

/// The items that were delivered before the server shut down.
fn shutting_down<T: std::fmt::Debug, E: std::fmt::Debug>(result: Result<T, RpcError<E>>) -> u64 {
    match result {
        Err(RpcError::MidStream(MidStreamError::ShuttingDown { items })) => items,
        other => panic!("{other:?}"),
    }
}

/// Stops the server when the client's future has set its flag, and runs the future to its end. It has
/// the time of the stop then, in the time of its endpoint.
fn stop<F>(
    seed: u64,
    grace: Duration,
    client: impl FnOnce(Client, Local, Rc<Cell<u64>>) -> F + 'static,
) where
    F: Future<Output = ()> + 'static,
{
    let (mut world, shop) = world(seed, [0, 1_000][seed as usize % 2]);
    let uri = world.uri(SERVER);
    let rpc = world.rpc(CLIENT);
    let (local, handle) = (rpc.local(), rpc.handle());
    let session = local.connect(&uri);
    let stopped_ns = Rc::new(Cell::new(u64::MAX));
    let flag = stopped_ns.clone();
    let own = local.clone();
    let client = async move {
        let store = Client::unchecked(session.await.unwrap());
        client(store, own, flag).await;
    };
    let task = local.spawn(client);
    handle.wake();
    let limit = Duration::from_secs(30);
    assert!(world.run_until(limit, |_| stopped_ns.get() == 0), "seed {seed}: it does not begin");
    stopped_ns.set(world.rpc(CLIENT).context().now_ns());
    world.stop(SERVER, grace);
    assert!(world.run_until(limit, |_| task.is_finished()), "seed {seed}: a stream does not end");
    world.run_for(Duration::from_secs(1));
    assert!(world.endpoint(SERVER, 0).is_none(), "seed {seed}: the server runs");
    assert_eq!(Rc::strong_count(&shop.alive), 1, "seed {seed}: a handler is alive");
    assert!(world.violations().is_empty(), "seed {seed}: {:?}", world.violations());
}

#[test]
fn streams_without_items_end_within_a_tenth_of_a_second_of_the_token_and_others_flow_on() {
    for seed in 0..6 {
        stop(seed, Duration::from_secs(20), |store, local, stopped_ns| async move {
            let mut watch = store.watch(5).await.unwrap();
            for n in 0..5 {
                assert_eq!(watch.next().await.unwrap().unwrap(), n);
            }
            let mut stalls = store.count(1_000_000, 10_000).await.unwrap();
            stalls.next().await.unwrap().unwrap();
            let mut flow = store.count(1_000, 10_000).await.unwrap();
            flow.next().await.unwrap().unwrap();
            let mut idle = store.upload().await.unwrap();
            idle.send(&vec![1; 100]).await.unwrap();
            idle.flush().await.unwrap();
            let mut upload = store.upload().await.unwrap();
            upload.send(&vec![1; 100]).await.unwrap();
            upload.flush().await.unwrap();
            let waits = async { store.wait().await };
            let ends = async {
                local.sleep(MS).await; // `waits` is at the server
                stopped_ns.set(0);
                assert_eq!(shutting_down(watch.next().await.unwrap()), 5);
                let took_ns = local.now_ns() - stopped_ns.get();
                assert!(took_ns < 100_000_000, "{took_ns} ns");
                assert_eq!(shutting_down(idle.finish().await), 1);
                let took_ns = local.now_ns() - stopped_ns.get();
                assert!(took_ns < 100_000_000, "{took_ns} ns");
                let mut items = 1;
                let named = loop {
                    match stalls.next().await.unwrap() {
                        Ok(_) => items += 1,
                        end => break shutting_down(end),
                    }
                };
                assert_eq!(named, items);
                let refused = store.get(1).await.unwrap_err();
                assert_eq!(refused.executed(), Executed::Never, "{refused}");
            };
            let flows = async {
                // For a second and more.
                for n in 1..1_000 {
                    assert_eq!(flow.next().await.unwrap().unwrap().0, n);
                    upload.send(&vec![1; 100]).await.unwrap();
                    local.sleep(MS).await;
                }
                assert!(flow.next().await.is_none());
                assert_eq!(upload.finish().await.unwrap(), 100_000);
            };
            let (waited, ..) = future::join3(waits, ends, flows).await;
            assert!(waited.unwrap());
        });
    }
}

#[test]
fn streams_that_flow_at_the_end_of_the_grace_end_with_the_number_of_their_items() {
    for seed in 0..4 {
        stop(seed, Duration::from_secs(1), |store, local, stopped_ns| async move {
            let mut flow = store.count(u64::MAX, 10_000).await.unwrap();
            let mut upload = store.upload().await.unwrap();
            upload.send(&vec![1; 1_000]).await.unwrap();
            upload.flush().await.unwrap();
            flow.next().await.unwrap().unwrap();
            stopped_ns.set(0);
            let in_time = |stopped_ns: &Cell<u64>| {
                let took_ns = local.now_ns() - stopped_ns.get();
                assert!((850_000_000..1_000_000_000).contains(&took_ns), "{took_ns} ns");
            };
            let sends = async {
                let mut sent = 1;
                let failed = loop {
                    if let Err(e) = upload.send(&vec![1; 1_000]).await {
                        break e;
                    }
                    sent += 1;
                    local.sleep(MS).await;
                };
                in_time(&stopped_ns);
                let taken = shutting_down::<(), _>(Err(failed));
                assert!(taken <= sent && taken + 200 > sent, "{taken} of {sent}");
            };
            let reads = async {
                let mut received = 1;
                let delivered = loop {
                    match flow.next().await.unwrap() {
                        Ok(_) => received += 1,
                        end => break shutting_down(end),
                    }
                    local.sleep(MS).await;
                };
                in_time(&stopped_ns);
                assert_eq!(delivered, received);
            };
            future::join(sends, reads).await;
        });
    }
}
