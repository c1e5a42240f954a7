//! The path to a peer: round trips, reordering, timeouts, congestion marks, and the signals and
//! results of its congestion controller.
//!
//! A path belongs to a pair of endpoints. All sessions between them share its estimates. Samples
//! come from frame headers ([`Path::on_frame`]) and from loss recovery ([`Path::on_feedback`]).

use courser_buf::Ecn;

use crate::budget::{Delays, Grant, QueueDelay, UNSCHEDULED};
use crate::cc::{PART, PathControl};
use crate::config::Config;
use crate::loss::rto::Rtt;
use crate::loss::{GrantWait, LossFeedback, Recovery, ReorderWindow};
use crate::mutant::{self, Mutant};
use crate::transit::Transit;
use crate::wire::{EcnCounts, FrameHeader, decode_held, encode_held};

/// Tail-loss probes before all packets count as lost: after one timeout, and after twice the time.
pub(crate) const PROBES: u8 = 2;

/// The probe backoff is at most two to this power.
const BACKOFF_MAX: u8 = 10;

/// How long a receiver's advice on unscheduled packets holds, ns.
const ADVICE_NS: u64 = 100_000_000;

/// A frame whose number is further ahead than this of the newest one is no frame of the same run: more
/// than a peer may have in flight. Alone it is not believed.
const NEAR: i32 = 1 << 16;

/// Instead of the newest number, before the first frame: numbers from 0 on are far ahead of it.
const NONE_YET: u32 = 0_u32.wrapping_sub(1 << 30);

/// Frames received after a far one among which the second has to be.
const SECOND_WITHIN: u32 = 64;

/// A time that is far from any real time.
const NEVER: u64 = 1 << 63;

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Path {
    rtt: Rtt,
    transit: Transit,
    reorder: ReorderWindow,
    /// Number of the newest frame received, or [`NONE_YET`].
    newest: u32,
    /// The last frame that was too far ahead to be believed.
    far: Option<Far>,
    /// The newest received frame with a send time.
    echo: Option<Echo>,
    /// Number of the next frame to send.
    tx_number: u64,
    /// When a frame with a send time was last sent to the peer, ns, or [`NEVER`].
    timed_ns: u64,
    /// Frames received, and those of them with a congestion mark.
    received: u32,
    marked: u32,
    /// The newest counts reported by the peer, and the sum of reported marks.
    reported: EcnCounts,
    reported_marks: u32,
    last_rx_ns: u64,
    /// When timers of calls in flight were last armed because of a missing frame, ns.
    armed_ns: u64,
    /// Probes wait `1 << backoff` times as long (PTO backoff).
    backoff: u8,
    /// The backoff does not increase before this time, ns.
    backoff_until_ns: u64,
    /// Longest time that packets of the newest frame waited in it before it was completed.
    held: u8,
    /// Base of [`Path::deadline_ns`] for the newest frame; `i64::MIN`: not computed yet.
    deadline_base_ns: i64,
    /// Frames with at least this round trip, or with a mark, are signals for the controller, ns;
    /// `u32::MAX`: none are.
    watch_ns: u32,
    /// The round trip of the current frame; 0: it has none.
    signal_ns: u32,
    /// Time for which the current frame has waited in this host, coded as `held`, rounded up. A byte
    /// keeps a peer within its size.
    waited: u8,
    /// Departures are paced.
    paced: bool,
    /// Units sent so far, modulo 2^32.
    sent_units: u32,
    control: Option<Box<PathControl>>,
    /// Packets of a new message that may be sent before the peer answers, and until when that
    /// advice holds, ns.
    unscheduled: u32,
    advised_until_ns: u64,
    /// Until then new messages begin with one packet: the peer had no memory for one, ns.
    sparing_until_ns: u64,
    /// Slots whose last packet stays unacknowledged until the peer grants more.
    awaiting: u32,
    /// Time that the peer's grants take, and packets of its responses wait for their turn.
    grant_wait: GrantWait,
    /// Delay of received frames in queues, while this endpoint's budget is in force.
    queue_delay: QueueDelay,
}

