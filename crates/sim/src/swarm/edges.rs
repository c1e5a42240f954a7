//! Cases that the ordinary draws of a seed rarely reach: counters near their wrap, sessions that
//! end and start in quick succession while handlers still run for them, and losses without other
//! faults, so that the cost of recovery can be bounded. Drawn after all else, from a stream of its
//! own.

use std::time::Duration;

use courser::{Admission, Control, EndpointStats, Recovery};

use super::client::{LanePlan, Mix, Pace};
use super::dice::{Dice, MS, US};
use super::faults::{Fault, FaultKind, Planned};
use super::kinds::Kind;
use crate::fabric::{Buffer, LinkFaults, Topology};
use crate::host::costs::CpuCosts;
use crate::host::machine::Numbers;
use crate::{LinkId, Rng, WorldConfig};

/// When the wire's clock wraps: 2^32 ns.
const WIRE_CLOCK_NS: u64 = 1 << 32;

/// The edge cases of a seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Edges {
    pub(super) numbers: Numbers,
    /// The processes run for this time before anything else happens, ns.
    pub(super) idle_first_ns: u64,
    /// Sessions are closed again and again.
    pub(super) reuses: bool,
    /// Packets are lost and there is no other fault: the cost of recovery is checked.
    pub(super) only_loses: bool,
    /// Receive queues hold more small frames than large ones, and there is no fault: credits keep them
    /// from overflowing.
    pub(super) by_bytes: bool,
}

impl Edges {
    pub(super) fn draw(rng: &mut Rng, stormy_ns: u64) -> Edges {
        let numbers = rng.one(&[
            Numbers::Anywhere,
            Numbers::Anywhere,
            Numbers::NearWrap,
            Numbers::NearWrap,
            Numbers::Same,
        ]);
        // The wire's clock wraps during the faults.
        let idle_first_ns =
            if rng.once_in(6) { WIRE_CLOCK_NS - rng.between(MS, stormy_ns) } else { 0 };
        let only_loses = rng.once_in(10);
        let reuses = numbers == Numbers::Same && !only_loses;
        Edges { numbers, idle_first_ns, reuses, only_loses, by_bytes: false }
    }

    /// Draws the cases that were added later, from a stream of their own.
    pub(super) fn draw_more(&mut self, rng: &mut Rng) {
        self.by_bytes = rng.once_in(12) && !self.only_loses && !self.reuses;
    }
}

/// The longest delay of a packet where sessions are closed often, ns: less than the time of a
/// connect. A later packet would be accepted by the next session: random request numbers
/// distinguish the two, and all sessions of such a world start with the same number.
const LATE_NS: u64 = 5 * US;

/// Sessions are closed again and again, with responses outstanding that take longer than that. No
/// host is paused: it would keep received packets for longer too, and answer them afterwards.
pub(super) fn close_often(
    rng: &mut Rng,
    mix: &mut Mix,
    lanes: &[LanePlan],
    faults: &mut Vec<Planned>,
    stormy_ns: u64,
) {
    mix.kinds.push((Kind::Later, 100));
    mix.later_ns = mix.later_ns.max(2 * MS);
    faults.retain(|planned| !matches!(planned.fault, Fault::Pause { .. }));
    for planned in faults.iter_mut() {
        if let Fault::Links { faults, .. } = &mut planned.fault {
            faults.reorder_max_ns = faults.reorder_max_ns.min(LATE_NS);
            faults.extra_delay_ns = faults.extra_delay_ns.min(LATE_NS);
        }
    }
    for _ in 0..rng.between(10, 40) {
        let at_ns = rng.below(stormy_ns * 9 / 10);
        let lane = &lanes[rng.below(lanes.len() as u64) as usize];
        let among = lanes.iter().filter(|l| (l.host, l.endpoint) == (lane.host, lane.endpoint));
        let number = rng.below(among.count() as u64) as usize;
        let fault = Fault::Close { host: lane.host, endpoint: lane.endpoint, lane: number };
        faults.push(Planned { at_ns, until_ns: at_ns + 1, fault });
    }
    faults.sort_by_key(|f| f.at_ns);
}

/// Calls of a world that only loses packets: most messages are of many packets.
pub(super) const LOSSY_CALLS: u64 = 400;

/// Sessions that make them: few, so that each has good estimates of its path.
const LOSSY_LANES: usize = 4;

/// Packets of the longest messages.
const LOSSY_PACKETS: u32 = 64;

