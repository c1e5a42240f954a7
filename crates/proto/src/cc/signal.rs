//! Inputs and outputs of controllers, and the constants of a path.

use crate::config::Config;
use crate::wire::{FRAME_HEADER, PACKET_HEADER};

/// Windows are counted in this part of a full-sized packet.
pub(crate) const PART: u64 = 1 << 16;

/// The smallest window: a packet in 64 round trips.
pub(super) const WINDOW_MIN: u64 = PART / 64;

/// Signals of one received frame.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Signal {
    pub(crate) now_ns: u64,
    /// Round trip of the frame, without the time that the peer held it; 0: the frame has none.
    pub(crate) rtt_ns: u64,
    /// Smallest round trip of the last seconds.
    pub(crate) base_ns: u64,
    /// Difference of successive round trips that is not queueing.
    pub(crate) noise_ns: u64,
    /// Data that the frame acknowledged, in [`PART`]s of a packet.
    pub(crate) acked: u64,
    /// Frames that the peer has received since the last signal, and those of them with a mark.
    pub(crate) counted: u32,
    pub(crate) marked: u32,
}

/// The window and the pace that a controller allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Allowance {
    /// Packets in flight, in [`PART`]s; `u64::MAX`: no limit.
    pub(crate) window: u64,
    /// Time from a full-sized packet to the next, ns; 0: not paced.
    pub(crate) gap_ns: u64,
    /// Frames with a shorter round trip and no mark need not be passed to the controller; 0: it
    /// needs all.
    pub(crate) watch_ns: u64,
}

impl Allowance {
    /// No limit, and no frame is needed.
    pub(crate) const ALL: Allowance = Allowance { window: u64::MAX, gap_ns: 0, watch_ns: u64::MAX };
}

/// Bytes on the wire of a frame: with preamble, Ethernet, IPv4 and UDP headers, checksum and gap.
pub(crate) fn packet_wire_bytes(frame: usize) -> u64 {
    frame as u64 + 66
}

/// The link of the host, and the size of packets of a path on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HostLink {
    /// Rate of the host's link.
    pub(crate) rate_bytes_per_s: u64,
    /// Bytes of a full-sized packet on the wire.
    pub(crate) packet_bytes: u64,
    /// Time that a burst of the transport takes on the link, ns.
    pub(crate) train_ns: u64,
    /// Controllers of uncongested paths skip updates (E50), and their packets are not paced (E51).
    pub(crate) skips_updates: bool,
    pub(crate) skips_pacing: bool,
}

impl HostLink {
    pub(crate) fn new(cfg: &Config, data_per_packet: u16) -> Self {
        let frame = usize::from(data_per_packet) + FRAME_HEADER + PACKET_HEADER;
        let packet_bytes = packet_wire_bytes(frame);
        let rate_bytes_per_s = (cfg.line_rate_bps / 8).max(1);
        let train_ns =
            packet_bytes * u64::from(cfg.train_frames) * 1_000_000_000 / rate_bytes_per_s;
        HostLink {
            rate_bytes_per_s,
            packet_bytes,
            train_ns: if cfg.train_frames > 1 { train_ns } else { 0 },
            skips_updates: cfg.factors.update_bypass,
            skips_pacing: cfg.factors.pacing_bypass,
        }
    }

    /// Time of a packet at a rate, ns.
    pub(crate) fn gap_ns(&self, bytes_per_s: u64) -> u64 {
        (self.packet_bytes * 1_000_000_000).div_ceil(bytes_per_s.max(1))
    }

    /// The allowance of a rate. At the rate of the link nothing is paced (E51), and round trips
    /// below `low_ns` need no update (E50).
    pub(super) fn at_rate(&self, bytes_per_s: u64, low_ns: u64) -> Allowance {
        let free = bytes_per_s >= self.rate_bytes_per_s;
        Allowance {
            window: u64::MAX,
            gap_ns: if free && self.skips_pacing { 0 } else { self.gap_ns(bytes_per_s) },
            watch_ns: if free && self.skips_updates { low_ns } else { 0 },
        }
    }
}
