//! Counters of an endpoint. Reading them costs nothing.

use courser_buf::{labels, stats};

use crate::wire::Malformed;

labels! {
    /// Why a frame or packet was dropped. Each reason has a counter; every drop is counted.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    #[repr(usize)]
    pub enum RxDrop {
        /// Header truncated.
        Truncated = "truncated",
        /// Another protocol or version.
        Version = "version",
        /// Undefined flag or extension.
        Flags = "flags",
        /// Undefined packet kind.
        Kind = "kind",
        /// Field out of range.
        Range = "range",
        /// Data beyond the end of the frame.
        Length = "length",
        /// No such peer.
        UnknownPeer = "unknown_peer",
        /// Wrong cookie: forged, or of an earlier incarnation of the connection.
        Cookie = "cookie",
        /// Source address is not the peer's.
        WrongSource = "wrong_source",
        /// Packet size differs from the agreed one.
        PacketSize = "packet_size",
        /// No such session, or not a session of the frame's peer.
        UnknownSession = "unknown_session",
        /// A packet kind that does not match the session's role.
        WrongRole = "wrong_role",
        /// For a request that is over.
        Stale = "stale",
        /// For a request that has not begun.
        Future = "future",
        /// A packet that was already received.
        Duplicate = "duplicate",
        /// A packet ahead of the next one in order; go-back-N drops it (E58).
        OutOfOrder = "out_of_order",
        /// A packet that contradicts the request's state: a credit return for packets never sent,
        /// another message size than before.
        Inconsistent = "inconsistent",
        /// A packet kind that this version reserves.
        Unsupported = "unsupported",
        /// The frame was changed on the way, or its cookie is wrong: [`crate::Integrity::Crc`].
        Checksum = "checksum",
    }
}

/// Number of [`RxDrop`]s.
pub const DROP_REASONS: usize = RxDrop::ALL.len();

/// Names of the drop reasons, in the order of [`RxDrop`].
pub const DROP_NAMES: [&str; DROP_REASONS] = RxDrop::NAMES;

impl From<Malformed> for RxDrop {
    fn from(m: Malformed) -> Self {
        match m {
            Malformed::Truncated => RxDrop::Truncated,
            Malformed::Version => RxDrop::Version,
            Malformed::Flags => RxDrop::Flags,
            Malformed::Kind => RxDrop::Kind,
            Malformed::Range => RxDrop::Range,
            Malformed::Length => RxDrop::Length,
        }
    }
}

labels! {
    /// Kinds of packets as they are counted: the index of [`EndpointStats::rx_kinds`].
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    #[repr(usize)]
    pub enum CountedKind {
        /// Packets of requests.
        Request = "request",
        /// Credit returns.
        CreditReturn = "credit-return",
        /// Requests for responses.
        Rfr = "rfr",
        /// Packets of responses.
        Response = "response",
        /// Acknowledgements of responses.
        Ack = "ack",
        /// Cancellations.
        Cancel = "cancel",
        /// Negative acknowledgements.
        Nack = "nack",
        /// Reports of missing frames.
        Gap = "gap",
        /// One-way messages of one packet.
        Message = "message",
        /// Acknowledgements of one-way messages.
        MessageAck = "message-ack",
        /// Answers to challenges of addresses.
        Proof = "proof",
    }
}

/// Number of packet kinds that are counted separately.
pub const PACKET_KINDS: usize = CountedKind::ALL.len();

