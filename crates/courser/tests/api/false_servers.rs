//! Servers that send invalid answers, or none, over the control connection. `hostile.rs` tests
//! strangers on the datapath.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::common::*;
use courser::{Config, ConnectRefuseReason, LostReason, SessionError, SessionState};
use courser_proto::{
    CONTROL_GREETING, ConnectAccept, ConnectError, ConnectRequest, ControlDecoder, ControlMsg,
    EndpointRef, RemoteSession, Room, Schemes,
};

/// The claimed endpoint of the false server.
const ME: EndpointRef = EndpointRef { index: 0, id: 0x5eed };

/// The control connection of a scripted server.
struct FalseServer {
    stream: TcpStream,
    decoder: ControlDecoder,
}

impl FalseServer {
    /// Starts a server that greets its first client; returns its address.
    fn start(f: impl FnOnce(FalseServer) + Send + 'static) -> (String, JoinHandle<()>) {
        Self::start_at(Ipv4Addr::LOCALHOST, f)
    }

    fn start_at(
        host: Ipv4Addr,
        f: impl FnOnce(FalseServer) + Send + 'static,
    ) -> (String, JoinHandle<()>) {
        let listener = TcpListener::bind((host, 0)).unwrap();
        let uri = format!("udp://{}", listener.local_addr().unwrap());
        let thread = std::thread::spawn(move || {
            let stream = listener.accept().unwrap().0;
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut server = FalseServer { stream, decoder: ControlDecoder::default() };
            server.stream.write_all(&CONTROL_GREETING).unwrap();
            f(server);
        });
        (uri, thread)
    }

    fn send(&mut self, msg: &ControlMsg) {
        self.stream.write_all(&msg.encode()).unwrap();
    }

    /// The next message except heartbeats; pings are answered.
    fn recv(&mut self) -> Option<ControlMsg> {
        loop {
            while let Some(msg) = self.decoder.next_msg().unwrap() {
                match msg {
                    ControlMsg::Ping => self.send(&ControlMsg::Pong),
                    ControlMsg::Pong => {}
                    msg => return Some(msg),
                }
            }
            let mut buf = [0; 512];
            let room = self.decoder.room().min(buf.len());
            match self.stream.read(&mut buf[..room]) {
                Ok(0) => return None,
                Ok(n) => assert_eq!(self.decoder.push(&buf[..n]), n),
                Err(e) if e.kind() == ErrorKind::ConnectionReset => return None,
                Err(e) => panic!("neither data nor a close: {e}"),
            }
        }
    }

    fn recv_connect(&mut self) -> (EndpointRef, ConnectRequest) {
        match self.recv() {
            Some(ControlMsg::Connect { from, request, .. }) => (from, request),
            other => panic!("{other:?}"),
        }
    }
}

/// The answer of a correct server.
fn answer(request: &ConnectRequest) -> ConnectAccept {
    ConnectAccept {
        endpoint_id: ME.id,
        port: 9,
        client_session: request.session,
        client_cookie: request.cookie,
        client_peer: request.peer,
        session: RemoteSession { number: 3, first_req_num: request.first_req_num },
        peer: 0,
        cookie: 1,
        data_per_packet: 1024,
        slots: request.slots,
        credits: 1,
        pool: 1,
        max_msg_size: 4096,
        schemes: Schemes { recovery: request.recovery, integrity: request.integrity },
        room: Room::UNIFORM,
    }
}

