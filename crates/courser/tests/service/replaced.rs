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
    // The first call may be the one that notices the loss.
    let reason = loop {
        match number.number().wait() {
            Err(RpcError::Call(CallFailure::NotConnected { reason, .. })) => break reason,
            Err(RpcError::Call(CallFailure::Lost { .. })) => {}
            other => panic!("{other:?}"),
        }
    };
    let fingerprint = |info: &courser::service::ServiceInfo| format!("{:016x}", info.fingerprint);
    let (ours, theirs) = (&old::NumberClient::SERVICE, &new::NumberClient::SERVICE);
    assert!(
        reason.contains(&fingerprint(ours)) && reason.contains(&fingerprint(theirs)),
        "{reason}"
    );
    stop(serving);

    // The old version again: the client goes on.
    let (_, serving) = old_server(&uri);
    assert_eq!(number.number().wait_for_ready(true).wait().unwrap(), 1);
    stop(serving);
}
