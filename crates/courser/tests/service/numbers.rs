//! Request types, which servers assign to the methods of their services.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use courser::service::{
    BlockingChannel, Codec, LocalRegistry, MethodInfo, MethodKind, MethodShape, NoError, Postcard,
    Registry, RpcError, Service, ServiceInfo, Stream, TypedClient, begin, method_shape,
};
use courser::{Client, Config, Executed, Nexus, Server, ServerError, Serving};
use courser_buf::Arena;
use futures::future::join_all;

use crate::calls::serve;
use crate::kv::{KvClient, KvServer, Store};
use crate::world::World;

/// Methods that had one number when numbers were hashes of names.
mod collide {
    #[courser::service]
    pub trait Config {
        async fn get(&self) -> u8;
    }

    #[courser::service]
    pub trait Tikv {
        async fn is_alive(&self) -> bool;
    }
}

/// An earlier version of a service.
mod earlier {
    #[courser::service(name = "Kv", codec = Postcard)]
    pub trait Early {
        async fn put(&self, key: String, value: String) -> Result<(), crate::kv::KvError>;
        async fn erase(&self, key: String);
        async fn len(&self) -> u64;
    }
}

#[courser::service]
pub trait Ticker {
    fn ticks(&self, to: u32) -> impl Stream<Item = u32>;
    async fn tick(&self, n: u32) -> u32;
}

pub struct Both;

impl collide::Config for Both {
    async fn get(&self) -> u8 {
        1
    }
}

impl collide::Tikv for Both {
    async fn is_alive(&self) -> bool {
        true
    }
}

impl Ticker for Both {
    fn ticks(&self, to: u32) -> impl Stream<Item = u32> {
        futures::stream::iter(0..to)
    }

    async fn tick(&self, n: u32) -> u32 {
        n + 1
    }
}

use collide::{ConfigClient, ConfigServer, TikvClient, TikvServer};
use earlier::EarlyClient;

#[test]
fn services_whose_names_collide_as_hashes_are_on_one_server() {
    let mut world = World::new(1);
    ConfigServer::new(Both).register(&mut world).unwrap();
    TikvServer::new(Both).register(&mut world).unwrap();
    let config = world.run(ConfigClient::new(world.session())).unwrap();
    let tikv = world.run(TikvClient::new(world.session())).unwrap();
    assert_eq!(world.run(async { config.get().await }), Ok(1));
    assert_eq!(world.run(async { tikv.is_alive().await }), Ok(true));
}

/// The shapes of as many methods as a server may have.
fn shapes() -> &'static [MethodShape] {
    static SHAPES: OnceLock<Vec<MethodShape>> = OnceLock::new();
    let shape = || method_shape::<Postcard, (), NoError, u32, NoError>(MethodKind::Unary);
    SHAPES.get_or_init(|| vec![shape(); 49_151])
}

/// A service of that many methods, each of which returns the number of its service and its own.
struct Many {
    service: u32,
    info: &'static ServiceInfo,
}

impl Many {
    fn new(service: u32, methods: u32) -> Self {
        let name = |n: u32| -> &'static str { format!("method{n:04}").leak() };
        let methods: Vec<_> = (0..methods).map(|n| MethodInfo::new(name(n))).collect();
        let name = format!("Many{service}").leak();
        let codec = (Postcard::NAME, <Postcard as Codec>::reads as _);
        let info = Box::leak(Box::new(ServiceInfo::new(name, codec, methods.leak(), shapes)));
        Many { service, info }
    }
}

impl Service for Many {
    fn register<R: Registry>(
        self,
        registry: &mut R,
    ) -> Result<(), courser::service::RegisterError> {
        let (_, first) = begin(registry, self.info)?;
        let arena = Arena::heap();
        for n in 0..self.info.methods.len() as u16 {
            let answer =
                courser::service::encode::<Postcard, _>(&(self.service, n), &arena).unwrap();
            let answer = Arc::new([&answer[..], &[0]].concat());
            Registry::on_request(registry, first + n, move |_| {
                let answer = answer.clone();
                async move { answer.to_vec() }
            });
        }
        Ok(())
    }
}

