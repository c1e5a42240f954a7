//! RPCs over this transport, which the address alone selects.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Once;
use std::time::{Duration, Instant};

use courser::{Config, Nexus, OptionSet, Rpc, SessionState, Transport};
use courser_unix_datagram::{UnixOptions, register};

const UPPERCASE: u16 = 1;

fn bind(address: &str, config: Config) -> Result<Nexus, courser::BindError> {
    static REGISTERED: Once = Once::new();
    REGISTERED.call_once(|| register().unwrap());
    Nexus::bind_with(address, config)
}

/// A server and a client, polled in turn; the rest is any Courser program.
fn exchange(address: &str, lens: &[usize]) -> [Rpc; 2] {
    let nexuses = [(); 2].map(|()| bind(address, Config::default()).unwrap());
    let [mut server, mut client] = nexuses.each_ref().map(|nexus| nexus.endpoint().unwrap());
    server.on(UPPERCASE, |cx, request| cx.reply(request.to_ascii_uppercase()));
    let session = client.connect(&nexuses[0].local_uri()).unwrap();
    let responses = Rc::new(RefCell::new(Vec::new()));
    for &len in lens {
        let mut request = client.alloc(len).unwrap();
        request.fill(b'a');
        let responses = responses.clone();
        client
            .call(session, UPPERCASE, request, move |_cx, done| {
                responses.borrow_mut().push(done.result.map(|response| response.to_vec()));
            })
            .unwrap();
    }
    let end = Instant::now() + Duration::from_secs(60);
    while responses.borrow().len() < lens.len() {
        client.poll();
        server.poll();
        assert!(Instant::now() < end, "{:?}", client.session_error(session));
    }
    assert_eq!(client.session_state(session), SessionState::Connected);
    let mut lens = lens.to_vec();
    lens.sort_unstable();
    let mut responses = responses.take();
    responses.sort_unstable_by_key(|r| r.as_ref().map_or(0, Vec::len));
    for (response, len) in responses.iter().zip(lens) {
        assert_eq!(response.as_deref(), Ok(&vec![b'A'; len][..]));
    }
    [server, client]
}

#[test]
fn small_and_large_calls_are_answered() {
    let rpcs = exchange("unix://127.0.0.1:0", &[1, 32, 900, 9_000, 1 << 20]);
    assert!(rpcs.iter().all(|rpc| rpc.transport().caps().scheme == "unix"));
}

#[test]
fn options_in_the_address_are_this_transports() {
    let rpcs = exchange("unix://127.0.0.1:0?max_frame=600&namespace=small", &[32, 100_000]);
    assert!(rpcs.iter().all(|rpc| rpc.transport().caps().max_frame == 600));
    let error = bind("unix://127.0.0.1:0?gso=off", Config::default()).unwrap_err().to_string();
    assert!(error.ends_with("use one of max_frame, namespace"), "{error}");
}

#[test]
fn options_in_code_are_taken_and_the_common_frame_size_is_used() {
    let max_frame = |config| {
        let nexus = bind("unix://127.0.0.1:0", config).unwrap();
        nexus.endpoint().unwrap().transport().caps().max_frame
    };
    let options = UnixOptions { max_frame: Some(700), ..UnixOptions::default() };
    let common = || Config { max_frame: Some(800), ..Config::default() };
    assert_eq!(max_frame(common()), 800);
    assert_eq!(max_frame(Config { transport: OptionSet::new().with(options), ..common() }), 700);
}

#[test]
fn a_port_in_use_is_an_error_unless_any_port_will_do() {
    let taken = bind("unix://127.0.0.1:0", Config::default()).unwrap();
    let rpc = taken.endpoint().unwrap();
    let port = rpc.transport().local_addr().port;
    let at = format!("127.0.0.1:{port}").parse().unwrap();
    let again = courser_unix_datagram::UnixTransport::bind(at, &UnixOptions::default());
    assert_eq!(again.unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    // A datapath name of the port that the second nexus has for control.
    let second = bind("unix://127.0.0.1:0", Config::default()).unwrap();
    let at = format!("127.0.0.1:{}", second.port()).parse().unwrap();
    let _occupied =
        courser_unix_datagram::UnixTransport::bind(at, &UnixOptions::default()).unwrap();
    let elsewhere = second.endpoint().unwrap();
    assert_ne!(elsewhere.transport().local_addr().port, u32::from(second.port()));
}

#[test]
fn other_machines_cannot_be_reached() {
    let error = bind("unix://0.0.0.0:0", Config::default()).unwrap_err().to_string();
    assert!(error.contains("127.0.0.1"), "{error}");
}
