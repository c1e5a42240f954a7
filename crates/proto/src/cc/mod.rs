//! Congestion control of the path to a peer (E47, E48).
//!
//! A controller belongs to the client side of a path: it limits what a client sends and requests,
//! which also bounds what servers send. It does no I/O, takes its signals as arguments and computes
//! in integers, so that its results are the same on every machine. Its output is a window of packets
//! in flight, a rate, or both ([`Allowance`]); [`crate::credits::CreditPool`] enforces the window and
//! [`crate::pace`] the rate.
//!
//! | control | signal | output | source |
//! | --- | --- | --- | --- |
//! | [`Control::Timely`] | gradient of the round trip | rate | as eRPC ships it `[eRPC section 5.2]` |
//! | [`Control::TimelyPatched`] | the round trip too | rate | ECN or Delay, CoNEXT '16 |
//! | [`Control::Dcqcn`] | congestion marks | rate | DCQCN, SIGCOMM '15 |
//! | [`Control::Swift`] | delay against a target | window | Swift, SIGCOMM '20 |
//! | [`Control::TwoWindow`] | marks, or delay | window | ADR 35 |

mod dcqcn;
mod path_control;
mod swift;
mod timely;
mod two_window;

use dcqcn::Dcqcn;
pub(crate) use path_control::PathControl;
use swift::Swift;
use timely::Timely;
use two_window::TwoWindow;

use crate::config::Config;
use crate::wire::{FRAME_HEADER, PACKET_HEADER};

/// The congestion control of an endpoint's client sessions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Control {
    /// None: credits alone bound what is in flight.
    None,
    /// Timely as C++ eRPC ships it, not patched `[eRPC section 5.2.1]` (E48): a rate from the
    /// gradient of the round trip. A reproduction: unfair, and slow to leave a standing queue.
    Timely,
    /// Timely with the correction of "ECN or Delay" (CoNEXT '16), which makes it fair.
    TimelyPatched,
    /// DCQCN (SIGCOMM '15): a rate from congestion marks, at most one notification per 50 us (E54).
    /// Needs switches that mark.
    Dcqcn,
    /// Swift (SIGCOMM '20): a window from the delay against a target, below one packet by pacing.
    Swift,
    /// The default: the smaller of two windows applies. The receiver limits what all its peers
    /// together may have in flight to it ([`crate::budget`]); the sender reacts to congestion
    /// elsewhere by marks, or by delay where nothing is marked.
    #[default]
    TwoWindow,
}

impl Control {
    /// All controls.
    pub const ALL: [Control; 6] = [
        Control::None,
        Control::Timely,
        Control::TimelyPatched,
        Control::Dcqcn,
        Control::Swift,
        Control::TwoWindow,
    ];

    /// Its name in options and results.
    pub const fn name(self) -> &'static str {
        match self {
            Control::None => "none",
            Control::Timely => "timely",
            Control::TimelyPatched => "timely-patched",
            Control::Dcqcn => "dcqcn",
            Control::Swift => "swift",
            Control::TwoWindow => "default",
        }
    }
}

/// Windows are counted in this part of a full-sized packet.
pub(crate) const PART: u64 = 1 << 16;

/// The smallest window: a packet in 64 round trips.
const WINDOW_MIN: u64 = PART / 64;

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
    /// What the frame acknowledged, in [`PART`]s of a packet.
    pub(crate) acked: u64,
    /// Frames that the peer has received since the last signal, and those of them with a mark.
    pub(crate) counted: u32,
    pub(crate) marked: u32,
}

/// What a controller allows.
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

/// Constants of a path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line {
    /// Rate of the host's link, bytes per second.
    pub(crate) rate_bps: u64,
    /// Bytes of a full-sized packet on the wire.
    pub(crate) packet_bytes: u64,
    /// Time that a burst of the transport takes on the link, ns.
    pub(crate) train_ns: u64,
    /// Controllers of uncongested paths skip updates (E50), and their packets are not paced (E51).
    pub(crate) skips_updates: bool,
    pub(crate) skips_pacing: bool,
}

