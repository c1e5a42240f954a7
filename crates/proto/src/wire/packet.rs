//! Packet headers: 16 bytes for every packet kind (E22, E45).
//!
//! ```text
//! byte 0      kind (low 4 bits) | flags (high 4 bits)
//! byte 1..4   session, the receiver's number (24 bits)
//! byte 4..8   request number (32 bits, wraps)
//! byte 8..12  size (28 bits) | index bits 16..20
//! byte 12..14 index bits 0..16; or the remaining time, when a request's deadline flag is set
//! byte 14..16 request type, or status of an error response
//! ```
//!
//! `size` and `index` mean, by kind:
//!
//! | kind | size | index | data |
//! | --- | --- | --- | --- |
//! | request, one-way | message bytes | packet of the message | that packet's bytes |
//! | response | message bytes | packet of the message | that packet's bytes |
//! | error response | 0 | 0 | none |
//! | credit return | grant, see [`Grant`](crate::Grant); 0: no limit | packets received in order | none |
//! | request-for-response | number of requested packets | first requested packet | none |
//! | acknowledgement, cancellation | 0 | 0 | none |
//! | negative acknowledgement | one past the newest packet received | packets received in order | holes |
//! | gap | 0 | 0 | none |
//! | one-way message | message bytes | 0 | the message |
//! | message acknowledgement | 64 bits: messages received after the first missing one | | none |
//! | proof of an address | the upper 28 bits of the token; the request number has the lower 32 | 0 | none |
//!
//! With the deadline flag, a request packet is packet 0 of its message, and `index` bits 0..16 are
//! the remaining time as encoded by [`super::remaining`]; bits 16..20 are 0.

use zerocopy::byteorder::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Malformed;
use super::holes::Holes;
use super::remaining;
use crate::budget::Grant;

/// Bytes of a packet header.
pub const PACKET_HEADER: usize = size_of::<RawPacket>();
const _: () = assert!(PACKET_HEADER == 16, "E45: credit returns are 16 bytes");

/// Largest message the format can describe: 2^28 - 1 bytes.
pub const MAX_MSG_SIZE: u32 = (1 << 28) - 1;
/// Largest session number: 24 bits.
pub const MAX_SESSION: u32 = (1 << 24) - 1;
/// Packet indices are 20 bits.
pub const MAX_PACKETS: u32 = 1 << 20;
/// Smallest data size per packet that two endpoints may agree on; keeps every message of
/// [`MAX_MSG_SIZE`] within [`MAX_PACKETS`].
pub const MIN_DATA_PER_PACKET: u16 = 256;
const _: () = assert!(MAX_MSG_SIZE.div_ceil(MIN_DATA_PER_PACKET as u32) <= MAX_PACKETS);

const FLAG_DEADLINE: u8 = 1;
const FLAG_ONE_WAY: u8 = 2;
const FLAG_IN_PROGRESS: u8 = 1;
const FLAG_ERROR: u8 = 1;

/// The flags of each kind, 4 bits each.
const FLAGS: u64 = ((FLAG_DEADLINE | FLAG_ONE_WAY) as u64) << (4 * PacketKind::Request as u8)
    | (FLAG_IN_PROGRESS as u64) << (4 * PacketKind::CreditReturn as u8)
    | (FLAG_ERROR as u64) << (4 * PacketKind::Response as u8)
    | (FLAG_DEADLINE as u64) << (4 * PacketKind::Message as u8);

/// Kinds of packets, with their numbers on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PacketKind {
    /// The rest of the frame is padding.
    Padding = 0,
    /// A packet of a request.
    Request = 1,
    /// Credit return (CR).
    CreditReturn = 2,
    /// Request-for-response (RFR).
    Rfr = 3,
    /// A packet of a response, or an error instead of a response.
    Response = 4,
    /// A one-way message of one packet.
    Message = 5,
    /// The client has the response; the server may free it (ADR 6).
    Ack = 6,
    /// The client has cancelled the request (ADR 15).
    Cancel = 7,
    /// Negative acknowledgement (NACK): a credit return that lists missing packets.
    Nack = 8,
    /// The sender of this packet has detected a missing frame.
    Gap = 9,
    /// The one-way messages of a session that have arrived.
    MessageAck = 10,
    /// The sender of this packet has got a challenge over the control connection.
    Proof = 11,
}

#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawPacket {
    kind_flags: u8,
    session: [u8; 3],
    req_num: U32,
    size_index: U32,
    index_low: U16,
    req_type: U16,
}

