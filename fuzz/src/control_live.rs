//! Any bytes to a live control port, over TCP: a nexus and its endpoint on this thread, where all
//! state can be inspected. After each input its state is gone, and a session with a call on it
//! works.

use std::cell::RefCell;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::rc::Rc;
use std::time::{Duration, Instant};

use courser::{Config, Nexus, Rpc, SessionState};

const ECHO: u16 = 1;
/// A timeout that only a defect reaches.
const PATIENCE: Duration = Duration::from_secs(20);
/// Inputs per client: then it is replaced, and with it the control connection.
const INPUTS_PER_CLIENT: u32 = 32;

struct Live {
    nexus: Nexus,
    server: Rpc,
    client: Rpc,
    inputs: u32,
}

thread_local! {
    static LIVE: RefCell<Option<Live>> = const { RefCell::new(None) };
}

pub fn run(bytes: &[u8]) {
    LIVE.with_borrow_mut(|live| {
        let live = live.get_or_insert_with(Live::new);
        live.attack(bytes);
        live.must_work();
    });
}

/// Small memory: two endpoints are created thousands of times.
fn config() -> Config {
    Config {
        memory_limit: 16 << 20,
        max_msg_size: 64 << 10,
        max_sessions: 64,
        socket_buffer: 256 << 10,
        ..Config::default()
    }
}

fn client() -> Rpc {
    let nexus = Nexus::bind_with("udp://127.0.0.1:0", config()).expect("a client's nexus");
    nexus.endpoint().expect("a client's endpoint")
}

impl Live {
    fn new() -> Live {
        let nexus = Nexus::bind_with("udp://127.0.0.1:0", config()).expect("nexus");
        let mut server = nexus.endpoint().expect("endpoint");
        server.on(ECHO, |cx, req| cx.reply(req));
        Live { nexus, server, client: client(), inputs: 0 }
    }

    /// Polls both until a condition holds.
    fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Live) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !holds(self) {
            let busy = self.server.poll() | self.client.poll();
            if !busy {
                std::thread::yield_now();
            }
            assert!(Instant::now() < end, "never: {what}");
        }
    }

    /// Sends the bytes in two pieces, and waits until the nexus closes the connection.
    fn attack(&mut self, bytes: &[u8]) {
        let mut stream =
            TcpStream::connect((Ipv4Addr::LOCALHOST, self.nexus.port())).expect("it listens");
        stream.set_nodelay(true).expect("a socket option");
        let cut = bytes.first().map_or(0, |&b| usize::from(b) % bytes.len());
        // It may have closed the connection after the first piece.
        let sent = stream.write_all(&bytes[..cut]).and_then(|()| stream.write_all(&bytes[cut..]));
        if sent.is_ok() {
            let _ = stream.shutdown(Shutdown::Write);
        }
        stream.set_nonblocking(true).expect("a socket option");
        let mut answer = [0; 4096];
        self.until("the nexus closes a connection that has ended", |_| {
            match stream.read(&mut answer) {
                Ok(0) => true,
                Ok(_) => false,
                Err(e) => e.kind() != std::io::ErrorKind::WouldBlock,
            }
        });
    }

    fn must_work(&mut self) {
        self.inputs += 1;
        if self.inputs.is_multiple_of(INPUTS_PER_CLIENT) {
            self.client = client();
        }
        let uri = self.nexus.local_uri();
        let session = self.client.connect(&uri).expect("a well-formed address");
        self.until("a session after invalid input", |live| {
            live.client.session_state(session) != SessionState::Connecting
        });
        assert!(
            self.client.session_error(session).is_none(),
            "{:?}",
            self.client.session_error(session)
        );
        let mut request = self.client.alloc(100).expect("memory");
        request.fill(7);
        let ended = Rc::new(RefCell::new(None));
        let end = ended.clone();
        let called = self.client.call(session, ECHO, request, move |_, done| {
            *end.borrow_mut() = Some(done.result.is_ok_and(|r| *r == [7; 100]));
        });
        called.expect("an accepted call");
        self.until("a call's end", |_| ended.borrow().is_some());
        assert_eq!(*ended.borrow(), Some(true));
        self.client.close(session);
        self.until("sessions of the stranger and of the client are gone", |live| {
            live.server.sessions() == 0
        });
        self.server.check();
        self.client.check();
    }
}
