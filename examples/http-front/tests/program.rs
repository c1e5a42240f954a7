//! The program, as its users run it, over real sockets.

mod endless;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, mpsc};
use std::time::Duration;

use courser::Server;
use courser_example_kv::{KvServer, Store};
use endless::Endless;

const LIMIT: Duration = Duration::from_secs(20);

/// The program; killed when dropped.
struct Front {
    process: Child,
    address: String,
}

impl Drop for Front {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Front {
    /// Starts the program in front of a key-value server.
    fn start(kv: &str) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_courser-example-http-front"));
        command.args(["127.0.0.1:0", kv]).stdout(Stdio::piped());
        let mut front =
            Self { process: command.spawn().expect("it starts"), address: String::new() };
        let mut line = String::new();
        let said = front.process.stdout.take().expect("piped");
        BufReader::new(said).read_line(&mut line).expect("a line");
        let address = line.trim().strip_prefix("listening on http://").expect("an address");
        front.address = address.to_owned();
        front
    }

    /// Sends a request whose answer ends the connection.
    fn send(&self, line: &str, body: &str) -> TcpStream {
        let mut connection = TcpStream::connect(&self.address).expect("it listens");
        connection.set_read_timeout(Some(LIMIT)).expect("a timeout");
        let length = body.len();
        write!(
            connection,
            "{line} HTTP/1.1\r\nhost: front\r\nconnection: close\r\nx-deadline-ms: 60000\r\n\
             content-length: {length}\r\n\r\n{body}"
        )
        .expect("it reads");
        connection
    }

    /// The status and the body of an answer.
    fn ask(&self, line: &str, body: &str) -> (String, String) {
        let mut answer = String::new();
        self.send(line, body).read_to_string(&mut answer).expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        (head.split(' ').nth(1).expect("a status").to_owned(), body.to_owned())
    }
}

#[test]
fn requests_of_http_are_calls_of_the_service() {
    let server = Server::bind("udp://127.0.0.1:0").unwrap();
    let server = server.add_service(KvServer::new(Store::default())).unwrap();
    let (kv, _serving) = (server.local_uri(), server.serve().unwrap());
    let front = Front::start(&kv);
    assert_eq!(front.ask("PUT /kv/apple", "green"), ("204".to_owned(), String::new()));
    assert_eq!(front.ask("GET /kv/apple", ""), ("200".to_owned(), "green".to_owned()));
    assert_eq!(front.ask("GET /kv/melon", "").0, "404");
    let (status, lines) = front.ask("GET /kv", "");
    assert_eq!(status, "200");
    assert!(lines.contains(r#"{"key":"apple","value":"green"}"#), "{lines}");
}

/// Sends a message when it is dropped.
struct Dropped(mpsc::Sender<&'static str>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.send("dropped");
    }
}

#[test]
fn a_client_of_http_that_goes_away_ends_the_handler_of_its_call() {
    let (events, heard) = mpsc::channel();
    let server = Server::bind("udp://127.0.0.1:0").unwrap();
    let events = Mutex::new(events);
    let begin = move || {
        let events = events.lock().unwrap();
        let _ = events.send("begun");
        Dropped(events.clone())
    };
    let server = server.add_service(KvServer::new(Endless(begin))).unwrap();
    let (kv, _serving) = (server.local_uri(), server.serve().unwrap());
    let front = Front::start(&kv);
    let connection = front.send("GET /kv/apple", "");
    assert_eq!(heard.recv_timeout(LIMIT), Ok("begun"));
    drop(connection);
    assert_eq!(heard.recv_timeout(LIMIT), Ok("dropped"));
}
