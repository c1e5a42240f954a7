//! Authorization of peers, over real sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use courser::service::{
    Authorize, BlockingChannel, Denied, HelloError, Incoming, Peer, RpcError, Stream,
};
use courser::{Client, Executed, Nexus, Rpc, Server};

#[courser::service]
trait Vault {
    async fn open(&self, key: String) -> u64;
    async fn close(&self);
    #[oneway]
    async fn knock(&self);
    fn coins(&self) -> impl Stream<Item = u64>;
    async fn fill(&self, coins: Incoming<u64>) -> u64;
}

#[courser::service]
trait Door {
    async fn ring(&self) -> u64;
}

/// Counts the handlers that began.
#[derive(Clone, Default)]
struct Begun(Arc<AtomicU64>);

impl Begun {
    fn count(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed) + 1
    }
}

impl Vault for Begun {
    async fn open(&self, _: String) -> u64 {
        self.count()
    }
    async fn close(&self) {
        self.count();
    }
    async fn knock(&self) {
        self.count();
    }
    fn coins(&self) -> impl Stream<Item = u64> {
        futures::stream::iter([self.count()])
    }
    async fn fill(&self, _: Incoming<u64>) -> u64 {
        self.count()
    }
}

impl Door for Begun {
    async fn ring(&self) -> u64 {
        self.count()
    }
}

/// Denies services and methods by their names.
struct Names(&'static [&'static str]);

impl Names {
    fn check(&self, peer: &Peer, name: &str) -> Result<(), Denied> {
        let socket = peer.addr().to_socket().expect("a socket of UDP");
        assert!(socket.ip().is_loopback() && socket.port() > 0);
        match self.0.contains(&name) {
            true => Err(Denied::new(format!("{name} is locked"))),
            false => Ok(()),
        }
    }
}

impl Authorize for Names {
    fn service(&self, peer: &Peer, service: &str) -> Result<(), Denied> {
        self.check(peer, service)
    }
    fn method(&self, peer: &Peer, service: &str, method: &str) -> Result<(), Denied> {
        assert!(service == "Vault" && method != "ring");
        self.check(peer, method)
    }
}

fn server(access: Option<Names>, begun: &Begun) -> Server {
    let server = Server::bind("udp://127.0.0.1:0").unwrap();
    let server = server.add_service(VaultServer::new(begun.clone())).unwrap();
    let server = match access {
        Some(access) => server.authorize(access),
        None => server,
    };
    server.add_service(DoorServer::new(begun.clone())).unwrap()
}

#[test]
fn requests_that_are_not_allowed_reach_no_handler_and_say_so() {
    let begun = Begun::default();
    let names = Names(&["open", "knock", "coins", "fill"]);
    let server = server(Some(names), &begun);
    let (stats, uri) = (server.service_stats(), server.local_uri());
    let serving = server.serve().unwrap();
    let client = Client::connect(&uri).wait().unwrap();
    let vault = client.wait(VaultClient::new(client.clone())).unwrap();
    let denied = |error: RpcError<courser::service::NoError>, name: &str| {
        assert_eq!(error.executed(), Executed::Never);
        assert_eq!(error, RpcError::Denied(format!("{name} is locked").into()));
    };
    denied(vault.open("k".into()).wait().unwrap_err(), "open");
    // Large arguments are not decoded either.
    denied(vault.open("k".repeat(1 << 20)).wait().unwrap_err(), "open");
    let first = client.wait(async { vault.coins().await?.next().await.unwrap() });
    denied(first.unwrap_err(), "coins");
    let end = client.wait(async { vault.fill().await?.finish().await });
    denied(end.unwrap_err(), "fill");
    vault.knock().wait().unwrap();
    while stats().denied < 5 {
        std::thread::sleep(Duration::from_millis(1));
    }
    vault.close().wait().unwrap();
    assert_eq!((begun.0.load(Ordering::Relaxed), stats().denied), (1, 5));
    serving.handle().stop();
    serving.wait().unwrap();
}

#[test]
fn a_service_that_is_not_allowed_is_refused_to_clients_that_ask_and_to_those_that_do_not() {
    let begun = Begun::default();
    let server = server(Some(Names(&["Door"])), &begun);
    let (stats, uri) = (server.service_stats(), server.local_uri());
    let serving = server.serve().unwrap();
    let client = Client::connect(&uri).wait().unwrap();
    let error = client.wait(DoorClient::new(client.clone())).unwrap_err();
    let text = error.to_string();
    assert!(
        matches!(error, HelloError::Denied { .. }) && text.contains("Door is locked"),
        "{text}"
    );
    let door = DoorClient::unchecked(client.clone());
    assert_eq!(door.ring().wait().unwrap_err().executed(), Executed::Never);
    // The request type is known from elsewhere: `ring` follows the five methods of the vault.
    let answer = client.call(0x4005, client.alloc(0).unwrap()).wait().unwrap();
    assert_eq!(answer.split_last(), Some((&8, &b"Door is locked"[..])));
    // The other service is not affected.
    let vault = client.wait(VaultClient::new(client.clone())).unwrap();
    assert_eq!(vault.open("k".into()).wait(), Ok(1));
    assert_eq!((begun.0.load(Ordering::Relaxed), stats().denied), (1, 3));
    serving.handle().stop();
    serving.wait().unwrap();
}

#[test]
fn an_endpoint_decides_about_the_services_that_it_has_and_those_that_follow() {
    let begun = Begun::default();
    let nexus = Nexus::bind("udp://127.0.0.1:0").unwrap();
    let uri = nexus.local_uri();
    let mut server: Rpc = nexus.endpoint().unwrap();
    server.add_service(DoorServer::new(begun.clone())).unwrap();
    server.authorize(|_: &Peer, _: &str, _: &str| panic!("a fault of the check"));
    server.authorize(|_: &Peer, service: &str, method: &str| match method {
        "ring" | "open" => Err(Denied::new(format!("not {service}"))),
        "close" => panic!("a fault of the check"),
        _ => Ok(()),
    });
    server.add_service(VaultServer::new(begun.clone())).unwrap();
    let stop = server.handle();
    let calls = std::thread::spawn(move || {
        let client = Client::connect(&uri).wait().unwrap();
        let door = client.wait(DoorClient::new(client.clone())).unwrap();
        let vault = client.wait(VaultClient::new(client.clone())).unwrap();
        let ended = (
            door.ring().wait().unwrap_err(),
            vault.open("k".into()).wait().unwrap_err(),
            vault.close().wait().unwrap_err(),
            client.wait(async { vault.coins().await?.next().await.unwrap() }),
        );
        stop.stop();
        ended
    });
    server.run().unwrap();
    let (ring, open, close, coins) = calls.join().unwrap();
    assert_eq!(
        (ring, open),
        (RpcError::Denied("not Door".into()), RpcError::Denied("not Vault".into()))
    );
    assert!(matches!(&close, RpcError::Denied(text) if text.contains("failed")), "{close}");
    assert_eq!(coins, Ok(1));
    assert_eq!(server.service_stats().denied, 3);
}