stats! {
    /// Counters since the creation of the endpoint.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    pub struct EndpointStats: "endpoint" {
        /// Frames received from the transport.
        pub rx_frames: u64 = counter(frames),
        /// Frames that passed ingress validation.
        pub rx_frames_accepted: u64 = counter(frames),
        /// Packets accepted, of any kind.
        pub rx_packets: u64 = counter(packets),
        /// Packets accepted, by kind; index with [`CountedKind`].
        pub rx_kinds: [u64; PACKET_KINDS] = counter(packets, CountedKind::LABELS),
        /// Frames built.
        pub tx_frames: u64 = counter(frames),
        /// Packets built.
        pub tx_packets: u64 = counter(packets),
        /// Packets built, by kind; index with [`CountedKind`].
        pub tx_kinds: [u64; PACKET_KINDS] = counter(packets, CountedKind::LABELS),
        /// Dropped frames and packets, by reason; index with [`RxDrop`].
        pub drops: [u64; DROP_REASONS] = counter(drops, RxDrop::LABELS),
        /// Changes of peers' addresses that were followed: translation of addresses.
        pub moves: u64 = counter(times) as "address_changes",
        /// Calls accepted.
        pub calls: u64 = counter(calls),
        /// Calls that ended with a response.
        pub responses: u64 = counter(calls),
        /// Calls that ended with an error.
        pub errors: u64 = counter(calls),
        /// Of these, calls that ended because their deadline passed (ADR 15).
        pub expired: u64 = counter(calls),
        /// Of these, calls that were cancelled (ADR 15).
        pub cancelled: u64 = counter(calls),
        /// One-way messages that the application has sent. Those of several packets are also calls.
        pub messages_sent: u64 = counter(messages),
        /// Of these, messages that their receivers have acknowledged.
        pub messages_acknowledged: u64 = counter(messages),
        /// Of these, messages of one packet whose deadline passed before they were sent.
        pub messages_unsent: u64 = counter(messages),
        /// Of these, messages whose session ended before they were acknowledged, and those of several
        /// packets that were refused or whose deadline passed.
        pub messages_failed: u64 = counter(messages),
        /// One-way messages passed to handlers.
        pub messages_received: u64 = counter(messages),
        /// One-way messages of one packet that arrived after their deadline.
        pub messages_expired: u64 = counter(messages),
        /// One-way messages of one packet that were refused: the endpoint was shutting down, or there was
        /// no memory.
        pub messages_refused: u64 = counter(messages),
        /// Refusals for lack of memory after which the call was held back, to be made again (ADR 36).
        pub held_back: u64 = counter(calls),
        /// Requests passed to handlers.
        pub requests: u64 = counter(requests),
        /// Requests that have waited for memory (ADR 36).
        pub requests_waited: u64 = counter(requests),
        /// Unfinished requests that were dropped: nothing of them arrived for `Config::datapath_timeout_ns`,
        /// or they have waited for memory for as long.
        pub requests_given_up: u64 = counter(requests),
        /// Requests refused when they arrived: there was no memory for them, their client holds its
        /// share, they are too large, or the endpoint is shutting down.
        pub requests_refused: u64 = counter(requests),
        /// Replies of handlers, errors included.
        pub replies: u64 = counter(replies),
        /// Requests answered with [`crate::Status::DeadlineExceeded`] without execution.
        pub requests_expired: u64 = counter(requests),
        /// Requests answered with [`crate::Status::Cancelled`] without execution.
        pub requests_cancelled: u64 = counter(requests),
        /// Retransmission timeouts after which all packets in flight of a call were sent again (E59).
        pub rollbacks: u64 = counter(timeouts),
        /// Packets retransmitted for any reason.
        pub retransmitted: u64 = counter(packets),
        /// Packets detected as lost because later ones had arrived.
        pub lost: u64 = counter(packets),
        /// Tail-loss probes: packets sent again because the end of a message was not acknowledged.
        pub probes: u64 = counter(packets),
        /// Retransmissions of packets that had arrived.
        pub spurious: u64 = counter(packets),
        /// Peak use of the bits pool for arriving messages with [`crate::Recovery::Melo`]. By
        /// default it has one for each packet of 1,472 bytes, or of the largest frame if that is
        /// smaller, in flight at the rate of the link, and at least 1,024 (M18, M34).
        pub melo_bits_peak: u32 = peak(bits),
        /// Packets dropped because the pool was exhausted (M16).
        pub melo_refused: u64 = counter(packets),
        /// States of arriving messages that were swapped out of the pool of bits, with a limit of
        /// those that hold bits (M17).
        pub melo_swapped_out: u64 = counter(times),
        /// States that were swapped in again, because a packet of the message arrived or its missing
        /// ones were listed after a timeout (M17).
        pub melo_swapped_in: u64 = counter(times),
        /// Bytes of the states and bitmaps that were swapped, both ways (M32).
        pub melo_swapped_bytes: u64 = counter(bytes),
        /// Number of times that a frame number showed earlier frames to be lost or late.
        pub gaps: u64 = counter(times),
        /// Stored responses sent again for duplicate requests (E61).
        pub responses_resent: u64 = counter(responses),
        /// Answers "in progress" sent (ADR 5).
        pub in_progress_sent: u64 = counter(answers),
        /// Number of times that a client session waited for the credit pool of its peer (ADR 7).
        pub pool_waits: u64 = counter(times),
        /// Number of times that a message of several packets waited for its turn at the host's own
        /// transmit queue (ADR 57).
        pub host_waits: u64 = counter(times),
        /// Number of times that packets waited for a departure time.
        pub paced: u64 = counter(times),
        /// Completions delayed until the transport released the request (E24).
        pub completions_parked: u64 = counter(calls),
        /// Packets copied because their header was still referenced (E25).
        pub tx_copied: u64 = counter(packets),
        /// Most credits in flight on any session.
        pub max_in_flight: u32 = peak(credits),
    }
}

impl EndpointStats {
    /// The counter of one reason.
    pub fn dropped(&self, reason: RxDrop) -> u64 {
        self.drops[reason as usize]
    }

    /// All dropped frames and packets.
    pub fn drops_total(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Packets built that are neither requests nor one-way messages. Where there are messages alone,
    /// they acknowledge.
    pub fn tx_acknowledging(&self) -> u64 {
        let sent = |kind| self.tx_kinds[kind as usize];
        self.tx_packets - sent(CountedKind::Request) - sent(CountedKind::Message)
    }

    /// Accepted calls that have not ended.
    #[inline]
    pub(crate) fn outstanding_calls(&self) -> u64 {
        self.calls - self.responses - self.errors
    }

    /// Counts a built packet of the kind with that index.
    #[inline]
    pub(crate) fn sent(&mut self, kind: usize) {
        self.tx_packets += 1;
        self.tx_kinds[kind] += 1;
    }

    /// Counts an accepted packet of the kind with that index.
    #[inline]
    pub(crate) fn received(&mut self, kind: usize) {
        self.rx_packets += 1;
        self.rx_kinds[kind] += 1;
    }

    #[cold]
    pub(crate) fn drop(&mut self, reason: RxDrop) {
        self.drops[reason as usize] += 1;
    }
}
