//! Middleware of servers and clients: on workers, on tokio, in place, and on the thread of an endpoint.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use courser::service::{
    BlockingChannel, CallContext, CallEnd, CallOutcome, ClientMiddleware, Denied, Incoming,
    IncomingCall, MethodKind, NoError, OutgoingCall, RpcError, ServerMiddleware, Stream,
    TraceParent,
};
use courser::{CallError, CallFailure, Client, Config, Executed, Nexus, Rpc, Server};
use futures::{StreamExt, stream};

use crate::world::until;

/// The value that is counted.
const COUNTED: Bomb = Bomb(9);

/// Values that were decoded by the servers of this program, of those that are counted.
static DECODED: AtomicU64 = AtomicU64::new(0);

/// A value whose decoder counts.
#[derive(Clone, Debug)]
struct Bomb(u8);

impl serde::Serialize for Bomb {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u8(self.0)
    }
}

impl<'de> serde::Deserialize<'de> for Bomb {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = u8::deserialize(deserializer)?;
        DECODED.fetch_add(u64::from(value == COUNTED.0), Ordering::Relaxed);
        Ok(Bomb(value))
    }
}

#[courser::service]
trait Vault {
    async fn open(&self, key: Bomb) -> Result<u8, String>;
    async fn seen(&self, cx: CallContext) -> Vec<(String, String)>;
    async fn hang(&self);
    #[oneway]
    async fn knock(&self, key: Bomb);
    #[oneway]
    async fn toll(&self, ms: u64);
    fn coins(&self, key: Bomb) -> impl Stream<Item = u8>;
    async fn fill(&self, coins: Incoming<u8>) -> Result<u8, String>;
}

struct Keeper;

impl Vault for Keeper {
    async fn open(&self, _: Bomb) -> Result<u8, String> {
        tokio_yield().await;
        Ok(7)
    }
    async fn seen(&self, cx: CallContext) -> Vec<(String, String)> {
        assert!(cx.peer().is_some());
        let text = |key: &str| (key.to_owned(), cx.metadata().text(key).unwrap().to_owned());
        cx.metadata().iter().map(|(key, _)| text(key)).collect()
    }
    async fn hang(&self) {
        std::future::pending::<()>().await;
    }
    async fn knock(&self, _: Bomb) {}
    async fn toll(&self, ms: u64) {
        if ms == 0 {
            std::future::pending::<()>().await;
        }
        thread::sleep(Duration::from_millis(ms));
    }
    fn coins(&self, _: Bomb) -> impl Stream<Item = u8> {
        stream::iter(0..3)
    }
    async fn fill(&self, coins: Incoming<u8>) -> Result<u8, String> {
        let count = coins.count().await;
        if count == 0 { Err("no coin".to_owned()) } else { Ok(count as u8) }
    }
}

