//! The world of a seed: topology, hosts, settings, workload and faults, all drawn from the seed.

use std::fmt;
use std::time::Duration;

use courser::{Admission, Config, Control, Integrity, Packing, Recovery};

use super::client::{LanePlan, Mix, Pace};
use super::crowd::{self, Crowd};
use super::dice::{Dice, MS, US};
use super::draw_faults::draw_faults;
use super::edges::{BY_BYTES_CALLS, Edges, LOSSY_CALLS};
use super::edges::{close_often, fill_by_bytes, only_lose};
use super::faults::{Fault, FaultKind, Planned};
use super::kinds::Kind;
use super::messages::MessageMix;
use super::oracle::Allowed;
use crate::fabric::{Buffer, CableSpec, LeafSpine, Marking, Pfc, SwitchSpec, Topology};
use crate::{Checks, CpuCosts, NicConfig, Rng, WorldConfig};

/// Purposes of random streams.
mod purpose {
    pub(super) const WORLD: u64 = 0x5a_0001;
    pub(super) const WORK: u64 = 0x5a_0002;
    pub(super) const FAULTS: u64 = 0x5a_0003;
    pub(super) const EDGES: u64 = 0x5a_0004;
    pub(super) const MESSAGES: u64 = 0x5a_0005;
    pub(super) const MORE: u64 = 0x5a_0006;
}

/// All decisions about a seed's world before it starts.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The seed.
    pub seed: u64,
    pub(super) world: WorldConfig,
    pub(super) shape: &'static str,
    pub(super) endpoints: usize,
    pub(super) mix: Mix,
    pub(super) messages: MessageMix,
    pub(super) lanes: Vec<LanePlan>,
    /// Number of calls.
    pub(super) calls: u64,
    /// Faults start and end before this.
    pub(super) stormy_ns: u64,
    pub(super) faults: Vec<Planned>,
    pub(super) edges: Edges,
    pub(super) allowed: Allowed,
    /// At the end one machine crashes for good, instead of a close of all sessions.
    pub(super) vanishes: bool,
    /// The seed is a congested world, which has nothing of the above.
    pub(super) crowd: Option<Box<Crowd>>,
}

