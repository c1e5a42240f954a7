//! The program, as its users run it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_courser-example-greeter");

/// A server process; killed when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server, and returns its address.
fn serve() -> (Server, String) {
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "udp://127.0.0.1:0"]).stdout(Stdio::piped());
    let mut server = Server(command.spawn().expect("it starts"));
    let mut line = String::new();
    let said = server.0.stdout.take().expect("piped");
    BufReader::new(said).read_line(&mut line).expect("a line");
    let uri = line.trim().strip_prefix("serving ").expect("an address").to_owned();
    (server, uri)
}

#[test]
fn the_program_greets() {
    let (_server, uri) = serve();
    let client = Command::new(PROGRAM).args(["hello", &uri, "Ada"]).output().expect("it starts");
    assert_eq!(String::from_utf8_lossy(&client.stdout), "Hello, Ada!\n", "{client:?}");
}