/// A parsed packet; every field is within its range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packet<'f> {
    /// A packet of a request.
    Request {
        /// The server's session number.
        session: u32,
        /// Request number.
        req_num: u32,
        /// Request type: selects the handler.
        req_type: u16,
        /// Size of the whole message, bytes.
        msg_size: u32,
        /// Index of the packet in the message.
        index: u32,
        /// On packet 0 of a call with a deadline: microseconds that remained when the packet was
        /// sent, at most [`super::MAX_REMAINING_US`]; rounded down on the wire (ADR 15).
        remaining_us: Option<u32>,
        /// It is a one-way message, for the handlers of messages.
        one_way: bool,
        /// This packet's bytes.
        data: &'f [u8],
    },
    /// Credit return: `count` request packets have been received in order.
    CreditReturn {
        /// The client's session number.
        session: u32,
        /// Request number.
        req_num: u32,
        /// Cumulative count (ADR 4).
        count: u32,
        /// The request is complete and its handler has not answered yet (ADR 5), or it waits for a grant.
        in_progress: bool,
        /// The packets that may be sent.
        grant: Grant,
    },
    /// Negative acknowledgement: a credit return for a request with missing packets between
    /// received ones `[MELO §3.2.4]` (ADR 4).
    Nack {
        /// The client's session number.
        session: u32,
        /// Request number.
        req_num: u32,
        /// Cumulative count (ADR 4): RCV.NXT.
        count: u32,
        /// One past the newest packet received: RCV.HIGH.
        high: u32,
        /// The most recent holes in between. With [`MAX_HOLES`](super::MAX_HOLES) holes there may
        /// be older ones that are not listed; with fewer, all other packets have arrived.
        holes: Holes<'f>,
    },
    /// The sender of this packet has received a frame whose number leaves a gap. The missing frames
    /// may come late or never. Belongs to no session.
    Gap,
    /// The answer to a challenge of the sender's address. Belongs to no session.
    Proof {
        /// The token of the challenge, 60 bits.
        token: u64,
    },
    /// Request-for-response: send `count` packets of the response from `first` on.
    Rfr {
        /// The server's session number.
        session: u32,
        /// Request number.
        req_num: u32,
        /// First requested packet.
        first: u32,
        /// Number of requested packets, at least 1.
        count: u32,
    },
    /// A packet of a response.
    Response {
        /// The client's session number.
        session: u32,
        /// Request number.
        req_num: u32,
        /// Size of the whole message, bytes.
        msg_size: u32,
        /// Index of the packet in the message.
        index: u32,
        /// This packet's bytes.
        data: &'f [u8],
    },
    /// An error instead of a response.
    ErrorResponse {
        /// The client's session number.
        session: u32,
        /// Request number.
        req_num: u32,
        /// Status code; `crate::Status` names them.
        status: u16,
    },
    /// A one-way message of one packet.
    Message {
        /// The server's session number.
        session: u32,
        /// Number of the message in its session.
        number: u32,
        /// Selects the handler.
        msg_type: u16,
        /// As of a request.
        remaining_us: Option<u32>,
        /// The message, at most one packet's data.
        data: &'f [u8],
    },
    /// The one-way messages of a session that have arrived.
    MessageAck {
        /// The client's session number.
        session: u32,
        /// Number of the first message that has not arrived.
        next: u32,
        /// Bit n: message `next + 1 + n` has arrived.
        later: u64,
    },
    /// The client has the whole response.
    Ack {
        /// The server's session number.
        session: u32,
        /// Request number.
        req_num: u32,
    },
    /// The client has cancelled the request and requests an answer, after which it can use the slot
    /// again (ADR 15).
    Cancel {
        /// The server's session number.
        session: u32,
        /// Request number.
        req_num: u32,
    },
}

/// Number of packets of a message of `msg_size` bytes; an empty message has one.
#[inline]
pub fn packets_of(msg_size: u32, data_per_packet: u16) -> u32 {
    let dpp = u32::from(data_per_packet);
    if msg_size <= dpp { 1 } else { msg_size.div_ceil(dpp) }
}

/// Data bytes of packet `index` of a message; the index must be below [`packets_of`].
#[inline]
pub fn data_len(msg_size: u32, index: u32, data_per_packet: u16) -> usize {
    let dpp = u32::from(data_per_packet);
    (msg_size - index * dpp).min(dpp) as usize
}

/// Parses the next packet of a frame body. `Ok(None)` at its end (no bytes remain, or padding).
#[inline]
pub fn parse_packet(
    bytes: &[u8],
    data_per_packet: u16,
) -> Result<Option<(Packet<'_>, &[u8])>, Malformed> {
    parse(bytes, data_per_packet, 0)
}

