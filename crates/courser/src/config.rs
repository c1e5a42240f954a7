//! Settings: every knob with its default, its range and its cost, in one place.

mod declare;
mod tuning;

use std::time::Duration;

use courser_net::{Caps, OptionSet};
use courser_proto as proto;
use courser_proto::wire::{FRAME_HEADER, MAX_MSG_SIZE, PACKET_HEADER};
use courser_proto::{
    Admission, Control, DcqcnConstants, Integrity, Packing, Recovery, TimelyConstants,
};

use crate::control::{DEFAULT_CONNECTIONS, DEFAULT_FAILURE_TIMEOUT};
use crate::error::BindError;
use crate::platform::cpus;

pub use declare::{Allowed, Setting};
use declare::{DAY, HOUR, MILLION, MINUTE, MS, MS_TO_DAY, TO_MILLION, US, range, settings, time};
pub use tuning::Tuning;

fn ns(time: Duration) -> u128 {
    time.as_nanos()
}

/// Rates of links, bits per second.
const LINE_RATES: (u64, u64) = (1_000_000, 1_600_000_000_000);

/// A transport that limits no setting.
const LARGEST: Caps = Caps {
    scheme: "any",
    max_frame: 1 << 16,
    headroom: 0,
    tailroom: 0,
    gather: 2,
    gather_from: usize::MAX,
    train_frames: 1,
    train_bytes: 1 << 16,
    rx_queue_frames: 1_024,
    small_frame: 1,
    rx_queue_small_frames: 1_024,
    rx_queue_per_peer: false,
    polls_memory: false,
    holds_frames: false,
    line_rate_bps: None,
};

/// Bound of `Config::workers`.
const MAX_WORKERS: usize = 1024;
/// Trains of packets that a session has in flight by default: one at the sender, one in the network
/// and one at the receiver. More would fill the buffers of switches.
const NETWORK_TRAINS: u32 = 3;
/// The same within a host, where the receive queue is the only buffer: one more train at each place,
/// so that a late side does not stall the other.
const HOST_TRAINS: u32 = 6;
/// Within a host at least this many bytes of full frames: there a packet of a large message costs
/// its copy, so bytes rather than packets keep both sides busy.
const HOST_BYTES: usize = 256 << 10;
/// Lower bound of the default credits of a session.
const LEAST_CREDITS: u32 = 32;
/// Upper bound of the credits of a session.
const MOST_CREDITS: u32 = 65_535;

