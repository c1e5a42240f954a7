//! The checks of a congested world.
//!
//! Bounds are those that shapes of hosts are to meet (`courser-lab sim run shapes`) with room for what is
//! known to be short: a round trip of four times that of the idle network, or that and the time of 12
//! packets; a slowest sender with 0.7 of the mean; no packet sent again. A sender to many hosts has a
//! queue in its own NIC, which is bounded by the NIC only.

use super::draw::{Crowd, Pattern};
use super::recorder::Seen;
use super::totals::Totals;
use crate::Invariant;

/// Least share of the slowest sender in the mean, percent, by pattern. Of one sender to many each
/// receiver has to get something only.
const SLOWEST_INCAST: u64 = 60;
const SLOWEST_ALL: u64 = 10;

/// Least use of the receiver's link in an incast, percent.
const USED: u64 = 70;

/// Round trips of an incast: times the target.
const TIMES_TARGET: u64 = 2;

/// Round trips all to all: packets in flight of the sessions that meet at a link.
const PACKETS_ALL: u64 = 192;

/// Packets that a flow may send again without a loss, on average: the first waits for grants are longer
/// than any estimate.
const AGAIN: u64 = 5;

/// The violated invariants.
pub(super) fn judge(
    crowd: &Crowd,
    base_rtt_ns: u64,
    seen: &Seen,
    totals: &Totals,
) -> Vec<(Invariant, String)> {
    let failed = totals.failed.as_ref().map(|e| format!("a call has failed: {e}"));
    let missing = totals.missing;
    let open = (missing > 0).then(|| format!("{missing} sessions are not connected"));
    let all = [
        (Invariant::Application, failed),
        (Invariant::Liveness, open),
        // Before the starvation that it causes.
        (Invariant::Queue, queue(crowd, base_rtt_ns, seen)),
        (Invariant::Starvation, starvation(crowd, seen)),
        (Invariant::Recovery, again(crowd, totals)),
    ];
    all.into_iter().filter_map(|(invariant, detail)| Some((invariant, detail?))).collect()
}

/// A host gets too small a part of what all get, or the link that they share is idle.
fn starvation(crowd: &Crowd, seen: &Seen) -> Option<String> {
    let shares = || crowd.shares(&seen.bytes);
    let (sum, least) = (shares().sum::<u64>(), shares().min().unwrap_or(0));
    let mean = sum / shares().count().max(1) as u64;
    let percent = least * 100 / mean.max(1);
    let least_percent = match crowd.pattern {
        Pattern::Incast => SLOWEST_INCAST,
        Pattern::AllToAll => SLOWEST_ALL,
        Pattern::OneToMany => 0,
    };
    if percent < least_percent || least == 0 {
        return Some(format!("the slowest host has {percent} % of the mean of {mean} B"));
    }
    let line = u128::from(crowd.rate_bps) * u128::from(crowd.end_ns - crowd.warm_up_ns);
    let used = u128::from(sum) * 8_000_000_000 * 100 / line;
    (crowd.pattern == Pattern::Incast && used < u128::from(USED))
        .then(|| format!("{used} % of the receiver's link are used"))
}

/// Round trips are too long.
fn queue(crowd: &Crowd, base_rtt_ns: u64, seen: &Seen) -> Option<String> {
    let p99_ns = seen.rtts.quantile_ns(0.99).unwrap_or(0);
    let longest_ns = longest_ns(crowd, base_rtt_ns);
    (p99_ns > longest_ns).then(|| {
        format!(
            "the 99th percentile of round trips is {p99_ns} ns, at most {longest_ns} are expected of \
             a base of {base_rtt_ns}"
        )
    })
}

/// The limit of the 99th percentile of round trips, ns.
fn longest_ns(crowd: &Crowd, base_rtt_ns: u64) -> u64 {
    let packets_ns = |packets: u64| packets * crowd.packet_ns();
    let target_ns = (4 * base_rtt_ns).max(base_rtt_ns + packets_ns(12));
    let queues_ns = match crowd.pattern {
        Pattern::Incast => TIMES_TARGET * target_ns,
        Pattern::AllToAll => base_rtt_ns + packets_ns(PACKETS_ALL),
        Pattern::OneToMany => base_rtt_ns + packets_ns(crowd.world.nic.tx_queue as u64) * 5 / 4,
    };
    queues_ns + 4 * crowd.jitter_ns
}

/// Packets were sent again, and none was lost.
fn again(crowd: &Crowd, totals: &Totals) -> Option<String> {
    let flows = crowd.flows.len() as u64;
    let Totals { dropped, again, probes, rollbacks, taken_for_lost, .. } = *totals;
    (dropped == 0 && again > AGAIN * flows).then(|| {
        format!(
            "{again} packets of {flows} sessions were sent again, and none was lost: {probes} probes, \
             {rollbacks} timeouts, {taken_for_lost} taken for lost"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE_NS: u64 = 3_000;

    /// An incast whose hosts each have sent their part of the link.
    fn fair() -> (Crowd, Seen) {
        let crowds = (0..100).map(Crowd::draw);
        let found = crowds.into_iter().find(|crowd| crowd.pattern == Pattern::Incast);
        let crowd = found.expect("an incast");
        let mut seen = Seen::new(&crowd);
        let time_ns = u128::from(crowd.end_ns - crowd.warm_up_ns);
        let line = (u128::from(crowd.rate_bps) * time_ns / 8_000_000_000) as u64;
        let part = line / crowd.flows.len() as u64;
        seen.bytes[1..].fill(part);
        seen.rtts.record(BASE_NS);
        (crowd, seen)
    }

    fn found(crowd: &Crowd, seen: &Seen, totals: &Totals) -> Vec<Invariant> {
        judge(crowd, BASE_NS, seen, totals).into_iter().map(|(invariant, _)| invariant).collect()
    }

    #[test]
    fn equal_shares_and_short_queues_violate_nothing() {
        let (crowd, seen) = fair();
        assert!(found(&crowd, &seen, &Totals::default()).is_empty());
    }

    #[test]
    fn a_slow_host_and_an_idle_link_are_starvation() {
        let (crowd, mut seen) = fair();
        seen.bytes[1] /= 2;
        assert_eq!(found(&crowd, &seen, &Totals::default()), [Invariant::Starvation]);
        let (crowd, mut seen) = fair();
        seen.bytes.iter_mut().for_each(|bytes| *bytes /= 2);
        assert_eq!(found(&crowd, &seen, &Totals::default()), [Invariant::Starvation]);
    }

    #[test]
    fn long_round_trips_are_a_queue() {
        let (crowd, mut seen) = fair();
        seen.rtts.record(longest_ns(&crowd, BASE_NS) * 2);
        assert_eq!(found(&crowd, &seen, &Totals::default()), [Invariant::Queue]);
    }

    #[test]
    fn packets_sent_again_are_a_violation_unless_some_were_lost() {
        let (crowd, seen) = fair();
        let again = AGAIN * crowd.flows.len() as u64 + 1;
        let totals = Totals { again, ..Totals::default() };
        assert_eq!(found(&crowd, &seen, &totals), [Invariant::Recovery]);
        assert!(found(&crowd, &seen, &Totals { dropped: 1, ..totals }).is_empty());
    }
}