impl Scenario {
    /// The world of a seed.
    pub fn draw(seed: u64) -> Scenario {
        let mut rng = Rng::stream(seed, purpose::WORLD);
        let (topology, shape) = draw_topology(&mut rng);
        let hosts = topology.hosts();
        let mut world = WorldConfig::new(seed, topology);
        world.nic = draw_nic(&mut rng);
        world.costs = draw_costs(&mut rng);
        world.nexus = draw_config(&mut rng);
        world.control_latency_ns = rng.one(&[5, 20, 20, 200]) * US;
        world.connect_retry_ns = 5 * MS;
        // Some handlers panic on purpose.
        world.checks = Checks { record: true, handler_panics: false, ..Checks::default() };
        let mut endpoints = rng.one(&[1, 1, 2, 3]);
        // Later additions are drawn last, so that they change no other draw.
        world.recovery = draw_recovery(&mut rng);
        world.nexus.tuning.prefetch_min_sessions = rng.one(&[0, 512, 512]); // calls are deferred, or not
        // Lone packets have a time of sending, or not.
        world.nexus.tuning.timestamp_interval = Duration::from_micros(rng.one(&[0, 4, 100]));
        // Transmit staging areas that are too small for all frames.
        world.nexus.tuning.tx_frames = rng.one(&[128, 128, 128, 2]);
        world.nexus.tuning.tx_items = rng.one(&[64, 64, 64, 3]);
        let packs = rng.one(&[true, true, true, false]);
        world.control = draw_control(&mut rng);
        // Packets of uncongested paths pass controller and pacer too, or not.
        world.nexus.tuning.factors.update_bypass = rng.one(&[true, true, true, false]);
        world.nexus.tuning.factors.pacing_bypass = rng.one(&[true, true, true, false]);
        draw_nacks(&mut rng, &mut world.recovery);
        // Frames have a checksum, or not; if they have, NICs may leave it to them to find changes.
        let integrity = rng.one(&[Integrity::None, Integrity::Crc]);
        world.nexus.integrity = Some(integrity);
        world.nic.finds_changes = integrity == Integrity::None || rng.once_in(2);
        draw_packing(&mut rng, packs, &mut world);

        let mut rng = Rng::stream(seed, purpose::WORK);
        let stormy_ns = rng.between(20, 70) * MS;
        let mut calls = rng.between(2_000, 4_200);
        let mut mix = draw_mix(&mut rng, &world);
        let mut lanes = draw_lanes(&mut rng, hosts, endpoints, calls, stormy_ns);

        let mut rng = Rng::stream(seed, purpose::FAULTS);
        let mut faults = draw_faults(&mut rng, &world.topology, &lanes, stormy_ns);
        let mut corner = Rng::stream(seed, purpose::EDGES);
        let mut edges = Edges::draw(&mut corner, stormy_ns);
        let mut more = Rng::stream(seed, purpose::MORE);
        edges.draw_more(&mut more);
        world.numbers = edges.numbers;
        if edges.reuses {
            close_often(&mut corner, &mut mix, &lanes, &mut faults, stormy_ns);
        } else if edges.only_loses {
            calls = LOSSY_CALLS;
            only_lose(&mut corner, &mut world, &mut mix, &mut lanes, &mut faults, stormy_ns);
        } else if edges.by_bytes {
            (calls, endpoints) = (BY_BYTES_CALLS, 1);
            fill_by_bytes(&mut more, &mut world, &mut mix, &mut lanes, &mut faults);
        } else {
            draw_more(&mut more, &mut world, &mut mix, &mut faults);
        }
        let congested = world.nic.rx_queue < 256 || has_small_buffers(&world.topology);
        let allowed = Allowed {
            peers_fail: faults.iter().any(|f| f.fault.loses_peers()),
            silence: congested || faults.iter().any(|f| f.fault.silences()),
            closes: faults.iter().any(|f| f.fault.kind() == FaultKind::Close),
            crashes: faults.iter().any(|f| f.fault.kind() == FaultKind::Crash),
            drift: faults.iter().any(|f| f.fault.kind() == FaultKind::Drift),
            refusals: world.nexus.admission == Admission::Strict,
            // A burst of handlers before, and the scan for time-outs, which runs every 10 ms when
            // bursts are full.
            late_ns: 11 * MS + 64 * (mix.slow_ns + faults.iter().map(slows_ns).sum::<u64>()),
            no_memory: world.nexus.max_held_per_peer < 64 << 20
                || world.nexus.memory_limit < 64 << 20,
        };
        let mut rng_of_messages = Rng::stream(seed, purpose::MESSAGES);
        let mut messages = MessageMix::draw(&mut rng_of_messages, &mut world);
        if edges.only_loses || edges.by_bytes {
            // The expected cost of losses is that of calls.
            messages.burst_ppm = 0;
        }
        let vanishes = hosts > 1 && rng.once_in(3) && !edges.only_loses;
        Scenario {
            seed,
            world,
            shape,
            endpoints,
            mix,
            messages,
            lanes,
            calls,
            stormy_ns,
            faults,
            edges,
            allowed,
            vanishes,
            crowd: crowd::is_crowd(seed).then(|| Box::new(Crowd::draw(seed))),
        }
    }

    /// Hosts of its world.
    pub fn hosts(&self) -> u32 {
        self.crowd.as_ref().map_or(self.world.topology.hosts(), |crowd| crowd.hosts())
    }

