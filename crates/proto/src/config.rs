//! Every limit and every knob of an endpoint, in one place, each with its cost.

use crate::loss::Recovery;
use crate::wire::{MAX_MSG_SIZE, MIN_DATA_PER_PACKET};

/// Largest [`Config::max_sessions`].
pub(crate) const MOST_SESSIONS: usize = 1 << 20;

/// How sessions share the endpoint's receive queue (F7).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    /// The credits of all sessions together never exceed the receive queue: at most |RQ|/C
    /// sessions, and no packet is ever lost to a full queue `[eRPC §4.3.1]` (E34).
    Strict,
    /// Any number of sessions. Those of one client endpoint share a pool of credits, of which a
    /// session takes what it has in flight, up to C, and an idle one nothing; when the pool is
    /// empty they wait, each for its turn (E36). A pool grows with sessions to at most half of what
    /// other peers leave of the receive queue, or of the queue that the peer has for itself
    /// ([`Config::rx_queue_per_peer`]). Every peer has at least one credit: only with more
    /// peers than the queue has room for may it be overrun, and such losses are recovered like any
    /// other (E60).
    Oversubscribed,
}

/// Settings of one endpoint. The defaults work; `Config::default()` is what the README measures.
#[derive(Clone, Debug)]
pub struct Config {
    /// Concurrent requests per session `[eRPC §4.3]` (E30): a power of two, 1 to 32, default 16
    /// (the paper has 8, with which nearly half of 60 calls on 8 sessions drawn at random wait); the
    /// smaller of both sides' settings holds. While a session is used each costs 192 bytes on
    /// either side, three cache lines of which a small RPC touches two (more at the client if its
    /// continuations have more than 24 bytes); 4 while it is idle (F6).
    pub slots: u8,
    /// Packets that a client session may have outstanding, C `[eRPC §4.3.1]` (E33, E37): 1 to
    /// 65,535. What a session really gets is agreed at connect.
    pub credits: u32,
    /// Credits that a session asks for before it is known where its server is, and by which a pool grows
    /// with a session. Up to `credits` a session gets more only from a server of the same host
    /// ([`crate::Endpoint::widen`]), and its pool only while that is at most a sixteenth of what other
    /// peers leave of the receive queue. Default: no less than `credits`.
    pub plain_credits: u32,
    /// How the receive queue is shared.
    pub admission: Admission,
    /// |RQ|: full-sized frames that the transport's receive queue holds.
    pub rx_queue_frames: u32,
    /// Frames of one packet of at most `small_data` data bytes that the receive queue holds. Such a
    /// packet takes that much less of a pool of credits. Default: no more than `rx_queue_frames`.
    pub rx_queue_small_frames: u32,
    /// Largest packet, in data bytes, that counts as small. Default 0.
    pub small_data: u16,
    /// Whether each peer's frames have a queue of that length for themselves, instead of one that all
    /// share. Then the requests of either side may fill half of it; [`Admission::Strict`] counts as
    /// if all shared one. Default false.
    pub rx_queue_per_peer: bool,
    /// Frames that leave as one train; large messages are sent in steps of this many packets.
    pub train_frames: u32,
    /// Largest message accepted and sent, bytes: up to 2^28 - 1, default 8 MiB (E79). A peer can
    /// make a server reserve this much per slot.
    pub max_msg_size: u32,
    /// Calls that may wait for a free slot, per session; one more is refused. Default 1,024.
    pub call_queue: usize,
    /// Sessions per endpoint, both roles together. Default 65,536.
    pub max_sessions: usize,
    /// Sessions that one process may have here as a client. Default 32,768: half of all.
    pub max_sessions_per_peer: usize,
    /// Bytes of requests that are arriving or with their handlers, and of responses that are
    /// stored, in buffers of their own, and of the packet buffers of slots that have answered, for
    /// one process as a client. Beyond, its new requests are refused with
    /// [`crate::Status::NoMemory`] before they execute, until there is less again. Responses to
    /// what executes are stored in any case. Default 256 MiB.
    pub max_held_per_peer: usize,
    /// A client session with nothing to do for this long gives the memory of its slots back, on
    /// both sides (F6), ns. Default 1 s.
    pub idle_after_ns: u64,
    /// Packets of at most this many data bytes are copied into a shared frame; larger ones leave
    /// from the message buffer itself. Default 512.
    pub inline_max: usize,
    /// Responses of one packet are written to a buffer that their slot keeps (E32). Default on;
    /// off, each takes a buffer from the arena. These four switches are for measuring what each
    /// saves (E75): on is never worse but for the memory of the buffers.
    pub prealloc_responses: bool,
    /// Handlers read requests of one packet in the received frame `[eRPC §4.2.3]` (E28). Default
    /// on; off, each is copied to a buffer from the arena first, and refused with
    /// [`crate::Status::NoMemory`] when there is none.
    pub zero_copy_rx: bool,
    /// What arrives of requests of several packets is copied to their message. Default on; off, a
    /// handler gets a message of the right length with arbitrary bytes: for measuring what the
    /// server's copy costs (E78), and for nothing else.
    pub copy_requests: bool,
    /// Small packets to one peer share frames (F1). Default on; off, each is a frame of its own.
    pub packing: bool,
    /// With many sessions (`far_sessions`), the state that the next received frames, the next calls
    /// and the next looks of the timers need is fetched into the cache before they are worked on
    /// ([`crate::Endpoint::look_ahead`], [`crate::Endpoint::call_with`]). Default on.
    pub prefetch: bool,
    /// So many sessions are many: the most that there were at a time, as client and server together.
    /// From there on calls are deferred ([`crate::Endpoint::call_with`]), and what the next frames and
    /// looks of the timers need is fetched ahead. Default 512: the lines that so many take fill a
    /// quarter of a level-2 cache of 1 MiB. 0: always; `usize::MAX`: never. Costs a byte for each
    /// client session. No call is deferred with `prefetch` off, `call_queue` up to 8, where a request
    /// of `inline_max` bytes is not one packet, or on a session whose number 255 others had before.
    pub far_sessions: usize,
    /// Frames that one transmit stage makes. Default 128.
    pub tx_frames: usize,
    /// Requests and replies that one transmit stage works on. Default 64: with more of them ready,
    /// a first part leaves while the rest is still being made, and both sides work at the same
    /// time. Small values make trains short.
    pub tx_items: usize,
    /// An endpoint with calls of its own sends the requests of at most half of them in a stage, so
    /// that its server works on one half while it makes the other. Replies do not count. Default
    /// false: long trains are worth more where each costs a system call.
    pub tx_halves: bool,
    /// Frames of a single small packet that answer a frame say no time for so long after one to the
    /// same peer that did, ns: neither side need read its clock while such a packet is on its way, which
    /// saves 20 ns of a round trip. Round trips are sampled this often then; every other frame is a
    /// sample, and all are where frames are further apart. Default 4,000, up to 1,000,000,000. A sample
    /// counts by the peer's clock how long it was held, and 50 ppm of 100,000 are 5 ns, of a deadline too: more is for
    /// tools that slow everything down. 0: every frame says the time.
    pub time_every_ns: u64,
    /// How lost packets are found and sent again (E56): what the client side of a session wants,
    /// and what its server side agrees to.
    pub recovery: Recovery,
    /// While a packet of a message is missing, others go on to be sent until they spread over so many
    /// times C packets: 1 to 1,024, default 4. A packet that is lost again and again holds the
    /// others up then. Each costs a client 8 bytes; with [`Recovery::Melo`] its receiver keeps a bit of
    /// 1,024 for each.
    pub spread: u32,
    /// Lower bound of the retransmission timeout, ns. Default 1 ms: below it, a descheduled
    /// process looks like loss. It says nothing of the network: where threads are never
    /// descheduled, a few of the shortest round trips will do.
    pub rto_min_ns: u64,
    /// Upper bound of the retransmission timeout with back-off, ns. Default 1 s.
    pub rto_max_ns: u64,
    /// Retransmission timeout before the first round trip was measured, ns; longer when the
    /// handshake was slow ([`crate::Endpoint::expect_round_trip`]). Default 20 ms.
    pub rto_initial_ns: u64,
    /// A peer that answers nothing for this long, while requests are being retransmitted, is
    /// given up (F13), ns. Default 5 s.
    pub datapath_timeout_ns: u64,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            slots: 16,
            credits: 32,
            plain_credits: u32::MAX,
            admission: Admission::Oversubscribed,
            rx_queue_frames: 1024,
            rx_queue_small_frames: 1024,
            small_data: 0,
            rx_queue_per_peer: false,
            train_frames: 1,
            max_msg_size: 8 << 20,
            call_queue: 1024,
            max_sessions: 65_536,
            max_sessions_per_peer: 32_768,
            max_held_per_peer: 256 << 20,
            idle_after_ns: 1_000_000_000,
            inline_max: 512,
            prealloc_responses: true,
            zero_copy_rx: true,
            copy_requests: true,
            packing: true,
            prefetch: true,
            far_sessions: 512,
            tx_frames: 128,
            tx_items: 64,
            tx_halves: false,
            time_every_ns: 4_000,
            recovery: Recovery::Selective,
            spread: 4,
            rto_min_ns: 1_000_000,
            rto_max_ns: 1_000_000_000,
            rto_initial_ns: 20_000_000,
            datapath_timeout_ns: 5_000_000_000,
        }
    }
}

