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

/// Connects to addresses in networks that a gateway does not reach or rejects, and that this host does
/// not reach, and returns the errors.
fn unreachable(hosts: &[Host; 2]) -> Result<Vec<String>, Box<dyn std::error::Error + Send + Sync>> {
    let [own, gateway] = hosts;
    let (via4, via6) = (gateway.address(false), gateway.address(true));
    gateway.run("ip route add unreachable 10.98.1.0/24")?;
    gateway.run("ip route add prohibit 10.98.2.0/24")?;
    gateway.run("ip -6 route add unreachable fd98:1::/64")?;
    gateway.run("ip -6 route add prohibit fd98:2::/64")?;
    own.run(&format!("ip route add 10.98.0.0/16 via {via4}"))?;
    own.run(&format!("ip -6 route add fd98::/16 via {via6}"))?;
    own.run("ip route add unreachable 10.97.0.0/16")?;
    thread::scope(|scope| {
        let forward = || -> std::io::Result<()> {
            gateway.enter()?;
            std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")?;
            std::fs::write("/proc/sys/net/ipv6/conf/all/forwarding", "1")
        };
        scope.spawn(forward).join().expect("no panic")
    })?;
    let targets =
        ["10.98.1.1", "10.98.2.1", "[fd98:1::1]", "[fd98:2::1]", "10.97.0.1", "10.96.0.1"];
    let errors = thread::scope(|scope| {
        let connects = || -> Vec<String> {
            own.enter().expect("enters");
            let connect_timeout = std::time::Duration::from_secs(120);
            let config = Config { connect_timeout, ..Config::default() };
            let nexus = Nexus::bind_with("udp://[::]:0", config).expect("binds");
            let mut rpc = nexus.endpoint().expect("opens");
            let connect = |host: &str| {
                let session = rpc.connect(&format!("udp://{host}:31850")).expect("a session");
                rpc.wait_connected(session).expect_err("unreachable").to_string()
            };
            targets.into_iter().map(connect).collect()
        };
        scope.spawn(connects).join().expect("no panic")
    });
    Ok(errors)
}

#[test]
fn a_host_that_cannot_be_reached_is_an_error_at_once_with_the_cause() {
    let hosts = match netns::pair() {
        Ok(hosts) => hosts,
        Err(e) => return println!("skipped: {e}"),
    };
    let begin = std::time::Instant::now();
    let errors = match unreachable(&hosts) {
        Ok(errors) => errors,
        Err(e) => return println!("skipped: the routes cannot be made: {e}"),
    };
    assert!(begin.elapsed() < std::time::Duration::from_secs(60), "at once: {errors:#?}");
    for error in &errors {
        assert!(error.contains("firewall"), "{error}");
        let is_named =
            ["no route to 10.9", "no route to [fd98:1::1]", "permit a connection to [fd98:2:"];
        assert!(is_named.iter().any(|name| error.contains(name)), "{error}");
    }
}