    /// Limit of a call's time after all faults, ns of virtual time: until a failed peer was
    /// noticed, a session that cannot be connected was given up, the longest handler has answered
    /// and every time-out has expired after its backoff; then `open` calls follow each other
    /// through one session with one credit, a share of them answered late.
    pub(super) fn bound_ns(&self, open: u64) -> u64 {
        let c = &self.world.nexus;
        let ns = |d: Duration| d.as_nanos() as u64;
        let noticed = 2 * (ns(c.failure_timeout) + ns(c.datapath_timeout) + ns(c.connect_timeout));
        let packets = 2 * (self.mix.large / self.mix.packet) + 4;
        // With one slot the calls of a session follow each other, and a late response takes 0.07 of
        // `later_ns` on average.
        let late = self.mix.later_ns / (10 * c.slots as u64);
        let slowest = self.slowest_rtt_ns() + self.mix.slow_ns;
        noticed
            + 20 * ns(c.rto.1)
            + 2 * self.mix.later_ns
            + 50 * MS
            + open * (packets * slowest + late)
    }

    /// Approximate round trip of a packet behind others.
    fn slowest_rtt_ns(&self) -> u64 {
        let slowest = self.world.topology.cables().iter().map(|c| c.spec.rate_bps).min();
        let bits = 8 * self.world.nic.max_frame as u64;
        let packet_ns =
            (u128::from(bits) * 1_000_000_000 / u128::from(slowest.unwrap_or(1))) as u64;
        4 * packet_ns + 40 * US
    }
}

fn slows_ns(planned: &Planned) -> u64 {
    match planned.fault {
        Fault::SlowHandler { ns, .. } => ns,
        _ => 0,
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(crowd) = &self.crowd {
            return crowd.fmt(f);
        }
        let w = &self.world;
        let hosts = w.topology.hosts();
        writeln!(
            f,
            "seed {}: {}, {hosts} hosts with {} endpoints",
            self.seed, self.shape, self.endpoints
        )?;
        if let Some(s) = w.topology.switches().first() {
            let SwitchSpec { cut_through, buffer, marking, pfc, .. } = s;
            writeln!(f, "  switches: cut-through {cut_through}, {buffer:?}, {marking:?}, {pfc:?}")?;
        }
        writeln!(f, "  {:?}", w.nic)?;
        let c = &w.nexus;
        writeln!(
            f,
            "  recovery {}, integrity {}, control {} (bypasses {} and {}), slots {}, credits {:?} ({:?}), rto {:?} to {:?}, datapath {:?}, failure {:?}, idle \
             {:?}, inline {}, queue {}, workers {} with {}, held {} B, memory {} B, far from {}, \
             times every {:?}, stages of {} frames and {} items, packing {} (from {} B) within {:?}",
            w.recovery.iter().map(|r| r.name()).collect::<Vec<_>>().join(" and "),
            c.integrity.unwrap_or_default(),
            w.control.iter().map(|c| c.name()).collect::<Vec<_>>().join(" and "),
            c.tuning.factors.update_bypass,
            c.tuning.factors.pacing_bypass,
            c.slots,
            c.credits,
            c.admission,
            c.rto.0,
            c.rto.1,
            c.datapath_timeout,
            c.failure_timeout,
            c.idle_after,
            c.inline_max,
            c.call_queue,
            c.workers,
            c.worker_queue,
            c.max_held_per_peer,
            c.memory_limit,
            c.tuning.prefetch_min_sessions,
            c.tuning.timestamp_interval,
            c.tuning.tx_frames,
            c.tuning.tx_items,
            w.packing.iter().map(|p| p.name()).collect::<Vec<_>>().join(" and "),
            c.tuning.gather_from,
            c.batch_budget,
        )?;
        let (calls, lanes) = (self.calls, self.lanes.len());
        writeln!(
            f,
            "  {calls} calls over {lanes} sessions; faults until {} us:",
            self.stormy_ns / US
        )?;
        for planned in &self.faults {
            writeln!(f, "    {planned}")?;
        }
        writeln!(f, "    queues of {} messages, {:?}", c.message_queue, self.messages)?;
        let Edges { numbers, idle_first_ns, .. } = self.edges;
        writeln!(f, "    request numbers {numbers:?}, idle before for {} us", idle_first_ns / US)?;
        if self.vanishes {
            writeln!(f, "    at the end, one machine crashes")?;
        }
        Ok(())
    }
}