#[test]
fn a_hundred_services_of_hundreds_of_methods_are_on_one_server() {
    let mut world = World::new(1);
    let mut infos = Vec::new();
    for service in 0..100 {
        let many = Many::new(service, 400);
        infos.push(many.info);
        many.register(&mut world).unwrap();
    }
    world.run(async {
        for (service, info) in infos.iter().enumerate().step_by(9) {
            let client = TypedClient::checked(world.session(), info).await.unwrap();
            for n in [0, 1, 199, 398, 399] {
                let call = client.unary::<Postcard, (), (u32, u16), NoError>(n, &());
                assert_eq!(call.await, Ok((service as u32, n)));
            }
        }
    });
    let error = Many::new(100, 10_000).register(&mut world).unwrap_err().to_string();
    assert!(error.contains("has 10000 methods") && error.contains("9151 more;"), "{error}");
    Many::new(100, 4_096).register(&mut world).unwrap();
}

#[test]
fn an_unchecked_client_of_another_version_calls_the_methods_that_the_server_has() {
    let (world, _, store) = serve(1);
    let early = EarlyClient::unchecked(world.session());
    world.run(async {
        // Calls that begin together all wait for the server's answer.
        let puts = (0..20).map(|i| {
            let early = early.clone();
            async move { early.put(format!("{i}"), "v".into()).await }
        });
        join_all(puts).await.into_iter().for_each(Result::unwrap);
        assert_eq!(early.len().await, Ok(20));
        let error = early.erase("1".into()).await.unwrap_err();
        assert!(matches!(error, RpcError::UnknownMethod(_)), "{error}");
        assert_eq!(error.executed(), Executed::Never);
        assert!(error.to_string().contains("no method Kv.erase;"), "{error}");
    });
    assert_eq!(store.map.lock().unwrap().len(), 20);
    // A server without the service, and one without any.
    for services in [false, true] {
        let mut world = World::new(1);
        if services {
            TikvServer::new(Both).register(&mut world).unwrap();
        }
        let early = EarlyClient::unchecked(world.session());
        let error = world.run(async { early.len().await }).unwrap_err();
        assert_eq!(error.executed(), Executed::Never, "{error}");
        assert!(error.to_string().contains("no method Kv.len;"), "{error}");
        world.assert_clean();
    }
    world.assert_clean();
}

#[test]
fn a_first_call_that_the_network_loses_has_not_run() {
    let (world, _, store) = serve(1);
    world.state.borrow_mut().failures = 1;
    let kv = KvClient::unchecked(world.session());
    let error = world.run(async { kv.put("k".into(), "v".into()).await }).unwrap_err();
    assert_eq!(error.executed(), Executed::Never, "{error}");
    world.state.borrow_mut().failures = 0;
    world.run(async { kv.put("k".into(), "v".into()).await }).unwrap();
    assert_eq!(store.map.lock().unwrap().len(), 1);
    world.assert_clean();
}

#[test]
fn a_hello_of_an_earlier_version_is_a_typed_error() {
    let (world, _, _) = serve(1);
    let hello = [&[1][..], &[7; 8], b"\x02Kv\x08postcard"].concat();
    let answer = world.run(world.raw(1, 0x03F0, &hello)).unwrap();
    let (tag, text) = answer.split_last().unwrap();
    let text = std::str::from_utf8(text).unwrap();
    assert!(*tag == 2 && text.contains("earlier version of Courser"), "{text}");
}

#[test]
fn handlers_without_a_service_keep_clear_of_the_types_of_services() {
    for number in [0x03F0, 0x4003, 0xFFFF] {
        let mut world = World::new(1);
        LocalRegistry::on_request(&mut world, number, |_| async { b"" });
        let error = KvServer::new(Store::default()).register(&mut world).unwrap_err().to_string();
        assert!(error.contains(&format!("{number:#06x}")) && error.contains("Kv"), "{error}");
    }
    let server = |number: u16| {
        let server = Server::bind("udp://127.0.0.1:0").unwrap();
        let mut server = server.add_service(KvServer::new(Store::default())).unwrap();
        server.on(number, |work| async move { work.reply(*b"plain") });
        server.serve()
    };
    // The last one is that of methods that the server does not have.
    for number in [0x4001, 0xFFFF] {
        let error = server(number).unwrap_err();
        let is_taken = matches!(error, ServerError::Taken { req_type } if req_type == number);
        assert!(is_taken, "{error}");
    }
    drop(server(0x0001).unwrap());
    let mut rpc = Nexus::bind("udp://127.0.0.1:0").unwrap().endpoint().unwrap();
    rpc.add_service(KvServer::new(Store::default())).unwrap();
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        rpc.on(0x4001, |cx, _| cx.reply(b"plain"));
    }));
    let text = *panicked.unwrap_err().downcast::<String>().unwrap();
    assert!(text.starts_with("request type 0x4001 is that of a service;"), "{text}");
}