settings! {
    /// Settings of a nexus and its endpoints. The README measures `Config::default()`.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use courser::{Config, Server};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let config = Config {
    ///     max_msg_size: 64 << 10,
    ///     failure_timeout: Duration::from_millis(300),
    ///     ..Config::default()
    /// };
    /// let server = Server::bind_with("udp://127.0.0.1:0", config)?;
    /// // A setting out of its range is an error, whose text names it.
    /// let config = Config { slots: 3, ..Config::default() };
    /// assert!(Server::bind_with("udp://127.0.0.1:0", config).is_err());
    /// # drop(server);
    /// # Ok(()) }
    /// ```
    #[derive(Clone, Debug)]
    pub struct Config: "", p {
        /// Concurrent requests per session `[eRPC §4.3]`: a power of two, 1 to 32, default 16. Further
        /// calls are queued. The smaller of both sides' settings holds. Cost while the session is in
        /// use: [`crate::Rpc::session_bytes`].
        pub slots: u8 = p.slots,
            in Allowed { powers_of_two: true, ..range(1, 32, "to a power of two, 1 to 32") } => slots;
        /// Packets that a client session may have in flight, C `[eRPC §4.3.1]`: 1 to 65,535. The
        /// smaller of both sides' settings holds. Small values for low latency or many sessions, large
        /// ones for bandwidth.
        ///
        /// `None`, the default: three full trains of the transport. To a server of the same host, where
        /// no switch buffers packets: six trains or 256 KiB of full frames, whichever is more, unless
        /// admission is strict. At least 32, and at most what the receive buffer holds.
        pub credits: Option<u32> = None, in range(1, MOST_CREDITS as u128, "from 1 to 65,535");
        /// Whether sessions share the credits that the receive queue has room for (default), or each
        /// session has its own, and the server refuses sessions for which there is no room.
        pub admission: Admission = p.admission => admission;
        /// Largest message, bytes: up to 2^28 - 1, default 8 MiB.
        pub max_msg_size: u32 = p.max_msg_size,
            in range(0, MAX_MSG_SIZE as u128, "from 0 to 268,435,455 bytes") => max_msg_size;
        /// Message memory of an endpoint, bytes; mapped as it is used. Default 1 GiB.
        pub memory_limit: usize = 1 << 30;
        /// Calls that may wait for a slot, per session; further ones are rejected
        /// ([`crate::RejectReason::QueueFull`]). Default 1,024. Cost: 136 bytes per waiting call, and its
        /// request.
        pub call_queue: usize = p.call_queue => call_queue;
        /// One-way messages of a session that are not acknowledged, those that wait included: 1 to 65,536.
        /// Further ones are refused ([`crate::RejectReason::MessagesFull`]). Default 1,024, which is also
        /// the most that are in flight. Cost: 56 bytes per message, and its content.
        pub message_queue: usize = p.message_queue,
            in range(1, 65_536, "from 1 to 65,536") => message_queue;
        /// Sessions per endpoint, both roles. Default 65,536.
        pub max_sessions: usize = p.max_sessions, in TO_MILLION => max_sessions;
        /// Sessions that one client process may have with an endpoint: 1 to 1,048,576, default 16,384.
        pub max_sessions_per_peer: usize = p.max_sessions_per_peer,
            in TO_MILLION => max_sessions_per_peer;
        /// Sessions that all client processes of one address may have with an endpoint: 1 to 1,048,576,
        /// default 16,384, a quarter of `max_sessions`. An address is a host, or all hosts behind one
        /// NAT; over shared memory it is all processes of the machine. Raise it to `max_sessions`, and
        /// set `reserved_sessions` to 0, where one address may use all.
        ///
        /// When this limit or `max_sessions` is reached, the oldest session of another client that has
        /// made no call within a second of its connect is ended for a new one; its client gets
        /// [`SessionError::Evicted`](crate::SessionError::Evicted). Cost of a session:
        /// [`crate::Rpc::session_bytes`].
        pub max_sessions_per_address: usize = p.max_sessions_per_address,
            in TO_MILLION => max_sessions_per_address;
        /// Of `max_sessions`, sessions that only addresses without a session get, one each: 0 to
        /// 1,048,576, default 4,096; at most a sixteenth of `max_sessions` has effect. Cost: the others
        /// get fewer.
        pub reserved_sessions: usize = p.reserved_sessions,
            in range(0, MILLION, "from 0 to 1,048,576") => reserved_sessions;
        /// Endpoints of one client process that may have sessions with an endpoint: 1 to 1,048,576,
        /// default 128. Each takes a path of the transport, of which UDP has 65,536 and shared memory
        /// [`ShmConfig::max_peers`](courser_net::ShmConfig::max_peers).
        pub max_paths_per_peer: usize = p.max_paths_per_peer, in TO_MILLION => max_paths_per_peer;
        /// Control connections that a nexus accepts: 1 to 1,048,576, default 4,096. One for each client
        /// process. Cost: a descriptor, which the limit of open files (`ulimit -n`) has to allow, and
        /// about 1 KiB of memory, or 2 KiB while a message is incomplete.
        ///
        /// When this limit or the next is reached, the connection without a session that was unused for
        /// longest, at least half a second, is closed for a new one. Without such a one the new one is
        /// refused, but sessions that have made no call within a second end, and make room for later
        /// ones.
        pub max_connections: usize = DEFAULT_CONNECTIONS, in TO_MILLION;
        /// Control connections that a nexus accepts from one address: 1 to 1,048,576, default 2,048.
        /// Raise it for more client processes on one host or behind one NAT. Cost as above.
        pub max_connections_per_address: usize = DEFAULT_CONNECTIONS / 2, in TO_MILLION;
        /// Bytes of unanswered requests and unacknowledged responses that an endpoint keeps for one
        /// client process; further requests are answered with `Status::NoMemory`. Single-packet requests
        /// do not count, single-packet responses count with their slot's buffer. Default 256 MiB.
        pub max_held_per_peer: usize = p.max_held_per_peer,
            in range(1, u128::MAX, "to at least 1 byte") => max_held_per_peer;
        /// Streams of typed services that one client process may have open with a [`crate::Server`], or with
        /// an endpoint that has services of its own: 1 to 1,048,576, default 4,096. Further ones are refused
        /// with [`StreamError::Limit`](crate::service::StreamError::Limit). Each also holds a handler, two
        /// more while its client waits for items, and a session. Cost: 300 bytes and the handler's future;
        /// batches that it does not wait for have a share of
        /// the memory, for all its streams together.
        pub max_streams_per_peer: usize = 4_096, in TO_MILLION;
        /// Time without calls after which a session frees its slots' memory, on both sides, and notifies
        /// the server that its last responses have arrived: the shorter bound of `rto` to 24 h, default 1 s.
        pub idle_after: Duration = Duration::from_nanos(p.idle_after_ns),
            given c range(ns(c.rto.0), DAY, "from rto.0 to 24 h") => idle_after_ns;
        /// Largest frame (datagram payload), bytes. `None`: what a 1500-byte link carries. Never more
        /// than the path MTU allows.
        pub max_frame: Option<usize> = None;
        /// Bytes of the receive queue, and of the send queue, of a transport that has queues of bytes:
        /// the socket buffers of UDP. Default 8 MiB; the system may grant less.
        pub socket_buffer: usize = 8 << 20;
        /// Options of single transports. There are some for trains of UDP
        /// ([`UdpOptions`](courser_net::UdpOptions)), for reading in place over shared memory
        /// ([`ShmOptions`](courser_net::ShmOptions)), and those of a transport of your own. The transport that the address selects takes its own; options in the
        /// address (`udp://[::]:31850?gso=off`) replace these. Default: none.
        pub transport: OptionSet = OptionSet::new();
        /// How long an endpoint spins after its last packet before it sleeps; five times as long while
        /// calls are unanswered: 0 to 24 h. `None`: 100 us, or no spinning where the machine or the
        /// container has one CPU only. Cost: spinning occupies a core; a sleeping endpoint sees the next packet about
        /// 30 us later. After 20 us without a packet, or at once in a process whose threads are all
        /// pinned to one CPU, the endpoint yields the CPU between two polls, about 0.3 us each.
        pub spin: Option<Duration> = None, in range(0, DAY, "from 0 to 24 h");
        /// Time limit of a connect: 1 ms to 24 h, default 5 s.
        pub connect_timeout: Duration = Duration::from_secs(5), in MS_TO_DAY;
        /// Silence after which another nexus counts as failed, and its sessions with it, in both roles:
        /// calls end with `CallError::PeerFailed`, the server's side is freed. 10 ms to 1 h, default
        /// 800 ms. Both sides decide for themselves, by their own setting.
        ///
        /// Detects what the network does not report: a dead machine or network, a stopped process. The
        /// end of a process, killed or not, is noticed at once, since its kernel closes the control
        /// connection. Silence of the datapath has its own limit, `datapath_timeout`.
        ///
        /// Cost: after a quarter of it in silence one side sends a heartbeat and the other answers. An
        /// idle pair exchanges eight messages of 5 bytes in this time, ten a second by default; a nexus
        /// with 4,096 idle connections handles 41,000 a second.
        ///
        /// False positives: a process whose control thread does not run for three quarters of this time
        /// (frozen, swapped out, starved by threads of higher priority), or a network outage of that
        /// length. Sessions can be connected again afterwards.
        pub failure_timeout: Duration = DEFAULT_FAILURE_TIMEOUT,
            in range(10 * MS, HOUR, "from 10 ms to 1 h");
        /// Congestion control of this side's calls, [`Control::TwoWindow`] by default. None is applied
        /// on transports with a receive queue for each peer, as shared memory. The endpoints of a nexus
        /// share one receiver's budget; each other process of the host has its own, so that several
        /// receiving processes have a queue of about their number times as long.
        pub control: Control = p.control => control;
        /// Constants of [`Control::Dcqcn`], each checked against its range. `None`, the default:
        /// [`DcqcnConstants::PAPER`].
        pub dcqcn: Option<DcqcnConstants> = p.dcqcn => dcqcn;
        /// Constants of [`Control::Timely`] and [`Control::TimelyPatched`], each checked against its
        /// range. `None`, the default: [`TimelyConstants::ERPC`] and [`TimelyConstants::PATCHED`].
        pub timely: Option<TimelyConstants> = p.timely => timely;
        /// Rate of the host's link, bits per second: 1 Mbit/s to 1,600 Gbit/s. `None`, the default: the
        /// rate that the kernel states for the interface that an endpoint is bound to, the highest of all
        /// hardware for a wildcard address, and 25 Gbit/s where it states none, as in most virtual
        /// machines and over the loopback. Set it where the rate that is stated is not the one that is
        /// there: in a virtual machine that is limited to a part of its port, or with a wildcard address
        /// beside a faster port that is not used.
        ///
        /// The congestion controls take from it the time that a packet and a train of the transport occupy
        /// the link: [`Control::TwoWindow`], the default, and [`Control::Swift`] add two trains and a
        /// few packets to the delay that they allow, so that a rate of 25 Gbit/s permits a queue on a link
        /// of 100 Gbit/s that is up to four times as long as needed, and on a slower link one that
        /// is shorter than a train needs. [`Control::Timely`] and [`Control::Dcqcn`] never exceed it.
        pub line_rate_bps: Option<u64> = None,
            in range(LINE_RATES.0.into(), LINE_RATES.1.into(), "from 1 Mbit/s to 1,600 Gbit/s");
        /// How lost packets are detected and sent again. Both sides agree at connect: the client's
        /// choice, or go-back-N if the server has chosen that. Default [`Recovery::Selective`].
        pub recovery: Recovery = p.recovery => recovery;
        /// Protection of frames against changes on the way, beyond the checksum of UDP, which devices
        /// between the hosts may compute again. Both sides agree on the stronger choice.
        ///
        /// `None`, the default: a CRC-32C of each frame to peers on other hosts, nothing within a host.
        /// Cost of the checksum: about 15 ns per small frame and 0.1 ns per byte, on each side.
        pub integrity: Option<Integrity> = None;
        /// Bounds of the retransmission timeout, 1 us to 60 s. Default 1 ms to 1 s, and 20 ms before the
        /// first round trip was measured.
        pub rto: (Duration, Duration) =
            (Duration::from_nanos(p.rto_min_ns), Duration::from_nanos(p.rto_max_ns));
        /// Silence of the datapath, while calls are unanswered, after which a peer is given up. A server
        /// drops a request of which no packet arrives for as long, or that has waited for memory for as
        /// long. A client makes a call that is refused for lack of memory again for as long. 1 ms to 24 h,
        /// default 5 s.
        pub datapath_timeout: Duration = Duration::from_nanos(p.datapath_timeout_ns),
            in MS_TO_DAY => datapath_timeout_ns;
        /// Packets of at most this many data bytes, and of which two fit the transport's largest frame, are
        /// copied and share frames; others leave without a copy. Two of 706 bytes fit a datagram of an
        /// Ethernet packet, so that over UDP a larger value has no effect. Default 1,280: up to it a copy
        /// takes less time than counting references, where a frame holds several (ADR 39). At most 2,048.
        pub inline_max: usize = INLINE_MAX, in range(0, 2_048, "from 0 to 2,048 bytes");
        /// How small packets to one peer leave: each in a frame of its own, copied into shared frames, or
        /// gathered into shared frames without a copy, where the transport supports that. `None`, the
        /// default: as it was measured to be fastest on the transport (ADR 39). That is a copy on all
        /// transports of this crate.
        pub packing: Option<Packing> = None;
        /// Latency budget of batching: a frame that has room left may wait for more packets until its
        /// first one has waited for this long. 0 to a quarter of the shorter bound of `rto`; default 0:
        /// nothing waits, and packets share a frame only if they are there when the transmitter is free.
        /// A full frame leaves at once. Cost: up to this much latency in each direction, if the other
        /// side has a budget too.
        pub batch_budget: Duration = Duration::from_nanos(p.batch_budget_ns),
            given c range(0, ns(c.rto.0) / 4, "from 0 to a quarter of rto.0") => batch_budget_ns;
        /// Worker threads of the nexus, started by the first [`crate::Rpc::on_worker`]: 0 (none, which
        /// makes `on_worker` an error) to 1,024. Default: one per CPU of the machine or the container.
        /// They run on the CPUs of the thread that makes the nexus. Simulations should set it, since the
        /// default depends on the computer ([`crate::Nexus::bind_in`]).
        ///
        /// Cost: about 20 KiB of kernel memory per thread, and the used part of its stack. An idle
        /// thread sleeps, where there are several CPUs after polling for 10 us.
        pub workers: usize = cpus().min(MAX_WORKERS),
            in range(0, MAX_WORKERS as u128, "to at most 1,024 (0: no worker handlers)");
        /// Requests that may wait for a worker, of all endpoints of the nexus together: 1 to 1,048,576,
        /// default 1,024; further ones are answered with `Status::WorkersBusy`. Cost: up to 320 bytes
        /// each, and the request's buffer from the endpoint's `memory_limit`.
        pub worker_queue: usize = 1024, in TO_MILLION;
        /// Counts calls, outcomes and latencies of each method of typed services, at servers and at each
        /// [`crate::Client`] ([`crate::service::MethodStats`]). Default `true`. Cost: some 15 instructions
        /// of a call on an endpoint's own thread, 100 more of a lone one, and 16 KiB for each method that
        /// was called.
        pub count_methods: bool = true;
        /// Switches for benchmarks and tests, which may change in any version.
        #[doc(hidden)]
        pub tuning: Tuning = Tuning::default();
    }
}

