//! Sending rings. A ring is created with the first frame to a destination, shared by all paths to
//! it, and created again when the destination restarts.
//!
//! A ring is used from its creation: the receiver finds all records that were written before it
//! accepted the ring. Until the welcome arrives, the sender polls for it after each burst. No
//! signal is lost, as the receiver sends the welcome before it first polls the ring.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path as FilePath;
use std::time::{Duration, Instant};

use courser_buf::{COPY_AHEAD, PathId, TxBurst, TxFrame};
use rustix::io::Errno;

use super::dir;
use super::doorbell::RemoteDoorbell;
use super::epoll::{Epoll, Token};
use super::map::{self, Mapping};
use super::msg::{self, Hello, Received, WELCOME, Welcome};
use super::ring::{Producer, Refused};
use crate::{PathError, PathTable, TransportStats};

/// Backoff after a failed connection, doubled up to the maximum.
const FIRST_RETRY: Duration = Duration::from_millis(1);
const LONGEST_RETRY: Duration = Duration::from_millis(64);
/// Consecutive frames refused by a full ring before the peer's socket is checked.
const FULL_BURSTS: u32 = 64;

/// The parts of an endpoint that all its connections use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Own<'a> {
    pub(super) dir: &'a FilePath,
    pub(super) hello: &'a Hello,
    pub(super) epoll: &'a Epoll,
}

/// A ring in use.
#[derive(Debug)]
struct Link {
    producer: Producer<Mapping>,
    /// `None` until the receiver has accepted the ring.
    doorbell: Option<RemoteDoorbell>,
    full: u32,
    socket: OwnedFd,
}

/// A destination.
#[derive(Debug)]
struct Peer {
    link: Option<Link>,
    port: u16,
    paths: u32,
    retry_at: Option<Instant>,
    retry_after: Duration,
}

/// All destinations of an endpoint.
#[derive(Debug)]
pub(super) struct Outbound {
    peers: Vec<Option<Peer>>,
    by_port: BTreeMap<u16, u32>,
    paths: PathTable<u32>,
    max: usize,
}

impl Outbound {
    pub(super) fn new(max: usize) -> Self {
        Outbound { peers: Vec::new(), by_port: BTreeMap::new(), paths: PathTable::default(), max }
    }

    pub(super) fn open(&mut self, port: u16) -> Result<PathId, PathError> {
        let number = match self.by_port.get(&port) {
            Some(&number) => number,
            None => {
                let number = self.peers.iter().position(Option::is_none);
                let number = number.unwrap_or(self.peers.len());
                if number >= self.max {
                    return Err(PathError::TooMany(self.max));
                }
                number as u32
            }
        };
        let id = self.paths.open(number)?;
        let at = number as usize;
        if at == self.peers.len() {
            self.peers.push(None);
        }
        let new = || Peer { link: None, port, paths: 0, retry_at: None, retry_after: FIRST_RETRY };
        self.peers[at].get_or_insert_with(new).paths += 1;
        self.by_port.insert(port, number);
        Ok(id)
    }

    pub(super) fn close(&mut self, id: PathId) {
        let Some(&mut number) = self.paths.get_mut(id) else { return };
        self.paths.close(id);
        let slot = &mut self.peers[number as usize];
        let Some(peer) = slot else { return };
        peer.paths -= 1;
        if peer.paths == 0 {
            self.by_port.remove(&peer.port);
            *slot = None;
        }
    }

    /// Sends all frames of a burst, or drops those that cannot be sent: frames of other
    /// destinations must not be delayed by a full ring. The caller drops the frames afterwards.
    #[inline]
    pub(super) fn burst(&mut self, own: Own<'_>, burst: &TxBurst, stats: &mut TransportStats) {
        let (front, back) = burst.as_slices();
        for mut frames in [front, back] {
            while let Some(first) = frames.first() {
                let alike = frames.iter().take_while(|f| f.path == first.path).count();
                let (run, rest) = frames.split_at(alike);
                self.run(own, first.path, run, stats);
                frames = rest;
            }
        }
    }

