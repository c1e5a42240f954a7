//! Rendezvous of endpoints: a directory of the user with a Unix socket for each port. Control
//! connections of nexuses have sockets of their own there ([`super::control`]).

use std::collections::HashSet;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::config::{ShmConfig, ShmError, Unsafe, directory};
use crate::ThisProcess;

/// Connections that may wait to be accepted; the sender retries further ones.
const BACKLOG: i32 = 64;
/// Range of automatically chosen ports: the usual range of ephemeral ports.
const EPHEMERAL: std::ops::Range<u16> = 32_768..61_000;
/// Attempts to take the lock of the directory, a millisecond apart.
const LOCK_TRIES: u32 = 2000;
/// Names of dead sockets that one bind removes.
const SWEPT: usize = 256;

/// The purpose of a socket in the directory. Each kind has ports of its own.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// The rings of an endpoint.
    Frames,
    /// The control connections of a nexus.
    Control {
        /// True if the nexus is bound to an IPv6 address.
        v6: bool,
    },
}

impl Kind {
    /// Control connections at an address.
    pub(super) fn control(host: IpAddr) -> Kind {
        Kind::Control { v6: host.is_ipv6() }
    }

    /// The part of the socket's name that follows the port.
    fn suffix(self) -> &'static str {
        match self {
            Kind::Frames => "",
            Kind::Control { v6: false } => ".control",
            Kind::Control { v6: true } => ".control6",
        }
    }

    /// The kind and port of a name in the directory.
    fn parse(name: &str) -> Option<(Kind, u16)> {
        let (port, suffix) = name.split_at(name.find('.').unwrap_or(name.len()));
        let kinds = [Kind::Frames, Kind::Control { v6: false }, Kind::Control { v6: true }];
        let kind = kinds.into_iter().find(|kind| kind.suffix() == suffix)?;
        Some((kind, port.parse().ok()?))
    }

    fn socket(self) -> Result<OwnedFd, Errno> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let kind = match self {
            Kind::Frames => SocketType::SEQPACKET,
            Kind::Control { .. } => SocketType::STREAM,
        };
        rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None)
    }
}

/// Returns whether a name in the directory is that of a socket. It may be that of a killed process.
pub(super) fn has_socket(dir: &Path, kind: Kind, port: u16) -> bool {
    let stat = rustix::fs::statat(CWD, socket_path(dir, kind, port), AtFlags::SYMLINK_NOFOLLOW);
    stat.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Socket)
}

/// Creates the directory when it is absent; checks that it belongs to this user and is closed to
/// all others.
fn prepare(dir: &Path) -> Result<(), ShmError> {
    match rustix::fs::mkdir(dir, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(e) => {
            return Err(ShmError::of_use("cannot make the directory", dir)(e));
        }
    }
    let wrong = |why| Err(ShmError::Directory { dir: dir.to_path_buf(), why });
    // Not through a symbolic link: another user may have made it.
    let stat = rustix::fs::statat(CWD, dir, AtFlags::SYMLINK_NOFOLLOW)
        .map_err(ShmError::of_use("cannot look at the directory", dir))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::Directory {
        return wrong(Unsafe::NoDirectory);
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return wrong(Unsafe::Foreign);
    }
    if !(Mode::RWXG | Mode::RWXO).intersection(Mode::from_raw_mode(stat.st_mode)).is_empty() {
        return wrong(Unsafe::Open);
    }
    Ok(())
}

/// The socket of a port.
fn socket_path(dir: &Path, kind: Kind, port: u16) -> PathBuf {
    dir.join(format!("{port}{}", kind.suffix()))
}

fn address(dir: &Path, kind: Kind, port: u16) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new(socket_path(dir, kind, port))
}

/// Connects to the endpoint of a port; it must be of the same user. Does not block.
pub(super) fn connect(dir: &Path, port: u16) -> Result<OwnedFd, Errno> {
    connect_to(dir, Kind::Frames, port)
}

/// Connects to a socket; its process must be of the same user. Does not block.
pub(super) fn connect_to(dir: &Path, kind: Kind, port: u16) -> Result<OwnedFd, Errno> {
    let socket = kind.socket()?;
    rustix::net::connect(&socket, &address(dir, kind, port)?)?;
    is_ours(&socket).then_some(socket).ok_or(Errno::PERM)
}

/// Returns whether the other side of a connection belongs to this user.
pub(super) fn is_ours(socket: &impl AsFd) -> bool {
    peer_user(socket).is_some_and(|uid| uid == rustix::process::geteuid().as_raw())
}

/// The user of the other side. Not read by `rustix`, whose process numbers are never 0: that of a
/// process in a PID namespace which this one does not see.
fn peer_user(socket: &impl AsFd) -> Option<u32> {
    let mut peer = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: pointer and length are those of `peer`; the kernel writes at most `len` bytes.
    // Test: `a_peer_in_another_pid_namespace_is_served`.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut peer).cast(),
            &raw mut len,
        )
    };
    (rc == 0 && len as usize == size_of::<libc::ucred>()).then_some(peer.uid)
}

/// The listening socket of a port. Dropping it frees the port.
#[derive(Debug)]
pub(super) struct Listener {
    pub(super) socket: OwnedFd,
    pub(super) dir: PathBuf,
    pub(super) port: u16,
    kind: Kind,
    /// The process that has bound the port. One forked from it may not unlink the name.
    owner: ThisProcess,
}

