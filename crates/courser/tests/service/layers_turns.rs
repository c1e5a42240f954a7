//! Turns of large requests behind layers of tower.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use courser::tower::{AnswerFuture, BoxError, Request, Response, layered};
use courser::{Client, Config, Endpoints, Server};
use tokio::sync::Semaphore;
use tower::{Layer, Service};

const MS: Duration = Duration::from_millis(1);
/// Time after which a test fails.
const PATIENCE: Duration = Duration::from_secs(60);

/// The owners of the arguments whose decoding has begun, in order, and whether it may end.
static DECODING: Mutex<(Vec<u8>, bool)> = Mutex::new((Vec::new(), false));
static MAY_END: Condvar = Condvar::new();

const GREEDY: u8 = 101;
const HONEST: u8 = 102;

/// An argument whose decoding waits. Its shape is traced with another number.
#[derive(Debug)]
struct Slow(u8);

impl serde::Serialize for Slow {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u8(self.0)
    }
}

impl<'de> serde::Deserialize<'de> for Slow {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let owner = u8::deserialize(from)?;
        if owner == GREEDY || owner == HONEST {
            let mut decoding = DECODING.lock().unwrap();
            decoding.0.push(owner);
            drop(MAY_END.wait_while(decoding, |decoding| !decoding.1).unwrap());
        }
        Ok(Slow(owner))
    }
}

#[courser::service]
trait Scale {
    async fn weigh(&self, of: Slow, weight: Vec<u8>) -> u64;
}

struct Spring;

impl Scale for Spring {
    async fn weigh(&self, _: Slow, weight: Vec<u8>) -> u64 {
        weight.len() as u64
    }
}

/// A layer that holds requests: those of the greedy client, and of the honest one.
#[derive(Clone)]
struct Held(Arc<[Owned; 2]>);

/// The requests of a client: those that have arrived, those that wait for their turn, and permits to be
/// passed on.
struct Owned {
    arrived: AtomicUsize,
    waiting: AtomicUsize,
    permits: Semaphore,
}

#[derive(Clone)]
struct Holding<S>(Held, S);

impl<S> Layer<S> for Held {
    type Service = Holding<S>;
    fn layer(&self, inner: S) -> Holding<S> {
        Holding(self.clone(), inner)
    }
}

impl<S> Service<Request> for Holding<S>
where
    S: Service<Request, Response = Response, Error = BoxError, Future: Send + 'static>,
    S: Send + Clone + 'static,
{
    type Response = Response;
    type Error = BoxError;
    type Future = AnswerFuture;
    fn poll_ready(
        &mut self,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), BoxError>> {
        self.1.poll_ready(cx)
    }
    fn call(&mut self, request: Request) -> AnswerFuture {
        let (held, mut inner) = (self.0.clone(), self.1.clone());
        Box::pin(async move {
            let owned = &held.0[usize::from(request.metadata().get("honest").is_some())];
            owned.arrived.fetch_add(1, Ordering::SeqCst);
            owned.permits.acquire().await.unwrap().forget();
            let mut answer = pin!(inner.call(request));
            let mut is_first = true;
            poll_fn(|cx| {
                let polled = answer.as_mut().poll(cx);
                let waits = std::mem::take(&mut is_first) && polled.is_pending();
                owned.waiting.fetch_add(usize::from(waits), Ordering::SeqCst);
                polled
            })
            .await
        })
    }
}

async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "{what}");
        tokio::time::sleep(MS).await;
    }
}

/// Begins calls of one client, on sessions with 8 of them.
async fn weigh(uri: &str, owner: u8, calls: usize) -> Vec<tokio::task::JoinHandle<u64>> {
    let endpoints = Endpoints::bind("udp://127.0.0.1:0", 1, Config::default()).unwrap();
    let mut all = Vec::new();
    for begin in (0..calls).step_by(8) {
        let channel = Client::connect_on(&endpoints, uri).await.unwrap();
        let scale = ScaleClient::new(channel).await.unwrap();
        for _ in begin..calls.min(begin + 8) {
            let scale = scale.clone();
            all.push(tokio::spawn(async move {
                let call = scale.weigh(Slow(owner), vec![1; 70_000]);
                let key = if owner == HONEST { "honest" } else { "greedy" };
                call.metadata(key, "1").deadline(PATIENCE).await.unwrap()
            }));
        }
    }
    all
}

#[test]
fn large_requests_behind_layers_take_turns_by_clients() {
    let cpus = std::thread::available_parallelism().map_or(2, usize::from);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.enable_all().worker_threads(cpus + 4).build().unwrap();
    runtime.block_on(async {
        let owned = || Owned {
            arrived: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            permits: Semaphore::new(0),
        };
        let held = Held(Arc::new([owned(), owned()]));
        let server = Server::bind("udp://127.0.0.1:0").unwrap();
        let server = server.on_tokio(tokio::runtime::Handle::current());
        let server = server.add_service(layered(ScaleServer::new(Spring), held.clone())).unwrap();
        let (uri, _serving) = (server.local_uri(), server.serve().unwrap());
        let calls = 5 * cpus + 8;
        let mut all = weigh(&uri, GREEDY, calls).await;
        all.extend(weigh(&uri, HONEST, 1).await);
        let [greedy, honest] = &*held.0;
        let arrived = |owned: &Owned| owned.arrived.load(Ordering::SeqCst);
        until("arrivals", || arrived(greedy) == calls && arrived(honest) == 1).await;
        // Few are decoded, and the others of the greedy client wait when the honest one comes.
        let begun = || DECODING.lock().unwrap().0.len();
        let waiting = |owned: &Owned| owned.waiting.load(Ordering::SeqCst);
        greedy.permits.add_permits(calls);
        until("turns", || waiting(greedy) + begun() == calls).await;
        assert!(begun() <= cpus, "{} are decoded", begun());
        honest.permits.add_permits(1);
        until("the honest one", || waiting(honest) == 1).await;
        DECODING.lock().unwrap().1 = true;
        MAY_END.notify_all();
        for call in all {
            assert_eq!(call.await.unwrap(), 70_000);
        }
        let order = DECODING.lock().unwrap().0.clone();
        let place = order.iter().position(|owner| *owner == HONEST).unwrap();
        assert!(place + 2 * cpus < order.len(), "after {place} of {}", order.len());
    });
}