/// Packets are lost, and there is no other fault: queues are long, calls do not compete, handlers
/// answer at once.
pub(super) fn only_lose(
    rng: &mut Rng,
    world: &mut WorldConfig,
    mix: &mut Mix,
    lanes: &mut [LanePlan],
    faults: &mut Vec<Planned>,
    stormy_ns: u64,
) {
    let topology = world.topology.clone();
    world.topology = topology.each_switch(|_, s| (s.buffer, s.pfc) = (Buffer::default(), None));
    world.recovery = vec![Recovery::Selective];
    world.costs = CpuCosts::courser();
    (world.nic.rx_queue, world.nic.tx_queue) = (4_096, 1_024);
    world.nexus.admission = Admission::Oversubscribed;
    world.nexus.credits = rng.one(&[None, Some(16), Some(64)]);
    (world.nexus.memory_limit, world.nexus.max_held_per_peer) = (256 << 20, 256 << 20);
    mix.kinds = vec![(Kind::Echo, 100)];
    (mix.some_packets_ppm, mix.large_ppm) = (100_000, 800_000);
    world.nic.max_frame = rng.one(&[600, 1_472]);
    world.nexus.max_msg_size = 1 << 20;
    mix.packet = world.nic.max_frame as u64 - 64;
    mix.large = u64::from(LOSSY_PACKETS) * mix.packet;
    (mix.deadline_ppm, mix.cancel_ppm) = (0, 0);
    for (at, lane) in lanes.iter_mut().filter(|l| l.pace != Pace::Nested).enumerate() {
        let think_ns = stormy_ns * LOSSY_LANES as u64 / LOSSY_CALLS;
        let busy = Pace::Closed { window: 1, think_ns };
        lane.pace = if at < LOSSY_LANES { busy } else { Pace::Idle };
    }
    let links: Vec<LinkId> = (0..2 * world.topology.cables().len() as u32).map(LinkId).collect();
    let loss_ppm = rng.one(&[3_000, 10_000]);
    let kind = FaultKind::Loss;
    let fault =
        Fault::Links { kind, links, faults: LinkFaults { loss_ppm, ..LinkFaults::default() } };
    *faults = vec![Planned { at_ns: 200 * US, until_ns: stormy_ns, fault }];
}

/// Calls of a world whose receive queues have room by bytes.
pub(super) const BY_BYTES_CALLS: u64 = 1_500;

/// One host calls another, whose receive queue is short and holds many more small frames than large
/// ones. There is no fault, and timeouts are so long that no packet is sent twice: what is in flight is
/// what the credits allow.
pub(super) fn fill_by_bytes(
    rng: &mut Rng,
    world: &mut WorldConfig,
    mix: &mut Mix,
    lanes: &mut Vec<LanePlan>,
    faults: &mut Vec<Planned>,
) {
    world.topology = Topology::two_hosts();
    world.recovery = vec![Recovery::GoBackN];
    world.control = vec![Control::None];
    world.costs = CpuCosts::courser();
    world.nic.max_frame = rng.one(&[1_472, 4_096]);
    (world.nic.rx_queue, world.nic.tx_queue) = (rng.one(&[16, 64]), 1_024);
    (world.nic.small_per_descriptor, world.nic.small_frame) = (rng.one(&[4, 16]), 256);
    world.nexus.admission = Admission::Oversubscribed;
    world.nexus.credits = Some(64);
    world.nexus.slots = 32;
    world.nexus.max_msg_size = 1 << 20;
    (world.nexus.memory_limit, world.nexus.max_held_per_peer) = (256 << 20, 256 << 20);
    world.nexus.rto = (Duration::from_millis(20), Duration::from_millis(20));
    world.nexus.datapath_timeout = Duration::from_millis(500);
    world.nexus.idle_after = Duration::from_millis(40);
    world.nexus.batch_budget = Duration::ZERO;
    // A slow server lets its receive queue fill.
    mix.kinds = vec![(Kind::Echo, 60), (Kind::Slow, 40)];
    (mix.slow_ns, mix.later_ns) = (20 * US, 100 * US);
    mix.packet = world.nic.max_frame as u64 - 64;
    (mix.some_packets_ppm, mix.large_ppm) = (300_000, 0);
    (mix.deadline_ppm, mix.cancel_ppm) = (0, 0);
    let plan = |to_endpoint| LanePlan { host: 0, endpoint: 0, to: 1, to_endpoint, pace: BUSY };
    *lanes = vec![plan(Some(0)), plan(Some(0)), plan(None)];
    faults.clear();
}

/// A session that always has calls.
const BUSY: Pace = Pace::Closed { window: 32, think_ns: 0 };

/// Fewer losses are not significant.
const LOSSES_LEAST: u64 = 120;

/// Cost of recovery from losses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Cost {
    /// Timeouts.
    timeouts: u64,
    retransmitted: u64,
    spurious: u64,
    /// Losses detected because later packets had arrived.
    found: u64,
}

impl Cost {
    pub(super) fn add(&mut self, stats: &EndpointStats) {
        self.timeouts += stats.rollbacks + stats.probes;
        self.retransmitted += stats.retransmitted;
        self.spurious += stats.spurious;
        self.found += stats.lost;
    }

    /// Excessive cost, if any, when losses were the only fault, with `credits` for each session
    /// (`None`: the default, a window of half the longest message).
    ///
    /// Packets after a lost one reveal its loss without a timeout. In messages that are longer than
    /// the window most losses are found that way: 0.12 to 0.54 timeouts for each, 0.66 to 1.6
    /// without early detection. A message that fits the window is sent at once and can have ended
    /// before a loss in it is found, so that a timeout may be as early: 0.28 to 0.80, and 0.67 to
    /// 1.9.
    pub(super) fn too_dear(&self, lost: u64, credits: Option<u32>) -> Option<String> {
        let &Cost { timeouts, retransmitted, spurious, found } = self;
        if lost < LOSSES_LEAST {
            return None;
        }
        let fits = credits.is_some_and(|c| c >= LOSSY_PACKETS);
        let timeouts_most = if fits { lost } else { lost * 7 / 10 };
        let dear = timeouts > timeouts_most || retransmitted > lost * 3 / 2 || spurious > lost / 2;
        dear.then(|| {
            format!(
                "{lost} frames were lost, and {timeouts} timeouts came of it: {found} packets were \
                 found lost early, {retransmitted} sent again, {spurious} of them needlessly"
            )
        })
    }
}
