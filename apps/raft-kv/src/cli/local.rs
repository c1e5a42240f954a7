//! Nodes that a command starts as processes of this machine.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use courser_kit::Failure;

use super::apart::Apart;

/// A transport and a log for nodes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind<'a> {
    pub(super) scheme: &'a str,
    pub(super) memory: bool,
    pub(super) election: Duration,
    pub(super) flags: &'a [String],
    /// Each node has a network namespace of its own.
    pub(super) is_apart: bool,
}

/// Nodes 1 to N. They end when this is dropped.
pub(super) struct Nodes {
    uris: Vec<String>,
    children: Vec<Option<Child>>,
    directory: Option<PathBuf>,
    arguments: Vec<String>,
    memory: bool,
    lines: Arc<Mutex<Vec<String>>>,
    apart: Option<Apart>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A port that is free for UDP and TCP.
fn free_port() -> io::Result<(u16, TcpListener)> {
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..100 {
        let tcp = TcpListener::bind("127.0.0.1:0")?;
        let port = tcp.local_addr()?.port();
        match UdpSocket::bind(("127.0.0.1", port)) {
            Ok(_) => return Ok((port, tcp)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Addresses of this machine.
fn free_uris(scheme: &str, count: usize) -> io::Result<Vec<String>> {
    // All listeners are held until each has its port.
    let ports = (0..count).map(|_| free_port()).collect::<io::Result<Vec<_>>>()?;
    Ok(ports.iter().map(|(port, _)| format!("{scheme}://127.0.0.1:{port}")).collect())
}

/// The failure of a node that ended before it was ready.
pub(super) fn ended(at: usize) -> Failure {
    Failure::Runtime(format!("node {} ended at its start", at + 1))
}

impl Nodes {
    /// Starts nodes, and waits until each is ready.
    pub(super) fn start(count: usize, kind: Kind<'_>) -> Result<Nodes, Failure> {
        let apart = kind.is_apart.then(|| Apart::new(count)).transpose()?;
        let uris = match &apart {
            Some(apart) => (0..count).map(|at| apart.uri(at)).collect(),
            None => free_uris(kind.scheme, count)?,
        };
        let peers: Vec<String> = (1..).zip(&uris).map(|(id, uri)| format!("{id}={uri}")).collect();
        let directory = if kind.memory {
            None
        } else {
            let path = std::env::temp_dir().join(format!("raft-kv-{}", std::process::id()));
            std::fs::create_dir_all(&path).map_err(|error| Failure::writing(&path, &error))?;
            Some(path)
        };
        let mut arguments = vec!["--peers".to_owned(), peers.join(",")];
        arguments.push(format!("--election={}ms", kind.election.as_millis()));
        arguments.extend_from_slice(kind.flags);
        let children = (0..count).map(|_| None).collect();
        let memory = kind.memory;
        let lines = Arc::default();
        let mut nodes = Nodes { uris, children, directory, arguments, memory, lines, apart };
        for at in 0..count {
            nodes.run(at)?;
        }
        Ok(nodes)
    }

    /// Runs a node, and waits until it is ready.
    pub(super) fn run(&mut self, at: usize) -> Result<(), Failure> {
        let ready = self.launch(at)?;
        // The sender is dropped when the node ends.
        ready.recv().map_err(|_| ended(at))
    }

    /// Starts a node. The receiver gets a word when it is ready, or is disconnected if it ends before.
    pub(super) fn launch(&mut self, at: usize) -> Result<Receiver<()>, Failure> {
        let program = std::env::current_exe()?;
        let mut command = match &self.apart {
            Some(apart) => apart.command(at, &program.to_string_lossy()),
            None => Command::new(program),
        };
        command.args(["node", "--with-parent", "--id", &(at + 1).to_string()]);
        command.args(["--listen", &self.uris[at]]).args(&self.arguments);
        match &self.directory {
            Some(path) => command.arg("--new").arg("--data").arg(path.join((at + 1).to_string())),
            None => command.arg("--memory"),
        };
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let said = BufReader::new(child.stdout.take().expect("piped"));
        self.children[at] = Some(child);
        let lines = self.lines.clone();
        let (sender, ready) = channel();
        std::thread::spawn(move || {
            let mut sender = Some(sender);
            for line in said.lines().map_while(Result::ok) {
                if line.contains(" is ready at ") {
                    sender.take().map(|sender| sender.send(()));
                }
                lock(&lines).push(line);
            }
        });
        Ok(ready)
    }

    /// Kills a node as `kill -9` does.
    pub(super) fn kill(&mut self, at: usize) {
        if let Some(mut child) = self.children[at].take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// The namespaces of the nodes.
    pub(super) fn apart(&self) -> Result<&Apart, Failure> {
        let missing = || Failure::Runtime("the nodes share a network; report this".to_owned());
        self.apart.as_ref().ok_or_else(missing)
    }

    pub(super) fn uris(&self) -> &[String] {
        &self.uris
    }

    /// Position of the node with an address.
    pub(super) fn at(&self, uri: &str) -> Option<usize> {
        self.uris.iter().position(|known| known == uri)
    }

    /// True if nodes keep their log in memory.
    pub(super) fn is_memory(&self) -> bool {
        self.memory
    }

    /// Lines that nodes have printed since the last call.
    pub(super) fn take_lines(&self) -> Vec<String> {
        std::mem::take(&mut *lock(&self.lines))
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        for child in self.children.iter_mut().flatten() {
            // The end of its input ends it.
            drop(child.stdin.take().map(|mut stdin| stdin.flush()));
        }
        for child in self.children.iter_mut().flatten() {
            let _ = child.wait();
        }
        if let Some(path) = &self.directory {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}
