//! Settings and limits of an endpoint, each with its cost.

use serde::{Deserialize, Serialize};

use crate::cc::constants::{DcqcnConstants, TimelyConstants};
use crate::cc::control::Control;
use crate::factors::Factors;
use crate::loss::Recovery;
use crate::wire::{MAX_MSG_SIZE, MIN_DATA_PER_PACKET};

/// Upper limit of [`Config::max_sessions`].
pub(crate) const SESSIONS_LIMIT: usize = 1 << 20;

/// How sessions share the endpoint's receive queue (ADR 7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Admission {
    /// The credits of all sessions together never exceed the receive queue: at most |RQ|/C
    /// sessions, and no packet is lost to a full queue `[eRPC §4.3.1]` (E34).
    Strict,
    /// Any number of sessions. Those of one client endpoint share a credit pool: a session takes as
    /// many credits as it has packets in flight, up to C, and an idle one none. When the pool is
    /// empty, sessions wait and are served round robin (E36). A pool grows with sessions to at most
    /// half of the receive queue that other peers leave, or of the queue that the peer has for
    /// itself ([`Config::rx_queue_per_peer`]). Every peer has at least one credit: the queue can be
    /// overrun only with more peers than it has room for, and such losses are recovered like any
    /// other (E60).
    Oversubscribed,
}

/// How small packets to one peer leave (S4, S6, ADR 39).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Packing {
    /// Each in a frame of its own.
    Off,
    /// Copied into shared frames.
    #[default]
    Copy,
    /// In shared frames that are gathered from their message buffers, without a copy. Only the
    /// smallest packets and those without a message buffer are copied, and all where the transport
    /// gathers fewer than four pieces.
    Gather,
}

impl Packing {
    /// All of them.
    pub const ALL: [Packing; 3] = [Packing::Off, Packing::Copy, Packing::Gather];

    /// Its name in options and results.
    pub const fn name(self) -> &'static str {
        match self {
            Packing::Off => "off",
            Packing::Copy => "copy",
            Packing::Gather => "gather",
        }
    }
}

impl std::fmt::Display for Packing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

impl std::str::FromStr for Packing {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = Packing::ALL.into_iter().find(|packing| packing.name() == text);
        found.ok_or_else(|| format!("{text:?} is no packing; choose off, copy or gather"))
    }
}

