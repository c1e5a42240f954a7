//! Where arguments are decoded, and what happens when that fails.

use courser::service::{DecodeError, RpcError};
use courser::{CallError, CallFailure, Executed, Server, Status};
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