impl Listener {
    pub(super) fn bind(cfg: &ShmConfig) -> Result<Self, ShmError> {
        Listener::bind_kind(&directory(cfg.dir.as_deref()), Kind::Frames, cfg.port, BACKLOG)
    }

    /// Listens in `dir`. Port 0 selects a free one.
    pub(super) fn bind_kind(
        dir: &Path,
        kind: Kind,
        port: u16,
        backlog: i32,
    ) -> Result<Self, ShmError> {
        prepare(dir)?;
        if address(dir, Kind::Control { v6: true }, u16::MAX).is_err() {
            return Err(ShmError::LongPath(dir.to_path_buf()));
        }
        // Until the socket listens: without a listener a name counts as dead.
        let _lock = lock(dir)?;
        sweep(dir);
        let socket = kind.socket().map_err(ShmError::io("cannot make a Unix socket"))?;
        let port = match port {
            0 => any_port(&socket, dir, kind)?,
            port if take(&socket, dir, kind, port)? => port,
            port => return Err(ShmError::InUse(port)),
        };
        let owner = ThisProcess::new();
        let listener = Listener { socket, dir: dir.to_path_buf(), port, kind, owner };
        rustix::net::listen(&listener.socket, backlog)
            .map_err(ShmError::io("cannot listen on a Unix socket"))?;
        Ok(listener)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // While the socket listens no other endpoint binds the name, so this unlinks the endpoint's
        // own socket.
        if !self.owner.was_forked() {
            let _ = rustix::fs::unlink(socket_path(&self.dir, self.kind, self.port));
        }
    }
}

/// Removes names that killed processes have left, a limited number at a time.
fn sweep(dir: &Path) {
    let Ok(table) = std::fs::read("/proc/net/unix") else { return };
    let Ok(names) = std::fs::read_dir(dir) else { return };
    // A test for a listener is a connection to it. The kernel's table spares those that it lists; it
    // lists those of this network namespace only.
    let table = String::from_utf8_lossy(&table);
    let listed: HashSet<&str> = table.lines().filter_map(|l| Some(&l[l.find('/')?..])).collect();
    let is_listed = |path: &Path| path.to_str().is_some_and(|path| listed.contains(path));
    for name in names.flatten().filter(|name| !is_listed(&name.path())).take(SWEPT) {
        let Some((kind, port)) = name.file_name().to_str().and_then(Kind::parse) else { continue };
        remove_dead(dir, kind, port);
    }
}

/// Removes a name if its socket has no listener: only then a connection is refused. Returns whether
/// the name is free.
fn remove_dead(dir: &Path, kind: Kind, port: u16) -> bool {
    match connect_to(dir, kind, port) {
        Err(Errno::CONNREFUSED) => {
            let _ = rustix::fs::unlink(socket_path(dir, kind, port));
            true
        }
        other => matches!(other, Err(Errno::NOENT)),
    }
}

/// Serializes binds, so that only one of two endpoints replaces the same dead socket. The kernel
/// releases the lock with its descriptor, also when the process dies.
fn lock(dir: &Path) -> Result<OwnedFd, ShmError> {
    let failed = ShmError::of_use("cannot lock the directory", dir);
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
fn take(socket: &OwnedFd, dir: &Path, kind: Kind, port: u16) -> Result<bool, ShmError> {
    let failed = ShmError::of_use("cannot bind a socket in the directory", dir);
    let address = address(dir, kind, port).map_err(&failed)?;
    for _ in 0..2 {
        match rustix::net::bind(socket, &address) {
            Ok(()) => return Ok(true),
            Err(Errno::ADDRINUSE) if remove_dead(dir, kind, port) => {}
            Err(Errno::ADDRINUSE) => return Ok(false),
            Err(e) => return Err(failed(e)),
        }
    }
    Ok(false)
}

fn any_port(socket: &OwnedFd, dir: &Path, kind: Kind) -> Result<u16, ShmError> {
    let failed = ShmError::of_use("cannot bind a socket in the directory", dir);
    let count = EPHEMERAL.end - EPHEMERAL.start;
    // Different processes start at different ports; within one, lock and files decide.
    let seed = std::process::id().wrapping_mul(0x9e37_79b9) >> 16;
    let port = |n: u16| EPHEMERAL.start + ((seed + u32::from(n)) % u32::from(count)) as u16;
    // Existing names are skipped while others are free: testing one connects to its listener.
    for port in (0..count).map(port) {
        let address = address(dir, kind, port).map_err(&failed)?;
        match rustix::net::bind(socket, &address) {
            Ok(()) => return Ok(port),
            Err(Errno::ADDRINUSE) => {}
            Err(e) => return Err(failed(e)),
        }
    }
    for port in (0..count).map(port) {
        if take(socket, dir, kind, port)? {
            return Ok(port);
        }
    }
    Err(ShmError::InUse(EPHEMERAL.start))
}

/// Accepts a connection.
///
/// # Errors
/// `AGAIN`: none is ready. Others are those of the system.
pub(super) fn accept(listener: &Listener) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::accept_with(listener.socket.as_fd(), flags)
}

/// A descriptor that can be replaced by another one.
pub(super) fn reserve() -> Result<OwnedFd, Errno> {
    use rustix::event::{EventfdFlags, eventfd};
    eventfd(0, EventfdFlags::CLOEXEC)
}
