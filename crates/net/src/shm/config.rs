//! Settings, options and errors of shared memory.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::OpenError;
use crate::options::{CommonOptions, ControlSockets, NamedOption, TransportOptions, set};

use super::doorbell::MAX_RINGS;
use super::ring::{MAX_FRAME, Shape};

/// The scheme of addresses in shared memory.
pub(super) const SCHEME: &str = "shm";

/// Settings of a [`super::ShmTransport`].
///
/// # What is copied
/// A sender copies every frame into the ring. Its receiver copies frames of less than 4 KiB to
/// private memory at once. Of longer ones it copies the first 256 bytes and leaves the rest in the
/// ring until the next burst ([`RxFrame::tail`]); the protocol copies it to its place in the
/// message, so no byte is copied twice. With `trust` on both sides a receiver copies nothing and
/// reads frames in place.
///
/// [`RxFrame::tail`]: courser_buf::RxFrame::tail
#[derive(Clone, Debug)]
pub struct ShmConfig {
    /// The endpoint's address: `127.0.0.1` (default) or `::1`. Endpoints reach only those of the
    /// same address, as sockets of one family do.
    pub host: IpAddr,
    /// The endpoint's port, unique for the user on this machine; 0 (default): any free one. These
    /// are not the ports of UDP or TCP.
    pub port: u16,
    /// Largest frame in bytes, 1 to 65,536. Default: 8192.
    pub max_frame: usize,
    /// Frames of any size that a ring holds: a power of two, 16 to 65,536. 256 bytes each, present
    /// from the start. Default: 4096.
    pub slots: usize,
    /// Bytes for frames of more than 240 bytes that a ring holds: a power of two, 4 KiB to 64 MiB,
    /// at least four largest frames. They become present when they are first used. Default: 2 MiB.
    /// Larger rings occupy more of the caches, which slows large messages down.
    pub data_bytes: usize,
    /// Maximum number of endpoints that send to this one, and of endpoints that it sends to, 1 to
    /// 512. Default: 256.
    ///
    /// Each pair has a ring for each direction, created by the sender with its first frame. It
    /// takes `slots * 256 + data_bytes + 4096` bytes, 3 MiB by default, and two descriptors. So an
    /// endpoint with 256 peers may hold 1.5 GiB, of which 514 MiB when all frames are small.
    /// Senders may choose larger rings; together they get at most the memory of `max_peers` rings
    /// of this endpoint's own size.
    pub max_peers: usize,
    /// True if frames are read in place, in memory that their sender can write, instead of being
    /// copied first. Takes effect only between two endpoints that both set it. Default: false.
    ///
    /// **A trusted peer can break memory safety.** A peer that changes a frame while it is read
    /// violates the guarantees of `&[u8]`: checked bytes may differ when they are used. A correct
    /// peer never does that, even when it is stopped or killed. So use this only between processes
    /// of one program, which could also be threads. Lengths and positions in the ring are checked
    /// nevertheless. At most a quarter of a ring is lent at a time, so
    /// [`Caps::rx_queue_frames`](crate::Caps::rx_queue_frames) is smaller by that.
    pub trust: Option<Trust>,
    /// The directory where endpoints find each other. Default (`None`): `$COURSER_SHM_DIR`, else
    /// `courser` below `$XDG_RUNTIME_DIR`, else `courser-<uid>` below the directory for temporary
    /// files. Created when it is absent; must belong to this user and be closed to all others (mode
    /// 0700).
    pub dir: Option<PathBuf>,
}

/// The statement that the processes of all peers are correct: [`ShmConfig::trust`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trust(());

impl Trust {
    /// States that every process which this user runs with endpoints that set `trust`, in the same
    /// directory, is correct.
    ///
    /// # Safety
    /// None of these processes may write to a frame after it was sent, by whatever means: received
    /// requests and responses are `&[u8]` in memory that they can write. A process that only uses
    /// Courser's safe interface never does.
    pub const unsafe fn in_peers() -> Trust {
        Trust(())
    }
}

impl Default for ShmConfig {
    fn default() -> Self {
        ShmConfig {
            host: Ipv4Addr::LOCALHOST.into(),
            port: 0,
            max_frame: 8192,
            slots: 4096,
            data_bytes: 2 << 20,
            max_peers: 256,
            trust: None,
            dir: None,
        }
    }
}