fn draw_topology(rng: &mut Rng) -> (Topology, &'static str) {
    let cable = CableSpec {
        rate_bps: rng.one(&[10, 25, 25, 100]) * 1_000_000_000,
        delay_ns: rng.one(&[15, 100, 1_000, 5_000]),
    };
    let switch = draw_switch(rng, &cable);
    let (topology, shape) = match rng.below(10) {
        0..2 => (Topology::two_hosts(), "two hosts, one cable"),
        2..7 => (Topology::one_switch(rng.between(2, 8) as u32), "one switch"),
        _ => {
            let spec = LeafSpine {
                leaves: 2,
                hosts_per_leaf: rng.between(1, 4) as u32,
                spines: rng.between(1, 3) as u32,
                ..LeafSpine::default()
            };
            (Topology::leaf_spine(spec), "leaf and spine")
        }
    };
    let topology = topology.each_switch(|_, s| *s = switch).each_cable(|c| c.spec = cable);
    (topology, shape)
}

fn draw_switch(rng: &mut Rng, cable: &CableSpec) -> SwitchSpec {
    let mut spec = SwitchSpec {
        latency_ns: rng.one(&[0, 300, 300, 1_500]),
        cut_through: rng.once_in(2),
        marking: match rng.below(3) {
            0 => Marking::Off,
            1 => Marking::Step { k_bytes: rng.between(3_000, 60_000) },
            _ => Marking::Red { min_bytes: 5_000, max_bytes: 100_000, pmax_ppm: 100_000 },
        },
        ..SwitchSpec::default()
    };
    spec.buffer = match rng.below(8) {
        0 => Buffer::PerPort { bytes: rng.between(12_000, 60_000) },
        1 => Buffer::Shared { bytes: rng.between(40_000, 300_000), alpha_num: 1, alpha_den: 2 },
        2 => Buffer::PerPort { bytes: rng.between(60_000, 480_000) },
        _ => Buffer::default(),
    };
    if spec.buffer == Buffer::default() && rng.once_in(3) {
        let headroom = Pfc::headroom_for(cable.rate_bps, cable.delay_ns, spec.latency_ns, 9_100);
        spec.pfc = Some(Pfc { xoff_bytes: 30_000, xon_bytes: 15_000, headroom_bytes: headroom });
    }
    spec
}

/// Returns whether the hosts' credits together can repeatedly overflow a switch's buffer.
fn has_small_buffers(topology: &Topology) -> bool {
    topology.switches().iter().any(|s| s.buffer != Buffer::default())
}

fn draw_nic(rng: &mut Rng) -> NicConfig {
    NicConfig {
        rx_queue: rng.one(&[4_096, 4_096, 4_096, 1_024, 256, 64, 16]),
        tx_queue: rng.one(&[1_024, 1_024, 256, 64, 8, 2]),
        max_frame: rng.one(&[1_472, 1_472, 1_472, 600, 4_096, 8_900]),
        rx_latency_ns: rng.one(&[0, 400, 400, 2_000]),
        tx_latency_ns: rng.one(&[0, 400, 400, 2_000]),
        finds_changes: true,
        ..NicConfig::default()
    }
}

fn draw_costs(rng: &mut Rng) -> CpuCosts {
    let mut costs = match rng.below(6) {
        0 => CpuCosts::none(),
        1..3 => CpuCosts::erpc(),
        _ => CpuCosts::courser(),
    };
    costs.wakeup_ns = rng.one(&[0, 0, 1_000, 20_000]);
    if rng.once_in(6) {
        // A CPU a tenth as fast.
        costs.rx_packet_ns *= 10;
        costs.tx_packet_ns *= 10;
        costs.pass_ns *= 10;
    }
    costs
}

