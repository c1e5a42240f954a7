//! The kernel's UDP: one unconnected socket per endpoint (ADR 14), trains both ways.
//!
//! * `config`: settings and errors.
//! * `socket`: creates the socket; the true capacity of the receive queue (ADR 7).
//! * `path`: destinations and source addresses; `mtu`: the MTU of a path.
//! * `tx`, `rx`: the bursts; `linearize`: frames of several pieces; `cmsg`: control messages.
//!
//! The kernel copies sent frames, so none is held after [`Transport::tx_burst`].

mod cmsg;
mod config;
mod interface;
mod linearize;
mod mtu;
mod path;
mod rx;
mod shield;
mod socket;
#[cfg(test)]
mod tests;
mod tx;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, RawFd};

use courser_buf::{Addr, PathId, RxBurst, TX_GATHER, TxBurst};
use socket2::Socket;

use config::SCHEME;
pub use config::{MAX_DATAGRAM, Offload, UdpConfig, UdpError, UdpOptions};

use crate::{Caps, Path, PathError, Transport, TransportStats};

/// Most frames of a train: the limit of every kernel with `UDP_SEGMENT` (`UDP_MAX_SEGMENTS`).
const TRAIN_FRAMES: usize = 64;

/// See [`Caps::gather_from`]: the kernel copies each gather entry by itself, and of larger packets no
/// frame of an Ethernet packet has room for two (`docs/results/2026-11-25-packing.md`).
const GATHER_FROM: usize = usize::MAX;

/// A UDP socket as a transport.
///
/// The next receive burst continues a train that did not fit; a caller that sleeps on
/// [`Transport::event_fd`] itself must call `rx_burst` until it returns no frame
/// ([`Transport::wait`] takes care of that).
pub struct UdpTransport {
    socket: Socket,
    caps: Caps,
    local: Addr,
    paths: path::Table,
    tx: tx::Tx,
    rx: rx::Rx,
    stats: TransportStats,
    warnings: Vec<String>,
    trains_wanted: bool,
    /// The filter of the socket, while strangers are dropped.
    shield: Option<shield::Shield>,
}

impl UdpTransport {
    /// Creates and binds the socket and reads what the system grants.
    ///
    /// # Errors
    /// [`UdpError`], with the next step.
    pub fn bind(cfg: UdpConfig) -> Result<Self, UdpError> {
        cfg.check()?;
        let bound = socket::bind(&cfg)?;
        let net = path::Net { local: bound.local, limit: cfg.max_frame };
        let max_frame = net.max_frame();
        let line_rate_bps = interface::line_rate_bps(bound.local);
        for warning in &bound.warnings {
            tracing::warn!(local = %bound.local, "{warning}");
        }
        Ok(UdpTransport {
            caps: Caps {
                scheme: SCHEME,
                max_frame,
                headroom: 0,
                tailroom: 0,
                gather: TX_GATHER,
                gather_from: GATHER_FROM,
                train_frames: if bound.gso { TRAIN_FRAMES } else { 1 },
                train_bytes: if bound.gso { MAX_DATAGRAM } else { max_frame },
                polls_memory: false,
                rx_queue_frames: socket::queue_frames(bound.rcvbuf, max_frame),
                small_frame: max_frame.min(socket::SMALL_FRAME),
                rx_queue_small_frames: socket::queue_frames(
                    bound.rcvbuf,
                    max_frame.min(socket::SMALL_FRAME),
                ),
                rx_queue_per_peer: false,
                holds_frames: false,
                line_rate_bps,
            },
            local: Addr::from_socket(bound.local),
            paths: path::Table::new(net, cfg.max_paths),
            tx: tx::Tx::new(bound.gso),
            rx: rx::Rx::new(bound.gro, max_frame),
            socket: bound.socket,
            stats: TransportStats::default(),
            warnings: bound.warnings,
            trains_wanted: bound.gso,
            shield: None,
        })
    }
}

impl UdpTransport {
    /// Installs the filter for the open paths.
    fn renew_shield(&mut self, first_byte: u8) {
        let sources = self.paths.remotes().take(shield::SOURCES + 1).collect::<Vec<_>>();
        let takes_all = sources.len() > shield::SOURCES;
        if let Some(shield) = self.shield.as_mut().filter(|shield| shield.takes_all && takes_all) {
            shield.is_old = false;
            return;
        }
        let program = shield::program(first_byte, &sources);
        if let Err(e) = self.socket.attach_filter(&program) {
            tracing::warn!(local = %self.local, "the socket takes no filter: {e}");
            let _ = self.socket.detach_filter();
            self.shield = None;
            return;
        }
        self.shield = Some(shield::Shield { takes_all, is_old: false });
    }
}

impl Transport for UdpTransport {
    fn caps(&self) -> &Caps {
        &self.caps
    }

    fn local_addr(&self) -> Addr {
        self.local
    }

    fn path_open(&mut self, remote: Addr, local: Option<Addr>) -> Result<Path, PathError> {
        let path = self.paths.open(remote, local)?;
        if let Some(shield) = &mut self.shield {
            shield.is_old = true;
        }
        Ok(path)
    }

    fn path_move(&mut self, path: PathId, remote: Addr) -> Result<Path, PathError> {
        let moved = self.paths.relocate(path, remote)?;
        if let Some(shield) = &mut self.shield {
            shield.is_old = true;
        }
        Ok(moved)
    }

    fn path_close(&mut self, path: PathId) {
        // The filter accepts its address until the next path is opened.
        self.paths.close(path);
    }

    fn tx_burst(&mut self, burst: &mut TxBurst) {
        self.tx.burst(self.socket.as_fd(), &self.paths, burst, &mut self.stats);
    }

    fn tx_reclaim(&mut self) -> usize {
        0
    }

    fn tx_backlog(&self) -> Option<u64> {
        socket::unsent_bytes(self.socket.as_fd())
    }

    fn tx_flush(&mut self) {}

    fn rx_burst<'a>(&'a mut self, out: &mut RxBurst<'a>) {
        self.rx.burst(self.socket.as_fd(), out, &mut self.stats);
    }

    fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn drop_strangers(&mut self, first_byte: Option<u8>) -> bool {
        let Some(first_byte) = first_byte else {
            if self.shield.take().is_some() {
                // Fails only without a filter.
                let _ = self.socket.detach_filter();
            }
            return false;
        };
        if self.shield.is_none_or(|shield| shield.is_old) {
            self.renew_shield(first_byte);
        }
        self.shield.is_some()
    }

    fn fall_asleep(&mut self) -> bool {
        !self.rx.pending()
    }

    fn wait(&mut self, wake: RawFd, timeout_ns: Option<u64>) -> io::Result<()> {
        if self.rx.pending() {
            return Ok(());
        }
        crate::wait_readable(self.socket.as_fd(), wake, timeout_ns)
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = self.warnings.clone();
        warnings.extend(self.paths.warning().cloned());
        if self.trains_wanted && !self.tx.gso {
            warnings.push(
                "the network device refused trains, frames leave singly; \
                 `ethtool -K <device> tx on` (checksum offload) enables them"
                    .into(),
            );
        }
        warnings
    }

    fn stats(&self) -> TransportStats {
        self.stats
    }
}
