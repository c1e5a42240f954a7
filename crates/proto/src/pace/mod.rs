//! Pacing: the departure times of a client's packets, request packets and requests-for-response
//! (E49, E51, E70).
//!
//! A paced path has a [`Pacer`]. Packets do not wait in the pacer: a slot whose packet is early waits
//! in the queue of its peer's credit pool, and the [`Wheel`] has one entry for the peer. When the
//! entry expires the waiting sessions take turns, as after a credit return. So the wheel refers to no
//! message buffer: a response that arrives while a copy of its request waits completes the call, and
//! the copy is never sent (E69); a session that fails leaves nothing in the wheel (E67).

mod wheel;

pub(crate) use wheel::Wheel;

/// Longest gap between two packets, ns.
const GAP_MAX_NS: u64 = 100_000_000;

/// Longest burst of a paced path, ns.
const BURST_NS: u64 = 10_000;

/// Bytes that count at once, at most: their time is computed in 64 bits. Responses that one
/// request-for-response asks for are fewer.
const BYTES_MAX: u64 = 1 << 36;
const _: () = assert!(GAP_MAX_NS.checked_mul(BYTES_MAX).is_some());

/// The departure times of one path.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Pacer {
    /// Time of a packet, ns; not 0.
    gap_ns: u64,
    /// Packets that leave together: a train of the transport, or what the rate allows in
    /// [`BURST_NS`].
    quantum: u32,
    /// Earliest departure of the next packet, ns.
    next_ns: u64,
    /// Packets wait for their departure time, or have waited and are sent in the current turn.
    late: bool,
}

impl Pacer {
    /// Sets the gap between packets. A transport's trains have `train` frames. The next departure is
    /// at most a gap ahead: a shorter gap takes effect at once.
    pub(crate) fn set_gap(&mut self, gap_ns: u64, train: u32, now_ns: u64) {
        self.gap_ns = gap_ns.clamp(1, GAP_MAX_NS);
        self.next_ns = self.next_ns.min(now_ns + self.gap_ns);
        self.quantum = ((BURST_NS / self.gap_ns) as u32).clamp(1, train.max(1));
    }

    /// Packets that may leave now, or the time when the next burst may.
    pub(crate) fn allowed(&self, now_ns: u64) -> Result<u32, u64> {
        let early_ns = self.gap_ns * u64::from(self.quantum - 1);
        if now_ns < self.next_ns {
            return Err(self.next_ns + early_ns);
        }
        Ok(((now_ns - self.next_ns) / self.gap_ns + 1).min(self.quantum.into()) as u32)
    }

    /// Records whether packets wait for the time that [`Pacer::allowed`] has returned.
    pub(crate) fn set_late(&mut self, late: bool) {
        self.late = late;
    }

