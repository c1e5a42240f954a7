//! Wire format (step 10 of a packet's path): parse once, then typed and infallible.
//!
//! A frame is one datagram: a [`FrameHeader`], then one or more packets, each a 16-byte header
//! and the data its header implies (F1; E22, E45). All numbers are little endian. The byte
//! layout, with the reasons for every field, is `docs/wire-protocol.md`.
//!
//! Parsing is total: any bytes give a header or a [`Malformed`], any rest of a frame gives
//! packets until the first [`Malformed`]. Nothing here allocates or trusts a length.

mod frame;
mod holes;
mod packet;
mod remaining;
mod single;

pub use frame::{
    EcnCounts, FRAME_HEADER, FrameHeader, MAX_PEER, WIRE_VERSION, decode_held, encode_held,
};
pub(crate) use frame::{body_of, is_untimed};
#[cfg(test)]
pub(crate) use holes::HolesRoom;
pub(crate) use holes::NO_HOLES;
pub use holes::{HOLES_REACH, Hole, Holes, MAX_HOLES};
pub(crate) use packet::parse_front;
pub use packet::{
    MAX_MSG_SIZE, MAX_PACKETS, MAX_SESSION, MIN_DATA_PER_PACKET, PACKET_HEADER, Packet, PacketKind,
    data_len, packets_of, parse_packet,
};
pub use remaining::MAX_REMAINING_US;
pub(crate) use single::{
    DEADLINE_REQUEST, PLAIN_REQUEST, PLAIN_RESPONSE, SinglePacket, header_words, parse_single,
    single_request, single_response,
};

/// Why bytes were not a frame or not a packet. Each is a counter in the endpoint's statistics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// Shorter than the header it starts with.
    #[error("truncated header")]
    Truncated,
    /// Another protocol, or a version of ours that this build does not speak.
    #[error("unknown version")]
    Version,
    /// A flag or an extension that this version does not define.
    #[error("unknown flag")]
    Flags,
    /// A packet kind that this version does not define.
    #[error("unknown packet kind")]
    Kind,
    /// A field outside its range: packet index beyond the message, a count of zero.
    #[error("field out of range")]
    Range,
    /// The packet announces more data than the frame has left.
    #[error("data beyond the end of the frame")]
    Length,
}

#[cfg(test)]
mod tests;