/// A setting outside its range: which, and what is allowed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{name} = {value} is out of range; set it to {range}")]
pub struct ConfigError {
    /// The field of [`Config`].
    pub name: &'static str,
    /// What was asked.
    pub value: u64,
    /// What is allowed.
    pub range: &'static str,
}

impl Config {
    /// Checks every range.
    ///
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
            (1..=MOST_SESSIONS).contains(&self.max_sessions),
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
        check((1..=1_024).contains(&self.spread), "spread", self.spread.into(), "1 to 1,024")?;
        check(
            self.time_every_ns <= 1_000_000_000,
            "time_every_ns",
            self.time_every_ns,
            "0 to 1 s",
        )?;
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
    fn each_range_is_checked() {
        type Spoil = fn(&mut Config);
        let bad: [(&str, Spoil); 10] = [
            ("slots", |c| c.slots = 3),
            ("slots", |c| c.slots = 64),
            ("credits", |c| c.credits = 0),
            ("max_msg_size", |c| c.max_msg_size = MAX_MSG_SIZE + 1),
            ("max_sessions", |c| c.max_sessions = 0),
            ("time_every_ns", |c| c.time_every_ns = 1_000_000_001),
            ("tx_frames", |c| c.tx_frames = 0),
            ("tx_items", |c| c.tx_items = 0),
            ("rto_min_ns", |c| c.rto_min_ns = 0),
            ("rto_max_ns", |c| c.rto_max_ns = 1),
        ];
        for (name, spoil) in bad {
            let mut c = Config::default();
            spoil(&mut c);
            assert_eq!(c.validate().unwrap_err().name, name);
        }
    }
}