/// A frame that was more than [`NEAR`] ahead.
#[derive(Clone, Copy, Debug)]
struct Far {
    number: u32,
    /// Frames received up to it.
    received: u32,
}

/// The consequences of a received frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    /// Frames before it are missing.
    pub(crate) is_gap: bool,
    /// The congestion controller waits for such a frame.
    pub(crate) is_signal: bool,
}

/// Times of a received frame.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub(crate) now_ns: u64,
    /// Time for which it has waited in this host, ns; 0: not known.
    pub(crate) wait_ns: u32,
    /// The peer is not to count that as round trip.
    pub(crate) is_excluded: bool,
}

#[derive(Clone, Copy, Debug)]
struct Echo {
    sent_at: u32,
    arrived_ns: u64,
}

impl Path {
    pub(crate) fn new(cfg: &Config) -> Self {
        Path {
            rtt: Rtt::new(cfg),
            transit: Transit::new(),
            reorder: ReorderWindow::default(),
            newest: NONE_YET,
            far: None,
            echo: None,
            tx_number: 0,
            timed_ns: NEVER,
            received: 0,
            marked: 0,
            reported: EcnCounts::default(),
            reported_marks: 0,
            last_rx_ns: 0,
            armed_ns: 0,
            backoff: 0,
            backoff_until_ns: 0,
            held: 0,
            deadline_base_ns: i64::MIN,
            watch_ns: u32::MAX,
            signal_ns: 0,
            waited: 0,
            paced: false,
            sent_units: 0,
            control: None,
            unscheduled: u32::MAX,
            advised_until_ns: u64::MAX,
            sparing_until_ns: 0,
            awaiting: 0,
            grant_wait: GrantWait::default(),
            queue_delay: QueueDelay::default(),
        }
    }

    /// Returns whether a frame of the peer was accepted.
    pub(crate) fn has_received(&self) -> bool {
        self.newest != NONE_YET || self.received > 0
    }

    // ---- frames -------------------------------------------------------------------------------

    /// Takes the samples of an accepted frame's header. Returns whether frames before it are
    /// missing. Duplicate and reordered frames give no samples: a replayed frame could pass for a
    /// round trip of any length.
    #[inline(always)] // inlined into the ingress, with the header in registers
    pub(crate) fn on_frame(&mut self, h: &FrameHeader, ecn: Ecn, times: Times) -> Seen {
        let now_ns = times.now_ns;
        self.last_rx_ns = now_ns;
        self.received = self.received.wrapping_add(1);
        self.marked = self.marked.wrapping_add(u32::from(ecn == Ecn::Ce));
        (self.held, self.deadline_base_ns) = (h.held, i64::MIN);
        let mut ahead = h.number.wrapping_sub(self.newest) as i32;
        if ahead > NEAR {
            ahead = self.on_far(h.number);
        }
        let mut marks = 0;
        if ahead > 0 {
            self.newest = h.number;
            marks = h.ecn.marked.wrapping_sub(self.reported.marked);
            self.reported_marks = self.reported_marks.wrapping_add(marks.into());
            self.reported = h.ecn;
        }
        self.signal_ns = 0;
        let is_signal = match h.sent_at {
            None => {
                self.transit.on_untimed();
                self.waited = 0;
                marks != 0
            }
            Some(sent_at) => self.on_timed(h, sent_at, ahead > 0, times) || marks != 0,
        };
        Seen { is_gap: ahead > 1, is_signal: is_signal && self.watch_ns != u32::MAX }
    }

    /// Takes the samples of a frame with a send time. Returns whether the controller waits for such a
    /// round trip.
    #[inline(always)]
    fn on_timed(&mut self, h: &FrameHeader, sent_at: u32, is_newer: bool, times: Times) -> bool {
        let Times { now_ns, wait_ns, .. } = times;
        let arrived_ns = now_ns.saturating_sub(wait_ns.into());
        self.waited = 0;
        if !is_newer {
            self.on_older(sent_at, times);
            return false;
        }
        let drained = self.rtt.drains();
        self.echo = Some(Echo { sent_at, arrived_ns: now_ns });
        let round_trip = h.echo_at.and_then(|echo| self.rtt.on_echo(now_ns, echo, wait_ns));
        self.transit.on_newer(sent_at, round_trip, arrived_ns);
        self.signal_ns = round_trip.unwrap_or(0);
        if wait_ns > 0 {
            self.exclude_wait(times);
        }
        // 0: the frame has no round trip.
        self.signal_ns >= self.watch_ns.max(1) || self.rtt.drains() != drained
    }

