//! Settings: every knob with its default, its range and its cost, in one place.

use std::time::Duration;

use courser_net::{Caps, OptionSet};
use courser_proto as proto;
use courser_proto::wire::{FRAME_HEADER, PACKET_HEADER};
use courser_proto::{Admission, Recovery};

use crate::control::DEFAULT_FAILURE_TIMEOUT;
use crate::error::BindError;
use crate::spin::cpus;

/// More threads than this are a mistake.
const MAX_WORKERS: usize = 1024;
const MAX_WORKER_QUEUE: usize = 1 << 20;
/// Trains of packets a session has in flight by default: one at the sender, one under way, and one
/// at the receiver. More would fill the buffers of switches.
const NETWORK_TRAINS: u32 = 3;
/// Within a host, where the receive queue is the only buffer: a train more for each of them, so that
/// neither side waits while the other is late.
const HOST_TRAINS: u32 = 6;
/// Within a host also at least so many bytes of full frames: a packet of a large message there takes
/// as long as its copy, so what keeps both sides at work is a number of bytes, not of packets.
const HOST_BYTES: usize = 256 << 10;
/// Packets that a session may have in flight whatever their size.
const LEAST_CREDITS: u32 = 32;

/// Settings of a nexus and its endpoints. `Config::default()` is what the README measures.
#[derive(Clone, Debug)]
pub struct Config {
    /// Concurrent requests per session `[eRPC §4.3]`: a power of two, 1 to 32, default 16. Further
    /// calls wait. The smaller of both sides' settings holds. Cost while the session is used:
    /// [`crate::Rpc::session_bytes`].
    pub slots: u8,
    /// Packets a client session may have outstanding, C `[eRPC §4.3.1]`: 1 to 65,535. `None`:
    /// three full trains of the transport; to a server of the same host, where no switch's buffer is in
    /// between, six of them or 256 KiB of full frames, whichever is more, unless admission is strict;
    /// at least 32, and at most what the receive buffer holds. Small values for latency or many sessions, large ones for bandwidth. The smaller
    /// of both sides' settings holds.
    pub credits: Option<u32>,
    /// Whether sessions share the credits that the receive queue has room for (default), or each has
    /// its own and one for which there is no room is refused.
    pub admission: Admission,
    /// Largest message, bytes: up to 2^28 - 1, default 8 MiB. A peer can make a server reserve
    /// this much per slot.
    pub max_msg_size: u32,
    /// Message memory of an endpoint, bytes; taken from the system as it is used. Default 1 GiB.
    pub memory_limit: usize,
    /// Calls that may wait for a slot, per session; the next is refused. Default 1,024.
    pub call_queue: usize,
    /// Sessions per endpoint, both roles. Default 65,536.
    pub max_sessions: usize,
    /// Sessions that one process may have with an endpoint as its client. Default 32,768.
    pub max_sessions_per_peer: usize,
    /// Bytes of unanswered requests and of unacknowledged responses that an endpoint keeps for one
    /// client process; beyond, its requests are refused (`Status::NoMemory`). Requests of one packet
    /// do not count, responses of one packet count with their slot's buffer. Default 256 MiB.
    pub max_held_per_peer: usize,
    /// A session that was not used for this long gives its slots' memory back, on both sides, and
    /// the server is told that its last responses have arrived. Default 1 s.
    pub idle_after: Duration,
    /// Largest frame (datagram payload), bytes. `None`: what a 1500-byte link carries. Never more
    /// than the path MTU allows.
    pub max_frame: Option<usize>,
    /// Bytes that wait in the receive queue, and in the send queue, of a transport that has queues
    /// of bytes: the socket buffers of UDP. Default 8 MiB; the system may grant less.
    pub socket_buffer: usize,
    /// Options of transports, for what only one of them has: trains of UDP
    /// ([`UdpOptions`](courser_net::UdpOptions)), reading in place over shared memory
    /// ([`ShmOptions`](courser_net::ShmOptions)), or those of a transport of your own. The one that
    /// the address selects takes its own; options in the address (`udp://[::]:31850?gso=off`)
    /// replace these. Default: none.
    pub transport: OptionSet,
    /// How long an endpoint spins after its last packet before it sleeps. `None`: 100 us, or not
    /// at all where the machine or the container has one CPU only. Spinning costs a core, sleeping
    /// costs about 30 us for the next packet. While calls are unanswered it is five times as long.
    /// After 20 us without a packet, or at once in a process whose threads are all pinned to one
    /// CPU, the CPU is offered to others between two looks, about 0.3 us each.
    pub spin: Option<Duration>,
    /// How long a connect may take. Default 5 s.
    pub connect_timeout: Duration,
    /// Another nexus from which nothing is heard for this long has failed, and its sessions with
    /// it, in both roles: calls end with `CallError::PeerFailed`, the server's side is freed.
    /// 10 ms to 1 h, default 800 ms.
    ///
    /// It detects what the network does not tell: a machine or a network that died, a process that
    /// is stopped. A process that ends, killed or not, is noticed at once, since its kernel closes
    /// the control connection. Datapath silence has a time of its own: `datapath_timeout`.
    ///
    /// Cost: when a quarter of it has passed in silence, one side asks and the other answers. An
    /// idle pair exchanges eight messages of 5 bytes in this time, which is ten a second by
    /// default; a nexus with 4,096 idle connections handles 41,000 a second.
    ///
    /// False positives: a living process whose control thread does not run for three quarters of
    /// this time looks dead, because it is frozen, swapped out, or starved by threads of a higher
    /// priority; so does a network outage of that length. Sessions can be connected again then.
    /// Both sides decide for themselves, by their own setting.
    pub failure_timeout: Duration,
    /// How lost packets are found and sent again; agreed on with the other side at connect (the
    /// client's choice, or go-back-N if the server has chosen that). Default
    /// [`Recovery::Selective`].
    pub recovery: Recovery,
    /// Bounds of the retransmission timeout. Default 1 ms to 1 s, 20 ms before the first round
    /// trip was measured.
    pub rto: (Duration, Duration),
    /// A peer whose datapath answers nothing for this long is given up. Default 5 s.
    pub datapath_timeout: Duration,
    /// Packets of at most this many data bytes share frames; larger ones leave without a copy.
    /// Default 512, at most 2,048.
    pub inline_max: usize,
    /// Whether the clock is read twice for all packets of a pass, when they were received and when
    /// the answers leave, instead of once more for each packet. Default true; false is slower by a
    /// reading, 10 ns, for each packet each way, and is there to be measured `[eRPC §5.2.2]` (E75).
    pub batched_timestamps: bool,
    /// Worker threads of the nexus, started by the first [`crate::Rpc::on_worker`]: 0 (none, which
    /// makes that an error) to 1,024. Default: one per CPU of the machine or the container. A
    /// thread costs about 20 KiB of memory in the kernel and its stack as far as it is used; an
    /// idle one sleeps, after 10 us of looking for a next request where there are several CPUs.
    /// They run on the CPUs that the thread may use which makes the nexus. A simulation should set
    /// it: the default depends on the computer ([`crate::Nexus::bind_in`]).
    pub workers: usize,
    /// Requests that may wait for a worker, of all endpoints of the nexus together: 1 to
    /// 1,048,576; the next is refused with `Status::WorkersBusy`. Default 1,024. Each costs up
    /// to 288 bytes, and its request's buffer of the endpoint's `memory_limit`.
    pub worker_queue: usize,
    /// How the protocol works inside; for measuring.
    pub tuning: Tuning,
}

