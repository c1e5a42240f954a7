//! The load of a shape: hosts, their requests and calls, disturbances, and the network.

use courser::Control;
use courser_sim::fabric::{
    Buffer, CableSpec, DCQCN_MARKING, HOST_DELAY_NS, HOST_RATE_BPS, Marking, Node, SwitchSpec,
    Topology,
};
use courser_sim::{Checks, HostId, Rng, WorldConfig};

use crate::declare::parameter::{Nested, bytes, count, flag, name, named, parameters, rate, time};
use crate::scenario::hosts::Hosts;
use crate::scenario::{MAX_TIME_NS, ScenarioError, check, data_per_packet, wire_bytes, wire_ns};

/// Where small calls come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// Hosts of their own.
    Others,
    /// The endpoints of the senders.
    Senders,
}

named!(Source {
    Source::Others => "others", "Hosts of their own";
    Source::Senders => "senders", "The endpoints of the senders";
});

/// Small calls in flight of a host that has no other.
const SMALL_PER_HOST: u32 = 16;
/// Bytes of a small call.
pub(super) const SMALL_BYTES: usize = 32;
/// Highest rate of a link, which stands for "not set".
const MOST_BPS: u64 = 1_600_000_000_000;
/// Longest warm-up, ns: shares are those after 20 ms.
const WARM_UP_NS: u64 = 20_000_000;
/// Time after the last start within which the first packets may meet in a queue, ns.
const FIRST_PACKETS_NS: u64 = 1_000_000;

/// Shortest mean time between two rests or pauses, ns.
const SHORTEST_REST_NS: u64 = 10_000;

parameters! {
    /// Settings of a run.
    #[derive(Copy, Eq)]
    pub struct Load {
        /// All hosts
        hosts: Hosts = Hosts { max_frame: 1_472, ..Hosts::default() }, Nested;
        /// Sending hosts
        senders: u32 = 20, count(1..=999).option("senders");
        /// Receiving hosts; each sender sends to each
        receivers: u32 = 1, count(1..=999).option("receivers");
        /// Each sender sends to one receiver only; there are as many receivers as senders
        pairs: bool = false, flag().option("pairs");
        /// Endpoints of a receiving host, which senders use in turn
        endpoints: u32 = 1, count(1..=64).option("endpoints");
        /// Smallest request
        least_bytes: usize = 1 << 20, bytes(1..=8 << 20).option("min-size");
        /// Largest request; logarithms of sizes between the two are uniform
        most_bytes: usize = 1 << 20, bytes(1..=8 << 20).option("size");
        /// Requests in flight of a sender to a receiver
        lanes: u32 = 1, count(1..=64).option("lanes");
        /// Small calls of 32 bytes in flight to the first receiver
        small: u32 = 0, count(0..=4_096).option("small");
        /// Source of the small calls
        small_from: Source = Source::Others, name::<Source>().option("small-from");
        /// Small calls end when the measurement begins
        small_ends: bool = false, flag().option("small-ends");
        /// Time within which senders start, each at a random moment
        starts_ns: u64 = 1_000_000, time(0..=MAX_TIME_NS).option("starts");
        /// Mean of the times for which a sender sends, and rests; 0 for no rest
        churn_ns: u64 = 0, time(0..=MAX_TIME_NS).option("churn");
        /// Longest delay of a frame at its receiving host; each is random, and frames stay in order
        jitter_ns: u64 = 0, time(0..=1_000_000_000).option("jitter");
        /// Mean time between pauses of a host, each of 1 ms; 0 for none
        pause_every_ns: u64 = 0, time(0..=MAX_TIME_NS).option("pause-every");
        /// CPU time of a receiver for each packet
        packet_ns: u64 = 0, time(0..=1_000_000).option("packet-time");
        /// CPU time of a receiver for each request
        handler_ns: u64 = 0, time(0..=1_000_000_000).option("handler");
        /// Rate of the hosts' cables
        rate_bps: u64 = HOST_RATE_BPS, rate(1_000_000_000..=MOST_BPS).option("rate");
        /// Rate of the senders' cables; the highest is that of all hosts
        sender_rate_bps: u64 = MOST_BPS, rate(1_000_000_000..=MOST_BPS).option("sender-rate");
        /// Rate of a cable between the senders' and the receivers' switch; the highest is one switch
        uplink_bps: u64 = MOST_BPS, rate(1_000_000_000..=MOST_BPS).option("uplink");
        /// Cables between the switches; each flow takes one of them
        paths: u32 = 1, count(1..=64).option("paths");
        /// Rate of the last of these cables; the highest is that of the others
        slow_path_bps: u64 = MOST_BPS, rate(1_000_000_000..=MOST_BPS).option("slow-path");
        /// Delay of a host's cable
        delay_ns: u64 = HOST_DELAY_NS, time(0..=1_000_000).option("delay");
        /// Buffer of each port of a switch; 0 for one that all ports share
        buffer_bytes: u64 = 0, bytes(0..=u64::MAX).option("buffer-bytes");
        /// Bytes of a shared buffer, of which a port may take eight ninths
        shared_bytes: u64 = 12_000_000, bytes(1..=u64::MAX).option("shared-bytes");
        /// Virtual time of a run; the first 20 ms, at most a third of it, are a warm-up
        duration_ns: u64 = 200_000_000, time(100_000..=MAX_TIME_NS).option("duration");
    }
}