    /// Frames of one path.
    #[inline]
    fn run(&mut self, own: Own<'_>, path: PathId, frames: &[TxFrame], stats: &mut TransportStats) {
        let Some(link) = self.link(own, path) else {
            stats.tx_dropped += frames.len() as u64;
            return;
        };
        let mut result = Ok(());
        for (at, frame) in frames.iter().enumerate() {
            if let Some(later) = frames.get(at + COPY_AHEAD) {
                later.prefetch_data();
            }
            result = result.and(link.send(frame, own.hello.shape.max_frame, stats));
        }
        if result.and_then(|()| link.finish()).is_err() {
            self.disconnect(path);
        }
    }

    /// One frame of one piece.
    #[inline]
    pub(super) fn one(
        &mut self,
        own: Own<'_>,
        path: PathId,
        frame: &[u8],
        stats: &mut TransportStats,
    ) {
        let Some(link) = self.link(own, path) else {
            stats.tx_dropped += 1;
            return;
        };
        let sent = link.send_one(frame, own.hello.shape.max_frame, stats);
        if sent.and_then(|()| link.finish()).is_err() {
            self.disconnect(path);
        }
    }

    /// The ring of a path; creates it when it is absent and creation is possible.
    #[inline(always)]
    fn link(&mut self, own: Own<'_>, path: PathId) -> Option<&mut Link> {
        let number = *self.paths.get_mut(path)?;
        self.peers.get_mut(number as usize)?.as_mut()?.link(own, number)
    }

    fn disconnect(&mut self, path: PathId) {
        if let Some(&mut number) = self.paths.get_mut(path)
            && let Some(Some(peer)) = self.peers.get_mut(number as usize)
        {
            peer.disconnect();
        }
    }

    /// Reads a peer's socket: its welcome, or the end of the connection.
    pub(super) fn on_socket(&mut self, number: u32) {
        let Some(Some(peer)) = self.peers.get_mut(number as usize) else { return };
        let Some(link) = &mut peer.link else { return };
        if link.receive_control().is_err() {
            peer.disconnect();
        } else if link.doorbell.is_some() {
            peer.retry_after = FIRST_RETRY;
        }
    }
}

impl Peer {
    /// Closes the connection. The next attempt is delayed, so that a peer that rejects connections
    /// costs little.
    fn disconnect(&mut self) {
        self.link = None;
        self.retry_at = Some(Instant::now() + self.retry_after);
        self.retry_after = (self.retry_after * 2).min(LONGEST_RETRY);
    }

    /// The ring to this destination; creates it when it is absent and creation is possible.
    #[inline(always)]
    fn link(&mut self, own: Own<'_>, number: u32) -> Option<&mut Link> {
        if self.link.is_none() && !self.dial(own, number) {
            return None;
        }
        self.link.as_mut()
    }

    /// Creates a ring and sends its `Hello`, unless the last failure was too recent.
    fn dial(&mut self, own: Own<'_>, number: u32) -> bool {
        if self.retry_at.is_some_and(|at| Instant::now() < at) {
            return false;
        }
        match Link::new(own, self.port, number) {
            Ok(link) => self.link = Some(link),
            Err(e) => {
                tracing::debug!(port = self.port, error = %e, "no ring to this endpoint");
                self.disconnect();
            }
        }
        self.link.is_some()
    }
}

impl Link {
    fn new(own: Own<'_>, port: u16, number: u32) -> Result<Self, Errno> {
        let socket = dir::connect(own.dir, port)?;
        let shape = own.hello.shape;
        let (fd, mapping) = map::create("courser-ring", shape.bytes(), false)?;
        mapping.populate(shape.front());
        msg::send(socket.as_fd(), &own.hello.to_bytes(), &[fd.as_fd()])?;
        if !own.epoll.add(&socket, Token::Outbound(number)) {
            return Err(Errno::NOSPC);
        }
        Ok(Link { producer: Producer::new(mapping, shape), doorbell: None, full: 0, socket })
    }