/// Knobs of the protocol that no program needs: their defaults are what was found best. They are
/// there so that this can be measured again (`courser bench txqueue`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// Frames that one transmit burst holds, at least 1 (E62). Default 128.
    pub tx_frames: usize,
    /// Requests and replies that one transmit burst is made of, at least 1. Default 64.
    pub tx_items: usize,
    /// Whether responses of one packet are written to a buffer that their slot keeps (E32). Default
    /// true. False: each takes a buffer from the endpoint's memory and gives it back. This and the
    /// next three are off only to measure what they save (`courser bench factors`, E75).
    pub prealloc_responses: bool,
    /// Whether handlers read requests of one packet in the frame that was received
    /// `[eRPC §4.2.3]` (E28). Default true. False: each is first copied to a buffer of its own, and
    /// refused with [`crate::Status::NoMemory`] when there is none.
    pub zero_copy_rx: bool,
    /// Whether what arrives of requests of several packets is copied to their message. Default true.
    /// False: **a handler gets a message of the right length with arbitrary bytes**. For measuring
    /// what the server's copy costs (`courser bench bandwidth --no-copy`, `[eRPC §6.4]`, E78), and for
    /// nothing else.
    pub copy_requests: bool,
    /// While a packet of a message is missing, others go on to be sent until they spread over so many
    /// times C packets: 1 to 1,024, default 4 (M26).
    pub spread: u32,
    /// Whether small packets to one peer share frames. Default true. False: a frame for each.
    pub packing: bool,
    /// Whether the state that the next frames of a received burst need is fetched into the cache
    /// while one is worked on, that of calls while the next ones are made, and that of timers. With many
    /// sessions ([`Tuning::far_sessions`]) a small call is put on its slot up to eight calls later, and
    /// in the same pass, unless [`Config::call_queue`] is 8 or less, or a request of
    /// [`Config::inline_max`] bytes is more than a packet. With few sessions all is there anyway.
    /// Default true.
    pub prefetch: bool,
    /// So many sessions are many ([`Tuning::prefetch`]): the most that the endpoint had at a time, as
    /// client and server together. Default 512. 0: always; `usize::MAX`: never. Costs a byte for each
    /// client session.
    pub far_sessions: usize,
    /// Frames of a single small packet that answer a frame say no time for so long after one to the same
    /// peer that did, and as a rule neither side reads its clock while such a packet is on its way: 20 ns
    /// of a round trip over shared memory. Round trips are sampled this often then; all frames are
    /// samples where they are further apart. Default 4 us, up to 1 s. Clocks may differ by 50 ppm: that is
    /// 5 ns in 100 us and 50 us in 1 s, of a round trip and of a server's deadline. So more than 100 us is
    /// for tools that slow everything down. 0: every frame says the time.
    pub time_every: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        let p = proto::Config::default();
        Tuning {
            tx_frames: p.tx_frames,
            tx_items: p.tx_items,
            prealloc_responses: p.prealloc_responses,
            zero_copy_rx: p.zero_copy_rx,
            copy_requests: p.copy_requests,
            packing: p.packing,
            prefetch: p.prefetch,
            far_sessions: p.far_sessions,
            time_every: Duration::from_nanos(p.time_every_ns),
            spread: p.spread,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        let p = proto::Config::default();
        Config {
            slots: p.slots,
            credits: None,
            admission: p.admission,
            max_msg_size: p.max_msg_size,
            memory_limit: 1 << 30,
            call_queue: p.call_queue,
            max_sessions: p.max_sessions,
            max_sessions_per_peer: p.max_sessions_per_peer,
            max_held_per_peer: p.max_held_per_peer,
            idle_after: Duration::from_nanos(p.idle_after_ns),
            max_frame: None,
            socket_buffer: 8 << 20,
            transport: OptionSet::new(),
            spin: None,
            connect_timeout: Duration::from_secs(5),
            failure_timeout: DEFAULT_FAILURE_TIMEOUT,
            recovery: p.recovery,
            rto: (Duration::from_nanos(p.rto_min_ns), Duration::from_nanos(p.rto_max_ns)),
            datapath_timeout: Duration::from_nanos(p.datapath_timeout_ns),
            inline_max: p.inline_max,
            batched_timestamps: true,
            workers: cpus().min(MAX_WORKERS),
            worker_queue: 1024,
            tuning: Tuning::default(),
        }
    }
}

