//! The size of the budget, from the queueing delay of arriving frames.
//!
//! The delay is the median of a run of frames: a queue delays all frames, a descheduled thread some
//! of them, and the delays of some senders are measured from a bad minimum. After each run of at
//! least a round trip the budget is scaled by what the round trip should be, and is:
//! `(base + target) / (base + delay)`. It grows only while messages wait for it. There is one such
//! controller for all senders, so nothing has to converge between them.
//!
//! A queue at the receiver's link keeps the link busy. Frames that are delayed while fewer arrive than
//! the link can carry wait elsewhere, at the links of their senders or in the network: their delay does
//! not shrink the budget, and messages that wait get more, so that other senders use the link.
//!
//! The target is half of the base round trip, or more where packets or the noise of hosts are
//! longer. No constant in microseconds assumes a slow or a fast network.
//!
//! A queue that is never empty is invisible to senders that have never seen it empty. So in each
//! period the queue drains, for as long as every sender needs to send a packet.

use crate::mutant::{self, Mutant};

/// Frames of a run.
const RUN: usize = 32;
/// The smallest budget, and the budget before anything was measured, full packets.
const LEAST: u64 = 2;
const FIRST: u64 = 32;
/// Hosts are allowed this delay, ns: interrupts, wake-ups and other tasks of a thread take tens of
/// microseconds. A receiver that delays frames for longer is one that cannot keep up.
pub(crate) const HOST_WAIT_NS: u32 = 32_000;
/// The same for a host whose receive queue has not been empty for that time, ns: it is slower than its
/// link, and the queue is its own.
pub(crate) const BUSY_WAIT_NS: u32 = 4_000;
/// Packets whose time is allowed as delay.
const TARGET_PACKETS: u64 = 4;
/// Period of drains, ns; at first, and at most. Two are in a period of the minimum of delays.
const DRAIN_FIRST_NS: u64 = 1_000_000;
const DRAIN_EVERY_NS: u64 = 10_000_000;
const PERIOD_NS: u64 = 20_000_000;
/// Shortest length of a drain in round trips.
const DRAIN_ROUND_TRIPS: u64 = 2;

/// Least bytes, in full packets, and round trips over which a rate is measured.
const RATE_PACKETS: u64 = 64;
const RATE_ROUND_TRIPS: u64 = 4;
/// Period of the highest rate, ns: links change their rate rarely.
const RATE_PERIOD_NS: u64 = 500_000_000;
/// While the receiver's link is not busy, the largest budget in multiples of what the path holds at the
/// highest rate; twice what arrives during the delays is added.
const OVERCOMMIT: u64 = 8;
/// Longest delay of that kind, in the round trips that the budget aims at. After a pause frames arrive in
/// bursts, which are faster than the link: beyond this its rate may be known wrongly.
const ELSEWHERE_MOST: u64 = 4;
/// More is in flight at no rate, bytes.
const IN_FLIGHT_MOST: u64 = 1 << 48;

/// Delays of a frame that has arrived, ns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delays {
    /// In queues: of the network, of its sender, and of this host beyond `host_ns`.
    pub(crate) queue_ns: u64,
    /// In this host, behind the network, at most [`HOST_WAIT_NS`]; 0 when unknown.
    pub(crate) host_ns: u32,
    /// The smallest round trip to its sender; 0 when unknown.
    pub(crate) base_ns: u64,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Size {
    /// Bytes on the wire.
    size: u64,
    /// Room in the receive queues of the endpoints, bytes.
    most: u64,
    line_rate_bps: u64,
    /// The longest packet of the endpoints on the wire, bytes, and its time on the link, ns.
    packet_bytes: u64,
    packet_ns: u64,
    /// Delays of the run's newest frames, ns.
    run: [u32; RUN],
    run_frames: usize,
    /// Sum of their waits in this host, ns.
    run_host_ns: u64,
    run_begin_ns: u64,
    /// Smallest round trip of the run's senders.
    run_base_ns: u64,
    /// Smallest round trip of the last run.
    base_ns: u64,
    /// No queue was seen yet.
    starts: bool,
    /// Bytes that have arrived in the run.
    run_bytes: u64,
    /// The size while the queue drains, and until when; 0: it does not.
    drained: u64,
    drain_ends_ns: u64,
    next_drain_ns: u64,
    drain_period_ns: u64,
    rate: Rate,
}

