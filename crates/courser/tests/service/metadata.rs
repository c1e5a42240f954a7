//! Metadata of requests and answers: on workers, on tokio, in place, and on the thread of an endpoint.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

use courser::service::{
    Authorize, CallContext, Denied, EncodeError, Incoming, LocalRegistry, Metadata, MetadataValue,
    Peer, RpcError, Service, ServiceStats, Stream, Target, TraceParent,
};
use courser::{
    CallError, CallFailure, Client, Config, Executed, MsgBuf, Nexus, Rpc, Server, Status,
};
use futures::executor::block_on;
use futures::{StreamExt, stream};

use crate::world::World;

const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// Handlers return the metadata of their requests.
#[courser::service]
trait Echo {
    async fn unary(&self, cx: CallContext, arg: Vec<u8>) -> Result<String, String>;
    async fn plain(&self, arg: u8) -> u8;
    #[oneway]
    async fn tell(&self, cx: CallContext, arg: u8);
    #[oneway]
    async fn tell_plain(&self, arg: u8);
    fn watch(&self, cx: CallContext, items: u8) -> impl Stream<Item = String>;
    fn count(&self, items: u8) -> impl Stream<Item = u8>;
    async fn load(&self, cx: CallContext, items: Incoming<u8>) -> String;
}

struct Echoing(Mutex<Sender<String>>);

/// The pairs as text.
fn shown(metadata: &Metadata) -> String {
    let pairs = metadata.iter().map(|(key, value)| match value {
        MetadataValue::Text(text) => format!("{key}={text}"),
        MetadataValue::Bytes(bytes) => format!("{key}={bytes:?}"),
        _ => unreachable!("two kinds"),
    });
    pairs.collect::<Vec<_>>().join(",")
}

impl Echo for Echoing {
    async fn unary(&self, cx: CallContext, arg: Vec<u8>) -> Result<String, String> {
        cx.respond_with("len", arg.len().to_string()).unwrap();
        cx.respond_with("Len", "not a key").unwrap_err();
        if arg == [0] {
            return Err(shown(cx.metadata()));
        }
        // Without it, if there is no room.
        let _ = cx.respond_with("echoed", shown(cx.metadata()).into_bytes());
        Ok(shown(cx.metadata()))
    }
    async fn plain(&self, arg: u8) -> u8 {
        arg
    }
    async fn tell(&self, cx: CallContext, arg: u8) {
        let told = self.0.lock().unwrap().clone();
        told.send(format!("{arg} {}", shown(cx.metadata()))).unwrap();
    }
    async fn tell_plain(&self, arg: u8) {
        self.0.lock().unwrap().send(arg.to_string()).unwrap();
    }
    fn watch(&self, cx: CallContext, items: u8) -> impl Stream<Item = String> {
        stream::iter(0..items).map(move |_| shown(cx.metadata()))
    }
    fn count(&self, items: u8) -> impl Stream<Item = u8> {
        stream::iter(0..items)
    }
    async fn load(&self, cx: CallContext, items: Incoming<u8>) -> String {
        format!("{} {}", items.count().await, shown(cx.metadata()))
    }
}

fn echoing() -> (Echoing, Receiver<String>) {
    let (told, is_told) = channel();
    (Echoing(Mutex::new(told)), is_told)
}