/// Settings of one endpoint. The defaults are those measured in docs/performance.md.
#[derive(Clone, Debug)]
pub struct Config {
    /// Concurrent requests per session `[eRPC §4.3]` (E30): a power of two, 1 to 32, default 16
    /// (the paper has 8, with which nearly half of 60 calls on 8 random sessions wait). The smaller
    /// of both sides' settings applies. In a session in use each slot costs 192 bytes on either
    /// side, three cache lines of which a small RPC accesses two (more at the client if its
    /// continuations have more than 24 bytes); in an idle session 4 bytes (ADR 6).
    pub slots: u8,
    /// Packets that a client session may have in flight, C `[eRPC §4.3.1]` (E33, E37): 1 to 65,535.
    /// Upper limit of the value agreed at connect.
    pub credits: u32,
    /// Credits that a session requests before its server's location is known, and by which a pool
    /// grows with a session. Beyond it, up to `credits`, a session gets more only from a server of
    /// the same host ([`crate::Endpoint::connect_over`]), and its pool only while that is at most a
    /// sixteenth of the receive queue that other peers leave. Default: no less than `credits`.
    pub credits_remote: u32,
    /// How sessions share the receive queue.
    pub admission: Admission,
    /// |RQ|: capacity of the transport's receive queue in full-sized frames.
    pub rx_queue_frames: u32,
    /// Capacity of the receive queue in frames of one packet of at most `small_data` data bytes.
    /// Such a packet takes correspondingly less of a credit pool. Default: no more than
    /// `rx_queue_frames`.
    pub rx_queue_small_frames: u32,
    /// Largest packet, in data bytes, that counts as small. Default 0.
    pub small_data: u16,
    /// True if each peer has a receive queue of that length for itself, instead of a shared one.
    /// Then the requests of either side may fill half of it; [`Admission::Strict`] counts as if it
    /// were shared. Default false.
    pub rx_queue_per_peer: bool,
    /// Frames per train; large messages are sent in steps of this many packets.
    pub train_frames: u32,
    /// Largest message accepted and sent, bytes: up to 2^28 - 1, default 8 MiB (E79).
    pub max_msg_size: u32,
    /// Calls that may wait for a free slot, per session; further calls are rejected. Default 1,024.
    pub call_queue: usize,
    /// One-way messages of a session that were not acknowledged, those that wait included: 1 to
    /// 65,536. Further ones are refused with [`crate::RejectReason::MessagesFull`]. Default 1,024, which
    /// is also the most that are in flight.
    pub message_queue: usize,
    /// Sessions per endpoint, both roles together. Default 65,536.
    pub max_sessions: usize,
    /// Server sessions that one client process may have. Default 16,384: a quarter of all.
    pub max_sessions_per_peer: usize,
    /// Server sessions that all client processes of one address may have. Default 16,384: a quarter
    /// of all.
    pub max_sessions_per_address: usize,
    /// The part of `max_sessions` that is kept for addresses that have no session, one each; at most
    /// a sixteenth of `max_sessions` has effect. Default 4,096.
    pub reserved_sessions: usize,
    /// Endpoints of one client process that may have server sessions here: each takes a path of the
    /// transport. Default 128.
    pub max_paths_per_peer: usize,
    /// Quota of one client process in bytes: requests that are arriving or with their handlers,
    /// stored responses, in buffers of their own, and the packet buffers of slots that have
    /// answered. Beyond it, new requests are rejected with [`crate::Status::NoMemory`] before they
    /// execute. Responses to executing requests are stored in any case. Default 256 MiB.
    pub max_held_per_peer: usize,
    /// A client session that is idle for this long frees the memory of its slots, on both sides
    /// (ADR 6), ns. Default 1 s.
    pub idle_after_ns: u64,
    /// Packets of at most this many data bytes are copied into a shared frame; larger ones leave
    /// directly from the message buffer. Default 512.
    pub inline_max: usize,
    /// Optimisations that are switched off to measure what they save. Default: all are on.
    pub factors: Factors,
    /// How small packets to one peer share frames (ADR 1, ADR 39). Default [`Packing::Copy`].
    pub packing: Packing,
    /// With [`Packing::Gather`], packets of at least this many data bytes are gathered, and smaller
    /// ones are copied: 1 to 2,048, default 64.
    pub gather_from: usize,
    /// With [`Packing::Gather`], larger packets than this, in data bytes, leave in frames of their
    /// own, which costs the same: 0 to 65,535, default 1,280. So do those of which a frame has no
    /// room for two.
    pub gather_to: usize,
    /// A frame that has room left may wait for more packets until its first one has waited for this
    /// long, ns: 0 to a quarter of `rto_min_ns`. Default 0: nothing waits, and a batch is what is
    /// queued when the transmitter is free. A full frame leaves at once. Cost: up to this much
    /// latency of each packet, requests and responses; and packets that would leave alone anyway
    /// read the clock.
    pub batch_budget_ns: u64,
    /// With many sessions in use (`prefetch_min_sessions`), prefetches the state for the next received frames,
    /// calls and timers ([`crate::Endpoint::prefetch_burst`], [`crate::Endpoint::call_with`]).
    /// Default on.
    pub prefetch: bool,
    /// Number of sessions in use, client and server together, from which calls are deferred
    /// ([`crate::Endpoint::call_with`]), and the state for the next frames and timers is
    /// prefetched: distinct sessions among four times as many received packets, by a sample. Both end
    /// when fewer than half of this number are in use. Default 512: their cache lines fill a quarter
    /// of a level-2 cache of 1 MiB. 0: always; `usize::MAX`: never. Costs a bit for each session, and
    /// a byte for each client session. No call is deferred with `prefetch` off, with `call_queue` up to 8, where a request
    /// of `inline_max` or 512 bytes, the smaller, is not one packet, or on a session whose number was
    /// used 255 times before.
    pub prefetch_min_sessions: usize,
    /// Most frames in one transmit batch. Default 128.
    pub tx_frames: usize,
    /// Most requests and replies in one transmit batch. Default 64: with more of them ready, a
    /// first part leaves while the rest is still being built, and both sides work in parallel.
    /// Small values make trains short.
    pub tx_items: usize,
    /// An endpoint with calls of its own sends at most half of its outstanding requests in a batch,
    /// so that its server handles one half while the other is built. Replies do not count. Default
    /// false: long trains pay more where each costs a system call.
    pub split_batches: bool,
    /// Interval of send times, ns: a frame of a single small packet that answers a frame carries no
    /// send time for this long after a timed frame to the same peer. Then neither side need read
    /// its clock while such a packet is in flight, which saves 20 ns of a round trip. This is also
    /// the sampling interval of round trips; all other frames carry a time, and so do all where
    /// frames are further apart. Default 4,000, up to 1,000,000,000. The hold time of a sample is
    /// measured by the peer's clock, and 50 ppm of 100,000 ns are 5 ns, also of a deadline: larger
    /// values are for tools that slow everything down. 0: every frame carries a time.
    pub timestamp_interval_ns: u64,
    /// Congestion control of the client side of sessions. Not applied where each peer has a receive
    /// queue of its own (`rx_queue_per_peer`).
    pub control: Control,
    /// Constants of [`Control::Dcqcn`]. Default `None`: [`DcqcnConstants::PAPER`].
    pub dcqcn: Option<DcqcnConstants>,
    /// Constants of [`Control::Timely`] and [`Control::TimelyPatched`]. Default `None`: those of
    /// eRPC, [`TimelyConstants::ERPC`] and [`TimelyConstants::PATCHED`].
    pub timely: Option<TimelyConstants>,
    /// Rate of the host's link, bit/s. Timely and DCQCN start with it and never exceed it; others
    /// derive the time of a packet from it. Default 25 Gbit/s.
    pub line_rate_bps: u64,
    /// Smallest round trip of the network, ns, where it is known; 0: each path measures its own. Only
    /// [`Control::Swift`] uses it: flows that join a queue measure a round trip that is too long, and
    /// take more than their share. Default 0.
    pub base_rtt_ns: u64,
    /// Loss recovery (E56): the scheme that the client side of a session requests, and that its
    /// server side agrees to.
    pub recovery: Recovery,
    /// While a packet of a message is missing, later ones are sent until they span this many times
    /// C packets: 1 to 1,024, default 4. A packet that is lost repeatedly then delays the others.
    /// Each costs a client 8 bytes; with [`Recovery::Melo`] its receiver uses a bit of its pool for
    /// each.
    pub reorder_span: u32,
    /// Bits of each of the endpoint's two pools with [`Recovery::Melo`], which record the packets of
    /// all messages that arrive out of order: 0 to 64,512, rounded up to whole blocks. Further such
    /// packets are dropped. Default 0: `line_rate_bps` times `melo_rtt_ns` over the bytes on the wire of
    /// the largest frame, or of one of 1,472 bytes if that is smaller, and at least 1,024. Peers with
    /// smaller frames have more packets in flight than that. Costs 3 bytes for 8 bits with blocks of
    /// one byte, from the first loss on, and 5 with more than 255 blocks.
    pub melo_bits: u32,
    /// Longest round trip for which the pools have bits, ns: up to 1 s. Default 200,000, the 99.9th
    /// percentile in a datacenter `[MELO §4.2.2]`.
    pub melo_rtt_ns: u64,
    /// Bytes of a block of the pools: a power of two, 1 to 128, default 1. Larger blocks need fewer
    /// pointers, two each of one byte, or of two with more than 255 blocks, and leave more bits
    /// unused (M35).
    pub melo_block_bytes: u32,
    /// Arriving messages that hold bits of the pool at once: 0 to 4,096. The state of a further one
    /// displaces that which was used longest ago, which returns its bits and takes them back when it
    /// is used (M17). Default 0: no limit, and nothing is swapped. A limit models the memory of a NIC
    /// and costs a step for each such message when a packet arrives out of order.
    pub melo_connections: u32,
    /// Lower limit of the retransmission timeout, ns. Default 1 ms: below it, a descheduled process
    /// looks like loss. Where threads are never descheduled, a few of the shortest round trips
    /// suffice.
    pub rto_min_ns: u64,
    /// Upper limit of the retransmission timeout with back-off, ns. Default 1 s.
    pub rto_max_ns: u64,
    /// Retransmission timeout before the first round-trip sample, ns; longer when the handshake was
    /// slow ([`crate::Endpoint::expect_round_trip`]). Default 20 ms.
    pub rto_initial_ns: u64,
    /// A peer without any answer for this long, during retransmissions, is declared dead (ADR 13), ns.
    /// A server drops a request of which no packet arrives for this long before it is complete, and
    /// one that has waited for memory for as long (ADR 36). Default 5 s.
    pub datapath_timeout_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            slots: 16,
            credits: 32,
            credits_remote: u32::MAX,
            admission: Admission::Oversubscribed,
            rx_queue_frames: 1024,
            rx_queue_small_frames: 1024,
            small_data: 0,
            rx_queue_per_peer: false,
            train_frames: 1,
            max_msg_size: 8 << 20,
            call_queue: 1024,
            message_queue: 1024,
            max_sessions: 65_536,
            max_sessions_per_peer: 16_384,
            max_sessions_per_address: 16_384,
            reserved_sessions: 4096,
            max_paths_per_peer: 128,
            max_held_per_peer: 256 << 20,
            idle_after_ns: 1_000_000_000,
            inline_max: 512,
            factors: Factors::default(),
            packing: Packing::Copy,
            gather_from: 64,
            gather_to: 1_280,
            batch_budget_ns: 0,
            prefetch: true,
            prefetch_min_sessions: 512,
            tx_frames: 128,
            tx_items: 64,
            split_batches: false,
            timestamp_interval_ns: 4_000,
            control: Control::TwoWindow,
            dcqcn: None,
            timely: None,
            line_rate_bps: 25_000_000_000,
            base_rtt_ns: 0,
            recovery: Recovery::Selective,
            reorder_span: 4,
            melo_bits: 0,
            melo_rtt_ns: 200_000,
            melo_block_bytes: 1,
            melo_connections: 0,
            rto_min_ns: 1_000_000,
            rto_max_ns: 1_000_000_000,
            rto_initial_ns: 20_000_000,
            datapath_timeout_ns: 5_000_000_000,
        }
    }
}