impl Size {
    /// The budget of a link with this rate, without endpoints.
    pub(crate) fn new(line_rate_bps: u64) -> Self {
        Size {
            size: 0,
            most: 0,
            line_rate_bps: line_rate_bps.max(1),
            packet_bytes: 0,
            packet_ns: 0,
            run: [0; RUN],
            run_frames: 0,
            run_host_ns: 0,
            run_begin_ns: 0,
            run_base_ns: u64::MAX,
            run_bytes: 0,
            base_ns: 0,
            starts: true,
            drained: 0,
            drain_ends_ns: 0,
            next_drain_ns: 0,
            drain_period_ns: DRAIN_FIRST_NS,
            rate: Rate::default(),
        }
    }

    /// An endpoint uses the link. Its packets have `packet_bytes` on the wire, and `most` bytes of them
    /// fit into its receive queue.
    pub(crate) fn add_endpoint(&mut self, packet_bytes: u32, most: u64) {
        self.packet_bytes = self.packet_bytes.max(packet_bytes.into());
        self.packet_ns = self.packet_bytes * 8_000_000_000 / self.line_rate_bps;
        let is_first = self.most == 0;
        self.most = self.most.saturating_add(most);
        if is_first {
            self.size = (FIRST * self.packet_bytes).min(self.most);
        }
    }

    /// An endpoint no longer uses the link.
    pub(crate) fn remove_endpoint(&mut self, most: u64) {
        self.most = self.most.saturating_sub(most);
        self.size = self.size.min(self.most);
    }

    fn least(&self) -> u64 {
        (LEAST * self.packet_bytes).min(self.most)
    }

    /// Bytes on the wire.
    pub(crate) fn bytes(&self) -> u64 {
        if self.drain_ends_ns > 0 { self.drained } else { self.size }
    }

    /// The smallest round trip of the senders.
    pub(crate) fn base_ns(&self) -> u64 {
        self.base_ns
    }

    /// Bytes have arrived.
    pub(crate) fn on_bytes(&mut self, bytes: u64, now_ns: u64) {
        if self.drain_ends_ns > 0 {
            if now_ns < self.drain_ends_ns {
                return;
            }
            self.drain_ends_ns = 0;
            self.rate.begin(now_ns);
            self.begin_run(now_ns);
        }
        self.run_bytes += bytes;
        self.rate.on_bytes(bytes, (RATE_PACKETS * self.packet_bytes, self.base_ns), now_ns);
    }

    /// A frame was delayed. `messages` are arriving, and some have waited for the budget if it is
    /// `short`. Returns whether a run has ended.
    pub(crate) fn on_delay(
        &mut self,
        Delays { queue_ns, host_ns, base_ns }: Delays,
        (messages, short): (u32, bool),
        now_ns: u64,
    ) -> bool {
        if self.drain_ends_ns > 0 {
            return false;
        }
        self.run[self.run_frames % RUN] = queue_ns.min(u32::MAX.into()) as u32;
        self.run_host_ns += u64::from(host_ns);
        if base_ns > 0 {
            self.run_base_ns = self.run_base_ns.min(base_ns);
        }
        self.run_frames += 1;
        if self.run_frames < RUN || self.run_base_ns == u64::MAX {
            return false;
        }
        let least_ns = self.run.iter().min().copied().unwrap_or(0);
        let ends = now_ns >= self.run_begin_ns + self.run_base_ns + u64::from(least_ns);
        if ends {
            self.end_run(messages, short, now_ns);
        }
        ends
    }

    fn begin_run(&mut self, now_ns: u64) {
        (self.run_frames, self.run_bytes, self.run_begin_ns) = (0, 0, now_ns);
        self.run_host_ns = 0;
        self.run_base_ns = u64::MAX;
    }

