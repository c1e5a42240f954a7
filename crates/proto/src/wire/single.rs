//! Fast parsing and writing of messages of one packet: nearly every packet of a small RPC.
//!
//! Such a packet is recognised by its header alone, with one check of the frame's length and
//! whole-word loads. [`super::parse_packet`] parses all other packets; for these packets both give
//! the same result (`single_and_general_parsing_agree`).

use super::remaining;
use super::{PACKET_HEADER, PacketKind};

/// First byte of a request and of a response without flags: the packet kind.
pub(crate) const PLAIN_REQUEST: u8 = PacketKind::Request as u8;
pub(crate) const PLAIN_RESPONSE: u8 = PacketKind::Response as u8;
/// First byte of a request that carries the remaining time of its call.
pub(crate) const DEADLINE_REQUEST: u8 = PLAIN_REQUEST | 1 << 4;

/// First byte of a one-way message without a deadline.
pub(crate) const PLAIN_MESSAGE: u8 = PacketKind::Message as u8;

/// A packet that is a whole message, if its `kind` is one of the constants above.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SinglePacket<'f> {
    pub(crate) kind: u8,
    pub(crate) session: u32,
    pub(crate) req_num: u32,
    pub(crate) req_type: u16,
    /// The encoded remaining time of the call of a [`DEADLINE_REQUEST`].
    pub(crate) remaining: u16,
    pub(crate) data: &'f [u8],
}

impl SinglePacket<'_> {
    /// Remaining microseconds of its call, if the packet carries them.
    #[inline]
    pub(crate) fn remaining_us(&self) -> Option<u32> {
        (self.kind == DEADLINE_REQUEST).then(|| remaining::decode(self.remaining))
    }
}

/// The next packet of a frame body and the bytes after it, if it can be a single-packet message of
/// fewer than `end` bytes. `end` is at most the data size of a packet plus one.
#[inline]
pub(crate) fn parse_single(bytes: &[u8], end: u32) -> Option<(SinglePacket<'_>, &[u8])> {
    let (header, rest) = bytes.split_first_chunk::<PACKET_HEADER>()?;
    let header = u128::from_le_bytes(*header);
    let (low, high) = (header as u64, (header >> 64) as u64);
    // The upper index bits are above the size, the lower ones after it. All are 0, or the lower
    // ones are the remaining time.
    let (kind, size, index) = (low as u8, high as u32, (high >> 32) as u16);
    let has_deadline = kind == DEADLINE_REQUEST;
    if size >= end || (index != 0 && !has_deadline) {
        return None;
    }
    let (data, rest) = rest.split_at_checked(size as usize)?;
    let packet = SinglePacket {
        kind,
        session: low as u32 >> 8,
        req_num: (low >> 32) as u32,
        req_type: (high >> 48) as u16,
        remaining: index,
        data,
    };
    Some((packet, rest))
}

/// The header of a single-packet request, equal to that of [`super::Packet::header`], as two
/// little-endian words. Returned in registers: a header assembled in memory would have to reach the
/// cache before it is copied.
#[inline]
pub(crate) fn single_request(
    session: u32,
    req_num: u32,
    req_type: u16,
    size: u32,
    remaining_us: Option<u32>,
) -> [u64; 2] {
    let (kind, code) = match remaining_us {
        None => (PLAIN_REQUEST, 0),
        Some(us) => (DEADLINE_REQUEST, remaining::encode(us)),
    };
    let low = u64::from(kind) | u64::from(session) << 8 | u64::from(req_num) << 32;
    let high = u64::from(size) | u64::from(code) << 32 | u64::from(req_type) << 48;
    [low, high]
}

/// The header of a single-packet response, like [`single_request`].
#[inline]
pub(crate) fn single_response(session: u32, req_num: u32, size: u32) -> [u64; 2] {
    let low = u64::from(PLAIN_RESPONSE) | u64::from(session) << 8 | u64::from(req_num) << 32;
    [low, size.into()]
}

