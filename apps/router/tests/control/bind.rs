//! Which process owns the path of a control socket.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use courser_router::control::{BindError, Client, Server};
use rustix::fs::{FlockOperation, flock};

use super::{Directory, Node, no_new_process};

/// Leaves the socket file of a process that has ended.
fn leave_stale(path: &Path) {
    drop(UnixListener::bind(path).unwrap());
}

#[test]
fn the_socket_of_a_dead_process_is_replaced_and_of_a_live_one_kept() {
    let _none = no_new_process();
    let mut node = Node::new("bind");
    let path = node.directory.socket();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert!(matches!(Server::bind(&path), Err(BindError::InUse { .. })));
    let mut stream = node.connect();
    assert_eq!(node.ask(&mut stream, "stats\n"), "{}\nok\n", "it is still there");
    let Node { server, directory, .. } = node;
    drop(server);
    assert!(!path.exists());

    leave_stale(&path);
    assert!(path.exists());
    drop(Server::bind(&path).unwrap());
    let foreign = UnixListener::bind(&path).unwrap();
    assert!(matches!(Server::bind(&path), Err(BindError::InUse { .. })));
    assert!(path.exists());
    drop(foreign);

    let file = directory.0.join("file");
    fs::write(&file, "text").unwrap();
    let error = Server::bind(&file).unwrap_err();
    assert!(matches!(error, BindError::NoSocket { .. }), "{error}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "text");
    let absent = Server::bind(directory.0.join("no/a.sock")).unwrap_err().to_string();
    assert!(absent.contains("No such file") && absent.contains("its directory must"), "{absent}");
    let long = Server::bind(directory.0.join("x".repeat(120))).unwrap_err();
    assert!(matches!(long, BindError::System { .. }), "{long}");
}

#[test]
fn of_servers_that_start_together_on_a_stale_socket_one_owns_it() {
    let _none = no_new_process();
    const SERVERS: usize = 4;
    let directory = Directory::new("race");
    for round in 0..200 {
        let path = directory.0.join(format!("{round}.sock"));
        leave_stale(&path);
        let barrier = Barrier::new(SERVERS);
        let bind = || {
            barrier.wait();
            Server::bind(&path)
        };
        let results: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..SERVERS).map(|_| scope.spawn(bind)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let refused = |result: &&Result<Server, BindError>| matches!(result, Err(BindError::InUse { path: of }) if *of == path);
        assert_eq!(results.iter().filter(refused).count(), SERVERS - 1, "{results:?}");
        assert!(results.iter().any(Result::is_ok), "{results:?}");
        UnixStream::connect(&path).unwrap();
    }
}

#[test]
fn a_server_that_does_not_get_the_lock_leaves_the_socket_alone() {
    let _none = no_new_process();
    let directory = Directory::new("lock");
    let path = directory.socket();
    leave_stale(&path);
    // Another server has the lock, and is about to replace the socket.
    let lock = File::create(directory.0.join("a.sock.lock")).unwrap();
    flock(&lock, FlockOperation::NonBlockingLockExclusive).unwrap();
    assert!(matches!(Server::bind(&path), Err(BindError::InUse { .. })));
    assert!(path.exists());
    drop(lock);
    Server::bind(&path).unwrap();
}

/// A node without ports, for which no privileges are needed.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(directory: &Directory) -> Process {
    let config = "[cluster]\nname='x'\ntopology='switch'\n[[node]]\nname='a'\n\
                  address='udp://127.0.0.1:0'\n";
    let config = format!("{config}control='{}'\n", directory.socket().display());
    let file = directory.0.join("cluster.toml");
    fs::write(&file, config).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_router"));
    command.arg("run").arg(file).args(["--node", "a"]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    Process(super::start(&mut command))
}

/// Waits until the node of this process answers.
fn wait(process: &mut Process, directory: &Directory) {
    let begin = Instant::now();
    loop {
        let client = Client::connect(directory.socket());
        if client.and_then(|mut client| client.ask("nodes")).is_ok() {
            return;
        }
        assert_eq!(process.0.try_wait().unwrap(), None, "it has ended");
        assert!(begin.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn the_socket_of_a_killed_node_is_replaced_and_of_a_running_one_kept() {
    let directory = Directory::new("killed");
    let mut first = start(&directory);
    wait(&mut first, &directory);
    let mut second = start(&directory);
    assert_eq!(second.0.wait().unwrap().code(), Some(2));
    let mut error = String::new();
    second.0.stderr.take().unwrap().read_to_string(&mut error).unwrap();
    assert!(error.contains("a running node has this control socket"), "{error}");
    wait(&mut first, &directory);

    first.0.kill().unwrap();
    first.0.wait().unwrap();
    assert!(directory.socket().exists(), "a killed process cannot remove it");
    let mut third = start(&directory);
    wait(&mut third, &directory);
}