/// Draws receive queues that hold more small frames than large ones, calls as futures, and changed
/// frames whose check value is nearly right. They have random numbers of their own, so that older
/// choices keep their values.
fn draw_more(rng: &mut Rng, world: &mut WorldConfig, mix: &mut Mix, faults: &mut [Planned]) {
    world.nic.small_per_descriptor = rng.one(&[1, 1, 1, 4, 16]);
    mix.awaited_ppm = rng.one(&[0, 0, 30_000, 200_000]);
    mix.patience_ns = rng.one(&[100 * US, MS, 20 * MS]);
    if world.nic.finds_changes {
        return;
    }
    for planned in faults {
        if let Fault::Links { faults, .. } = &mut planned.fault
            && faults.corrupt_ppm > 0
        {
            faults.near_miss_ppm = 500_000;
        }
    }
}

/// Settings scaled to the simulated network: seconds in production are tens of milliseconds here.
fn draw_config(rng: &mut Rng) -> Config {
    let rto_min_us = rng.one(&[50, 100, 200, 500, 1_000]);
    let rto_max_us = rto_min_us.max(rng.one(&[500, 1_000, 2_000, 5_000]));
    let ms = Duration::from_millis;
    Config {
        slots: rng.one(&[1, 2, 4, 8, 8, 8, 16, 32]),
        credits: rng.one(&[None, None, Some(1), Some(2), Some(4), Some(8), Some(16), Some(64)]),
        admission: if rng.once_in(5) { Admission::Strict } else { Admission::Oversubscribed },
        max_msg_size: rng.one(&[64 << 10, 256 << 10, 1 << 20]),
        memory_limit: rng.one(&[256 << 20, 256 << 20, 256 << 20, 8 << 20]),
        call_queue: rng.one(&[1_024, 1_024, 64, 4]),
        max_held_per_peer: rng.one(&[256 << 20, 256 << 20, 256 << 20, 200 << 10]),
        idle_after: Duration::from_micros(rto_min_us.max(rng.one(&[500, 2_000, 5_000, 20_000]))),
        connect_timeout: ms(rng.one(&[10, 30])),
        failure_timeout: ms(rng.one(&[10, 20, 40])),
        rto: (Duration::from_micros(rto_min_us), Duration::from_micros(rto_max_us)),
        datapath_timeout: Duration::from_micros(rng.between(12, 24) * rto_max_us.max(1_500)),
        inline_max: rng.one(&[1_280, 512, 0, 64, 2_048]),
        workers: rng.one(&[1, 2, 4]),
        worker_queue: rng.one(&[1_024, 64, 2]),
        ..Config::default()
    }
}

/// How the hosts in turn pack small packets, and how long frames may wait for more of them.
fn draw_packing(rng: &mut Rng, packs: bool, world: &mut WorldConfig) {
    let ways = [Packing::Copy, Packing::Gather, Packing::Off];
    world.packing = match packs {
        true => (0..rng.between(1, 3)).map(|_| rng.one(&ways)).collect(),
        false => vec![Packing::Off],
    };
    world.nexus.tuning.gather_from = rng.one(&[1, 64, 300]);
    if rng.once_in(4) {
        world.nexus.batch_budget = world.nexus.rto.0 / rng.one(&[4, 8, 50]);
    }
}

/// The schemes of the hosts in turn: one of them for all, or two or three of them mixed.
fn draw_recovery(rng: &mut Rng) -> Vec<Recovery> {
    let schemes = [Recovery::GoBackN, Recovery::Melo, Recovery::Selective];
    (0..rng.between(1, 3)).map(|_| rng.one(&schemes)).collect()
}

/// Go-back-N goes back on NACKs, or only on timeouts.
fn draw_nacks(rng: &mut Rng, schemes: &mut [Recovery]) {
    for scheme in schemes.iter_mut().filter(|scheme| **scheme == Recovery::GoBackN) {
        *scheme = rng.one(&[Recovery::GoBackN, Recovery::GoBackNNack]);
    }
}

/// The congestion controls of the hosts in turn: mostly the default.
fn draw_control(rng: &mut Rng) -> Vec<Control> {
    let draw = |rng: &mut Rng| match rng.below(2) {
        0 => Control::default(),
        _ => rng.one(&Control::ALL),
    };
    (0..rng.between(1, 3)).map(|_| draw(rng)).collect()
}