impl Line {
    pub(crate) fn new(cfg: &Config, data_per_packet: u16) -> Self {
        let frame = usize::from(data_per_packet) + FRAME_HEADER + PACKET_HEADER;
        let packet_bytes = packet_wire_bytes(frame);
        let rate_bps = (cfg.line_rate_bps / 8).max(1);
        let train_ns = packet_bytes * u64::from(cfg.train_frames) * 1_000_000_000 / rate_bps;
        Line {
            rate_bps,
            packet_bytes,
            train_ns: if cfg.train_frames > 1 { train_ns } else { 0 },
            skips_updates: cfg.update_bypass,
            skips_pacing: cfg.pacing_bypass,
        }
    }

    /// Time of a packet at `rate` bytes per second, ns.
    pub(crate) fn gap_ns(&self, rate: u64) -> u64 {
        (self.packet_bytes * 1_000_000_000).div_ceil(rate.max(1))
    }

    /// The allowance of a rate. At the rate of the link nothing is paced (E51), and round trips
    /// below `low_ns` need no update (E50).
    fn at_rate(&self, rate: u64, low_ns: u64) -> Allowance {
        let free = rate >= self.rate_bps;
        Allowance {
            window: u64::MAX,
            gap_ns: if free && self.skips_pacing { 0 } else { self.gap_ns(rate) },
            watch_ns: if free && self.skips_updates { low_ns } else { 0 },
        }
    }
}

/// The controller of a path.
#[derive(Debug)]
pub(crate) enum Controller {
    Timely(Timely),
    Dcqcn(Dcqcn),
    Swift(Swift),
    TwoWindow(TwoWindow),
}

impl Controller {
    /// The controller of a path with a window of at most `limit` packets; `None`: none.
    pub(crate) fn new(control: Control, line: Line, limit: u32) -> Option<Self> {
        Some(match control {
            Control::None => return None,
            Control::Timely => Controller::Timely(Timely::new(line, false)),
            Control::TimelyPatched => Controller::Timely(Timely::new(line, true)),
            Control::Dcqcn => Controller::Dcqcn(Dcqcn::new(line)),
            Control::Swift => Controller::Swift(Swift::new(line, limit)),
            Control::TwoWindow => Controller::TwoWindow(TwoWindow::new(line, limit)),
        })
    }

    /// Takes the signals of a frame.
    pub(crate) fn on_signal(&mut self, s: &Signal) {
        match self {
            Controller::Timely(c) => c.on_signal(s),
            Controller::Dcqcn(c) => c.on_signal(s),
            Controller::Swift(c) => c.on_signal(s),
            Controller::TwoWindow(c) => c.on_signal(s),
        }
    }

    /// Packets were lost. Timely and DCQCN take no notice.
    pub(crate) fn on_loss(&mut self, now_ns: u64, rtt_ns: u64) {
        match self {
            Controller::Timely(_) | Controller::Dcqcn(_) => {}
            Controller::Swift(c) => c.on_loss(now_ns, rtt_ns),
            Controller::TwoWindow(c) => c.on_loss(now_ns, rtt_ns),
        }
    }

    /// A retransmission was spurious: the loss that it answered was none.
    pub(crate) fn on_spurious(&mut self) {
        match self {
            Controller::Timely(_) | Controller::Dcqcn(_) => {}
            Controller::Swift(c) => c.on_spurious(),
            Controller::TwoWindow(c) => c.on_spurious(),
        }
    }

    /// The limit of the window has changed.
    pub(crate) fn set_limit(&mut self, limit: u32) {
        match self {
            Controller::Timely(_) | Controller::Dcqcn(_) => {}
            Controller::Swift(c) => c.set_limit(limit),
            Controller::TwoWindow(c) => c.set_limit(limit),
        }
    }

    /// What it allows now. `base_ns` is the smallest round trip, `noise_ns` the noise.
    pub(crate) fn allowance(&self, base_ns: u64, rtt_ns: u64, noise_ns: u64) -> Allowance {
        match self {
            Controller::Timely(c) => c.allowance(),
            Controller::Dcqcn(c) => c.allowance(),
            Controller::Swift(c) => c.allowance(base_ns, rtt_ns, noise_ns),
            Controller::TwoWindow(c) => c.allowance(base_ns, rtt_ns, noise_ns),
        }
    }
}

#[cfg(test)]
mod tests;
