//! Where arguments are decoded, and what happens when that fails.

use courser::service::{DecodeError, RpcError};
use courser::{CallError, CallFailure, Client, Executed, Server, Status};
use serde::{Deserialize, Deserializer, Serialize};

/// A value whose decoding has effects: `1` is an error, `2` panics.
#[derive(Debug, Serialize)]
struct Watched(u8);

thread_local! {
    /// The name of the thread that has decoded the last value on this thread.
    static DECODED_ON: std::cell::RefCell<Option<String>> = const { std::cell::RefCell::new(None) };
}

impl<'de> Deserialize<'de> for Watched {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let n = u8::deserialize(from)?;
        let name = std::thread::current().name().map(str::to_owned);
        DECODED_ON.with(|on| *on.borrow_mut() = name);
        match n {
            1 => Err(serde::de::Error::custom("a value that is refused")),
            2 => panic!("a decoder"),
            n => Ok(Watched(n)),
        }
    }
}

#[courser::service]
trait Places {
    /// The names of the threads of decoder and handler.
    async fn thread(&self, value: Watched) -> (Option<String>, Option<String>);
}

struct Service;

impl Places for Service {
    async fn thread(&self, _value: Watched) -> (Option<String>, Option<String>) {
        let name = std::thread::current().name().map(str::to_owned);
        (DECODED_ON.with(|on| on.borrow_mut().take()), name)
    }
}

/// Calls a server with these settings, and returns the name of the thread that decodes.
fn decodes_on(settings: impl FnOnce(Server) -> Server) -> String {
    let server = settings(Server::bind("udp://127.0.0.1:0").unwrap());
    let server = server.add_service(PlacesServer::new(Service)).unwrap();
    let uri = server.local_uri();
    let _serving = server.serve().unwrap();
    let places = futures::executor::block_on(PlacesClient::connect(&uri)).unwrap();

    let (decoder, handler) = places.thread(Watched(0)).wait().unwrap();
    assert!(decoder.is_some() && decoder == handler, "{decoder:?} {handler:?}");
    let error = places.thread(Watched(1)).wait().unwrap_err();
    assert!(matches!(error, RpcError::Decode(DecodeError::Remote(_))), "{error:?}");
    assert_eq!(error.executed(), Executed::Never);
    let error = places.thread(Watched(2)).wait().unwrap_err();
    let panicked = CallFailure::Failed(CallError::Server(Status::Panicked));
    assert!(matches!(&error, RpcError::Call(e) if *e == panicked), "{error:?}");
    assert!(places.thread(Watched(3)).wait().is_ok(), "the server lives");
    decoder.unwrap()
}

#[test]
fn arguments_are_decoded_on_the_thread_that_runs_the_handler() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("a tokio thread")
        .build()
        .unwrap();
    let name = decodes_on(Server::on_workers);
    assert!(name.starts_with("courser-worker-"), "{name}");
    let handle = runtime.handle().clone();
    let spawn = move |handler| drop(handle.spawn(handler));
    assert_eq!(decodes_on(|server| server.spawn_with(spawn)), "a tokio thread");
    let name = decodes_on(|server| server.in_place(true));
    assert!(name.starts_with("courser-server-"), "{name}");
}

