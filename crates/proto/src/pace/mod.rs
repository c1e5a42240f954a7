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

    /// Records that `units` of which a packet has `per_packet` leave. After a pause a
    /// train leaves at once, and no more.
    pub(crate) fn on_sent(&mut self, units: u32, per_packet: u32, now_ns: u64) {
        let train_ns = self.gap_ns * u64::from(self.quantum - 1);
        let earliest_ns = now_ns.saturating_sub(train_ns);
        let time_ns =
            (u128::from(self.gap_ns) * u128::from(units)).div_ceil(per_packet.max(1).into());
        self.next_ns = self.next_ns.max(earliest_ns).saturating_add(time_ns as u64);
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

    #[test]
    fn a_train_leaves_together() {
        let mut p = Pacer::default();
        p.set_gap(1_000, 44, 0);
        p.on_sent(10, 1, 100_000);
        let Err(at_ns) = p.allowed(100_000) else { panic!("ten packets take 10 us") };
        assert_eq!(p.allowed(at_ns), Ok(10));
    }
}