fn check<C>(setting: &Setting<C>, all: &C) -> Result<(), BindError> {
    let Some((value, Allowed { text: range, .. })) = setting.out_of_range(all) else {
        return Ok(());
    };
    let name = setting.name;
    Err(match setting.is_time {
        true => BindError::Duration { name, value: time(value), range },
        false => {
            BindError::Setting { name, value: u64::try_from(value).unwrap_or(u64::MAX), range }
        }
    })
}

/// Default of [`Config::inline_max`], bytes.
const INLINE_MAX: usize = 1_280;

/// The data bytes of the largest packet of which a frame holds two.
fn half_of_a_frame(caps: &Caps) -> usize {
    (caps.max_frame.saturating_sub(FRAME_HEADER) / 2).saturating_sub(PACKET_HEADER)
}

/// Number of full frames in a train.
fn train(caps: &Caps) -> u32 {
    caps.train_frames.min(caps.train_bytes / caps.max_frame.max(1)).max(1) as u32
}

/// Number of frames that the receive queue holds, |RQ|.
fn rx_queue(caps: &Caps) -> u32 {
    u32::try_from(caps.rx_queue_frames).unwrap_or(u32::MAX).max(1)
}

impl Config {
    /// Checks all settings. Those of the protocol are checked again for each endpoint, with what its
    /// transport adds.
    pub(crate) fn validate(&self) -> Result<(), BindError> {
        let (least, most) = self.rto;
        let above_least = range(ns(least), MINUTE, "from rto.0, its lower bound, to 60 s");
        for (name, value, allowed) in
            [("rto.0", least, range(US, MINUTE, "from 1 us to 60 s")), ("rto.1", most, above_least)]
        {
            if !allowed.contains(ns(value)) {
                return Err(BindError::Duration { name, value, range: allowed.text });
            }
        }
        Self::SETTINGS.iter().try_for_each(|setting| check(setting, self))?;
        Tuning::SETTINGS.iter().try_for_each(|setting| check(setting, &self.tuning))?;
        Ok(self.for_transport(&LARGEST).validate()?)
    }