/// Runs a test against a server of each kind.
fn on_each_server(test: impl Fn(Client, &Receiver<String>)) {
    let serve = |change: &dyn Fn(Server) -> Server| {
        let config = Config { workers: 2, ..Config::default() };
        let server = change(Server::bind_with("udp://127.0.0.1:0", config).unwrap());
        let (echoing, told) = echoing();
        let server = server.add_service(EchoServer::new(echoing)).unwrap();
        let (uri, _serving) = (server.local_uri(), server.serve().unwrap());
        test(Client::connect(&uri).wait().unwrap(), &told);
    };
    serve(&|server| server);
    serve(&|server| server.in_place(true));
    serve(&|server| server.authorize(|_: &Peer, _: &Target<'_>| Ok(())));
    #[cfg(feature = "tokio")]
    {
        let runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = { runtime }.worker_threads(2).build().unwrap();
        serve(&|server| server.on_tokio(runtime.handle().clone()));
    }
    let (echoing, told) = echoing();
    let add = |rpc: &mut Rpc| rpc.add_service(EchoServer::local(echoing)).unwrap();
    on_an_endpoint(add, |client| test(client, &told));
}

/// Runs a test against an endpoint's own thread.
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

#[test]
fn requests_of_each_kind_have_the_metadata_of_their_calls() {
    on_each_server(|client, told| {
        let echo = block_on(EchoClient::new(client)).unwrap();
        let unary = |arg: Vec<u8>| echo.unary(arg).metadata("k", "v").metadata("b", vec![1, 2]);
        assert_eq!(unary(vec![7]).wait().unwrap(), "k=v,b=[1, 2]");
        assert_eq!(block_on(async { unary(vec![7; 300]).await }).unwrap(), "k=v,b=[1, 2]");
        assert_eq!(unary(vec![7; 100_000]).wait().unwrap(), "k=v,b=[1, 2]");
        assert_eq!(echo.unary(vec![7]).wait().unwrap(), "", "after calls with metadata");
        let large = "l".repeat(4_000);
        let sent = echo.unary(vec![]).metadata("large", &*large).wait().unwrap();
        assert_eq!(sent, format!("large={large}"));
        // Also to handlers without a context.
        assert_eq!(echo.plain(3).metadata("k", "v").wait().unwrap(), 3);
        echo.tell(4).metadata("k", "of a message").wait().unwrap();
        assert_eq!(told.recv().unwrap(), "4 k=of a message");
        echo.tell(5).wait().unwrap();
        assert_eq!(told.recv().unwrap(), "5 ");
        echo.tell_plain(6).metadata("k", "v").wait().unwrap();
        assert_eq!(told.recv().unwrap(), "6");
        block_on(async {
            let mut watch = echo.watch(1).metadata("k", "of a stream").await.unwrap();
            assert_eq!(watch.next().await.unwrap().unwrap(), "k=of a stream");
            assert!(watch.next().await.is_none());
            let count = echo.count(3).metadata("k", "v").await.unwrap();
            assert_eq!(count.count().await, 3);
            let mut load = echo.load().metadata("k", "of a load").await.unwrap();
            load.send(&1).await.unwrap();
            assert_eq!(load.finish().await.unwrap(), "1 k=of a load");
            assert_eq!(echo.load().await.unwrap().finish().await.unwrap(), "0 ");
        });
    });
}

#[test]
fn answers_and_errors_have_the_metadata_that_handlers_add_to_them() {
    on_each_server(|client, _| {
        let echo = block_on(EchoClient::new(client)).unwrap();
        let call = echo.unary(vec![5; 10]).metadata("k", "v").with_response_metadata();
        let (result, metadata) = call.wait();
        assert_eq!(result.unwrap(), "k=v");
        assert_eq!(
            (metadata.text("len"), metadata.bytes("echoed")),
            (Some("10"), Some(&b"k=v"[..]))
        );
        assert_eq!(metadata.len(), 2);
        let (result, metadata) =
            block_on(async { echo.unary(vec![0]).with_response_metadata().await });
        assert_eq!(result, Err(RpcError::Service(String::new())));
        assert_eq!(shown(&metadata), "len=1");
        // A large answer, and a handler without a context.
        let text = "t".repeat(3_900);
        let call = echo.unary(vec![1]).metadata("t", &*text).with_response_metadata();
        let (result, metadata) = call.wait();
        assert_eq!(result.unwrap(), format!("t={text}"));
        assert_eq!(metadata.bytes("echoed").map(<[u8]>::len), Some(3_902));
        let (result, metadata) = echo.plain(3).with_response_metadata().wait();
        assert_eq!((result.unwrap(), metadata), (3, Metadata::new()));
        // It is not sent unasked.
        assert_eq!(echo.unary(vec![1]).metadata("k", "v").wait().unwrap(), "k=v");
    });
}

/// Handlers return bytes and metadata.
#[courser::service]
trait Large {
    async fn large(&self, cx: CallContext, len: u32) -> Vec<u8>;
}

struct OfLen;

impl Large for OfLen {
    async fn large(&self, cx: CallContext, len: u32) -> Vec<u8> {
        cx.respond_with("k", "v").unwrap();
        vec![7; len as usize]
    }
}

#[test]
fn an_answer_without_room_for_metadata_arrives_without_it() {
    let limit = 100_000;
    let check = |uri: &str| {
        let config = Config { max_msg_size: limit, ..Config::default() };
        let client = Client::connect_with(uri, config).wait().unwrap();
        let large = block_on(LargeClient::new(client)).unwrap();
        // The length takes 5 bytes, and the tag one.
        for (len, expected) in [(limit / 2, Some("v")), (limit - 6, None)] {
            let (result, metadata) = large.large(len).with_response_metadata().wait();
            assert_eq!(result.unwrap().len(), len as usize);
            assert_eq!(metadata.text("k"), expected, "{len}");
        }
    };
    for in_place in [false, true] {
        let server = Server::bind("udp://127.0.0.1:0").unwrap().in_place(in_place);
        let server = server.add_service(LargeServer::new(OfLen)).unwrap();
        let (uri, _serving) = (server.local_uri(), server.serve().unwrap());
        check(&uri);
    }
}

#[test]
fn a_client_has_metadata_of_all_its_calls_which_a_call_may_replace() {
    on_each_server(|client, told| {
        let plain = block_on(EchoClient::new(client)).unwrap();
        let mut of_all = Metadata::new();
        of_all.insert("tenant", "blue").unwrap();
        of_all.insert("k", "of all").unwrap();
        let echo = plain.with_metadata(of_all);
        assert_eq!(echo.unary(vec![7]).wait().unwrap(), "tenant=blue,k=of all");
        let own = echo.unary(vec![7]).metadata("k", "own").wait().unwrap();
        assert_eq!(own, "k=own,tenant=blue");
        echo.tell(1).wait().unwrap();
        assert_eq!(told.recv().unwrap(), "1 tenant=blue,k=of all");
        assert_eq!(echo.plain(9).wait().unwrap(), 9);
        block_on(async {
            let mut watch = echo.watch(1).await.unwrap();
            assert_eq!(watch.next().await.unwrap().unwrap(), "tenant=blue,k=of all");
            let load = echo.load().metadata("k", "own").await.unwrap();
            assert_eq!(load.finish().await.unwrap(), "0 k=own,tenant=blue");
        });
        let mut more = Metadata::new();
        more.insert("tenant", "red").unwrap();
        let red = echo.with_metadata(more);
        assert_eq!(red.unary(vec![7]).wait().unwrap(), "tenant=red,k=of all");
        assert_eq!(plain.unary(vec![7]).wait().unwrap(), "");
        // Together they do not fit: calls fail before they are made.
        let mut large = Metadata::new();
        large.insert("large", vec![1; 4_080]).unwrap();
        let large = red.with_metadata(large).with_metadata(Metadata::new());
        let error = large.unary(vec![7]).wait().unwrap_err();
        assert!(matches!(error, RpcError::Encode(EncodeError::Codec { .. })), "{error:?}");
    });
}

#[test]
fn pairs_that_are_not_allowed_are_errors_of_calls_that_are_not_made() {
    let (echoing, _) = echoing();
    on_an_endpoint(
        |rpc| rpc.add_service(EchoServer::local(echoing)).unwrap(),
        |client| {
            let echo = block_on(EchoClient::new(client)).unwrap();
            let refused = |error: RpcError<String>, says: &str| {
                assert_eq!(error.executed(), Executed::Never);
                let RpcError::Encode(EncodeError::Codec { codec: "metadata", detail }) = error
                else {
                    panic!("{error:?}")
                };
                assert!(detail.contains(says), "{detail}");
            };
            refused(
                echo.unary(vec![1]).metadata("K", "v").wait().unwrap_err(),
                "\"K\" is not allowed",
            );
            let (result, _) =
                echo.unary(vec![1]).metadata("k", "\n").with_response_metadata().wait();
            refused(result.unwrap_err(), "control character");
            let large = echo.unary(vec![1]).metadata("k", vec![0; 4_096]);
            refused(large.wait().unwrap_err(), "4100 bytes is above 4096");
            assert!(block_on(async { echo.watch(1).metadata("", "v").await }).is_err());
            assert!(echo.tell(1).metadata("", "v").wait().is_err());
            assert_eq!(echo.plain(1).wait().unwrap(), 1);
        },
    );
}

// ---- calls of handlers -----------------------------------------------------------------------

/// A service that calls [`Echo`].
#[courser::service]
trait Front {
    /// Without a context.
    async fn pass(&self) -> String;
    /// In a task of its own, in the scope of the call or not.
    async fn spawn(&self, cx: CallContext, scoped: bool) -> String;
    fn passes(&self) -> impl Stream<Item = String>;
    /// Makes a call whose request has this number of bytes.
    async fn full(&self, bytes: u32) -> String;
}

struct Passing(EchoClient<Client>);

async fn passed(echo: EchoClient<Client>) -> String {
    // The first poll of a handler, and a later one.
    let first = echo.unary(vec![1]).await.unwrap();
    let second = echo.unary(vec![1]).metadata("k", "own").await.unwrap();
    format!("{first}; {second}")
}

impl Front for Passing {
    async fn pass(&self) -> String {
        passed(self.0.clone()).await
    }
    async fn spawn(&self, cx: CallContext, scoped: bool) -> String {
        let call = passed(self.0.clone());
        let task = move || match scoped {
            true => block_on(cx.scope(call)),
            false => block_on(call),
        };
        thread::spawn(task).join().unwrap()
    }
    fn passes(&self) -> impl Stream<Item = String> {
        stream::once(passed(self.0.clone()))
    }
    async fn full(&self, bytes: u32) -> String {
        // Before the vector is its length.
        let call = self.0.unary(vec![1; bytes as usize - 5]);
        call.await.unwrap_or_else(|e| e.to_string())
    }
}

#[test]
fn the_trace_and_the_baggage_go_on_to_the_calls_of_handlers_and_other_metadata_does_not() {
    on_each_server(|client, _| {
        let passing = Arc::new(Passing(EchoClient::unchecked(client)));
        let check = |client: Client| {
            let front = FrontClient::unchecked(client);
            let trace: TraceParent = TRACE.parse().unwrap();
            let mut metadata = Metadata::new();
            metadata.insert(TraceParent::KEY, trace).unwrap();
            metadata.insert("token", "for the front only").unwrap();
            metadata.insert("baggage", "k=v").unwrap();
            let with = |kind: u8| match kind {
                0 => front.pass().all_metadata(&metadata).wait().unwrap(),
                1 => front.spawn(true).all_metadata(&metadata).wait().unwrap(),
                2 => front.spawn(false).all_metadata(&metadata).wait().unwrap(),
                _ => block_on(async {
                    let mut items = front.passes().all_metadata(&metadata).await.unwrap();
                    items.next().await.unwrap().unwrap()
                }),
            };
            let first = format!("traceparent={TRACE},baggage=k=v");
            let all = format!("{first}; k=own,{first}");
            assert_eq!((with(0), with(1), with(3)), (all.clone(), all.clone(), all));
            assert_eq!(with(2), "; k=own", "a task outside of the scope");
            assert_eq!(front.pass().wait().unwrap(), "; k=own", "a call without metadata");
            // The calls of the handler have what fits beside their own.
            let baggage = "b".repeat(4_080);
            let passed = front.pass().metadata("baggage", &*baggage).wait().unwrap();
            assert_eq!(passed, format!("baggage={baggage}; k=own"));
            let most = Config::default().max_msg_size;
            let full = |bytes| front.full(bytes).all_metadata(&metadata).wait().unwrap();
            assert_eq!(full(most / 2), first);
            assert_eq!(full(most), "", "a request without room for what it inherits");
        };
        for in_place in [false, true] {
            let server = Server::bind("udp://127.0.0.1:0").unwrap().in_place(in_place);
            let server = server.add_service(FrontServer::shared(passing.clone())).unwrap();
            let (uri, _serving) = (server.local_uri(), server.serve().unwrap());
            check(Client::connect(&uri).wait().unwrap());
        }
        on_an_endpoint(|rpc| rpc.add_service(FrontServer::shared(passing.clone())).unwrap(), check);
    });
}

// ---- servers without metadata ----------------------------------------------------------------

#[test]
fn a_server_without_metadata_is_not_sent_any() {
    // A registry that passes no requests with metadata on.
    let mut world = World::new(1);
    EchoServer::new(echoing().0).register(&mut world).unwrap();
    let checked = world.run(EchoClient::new(world.session())).unwrap();
    let unchecked = EchoClient::unchecked(world.session());
    for echo in [checked, unchecked] {
        let echo = &echo;
        let unary = world.run(async { echo.unary(vec![1]).metadata("k", "v").await });
        assert_eq!(unary.unwrap(), "");
        let (result, metadata) =
            world.run(async { echo.unary(vec![1]).with_response_metadata().await });
        assert_eq!((result.unwrap(), metadata), (String::new(), Metadata::new()));
        let watch =
            world.run(async { echo.watch(2).metadata("k", "v").await.unwrap().count().await });
        assert_eq!(watch, 2);
    }
}

#[test]
fn a_client_that_connects_by_itself_sends_none_to_an_earlier_server() {
    let earlier = |rpc: &mut Rpc| {
        // The answer of a server without extensions: the codec, and the state and type of each of 7
        // methods.
        rpc.on(0x03F0, |cx, _| {
            let methods: Vec<_> = (0..7).flat_map(|n| [0, n, 0x40]).collect();
            cx.reply([&[0, 0][..], b"\x0bmessagepack", &methods, &[0]].concat());
        });
        // `plain` is the third by name.
        rpc.on(0x4002, |cx, request| cx.reply([request[request.len() - 1], 0]));
    };
    on_an_endpoint(earlier, |client| {
        let echo = block_on(EchoClient::new(client)).unwrap();
        assert_eq!(echo.plain(1).wait().unwrap(), 1);
        for n in 0..3 {
            assert_eq!(echo.plain(n).metadata("k", "v").wait().unwrap(), n);
            let (result, metadata) = echo.plain(n).with_response_metadata().wait();
            assert_eq!((result.unwrap(), metadata), (n, Metadata::new()));
        }
    });
}

// ---- hostile clients and denied calls --------------------------------------------------------

const METADATA: u16 = 0x03F4;

fn raw(client: &Client, request: &[u8]) -> Result<MsgBuf, CallFailure> {
    let mut message = client.alloc(request.len()).unwrap();
    message.copy_from_slice(request);
    client.call(METADATA, message).wait()
}

#[test]
fn malformed_requests_with_metadata_are_refused_before_their_handlers() {
    on_each_server(|client, told| {
        let echo = block_on(EchoClient::new(client.clone())).unwrap();
        let large = [&[7; 70_000], &[0, 0x40, 7, 7, 7][..]].concat();
        let undecoded: [&[u8]; 7] = [
            b"",
            b"\0\0\0\0",
            &[1, b'k', 1, 0, b'v', 0, 0x40, 0, 6, 0],
            &[1, b'k', 9, 0, b'v', 0, 0x40, 0, 5, 0],
            &[1, b'K', 1, 0, b'v', 0, 0x40, 0, 5, 0],
            &[1, b'k', 1, 0, b'v', 0, 0x40, 2, 5, 0],
            &large,
        ];
        for request in undecoded {
            let answer = raw(&client, request).unwrap();
            assert_eq!(answer.last(), Some(&2), "{request:?}"); // UNDECODED
        }
        // Types that are no methods: the library's own, a handler's without a service, none.
        for method in [0x03F0_u16, 0x03F1, METADATA, 1, 0x0707, 0x5000, 0xFFFF] {
            let request = [&method.to_le_bytes()[..], &[0, 0, 0]].concat();
            let error = raw(&client, &request).unwrap_err();
            assert_eq!(error, CallError::Server(Status::UnknownType).into(), "{method:#x}");
        }
        // Messages of this kind are dropped.
        for request in undecoded {
            let mut message = client.alloc(request.len()).unwrap();
            message.copy_from_slice(request);
            client.send(METADATA, message).wait().unwrap();
        }
        echo.tell_plain(1).wait().unwrap();
        assert_eq!(told.recv().unwrap(), "1");
        let good = [&[3][..], &[1, b'k', 1, 0, b'v', 2, 0x40, 0, 5, 0]].concat();
        assert_eq!(&raw(&client, &good).unwrap()[..], [3, 0], "the third method");
    });
}

#[test]
fn requests_with_metadata_reach_methods_of_their_kind_only() {
    on_each_server(|client, told| {
        let echo = block_on(EchoClient::new(client.clone())).unwrap();
        let of = |method: u16| [&[1], &method.to_le_bytes()[..], &[0, 0, 0]].concat();
        // Types of methods are in the order of their names: `plain`, `tell`, `tell_plain`.
        let error = raw(&client, &of(0x4004)).unwrap_err();
        assert_eq!(error, CallError::Server(Status::UnknownType).into(), "a one-way method");
        let send = |request: &[u8]| {
            let mut message = client.alloc(request.len()).unwrap();
            message.copy_from_slice(request);
            client.send(METADATA, message).wait().unwrap();
        };
        send(&of(0x4002));
        send(&of(0x4004));
        assert_eq!(told.recv().unwrap(), "1", "the message to a method with an answer is dropped");
        assert_eq!(echo.plain(3).metadata("k", "v").wait().unwrap(), 3);
    });
}

/// Allows the service `Echo` to each client, and two methods.
struct TwoMethods;

impl Authorize for TwoMethods {
    fn service(&self, _: &Peer, service: &str) -> Result<(), Denied> {
        if service == "Echo" { Ok(()) } else { Err(Denied::new("a secret")) }
    }
    fn request(&self, _: &Peer, target: &Target<'_>) -> Result<(), Denied> {
        match target.method {
            Some(("Echo", "plain" | "tell_plain")) => Ok(()),
            other => Err(Denied::new(format!("{other:?}"))),
        }
    }
}

/// A service that [`TwoMethods`] denies.
#[courser::service]
trait Secret {
    async fn tell(&self) -> u8;
}

struct Secrets;

impl Secret for Secrets {
    async fn tell(&self) -> u8 {
        1
    }
}

#[test]
fn calls_with_metadata_are_authorized_as_calls_of_their_method() {
    let check = |client: Client, told: &Receiver<String>, stats: &dyn Fn() -> ServiceStats| {
        let echo = block_on(EchoClient::new(client.clone())).unwrap();
        assert_eq!(echo.plain(3).metadata("k", "v").wait().unwrap(), 3);
        let denied = echo.unary(vec![1]).metadata("k", "v").wait().unwrap_err();
        assert!(matches!(denied, RpcError::Denied(text) if text.contains("unary")));
        block_on(async {
            let denied = echo.watch(1).metadata("k", "v").await.unwrap_err();
            assert!(matches!(denied, RpcError::Denied(text) if text.contains("watch")));
            let denied = echo.load().metadata("k", "v").await.unwrap_err();
            assert!(matches!(denied, RpcError::Denied(text) if text.contains("load")));
        });
        // A service that is denied as a whole, by the type of its method: behind the 7 methods of `Echo`.
        let answer = raw(&client, &[7, 0x40, 0, 0, 0]).unwrap();
        assert_eq!(&answer[..], b"a secret\x08");
        // The metadata of a denied call is not read.
        let malformed: [&[u8]; 3] = [
            &[1, b'K', 1, 0, b'v', 5, 0x40, 0, 5, 0],
            &[5, 0x40, 2, 0, 0],
            &[5, 0x40, 0, 0xFF, 0xFF],
        ];
        for request in malformed {
            assert_eq!(raw(&client, request).unwrap().last(), Some(&8), "{request:?}"); // DENIED
        }
        let (denied, undecoded) = (stats().denied, stats().decode_errors);
        assert_eq!((denied, undecoded), (7, 0));
        echo.tell(1).metadata("k", "v").wait().unwrap();
        echo.tell_plain(2).metadata("k", "v").wait().unwrap();
        assert_eq!(told.recv().unwrap(), "2");
        assert_eq!(stats().denied, 8);
    };
    let (of_server, told) = echoing();
    let server = Server::bind("udp://127.0.0.1:0").unwrap();
    let server = server.add_service(EchoServer::new(of_server)).unwrap().authorize(TwoMethods);
    let server = server.add_service(SecretServer::new(Secrets)).unwrap();
    let stats = server.service_stats();
    let (uri, _serving) = (server.local_uri(), server.serve().unwrap());
    check(Client::connect(&uri).wait().unwrap(), &told, &stats);
    let (of_endpoint, told) = echoing();
    let (sent, stats) = channel();
    let add = |rpc: &mut Rpc| {
        rpc.add_service(EchoServer::local(of_endpoint)).unwrap();
        rpc.add_service(SecretServer::local(Secrets)).unwrap();
        rpc.authorize(TwoMethods);
        sent.send(LocalRegistry::services(rpc).clone()).unwrap();
    };
    on_an_endpoint(add, |client| {
        let services = stats.recv().unwrap();
        check(client, &told, &|| services.stats());
    });
}