/// Parses the front of a frame body whose last `extra` bytes (at least one) are not available.
/// Returns the packet, with the available part of its data, if the body is exactly one packet of a
/// request or response of several packets; otherwise `None`, and the caller has to copy the rest.
pub(crate) fn parse_front(bytes: &[u8], data_per_packet: u16, extra: usize) -> Option<Packet<'_>> {
    let (packet, _) = parse(bytes, data_per_packet, extra).ok()??;
    let (Packet::Request { msg_size, index, data, .. }
    | Packet::Response { msg_size, index, data, .. }) = packet
    else {
        return None;
    };
    let whole = data_len(msg_size, index, data_per_packet) == data.len() + extra;
    (whole && packets_of(msg_size, data_per_packet) > 1).then_some(packet)
}

/// [`parse_packet`] of a frame body whose last packet may lack the last `extra` bytes of its data.
#[inline(always)]
fn parse(
    bytes: &[u8],
    data_per_packet: u16,
    extra: usize,
) -> Result<Option<(Packet<'_>, &[u8])>, Malformed> {
    if bytes.is_empty() || bytes[0] == PacketKind::Padding as u8 {
        return Ok(None);
    }
    let (raw, rest) = RawPacket::ref_from_prefix(bytes).map_err(|_| Malformed::Truncated)?;
    let (kind, flags) = (raw.kind_flags & 0x0f, raw.kind_flags >> 4);
    let [s0, s1, s2] = raw.session;
    let session = u32::from_le_bytes([s0, s1, s2, 0]);
    let req_num = raw.req_num.get();
    let size = raw.size_index.get() & MAX_MSG_SIZE;
    let index = (raw.size_index.get() >> 28) << 16 | u32::from(raw.index_low.get());
    let req_type = raw.req_type.get();
    let allowed_flags = (FLAGS >> (4 * kind)) as u8 & 0xf;
    if flags & !allowed_flags != 0 {
        return Err(Malformed::Flags);
    }
    let body = |rest| take_data(rest, size, index, data_per_packet, extra);
    let parsed = match kind {
        1 => {
            let (index, remaining_us) = match flags & FLAG_DEADLINE {
                0 => (index, None),
                _ => (0, Some(take_remaining(index)?)),
            };
            let (data, rest) = take_data(rest, size, index, data_per_packet, extra)?;
            let (msg_size, one_way) = (size, flags & FLAG_ONE_WAY != 0);
            let packet = Packet::Request {
                session,
                req_num,
                req_type,
                msg_size,
                index,
                remaining_us,
                one_way,
                data,
            };
            (packet, rest)
        }
        2 => {
            let in_progress = flags & FLAG_IN_PROGRESS != 0;
            let grant = Grant::from_bits(size);
            (Packet::CreditReturn { session, req_num, count: index, in_progress, grant }, rest)
        }
        3 if size == 0 => return Err(Malformed::Range),
        3 => (Packet::Rfr { session, req_num, first: index, count: size }, rest),
        4 if flags & FLAG_ERROR != 0 => {
            (Packet::ErrorResponse { session, req_num, status: req_type }, rest)
        }
        4 => {
            let (data, rest) = body(rest)?;
            (Packet::Response { session, req_num, msg_size: size, index, data }, rest)
        }
        5 if size > data_per_packet.into() => return Err(Malformed::Range),
        5 => {
            let remaining_us = match flags & FLAG_DEADLINE {
                0 => None,
                _ => Some(take_remaining(index)?),
            };
            let (data, rest) = take_data(rest, size, 0, data_per_packet, extra)?;
            let (number, msg_type) = (req_num, req_type);
            (Packet::Message { session, number, msg_type, remaining_us, data }, rest)
        }
        6 => (Packet::Ack { session, req_num }, rest),
        7 => (Packet::Cancel { session, req_num }, rest),
        8 => {
            let (holes, rest) = Holes::parse(rest, req_type, index, size)?;
            (Packet::Nack { session, req_num, count: index, high: size, holes }, rest)
        }
        9 => (Packet::Gap, rest),
        10 => {
            let later = u64::from(size) | u64::from(index) << 28 | u64::from(req_type) << 48;
            (Packet::MessageAck { session, next: req_num, later }, rest)
        }
        11 => (Packet::Proof { token: u64::from(size) << 32 | u64::from(req_num) }, rest),
        _ => return Err(Malformed::Kind),
    };
    Ok(Some(parsed))
}

/// The remaining time, which replaces the low bits of a packet's index.
#[cold]
fn take_remaining(index: u32) -> Result<u32, Malformed> {
    u16::try_from(index).map(remaining::decode).map_err(|_| Malformed::Range)
}