/// A type that contains itself.
#[derive(Debug, Serialize, Deserialize)]
pub struct Tree {
    trees: Vec<Tree>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct Empty {}

#[courser::service(name = "Attacked")]
pub trait Attacked {
    async fn tree(&self, tree: Tree) -> u32;
    async fn units(&self, units: Vec<Empty>) -> u32;
    async fn lists(&self, lists: Vec<Vec<u8>>) -> u32;
    async fn honest(&self, n: u32) -> u32;
}

/// Request types of the methods, which a server assigns in the order of their names.
const LISTS: u16 = 0x4001;
const TREE: u16 = 0x4002;
const UNITS: u16 = 0x4003;

/// A call with any bytes, by a client that does not keep the rules: the last byte of the answer, and the
/// text before it.
async fn attacked(client: &Client, method: u16, bytes: &[u8]) -> (u8, String) {
    let mut request = client.alloc(bytes.len()).unwrap();
    request.copy_from_slice(bytes);
    let answer = client.call(method, request).await.unwrap();
    let (tag, text) = answer.split_last().unwrap();
    (*tag, String::from_utf8_lossy(text).into_owned())
}

struct Target;

impl Attacked for Target {
    async fn tree(&self, tree: Tree) -> u32 {
        tree.trees.len() as u32
    }
    async fn units(&self, units: Vec<Empty>) -> u32 {
        units.len() as u32
    }
    async fn lists(&self, lists: Vec<Vec<u8>>) -> u32 {
        lists.len() as u32
    }
    async fn honest(&self, n: u32) -> u32 {
        n + 1
    }
}

/// Checks that an attacker's call ends because the server cannot decode it.
fn refused(client: &Client, method: u16, bytes: &[u8], why: &str) {
    let (tag, text) = futures::executor::block_on(attacked(client, method, bytes));
    assert!(tag == 2 && text.contains(why), "{tag}: {text}");
}

fn attack(settings: impl FnOnce(Server) -> Server) {
    let server = settings(Server::bind("udp://127.0.0.1:0").unwrap());
    let server = server.add_service(AttackedServer::new(Target)).unwrap();
    let uri = server.local_uri();
    let serving = server.serve().unwrap();
    let ended = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let honest = scope.spawn(|| {
            let client = futures::executor::block_on(AttackedClient::connect(&uri)).unwrap();
            let mut calls = 0_u32;
            while !ended.load(std::sync::atomic::Ordering::Relaxed) || calls < 100 {
                let answer = client.honest(calls).deadline(std::time::Duration::from_secs(20));
                assert_eq!(answer.wait(), Ok(calls + 1));
                calls += 1;
            }
        });
        let client = Client::connect(&uri).wait().unwrap();
        // A map of one field, whose value is a list of one such map, and so on.
        refused(&client, TREE, &b"\x81\xa5trees\x91".repeat(20_000), "levels");
        // A list of four billion, and one of more elements than bytes.
        refused(&client, UNITS, &[0xdd, 0xff, 0xff, 0xff, 0xff, 0x80], "elements");
        refused(&client, UNITS, &[0x93, 0x80, 0x80], "elements");
        // Each byte is a list, of 24 bytes on the heap.
        let elements = 800_000_u32;
        let mut lists = vec![0xdd];
        lists.extend(elements.to_be_bytes());
        lists.resize(lists.len() + elements as usize, 0x90);
        let calls = (0..30).map(|_| attacked(&client, LISTS, &lists));
        for (tag, _) in futures::executor::block_on(futures::future::join_all(calls)) {
            assert_eq!(tag, 0);
        }
        ended.store(true, std::sync::atomic::Ordering::Relaxed);
        honest.join().unwrap();
    });
    drop(serving);
}

#[test]
fn attacks_by_decoding_take_no_call_from_an_honest_client() {
    attack(|server| server.in_place(true));
}

#[courser::service]
trait Strings {
    async fn joined(&self, first: Vec<u8>, n: u16, second: Vec<u8>) -> Vec<u8>;
    async fn lists(&self, first: Vec<u8>, second: Vec<Vec<u8>>) -> Vec<Vec<u8>>;
}

impl Strings for Service {
    async fn joined(&self, first: Vec<u8>, n: u16, second: Vec<u8>) -> Vec<u8> {
        [&first[..], &n.to_be_bytes(), &second].concat()
    }
    async fn lists(&self, first: Vec<u8>, mut second: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
        second.push(first);
        second
    }
}

#[test]
fn byte_strings_are_arguments_among_others() {
    let mut world = crate::world::World::new(1);
    courser::service::Service::register(StringsServer::new(Service), &mut world).unwrap();
    let client = world.run(StringsClient::new(world.session())).unwrap();
    world.run(async {
        let (first, second) = (vec![7; 100_000], vec![200; 300]);
        let joined = [&first[..], &[1, 2], &second].concat();
        assert_eq!(client.joined(first.clone(), 258, second.clone()).await, Ok(joined));
        assert_eq!(client.joined(vec![], 258, vec![]).await, Ok(vec![1, 2]));
        let lists = client.lists(first.clone(), vec![second.clone()]).await;
        assert_eq!(lists, Ok(vec![second, first]));
    });
    drop(client);
    world.assert_clean();
}
