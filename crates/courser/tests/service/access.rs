//! Authorization of peers, over real sockets.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use courser::service::{
    Authorize, BlockingChannel, Denied, HelloError, Incoming, Peer, RpcError, Stream, Target,
};
use courser::{CallError, CallFailure, Client, Config, Executed, Nexus, Rpc, Server, Status};

use crate::world::until;

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
    fn request(&self, peer: &Peer, target: &Target<'_>) -> Result<(), Denied> {
        let (service, method) = target.method.expect("a method");
        assert!(service == "Vault" && method != "ring" && target.req_type >= 0x4000);
        assert_eq!(target.is_message, method == "knock");
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

/// Allows all services, but not at first.
#[derive(Clone, Default)]
struct Later(Arc<AtomicBool>);

impl Authorize for Later {
    fn request(&self, _: &Peer, _: &Target<'_>) -> Result<(), Denied> {
        Ok(())
    }

    fn service(&self, _: &Peer, name: &str) -> Result<(), Denied> {
        let is_allowed = self.0.load(Ordering::Relaxed);
        is_allowed.then_some(()).ok_or_else(|| Denied::new(format!("{name} is closed")))
    }
}

#[test]
fn a_service_that_was_not_allowed_is_asked_for_again() {
    let (begun, allowed) = (Begun::default(), Later::default());
    let serve = |uri: &str| {
        let server = Server::bind(uri).unwrap().authorize(allowed.clone());
        let server = server.add_service(DoorServer::new(begun.clone())).unwrap();
        (server.local_uri(), server.serve().unwrap())
    };
    let (uri, serving) = serve("udp://127.0.0.1:0");
    let config = Config { connect_timeout: Duration::from_secs(10), ..Config::default() };
    let client = Client::connect_with(&uri, config).wait().unwrap();
    let door = DoorClient::unchecked(client.clone());
    assert_eq!(door.ring().wait().unwrap_err().executed(), Executed::Never);
    allowed.0.store(true, Ordering::Relaxed);
    assert_eq!(door.ring().wait(), Ok(1));
    // A client that has checked the service asks the next server before any call.
    let checked = client.wait(DoorClient::new(client.clone())).unwrap();
    assert_eq!(checked.ring().wait(), Ok(2));
    serving.handle().stop();
    serving.wait().unwrap();
    allowed.0.store(false, Ordering::Relaxed);
    let (_, serving) = serve(&uri);
    let refused = |error: &RpcError<_>| error.to_string().contains("Door is closed");
    until(|| checked.ring().wait_for_ready(true).wait().is_err_and(|e| refused(&e)));
    allowed.0.store(true, Ordering::Relaxed);
    assert!(checked.ring().wait().is_ok());
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
    server.authorize(|_: &Peer, _: &Target<'_>| panic!("a fault of the check"));
    server.authorize(|_: &Peer, target: &Target<'_>| match target.method {
        Some((service, "ring" | "open")) => Err(Denied::new(format!("not {service}"))),
        Some((_, "close")) => panic!("a fault of the check"),
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

const ALLOWED: u16 = 1;
/// Types of handlers without a service.
const ALL: std::ops::Range<u16> = 1..8;

/// Denies all but [`ALLOWED`], and counts.
fn first_only(denied: &Begun) -> impl Authorize + use<> {
    let denied = denied.clone();
    move |peer: &Peer, target: &Target<'_>| {
        assert!(target.method.is_none() && peer.addr().to_socket().is_some());
        if target.req_type == ALLOWED {
            return Ok(());
        }
        denied.count();
        Err(Denied::new("not the first"))
    }
}

/// Sends a request and a message of each type, small and large ones, and returns when the server has
/// decided about them all. The answers to the requests.
fn call_all(uri: &str, denied: &Begun) -> Vec<Result<usize, (Option<Status>, Executed)>> {
    let client = Client::connect(uri).wait().unwrap();
    let mut ended = Vec::new();
    for len in [8, 40_000] {
        for number in ALL {
            client.send(number, client.alloc(len).unwrap()).wait().unwrap();
            let call = client.call(number, client.alloc(len).unwrap());
            ended.push(call.wait().map(|answer| answer.len()).map_err(|error| {
                let status = match &error {
                    CallFailure::Failed(CallError::Server(status)) => Some(*status),
                    _ => None,
                };
                (status, error.executed())
            }));
        }
    }
    while denied.0.load(Ordering::Relaxed) < 4 * (ALL.len() as u64 - 1) {
        std::thread::sleep(Duration::from_millis(1));
    }
    ended
}

fn check(ended: &[Result<usize, (Option<Status>, Executed)>]) {
    let denied = Err((Some(Status::Denied), Executed::Never));
    for (n, ended) in ended.iter().enumerate() {
        let len = [8, 40_000][n / ALL.len()];
        let expected = if n % ALL.len() == 0 { Ok(len) } else { denied };
        assert_eq!(*ended, expected, "request {n}");
    }
}

#[test]
fn requests_and_messages_to_handlers_without_a_service_are_authorized() {
    let (begun, denied) = (Begun::default(), Begun::default());
    let mut server = Server::bind("udp://127.0.0.1:0").unwrap().authorize(first_only(&denied));
    for number in ALL {
        let (requests, messages) = (begun.clone(), begun.clone());
        server.on(number, move |mut work| {
            requests.count();
            async move {
                let request = work.take().unwrap();
                work.reply(request);
            }
        });
        server.on_message(number, move |_| {
            messages.count();
            async {}
        });
    }
    let (stats, uri) = (server.service_stats(), server.local_uri());
    let serving = server.serve().unwrap();
    check(&call_all(&uri, &denied));
    serving.handle().shutdown(Duration::from_secs(5));
    serving.wait().unwrap();
    assert_eq!(begun.0.load(Ordering::Relaxed), 4, "two requests and two messages");
    assert_eq!(stats().denied, denied.0.load(Ordering::Relaxed));
}

#[test]
fn all_kinds_of_handlers_of_an_endpoint_are_authorized() {
    let (begun, denied) = (Begun::default(), Begun::default());
    let config = Config { workers: 1, ..Config::default() };
    let nexus = Nexus::bind_with("udp://127.0.0.1:0", config).unwrap();
    let uri = nexus.local_uri();
    let mut server: Rpc = nexus.endpoint().unwrap();
    let counts = || begun.clone();
    for number in [1, 2] {
        let (requests, messages) = (counts(), counts());
        server.on(number, move |cx, request| {
            requests.count();
            cx.reply(&request[..]);
        });
        server.on_message(number, move |_, _| {
            messages.count();
        });
    }
    server.authorize(first_only(&denied)); // also those that follow
    for number in [3, 4] {
        let (requests, messages) = (counts(), counts());
        server.on_async(number, move |request| {
            requests.count();
            let bytes = request.to_vec();
            async move { bytes }
        });
        server.on_message_async(number, move |_| {
            messages.count();
            async {}
        });
    }
    for number in [5, 6, 7] {
        let (requests, messages) = (counts(), counts());
        server
            .on_worker(number, move |work| {
                requests.count();
                work.reply(&[][..]);
            })
            .unwrap();
        server
            .on_message_worker(number, move |_| {
                messages.count();
            })
            .unwrap();
    }
    let stop = server.handle();
    let calls = std::thread::spawn({
        let denied = denied.clone();
        move || {
            let ended = call_all(&uri, &denied);
            stop.stop();
            ended
        }
    });
    server.run().unwrap();
    check(&calls.join().unwrap());
    assert_eq!(begun.0.load(Ordering::Relaxed), 4, "two requests and two messages");
    assert_eq!(server.service_stats().denied, denied.0.load(Ordering::Relaxed));
}