    /// C of a session: the setting, or by default `trains` or `bytes` of full frames.
    fn credits_for(&self, caps: &Caps, trains: u32, bytes: usize) -> u32 {
        let frames = u32::try_from(bytes / caps.max_frame.max(1)).unwrap_or(u32::MAX);
        let wanted = (trains * train(caps)).max(frames).max(LEAST_CREDITS);
        self.credits.unwrap_or_else(|| wanted.min(rx_queue(caps)).min(MOST_CREDITS))
    }

    /// The packing over a transport with these properties, and from which packets on it gathers: by
    /// default as it was measured.
    fn packing_over(&self, caps: &Caps) -> (Packing, usize) {
        match self.packing {
            Some(packing) => (packing, self.tuning.gather_from),
            None if caps.gather_from <= self.tuning.gather_to => {
                (Packing::Gather, caps.gather_from.max(1))
            }
            None => (Packing::Copy, self.tuning.gather_from),
        }
    }

    /// The rate of the host's link over a transport with these properties, bits per second.
    fn line_rate_over(&self, caps: &Caps) -> u64 {
        let stated = caps.line_rate_bps.map(|rate| rate.clamp(LINE_RATES.0, LINE_RATES.1));
        self.line_rate_bps.or(stated).unwrap_or(proto::Config::default().line_rate_bps)
    }

