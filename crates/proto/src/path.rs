//! The path to a peer: round trips, reordering, timeouts, congestion marks, and the signals and
//! results of its congestion controller.
//!
//! A path belongs to a pair of endpoints. All sessions between them share its estimates. Samples
//! come from frame headers ([`Path::on_frame`]) and from loss recovery ([`Path::on_feedback`]).

use courser_buf::Ecn;

use crate::budget::{Delays, Grant, HOST_WAIT_NS, QueueDelay, UNSCHEDULED};
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
    /// Time for which the current frame has waited in this host, coded as `held`, rounded up.
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
        let round_trip = h.echo_at.and_then(|echo| self.rtt.on_echo(now_ns, echo));
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
            self.rtt.on_bare(self.signal_ns.into());
        }
        if let Some(echo) = self.echo.as_mut().filter(|_| is_excluded) {
            let excluded_ns = u64::from(wait_ns).min(HOST_WAIT_NS);
            echo.arrived_ns = now_ns.saturating_sub(excluded_ns);
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
mod tests {
    use super::*;

    fn header(number: u32, sent_at: u32) -> FrameHeader {
        FrameHeader {
            data_per_packet: 1024,
            peer: 0,
            held: 0,
            cookie: 0,
            number,
            ecn: EcnCounts::default(),
            sent_at: Some(sent_at),
            echo_at: None,
        }
    }

    fn path() -> Path {
        Path::new(&Config::default())
    }

    /// The times of a frame that has not waited in this host.
    fn at_once(now_ns: u64) -> Times {
        Times { now_ns, wait_ns: 0, is_excluded: false }
    }

    #[test]
    fn every_frame_takes_a_fresh_number() {
        let mut p = path();
        let numbers: Vec<u32> = (0..4).map(|_| p.next_number()).collect();
        assert_eq!(numbers, [0, 1, 2, 3]);
    }

    #[test]
    fn waits_of_many_slots_double_the_time_to_the_next_probe_once() {
        let cfg = Config::default();
        let mut p = path();
        let mut now_ns = 1_000_000_000;
        for doubled in 1..5 {
            (0..16).for_each(|slot| p.on_wait_for_turn(now_ns + slot * 100, &cfg));
            let (waits_ns, pto_ns) = (p.grant_wait.longest_ns(now_ns), p.rtt.pto_ns(&cfg));
            assert!(
                (0..8_000 << doubled).contains(&(waits_ns - (pto_ns << doubled))),
                "{waits_ns}"
            );
            now_ns += waits_ns + 10_000;
        }
    }

    #[test]
    fn the_echo_is_the_newest_frames_and_ages_while_it_is_held() {
        let mut p = path();
        assert_eq!(p.times(5), (Some(5), None));
        p.on_frame(&header(7, 1000), Ecn::NotEct, at_once(50));
        p.on_frame(&header(6, 900), Ecn::NotEct, at_once(60)); // reordered: older
        assert_eq!(p.times(80), (Some(80), Some(1030)));
    }

    #[test]
    fn duplicate_and_reordered_frames_give_no_round_trips() {
        let cfg = Config::default();
        let mut p = path();
        let frame = |number, echo| FrameHeader { echo_at: Some(echo), ..header(number, 0) };
        p.on_frame(&frame(5, 1_000), Ecn::NotEct, at_once(3_000));
        assert_eq!(p.rtt.report(&cfg).unwrap().0, 2_000);
        for replayed in [5, 4] {
            p.on_frame(&frame(replayed, 1_000), Ecn::NotEct, at_once(900_000_000));
        }
        assert_eq!(p.rtt.report(&cfg).unwrap().0, 2_000);
        p.on_frame(&frame(6, 900_000_000), Ecn::NotEct, at_once(900_004_000));
        assert_eq!(p.rtt.report(&cfg).unwrap().0, 4_000);
    }

    /// A header with a round trip of `rtt_ns` at `now_ns`.
    fn echoed(number: u32, now_ns: u64, rtt_ns: u64) -> FrameHeader {
        FrameHeader { echo_at: Some((now_ns - rtt_ns) as u32), ..header(number, now_ns as u32) }
    }

    #[test]
    fn one_frame_far_ahead_changes_nothing_and_round_trips_are_still_measured() {
        let cfg = Config::default();
        let mut now_ns = 10_000;
        for far in [NEAR as u32 + 300, 1 << 20, i32::MAX as u32] {
            let mut p = path();
            p.on_frame(&echoed(5, now_ns, 2_000), Ecn::NotEct, at_once(now_ns));
            // It is repeated by the network, which is no second frame.
            for _ in 0..2 {
                let ecn = EcnCounts { marked: 999, received: 999 };
                let forged = FrameHeader { ecn, ..echoed(far, now_ns, 9_000) };
                assert!(!p.on_frame(&forged, Ecn::NotEct, at_once(now_ns)).is_gap, "a gap");
            }
            assert_eq!((p.rtt.latest_ns(), p.marks_reported()), (2_000, 0), "{far}");
            for number in 6..200 {
                now_ns += 1_000;
                let rtt_ns = 3_000 + u64::from(number);
                let frame = echoed(number, now_ns, rtt_ns);
                assert!(
                    !p.on_frame(&frame, Ecn::NotEct, at_once(now_ns)).is_gap,
                    "{number} is the next one"
                );
                assert_eq!(p.rtt.latest_ns(), rtt_ns, "{far}");
            }
            // Much later another one, near the first: they do not belong together.
            p.on_frame(&echoed(far + 1, now_ns, 9_000), Ecn::NotEct, at_once(now_ns));
            assert_ne!(p.rtt.latest_ns(), 9_000);
            assert!(p.rtt.report(&cfg).is_some());
        }
    }

    #[test]
    fn a_changed_number_of_the_first_frame_does_not_make_all_later_ones_old() {
        let numbers = [NEAR as u32 + 1, 1 << 20, (1 << 30) - 1, 1 << 30, 1 << 31, u32::MAX];
        for changed in numbers {
            let mut p = path();
            p.on_frame(&echoed(changed, 10_000, 9_000), Ecn::NotEct, at_once(10_000));
            p.on_frame(&echoed(1, 20_000, 2_000), Ecn::NotEct, at_once(20_000));
            assert_eq!(p.rtt.latest_ns(), 2_000, "{changed}");
        }
    }

    #[test]
    fn numbers_that_jump_are_accepted_with_the_second_frame() {
        for (second, third) in [(1, 2), (-1, 1), (1_000, 999)] {
            let mut p = path();
            p.on_frame(&echoed(5, 10_000, 2_000), Ecn::NotEct, at_once(10_000));
            let jumped = |by: i32| (1_u32 << 25).wrapping_add_signed(by);
            p.on_frame(&echoed(jumped(0), 20_000, 3_000), Ecn::NotEct, at_once(20_000));
            p.on_frame(&echoed(4, 20_000, 2_000), Ecn::NotEct, at_once(20_000)); // reordered
            assert_eq!(p.rtt.latest_ns(), 2_000);
            let frame = echoed(jumped(second), 30_000, 4_000);
            assert!(p.on_frame(&frame, Ecn::NotEct, at_once(30_000)).is_gap, "frames are missing");
            assert_eq!(p.rtt.latest_ns(), 4_000);
            p.on_frame(&echoed(jumped(third), 40_000, 5_000), Ecn::NotEct, at_once(40_000));
            let expected_ns = if third > second { 5_000 } else { 4_000 };
            assert_eq!(p.rtt.latest_ns(), expected_ns);
        }
    }

    #[test]
    fn a_deadline_excludes_the_time_in_flight_and_in_the_frame() {
        let mut p = path();
        // The peer's clock is 5 s ahead; a frame takes 1,000 ns, an echo arrives after 3,000.
        let at = |number, sent: u64, echo: u64| FrameHeader {
            echo_at: Some(echo as u32),
            ..header(number, (sent + 5_000_000_000) as u32)
        };
        p.on_frame(&at(1, 9_000, 7_000), Ecn::NotEct, at_once(10_000));
        assert_eq!(p.deadline_ns(50), 10_000 + 50_000 - 3_000);
        // This frame waited for 200 us, and so did the one with the echo that it carries.
        p.on_frame(&at(2, 99_000, 50_000), Ecn::NotEct, at_once(300_000));
        assert_eq!(p.deadline_ns(50), 300_000 + 50_000 - 200_000 - 3_000);
        // This frame was filled for 7 us.
        let filled = FrameHeader { held: 7, ..at(3, 309_000, 307_000) };
        p.on_frame(&filled, Ecn::NotEct, at_once(310_000));
        assert_eq!(p.deadline_ns(50), 310_000 + 50_000 - 3_000 - 7_000);
    }

    #[test]
    fn a_deadline_excludes_the_wait_in_the_host() {
        // All frames wait for 20 us in this host, and their smallest round trip in the network is 2 us.
        let mut p = path();
        for n in 1..4 {
            let now_ns = 100_000 * n;
            let h = FrameHeader {
                echo_at: Some(now_ns as u32 - 22_000),
                ..header(n as u32, now_ns as u32 - 21_000)
            };
            p.on_frame(&h, Ecn::NotEct, Times { now_ns, wait_ns: 20_000, is_excluded: false });
        }
        assert!((277_000..=279_000).contains(&p.deadline_ns(0)), "{}", p.deadline_ns(0));
        // Nor does one that arrives behind a newer one.
        let times = Times { now_ns: 400_000, wait_ns: 20_000, is_excluded: false };
        p.on_frame(&header(2, 379_000), Ecn::NotEct, times);
        assert!((377_000..=379_000).contains(&p.deadline_ns(0)), "{}", p.deadline_ns(0));
    }

    #[test]
    fn waits_in_hosts_are_no_delay_of_the_network() {
        let cfg = Config::default();
        // A frame arrives after 2 us, and is received 20 us later.
        let receive = |p: &mut Path, is_excluded| {
            let times = Times { now_ns: 122_000, wait_ns: 20_000, is_excluded };
            let h = FrameHeader { echo_at: Some(100_000), ..header(1, 100_000) };
            p.on_frame(&h, Ecn::NotEct, times);
        };
        let mut p = path();
        p.on_frame(
            &FrameHeader { echo_at: Some(90_000), ..header(0, 98_000) },
            Ecn::NotEct,
            at_once(100_000),
        );
        receive(&mut p, false);
        assert_eq!((p.signal_ns, p.rtt.latest_ns(), p.rtt.least_ns()), (2_000, 22_000, 2_000));
        assert_eq!(
            p.queue_delay_ns(20_000, 122_000).map(|d| (d.queue_ns, d.host_ns)),
            Some((0, 20_000))
        );
        assert_eq!(
            p.times(130_000),
            (Some(130_000), Some(108_000)),
            "timeouts of the peer contain it"
        );

        // A peer of large messages is told the time of arrival; longer waits count in part.
        let mut p = path();
        receive(&mut p, true);
        assert_eq!(p.times(130_000).1, Some(128_000));
        let times = Times { now_ns: 400_000, wait_ns: 100_000, is_excluded: true };
        p.on_frame(&header(2, 200_000), Ecn::NotEct, times);
        assert_eq!(p.times(400_000).1, Some(200_000 + HOST_WAIT_NS as u32));
        assert!(p.timeout_ns(Recovery::Selective, 0, &cfg) >= 22_000, "{p:?}");
    }

    #[test]
    fn a_frame_without_a_time_counts_and_reports_marks_and_keeps_the_echo() {
        let mut p = path();
        p.on_frame(&header(0, 1_000), Ecn::Ce, at_once(5_000));
        let ecn = EcnCounts { marked: 7, received: 9 };
        let untimed = FrameHeader { sent_at: None, ecn, ..header(1, 0) };
        assert!(!p.on_frame(&untimed, Ecn::Ce, at_once(5_500)).is_gap);
        assert!(
            p.on_frame(&FrameHeader { number: 3, ..untimed }, Ecn::NotEct, at_once(5_500)).is_gap,
            "a gap"
        );
        assert_eq!(p.marks_reported(), 7);
        assert_eq!(p.ecn(), EcnCounts { marked: 2, received: 3 });
        assert_eq!(p.times(6_000).1, Some(2_000));
    }

    #[test]
    fn reported_marks_add_up_across_the_wrap_and_old_reports_are_ignored() {
        let mut p = path();
        let report = |number, marked| FrameHeader {
            ecn: EcnCounts { marked, received: 0 },
            ..header(number, 0)
        };
        p.on_frame(&report(1, 65_000), Ecn::NotEct, at_once(0));
        p.on_frame(&report(3, 100), Ecn::NotEct, at_once(0));
        p.on_frame(&report(2, 65_300), Ecn::NotEct, at_once(0));
        assert_eq!(p.marks_reported(), 65_636);
    }
}