/// A setting outside its range, with the allowed range.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{name} = {value} is out of range; set it to {range}")]
pub struct ConfigError {
    /// The field of [`Config`].
    pub name: &'static str,
    /// The rejected value.
    pub value: u64,
    /// The allowed range.
    pub range: &'static str,
}

impl Config {
    /// The control that is applied: none where each peer has a receive queue of its own, which
    /// credits bound.
    pub fn applied_control(&self) -> Control {
        if self.rx_queue_per_peer { Control::None } else { self.control }
    }

    /// Returns whether the default control is applied, which both ends have a part in: receivers share out
    /// a budget, senders keep the queue of their own host short, and neither counts waits in a host.
    pub(crate) fn is_two_window(&self) -> bool {
        self.applied_control() == Control::TwoWindow
    }

    /// Checks the settings of MELO's pools.
    fn validate_melo(&self) -> Result<(), ConfigError> {
        let check = |ok: bool, name, value: u64, range| {
            if ok { Ok(()) } else { Err(ConfigError { name, value, range }) }
        };
        // Blocks of any size hold this number without exceeding the largest bitmap.
        check(self.melo_bits <= 64_512, "melo_bits", self.melo_bits.into(), "0 to 64,512")?;
        check(self.melo_rtt_ns <= 1_000_000_000, "melo_rtt_ns", self.melo_rtt_ns, "0 to 1 s")?;
        let bytes = self.melo_block_bytes;
        let is_size = bytes.is_power_of_two() && bytes <= 128;
        check(is_size, "melo_block_bytes", bytes.into(), "a power of two, 1 to 128")?;
        let most = self.melo_connections;
        check(most <= 4_096, "melo_connections", most.into(), "0 to 4,096")
    }