/// Full frames of a train.
fn train(caps: &Caps) -> u32 {
    caps.train_frames.min(caps.train_bytes / caps.max_frame.max(1)).max(1) as u32
}

/// Frames of the receive queue, |RQ|.
fn rx_queue(caps: &Caps) -> u32 {
    caps.rx_queue_frames.clamp(1, 65_535) as u32
}

impl Config {
    /// Checks what belongs to the nexus; the protocol checks its own part for each endpoint.
    pub(crate) fn validate(&self) -> Result<(), BindError> {
        if self.workers > MAX_WORKERS {
            return Err(BindError::Workers(self.workers));
        }
        if !(1..=MAX_WORKER_QUEUE).contains(&self.worker_queue) {
            return Err(BindError::WorkerQueue(self.worker_queue));
        }
        let t = self.failure_timeout;
        if t < Duration::from_millis(10) || t > Duration::from_secs(3600) {
            return Err(BindError::FailureTimeout(t));
        }
        Ok(())
    }

    /// C of a session that may have so many trains and so many bytes in flight by default.
    fn credits_for(&self, caps: &Caps, trains: u32, bytes: usize) -> u32 {
        let frames = u32::try_from(bytes / caps.max_frame.max(1)).unwrap_or(u32::MAX);
        let wanted = (trains * train(caps)).max(frames).max(LEAST_CREDITS);
        self.credits.unwrap_or_else(|| wanted.min(rx_queue(caps)))
    }