#[test]
fn unsolicited_answers_are_disconnected_and_ignored() {
    let (uri, thread) = FalseServer::start(|mut server| {
        let (to, request) = server.recv_connect();
        let honest = answer(&request);
        let numbered = |number| RemoteSession { number, ..honest.session };
        let wrong = [
            ConnectAccept {
                client_cookie: request.cookie ^ 1,
                session: numbered(10),
                ..honest.clone()
            },
            ConnectAccept { client_session: 77, session: numbered(11), ..honest.clone() },
            ConnectAccept { client_session: u32::MAX, session: numbered(12), ..honest.clone() },
        ];
        for accept in wrong {
            let theirs = accept.session;
            server.send(&ControlMsg::Accept { to, from: ME, accept });
            let undone = server.recv();
            assert!(
                matches!(undone, Some(ControlMsg::Disconnect { session, .. }) if session == theirs)
            );
        }
        let session = request.session;
        for (client_cookie, session) in [(request.cookie ^ 1, session), (request.cookie, 77)] {
            let reason = ConnectRefuseReason::NoPath;
            server.send(&ControlMsg::Refuse { to, session, client_cookie, reason });
        }
        server.send(&ControlMsg::EndpointGone { from: EndpointRef { index: 5, id: 99 } });
        server.send(&ControlMsg::EndpointGone { from: to });
        for session in [session, 77] {
            let not_mine = RemoteSession { number: session, first_req_num: request.first_req_num };
            server.send(&ControlMsg::Disconnect { from: ME, to, session: not_mine });
            server.send(&ControlMsg::Idle { from: ME, to, session, done: vec![0; 32] });
        }
        server.send(&ControlMsg::Accept { to, from: ME, accept: honest.clone() });
        // Again: the request was answered already.
        let accept =
            ConnectAccept { session: RemoteSession { number: 13, ..honest.session }, ..honest };
        server.send(&ControlMsg::Accept { to, from: ME, accept });
        let undone = server.recv();
        assert!(
            matches!(undone, Some(ControlMsg::Disconnect { session, .. }) if session.number == 13)
        );
        server.send(&ControlMsg::EndpointGone { from: ME });
        // The client's own endpoint closes at the end of the test.
        assert!(matches!(server.recv(), Some(ControlMsg::EndpointGone { from }) if from == to));
        assert_eq!(server.recv(), None);
    });
    let mut client = client(Config { failure_timeout: PATIENCE, ..Config::default() });
    let session = connect(&mut client, &mut [], &uri);
    // Only the end of the right endpoint ends the session.
    let gone = SessionState::Gone;
    drive_until(&mut [&mut client], |all| all[0].session_state(session) == gone);
    assert!(matches!(client.session_error(session), Some(SessionError::EndpointGone)));
    client.check();
    drop(client);
    thread.join().unwrap();
}

/// Across a network a client requests fewer credits than its limit, and accepts no more.
#[test]
fn a_server_that_grants_more_credits_than_requested_is_refused() {
    let (uri, thread) = FalseServer::start_at(Ipv4Addr::new(127, 0, 0, 2), |mut server| {
        let (to, request) = server.recv_connect();
        let accept = ConnectAccept { credits: request.credits + 1, ..answer(&request) };
        server.send(&ControlMsg::Accept { to, from: ME, accept });
        let undone = server.recv();
        assert!(
            matches!(undone, Some(ControlMsg::Disconnect { session, .. }) if session.number == 3)
        );
        server.recv();
    });
    let mut client = client(Config::default());
    let session = client.connect(&uri).unwrap();
    let error = client.wait_connected(session).unwrap_err();
    assert!(matches!(error, SessionError::Local(ConnectError::BadAnswer)), "{error:?}");
    assert_eq!(client.credits_granted(), 0, "its credits are free again");
    drop(client);
    thread.join().unwrap();
}

/// The named peer may be one that has ended, so the client sends its request again, but not for ever.
#[test]
fn a_server_that_always_names_another_peer_is_refused() {
    let (uri, thread) = FalseServer::start(|mut server| {
        let (mut requests, mut disconnects) = (0, 0);
        while let Some(msg) = server.recv() {
            match msg {
                ControlMsg::Connect { from: to, request, .. } => {
                    requests += 1;
                    let accept = ConnectAccept { client_peer: 1234, ..answer(&request) };
                    server.send(&ControlMsg::Accept { to, from: ME, accept });
                }
                ControlMsg::Disconnect { session, .. } => {
                    assert_eq!(session.number, 3);
                    disconnects += 1;
                }
                ControlMsg::EndpointGone { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((requests, disconnects), (9, 9));
    });
    let mut client = client(Config::default());
    let session = client.connect(&uri).unwrap();
    let error = client.wait_connected(session).unwrap_err();
    assert!(matches!(error, SessionError::Local(ConnectError::BadAnswer)), "{error:?}");
    client.check();
    drop(client);
    thread.join().unwrap();
}

#[test]
fn a_connect_to_a_silent_server_fails() {
    let (uri, thread) = FalseServer::start(|mut server| {
        server.recv_connect();
        // Like a stopped process: data is received, nothing is answered.
        let end = server.stream.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(end.kind(), ErrorKind::ConnectionReset);
    });
    let failure_timeout = Duration::from_millis(200);
    let connect_timeout = PATIENCE * 60;
    let mut client = client(Config { failure_timeout, connect_timeout, ..Config::default() });
    let session = client.connect(&uri).unwrap();
    let error = client.wait_connected(session).unwrap_err();
    let silent = |r: &LostReason| matches!(r, LostReason::Silent { .. });
    assert!(matches!(&error, SessionError::PeerFailed(r) if silent(r)), "{error:?}");
    thread.join().unwrap();
}