impl ShmConfig {
    /// The size of the rings; checks all settings.
    pub(super) fn shape(&self) -> Result<Shape, ShmError> {
        if self.max_frame == 0 || self.max_frame > MAX_FRAME {
            return Err(ShmError::MaxFrame(self.max_frame));
        }
        if self.max_peers == 0 || self.max_peers > MAX_RINGS {
            return Err(ShmError::MaxPeers(self.max_peers));
        }
        check_host(self.host)?;
        let bad = || ShmError::Ring { slots: self.slots, data_bytes: self.data_bytes };
        let number = |n| u32::try_from(n).map_err(|_| bad());
        let shape = Shape {
            slots: number(self.slots)?,
            data: number(self.data_bytes)?,
            max_frame: number(self.max_frame)?,
        };
        if shape.is_valid() { Ok(shape) } else { Err(bad()) }
    }
}

/// Options of shared memory in code and in addresses (`shm://127.0.0.1:0?slots=1024`): the settings
/// of [`ShmConfig`], each in place of its default. An address cannot set `trust`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShmOptions {
    /// [`ShmConfig::max_frame`]
    pub max_frame: Option<usize>,
    /// [`ShmConfig::slots`]
    pub slots: Option<usize>,
    /// [`ShmConfig::data_bytes`]
    pub data_bytes: Option<usize>,
    /// [`ShmConfig::max_peers`]
    pub max_peers: Option<usize>,
    /// [`ShmConfig::trust`]
    pub trust: Option<Trust>,
    /// [`ShmConfig::dir`]
    pub dir: Option<PathBuf>,
}

impl TransportOptions for ShmOptions {
    const SCHEME: &'static str = SCHEME;
    const NAMED: &'static [NamedOption<Self>] = &[
        ("max_frame", |o, text| set(&mut o.max_frame, text)),
        ("slots", |o, text| set(&mut o.slots, text)),
        ("data_bytes", |o, text| set(&mut o.data_bytes, text)),
        ("max_peers", |o, text| set(&mut o.max_peers, text)),
        ("dir", |o, text| set(&mut o.dir, text)),
    ];

    fn check_host(host: IpAddr) -> Result<(), OpenError> {
        Ok(check_host(host)?)
    }

    fn control(&self) -> ControlSockets {
        ControlSockets::Unix(directory(self.dir.as_deref()))
    }
}

/// The directory from the settings or the environment.
pub(super) fn directory(dir: Option<&Path>) -> PathBuf {
    let var = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    dir.map(Path::to_path_buf)
        .or_else(|| var("COURSER_SHM_DIR"))
        .or_else(|| var("XDG_RUNTIME_DIR").map(|dir| dir.join("courser")))
        .unwrap_or_else(|| {
            std::env::temp_dir().join(format!("courser-{}", rustix::process::geteuid().as_raw()))
        })
}

impl ShmOptions {
    /// All settings of an endpoint at an address. [`CommonOptions::queue_bytes`] has no effect: the
    /// size of a ring depends on the caches, not on the network.
    pub fn config(&self, at: SocketAddr, common: &CommonOptions) -> ShmConfig {
        let defaults = ShmConfig::default();
        ShmConfig {
            host: at.ip(),
            port: at.port(),
            max_frame: self.max_frame.or(common.max_frame).unwrap_or(defaults.max_frame),
            slots: self.slots.unwrap_or(defaults.slots),
            data_bytes: self.data_bytes.unwrap_or(defaults.data_bytes),
            max_peers: self.max_peers.unwrap_or(defaults.max_peers),
            trust: self.trust.or(defaults.trust),
            dir: self.dir.clone(),
        }
    }
}

/// Checks that an address is allowed for endpoints.
///
/// # Errors
/// It is not `127.0.0.1` or `::1`.
fn check_host(host: IpAddr) -> Result<(), ShmError> {
    let ok = host == Ipv4Addr::LOCALHOST || host == Ipv6Addr::LOCALHOST;
    if ok { Ok(()) } else { Err(ShmError::NotThisMachine(host)) }
}

