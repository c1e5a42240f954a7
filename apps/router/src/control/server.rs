//! The server's side of the control socket.

use std::cell::Cell;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixStream as StdStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mio::event::Event;
use mio::net::{UnixListener, UnixStream};
use mio::{Events, Interest, Poll, Token};
use rustix::fs::{FlockOperation, Mode, fchmod, flock};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use thiserror::Error;

use super::connection::{Apply, Connection, Next};
use super::{CLIENTS, Request, Response};
use crate::config::Config;
use crate::fib::Fib;

const LISTENER: Token = Token(CLIENTS);
/// Requests, reads and writes of a call of [`Server::poll`] at most.
const STEPS: usize = 64;
/// No further step follows after this many changed [entries of the FIB](Fib::work).
const WORK: usize = 1 << 20;

/// Why the socket was not made.
#[derive(Debug, Error)]
pub enum BindError {
    /// Another node has it.
    #[error("{path}: a running node has this control socket: stop it, or use another path", path = path.display())]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// There is a file of another kind.
    #[error("{path}: this file is no socket: remove it, or use another path", path = path.display())]
    NoSocket {
        /// The path.
        path: PathBuf,
    },
    /// The system refused it.
    #[error("{path}: {source} (its directory must exist and be writable)", path = path.display())]
    System {
        /// The path.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// The control socket of a node. Dropping it removes the socket.
#[derive(Debug)]
pub struct Server {
    path: PathBuf,
    poll: Poll,
    events: Events,
    listener: UnixListener,
    /// Whether connections may wait.
    is_acceptable: bool,
    clients: [Option<Connection<UnixStream>>; CLIENTS],
    /// The client to handle first, so that all get their turn.
    first: usize,
    /// Locked while the server lives. The kernel unlocks it when the process ends in any way.
    _lock: File,
}

/// Readable when [`Server::poll`] has something to do.
impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poll.registry().as_fd()
    }
}

impl Server {
    /// Listens on a path. Replaces the socket of a process that has ended without removing it. Beside
    /// the socket, a file with `.lock` at the end of its name stays.
    pub fn bind(path: impl AsRef<Path>) -> Result<Server, BindError> {
        let path = path.as_ref().to_owned();
        let lock = lock(&path)?;
        remove_stale(&path)?;
        Server::listen(&path, lock).map_err(|source| BindError::System { path, source })
    }

    fn listen(path: &Path, lock: File) -> io::Result<Server> {
        let mut listener = UnixListener::from_std(listener(path)?.into());
        let poll = Poll::new()?;
        poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        Ok(Server {
            path: path.to_owned(),
            poll,
            events: Events::with_capacity(CLIENTS + 1),
            listener,
            is_acceptable: true,
            clients: [const { None }; CLIENTS],
            first: 0,
            _lock: lock,
        })
    }

    /// Handles requests that have arrived, without waiting: a bounded number, of which `apply` makes
    /// the changes and answers. Returns whether more can be done at once.
    pub fn poll(
        &mut self,
        config: &Config,
        apply: &mut dyn FnMut(Request) -> Response,
    ) -> io::Result<bool> {
        match self.poll.poll(&mut self.events, Some(Duration::ZERO)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => result?,
        }
        for event in &self.events {
            match event.token() {
                LISTENER => self.is_acceptable = true,
                Token(at) => ready(&mut self.clients, at, event),
            }
        }
        self.accept();
        Ok(self.steps(config, apply))
    }

    /// Lets clients take turns until none can continue or the steps are used up.
    fn steps(&mut self, config: &Config, apply: &mut Apply<'_>) -> bool {
        let work = Cell::new(0);
        let mut counted = |request: Request| {
            if let Request::Change(changes) = &request {
                let changed: usize = changes.iter().map(|c| Fib::work(&c.prefix())).sum();
                work.set(work.get() + changed);
            }
            apply(request)
        };
        let mut idle = 0;
        for _ in 0..STEPS {
            if work.get() > WORK {
                return true;
            }
            let at = self.first;
            self.first = (at + 1) % CLIENTS;
            let next =
                self.clients[at].as_mut().map_or(Next::Wait, |c| c.step(config, &mut counted));
            idle = if next == Next::Again { 0 } else { idle + 1 };
            if next == Next::Close {
                self.close(at);
            }
            if idle == CLIENTS {
                return false;
            }
        }
        true
    }

    fn close(&mut self, at: usize) {
        if let Some(mut client) = self.clients[at].take() {
            // Closing it would remove it too; an error means that it is gone.
            let _ = self.poll.registry().deregister(client.stream());
        }
    }

    /// Accepts connections, a bounded number at once.
    fn accept(&mut self) {
        for _ in 0..CLIENTS {
            if !self.is_acceptable {
                return;
            }
            match self.listener.accept() {
                Ok((stream, _)) => self.add(stream),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.is_acceptable = false;
                }
                // Out of descriptors, or the client is gone: the next call tries again.
                Err(_) => return,
            }
        }
    }

    fn add(&mut self, mut stream: UnixStream) {
        let Some(at) = self.clients.iter().position(Option::is_none) else {
            // A new connection has room for a line.
            let _ =
                stream.write(format!("error: there are {CLIENTS} clients already\n").as_bytes());
            return;
        };
        let interests = Interest::READABLE | Interest::WRITABLE;
        if self.poll.registry().register(&mut stream, Token(at), interests).is_ok() {
            self.clients[at] = Some(Connection::new(stream));
        }
    }

    /// Clients that are connected.
    pub fn clients(&self) -> usize {
        self.clients.iter().flatten().count()
    }
}

fn ready(clients: &mut [Option<Connection<UnixStream>>; CLIENTS], at: usize, event: &Event) {
    if let Some(Some(client)) = clients.get_mut(at) {
        let is_over = event.is_error();
        let is_readable = event.is_readable() || event.is_read_closed() || is_over;
        client.ready(is_readable, event.is_writable() || event.is_write_closed() || is_over);
    }
}

impl AsRawFd for Server {
    /// A descriptor that is readable when [`Server::poll`] has something to do.
    fn as_raw_fd(&self) -> RawFd {
        self.poll.as_raw_fd()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Locks the file beside the socket.
fn lock(path: &Path) -> Result<File, BindError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(name);
    let system = |source| BindError::System { path: path.to_owned(), source };
    let file = file.map_err(system)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(BindError::InUse { path: path.to_owned() }),
        Err(error) => Err(system(error.into())),
    }
}

/// Removes a socket that no process listens on.
fn remove_stale(path: &Path) -> Result<(), BindError> {
    let system = |source| BindError::System { path: path.to_owned(), source };
    let kind = match path.symlink_metadata() {
        Ok(metadata) => metadata.file_type(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(system(error)),
    };
    if !kind.is_socket() {
        return Err(BindError::NoSocket { path: path.to_owned() });
    }
    match StdStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(system)
        }
        // Another program that does not use the lock.
        _ => Err(BindError::InUse { path: path.to_owned() }),
    }
}

/// A listening socket that only its user can connect to from the beginning: Linux takes the mode of
/// the file from the descriptor.
fn listener(path: &Path) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::listen(&socket, CLIENTS as i32)?;
    Ok(socket)
}