    /// The current frame is older than another one.
    #[cold]
    fn on_older(&mut self, sent_at: u32, Times { now_ns, wait_ns, .. }: Times) {
        self.waited = encode_held(wait_ns.into());
        self.transit.on_older(sent_at, now_ns.saturating_sub(wait_ns.into()));
    }

    /// The current frame has waited in this host.
    #[inline(never)] // its registers would be those of every frame
    fn exclude_wait(&mut self, Times { now_ns, wait_ns, is_excluded }: Times) {
        self.waited = encode_held(wait_ns.into());
        if self.signal_ns > 0 {
            self.signal_ns = self.signal_ns.saturating_sub(wait_ns).max(1);
        }
        if let Some(echo) = self.echo.as_mut().filter(|_| is_excluded) {
            echo.arrived_ns = now_ns.saturating_sub(wait_ns.into());
        }
    }

    /// A frame is far ahead, or the first one. One with a changed number would make all later frames
    /// old, for up to 2^31 of them, so only the second of two that are near each other is newer. Returns
    /// how far it is ahead; 0: it is not believed.
    #[cold]
    fn on_far(&mut self, number: u32) -> i32 {
        if self.newest == NONE_YET && number <= NEAR as u32 {
            return 1; // senders count from 0
        }
        let received = self.received;
        let is_near = |far: &Far| {
            let apart = number.wrapping_sub(far.number) as i32;
            apart != 0
                && apart.unsigned_abs() <= NEAR as u32
                && received.wrapping_sub(far.received) <= SECOND_WITHIN
        };
        let first = self.far.replace(Far { number, received });
        if first.as_ref().is_none_or(|far| !is_near(far)) {
            return 0;
        }
        self.far = None;
        NEAR
    }

    /// Takes the number of a frame that is sent now; a number is never used twice.
    #[inline]
    pub(crate) fn next_number(&mut self) -> u32 {
        let number = self.tx_number as u32;
        self.tx_number += 1;
        number
    }

    /// The send time and the echo of a frame that is completed at `now_ns`. The echo includes the
    /// time that this endpoint has held it.
    #[inline]
    pub(crate) fn times(&mut self, now_ns: u64) -> (Option<u32>, Option<u32>) {
        self.timed_ns = now_ns;
        let echo_at = self.echo.map(|echo| {
            let waited_ns = now_ns.saturating_sub(echo.arrived_ns) as u32;
            echo.sent_at.wrapping_add(waited_ns)
        });
        (Some(now_ns as u32), echo_at)
    }

    /// Returns whether a send time was sent to the peer less than `within_ns` ago.
    #[inline]
    pub(crate) fn was_told(&self, now_ns: u64, within_ns: u64) -> bool {
        now_ns.wrapping_sub(self.timed_ns) < within_ns
    }

    /// Counts of received frames, for the header of an outgoing frame.
    #[inline]
    pub(crate) fn ecn(&self) -> EcnCounts {
        EcnCounts { marked: self.marked as u16, received: self.received as u16 }
    }

    /// Frames completed for this peer.
    pub(crate) fn tx_frames(&self) -> u64 {
        self.tx_number
    }

    /// Frames accepted from this peer, modulo 2^32.
    pub(crate) fn rx_frames(&self) -> u32 {
        self.received
    }

    /// Frames to this peer that arrived with a congestion mark, modulo 2^32.
    pub(crate) fn marks_reported(&self) -> u32 {
        self.reported_marks
    }

    // ---- congestion control -------------------------------------------------------------------

    /// Returns whether packets leave at the times of a pacer.
    #[inline]
    pub(crate) fn is_paced(&self) -> bool {
        self.paced
    }