    /// What the protocol is told, given what the transport can do.
    pub(crate) fn for_transport(&self, caps: &Caps) -> proto::Config {
        let train = train(caps);
        let queue = rx_queue(caps);
        // Who asks for strict admission wants room for many sessions.
        let strict = self.admission == Admission::Strict;
        let (trains, bytes) = if strict { (NETWORK_TRAINS, 0) } else { (HOST_TRAINS, HOST_BYTES) };
        let defaults = proto::Config::default();
        let small_data = caps.small_frame.saturating_sub(FRAME_HEADER + PACKET_HEADER);
        let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        proto::Config {
            slots: self.slots,
            credits: self.credits_for(caps, trains, bytes),
            plain_credits: self.credits_for(caps, NETWORK_TRAINS, 0),
            admission: self.admission,
            rx_queue_frames: queue,
            rx_queue_small_frames: u32::try_from(caps.rx_queue_small_frames).unwrap_or(u32::MAX),
            small_data: u16::try_from(small_data).unwrap_or(u16::MAX),
            rx_queue_per_peer: caps.rx_queue_per_peer,
            train_frames: train,
            max_msg_size: self.max_msg_size,
            call_queue: self.call_queue,
            max_sessions: self.max_sessions,
            max_sessions_per_peer: self.max_sessions_per_peer,
            max_held_per_peer: self.max_held_per_peer,
            idle_after_ns: ns(self.idle_after),
            inline_max: self.inline_max,
            tx_frames: self.tuning.tx_frames,
            tx_items: self.tuning.tx_items,
            prealloc_responses: self.tuning.prealloc_responses,
            zero_copy_rx: self.tuning.zero_copy_rx,
            copy_requests: self.tuning.copy_requests,
            packing: self.tuning.packing,
            prefetch: self.tuning.prefetch,
            far_sessions: self.tuning.far_sessions,
            time_every_ns: ns(self.tuning.time_every),
            spread: self.tuning.spread,
            tx_halves: train == 1,
            recovery: self.recovery,
            rto_min_ns: ns(self.rto.0),
            rto_max_ns: ns(self.rto.1),
            rto_initial_ns: defaults.rto_initial_ns.clamp(ns(self.rto.0), ns(self.rto.1)),
            datapath_timeout_ns: ns(self.datapath_timeout),
        }
    }
}
