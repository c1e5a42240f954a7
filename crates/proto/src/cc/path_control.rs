//! The control of one path: its controller, pacer, and the signals since the last frame.

use super::Controller;
use super::control::Control;
use super::papers::Constants;
use super::signal::{Allowance, HostLink, PART, Signal, packet_wire_bytes};
use crate::config::Config;
use crate::loss::rto::Rtt;
use crate::pace::Pacer;
use crate::wire::{EcnCounts, FRAME_HEADER, PACKET_HEADER};

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct PathControl {
    controller: Controller,
    train: u32,
    /// Bytes of a full-sized packet on the wire.
    packet_bytes: u64,
    /// The known smallest round trip, ns; 0: measured.
    base_ns: u64,
    pacer: Pacer,
    allowed: Allowance,
    /// Moving average of half the difference of successive round trips, ns: a queue changes less
    /// from one frame to the next than the delay of threads does.
    noise_ns: u64,
    last_rtt_ns: u64,
    /// The counts reported with the last signal.
    received: u16,
    marks: u32,
    /// Congestion signals that lowered the allowance.
    decreases: u64,
}

impl PathControl {
    /// The control of a path with a window of at most `limit` packets; `None`: none.
    pub(crate) fn new(cfg: &Config, data_per_packet: u16, limit: u32) -> Option<Self> {
        let control = cfg.applied_control();
        let line = HostLink::new(cfg, data_per_packet);
        let base_ns = if control == Control::Swift { cfg.base_rtt_ns } else { 0 };
        let controller = Controller::with(Constants::of(cfg), control, line, limit)?;
        Some(Self::of(controller, (cfg.train_frames, line.packet_bytes, base_ns)))
    }

    fn of(controller: Controller, (train, packet_bytes, base_ns): (u32, u64, u64)) -> Self {
        let mut new = PathControl {
            controller,
            train,
            packet_bytes,
            base_ns,
            pacer: Pacer::default(),
            allowed: Allowance::ALL,
            noise_ns: 0,
            last_rtt_ns: 0,
            received: 0,
            marks: 0,
            decreases: 0,
        };
        new.allow(&Rtt::default(), 0);
        new
    }

    /// Takes the signals of a frame that acknowledged `acked` parts of a packet. `rtt_ns` is 0 if it
    /// has no round trip.
    pub(crate) fn on_frame(
        &mut self,
        rtt: &Rtt,
        (rtt_ns, acked, now_ns): (u64, u64, u64),
        reported: EcnCounts,
        marks: u32,
    ) {
        if rtt_ns != 0 {
            let difference_ns = rtt_ns.abs_diff(self.last_rtt_ns) / 2;
            if self.last_rtt_ns != 0 {
                self.noise_ns = self.noise_ns - self.noise_ns / 16 + difference_ns / 16;
            }
            self.last_rtt_ns = rtt_ns;
        }
        let signal = Signal {
            now_ns,
            rtt_ns,
            base_ns: self.base_ns(rtt),
            noise_ns: self.noise_ns,
            acked,
            counted: reported.received.wrapping_sub(self.received).into(),
            marked: marks.wrapping_sub(self.marks),
        };
        (self.received, self.marks) = (reported.received, marks);
        self.controller.on_signal(&signal);
        self.allow(rtt, now_ns);
    }

    /// The smallest round trip of a route that turns out to be longer than before.
    pub(crate) fn take_longer_route(&mut self) -> Option<u64> {
        self.controller.take_longer_route()
    }

    fn base_ns(&self, rtt: &Rtt) -> u64 {
        if self.base_ns > 0 { self.base_ns } else { rtt.least_ns() }
    }

    pub(crate) fn on_loss(&mut self, rtt: &Rtt, now_ns: u64) {
        self.controller.on_loss(now_ns, rtt.smoothed_ns());
        self.allow(rtt, now_ns);
    }

    pub(crate) fn on_spurious(&mut self, rtt: &Rtt, now_ns: u64) {
        self.controller.on_spurious();
        self.allow(rtt, now_ns);
    }

    pub(crate) fn set_limit(&mut self, rtt: &Rtt, limit: u32, now_ns: u64) {
        self.controller.set_limit(limit);
        self.allow(rtt, now_ns);
    }

    /// Takes over what the controller allows.
    fn allow(&mut self, rtt: &Rtt, now_ns: u64) {
        let before = self.allowed;
        let (base_ns, rtt_ns) = (self.base_ns(rtt), rtt.smoothed_ns());
        self.allowed = self.controller.allowance(base_ns, rtt_ns, self.noise_ns);
        if rtt.drains() && self.base_ns == 0 {
            let half = (self.allowed.window.min(self.controller.limit()) / 2).max(PART);
            (self.allowed.window, self.allowed.watch_ns) = (half, 0);
        }
        if self.allowed.gap_ns > 0 {
            self.pacer.set_gap(self.allowed.gap_ns, self.train, now_ns);
        } else {
            self.pacer.set_late(false);
        }
        let less = self.allowed.window < before.window || self.allowed.gap_ns > before.gap_ns;
        self.decreases += u64::from(less);
    }

    pub(crate) fn allowed(&self) -> &Allowance {
        &self.allowed
    }

    pub(crate) fn pacer(&self) -> &Pacer {
        &self.pacer
    }

    pub(crate) fn pacer_mut(&mut self) -> &mut Pacer {
        &mut self.pacer
    }

    /// Passes packets with `data` bytes each to the pacer. Each counts as a frame of its own, also
    /// where several share one.
    pub(crate) fn on_sent(&mut self, packets: u32, data: u64, now_ns: u64) {
        let bytes = u64::from(packets) * (packet_wire_bytes(FRAME_HEADER + PACKET_HEADER) + data);
        self.pacer.on_sent(bytes, self.packet_bytes, now_ns);
    }

    pub(crate) fn decreases(&self) -> u64 {
        self.decreases
    }
}