    /// Packets that the pacer allows now, or the time when it allows the next.
    pub(crate) fn pace(&self, now_ns: u64) -> Result<u32, u64> {
        self.control.as_ref().map_or(Ok(u32::MAX), |control| control.pacer().allowed(now_ns))
    }

    /// Records whether packets wait for their departure time.
    pub(crate) fn on_paced_wait(&mut self, waits: bool) {
        if let Some(control) = &mut self.control {
            control.pacer_mut().set_late(waits);
        }
    }

    /// Records that `packets` of `units` each are sent or requested, with `data` bytes each.
    #[inline]
    pub(crate) fn on_sent(&mut self, packets: u32, (units, data): (u16, u64), now_ns: u64) {
        self.sent_units = self.sent_units.wrapping_add(packets * u32::from(units));
        if self.paced {
            self.on_paced(packets, data, now_ns);
        }
    }

    fn on_paced(&mut self, packets: u32, data: u64, now_ns: u64) {
        if let Some(control) = &mut self.control {
            control.on_sent(packets, data, now_ns);
        }
    }

    /// Units sent so far, modulo 2^32.
    pub(crate) fn sent_units(&self) -> u32 {
        self.sent_units
    }

    /// This endpoint becomes a client of the peer, or its pool changes: `limit` packets.
    pub(crate) fn control(&mut self, cfg: &Config, data_per_packet: u16, limit: u32, now_ns: u64) {
        match &mut self.control {
            Some(control) => control.set_limit(&self.rtt, limit, now_ns),
            None => self.control = PathControl::new(cfg, data_per_packet, limit).map(Box::new),
        }
        self.take_allowance();
    }

    /// Passes the current frame to the controller; it acknowledged `acked` parts of a packet.
    pub(crate) fn signal(&mut self, acked: u64, now_ns: u64) {
        let frame = (self.signal_ns.into(), acked, now_ns);
        if let Some(control) = &mut self.control {
            control.on_frame(&self.rtt, frame, self.reported, self.reported_marks);
            if let Some(least_ns) = control.take_longer_route() {
                self.rtt.adopt(least_ns, now_ns);
            }
        }
        self.take_allowance();
    }

    fn take_allowance(&mut self) {
        let Some(control) = &self.control else { return };
        let allowed = control.allowed();
        self.watch_ns = allowed.watch_ns.min(u64::from(u32::MAX - 1)) as u32;
        self.paced = allowed.gap_ns > 0;
    }

    /// The window of the controller, in [`crate::cc::PART`]s of a packet; `u64::MAX`: none. Packets
    /// whose credit returns the receiver withholds are not on the way and do not count, or they
    /// would keep the path from sending what was granted.
    pub(crate) fn window(&self) -> u64 {
        let window = self.control.as_ref().map_or(u64::MAX, |control| control.allowed().window);
        window.saturating_add(u64::from(self.awaiting) * PART)
    }

    /// Time between two packets of a paced path, ns; 0: not paced.
    pub(crate) fn gap_ns(&self) -> u64 {
        self.control.as_ref().map_or(0, |control| control.allowed().gap_ns)
    }

    /// How often the controller has allowed less than before.
    pub(crate) fn decreases(&self) -> u64 {
        self.control.as_ref().map_or(0, |control| control.decreases())
    }

    /// The delays of the current frame, which has waited in this host for `wait_ns`; `None`: the frame has
    /// no time.
    pub(crate) fn queue_delay_ns(&mut self, wait_ns: u32, now_ns: u64) -> Option<Delays> {
        if self.signal_ns == 0 {
            return None;
        }
        let (transit, least) = self.transit.frame();
        let queue_ns = self.queue_delay.on_frame(transit, least, now_ns);
        Some(Delays { queue_ns, host_ns: wait_ns, base_ns: self.rtt.least_ns() })
    }

    /// Packets of a new message that may be sent before the peer has answered.
    pub(crate) fn unscheduled(&self, now_ns: u64) -> u32 {
        if now_ns < self.sparing_until_ns {
            1
        } else if now_ns <= self.advised_until_ns {
            self.unscheduled
        } else {
            UNSCHEDULED
        }
    }