impl Load {
    /// Checks the settings that depend on each other, and times of which a run would have too many.
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        let (least, most) = (self.least_bytes, self.most_bytes);
        check(least <= most, "least_bytes", least, "at most the largest request")?;
        for (name, time_ns) in
            [("churn_ns", self.churn_ns), ("pause_every_ns", self.pause_every_ns)]
        {
            let is_seldom = time_ns == 0 || time_ns >= SHORTEST_REST_NS;
            check(is_seldom, name, time_ns, "0, or at least 10 us")?;
        }
        Ok(())
    }

    pub(super) fn warm_up_ns(&self) -> u64 {
        WARM_UP_NS.min(self.duration_ns / 3)
    }

    /// When the first packets of all senders have passed.
    pub(super) fn first_packets_ns(&self) -> u64 {
        (self.starts_ns + FIRST_PACKETS_NS).min(self.warm_up_ns())
    }

    pub(super) fn sending(&self) -> std::ops::Range<u32> {
        0..self.senders
    }

    pub(super) fn receiving(&self) -> std::ops::Range<u32> {
        let receivers = if self.pairs { self.senders } else { self.receivers };
        self.senders..self.senders + receivers
    }

    /// Hosts that only make small calls, each with its number of them in flight.
    pub(super) fn callers(&self) -> impl Iterator<Item = (u32, u32)> + use<> {
        let small = if self.small_from == Source::Others { self.small } else { 0 };
        let (first, hosts) = (self.receiving().end, small.div_ceil(SMALL_PER_HOST));
        (0..hosts).map(move |n| (first + n, SMALL_PER_HOST.min(small - n * SMALL_PER_HOST)))
    }

    /// Small calls in flight of each sender.
    pub(super) fn small_of_sender(&self) -> u32 {
        if self.small_from == Source::Senders { self.small.div_ceil(self.senders) } else { 0 }
    }

    /// The receivers of a sender.
    pub(super) fn receivers_of(&self, sender: u32) -> std::ops::Range<u32> {
        let all = self.receiving();
        if self.pairs { all.start + sender..all.start + sender + 1 } else { all }
    }

    /// Data of a packet of large requests: full packets, unless the largest request is less.
    pub(super) fn data_of_packet(&self) -> usize {
        data_per_packet(self.hosts.max_frame).min(self.most_bytes)
    }

    pub(super) fn flows(&self) -> usize {
        self.sending().map(|sender| self.receivers_of(sender).len()).sum()
    }

    fn sender_rate_bps(&self) -> u64 {
        self.sender_rate_bps.min(self.rate_bps)
    }

    /// The rate of the narrowest place, bit/s: the senders' cables together, those of the receivers,
    /// or those between the switches.
    fn narrowest_bps(&self) -> u64 {
        let senders = self.sender_rate_bps() * u64::from(self.senders);
        let receivers = self.rate_bps * self.receiving().len() as u64;
        let path =
            |n: u32| if n + 1 == self.paths { self.last_path_bps() } else { self.uplink_bps };
        let paths = (0..self.paths).map(path).fold(0, u64::saturating_add);
        senders.min(receivers).min(paths)
    }

    fn last_path_bps(&self) -> u64 {
        self.slow_path_bps.min(self.uplink_bps)
    }

    /// Time that the narrowest place takes for a full packet, ns.
    pub(super) fn packet_time_ns(&self) -> u64 {
        let full = wire_bytes(data_per_packet(self.hosts.max_frame));
        wire_ns(full, self.narrowest_bps().min(self.rate_bps))
    }

    /// Bytes on the wire as a share of those that the narrowest place could carry.
    pub(super) fn share_of_line(&self, wire_bytes: u64, time_ns: u64) -> f64 {
        let most = self.narrowest_bps() as f64 / 8e9 * time_ns as f64;
        wire_bytes as f64 / most
    }

    /// Hosts: senders, receivers, those of small calls.
    fn topology(&self) -> Topology {
        let hosts = self.receiving().end + self.callers().count() as u32;
        let mut topology = Topology::new(hosts);
        let buffer = match self.buffer_bytes {
            0 => Buffer::Shared { bytes: self.shared_bytes, alpha_num: 8, alpha_den: 1 },
            bytes => Buffer::PerPort { bytes },
        };
        let spec = SwitchSpec { buffer, marking: self.marking(), ..SwitchSpec::default() };
        let near = Node::Switch(topology.add_switch(spec));
        let far = if self.uplink_bps == MOST_BPS {
            near
        } else {
            let far = Node::Switch(topology.add_switch(spec));
            for path in 0..self.paths {
                let is_last = path + 1 == self.paths;
                let rate_bps = if is_last { self.last_path_bps() } else { self.uplink_bps };
                topology.add_cable(near, far, CableSpec { rate_bps, ..CableSpec::uplink() });
            }
            far
        };
        for host in 0..hosts {
            let (switch, rate_bps) = match self.sending().contains(&host) {
                true => (near, self.sender_rate_bps()),
                false => (far, self.rate_bps),
            };
            let cable = CableSpec { rate_bps, delay_ns: self.delay_ns };
            topology.add_cable(Node::Host(HostId(host)), switch, cable);
        }
        topology
    }

    /// DCQCN has switches that mark, from queues on that are as long in time as at 25 Gbit/s.
    fn marking(&self) -> Marking {
        let scaled = |bytes: u64| bytes * self.rate_bps / HOST_RATE_BPS;
        match (self.hosts.control, DCQCN_MARKING) {
            (Control::Dcqcn, Marking::Red { min_bytes, max_bytes, pmax_ppm }) => Marking::Red {
                min_bytes: scaled(min_bytes),
                max_bytes: scaled(max_bytes),
                pmax_ppm,
            },
            _ => Marking::Off,
        }
    }

    /// The world. Controls of papers are told the base round trip, as they state it for their network.
    pub(super) fn config(&self, base_rtt_ns: u64) -> WorldConfig {
        let sessions = self.senders.max(self.receiving().len() as u32) + self.small;
        let mut config = self.hosts.config(self.topology(), sessions);
        config.nexus.tuning.base_rtt = std::time::Duration::from_nanos(base_rtt_ns);
        config.nexus.memory_limit = 4 << 30;
        config.checks = Checks { at_most_once: false, every_passes: 4_096, ..Checks::default() };
        config
    }

    /// A generator of a host's random choices.
    pub(super) fn rng(&self, host: u32, purpose: u64) -> Rng {
        Rng::stream(self.hosts.seed, 1 << 40 | u64::from(host) << 8 | purpose)
    }

    /// The same without what disturbs or loads the network: single packets of one sender.
    pub(super) fn idle(&self) -> Load {
        let packet = data_per_packet(self.hosts.max_frame);
        Load {
            hosts: Hosts { control: Control::None, seed: 1, ..self.hosts },
            senders: 1,
            receivers: 1,
            pairs: false,
            endpoints: 1,
            least_bytes: packet,
            most_bytes: packet,
            lanes: 1,
            paths: 1,
            slow_path_bps: MOST_BPS,
            duration_ns: 300_000 + 16 * self.delay_ns,
            rate_bps: self.rate_bps,
            sender_rate_bps: self.sender_rate_bps,
            uplink_bps: self.uplink_bps,
            delay_ns: self.delay_ns,
            starts_ns: 0,
            ..Load::default()
        }
    }

    /// The same without control, over switches with room for all windows.
    pub(super) fn without_control(&self) -> Load {
        let hosts = Hosts { control: Control::None, ..self.hosts };
        let Load { shared_bytes, .. } = Load::default();
        Load { hosts, buffer_bytes: 0, shared_bytes, ..*self }
    }

    /// The same without small calls.
    pub(super) fn without_small(&self) -> Load {
        Load { small: 0, small_ends: false, ..*self }
    }
}