/// An endpoint over shared memory could not be bound. The text ends with the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShmError {
    /// The address may belong to another machine.
    #[error(
        "shared memory stays on this machine: {0} must be 127.0.0.1, [::1] or localhost; \
         use udp:// to reach others"
    )]
    NotThisMachine(IpAddr),
    /// Another endpoint has the port.
    #[error(
        "shared-memory port {0} is in use (`ss -xlp` shows the owner); bind another port, or port 0 \
         for any"
    )]
    InUse(u16),
    /// `max_frame` is out of range.
    #[error("max_frame is {0}; set it from 1 to {MAX_FRAME} bytes")]
    MaxFrame(usize),
    /// `max_peers` is out of range.
    #[error("max_peers is {0}; set it from 1 to {MAX_RINGS}")]
    MaxPeers(usize),
    /// The size of the ring is out of range.
    #[error(
        "a ring of {slots} slots and {data_bytes} data bytes is out of range; set slots to a power of \
         two from 16 to 65536, and data_bytes to one from 4096 to 67108864 that holds 4 largest frames"
    )]
    Ring {
        /// [`ShmConfig::slots`].
        slots: usize,
        /// [`ShmConfig::data_bytes`].
        data_bytes: usize,
    },
    /// The directory is not safe to use.
    #[error("{} {why}", dir.display())]
    Directory {
        /// The directory.
        dir: PathBuf,
        /// The reason.
        why: Unsafe,
    },
    /// The directory's name is too long for a socket in it.
    #[error(
        "{} is too long: with the name of a socket it must be shorter than 108 bytes; \
         name another directory in COURSER_SHM_DIR", .0.display()
    )]
    LongPath(PathBuf),
    /// The system refuses a use of the directory.
    #[error("{what} {}: {source}; {advice}", dir.display())]
    Use {
        /// The action that failed.
        what: &'static str,
        /// The directory.
        dir: PathBuf,
        /// The system's error.
        source: io::Error,
        /// The remedy.
        advice: String,
    },
    /// Another error of the system.
    #[error("{what}: {source}; check the limit of open files (`ulimit -n`) and free memory")]
    Io {
        /// The action that failed.
        what: &'static str,
        /// The system's error.
        source: io::Error,
    },
}

/// The remedy for an error of a directory.
fn advice(dir: &Path, e: Errno) -> String {
    match e {
        Errno::NOSPC | Errno::DQUOT => {
            let free = rustix::fs::statvfs(dir).map_or(String::new(), |fs| {
                let bytes = fs.f_bavail.saturating_mul(fs.f_frsize);
                format!(", and {} inodes and {bytes} bytes are free", fs.f_favail)
            });
            format!(
                "each port needs an inode and up to 4096 bytes there{free}: make room, or name another \
                 directory in COURSER_SHM_DIR"
            )
        }
        Errno::MFILE | Errno::NFILE => "raise the limit of open files (`ulimit -n`)".to_owned(),
        _ => "check that its parent exists and that this user may write there, or name another \
              directory in COURSER_SHM_DIR"
            .to_owned(),
    }
}

/// Why a directory is not safe to use: [`ShmError::Directory`]. Only an own directory is to be
/// changed: a command on another name would follow a link, or change what belongs to others.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Unsafe {
    /// The name is that of a link or a file.
    #[error("is no directory (a link is none); name another directory in COURSER_SHM_DIR")]
    NoDirectory,
    /// The directory belongs to another user.
    #[error("belongs to another user; name another directory in COURSER_SHM_DIR")]
    Foreign,
    /// A directory of this user that others may read or change.
    #[error(
        "is open to other users; run `chmod 700` on it, or name another directory in COURSER_SHM_DIR"
    )]
    Open,
}

impl ShmError {
    pub(super) fn io(what: &'static str) -> impl Fn(Errno) -> ShmError {
        move |e| ShmError::Io { what, source: e.into() }
    }

    pub(super) fn of_use(what: &'static str, dir: &Path) -> impl Fn(Errno) -> ShmError {
        move |e| {
            let advice = advice(dir, e);
            ShmError::Use { what, dir: dir.to_path_buf(), source: e.into(), advice }
        }
    }
}

impl From<ShmError> for OpenError {
    fn from(e: ShmError) -> Self {
        match e {
            ShmError::InUse(..) => OpenError::in_use(e),
            _ => OpenError::transport(e),
        }
    }
}
