//! Wire format (step 10 of a packet's path): parsing and writing of frame and packet headers.
//!
//! A frame is one datagram: a [`FrameHeader`], then one or more packets, each a 16-byte header and
//! the data that its header implies (ADR 1; E22, E45). All numbers are little endian.
//! `docs/wire-protocol.md` has the byte layout and the reason for every field.
//!
//! Parsing is total: any bytes yield a header or a [`Malformed`], any frame body yields packets
//! until the first [`Malformed`]. No allocation, and no length is trusted.

mod frame;
mod holes;
mod packet;
mod part;
mod remaining;
mod single;

pub use frame::{
    EcnCounts, FRAME_HEADER, FrameHeader, MAX_PEER, WIRE_VERSION, decode_held, encode_held,
};
pub(crate) use frame::{UncheckedFrame, body_of, front_word};
#[cfg(test)]
pub(crate) use holes::HolesRoom;
pub(crate) use holes::NO_HOLES;
pub use holes::{HOLES_REACH, Hole, Holes, MAX_HOLES};
pub(crate) use packet::parse_front;
pub use packet::{
    MAX_MSG_SIZE, MAX_PACKETS, MAX_SESSION, MIN_DATA_PER_PACKET, PACKET_HEADER, Packet, PacketKind,
    data_len, packets_of, parse_packet,
};
pub(crate) use part::{ONE_WAY_REQUEST, PartPacket, parse_part};
pub use remaining::MAX_REMAINING_US;
pub(crate) use single::{
    DEADLINE_REQUEST, PLAIN_MESSAGE, PLAIN_REQUEST, PLAIN_RESPONSE, SinglePacket, header_words,
    parse_single, single_message, single_request, single_response,
};

/// Why bytes are not a valid frame or packet. Each variant is a counter in the endpoint's
/// statistics.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Malformed {
    /// Shorter than its header.
    #[error("truncated header")]
    Truncated,
    /// Another protocol, or a version that this build does not support.
    #[error("unknown version")]
    Version,
    /// A flag or extension that this version does not define.
    #[error("unknown flag")]
    Flags,
    /// A packet kind that this version does not define.
    #[error("unknown packet kind")]
    Kind,
    /// A field outside its range, such as a packet index beyond the message, or a count of zero.
    #[error("field out of range")]
    Range,
    /// The packet header announces more data than the frame contains.
    #[error("data beyond the end of the frame")]
    Length,
}

#[cfg(test)]
mod tests;
