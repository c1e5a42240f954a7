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
fn a_watch_and_a_call_that_waits_end_when_the_server_is_interrupted() {
    let (mut server, uri) = serve();
    let client = |args: &[&str]| {
        let mut command = Command::new(PROGRAM);
        let command = command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().expect("it starts")
    };
    let mut watch = client(&["watch", &uri]);
    let waits = client(&["wait", &uri, "later"]);
    let mut lines = BufReader::new(watch.stdout.take().expect("piped")).lines();
    // The watch may begin after the first ones.
    let (seen, is_seen) = std::sync::mpsc::channel();
    let puts = std::thread::spawn({
        let uri = uri.clone();
        move || {
            while is_seen.try_recv().is_err() {
                run(&["put", &uri, "apple", "green"]);
            }
        }
    });
    assert_eq!(lines.next().expect("a line").expect("text"), "apple green");
    seen.send(()).expect("it puts");
    puts.join().expect("they succeed");
    let pid = server.0.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().expect("kill runs").success());
    let last = lines.map(|line| line.expect("text")).last().expect("a line");
    assert!(last.starts_with("the server shuts down after "), "{last}");
    assert!(watch.wait().expect("it ends").success());
    let waited = waits.wait_with_output().expect("it ends");
    let text = String::from_utf8_lossy(&waited.stderr);
    assert!(text.contains("shutting down"), "{text}");
    assert!(server.0.wait().expect("it ends").success());
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
