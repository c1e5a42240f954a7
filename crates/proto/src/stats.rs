//! Counters of an endpoint. Reading them costs nothing.

use crate::wire::Malformed;

/// Why a frame or packet was dropped. Each reason has a counter; every drop is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Drop {
    /// Header truncated.
    Truncated,
    /// Another protocol or version.
    Version,
    /// Undefined flag or extension.
    Flags,
    /// Undefined packet kind.
    Kind,
    /// Field out of range.
    Range,
    /// Data beyond the end of the frame.
    Length,
    /// No such peer.
    UnknownPeer,
    /// Wrong cookie: forged, or of an earlier incarnation of the connection.
    Cookie,
    /// Source address is not the peer's.
    WrongSource,
    /// Packet size differs from the agreed one.
    PacketSize,
    /// No such session, or not a session of the frame's peer.
    UnknownSession,
    /// A packet kind that does not match the session's role.
    WrongRole,
    /// For a request that is over.
    Stale,
    /// For a request that has not begun.
    Future,
    /// A packet that was already received.
    Duplicate,
    /// A packet ahead of the next one in order; go-back-N drops it (E58).
    OutOfOrder,
    /// A packet that contradicts the request's state: a credit return for packets never sent,
    /// another message size than before.
    Inconsistent,
    /// A packet kind that this version reserves.
    Unsupported,
    /// The frame was changed on the way, or its cookie is wrong: [`crate::Integrity::Crc`].
    Checksum,
}

/// Number of [`Drop`] reasons.
pub const DROP_REASONS: usize = Drop::Checksum as usize + 1;

/// Names of the drop reasons, in the order of [`Drop`].
pub const DROP_NAMES: [&str; DROP_REASONS] = [
    "truncated",
    "version",
    "flags",
    "kind",
    "range",
    "length",
    "unknown_peer",
    "cookie",
    "wrong_source",
    "packet_size",
    "unknown_session",
    "wrong_role",
    "stale",
    "future",
    "duplicate",
    "out_of_order",
    "inconsistent",
    "unsupported",
    "checksum",
];

impl From<Malformed> for Drop {
    fn from(m: Malformed) -> Self {
        match m {
            Malformed::Truncated => Drop::Truncated,
            Malformed::Version => Drop::Version,
            Malformed::Flags => Drop::Flags,
            Malformed::Kind => Drop::Kind,
            Malformed::Range => Drop::Range,
            Malformed::Length => Drop::Length,
        }
    }
}

/// Number of packet kinds that are counted separately.
pub const PACKET_KINDS: usize = 10;

/// Counters since the creation of the endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointStats {
    /// Frames received from the transport.
    pub rx_frames: u64,
    /// Frames that passed ingress validation.
    pub rx_frames_accepted: u64,
    /// Packets accepted, of any kind.
    pub rx_packets: u64,
    /// Packets accepted, by kind: request, credit return, request-for-response, response,
    /// acknowledgement, cancellation, negative acknowledgement, gap, one-way message, message
    /// acknowledgement.
    pub rx_kinds: [u64; PACKET_KINDS],
    /// Frames built.
    pub tx_frames: u64,
    /// Packets built.
    pub tx_packets: u64,
    /// Packets built, by kind, in the order of `rx_kinds`.
    pub tx_kinds: [u64; PACKET_KINDS],
    /// Dropped frames and packets, by reason; index with [`Drop`].
    pub drops: [u64; DROP_REASONS],
    /// Calls accepted.
    pub calls: u64,
    /// Calls that ended with a response.
    pub responses: u64,
    /// Calls that ended with an error.
    pub errors: u64,
    /// Of these, calls that ended because their deadline passed (ADR 15).
    pub expired: u64,
    /// Of these, calls that were cancelled (ADR 15).
    pub cancelled: u64,
    /// One-way messages that the application has sent. Those of several packets are also calls.
    pub messages_sent: u64,
    /// Of these, messages that their receivers have acknowledged.
    pub messages_acknowledged: u64,
    /// Of these, messages of one packet whose deadline passed before they were sent.
    pub messages_unsent: u64,
    /// Of these, messages whose session ended before they were acknowledged, and those of several
    /// packets that were refused or whose deadline passed.
    pub messages_failed: u64,
    /// One-way messages passed to handlers.
    pub messages_received: u64,
    /// One-way messages of one packet that arrived after their deadline.
    pub messages_expired: u64,
    /// One-way messages of one packet that were refused: the endpoint was shutting down, or there was
    /// no memory.
    pub messages_refused: u64,
    /// Refusals for lack of memory after which the call was held back, to be made again (ADR 36).
    pub held_back: u64,
    /// Requests passed to handlers.
    pub requests: u64,
    /// Requests that have waited for memory (ADR 36).
    pub requests_waited: u64,
    /// Unfinished requests that were dropped: nothing of them arrived for `Config::datapath_timeout_ns`,
    /// or they have waited for memory for as long.
    pub requests_given_up: u64,
    /// Replies of handlers, errors included.
    pub replies: u64,
    /// Requests answered with [`crate::Status::DeadlineExceeded`] without execution.
    pub requests_expired: u64,
    /// Requests answered with [`crate::Status::Cancelled`] without execution.
    pub requests_cancelled: u64,
    /// Retransmission timeouts after which all packets in flight of a call were sent again (E59).
    pub rollbacks: u64,
    /// Packets retransmitted for any reason.
    pub retransmitted: u64,
    /// Packets detected as lost because later ones had arrived.
    pub lost: u64,
    /// Tail-loss probes: packets sent again because the end of a message was not acknowledged.
    pub probes: u64,
    /// Retransmissions of packets that had arrived.
    pub spurious: u64,
    /// Peak use of the bits pool for arriving messages with [`crate::Recovery::Melo`], of 1,024
    /// (M18).
    pub melo_bits_peak: u32,
    /// Packets dropped because the pool was exhausted (M16).
    pub melo_refused: u64,
    /// Number of times that a frame number showed earlier frames to be lost or late.
    pub gaps: u64,
    /// Stored responses sent again for duplicate requests (E61).
    pub responses_resent: u64,
    /// Answers "in progress" sent (ADR 5).
    pub in_progress_sent: u64,
    /// Number of times that a client session waited for the credit pool of its peer (ADR 7).
    pub pool_waits: u64,
    /// Number of times that packets waited for a departure time.
    pub paced: u64,
    /// Completions delayed until the transport released the request (E24).
    pub completions_parked: u64,
    /// Packets copied because their header was still referenced (E25).
    pub tx_copied: u64,
    /// Most credits in flight on any session.
    pub max_in_flight: u32,
}

impl EndpointStats {
    /// The counter of one reason.
    pub fn dropped(&self, reason: Drop) -> u64 {
        self.drops[reason as usize]
    }

    /// All dropped frames and packets.
    pub fn drops_total(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Packets built that are neither requests nor one-way messages. Where there are messages alone,
    /// they acknowledge.
    pub fn tx_acknowledging(&self) -> u64 {
        self.tx_packets - self.tx_kinds[0] - self.tx_kinds[8]
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
    pub(crate) fn drop(&mut self, reason: Drop) {
        self.drops[reason as usize] += 1;
    }
}
