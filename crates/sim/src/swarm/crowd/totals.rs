//! Counts of a congested world at its end.

use courser::SessionState;

use super::client::Tally;
use super::draw::Crowd;
use crate::World;

/// Counts at the end of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Totals {
    /// Calls that ended with the right response.
    pub(super) calls: u64,
    /// The error of the first call that failed.
    pub(super) failed: Option<String>,
    /// Sessions that were not connected.
    pub(super) missing: usize,
    /// Packets that were dropped anywhere.
    pub(super) dropped: u64,
    /// Packets that clients sent again, and stored responses that servers did.
    pub(super) again: u64,
    pub(super) probes: u64,
    pub(super) rollbacks: u64,
    /// Packets taken for lost because later ones had arrived.
    pub(super) taken_for_lost: u64,
}

impl Totals {
    pub(super) fn of(world: &World, crowd: &Crowd, tally: &Tally) -> Totals {
        let drops = world.fabric().drops().into_iter().chain(world.counts().dropped);
        let mut totals = Totals {
            calls: tally.ended,
            failed: tally.failed.clone(),
            dropped: drops.sum(),
            ..Totals::default()
        };
        for host in world.hosts() {
            for endpoint in 0..crowd.endpoints_of(host.0) {
                let Some(rpc) = world.peek(host, endpoint as usize) else { continue };
                let stats = rpc.stats();
                totals.again += stats.retransmitted + stats.responses_resent;
                totals.probes += stats.probes;
                totals.rollbacks += stats.rollbacks;
                totals.taken_for_lost += stats.lost;
                let open = |s: &_| rpc.session_state(*s) != SessionState::Connected;
                totals.missing += rpc.sessions_from(0).filter(open).count();
            }
        }
        totals
    }
}