/// The header of a one-way message, like [`single_request`].
#[inline]
pub(crate) fn single_message(
    session: u32,
    number: u32,
    msg_type: u16,
    size: u32,
    remaining_us: Option<u32>,
) -> [u64; 2] {
    let [low, high] = single_request(session, number, msg_type, size, remaining_us);
    [low + u64::from(PLAIN_MESSAGE - PLAIN_REQUEST), high]
}

/// Header bytes as the two words of [`single_request`].
#[inline]
pub(crate) fn header_words(bytes: [u8; PACKET_HEADER]) -> [u64; 2] {
    let header = u128::from_le_bytes(bytes);
    [header as u64, (header >> 64) as u64]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{MAX_REMAINING_US, MAX_SESSION, Packet, parse_packet};
    use super::*;

    const DPP: u16 = 300;

    proptest! {
        #[test]
        fn single_and_general_parsing_agree(
            mut bytes in prop::collection::vec(any::<u8>(), 0..400),
            kind in 0_u8..32,
            size in 0_u32..302,
            plain in any::<bool>(),
        ) {
            if plain && bytes.len() >= PACKET_HEADER {
                bytes[0] = kind;
                bytes[8..12].copy_from_slice(&size.to_le_bytes());
                if kind != DEADLINE_REQUEST {
                    bytes[12..14].fill(0);
                }
            }
            let single = parse_single(&bytes, u32::from(DPP) + 1);
            let Some((s, rest)) = single else { return Ok(()) };
            let (session, req_num, msg_size) = (s.session, s.req_num, s.data.len() as u32);
            let packet = match s.kind {
                PLAIN_REQUEST | DEADLINE_REQUEST => Packet::Request {
                    session,
                    req_num,
                    req_type: s.req_type,
                    msg_size,
                    index: 0,
                    remaining_us: s.remaining_us(), one_way: false,
                    data: s.data,
                },
                PLAIN_MESSAGE => Packet::Message {
                    session,
                    number: req_num,
                    msg_type: s.req_type,
                    remaining_us: None,
                    data: s.data,
                },
                PLAIN_RESPONSE => {
                    Packet::Response { session, req_num, msg_size, index: 0, data: s.data }
                }
                _ => return Ok(()),
            };
            prop_assert_eq!(parse_packet(&bytes, DPP), Ok(Some((packet, rest))));
        }

        #[test]
        fn single_packet_messages_are_recognised_by_their_header(
            session in 0..=MAX_SESSION,
            req_num in any::<u32>(),
            req_type in any::<u16>(),
            remaining_us in prop::option::of(0..=MAX_REMAINING_US),
            data in prop::collection::vec(any::<u8>(), 0..=300),
            behind in 0_usize..40,
        ) {
            let msg_size = data.len() as u32;
            let packet = Packet::Request {
                session, req_num, req_type, msg_size, index: 0, remaining_us, one_way: false, data: &data,
            };
            let words = single_request(session, req_num, req_type, msg_size, remaining_us);
            let header = packet.header();
            prop_assert_eq!(header_words(header), words);
            let frame = [&header[..], &data, &vec![0; behind]].concat();
            let (s, rest) = parse_single(&frame, msg_size + 1).expect("it is one packet");
            let kind = if remaining_us.is_some() { DEADLINE_REQUEST } else { PLAIN_REQUEST };
            prop_assert_eq!((s.kind, s.session, s.req_num), (kind, session, req_num));
            prop_assert_eq!((s.req_type, s.data, rest.len()), (req_type, &data[..], behind));
            prop_assert_eq!(s.remaining_us().is_some(), remaining_us.is_some());
            prop_assert!(parse_single(&frame, msg_size).is_none(), "too large");
            let cut = &frame[..PACKET_HEADER + data.len()];
            prop_assert!(parse_single(&cut[..cut.len() - 1], msg_size + 1).is_none(), "cut off");

            let (number, msg_type) = (req_num, req_type);
            let message =
                Packet::Message { session, number, msg_type, remaining_us, data: &data };
            let words = single_message(session, number, msg_type, msg_size, remaining_us);
            prop_assert_eq!(words, header_words(message.header()));

            let response = Packet::Response { session, req_num, msg_size, index: 0, data: &data };
            let words = single_response(session, req_num, msg_size);
            prop_assert_eq!(words, header_words(response.header()));
        }
    }
}
