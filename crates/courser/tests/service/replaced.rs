//! A client whose server is replaced while it runs, over real sockets.

use std::time::Duration;

use courser::service::{BlockingChannel, RpcError};
use courser::{CallFailure, Client, Config, Server, Serving};

mod old {
    /// Gives a number.
    #[courser::service]
    pub trait Number {
        /// The number.
        async fn number(&self) -> u32;
    }
}

mod new {
    /// Gives a text.
    #[courser::service]
    pub trait Number {
        /// The number as a text.
        async fn number(&self) -> String;
    }
}

struct One;

impl old::Number for One {
    async fn number(&self) -> u32 {
        1
    }
}

impl new::Number for One {
    async fn number(&self) -> String {
        "one".to_owned()
    }
}

fn old_server(uri: &str) -> (String, Serving) {
    let server = Server::bind(uri).unwrap().add_service(old::NumberServer::new(One)).unwrap();
    (server.local_uri(), server.serve().unwrap())
}

fn stop(serving: Serving) {
    serving.handle().stop();
    serving.wait().unwrap();
}

#[test]
fn a_client_that_connects_again_checks_the_service_first() {
    let (uri, serving) = old_server("udp://127.0.0.1:0");
    let config = Config { connect_timeout: Duration::from_secs(1), ..Config::default() };
    let client = Client::connect_with(&uri, config).wait().unwrap();
    let number = client.wait(old::NumberClient::new(client.clone())).unwrap();
    assert_eq!(number.number().wait().unwrap(), 1);
    stop(serving);

    // Another version of the service, at the same address.
    let other = Server::bind(&uri).unwrap().add_service(new::NumberServer::new(One)).unwrap();
    let serving = other.serve().unwrap();
    // The first call may be the one that notices the loss, and others come before the next connect.
    let mismatch = loop {
        match number.number().wait() {
            Err(RpcError::ShapeMismatch(mismatch)) => break mismatch,
            Err(RpcError::Call(CallFailure::Lost { .. } | CallFailure::NotConnected { .. })) => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(mismatch.client.contains("u32") && mismatch.server.contains("String"), "{mismatch}");
    stop(serving);

    // The old version again: the client goes on.
    let (_, serving) = old_server(&uri);
    // Until the client notices the loss, it knows the methods of the other version.
    let value = loop {
        match number.number().wait_for_ready(true).wait() {
            Err(RpcError::ShapeMismatch(_)) => {}
            outcome => break outcome.unwrap(),
        }
    };
    assert_eq!(value, 1);
    stop(serving);
}
