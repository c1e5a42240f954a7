//! The program, as its users run it.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_courser-example-kv");

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

/// Runs a client, and returns what it prints.
fn run(args: &[&str]) -> String {
    let output = Command::new(PROGRAM).args(args).output().expect("it starts");
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn what_was_put_is_there_until_it_is_deleted() {
    let (_server, uri) = serve();
    for (key, value) in [("cherry", "red"), ("apple", "green"), ("banana", "yellow")] {
        assert_eq!(run(&["put", &uri, key, value]), "");
    }
    assert_eq!(run(&["get", &uri, "banana"]), "yellow\n");
    assert_eq!(run(&["scan", &uri, "b"]), "banana yellow\ncherry red\n");
    assert_eq!(run(&["delete", &uri, "banana"]), "");
    assert_eq!(run(&["get", &uri, "banana"]), "there is no banana\n");
}