fn draw_mix(rng: &mut Rng, world: &WorldConfig) -> Mix {
    let mut kinds = vec![(Kind::Echo, 100)];
    for (kind, most) in [
        (Kind::Later, 40),
        (Kind::Nested, 20),
        (Kind::Work, 30),
        (Kind::Keep, 20),
        (Kind::Slow, 6),
        (Kind::Refuse, 4),
        (Kind::Forget, 3),
        (Kind::Panic, 2),
        (Kind::Unknown, 3),
    ] {
        if !rng.once_in(4) {
            kinds.push((kind, rng.between(1, most) as u32));
        }
    }
    let packet = world.nic.max_frame as u64 - 64;
    let most = u64::from(world.nexus.max_msg_size);
    Mix {
        kinds,
        packet,
        some_packets_ppm: rng.one(&[20_000, 60_000, 150_000]),
        large_ppm: rng.one(&[0, 2_000, 8_000]),
        large: rng.one(&[32 << 10, 64 << 10, 200 << 10]).min(most),
        deadline_ppm: rng.one(&[0, 0, 30_000, 200_000]),
        deadline_ns: rng.one(&[100 * US, MS, 8 * MS]),
        cancel_ppm: rng.one(&[0, 0, 10_000, 80_000]),
        cancel_ns: rng.one(&[30 * US, 300 * US, 5 * MS]),
        tagged_ppm: rng.one(&[0, 500_000, 1_000_000]),
        later_ns: rng.one(&[100 * US, 2 * MS, 30 * MS]),
        slow_ns: rng.one(&[10 * US, 100 * US]),
        awaited_ppm: 0,
        patience_ns: 0,
    }
}

fn draw_lanes(
    rng: &mut Rng,
    hosts: u32,
    endpoints: usize,
    calls: u64,
    stormy_ns: u64,
) -> Vec<LanePlan> {
    let mut lanes = Vec::new();
    // All hosts with all, or many with few: incast.
    let servers =
        if rng.once_in(3) { rng.between(1, 2).min(u64::from(hosts)) as u32 } else { hosts };
    let per_pair = rng.one(&[1, 1, 2, 3]);
    for host in 0..hosts {
        for to in (0..hosts).filter(|&to| to != host) {
            if to >= servers && (host >= servers || !rng.once_in(3)) {
                continue;
            }
            for _ in 0..per_pair {
                let chosen = rng.below(endpoints as u64) as usize;
                lanes.push(LanePlan {
                    host,
                    endpoint: rng.below(endpoints as u64) as usize,
                    to,
                    to_endpoint: (!rng.once_in(3)).then_some(chosen),
                    pace: Pace::Idle,
                });
            }
        }
    }
    let own = lanes.len();
    // Handlers that call have sessions for that: if calls to each other's callers occupied the
    // other sessions' slots, none could make progress.
    for host in 0..hosts {
        for endpoint in 0..endpoints {
            let to = (host + 1 + rng.below(u64::from(hosts) - 1) as u32) % hosts;
            lanes.push(LanePlan { host, endpoint, to, to_endpoint: None, pace: Pace::Nested });
        }
    }
    let (lanes_own, _) = lanes.split_at_mut(own);
    // So that the calls last about as long as the faults.
    let each = (calls / own as u64).max(1);
    let hurried = rng.once_in(4);
    for lane in &mut *lanes_own {
        lane.pace = match rng.below(8) {
            0 => Pace::Idle,
            1..3 => {
                let burst = rng.one(&[2, 8, 40]);
                Pace::Open { burst, every_ns: stormy_ns * u64::from(burst) / each }
            }
            _ => {
                let window = rng.one(&[1, 1, 4, 16]);
                let think_ns = stormy_ns * u64::from(window) / each;
                Pace::Closed { window, think_ns: if hurried { 0 } else { think_ns } }
            }
        };
    }
    if lanes_own.iter().all(|l| l.pace == Pace::Idle) {
        lanes_own[0].pace = Pace::Closed { window: 16, think_ns: 16 * stormy_ns / calls };
    }
    lanes
}