    /// The settings of the protocol over a transport with these properties.
    pub(crate) fn for_transport(&self, caps: &Caps) -> proto::Config {
        let train = train(caps);
        let queue = rx_queue(caps);
        // Strict admission is chosen to have room for many sessions.
        let strict = self.admission == Admission::Strict;
        let (trains, bytes) = if strict { (NETWORK_TRAINS, 0) } else { (HOST_TRAINS, HOST_BYTES) };
        let defaults = proto::Config::default();
        let small_data = caps.small_frame.saturating_sub(FRAME_HEADER + PACKET_HEADER);
        let (packing, gather_from) = self.packing_over(caps);
        let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        let mut settings = proto::Config {
            credits: self.credits_for(caps, trains, bytes),
            credits_remote: self.credits_for(caps, NETWORK_TRAINS, 0),
            rx_queue_frames: queue,
            rx_queue_small_frames: u32::try_from(caps.rx_queue_small_frames).unwrap_or(u32::MAX),
            small_data: u16::try_from(small_data).unwrap_or(u16::MAX),
            rx_queue_per_peer: caps.rx_queue_per_peer,
            train_frames: train,
            inline_max: self.inline_max.min(half_of_a_frame(caps)),
            packing,
            line_rate_bps: self.line_rate_over(caps),
            split_batches: train == 1,
            rto_min_ns: ns(self.rto.0),
            rto_max_ns: ns(self.rto.1),
            rto_initial_ns: defaults.rto_initial_ns.min(ns(self.rto.1)).max(ns(self.rto.0)),
            ..defaults
        };
        self.pass(&mut settings);
        self.tuning.pass(&mut settings);
        settings.gather_from = gather_from;
        settings
    }
}