    /// Checks every range.
    /// # Errors
    /// The first setting that is out of its range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let check = |ok: bool, name, value: u64, range| {
            if ok { Ok(()) } else { Err(ConfigError { name, value, range }) }
        };
        let slots = u64::from(self.slots);
        check(
            self.slots.is_power_of_two() && self.slots <= 32,
            "slots",
            slots,
            "a power of two, 1 to 32",
        )?;
        check((1..=65_535).contains(&self.credits), "credits", self.credits.into(), "1 to 65,535")?;
        check(
            self.max_msg_size <= MAX_MSG_SIZE,
            "max_msg_size",
            self.max_msg_size.into(),
            "0 to 268,435,455 bytes",
        )?;
        check(
            (1..=65_536).contains(&self.message_queue),
            "message_queue",
            self.message_queue as u64,
            "1 to 65,536",
        )?;
        check(
            (1..=SESSIONS_LIMIT).contains(&self.max_sessions),
            "max_sessions",
            self.max_sessions as u64,
            "1 to 1,048,576",
        )?;
        check(
            (1..=1 << 20).contains(&self.max_sessions_per_peer),
            "max_sessions_per_peer",
            self.max_sessions_per_peer as u64,
            "1 to 1,048,576",
        )?;
        check(
            (1..=1 << 20).contains(&self.max_sessions_per_address),
            "max_sessions_per_address",
            self.max_sessions_per_address as u64,
            "1 to 1,048,576",
        )?;
        check(
            self.reserved_sessions <= 1 << 20,
            "reserved_sessions",
            self.reserved_sessions as u64,
            "0 to 1,048,576",
        )?;
        check(
            (1..=1 << 20).contains(&self.max_paths_per_peer),
            "max_paths_per_peer",
            self.max_paths_per_peer as u64,
            "1 to 1,048,576",
        )?;
        check(
            self.max_held_per_peer >= 1,
            "max_held_per_peer",
            self.max_held_per_peer as u64,
            "at least 1 byte",
        )?;
        check(
            self.idle_after_ns >= self.rto_min_ns,
            "idle_after_ns",
            self.idle_after_ns,
            "at least rto_min_ns",
        )?;
        check(
            (1..=1_024).contains(&self.reorder_span),
            "reorder_span",
            self.reorder_span.into(),
            "1 to 1,024",
        )?;
        self.validate_melo()?;
        check(
            self.timestamp_interval_ns <= 1_000_000_000,
            "timestamp_interval_ns",
            self.timestamp_interval_ns,
            "0 to 1 s",
        )?;
        check(
            (1_000_000..=1_600_000_000_000).contains(&self.line_rate_bps),
            "line_rate_bps",
            self.line_rate_bps,
            "1 Mbit/s to 1,600 Gbit/s",
        )?;
        let dcqcn = self.dcqcn.map_or(Ok(()), |constants| constants.validate());
        let timely = self.timely.map_or(Ok(()), |constants| constants.validate());
        dcqcn.and(timely).map_err(|(name, value, range)| ConfigError { name, value, range })?;
        check(self.tx_frames >= 1, "tx_frames", self.tx_frames as u64, "at least 1")?;
        check(self.tx_items >= 1, "tx_items", self.tx_items as u64, "at least 1")?;
        check(
            (1..=self.rto_initial_ns).contains(&self.rto_min_ns),
            "rto_min_ns",
            self.rto_min_ns,
            "1 ns to rto_initial_ns",
        )?;
        check(
            self.rto_initial_ns <= self.rto_max_ns && self.rto_max_ns <= 60_000_000_000,
            "rto_max_ns",
            self.rto_max_ns,
            "rto_initial_ns to 60 s",
        )?;
        check(
            self.gather_to <= usize::from(u16::MAX),
            "gather_to",
            self.gather_to as u64,
            "0 to 65,535 bytes",
        )?;
        check(
            (1..=2_048).contains(&self.gather_from),
            "gather_from",
            self.gather_from as u64,
            "1 to 2,048 bytes",
        )?;
        check(
            self.batch_budget_ns <= self.rto_min_ns / 4,
            "batch_budget_ns",
            self.batch_budget_ns,
            "0 to a quarter of rto_min_ns",
        )?;
        let inline_limit = MIN_DATA_PER_PACKET as usize * 8;
        check(
            self.inline_max <= inline_limit,
            "inline_max",
            self.inline_max as u64,
            "0 to 2,048 bytes",
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_are_valid() {
        assert_eq!(Config::default().validate(), Ok(()));
    }

    #[test]
    fn names_of_packings_are_read_back() {
        for packing in Packing::ALL {
            assert_eq!(packing.to_string().parse(), Ok(packing));
            let error = "some".parse::<Packing>().expect_err("no packing");
            assert!(error.contains(packing.name()), "{error}");
        }
    }

    #[test]
    fn each_range_is_checked() {
        type Spoil = fn(&mut Config);
        let bad: [(&str, Spoil); 24] = [
            ("slots", |c| c.slots = 3),
            ("slots", |c| c.slots = 64),
            ("credits", |c| c.credits = 0),
            ("max_msg_size", |c| c.max_msg_size = MAX_MSG_SIZE + 1),
            ("max_sessions", |c| c.max_sessions = 0),
            ("max_sessions_per_address", |c| c.max_sessions_per_address = 0),
            ("reserved_sessions", |c| c.reserved_sessions = 1 << 21),
            ("max_paths_per_peer", |c| c.max_paths_per_peer = 0),
            ("timestamp_interval_ns", |c| c.timestamp_interval_ns = 1_000_000_001),
            ("tx_frames", |c| c.tx_frames = 0),
            ("tx_items", |c| c.tx_items = 0),
            ("gather_from", |c| c.gather_from = 0),
            ("gather_from", |c| c.gather_from = 2_049),
            ("gather_to", |c| c.gather_to = 65_536),
            ("batch_budget_ns", |c| c.batch_budget_ns = c.rto_min_ns / 4 + 1),
            ("rto_min_ns", |c| c.rto_min_ns = 0),
            ("rto_max_ns", |c| c.rto_max_ns = 1),
            ("melo_bits", |c| c.melo_bits = 64_513),
            ("melo_rtt_ns", |c| c.melo_rtt_ns = 1_000_000_001),
            ("melo_block_bytes", |c| c.melo_block_bytes = 0),
            ("melo_block_bytes", |c| c.melo_block_bytes = 3),
            ("melo_block_bytes", |c| c.melo_block_bytes = 129),
            ("melo_block_bytes", |c| c.melo_block_bytes = 256),
            ("melo_connections", |c| c.melo_connections = 4_097),
        ];
        for (name, spoil) in bad {
            let mut c = Config::default();
            spoil(&mut c);
            assert_eq!(c.validate().unwrap_err().name, name);
        }
    }

    #[test]
    fn constants_of_controllers_are_checked_and_presets_are_valid() {
        let with = |dcqcn, timely| Config { dcqcn, timely, ..Config::default() };
        for rate_bps in [1_000_000, 25_000_000_000, 1_600_000_000_000] {
            assert_eq!(with(Some(DcqcnConstants::vendor(rate_bps)), None).validate(), Ok(()));
        }
        for timely in [TimelyConstants::ERPC, TimelyConstants::PATCHED, TimelyConstants::PAPER] {
            assert_eq!(with(Some(DcqcnConstants::PAPER), Some(timely)).validate(), Ok(()));
        }
        type Spoil<T> = fn(&mut T);
        let dcqcn: [(&str, Spoil<DcqcnConstants>); 9] = [
            ("dcqcn.decrease_ns", |c| c.decrease_ns = 999),
            ("dcqcn.alpha_ns", |c| c.alpha_ns = 0),
            ("dcqcn.timer_ns", |c| c.timer_ns = 1_000_000_001),
            ("dcqcn.counter_bytes", |c| c.counter_bytes = 0),
            ("dcqcn.recovery_steps", |c| c.recovery_steps = 0),
            ("dcqcn.step_bps", |c| c.step_bps = 7),
            ("dcqcn.hyper_step_bps", |c| c.hyper_step_bps = u64::MAX),
            ("dcqcn.gain_shift", |c| c.gain_shift = 64),
            ("dcqcn.floor_bps", |c| c.floor_bps = 0),
        ];
        for (name, spoil) in dcqcn {
            let mut constants = DcqcnConstants::PAPER;
            spoil(&mut constants);
            assert_eq!(with(Some(constants), None).validate().unwrap_err().name, name);
        }
        let timely: [(&str, Spoil<TimelyConstants>); 11] = [
            ("timely.low_ns", |c| c.low_ns = 0),
            ("timely.high_ns", |c| c.high_ns = u64::MAX),
            ("timely.min_rtt_ns", |c| c.min_rtt_ns = 0),
            ("timely.min_rtt_ns", |c| c.min_rtt_ns = c.low_ns + 1),
            ("timely.ignored_below_ns", |c| c.ignored_below_ns = c.min_rtt_ns + 1),
            ("timely.ignored_below_ns", |c| c.ignored_below_ns = u64::MAX),
            ("timely.step_bps", |c| c.step_bps = 0),
            ("timely.floor_bps", |c| c.floor_bps = 0),
            ("timely.alpha_ppm", |c| c.alpha_ppm = 0),
            ("timely.beta_ppm", |c| c.beta_ppm = 1_000_001),
            ("timely.hyper_after", |c| c.hyper_after = 0),
        ];
        for (name, spoil) in timely {
            let mut constants = TimelyConstants::ERPC;
            spoil(&mut constants);
            assert_eq!(with(None, Some(constants)).validate().unwrap_err().name, name);
        }
    }
}