#[test]
fn streams_of_a_session_ask_a_server_that_was_replaced() {
    let mut world = World::new(1);
    TickerServer::new(Both).register(&mut world).unwrap();
    let ticker = world.run(TickerClient::new(world.session())).unwrap();
    let unchecked = TickerClient::unchecked(world.session());
    let ticks = async |ticker: &TickerClient<_>| {
        let mut ticks = ticker.ticks(3).await?;
        let mut sum = 0;
        while let Some(tick) = ticks.next().await {
            sum += tick?;
        }
        Ok::<_, RpcError<NoError>>(sum)
    };
    assert_eq!(world.run(ticks(&ticker)), Ok(3));
    // The method has another request type at the next server.
    let mut other = World::new(1);
    KvServer::new(Store::default()).register(&mut other).unwrap();
    TickerServer::new(Both).register(&mut other).unwrap();
    world.replace(&other);
    let fresh = TickerClient::unchecked(world.session());
    assert_eq!(world.run(ticks(&unchecked)), Ok(3));
    assert_eq!(world.run(ticks(&fresh)), Ok(3));
    // And a server that does not have it.
    let mut none = World::new(1);
    KvServer::new(Store::default()).register(&mut none).unwrap();
    world.replace(&none);
    let checked = world.run(KvClient::new(world.session()));
    drop(checked.unwrap());
    let error = world.run(ticks(&TickerClient::unchecked(world.session()))).unwrap_err();
    assert_eq!(error.executed(), Executed::Never, "{error}");
}

fn start(uri: &str, ticker_first: bool) -> (String, Serving) {
    let mut server = Server::bind(uri).unwrap();
    if ticker_first {
        server = server.add_service(TickerServer::new(Both)).unwrap();
    }
    server = server.add_service(KvServer::new(Store::default())).unwrap();
    server = server.add_service(ConfigServer::new(Both)).unwrap();
    if !ticker_first {
        server = server.add_service(TickerServer::new(Both)).unwrap();
    }
    (server.local_uri(), server.serve().unwrap())
}

#[test]
fn a_client_uses_the_numbers_of_the_server_that_it_is_connected_with() {
    let (uri, mut serving) = start("udp://127.0.0.1:0", true);
    let config = Config { connect_timeout: Duration::from_secs(10), ..Config::default() };
    let client = Client::connect_with(&uri, config).wait().unwrap();
    let ticker = client.wait(TickerClient::new(client.clone())).unwrap();
    let kv = client.wait(KvClient::new(client.clone())).unwrap();
    let unchecked = ConfigClient::unchecked(client.clone());
    for round in 0..3_u32 {
        // More calls than a session has slots, of three services.
        let ended = client.wait(async {
            let calls = (0..100).map(|n| {
                let (ticker, kv, unchecked) = (&ticker, &kv, &unchecked);
                async move {
                    let ticked = ticker.tick(n).await;
                    let put = kv.put(format!("{n}"), "v".into()).await;
                    kv.hint("k".into()).await?;
                    let got = unchecked.get().await;
                    assert_eq!((ticked, put, got), (Ok(n + 1), Ok(()), Ok(1)));
                    Ok::<_, RpcError<NoError>>(())
                }
            });
            join_all(calls).await
        });
        assert!(ended.iter().all(Result::is_ok), "{ended:?}");
        let mut ticks = client.wait(async { ticker.ticks(3).await }).unwrap();
        let items = client.wait(async { (ticks.next().await, ticks.next().await) });
        assert_eq!(items, (Some(Ok(0)), Some(Ok(1))));
        drop(ticks);
        serving.handle().stop();
        serving.wait().unwrap();
        (_, serving) = start(&uri, round % 2 == 1);
        // The first calls may be those that notice the loss.
        let again =
            (0..100).find_map(|_| ticker.tick(7).deadline(Duration::from_secs(5)).wait().ok());
        assert_eq!(again, Some(8));
    }
    serving.handle().stop();
    serving.wait().unwrap();
}