/// Waits once, so that the handler becomes a task.
async fn tokio_yield() {
    let mut waited = false;
    std::future::poll_fn(|cx| {
        if std::mem::replace(&mut waited, true) {
            return std::task::Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

type Middleware = Arc<dyn Fn() -> Box<dyn ServerMiddleware> + Send + Sync>;

/// A middleware in a box.
struct Boxed(Box<dyn ServerMiddleware>);

impl ServerMiddleware for Boxed {
    fn before(&self, call: &mut IncomingCall<'_>) -> Result<(), Denied> {
        self.0.before(call)
    }
    fn after(&self, end: &CallEnd<'_>) {
        self.0.after(end);
    }
}

/// Runs a test against a server of each kind, with middleware, the first one outermost.
fn on_each_server(middleware: &[Middleware], test: impl Fn(Client)) {
    let serve = |change: &dyn Fn(Server) -> Server| {
        let config = Config { workers: 2, ..Config::default() };
        let mut server = change(Server::bind_with("udp://127.0.0.1:0", config).unwrap());
        for make in middleware {
            server = server.middleware(Boxed(make()));
        }
        let server = server.add_service(VaultServer::new(Keeper)).unwrap();
        let (uri, _serving) = (server.local_uri(), server.serve().unwrap());
        test(Client::connect(&uri).wait().unwrap());
    };
    serve(&|server| server);
    serve(&|server| server.in_place(true));
    #[cfg(feature = "tokio")]
    {
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(2).build().unwrap();
        serve(&|server| server.on_tokio(runtime.handle().clone()));
    }
    let before = |rpc: &mut Rpc| {
        middleware.iter().for_each(|make| rpc.middleware(Boxed(make())));
        rpc.add_service(VaultServer::local(Keeper)).unwrap();
    };
    on_an_endpoint(before, &test);
    // Also before the handlers that are there.
    let after = |rpc: &mut Rpc| {
        rpc.add_service(VaultServer::local(Keeper)).unwrap();
        middleware.iter().for_each(|make| rpc.middleware(Boxed(make())));
    };
    on_an_endpoint(after, &test);
}

fn on_an_endpoint(add: impl FnOnce(&mut Rpc) + Send, test: impl FnOnce(Client)) {
    let (sent, received) = channel();
    thread::scope(|scope| {
        scope.spawn(move || {
            let nexus = Nexus::bind("udp://127.0.0.1:0").unwrap();
            let mut rpc = nexus.endpoint().unwrap();
            add(&mut rpc);
            sent.send((nexus.local_uri(), rpc.handle())).unwrap();
            rpc.run().unwrap();
        });
        let (uri, handle) = received.recv().unwrap();
        test(Client::connect(&uri).wait().unwrap());
        handle.stop();
    });
}

fn vault(client: &Client) -> VaultClient {
    client.wait(VaultClient::new(client.clone())).unwrap()
}

// ---- a token ------------------------------------------------------------------------------------

/// Lets calls with a token pass.
struct Tokens;

impl ServerMiddleware for Tokens {
    fn before(&self, call: &mut IncomingCall<'_>) -> Result<(), Denied> {
        match call.metadata().text("token") {
            Some("good") => Ok(()),
            Some(_) => Err(Denied::new("the token is not good")),
            None => Err(Denied::unauthenticated("no token")),
        }
    }
}

#[test]
fn a_call_with_a_bad_token_is_refused_before_its_arguments_are_decoded() {
    on_each_server(&[Arc::new(|| Box::new(Tokens))], |client| {
        let before = DECODED.load(Ordering::Relaxed);
        let vault = vault(&client);
        let error = vault.open(COUNTED).wait().unwrap_err();
        assert_eq!(error, RpcError::Unauthenticated("no token".into()));
        assert_eq!(error.executed(), Executed::Never);
        let error = vault.open(COUNTED).metadata("token", "bad").wait().unwrap_err();
        assert_eq!(error, RpcError::Denied("the token is not good".into()));
        vault.knock(COUNTED).metadata("token", "bad").wait().unwrap();
        let error = client.wait(async { vault.coins(COUNTED).await?.next().await.unwrap() });
        assert_eq!(error, Err(RpcError::Unauthenticated("no token".into())));
        let error = client.wait(async { vault.fill().await?.finish().await });
        assert_eq!(error, Err(RpcError::Unauthenticated("no token".into())));
        assert_eq!(DECODED.load(Ordering::Relaxed), before);
        assert_eq!(vault.open(COUNTED).metadata("token", "good").wait(), Ok(7));
        let coins = vault.coins(COUNTED).metadata("token", "good");
        assert_eq!(client.wait(async { coins.await.unwrap().count().await }), 3);
        assert_eq!(DECODED.load(Ordering::Relaxed), before + 2);
    });
}

// ---- a limit of the rate ------------------------------------------------------------------------

/// Lets `burst` calls of each address pass at once, and one more after each pause.
struct RateLimit {
    burst: u32,
    pause: Duration,
    buckets: Mutex<BTreeMap<IpAddr, (f64, Instant)>>,
}

/// Most addresses that are remembered. Beyond it those that may make a whole burst again are forgotten, and
/// without any all addresses share the refusal.
const MOST_ADDRESSES: usize = 10_000;

impl RateLimit {
    fn new(burst: u32, pause: Duration) -> Self {
        RateLimit { burst, pause, buckets: Mutex::default() }
    }

    /// Takes a call of an address. Otherwise returns when the next one may be made.
    fn take(&self, address: IpAddr, now: Instant) -> Result<(), Duration> {
        let (burst, pause) = (f64::from(self.burst), self.pause);
        let earned = |at: Instant| (now - at).as_secs_f64() / pause.as_secs_f64();
        let mut buckets = self.buckets.lock().unwrap();
        if buckets.len() >= MOST_ADDRESSES && !buckets.contains_key(&address) {
            buckets.retain(|_, (left, at)| *left + earned(*at) < burst);
            if buckets.len() >= MOST_ADDRESSES {
                return Err(pause);
            }
        }
        let (left, at) = buckets.entry(address).or_insert((burst, now));
        (*left, *at) = ((*left + earned(*at)).min(burst), now);
        if *left < 1.0 {
            return Err(pause.mul_f64(1.0 - *left));
        }
        *left -= 1.0;
        Ok(())
    }
}

impl ServerMiddleware for RateLimit {
    fn before(&self, call: &mut IncomingCall<'_>) -> Result<(), Denied> {
        let Some(socket) = call.peer().addr().to_socket() else { return Ok(()) };
        self.take(socket.ip(), Instant::now())
            .map_err(|after| Denied::too_many("the rate of this address", after))
    }
}

#[test]
fn calls_above_the_rate_of_an_address_are_refused_with_a_time() {
    let hour = Duration::from_secs(3_600);
    on_each_server(&[Arc::new(move || Box::new(RateLimit::new(3, hour)))], |client| {
        let vault = vault(&client);
        for _ in 0..3 {
            assert_eq!(vault.open(Bomb(1)).wait(), Ok(7));
        }
        let error = vault.open(Bomb(1)).wait().unwrap_err();
        assert_eq!(error.executed(), Executed::Never);
        let RpcError::TooMany { reason, retry_after } = error else { panic!("{error}") };
        assert_eq!(&*reason, "the rate of this address");
        assert!(retry_after <= hour && retry_after > hour / 2, "{retry_after:?}");
    });
}

#[test]
fn a_limit_remembers_a_bounded_number_of_addresses() {
    let (limit, now) = (RateLimit::new(1, Duration::from_secs(1)), Instant::now());
    for n in 0..MOST_ADDRESSES as u32 {
        assert_eq!(limit.take(IpAddr::from(n.to_be_bytes()), now), Ok(()));
    }
    let other = IpAddr::from([255; 4]);
    assert!(limit.take(other, now).is_err());
    assert_eq!(limit.buckets.lock().unwrap().len(), MOST_ADDRESSES);
    // The earlier addresses have their burst again.
    assert_eq!(limit.take(other, now + Duration::from_secs(2)), Ok(()));
    assert_eq!(limit.buckets.lock().unwrap().len(), 1);
}

// ---- a trace, and the ends of calls ---------------------------------------------------------------

/// The end of a call, with its trace.
type Ended = (&'static str, MethodKind, CallOutcome, Option<String>);

/// Gives calls without a trace one, and keeps the ends of all.
#[derive(Clone, Default)]
struct Traces(Arc<Mutex<Vec<Ended>>>);

impl ServerMiddleware for Traces {
    fn before(&self, call: &mut IncomingCall<'_>) -> Result<(), Denied> {
        assert_eq!(call.service(), "Vault");
        assert!(call.req_type() >= 0x4000 && call.peer().addr().to_socket().is_some());
        if call.metadata().get("traceparent").is_none() {
            let parent = TraceParent::new([7; 16], [8; 8], true).unwrap();
            call.add_metadata("traceparent", parent).unwrap();
        }
        Ok(())
    }
    fn after(&self, end: &CallEnd<'_>) {
        let trace = end.metadata.text("traceparent").map(str::to_owned);
        let method = ["open", "seen", "hang", "knock", "coins", "fill", "toll"];
        let method = method.into_iter().find(|method| *method == end.method).unwrap();
        assert!(end.peer.is_some() && end.duration < Duration::from_secs(60));
        self.0.lock().unwrap().push((method, end.kind, end.outcome, trace));
    }
}

const TRACE: &str = "00-07070707070707070707070707070707-0808080808080808-01";

/// Refuses calls with this key.
struct Refuses;

impl ServerMiddleware for Refuses {
    fn before(&self, call: &mut IncomingCall<'_>) -> Result<(), Denied> {
        match call.metadata().get("panic") {
            Some(_) => panic!("middleware"),
            None if call.metadata().get("refuse").is_some() => Err(Denied::new("no")),
            None => Ok(()),
        }
    }
    fn after(&self, _: &CallEnd<'_>) {
        panic!("middleware");
    }
}

#[test]
fn middleware_sees_each_kind_of_call_and_its_end_and_handlers_read_what_it_adds() {
    let traces = Traces::default();
    let kept = traces.0.clone();
    let outer: Middleware = Arc::new(move || Box::new(traces.clone()));
    on_each_server(&[outer, Arc::new(|| Box::new(Refuses))], |client| {
        kept.lock().unwrap().clear();
        let vault = vault(&client);
        let ended = |count: usize| {
            until(|| kept.lock().unwrap().len() >= count);
            kept.lock().unwrap().last().cloned().unwrap()
        };
        let end = |method, kind, outcome| (method, kind, outcome, Some(TRACE.to_owned()));
        let unary = |method, outcome| end(method, MethodKind::Unary, outcome);
        assert_eq!(vault.open(Bomb(1)).wait(), Ok(7));
        assert_eq!(ended(1), unary("open", CallOutcome::Ok));
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(vault.seen().wait().unwrap(), [pair("traceparent", TRACE)]);
        assert_eq!(ended(2), unary("seen", CallOutcome::Ok));
        let own = vault.seen().metadata("a", "b").metadata("traceparent", "own").wait().unwrap();
        assert_eq!(own, [pair("a", "b"), pair("traceparent", "own")]);
        assert_eq!(ended(3).3.as_deref(), Some("own"));
        let late = vault.hang().deadline(Duration::from_millis(20)).wait().unwrap_err();
        assert_eq!(late.executed(), Executed::Maybe);
        // Its client may be the first to end it.
        let (late, seen) = (unary("hang", CallOutcome::Deadline), ended(4));
        assert!(seen == late || seen == unary("hang", CallOutcome::Cancelled), "{seen:?}");
        vault.knock(Bomb(1)).wait().unwrap();
        assert_eq!(ended(5), end("knock", MethodKind::OneWay, CallOutcome::Ok));
        assert_eq!(client.wait(async { vault.coins(Bomb(1)).await.unwrap().count().await }), 3);
        assert_eq!(ended(6), end("coins", MethodKind::ServerStream, CallOutcome::Ok));
        let error = client.wait(async { vault.fill().await?.finish().await });
        assert_eq!(error, Err(RpcError::Service("no coin".to_owned())));
        assert_eq!(ended(7), end("fill", MethodKind::ClientStream, CallOutcome::Failed));
        let error = vault.open(Bomb(1)).metadata("refuse", "1").wait().unwrap_err();
        assert_eq!(error, RpcError::Denied("no".into()));
        assert_eq!(ended(8), unary("open", CallOutcome::Denied));
        let error = vault.open(Bomb(1)).metadata("panic", "1").wait().unwrap_err();
        assert!(matches!(&error, RpcError::Denied(text) if text.contains("has failed")), "{error}");
        assert_eq!(ended(9), unary("open", CallOutcome::Denied));
        // Arguments that cannot be decoded; the type of `open` follows those of `coins`, `fill`, `hang`
        // and `knock`.
        client.call(0x4004, client.alloc(0).unwrap()).wait().unwrap();
        assert_eq!(ended(10), unary("open", CallOutcome::Undecoded));
        assert_eq!(kept.lock().unwrap().len(), 10);
    });
}

#[test]
fn middleware_sees_which_messages_were_not_handled() {
    let traces = Traces::default();
    let kept = traces.0.clone();
    let ended = || {
        until(|| !kept.lock().unwrap().is_empty());
        let ends = std::mem::take(&mut *kept.lock().unwrap());
        assert_eq!((ends.len(), ends[0].1), (1, MethodKind::OneWay));
        (ends[0].0, ends[0].2)
    };
    let of_servers = traces.clone();
    on_each_server(&[Arc::new(move || Box::new(of_servers.clone()))], |client| {
        // The type of `knock` follows those of `coins`, `fill` and `hang`.
        client.send(0x4003, client.alloc(0).unwrap()).wait().unwrap();
        assert_eq!(ended(), ("knock", CallOutcome::Undecoded));
        vault(&client).knock(Bomb(1)).wait().unwrap();
        assert_eq!(ended(), ("knock", CallOutcome::Ok));
    });
    // A server drops the future of a message at its deadline, an endpoint does not.
    let server = Server::bind("udp://127.0.0.1:0").unwrap().middleware(traces);
    let server = server.add_service(VaultServer::new(Keeper)).unwrap();
    let (uri, _serving) = (server.local_uri(), server.serve().unwrap());
    let vault = vault(&Client::connect(&uri).wait().unwrap());
    vault.toll(0).deadline(Duration::from_millis(50)).wait().unwrap();
    assert_eq!(ended(), ("toll", CallOutcome::Deadline));
    // It ends after its deadline, but it ends.
    vault.toll(300).deadline(Duration::from_millis(200)).wait().unwrap();
    assert_eq!(ended(), ("toll", CallOutcome::Ok));
}

/// The largest message of a client.
const SMALL: usize = 4_096;

#[courser::service]
trait Store {
    async fn put(&self, value: Vec<u8>);
    #[oneway]
    async fn note(&self, value: Vec<u8>);
}

/// Keeps the outcomes of calls, to which it adds a pair.
#[derive(Clone, Default)]
struct Outcomes(Arc<Mutex<Vec<CallOutcome>>>);

impl ClientMiddleware for Outcomes {
    fn before(&self, call: &mut OutgoingCall<'_>) -> Result<(), Denied> {
        Ok(call.add_metadata("key", "v".repeat(200))?)
    }
    fn after(&self, end: &CallEnd<'_>) {
        self.0.lock().unwrap().push(end.outcome);
    }
}

#[test]
fn a_call_without_room_for_its_metadata_is_no_cancelled_one() {
    let config = Config { max_msg_size: SMALL as u32, ..Config::default() };
    let server = Server::bind("udp://127.0.0.1:0").unwrap();
    let (uri, _serving) = (server.local_uri(), server.serve().unwrap());
    let client = Client::builder().config(config).connect(&uri).wait().unwrap();
    let outcomes = Outcomes::default();
    let store = StoreClient::unchecked(client).with_middleware(outcomes.clone());
    // The request has room, but not with the pair.
    let value = vec![1; SMALL - 60];
    let error = store.put(value.clone()).wait().unwrap_err();
    assert!(matches!(error, RpcError::Encode(_)), "{error}");
    assert!(store.note(value).wait().is_err());
    assert_eq!(*outcomes.0.lock().unwrap(), [CallOutcome::Undecoded]);
}

// ---- clients ------------------------------------------------------------------------------------

/// The name of a middleware, and the outcome and the attempts of a call that it has seen.
type End = (&'static str, CallOutcome, u32);

/// Changes calls, and keeps their ends.
#[derive(Clone, Default)]
struct Caller {
    name: &'static str,
    deadline: Option<Duration>,
    refuses: bool,
    ends: Arc<Mutex<Vec<End>>>,
}

impl ClientMiddleware for Caller {
    fn before(&self, call: &mut OutgoingCall<'_>) -> Result<(), Denied> {
        assert_eq!(call.service(), "Vault");
        if self.refuses {
            return Err(Denied::new(format!("{} is not called", call.method())));
        }
        let value = call
            .metadata()
            .text("by")
            .map_or(self.name.to_owned(), |by| format!("{by},{}", self.name));
        call.add_metadata("by", value)?;
        if self.deadline.is_some() && call.deadline().is_none() {
            call.set_deadline(self.deadline);
        }
        Ok(())
    }
    fn after(&self, end: &CallEnd<'_>) {
        assert_eq!(end.peer, None);
        assert!(end.metadata.get("by").is_some());
        self.ends.lock().unwrap().push((self.name, end.outcome, end.attempts));
    }
}

#[test]
fn middleware_of_a_client_changes_calls_refuses_them_and_sees_their_ends() {
    on_each_server(&[], |client| {
        let plain = vault(&client);
        let caller = Caller { name: "outer", ..Caller::default() };
        let ends = caller.ends.clone();
        let take = || std::mem::take(&mut *ends.lock().unwrap());
        let inner = Caller { name: "inner", ..caller.clone() };
        let vault = plain.with_middleware(caller.clone()).with_middleware(inner);
        let by = |by: &str| [("by".to_owned(), by.to_owned())];
        assert_eq!(vault.seen().wait().unwrap(), by("outer,inner"));
        let in_order =
            |outcome, attempts| [("inner", outcome, attempts), ("outer", outcome, attempts)];
        assert_eq!(take(), in_order(CallOutcome::Ok, 1));
        let own = vault.seen().metadata("by", "own").with_response_metadata().wait();
        assert_eq!(own.0.unwrap(), by("own,outer,inner"));
        assert_eq!(take(), in_order(CallOutcome::Ok, 1));
        assert_eq!(vault.open(Bomb(1)).wait(), Ok(7));
        assert_eq!(take(), in_order(CallOutcome::Ok, 1));
        // Streams and messages have the metadata; their ends are not seen.
        vault.knock(Bomb(1)).wait().unwrap();
        assert_eq!(client.wait(async { vault.coins(Bomb(1)).await.unwrap().count().await }), 3);
        assert_eq!(take(), []);
        drop(std::future::IntoFuture::into_future(vault.hang()));
        assert_eq!(take(), in_order(CallOutcome::Cancelled, 0));
        let of = Caller { name: "d", deadline: Some(Duration::from_millis(10)), ..caller.clone() };
        let error = plain.with_middleware(of).hang().wait().unwrap_err();
        let late = |e: &RpcError<NoError>| {
            matches!(e, RpcError::Call(CallFailure::Failed(CallError::DeadlineExceeded(_))))
        };
        assert!(late(&error), "{error}");
        assert_eq!(take().len(), 1);
        let refusing = vault.with_middleware(Caller { name: "r", refuses: true, ..caller });
        let refused = |error: RpcError<NoError>| {
            assert_eq!(error.executed(), Executed::Never);
            assert!(matches!(error, RpcError::Call(CallFailure::Middleware { .. })), "{error}");
        };
        refused(refusing.seen().wait().unwrap_err());
        assert_eq!(take(), in_order(CallOutcome::Denied, 0));
        refused(refusing.knock(Bomb(1)).wait().unwrap_err());
        refused(client.wait(async { refusing.coins(Bomb(1)).await.unwrap_err() }));
        assert_eq!(take(), [], "ends of messages and streams are not seen");
    });
}