    fn end_run(&mut self, messages: u32, short: bool, now_ns: u64) {
        self.base_ns = self.run_base_ns;
        let noise_ns = median(std::array::from_fn(|i| {
            let before = self.run[(i + RUN - 1) % RUN];
            self.run[i].abs_diff(before)
        }));
        let delay_ns = u64::from(median(self.run));
        // Senders delay packets as this host does, so that they arrive in bursts of that length.
        let host_ns = self.run_host_ns / self.run_frames as u64;
        let of_network_ns =
            (self.base_ns / 2).max(TARGET_PACKETS * self.packet_ns).max(2 * u64::from(noise_ns));
        let target_ns = of_network_ns.max(host_ns);
        let target_ns =
            if mutant::is_on(Mutant::QueueEightfold) { 8 * target_ns } else { target_ns };
        let seen_ns = (self.base_ns + delay_ns).max(1);
        // By a quarter up, by half down.
        let mut ratio = ((self.base_ns + target_ns) * 1024 / seen_ns).clamp(512, 1280);
        let run_ns = now_ns.saturating_sub(self.run_begin_ns).max(1);
        let is_full = self.rate.is_full((self.run_bytes << 20) / run_ns);
        let known_ns = ELSEWHERE_MOST * (self.base_ns + of_network_ns) + host_ns;
        if !is_full && delay_ns <= known_ns {
            let rate = &self.rate;
            let most = OVERCOMMIT * rate.in_flight(self.base_ns) + 2 * rate.in_flight(delay_ns);
            ratio = ratio.max(if self.size < most { 1280 } else { 1024 });
        }
        if ratio < 1024 || short {
            // Half of the way, so that the next run sees the result of this one first; faster until
            // a queue was seen for the first time.
            self.starts &= 4 * delay_ns < target_ns;
            let scale = if self.starts { 1536 } else { 512 + ratio / 2 };
            self.size = (self.size * scale / 1024).clamp(self.least(), self.most);
        }
        self.begin_run(now_ns);
        if now_ns >= self.next_drain_ns {
            self.drain(seen_ns, messages, now_ns);
        }
    }

    /// Begins a drain, after the first run of all.
    fn drain(&mut self, seen_ns: u64, messages: u32, now_ns: u64) {
        let is_first = self.next_drain_ns == 0;
        if now_ns > self.next_drain_ns + DRAIN_EVERY_NS {
            self.drain_period_ns = DRAIN_FIRST_NS; // after a pause
        }
        self.next_drain_ns = now_ns + self.drain_period_ns;
        self.drain_period_ns = (2 * self.drain_period_ns).min(DRAIN_EVERY_NS);
        if is_first {
            return;
        }
        // Three quarters of what fills the path without a queue.
        let filled = u128::from(self.size) * u128::from(self.base_ns) / u128::from(seen_ns);
        let filled = filled as u64; // the size at most
        self.drained = (filled * 3 / 4).max(self.least());
        let all_ns = u64::from(messages) * self.packet_ns * 3 / 2;
        let length_ns = (DRAIN_ROUND_TRIPS * seen_ns).max(all_ns);
        self.drain_ends_ns = now_ns + length_ns.min(DRAIN_EVERY_NS / 8);
    }
}

/// The highest rate at which bytes have arrived in the current and the previous period: that of the
/// receiver's link, once it was busy.
#[derive(Debug, Default)]
struct Rate {
    bytes: u64,
    begin_ns: u64,
    /// Bytes in 2^20 ns.
    highest: u64,
    previous: u64,
    ends_ns: u64,
}

impl Rate {
    /// Begins to count again: a pause, or a drain, is not the rate of the link.
    fn begin(&mut self, now_ns: u64) {
        (self.bytes, self.begin_ns) = (0, now_ns);
    }

    /// Bytes have arrived. A rate is measured over `least` of them, and some round trips of `base_ns`.
    fn on_bytes(&mut self, bytes: u64, (least, base_ns): (u64, u64), now_ns: u64) {
        self.bytes += bytes;
        let time_ns = now_ns.saturating_sub(self.begin_ns);
        if self.bytes < least || time_ns < RATE_ROUND_TRIPS * base_ns || time_ns == 0 {
            return;
        }
        let newest = (self.bytes << 20) / time_ns;
        if now_ns >= self.ends_ns {
            self.previous = if now_ns - self.ends_ns > RATE_PERIOD_NS { 0 } else { self.highest };
            (self.highest, self.ends_ns) = (0, now_ns + RATE_PERIOD_NS);
        }
        self.highest = self.highest.max(newest);
        self.begin(now_ns);
    }

    fn highest(&self) -> u64 {
        self.highest.max(self.previous)
    }

    /// Returns whether `rate` is close to the rate of the link, as far as that is known.
    fn is_full(&self, rate: u64) -> bool {
        self.highest() > 0 && 8 * rate >= 7 * self.highest()
    }

    /// Bytes in flight at the highest rate. Senders decide on both factors.
    fn in_flight(&self, time_ns: u64) -> u64 {
        let bytes = (u128::from(self.highest()) * u128::from(time_ns)) >> 20;
        bytes.min(IN_FLIGHT_MOST.into()) as u64
    }
}

