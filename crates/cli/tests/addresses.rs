//! Hosts with several addresses: two network namespaces.
//!
//! Needs root and ip(8). Without them the test is skipped and prints the reason.

use std::sync::mpsc;
use std::thread;

use courser::{Config, Nexus, Rpc, SessionId};
use courser_bench::netns::{self, DEVICE, Host};

const TYPE: u16 = 1;

/// Sends a 100 kB request, whose packets must come from the right address.
fn call(rpc: &mut Rpc, session: SessionId) -> Result<(), String> {
    let request = rpc.alloc(100_000).expect("memory");
    rpc.call_wait(session, TYPE, request, None).map(|_| ()).map_err(|e| e.reason.to_string())
}

fn connect(rpc: &mut Rpc, server: &str) -> SessionId {
    let session = rpc.connect(server).expect("a session");
    rpc.wait_connected(session).expect("connected");
    session
}

#[test]
fn clients_connect_from_secondary_addresses_and_after_address_changes() {
    let hosts = match netns::pair() {
        Ok(hosts) => hosts,
        Err(e) => return println!("skipped: {e}"),
    };
    thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        let [first, host] = &hosts;
        let server = scope.spawn(move || {
            host.enter().expect("enters");
            let nexus = Nexus::bind("udp://0.0.0.0:0").expect("binds");
            let mut rpc = nexus.endpoint().expect("opens");
            rpc.on(TYPE, |cx, request| cx.reply(request.len().to_le_bytes().to_vec()));
            tell.send((nexus.port(), rpc.handle())).expect("told");
            rpc.run().expect("runs");
        });
        let (port, handle) = told.recv().expect("ready");
        let server_uri = format!("udp://{}:{port}", host.address(false));
        let client = scope.spawn(move || client(first, &server_uri));
        let result = client.join();
        handle.stop();
        server.join().expect("ends");
        result.expect("calls");
    });
}

fn client(host: &Host, server: &str) {
    let add = |address: &str| {
        host.run(&format!("ip address add {address}/24 dev {DEVICE}")).expect("adds an address");
    };
    add("10.99.0.7");
    host.enter().expect("enters");

    let nexus = Nexus::bind("udp://10.99.0.7:0").expect("binds");
    let mut rpc = nexus.endpoint().expect("opens");
    let session = connect(&mut rpc, server);
    assert_eq!(call(&mut rpc, session), Ok(()), "from a secondary address");

    let config =
        Config { failure_timeout: std::time::Duration::from_millis(200), ..Config::default() };
    let nexus = Nexus::bind_with("udp://0.0.0.0:0", config).expect("binds");
    let mut rpc = nexus.endpoint().expect("opens");
    let session = connect(&mut rpc, server);
    assert_eq!(call(&mut rpc, session), Ok(()), "from the wildcard");
    host.run(&format!("ip address flush dev {DEVICE} scope global"))
        .expect("removes the addresses");
    let lost = call(&mut rpc, session);
    assert!(lost.is_err(), "the address is gone");
    add("10.99.0.9");
    let session = connect(&mut rpc, server);
    assert_eq!(call(&mut rpc, session), Ok(()), "from the new address");
}