#[cfg(test)]
mod tests {
    use courser_net::{MemConfig, MemNetwork, Transport};

    use super::*;

    #[test]
    fn packing_is_by_default_what_the_transport_measured() {
        let network = MemNetwork::new();
        let transport = network.endpoint(MemConfig::default()).expect("an endpoint");
        let over = |gather_from: usize, packing: Option<Packing>| {
            let caps = Caps { gather_from, ..transport.caps().clone() };
            let settings = Config { packing, ..Config::default() }.for_transport(&caps);
            settings.validate().expect("in range");
            (settings.packing, settings.gather_from)
        };
        assert_eq!(over(usize::MAX, None).0, Packing::Copy);
        assert_eq!(over(1_281, None).0, Packing::Copy, "larger packets leave alone");
        assert_eq!(over(513, None), (Packing::Gather, 513));
        assert_eq!(over(0, None), (Packing::Gather, 1));
        let inline_max = |max_frame: usize| {
            let caps = Caps { max_frame, ..transport.caps().clone() };
            Config::default().for_transport(&caps).inline_max
        };
        assert_eq!([inline_max(1_472), inline_max(8_192)], [706, 1_280]);
        for packing in Packing::ALL {
            assert_eq!(over(513, Some(packing)), (packing, 64), "as it was set");
        }
    }

