//! Panics in code that the codecs call.

use std::future::ready;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use courser::service::{Incoming, MidStreamError, RpcError, Stream};
use courser::{CallError, CallFailure, Client, Nexus, Server, Serving, Status};
use futures::{FutureExt, StreamExt};
use serde::{Deserialize, Serialize, Serializer};

use crate::kv::yields;

/// A value that cannot be encoded.
#[derive(Debug, Deserialize)]
struct Unencodable;

impl Serialize for Unencodable {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        panic!("an encoder")
    }
}

#[courser::service]
trait Fragile {
    async fn unencodable(&self, after_a_wait: bool) -> Unencodable;
    async fn good(&self) -> u32;
}

struct Service;

impl LocalFragile for Service {
    async fn unencodable(&self, after_a_wait: bool) -> Unencodable {
        if after_a_wait {
            yields().await;
        }
        Unencodable
    }
    async fn good(&self) -> u32 {
        7
    }
}

#[test]
fn a_panic_of_an_encoder_fails_its_request_only() {
    let nexus = Nexus::bind("udp://127.0.0.1:0").unwrap();
    let uri = nexus.local_uri();
    let (handle, has_handle) = std::sync::mpsc::channel();
    let thread = std::thread::spawn(move || {
        let mut rpc = nexus.endpoint().unwrap();
        rpc.add_service(FragileServer::new(Service)).unwrap();
        handle.send(rpc.handle()).unwrap();
        rpc.run().unwrap();
        rpc.handler_stats().panics
    });
    let handle = has_handle.recv().unwrap();
    let channel = Client::connect(&uri).wait().unwrap();
    let client = futures::executor::block_on(FragileClient::new(channel)).unwrap();
    for after_a_wait in [false, true] {
        let ended = client.unencodable(after_a_wait).wait().unwrap_err();
        let panicked = CallFailure::Failed(CallError::Server(Status::Panicked));
        assert!(matches!(&ended, RpcError::Call(e) if *e == panicked), "{ended:?}");
        assert_eq!(client.good().wait().unwrap(), 7);
    }
    handle.stop();
    assert_eq!(thread.join().unwrap(), 2);
}

/// An item whose encoder panics if it is 99.
#[derive(Debug, PartialEq, Deserialize)]
struct Item(u64);

impl Serialize for Item {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        assert!(self.0 != 99, "an encoder");
        serializer.serialize_newtype_struct("Item", &self.0)
    }
}

#[courser::service]
trait Repeater {
    fn repeat(&self, items: Incoming<Item>) -> impl Stream<Item = Item>;
    async fn list(&self, items: Incoming<Item>) -> Vec<Item>;
    /// Its third item cannot be encoded.
    fn three(&self) -> impl Stream<Item = Item>;
}

/// Its handlers take nothing before there is a permit.
struct Waits(Arc<AtomicBool>);

impl Waits {
    async fn permitted(permit: Arc<AtomicBool>) {
        while !permit.load(Ordering::SeqCst) {
            yields().await;
        }
    }
}

impl Repeater for Waits {
    fn repeat(&self, items: Incoming<Item>) -> impl Stream<Item = Item> {
        let permit = Waits::permitted(self.0.clone());
        let items = items.map(|item| item.unwrap());
        futures::stream::once(permit).map(|()| None).chain(items.map(Some)).filter_map(ready)
    }
    async fn list(&self, items: Incoming<Item>) -> Vec<Item> {
        Waits::permitted(self.0.clone()).await;
        items.map(|item| item.unwrap()).collect().await
    }
    fn three(&self) -> impl Stream<Item = Item> {
        futures::stream::iter([Item(1), Item(2), Item(99)])
    }
}

fn repeater() -> (Serving, RepeaterClient, Arc<AtomicBool>) {
    let permit = Arc::<AtomicBool>::default();
    let server = Server::bind("udp://127.0.0.1:0").unwrap();
    let server = server.add_service(RepeaterServer::new(Waits(permit.clone()))).unwrap();
    let (uri, serving) = (server.local_uri(), server.serve().unwrap());
    let client = RepeaterClient::connect(&uri);
    (serving, futures::executor::block_on(client).unwrap(), permit)
}

/// Sends items, of which two batches are on their way and the rest is not sent when an encoder panics.
macro_rules! send_with_a_panic {
    ($stream:ident) => {
        for n in 1..=5 {
            $stream.send(&Item(n)).await.unwrap();
        }
        let panicked = AssertUnwindSafe($stream.send(&Item(99))).catch_unwind().await;
        assert!(panicked.is_err());
        $stream.send(&Item(6)).await.unwrap();
    };
}

#[test]
fn items_before_one_whose_encoder_panics_are_sent() {
    let (_serving, client, permit) = repeater();
    let all: Vec<_> = (1..=6).map(Item).collect();
    futures::executor::block_on(async {
        let mut stream = client.repeat().await.unwrap();
        send_with_a_panic!(stream);
        permit.store(true, Ordering::SeqCst);
        let items: Vec<_> = stream.finish().map(|item| item.unwrap()).collect().await;
        assert_eq!(items, all);
        permit.store(false, Ordering::SeqCst);
        let mut stream = client.list().await.unwrap();
        send_with_a_panic!(stream);
        permit.store(true, Ordering::SeqCst);
        assert_eq!(stream.finish().await.unwrap(), all);
    });
}

#[test]
fn a_stream_of_a_server_whose_encoder_panics_ends_with_an_error() {
    let (_serving, client, _) = repeater();
    let items: Vec<_> = futures::executor::block_on(async {
        match client.three().await {
            Ok(stream) => stream.collect().await,
            Err(e) => vec![Err(e)],
        }
    });
    let (last, before) = items.split_last().unwrap();
    assert!(before.iter().all(Result::is_ok) && before.len() <= 2, "{items:?}");
    let failure = CallFailure::Failed(CallError::Server(Status::Panicked));
    let panicked = match last {
        Err(RpcError::Call(e) | RpcError::MidStream(MidStreamError::Call(e))) => *e == failure,
        _ => false,
    };
    assert!(panicked, "{last:?}");
}
