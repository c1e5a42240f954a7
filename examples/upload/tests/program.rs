//! The program, as its users run it.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

const PROGRAM: &str = env!("CARGO_BIN_EXE_courser-example-upload");

/// A server process; killed when dropped.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server of a directory, and returns its address.
fn serve(directory: &Path) -> (Server, String) {
    let mut command = Command::new(PROGRAM);
    command.args(["serve", "udp://127.0.0.1:0"]).arg(directory).stdout(Stdio::piped());
    let mut server = Server(command.spawn().expect("it starts"));
    let mut line = String::new();
    let said = server.0.stdout.take().expect("piped");
    BufReader::new(said).read_line(&mut line).expect("a line");
    let uri = line.trim().strip_prefix("serving ").expect("an address").to_owned();
    (server, uri)
}

#[test]
fn files_arrive_whole() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_server, uri) = serve(to.path());
    for (name, bytes) in [("empty", 0), ("small", 10), ("large", 3_000_001)] {
        let contents: Vec<u8> = (0..bytes).map(|n: usize| ((n * n) >> 7) as u8).collect();
        let file = from.path().join(name);
        std::fs::write(&file, &contents).unwrap();
        let output = Command::new(PROGRAM).args(["send", &uri]).arg(&file).output().unwrap();
        assert!(output.status.success(), "{name}: {output:?}");
        assert_eq!(std::fs::read(to.path().join(name)).unwrap(), contents, "{name}");
    }
    // Files that are not complete have other names.
    assert_eq!(std::fs::read_dir(to.path()).unwrap().count(), 3);
}

#[test]
fn a_file_that_cannot_be_stored_is_refused_with_the_reason() {
    let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (_server, uri) = serve(to.path());
    let file = from.path().join(".hidden");
    std::fs::write(&file, vec![0; 1 << 20]).unwrap();
    let output = Command::new(PROGRAM).args(["send", &uri]).arg(&file).output().unwrap();
    assert!(!output.status.success(), "{output:?}");
    let reason = String::from_utf8_lossy(&output.stderr);
    assert!(reason.contains("files cannot be named `.hidden`"), "{reason}");
}