fn take_data(
    rest: &[u8],
    size: u32,
    index: u32,
    data_per_packet: u16,
    extra: usize,
) -> Result<(&[u8], &[u8]), Malformed> {
    if data_per_packet < MIN_DATA_PER_PACKET || index >= packets_of(size, data_per_packet) {
        return Err(Malformed::Range);
    }
    let len = data_len(size, index, data_per_packet);
    if extra > 0 && len == rest.len() + extra {
        return Ok((rest, &[]));
    }
    rest.split_at_checked(len).ok_or(Malformed::Length)
}

impl Packet<'_> {
    /// Writes the packet's header; the data follows on the wire.
    #[inline]
    pub fn write_header(&self, out: &mut [u8; PACKET_HEADER]) {
        *out = self.header();
    }

    /// The packet's header as on the wire. Cheap where the kind is a compile-time constant.
    #[inline]
    pub(crate) fn header(&self) -> [u8; PACKET_HEADER] {
        let (kind, flags, session, req_num, size, index, req_type) = match *self {
            Packet::Request {
                session,
                req_num,
                req_type,
                msg_size,
                index,
                remaining_us,
                one_way,
                ..
            } => {
                let (flags, index) = match remaining_us {
                    None => (0, index),
                    Some(us) => {
                        debug_assert!(index == 0, "only packet 0 has room for the remaining time");
                        (FLAG_DEADLINE, u32::from(remaining::encode(us)))
                    }
                };
                let flags = flags | if one_way { FLAG_ONE_WAY } else { 0 };
                (PacketKind::Request, flags, session, req_num, msg_size, index, req_type)
            }
            Packet::CreditReturn { session, req_num, count, in_progress, grant } => {
                let flags = if in_progress { FLAG_IN_PROGRESS } else { 0 };
                (PacketKind::CreditReturn, flags, session, req_num, grant.bits(), count, 0)
            }
            Packet::Rfr { session, req_num, first, count } => {
                (PacketKind::Rfr, 0, session, req_num, count, first, 0)
            }
            Packet::Response { session, req_num, msg_size, index, .. } => {
                (PacketKind::Response, 0, session, req_num, msg_size, index, 0)
            }
            Packet::ErrorResponse { session, req_num, status } => {
                (PacketKind::Response, FLAG_ERROR, session, req_num, 0, 0, status)
            }
            Packet::Message { session, number, msg_type, remaining_us, data } => {
                let (flags, index) = match remaining_us {
                    None => (0, 0),
                    Some(us) => (FLAG_DEADLINE, u32::from(remaining::encode(us))),
                };
                let size = data.len() as u32;
                (PacketKind::Message, flags, session, number, size, index, msg_type)
            }
            Packet::MessageAck { session, next, later } => {
                let (size, index) = (later as u32 & MAX_MSG_SIZE, (later >> 28) as u32);
                let index = index & (MAX_PACKETS - 1);
                (PacketKind::MessageAck, 0, session, next, size, index, (later >> 48) as u16)
            }
            Packet::Ack { session, req_num } => (PacketKind::Ack, 0, session, req_num, 0, 0, 0),
            Packet::Cancel { session, req_num } => {
                (PacketKind::Cancel, 0, session, req_num, 0, 0, 0)
            }
            Packet::Nack { session, req_num, count, high, holes } => {
                (PacketKind::Nack, 0, session, req_num, high, count, holes.len() as u16)
            }
            Packet::Gap => (PacketKind::Gap, 0, 0, 0, 0, 0, 0),
            Packet::Proof { token } => {
                let size = (token >> 32) as u32 & MAX_MSG_SIZE;
                (PacketKind::Proof, 0, 0, token as u32, size, 0, 0)
            }
        };
        debug_assert!(session <= MAX_SESSION && size <= MAX_MSG_SIZE && index < MAX_PACKETS);
        let [s0, s1, s2, _] = session.to_le_bytes();
        zerocopy::transmute!(RawPacket {
            kind_flags: kind as u8 | flags << 4,
            session: [s0, s1, s2],
            req_num: req_num.into(),
            size_index: (size | (index >> 16) << 28).into(),
            index_low: (index as u16).into(),
            req_type: req_type.into(),
        })
    }

    /// The packet's data; empty for kinds without data.
    pub fn data(&self) -> &[u8] {
        match self {
            Packet::Request { data, .. }
            | Packet::Response { data, .. }
            | Packet::Message { data, .. } => data,
            Packet::Nack { holes, .. } => holes.as_bytes(),
            _ => &[],
        }
    }
}
