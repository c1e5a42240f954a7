//! Shared by the integration tests: servers, clients, and waiting with a time limit.
//!
//! Limits are long: they end a hanging test and measure nothing.
#![allow(dead_code, unreachable_pub, missing_docs)]

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use courser::{
    CallError, Config, EndpointHandle, MsgBuf, Nexus, Rpc, SessionId, SessionState, Transport,
};
use courser_net::{MemConfig, MemNetwork, MemTransport};
use courser_proto::{ConnectRequest, ControlMsg, EndpointRef, Integrity, Recovery, Room};

pub const LOOPBACK: &str = "udp://127.0.0.1:0";
/// Time after which a test fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The result of a call.
pub struct Ended {
    pub request: MsgBuf,
    pub result: Result<Vec<u8>, CallError>,
}

/// The results of calls, in order of their ends.
pub type Log = Rc<RefCell<Vec<(u64, Ended)>>>;

/// Polls `all` until `until` holds.
pub fn drive<T: Transport>(all: &mut [&mut Rpc<T>], mut until: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !until() {
        for rpc in all.iter_mut() {
            rpc.poll();
        }
        assert!(Instant::now() < end, "the condition does not become true: {all:?}");
    }
}

/// Polls `all` until `until` returns true for one of them.
pub fn drive_until<T: Transport>(
    all: &mut [&mut Rpc<T>],
    mut until: impl FnMut(&mut [&mut Rpc<T>]) -> bool,
) {
    let end = Instant::now() + PATIENCE;
    while !until(all) {
        for rpc in all.iter_mut() {
            rpc.poll();
        }
        assert!(Instant::now() < end, "the condition does not become true: {all:?}");
    }
}

/// Connects `client` and polls the other endpoints.
pub fn connect<T: Transport>(
    client: &mut Rpc<T>,
    others: &mut [&mut Rpc<T>],
    uri: &str,
) -> SessionId {
    let session = client.connect(uri).unwrap();
    let end = Instant::now() + PATIENCE;
    while client.session_state(session) == SessionState::Connecting {
        client.poll();
        for rpc in others.iter_mut() {
            rpc.poll();
        }
        assert!(Instant::now() < end, "no session");
    }
    if let Some(e) = client.session_error(session) {
        panic!("{e}");
    }
    session
}

/// Fills a message with bytes that depend on the seed and their position.
pub fn pattern(seed: u64, bytes: &mut [u8]) {
    let mut x = seed ^ 0x9e37_79b9_7f4a_7c15;
    for chunk in bytes.chunks_mut(8) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        chunk.copy_from_slice(&x.to_le_bytes()[..chunk.len()]);
    }
}

/// A request buffer filled with its pattern.
pub fn message<T: Transport>(rpc: &Rpc<T>, seed: u64, len: usize) -> MsgBuf {
    let mut m = rpc.alloc(len).unwrap();
    pattern(seed, &mut m);
    m
}

/// The pattern as bytes.
pub fn expected(seed: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    pattern(seed, &mut bytes);
    bytes
}

/// Starts a call that logs its result under `id`.
pub fn call<T: Transport>(
    rpc: &mut Rpc<T>,
    session: SessionId,
    req_type: u16,
    request: MsgBuf,
    log: &Log,
    id: u64,
) {
    let log = log.clone();
    rpc.call(session, req_type, request, move |_cx, done| {
        let result = done.result.map(|r| r.to_vec());
        log.borrow_mut().push((id, Ended { request: done.request, result }));
    })
    .unwrap();
}

/// Makes one call and returns its result; polls `others` until then.
pub fn call_and_wait<T: Transport>(
    rpc: &mut Rpc<T>,
    others: &mut [&mut Rpc<T>],
    session: SessionId,
    req_type: u16,
    request: MsgBuf,
) -> Ended {
    let log = Log::default();
    call(rpc, session, req_type, request, &log, 0);
    let end = Instant::now() + PATIENCE;
    while log.borrow().is_empty() {
        rpc.poll();
        for other in others.iter_mut() {
            other.poll();
        }
        assert!(Instant::now() < end, "the call did not end: {rpc:?}");
    }
    log.borrow_mut().pop().unwrap().1
}

/// A server on its own thread.
pub struct Server {
    pub uri: String,
    pub handle: EndpointHandle,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Runs what `set_up` registers until it is dropped.
    pub fn start(config: Config, set_up: impl FnOnce(&mut Rpc) + Send + 'static) -> Server {
        Server::start_at(LOOPBACK, config, set_up)
    }

    pub fn start_at(
        bind: &str,
        config: Config,
        set_up: impl FnOnce(&mut Rpc) + Send + 'static,
    ) -> Server {
        let nexus = Nexus::bind_with(bind, config).unwrap();
        let uri = nexus.local_uri();
        let (ready, is_ready) = mpsc::channel();
        let thread = std::thread::spawn(move || {
            let mut rpc = nexus.endpoint().unwrap();
            set_up(&mut rpc);
            ready.send(rpc.handle()).unwrap();
            rpc.run().unwrap();
            rpc.check();
        });
        Server { uri, handle: is_ready.recv().unwrap(), thread: Some(thread) }
    }

    /// Stops it: its endpoint and its nexus have been dropped on return.
    pub fn stop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.unwrap();
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A client's nexus and endpoint.
pub fn client(config: Config) -> Rpc {
    Nexus::bind_with(LOOPBACK, config).unwrap().endpoint().unwrap()
}

/// A nexus and an endpoint on a network in memory, with the middleware of `wrap`.
pub fn mem_endpoint<T: Transport>(
    network: &MemNetwork,
    config: Config,
    wrap: impl FnOnce(MemTransport) -> T,
) -> (Nexus, Rpc<T>) {
    let nexus = Nexus::bind_with("mem://127.0.0.1:0", config).unwrap();
    let host = u128::from(std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped());
    let transport = network.endpoint(MemConfig { host, ..MemConfig::default() }).unwrap();
    let rpc = nexus.endpoint_on(wrap(transport)).unwrap();
    (nexus, rpc)
}

/// The `n`th connect of one control connection, each from another endpoint.
pub fn connect_request(n: u32) -> ControlMsg {
    let from = EndpointRef { index: n as u16, id: 1_000 + u64::from(n) };
    let request = ConnectRequest {
        endpoint_id: from.id,
        port: 10_000 + n,
        session: n,
        peer: n,
        cookie: n,
        max_frame: 1500,
        credits: 32,
        pool: 32,
        slots: 8,
        max_msg_size: 1 << 20,
        first_req_num: 0,
        recovery: Recovery::Selective,
        integrity: Integrity::None,
        room: Room::UNIFORM,
    };
    ControlMsg::Connect { from, to: None, request }
}

/// A channel that blocks handlers: each message releases one, and dropping the sender releases all.
pub fn gate() -> (mpsc::Sender<()>, Arc<Mutex<mpsc::Receiver<()>>>) {
    let (open, wait) = mpsc::channel();
    (open, Arc::new(Mutex::new(wait)))
}

pub fn pass(gate: &Mutex<mpsc::Receiver<()>>) {
    let _ = gate.lock().unwrap().recv();
}
