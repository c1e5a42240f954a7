//! Rendezvous of endpoints: a directory of the user with a Unix socket for each port.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::config::{ShmConfig, ShmError};

/// Connections that may wait to be accepted; the sender retries further ones.
const BACKLOG: i32 = 64;
/// Range of automatically chosen ports: the usual range of ephemeral ports.
const EPHEMERAL: std::ops::Range<u16> = 32_768..61_000;
/// Attempts to take the lock of the directory, a millisecond apart.
const LOCK_TRIES: u32 = 2000;

/// The directory from the settings or the environment.
fn name(cfg: &ShmConfig) -> PathBuf {
    let var = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    cfg.dir
        .clone()
        .or_else(|| var("COURSER_SHM_DIR"))
        .or_else(|| var("XDG_RUNTIME_DIR").map(|dir| dir.join("courser")))
        .unwrap_or_else(|| {
            std::env::temp_dir().join(format!("courser-{}", rustix::process::geteuid().as_raw()))
        })
}

/// Creates the directory when it is absent; checks that it belongs to this user and is closed to
/// all others.
fn prepare(dir: &Path) -> Result<(), ShmError> {
    match rustix::fs::mkdir(dir, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => {
            return Err(ShmError::io("cannot make the directory of shared-memory sockets")(e));
        }
    }
    let wrong = |why| Err(ShmError::Directory { dir: dir.to_path_buf(), why });
    // Not through a symbolic link: another user may have made it.
    let stat = rustix::fs::statat(CWD, dir, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(ShmError::io("cannot look at the directory of shared-memory sockets"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return wrong("is no directory");
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return wrong("belongs to another user");
    }
    if !(Mode::RWXG | Mode::RWXO).intersection(Mode::from_raw_mode(stat.st_mode)).is_empty() {
        return wrong("is open to other users");
    }
    Ok(())
}

/// The socket of a port.
fn socket_path(dir: &Path, port: u16) -> PathBuf {
    dir.join(port.to_string())
}

fn address(dir: &Path, port: u16) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new(socket_path(dir, port))
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Connects to the endpoint of a port; it must be of the same user. Does not block.
pub(super) fn connect(dir: &Path, port: u16) -> Result<OwnedFd, Errno> {
    let socket = socket()?;
    rustix::net::connect(&socket, &address(dir, port)?)?;
    is_ours(&socket).then_some(socket).ok_or(Errno::PERM)
}

/// Whether the other side of a connection belongs to this user.
pub(super) fn is_ours(socket: &OwnedFd) -> bool {
    let peer = rustix::net::sockopt::socket_peercred(socket);
    peer.is_ok_and(|peer| peer.uid == rustix::process::geteuid())
}

/// The listening socket of a port. Dropping it frees the port.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: OwnedFd,
    pub(super) dir: PathBuf,
    pub(super) port: u16,
}

impl Listener {
    pub(super) fn bind(cfg: &ShmConfig) -> Result<Self, ShmError> {
        let dir = name(cfg);
        prepare(&dir)?;
        if SocketAddrUnix::new(dir.join("65535")).is_err() {
            return Err(ShmError::LongPath(dir));
        }
        let _lock = lock(&dir)?;
        let socket = socket().map_err(ShmError::io("cannot make a Unix socket"))?;
        let port = match cfg.port {
            0 => any_port(&socket, &dir)?,
            port if take(&socket, &dir, port)? => port,
            port => return Err(ShmError::InUse(port)),
        };
        let listener = Listener { socket, dir, port };
        rustix::net::listen(&listener.socket, BACKLOG)
            .map_err(ShmError::io("cannot listen on a Unix socket"))?;
        Ok(listener)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // While the socket listens no other endpoint binds the name, so this unlinks the endpoint's
        // own socket.
        let _ = rustix::fs::unlink(socket_path(&self.dir, self.port));
    }
}

/// Serializes binds, so that only one of two endpoints replaces the same dead socket. The kernel
/// releases the lock with its descriptor, also when the process dies.
fn lock(dir: &Path) -> Result<OwnedFd, ShmError> {
    let failed = ShmError::io("cannot lock the directory of shared-memory sockets");
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let fd = rustix::fs::open(dir.join("lock"), flags, Mode::RUSR | Mode::WUSR).map_err(&failed)?;
    for _ in 0..LOCK_TRIES {
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(fd),
            Err(Errno::AGAIN) => std::thread::sleep(Duration::from_millis(1)),
            Err(e) => return Err(failed(e)),
        }
    }
    Err(failed(Errno::TIMEDOUT))
}

/// Binds `socket` to a port unless another socket listens there.
fn take(socket: &OwnedFd, dir: &Path, port: u16) -> Result<bool, ShmError> {
    let failed = ShmError::io("cannot bind a Unix socket");
    let address = address(dir, port).map_err(&failed)?;
    for _ in 0..2 {
        match rustix::net::bind(socket, &address) {
            Ok(()) => return Ok(true),
            Err(Errno::ADDRINUSE) => {}
            Err(e) => return Err(failed(e)),
        }
        // Only a socket without a listener refuses.
        match connect(dir, port) {
            Err(Errno::CONNREFUSED) => {
                let _ = rustix::fs::unlink(socket_path(dir, port));
            }
            Err(Errno::NOENT) => {}
            _ => return Ok(false),
        }
    }
    Ok(false)
}

fn any_port(socket: &OwnedFd, dir: &Path) -> Result<u16, ShmError> {
    let count = EPHEMERAL.end - EPHEMERAL.start;
    // Different processes start at different ports; within one, lock and files decide.
    let seed = std::process::id().wrapping_mul(0x9e37_79b9) >> 16;
    let port = |n: u16| EPHEMERAL.start + ((seed + u32::from(n)) % u32::from(count)) as u16;
    // Existing names are skipped while others are free: testing one connects to its listener.
    for port in (0..count).map(port) {
        let address = address(dir, port).map_err(ShmError::io("cannot bind a Unix socket"))?;
        match rustix::net::bind(socket, &address) {
            Ok(()) => return Ok(port),
            Err(Errno::ADDRINUSE) => {}
            Err(e) => return Err(ShmError::io("cannot bind a Unix socket")(e)),
        }
    }
    for port in (0..count).map(port) {
        if take(socket, dir, port)? {
            return Ok(port);
        }
    }
    Err(ShmError::InUse(EPHEMERAL.start))
}

/// Accepts a connection; `None` when none is ready.
pub(super) fn accept(listener: &Listener) -> Option<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::accept_with(listener.socket.as_fd(), flags).ok()
}