    /// The peer had no memory for a request: the next ones cost a packet each if they are refused.
    pub(crate) fn on_refused(&mut self, now_ns: u64) {
        self.sparing_until_ns = now_ns + ADVICE_NS;
    }

    /// Messages to the peer begin with few packets until it has answered.
    pub(crate) fn expect_grants(&mut self) {
        self.advised_until_ns = 0;
    }

    /// The peer has stated a grant, or none.
    pub(crate) fn on_grant(&mut self, grant: Grant, now_ns: u64) {
        if self.advised_until_ns != u64::MAX {
            self.unscheduled = grant.packets().map_or(u32::MAX, |_| grant.unscheduled());
            self.advised_until_ns = now_ns + ADVICE_NS;
        }
    }

    // ---- round trips and timeouts -------------------------------------------------------------

    /// Returns whether calls time out without a loss: the newest frame took that long, because the
    /// thread of the peer, or of this endpoint, did not run; or the answer came `age_ns` after the
    /// last retransmission, so that did not cause it, but a handler that kept the peer's thread
    /// busy.
    pub(crate) fn stalls(&self, age_ns: u64, rto_min_ns: u64) -> bool {
        self.rtt.latest_ns().max(age_ns) >= rto_min_ns.max(2 * self.rtt.least_ns())
    }

    pub(crate) fn rtt(&self) -> &Rtt {
        &self.rtt
    }

    /// Sets an estimate of the round trip until the first sample.
    pub(crate) fn expect(&mut self, rtt_ns: u64, cfg: &Config) {
        self.rtt.expect(rtt_ns, cfg);
    }

    pub(crate) fn last_rx_ns(&self) -> u64 {
        self.last_rx_ns
    }

    pub(crate) fn set_last_rx(&mut self, now_ns: u64) {
        self.last_rx_ns = now_ns;
    }

    /// A slot begins to await a grant, or no longer does.
    pub(crate) fn on_awaiting(&mut self, begins: bool) {
        self.awaiting = if begins { self.awaiting + 1 } else { self.awaiting - 1 };
    }

    /// Slots that await a grant.
    pub(crate) fn awaiting(&self) -> u32 {
        self.awaiting
    }

    /// A grant arrived `wait_ns` after the last packet was sent.
    pub(crate) fn on_grant_wait(&mut self, wait_ns: u64, now_ns: u64) {
        self.grant_wait.on_wait(wait_ns, now_ns);
    }

    /// A request waits for a grant and nothing was lost: the next probe for one is later.
    pub(crate) fn on_wait_for_grant(&mut self, now_ns: u64, cfg: &Config) {
        let least_ns = self.rtt.pto_ns(cfg);
        let wait_ns = 2 * self.grant_wait.longest_ns(now_ns).max(least_ns);
        self.grant_wait.on_wait(wait_ns.min(cfg.rto_max_ns), now_ns);
    }

    /// Packets of a response wait for their turn, and nothing was lost. Once per probe interval, not once
    /// per slot: all responses of a server wait for the same queue.
    pub(crate) fn on_wait_for_turn(&mut self, now_ns: u64, cfg: &Config) {
        if self.grant_wait.may_double(now_ns) {
            self.on_wait_for_grant(now_ns, cfg);
        }
    }

    /// [`Path::timeout_ns`] of a request that waits for a grant, and of requested packets of a response.
    pub(crate) fn grant_timeout_ns(
        &self,
        recovery: Recovery,
        retries: u8,
        now_ns: u64,
        cfg: &Config,
    ) -> u64 {
        let timeout_ns = self.timeout_ns(recovery, retries, cfg);
        if mutant::is_on(Mutant::GrantWaitIgnored) {
            return timeout_ns;
        }
        let wait_ns = 2 * self.grant_wait.longest_ns(now_ns);
        timeout_ns.saturating_add(wait_ns).min(cfg.rto_max_ns)
    }