    #[test]
    fn the_rate_of_the_link_is_set_or_stated_by_the_transport() {
        let network = MemNetwork::new();
        let transport = network.endpoint(MemConfig::default()).expect("an endpoint");
        let rate = |set: Option<u64>, stated: Option<u64>| {
            let caps = Caps { line_rate_bps: stated, ..transport.caps().clone() };
            let settings = Config { line_rate_bps: set, ..Config::default() }.for_transport(&caps);
            settings.validate().expect("in range");
            settings.line_rate_bps
        };
        let gbit = 1_000_000_000;
        assert_eq!(rate(None, None), 25 * gbit);
        assert_eq!(rate(None, Some(100 * gbit)), 100 * gbit);
        assert_eq!(rate(Some(40 * gbit), Some(100 * gbit)), 40 * gbit);
        assert_eq!((rate(None, Some(1)), rate(None, Some(u64::MAX))), LINE_RATES);
        let text =
            Config { line_rate_bps: Some(1), ..Config::default() }.validate().expect_err("low");
        assert!(text.to_string().contains("line_rate_bps"), "{text}");
    }

    #[test]
    fn limits_of_transmit_batches_are_those_of_the_settings() {
        let network = MemNetwork::new();
        let transport = network.endpoint(MemConfig::default()).expect("an endpoint");
        let mut config = Config::default();
        (config.tuning.tx_frames, config.tuning.tx_items) = (7, 11);
        (config.tuning.gather_from, config.tuning.gather_to) = (100, 900);
        config.packing = Some(Packing::Gather);
        let settings = config.for_transport(transport.caps());
        assert_eq!((settings.tx_frames, settings.tx_items), (7, 11));
        assert_eq!((settings.gather_from, settings.gather_to), (100, 900));
    }

    const HEAD: &str = "# Settings

The fields of `courser::Config`, as they are declared in `crates/courser/src/config.rs`; its
documentation has their cost. Ranges are checked where a nexus, a server or a client is made.

This file is generated: `COURSER_WRITE_DOCS=1 cargo test -p courser --lib settings`.

| setting | type | default | range | |
| --- | --- | --- | --- | --- |
";

    #[test]
    fn the_documentation_of_settings_lists_each_declared_one() {
        let rows = Config::SETTINGS.iter().filter(|setting| setting.name != "tuning");
        let rows = rows.map(|setting| {
            let Setting { name, type_name, help, allowed, default, .. } = setting;
            let allowed = allowed.map_or("", |range| range(&Config::default()).text);
            let default = match *name {
                "workers" => "one per CPU".to_owned(),
                _ => format!("`{}`", default()),
            };
            let sentence = help.split_inclusive(". ").next().unwrap_or(help).trim_end();
            let sentence = sentence.replace("[`", "`").replace("`]", "`").replace("`crate::", "`");
            format!("| `{name}` | `{type_name}` | {default} | {allowed} | {sentence} |\n")
        });
        let text = format!("{HEAD}{}", rows.collect::<String>());
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/settings.md");
        if std::env::var_os("COURSER_WRITE_DOCS").is_some() {
            std::fs::write(path, &text).expect("it can be written");
        }
        let written = std::fs::read_to_string(path).expect("it can be read");
        assert!(written == text, "docs/settings.md is old; COURSER_WRITE_DOCS=1 writes it");
    }

    #[test]
    fn defaults_are_those_of_the_protocol_and_in_their_ranges() {
        let config = Config::default();
        config.validate().expect("in range");
        let (mut ours, theirs) = (proto::Config::default(), proto::Config::default());
        config.pass(&mut ours);
        config.tuning.pass(&mut ours);
        assert_eq!(format!("{ours:?}"), format!("{theirs:?}"));
    }

    #[test]
    fn settings_of_the_protocol_are_passed_to_it() {
        let mut config = Config { slots: 4, max_sessions: 77, ..Config::default() };
        (config.idle_after, config.tuning.reorder_span) = (Duration::from_secs(2), 9);
        let settings = config.for_transport(&LARGEST);
        assert_eq!((settings.slots, settings.max_sessions), (4, 77));
        assert_eq!((settings.idle_after_ns, settings.reorder_span), (2_000_000_000, 9));
    }
}
