//! Counters of an endpoint: readable at any time, for nothing.

use crate::wire::Malformed;

/// Why a frame or a packet was discarded. Each has its own counter; no frame leaves without one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Drop {
    /// Header shorter than it must be.
    Truncated,
    /// Another protocol or version.
    Version,
    /// Undefined flag or extension.
    Flags,
    /// Undefined packet kind.
    Kind,
    /// Field out of range.
    Range,
    /// Data beyond the frame's end.
    Length,
    /// No such peer.
    UnknownPeer,
    /// Wrong cookie: forged, or of an earlier incarnation.
    Cookie,
    /// Sent from another address than the peer's.
    WrongSource,
    /// Another packet size than agreed at connect.
    PacketSize,
    /// No such session, or one of another peer.
    UnknownSession,
    /// A packet kind that the session's role does not take.
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
}

/// How many [`Drop`] reasons there are.
pub const DROP_REASONS: usize = Drop::Unsupported as usize + 1;

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

/// How many kinds of packets are counted apart.
pub const PACKET_KINDS: usize = 8;

/// Counters since the endpoint was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndpointStats {
    /// Frames the transport delivered.
    pub rx_frames: u64,
    /// Frames that passed the checks at the door.
    pub rx_frames_accepted: u64,
    /// Packets that were taken, of any kind.
    pub rx_packets: u64,
    /// Packets that were taken, by kind: request, credit return, request-for-response, response,
    /// acknowledgement, cancellation, negative acknowledgement, gap.
    pub rx_kinds: [u64; PACKET_KINDS],
    /// Frames made.
    pub tx_frames: u64,
    /// Packets made.
    pub tx_packets: u64,
    /// Packets made, by kind, in the order of `rx_kinds`.
    pub tx_kinds: [u64; PACKET_KINDS],
    /// Frames and packets discarded, by reason; index with [`Drop`].
    pub drops: [u64; DROP_REASONS],
    /// Calls accepted.
    pub calls: u64,
    /// Calls that ended with a response.
    pub responses: u64,
    /// Calls that ended with an error.
    pub errors: u64,
    /// Of these, calls that ended because their deadline passed (F15).
    pub expired: u64,
    /// Of these, calls that were cancelled (F15).
    pub cancelled: u64,
    /// Requests given to handlers.
    pub requests: u64,
    /// Replies given by handlers, errors included.
    pub replies: u64,
    /// Requests that were answered with [`crate::Status::DeadlineExceeded`], unexecuted.
    pub requests_expired: u64,
    /// Requests that were answered with [`crate::Status::Cancelled`], unexecuted.
    pub requests_cancelled: u64,
    /// Retransmission timeouts that gave up all of a call's packets under way (E59).
    pub rollbacks: u64,
    /// Packets sent again, for whatever reason.
    pub retransmitted: u64,
    /// Packets that were found lost because others that were sent later had arrived.
    pub lost: u64,
    /// Packets sent again to see what had become of a message whose end was not heard of.
    pub probes: u64,
    /// Packets sent again that had arrived before.
    pub spurious: u64,
    /// Most bits of the pool for arriving messages with [`crate::Recovery::Melo`] that were in use,
    /// of 1,024 (M18).
    pub melo_bits_peak: u32,
    /// Packets that were dropped because the pool had no bits left (M16).
    pub melo_refused: u64,
    /// Times that a frame showed that frames before it were missing, lost or late.
    pub gaps: u64,
    /// Stored responses sent again for duplicate requests (E61).
    pub responses_resent: u64,
    /// Answers "in progress" given (F5).
    pub in_progress_sent: u64,
    /// Times that a client session had to wait for the credits that it shares with the others of its
    /// peer (F7).
    pub pool_waits: u64,
    /// Completions that had to wait for the transport to let go of the request (E24).
    pub completions_parked: u64,
    /// Packets that left from a copy because their header was still referenced (E25).
    pub tx_copied: u64,
    /// Largest number of credits in flight on any session.
    pub max_in_flight: u32,
}

impl EndpointStats {
    /// The counter of one reason.
    pub fn dropped(&self, reason: Drop) -> u64 {
        self.drops[reason as usize]
    }

    /// All discarded frames and packets.
    pub fn drops_total(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Counts a packet that was made, of the kind with that index.
    #[inline]
    pub(crate) fn sent(&mut self, kind: usize) {
        self.tx_packets += 1;
        self.tx_kinds[kind] += 1;
    }

    /// Counts a packet that was taken, of the kind with that index.
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