fn median(mut values: [u32; RUN]) -> u32 {
    values.sort_unstable();
    values[RUN / 2]
}

/// The delay of a path's frames in queues: their transit time above the smallest of the current and
/// the previous period. Clocks of the two ends are not synchronised, and may drift by 50 ppm, 1 us
/// in a period.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QueueDelay {
    least: u32,
    previous: u32,
    ends_ns: u64,
}

impl QueueDelay {
    /// Takes a transit time modulo 2^32 ns, and returns the delay. `least` is the smallest transit
    /// time known from a longer period.
    pub(crate) fn on_frame(&mut self, transit: u32, least: u32, now_ns: u64) -> u64 {
        if now_ns >= self.ends_ns {
            // After a pause, the long period's minimum.
            let fresh = self.ends_ns == 0 || now_ns - self.ends_ns > PERIOD_NS;
            self.previous = if fresh { least } else { self.least };
            self.least = if fresh { least } else { transit };
            self.ends_ns = now_ns + PERIOD_NS;
        }
        let above = |least: u32| transit.wrapping_sub(least) as i32;
        if above(self.least) < 0 {
            self.least = transit;
        }
        above(self.least).max(above(self.previous)).max(0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a frame on the wire.
    const FRAME: u32 = 1_138;

    /// A budget of at most `most` frames, each of which takes about `frame_ns` on the link.
    fn size(most: u32, frame_ns: u64) -> Size {
        let mut size = Size::new(u64::from(FRAME) * 8_000_000_000 / frame_ns);
        size.add_endpoint(FRAME, u64::from(most) * u64::from(FRAME));
        size
    }

    fn frames(size: &Size) -> u64 {
        size.bytes() / u64::from(FRAME)
    }

    /// A frame arrives while messages wait for the budget.
    fn frame(size: &mut Size, delay: (u64, u64), messages: u32, now_ns: u64) {
        size.on_bytes(FRAME.into(), now_ns);
        let (queue_ns, base_ns) = delay;
        size.on_delay(Delays { queue_ns, host_ns: 0, base_ns }, (messages, true), now_ns);
    }

    /// Runs frames through a link with `base_ns` and this size's queue; returns the mean size.
    fn settle(size: &mut Size, base_ns: u64, packet_ns: u64, jitter_ns: u64) -> u64 {
        let (mut now_ns, mut sum) = (1, 0);
        for n in 0..40_000_u64 {
            now_ns += packet_ns;
            let in_flight_ns = frames(size) * packet_ns;
            let queued_ns = in_flight_ns.saturating_sub(base_ns);
            let late_ns = (n * 7919) % (jitter_ns + 1);
            frame(size, (queued_ns + late_ns, base_ns), 20, now_ns);
            sum += if n >= 30_000 { frames(size) } else { 0 };
        }
        sum / 10_000
    }

    #[test]
    fn the_budget_settles_above_the_bandwidth_delay_product() {
        for (base_ns, packet_ns) in [(5_200, 364), (1_000, 364), (100_000, 90), (25_000, 23)] {
            let mut size = size(100_000, packet_ns);
            let (mean, bdp) = (settle(&mut size, base_ns, packet_ns, 0), base_ns / packet_ns);
            assert!(mean >= bdp * 97 / 100, "{base_ns}, {packet_ns}: {mean} of {bdp}");
            assert!(mean <= bdp * 16 / 10 + 6, "{base_ns}, {packet_ns}: {mean} of {bdp}");
        }
    }

    #[test]
    fn delays_of_single_frames_do_not_shrink_it() {
        let mut size = size(100_000, 364);
        let mean = settle(&mut size, 5_200, 364, 20_000);
        assert!(mean >= 5_200 / 364, "{mean}");
    }

    /// A receiver that delays each frame by `host_ns` behind a link whose queue follows the budget; returns
    /// the mean size, packets.
    fn settle_behind(size: &mut Size, packet_ns: u64, host_ns: impl Fn(u64) -> u64) -> u64 {
        let (base_ns, mut now_ns, mut sum) = (2_800, 1, 0);
        for n in 0..40_000_u64 {
            now_ns += packet_ns;
            let host_ns = host_ns(frames(size));
            // Senders wait as long as the receiver does.
            let queue_ns = (frames(size) * 364).saturating_sub(base_ns + 2 * host_ns);
            let allowed_ns = (host_ns as u32).min(HOST_WAIT_NS);
            let queue_ns = queue_ns + host_ns - u64::from(allowed_ns);
            let delays = Delays { queue_ns, host_ns: allowed_ns, base_ns };
            size.on_bytes(FRAME.into(), now_ns);
            size.on_delay(delays, (20, true), now_ns);
            sum += if n >= 30_000 { frames(size) } else { 0 };
        }
        sum / 10_000
    }

    #[test]
    fn waits_of_hosts_do_not_shrink_it() {
        // To keep the link busy takes what the path holds and what waits in hosts: 118 packets.
        let mean = settle_behind(&mut size(100_000, 364), 364, |_| 20_000);
        assert!((118..=180).contains(&mean), "{mean}");
    }

    #[test]
    fn a_receiver_that_cannot_keep_up_shrinks_it() {
        // Frames take 650 ns in the host, behind all that are in flight.
        let mean = settle_behind(&mut size(100_000, 364), 650, |frames| frames * 650);
        assert!((30..=130).contains(&mean), "{mean}");
    }

    #[test]
    fn frames_that_wait_elsewhere_do_not_shrink_it() {
        // Frames may wait in this host, too.
        for (host_ns, base_ns, queue_ns) in [(0, 5_200, 20_000), (HOST_WAIT_NS, 26_000, 60_000)] {
            let mut size = size(100_000, 364);
            let mut now_ns = 1;
            // A frame each `apart_ns`; returns the packets at the end.
            let mut delayed = |size: &mut Size, apart_ns: u64| {
                for _ in 0..20_000 {
                    now_ns += apart_ns;
                    size.on_bytes(FRAME.into(), now_ns);
                    size.on_delay(Delays { queue_ns, host_ns, base_ns }, (2, true), now_ns);
                }
                frames(size)
            };
            assert_eq!(delayed(&mut size, 364), 2, "at the rate of the link a queue shrinks it");
            let overcommitted = delayed(&mut size, 728);
            let (least_ns, most_ns) = (4 * base_ns, 6 * base_ns + 3 * queue_ns);
            assert!((least_ns / 364..=most_ns / 364).contains(&overcommitted), "{overcommitted}");
            assert_eq!(delayed(&mut size, 364), 2);
        }
    }

    #[test]
    fn small_frames_do_not_pass_for_a_faster_link() {
        let mut size = size(100_000, 364);
        let mut now_ns = 1;
        for n in 0..40_000 {
            // Sixteen small frames in the time of a full one, then full ones alone.
            let small = n < 20_000;
            now_ns += if small { 23 } else { 364 };
            size.on_bytes(if small { 71 } else { FRAME.into() }, now_ns);
            size.on_delay(
                Delays { queue_ns: 20_000, host_ns: 0, base_ns: 5_200 },
                (2, true),
                now_ns,
            );
        }
        assert_eq!(frames(&size), 2, "the link is full, so its queue shrinks the budget");
    }

    #[test]
    fn a_rate_and_round_trips_that_senders_feign_overflow_nothing() {
        let (long_ns, mut now_ns) = ((1 << 31) - 1, 1);
        let mut size = size(u32::MAX, 364);
        for n in 0..100_000_u64 {
            let is_burst = n % 400 < 200;
            now_ns += if is_burst { u64::from(n % 65 == 0) } else { long_ns / 32 };
            frame(&mut size, (0, if is_burst { 1 } else { long_ns }), u32::MAX, now_ns);
        }
        assert!(frames(&size) >= 2);
    }

    #[test]
    fn it_does_not_grow_unless_messages_wait() {
        let mut size = size(100_000, 364);
        for n in 0..10_000 {
            let now_ns = 1 + n * 364;
            size.on_bytes(FRAME.into(), now_ns);
            size.on_delay(Delays { queue_ns: 0, host_ns: 0, base_ns: 5_200 }, (20, false), now_ns);
        }
        assert_eq!(frames(&size), 32);
    }

    #[test]
    fn a_longer_route_is_no_queue_after_two_periods() {
        let mut delay = QueueDelay::default();
        let mut now_ns = 0;
        let mut seen = |transit: u32, time_ns: u64| {
            let mut last = 0;
            for _ in 0..time_ns / 1_000 {
                now_ns += 1_000;
                last = delay.on_frame(transit, 500, now_ns);
            }
            last
        };
        assert_eq!(seen(500, 50_000_000), 0);
        assert_eq!(seen(10_500, 5_000_000), 10_000);
        assert_eq!(seen(10_500, 45_000_000), 0);
    }
}