    /// Time without an answer after which loss is suspected, after `retries` earlier suspicions.
    /// Never longer than with go-back-N.
    pub(crate) fn timeout_ns(&self, recovery: Recovery, retries: u8, cfg: &Config) -> u64 {
        let most_ns = self.rtt.rto_ns(retries, cfg);
        if recovery != Recovery::Selective {
            return most_ns;
        }
        let once_ns = self.rtt.pto_ns(cfg) + self.window_ns(self.last_rx_ns);
        let doubled = |times: u8| once_ns.saturating_mul(1 << u32::from(times).min(32));
        let wait_ns = match retries.checked_sub(PROBES) {
            None => doubled(retries.saturating_add(self.backoff)),
            Some(timeouts) => self.rtt.rto_ns(timeouts, cfg).max(doubled(retries)),
        };
        wait_ns.min(most_ns)
    }

    /// The reordering window, ns.
    pub(crate) fn window_ns(&self, now_ns: u64) -> u64 {
        self.reorder.window_ns(self.rtt.smoothed_ns(), self.rtt.least_ns(), now_ns)
    }

    /// The shortest time after which a packet can have caused the newest frame: that frame's round
    /// trip, or the smallest one.
    pub(crate) fn round_trip_ns(&self) -> u64 {
        self.transit.round_trip_ns().unwrap_or(self.rtt.least_ns())
    }

    /// A deadline in this endpoint's time, of which `remaining_us` remained when the packet was
    /// written to the newest frame. Never later than the client's (see [`crate::transit`]).
    #[inline]
    pub(crate) fn deadline_ns(&mut self, remaining_us: u32) -> u64 {
        if self.deadline_base_ns == i64::MIN {
            self.set_deadline_base();
        }
        let left_ns = i64::from(remaining_us) * 1_000;
        (self.deadline_base_ns + left_ns).max(0) as u64
    }

    /// When packets of the newest frame were written, in this endpoint's time; computed once per
    /// frame.
    #[inline(never)]
    fn set_deadline_base(&mut self) {
        let mut age_ns = self.transit.age_ns(self.rtt.least_ns(), decode_held(self.waited) * 1_000);
        if mutant::is_on(Mutant::AgeForgotten) {
            age_ns = 0;
        }
        let held_ns = decode_held(self.held) * 1_000;
        self.deadline_base_ns = self.last_rx_ns as i64 - (age_ns + held_ns) as i64;
    }

    // ---- feedback of loss recovery ------------------------------------------------------------

    /// Takes the feedback of the scoreboards.
    pub(crate) fn on_feedback(&mut self, feedback: LossFeedback, now_ns: u64) {
        if feedback.late_ns > 0 {
            self.reorder.on_late(feedback.late_ns, now_ns);
        }
        if feedback.early > 0 {
            let (srtt_ns, least_ns) = (self.rtt.smoothed_ns(), self.rtt.least_ns());
            self.reorder.on_spurious(srtt_ns, least_ns, now_ns);
        }
        if feedback.useful > 0 {
            self.back_off_less();
        }
        if let Some(control) = &mut self.control {
            if feedback.lost > 0 {
                control.on_loss(&self.rtt, now_ns);
            }
            if feedback.spurious > 0 {
                control.on_spurious(&self.rtt, now_ns);
            }
            self.take_allowance();
        }
    }

    /// Returns whether timers of calls in flight are to be armed because of a missing frame: not if
    /// they were armed within the last half of a round trip.
    pub(crate) fn begins_to_arm(&mut self, now_ns: u64, cfg: &Config) -> bool {
        if now_ns < self.armed_ns.saturating_add(self.rtt.pto_ns(cfg) / 4) {
            return false;
        }
        self.armed_ns = now_ns.max(1);
        true
    }

    /// A retransmission was necessary: decreases the probe backoff.
    pub(crate) fn back_off_less(&mut self) {
        self.backoff = self.backoff.saturating_sub(1);
    }

    /// A probed call was not lost but its handler is slow: increases the probe backoff. At most
    /// once per probe interval, not once per call.
    pub(crate) fn back_off(&mut self, now_ns: u64, cfg: &Config) {
        if now_ns >= self.backoff_until_ns {
            self.backoff = (self.backoff + 1).min(BACKOFF_MAX);
            self.backoff_until_ns = now_ns.saturating_add(self.rtt.pto_ns(cfg));
        }
    }
}

#[cfg(test)]
mod tests;