    #[inline]
    fn send(
        &mut self,
        frame: &TxFrame,
        max_frame: u32,
        stats: &mut TransportStats,
    ) -> Result<(), Errno> {
        match frame.segs() {
            [one] => self.send_one(one, max_frame, stats),
            many => {
                let len = frame.len() as usize;
                if frame.len() > max_frame {
                    stats.tx_dropped += 1;
                    return Ok(());
                }
                let pushed = self.producer.push(many, len);
                self.pushed(pushed, len, stats)
            }
        }
    }

    /// A frame of one piece.
    #[inline(always)]
    fn send_one(
        &mut self,
        frame: &[u8],
        max_frame: u32,
        stats: &mut TransportStats,
    ) -> Result<(), Errno> {
        if frame.len() > max_frame as usize {
            stats.tx_dropped += 1;
            return Ok(());
        }
        let pushed = self.producer.push_one(frame);
        self.pushed(pushed, frame.len(), stats)
    }

    /// Counts the result of pushing a frame of `len` bytes.
    #[inline(always)]
    fn pushed(
        &mut self,
        pushed: Result<(), Refused>,
        len: usize,
        stats: &mut TransportStats,
    ) -> Result<(), Errno> {
        match pushed {
            Ok(()) => {
                self.full = 0;
                stats.tx_frames += 1;
                stats.tx_bytes += len as u64;
                Ok(())
            }
            Err(Refused::Full) => {
                self.full = self.full.saturating_add(1);
                stats.tx_dropped += 1;
                Ok(())
            }
            Err(Refused::Broken) => {
                stats.tx_dropped += 1;
                Err(Errno::PROTO)
            }
        }
    }

    /// After a burst: rings the doorbell.
    #[inline(always)]
    fn finish(&mut self) -> Result<(), Errno> {
        let Some(doorbell) = &mut self.doorbell else { return self.receive_control() };
        if doorbell.ring() {
            self.signal();
        }
        if self.full > FULL_BURSTS { self.check_peer() } else { Ok(()) }
    }

    fn signal(&self) {
        // Fails when many signals are unread, or when the peer has ended, which upkeep detects.
        let _ = msg::send(self.socket.as_fd(), &[0], &[]);
    }

    /// Checks whether the receiver of a full ring has ended.
    fn check_peer(&mut self) -> Result<(), Errno> {
        self.full = 0;
        self.receive_control()
    }

    /// Receives the welcome, or the end of the connection.
    fn receive_control(&mut self) -> Result<(), Errno> {
        match msg::receive(self.socket.as_fd()) {
            Received::Nothing => return Ok(()),
            Received::Message(bytes, fds) if bytes.len() == WELCOME && self.doorbell.is_none() => {
                let welcome = Welcome::parse(&bytes).ok_or(Errno::PROTO)?;
                let [state, hints] = &fds[..] else { return Err(Errno::PROTO) };
                self.doorbell = Some(RemoteDoorbell::new(state, hints, welcome.ring)?);
            }
            _ => return Err(Errno::PIPE),
        }
        // Records may have been published before the doorbell was mapped.
        if self.doorbell.as_mut().is_some_and(RemoteDoorbell::ring) {
            self.signal();
        }
        Ok(())
    }
}

#[cfg(test)]
impl Outbound {
    /// Returns whether the receiver of this number has accepted its ring.
    pub(super) fn is_welcome(&self, number: usize) -> bool {
        let link = self.peers[number].as_ref().and_then(|p| p.link.as_ref());
        link.is_some_and(|link| link.doorbell.is_some())
    }

    /// Number of rings.
    pub(super) fn links(&self) -> usize {
        self.peers.iter().flatten().filter(|p| p.link.is_some()).count()
    }
}
