//! Panics in code that the codecs call.

use courser::service::RpcError;
use courser::{CallError, CallFailure, Client, Nexus, Status};
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
