//! The faults of a seed: kind, place, time.

use courser_proto::wire::PacketKind;

use super::client::LanePlan;
use super::dice::{Dice, MS, US};
use super::faults::{Fault, FaultKind, Planned, burst, flap};
use crate::fabric::{LinkFaults, Topology};
use crate::{HostId, LinkId, Rng};

/// Most faults of a seed.
const MOST: u64 = 7;

/// Draws the faults; none in every eighth seed.
pub(super) fn draw_faults(
    rng: &mut Rng,
    topology: &Topology,
    lanes: &[LanePlan],
    stormy_ns: u64,
) -> Vec<Planned> {
    if rng.once_in(8) {
        return Vec::new();
    }
    let mut faults = Vec::new();
    for _ in 0..rng.between(1, MOST) {
        let kind = FaultKind::ALL[rng.below(FaultKind::COUNT as u64) as usize];
        // Some last to the end, most for a part of the time.
        let at_ns = rng.below(stormy_ns * 9 / 10);
        let most_ns = (stormy_ns - at_ns).max(2);
        let lasts_ns = match rng.below(3) {
            0 => rng.between(1, most_ns.min(2 * MS)),
            1 => rng.between(1, most_ns),
            _ => most_ns,
        };
        let fault = draw_fault(rng, kind, topology, lanes);
        faults.push(Planned { at_ns, until_ns: at_ns + lasts_ns, fault });
    }
    faults.sort_by_key(|f| f.at_ns);
    faults
}

fn draw_fault(rng: &mut Rng, kind: FaultKind, topology: &Topology, lanes: &[LanePlan]) -> Fault {
    let hosts = topology.hosts();
    let count = 2 * topology.cables().len() as u32;
    let host = HostId(rng.below(u64::from(hosts)) as u32);
    let link = LinkId(rng.below(u64::from(count)) as u32);
    let everywhere: Vec<LinkId> = (0..count).map(LinkId).collect();
    let cable = vec![link, link.reverse()];
    let none = LinkFaults::default();
    let links = |links, faults| Fault::Links { kind, links, faults };
    match kind {
        FaultKind::Loss => {
            let loss_ppm = rng.one(&[1_000, 10_000, 30_000, 100_000]);
            links(everywhere, LinkFaults { loss_ppm, ..none })
        }
        FaultKind::LinkLoss => {
            let loss_ppm = rng.one(&[10_000, 30_000, 200_000]);
            links(cable, LinkFaults { loss_ppm, ..none })
        }
        FaultKind::OneWayLoss => {
            let loss_ppm = rng.one(&[10_000, 30_000, 300_000]);
            links(vec![link], LinkFaults { loss_ppm, ..none })
        }
        FaultKind::Burst => {
            let enter = rng.one(&[500, 5_000, 20_000]);
            let faults = burst(enter, rng.one(&[20_000, 100_000, 500_000]), 700_000);
            links(if rng.once_in(2) { everywhere } else { cable }, faults)
        }
        FaultKind::Duplicate => {
            let duplicate_ppm = rng.one(&[10_000, 100_000, 400_000]);
            links(everywhere, LinkFaults { duplicate_ppm, ..none })
        }
        FaultKind::Reorder => {
            let reorder_ppm = rng.one(&[5_000, 50_000, 300_000]);
            let reorder_max_ns = rng.one(&[5 * US, 100 * US, 2 * MS, 8 * MS]);
            links(everywhere, LinkFaults { reorder_ppm, reorder_max_ns, ..none })
        }
        FaultKind::UnequalPaths => {
            let extra_delay_ns = rng.one(&[5 * US, 50 * US, 500 * US]);
            links(cable, LinkFaults { extra_delay_ns, ..none })
        }
        FaultKind::Corrupt => {
            let corrupt_ppm = rng.one(&[1_000, 20_000]);
            links(everywhere, LinkFaults { corrupt_ppm, ..none })
        }
        FaultKind::Flap => {
            let up_ns = rng.between(500 * US, 8 * MS);
            links(cable, flap(up_ns, rng.between(20 * US, 3 * MS)))
        }
        FaultKind::Predicate => {
            let packets = rng.one(&[
                PacketKind::Request,
                PacketKind::CreditReturn,
                PacketKind::Rfr,
                PacketKind::Response,
                PacketKind::Response,
                PacketKind::Ack,
                PacketKind::Cancel,
                PacketKind::Nack,
                PacketKind::Gap,
            ]);
            Fault::Predicate { link, packets, every: rng.one(&[2, 4, 5, 20]) }
        }
        FaultKind::Partition => {
            let side: Vec<HostId> = (0..hosts).map(HostId).filter(|_| rng.once_in(2)).collect();
            let side =
                if side.is_empty() || side.len() == hosts as usize { vec![host] } else { side };
            Fault::Partition { groups: vec![side] }
        }
        FaultKind::LinkDown => Fault::LinkDown { link },
        FaultKind::Pause => Fault::Pause { host },
        FaultKind::Kill => Fault::Kill { host },
        FaultKind::Crash => Fault::Crash { host },
        FaultKind::Drift => {
            Fault::Drift { host, ppm: rng.one(&[-100, 100, -5_000, 5_000, -100_000, 100_000]) }
        }
        FaultKind::SlowHandler => {
            Fault::SlowHandler { host, ns: rng.one(&[5 * US, 20 * US, 100 * US]) }
        }
        FaultKind::Starvation => Fault::Starvation { host, descriptors: rng.one(&[0, 1, 4, 16]) },
        FaultKind::Close => {
            let lane = &lanes[rng.below(lanes.len() as u64) as usize];
            let among = lanes.iter().filter(|l| (l.host, l.endpoint) == (lane.host, lane.endpoint));
            let number = rng.below(among.count() as u64) as usize;
            Fault::Close { host: lane.host, endpoint: lane.endpoint, lane: number }
        }
    }
}