    /// Records that `bytes` leave, of which a full-sized packet has `per_packet`. After a pause a
    /// train leaves at once, and no more. Packets that have waited leave late by a part of a slot of
    /// the wheel and by a pass of the event loop: the times of the packets behind them are not
    /// shifted, or every departure would take a whole number of slots. More than [`BURST_NS`] is not
    /// made up for. Without this burst a slow event loop would send one packet in each pass.
    pub(crate) fn on_sent(&mut self, bytes: u64, per_packet: u64, now_ns: u64) {
        let train_ns = self.gap_ns * u64::from(self.quantum - 1);
        let behind_ns = if self.late { train_ns.max(BURST_NS) } else { train_ns };
        let earliest_ns = now_ns.saturating_sub(behind_ns);
        let time_ns = (self.gap_ns * bytes.min(BYTES_MAX)).div_ceil(per_packet.max(1));
        self.next_ns = self.next_ns.max(earliest_ns).saturating_add(time_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_leave_a_gap_apart() {
        let mut p = Pacer::default();
        p.set_gap(100, 1, 0);
        assert_eq!(p.allowed(1_000), Ok(1), "a pause is not made up for");
        p.on_sent(16, 16, 1_000);
        assert_eq!(p.allowed(1_050), Err(1_100));
        assert_eq!(p.allowed(1_100), Ok(1));
        p.on_sent(4, 16, 1_100); // a quarter of a packet
        assert_eq!(p.allowed(1_125), Ok(1));
    }

    /// Packets that leave at once at `now_ns`, up to 1,000.
    fn burst(p: &mut Pacer, now_ns: u64) -> u32 {
        let mut burst = 0;
        while burst < 1_000 && p.allowed(now_ns).is_ok() {
            p.on_sent(16, 16, now_ns);
            burst += 1;
        }
        burst
    }

    /// A pacer of packets 100 ns apart, whose packet has waited until it was 900 ns late.
    fn late() -> Pacer {
        let mut p = Pacer::default();
        p.set_gap(100, 1, 0);
        p.on_sent(16, 16, 100_000);
        assert_eq!(p.allowed(100_000), Err(100_100));
        p.set_late(true);
        p.on_sent(16, 16, 101_000);
        p
    }

    #[test]
    fn a_late_departure_does_not_outlive_the_wait_that_caused_it() {
        let mut waits = late();
        assert_eq!(burst(&mut waits, 101_000), 9, "those behind it are in time");
        let mut ended = late();
        ended.set_late(false);
        assert_eq!(burst(&mut ended, 105_000), 1, "4 us later nothing has waited");
        let mut again = late();
        again.set_late(false);
        again.set_late(true);
        assert!(burst(&mut again, 105_000) > 1);
    }

    #[test]
    fn the_longest_gap_and_the_most_bytes_do_not_overflow() {
        let mut p = Pacer::default();
        p.set_gap(u64::MAX, 1, 0);
        p.on_sent(u64::MAX, 0, u64::MAX);
        assert_eq!(p.allowed(u64::MAX - 1), Err(u64::MAX));
    }

    /// Time in which packets of this gap leave, when each waits for a multiple of `step_ns`.
    fn time_of(packets: u32, gap_ns: u64, step_ns: u64) -> u64 {
        let mut p = Pacer::default();
        p.set_gap(gap_ns, 1, 0);
        let mut now_ns = 1_000_000;
        let begin_ns = now_ns;
        for _ in 0..packets {
            while let Err(at_ns) = p.allowed(now_ns) {
                p.set_late(true);
                now_ns = at_ns.next_multiple_of(step_ns);
            }
            p.on_sent(16, 16, now_ns);
        }
        now_ns - begin_ns
    }

    #[test]
    fn slots_of_the_wheel_do_not_lower_the_rate() {
        for gap_ns in [50, 410, 513, 1_000] {
            let time_ns = time_of(1_001, gap_ns, 512);
            assert!(time_ns >= 1_000 * gap_ns - 512, "{gap_ns}: {time_ns}, too fast");
            assert!(time_ns <= 1_000 * gap_ns + 512, "{gap_ns}: {time_ns}, too slow");
        }
    }

    #[test]
    fn a_packet_that_is_late_by_more_than_a_burst_is_not_made_up_for() {
        let mut p = Pacer::default();
        p.set_gap(1_000, 1, 0);
        p.on_sent(16, 16, 100_000);
        assert!(p.allowed(100_000).is_err());
        p.set_late(true);
        assert_eq!(u64::from(burst(&mut p, 900_000)), 1 + BURST_NS / 1_000);
        assert!(p.allowed(900_500).is_err());
        p.set_late(false);
        assert_eq!(burst(&mut p, 1_900_000), 1);
    }

    #[test]
    fn a_train_leaves_together() {
        let mut p = Pacer::default();
        p.set_gap(1_000, 44, 0);
        p.on_sent(10, 1, 100_000);
        let Err(at_ns) = p.allowed(100_000) else { panic!("ten packets take 10 us") };
        assert_eq!(p.allowed(at_ns), Ok(10));
    }
}
